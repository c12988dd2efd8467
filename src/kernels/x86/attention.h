/* kernels/x86/attention.h - softmax(scale q k^T) v for the tier that includes this (see vec.h).
 *
 * A task is one key/value head and a block of about BLOCK_ROWS rows, the query heads of the group
 * stacked (row = position * group + head). Keys go in blocks of KEYS, counted from key 0; in a
 * block MR rows at a time: scores (they fit L1), the running maximum and sum, exp, and the product
 * with v. A row whose maximum grows has its sums scaled down (the "online" softmax: exact but for
 * rounding).
 *
 * Both products are the same micro-kernel: MR rows of f32 against two vectors of columns that lie
 * in lines one behind another (kernels.h); with BF16 a line has two neighbours in the inner
 * dimension, the first in the low halves:
 *
 *     scores[r][16 positions] += q[r][j] * low + q[r][j+1] * high      lines of keys, j = 0, 2, ...
 *     sums[r][16 dimensions]  += p[r][i] * low + p[r][i+1] * high      lines of values, i likewise
 *
 * Each output is one chain in ascending order, whatever the number of rows, and hidden keys add
 * exact zeros: a row has the same bits in any chunk of the prompt.
 *
 *   scratch:  q [R][d]  sums [R][dv]  top, total [R]  scores [MR][KEYS + 16]   (R rows of a block)
 */
#ifndef MG_KERNELS_X86_ATTENTION_H
#define MG_KERNELS_X86_ATTENTION_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/gemm.h"
#include "kernels/x86/vmath.h"

#include <math.h>

enum { BLOCK_ROWS = 240, KEYS = 512, LD_SCORES = KEYS + 16 };
/* Vectors of a line: a zmm holds one, two ymm do. Columns of two lines resp. one. */
enum { LINE_VECTORS = 16 / VL };

INLINE size_t group_size(const struct mg_attention *op) {
    return op->n_head / op->n_head_kv;
}

/* Query positions per task: blocks of about equal size, whole groups of MR rows where that is
 * possible. */
INLINE size_t block_positions(const struct mg_attention *op) {
    size_t group = group_size(op), most = mg_max_size(1, BLOCK_ROWS / group);
    size_t blocks = (op->n_q + most - 1) / most;
    if (!blocks) return 1;
    size_t even = (op->n_q + blocks - 1) / blocks;
    return MR % group == 0 ? mg_round_up(even, MR / group) : even;
}

static size_t attention_tasks(const struct mg_attention *op) {
    size_t per = block_positions(op);
    return op->n_head_kv * ((op->n_q + per - 1) / per);
}

static size_t attention_scratch(const struct mg_attention *op) {
    size_t d = op->head_dim, rows = block_positions(op) * group_size(op);
    size_t floats = rows * (d + mg_kv_width(d) + 2) + (size_t)MR * LD_SCORES + 4 * 16;
    return mg_round_up(floats * sizeof(float), 64);
}

/* Keys that query position i sees. */
INLINE size_t visible(const struct mg_attention *op, size_t i) {
    return op->causal ? mg_min_size(op->first_pos + i + 1, op->n_kv) : op->n_kv;
}

/* q[rows][d] of positions pos .. and the heads of group g, times scale. */
static void load_queries(const struct mg_attention *op, size_t g, size_t pos, size_t count,
                         float *q) {
    size_t d = op->head_dim, group = group_size(op);
    vf scale = v_set(op->scale);
    for (size_t r = 0; r < count * group; r++, q += d) {
        const float *from = op->q + (pos + r / group) * op->ldq + (g * group + r % group) * d;
        size_t j = 0;
        for (; j + VL <= d; j += VL) v_store(q + j, v_mul(v_load(from + j), scale));
        if (j < d) v_store_n(q + j, v_mul(v_load_n(from + j, d - j), scale), d - j);
    }
}

/* The largest of x[0..n-1] and `top`; NaN is passed over. */
INLINE float raise_top(const float *x, size_t n, float top) {
    vf a = v_set(top), b = a;
    size_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        a = v_max(v_load(x + i), a);
        b = v_max(v_load(x + i + VL), b);
    }
    for (; i < n; i += VL) {
        vf v = n - i >= VL ? v_load(x + i) : v_first_else(n - i, v_load_n(x + i, n - i), a);
        a = v_max(v, a);
    }
    return v_top(v_max(a, b));
}

