/* engine/shared_cache.h - what several margays know together: picture features and answers in a
 * shared store (store/store.h), asked for beside the work.
 *
 * The engine thread never waits. A job that was opened and has neither answer nor features here
 * asks the store for the answer, then for the features of its pictures, and is passed over until
 * that has come or MG_SHARED_PATIENCE seconds have gone by without anything coming; meanwhile
 * others run. What comes goes into the local caches and is used from there; what was computed is
 * put into the store after it has succeeded. Only one job at a time asks for the same picture.
 *
 * Asked is by the engine thread, when a job gets its turn, and not by the preparing thread as soon
 * as the picture's key is known: only the engine thread knows what is in the local caches, and most
 * of what is asked for is there.
 *
 * What decides the content is in the key in full: tenant, and the model's identity (weights byte
 * for byte, tokenizer and configuration, version, kernels), so that whatever is found is what this
 * process would have computed. A fleet of processors with different kernels shares less, but no
 * answer depends on what was found where.
 *
 * Engine's thread, but for opening and closing.
 */
#ifndef MG_ENGINE_SHARED_CACHE_H
#define MG_ENGINE_SHARED_CACHE_H

#include "engine/answer_cache.h"
#include "engine/scheduler.h"
#include "store/store.h"

#define MG_SHARED_PATIENCE 0.2

struct mg_scheduler;
struct job;

struct mg_shared {
    struct mg_byte_store *store; /* NULL: there is none */
    bool owned;
    uint8_t model[MG_SHA256_BYTES];
};

/* What a job waits for. */
struct mg_lookup {
    bool waits;                     /* it is passed over */
    bool answer_over;               /* no answer is waited for (any more) */
    struct mg_store_read *answer;   /* or NULL */
    struct mg_store_read **picture; /* [n_picture] of the chat, NULL: not asked for; owned */
    bool *picture_over;             /* [n_picture] */
    size_t n_picture;
    bool found;                    /* `known` is the answer */
    struct mg_cached_answer known; /* owned */
};

/* The same for engines that compute the same, wherever they run. */
enum mg_status mg_shared_model(const mg_engine *e, uint8_t out[MG_SHA256_BYTES],
                               struct mg_err *err);
/* With neither a URL nor a store in the options nothing is shared. `news` is called by other
 * threads when something has come. */
enum mg_status mg_shared_open(struct mg_shared *c, const mg_engine *e,
                              const struct mg_scheduler_options *o, void (*news)(void *user),
                              void *user, struct mg_err *err);
void mg_shared_close(struct mg_shared *c);
void mg_shared_counts(const struct mg_shared *c, struct mg_shared_counts *out);

/* Of a job that was just opened. */
void mg_lookup_begin(struct mg_scheduler *s, struct job *j);
/* Gets on with it; true once there is nothing to wait for. */
bool mg_lookup_poll(struct mg_scheduler *s, struct job *j);
/* When to look again though nothing has come. */
double mg_lookup_deadline(const struct job *j);
void mg_lookup_end(struct job *j); /* at any time, any number of times */

/* Puts what was computed. */
void mg_shared_put_pictures(struct mg_shared *c, const mg_chat *chat);
void mg_shared_put_answer(struct mg_shared *c, const struct job *j, double seconds);

#endif
