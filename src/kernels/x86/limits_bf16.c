/* kernels/x86/limits_bf16.c - AVX-512 BF16: two bf16 products a lane, added to f32. */
#include "kernels/x86/limits.h"

#include <immintrin.h>

enum { ACC = 16 };

static double dpbf16(size_t n) {
    __m512 a[ACC];
    __m512bh m = (__m512bh)_mm512_set1_epi32(0x3f003f00),
             c = (__m512bh)_mm512_set1_epi32(0x3f013f02);
    MG_UNROLL for (int i = 0; i < ACC; i++) a[i] = _mm512_set1_ps((float)i);
    for (size_t r = 0; r < n; r++) {
        MG_UNROLL for (int i = 0; i < ACC; i++) {
            a[i] = _mm512_dpbf16_ps(a[i], m, c);
            MG_KEEP(a[i]);
        }
    }
    MG_UNROLL for (int i = 1; i < ACC; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    volatile float sink = _mm512_cvtss_f32(a[0]);
    (void)sink;
    return (double)n * ACC * 16 * 2 * 2;
}

void mg_bf16_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "vdpbf16ps, 512 bits", MG_LIMIT_BF16, dpbf16);
}
