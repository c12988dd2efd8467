/* cli/bench.h - what the files of margay bench share: the figures, and the ways to show them.
 *
 *     bench.c          measures and fills struct mg_bench
 *     bench_child.c    start-up and memory, in fresh processes of this program
 *     bench_shape.c    a folder of random weights for --shape
 *     bench_report.c   the table, JSON and CSV
 *     bench_plot.c     the SVG
 *
 * Every figure is a median with the least and the greatest value beside it, and where the machine
 * sets a limit the shortest time that it would allow.
 */
#ifndef MG_CLI_BENCH_H
#define MG_CLI_BENCH_H

#include "cli/session.h"
#include "cpu/topology.h"
#include "kernels/limits.h"
#include "model/work.h"

enum mg_metric {
    MG_METRIC_IMAGE,   /* decoding and resizing the file */
    MG_METRIC_VISION,  /* patches to features */
    MG_METRIC_PREFILL, /* prompt to logits */
    MG_METRIC_FIRST_TOKEN,
    MG_METRIC_DECODE,        /* per token */
    MG_METRIC_SECOND,        /* first token of another question on the same picture */
    MG_METRIC_READY,         /* start of the process to the first question accepted */
    MG_METRIC_FIRST_REQUEST, /* first token of a new process' first question */
    MG_METRIC_PEAK_RSS,
    MG_METRIC_RSS_ANON, /* of that, what no other process can share: at its peak */
    MG_N_METRIC
};

struct mg_metric_info {
    const char *key;   /* in JSON and CSV, "vision_ms" */
    const char *share; /* key of the share of the limit, NULL where there is no limit */
    const char *label; /* for people */
    const char *unit;
};
extern const struct mg_metric_info mg_metrics[MG_N_METRIC];

struct mg_figure {
    size_t n; /* values it was made of; 0: not measured, and then not shown */
    double median, min, max;
    double limit; /* the least possible value here, 0 for none */
};

/* One question on a new picture and another on the same: milliseconds. */
struct mg_bench_run {
    double value[MG_METRIC_READY];
};

/* The machine's limits with one number of threads: operations or bytes a second. */
struct mg_bench_limits {
    size_t n_thread;
    struct mg_limit_rate rate[MG_N_LIMIT];
};

enum { MG_MAX_BENCH_RUN = 100, MG_MAX_BENCH_LIMITS = 16, MG_MAX_BENCH_BATCH = 16 };

struct mg_bench {
    struct mg_features features;
    struct mg_topology topology;
    size_t n_parameter, weight_bytes, context; /* bytes of all tensors; tokens */
    size_t n_thread;
    const char *model; /* for people: the folder's name, or the shape; borrowed */
    bool random_weights;
    char weights[16];             /* "bf16" */
    struct mg_image_report image; /* of the last run; `format` is a constant */
    size_t n_patch;
    size_t prompt_tokens, generated_tokens;
    size_t second_cached_tokens, second_prompt_tokens; /* of the second question's prompt: there
                                                          already, and those that had to be read */
    size_t n_run, n_warmup;
    struct mg_bench_run run[MG_MAX_BENCH_RUN];
    struct mg_figure figure[MG_N_METRIC];

    /* ms of one step of n conversations decoding together. */
    size_t n_batch;
    size_t batch[MG_MAX_BENCH_BATCH];
    struct mg_figure batch_figure[MG_MAX_BENCH_BATCH];

    struct mg_work vision_work, prefill_work;
    double bytes_per_token;                             /* read, in the middle of the answer */
    struct mg_bench_limits limits[MG_MAX_BENCH_LIMITS]; /* ascending; the last is the engine's */
    struct mg_limit_rate loop[MG_MAX_LIMIT_LOOP];       /* single instructions, all threads */
    size_t n_limits, n_round, n_loop;
    size_t read_distance, read_buffer; /* bytes */
    size_t cache_bytes;                /* last-level cache, 0 when the system doesn't say */
    double steal_share;                /* of the processors' time, taken by other machines */
};

/* Median, least and greatest of v[0..n), which is sorted here. */
struct mg_figure mg_figure_of(double *v, size_t n);
/* limit / median, 0 where there is none. */
double mg_figure_share(const struct mg_figure *f);

bool mg_bench_json(const struct mg_bench *b, struct mg_buf *out);
bool mg_bench_csv(const struct mg_bench *b, struct mg_buf *out);
bool mg_bench_table(const struct mg_bench *b, struct mg_buf *out);
bool mg_bench_plot(const struct mg_bench *b, struct mg_buf *out);

/* A 24-bit bitmap of noise on a slope; other bytes for every seed. false: out of memory. */
bool mg_bench_picture(uint32_t width, uint32_t height, uint64_t seed, struct mg_buf *out);

/* The folder of this shape's random weights, written where it isn't yet; lives as long as the
 * options. demo: the demo model's folder. */
enum mg_status mg_bench_shape(struct mg_options *o, const char *name, const char *demo,
                              struct mg_progress *progress, const char **folder,
                              struct mg_err *err);

/* The published 2B model's configuration; the ids of its control tokens are made up. */
enum mg_status mg_bench_shape_2b(struct mg_config *out, struct mg_err *err);

/* --image's file or the picture that --size asks for. */
enum mg_status mg_bench_load_picture(const struct mg_options *o, uint64_t seed, struct mg_buf *out,
                                     struct mg_err *err);
/* The text that makes the prompt as long as --prompt-tokens says, beside a picture of n_image
 * tokens: as near as whole words come, never longer. */
enum mg_status mg_bench_make_text(const struct mg_options *o, const char *folder, size_t n_image,
                                  struct mg_buf *out, struct mg_err *err);

/* Am I such a fresh process? */
bool mg_bench_is_child(void);
const char *mg_bench_child_folder(void); /* the model's folder then */
/* Does what the parent asked for and tells it; `o` is the parent's command line with that model. */
enum mg_status mg_bench_child(struct mg_options *o, struct mg_err *err);

struct mg_bench_start {
    double ready_ms;
    double first_request_ms, peak_rss_mb, rss_anon_mb; /* MiB; 0 unless a question was asked */
};
/* Starts this program anew with the same command line; `ask`: has it answer a question too. */
enum mg_status mg_bench_start(const char *folder, bool ask, struct mg_bench_start *out,
                              struct mg_err *err);

#endif
