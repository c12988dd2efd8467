/* cli/doctor.h - what the files of margay doctor share: what is known of the machine, the findings,
 * and the ways to look.
 *
 *     doctor.c          the command: looks, shows, and the exit status
 *     doctor_cpu.c      instruction set, cores, siblings, quota, NUMA, governor, neighbours
 *     doctor_memory.c   memory, its limits, swap, huge pages
 *     doctor_files.c    container, open files, /tmp
 *     doctor_model.c    the model: whole, converted, room for the conversion
 *     doctor_speed.c    bandwidth and operations measured; the time of an answer calculated
 *     doctor_redis.c    PING
 *     doctor_report.c   text and JSON
 *
 * A finding is a fact with a level. Everything below `ok` says why it matters and how it is mended,
 * in words that fit where margay runs (a container's limits are lifted from outside). Files are
 * read below `root`, so that a copy of another machine's files is judged as that machine would be:
 *     those of cpu/topology.h
 *     ROOT/proc/{cpuinfo,meminfo,stat,loadavg,self/limits,sys/vm/overcommit_memory}
 *     ROOT/sys/devices/system/cpu/cpuN/cpufreq/.., cpufreq/boost, intel_pstate/no_turbo
 *     ROOT/sys/devices/system/node/nodeN/meminfo, ROOT/sys/kernel/mm/transparent_hugepage/enabled
 *     ROOT/.dockerenv, run/.containerenv, run/systemd/container, run/secrets/kubernetes.io
 *     ROOT/statvfs: lines "PATH BYTES FREE" in place of the system call
 * What is absent isn't judged. Strings live in the options' arena. One thread.
 */
#ifndef MG_CLI_DOCTOR_H
#define MG_CLI_DOCTOR_H

#include "cli/session.h"
#include "cpu/topology.h"
#include "kernels/limits.h"
#include "weights/config.h"
#include "weights/recipe.h"

enum mg_level {
    MG_LEVEL_OK,
    MG_LEVEL_NOTE,    /* worth knowing */
    MG_LEVEL_WARNING, /* slower, or less safe, than it need be */
    MG_LEVEL_PROBLEM, /* fails, or is of no use */
    MG_N_LEVEL
};

struct mg_finding {
    const char *id; /* stable word: "quota" */
    enum mg_level level;
    const char *found; /* what is there, with numbers */
    const char *why;   /* one sentence; NULL for ok */
    const char *mend;  /* a command, or what to do where there is none; NULL for ok */
};

/* Where margay runs, which says how limits are lifted. */
enum mg_place { MG_PLACE_HOST, MG_PLACE_DOCKER, MG_PLACE_KUBERNETES, MG_PLACE_CONTAINER };

/* An answer of `answer_tokens` about a new picture. */
struct mg_expected {
    size_t width, height, image_tokens, prompt_tokens, answer_tokens;
    double first_seconds, token_seconds, answer_seconds;
};

enum { MG_MAX_FINDING = 64, MG_N_EXPECTED = 2 };

struct mg_doctor {
    struct mg_options *o;
    const char *root; /* "" for this machine */
    struct mg_features features;
    struct mg_topology topology;
    int n_thread; /* that margay would use here */
    enum mg_place place;

    /* The model that memory and time are judged for. */
    const char *model; /* for people */
    struct mg_config config;
    enum mg_weight_mode weights; /* never AUTO */
    double weight_bytes;         /* of the mapped weights */
    double need_bytes;           /* with what one question takes */

    uint64_t memory_total, memory_available; /* bytes; 0: not known */
    struct mg_limit_rate rate[MG_N_LIMIT];
    bool measured;
    struct mg_expected expected[MG_N_EXPECTED];

    struct mg_finding finding[MG_MAX_FINDING];
    size_t n_finding;
    bool failed; /* out of memory: a text is missing */
};

/* why and mend as in struct mg_finding; they live as long as `d` or for ever. */
void mg_doctor_say(struct mg_doctor *d, enum mg_level level, const char *id, const char *why,
                   const char *mend, const char *fmt, ...) MG_PRINTF(6, 7);
/* A text that lives as long as `d`. */
const char *mg_doctor_text(struct mg_doctor *d, const char *fmt, ...) MG_PRINTF(2, 3);
/* The one of four texts that fits the place; NULL: the container's, and the host's for that. */
const char *mg_doctor_by_place(const struct mg_doctor *d, const char *host, const char *docker,
                               const char *kubernetes, const char *container);

/* ROOT + path as text without blanks at its end, or NULL. */
char *mg_doctor_read(struct mg_doctor *d, const char *path);
/* The file is one whole number. */
bool mg_doctor_number(struct mg_doctor *d, const char *path, uint64_t *out);
/* The number behind `key` at the beginning of a line of `text`: "MemTotal:", "nr_throttled". */
bool mg_doctor_field(const char *text, const char *key, uint64_t *out);
bool mg_doctor_exists(struct mg_doctor *d, const char *path);

void mg_doctor_place(struct mg_doctor *d); /* first: the others' advice depends on it */
void mg_doctor_cpu(struct mg_doctor *d);
/* Sets the model's fields. Without --model: the published 2B model's. */
void mg_doctor_model(struct mg_doctor *d);
void mg_doctor_memory(struct mg_doctor *d);
void mg_doctor_files(struct mg_doctor *d);
/* A wrong URL is a failure (usage); everything else is a finding. */
enum mg_status mg_doctor_redis(struct mg_doctor *d, struct mg_err *err);
void mg_doctor_speed(struct mg_doctor *d);

bool mg_doctor_show_text(const struct mg_doctor *d, struct mg_buf *out);
bool mg_doctor_show_json(const struct mg_doctor *d, struct mg_buf *out);
size_t mg_doctor_count(const struct mg_doctor *d, enum mg_level level);

#endif
