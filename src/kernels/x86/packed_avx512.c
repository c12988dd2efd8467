/* kernels/x86/packed_avx512.c - products with packed integer weights on AVX-512 without VNNI
 * (packed_madd.h). Few rows, tasks and rounding are avx2's. */
#include "kernels/x86/packed_madd.h"
#include "kernels/x86/x86.h"

enum { MANY = 13 };

static size_t packed_scratch(const struct mg_packed_matmul *op) {
    return op->m < MANY ? mg_avx2_packed_scratch(op) : many_scratch(op->m);
}

static void packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    size_t per = task_panels(op), panel = task * per;
    if (op->m < MANY) {
        mg_avx2_packed_matmul(op, task, scratch);
        return;
    }
    begin_top(op, task, panel);
    many_panels(op, task, panel, mg_min_size(panel + per, mg_packed_panels(op->w)), scratch);
}

void mg_avx512_init_packed(struct mg_kernels *t) {
    t->packed_tasks = packed_tasks;
    t->packed_scratch = packed_scratch;
    t->packed_matmul = packed_matmul;
}
