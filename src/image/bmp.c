/* image/bmp.c - Windows and OS/2 bitmaps, read by hand.
 *
 *   14 bytes: "BM", sizes, offset of rows | 12 (OS/2) or 40..124 of header | masks | palette | rows
 *
 * 1, 4, 8 bits with a palette, 16, 24, 32 bits of colour; RLE4 and RLE8; bit fields of any width,
 * bottom-up or top-down. A channel of k bits becomes v * 255 / (2^k - 1), cut off (Pillow's rule).
 * The fourth byte of plain 32-bit files is no alpha; a mask for alpha makes it one. Pixels that a
 * run-length file skips are index 0.
 */
#include "image/decode.h"

#include <stdlib.h>
#include <string.h>

enum { RAW = 0, RLE8 = 1, RLE4 = 2, FIELDS = 3, ALPHA_FIELDS = 6 };

struct header {
    uint32_t width, height;
    bool top_down;
    uint32_t bits, compression;
    size_t palette, pixels;    /* offsets in the file */
    uint32_t n_color, entry;   /* palette entries that are in the file, bytes of one */
    uint32_t mask[4];          /* red, green, blue, alpha */
};

static enum mg_status unsupported(struct mg_err *err, const char *what, uint32_t value) {
    return mg_fail(err, MG_ERR_UNSUPPORTED, "image_format_unsupported",
                   "BMP: %s %u isn't supported; convert it to PNG", what, value);
}

static bool one_run(uint32_t mask) {
    if (mask == 0)
        return true;
    uint32_t m = mask >> __builtin_ctz(mask);
    return (m & (m + 1)) == 0;
}

/* The masks of a file with bit fields, or the usual ones of its depth. */
static enum mg_status read_masks(const uint8_t *data, size_t n, size_t size, struct header *h,
                                 struct mg_err *err) {
    static const uint32_t rgb555[4] = {0x7c00, 0x3e0, 0x1f, 0};
    static const uint32_t rgb888[4] = {0xff0000, 0xff00, 0xff, 0};
    memcpy(h->mask, h->bits == 16 ? rgb555 : rgb888, sizeof h->mask);
    if (h->compression != FIELDS && h->compression != ALPHA_FIELDS)
        return MG_OK;
    if (h->bits != 16 && h->bits != 24 && h->bits != 32)
        return unsupported(err, "bit fields at a depth of", h->bits);
    size_t n_mask = size >= 56 || h->compression == ALPHA_FIELDS ? 4 : 3;
    if (size == 40)
        h->palette += 4 * n_mask;
    if (n < 14 + 40 + 4 * n_mask)
        return mg_image_truncated(err, "BMP");
    h->mask[3] = 0;
    for (size_t i = 0; i < n_mask; i++)
        h->mask[i] = mg_le32(data + 54 + 4 * i);
    if (h->bits == 32 && (h->mask[0] | h->mask[1] | h->mask[2] | h->mask[3]) == 0) {
        memcpy(h->mask, rgb888, sizeof h->mask); /* all zero means BGRA */
        h->mask[3] = 0xff000000;
    }
    for (int i = 0; i < 4; i++)
        if (!one_run(h->mask[i]))
            return mg_image_damaged(err, "BMP", "bit fields");
    return MG_OK;
}

static enum mg_status read_header(const uint8_t *data, size_t n, struct header *h,
                                  struct mg_err *err) {
    *h = (struct header){.entry = 4};
    if (n < 26)
        return mg_image_truncated(err, "BMP");
    size_t size = mg_le32(data + 14);
    uint32_t n_color = 0;
    h->palette = 14 + size;
    if (size > n - 14)
        return mg_image_truncated(err, "BMP");
    if (size == 12) {
        h->width = mg_le16(data + 18);
        h->height = mg_le16(data + 20);
        h->bits = mg_le16(data + 24);
        h->entry = 3;
    } else {
        uint32_t height = mg_le32(data + 22);
        h->width = mg_le32(data + 18);
        h->top_down = height > 0x7fffffff;
        h->height = h->top_down ? 0u - height : height;
        h->bits = mg_le16(data + 28);
        h->compression = mg_le32(data + 30);
        n_color = mg_le32(data + 46);
    }
    if (h->width == 0 || h->width > 0x7fffffff || h->height == 0 || h->height > 0x7fffffff)
        return mg_image_damaged(err, "BMP", "size");
    if (h->bits != 1 && h->bits != 4 && h->bits != 8 && h->bits != 16 && h->bits != 24 &&
        h->bits != 32)
        return unsupported(err, "a depth of", h->bits);
    if (h->compression > FIELDS && h->compression != ALPHA_FIELDS)
        return unsupported(err, "compression", h->compression);
    if (size == 64 && h->compression >= FIELDS)
        return unsupported(err, "OS/2 compression", h->compression);
    if ((h->compression == RLE8 && h->bits != 8) || (h->compression == RLE4 && h->bits != 4))
        return mg_image_damaged(err, "BMP", "run-length coding at another depth");
    enum mg_status s = read_masks(data, n, size, h, err);
    if (s != MG_OK)
        return s;
    h->pixels = mg_le32(data + 10);
    if (h->bits <= 8) {
        if (n_color == 0 || n_color > 256)
            n_color = n_color == 0 ? 1u << h->bits : 256;
        if (h->pixels == 14 + size)
            h->pixels += (size_t)n_color * h->entry;
        size_t room = h->palette < n ? (n - h->palette) / h->entry : 0;
        h->n_color = (uint32_t)mg_min_size(n_color, room);
    }
    return MG_OK;
}

