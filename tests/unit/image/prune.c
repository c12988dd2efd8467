/* tests/unit/image/prune.c - which cells are kept, against NumPy (tests/data/image/make_prune.py)
 * and by hand; the patches of the kept cells; patches back to 8 bits. */
#include "common.h"
#include "image/prune.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t state;
static uint32_t draw(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* picture() of make_prune.py; rgb: [rows*side][cols*side][3]. */
static void make_picture(uint32_t seed, size_t rows, size_t cols, size_t side, uint32_t noise,
                         uint8_t *rgb) {
    uint8_t(*colour)[3] = calloc(rows * cols, sizeof *colour);
    assert_non_null(colour);
    state = seed;
    for (size_t i = 0; i < rows * cols; i++) {
        size_t r = i / cols, c = i % cols;
        uint32_t how = draw(5);
        if (how < 2 && c)
            memcpy(colour[i], colour[i - 1], 3);
        else if (how >= 2 && how < 4 && r)
            memcpy(colour[i], colour[i - cols], 3);
        else
            for (int k = 0; k < 3; k++) colour[i][k] = (uint8_t)draw(256);
        bool rough = draw(2);
        for (size_t y = 0; y < side; y++)
            for (size_t x = 0; x < 3 * side; x++) {
                uint32_t v = colour[i][x % 3] + (rough ? draw(noise + 1) : 0);
                rgb[(r * side + y) * cols * side * 3 + c * side * 3 + x] =
                    (uint8_t)(v < 255 ? v : 255);
            }
    }
    free(colour);
}

/* The raster ends where an unreadable page begins. */
static void test_like_numpy(void **unused) {
    FILE *f = fopen(DATA "prune.txt", "r");
    char line[256];
    size_t n = 0, n_kept = 0, n_cell = 0, page = (size_t)sysconf(_SC_PAGESIZE);
    (void)unused;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        unsigned seed, rows, cols, side, noise, near;
        unsigned long long want_rgb, want_kept;
        size_t want_n;
        struct mg_cells cells;
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%u %u %u %u %u %u %llx %zu %llx", &seed, &rows, &cols, &side,
                                &noise, &near, &want_rgb, &want_n, &want_kept),
                         9);
        size_t bytes = (size_t)rows * cols * side * side * 3, all = mg_round_up(bytes, page) + page;
        uint8_t *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(base != MAP_FAILED);
        assert_int_equal(mprotect(base + all - page, page, PROT_NONE), 0);
        uint8_t *rgb = base + all - page - bytes;
        make_picture(seed, rows, cols, side, noise, rgb);
        assert_true(fnv(rgb, bytes) == want_rgb);
        assert_int_equal(mg_prune_cells(rgb, rows, cols, side, (uint8_t)near, &cells, NULL), MG_OK);
        if (cells.n != want_n || fnv(cells.index, cells.n * sizeof *cells.index) != want_kept)
            fail_msg("picture %u: %zu cells kept and not the %zu of the definition", seed, cells.n,
                     want_n);
        n++, n_kept += cells.n, n_cell += (size_t)rows * cols;
        mg_cells_free(&cells);
        munmap(base, all);
    }
    fclose(f);
    assert_int_equal(n, 200);
    assert_true(n_kept > n_cell / 10 &&
                n_kept < n_cell * 3 / 4); /* there was something to decide */
}

/* A picture of gray cells of `side` pixels; `want` are the kept ones, ended by -1. */
static void check(const uint8_t *gray, uint32_t rows, uint32_t cols, uint32_t side, uint8_t near,
                  const int *want) {
    size_t stride = (size_t)cols * side * 3;
    uint8_t *rgb = malloc(stride * rows * side);
    struct mg_cells cells;
    assert_non_null(rgb);
    for (size_t y = 0; y < (size_t)rows * side; y++)
        for (size_t x = 0; x < stride; x++)
            rgb[y * stride + x] = gray[y / side * cols + x / 3 / side];
    assert_int_equal(mg_prune_cells(rgb, rows, cols, side, near, &cells, NULL), MG_OK);
    size_t n = 0;
    for (; want[n] >= 0; n++) {
        assert_true(n < cells.n);
        assert_int_equal(cells.index[n], want[n]);
    }
    assert_int_equal(cells.n, n);
    mg_cells_free(&cells);
    free(rgb);
}
#define CHECK(rows, cols, near, gray, ...)                                                         \
    check((const uint8_t[])gray, rows, cols, 2, near, (const int[]){__VA_ARGS__, -1})
#define G(...)                                                                                     \
    { __VA_ARGS__ }

static void test_by_hand(void **unused) {
    (void)unused;
    CHECK(3, 4, 0, G(7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7), 0); /* one colour: one cell */
    CHECK(1, 1, 0, G(7), 0);
    CHECK(1, 5, 0, G(1, 1, 2, 2, 1), 0, 2, 4);             /* first row: the left one */
    CHECK(4, 1, 0, G(1, 1, 2, 2), 0, 2);                   /* first column: the upper one */
    CHECK(2, 2, 0, G(0, 9, 0, 9), 0, 1);                   /* columns: C is A and not B, so B */
    CHECK(2, 2, 0, G(0, 0, 5, 5), 0, 2);                   /* rows: C is B and not A, so A */
    CHECK(2, 2, 0, G(0, 0, 0, 9), 0, 3);                   /* neither predicts it */
    CHECK(2, 2, 0, G(0, 9, 5, 9), 0, 1, 2, 3);             /* C is neither: A, though B would fit */
    CHECK(2, 2, 0, G(0, 9, 5, 5), 0, 1, 2);                /* C is neither: A */
    CHECK(3, 3, 0, G(0, 9, 0, 0, 9, 0, 0, 9, 0), 0, 1, 2); /* a vertical stripe */
}

