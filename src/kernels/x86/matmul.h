/* kernels/x86/matmul.h - y = epilogue(x w^T + bias) for the tier that includes this (see vec.h).
 *
 * More than FEW rows: a task is PANEL columns (half of them from w2 for SwiGLU). Rows go in chunks
 * of at most ROWS, the inner dimension in blocks of KC dwords: pack the block of w into scratch (it
 * stays in L2), run the micro-kernel down the rows, add to the chunk's sums, also in scratch; then
 * the epilogue writes y, once.
 *
 * FEW rows or less: memory is the limit. Dot products along rows of w as they lie there, each
 * weight read once for all rows of x, a prefetch one group of columns ahead.
 *
 * With MG_DOT_BF16 (x is bf16, vdpbf16ps) this is MG_MODE_BF16 only, else it is both modes.
 * Blocks depend on nothing but k, so a row's result depends on m only by the choice between the two
 * ways.
 *
 *   scratch, many:  sums [ROWS][PANEL] f32, panels [PANEL/NR][KC][NR] dwords
 *   scratch, few:   sums [FEW][PANEL] f32, running sums [PANEL][FEW][VL] f32
 */
#ifndef MG_KERNELS_X86_MATMUL_H
#define MG_KERNELS_X86_MATMUL_H

#include "kernels/x86/dot.h"
#include "kernels/x86/matmul_rows.h"

enum { ROWS = 32 * MR, KC = 512, X_BLOCK = 512 };

static void prepare(enum mg_mode mode, const float *in, size_t ldin, void *out, size_t ldout,
                    size_t m, size_t k) {
    prepare_rows(DOT, mode, in, ldin, out, ldout, m, k);
}

static size_t matmul_scratch(const struct mg_matmul *op) {
    if (op->m <= FEW) return (FEW * PANEL + PANEL * FEW * VL) * sizeof(float);
    size_t rows = op->m < ROWS ? op->m : ROWS;
    return (rows * PANEL + (size_t)PANEL * KC) * sizeof(float);
}

/* b from rows w .. of the weights, as the mode wants them. */
static void pack(const struct mg_matmul *op, const char *w, size_t n_col, size_t k, float *b) {
    size_t stride = op->ldw * mg_dtype_size(op->wtype);
    const size_t pair = DOT ? 2 : 1;
    if (op->wtype == MG_BF16) pack_type(MG_BF16, false, pair, w, stride, n_col, k, b);
#if !defined(MG_DOT_BF16)
    else if (op->mode == MG_MODE_F32 && op->wtype == MG_F16)
        pack_type(MG_F16, false, pair, w, stride, n_col, k, b);
    else if (op->mode == MG_MODE_F32)
        pack_type(MG_F32, false, pair, w, stride, n_col, k, b);
#endif
    else if (op->wtype == MG_F16)
        pack_type(MG_F16, true, pair, w, stride, n_col, k, b);
    else
        pack_type(MG_F32, true, pair, w, stride, n_col, k, b);
}

/* First weight row of the NR-wide slice s of the task, and how many columns of the slice exist. */
INLINE const char *slice(const struct mg_matmul *op, size_t col, size_t n_col, size_t s,
                         size_t *count) {
    size_t first = s * NR;
    const char *w = op->w;
    if (op->epilogue == MG_EPI_SWIGLU && first >= PANEL / 2) {
        first -= PANEL / 2;
        w = op->w2;
    }
    *count = first < n_col ? mg_min_size(NR, n_col - first) : 0;
    return w + (col + first) * op->ldw * mg_dtype_size(op->wtype);
}

static void matmul_many(const struct mg_matmul *op, size_t col, size_t n_col, float *scratch) {
    size_t chunk = mg_min_size(op->m, ROWS), count;
    size_t xs = mg_dtype_size(DOT ? MG_BF16 : MG_F32), lda = op->ldx * xs;
    size_t pair = 4 / xs, block = KC * pair;
    float *sums = scratch, *panels = scratch + chunk * PANEL;
    for (size_t row = 0; row < op->m; row += chunk) {
        size_t rows = mg_min_size(chunk, op->m - row), k0 = 0;
        do {
            size_t kb = mg_min_size(block, op->k - k0);
            for (size_t s = 0; s < PANEL / NR; s++) {
                const char *w = slice(op, col, n_col, s, &count);
                if (!count) continue;
                pack(op, w + k0 * mg_dtype_size(op->wtype), count, kb, panels + s * KC * NR);
            }
            const char *a = (const char *)op->x + row * lda + k0 * xs;
            for (size_t r = 0; r < rows; r += MR) {
                multiply_fn *fn = multiply[mg_min_size(MR, rows - r)];
                for (size_t s = 0; s < PANEL / NR; s++) {
                    slice(op, col, n_col, s, &count);
                    if (!count) continue;
                    fn(a + r * lda, lda, panels + s * KC * NR, kb / pair, kb % pair,
                       sums + r * PANEL + s * NR, PANEL, k0 > 0);
                }
            }
            k0 += kb;
        } while (k0 < op->k);
        finish(op, row, rows, col, n_col, sums);
    }
}

