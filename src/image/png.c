/* image/png.c - PNG by libpng, of an APNG the default picture.
 *
 * The chunks are walked by hand first: size, alpha, frames and the orientation (eXIf may stand
 * behind the pixels) are known before libpng starts. libpng then gives raw samples, one a byte for
 * depths below 8, and no transformation is asked of it; each pixel goes straight to its upright
 * place, also from the seven passes of an interlaced file, so that no other raster exists.
 *
 * To 8 bits as Pillow does: colour, and gray with alpha, keep the high byte; plain 16-bit gray is
 * cut off at 255 unless options.gray16_scale asks for the high byte. The transparent colour of tRNS
 * is compared at the full depth of the file, as the PNG specification has it. Gamma, ICC and
 * background chunks are ignored; all ancillary chunks but tRNS are skipped unread, so none can make
 * libpng allocate. A bad checksum fails, ancillary or not.
 */
#include "image/decode.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

enum { GRAY = 0, RGB = 2, PALETTE = 3, GRAY_ALPHA = 4, RGB_ALPHA = 6 };

struct job {
    const uint8_t *data; /* n bytes, the caller's */
    size_t n, at;
    png_structp png;
    png_infop info;
    jmp_buf leave;
    enum mg_status status;
    struct mg_err *err;
    uint8_t *row;          /* one row as libpng gives it, owned */
    uint8_t background[3];
    int kind, depth;       /* colour type and bits a sample */
    bool gray16_scale;     /* options' */
    bool have_key;         /* tRNS of gray or RGB */
    uint16_t key[3];       /* the transparent colour, at the file's depth */
    uint8_t lut[256][3];   /* index or gray value to RGB, already composited (depth <= 8) */
};

enum mg_status mg_png_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                            struct mg_err *err) {
    /* The depths each colour type may have, as one bit each. */
    static const uint8_t depths[7] = {1 | 2 | 4 | 8 | 16, 0,      8 | 16, 1 | 2 | 4 | 8,
                                      8 | 16,             0,      8 | 16};
    bool have_data = false, have_exif = false, have_trns = false;
    size_t at = 8;
    for (bool first = true;; first = false) {
        if (n - at < 12)
            return mg_image_truncated(err, "PNG");
        size_t len = mg_be32(data + at);
        const uint8_t *type = data + at + 4, *body = data + at + 8;
        if (len > 0x7fffffff)
            return mg_image_damaged(err, "PNG", "chunk length");
        if (first != (memcmp(type, "IHDR", 4) == 0))
            return mg_image_damaged(err, "PNG", "the header chunk isn't first and alone");
        if (first) {
            if (len != 13)
                return mg_image_damaged(err, "PNG", "header length");
            if (n - at < 25)
                return mg_image_truncated(err, "PNG");
            info->width = mg_be32(body);
            info->height = mg_be32(body + 4);
            if (info->width == 0 || info->height == 0 || info->width > 0x7fffffff ||
                info->height > 0x7fffffff || body[9] > 6 || (depths[body[9]] & body[8]) == 0 ||
                (body[8] & (body[8] - 1)) != 0 || body[10] || body[11] || body[12] > 1)
                return mg_image_damaged(err, "PNG", "header values");
            info->has_alpha = body[9] >= GRAY_ALPHA;
        }
        if (len > n - at - 12) {
            /* What is needed for the limits is known; that the pixels are missing shows on
             * decoding. */
            if (have_data || memcmp(type, "IDAT", 4) == 0)
                return MG_OK;
            return mg_image_truncated(err, "PNG");
        }
        if (memcmp(type, "IDAT", 4) == 0) {
            have_data = true;
        } else if (memcmp(type, "tRNS", 4) == 0 && !have_data) {
            have_trns = true;
        } else if (memcmp(type, "acTL", 4) == 0 && len == 8 && !have_data) {
            uint32_t frames = mg_be32(body);
            info->n_frame = frames ? frames : 1;
        } else if (memcmp(type, "eXIf", 4) == 0 && !have_exif) {
            have_exif = true;
            info->orientation = mg_exif_orientation(body, len);
        } else if (memcmp(type, "IEND", 4) == 0) {
            break;
        }
        info->has_alpha = info->has_alpha || have_trns;
        at += len + 12;
        if (at == n && have_data)
            return MG_OK; /* no end chunk: decoding says so */
    }
    return have_data ? MG_OK : mg_image_damaged(err, "PNG", "no picture data");
}

