/* model/decoder.h - the language model over the keys and values of one or several conversations.
 *
 *   rows: embedding of a token, or a picture's merger row
 *   layer: x += o(attention(rope(norm(q, k)), v));  x += down(silu(gate) * up);
 *          image rows += DeepStack map
 *
 * A pass takes any number of rows up to the workspace's; each row brings its own positions and its
 * own picture rows, so a chunk may begin and end anywhere, also inside a picture.
 */
#ifndef MG_MODEL_DECODER_H
#define MG_MODEL_DECODER_H

#include "model/kv.h"
#include "model/model.h"

/* One token of a pass. */
struct mg_row {
    int32_t id;           /* token id, when feature is NULL */
    int32_t pos[3];       /* temporal, height, width */
    const float *feature; /* the picture's row in map 0, or NULL; borrowed */
    size_t map_stride;    /* elements from a map to the next at the same row */
    size_t n_map;         /* maps, map 0 included */
};

/* Buffers of a pass of at most `rows` rows; made once, so that a pass allocates nothing. */
struct mg_decoder_work {
    size_t rows;
    size_t last;                     /* index of the last row of the last pass */
    size_t ldx, ldqkv, ldatt, ldffn; /* row strides */
    float *x;                        /* [rows][ldx] residual stream */
    float *norm;                     /* [rows][ldx] */
    float *qkv;                      /* [rows][ldqkv]: q, k, v one after another */
    float *att;                      /* [rows][ldatt] */
    float *ffn;                      /* [rows][ldffn] */
    struct mg_input in;              /* [rows] prepared rows of hidden, att or ffn values */
    struct mg_top *top;              /* [tasks of the head][MG_MAX_TOP] */
    float *cos, *sin;                /* [rows][head_dim/2] */
    struct mg_arena arena;           /* owns all of the above */
};
enum mg_status mg_decoder_work_open(struct mg_decoder_work *w, const struct mg_model *model,
                                    size_t rows, struct mg_err *err);
void mg_decoder_work_close(struct mg_decoder_work *w);

/* Rows of a pass that belong to one conversation, one after another. */
struct mg_span {
    struct mg_kv *kv;
    size_t n; /* rows, at least 1 */
};
#define MG_MAX_SPAN 16

/* Adds m rows (1 .. w->rows) to the conversations of n_span (1 .. MG_MAX_SPAN) spans, all
 * different, whose rows make up the m: each kv->n grows by its span's n. The weights are read once
 * for all. Afterwards w->x holds the rows before the final norm. On failure (cancelled, out of
 * memory) each kv->n is as before. */
enum mg_status mg_decoder_pass(const struct mg_model *model, struct mg_compute *c,
                               struct mg_decoder_work *w, const struct mg_span *span, size_t n_span,
                               const struct mg_row *row, size_t m, struct mg_err *err);

#define MG_MAX_TOP 16
/* The likeliest id below n_vocab of rows first .. first+n-1 (n <= MG_MAX_TOP) of the last pass, of
 * equals the smallest; -1 where a logit is NaN or infinite. With a packed head no logits are
 * written; else `logits` [config's n_vocab] is used as scratch. */
enum mg_status mg_decoder_top(const struct mg_model *model, struct mg_compute *c,
                              struct mg_decoder_work *w, size_t first, size_t n, size_t n_vocab,
                              float *logits, int32_t *id, struct mg_err *err);

/* logits [n][ldl] of rows first .. first+n-1 of the last pass, in one reading of the head. */
enum mg_status mg_decoder_logits_rows(const struct mg_model *model, struct mg_compute *c,
                                      struct mg_decoder_work *w, size_t first, size_t n,
                                      float *logits, size_t ldl, struct mg_err *err);
/* logits [n_vocab] of row i of the last pass. */
enum mg_status mg_decoder_logits(const struct mg_model *model, struct mg_compute *c,
                                 struct mg_decoder_work *w, size_t i, float *logits,
                                 struct mg_err *err);

#endif