static void test_near(void **unused) {
    (void)unused;
    CHECK(1, 2, 2, G(10, 12), 0);
    CHECK(1, 2, 2, G(12, 10), 0);
    CHECK(1, 2, 2, G(10, 13), 0, 1);
    CHECK(1, 2, 2, G(13, 10), 0, 1);
    CHECK(1, 2, 255, G(0, 255), 0);
    CHECK(1, 2, 254, G(0, 255), 0, 1);
    CHECK(1, 2, 0, G(10, 11), 0, 1);
    CHECK(1, 7, 2, G(0, 2, 4, 6, 8, 10, 12), 0, 2, 4, 6); /* a drift is not followed for ever */
    CHECK(2, 2, 3, G(0, 3, 0, 3), 0);
    CHECK(2, 2, 2, G(0, 3, 2, 5), 0, 1); /* A 2 is replaced by C 0: B, 3, is near 5 */
}

/* One value anywhere in a cell counts: first and last byte, each channel, each row. */
static void test_every_byte(void **unused) {
    enum { SIDE = 5, BYTES = SIDE * SIDE * 3 };
    uint8_t rgb[2 * BYTES];
    (void)unused;
    for (int i = 0; i < BYTES; i++)
        for (int near = 0; near < 8; near++) {
            struct mg_cells cells;
            memset(rgb, 100, sizeof rgb);
            /* two cells side by side: row y of the right one begins behind the left one's */
            rgb[i / (SIDE * 3) * 2 * SIDE * 3 + SIDE * 3 + i % (SIDE * 3)] = 104;
            assert_int_equal(mg_prune_cells(rgb, 1, 2, SIDE, (uint8_t)near, &cells, NULL), MG_OK);
            assert_int_equal(cells.n, near < 4 ? 2 : 1);
            mg_cells_free(&cells);
        }
}

static void test_refused(void **unused) {
    uint8_t rgb[3] = {0};
    struct mg_cells cells;
    (void)unused;
    assert_int_equal(mg_prune_cells(rgb, 0, 1, 1, 0, &cells, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_prune_cells(rgb, 1, 0, 1, 0, &cells, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_prune_cells(rgb, 1, 1, 0, 0, &cells, NULL), MG_ERR_ARGUMENT);
    assert_true(cells.index == NULL && cells.n == 0);
}

/* The patches of some cells are the whole picture's, and nothing else is held. */
static void test_cut_cells(void **unused) {
    static const uint32_t cell[] = {0, 2, 3, 7, 14};
    struct mg_patch_config c = {4, 3, 2, 1, 1 << 20, {.5f, .4f, .3f}, {.5f, .2f, .3f}};
    uint8_t *rgb = source("noise", 5, 60, 36); /* 5 x 3 cells of 3 x 3 patches of 4 x 4 pixels */
    struct mg_patches whole, some;
    size_t n = 5, block = 9;
    (void)unused;
    assert_int_equal(mg_patches_cut(rgb, 9, 15, &c, &whole, NULL), MG_OK);
    assert_int_equal(mg_patches_cut_cells(rgb, 9, 15, cell, n, &c, &some, NULL), MG_OK);
    assert_int_equal(some.n, n * block);
    assert_int_equal(some.n_token, n);
    assert_int_equal(some.grid_h, 9);
    assert_int_equal(some.grid_w, 15);
    size_t values = block * whole.dim;
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(some.value + i * values, whole.value + cell[i] * values,
                            values * sizeof(float));
    mg_patches_free(&some);
    assert_int_equal(mg_patches_cut_cells(rgb, 9, 15, (const uint32_t[]){15}, 1, &c, &some, NULL),
                     MG_ERR_ARGUMENT);
    assert_null(some.value);
    mg_patches_free(&whole);
    free(rgb);
}

static void test_back_to_8_bits(void **unused) {
    struct mg_patch_config c = {4, 3, 2, 1, 1 << 20, {.5f, .4f, .3f}, {.5f, .2f, .3f}};
    uint8_t *rgb = source("noise", 6, 60, 36), *back = calloc(60 * 36, 3);
    struct mg_patches p;
    (void)unused;
    assert_int_equal(mg_patches_cut(rgb, 9, 15, &c, &p, NULL), MG_OK);
    mg_patches_to_rgb(p.value, 9, 15, &c, back);
    assert_memory_equal(back, rgb, 60 * 36 * 3);
    /* Values that aren't a step's are rounded, those beyond 8 bits cut off. */
    static const float given[] = {-0.3f, 0.4f, 0.6f, 254.6f, 255.4f, 1e9f, -1e9f, NAN};
    static const uint8_t want[] = {0, 0, 1, 255, 255, 255, 0, 0};
    for (size_t i = 0; i < 8; i++) p.value[i] = (given[i] / 255.0f - c.mean[0]) / c.std[0];
    mg_patches_to_rgb(p.value, 9, 15, &c, back);
    for (size_t i = 0; i < 8; i++) /* channel 0 of the first patch, 4 values a row */
        assert_int_equal(back[i / 4 * 60 * 3 + i % 4 * 3], want[i]);
    mg_patches_free(&p);
    free(rgb);
    free(back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_numpy),    cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_near),          cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_cut_cells),
        cmocka_unit_test(test_back_to_8_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