/* x = exp(x - top) for the first n, 0 for the rest up to `end`; returns the sum. x has room up to a
 * multiple of VL. A sum's order does not depend on `end`. */
INLINE float exp_row(float *x, size_t n, size_t end, float top) {
    vf t = v_set(top), sum0 = v_zero(), sum1 = v_zero();
    size_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf e0 = v_exp_below(v_sub(v_load(x + i), t)),
           e1 = v_exp_below(v_sub(v_load(x + i + VL), t));
        v_store(x + i, e0);
        v_store(x + i + VL, e1);
        sum0 = v_add(sum0, e0);
        sum1 = v_add(sum1, e1);
    }
    if (i + VL <= n) {
        vf e = v_exp_below(v_sub(v_load(x + i), t));
        v_store(x + i, e);
        sum0 = v_add(sum0, e);
        i += VL;
        if (i < n) {
            e = v_first_else(n - i, v_exp_below(v_sub(v_load_n(x + i, n - i), t)), v_zero());
            v_store(x + i, e);
            sum1 = v_add(sum1, e);
            i += VL;
        }
    } else if (i < n) {
        vf e = v_first_else(n - i, v_exp_below(v_sub(v_load_n(x + i, n - i), t)), v_zero());
        v_store(x + i, e);
        sum0 = v_add(sum0, e);
        i += VL;
    }
    for (; i < end; i += VL) v_store(x + i, v_zero());
    return v_sum(v_add(sum0, sum1));
}

INLINE void scale_row(float *x, size_t n, float by) {
    vf s = v_set(by);
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(x + i, v_mul(v_load(x + i), s));
    if (i < n) v_store_n(x + i, v_mul(v_load_n(x + i, n - i), s), n - i);
}

/* Lines of columns: vector v of inner index i (F32) or pair i (BF16) is at b + i * step + at[v]. */
struct lines {
    const char *b;
    size_t step;  /* bytes from an inner index (pair) to the next */
    size_t at[2]; /* bytes of the two vectors */
    size_t k;     /* inner indices */
};

/* c[r][0..2 VL-1] (+)= a[r] . lines, r < rows; lda, ldc in floats. */
INLINE void line_rows(const int rows, const int vectors, const bool pairs, const float *a,
                      size_t lda, const struct lines *l, float *c, size_t ldc, bool add) {
    vf sum[MR][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_zero();
    const float *a1 = a + 3 * lda, *a2 = a + 6 * lda, *a3 = a + 9 * lda;
    const char *b = l->b;
    size_t k = l->k, i = 0, step = l->step, second = l->at[1];
    b += l->at[0];
    second -= l->at[0];
    if (!pairs) {
        for (; i < k; i++, b += step) {
            vf b0 = v_load((const float *)(const void *)b), b1 = v_zero();
            if (vectors > 1) b1 = v_load((const float *)(const void *)(b + second));
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i]);
                sum[r][0] = v_fma(x, b0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, b1, sum[r][1]);
            }
        }
    } else {
        for (; i < k; i += 2, b += step) {
            vi two0 = v_load_bits(b), two1 = vectors > 1 ? v_load_bits(b + second) : two0;
            vf l0 = v_low_bf16(two0), l1 = v_low_bf16(two1);
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i]);
                sum[r][0] = v_fma(x, l0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, l1, sum[r][1]);
            }
            if (i + 1 == k) break;
            vf h0 = v_high_bf16(two0), h1 = v_high_bf16(two1);
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i + 1]);
                sum[r][0] = v_fma(x, h0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, h1, sum[r][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + (size_t)r * ldc + v * VL;
            v_store(to, add ? v_add(v_load(to), sum[r][v]) : sum[r][v]);
        }
    }
}

typedef void line_fn(const float *a, size_t lda, const struct lines *l, float *c, size_t ldc,
                     bool add);
