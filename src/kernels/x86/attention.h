/* kernels/x86/attention.h - softmax(scale q k^T) v in f32 for the tier that includes this (see
 * vec.h).
 *
 * Many rows: a task is one key/value head and a block of about BLOCK_ROWS rows, the query heads of
 * the group stacked (row = position * group + head). Keys go in blocks of KEYS, counted from key 0:
 * k^T and v are packed into panels, then MR rows at a time: scores (they fit L1), the running
 * maximum and sum, exp, and the product with v. A row whose maximum grows has its sums scaled down
 * (the "online" softmax: exact but for rounding).
 *
 * Few rows (decoding): a task is one key/value head; scores by dot products along the keys as
 * they lie there, an ordinary softmax over all of
 * them, then the weighted sum of values. A row's result depends on its own visible keys alone, not
 * on the rows beside it: hidden keys get the weight 0.
 *
 *   scratch, many:  q [R][d]  sums [R][dp]  top, total [R]  k^T [KEYS/NR][d][NR]
 *                   v [dp/NR][KEYS][NR]  scores [MR][KEYS + 16]
 *                   R = rows of a block, dp = d up to a multiple of NR
 *   scratch, few:   q [FEW][d]  scores [FEW][n_kv up to a multiple of 64]
 */
#ifndef MG_KERNELS_X86_ATTENTION_H
#define MG_KERNELS_X86_ATTENTION_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/dot.h"
#include "kernels/x86/vmath.h"

#include <math.h>

enum { BLOCK_ROWS = 240, KEYS = 512, LD_SCORES = KEYS + 16, DOT_KEYS = 64 };

INLINE size_t group_size(const struct mg_attention *op) { return op->n_head / op->n_head_kv; }
INLINE bool is_few(const struct mg_attention *op) { return op->n_q * group_size(op) <= FEW; }

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
    if (is_few(op)) return op->n_q ? op->n_head_kv : 0;
    size_t per = block_positions(op);
    return op->n_head_kv * ((op->n_q + per - 1) / per);
}

