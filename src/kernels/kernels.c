/* kernels/kernels.c - filling the table: `ref` first, then each tier up to the chosen one
 * overrides. */
#include "kernels/kernels.h"

#include "kernels/ref/ref.h"
#include "kernels/x86/x86.h"

#include <string.h>

void mg_kernels_init(struct mg_kernels *t, const struct mg_features *features) {
    memset(t, 0, sizeof *t);
    t->tier = features->tier;
    mg_ref_init_matmul(t);
    mg_ref_init_packed(t);
    mg_ref_init_attention(t);
    mg_ref_init_norm(t);
    mg_ref_init_vector(t);
#if defined(__x86_64__)
    if (features->tier >= MG_TIER_AVX2) {
        mg_avx2_init_vector(t);
        mg_avx2_init_matmul(t);
        mg_avx2_init_attention(t);
        mg_avx2_init_packed(t);
    }
    if (features->tier >= MG_TIER_AVXVNNI && features->avx_vnni) mg_avxvnni_init_packed(t);
    if (features->tier >= MG_TIER_AVX512) {
        mg_avx512_init_vector(t);
        mg_avx512_init_matmul(t);
        mg_avx512_init_attention(t);
        if (!features->avx_vnni) mg_avx512_init_packed(t);
    }
    if (features->tier >= MG_TIER_VNNI) mg_vnni_init_packed(t, features->intel);
    if (features->tier >= MG_TIER_BF16 && !features->intel) {
        mg_bf16_init_matmul(t);
        mg_bf16_init_attention(t);
    }
    if (features->tier >= MG_TIER_AMX) {
        mg_amx_init_packed(t);
        mg_amx_init_matmul(t);
        mg_amx_init_attention(t);
    }
#endif
}
