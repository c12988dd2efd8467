/* tests/unit/image/fingerprint.c - when two pictures may have one answer: a photo saved again as
 * JPEG or scaled by a pixel may; an invoice with another digit, a page with another word, a screen
 * before and after a click never. The pairs are made here; how near each came to a limit is
 * printed.
 */
#include "common.h"

#include "image/fingerprint.h"

#include <math.h>

#include <jpeglib.h>

struct rgb {
    uint32_t w, h;
    uint8_t *px; /* [h][w][3] */
};

static uint32_t state;
static uint32_t draw(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static struct rgb blank(uint32_t w, uint32_t h, uint8_t v) {
    struct rgb p = {w, h, malloc((size_t)w * h * 3)};
    assert_non_null(p.px);
    memset(p.px, v, (size_t)w * h * 3);
    return p;
}

static struct rgb copy(const struct rgb *p) {
    struct rgb q = blank(p->w, p->h, 0);
    memcpy(q.px, p->px, (size_t)p->w * p->h * 3);
    return q;
}

static void fill(struct rgb *p, int x0, int y0, int w, int h, const uint8_t colour[3]) {
    for (int y = y0; y < y0 + h; y++)
        for (int x = x0; x < x0 + w; x++)
            if (x >= 0 && y >= 0 && x < (int)p->w && y < (int)p->h)
                memcpy(p->px + ((size_t)y * p->w + (size_t)x) * 3, colour, 3);
}

static uint8_t bound(double v) {
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)(v + 0.5);
}

/* Like a photo: light from a side, hills of all sizes, round things with edges, grain. */
static struct rgb photo(uint32_t seed, uint32_t w, uint32_t h) {
    struct rgb p = blank(w, h, 0);
    double wave[12][5];
    struct {
        double x, y, r, c[3];
    } ball[12];
    state = seed * 2654435761u + 1;
    for (int k = 0; k < 12; k++) {
        double f = 0.004 * pow(1.49, k), turn = draw(6283) / 1000.0;
        wave[k][0] = f * cos(turn), wave[k][1] = f * sin(turn), wave[k][2] = draw(6283) / 1000.0;
        wave[k][3] = 36 * pow(0.76, k), wave[k][4] = draw(100) / 100.0;
    }
    for (int k = 0; k < 12; k++) {
        ball[k].x = draw(w), ball[k].y = draw(h), ball[k].r = 20 + draw(w / 8);
        for (int c = 0; c < 3; c++) ball[k].c[c] = (int)draw(140) - 70;
    }
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) {
            double v = 70 + 100.0 * x / w, t = 0, add[3] = {0};
            for (int k = 0; k < 12; k++) {
                double s = wave[k][3] * sin(wave[k][0] * x + wave[k][1] * y + wave[k][2]);
                v += s, t += s * (wave[k][4] - 0.5);
            }
            for (int k = 0; k < 12; k++) {
                double dx = x - ball[k].x, dy = y - ball[k].y, d = sqrt(dx * dx + dy * dy);
                double in = fmin(fmax((ball[k].r - d) / 2 + 0.5, 0), 1); /* an edge of 2 pixels */
                for (int c = 0; c < 3; c++) add[c] += in * ball[k].c[c];
            }
            double grain = (double)draw(7) - 3;
            for (int c = 0; c < 3; c++)
                p.px[((size_t)y * w + x) * 3 + c] = bound(v + add[c] + grain + t * (c - 1));
        }
    return p;
}

/* 5 x 7 dots of digits and of some strokes that stand for letters. */
static const uint8_t glyph[16][7] = {
    {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14},      {14, 17, 1, 2, 4, 8, 31},
    {31, 2, 4, 2, 1, 17, 14},     {2, 6, 10, 18, 31, 2, 2},     {31, 16, 30, 1, 1, 17, 14},
    {6, 8, 16, 30, 17, 17, 14},   {31, 1, 2, 4, 8, 8, 8},       {14, 17, 17, 14, 17, 17, 14},
    {14, 17, 17, 15, 1, 2, 12},   {14, 17, 17, 31, 17, 17, 17}, {30, 17, 17, 30, 17, 17, 30},
    {17, 19, 21, 21, 25, 17, 17}, {31, 4, 4, 4, 4, 4, 4},       {17, 10, 4, 4, 10, 17, 17},
    {31, 16, 30, 16, 16, 16, 31}};

