/* tests/unit/image/decode.c - every decoder against what Pillow made of the same bytes; files that
 * must fail.
 *
 * Rows of faults.md: 1 (exif_*), 2 (png, alpha_noise), 3 (webp), 5 (jpeg: cmyk, ycck), 7 (png
 * matrix), 8 (animated), 9 (heif.c beside this), 11 and 12 (refused, bomb_is_cheap).
 */
#include "common.h"

#include "image/decode.h"

/* By field: the padding behind a bool is not copied by every compiler. */
static bool same_info(const struct mg_image_info *a, const struct mg_image_info *b) {
    return a->format == b->format && a->width == b->width && a->height == b->height &&
           a->orientation == b->orientation && a->n_frame == b->n_frame &&
           a->has_alpha == b->has_alpha && a->decode_scale == b->decode_scale;
}

static void check_good(const char *pack, const struct record *r, size_t *n_exact) {
    struct mg_image_options o = mg_image_options_default;
    struct mg_image_info info;
    struct mg_image image;
    struct mg_err err = {0};
    memcpy(o.background, r->background, 3);
    if (mg_image_probe(r->file, r->n_file, &o, &info, &err) != MG_OK ||
        mg_image_decode(r->file, r->n_file, &o, &image, &err) != MG_OK)
        fail_msg("%s %s: %s", pack, r->name, err.text);
    assert_true(same_info(&info, &image.info));
    if (info.format != (enum mg_image_format)r->format || info.width != r->width ||
        info.height != r->height || info.orientation != r->orientation ||
        info.n_frame != r->frames || info.has_alpha != r->alpha || info.decode_scale != 1)
        fail_msg("%s %s: format %d, %ux%u, orientation %d, %u frames, alpha %d", pack, r->name,
                 info.format, info.width, info.height, info.orientation, info.n_frame,
                 info.has_alpha);
    assert_int_equal(image.width, r->width);
    assert_int_equal(image.height, r->height);
    uint8_t *want = record_rgb(r);
    for (size_t i = 0; i < (size_t)r->width * r->height * 3; i++)
        if (abs(image.rgb[i] - want[i]) > r->tolerance)
            fail_msg("%s %s: pixel (%zu, %zu) channel %zu is %d, the reference has %d", pack,
                     r->name, i / 3 % r->width, i / 3 / r->width, i % 3, image.rgb[i], want[i]);
    free(want);
    mg_image_free(&image);
    assert_null(image.rgb);
    *n_exact += r->tolerance == 0;
}

static void check_pack(const char *path, size_t least) {
    struct pack p;
    struct record r;
    size_t n = 0;
    pack_open(&p, path);
    while (pack_next(&p, &r))
        check_good(path, &r, &n);
    mg_map_close(&p.map);
    if (n < least)
        fail_msg("%s has %zu pictures, at least %zu expected", path, n, least);
}

static void png_like_pillow(void **state) { check_pack(DATA "png.pack", 200); }
static void jpeg_like_pillow(void **state) { check_pack(DATA "jpeg.pack", 28); }
static void webp_like_pillow(void **state) { check_pack(DATA "webp.pack", 10); }
static void gif_like_pillow(void **state) { check_pack(DATA "gif.pack", 17); }
static void bmp_like_pillow(void **state) { check_pack(DATA "bmp.pack", 25); }
static void exif_orientation_upright(void **state) { check_pack(DATA "exif.pack", 70); }

/* What a person sees, apart from equality with Pillow: all 8 stored turns give a red top edge. */
static void exif_red_on_top(void **state) {
    struct pack p;
    struct record r;
    char name[16];
    for (int o = 1; o <= 8; o++) {
        struct mg_image image;
        snprintf(name, sizeof name, "jpeg-%d", o);
        pack_find(&p, DATA "exif.pack", name, &r);
        assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), MG_OK);
        assert_int_equal(image.width, 40);
        assert_int_equal(image.height, 28);
        for (uint32_t x = 0; x < 40; x++) {
            const uint8_t *top = image.rgb + x * 3, *bottom = image.rgb + (27 * 40 + x) * 3;
            assert_true(top[0] > 200 && top[1] < 60 && top[2] < 60);
            assert_true(bottom[1] > 200);
        }
        mg_image_free(&image);
        mg_map_close(&p.map);
    }
}

static void alpha_noise_is_background(void **state) {
    struct pack p;
    struct record r;
    struct mg_image image;
    pack_find(&p, DATA "png.pack", "alpha-noise", &r);
    assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), MG_OK);
    assert_memory_equal(image.rgb, "\xff\xff\xff", 3);
    mg_image_free(&image);
    struct mg_image_options o = mg_image_options_default;
    memcpy(o.background, "\x01\x02\x03", 3);
    assert_int_equal(mg_image_decode(r.file, r.n_file, &o, &image, NULL), MG_OK);
    assert_memory_equal(image.rgb, "\x01\x02\x03", 3);
    mg_image_free(&image);
    mg_map_close(&p.map);
}

