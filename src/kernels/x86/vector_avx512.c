/* kernels/x86/vector_avx512.c - vectors, norms and rotary embedding with AVX-512 F, BW, DQ and VL;
 * see vector.h. */
#include "kernels/x86/vector.h"
#include "kernels/x86/x86.h"

void mg_avx512_init_vector(struct mg_kernels *t) { init_vector(t); }