static void put_glyph(struct rgb *p, int x, int y, int size, unsigned g, const uint8_t ink[3]) {
    for (int r = 0; r < 7; r++)
        for (int c = 0; c < 5; c++)
            if (glyph[g % 16][r] >> (4 - c) & 1)
                fill(p, x + c * size, y + r * size, size, size, ink);
}

/* Lines of text all over, `other` in place of the n-th sign. */
static void write_page(struct rgb *p, int size, const uint8_t ink[3], uint32_t seed, size_t at,
                       unsigned other) {
    size_t n = 0;
    state = seed;
    for (int y = 8; y + 8 * size < (int)p->h; y += 11 * size)
        for (int x = 8; x + 6 * size < (int)p->w; x += 6 * size, n++) {
            unsigned g = draw(20);
            if (n == at) g = (g + other) % 16;
            if (g < 16) put_glyph(p, x, y, size, g, ink);
        }
}

static struct rgb saved_again(const struct rgb *p, int quality) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr e;
    unsigned char *file = NULL;
    unsigned long n = 0;
    c.err = jpeg_std_error(&e);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &file, &n);
    c.image_width = p->w, c.image_height = p->h;
    c.input_components = 3, c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, quality, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = p->px + (size_t)c.next_scanline * p->w * 3;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    struct mg_image image;
    struct mg_err err = {0};
    assert_int_equal(mg_image_decode(file, n, NULL, &image, &err), MG_OK);
    free(file);
    return (struct rgb){image.width, image.height, image.rgb};
}

static struct rgb scaled(const struct rgb *p, uint32_t w, uint32_t h) {
    struct rgb q = blank(w, h, 0);
    struct mg_err err = {0};
    assert_int_equal(mg_resize_rgb8(p->px, p->w, p->h, q.px, w, h, &err), MG_OK);
    return q;
}

/* As the engine sees it: at most `side`^2 pixels. */
static struct mg_fingerprint print_of(const struct rgb *p, uint32_t side) {
    struct mg_patch_config c = {.patch = 16,
                                .merge = 2,
                                .temporal = 2,
                                .min_pixels = 65536,
                                .max_pixels = (uint64_t)side * side};
    struct mg_err err = {0};
    struct mg_fingerprint f;
    uint32_t w, h;
    assert_int_equal(mg_smart_resize(p->h, p->w, &c, &h, &w, &err), MG_OK);
    struct rgb q = scaled(p, w, h);
    assert_int_equal(mg_fingerprint_make(q.px, w, h, &f, &err), MG_OK);
    free(q.px);
    return f;
}

/* Worst of a kind of pair, by what a pair is judged by. */
struct tally {
    size_t n, hit, plain;
    double most_distance, most_luma, most_chroma, most_cell; /* of the pairs */
    double least_over; /* smallest of a pair's largest multiple of a limit */
};

static void compare(struct tally *t, const struct rgb *a, const struct rgb *b, uint32_t side) {
    struct mg_fingerprint x = print_of(a, side), y = print_of(b, side);
    double distance = -1;
    bool like = mg_fingerprint_like(&x, &y, MG_FINGERPRINT_LEAST, &distance);
    bool back = mg_fingerprint_like(&y, &x, MG_FINGERPRINT_LEAST, &distance);
    assert_int_equal(like, back);
    if (!t->n) t->least_over = 1e9;
    t->n++;
    t->hit += like;
    t->plain += x.plain || y.plain;
    if (!x.plain && !y.plain && x.width == y.width && x.height == y.height) {
        struct mg_fingerprint_gap g;
        mg_fingerprint_measure(&x, &y, &g);
        double over = fmax(fmax(g.luma, g.chroma), fmax(g.cell / 6, g.distance / 0.1));
        t->most_distance = fmax(t->most_distance, g.distance);
        t->most_luma = fmax(t->most_luma, g.luma);
        t->most_chroma = fmax(t->most_chroma, g.chroma);
        t->most_cell = fmax(t->most_cell, g.cell);
        t->least_over = fmin(t->least_over, over);
        assert_int_equal(like, over <= 1);
    }
    mg_fingerprint_free(&x);
    mg_fingerprint_free(&y);
}

