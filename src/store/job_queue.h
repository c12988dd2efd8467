/* store/job_queue.h - a queue of jobs in Redis, shared by gateways that hand jobs in and workers
 * that do them.
 *
 *   gateway  submit ----> lanes by priority and key --take--> worker
 *            events <---- the job's stream         <--emit--
 *
 * What it promises: a job that was handed in ("ok", "known") ends exactly once, as done, failed,
 * cancelled or dead, whoever dies in between. A worker holds a lease on what it runs and renews it
 * (beat); when it doesn't, anyone's `reap` puts the job back at its old place, and after max_tries
 * starts into the stream of dead letters. Every start has a number (attempt), and what comes from
 * an older one is refused: MG_OWNER_LOST. Submits may be repeated. Everything has a time after
 * which it expires.
 *
 * Turns: priority first (each eighth turn from the lowest up), then the key with the fewest running
 * jobs, then the oldest; a worker's pictures decide among the first few of that key.
 *
 * All of that is one script (job_queue.lua), which Redis runs whole or not at all; this file puts
 * it in C. Events are places in the answer's bytes: an event ends at `end`, and whoever has
 * n bytes asks for what lies behind n.
 *
 * A struct mg_queue is one connection for one thread. Calls fail at once (redis_*) while the server
 * is away; it is asked again after a pause that grows to two seconds. redis_full: it takes nothing
 * more (memory, disk); what is open goes on, new jobs are refused. Redis 6.2 or later. Keys:
 * "margay:{q:NAME}:...", one slot of a cluster. SIGPIPE must be ignored.
 */
#ifndef MG_STORE_JOB_QUEUE_H
#define MG_STORE_JOB_QUEUE_H

#include "base/mem.h"
#include "store/redis_link.h"

#include <stdint.h>

enum {
    MG_QUEUE_NAME_BYTES = 65, /* letters, digits, '-', '_', '.', ':' */
    MG_JOB_ID_BYTES = 37,     /* "job-" and 32 digits, and a zero byte */
    MG_JOB_TENANT_BYTES = 33, /* 32 hexadecimal digits; zeros for nobody in particular */
    MG_JOB_MAX_BLOBS = 64,
    MG_QUEUE_READ_EVENTS = 8, /* of one job that one call reads */
    MG_JOB_PLACE_BYTES = 48   /* an ID of a stream: "1700000000000-0" */
};

/* Texts are borrowed until mg_queue_close. 0 means the default in brackets. */
struct mg_queue_options {
    struct mg_redis_url url;
    struct mg_redis_tls tls;
    const char *name;     /* ["default"] */
    double lease_seconds; /* [10] */
    unsigned max_tries;   /* starts of a job whose workers die [3] */
    double wait_seconds;  /* longest time in the queue [300] */
    double keep_seconds;  /* that an ended job can be asked about [600] */
    double live_seconds;  /* that a job, its events and pictures stay without a sign [3600] */
    size_t max_waiting;   /* jobs [1000] */
    size_t max_bytes;     /* of open jobs with their pictures [1 GiB] */
    double call_seconds;  /* for one call [1] */
    double aged_seconds;  /* a job that has waited so long isn't passed for a picture's sake [30] */
};
bool mg_queue_name_valid(const char *name);

struct mg_queue;
/* Connects with the first call. */
enum mg_status mg_queue_open(const struct mg_queue_options *options, struct mg_queue **out,
                             struct mg_err *err);
void mg_queue_close(struct mg_queue *q); /* NULL is fine */
/* The options with their defaults. */
const struct mg_queue_options *mg_queue_settings(const struct mg_queue *q);
/* Is there a connection now? */
bool mg_queue_is_up(const struct mg_queue *q);

/* A picture of a job. `name` is how its body calls it. */
struct mg_job_blob {
    char name[81];
    char digest[65]; /* SHA-256 in hexadecimal digits */
};

/* --- gateways --- */
struct mg_job_order {
    const char *id, *tenant;
    const char *priority; /* "high", "normal", "low" */
    bool stream;          /* the answer is an event stream */
    const char *gateway;  /* whose inbox is told of events */
    const char *path;     /* "/v1/chat/completions" */
    const void *body;     /* [n_body] */
    size_t n_body;
    size_t bytes; /* that it counts as: body and pictures */
    const struct mg_job_blob *blob;
    const struct mg_slice *data; /* [n_blob] their bytes */
    size_t n_blob;
};
enum mg_submit { MG_SUBMIT_OK, MG_SUBMIT_FULL };
/* Hands the job in, its pictures first where Redis lacks them. *seconds: with FULL, when there may
 * be room. Repeating one that was handed in is OK. MG_ERR_ARGUMENT, code job_id_taken: another key
 * has a job of this id. */
enum mg_status mg_queue_submit(struct mg_queue *q, const struct mg_job_order *job,
                               enum mg_submit *told, double *seconds, struct mg_err *err);

struct mg_job_state {
    char
        state[16]; /* "waiting", "running", "done", "failed", "cancelled", "dead"; "" no such job */
    bool stream;
    uint64_t offset; /* bytes of the answer so far */
    unsigned attempt;
    int64_t created_ms, ended_ms; /* since 1970; ended 0: it hasn't */
    char code[32];                /* how it ended if not well */
    uint64_t ahead;               /* jobs of the same key and priority before it */
    char worker[64], priority[8];
};
/* Of this tenant's job. gateway "": nobody's inbox is told from now on. */
enum mg_status mg_queue_state(struct mg_queue *q, const char *id, const char *tenant,
                              const char *gateway, struct mg_job_state *out, struct mg_err *err);
