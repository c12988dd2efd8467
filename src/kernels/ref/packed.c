/* kernels/ref/packed.c - products with packed weights and the rounding of activations, the
 * definition.
 *
 * Sums fit 32 bits: |q - zero| <= 255, |w| <= 127, k < 2^16. A task is one panel for all rows.
 */
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>

static void quantise_row(const float *x, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                         size_t k) {
    float low = 0, high = 0;
    bool finite = true;
    for (size_t j = 0; j < k; j++) {
        if (!(fabsf(x[j]) <= FLT_MAX)) finite = false;
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    float range = high - low, inverse = 0;
    if (!finite || !(range <= FLT_MAX))
        *xs = (struct mg_row_scale){NAN, 0};
    else if (range < MG_LEAST_RANGE)
        *xs = (struct mg_row_scale){0, 0};
    else {
        inverse = 255 / range;
        *xs = (struct mg_row_scale){range / 255, (int32_t)lrintf(-low * inverse)};
    }
    for (size_t j = 0; j < ldq; j++) {
        int32_t v = xs->zero + (j < k && inverse > 0 ? (int32_t)lrintf(x[j] * inverse) : 0);
        q[j] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

static void quantise(const float *in, size_t ldin, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                     size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) quantise_row(in + i * ldin, q + i * ldq, ldq, &xs[i], k);
}

static size_t tasks(const struct mg_packed_matmul *op) {
    return op->m ? mg_packed_panels(op->w) : 0;
}

/* A panel widened: i8 [32][k]. */
static size_t scratch_size(const struct mg_packed_matmul *op) {
    return (MG_PANEL * op->w->k + 63) & ~(size_t)63;
}

static void widen(const struct mg_packed *w, const void *panel, int8_t *out) {
    for (size_t c = 0; c < MG_PANEL; c++)
        for (size_t j = 0; j < w->k; j++)
            out[c * w->k + j] = w->kind == MG_PACK_INT4
                                    ? (int8_t)mg_packed_int4(panel, c, j)
                                    : ((const int8_t *)panel)[mg_packed_place(c, j)];
}

/* Result of row i and column c (0..31) of the panel, without bias. */
static float product(const struct mg_packed_matmul *op, size_t panel, size_t i, size_t c,
                     const int8_t *wide) {
    const struct mg_packed *w = op->w;
    const uint8_t *x = op->x + i * op->ldx;
    const int8_t *v = wide + c * w->k;
    int32_t sum = 0;
    for (size_t j = 0; j < w->k; j++) sum += (int)x[j] * v[j];
    sum -= op->xs[i].zero * w->sum[panel * MG_PANEL + c];
    return (float)sum * (w->scale[panel * MG_PANEL + c] * op->xs[i].scale);
}

static void packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    const struct mg_packed *w = op->w;
    const char *panel = (const char *)w->data + task * mg_packed_panel_bytes(w->kind, w->k);
    size_t width = mg_packed_width(w), first = task * width;
    size_t n = w->n - first < width ? w->n - first : width;
    widen(w, panel, scratch);
    for (size_t i = 0; i < op->m; i++) {
        struct mg_top top = {-INFINITY, (uint32_t)first};
        for (size_t c = 0; c < n; c++) {
            float p = product(op, task, i, c, scratch), p2 = 0;
            if (op->bias) p = p + op->bias[first + c];
            if (op->epilogue == MG_EPI_SWIGLU) p2 = product(op, task, i, c + MG_TILE, scratch);
            if (op->epilogue == MG_EPI_TOP) {
                if (p > top.value || (isnan(p) && !isnan(top.value)))
                    top = (struct mg_top){p, (uint32_t)(first + c)};
                continue;
            }
            float *y = op->y + i * op->ldy + first + c;
            *y = mg_ref_finish(op->epilogue, op->epilogue == MG_EPI_ADD ? *y : 0, p, p2);
        }
        if (op->epilogue == MG_EPI_TOP) op->top[task * op->m + i] = top;
    }
}

void mg_ref_init_packed(struct mg_kernels *t) {
    t->quantise = quantise;
    t->packed_tasks = tasks;
    t->packed_scratch = scratch_size;
    t->packed_matmul = packed_matmul;
}
