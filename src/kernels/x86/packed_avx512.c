/* kernels/x86/packed_avx512.c - products with packed integer weights on AVX-512 without VNNI
 * (packed_madd.h). Tasks and rounding are avx2's. */
#include "kernels/x86/packed_madd.h"
#include "kernels/x86/x86.h"

void mg_avx512_init_packed(struct mg_kernels *t) {
    t->packed_tasks = packed_tasks;
    t->packed_scratch = packed_scratch;
    t->packed_matmul = packed_matmul;
}
