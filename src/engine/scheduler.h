/* engine/scheduler.h - many answers at once over one model.
 *
 *   submit -> waiting -> preparing -> running: open, look, read, say -> done
 *             (queue)    (its thread)  (engine thread)
 *
 * A pass over the weights takes one token of every answer that is being said and as many prompt
 * tokens as keep the pass short; the vision tower works between passes, a layer at a time, and
 * gives way to them. So a new picture slows the others down but never stops them.
 *
 * Fair: of those that wait, the one whose tenant has the fewest running comes first, then the
 * oldest. When the queue is full, the newest job of the tenant that has most of it is refused after
 * all (queue_full) for one whose tenant has less, so that nobody's jobs keep others out. What a job
 * needs of the memory for keys and values is checked when it has been prepared: one that has to
 * wait for it is passed over by eight others at most, then they wait for it.
 *
 * Threads: submit, cancel and counts from any thread. `prepare` runs on the preparing thread,
 * `event` and `done` on the preparing or the engine thread, one at a time for a job; they must not
 * block. Each job that was taken in gets exactly one `done`, after which nothing of it is touched.
 */
#ifndef MG_ENGINE_SCHEDULER_H
#define MG_ENGINE_SCHEDULER_H

#include "engine/build.h"
#include "engine/sampler.h"
#include "margay/margay.h"

struct mg_scheduler;

#define MG_MAX_RUNNING 16
#define MG_SIMILAR_LEAST 0.9 /* the least likeness that a job may ask for */

struct mg_scheduler_options {
    size_t max_running;       /* answers at once, 1 .. MG_MAX_RUNNING; 0: 8 */
    size_t max_waiting;       /* 0: 256 */
    size_t max_waiting_bytes; /* of what the jobs say they hold; 0: 1 GiB */
    double wait_seconds;      /* longest time in the queue; 0: 300 */
    size_t feature_budget;    /* bytes of pictures' features kept; SIZE_MAX: none */
    size_t prefix_budget;     /* bytes of keys and values kept; SIZE_MAX: none */
    size_t answer_budget;     /* bytes of answers kept (answer_cache.h); 0: none */
    double answer_seconds;    /* how long one is good; 0: for ever */
    bool similar;             /* also for nearly the same pictures, when a job asks for it */
    bool warm_up;             /* before the first job */
};                            /* the first two budgets 0: from the memory that is left */

/* The log-probability of a token and of the likeliest at its place. */
struct mg_token_logprob {
    int32_t id;
    float logprob;
    size_t n_top;
    struct mg_logprob top[MG_MAX_LOGPROBS];
};

enum mg_job_event_kind {
    MG_JOB_QUEUED, /* position (1 is next) of those waiting, estimate */
    MG_JOB_STAGE,  /* stage, done, total */
    MG_JOB_TEXT    /* the next piece of text */
};
struct mg_job_event {
    enum mg_job_event_kind kind;
    size_t position;
    double estimate_ms; /* until the first token; below 0: not known */
    bool decoding;      /* the pictures' bytes are being decoded: no stage yet */
    enum mg_stage stage;
    size_t done, total;
    size_t prompt_tokens, cached_tokens;
    const char *text; /* as in mg_event */
    size_t n_text;
    size_t n_token;                         /* answer tokens so far */
    const struct mg_token_logprob *logprob; /* [n_logprob] of tokens since the last text */
    size_t n_logprob;
    const struct mg_answer *answer; /* TEXT: what was done so far, without the time for a token */
    double queue_ms, decode_ms;     /* TEXT: in the queue; since the first token */
};

/* Where an answer comes from. */
enum mg_answer_from {
    MG_FROM_MODEL,       /* the cache of answers was not asked */
    MG_FROM_MODEL_ASKED, /* it was, and did not have it */
    MG_FROM_CACHE,       /* the same question */
    MG_FROM_CACHE_NEAR   /* the same question about nearly the same pictures */
};

/* How a job ended; views until `done` returns. */
struct mg_job_result {
    enum mg_status status;
    const struct mg_err *err;       /* with a status that isn't MG_OK */
    const struct mg_answer *answer; /* with MG_OK; else of what was done so far */
    const mg_chat *chat;            /* for its pictures' reports; NULL when it never began */
    double queue_ms;
    enum mg_answer_from from;
    double distance; /* with MG_FROM_CACHE_NEAR: share of the hash that differs */
    const struct mg_token_logprob *logprob; /* [n_logprob] not yet in an event */
    size_t n_logprob;
};

struct mg_job {
    /* Fills an empty conversation: turns and pictures. */
    enum mg_status (*prepare)(void *user, mg_chat *chat, struct mg_err *err);
    void (*event)(void *user, const struct mg_job_event *event);
    void (*done)(void *user, const struct mg_job_result *result);
    void *user;
    struct mg_answer_options answer; /* stop strings borrowed until done */
    const struct mg_bias *bias;      /* [n_bias] borrowed until done */
    size_t n_bias;
    bool logprobs;
    size_t n_top_logprobs;           /* at most MG_MAX_LOGPROBS */
    uint8_t tenant[MG_TENANT_BYTES]; /* whose: caches are separate, queue places shared out */
    size_t bytes;                    /* that it holds while it waits */
    bool no_answer_cache;            /* its answer is neither looked for nor kept */
    double similar;                  /* 0.9 .. 1: answers about pictures so alike will do; 0: no */
    bool no_prefix;                  /* keys and values are neither taken over nor kept */
    double wait_seconds;             /* 0: the scheduler's */
};

/* Starts its threads. The engine is the scheduler's until closed: no other call on it but
 * mg_engine_info. */
enum mg_status mg_scheduler_open(mg_engine *engine, const struct mg_scheduler_options *options,
                                 struct mg_scheduler **out, struct mg_err *err);
/* Ends every job with MG_ERR_CANCELLED, and the threads. */
void mg_scheduler_close(struct mg_scheduler *s);

/* MG_ERR_LIMIT, code queue_full: too many wait; *retry_seconds says when there may be room. */
enum mg_status mg_scheduler_submit(struct mg_scheduler *s, const struct mg_job *job, uint64_t *id,
                                   double *retry_seconds, struct mg_err *err);
/* What submit would say now of a job of this tenant that holds next to nothing: MG_OK, or
 * queue_full as above. Nobody is displaced. */
enum mg_status mg_scheduler_would_take(struct mg_scheduler *s, const uint8_t *tenant,
                                       double *retry_seconds, struct mg_err *err);
/* The job ends soon, within a layer's time. An id that is gone is fine. */
void mg_scheduler_cancel(struct mg_scheduler *s, uint64_t id);

struct mg_scheduler_counts {
    size_t waiting, waiting_bytes;
    size_t preparing, running, slots; /* the first two together have places, of so many */
    uint64_t passes, pass_rows;       /* of the decoder */
    uint64_t feature_queries, feature_hits, prefix_queries, prefix_hits;
    size_t feature_bytes, prefix_bytes, features, prefixes;
    uint64_t answer_queries, answer_hits, answer_near_hits;
    size_t answer_bytes, answers;
    size_t feature_budget, prefix_budget, answer_budget; /* what the bytes may come to */
    size_t kv_tokens;                                    /* of running jobs */
    double last_progress; /* mg_clock when a job last got its place, or the engine got on */
    bool busy;            /* there is something to get on with */
    bool ready;           /* warm-up is over */
};
void mg_scheduler_counts(struct mg_scheduler *s, struct mg_scheduler_counts *out);

#endif