static void cmyk_red_is_red(void **state) {
    static const char *const names[] = {"cmyk-red", "ycck-red"};
    for (int i = 0; i < 2; i++) {
        struct pack p;
        struct record r;
        struct mg_image image;
        pack_find(&p, DATA "jpeg.pack", names[i], &r);
        assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), MG_OK);
        assert_true(image.rgb[0] > 247 && image.rgb[1] < 8 && image.rgb[2] < 8);
        mg_image_free(&image);
        mg_map_close(&p.map);
    }
}

static void gray16_option(void **state) {
    struct pack p;
    struct record r;
    struct mg_image image;
    struct mg_image_options o = mg_image_options_default;
    o.gray16_scale = true;
    pack_find(&p, DATA "png.pack", "33x17-type0-16bit-plain", &r);
    assert_int_equal(mg_image_decode(r.file, r.n_file, &o, &image, NULL), MG_OK);
    uint8_t *cut = record_rgb(&r);
    size_t n_low = 0, n_high = 0;
    /* Even rows hold values below 256 (high byte 0), odd ones any: cut off at 255 they are nearly
     * all white. */
    for (uint32_t i = 0; i < 33 * 17; i++) {
        if (i / 33 % 2 == 0)
            assert_int_equal(image.rgb[i * 3], 0);
        else
            n_low += image.rgb[i * 3] < 128, n_high += cut[i * 3] == 255;
    }
    assert_true(n_low > 80 && n_low < 190 && n_high > 250);
    free(cut);
    mg_image_free(&image);
    mg_map_close(&p.map);
}

static void check_text(const char *name, const struct mg_err *err) {
    for (const char *p = strstr(err->text, "0x"); p; p = strstr(p + 2, "0x"))
        if (strspn(p + 2, "0123456789abcdefABCDEF") >= 6)
            fail_msg("%s: the error text holds an address: %s", name, err->text);
    assert_true(err->text[0] != 0);
}

static void refused(void **state) {
    struct pack p;
    struct record r;
    size_t n = 0;
    pack_open(&p, DATA "bad.pack");
    for (; pack_next(&p, &r); n++) {
        struct mg_image image;
        struct mg_err err = {0};
        memset(&image, 0x55, sizeof image);
        enum mg_status s = mg_image_decode(r.file, r.n_file, NULL, &image, &err);
        if ((int)s != r.status || (int)err.status != r.status || strcmp(err.code, r.code) != 0)
            fail_msg("%s: status %d code '%s' (%s); %d '%s' expected", r.name, s, err.code,
                     err.text, r.status, r.code);
        assert_null(image.rgb);
        assert_int_equal(image.width, 0);
        check_text(r.name, &err);
        assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), s);
    }
    mg_map_close(&p.map);
    assert_true(n >= 70);
}

/* Every cut of one file of each kind: an error at each length, the whole file at the end. */
static void every_truncation(void **state) {
    static const char *const files[][2] = {
        {DATA "jpeg.pack", "9x17"},        {DATA "jpeg.pack", "q40-420-progressive"},
        {DATA "png.pack", "13x9-type2-8bit-plain"}, {DATA "png.pack", "33x17-type6-16bit-adam7"},
        {DATA "webp.pack", "lossy-20"},    {DATA "webp.pack", "lossless-alpha"},
        {DATA "webp.pack", "animated"},    {DATA "gif.pack", "interlaced"},
        {DATA "bmp.pack", "24bit"},        {DATA "bmp.pack", "rle4"}};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct pack p;
        struct record r;
        struct mg_image image;
        pack_find(&p, files[f][0], files[f][1], &r);
        /* Of GIF the trailer may be missing, of run-length BMP the end mark. */
        size_t spare = r.format == MG_IMAGE_GIF ? 1 : strcmp(r.name, "rle4") == 0 ? 2 : 0;
        size_t whole = r.n_file - spare;
        for (size_t n = 0; n < whole; n++) {
            uint8_t *cut = malloc(n ? n : 1); /* exactly as long: ASan sees a read behind it */
            memcpy(cut, r.file, n);
            if (mg_image_decode(cut, n, NULL, &image, NULL) == MG_OK && n < whole)
                fail_msg("%s: %zu of %zu bytes decode", r.name, n, r.n_file);
            free(cut);
        }
        assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), MG_OK);
        mg_image_free(&image);
        mg_map_close(&p.map);
    }
}

