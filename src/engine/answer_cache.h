/* engine/answer_cache.h - answers that were given, for the same question asked again.
 *
 * Only what is decided by the question: temperature 0, ended by itself or by its length. Two keys,
 * SHA-256 each:
 *
 *   exact: format version, model and weights, kernels, tenant, prompt ids, the pictures' keys
 *          (which say their pixels), and every option that decides the answer
 *   rest:  the same without the pictures' pixels: their sizes only
 *
 * With equal `rest` and pictures that are nearly the same (image/fingerprint.h) an answer is found
 * too, when the job asks for that. What was found so is not kept again under the other pictures'
 * key: likeness is no chain.
 *
 * An entry is put in after its answer has succeeded, never before. Dropped least recently used
 * first when over the budget, or when too old. Engine's thread only; no I/O.
 */
#ifndef MG_ENGINE_ANSWER_CACHE_H
#define MG_ENGINE_ANSWER_CACHE_H

#include "engine/run.h"
#include "engine/scheduler.h"

struct mg_answer_key {
    uint8_t exact[MG_SHA256_BYTES], rest[MG_SHA256_BYTES];
};

struct mg_cached_answer {
    struct mg_answer_key key;
    double made; /* mg_clock */
    char *text;  /* [n_text], NUL behind it */
    int32_t *token;
    struct mg_token_logprob *logprob; /* [n_logprob] */
    size_t n_text, n_token, n_logprob;
    const char *finish_reason, *stop_detail; /* constant strings */
    struct mg_fingerprint *print;            /* [n_print] of all pictures, or none */
    size_t n_print, bytes;
    struct mg_cached_answer *newer, *older;
};

struct mg_answer_cache {
    size_t budget, bytes, n; /* bytes; bytes and entries now; budget 0: there is no cache */
    double seconds;          /* how long an answer is good; 0: for ever */
    uint64_t queries, hits, near_hits;
    struct mg_cached_answer *newest, *oldest; /* by last use */
};

/* Whether this question's answer is decided by it, so that it may be kept. */
bool mg_answer_is_decided(const struct mg_job *job);
/* Of a run that is open. */
enum mg_status mg_answer_key_make(const struct mg_run *r, const struct mg_job *job,
                                  struct mg_answer_key *out, struct mg_err *err);

/* NULL: not there. `now`: mg_clock. The entry lives until the next put or shrink. */
const struct mg_cached_answer *mg_answer_find(struct mg_answer_cache *c,
                                              const struct mg_answer_key *key, double now);
/* Of nearly the same pictures; to be asked after mg_answer_find and in the same query. *distance:
 * the largest of the pictures'. */
const struct mg_cached_answer *mg_answer_find_near(struct mg_answer_cache *c,
                                                   const struct mg_answer_key *key,
                                                   const mg_chat *chat, double least, double now,
                                                   double *distance);
/* Keeps a copy of a finished answer; takes the pictures' fingerprints out of the chat. Other
 * reasons to end than "stop" and "length", and what is over the budget, are passed over. Failing
 * for want of memory is no failure: it isn't kept. */
void mg_answer_put(struct mg_answer_cache *c, const struct mg_answer_key *key, mg_chat *chat,
                   const struct mg_answer *answer, const struct mg_token_logprob *logprob,
                   size_t n_logprob, double now);
void mg_answer_cache_shrink(struct mg_answer_cache *c, size_t budget);

#endif
