/* image/image.c - sniffing, limits, and the choice of decoder.
 *
 * The order is fixed: bytes against the limit, content to format, header to size, size against the
 * limits, and only then the raster is allocated and decoded into. Nothing that a file says is
 * believed before its limit was checked. Any thread may call; nothing is shared between calls.
 */
#include "image/decode.h"

#include <stdlib.h>
#include <string.h>

const struct mg_image_limits mg_image_limits_default = {
    .max_bytes = (size_t)64 << 20, .max_side = 32768, .max_pixels = (uint64_t)128 * 1000 * 1000};
const struct mg_image_options mg_image_options_default = {
    .limits = {.max_bytes = (size_t)64 << 20, .max_side = 32768,
               .max_pixels = (uint64_t)128 * 1000 * 1000},
    .background = {255, 255, 255}};

struct decoder {
    const char *name;
    enum mg_status (*probe)(const uint8_t *, size_t, struct mg_image_info *, struct mg_err *);
    enum mg_status (*decode)(const uint8_t *, size_t, const struct mg_image_options *,
                             const struct mg_image_info *, struct mg_raster *, struct mg_err *);
};

static const struct decoder decoders[] = {
    [MG_IMAGE_UNKNOWN] = {"unknown", NULL, NULL},
    [MG_IMAGE_JPEG] = {"JPEG", mg_jpeg_probe, mg_jpeg_decode},
    [MG_IMAGE_PNG] = {"PNG", mg_png_probe, mg_png_decode},
    [MG_IMAGE_WEBP] = {"WebP", mg_webp_probe, mg_webp_decode},
    [MG_IMAGE_GIF] = {"GIF", mg_gif_probe, mg_gif_decode},
    [MG_IMAGE_BMP] = {"BMP", mg_bmp_probe, mg_bmp_decode},
    [MG_IMAGE_HEIC] = {"HEIC", mg_heif_probe, mg_heif_decode},
    [MG_IMAGE_AVIF] = {"AVIF", mg_heif_probe, mg_heif_decode},
};

const char *mg_image_format_name(enum mg_image_format format) {
    size_t n = sizeof decoders / sizeof *decoders;
    return decoders[(size_t)format < n ? (size_t)format : 0].name;
}

enum mg_status mg_image_truncated(struct mg_err *err, const char *what) {
    return mg_fail(err, MG_ERR_FORMAT, "image_truncated",
                   "%s: the file ends before the picture does", what);
}

enum mg_status mg_image_damaged(struct mg_err *err, const char *what, const char *why) {
    return mg_fail(err, MG_ERR_FORMAT, "image_damaged", "%s: damaged file (%s)", what, why);
}

static bool starts(const uint8_t *data, size_t n, const char *magic, size_t n_magic) {
    return n >= n_magic && memcmp(data, magic, n_magic) == 0;
}

/* An ISO media file: the major brand decides, or, when that is a general one, the compatible
 * brands. */
static enum mg_image_format sniff_ftyp(const uint8_t *data, size_t n) {
    static const char heic[8][5] = {"heic", "heix", "hevc", "hevx", "heim", "heis", "hevm", "hevs"};
    static const char avif[2][5] = {"avif", "avis"};
    size_t end = mg_min_size(mg_be32(data), mg_min_size(n, 256));
    bool general = false;
    for (size_t at = 8; at + 4 <= end; at += at == 8 ? 8 : 4) {
        for (size_t i = 0; i < 2; i++)
            if (memcmp(data + at, avif[i], 4) == 0)
                return MG_IMAGE_AVIF;
        for (size_t i = 0; i < 8; i++)
            if (memcmp(data + at, heic[i], 4) == 0)
                return MG_IMAGE_HEIC;
        if (at == 8)
            general = memcmp(data + 8, "mif1", 4) == 0 || memcmp(data + 8, "msf1", 4) == 0;
        if (!general)
            break;
    }
    return general ? MG_IMAGE_HEIC : MG_IMAGE_UNKNOWN;
}

enum mg_image_format mg_image_sniff(const uint8_t *data, size_t n) {
    if (starts(data, n, "\xff\xd8\xff", 3))
        return MG_IMAGE_JPEG;
    if (starts(data, n, "\x89PNG\r\n\x1a\n", 8))
        return MG_IMAGE_PNG;
    if (starts(data, n, "RIFF", 4) && n >= 12 && memcmp(data + 8, "WEBP", 4) == 0)
        return MG_IMAGE_WEBP;
    if (starts(data, n, "GIF87a", 6) || starts(data, n, "GIF89a", 6))
        return MG_IMAGE_GIF;
    /* Two letters are little: the size of the second header must be one that exists. */
    if (starts(data, n, "BM", 2) && n >= 18) {
        uint32_t size = mg_le32(data + 14);
        if (size == 12 || size == 40 || size == 52 || size == 56 || size == 64 || size == 108 ||
            size == 124)
            return MG_IMAGE_BMP;
    }
    if (n >= 16 && memcmp(data + 4, "ftyp", 4) == 0)
        return sniff_ftyp(data, n);
    return MG_IMAGE_UNKNOWN;
}

