/* tests/unit/image/mutate.c - fault 4: 10,000 damaged pictures of all kinds; most useful under ASan
 * + UBSan.
 *
 * Each picture of the packs in turn is changed by a fixed generator (bytes flipped, runs
 * overwritten, pieces cut out, doubled or taken from another picture) and decoded with small
 * limits. Any status will do, but a consistent one: a raster of the size that is reported, or
 * nothing and an error with a code.
 */
#include "common.h"

#define N_CASE 10000

struct file {
    const uint8_t *data;
    size_t n;
};

static uint32_t seed = 12345;

static uint32_t draw(uint32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return below ? (uint32_t)(((uint64_t)(seed >> 4) * below) >> 28) : 0;
}

/* Into `to` (room for 2 n + 64 bytes); the new length. */
static size_t mutate(const struct file *f, const struct file *other, uint8_t *to) {
    size_t n = f->n;
    memcpy(to, f->data, n);
    for (uint32_t k = 1 + draw(4); k > 0 && n > 0; k--) {
        uint32_t at = draw((uint32_t)n), len = 1 + draw((uint32_t)mg_min_size(n - at, 32));
        if (draw(3) == 0)
            at = draw((uint32_t)mg_min_size(n, 64)), len = mg_min_size(len, n - at);
        switch (draw(6)) {
        case 0:
            to[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            to[at] = (uint8_t)draw(256);
            break;
        case 2:
            memset(to + at, draw(2) ? 0xff : 0, len);
            break;
        case 3:
            memmove(to + at, to + at + len, n - at - len);
            n -= len;
            break;
        case 4:
            if (n + len <= 2 * f->n) {
                memmove(to + at + len, to + at, n - at);
                n += len;
            }
            break;
        default:
            if (other->n > len)
                memcpy(to + at, other->data + draw((uint32_t)(other->n - len)), len);
        }
    }
    return draw(8) == 0 ? draw((uint32_t)n) : n;
}

static size_t collect(struct pack *packs, struct file *files, size_t cap) {
    static const char *const names[] = {"png", "jpeg", "webp", "gif", "bmp", "exif"};
    size_t n = 0;
    for (size_t i = 0; i < 6; i++) {
        char path[64];
        struct record r;
        snprintf(path, sizeof path, DATA "%s.pack", names[i]);
        pack_open(packs + i, path);
        while (pack_next(packs + i, &r) && n < cap)
            if (r.n_file <= 20000 && strcmp(r.name, "ztxt-8MB") != 0)
                files[n++] = (struct file){r.file, r.n_file};
    }
    return n;
}

static void ten_thousand(void **state) {
    static struct file files[512];
    struct pack packs[6];
    size_t n = collect(packs, files, 512), n_good = 0, n_bad = 0;
    struct mg_image_options o = mg_image_options_default;
    o.limits.max_pixels = 1 << 20;
    assert_true(n > 250);
    for (size_t i = 0; i < N_CASE; i++) {
        const struct file *f = files + i % n;
        struct mg_image image;
        struct mg_image_info info;
        struct mg_err err = {0};
        uint8_t *room = malloc(2 * f->n + 64);
        assert_non_null(room);
        size_t len = mutate(f, files + draw((uint32_t)n), room);
        uint8_t *bytes = malloc(len ? len : 1); /* exactly as long: a read behind it shows */
        assert_non_null(bytes);
        memcpy(bytes, room, len);
        enum mg_status probed = mg_image_probe(bytes, len, &o, &info, NULL);
        enum mg_status s = mg_image_decode(bytes, len, &o, &image, &err);
        if (s == MG_OK) {
            assert_int_equal(probed, MG_OK);
            assert_non_null(image.rgb);
            assert_true(image.width == info.width && image.height == info.height);
            assert_true((uint64_t)image.width * image.height <= o.limits.max_pixels);
            volatile uint8_t last = image.rgb[(size_t)image.width * image.height * 3 - 1];
            (void)last;
            n_good++;
        } else {
            assert_true(err.status == s && err.code[0] && err.text[0]);
            assert_true(s == MG_ERR_FORMAT || s == MG_ERR_LIMIT || s == MG_ERR_UNSUPPORTED);
            assert_null(image.rgb);
            n_bad++;
        }
        mg_image_free(&image);
        free(bytes);
        free(room);
    }
    for (size_t i = 0; i < 6; i++)
        mg_map_close(&packs[i].map);
    print_message("%zu decoded, %zu refused\n", n_good, n_bad);
    assert_true(n_good > 300 && n_bad > 3000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ten_thousand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
