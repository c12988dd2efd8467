/* kernels/x86/vec.h - a vector of floats as wide as the tier's registers, for code written once for
 * both widths.
 *
 * Included only by files named after a tier: with -mavx512* a `vf` is a zmm (VL = 16), else with
 * -mavx2 a ymm (VL = 8). `_n` forms touch only the first n elements in memory (0 < n <= VL) and
 * read the rest as zero, so that a tail costs one more step of the same arithmetic and an element's
 * value never depends on its position. Everything here is static and forced inline: no code leaves
 * the object of its tier.
 */
#ifndef MG_KERNELS_X86_VEC_H
#define MG_KERNELS_X86_VEC_H

#include "kernels/dtype.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline, unused))
/* gcc 12 keeps an array of accumulators in registers only when every loop over it is unrolled. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVX512F__)

enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;

INLINE __mmask16 first_n(size_t n) { return (__mmask16)((1u << n) - 1); }

INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE vf v_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void v_store_n(float *p, vf a, size_t n) { _mm512_mask_storeu_ps(p, first_n(n), a); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a*b + c */
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a*b */
/* The second operand where either is NaN. */
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf v_abs(vf a) { return _mm512_abs_ps(a); }
/* a where x < y, else b (b where NaN) */
INLINE vf v_if_less(vf x, vf y, vf a, vf b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
/* b in the first n lanes, a in the others (0 <= n) */
INLINE vf v_first_else(size_t n, vf b, vf a) {
    return n >= VL ? b : _mm512_mask_blend_ps(first_n(n), a, b);
}
/* Bit i: a[i] == b[i] */
INLINE unsigned v_equal_bits(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
/* Bit i: a[i] < b[i] */
INLINE unsigned v_less_bits(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE unsigned v_inf_nan_bits(vf a) {
    vi e = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(a), e), e);
}
/* p * 2^n for whole n in -150 .. 128 */
INLINE vf v_scale(vf p, vf n) { return _mm512_scalef_ps(p, n); }
/* Two bf16 a lane: for the low one, and for the high one, as f32. */
INLINE vi v_load_bits(const void *p) { return _mm512_loadu_si512(p); }
INLINE vf v_low_bf16(vi a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
INLINE vf v_high_bf16(vi a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}
INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float v_top(vf a) { return _mm512_reduce_max_ps(a); }

INLINE vi
bf16_bits(vf a) { /* the bf16 in the high half of each lane, low half zero; NaN stays NaN */
    vi u = _mm512_castps_si512(a),
       odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    vi r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    vi q = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), q);
    return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}
INLINE vf v_round_bf16(vf a) { return _mm512_castsi512_ps(bf16_bits(a)); }
INLINE vf widen_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf v_load_bf16(const uint16_t *p) {
    return widen_bf16(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf v_load_bf16_n(const uint16_t *p, size_t n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first_n(n), p));
}
INLINE vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf v_load_f16_n(const uint16_t *p, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_n(n), p));
}
INLINE __m256i narrow_bf16(vf a) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(a), 16));
}
INLINE void v_store_bf16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, narrow_bf16(a)); }
INLINE void v_store_bf16_n(uint16_t *p, vf a, size_t n) {
    _mm256_mask_storeu_epi16(p, first_n(n), narrow_bf16(a));
}

/* The bf16 of lo and then hi, in lanes of two. */
INLINE vf v_pairs_bf16(vf lo, vf hi) {
    vi low = _mm512_castsi256_si512(narrow_bf16(lo));
    return _mm512_castsi512_ps(_mm512_inserti64x4(low, narrow_bf16(hi), 1));
}
/* Lanes of two bf16, one of lo and one of hi. */
INLINE vf v_zip_bf16(vf lo, vf hi) {
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_srli_epi32(bf16_bits(lo), 16), bf16_bits(hi)));
}

/* r[i][j] <-> r[j][i] */
INLINE void v_transpose(vf r[VL]) {
    vf t[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]);
        __m512d c = _mm512_castps_pd(t[i + 1]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
    UNROLL for (int i = 0; i < 4; i++) { /* lanes of 128 bits: 4 x 4 of them */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#else /* AVX2 */

enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;

INLINE vi first_n(size_t n) {
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const vi *)(ones + 8 - n));
}

INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
INLINE vf v_set(float x) { return _mm256_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE vf v_load_n(const float *p, size_t n) { return _mm256_maskload_ps(p, first_n(n)); }
INLINE void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE void v_store_n(float *p, vf a, size_t n) { _mm256_maskstore_ps(p, first_n(n), a); }
INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf v_round(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf v_if_less(vf x, vf y, vf a, vf b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
INLINE vf v_first_else(size_t n, vf b, vf a) {
    return n >= VL ? b : _mm256_blendv_ps(a, b, _mm256_castsi256_ps(first_n(n)));
}
INLINE unsigned v_equal_bits(vf a, vf b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
INLINE unsigned v_less_bits(vf a, vf b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE unsigned v_inf_nan_bits(vf a) {
    vi e = _mm256_set1_epi32(0x7f800000);
    vi is = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(a), e), e);
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is));
}
INLINE vf power2(vi n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
INLINE vf v_scale(vf p, vf n) { /* in two steps: 2^n alone may not fit */
    vi e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1);
    return v_mul(v_mul(p, power2(half)), power2(_mm256_sub_epi32(e, half)));
}
INLINE vi v_load_bits(const void *p) { return _mm256_loadu_si256((const vi *)p); }
INLINE vf v_low_bf16(vi a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
INLINE vf v_high_bf16(vi a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000u)));
}
INLINE float v_sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE float v_top(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

INLINE vi bf16_bits(vf a) {
    vi u = _mm256_castps_si256(a),
       odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    vi r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    vi q = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    r = _mm256_blendv_epi8(r, q, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    return _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
}
INLINE vf v_round_bf16(vf a) { return _mm256_castsi256_ps(bf16_bits(a)); }
INLINE vf widen_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE __m128i load_half_n(const uint16_t *p, size_t n) {
    uint16_t t[8] = {0};
    for (size_t i = 0; i < n; i++) t[i] = p[i];
    return _mm_loadu_si128((const __m128i *)t);
}
INLINE vf v_load_bf16(const uint16_t *p) { return widen_bf16(_mm_loadu_si128((const __m128i *)p)); }
INLINE vf v_load_bf16_n(const uint16_t *p, size_t n) { return widen_bf16(load_half_n(p, n)); }
INLINE vf v_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf v_load_f16_n(const uint16_t *p, size_t n) { return _mm256_cvtph_ps(load_half_n(p, n)); }
INLINE __m128i narrow_bf16(vf a) {
    vi h = _mm256_srli_epi32(bf16_bits(a), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}
INLINE void v_store_bf16(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, narrow_bf16(a)); }
INLINE void v_store_bf16_n(uint16_t *p, vf a, size_t n) {
    uint16_t t[8];
    _mm_storeu_si128((__m128i *)t, narrow_bf16(a));
    for (size_t i = 0; i < n; i++) p[i] = t[i];
}

INLINE vf v_pairs_bf16(vf lo, vf hi) {
    return _mm256_castsi256_ps(_mm256_set_m128i(narrow_bf16(hi), narrow_bf16(lo)));
}
INLINE vf v_zip_bf16(vf lo, vf hi) {
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_srli_epi32(bf16_bits(lo), 16), bf16_bits(hi)));
}

INLINE void v_transpose(vf r[VL]) {
    vf t[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    UNROLL for (int i = 0; i < 8; i++) r[i] = t[i];
}

#endif

/* Up to VL elements of any weight type, widened; full when n >= VL. `type` is a constant where this
 * is inlined. */
INLINE vf v_load_type(enum mg_dtype type, const void *base, size_t i, size_t n) {
    if (type == MG_F32) {
        const float *p = (const float *)base + i;
        return n >= VL ? v_load(p) : v_load_n(p, n);
    }
    const uint16_t *p = (const uint16_t *)base + i;
    if (type == MG_BF16) return n >= VL ? v_load_bf16(p) : v_load_bf16_n(p, n);
    return n >= VL ? v_load_f16(p) : v_load_f16_n(p, n);
}

#endif
