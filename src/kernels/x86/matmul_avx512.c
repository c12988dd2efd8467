/* kernels/x86/matmul_avx512.c - matrix products with AVX-512 F, BW, DQ and VL, both modes by f32
 * multiply-add; see matmul.h. */
#include "kernels/x86/matmul.h"
#include "kernels/x86/x86.h"

void mg_avx512_init_matmul(struct mg_kernels *t) { init_matmul(t); }

void mg_avx512_matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    matmul(op, task, scratch);
}