#define LINE_INSTANCE(N)                                                                           \
    static void line_f32_##N(const float *a, size_t lda, const struct lines *l, float *c,          \
                             size_t ldc, bool add) {                                               \
        line_rows(N, 2, false, a, lda, l, c, ldc, add);                                            \
    }                                                                                              \
    static void line_bf16_##N(const float *a, size_t lda, const struct lines *l, float *c,         \
                              size_t ldc, bool add) {                                              \
        line_rows(N, 2, true, a, lda, l, c, ldc, add);                                             \
    }
LINE_INSTANCE(1)
LINE_INSTANCE(2)
LINE_INSTANCE(3)
LINE_INSTANCE(4)
LINE_INSTANCE(5)
LINE_INSTANCE(6)
#if defined(__AVX512F__)
LINE_INSTANCE(7)
LINE_INSTANCE(8)
LINE_INSTANCE(9)
LINE_INSTANCE(10)
LINE_INSTANCE(11)
LINE_INSTANCE(12)
#endif
static line_fn *const line_product[2][MR + 1] = {
    {NULL, line_f32_1, line_f32_2, line_f32_3, line_f32_4, line_f32_5, line_f32_6,
#if defined(__AVX512F__)
     line_f32_7, line_f32_8, line_f32_9, line_f32_10, line_f32_11, line_f32_12
#endif
    },
    {NULL, line_bf16_1, line_bf16_2, line_bf16_3, line_bf16_4, line_bf16_5, line_bf16_6,
#if defined(__AVX512F__)
     line_bf16_7, line_bf16_8, line_bf16_9, line_bf16_10, line_bf16_11, line_bf16_12
#endif
    }};

/* The parts of a task's scratch. */
struct block {
    float *q, *sums, *top, *total, *scores;
    size_t rows, d, dv;
    size_t pos;                /* query position of row 0 */
    const char *keys, *values; /* of the head */
};

/* scores[count][n up to a multiple of 2 VL] of rows r .. against keys first .. */
static void block_scores(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                         size_t first, size_t n) {
    bool pairs = op->kv_type == MG_BF16;
    size_t size = pairs ? 2 : 4, tile = 16 * b->d * size; /* bytes of 16 positions */
    struct lines l = {.step = 64, .k = b->d};
    l.at[1] = LINE_VECTORS == 1 ? tile : 32;
    for (size_t p = 0; p < n; p += NR) {
        l.b = b->keys + (first + p) / 16 * tile;
        line_product[pairs][count](b->q + r * b->d, b->d, &l, b->scores + p, LD_SCORES, false);
    }
}

static void block_sums(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                       size_t first, size_t n) {
    bool pairs = op->kv_type == MG_BF16;
    struct lines l = {.step = b->dv * 4, .k = n};
    l.b = b->values + (pairs ? first / 2 : first) * l.step;
    for (size_t j = 0; j < b->dv; j += NR) {
        l.at[0] = j * 4;
        l.at[1] = j + VL < b->dv ? l.at[0] + 4 * VL : l.at[0]; /* an odd line twice: no harm */
        float *c = b->sums + r * b->dv + j, odd[MR * NR];
        if (j + NR <= b->dv) {
            line_product[pairs][count](b->scores, LD_SCORES, &l, c, b->dv, first > 0);
            continue;
        }
        for (size_t i = 0; i < count; i++) v_store(odd + i * NR, v_load(c + i * b->dv));
        line_product[pairs][count](b->scores, LD_SCORES, &l, odd, NR, first > 0);
        for (size_t i = 0; i < count; i++) v_store(c + i * b->dv, v_load(odd + i * NR));
    }
}

/* Rows r .. r+count-1 against the n keys from `first` on. */
static void block_rows(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                       size_t first, size_t n) {
    size_t group = group_size(op), last = visible(op, b->pos + (r + count - 1) / group);
    if (last <= first) return;
    n = mg_min_size(n, last - first);
    block_scores(op, b, r, count, first, n);
    for (size_t i = 0; i < count; i++) {
        float *s = b->scores + i * LD_SCORES, *top = b->top + r + i, *total = b->total + r + i;
        size_t see = visible(op, b->pos + (r + i) / group);
        see = see > first ? mg_min_size(n, see - first) : 0;
        float old = *top;
        *top = raise_top(s, see, old);
        float sum = exp_row(s, see, n, *top);
        if (first && *top > old) {
            float shrink[VL];
            v_store(shrink, v_exp_below(v_set(old - *top)));
            *total *= shrink[0];
            scale_row(b->sums + (r + i) * b->dv, b->dv, shrink[0]);
        }
        *total = first ? *total + sum : sum;
    }
    block_sums(op, b, r, count, first, n);
}