/* What the bytes are instead, for the error text; "" when nobody knows. */
static const char *other_kind(const uint8_t *data, size_t n) {
    if (starts(data, n, "II*\0", 4) || starts(data, n, "MM\0*", 4))
        return " (it is TIFF: convert it to PNG)";
    if (starts(data, n, "%PDF", 4))
        return " (it is PDF: send its pages as PNG)";
    if (starts(data, n, "<svg", 4) || starts(data, n, "<?xml", 5))
        return " (it is XML, perhaps SVG: convert it to PNG)";
    if (starts(data, n, "\xff\x0a", 2) || starts(data, n, "\0\0\0\x0cJXL ", 8))
        return " (it is JPEG XL: convert it to JPEG)";
    if (starts(data, n, "\0\0\0\x0cjP  ", 8))
        return " (it is JPEG 2000: convert it to JPEG)";
    if (starts(data, n, "<!DOC", 5) || starts(data, n, "<html", 5))
        return " (it is a web page)";
    if (n >= 12 && memcmp(data + 4, "ftyp", 4) == 0)
        return " (it is a video or another ISO media file)";
    return "";
}

/* Checks bytes and size; leaves the file's own frame in *file. */
static enum mg_status probe_file(const uint8_t *data, size_t n, const struct mg_image_options *o,
                                 struct mg_image_info *file, struct mg_err *err) {
    *file = (struct mg_image_info){.orientation = 1, .n_frame = 1, .decode_scale = 1};
    if (n == 0 || !data)
        return mg_fail(err, MG_ERR_FORMAT, "image_empty", "the picture has no bytes");
    if (n > o->limits.max_bytes)
        return mg_fail(err, MG_ERR_LIMIT, "image_too_large",
                       "the picture has %zu bytes; at most %zu are taken", n, o->limits.max_bytes);
    file->format = mg_image_sniff(data, n);
    if (file->format == MG_IMAGE_UNKNOWN)
        return mg_fail(err, MG_ERR_FORMAT, "image_format_unknown",
                       "not a JPEG, PNG, WebP, GIF, BMP, HEIC or AVIF picture%s",
                       other_kind(data, n));
    enum mg_status s = decoders[file->format].probe(data, n, file, err);
    if (s != MG_OK)
        return s;
    const char *name = decoders[file->format].name;
    if (file->width == 0 || file->height == 0)
        return mg_image_damaged(err, name, "a side of 0 pixels");
    if (file->width > o->limits.max_side || file->height > o->limits.max_side)
        return mg_fail(err, MG_ERR_LIMIT, "image_too_large",
                       "%s of %u x %u pixels; a side may have at most %u", name, file->width,
                       file->height, o->limits.max_side);
    if ((uint64_t)file->width * file->height > o->limits.max_pixels)
        return mg_fail(err, MG_ERR_LIMIT, "image_too_large",
                       "%s of %u x %u pixels; at most %llu pixels are taken", name, file->width,
                       file->height, (unsigned long long)o->limits.max_pixels);
    return MG_OK;
}

static void turn_info(const struct mg_image_info *file, struct mg_image_info *out) {
    *out = *file;
    if (file->orientation >= 5) {
        out->width = file->height;
        out->height = file->width;
    }
}

enum mg_status mg_image_probe(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              struct mg_image_info *out, struct mg_err *err) {
    struct mg_image_info file;
    *out = (struct mg_image_info){0};
    enum mg_status s = probe_file(data, n, o ? o : &mg_image_options_default, &file, err);
    if (s == MG_OK)
        turn_info(&file, out);
    return s;
}

enum mg_status mg_image_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                               struct mg_image *out, struct mg_err *err) {
    struct mg_image_info file;
    struct mg_raster raster;
    size_t n_pixel;

    *out = (struct mg_image){0};
    if (!o)
        o = &mg_image_options_default;
    enum mg_status s = probe_file(data, n, o, &file, err);
    if (s != MG_OK)
        return s;
    if (!mg_mul_size(file.width, file.height, &n_pixel))
        return mg_fail_memory(err, "picture");
    out->rgb = mg_alloc(n_pixel, 3);
    if (!out->rgb)
        return mg_fail_memory(err, "picture");
    mg_raster_init(&raster, out->rgb, file.width, file.height, file.orientation);
    s = decoders[file.format].decode(data, n, o, &file, &raster, err);
    if (s != MG_OK) {
        mg_image_free(out);
        return s;
    }
    turn_info(&file, &out->info);
    out->width = out->info.width;
    out->height = out->info.height;
    return MG_OK;
}

void mg_image_free(struct mg_image *image) {
    if (!image)
        return;
    free(image->rgb);
    *image = (struct mg_image){0};
}