static void tell(const char *what, const struct tally *t) {
    print_message("# %-34s %3zu pairs, %3zu like, %3zu plain; at most: hash %.3f, cell %.0f, "
                  "luma %.2f, colour %.2f; least %.2f\n",
                  what, t->n, t->hit, t->plain, t->most_distance, t->most_cell, t->most_luma,
                  t->most_chroma, t->n > t->plain ? t->least_over : 0);
}

static void test_saved_again(void **unused) {
    (void)unused;
    for (int quality = 85; quality <= 95; quality += 5) {
        struct tally t = {0};
        char what[40];
        for (uint32_t seed = 0; seed < 6; seed++) {
            struct rgb a = photo(seed, seed % 2 ? 900 : 720, seed % 3 ? 600 : 640);
            struct rgb b = saved_again(&a, quality);
            compare(&t, &a, &b, 512);
            compare(&t, &a, &b, 1024);
            struct rgb c = saved_again(&b, quality); /* of a JPEG */
            compare(&t, &b, &c, 512);
            free(a.px), free(b.px), free(c.px);
        }
        snprintf(what, sizeof what, "photo, JPEG of quality %d", quality);
        tell(what, &t);
        assert_int_equal(t.hit, t.n);
    }
}

static void test_real_photo(void **unused) {
    (void)unused;
    struct tally t = {0};
    struct mg_buf file = {0};
    struct mg_image image;
    struct mg_err err = {0};
    assert_int_equal(mg_file_read("tests/oracle/images/photo.jpg", 1 << 20, &file, &err), MG_OK);
    assert_int_equal(mg_image_decode(file.data, file.n, NULL, &image, &err), MG_OK);
    struct rgb a = {image.width, image.height, image.rgb};
    for (int quality = 85; quality <= 95; quality += 5) {
        struct rgb b = saved_again(&a, quality);
        compare(&t, &a, &b, 1024);
        free(b.px);
    }
    tell("a real photo, JPEG of 85 to 95", &t);
    assert_int_equal(t.hit, 3);
    mg_image_free(&image);
    mg_buf_free(&file);
}

static void test_scaled(void **unused) {
    (void)unused;
    struct tally t = {0};
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct rgb a = photo(seed, 1100, 800), b = scaled(&a, 1101, 801), c = scaled(&a, 1099, 800);
        compare(&t, &a, &b, 512);
        compare(&t, &a, &c, 512);
        free(a.px), free(b.px), free(c.px);
    }
    tell("photo, a pixel wider or narrower", &t);
    assert_int_equal(t.hit, t.n);
}

static void test_photos_differ(void **unused) {
    (void)unused;
    struct tally t = {0}, spot = {0}, digit = {0};
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct rgb a = photo(seed, 800, 608), b = photo(seed + 100, 800, 608), c = copy(&a);
        const uint8_t ink[] = {250, 250, 245}, dark[] = {10, 10, 20};
        compare(&t, &a, &b, 512);
        fill(&c, 300 + 20 * (int)seed, 200, 14, 14, seed % 2 ? dark : ink); /* a small thing */
        compare(&spot, &a, &c, 512);
        struct rgb d = copy(&a), e = copy(&a); /* a number on a sign in a photo */
        for (unsigned k = 0; k < 4; k++) {
            put_glyph(&d, 200 + 20 * (int)k, 300, 2, k + seed, ink);
            put_glyph(&e, 200 + 20 * (int)k, 300, 2, k + seed + (k == 2), ink);
        }
        compare(&digit, &d, &e, 1024);
        free(a.px), free(b.px), free(c.px), free(d.px), free(e.px);
    }
    tell("two photos", &t);
    tell("photo, a thing of 14 pixels more", &spot);
    tell("photo, another digit in it", &digit);
    assert_int_equal(t.hit + spot.hit + digit.hit, 0);
}

