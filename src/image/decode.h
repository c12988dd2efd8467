/* image/decode.h - what the decoders of this folder share; nobody outside includes it.
 *
 * image.c asks a decoder's probe for the file's own frame (before turning), checks the limits,
 * makes the upright raster and hands it to the decode function as a place to put pixels: every EXIF
 * orientation is an origin and two signed steps, so that no decoder turns anything and no second
 * raster is needed.
 *
 *     address of file pixel (x, y) = origin + x * step_x + y * step_y
 *
 * A decoder either fills every pixel or fails; it never prints, keeps no global state (heif.c keeps
 * the loaded library), and may be run by any number of threads at once.
 */
#ifndef MG_IMAGE_DECODE_H
#define MG_IMAGE_DECODE_H

#include "image/image.h"

struct mg_raster {
    uint8_t *rgb;           /* [upright height][upright width][3], image.c's */
    uint8_t *origin;        /* where the file's pixel (0, 0) goes */
    ptrdiff_t step_x;       /* bytes from one pixel of a file's row to the next */
    ptrdiff_t step_y;       /* bytes from one row of the file to the next */
    uint32_t width, height; /* of the file, before turning */
};

/* Sets origin and steps for an orientation 1..8 of a width x height file into `rgb`. */
void mg_raster_init(struct mg_raster *r, uint8_t *rgb, uint32_t width, uint32_t height,
                    int orientation);
/* Puts n file rows from y on, starting at column x and w pixels wide; `rows` is [n][stride] bytes
 * of RGB. */
void mg_raster_put(const struct mg_raster *r, uint32_t x, uint32_t y, uint32_t w, uint32_t n,
                   const uint8_t *rows, size_t stride);
/* The same with RGBA rows, composited over `background`. */
void mg_raster_put_rgba(const struct mg_raster *r, uint32_t x, uint32_t y, uint32_t w, uint32_t n,
                        const uint8_t *rows, size_t stride, const uint8_t background[3]);
void mg_raster_fill(const struct mg_raster *r, const uint8_t color[3]);

static inline uint8_t *mg_raster_at(const struct mg_raster *r, uint32_t x, uint32_t y) {
    return r->origin + (ptrdiff_t)x * r->step_x + (ptrdiff_t)y * r->step_y;
}

/* One channel `v` of opacity `a` over an opaque `b`: ((t >> 8) + t) >> 15 with t = 128 (v a + b
 * (255 - a) + 128), which is what Pillow's alpha_composite computes on an opaque background:
 * rounded to nearest. */
static inline uint8_t mg_alpha_over(uint8_t v, uint8_t a, uint8_t b) {
    uint32_t t = ((uint32_t)v * a + (uint32_t)b * (255u - a)) * 128u + (128u << 7);
    return (uint8_t)(((t >> 8) + t) >> 15);
}

/* Orientation 1..8 from a TIFF block, with or without "Exif\0\0" before it. Anything malformed is
 * 1. */
int mg_exif_orientation(const uint8_t *data, size_t n);

/* probe: format, width, height (of the file, not turned), orientation, n_frame, has_alpha, from
 * headers alone. decode: `info` is what probe gave. */
#define MG_IMAGE_DECODER(name) \
    enum mg_status mg_##name##_probe(const uint8_t *data, size_t n, struct mg_image_info *info, \
                                     struct mg_err *err); \
    enum mg_status mg_##name##_decode(const uint8_t *data, size_t n, \
                                      const struct mg_image_options *o, \
                                      const struct mg_image_info *info, struct mg_raster *raster, \
                                      struct mg_err *err)
MG_IMAGE_DECODER(jpeg);
MG_IMAGE_DECODER(png);
MG_IMAGE_DECODER(webp);
MG_IMAGE_DECODER(gif);
MG_IMAGE_DECODER(bmp);
MG_IMAGE_DECODER(heif);

/* Failures that every decoder words alike; `what` is the format's name. */
enum mg_status mg_image_truncated(struct mg_err *err, const char *what);
enum mg_status mg_image_damaged(struct mg_err *err, const char *what, const char *why);

static inline uint32_t mg_be16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t mg_be32(const uint8_t *p) { return mg_be16(p) << 16 | mg_be16(p + 2); }
static inline uint32_t mg_le16(const uint8_t *p) { return (uint32_t)p[1] << 8 | p[0]; }
static inline uint32_t mg_le32(const uint8_t *p) { return mg_le16(p + 2) << 16 | mg_le16(p); }

#endif
