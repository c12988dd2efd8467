/* engine/shared_value.h - features and answers as bytes of a shared store, and back.
 *
 *     picture   head: form, n_token, n_map, width        (numbers of 4 bytes, little-endian)
 *               body: f32 [n_map][n_token][width], as mg_picture has them
 *     answer    head: form, bytes of text, tokens, log-probabilities, reason, detail
 *               body: the text; i32 ids; of each log-probability id, value, n_top and n_top times
 *                     id, value
 *
 * Features are kept as they are, since what is found has to give the very answer that computing
 * would (docs/redis.md has what compression was tried). entry.h has checked that the bytes are
 * those that were put; here it is checked that they can be what they are taken for: shapes that are
 * asked for, finite numbers, ids of the vocabulary, UTF-8, nothing too short or left over.
 *
 * Pure functions: any thread.
 */
#ifndef MG_ENGINE_SHARED_VALUE_H
#define MG_ENGINE_SHARED_VALUE_H

#include "engine/answer_cache.h"
#include "store/store.h"

#define MG_SHARED_MAX_ANSWER ((size_t)8 << 20) /* bytes of a body */

struct mg_shared_shape {
    size_t n_token, n_map, width;
};

/* Bytes of the head, in out. */
size_t mg_shared_picture_head(const struct mg_shared_shape *s, uint8_t out[MG_ENTRY_MAX_HEAD]);
size_t mg_shared_picture_bytes(const struct mg_shared_shape *s); /* SIZE_MAX: too many */
/* The body moves into *out when all is as wanted. */
bool mg_shared_picture_take(struct mg_store_value *v, const struct mg_shared_shape *want,
                            struct mg_picture *out);

/* false: it can't be kept (another reason than "stop" and "length", too long, no memory). */
bool mg_shared_answer_write(const struct mg_answer *answer, const struct mg_token_logprob *logprob,
                            size_t n_logprob, uint8_t head[MG_ENTRY_MAX_HEAD], size_t *n_head,
                            struct mg_buf *body);
/* Text, tokens, log-probabilities and reasons of *out, owned. */
bool mg_shared_answer_read(const struct mg_store_value *v, size_t n_vocab,
                           struct mg_cached_answer *out);
void mg_shared_answer_free(struct mg_cached_answer *a);

#endif