enum mg_status mg_bmp_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                            struct mg_err *err) {
    struct header h;
    enum mg_status s = read_header(data, n, &h, err);
    if (s != MG_OK)
        return s;
    info->width = h.width;
    info->height = h.height;
    info->has_alpha = h.bits == 32 && h.mask[3] != 0;
    return MG_OK;
}

static uint8_t channel(uint32_t pixel, uint32_t mask) {
    if (mask == 0)
        return 0;
    uint32_t shift = (uint32_t)__builtin_ctz(mask), top = mask >> shift;
    return (uint8_t)((uint64_t)((pixel & mask) >> shift) * 255 / top);
}

static uint32_t file_row(const struct header *h, uint32_t y) {
    return h->top_down ? y : h->height - 1 - y;
}

/* Rows of 1, 4 or 8 bit indices, or of 16, 24, 32 bit colours. */
static enum mg_status decode_raw(const uint8_t *data, size_t n, const struct header *h,
                                 uint8_t lut[256][3], const uint8_t background[3],
                                 const struct mg_raster *r, struct mg_err *err) {
    size_t stride = ((size_t)h->width * h->bits + 31) / 32 * 4, total;
    if (!mg_mul_size(stride, h->height, &total) || h->pixels > n || total > n - h->pixels)
        return mg_image_truncated(err, "BMP");
    uint32_t per_byte = h->bits < 8 ? 8 / h->bits : 1;
    for (uint32_t i = 0; i < h->height; i++) {
        const uint8_t *row = data + h->pixels + i * stride;
        for (uint32_t x = 0; x < h->width; x++) {
            uint8_t *to = mg_raster_at(r, x, file_row(h, i));
            if (h->bits <= 8) {
                uint32_t shift = 8 - h->bits * (x % per_byte + 1);
                memcpy(to, lut[(row[x / per_byte] >> shift) & ((1u << h->bits) - 1)], 3);
                continue;
            }
            const uint8_t *p = row + (size_t)x * (h->bits / 8);
            uint32_t v = h->bits == 16   ? mg_le16(p)
                         : h->bits == 24 ? (mg_le16(p) | (uint32_t)p[2] << 16)
                                         : mg_le32(p);
            uint8_t alpha = h->bits == 32 && h->mask[3] ? channel(v, h->mask[3]) : 255;
            for (int c = 0; c < 3; c++)
                to[c] = mg_alpha_over(channel(v, h->mask[c]), alpha, background[c]);
        }
    }
    return MG_OK;
}

/* Where the next index of a run-length file goes. */
struct pen {
    const struct header *h;
    const struct mg_raster *r;
    uint8_t (*lut)[3];
    uint32_t x, y; /* in file order: y from the first row stored */
};

static void put(struct pen *p, uint8_t index) {
    if (p->x >= p->h->width || p->y >= p->h->height)
        return;
    memcpy(mg_raster_at(p->r, p->x, file_row(p->h, p->y)), p->lut[index], 3);
    p->x++;
}

static enum mg_status decode_rle(const uint8_t *data, size_t n, struct pen *p, struct mg_err *err) {
    const struct header *h = p->h;
    size_t at = h->pixels;
    bool four = h->bits == 4;
    while (p->y < h->height) {
        if (at > n || n - at < 2)
            return mg_image_truncated(err, "BMP");
        uint32_t count = data[at], value = data[at + 1];
        at += 2;
        if (count > 0) {
            for (uint32_t i = 0; i < count; i++)
                put(p, (uint8_t)(!four ? value : i % 2 ? value & 15 : value >> 4));
        } else if (value == 0) {
            p->x = 0;
            p->y++;
        } else if (value == 1) {
            break;
        } else if (value == 2) {
            if (n - at < 2)
                return mg_image_truncated(err, "BMP");
            p->x += data[at];
            p->y += data[at + 1];
            at += 2;
            if (p->x > h->width)
                p->x = h->width;
        } else {
            size_t bytes = four ? (value + 1) / 2 : value;
            if (n - at < bytes)
                return mg_image_truncated(err, "BMP");
            for (uint32_t i = 0; i < value; i++)
                put(p, four ? (data[at + i / 2] >> (i % 2 ? 0 : 4)) & 15 : data[at + i]);
            at += bytes + bytes % 2;
        }
        /* The end mark is often left out once the last pixel is there. */
        if (p->y + 1 == h->height && p->x == h->width)
            break;
    }
    return MG_OK;
}

enum mg_status mg_bmp_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                             const struct mg_image_info *info, struct mg_raster *raster,
                             struct mg_err *err) {
    struct header h;
    uint8_t lut[256][3] = {{0}};
    enum mg_status s = read_header(data, n, &h, err);
    (void)info;
    if (s != MG_OK)
        return s;
    for (uint32_t i = 0; i < h.n_color; i++) {
        const uint8_t *e = data + h.palette + (size_t)i * h.entry;
        memcpy(lut[i], (uint8_t[3]){e[2], e[1], e[0]}, 3);
    }
    if (h.compression == RLE4 || h.compression == RLE8) {
        struct pen p = {&h, raster, lut, 0, 0};
        mg_raster_fill(raster, lut[0]);
        return decode_rle(data, n, &p, err);
    }
    return decode_raw(data, n, &h, lut, o->background, raster, err);
}