static void leave(struct job *j, enum mg_status status) {
    j->status = status;
    longjmp(j->leave, 1);
}

static void on_error(png_structp png, png_const_charp text) {
    struct job *j = png_get_error_ptr(png);
    if (strstr(text, "ot enough") && strstr(text, "data"))
        leave(j, mg_image_truncated(j->err, "PNG"));
    if (strstr(text, "memory"))
        leave(j, mg_fail_memory(j->err, "PNG decoder"));
    leave(j, mg_image_damaged(j->err, "PNG", text));
}

static void on_warning(png_structp png, png_const_charp text) {
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t n) {
    struct job *j = png_get_io_ptr(png);
    if (n > j->n - j->at)
        leave(j, mg_image_truncated(j->err, "PNG"));
    memcpy(to, j->data + j->at, n);
    j->at += n;
}

static void over(const struct job *j, uint8_t to[3], const uint8_t rgb[3], uint8_t alpha) {
    for (int c = 0; c < 3; c++)
        to[c] = mg_alpha_over(rgb[c], alpha, j->background[c]);
}

/* Palettes and gray of up to 8 bits have at most 256 colours: composited once. */
static void make_lut(struct job *j) {
    png_colorp palette = NULL;
    png_bytep alpha = NULL;
    png_color_16p key = NULL;
    int n_palette = 0, n_alpha = 0;
    bool trns = png_get_tRNS(j->png, j->info, &alpha, &n_alpha, &key) != 0;

    if (j->kind == PALETTE) {
        if (!png_get_PLTE(j->png, j->info, &palette, &n_palette))
            leave(j, mg_image_damaged(j->err, "PNG", "no palette"));
        for (int i = 0; i < 256; i++) {
            uint8_t rgb[3] = {0, 0, 0};
            if (i < n_palette)
                memcpy(rgb, (uint8_t[3]){palette[i].red, palette[i].green, palette[i].blue}, 3);
            over(j, j->lut[i], rgb, trns && i < n_alpha ? alpha[i] : 255);
        }
        return;
    }
    if (trns && key && (j->kind == GRAY || j->kind == RGB)) {
        j->have_key = true;
        j->key[0] = j->kind == GRAY ? key->gray : key->red;
        j->key[1] = key->green;
        j->key[2] = key->blue;
    }
    if (j->kind == GRAY && j->depth <= 8) {
        unsigned top = (1u << j->depth) - 1;
        for (unsigned i = 0; i < 256; i++) {
            uint8_t v = (uint8_t)((i < top ? i : top) * 255 / top);
            over(j, j->lut[i], (uint8_t[3]){v, v, v}, j->have_key && j->key[0] == i ? 0 : 255);
        }
    }
}

static uint16_t sample(const struct job *j, const uint8_t *p, int i) {
    return j->depth == 16 ? (uint16_t)mg_be16(p + 2 * i) : p[i];
}

/* One pixel of a kind that has no table; p at its first sample. */
static void put_pixel(const struct job *j, const uint8_t *p, uint8_t to[3]) {
    int step = j->depth / 8;
    uint8_t rgb[3];
    if (j->kind == GRAY) { /* 16 bits */
        uint32_t v = mg_be16(p);
        rgb[0] = rgb[1] = rgb[2] =
            j->gray16_scale ? (uint8_t)(v >> 8) : (uint8_t)(v > 255 ? 255 : v);
        over(j, to, rgb, j->have_key && v == j->key[0] ? 0 : 255);
    } else if (j->kind == GRAY_ALPHA) {
        rgb[0] = rgb[1] = rgb[2] = p[0];
        over(j, to, rgb, p[step]);
    } else {
        bool key = j->have_key && sample(j, p, 0) == j->key[0] && sample(j, p, 1) == j->key[1] &&
                   sample(j, p, 2) == j->key[2];
        for (int c = 0; c < 3; c++)
            rgb[c] = p[c * step];
        over(j, to, rgb, j->kind == RGB_ALPHA ? p[3 * step] : key ? 0 : 255);
    }
}

