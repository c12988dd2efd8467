/* image/prune.c - see prune.h.
 *
 * A reconstruction is always some kept cell's pixels, so it is held as that cell's place. Of the
 * reconstructions only the last row is needed:
 *
 *     above:  [x-1] of this row | [x], [x+1] ... of the row before
 *     corner: [x-1] of the row before, which this row has just overwritten
 */
#include "image/prune.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct raster {
    const uint8_t *rgb;
    size_t cols, side; /* cells in a row; pixels in a cell's side */
    uint8_t near;
};

static const uint8_t *cell_at(const struct raster *r, size_t cell) {
    size_t row_bytes = r->side * 3;
    return r->rgb + (cell / r->cols * r->side * r->cols + cell % r->cols) * row_bytes;
}

static bool like(const struct raster *r, size_t cell, size_t other) {
    if (cell == other) return true;
    const uint8_t *a = cell_at(r, cell), *b = cell_at(r, other);
    size_t n = r->side * 3, stride = n * r->cols;
    for (size_t y = 0; y < r->side; y++, a += stride, b += stride) {
        if (memcmp(a, b, n) == 0) continue;
        if (r->near == 0) return false;
        unsigned worst = 0;
        for (size_t i = 0; i < n; i++) {
            unsigned d = (unsigned)abs(a[i] - b[i]);
            worst = d > worst ? d : worst;
        }
        if (worst > r->near) return false;
    }
    return true;
}

/* The cell whose pixels are expected at (row, col). */
static uint32_t predict(const struct raster *r, size_t row, size_t col, const uint32_t *above,
                        uint32_t corner) {
    if (row == 0) return above[col - 1];
    if (col == 0) return above[0];
    uint32_t left = above[col - 1], top = above[col];
    return like(r, corner, left) && !like(r, corner, top) ? top : left;
}

enum mg_status mg_prune_cells(const uint8_t *rgb, uint32_t rows, uint32_t cols, uint32_t side,
                              uint8_t near, struct mg_cells *out, struct mg_err *err) {
    struct raster r = {.rgb = rgb, .cols = cols, .side = side, .near = near};
    size_t n;
    *out = (struct mg_cells){0};
    if (rows == 0 || cols == 0 || side == 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "a picture of %u x %u cells of %u pixels", cols,
                       rows, side);
    uint32_t *above = mg_alloc_zero(cols, sizeof *above);
    if (mg_mul_size(rows, cols, &n) && n <= UINT32_MAX)
        out->index = mg_alloc(n, sizeof *out->index);
    if (!above || !out->index) {
        free(above);
        mg_cells_free(out);
        return mg_fail_memory(err, "cells of a picture");
    }
    for (size_t row = 0; row < rows; row++) {
        uint32_t corner = 0;
        for (size_t col = 0; col < cols; col++) {
            uint32_t cell = (uint32_t)(row * cols + col), source = cell;
            if (cell > 0) source = predict(&r, row, col, above, corner);
            if (cell == 0 || !like(&r, cell, source)) {
                out->index[out->n++] = cell;
                source = cell;
            }
            corner = above[col];
            above[col] = source;
        }
    }
    free(above);
    return MG_OK;
}

void mg_cells_free(struct mg_cells *cells) {
    free(cells->index);
    *cells = (struct mg_cells){0};
}
