/* kernels/x86/limits_avx2.c - AVX2: multiply-add, bytes by vpmaddubsw, bytes by AVX-VNNI, reading.
 *
 * Without VNNI a byte product of u8 and s8 takes three instructions: vpmaddubsw to 16 bits,
 * vpmaddwd by ones to 32, vpaddd. AVX-VNNI (Alder Lake, Sapphire Rapids, Zen 5) has vpdpbusd for
 * 256 bits; it is compiled here for its own functions only and called where CPUID shows it.
 */
#include "kernels/x86/limits.h"

#include <immintrin.h>

enum { ACC = 12 }; /* + 2 operands of 16 registers */

static double fma256(size_t n) {
    __m256 a[ACC], m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm256_set1_ps((float)i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm256_fmadd_ps(a[i], m, c);
            MG_KEEP(a[i]);
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    volatile float sink = _mm256_cvtss_f32(a[0]);
    (void)sink;
    return (double)n * ACC * 8 * 2;
}

static double maddubs256(size_t n) {
    __m256i a[ACC], u = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5), one = _mm256_set1_epi16(1);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm256_set1_epi32(i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(u, w), one));
            MG_KEEP(a[i]);
            MG_KEEP(u); /* else all products are one */
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm256_add_epi32(a[0], a[i]);
    volatile int sink = _mm256_extract_epi32(a[0], 0);
    (void)sink;
    return (double)n * ACC * 32 * 2;
}

__attribute__((target("avx2,avxvnni"))) static double dpbusd256(size_t n) {
    __m256i a[ACC], u = _mm256_set1_epi8(3), w = _mm256_set1_epi8(-5);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm256_set1_epi32(i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm256_dpbusd_avx_epi32(a[i], u, w);
            MG_KEEP(a[i]);
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm256_add_epi32(a[0], a[i]);
    volatile int sink = _mm256_extract_epi32(a[0], 0);
    (void)sink;
    return (double)n * ACC * 32 * 2;
}

static uint64_t read256(const void *p, size_t n, size_t distance) {
    const char *at = p;
    __m256i s[8];
    MG_UNROLL for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_si256();
    for (const char *end = at + n; at < end; at += 256) {
        if (distance) {
            MG_UNROLL for (int i = 0; i < 4; i++) _mm_prefetch(at + distance + 64 * i, _MM_HINT_T0);
        }
        MG_UNROLL for (int i = 0; i < 8; i++) s[i] =
            _mm256_xor_si256(s[i], _mm256_load_si256((const __m256i *)at + i));
    }
    MG_UNROLL for (int i = 1; i < 8; i++) s[0] = _mm256_xor_si256(s[0], s[i]);
    return (uint64_t)(_mm256_extract_epi64(s[0], 0) ^ _mm256_extract_epi64(s[0], 1) ^
                      _mm256_extract_epi64(s[0], 2) ^ _mm256_extract_epi64(s[0], 3));
}

void mg_avx2_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "vfmadd, 256 bits", MG_LIMIT_F32, fma256);
    mg_add_loop(s, "vpmaddubsw, 256 bits", MG_LIMIT_INT8, maddubs256);
    mg_add_reader(s, "256 bits", read256);
}

void mg_avxvnni_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "vpdpbusd, 256 bits", MG_LIMIT_INT8, dpbusd256);
}