/* On white, on grey, on a photo as paper (so that it isn't plain), small and large, pale and
 * black; scaled down as a large page is, and the second saved as JPEG. */
static void test_digit(void **unused) {
    (void)unused;
    struct tally page = {0}, paper = {0};
    static const uint8_t inks[][3] = {{0, 0, 0}, {60, 60, 90}, {150, 150, 150}};
    for (uint32_t seed = 0; seed < 24; seed++) {
        int size = 1 + (int)(seed % 3);
        bool on_photo = seed % 2;
        struct rgb a = on_photo ? photo(seed, 768, 768) : blank(768, 768, seed % 4 ? 255 : 225);
        struct rgb b = copy(&a);
        size_t at = 100 + seed * 13;
        const uint8_t *ink = inks[seed / 2 % 3];
        write_page(&a, size, ink, seed, SIZE_MAX, 0);
        state = seed;
        for (unsigned other = 1; other < 16; other += 5) {
            struct rgb c = copy(&b);
            write_page(&c, size, ink, seed, at, other);
            /* the sign at this place may have been a space: then it is one that appears */
            if (memcmp(c.px, a.px, (size_t)a.w * a.h * 3)) {
                struct rgb d = saved_again(&c, 95);
                compare(on_photo ? &paper : &page, &a, &c, 768);
                compare(on_photo ? &paper : &page, &a, &d, 768);
                if (size > 1) compare(on_photo ? &paper : &page, &a, &c, 512);
                free(d.px);
            }
            free(c.px);
        }
        free(a.px), free(b.px);
    }
    tell("page, another digit", &page);
    tell("text on a photo, another digit", &paper);
    assert_true(page.n > 40 && paper.n > 40);
    assert_int_equal(page.hit + paper.hit, 0);
}

static void test_word(void **unused) {
    (void)unused;
    struct tally t = {0};
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct rgb a = blank(640, 480, 255), b = copy(&a);
        const uint8_t ink[] = {(uint8_t)(seed * 30), 0, 0};
        for (unsigned k = 0; k < 5; k++)
            put_glyph(&b, 300 + 12 * (int)k, 200, 1 + (int)seed % 3, 10 + k, ink);
        compare(&t, &a, &b, 640);
        compare(&t, &a, &a, 640); /* plain: not even itself */
        free(a.px), free(b.px);
    }
    tell("white page, one word", &t);
    assert_int_equal(t.hit, 0);
    assert_int_equal(t.plain, t.n);
}

/* A window with panels, buttons, text; as it is and over a photo as background. */
static struct rgb screen(uint32_t seed, bool on_photo) {
    static const uint8_t bar[] = {40, 60, 110}, panel[] = {235, 238, 242}, ink[] = {20, 20, 20},
                         button[] = {50, 130, 90};
    struct rgb p = on_photo ? photo(seed, 896, 640) : blank(896, 640, 250);
    fill(&p, 0, 0, 896, 36, bar);
    for (int i = 0; i < 3; i++) {
        fill(&p, 40 + 280 * i, 80, 200, 160, panel);
        for (unsigned k = 0; k < 40; k++)
            put_glyph(&p, 50 + 280 * i + 14 * (int)(k % 12), 90 + 22 * (int)(k / 12), 2,
                      k * 7 + seed, ink);
        fill(&p, 60 + 280 * i, 200, 60, 24, button);
    }
    return p;
}

