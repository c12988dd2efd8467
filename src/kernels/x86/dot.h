/* kernels/x86/dot.h - products of very few rows with a matrix as it lies in memory, [n][k]:
 * decoding.
 *
 * Sums run along k in one vector per output, so the bits of an output depend on k alone, not on the
 * number of rows or columns computed beside it. Each weight is read once for all rows.
 */
#ifndef MG_KERNELS_X86_DOT_H
#define MG_KERNELS_X86_DOT_H

#include "kernels/x86/gemm.h"

enum { FEW = 8 }; /* rows at most */

/* Elements first .. end-1 of x[r] . w[c] for nc columns and mx rows of x, of which only the first m
 * <= mx exist. Strides of x and w in bytes. With MG_DOT_BF16 x is bf16 and weights become bf16,
 * else x is f32. Only the last part of k may be no multiple of 2 VL. */
struct dot {
    const char *x;
    size_t ldx, m;
    const char *w;
    size_t stride;
    size_t first, end;
    float *parts; /* [column][mx][VL] running sums: read when first > 0, written unless `last`; else
                     unused */
    float *sums;  /* [row][ld], written when `last` */
    size_t ld;
    bool last;
};

INLINE void dot_block(int nc, int mx, enum mg_dtype type, bool round, const struct dot *d) {
    size_t size = mg_dtype_size(type), i = d->first;
    const size_t step_k = DOT ? 2 * VL : VL, xs = DOT ? 2 : 4, stride = d->stride, k = d->end;
    const char *row[FEW], *w = d->w;
    vf acc[4][FEW];
    UNROLL for (int r = 0; r < mx; r++) row[r] =
        d->x + (size_t)(r < (int)d->m ? r : (int)d->m - 1) * d->ldx;
    UNROLL for (int c = 0; c < nc; c++) {
        UNROLL for (int r = 0; r < mx; r++) acc[c][r] =
            i ? v_load(d->parts + (c * mx + r) * VL) : v_zero();
    }
    for (; i + step_k <= k; i += step_k) {
        vf wv[4];
        UNROLL for (int c = 0; c < nc; c++) {
            const char *p = w + (size_t)c * stride;
            _mm_prefetch(p + i * size + (size_t)nc * stride, _MM_HINT_T0);
            wv[c] = load_packed(type, round, p, i, step_k);
        }
        UNROLL for (int r = 0; r < mx; r++) {
            vf xv = v_load((const float *)(const void *)(row[r] + i * xs));
            UNROLL for (int c = 0; c < nc; c++) acc[c][r] = step(acc[c][r], xv, wv[c]);
        }
    }
    if (i < k) {
        UNROLL for (int c = 0; c < nc; c++) {
            vf wv = load_packed(type, round, w + (size_t)c * stride, i, k - i);
            UNROLL for (int r = 0; r < mx; r++) acc[c][r] =
                step(acc[c][r], load_packed(DOT ? MG_BF16 : MG_F32, false, row[r], i, k - i), wv);
        }
    }
    if (!d->last) {
        UNROLL for (int c = 0; c < nc; c++) {
            UNROLL for (int r = 0; r < mx; r++) v_store(d->parts + (c * mx + r) * VL, acc[c][r]);
        }
        return;
    }
    UNROLL for (int r = 0; r < mx; r++) {
        if (r < (int)d->m) {
            UNROLL for (int c = 0; c < nc; c++) d->sums[(size_t)r * d->ld + (size_t)c] =
                v_sum(acc[c][r]);
        }
    }
}

#endif
