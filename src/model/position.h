/* model/position.h - where tokens and patches are: M-RoPE, the vision tower's rotary and position
 * embedding.
 *
 * All angles are formed as the reference forms them, in f32; cos and sin are taken in double and
 * rounded.
 */
#ifndef MG_MODEL_POSITION_H
#define MG_MODEL_POSITION_H

#include "base/err.h"
#include "weights/config.h"

#include <stddef.h>
#include <stdint.h>

/* Patch i of a grid in merge-block order: its row and column in the grid. */
static inline void mg_patch_place(size_t i, size_t grid_w, size_t merge, size_t *row, size_t *col) {
    size_t in_block = i % (merge * merge), block = i / (merge * merge), across = grid_w / merge;
    *row = block / across * merge + in_block / merge;
    *col = block % across * merge + in_block % merge;
}

/* Vision rotary of n patches: cos, sin [n][head_dim/2], angles [row*f, col*f]. place: [n][2] row,
 * column. */
void mg_vision_rope(const uint32_t (*place)[2], size_t n, size_t head_dim, float *cos, float *sin);

/* The 4 taps of the bilinear position embedding at one place of a grid_h x grid_w grid over a side
 * x side table (align_corners): table rows and weights. */
void mg_position_taps(size_t row, size_t col, size_t grid_h, size_t grid_w, size_t side,
                      size_t index[4], float weight[4]);

/* M-RoPE of m tokens: cos, sin [m][head_dim/2] from pos [m][3] (temporal, height, width). freq:
 * [head_dim/2] from mg_rope_freq. */
void mg_text_rope(const struct mg_text_config *c, const float *freq, const int32_t (*pos)[3],
                  size_t m, float *cos, float *sin);
void mg_rope_freq(const struct mg_text_config *c, float *freq);

#endif