/* *found false: no such job of this tenant. An ended one stays as it is. */
enum mg_status mg_queue_cancel(struct mg_queue *q, const char *id, const char *tenant, bool *found,
                               struct mg_err *err);

/* One event; views valid during the call. */
struct mg_queue_event {
    size_t job;           /* index of what was asked for */
    const char *head;     /* not NULL: the reply's status and fields, before all others */
    struct mg_slice data; /* bytes end - n .. end of the answer */
    uint64_t end;
    const char *state; /* not NULL: the last event */
    const char *code;  /* with it */
    const char *place; /* of this event */
};
typedef void mg_queue_event_fn(void *user, const struct mg_queue_event *event);
/* At most MG_QUEUE_READ_EVENTS of each job behind `after[i]` ("0-0" all). Does not wait. */
enum mg_status mg_queue_events(struct mg_queue *q, const char *const *id, const char *const *after,
                               size_t n, mg_queue_event_fn *fn, void *user, struct mg_err *err);
/* A note of this job in the gateway's inbox, as if there were news: wakes who waits there. */
enum mg_status mg_queue_note(struct mg_queue *q, const char *gateway, const char *id,
                             struct mg_err *err);
/* Where the gateway's inbox ends now; it is made when it isn't there. */
enum mg_status mg_queue_inbox(struct mg_queue *q, const char *gateway,
                              char place[MG_JOB_PLACE_BYTES], struct mg_err *err);
/* Waits until something comes behind `place`, which moves on; fn is called with each job's id. */
enum mg_status mg_queue_wait_inbox(struct mg_queue *q, const char *gateway,
                                   char place[MG_JOB_PLACE_BYTES], double seconds,
                                   void (*fn)(void *user, const char *id), void *user,
                                   struct mg_err *err);

struct mg_queue_look {
    uint64_t waiting, running, bytes, slots;
    uint64_t submitted, refused, takeovers, released, done, failed, cancelled, dead;
};
/* fn is called with what each living worker says of itself (mg_queue_beat). */
enum mg_status mg_queue_look(struct mg_queue *q, struct mg_queue_look *out,
                             void (*fn)(void *user, const char *about, size_t n), void *user,
                             struct mg_err *err);

/* --- workers --- */
struct mg_job_taken { /* views valid until the next call */
    const char *id, *tenant, *priority, *path;
    unsigned attempt;
    bool stream;
    struct mg_slice body;
    struct mg_job_blob blob[MG_JOB_MAX_BLOBS];
    size_t n_blob;
    int64_t created_ms;
    uint64_t offset; /* bytes that earlier attempts have sent */
    double waited_seconds;
};
/* Up to n jobs; fn is called for each. recent: digests of pictures that this worker has. place:
 * for mg_queue_wait_jobs. */
enum mg_status mg_queue_take(struct mg_queue *q, const char *worker, size_t n,
                             const char *const *recent, size_t n_recent,
                             void (*fn)(void *user, const struct mg_job_taken *job), void *user,
                             char place[MG_JOB_PLACE_BYTES], struct mg_err *err);
/* Until a job was handed in since the take that gave `place`, or the time is over. */
enum mg_status mg_queue_wait_jobs(struct mg_queue *q, const char place[MG_JOB_PLACE_BYTES],
                                  double seconds, struct mg_err *err);
/* A picture's bytes into `out`; MG_ERR_NOT_FOUND, code blob_gone. */
enum mg_status mg_queue_blob(struct mg_queue *q, const char *tenant, const char *digest,
                             struct mg_buf *out, struct mg_err *err);

/* GAP: Redis has lost what the attempt had already written; it has to be given back. */
enum mg_owner { MG_OWNER_OK, MG_OWNER_CANCEL, MG_OWNER_LOST, MG_OWNER_GAP };
/* Bytes `from` .. of the answer; may be repeated with more of them when it failed. head: "" but for
 * the first. state: NULL while more comes, else "done" or "failed" with a code, "cancelled".
 * Nothing is written with LOST. */
enum mg_status mg_queue_emit(struct mg_queue *q, const char *id, unsigned attempt, const char *head,
                             uint64_t from, struct mg_slice data, const char *state,
                             const char *code, enum mg_owner *owner, struct mg_err *err);
/* The job goes back to its place; counted: as a start that failed, and after max_tries of them it
 * is a dead letter. */
enum mg_status mg_queue_release(struct mg_queue *q, const char *id, unsigned attempt, bool counted,
                                enum mg_owner *owner, struct mg_err *err);
typedef void mg_queue_owner_fn(void *user, const char *id, unsigned attempt, enum mg_owner owner);
/* Renews the leases of these jobs; fn is called for those that are lost or to be cancelled. about:
 * what the worker says of itself, NULL: as before. */
enum mg_status mg_queue_beat(struct mg_queue *q, const char *worker, size_t slots,
                             const char *about, const char *const *id, const unsigned *attempt,
                             size_t n, mg_queue_owner_fn *fn, void *user, struct mg_err *err);
/* The worker knows of these jobs; others that it holds, since a take's reply was lost, are put
 * back. Not while a take is under way. */
enum mg_status mg_queue_mine(struct mg_queue *q, const char *worker, const char *const *id,
                             size_t n, struct mg_err *err);
enum mg_status mg_queue_bye(struct mg_queue *q, const char *worker, struct mg_err *err);

/* Leases that ran out, jobs that waited too long, workers that are gone. Workers and gateways
 * call it every second; of all their calls one a second does it. *lost: leases. */
enum mg_status mg_queue_reap(struct mg_queue *q, unsigned *lost, struct mg_err *err);

#endif
