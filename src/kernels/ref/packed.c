/* kernels/ref/packed.c - products with packed weights and the rounding of activations, the
 * definition.
 *
 * Sums fit 32 bits: |q - zero| <= 255, |w| <= 127, k <= MG_PACK_MAX_K. A task is one panel for all
 * rows.
 */
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>

/* Least and largest value of each block of x, 0 among them; false when one is not finite. */
static bool block_ranges(const float *x, size_t k, float *low, float *high) {
    bool finite = true;
    for (size_t j = 0; j < k; j++) {
        size_t b = j / MG_PACK_K;
        if (j % MG_PACK_K == 0) low[b] = high[b] = 0;
        if (!(fabsf(x[j]) <= FLT_MAX)) finite = false;
        if (x[j] < low[b]) low[b] = x[j];
        if (x[j] > high[b]) high[b] = x[j];
    }
    return finite;
}

static bool is_loud(const struct mg_row_scale *xs, size_t block) {
    for (size_t i = 0; i < xs->n_loud; i++)
        if (xs->loud[i] == block) return true;
    return false;
}

static void quantise_loud(const float *x, size_t k, float top, float level, struct mg_row_scale *xs,
                          int8_t *to) {
    float inverse = 127 / top;
    xs->loud_scale = top / 127;
    for (size_t i = 0; i < xs->n_loud; i++)
        for (size_t j = 0; j < MG_PACK_K; j++, to++) {
            size_t at = xs->loud[i] * (size_t)MG_PACK_K + j;
            long v = at < k && fabsf(x[at]) > level ? lrintf(x[at] * inverse) : 0;
            *to = (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v);
            xs->loud_sum[2 * i + j / MG_PACK_GROUP] += *to;
        }
}

static void quantise_row(const float *x, uint8_t *q, struct mg_row_scale *xs, size_t k) {
    size_t blocks = mg_packed_blocks(k), most = mg_packed_max_loud(k);
    float low[MG_MAX_LOUD_BLOCKS], high[MG_MAX_LOUD_BLOCKS], top[MG_MAX_LOUD_BLOCKS];
    float least = 0, largest = 0, loudest = 0, inverse = 0, level = INFINITY;
    bool finite = true;
    *xs = (struct mg_row_scale){0};
    if (blocks > MG_MAX_LOUD_BLOCKS) { /* too long for loud blocks: one range for all */
        for (size_t j = 0; j < k; j++) {
            if (!(fabsf(x[j]) <= FLT_MAX)) finite = false;
            if (x[j] < least) least = x[j];
            if (x[j] > largest) largest = x[j];
        }
    } else {
        finite = block_ranges(x, k, low, high);
        for (size_t b = 0; b < blocks; b++) top[b] = high[b] > -low[b] ? high[b] : -low[b];
        if (finite && most)
            xs->n_loud = (uint16_t)mg_loud_pick(top, blocks, most, xs->loud, &level);
        for (size_t b = 0; b < blocks; b++) {
            if (top[b] > loudest) loudest = top[b];
            if (is_loud(xs, b)) { /* its quiet values only */
                low[b] = high[b] = 0;
                for (size_t j = b * MG_PACK_K; j < k && j < (b + 1) * MG_PACK_K; j++) {
                    if (fabsf(x[j]) > level) continue;
                    if (x[j] < low[b]) low[b] = x[j];
                    if (x[j] > high[b]) high[b] = x[j];
                }
            }
            if (low[b] < least) least = low[b];
            if (high[b] > largest) largest = high[b];
        }
    }
    float range = largest - least;
    if (!finite || !(range <= FLT_MAX)) {
        *xs = (struct mg_row_scale){.scale = NAN};
    } else if (range >= MG_LEAST_RANGE) {
        inverse = 255 / range;
        xs->scale = range / 255;
        xs->zero = (int32_t)lrintf(-least * inverse);
    }
    for (size_t j = 0; j < blocks * MG_PACK_K; j++) {
        bool counts = j < k && inverse > 0 && !(xs->n_loud && fabsf(x[j]) > level);
        int32_t v = xs->zero + (counts ? (int32_t)lrintf(x[j] * inverse) : 0);
        q[j] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
    if (xs->n_loud && !isnan(xs->scale))
        quantise_loud(x, k, loudest, level, xs, (int8_t *)q + blocks * MG_PACK_K);
}

static void quantise(const float *in, size_t ldin, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                     size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) quantise_row(in + i * ldin, q + i * ldq, &xs[i], k);
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
    const struct mg_row_scale *xs = &op->xs[i];
    float scale = w->scale[panel * MG_PANEL + c];
    sum -= xs->zero * w->sum[panel * MG_PANEL + c];
    float p = (float)sum * (scale * xs->scale);
    if (!xs->n_loud) return p;
    const int8_t *loud = (const int8_t *)x + mg_packed_blocks(w->k) * MG_PACK_K;
    sum = 0;
    for (size_t b = 0; b < xs->n_loud; b++)
        for (size_t j = 0; j < MG_PACK_K; j++) {
            size_t at = xs->loud[b] * (size_t)MG_PACK_K + j;
            if (at < w->k) sum += loud[b * MG_PACK_K + j] * v[at];
        }
    return p + (float)sum * (scale * xs->loud_scale);
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
