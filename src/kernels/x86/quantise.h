/* kernels/x86/quantise.h - f32 rows to bytes (kernels/packed.h) for the tier that includes this. */
#ifndef MG_KERNELS_X86_QUANTISE_H
#define MG_KERNELS_X86_QUANTISE_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/ivec.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum values { ALL, QUIET, LOUD };

/* v where it counts, else 0: all, those of magnitude at most `level`, or the others. */
INLINE vf only(enum values which, vf v, vf level) {
    if (which == ALL) return v;
    vf quiet = v_if_less(level, v_abs(v), v_zero(), v);
    return which == QUIET ? quiet : v_sub(v, quiet);
}

/* 64 values of x from j on (those from k on are 0) times `by`, rounded, plus `zero`. */
INLINE void whole_block(enum values which, vf level, const float *x, size_t j, size_t k, vf by,
                        vi zero, vi out[64 / VL]) {
    UNROLL for (int i = 0; i < 64 / VL; i++) {
        size_t at = j + (size_t)i * VL;
        vf v = at + VL <= k ? v_load(x + at) : at < k ? v_load_n(x + at, k - at) : v_zero();
        v = only(which, v, level);
#if defined(__AVX512F__)
        out[i] = i_add(_mm512_cvtps_epi32(v_mul(v, by)), zero);
#else
        out[i] = i_add(_mm256_cvtps_epi32(v_mul(v, by)), zero);
#endif
    }
}

/* Saturated to 0..255, or when `sign` to -127..127. */
INLINE void store_block(uint8_t *to, const vi v[64 / VL], bool sign) {
#if defined(__AVX512F__)
    UNROLL for (int i = 0; i < 4; i++) {
        __m128i b = sign ? _mm512_cvtsepi32_epi8(_mm512_max_epi32(v[i], i_set(-127)))
                         : _mm512_cvtusepi32_epi8(_mm512_max_epi32(v[i], i_zero()));
        _mm_storeu_si128((__m128i *)(void *)(to + 16 * i), b);
    }
#else
    UNROLL for (int i = 0; i < 8; i += 4) {
        vi a = _mm256_packs_epi32(v[i], v[i + 1]), b = _mm256_packs_epi32(v[i + 2], v[i + 3]);
        vi c = sign ? _mm256_packs_epi16(_mm256_max_epi16(a, _mm256_set1_epi16(-127)),
                                         _mm256_max_epi16(b, _mm256_set1_epi16(-127)))
                    : _mm256_packus_epi16(a, b);
        vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packs work on halves */
        i_store(to + 8 * i, _mm256_permutevar8x32_epi32(c, order));
    }
#endif
}

/* Least and largest value of one block, 0 among them. */
INLINE void block_range(enum values which, vf level, const float *x, size_t j, size_t k, float *low,
                        float *high) {
    vf l = v_zero(), h = v_zero();
    for (size_t end = j + MG_PACK_K < k ? j + MG_PACK_K : k; j < end; j += VL) {
        vf v = end - j >= VL ? v_load(x + j) : v_load_n(x + j, end - j);
        v = only(which, v, level);
        l = v_min(v, l);
        h = v_max(v, h);
    }
    *low = -v_top(v_sub(v_zero(), l));
    *high = v_top(h);
}

static void loud_blocks(const float *x, size_t k, float top, vf level, struct mg_row_scale *xs,
                        uint8_t *to) {
    xs->loud_scale = top / 127;
    vf by = v_set(127 / top);
    for (size_t i = 0; i < xs->n_loud; i++, to += MG_PACK_K) {
        vi v[64 / VL];
        whole_block(LOUD, level, x, xs->loud[i] * (size_t)MG_PACK_K, k, by, i_zero(), v);
        store_block(to, v, true);
        for (size_t j = 0; j < MG_PACK_K; j++)
            xs->loud_sum[2 * i + j / MG_PACK_GROUP] += (int8_t)to[j];
    }
}

/* Whether at most `most` blocks have a value of more than half the row's largest magnitude:
 * otherwise mg_loud_pick picks none, since it wants the rest to be twice as quiet. Rows of a common
 * kind are through after a few blocks. */