static void put_row(const struct job *j, const struct mg_raster *r, uint32_t x, uint32_t y,
                    uint32_t step, uint32_t n) {
    static const uint8_t n_sample[7] = {1, 0, 3, 1, 2, 0, 4};
    size_t size = n_sample[j->kind] * (j->depth == 16 ? 2u : 1u);
    bool table = j->depth <= 8 && (j->kind == GRAY || j->kind == PALETTE);
    bool plain = j->depth == 8 && j->kind == RGB && !j->have_key;
    if (plain && step == 1) {
        mg_raster_put(r, x, y, n, 1, j->row, (size_t)n * 3);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *to = mg_raster_at(r, x + i * step, y);
        const uint8_t *p = j->row + i * size;
        if (table)
            memcpy(to, j->lut[*p], 3);
        else
            put_pixel(j, p, to);
    }
}

static void read_picture(struct job *j, const struct mg_image_info *info,
                         const struct mg_raster *r) {
    /* Adam7: first column and row of each pass, and the steps. */
    static const uint8_t x0[7] = {0, 4, 0, 2, 0, 1, 0}, dx[7] = {8, 8, 4, 4, 2, 2, 1};
    static const uint8_t y0[7] = {0, 0, 4, 0, 2, 0, 1}, dy[7] = {8, 8, 8, 4, 4, 2, 2};

    png_set_user_limits(j->png, info->width, info->height);
    png_set_chunk_cache_max(j->png, 16);
    png_set_chunk_malloc_max(j->png, 1 << 20);
    png_set_crc_action(j->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_read_fn(j->png, j, on_read);
    png_read_info(j->png, j->info);
    if (png_get_image_width(j->png, j->info) != info->width ||
        png_get_image_height(j->png, j->info) != info->height)
        leave(j, mg_image_damaged(j->err, "PNG", "two headers"));
    j->kind = png_get_color_type(j->png, j->info);
    j->depth = png_get_bit_depth(j->png, j->info);
    make_lut(j);
    if (j->depth < 8)
        png_set_packing(j->png);
    bool interlaced = png_get_interlace_type(j->png, j->info) == PNG_INTERLACE_ADAM7;
    png_read_update_info(j->png, j->info);
    /* Room for the widest row at 8 bytes a pixel; without interlace handling libpng gives the
     * passes' short rows. */
    j->row = mg_alloc(info->width, 8);
    if (!j->row)
        leave(j, mg_fail_memory(j->err, "PNG row"));
    if (!interlaced) {
        for (uint32_t y = 0; y < info->height; y++) {
            png_read_row(j->png, j->row, NULL);
            put_row(j, r, 0, y, 1, info->width);
        }
    }
    for (int pass = 0; interlaced && pass < 7; pass++) {
        if (info->width <= x0[pass])
            continue;
        uint32_t n = (info->width - x0[pass] + dx[pass] - 1) / dx[pass];
        for (uint32_t y = y0[pass]; y < info->height; y += dy[pass]) {
            png_read_row(j->png, j->row, NULL);
            put_row(j, r, x0[pass], y, dx[pass], n);
        }
    }
    png_read_end(j->png, NULL);
}

/* setjmp apart from the frame that owns the job: nothing that is local here is used after a
 * longjmp. */
__attribute__((noinline)) static void guard(struct job *j, const struct mg_image_info *info,
                                            const struct mg_raster *r) {
    if (setjmp(j->leave) != 0)
        return;
    j->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, j, on_error, on_warning);
    if (j->png)
        j->info = png_create_info_struct(j->png);
    if (!j->png || !j->info)
        leave(j, mg_fail_memory(j->err, "PNG decoder"));
    read_picture(j, info, r);
}

enum mg_status mg_png_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                             const struct mg_image_info *info, struct mg_raster *raster,
                             struct mg_err *err) {
    struct job j = {.data = data, .n = n, .err = err, .gray16_scale = o->gray16_scale};
    memcpy(j.background, o->background, 3);
    guard(&j, info, raster);
    png_destroy_read_struct(&j.png, &j.info, NULL);
    free(j.row);
    return j.status;
}
