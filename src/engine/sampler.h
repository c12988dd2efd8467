/* engine/sampler.h - from a row of logits to a token.
 *
 * Order and meaning as in transformers' generate: repetition penalty (ids of prompt and answer; a logit below
 * zero is multiplied, another divided), presence and frequency penalty (ids of the answer, as OpenAI), then
 * at temperature 0 the first largest logit, else temperature, top-k (ties with the k-th stay), top-p (the fewest
 * that reach p), min-p (relative to the likeliest), and a draw. Candidates are ordered by logit, then by id, and
 * the draw is xoshiro256** seeded by splitmix64: equal logits and an equal seed give an equal answer everywhere.
 *
 * One sampler serves one answer at a time; memory is taken at opening only.
 */
#ifndef MG_ENGINE_SAMPLER_H
#define MG_ENGINE_SAMPLER_H

#include "margay/margay.h"

struct mg_sampler;

enum mg_status mg_sampler_open(size_t n_vocab, struct mg_sampler **out, struct mg_err *err);
void mg_sampler_close(struct mg_sampler *s); /* NULL is fine */

/* MG_ERR_ARGUMENT names the option and its range: temperature 0..100, top_k >= 0, top_p 0 < p <= 1, min_p 0..1,
 * repetition_penalty 0 < r <= 100, presence and frequency penalty -100..100, at most MG_MAX_STOP stop strings. */
enum mg_status mg_answer_options_check(const struct mg_answer_options *o, struct mg_err *err);

/* Begins an answer: nothing seen yet. Checks the options; they are copied. */
enum mg_status mg_sampler_start(struct mg_sampler *s, const struct mg_answer_options *o, struct mg_err *err);
/* The prompt's ids, for the repetition penalty. */
void mg_sampler_prompt(struct mg_sampler *s, const int32_t *id, size_t n);
/* Picks from logits [n_vocab], which are changed, and remembers the token as part of the answer. MG_ERR_NUMERIC when
 * no logit is finite. */
enum mg_status mg_sampler_pick(struct mg_sampler *s, float *logits, int32_t *token, struct mg_err *err);

#endif
