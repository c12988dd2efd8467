/* kernels/x86/attention_avx2.c - attention with AVX2, FMA and F16C; see attention.h. */
#include "kernels/x86/attention.h"
#include "kernels/x86/x86.h"

void mg_avx2_init_attention(struct mg_kernels *t) { init_attention(t); }
