/* kernels/x86/matmul_avx2.c - matrix products with AVX2, FMA and F16C, both modes by f32
 * multiply-add; see matmul.h. */
#include "kernels/x86/matmul.h"
#include "kernels/x86/x86.h"

void mg_avx2_init_matmul(struct mg_kernels *t) { init_matmul(t); }

size_t mg_avx2_matmul_scratch(const struct mg_matmul *op) {
    return matmul_scratch(op);
}

void mg_avx2_matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    matmul(op, task, scratch);
}
