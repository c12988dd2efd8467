/* kernels/x86/limits_vnni.c - AVX-512 VNNI: products of u8 and s8, four a lane, added to 32 bits.
 */
#include "kernels/x86/limits.h"

#include <immintrin.h>

enum { ACC = 16 };

static double dpbusd512(size_t n) {
    __m512i a[ACC], u = _mm512_set1_epi8(3), w = _mm512_set1_epi8(-5);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm512_set1_epi32(i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm512_dpbusd_epi32(a[i], u, w);
            MG_KEEP(a[i]);
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
    volatile int sink = _mm512_cvtsi512_si32(a[0]);
    (void)sink;
    return (double)n * ACC * 64 * 2;
}

void mg_vnni_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "vpdpbusd, 512 bits", MG_LIMIT_INT8, dpbusd512);
}
