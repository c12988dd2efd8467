/* kernels/x86/vector_avx2.c - vectors, norms and rotary embedding with AVX2, FMA and F16C; see
 * vector.h. */
#include "kernels/x86/vector.h"
#include "kernels/x86/x86.h"

void mg_avx2_init_vector(struct mg_kernels *t) { init_vector(t); }
