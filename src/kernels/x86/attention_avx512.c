/* kernels/x86/attention_avx512.c - attention with AVX-512 F, BW, DQ and VL; see attention.h. */
#include "kernels/x86/attention.h"
#include "kernels/x86/x86.h"

void mg_avx512_init_attention(struct mg_kernels *t) { init_attention(t); }
