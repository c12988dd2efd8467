/* weights/pack.c - see pack.h. The loops over a row are plain and short so that the compiler can
 * make vectors of them: converting two billion weights should take seconds. */
#include "weights/pack.h"

#include <math.h>
#include <string.h>

#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number, ties to even */

static float largest(const float *x, size_t k) {
    float top = 0;
    for (size_t j = 0; j < k; j++) {
        float a = fabsf(x[j]);
        top = a > top ? a : top;
    }
    return top;
}

static bool finite_row(const float *x, size_t k) {
    float zero = 0; /* anything times 0 is 0, but for what is not finite */
    for (size_t j = 0; j < k; j++) zero += x[j] * 0.0f;
    return zero == 0;
}

static void column_int8(const float *x, size_t k, size_t c, uint8_t *panel, float *scale,
                        int32_t *sum, double error[2]) {
    float top = largest(x, k), inverse = top > 0 ? 127 / top : 0;
    if (!(inverse <= 3e38f)) top = inverse = 0; /* too small for a scale that is not subnormal */
    *scale = top / 127;
    int32_t total = 0;
    float off = 0, square = 0;
    for (size_t j = 0; j < k; j += 4) {
        int8_t q[4] = {0};
        for (size_t i = 0; i < 4 && j + i < k; i++) {
            float v = x[j + i] * inverse + MAGIC - MAGIC;
            float d = x[j + i] - v * *scale;
            off += d * d;
            square += x[j + i] * x[j + i];
            q[i] = (int8_t)v;
            total += q[i];
        }
        memcpy(panel + mg_packed_place(c, j), q, 4);
    }
    *sum = total;
    error[0] += (double)off;
    error[1] += (double)square;
}

/* Squared error of a group with this step, levels -8..7. */
static float group_error(const float *x, float step) {
    float inverse = 1 / step, sum = 0;
    for (size_t j = 0; j < MG_PACK_GROUP; j++) {
        float v = x[j] * inverse + MAGIC - MAGIC;
        v = v < -8 ? -8 : v;
        v = v > 7 ? 7 : v;
        float d = x[j] - v * step;
        sum += d * d;
    }
    return sum;
}

/* The step that fits the group best, of either sign; 0 for zeros. */
static float best_step(const float *x) {
    static const float divisor[] = {8.6f, 8.0f, 7.5f, 7.0f, 6.5f, 6.0f};
    float top = 0, best = 0, least = INFINITY;
    for (size_t j = 0; j < MG_PACK_GROUP; j++)
        if (fabsf(x[j]) > fabsf(top)) top = x[j];
    if (fabsf(top) < 1e-30f) return 0;
    for (size_t i = 0; i < sizeof divisor / sizeof *divisor; i++) {
        float step = -top / divisor[i], e = group_error(x, step); /* the largest becomes about -8 */
        if (e < least) least = e, best = step;
        e = group_error(x, -step);
        if (e < least) least = e, best = -step;
    }
    return best;
}

/* The sub-scale for the group under the output's scale, near `step`. */
static int best_sub(const float *x, float step, float scale) {
    int near = (int)lrintf(step / scale), best = 0;
    float least = 0;
    for (size_t j = 0; j < MG_PACK_GROUP; j++) least += x[j] * x[j]; /* as all zeros */
    for (int s = near - 1; s <= near + 1; s++) {
        if (s == 0 || s < -15 || s > 15) continue;
        float e = group_error(x, scale * (float)s);
        if (e < least) least = e, best = s;
    }
    return best;
}

static void column_int4(const float *x, size_t k, size_t c, uint8_t *panel, float *scale,
                        int32_t *sum, double error[2]) {
    size_t groups = mg_packed_blocks(k) * 2, tile = c / MG_TILE, in = c % MG_TILE;
    float top = 0, group[MG_PACK_GROUP];
    float off = 0, square = 0;
    *scale = 0;
    *sum = 0;
    for (int pass = 0; pass < 2; pass++) { /* the scale, then the groups under it */
        for (size_t g = 0; g < groups; g++) {
            size_t first = g * MG_PACK_GROUP, n = first < k ? k - first : 0;
            n = n < MG_PACK_GROUP ? n : MG_PACK_GROUP;
            memset(group, 0, sizeof group);
            if (n) memcpy(group, x + first, n * sizeof *x);
            float step = best_step(group);
            if (pass == 0) {
                top = fabsf(step) > top ? fabsf(step) : top;
                continue;
            }
            int sub = *scale > 0 && step != 0 ? best_sub(group, step, *scale) : 0;
            float by = *scale * (float)sub, inverse = sub ? 1 / by : 0;
            uint8_t *block = panel + g / 2 * 1088;
            block[tile * 32 + g % 2 * 16 + in] = (uint8_t)(int8_t)sub;
            for (size_t j = 0; j < MG_PACK_GROUP; j++) {
                float v = group[j] * inverse + MAGIC - MAGIC;
                v = v < -8 ? -8 : v > 7 ? 7 : v;
                float d = group[j] - v * by;
                off += d * d;
                square += group[j] * group[j];
                *sum += sub * (int)v;
                size_t line = g % 2 * 8 + j / 4;
                uint8_t *two = block + 64 + tile * 512 + line / 2 * 64 + in * 4 + j % 4;
                unsigned q = (unsigned)((int)v + 8);
                *two = (uint8_t)(line % 2 ? (*two & 15) | q << 4 : q);
            }
        }
        if (pass == 0) *scale = top / 15;
    }
    error[0] += (double)off;
    error[1] += (double)square;
}

bool mg_pack_panel(enum mg_pack kind, const float *const row[MG_PANEL], size_t k, void *panel,
                   float *scale, int32_t *sum, double error[2]) {
    size_t bytes = mg_packed_panel_bytes(kind, k);
    uint8_t *to = panel;
    memset(to, 0, bytes);
    if (kind == MG_PACK_INT4) /* nibble 8 is zero, and so is sub-scale 0 */
        for (size_t at = 0; at < bytes; at += 1088) memset(to + at + 64, 0x88, 1024);
    for (size_t c = 0; c < MG_PANEL; c++) {
        scale[c] = 0;
        sum[c] = 0;
        if (!row[c]) continue;
        if (!finite_row(row[c], k)) return false;
        if (kind == MG_PACK_INT8)
            column_int8(row[c], k, c, to, &scale[c], &sum[c], error);
        else
            column_int4(row[c], k, c, to, &scale[c], &sum[c], error);
    }
    return true;
}
