/* engine/schedule.h - what the two halves of the scheduler share: scheduler.c (queue, threads) and
 * schedule.c (what the engine thread does with the jobs that run). */
#ifndef MG_ENGINE_SCHEDULE_H
#define MG_ENGINE_SCHEDULE_H

#include "engine/answer_cache.h"
#include "engine/run.h"
#include "engine/scheduler.h"

#include <pthread.h>

struct job {
    struct mg_job o;
    uint64_t id;
    double submitted, deadline, began; /* mg_clock; began 0: never left the queue */
    atomic_bool cancelled;             /* set by any thread */
    bool taken;                        /* has one of the places; under the lock */
    uint64_t turn;                     /* mg_scheduler.turns when taken; under the lock */
    bool displaced;                    /* waits to be refused after all; under the lock */
    size_t place;                      /* mg_find_places; 0: none; under the lock */
    struct job *next_of_tenant;        /* likewise */
    struct job *next;                  /* in a list; under the lock */
    struct job *next_of_all;           /* likewise */
    mg_chat *chat;         /* set under the lock by the preparing thread and filled by it, then the
                              engine's */
    enum mg_status status; /* of preparing */
    struct mg_err err;
    /* The engine thread's. */
    struct mg_run run;
    bool open, looked;
    size_t slot;                      /* once open */
    size_t kv_need;                   /* bytes of keys and values that it may come to */
    size_t n_passed;                  /* later jobs that were opened while there was none for it */
    struct mg_token_logprob *logprob; /* [n_logprob] of tokens whose text is not out (the first
                                         n_told are), owned */
    size_t n_logprob, n_told, cap_logprob;
    struct mg_answer_key key; /* with `keep` */
    bool keep;                /* the answer goes into the cache */
    enum mg_answer_from from;
    double distance;
    struct mg_scheduler *scheduler;
};

struct job_list {
    struct job *first, *last;
    size_t n;
};

struct slot {
    struct mg_sampler *sampler;
    struct mg_draft draft;
    bool used;
};

enum { MG_SERVED = 64 }; /* tenants whose turns are remembered */

struct mg_scheduler {
    mg_engine *engine;
    struct mg_scheduler_options options; /* defaults filled in */
    pthread_t engine_thread, prepare_thread;
    size_t n_thread; /* started */

    pthread_mutex_t mutex; /* of these */
    pthread_cond_t to_prepare, to_engine, to_go_on;
    struct job *all;
    struct job_list waiting, ready;
    size_t waiting_bytes;
    size_t n_displaced, displaced_bytes; /* of these */
    struct {
        uint8_t tenant[MG_TENANT_BYTES];
        uint64_t turn;   /* 0: free */
    } served[MG_SERVED]; /* who was taken from the queue, and when in the order of taking */
    uint64_t turns;
    size_t n_taken; /* places taken: preparing, ready or running */
    uint64_t last_id;
    uint64_t changed;   /* counts what may change places in the queue */
    double job_seconds; /* running mean of a job's time from its place on; 0: none yet */
    bool short_of_memory, gave_way; /* the preparing thread asks the caches; the engine's answer */
    bool stop;
    struct mg_scheduler_counts counts; /* as the engine thread last noted them */

    /* The engine thread's. */
    struct job *run[MG_MAX_RUNNING];
    size_t n_run;
    struct slot slot[MG_MAX_RUNNING];
    struct mg_feature_cache features;
    struct mg_prefix_store prefixes;
    struct mg_answer_cache answers;
    size_t kv_budget, kv_used;     /* bytes: what open jobs may take together */
    float *logits;                 /* [max_running][n_vocab] */
    double pass_seconds, pass_end; /* of the last pass: duration, mg_clock at its end */
    double idle_seconds;           /* running mean of passes without prompt tokens */
    double row_seconds;            /* and of what a prompt token adds */
    uint64_t passes, pass_rows;
    struct job *looking; /* whose picture the vision tower is at */
    struct job *in_pass[MG_MAX_RUNNING];
    size_t n_in_pass;
};

/* When this tenant was last taken; 0: not among those remembered. Under the lock. */
uint64_t mg_last_turn(const struct mg_scheduler *s, const uint8_t *tenant);
/* Sets each waiting job's place in the order in which they will be taken, should those that have
 * places end in the order in which they got them. Under the lock. (places.c) */
void mg_find_places(struct mg_scheduler *s);
/* One step for the jobs that run: a picture or a pass. */
void mg_work(struct mg_scheduler *s);
/* Takes over what has been prepared. */
void mg_take_ready(struct mg_scheduler *s);
/* Under the lock, by the engine thread. */
void mg_note_counts(struct mg_scheduler *s);
/* The same, taking the lock. */
void mg_tell_counts(struct mg_scheduler *s);
/* Memory is short: the caches give half of theirs back; false: they had nothing. Engine thread. */
bool mg_give_way(struct mg_scheduler *s);
/* Its pictures are worth fingerprints. Any thread. */
bool mg_job_wants_similar(const struct mg_scheduler *s, const struct job *j);
/* The first of its log-probabilities that has not been told. */
static inline const struct mg_token_logprob *mg_job_untold(const struct job *j) {
    return j->n_told ? j->logprob + j->n_told : j->logprob;
}
/* Calls `done` and frees all of it. By the thread that has the job. */
void mg_job_end(struct mg_scheduler *s, struct job *j, enum mg_status status);

#endif
