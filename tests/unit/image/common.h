/* tests/unit/image/common.h - packs of pictures and made-up rasters, shared by the tests of
 * src/image.
 *
 * The packs are made by tests/data/image/make.py, which describes the format; what they hold as
 * expected is what Pillow gave, not what margay gives. source() repeats make.py's, so that rasters
 * needn't be stored.
 */
#ifndef MG_TEST_IMAGE_COMMON_H
#define MG_TEST_IMAGE_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>

#include "base/io.h"
#include "image/patches.h"

#define DATA "tests/data/image/"

struct record {
    char name[64], code[32];
    int status, format, orientation, tolerance;
    unsigned width, height, frames, alpha;
    uint8_t background[3];
    const uint8_t *file, *packed; /* views into the pack */
    size_t n_file, n_packed;
};

struct pack {
    struct mg_map map;
    size_t at;
};

static inline void pack_open(struct pack *p, const char *path) {
    struct mg_err err = {0};
    p->at = 0;
    if (mg_map_open(path, &p->map, &err) != MG_OK)
        fail_msg("%s: %s", path, err.text);
}

static inline bool pack_next(struct pack *p, struct record *r) {
    char line[256];
    unsigned color;
    if (p->at >= p->map.n)
        return false;
    const uint8_t *start = p->map.data + p->at;
    const uint8_t *end = memchr(start, '\n', p->map.n - p->at);
    assert_non_null(end);
    size_t n = (size_t)(end - start);
    assert_true(n < sizeof line);
    memcpy(line, start, n);
    line[n] = 0;
    int got = sscanf(line, "%63s %d %31s %d %u %u %d %u %u %x %d %zu %zu", r->name, &r->status,
                     r->code, &r->format, &r->width, &r->height, &r->orientation, &r->frames,
                     &r->alpha, &color, &r->tolerance, &r->n_file, &r->n_packed);
    assert_int_equal(got, 13);
    for (int i = 0; i < 3; i++)
        r->background[i] = (uint8_t)(color >> (16 - 8 * i));
    r->file = end + 1;
    r->packed = r->file + r->n_file;
    p->at = (size_t)(r->packed - p->map.data) + r->n_packed;
    assert_true(p->at <= p->map.n);
    return true;
}

/* The expected RGB, [height][width][3]; free(). */
static inline uint8_t *record_rgb(const struct record *r) {
    uLongf n = (uLongf)r->width * r->height * 3;
    uint8_t *rgb = malloc(n);
    assert_non_null(rgb);
    assert_int_equal(uncompress(rgb, &n, r->packed, r->n_packed), Z_OK);
    assert_int_equal(n, (size_t)r->width * r->height * 3);
    return rgb;
}

/* The record of this name; the pack stays open for its bytes. */
static inline void pack_find(struct pack *p, const char *path, const char *name, struct record *r) {
    pack_open(p, path);
    while (pack_next(p, r))
        if (strcmp(r->name, name) == 0)
            return;
    fail_msg("%s has no %s", path, name);
}

static inline uint64_t fnv(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* noise and binary: a linear congruential generator's high bits; wave: a formula; photo: the top
 * left of the picture `photo` in jpeg.pack. free(). */
static inline uint8_t *source(const char *kind, uint32_t seed, uint32_t w, uint32_t h) {
    uint8_t *rgb = malloc((size_t)w * h * 3), *to = rgb;
    assert_non_null(rgb);
    if (strcmp(kind, "photo") == 0) {
        struct pack p;
        struct record r;
        pack_find(&p, DATA "jpeg.pack", "photo", &r);
        uint8_t *all = record_rgb(&r);
        assert_true(w <= r.width && h <= r.height);
        for (uint32_t y = 0; y < h; y++)
            memcpy(rgb + (size_t)y * w * 3, all + (size_t)y * r.width * 3, (size_t)w * 3);
        free(all);
        mg_map_close(&p.map);
        return rgb;
    }
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (uint32_t c = 0; c < 3; c++) {
                if (strcmp(kind, "wave") == 0) {
                    *to++ = (uint8_t)(x * 7 + y * 13 + c * 50 + x * y / 64 + seed);
                } else {
                    seed = seed * 1664525u + 1013904223u;
                    uint32_t high = seed >> 24;
                    *to++ = (uint8_t)(kind[0] == 'n' ? high : high < 128 ? 0 : 255);
                }
            }
    return rgb;
}

#endif
