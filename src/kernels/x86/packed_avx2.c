/* kernels/x86/packed_avx2.c - products with packed integer weights on AVX2 (packed_madd.h), and the
 * rounding of activations. */
#include "kernels/x86/packed_madd.h"
#include "kernels/x86/x86.h"

#include <float.h>
#include <string.h>

/* Eight values rounded, with the zero point. */
INLINE vi whole(const float *x, size_t j, size_t k, vf by, vi zero) {
    vf v = j + VL <= k ? v_load(x + j) : j < k ? v_load_n(x + j, k - j) : v_zero();
    return i_add(_mm256_cvtps_epi32(v_mul(v, by)), zero);
}

static void quantise_row(const float *x, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                         size_t k) {
    vf low = v_zero(), high = v_zero();
    unsigned bad = 0;
    for (size_t j = 0; j < k; j += VL) {
        vf v = k - j >= VL ? v_load(x + j) : v_load_n(x + j, k - j);
        bad |= v_inf_nan_bits(v);
        low = v_min(v, low);
        high = v_max(v, high);
    }
    float least = -v_top(v_sub(v_zero(), low)), range = v_top(high) - least, inverse = 0;
    if (bad || !(range <= FLT_MAX))
        *xs = (struct mg_row_scale){NAN, 0};
    else if (range < MG_LEAST_RANGE)
        *xs = (struct mg_row_scale){0, 0};
    else {
        inverse = 255 / range;
        *xs = (struct mg_row_scale){range / 255, (int32_t)lrintf(-least * inverse)};
    }
    if (!(inverse > 0)) {
        memset(q, 0, ldq);
        return;
    }
    vf by = v_set(inverse);
    vi zero = i_set(xs->zero);
    for (size_t j = 0; j < ldq; j += 4 * VL) {
        vi a = _mm256_packs_epi32(whole(x, j, k, by, zero), whole(x, j + VL, k, by, zero));
        vi b = _mm256_packs_epi32(whole(x, j + 2 * VL, k, by, zero),
                                  whole(x, j + 3 * VL, k, by, zero));
        /* saturated to 0..255, in the order of the two halves of each vector */
        vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        i_store(q + j, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
    }
}

static void quantise(const float *in, size_t ldin, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                     size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) quantise_row(in + i * ldin, q + i * ldq, ldq, &xs[i], k);
}

void mg_avx2_init_packed(struct mg_kernels *t) {
    t->quantise = quantise;
    t->packed_tasks = packed_tasks;
    t->packed_scratch = packed_scratch;
    t->packed_matmul = packed_matmul;
}
