/* model/work.h - how much there is to do for a picture, a prompt, a token: from the shapes alone.
 *
 * An operation is one multiplication or one addition, so a product of [m][k] and [k][n] has 2 m n
 * k. Counted is what the mathematics needs (docs/model.md), not what a kernel happens to do: causal
 * attention counts the pairs that are seen, the head counts one row, padding counts nothing. What
 * grows with a row only (norms, rotary, residuals) is left out; it is below 1 %.
 *
 * Divided by what the machine can do at most (kernels/limits.h) these give the shortest possible
 * time, and with that the share of the limit that a measured phase reaches.
 */
#ifndef MG_MODEL_WORK_H
#define MG_MODEL_WORK_H

#include "weights/config.h"
#include "weights/recipe.h"

struct mg_work {
    double linear;    /* operations of the blocks' or layers' matrices */
    double attention; /* of Q K^T and the product with V */
    double merger;    /* vision: all mergers */
    double patch;     /* vision: the patch embedding */
    double head;      /* prefill: logits of the last row */
    double n_exp;     /* exponentials of the softmax */
    double n_gelu;    /* activations of the blocks' MLP (vision), gates (text) */
};

/* A picture of n_patch patches. */
struct mg_work mg_work_vision(const struct mg_vision_config *c, size_t n_patch);
/* n_new prompt tokens behind n_old that are in the cache already, and the last one's logits. */
struct mg_work mg_work_prefill(const struct mg_text_config *c, size_t n_old, size_t n_new);
double mg_work_total(const struct mg_work *w);

/* How the decoder's numbers are stored, in bits; scales count in where they are per group. */
struct mg_weight_bits {
    double linear;      /* the layers' matrices: 32, 16, 8, 4.25 ... */
    double head;        /* the output matrix */
    double per_channel; /* f32 scale and the like, bits for each output channel of a matrix */
    double kv;          /* one element of keys and values */
};

/* As the recipe has it; `linear` is the mean over the layers' matrices, keys and values are bf16.
 */
struct mg_weight_bits mg_work_bits(const struct mg_text_config *c, enum mg_file_weights weights);

/* Bytes that must be read to decode one token behind n_kv others: every matrix of the layers, the
 * head, keys and values. */
double mg_bytes_per_token(const struct mg_text_config *c, const struct mg_weight_bits *bits,
                          size_t n_kv);

#endif
