/* model/position.c - see position.h. */
#include "model/position.h"

#include <math.h>

static float axis_freq(float base, size_t i, size_t dim) {
    /* 1 / base^(i/dim) with the exponent, the power and the reciprocal each rounded to f32 */
    float exponent = (float)i / (float)dim;
    return 1.0f / (float)pow((double)base, (double)exponent);
}

void mg_vision_rope(const uint32_t (*place)[2], size_t n, size_t head_dim, float *cos_out,
                    float *sin_out) {
    size_t half = head_dim / 2, per_axis = half / 2;
    for (size_t j = 0; j < per_axis; j++) {
        float freq = axis_freq(10000.0f, 2 * j, half);
        for (size_t i = 0; i < n; i++)
            for (size_t axis = 0; axis < 2; axis++) {
                float angle = (float)place[i][axis] * freq;
                size_t at = i * half + axis * per_axis + j;
                cos_out[at] = (float)cos((double)angle);
                sin_out[at] = (float)sin((double)angle);
            }
    }
}

static void axis_taps(size_t i, size_t size, size_t side, size_t tap[2], float weight[2]) {
    float at = (float)i * (float)(side - 1) / (float)(size > 1 ? size - 1 : 1);
    float low = floorf(at), part = at - low;
    tap[0] = (size_t)low;
    tap[1] = tap[0] + 1 < side ? tap[0] + 1 : side - 1;
    weight[0] = 1.0f - part;
    weight[1] = 1.0f - fabsf(part - 1.0f);
}

void mg_position_taps(size_t row, size_t col, size_t grid_h, size_t grid_w, size_t side,
                      size_t index[4], float weight[4]) {
    size_t h[2], w[2];
    float wh[2], ww[2];
    axis_taps(row, grid_h, side, h, wh);
    axis_taps(col, grid_w, side, w, ww);
    for (size_t i = 0; i < 4; i++) {
        index[i] = h[i / 2] * side + w[i % 2];
        weight[i] = wh[i / 2] * ww[i % 2];
    }
}

void mg_rope_freq(const struct mg_text_config *c, float *freq) {
    for (size_t j = 0; j < c->head_dim / 2; j++)
        freq[j] = axis_freq(c->rope_theta, 2 * j, c->head_dim);
}

/* Which of temporal, height, width turns pair j: interleaved sections. */
static size_t section_of(const struct mg_text_config *c, size_t j) {
    for (size_t axis = 1; axis < 3; axis++)
        if (j % 3 == axis && j < 3 * c->section[axis]) return axis;
    return 0;
}

void mg_text_rope(const struct mg_text_config *c, const float *freq, const int32_t (*pos)[3],
                  size_t m, float *cos_out, float *sin_out) {
    size_t half = c->head_dim / 2;
    for (size_t j = 0; j < half; j++) {
        size_t axis = section_of(c, j);
        for (size_t i = 0; i < m; i++) {
            float angle = (float)pos[i][axis] * freq[j];
            cos_out[i * half + j] = (float)cos((double)angle);
            sin_out[i * half + j] = (float)sin((double)angle);
        }
    }
}