static void limits_from_header(void **state) {
    struct pack p;
    struct record r;
    struct mg_image image;
    struct mg_err err = {0};
    struct mg_image_options o = mg_image_options_default;
    pack_find(&p, DATA "jpeg.pack", "photo", &r); /* 320 x 200 */
    o.limits.max_bytes = r.n_file;
    o.limits.max_side = 320;
    o.limits.max_pixels = 320 * 200;
    assert_int_equal(mg_image_decode(r.file, r.n_file, &o, &image, &err), MG_OK);
    mg_image_free(&image);
    for (int i = 0; i < 3; i++) {
        struct mg_image_options less = o;
        struct mg_image_info info;
        less.limits.max_bytes -= i == 0;
        less.limits.max_side -= i == 1;
        less.limits.max_pixels -= i == 2;
        mg_err_clear(&err);
        assert_int_equal(mg_image_decode(r.file, r.n_file, &less, &image, &err), MG_ERR_LIMIT);
        assert_string_equal(err.code, "image_too_large");
        assert_int_equal(mg_image_probe(r.file, r.n_file, &less, &info, NULL), MG_ERR_LIMIT);
    }
    mg_map_close(&p.map);
}

static void bomb_is_cheap(void **state) {
    struct pack p;
    struct record r;
    struct mg_image image;
    size_t anon, before, after;
    pack_find(&p, DATA "bad.pack", "png-bomb-50000", &r);
    mg_memory_use(&anon, &before);
    double start = mg_clock();
    assert_int_equal(mg_image_decode(r.file, r.n_file, NULL, &image, NULL), MG_ERR_LIMIT);
    double seconds = mg_clock() - start;
    mg_memory_use(&anon, &after);
    assert_true(seconds < 0.05);
    assert_true(after - before < (size_t)16 << 20);
    mg_map_close(&p.map);
}

static void sniffed_by_content(void **state) {
    static const struct {
        const char *bytes;
        enum mg_image_format want;
    } ftyp[] = {
        {"\0\0\0\x18" "ftypheic\0\0\0\0mif1heic", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftypheix\0\0\0\0mif1heic", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftyphevc\0\0\0\0mif1heic", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftypmif1\0\0\0\0heicmif1", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftypmif1\0\0\0\0mif1miaf", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftypmsf1\0\0\0\0mif1hevc", MG_IMAGE_HEIC},
        {"\0\0\0\x18" "ftypmif1\0\0\0\0miafavif", MG_IMAGE_AVIF},
        {"\0\0\0\x18" "ftypavif\0\0\0\0mif1miaf", MG_IMAGE_AVIF},
        {"\0\0\0\x18" "ftypavis\0\0\0\0msf1miaf", MG_IMAGE_AVIF},
        {"\0\0\0\x18" "ftypisom\0\0\0\0avifmp41", MG_IMAGE_UNKNOWN},
        {"\0\0\0\x14" "ftypmif1\0\0\0\0miafavif", MG_IMAGE_HEIC}, /* avif is behind the box */
    };
    for (size_t i = 0; i < sizeof ftyp / sizeof *ftyp; i++)
        assert_int_equal(mg_image_sniff((const uint8_t *)ftyp[i].bytes, 24), ftyp[i].want);
    for (size_t n = 0; n < 16; n++)
        assert_int_equal(mg_image_sniff((const uint8_t *)ftyp[0].bytes, n), MG_IMAGE_UNKNOWN);
    assert_string_equal(mg_image_format_name(MG_IMAGE_WEBP), "WebP");
    assert_string_equal(mg_image_format_name((enum mg_image_format)99), "unknown");
    assert_int_equal(mg_image_sniff(NULL, 0), MG_IMAGE_UNKNOWN);
}

/* The rounding, exhaustively, against the exact quotient: nearest, as alpha_ramp's pictures show it
 * for Pillow. */
static void alpha_rounds_to_nearest(void **state) {
    for (int b = 0; b < 256; b += 5)
        for (int a = 0; a < 256; a++)
            for (int v = 0; v < 256; v++)
                assert_int_equal(mg_alpha_over((uint8_t)v, (uint8_t)a, (uint8_t)b),
                                 (2 * (v * a + b * (255 - a)) + 255) / 510);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(png_like_pillow),       cmocka_unit_test(jpeg_like_pillow),
        cmocka_unit_test(webp_like_pillow),      cmocka_unit_test(gif_like_pillow),
        cmocka_unit_test(bmp_like_pillow),       cmocka_unit_test(exif_orientation_upright),
        cmocka_unit_test(exif_red_on_top),       cmocka_unit_test(alpha_noise_is_background),
        cmocka_unit_test(cmyk_red_is_red),       cmocka_unit_test(gray16_option),
        cmocka_unit_test(refused),               cmocka_unit_test(every_truncation),
        cmocka_unit_test(limits_from_header),    cmocka_unit_test(bomb_is_cheap),
        cmocka_unit_test(sniffed_by_content),    cmocka_unit_test(alpha_rounds_to_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