static void test_screens(void **unused) {
    (void)unused;
    struct tally t = {0};
    static const uint8_t red[] = {180, 60, 60}, ink[] = {20, 20, 20}, panel[] = {235, 238, 242},
                         same_light[] = {158, 77, 90};
    for (uint32_t seed = 0; seed < 8; seed++)
        for (int change = 0; change < 5; change++) {
            struct rgb a = screen(seed, seed % 2), b = screen(seed, seed % 2);
            if (change == 0) fill(&b, 60, 200, 60, 24, red);         /* pressed */
            if (change == 1) fill(&b, 340, 200, 60, 24, same_light); /* other colour, as light */
            if (change == 2) fill(&b, 610, 90, 12, 12, ink), fill(&b, 612, 92, 8, 8, panel);
            if (change == 3) fill(&b, 320, 80, 200, 160, panel); /* emptied */
            if (change == 4) fill(&b, 700, 205, 1, 14, ink);     /* a caret */
            compare(&t, &a, &b, 896);
            free(a.px), free(b.px);
        }
    tell("screen before and after", &t);
    assert_int_equal(t.hit, 0);
    assert_true(t.plain < t.n);
}

/* Dark and even pictures look alike to any hash. */
static void test_plain(void **unused) {
    (void)unused;
    struct tally t = {0};
    for (uint32_t seed = 0; seed < 6; seed++) {
        struct rgb a = photo(seed, 640, 480), b = photo(seed + 1, 640, 480);
        for (size_t i = 0; i < (size_t)640 * 480 * 3; i++)
            a.px[i] = (uint8_t)(a.px[i] / 12), b.px[i] = (uint8_t)(b.px[i] / 12);
        compare(&t, &a, &b, 512);
        compare(&t, &a, &a, 512);
        free(a.px), free(b.px);
    }
    tell("dark photos", &t);
    assert_int_equal(t.plain, t.n);
    assert_int_equal(t.hit, 0);
}

static void test_edges(void **unused) {
    (void)unused;
    struct mg_err err = {0};
    struct mg_fingerprint a, b;
    struct rgb p = photo(3, 256, 192);
    double d = -1;
    assert_int_equal(mg_fingerprint_make(p.px, 256, 192, &a, &err), MG_OK);
    assert_int_equal(mg_fingerprint_make(p.px, 192, 256, &b, &err), MG_OK); /* fault 53 */
    assert_false(a.plain);
    assert_false(mg_fingerprint_like(&a, &b, 0.9, &d));
    assert_true(d < 0);
    assert_true(mg_fingerprint_like(&a, &a, 1, &d) && d == 0);
    b.plain = true;
    mg_fingerprint_free(&b);
    assert_int_equal(mg_fingerprint_make(p.px, 252, 192, &b, &err), MG_OK); /* no whole tiles */
    assert_true(b.plain && !b.luma);
    mg_fingerprint_free(&b);
    assert_int_equal(mg_fingerprint_make(p.px, 24, 24, &b, &err), MG_OK);
    assert_true(b.plain);
    mg_fingerprint_free(&b);
    assert_int_equal(mg_fingerprint_make(p.px, 256, 192, &b, &err), MG_OK);
    b.hash[0] ^= 0x3ff, d = -1;                          /* 10 of 256 */
    assert_false(mg_fingerprint_like(&a, &b, 0.97, &d)); /* more was asked for */
    assert_true(fabs(d - 10 / 256.0) < 1e-12);
    assert_true(mg_fingerprint_like(&a, &b, 0.9, &d));
    b.hash[1] ^= 0xffff; /* 26 of 256: over a tenth, whatever was asked for */
    assert_false(mg_fingerprint_like(&a, &b, 0.5, &d));
    mg_fingerprint_free(&a);
    mg_fingerprint_free(&b);
    mg_fingerprint_close(NULL);
    free(p.px);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved_again), cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_real_photo),  cmocka_unit_test(test_photos_differ),
        cmocka_unit_test(test_digit),       cmocka_unit_test(test_word),
        cmocka_unit_test(test_screens),     cmocka_unit_test(test_plain),
        cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests_name("image.fingerprint", tests, NULL, NULL);
}
