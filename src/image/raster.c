/* image/raster.c - putting decoded rows upright into the raster.
 *
 *   orientation   1        2        3        4        5          6          7          8
 *   file row      right    left     left     right    down       down       up         up
 *   next row      down     down     up       up       right      left       left       right
 *
 * For 5..8 a row of the file becomes a column. Decoders hand over up to 16 rows at once, and these
 * are written pixel column by pixel column, so that a cache line of the raster is filled while it
 * is at hand.
 */
#include "image/decode.h"

#include <string.h>

void mg_raster_init(struct mg_raster *r, uint8_t *rgb, uint32_t width, uint32_t height,
                    int orientation) {
    bool turned = orientation >= 5;
    ptrdiff_t row = (ptrdiff_t)(turned ? height : width) * 3; /* bytes of an upright row */
    ptrdiff_t last_x = (ptrdiff_t)width - 1, last_y = (ptrdiff_t)height - 1;
    /* 2, 3, 7, 8: the file's row runs against the raster; 3, 4, 6, 7: its columns do. */
    bool back_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool back_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    ptrdiff_t sx = turned ? row : 3, sy = turned ? 3 : row;

    r->rgb = rgb;
    r->width = width;
    r->height = height;
    r->origin = rgb + (back_x ? last_x * sx : 0) + (back_y ? last_y * sy : 0);
    r->step_x = back_x ? -sx : sx;
    r->step_y = back_y ? -sy : sy;
}

void mg_raster_put(const struct mg_raster *r, uint32_t x, uint32_t y, uint32_t w, uint32_t n,
                   const uint8_t *rows, size_t stride) {
    if (r->step_x == 3) {
        for (uint32_t i = 0; i < n; i++)
            memcpy(mg_raster_at(r, x, y + i), rows + i * stride, (size_t)w * 3);
        return;
    }
    for (uint32_t i = 0; i < w; i++) {
        uint8_t *to = mg_raster_at(r, x + i, y);
        const uint8_t *from = rows + (size_t)i * 3;
        for (uint32_t j = 0; j < n; j++) {
            to[0] = from[0];
            to[1] = from[1];
            to[2] = from[2];
            if (j + 1 < n) {
                to += r->step_y;
                from += stride;
            }
        }
    }
}

void mg_raster_put_rgba(const struct mg_raster *r, uint32_t x, uint32_t y, uint32_t w, uint32_t n,
                        const uint8_t *rows, size_t stride, const uint8_t background[3]) {
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *from = rows + j * stride;
        for (uint32_t i = 0; i < w; i++, from += 4) {
            uint8_t *to = mg_raster_at(r, x + i, y + j);
            for (int c = 0; c < 3; c++)
                to[c] = mg_alpha_over(from[c], from[3], background[c]);
        }
    }
}

void mg_raster_fill(const struct mg_raster *r, const uint8_t color[3]) {
    size_t n = (size_t)r->width * r->height;
    for (size_t i = 0; i < n; i++)
        memcpy(r->rgb + i * 3, color, 3);
}
