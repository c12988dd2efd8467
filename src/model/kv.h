/* model/kv.h - keys and values of one conversation.
 *
 * Per layer the keys and the values of each head, f32 or bf16, laid out as kernels.h says, in one
 * anonymous mapping that reserves address space for the whole context and takes memory only for the
 * tokens that are there:
 *
 *   layer 0: keys of head 0, of head 1 ..., values of head 0 ...; layer 1: ...
 *
 * Owned and used by the thread that runs the model.
 */
#ifndef MG_MODEL_KV_H
#define MG_MODEL_KV_H

#include "base/err.h"
#include "kernels/kernels.h"

struct mg_kv {
    enum mg_dtype type; /* F32 or BF16 */
    size_t n_layer, n_head, head_dim;
    size_t capacity;    /* tokens */
    size_t n;           /* tokens that are there */
    size_t head_stride; /* elements from one head to the next */
    void *data;         /* the mapping, owned */
    size_t bytes;
};

/* Bytes of address space that mg_kv_open reserves; 0: more than a size can say. */
size_t mg_kv_reserve(enum mg_dtype type, size_t n_layer, size_t n_head, size_t head_dim,
                     size_t capacity);
enum mg_status mg_kv_open(struct mg_kv *kv, enum mg_dtype type, size_t n_layer, size_t n_head,
                          size_t head_dim, size_t capacity, struct mg_err *err);
void mg_kv_close(struct mg_kv *kv);
/* Keeps the first n tokens; the memory of the rest goes back to the system. */
void mg_kv_cut(struct mg_kv *kv, size_t n);
/* The first n tokens of another, with the same shapes, into an empty one. */
void mg_kv_copy(struct mg_kv *to, const struct mg_kv *from, size_t n);
/* Memory that n tokens take. */
size_t mg_kv_bytes(const struct mg_kv *kv, size_t n);
/* Puts n keys and values of a head [n][head_dim], rows ld apart, into their places for the tokens
 * from pos on. */
void mg_kv_store(const struct mg_kv *kv, const struct mg_kernels *kernels, size_t layer,
                 size_t head, size_t pos, size_t n, const float *key, const float *value,
                 size_t ld);
/* Of head 0 of a layer. */
void *mg_kv_keys(const struct mg_kv *kv, size_t layer);
void *mg_kv_values(const struct mg_kv *kv, size_t layer);

#endif
