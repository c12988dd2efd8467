/* kernels/x86/gemm.h - the register-blocked product of a few rows with a packed panel, and the
 * packing.
 *
 * A panel holds NR = 2 VL columns of a matrix, transposed, dword by dword: b[k][NR]. A dword is one
 * f32, or with MG_DOT_BF16 a pair of bf16 neighbours in k. The micro-kernel reads MR rows of `a` in
 * place, broadcasting one dword at a time, and keeps MR x 2 vectors of sums in registers:
 *
 *              b: k -> [ v v ]          AVX-512: 24 sums + 2 of b + 1 of a, of 32 registers
 *     a: r -> k        [ s s ]          AVX2:    12 sums + 2 of b + 1 of a, of 16
 *
 * Each output is one chain of multiply-adds in ascending k, whatever the number of rows: a row has
 * the same bits alone and among many. 1 .. MR rows each have their own instance.
 */
#ifndef MG_KERNELS_X86_GEMM_H
#define MG_KERNELS_X86_GEMM_H

#include "kernels/x86/vec.h"

#include <stdbool.h>
#include <stddef.h>

#if defined(__AVX512F__)
enum { MR = 12 };
#else
enum { MR = 6 };
#endif
enum { NR = 2 * VL };

INLINE vf broadcast(const char *p) {
    float f;
    memcpy(&f, p, 4);
    return v_set(f);
}

#if defined(MG_DOT_BF16)
enum { DOT = 1 };
INLINE vf step(vf sum, vf a, vf b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
/* A pair whose second half is beyond the row. */
INLINE vf broadcast_half(const char *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm512_castsi512_ps(_mm512_set1_epi32(h));
}
#else
enum { DOT = 0 };
INLINE vf step(vf sum, vf a, vf b) { return v_fma(a, b, sum); }
#endif

/* c[r][0..NR-1] (+)= a[r] . b over k dwords (and with `half`, bf16 only, one element more), r <
 * rows. lda in bytes, ldc in floats. */
INLINE void multiply_rows(int rows, const char *a, size_t lda, const float *b, size_t k, bool half,
                          float *c, size_t ldc, bool add) {
    vf sum[MR][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_zero();
    const char *a1 = a + 3 * lda, *a2 = a + 6 * lda,
               *a3 = a + 9 * lda; /* few registers, short addresses */
    for (size_t i = 0; i < k; i++, b += NR) {
        vf b0 = v_load(b), b1 = v_load(b + VL);
        UNROLL for (int r = 0; r < rows; r++) {
            const char *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
            vf x = broadcast(base + (size_t)(r % 3) * lda + 4 * i);
            sum[r][0] = step(sum[r][0], x, b0);
            sum[r][1] = step(sum[r][1], x, b1);
        }
    }
#if defined(MG_DOT_BF16)
    if (half) {
        vf b0 = v_load(b), b1 = v_load(b + VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vf x = broadcast_half(a + (size_t)r * lda + 4 * k);
            sum[r][0] = step(sum[r][0], x, b0);
            sum[r][1] = step(sum[r][1], x, b1);
        }
    }
#endif
    UNROLL for (int r = 0; r < rows; r++) {
        float *to = c + (size_t)r * ldc;
        v_store(to, add ? v_add(v_load(to), sum[r][0]) : sum[r][0]);
        v_store(to + VL, add ? v_add(v_load(to + VL), sum[r][1]) : sum[r][1]);
    }
}

#define ROWS_INSTANCE(N)                                                                           \
    static void multiply_##N(const char *a, size_t lda, const float *b, size_t k, bool half,       \
                             float *c, size_t ldc, bool add) {                                     \
        multiply_rows(N, a, lda, b, k, half, c, ldc, add);                                         \
    }
ROWS_INSTANCE(1)
ROWS_INSTANCE(2)
ROWS_INSTANCE(3)
ROWS_INSTANCE(4)
ROWS_INSTANCE(5)
ROWS_INSTANCE(6)
#if defined(__AVX512F__)
ROWS_INSTANCE(7)
ROWS_INSTANCE(8)
ROWS_INSTANCE(9)
ROWS_INSTANCE(10)
ROWS_INSTANCE(11)
ROWS_INSTANCE(12)
#endif

typedef void multiply_fn(const char *a, size_t lda, const float *b, size_t k, bool half, float *c,
                         size_t ldc, bool add);
static multiply_fn *const multiply[MR + 1] = {
    NULL,       multiply_1, multiply_2, multiply_3,  multiply_4,  multiply_5,  multiply_6,
#if defined(__AVX512F__)
    multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12,
#endif
};

/* VL dwords of packed form from element i of a weight row, the elements from n on as zero. */
INLINE vf load_packed(enum mg_dtype type, bool round, const char *row, size_t i, size_t n) {
#if defined(MG_DOT_BF16)
    if (type == MG_BF16) {
        const uint16_t *p = (const uint16_t *)(const void *)row + i;
        if (n >= 2 * VL) return _mm512_castsi512_ps(_mm512_loadu_si512(p));
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((1u << n) - 1, p));
    }
    vf lo = v_load_type(type, row, i, n),
       hi = n > VL ? v_load_type(type, row, i + VL, n - VL) : v_zero();
    vi low = _mm512_castsi256_si512(narrow_bf16(lo));
    return _mm512_castsi512_ps(_mm512_inserti64x4(low, narrow_bf16(hi), 1));
#else
    vf v = v_load_type(type, row, i, n);
    return round ? v_round_bf16(v) : v;
#endif
}

/* b[k/pair][NR] from rows w + c*stride (bytes), c < n_col <= NR; columns beyond and the odd half
 * are zero. pair: elements in a dword. */
INLINE void pack_type(enum mg_dtype type, bool round, size_t pair, const char *w, size_t stride,
                      size_t n_col, size_t k, float *b) {
    for (size_t c0 = 0; c0 < NR; c0 += VL) {
        size_t nc = n_col > c0 ? n_col - c0 : 0;
        const char *base = w + (nc ? c0 * stride : 0);
        for (size_t k0 = 0; k0 < k; k0 += VL * pair) {
            vf r[VL];
            size_t n = k - k0, rows = (n + pair - 1) / pair;
            float *to = b + k0 / pair * NR + c0;
            if (nc >= VL && rows >= VL && n >= VL * pair) {
                UNROLL for (int i = 0; i < VL; i++) {
                    const char *row = base + (size_t)i * stride;
                    _mm_prefetch(row + k0 * mg_dtype_size(type) + 256, _MM_HINT_T0);
                    r[i] = load_packed(type, round, row, k0, VL * pair);
                }
                v_transpose(r);
                UNROLL for (int i = 0; i < VL; i++) v_store(to + i * NR, r[i]);
            } else {
                for (size_t i = 0; i < VL; i++)
                    r[i] = i < nc ? load_packed(type, round, base + i * stride, k0, n) : v_zero();
                v_transpose(r);
                for (size_t i = 0; i < rows && i < VL; i++) v_store(to + i * NR, r[i]);
            }
        }
    }
}

#endif
