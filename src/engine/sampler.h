/* engine/sampler.h - from a row of logits to a token.
 *
 * Order and meaning as in transformers' generate:
 *   1. logit bias: added (an id given twice gets both)
 *   2. repetition penalty, ids of prompt and answer: a logit below zero is multiplied, another
 *      divided
 *   3. presence and frequency penalty, ids of the answer, as OpenAI: less presence once and
 *      frequency for each occurrence
 *   4. temperature 0 (or below 0.00001): the first largest. Else divided by the temperature
 *   5. top-k: the k largest, and whatever ties with the k-th
 *   6. top-p: a token stays while those before it (larger logit, or equal and smaller id) have less
 *      than p of what step 5 left; the first always stays
 *   7. min-p: tokens of at least p times the likeliest one's probability stay
 *   8. a draw from what is left, by probability.
 *
 * Steps 1-4 are f32 in the reference's order of operations; probabilities are f64 with an
 * exponential of our own, and sums run in order of id. So the kept sets equal the reference's up
 * to the rounding of its f32 sums, and equal logits with an equal seed give an equal answer on
 * every machine. The draw takes one number u = (x >> 11) * 2^-53 of xoshiro256**, whose four words
 * are the first four outputs of splitmix64 from the seed: the first kept token, by id, whose
 * running sum of probabilities is over u.
 *
 * Nothing is sorted: top-k and top-p find a threshold, then one pass takes what is over it. One
 * sampler serves one answer at a time; memory is taken at opening only.
 */
#ifndef MG_ENGINE_SAMPLER_H
#define MG_ENGINE_SAMPLER_H

#include "margay/margay.h"

struct mg_sampler;

enum mg_status mg_sampler_open(size_t n_vocab, struct mg_sampler **out, struct mg_err *err);
void mg_sampler_close(struct mg_sampler *s); /* NULL is fine */

/* MG_ERR_ARGUMENT names the option and its range: temperature 0..100, top_k >= 0 (0 off), top_p 0
 * < p <= 1, min_p 0..1, repetition_penalty 0.01..100, presence and frequency penalty -100..100, at
 * most MG_MAX_STOP stop strings. */
enum mg_status mg_answer_options_check(const struct mg_answer_options *o, struct mg_err *err);

/* Begins an answer: nothing seen yet, no bias. Checks the options; they are copied. */
enum mg_status mg_sampler_start(struct mg_sampler *s, const struct mg_answer_options *o,
                                struct mg_err *err);

/* Added to a logit: -100..100, or -INFINITY to forbid the token. */
struct mg_bias {
    int32_t id; /* in [0, n_vocab) */
    float value;
};
#define MG_MAX_BIAS 4096
/* For the rest of the answer; replaces an earlier list. Borrowed until the next start or bias.
 * MG_ERR_ARGUMENT names what is out of its range. */
enum mg_status mg_sampler_bias(struct mg_sampler *s, const struct mg_bias *bias, size_t n,
                               struct mg_err *err);

/* The prompt's ids, for the repetition penalty: all that the reference has in input_ids, pictures'
 * placeholders too. Ids outside the vocabulary are passed over. */
void mg_sampler_prompt(struct mg_sampler *s, const int32_t *id, size_t n);
/* A token of the answer that was not picked here (a draft taken over). */
void mg_sampler_take(struct mg_sampler *s, int32_t id);

/* Picks from logits [n_vocab], which are changed (steps 1-3), and takes the token. MG_ERR_NUMERIC
 * when a logit is not finite, MG_ERR_ARGUMENT when the bias forbids every token. */
enum mg_status mg_sampler_pick(struct mg_sampler *s, float *logits, int32_t *token,
                               struct mg_err *err);

/* A token that steps 1-7 leave. */
struct mg_candidate {
    int32_t id;
    float score;   /* after steps 1-4 */
    double weight; /* its probability relative to the likeliest token's */
};
/* Steps 1-7 without the draw, by id; one candidate at temperature 0. The list lives until the next
 * call; *total is the sum of weights. */
enum mg_status mg_sampler_candidates(struct mg_sampler *s, float *logits,
                                     const struct mg_candidate **out, size_t *n, double *total,
                                     struct mg_err *err);

/* Log-probabilities under the model alone: from logits as they came, before a pick. */
struct mg_logprob {
    int32_t id;
    float logprob;
};
#define MG_MAX_LOGPROBS 20
/* The `n` (at most MG_MAX_LOGPROBS) likeliest, largest first, of equals the smaller id; *n_out of
 * them (fewer with a smaller vocabulary). MG_ERR_NUMERIC when a logit is not finite. */
enum mg_status mg_logprobs_top(const float *logits, size_t n_vocab, size_t n,
                               struct mg_logprob *out, size_t *n_out, struct mg_err *err);
/* That of one token; the logits must be finite. */
float mg_logprob_of(const float *logits, size_t n_vocab, int32_t id);

#endif
