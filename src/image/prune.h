/* image/prune.h - which cells of a resized picture are looked at.
 *
 * A cell is merge x merge patches, one token: 32 x 32 pixels of the published model. On charts,
 * screenshots and clean pages most cells repeat a neighbour, and the vision tower and the decoder
 * need those only once. In raster order a cell is predicted from three neighbours, and left out
 * when it is like its prediction:
 *
 *     C B      first row: A; first column: B; else B if C is like A and not like B, else A
 *     A x      like: no two of their bytes at equal places differ by more than `near`
 *
 * A neighbour stands for what it was replaced by (its reconstruction), so a slow drift over many
 * cells ends in a cell that is kept, instead of being followed for ever. The first cell is always
 * kept. The method is PixelPrune's (arXiv 2604.00886); docs/model.md has what it is good for.
 *
 * What is kept depends on the 8-bit pixels and `near` alone. Features of a pruned picture are not
 * those of the whole one: whoever keeps features under a key puts `near` (or that nothing was left
 * out) into it, beside what the resized pixels and the model already say. `near` 0 is exact
 * pruning.
 */
#ifndef MG_IMAGE_PRUNE_H
#define MG_IMAGE_PRUNE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The kept cells of one picture. */
struct mg_cells {
    uint32_t *index; /* [n] places in the grid of cells in raster order, ascending; owned, free() */
    size_t n;
};

/* rgb: [rows * side][cols * side][3], a resized picture of rows x cols cells of `side` pixels.
 * MG_ERR_ARGUMENT when one of the three is 0, MG_ERR_MEMORY; `out` is then empty. */
enum mg_status mg_prune_cells(const uint8_t *rgb, uint32_t rows, uint32_t cols, uint32_t side,
                              uint8_t near, struct mg_cells *out, struct mg_err *err);
void mg_cells_free(struct mg_cells *cells);

#endif