/* All columns of one matrix, for the smallest instance that holds m rows. Eight rows of x go in
 * parts of X_BLOCK elements, which stay in L1 while all columns pass; the running sums wait in
 * `parts`. */
INLINE void dot_rows(int nc, int mx, enum mg_dtype type, bool round, const struct mg_matmul *op,
                     size_t ldx, const char *w, size_t n_col, float *sums) {
    size_t stride = op->ldw * mg_dtype_size(type), k0 = 0;
    float *parts = sums + FEW * PANEL;
    do {
        size_t k1 = mx == 8 ? mg_min_size(op->k, k0 + X_BLOCK) : op->k, c = 0;
        struct dot d = {.x = op->x,
                        .ldx = ldx,
                        .m = op->m,
                        .stride = stride,
                        .first = k0,
                        .end = k1,
                        .ld = PANEL,
                        .last = k1 == op->k};
        for (; c + (size_t)nc <= n_col; c += (size_t)nc) {
            d.w = w + c * stride, d.sums = sums + c, d.parts = parts + c * (size_t)mx * VL;
            dot_block(nc, mx, type, round, &d);
        }
        for (; c < n_col; c++) {
            d.w = w + c * stride, d.sums = sums + c, d.parts = parts + c * (size_t)mx * VL;
            dot_block(1, mx, type, round, &d);
        }
        k0 = k1;
    } while (k0 < op->k);
}

INLINE void dot_type(enum mg_dtype type, bool round, const struct mg_matmul *op, const char *w,
                     size_t n_col, float *sums) {
    size_t ldx = op->ldx * (DOT ? 2 : 4);
    if (op->m == 1)
        dot_rows(4, 1, type, round, op, ldx, w, n_col, sums);
    else if (op->m == 2)
        dot_rows(4, 2, type, round, op, ldx, w, n_col, sums);
#if defined(__AVX512F__)
    else if (op->m <= 4)
        dot_rows(4, 4, type, round, op, ldx, w, n_col, sums);
    else
        dot_rows(3, 8, type, round, op, ldx, w, n_col, sums);
#else
    else if (op->m <= 4)
        dot_rows(2, 4, type, round, op, ldx, w, n_col, sums);
    else
        dot_rows(1, 8, type, round, op, ldx, w, n_col, sums);
#endif
}

/* One body per weight type and mode, not inlined into each other. */
#define DOT_INSTANCE(NAME, TYPE, ROUND)                                                            \
    static __attribute__((noinline)) void NAME(const struct mg_matmul *op, const char *w,          \
                                               size_t n_col, float *sums) {                        \
        dot_type(TYPE, ROUND, op, w, n_col, sums);                                                 \
    }
DOT_INSTANCE(dot_bf16, MG_BF16, false)
DOT_INSTANCE(dot_f32_round, MG_F32, true)
DOT_INSTANCE(dot_f16_round, MG_F16, true)
#if !defined(MG_DOT_BF16)
DOT_INSTANCE(dot_f32, MG_F32, false)
DOT_INSTANCE(dot_f16, MG_F16, false)
#endif

static void dot_any(const struct mg_matmul *op, const char *w, size_t n_col, float *sums) {
    if (op->wtype == MG_BF16) dot_bf16(op, w, n_col, sums);
#if !defined(MG_DOT_BF16)
    else if (op->mode == MG_MODE_F32)
        (op->wtype == MG_F32 ? dot_f32 : dot_f16)(op, w, n_col, sums);
#endif
    else
        (op->wtype == MG_F32 ? dot_f32_round : dot_f16_round)(op, w, n_col, sums);
}

static void matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    size_t cols = task_columns(op), col = task * cols, n_col = mg_min_size(cols, op->n - col);
    float *sums = scratch;
    if (op->m > FEW) {
        matmul_many(op, col, n_col, sums);
        return;
    }
    size_t offset = col * op->ldw * mg_dtype_size(op->wtype);
    dot_any(op, (const char *)op->w + offset, n_col, sums);
    if (op->epilogue == MG_EPI_SWIGLU)
        dot_any(op, (const char *)op->w2 + offset, n_col, sums + PANEL / 2);
    finish(op, 0, op->m, col, n_col, sums);
}

INLINE void init_matmul(struct mg_kernels *t) {
    t->x_type[MG_MODE_F32] = MG_F32;
    t->x_type[MG_MODE_BF16] = DOT ? MG_BF16 : MG_F32;
    t->prepare = prepare;
    t->matmul_tasks = matmul_tasks;
    t->matmul_scratch = matmul_scratch;
    t->matmul = matmul;
}

#endif
