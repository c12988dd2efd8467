/* kernels/x86/attention_rows.h - what attention by vectors (attention.h) and by tiles
 * (attention_amx.c) share: rows of queries, the softmax of a block of scores, the result.
 *
 * A task is one key/value head and a block of rows, the query heads of the group stacked (row =
 * position * group + head). Keys go in blocks counted from key 0. Of each row the running maximum
 * `top` and the sum of its weights `total` are kept; a row whose maximum grows has its sums scaled
 * down (the "online" softmax: exact but for rounding).
 */
#ifndef MG_KERNELS_X86_ATTENTION_ROWS_H
#define MG_KERNELS_X86_ATTENTION_ROWS_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/vmath.h"

#include <math.h>
#include <stdbool.h>

INLINE size_t group_size(const struct mg_attention *op) {
    return op->n_head / op->n_head_kv;
}

/* Keys that query position i sees. */
INLINE size_t visible(const struct mg_attention *op, size_t i) {
    return op->causal ? mg_min_size(op->first_pos + i + 1, op->n_kv) : op->n_kv;
}

/* q[rows][d] of positions pos .. and the heads of group g, times scale; with `half` as bf16. */
INLINE void load_queries(const struct mg_attention *op, size_t g, size_t pos, size_t count, void *q,
                         const bool half) {
    size_t d = op->head_dim, group = group_size(op);
    vf scale = v_set(op->scale);
    for (size_t r = 0; r < count * group; r++) {
        const float *from = op->q + (pos + r / group) * op->ldq + (g * group + r % group) * d;
        for (size_t j = 0; j < d; j += VL) {
            size_t n = mg_min_size(VL, d - j);
            vf v = v_mul(n == VL ? v_load(from + j) : v_load_n(from + j, n), scale);
            if (half)
                v_store_bf16_n((uint16_t *)q + r * d + j, v, n);
            else
                v_store_n((float *)q + r * d + j, v, n);
        }
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

/* Weight i of a row. A vector's place as bf16 lies before its place as f32, or is read already. */
INLINE void store_weight(float *x, size_t i, vf w, const bool half) {
#if defined(__AVX512BF16__)
    if (half) {
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)(void *)x + i),
                            (__m256i)_mm512_cvtneps_pbh(w));
        return;
    }
#endif
    if (half)
        v_store_bf16((uint16_t *)(void *)x + i, w);
    else
        v_store(x + i, w);
}

/* x = exp(x - top) for the first n, 0 for the rest up to `end`; returns the sum. x has room up to a
 * multiple of VL. A sum's order does not depend on `end`. With `half` the results are rounded to
 * bf16 and take the first half of x's memory; the sum is of what they were before. */
INLINE float exp_row(float *x, size_t n, size_t end, float top, const bool half) {
    vf t = v_set(top), sum0 = v_zero(), sum1 = v_zero();
    size_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf e0 = v_exp_below(v_sub(v_load(x + i), t)),
           e1 = v_exp_below(v_sub(v_load(x + i + VL), t));
        store_weight(x, i, e0, half);
        store_weight(x, i + VL, e1, half);
        sum0 = v_add(sum0, e0);
        sum1 = v_add(sum1, e1);
    }
    if (i + VL <= n) {
        vf e = v_exp_below(v_sub(v_load(x + i), t));
        store_weight(x, i, e, half);
        sum0 = v_add(sum0, e);
        i += VL;
        if (i < n) {
            e = v_first_else(n - i, v_exp_below(v_sub(v_load_n(x + i, n - i), t)), v_zero());
            store_weight(x, i, e, half);
            sum1 = v_add(sum1, e);
            i += VL;
        }
    } else if (i < n) {
        vf e = v_first_else(n - i, v_exp_below(v_sub(v_load_n(x + i, n - i), t)), v_zero());
        store_weight(x, i, e, half);
        sum0 = v_add(sum0, e);
        i += VL;
    }
    for (; i < end; i += VL) store_weight(x, i, v_zero(), half);
    return v_sum(v_add(sum0, sum1));
}

INLINE void scale_row(float *x, size_t n, float by) {
    vf s = v_set(by);
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(x + i, v_mul(v_load(x + i), s));
    if (i < n) v_store_n(x + i, v_mul(v_load_n(x + i, n - i), s), n - i);
}

/* The scores of a row's first `see` keys of a block become weights, 0 up to `end`; `first`: of the
 * row's first block, else its sums[dv] so far are scaled when the maximum grows. */
INLINE void soften(float *scores, size_t see, size_t end, float *top, float *total, float *sums,
                   size_t dv, bool first, const bool half) {
    float old = *top;
    *top = raise_top(scores, see, old);
    float sum = exp_row(scores, see, end, *top, half);
    if (!first && *top > old) {
        float shrink[VL];
        v_store(shrink, v_exp_below(v_set(old - *top)));
        *total *= shrink[0];
        scale_row(sums, dv, shrink[0]);
    }
    *total = first ? sum : *total + sum;
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

#endif
