/* image/gif.c - GIF by giflib's low-level reader: the first frame on its screen.
 *
 * Blocks are walked by hand to count the frames and to find the first one, which may be larger than
 * the screen the header names (then the picture grows, as Pillow has it). giflib is stopped after
 * the first frame: nothing of the others is unpacked, so a file of a million frames costs its bytes
 * and no more. What the first frame doesn't cover is transparent when the frame has a transparent
 * index, else index 0 of its palette (Pillow's rule too). A missing trailer is common and forgiven;
 * a file that ends inside a block is image_truncated.
 */
#include "image/decode.h"

#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

struct walk {
    uint32_t n_frame;
    uint32_t x, y, w, h;  /* first frame */
    int transparent;      /* index, or -1 */
};

/* Skips data sub-blocks from *at on; false when the file ends first. */
static bool skip_blocks(const uint8_t *data, size_t n, size_t *at) {
    while (*at < n) {
        size_t len = data[*at];
        if (len >= n - *at)
            return false;
        *at += len + 1;
        if (len == 0)
            return true;
    }
    return false;
}

static size_t palette_bytes(uint8_t flags) {
    return flags & 0x80 ? (size_t)3 << ((flags & 7) + 1) : 0;
}

static enum mg_status walk_file(const uint8_t *data, size_t n, struct walk *w, struct mg_err *err) {
    *w = (struct walk){.transparent = -1};
    if (n < 13)
        return mg_image_truncated(err, "GIF");
    size_t at = 13 + palette_bytes(data[10]);
    while (at < n) {
        uint8_t kind = data[at++];
        if (kind == 0x3b)
            break;
        if (kind == 0x21) {
            if (n - at < 2)
                return mg_image_truncated(err, "GIF");
            if (data[at] == 0xf9 && data[at + 1] == 4 && n - at >= 6 && w->n_frame == 0 &&
                (data[at + 2] & 1))
                w->transparent = data[at + 5];
            at++;
            if (!skip_blocks(data, n, &at))
                return mg_image_truncated(err, "GIF");
        } else if (kind == 0x2c) {
            if (n - at < 10)
                return mg_image_truncated(err, "GIF");
            if (w->n_frame == 0) {
                w->x = mg_le16(data + at);
                w->y = mg_le16(data + at + 2);
                w->w = mg_le16(data + at + 4);
                w->h = mg_le16(data + at + 6);
            }
            size_t skip = 9 + palette_bytes(data[at + 8]) + 1;
            if (skip > n - at)
                return mg_image_truncated(err, "GIF");
            at += skip;
            if (!skip_blocks(data, n, &at))
                return mg_image_truncated(err, "GIF");
            w->n_frame++;
        } else if (w->n_frame > 0) {
            break; /* rubbish behind the last frame */
        } else {
            return mg_image_damaged(err, "GIF", "unknown block");
        }
    }
    return w->n_frame ? MG_OK : mg_image_truncated(err, "GIF");
}

enum mg_status mg_gif_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                            struct mg_err *err) {
    struct walk w;
    enum mg_status s = walk_file(data, n, &w, err);
    if (s != MG_OK)
        return s;
    if (w.w == 0 || w.h == 0)
        return mg_image_damaged(err, "GIF", "a first frame without pixels");
    info->width = mg_le16(data + 6);
    info->height = mg_le16(data + 8);
    if (info->width < w.x + w.w)
        info->width = w.x + w.w;
    if (info->height < w.y + w.h)
        info->height = w.y + w.h;
    info->n_frame = w.n_frame;
    info->has_alpha = w.transparent >= 0;
    return MG_OK;
}

static int on_read(GifFileType *gif, GifByteType *to, int n) {
    struct mg_slice *rest = gif->UserData;
    size_t take = mg_min_size(rest->n, n > 0 ? (size_t)n : 0);
    memcpy(to, rest->data, take);
    rest->data += take;
    rest->n -= take;
    return (int)take;
}

