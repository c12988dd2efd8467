/* kernels/x86/matmul_bf16.c - matrix products of MG_MODE_BF16 by vdpbf16ps: two products a lane,
 * added in f32.
 *
 * The instruction rounds each of the two additions on its own terms (to nearest, denormals as
 * zero), so results differ from the f32 multiply-adds in the last bits only. MG_MODE_F32 goes to
 * avx512, whose tasks and scratch are the same.
 */
#define MG_DOT_BF16
#include "kernels/x86/matmul.h"
#include "kernels/x86/x86.h"

void mg_bf16_matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    if (op->mode == MG_MODE_F32)
        mg_avx512_matmul(op, task, scratch);
    else
        matmul(op, task, scratch);
}

size_t mg_bf16_matmul_scratch(const struct mg_matmul *op) {
    return matmul_scratch(op);
}

void mg_bf16_init_matmul(struct mg_kernels *t) {
    init_matmul(t);
    t->matmul = mg_bf16_matmul;
}
