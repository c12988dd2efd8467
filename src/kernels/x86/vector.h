/* kernels/x86/vector.h - vectors, norms and rotary embedding for the tier that includes this (see
 * vec.h).
 *
 * Element-wise functions give an element the same bits at any position. Sums over a row run in
 * LANES = 4 vectors side by side, added pairwise at the end; the order depends on k alone.
 */
#ifndef MG_KERNELS_X86_VECTOR_H
#define MG_KERNELS_X86_VECTOR_H

#include "kernels/kernels.h"
#include "kernels/x86/vmath.h"

#include <math.h>

static void add(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(y + i, v_add(v_load(y + i), v_load(x + i)));
    if (i < n) v_store_n(y + i, v_add(v_load_n(y + i, n - i), v_load_n(x + i, n - i)), n - i);
}

static void gelu_tanh(float *x, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(x + i, v_gelu_tanh(v_load(x + i)));
    if (i < n) v_store_n(x + i, v_gelu_tanh(v_load_n(x + i, n - i)), n - i);
}

static void gelu_erf(float *x, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(x + i, v_gelu_erf(v_load(x + i)));
    if (i < n) v_store_n(x + i, v_gelu_erf(v_load_n(x + i, n - i)), n - i);
}

static void silu_mul(const float *gate, const float *up, float *out, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store(out + i, v_mul(v_silu(v_load(gate + i)), v_load(up + i)));
    if (i < n) {
        vf g = v_load_n(gate + i, n - i), u = v_load_n(up + i, n - i);
        v_store_n(out + i, v_mul(v_silu(g), u), n - i);
    }
}

/* The largest value; NaN is passed over, -infinity when there is nothing else. */
INLINE float row_max(const float *x, size_t n) {
    vf m = v_set(-INFINITY);
    size_t i = 0;
    for (; i + VL <= n; i += VL) m = v_max(v_load(x + i), m);
    if (i < n) m = v_max(v_first_else(n - i, v_load_n(x + i, n - i), m), m);
    return v_top(m);
}

static void softmax(float *x, size_t n) {
    vf top = v_set(row_max(x, n)), sum = v_zero();
    size_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf e = v_exp(v_sub(v_load(x + i), top));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    if (i < n) {
        vf e = v_exp(v_sub(v_load_n(x + i, n - i), top));
        v_store_n(x + i, e, n - i);
        sum = v_add(sum, v_first_else(n - i, e, v_zero()));
    }
    vf r = v_set(1.0f / v_sum(sum));
    for (i = 0; i + VL <= n; i += VL) v_store(x + i, v_mul(v_load(x + i), r));
    if (i < n) v_store_n(x + i, v_mul(v_load_n(x + i, n - i), r), n - i);
}

static void widen(enum mg_dtype type, const void *in, float *out, size_t n) {
    size_t i = 0;
    if (type == MG_BF16) {
        const uint16_t *p = in;
        for (; i + VL <= n; i += VL) v_store(out + i, v_load_bf16(p + i));
        if (i < n) v_store_n(out + i, v_load_bf16_n(p + i, n - i), n - i);
    } else if (type == MG_F16) {
        const uint16_t *p = in;
        for (; i + VL <= n; i += VL) v_store(out + i, v_load_f16(p + i));
        if (i < n) v_store_n(out + i, v_load_f16_n(p + i, n - i), n - i);
    } else if (out != in && n) {
        memmove(out, in, n * sizeof(float));
    }
}

static void to_bf16(const float *in, uint16_t *out, size_t n) {
    size_t i = 0;
    for (; i + VL <= n; i += VL) v_store_bf16(out + i, v_load(in + i));
    if (i < n) v_store_bf16_n(out + i, v_load_n(in + i, n - i), n - i);
}

static bool all_finite(const float *x, size_t n) {
    size_t i = 0;
    unsigned bad = 0;
    for (; i + VL <= n && !bad; i += VL) bad = v_inf_nan_bits(v_load(x + i));
    if (i < n && !bad) bad = v_inf_nan_bits(v_load_n(x + i, n - i));
    return !bad;
}

static size_t argmax(const float *x, size_t n) {
    vf top = v_set(row_max(x, n));
    size_t i = 0;
    for (; i + VL <= n; i += VL) {
        unsigned hit = v_equal_bits(v_load(x + i), top);
        if (hit) return i + (size_t)__builtin_ctz(hit);
    }
    if (i < n) {
        unsigned hit = v_equal_bits(v_load_n(x + i, n - i), top) & ((1u << (n - i)) - 1);
        if (hit) return i + (size_t)__builtin_ctz(hit);
    }
    return 0; /* all NaN */
}

