/* image/webp.c - WebP by libwebp: lossy, lossless, with alpha; of an animation the first composed
 * frame.
 *
 * libwebpdemux reads the container (canvas, EXIF, frames) without decoding. The first frame may be
 * smaller than the canvas; what it leaves is transparent where the file says that it has alpha,
 * else black, whatever background colour it names: Pillow's rule. A picture without alpha and turn
 * is decoded into the raster itself; otherwise into a temporary of 3 or 4 bytes a pixel, which is
 * the one case here where a second raster exists (16,383 is the format's greatest side).
 */
#include "image/decode.h"

#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

/* The container, or NULL with the failure in *err. */
static WebPDemuxer *open_file(const uint8_t *data, size_t n, struct mg_err *err) {
    WebPData bytes = {data, n};
    WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
    /* The size in the RIFF header is even and counts from its end. */
    if (n < 12 || (size_t)mg_le32(data + 4) > n - 8) {
        mg_image_truncated(err, "WebP");
        return NULL;
    }
    WebPDemuxer *d = WebPDemuxPartial(&bytes, &state);
    if (d && state == WEBP_DEMUX_DONE)
        return d;
    WebPDemuxDelete(d);
    if (state == WEBP_DEMUX_PARSING_HEADER || state == WEBP_DEMUX_PARSED_HEADER)
        mg_image_truncated(err, "WebP");
    else
        mg_image_damaged(err, "WebP", "container");
    return NULL;
}

enum mg_status mg_webp_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                             struct mg_err *err) {
    WebPDemuxer *d = open_file(data, n, err);
    if (!d)
        return MG_ERR_FORMAT;
    info->width = WebPDemuxGetI(d, WEBP_FF_CANVAS_WIDTH);
    info->height = WebPDemuxGetI(d, WEBP_FF_CANVAS_HEIGHT);
    info->n_frame = WebPDemuxGetI(d, WEBP_FF_FRAME_COUNT);
    WebPIterator frame = {0};
    if (WebPDemuxGetFrame(d, 1, &frame))
        info->has_alpha = frame.has_alpha || (WebPDemuxGetI(d, WEBP_FF_FORMAT_FLAGS) & ALPHA_FLAG &&
                                              (frame.width != (int)info->width ||
                                               frame.height != (int)info->height));
    WebPDemuxReleaseIterator(&frame);
    WebPChunkIterator exif = {0};
    if (WebPDemuxGetChunk(d, "EXIF", 1, &exif))
        info->orientation = mg_exif_orientation(exif.chunk.bytes, exif.chunk.size);
    WebPDemuxReleaseChunkIterator(&exif);
    WebPDemuxDelete(d);
    return MG_OK;
}

static enum mg_status decode_frame(const WebPIterator *f, const struct mg_image_options *o,
                                   const struct mg_raster *r, struct mg_err *err) {
    uint32_t x = (uint32_t)f->x_offset, y = (uint32_t)f->y_offset;
    uint32_t w = (uint32_t)f->width, h = (uint32_t)f->height;
    size_t size = f->has_alpha ? 4 : 3, stride = w * size, total = 0;
    bool direct = !f->has_alpha && r->step_x == 3 && r->step_y > 0;
    uint8_t *pixels = NULL;
    WebPDecoderConfig config;
    enum mg_status s = MG_OK;

    if (f->x_offset < 0 || f->y_offset < 0 || f->width <= 0 || f->height <= 0 || x > r->width ||
        y > r->height || w > r->width - x || h > r->height - y)
        return mg_image_damaged(err, "WebP", "frame outside the canvas");
    if (!WebPInitDecoderConfig(&config))
        return mg_fail(err, MG_ERR_UNSUPPORTED, "", "libwebp has another version than its header");
    if (!mg_mul_size(stride, h, &total))
        return mg_fail_memory(err, "WebP picture");
    if (!direct) {
        pixels = mg_alloc(total, 1);
        if (!pixels)
            return mg_fail_memory(err, "WebP picture");
    }
    config.output.colorspace = f->has_alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = direct ? mg_raster_at(r, x, y) : pixels;
    config.output.u.RGBA.stride = (int)(direct ? r->step_y : (ptrdiff_t)stride);
    config.output.u.RGBA.size = direct ? (size_t)r->step_y * (h - 1) + stride : total;
    VP8StatusCode code = WebPDecode(f->fragment.bytes, f->fragment.size, &config);
    if (code == VP8_STATUS_OUT_OF_MEMORY)
        s = mg_fail_memory(err, "WebP decoder");
    else if (code == VP8_STATUS_NOT_ENOUGH_DATA || code == VP8_STATUS_SUSPENDED)
        s = mg_image_truncated(err, "WebP");
    else if (code == VP8_STATUS_UNSUPPORTED_FEATURE)
        s = mg_fail(err, MG_ERR_UNSUPPORTED, "image_format_unsupported", "WebP: unknown feature");
    else if (code != VP8_STATUS_OK)
        s = mg_image_damaged(err, "WebP", "picture data");
    for (uint32_t i = 0; s == MG_OK && !direct && i < h; i += 16) {
        uint32_t rows = h - i < 16 ? h - i : 16;
        if (f->has_alpha)
            mg_raster_put_rgba(r, x, y + i, w, rows, pixels + i * stride, stride, o->background);
        else
            mg_raster_put(r, x, y + i, w, rows, pixels + i * stride, stride);
    }
    WebPFreeDecBuffer(&config.output);
    free(pixels);
    return s;
}

enum mg_status mg_webp_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              const struct mg_image_info *info, struct mg_raster *raster,
                              struct mg_err *err) {
    WebPDemuxer *d = open_file(data, n, err);
    if (!d)
        return MG_ERR_FORMAT;
    enum mg_status s;
    WebPIterator frame = {0};
    if (WebPDemuxGetFrame(d, 1, &frame)) {
        if (frame.width != (int)info->width || frame.height != (int)info->height)
            mg_raster_fill(raster, WebPDemuxGetI(d, WEBP_FF_FORMAT_FLAGS) & ALPHA_FLAG
                                       ? o->background
                                       : (const uint8_t[3]){0, 0, 0});
        s = frame.complete ? decode_frame(&frame, o, raster, err) : mg_image_truncated(err, "WebP");
    } else {
        s = mg_image_damaged(err, "WebP", "no frame");
    }
    WebPDemuxReleaseIterator(&frame);
    WebPDemuxDelete(d);
    return s;
}
