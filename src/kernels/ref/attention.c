/* kernels/ref/attention.c - softmax(scale * q k^T) v, the definition.
 *
 * Each (query row, head) stands alone: scores over its visible keys in ascending order, exp of the
 * difference to the largest, weighted sum of values, one division; all in double, rounded to f32
 * once. A task is a block of ROWS query rows of one head. A row that sees no key (n_kv == 0)
 * becomes zeros.
 */
#include "kernels/ref/ref.h"

#include <math.h>

enum { ROWS = 8 };

static size_t row_blocks(const struct mg_attention *op) {
    return (op->n_q + ROWS - 1) / ROWS;
}

static size_t tasks(const struct mg_attention *op) {
    return op->n_head * row_blocks(op);
}

static size_t scratch_size(const struct mg_attention *op) {
    return ((op->n_kv + op->head_dim) * sizeof(double) + 63) & ~(size_t)63;
}

static void one_row(const struct mg_attention *op, size_t row, size_t head, double *score,
                    double *acc) {
    size_t d = op->head_dim, n = op->causal ? op->first_pos + row + 1 : op->n_kv;
    size_t group = op->n_head / op->n_head_kv;
    size_t base = head / group * op->head_stride_kv;
    enum mg_dtype type = op->kv_type;
    const float *q = op->q + row * op->ldq + head * d;
    float *out = op->out + row * op->ldo + head * d;
    double top = -INFINITY, total = 0;
    for (size_t p = 0; p < n; p++) {
        double s = 0;
        for (size_t j = 0; j < d; j++)
            s += (double)q[j] * mg_load_f32(type, op->k, base + mg_kv_key_place(type, d, p, j));
        score[p] = s * op->scale;
        if (score[p] > top) top = score[p];
    }
    for (size_t j = 0; j < d; j++) acc[j] = 0;
    for (size_t p = 0; p < n; p++) {
        double e = exp(score[p] - top);
        total += e;
        for (size_t j = 0; j < d; j++)
            acc[j] += e * mg_load_f32(type, op->v, base + mg_kv_value_place(type, d, p, j));
    }
    for (size_t j = 0; j < d; j++) out[j] = n ? (float)(acc[j] / total) : 0;
}

static void attention(const struct mg_attention *op, size_t task, void *scratch) {
    size_t blocks = row_blocks(op), head = task / blocks, row = task % blocks * ROWS;
    size_t end = op->n_q - row < ROWS ? op->n_q : row + ROWS;
    double *score = scratch;
    for (; row < end; row++) one_row(op, row, head, score, score + op->n_kv);
}

static void store_one(enum mg_dtype type, const float *k, const float *v, size_t d, void *keys,
                      void *values, size_t pos) {
    for (size_t j = 0; j < d; j++) {
        size_t key = mg_kv_key_place(type, d, pos, j), value = mg_kv_value_place(type, d, pos, j);
        if (type == MG_BF16) {
            ((uint16_t *)keys)[key] = mg_f32_to_bf16(k[j]);
            ((uint16_t *)values)[value] = mg_f32_to_bf16(v[j]);
        } else {
            ((float *)keys)[key] = k[j];
            ((float *)values)[value] = v[j];
        }
    }
}

static void store_kv(enum mg_dtype type, const float *k, const float *v, size_t ld, size_t d,
                     void *keys, void *values, size_t pos, size_t n) {
    for (size_t i = 0; i < n; i++)
        store_one(type, k + i * ld, v + i * ld, d, keys, values, pos + i);
}

void mg_ref_init_attention(struct mg_kernels *t) {
    t->store_kv = store_kv;
    t->attention_tasks = tasks;
    t->attention_scratch = scratch_size;
    t->attention = attention;
}