/* out = sums / total */
INLINE void store_row(const float *sums, float total, float *out, size_t d) {
    vf r = v_set(1.0f / total);
    size_t j = 0;
    for (; j + VL <= d; j += VL) v_store(out + j, v_mul(v_load(sums + j), r));
    if (j < d) v_store_n(out + j, v_mul(v_load_n(sums + j, d - j), r), d - j);
}

INLINE float *out_row(const struct mg_attention *op, size_t g, size_t pos, size_t r) {
    size_t group = group_size(op);
    return op->out + (pos + r / group) * op->ldo + (g * group + r % group) * op->head_dim;
}

INLINE float *carve(float **at, size_t n) {
    float *p = *at;
    *at += mg_round_up(n, 16);
    return p;
}

static void attention(const struct mg_attention *op, size_t task, void *memory) {
    size_t per = block_positions(op), blocks = (op->n_q + per - 1) / per;
    size_t g = task / blocks, group = group_size(op);
    size_t at = g * op->head_stride_kv * mg_dtype_size(op->kv_type);
    struct block b = {.d = op->head_dim,
                      .dv = mg_kv_width(op->head_dim),
                      .pos = task % blocks * per,
                      .keys = (const char *)op->k + at,
                      .values = (const char *)op->v + at};
    size_t positions = mg_min_size(per, op->n_q - b.pos);
    float *scratch = memory;
    b.rows = positions * group;
    b.scores = carve(&scratch, (size_t)MR * LD_SCORES);
    b.q = carve(&scratch, b.rows * b.d);
    b.sums = carve(&scratch, b.rows * b.dv);
    b.top = carve(&scratch, b.rows);
    b.total = carve(&scratch, b.rows);
    load_queries(op, g, b.pos, positions, b.q);
    for (size_t r = 0; r < b.rows; r++) b.top[r] = -INFINITY;
    size_t end = visible(op, b.pos + positions - 1);
    for (size_t first = 0; first < end; first += KEYS) {
        size_t n = mg_min_size(KEYS, end - first);
        for (size_t r = 0; r < b.rows; r += MR)
            block_rows(op, &b, r, mg_min_size(MR, b.rows - r), first, n);
    }
    for (size_t r = 0; r < b.rows; r++) {
        float *out = out_row(op, g, b.pos, r);
        if (end)
            store_row(b.sums + r * b.dv, b.total[r], out, b.d);
        else
            memset(out, 0, b.d * sizeof(float));
    }
}

static void store_kv(enum mg_dtype type, const float *k, const float *v, size_t d, void *keys,
                     void *values, size_t pos) {
    if (type != MG_BF16) {
        float *to = (float *)keys + mg_kv_key_place(type, d, pos, 0);
        for (size_t j = 0; j < d; j++) to[16 * j] = k[j];
        memcpy((float *)values + mg_kv_value_place(type, d, pos, 0), v, d * sizeof *v);
        return;
    }
    /* A key's pair is one dword; a value's neighbour may be written by another thread meanwhile. */
    char *to = (char *)((uint16_t *)keys + mg_kv_key_place(type, d, pos, 0));
    uint16_t *value = (uint16_t *)values + mg_kv_value_place(type, d, pos, 0), half[VL];
    for (size_t j = 0; j < d; j += VL) {
        size_t n = mg_min_size(VL, d - j);
        v_store_bf16(half, n == VL ? v_load(k + j) : v_load_n(k + j, n));
        for (size_t i = 0; i < n; i += 2) memcpy(to + (j + i) * 32, half + i, 4);
        v_store_bf16(half, n == VL ? v_load(v + j) : v_load_n(v + j, n));
        for (size_t i = 0; i < n; i++) value[2 * (j + i)] = half[i];
    }
}

INLINE void init_attention(struct mg_kernels *t) {
    t->store_kv = store_kv;
    t->attention_tasks = attention_tasks;
    t->attention_scratch = attention_scratch;
    t->attention = attention;
}

#endif
