/* kernels/x86/matmul_avx2.c - matrix products with AVX2, FMA and F16C, both modes by f32
 * multiply-add; see matmul.h. */
#include "kernels/x86/matmul.h"
#include "kernels/x86/x86.h"

void mg_avx2_init_matmul(struct mg_kernels *t) { init_matmul(t); }
