/* kernels/x86/limits_avx512.c - AVX-512: multiply-add, bytes by vpmaddubsw, reading. */
#include "kernels/x86/limits.h"

#include <immintrin.h>

enum { ACC = 16 };

static double fma512(size_t n) {
    __m512 a[ACC], m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm512_set1_ps((float)i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm512_fmadd_ps(a[i], m, c);
            MG_KEEP(a[i]);
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    volatile float sink = _mm512_cvtss_f32(a[0]);
    (void)sink;
    return (double)n * ACC * 16 * 2;
}

static double maddubs512(size_t n) {
    __m512i a[ACC], u = _mm512_set1_epi8(3), w = _mm512_set1_epi8(-5), one = _mm512_set1_epi16(1);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm512_set1_epi32(i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm512_add_epi32(a[i], _mm512_madd_epi16(_mm512_maddubs_epi16(u, w), one));
            MG_KEEP(a[i]);
            MG_KEEP(u); /* else all products are one */
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
    volatile int sink = _mm512_cvtsi512_si32(a[0]);
    (void)sink;
    return (double)n * ACC * 64 * 2;
}

static uint64_t read512(const void *p, size_t n, size_t distance) {
    const char *at = p;
    __m512i s[8];
    MG_UNROLL for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_si512();
    for (const char *end = at + n; at < end; at += 512) {
        if (distance) {
            MG_UNROLL for (int i = 0; i < 8; i++) _mm_prefetch(at + distance + 64 * i, _MM_HINT_T0);
        }
        MG_UNROLL for (int i = 0; i < 8; i++) s[i] =
            _mm512_xor_si512(s[i], _mm512_load_si512((const __m512i *)at + i));
    }
    MG_UNROLL for (int i = 1; i < 8; i++) s[0] = _mm512_xor_si512(s[0], s[i]);
    uint64_t word[8], all = 0;
    _mm512_storeu_si512(word, s[0]);
    MG_UNROLL for (int i = 0; i < 8; i++) all ^= word[i];
    return all;
}

void mg_avx512_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "vfmadd, 512 bits", MG_LIMIT_F32, fma512);
    mg_add_loop(s, "vpmaddubsw, 512 bits", MG_LIMIT_INT8, maddubs512);
    mg_add_reader(s, "512 bits", read512);
}