enum { LANES = 4 };

/* sum of (x - mean) or (x - mean)^2 */
INLINE float row_sum(const float *x, size_t k, float mean, bool square) {
    vf s[LANES], mu = v_set(mean);
    UNROLL for (int l = 0; l < LANES; l++) s[l] = v_zero();
    size_t j = 0;
    for (; j + LANES * VL <= k; j += LANES * VL) {
        UNROLL for (int l = 0; l < LANES; l++) {
            vf v = v_sub(v_load(x + j + (size_t)l * VL), mu);
            s[l] = square ? v_fma(v, v, s[l]) : v_add(v, s[l]);
        }
    }
    for (; j < k; j += VL) {
        vf v = k - j >= VL ? v_sub(v_load(x + j), mu)
                           : v_first_else(k - j, v_sub(v_load_n(x + j, k - j), mu), v_zero());
        s[0] = square ? v_fma(v, v, s[0]) : v_add(v, s[0]);
    }
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

static void rms_norm(const float *in, size_t ldin, const float *w, float eps, float *out,
                     size_t ldout, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        const float *x = in + i * ldin;
        float *y = out + i * ldout;
        vf r = v_set(1.0f / sqrtf(row_sum(x, k, 0, true) / (float)k + eps));
        size_t j = 0;
        for (; j + VL <= k; j += VL) v_store(y + j, v_mul(v_mul(v_load(x + j), r), v_load(w + j)));
        if (j < k) {
            size_t n = k - j;
            v_store_n(y + j, v_mul(v_mul(v_load_n(x + j, n), r), v_load_n(w + j, n)), n);
        }
    }
}

static void layer_norm(const float *in, size_t ldin, const float *w, const float *b, float eps,
                       float *out, size_t ldout, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        const float *x = in + i * ldin;
        float *y = out + i * ldout;
        /* A second sum over the differences mends the rounding of the first where |mean| >> spread.
         */
        float mean = row_sum(x, k, 0, false) / (float)k;
        mean += row_sum(x, k, mean, false) / (float)k;
        vf mu = v_set(mean), r = v_set(1.0f / sqrtf(row_sum(x, k, mean, true) / (float)k + eps));
        size_t j = 0;
        for (; j + VL <= k; j += VL) {
            vf v = v_mul(v_sub(v_load(x + j), mu), r);
            v_store(y + j, v_fma(v, v_load(w + j), v_load(b + j)));
        }
        if (j < k) {
            size_t n = k - j;
            vf v = v_mul(v_sub(v_load_n(x + j, n), mu), r);
            v_store_n(y + j, v_fma(v, v_load_n(w + j, n), v_load_n(b + j, n)), n);
        }
    }
}

static void rope(float *x, size_t ldx, size_t m, size_t n_head, size_t head_dim,
                 const float *cosines, const float *sines) {
    size_t half = head_dim / 2;
    for (size_t i = 0; i < m; i++) {
        const float *c = cosines + i * half, *s = sines + i * half;
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + i * ldx + h * head_dim, *q = p + half;
            size_t j = 0;
            for (; j + VL <= half; j += VL) {
                vf a = v_load(p + j), b = v_load(q + j), vc = v_load(c + j), vs = v_load(s + j);
                v_store(p + j, v_fnma(b, vs, v_mul(a, vc)));
                v_store(q + j, v_fma(a, vs, v_mul(b, vc)));
            }
            if (j < half) {
                size_t n = half - j;
                vf a = v_load_n(p + j, n), b = v_load_n(q + j, n);
                vf vc = v_load_n(c + j, n), vs = v_load_n(s + j, n);
                v_store_n(p + j, v_fnma(b, vs, v_mul(a, vc)), n);
                v_store_n(q + j, v_fma(a, vs, v_mul(b, vc)), n);
            }
        }
    }
}

INLINE void init_vector(struct mg_kernels *t) {
    t->rms_norm = rms_norm;
    t->layer_norm = layer_norm;
    t->rope = rope;
    t->add = add;
    t->gelu_tanh = gelu_tanh;
    t->gelu_erf = gelu_erf;
    t->silu_mul = silu_mul;
    t->softmax = softmax;
    t->widen = widen;
    t->to_bf16 = to_bf16;
    t->all_finite = all_finite;
    t->argmax = argmax;
}

#endif
