/* kernels/x86/ivec.h - whole numbers in the tier's registers (see vec.h), and INT4 as INT8.
 *
 * A line of packed weights (64 bytes, 16 outputs x 4 inputs) is LINE_V vectors. Shifts and sums
 * named 16 work on the 16-bit halves of each lane, 8 on its bytes.
 */
#ifndef MG_KERNELS_X86_IVEC_H
#define MG_KERNELS_X86_IVEC_H

#include "kernels/packed.h"
#include "kernels/x86/vec.h"

enum { LINE_V = 16 / VL, VEC = VL * 4, BLOCK8 = 2048, BLOCK4 = 1088 };

#if defined(__AVX512F__)
INLINE vi i_zero(void) {
    return _mm512_setzero_si512();
}
INLINE vi i_set(int32_t x) {
    return _mm512_set1_epi32(x);
}
INLINE vi i_load(const void *p) {
    return _mm512_loadu_si512(p);
}
INLINE void i_store(void *p, vi a) {
    _mm512_storeu_si512(p, a);
}
INLINE vi i_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
INLINE vi i_mul(vi a, vi b) {
    return _mm512_mullo_epi32(a, b);
}
INLINE vi i_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
INLINE vi i_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
INLINE vi i_left(vi a, int n) {
    return _mm512_slli_epi32(a, n);
}
INLINE vi i_add16(vi a, vi b) {
    return _mm512_add_epi16(a, b);
}
INLINE vi i_mul16(vi a, vi b) {
    return _mm512_mullo_epi16(a, b);
}
INLINE vi i_left16(vi a, int n) {
    return _mm512_slli_epi16(a, n);
}
INLINE vi i_right16(vi a, int n) {
    return _mm512_srli_epi16(a, n);
} /* zeros come in */
INLINE vi i_signed16(vi a, int n) {
    return _mm512_srai_epi16(a, n);
} /* signs come in */
/* A lane: a0 b0 + a1 b1 of 16-bit numbers. */
INLINE vi i_pairs(vi a, vi b) {
    return _mm512_madd_epi16(a, b);
}
/* A 16-bit half: a0 b0 + a1 b1, a unsigned and b signed bytes, saturated. */
INLINE vi i_pairs8(vi a, vi b) {
    return _mm512_maddubs_epi16(a, b);
}
INLINE vi i_pick8(__m128i table, vi at) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), at);
}
/* In each 128 bits: their bytes `at`. */
INLINE vi i_pick_own8(vi a, __m128i at) {
    return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(at));
}
INLINE vi i_sub8(vi a, vi b) {
    return _mm512_sub_epi8(a, b);
}
/* VL signed bytes as lanes. */
INLINE vi i_widen8(const void *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}
#else
INLINE vi i_zero(void) {
    return _mm256_setzero_si256();
}
INLINE vi i_set(int32_t x) {
    return _mm256_set1_epi32(x);
}
INLINE vi i_load(const void *p) {
    return _mm256_loadu_si256(p);
}
INLINE void i_store(void *p, vi a) {
    _mm256_storeu_si256(p, a);
}
INLINE vi i_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
INLINE vi i_mul(vi a, vi b) {
    return _mm256_mullo_epi32(a, b);
}
INLINE vi i_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
INLINE vi i_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
INLINE vi i_left(vi a, int n) {
    return _mm256_slli_epi32(a, n);
}
INLINE vi i_add16(vi a, vi b) {
    return _mm256_add_epi16(a, b);
}
INLINE vi i_mul16(vi a, vi b) {
    return _mm256_mullo_epi16(a, b);
}
INLINE vi i_left16(vi a, int n) {
    return _mm256_slli_epi16(a, n);
}
INLINE vi i_right16(vi a, int n) {
    return _mm256_srli_epi16(a, n);
}
INLINE vi i_signed16(vi a, int n) {
    return _mm256_srai_epi16(a, n);
}
INLINE vi i_pairs(vi a, vi b) {
    return _mm256_madd_epi16(a, b);
}
INLINE vi i_pairs8(vi a, vi b) {
    return _mm256_maddubs_epi16(a, b);
}
INLINE vi i_pick8(__m128i table, vi at) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), at);
}
INLINE vi i_pick_own8(vi a, __m128i at) {
    return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(at));
}
INLINE vi i_sub8(vi a, vi b) {
    return _mm256_sub_epi8(a, b);
}
INLINE vi i_widen8(const void *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
}
#endif

INLINE vi i_broadcast(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return i_set(v);
}

/* VEC bytes of a line of an INT4 tile as the same places of two lines of -8..7. */
INLINE void nibbles(const char *p, vi *low, vi *high) {
    const __m128i level = _mm_setr_epi8(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const vi mask = i_set(0x0f0f0f0f);
    vi two = i_load(p);
    *low = i_pick8(level, i_and(two, mask));
    *high = i_pick8(level, i_and(i_right16(two, 4), mask));
}

/* The sub-scales of VL outputs, each in both halves of its lane. */
INLINE vi sub_scales(const char *sub) {
    vi s = i_widen8(sub);
    return i_or(i_left(s, 16), i_and(s, i_set(0xffff)));
}

/* sub * (nibble - 8) of a line of nibbles 0..15 in the low halves of bytes; sub8: sub * 8. Even and
 * odd bytes are multiplied apart, each with a zero beside it. */
INLINE vi widen_line(vi two, vi sub, vi sub8) {
    vi even = i_pairs8(i_and(two, i_set(0x000f000f)), sub);
    vi odd = i_pairs8(i_and(two, i_set(0x0f000f00)), sub);
    return i_sub8(i_or(i_and(even, i_set(0x00ff00ff)), i_left16(odd, 8)), sub8);
}

/* A block of an INT4 panel as INT8. */
INLINE void widen_block(const char *w, char *out) {
    const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    for (int t = 0; t < 2; t++)
        for (int g = 0; g < 2; g++) {
            UNROLL for (int v = 0; v < LINE_V; v++) {
                vi sub = i_pick_own8(i_widen8(w + t * 32 + g * 16 + v * VL), first);
                vi sub8 = i_and(i_left16(sub, 3), i_set((int)0xf8f8f8f8u));
                UNROLL for (int i = 4 * g; i < 4 * g + 4; i++) {
                    vi two = i_load(w + 64 + t * 512 + i * 64 + v * VEC);
                    char *to = out + t * 1024 + i * 128 + v * VEC;
                    i_store(to, widen_line(two, sub, sub8));
                    i_store(to + 64, widen_line(i_right16(two, 4), sub, sub8));
                }
            }
        }
}

/* Fetches the block AHEAD bytes on, where that is before `end`. */
enum { AHEAD = 4096 };
INLINE void prefetch_block(const char *w, const char *end, size_t bytes) {
    if (w + AHEAD + bytes > end) return;
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(w + AHEAD + i, _MM_HINT_T0);
}

/* An INT4 panel as INT8; end: of what may be fetched ahead. */
INLINE void widen_panel(const char *w, size_t blocks, const char *end, char *out) {
    for (size_t b = 0; b < blocks; b++, w += BLOCK4, out += BLOCK8) {
        prefetch_block(w, end, BLOCK4);
        widen_block(w, out);
    }
}

#endif
