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
#include "kernels/x86/ivec.h"
#include "kernels/x86/vmath.h"

#include <math.h>
#include <string.h>

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

/* The sums of a row's loud blocks with a panel; what stands in `sums` is added to. */
struct loud {
    int32_t sums[MG_PANEL];
};

/* sum + x w over a line's four neighbours, w a vector of a line, x four signed bytes a lane. With
 * `nibble` w is 0..15. Where the instruction wants one side unsigned, w + 128 is taken (LOUD_BIAS),
 * which the caller takes out again by the sum of x. */
#if defined(__AVX512VNNI__)
enum { LOUD_BIAS = 128 };
INLINE vi loud_step(vi sum, vi x, vi w, bool nibble) {
    return _mm512_dpbusd_epi32(
        sum, nibble ? w : _mm512_xor_si512(w, _mm512_set1_epi32((int)0x80808080u)), x);
}
#elif defined(__AVXVNNI__)
enum { LOUD_BIAS = 128 };
INLINE vi loud_step(vi sum, vi x, vi w, bool nibble) {
    return _mm256_dpbusd_avx_epi32(
        sum, nibble ? w : _mm256_xor_si256(w, _mm256_set1_epi32((int)0x80808080u)), x);
}
#elif defined(__AVX512F__)
enum { LOUD_BIAS = 0 };
INLINE vi loud_step(vi sum, vi x, vi w, bool nibble) { /* even and odd bytes as 16 bits: exact */
    (void)nibble;
    vi even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8),
                                _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8));
    vi odd = _mm512_madd_epi16(_mm512_srai_epi16(x, 8), _mm512_srai_epi16(w, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}
#else
enum { LOUD_BIAS = 0 };
INLINE vi loud_step(vi sum, vi x, vi w, bool nibble) {
    (void)nibble;
    vi even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8),
                                _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
    vi odd = _mm256_madd_epi16(_mm256_srai_epi16(x, 8), _mm256_srai_epi16(w, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#endif

INLINE vi loud_x(const int8_t *x, size_t line) {
    int32_t four;
    memcpy(&four, x + 4 * line, 4);
    return i_set(four);
}

/* One block (bytes of an INT8 panel) with its 64 values x, whose sum is x_sum. */
INLINE void loud_int8(const char *w, const int8_t *x, int32_t x_sum, int32_t *sums) {
    for (size_t c = 0; c < MG_PANEL; c += VL) {
        const char *from = w + c / MG_TILE * 1024 + c % MG_TILE * 4;
        vi s = i_set(-LOUD_BIAS * x_sum);
        for (size_t line = 0; line < 16; line++)
            s = loud_step(s, loud_x(x, line), i_load(from + 64 * line), false);
        i_store(sums + c, i_add(i_load(sums + c), s));
    }
}

/* The same of an INT4 panel; x_sum by groups of 32. */
INLINE void loud_int4(const char *w, const int8_t *x, const int16_t *x_sum, int32_t *sums) {
    const vi mask = i_set(0x0f0f0f0f);
    for (size_t c = 0; c < MG_PANEL; c += VL) {
        const char *from = w + 64 + c / MG_TILE * 512 + c % MG_TILE * 4;
        vi total = i_zero();
        for (size_t g = 0; g < 2; g++) {
            vi s = i_set(-8 * x_sum[g]); /* the nibble of zero is 8 */
            for (size_t i = 4 * g; i < 4 * g + 4; i++) {
                vi two = i_load(from + 64 * i);
                s = loud_step(s, loud_x(x, 2 * i), i_and(two, mask), true);
                s = loud_step(s, loud_x(x, 2 * i + 1), i_and(i_right16(two, 4), mask), true);
            }
            int32_t sub[VL];
            for (size_t i = 0; i < VL; i++)
                sub[i] = (int8_t)w[c / MG_TILE * 32 + g * 16 + c % MG_TILE + i];
            total = i_add(total, i_mul(s, i_load(sub)));
        }
        i_store(sums + c, i_add(i_load(sums + c), total));
    }
}

static const struct loud *loud_sums(const struct mg_packed *w, size_t panel, const uint8_t *x,
                                    const struct mg_row_scale *xs, struct loud *out) {
    if (!xs->n_loud) return NULL;
    size_t block = w->kind == MG_PACK_INT4 ? BLOCK4 : BLOCK8;
    const char *at = (const char *)w->data + panel * mg_packed_panel_bytes(w->kind, w->k);
    const int8_t *loud = (const int8_t *)x + mg_packed_blocks(w->k) * MG_PACK_K;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < xs->n_loud; i++, loud += MG_PACK_K) {
        const char *from = at + xs->loud[i] * block;
        const int16_t *sum = xs->loud_sum + 2 * i;
        if (w->kind == MG_PACK_INT4)
            loud_int4(from, loud, sum, out->sums);
        else
            loud_int8(from, loud, sum[0] + sum[1], out->sums);
    }
    return out;
}

/* VL results from column c (0..31) of the panel on, without bias. */
INLINE vf result(const struct mg_packed *w, const struct mg_row_scale *xs, size_t panel,
                 const int32_t *sums, const struct loud *loud, size_t c) {
    vi s = v_sub_scaled(v_load_int(sums + c), v_load_int(w->sum + panel * MG_PANEL + c), xs->zero);
    vf scale = v_load(w->scale + panel * MG_PANEL + c);
    vf p = v_mul(v_from_int(s), v_mul(scale, v_set(xs->scale)));
    if (!loud) return p;
    return v_add(
        p, v_mul(v_from_int(v_load_int(loud->sums + c)), v_mul(scale, v_set(xs->loud_scale))));
}

/* y[0..n-1] of one row from the panel's sums [32]; y, bias and n from the panel's first result. */
INLINE void finish_store(enum mg_epilogue epilogue, const struct mg_packed *w,
                         const struct mg_row_scale *xs, size_t panel, const int32_t *sums,
                         const struct loud *loud, const float *bias, float *y, size_t n) {
    for (size_t c = 0; c < n; c += VL) {
        size_t left = n - c;
        bool full = left >= VL;
        vf v = result(w, xs, panel, sums, loud, c);
        if (bias) v = v_add(v, full ? v_load(bias + c) : v_load_n(bias + c, left));
        switch (epilogue) {
        case MG_EPI_ADD: v = v_add(full ? v_load(y + c) : v_load_n(y + c, left), v); break;
        case MG_EPI_GELU_TANH: v = v_gelu_tanh(v); break;
        case MG_EPI_GELU_ERF: v = v_gelu_erf(v); break;
        case MG_EPI_SWIGLU:
            v = v_mul(v_silu(v), result(w, xs, panel, sums, loud, c + MG_TILE));
            break;
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
                       const int32_t *sums, const struct loud *loud, const float *bias, size_t n,
                       struct mg_top *top) {
    float p[MG_PANEL];
    for (size_t c = 0; c < MG_PANEL; c += VL) v_store(p + c, result(w, xs, panel, sums, loud, c));
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

/* Whole panels of rows without loud blocks, what belongs to the panel in registers. */
INLINE void finish_whole(const enum mg_epilogue epilogue, const struct mg_packed *w,
                         const struct mg_row_scale *xs, size_t panel, const int32_t *sums,
                         const float *bias, float *y) {
    enum { V = MG_PANEL / VL };
    const int32_t *w_sum = w->sum + panel * MG_PANEL;
    const float *w_scale = w->scale + panel * MG_PANEL;
    vf p[V];
    UNROLL for (int v = 0; v < V; v++) {
        vi s = v_sub_scaled(v_load_int(sums + v * VL), v_load_int(w_sum + v * VL), xs->zero);
        p[v] = v_mul(v_from_int(s), v_mul(v_load(w_scale + v * VL), v_set(xs->scale)));
    }
    if (epilogue == MG_EPI_SWIGLU) {
        UNROLL for (int v = 0; v < V / 2; v++)
            v_store(y + v * VL, v_mul(v_silu(p[v]), p[V / 2 + v]));
        return;
    }
    UNROLL for (int v = 0; v < V; v++) {
        if (bias) p[v] = v_add(p[v], v_load(bias + v * VL));
        if (epilogue == MG_EPI_ADD) p[v] = v_add(v_load(y + v * VL), p[v]);
        if (epilogue == MG_EPI_GELU_TANH) p[v] = v_gelu_tanh(p[v]);
        v_store(y + v * VL, p[v]);
    }
}

/* Rows row .. row+rows-1 of a panel from sums [rows][32]. */
static void finish_panel(const struct mg_packed_matmul *op, size_t task, size_t panel, size_t row,
                         size_t rows, const int32_t *sums) {
    size_t width = mg_packed_width(op->w), first = panel * width;
    size_t n = mg_min_size(width, op->w->n - first);
    const float *bias = op->bias ? op->bias + first : NULL;
    bool whole = n == width && op->epilogue != MG_EPI_TOP && op->epilogue != MG_EPI_GELU_ERF;
    for (size_t r = 0; r < rows; r++, sums += MG_PANEL) {
        const struct mg_row_scale *xs = &op->xs[row + r];
        float *y = op->y + (row + r) * op->ldy + first;
        if (whole && !xs->n_loud) {
            switch (op->epilogue) {
            case MG_EPI_ADD: finish_whole(MG_EPI_ADD, op->w, xs, panel, sums, bias, y); break;
            case MG_EPI_GELU_TANH:
                finish_whole(MG_EPI_GELU_TANH, op->w, xs, panel, sums, bias, y);
                break;
            case MG_EPI_SWIGLU: finish_whole(MG_EPI_SWIGLU, op->w, xs, panel, sums, NULL, y); break;
            default: finish_whole(MG_EPI_STORE, op->w, xs, panel, sums, bias, y); break;
            }
            continue;
        }
        struct loud room;
        const struct loud *loud = loud_sums(op->w, panel, op->x + (row + r) * op->ldx, xs, &room);
        if (op->epilogue == MG_EPI_TOP)
            finish_top(op->w, xs, panel, sums, loud, bias, n, &op->top[task * op->m + row + r]);
        else
            finish_store(op->epilogue, op->w, xs, panel, sums, loud, bias, y, n);
    }
}

/* No result yet, for all rows of a task. */
INLINE void begin_top(const struct mg_packed_matmul *op, size_t task, size_t panel) {
    for (size_t r = 0; op->epilogue == MG_EPI_TOP && r < op->m; r++)
        op->top[task * op->m + r] =
            (struct mg_top){-INFINITY, (uint32_t)(panel * mg_packed_width(op->w))};
}

#endif