static enum mg_status fail(struct mg_err *err, int code) {
    switch (code) {
    case D_GIF_ERR_NOT_ENOUGH_MEM:
        return mg_fail_memory(err, "GIF decoder");
    case D_GIF_ERR_READ_FAILED:
    case D_GIF_ERR_EOF_TOO_SOON:
        return mg_image_truncated(err, "GIF");
    default:
        return mg_image_damaged(err, "GIF", "picture data");
    }
}

/* Reads records up to and with the first frame's descriptor. */
static enum mg_status find_frame(GifFileType *gif, struct mg_err *err) {
    for (;;) {
        GifRecordType kind;
        if (DGifGetRecordType(gif, &kind) == GIF_ERROR)
            return fail(err, gif->Error);
        if (kind == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(gif) == GIF_ERROR ? fail(err, gif->Error) : MG_OK;
        if (kind != EXTENSION_RECORD_TYPE)
            return mg_image_damaged(err, "GIF", "no frame");
        int code;
        GifByteType *block;
        if (DGifGetExtension(gif, &code, &block) == GIF_ERROR)
            return fail(err, gif->Error);
        while (block)
            if (DGifGetExtensionNext(gif, &block) == GIF_ERROR)
                return fail(err, gif->Error);
    }
}

static void put_color(uint8_t to[3], const GifColorType *color) {
    to[0] = color->Red;
    to[1] = color->Green;
    to[2] = color->Blue;
}

static void make_lut(const GifFileType *gif, int transparent, const uint8_t background[3],
                     uint8_t lut[256][3]) {
    const ColorMapObject *map = gif->Image.ColorMap ? gif->Image.ColorMap : gif->SColorMap;
    for (int i = 0; i < 256; i++) {
        if (i == transparent)
            memcpy(lut[i], background, 3);
        else if (!map)
            memset(lut[i], i, 3);
        else if (i < map->ColorCount)
            put_color(lut[i], map->Colors + i);
        else
            memset(lut[i], 0, 3);
    }
}

static enum mg_status read_rows(GifFileType *gif, const struct walk *w, uint8_t *row,
                                const struct mg_raster *r, uint8_t lut[256][3],
                                struct mg_err *err) {
    static const uint8_t first[4] = {0, 4, 2, 1}, step[4] = {8, 8, 4, 2};
    bool interlaced = gif->Image.Interlace;
    for (int pass = 0; pass < (interlaced ? 4 : 1); pass++) {
        uint32_t y = interlaced ? first[pass] : 0;
        for (; y < w->h; y += interlaced ? step[pass] : 1) {
            if (DGifGetLine(gif, row, (int)w->w) == GIF_ERROR)
                return fail(err, gif->Error);
            for (uint32_t x = 0; x < w->w; x++)
                memcpy(mg_raster_at(r, w->x + x, w->y + y), lut[row[x]], 3);
        }
    }
    return MG_OK;
}

enum mg_status mg_gif_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                             const struct mg_image_info *info, struct mg_raster *raster,
                             struct mg_err *err) {
    struct mg_slice rest = {data, n};
    struct walk w;
    uint8_t lut[256][3], *row = NULL;
    int code = 0;
    enum mg_status s = walk_file(data, n, &w, err);
    if (s != MG_OK)
        return s;
    GifFileType *gif = DGifOpen(&rest, on_read, &code);
    if (!gif)
        return fail(err, code);
    s = find_frame(gif, err);
    if (s != MG_OK)
        goto out;
    if (gif->Image.Left != (int)w.x || gif->Image.Top != (int)w.y || gif->Image.Width != (int)w.w ||
        gif->Image.Height != (int)w.h || w.x + w.w > raster->width || w.y + w.h > raster->height) {
        s = mg_image_damaged(err, "GIF", "frame");
        goto out;
    }
    row = mg_alloc(w.w, 1);
    if (!row) {
        s = mg_fail_memory(err, "GIF row");
        goto out;
    }
    make_lut(gif, w.transparent, o->background, lut);
    if (w.w != info->width || w.h != info->height)
        mg_raster_fill(raster, lut[w.transparent >= 0 ? w.transparent : 0]);
    s = read_rows(gif, &w, row, raster, lut, err);
out:
    DGifCloseFile(gif, &code);
    free(row);
    return s;
}
