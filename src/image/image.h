/* image/image.h - bytes of a picture file to an upright RGB8 raster.
 *
 * The content decides the format, never a name. Size and limits are checked from the header before
 * anything is decoded. EXIF orientation is applied, alpha is put over `background`, ICC is ignored
 * as the reference does. Of an animation the first fully composed frame is used.
 * JPEG, PNG, WebP, GIF, BMP; HEIC and AVIF when libheif can be loaded at run time
 * (MARGAY_LIBHEIF in the environment names another file than libheif.so.1; empty switches it off).
 *
 * The reference is Pillow: its decoders, exif_transpose, alpha_composite over the background. Exact
 * for all but HEIC and AVIF (libheif upsamples colour another way: up to about 14 steps at edges).
 * Where Pillow leaves the PNG specification, in the transparent colour of 2, 4 and 16-bit gray and
 * of 16-bit RGB, the specification holds.
 *
 * Memory: 3 bytes a pixel for the raster. Beside it: up to 4 bytes a pixel for a WebP with alpha or
 * to be turned; 3 to 6 for a progressive JPEG, given back while the raster fills; the codec's own
 * for lossless WebP (4), HEIC and AVIF.
 */
#ifndef MG_IMAGE_IMAGE_H
#define MG_IMAGE_IMAGE_H

#include "base/err.h"
#include "base/mem.h"

enum mg_image_format {
    MG_IMAGE_UNKNOWN,
    MG_IMAGE_JPEG,
    MG_IMAGE_PNG,
    MG_IMAGE_WEBP,
    MG_IMAGE_GIF,
    MG_IMAGE_BMP,
    MG_IMAGE_HEIC,
    MG_IMAGE_AVIF
};

struct mg_image_limits {
    size_t max_bytes;    /* of the file; default 64 MiB */
    uint32_t max_side;   /* pixels; default 32,768 */
    uint64_t max_pixels; /* default 128 Mpixel */
};
extern const struct mg_image_limits mg_image_limits_default;

struct mg_image_options {
    struct mg_image_limits limits;
    uint8_t background[3]; /* RGB under alpha; {255, 255, 255} is the default */
    /* 16-bit gray PNG: false (default) cuts values off at 255, which is what the reference (Pillow)
     * does and makes most such pictures white; true takes the high byte. */
    bool gray16_scale;
};
extern const struct mg_image_options mg_image_options_default;

struct mg_image_info {
    enum mg_image_format format;
    uint32_t width, height; /* upright, in pixels of the file */
    int orientation;        /* EXIF, 1 when absent or malformed */
    uint32_t n_frame;       /* 1 for a still picture; frame 0 is used */
    bool has_alpha;
    /* 1: the decoder gave all pixels. No decoder of ours reduces: a JPEG at 1/2, 1/4 or 1/8 leaves
     * the parity bound (2 steps at most, 0.5 % over one). Measured at 24 megapixels: 1/2 of photos
     * to 1248 x 832 up to 3 steps off, of a screenshot 11 (3 % over one), of noise 28, of small
     * text 28 (43 % over one); 1/4 of photos 3 to 12 (0.2 to 10 %). Memory is bounded without it:
     * the rows go straight to their upright place. */
    uint32_t decode_scale;
};

struct mg_image {
    uint8_t *rgb;           /* [height][width][3], owned, free() */
    uint32_t width, height; /* of the raster (info's, divided by decode_scale) */
    struct mg_image_info info;
};

const char *mg_image_format_name(enum mg_image_format format);
enum mg_image_format mg_image_sniff(const uint8_t *data, size_t n);

/* Format, upright size, frames from the header alone; checks the limits. Codes: image_empty,
 * image_format_unknown, image_too_large, image_truncated, image_damaged,
 * image_format_unsupported. */
enum mg_status mg_image_probe(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              struct mg_image_info *out, struct mg_err *err);
/* Decodes. On failure `out` is zeroed. A truncated file is an error, never half a picture. */
enum mg_status mg_image_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                               struct mg_image *out, struct mg_err *err);
void mg_image_free(struct mg_image *image);

#endif
