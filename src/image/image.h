/* image/image.h - bytes of a picture file to an upright RGB8 raster.
 *
 * The content decides the format, never a name. Size and limits are checked from the header before anything
 * is decoded. EXIF orientation is applied, alpha is put over `background`, ICC is ignored as the reference
 * does. Of an animation the first fully composed frame is used.
 * JPEG, PNG, WebP, GIF, BMP; HEIC and AVIF when libheif can be loaded at run time.
 */
#ifndef MG_IMAGE_IMAGE_H
#define MG_IMAGE_IMAGE_H

#include "base/err.h"
#include "base/mem.h"

enum mg_image_format {
    MG_IMAGE_UNKNOWN, MG_IMAGE_JPEG, MG_IMAGE_PNG, MG_IMAGE_WEBP, MG_IMAGE_GIF, MG_IMAGE_BMP,
    MG_IMAGE_HEIC, MG_IMAGE_AVIF
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
    /* The size it will be resized to at most (longest side, pixels; 0 = unknown): a JPEG far above it may be
     * decoded at 1/2, 1/4 or 1/8 where that keeps the resized values within the parity bound. */
    uint32_t target_side;
    /* 16-bit gray PNG: false (default) cuts values off at 255, which is what the reference (Pillow) does and makes most
     * such pictures white; true takes the high byte. */
    bool gray16_scale;
};
extern const struct mg_image_options mg_image_options_default;

struct mg_image_info {
    enum mg_image_format format;
    uint32_t width, height; /* upright, in pixels of the file */
    int orientation;        /* EXIF, 1 when absent or malformed */
    uint32_t n_frame;       /* 1 for a still picture; frame 0 is used */
    bool has_alpha;
    uint32_t decode_scale;  /* 1, or 2, 4, 8 when the decoder reduced it */
};

struct mg_image {
    uint8_t *rgb;           /* [height][width][3], owned, free() */
    uint32_t width, height; /* of the raster (info's, divided by decode_scale) */
    struct mg_image_info info;
};

const char *mg_image_format_name(enum mg_image_format format);
enum mg_image_format mg_image_sniff(const uint8_t *data, size_t n);

/* Format, upright size, frames from the header alone; checks the limits. Codes: image_empty,
 * image_format_unknown, image_too_large, image_truncated, image_damaged, image_format_unsupported. */
enum mg_status mg_image_probe(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              struct mg_image_info *out, struct mg_err *err);
/* Decodes. On failure `out` is zeroed. A truncated file is an error, never half a picture. */
enum mg_status mg_image_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                               struct mg_image *out, struct mg_err *err);
void mg_image_free(struct mg_image *image);

#endif
