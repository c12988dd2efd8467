/* model/vision.h - the vision tower: patches of one picture to the rows that take the image tokens'
 * places.
 *
 *   patches --patch_embed--> x + position --> block 0 .. depth-1 --> merger --> map 0
 *                                               | after the listed blocks
 *                                               +--> DeepStack merger i --> map 1+i
 *
 * Attention is over the patches of this picture only, so a picture's features don't depend on its
 * company.
 */
#ifndef MG_MODEL_VISION_H
#define MG_MODEL_VISION_H

#include "model/model.h"

/* What the decoder needs of a picture: map 0 are the merger's rows, maps 1.. the DeepStack rows in
 * layer order. */
struct mg_picture {
    size_t n_token, n_map, width; /* width: hidden size of the decoder */
    float *row;                   /* [n_map][n_token][width], owned */
};
void mg_picture_free(struct mg_picture *f);

/* The patches of one picture. A cell is one merge block, one token. When cells are left out the
 * others keep what they have in the whole picture: their own position embedding and rotary
 * coordinates. */
struct mg_vision_input {
    const float *patch;    /* [patches][dim] of the cells below one after another, borrowed */
    size_t grid_h, grid_w; /* patches down and across of the whole picture */
    const uint32_t *cell;  /* [n_cell] places in the grid of cells in raster order, borrowed; NULL:
                              all of them, and patch is [grid_h*grid_w][dim] in merge-block order */
    size_t n_cell;
};

/* MG_ERR_NUMERIC (vision_not_finite) when a
 * result isn't finite, MG_ERR_CANCELLED by the compute's tick between blocks. On failure `out` is
 * empty. */
enum mg_status mg_vision_encode(const struct mg_model *model, struct mg_compute *c,
                                const struct mg_vision_input *in, struct mg_picture *out,
                                struct mg_err *err);

#endif