static size_t attention_scratch(const struct mg_attention *op) {
    size_t d = op->head_dim, floats;
    if (is_few(op)) {
        floats = FEW * d + FEW * mg_round_up(op->n_kv, DOT_KEYS);
    } else {
        size_t rows = block_positions(op) * group_size(op), dp = mg_round_up(d, NR);
        floats = rows * (d + dp + 2) + KEYS * (d + dp) + (size_t)MR * LD_SCORES + 4 * 16;
    }
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
        vf e0 = v_exp(v_sub(v_load(x + i), t)), e1 = v_exp(v_sub(v_load(x + i + VL), t));
        v_store(x + i, e0);
        v_store(x + i + VL, e1);
        sum0 = v_add(sum0, e0);
        sum1 = v_add(sum1, e1);
    }
    if (i + VL <= n) {
        vf e = v_exp(v_sub(v_load(x + i), t));
        v_store(x + i, e);
        sum0 = v_add(sum0, e);
        i += VL;
        if (i < n) {
            e = v_first_else(n - i, v_exp(v_sub(v_load_n(x + i, n - i), t)), v_zero());
            v_store(x + i, e);
            sum1 = v_add(sum1, e);
            i += VL;
        }
    } else if (i < n) {
        vf e = v_first_else(n - i, v_exp(v_sub(v_load_n(x + i, n - i), t)), v_zero());
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

/* v panels [dp/NR][KEYS][NR] of n keys. */
INLINE void pack_values(enum mg_dtype type, const char *v, size_t stride, size_t n, size_t d,
                        float *to) {
    for (size_t p = 0; p < n; p++, v += stride)
        for (size_t j = 0; j < d; j += VL) {
            /* Rows are far apart (12 KB in the vision tower): no hardware prefetcher sees the next
             * one coming. */
            _mm_prefetch(v + 8 * stride + j * mg_dtype_size(type), _MM_HINT_T0);
            v_store(to + j / NR * NR * KEYS + p * NR + j % NR, v_load_type(type, v, j, d - j));
        }
    if (d % NR && d % NR <= VL) /* the empty second half of the last panel */
        for (size_t p = 0; p < n; p++) v_store(to + d / NR * NR * KEYS + p * NR + VL, v_zero());
}

/* The parts of a task's scratch. */
struct block {
    float *q, *sums, *top, *total, *keys, *values, *scores;
    size_t rows, d, dp;
    size_t pos; /* query position of row 0 */
};

static void pack_keys(const struct mg_attention *op, size_t g, size_t first, size_t n,
                      struct block *b) {
    size_t size = mg_dtype_size(op->kv_type), stride = op->ldkv * size;
    size_t at = (g * op->head_stride_kv + first * op->ldkv) * size;
    const char *k = (const char *)op->k + at, *v = (const char *)op->v + at;
    for (size_t p = 0; p < n; p += NR) {
        size_t count = mg_min_size(NR, n - p);
        float *to = b->keys + p * b->d;
        for (size_t i = NR; i < 2 * NR && p + i < n; i++)
            for (size_t j = 0; j < b->d * size; j += 64)
                _mm_prefetch(k + (p + i) * stride + j, _MM_HINT_T0);
        if (op->kv_type == MG_BF16)
            pack_type(MG_BF16, false, 1, k + p * stride, stride, count, b->d, to);
        else
            pack_type(MG_F32, false, 1, k + p * stride, stride, count, b->d, to);
    }
    if (op->kv_type == MG_BF16)
        pack_values(MG_BF16, v, stride, n, b->d, b->values);
    else
        pack_values(MG_F32, v, stride, n, b->d, b->values);
}

/* Rows r .. r+count-1 against the n packed keys from `first` on. */
static void block_rows(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                       size_t first, size_t n) {
    size_t group = group_size(op), last = visible(op, b->pos + (r + count - 1) / group);
    if (last <= first) return;
    n = mg_min_size(n, last - first);
    for (size_t p = 0; p < n; p += NR)
        multiply[count]((const char *)(b->q + r * b->d), b->d * sizeof(float), b->keys + p * b->d,
                        b->d, false, b->scores + p, LD_SCORES, false);
    for (size_t i = 0; i < count; i++) {
        float *s = b->scores + i * LD_SCORES, *top = b->top + r + i, *total = b->total + r + i;
        size_t see = visible(op, b->pos + (r + i) / group);
        see = see > first ? mg_min_size(n, see - first) : 0;
        float old = *top;
        *top = raise_top(s, see, old);
        float sum = exp_row(s, see, n, *top);
        if (first && *top > old) {
            float shrink[VL];
            v_store(shrink, v_exp(v_set(old - *top)));
            *total *= shrink[0];
            scale_row(b->sums + (r + i) * b->dp, b->dp, shrink[0]);
        }
        *total = first ? *total + sum : sum;
    }
    for (size_t j = 0; j < b->dp; j += NR)
        multiply[count]((const char *)b->scores, LD_SCORES * sizeof(float), b->values + j * KEYS, n,
                        false, b->sums + r * b->dp + j, b->dp, first > 0);
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

static void attention_many(const struct mg_attention *op, size_t task, float *scratch) {
    size_t per = block_positions(op), blocks = (op->n_q + per - 1) / per;
    size_t g = task / blocks, group = group_size(op);
    struct block b = {
        .d = op->head_dim, .dp = mg_round_up(op->head_dim, NR), .pos = task % blocks * per};
    size_t positions = mg_min_size(per, op->n_q - b.pos);
    b.rows = positions * group;
    b.keys = carve(&scratch, KEYS * b.d);
    b.values = carve(&scratch, KEYS * b.dp);
    b.scores = carve(&scratch, (size_t)MR * LD_SCORES);
    b.q = carve(&scratch, b.rows * b.d);
    b.sums = carve(&scratch, b.rows * b.dp);
    b.top = carve(&scratch, b.rows);
    b.total = carve(&scratch, b.rows);
    load_queries(op, g, b.pos, positions, b.q);
    for (size_t r = 0; r < b.rows; r++) b.top[r] = -INFINITY;
    size_t end = visible(op, b.pos + positions - 1);
    for (size_t first = 0; first < end; first += KEYS) {
        size_t n = mg_min_size(KEYS, end - first);
        pack_keys(op, g, first, n, &b);
        for (size_t r = 0; r < b.rows; r += MR)
            block_rows(op, &b, r, mg_min_size(MR, b.rows - r), first, n);
    }
    for (size_t r = 0; r < b.rows; r++) {
        float *out = out_row(op, g, b.pos, r);
        if (end)
            store_row(b.sums + r * b.dp, b.total[r], out, b.d);
        else
            memset(out, 0, b.d * sizeof(float));
    }
}

/* scores[rows][ld] = q k^T */
INLINE void few_scores(int mx, enum mg_dtype type, const struct mg_attention *op, size_t rows,
                       const float *q, const char *k, float *scores, size_t ld) {
    size_t p = 0;
    struct dot d = {.x = (const char *)q,
                    .ldx = op->head_dim * sizeof(float),
                    .m = rows,
                    .w = k,
                    .stride = op->ldkv * mg_dtype_size(type),
                    .end = op->head_dim,
                    .sums = scores,
                    .ld = ld,
                    .last = true};
    for (; p + 2 <= op->n_kv; p += 2, d.w += 2 * d.stride, d.sums += 2)
        dot_block(2, mx, type, false, &d);
    if (p < op->n_kv) dot_block(1, mx, type, false, &d);
}

/* W vectors of out for mx rows, of which the first `rows` exist, from column j on. */
INLINE void few_values(int mx, int width, enum mg_dtype type, const struct mg_attention *op,
                       size_t rows, const char *v, size_t j, const float *p, size_t ld,
                       float *out[]) {
    size_t stride = op->ldkv * mg_dtype_size(type), d = op->head_dim;
    vf acc[4][4];
    UNROLL for (int r = 0; r < mx; r++) {
        UNROLL for (int c = 0; c < width; c++) acc[r][c] = v_zero();
    }
    for (size_t i = 0; i < op->n_kv; i++) {
        vf x[4];
        UNROLL for (int c = 0; c < width; c++) x[c] =
            v_load_type(type, v + i * stride, j + (size_t)c * VL, width == 1 ? d - j : VL);
        UNROLL for (int r = 0; r < mx; r++) {
            vf w = v_set(p[(size_t)r * ld + i]);
            UNROLL for (int c = 0; c < width; c++) acc[r][c] = v_fma(w, x[c], acc[r][c]);
        }
    }
    UNROLL for (int r = 0; r < mx; r++) {
        if (r < (int)rows) {
            UNROLL for (int c = 0; c < width; c++) {
                float *to = out[r] + j + (size_t)c * VL;
                if (width > 1 || d - j >= VL)
                    v_store(to, acc[r][c]);
                else
                    v_store_n(to, acc[r][c], d - j);
            }
        }
    }
}

/* All columns of out for at most 4 rows. */
INLINE void few_outputs(enum mg_dtype type, const struct mg_attention *op, size_t rows,
                        const char *v, const float *p, size_t ld, float *out[]) {
    const int width = sizeof(vf) == 64 ? 4 : 2;
    size_t j = 0, wide = (size_t)width * VL;
    for (; j + wide <= op->head_dim; j += wide) {
        if (rows == 1)
            few_values(1, width, type, op, rows, v, j, p, ld, out);
        else if (rows == 2)
            few_values(2, width, type, op, rows, v, j, p, ld, out);
        else
            few_values(4, width, type, op, rows, v, j, p, ld, out);
    }
    for (; j < op->head_dim; j += VL) few_values(4, 1, type, op, rows, v, j, p, ld, out);
}

INLINE void few_type(enum mg_dtype type, const struct mg_attention *op, size_t g, float *q,
                     float *scores) {
    size_t group = group_size(op), rows = op->n_q * group, ld = mg_round_up(op->n_kv, DOT_KEYS);
    size_t at = g * op->head_stride_kv * mg_dtype_size(type);
    const char *k = (const char *)op->k + at, *v = (const char *)op->v + at;
    if (rows == 1)
        few_scores(1, type, op, rows, q, k, scores, ld);
    else if (rows == 2)
        few_scores(2, type, op, rows, q, k, scores, ld);
    else if (rows <= 4)
        few_scores(4, type, op, rows, q, k, scores, ld);
    else
        few_scores(8, type, op, rows, q, k, scores, ld);
    for (size_t r = 0; r < mg_round_up(rows, 4); r++) {
        float *s = scores + r * ld;
        size_t see = r < rows ? visible(op, r / group) : 0;
        float top = raise_top(s, see, -INFINITY);
        float total = exp_row(s, see, op->n_kv, top);
        if (see) scale_row(s, see, 1.0f / total);
    }
    for (size_t r = 0; r < rows; r += 4) {
        float *out[4];
        for (size_t i = 0; i < 4; i++) out[i] = out_row(op, g, 0, mg_min_size(r + i, rows - 1));
        few_outputs(type, op, mg_min_size(4, rows - r), v, scores + r * ld, ld, out);
    }
}

static void attention(const struct mg_attention *op, size_t task, void *scratch) {
    if (!is_few(op)) {
        attention_many(op, task, scratch);
        return;
    }
    float *q = scratch, *scores = q + FEW * op->head_dim;
    load_queries(op, task, 0, op->n_q, q);
    if (op->kv_type == MG_BF16)
        few_type(MG_BF16, op, task, q, scores);
    else
        few_type(MG_F32, op, task, q, scores);
}

INLINE void init_attention(struct mg_kernels *t) {
    t->attention_tasks = attention_tasks;
    t->attention_scratch = attention_scratch;
    t->attention = attention;
}

#endif