INLINE bool may_be_loud(const float *x, size_t k, size_t most, float loudest) {
    vf limit = v_set(loudest);
    for (size_t j = 0, found = 0; j < k; j += MG_PACK_K) {
        vf top = v_zero();
        for (size_t i = j; i < j + MG_PACK_K && i < k; i += VL)
            top = v_max(top, v_abs(k - i >= VL ? v_load(x + i) : v_load_n(x + i, k - i)));
        found += v_less_bits(limit, v_add(top, top)) != 0;
        if (found > most) return false;
    }
    return true;
}

/* Least and largest value of a row, 0 among them, and whether any isn't finite. */
INLINE bool row_range(const float *x, size_t k, float *low, float *high) {
    vf l = v_zero(), h = v_zero(), l2 = v_zero(), h2 = v_zero();
    unsigned bad = 0;
    size_t j = 0;
    for (; j + 2 * VL <= k; j += 2 * VL) {
        vf a = v_load(x + j), b = v_load(x + j + VL);
        bad |= v_inf_nan_bits(a) | v_inf_nan_bits(b);
        l = v_min(a, l), h = v_max(a, h);
        l2 = v_min(b, l2), h2 = v_max(b, h2);
    }
    for (; j < k; j += VL) {
        vf a = k - j >= VL ? v_load(x + j) : v_load_n(x + j, k - j);
        bad |= v_inf_nan_bits(a);
        l = v_min(a, l), h = v_max(a, h);
    }
    *low = -v_top(v_sub(v_zero(), v_min(l, l2)));
    *high = v_top(v_max(h, h2));
    return bad;
}

static void quantise_row(const float *x, uint8_t *q, struct mg_row_scale *xs, size_t k) {
    size_t blocks = mg_packed_blocks(k), most = mg_packed_max_loud(k);
    float top[MG_MAX_LOUD_BLOCKS], low[MG_MAX_LOUD_BLOCKS], high[MG_MAX_LOUD_BLOCKS];
    float least = 0, largest = 0, loudest = 0, inverse = 0, limit = INFINITY;
    vf none = v_zero();
    *xs = (struct mg_row_scale){0};
    bool bad = row_range(x, k, &least, &largest);
    loudest = largest > -least ? largest : -least;
    if (!bad && most && may_be_loud(x, k, most, loudest)) {
        for (size_t b = 0; b < blocks; b++) {
            block_range(ALL, none, x, b * MG_PACK_K, k, &low[b], &high[b]);
            top[b] = high[b] > -low[b] ? high[b] : -low[b];
        }
        xs->n_loud = (uint16_t)mg_loud_pick(top, blocks, most, xs->loud, &limit);
    }
    vf level = v_set(limit);
    if (xs->n_loud) {
        for (size_t i = 0; i < xs->n_loud; i++) {
            size_t b = xs->loud[i];
            block_range(QUIET, level, x, b * MG_PACK_K, k, &low[b], &high[b]);
        }
        least = largest = 0;
        for (size_t b = 0; b < blocks; b++) {
            least = low[b] < least ? low[b] : least;
            largest = high[b] > largest ? high[b] : largest;
        }
    }
    float range = largest - least;
    if (bad || !(range <= FLT_MAX)) {
        *xs = (struct mg_row_scale){.scale = NAN};
    } else if (range >= MG_LEAST_RANGE) {
        inverse = 255 / range;
        xs->scale = range / 255;
        xs->zero = (int32_t)lrintf(-least * inverse);
    }
    vf by = v_set(inverse);
    vi zero = i_set(xs->zero);
    for (size_t b = 0; b < blocks && inverse > 0; b++) {
        vi v[64 / VL];
        if (xs->n_loud)
            whole_block(QUIET, level, x, b * MG_PACK_K, k, by, zero, v);
        else
            whole_block(ALL, none, x, b * MG_PACK_K, k, by, zero, v);
        store_block(q + b * MG_PACK_K, v, false);
    }
    if (!(inverse > 0)) memset(q, 0, blocks * MG_PACK_K);
    if (xs->n_loud) loud_blocks(x, k, loudest, level, xs, q + blocks * MG_PACK_K);
}

static void quantise(const float *in, size_t ldin, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                     size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) quantise_row(in + i * ldin, q + i * ldq, &xs[i], k);
}

#endif
