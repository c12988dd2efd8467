/* kernels/x86/matmul_rows.h - what the float products of a tier (see vec.h) share: rows of x made
 * ready, columns cut into tasks, sums finished to rows of y.
 *
 * A task is PANEL columns; half of them are of w2 for SwiGLU. */
#ifndef MG_KERNELS_X86_MATMUL_ROWS_H
#define MG_KERNELS_X86_MATMUL_ROWS_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/vmath.h"

enum { PANEL = 64 };

/* dot: MG_MODE_BF16 takes bf16. */
INLINE void prepare_rows(bool dot, enum mg_mode mode, const float *in, size_t ldin, void *out,
                         size_t ldout, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        const float *from = in + i * ldin;
        size_t j = 0;
        if (dot && mode == MG_MODE_BF16) {
            uint16_t *to = (uint16_t *)out + i * ldout;
            for (; j + VL <= k; j += VL) v_store_bf16(to + j, v_load(from + j));
            if (j < k) v_store_bf16_n(to + j, v_load_n(from + j, k - j), k - j);
            continue;
        }
        float *to = (float *)out + i * ldout;
        if (mode == MG_MODE_BF16) {
            for (; j + VL <= k; j += VL) v_store(to + j, v_round_bf16(v_load(from + j)));
            if (j < k) v_store_n(to + j, v_round_bf16(v_load_n(from + j, k - j)), k - j);
        } else if (to != from && k) {
            memmove(to, from, k * sizeof(float));
        }
    }
}

/* Columns of y in a task. */
INLINE size_t task_columns(const struct mg_matmul *op) {
    return op->epilogue == MG_EPI_SWIGLU ? PANEL / 2 : PANEL;
}

static size_t matmul_tasks(const struct mg_matmul *op) {
    return op->m ? (op->n + task_columns(op) - 1) / task_columns(op) : 0;
}

/* y[0..n-1] = epilogue(p + bias, p2) */
INLINE void finish_row(enum mg_epilogue epilogue, const float *p, const float *p2,
                       const float *bias, float *y, size_t n) {
    for (size_t j = 0; j < n; j += VL) {
        size_t left = n - j;
        bool full = left >= VL;
        vf v = full ? v_load(p + j) : v_load_n(p + j, left);
        if (bias) v = v_add(v, full ? v_load(bias + j) : v_load_n(bias + j, left));
        switch (epilogue) {
        case MG_EPI_ADD: v = v_add(full ? v_load(y + j) : v_load_n(y + j, left), v); break;
        case MG_EPI_GELU_TANH: v = v_gelu_tanh(v); break;
        case MG_EPI_GELU_ERF: v = v_gelu_erf(v); break;
        case MG_EPI_SWIGLU:
            v = v_mul(v_silu(v), full ? v_load(p2 + j) : v_load_n(p2 + j, left));
            break;
        default: break;
        }
        if (full)
            v_store(y + j, v);
        else
            v_store_n(y + j, v, left);
    }
}

/* Rows row .. row+rows-1 of y from sums[rows][PANEL]. */
static void finish(const struct mg_matmul *op, size_t row, size_t rows, size_t col, size_t n_col,
                   const float *sums) {
    for (size_t i = 0; i < rows; i++) {
        const float *p = sums + i * PANEL;
        finish_row(op->epilogue, p, p + PANEL / 2, op->bias ? op->bias + col : NULL,
                   op->y + (row + i) * op->ldy + col, n_col);
    }
}

#endif
