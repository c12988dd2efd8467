/* kernels/x86/packed_finish.h - from the integer sums of a panel to results, for the tier that
 * includes this (see vec.h); and how packed products are cut into tasks.
 *
 * p = float(sum - zero * w.sum) * (w.scale * x.scale), then + bias: the same three roundings as
 * ref.
 *
 * A task is a run of panels: few rows are limited by memory, and a thread should walk a long stream
 * of its own (256 KB); with many rows two panels, so that the first can be used while the second is
 * fetched.
 */
#ifndef MG_KERNELS_X86_PACKED_FINISH_H
#define MG_KERNELS_X86_PACKED_FINISH_H

#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/x86/vmath.h"

#include <math.h>

enum { FEW_ROWS = 13, STREAM_BYTES = 256 << 10 };

/* Panels of a task: a function of the shapes alone. */
INLINE size_t task_panels(const struct mg_packed_matmul *op) {
    size_t all = mg_packed_panels(op->w), each = mg_packed_panel_bytes(op->w->kind, op->w->k);
    size_t most = op->m <= FEW_ROWS ? mg_max_size(1, STREAM_BYTES / mg_max_size(each, 1)) : 8;
    return mg_max_size(1, mg_min_size(most, all / 16));
}

static size_t packed_tasks(const struct mg_packed_matmul *op) {
    size_t per = task_panels(op);
    return op->m ? (mg_packed_panels(op->w) + per - 1) / per : 0;
}

#if defined(__AVX512F__)
INLINE vf v_from_int(vi a) {
    return _mm512_cvtepi32_ps(a);
}
INLINE vi v_load_int(const int32_t *p) {
    return _mm512_loadu_si512(p);
}
INLINE vi v_sub_scaled(vi a, vi b, int32_t c) { /* a - b * c */
    return _mm512_sub_epi32(a, _mm512_mullo_epi32(b, _mm512_set1_epi32(c)));
}
#else
INLINE vf v_from_int(vi a) {
    return _mm256_cvtepi32_ps(a);
}
INLINE vi v_load_int(const int32_t *p) {
    return _mm256_loadu_si256((const vi *)p);
}
INLINE vi v_sub_scaled(vi a, vi b, int32_t c) {
    return _mm256_sub_epi32(a, _mm256_mullo_epi32(b, _mm256_set1_epi32(c)));
}
#endif

/* VL results from column c (0..31) of the panel on, without bias. */
INLINE vf result(const struct mg_packed *w, const struct mg_row_scale *xs, size_t panel,
                 const int32_t *sums, size_t c) {
    vi s = v_sub_scaled(v_load_int(sums + c), v_load_int(w->sum + panel * MG_PANEL + c), xs->zero);
    vf scale = v_mul(v_load(w->scale + panel * MG_PANEL + c), v_set(xs->scale));
    return v_mul(v_from_int(s), scale);
}

/* y[0..n-1] of one row from the panel's sums [32]; y, bias and n from the panel's first result. */
INLINE void finish_store(enum mg_epilogue epilogue, const struct mg_packed *w,
                         const struct mg_row_scale *xs, size_t panel, const int32_t *sums,
                         const float *bias, float *y, size_t n) {
    for (size_t c = 0; c < n; c += VL) {
        size_t left = n - c;
        bool full = left >= VL;
        vf v = result(w, xs, panel, sums, c);
        if (bias) v = v_add(v, full ? v_load(bias + c) : v_load_n(bias + c, left));
        switch (epilogue) {
        case MG_EPI_ADD: v = v_add(full ? v_load(y + c) : v_load_n(y + c, left), v); break;
        case MG_EPI_GELU_TANH: v = v_gelu_tanh(v); break;
        case MG_EPI_GELU_ERF: v = v_gelu_erf(v); break;
        case MG_EPI_SWIGLU: v = v_mul(v_silu(v), result(w, xs, panel, sums, c + MG_TILE)); break;
        default: break;
        }
        if (full)
            v_store(y + c, v);
        else
            v_store_n(y + c, v, left);
    }
}

/* Takes the panel's n results into `top`, whose index counts from the matrix's first column. */
INLINE void finish_top(const struct mg_packed *w, const struct mg_row_scale *xs, size_t panel,
                       const int32_t *sums, const float *bias, size_t n, struct mg_top *top) {
    float p[MG_PANEL];
    for (size_t c = 0; c < MG_PANEL; c += VL) v_store(p + c, result(w, xs, panel, sums, c));
    vf best = v_set(top->value);
    unsigned more = 0;
    for (size_t c = 0; c < n; c += VL) {
        vf v = v_load(p + c);
        if (bias) v = v_add(v, n - c >= VL ? v_load(bias + c) : v_load_n(bias + c, n - c));
        v_store(p + c, v);
        more |= v_inf_nan_bits(v) | ~v_equal_bits(v_max(v, best), best);
    }
    if (!more) return;
    for (size_t c = 0; c < n; c++)
        if (p[c] > top->value || (p[c] != p[c] && top->value == top->value))
            *top = (struct mg_top){p[c], (uint32_t)(panel * MG_PANEL + c)};
}

/* Rows row .. row+rows-1 of a panel from sums [rows][32]. */
static void finish_panel(const struct mg_packed_matmul *op, size_t task, size_t panel, size_t row,
                         size_t rows, const int32_t *sums) {
    size_t width = mg_packed_width(op->w), first = panel * width;
    size_t n = mg_min_size(width, op->w->n - first);
    const float *bias = op->bias ? op->bias + first : NULL;
    for (size_t r = 0; r < rows; r++, sums += MG_PANEL) {
        const struct mg_row_scale *xs = &op->xs[row + r];
        if (op->epilogue == MG_EPI_TOP)
            finish_top(op->w, xs, panel, sums, bias, n, &op->top[task * op->m + row + r]);
        else
            finish_store(op->epilogue, op->w, xs, panel, sums, bias,
                         op->y + (row + r) * op->ldy + first, n);
    }
}

/* No result yet, for all rows of a task. */
INLINE void begin_top(const struct mg_packed_matmul *op, size_t task, size_t panel) {
    for (size_t r = 0; op->epilogue == MG_EPI_TOP && r < op->m; r++)
        op->top[task * op->m + r] =
            (struct mg_top){-INFINITY, (uint32_t)(panel * mg_packed_width(op->w))};
}

#endif
