/* tests/unit/image/patches.c - target size, resize and patches against transformers and
 * torchvision, bit for bit.
 *
 * Rows of faults.md: 15 (tiny), 16 (aspect), 18 (resize_like_torchvision), 20
 * (patches_like_transformers: grids and counts of 50 sizes), 21 as far as this module goes (each
 * picture has its own size and patches).
 */
#include "common.h"

#include <sys/mman.h>
#include <unistd.h>

/* The next line that isn't a comment; false at the end. */
static bool next_line(FILE *f, char *line, int n) {
    while (fgets(line, n, f))
        if (line[0] != '#')
            return true;
    return false;
}

static FILE *open_text(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("can't open %s", path);
    return f;
}

static void smart_resize_like_transformers(void **state) {
    FILE *f = open_text(DATA "smart_resize.txt");
    char line[256];
    size_t n = 0, n_refused = 0;
    for (; next_line(f, line, sizeof line); n++) {
        unsigned h, w, want_h, want_w;
        unsigned long long lo, hi;
        uint32_t got_h = 0, got_w = 0;
        struct mg_err err = {0};
        assert_int_equal(
            sscanf(line, "%u %u %llu %llu %u %u", &h, &w, &lo, &hi, &want_h, &want_w), 6);
        struct mg_patch_config c = {16, 2, 2, lo, hi, {.5f, .5f, .5f}, {.5f, .5f, .5f}};
        enum mg_status s = mg_smart_resize(h, w, &c, &got_h, &got_w, &err);
        if (want_h == 0) {
            assert_int_equal(s, MG_ERR_LIMIT);
            assert_string_equal(err.code, "image_aspect");
            n_refused++;
        } else if (s != MG_OK || got_h != want_h || got_w != want_w) {
            fail_msg("%ux%u (%llu..%llu): %ux%u, the reference has %ux%u", h, w, lo, hi, got_h,
                     got_w, want_h, want_w);
        }
    }
    fclose(f);
    assert_true(n == 2000 && n_refused >= 10);
}

static void sizes_that_cannot_be(void **state) {
    struct mg_patch_config c = {16, 2, 2, 65536, 1 << 24, {.5f, .5f, .5f}, {.5f, .5f, .5f}};
    uint32_t h, w;
    assert_int_equal(mg_smart_resize(0, 5, &c, &h, &w, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_smart_resize(5, 0, &c, &h, &w, NULL), MG_ERR_ARGUMENT);
    c.min_pixels = UINT64_MAX;
    c.max_pixels = UINT64_MAX;
    assert_int_equal(mg_smart_resize(5, 5, &c, &h, &w, NULL), MG_ERR_ARGUMENT);
    c.min_pixels = 0;
    assert_int_equal(mg_smart_resize(5, 5, &c, &h, &w, NULL), MG_ERR_ARGUMENT); /* rounds to 0 */
    uint8_t rgb[3] = {0};
    assert_int_equal(mg_resize_rgb8(rgb, 0, 1, rgb, 1, 1, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_resize_rgb8(rgb, 1, 1, rgb, 1, 0, NULL), MG_ERR_ARGUMENT);
}

/* A block of n bytes that ends where an unreadable page begins. */
static uint8_t *guarded(size_t n, void **base, size_t *n_base) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *n_base = mg_round_up(n, page) + page;
    *base = mmap(NULL, *n_base, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*base != MAP_FAILED);
    uint8_t *end = (uint8_t *)*base + *n_base - page;
    assert_int_equal(mprotect(end, page, PROT_NONE), 0);
    return end - n;
}

static void resize_like_torchvision(void **state) {
    FILE *f = open_text(DATA "resize.txt");
    char line[256], kind[16];
    size_t n = 0;
    for (; next_line(f, line, sizeof line); n++) {
        unsigned seed, w, h, to_w, to_h;
        unsigned long long want;
        void *base[2];
        size_t n_base[2];
        assert_int_equal(sscanf(line, "%15s %u %u %u %u %u %llx", kind, &seed, &w, &h, &to_w, &to_h,
                                &want),
                         7);
        uint8_t *made = source(kind, seed, w, h);
        uint8_t *src = guarded((size_t)w * h * 3, &base[0], &n_base[0]);
        uint8_t *dst = guarded((size_t)to_w * to_h * 3, &base[1], &n_base[1]);
        memcpy(src, made, (size_t)w * h * 3);
        free(made);
        assert_int_equal(mg_resize_rgb8(src, w, h, dst, to_w, to_h, NULL), MG_OK);
        uint64_t got = fnv(dst, (size_t)to_w * to_h * 3);
        munmap(base[0], n_base[0]);
        munmap(base[1], n_base[1]);
        if (got != want)
            fail_msg("%s %ux%u to %ux%u isn't byte for byte torchvision's", kind, w, h, to_w, to_h);
    }
    fclose(f);
    assert_true(n >= 40);
}

static void patches_like_transformers(void **state) {
    FILE *f = open_text(DATA "patches.txt");
    char line[256], kind[16];
    size_t n = 0;
    for (; next_line(f, line, sizeof line); n++) {
        unsigned seed, w, h, grid_h, grid_w;
        unsigned long long lo, hi, want;
        struct mg_patch_config c = {.patch = 16, .merge = 2, .temporal = 2};
        struct mg_err err = {0};
        struct mg_patches p;
        assert_int_equal(sscanf(line, "%15s %u %u %u %llu %llu %f %f %f %f %f %f %u %u %llx", kind,
                                &seed, &w, &h, &lo, &hi, c.mean, c.mean + 1, c.mean + 2, c.std,
                                c.std + 1, c.std + 2, &grid_h, &grid_w, &want),
                         15);
        c.min_pixels = lo;
        c.max_pixels = hi;
        struct mg_image image = {.rgb = source(kind, seed, w, h), .width = w, .height = h};
        if (mg_patches_make(&image, &c, &p, &err) != MG_OK)
            fail_msg("%s %ux%u: %s", kind, w, h, err.text);
        assert_int_equal(p.grid_h, grid_h);
        assert_int_equal(p.grid_w, grid_w);
        assert_int_equal(p.n, grid_h * grid_w);
        assert_int_equal(p.n_token, grid_h * grid_w / 4);
        assert_int_equal(p.dim, 1536);
        assert_int_equal((uintptr_t)p.value % 64, 0);
        if (fnv(p.value, p.n * p.dim * sizeof *p.value) != want)
            fail_msg("%s %ux%u: pixel_values aren't bit for bit the processor's", kind, w, h);
        mg_patches_free(&p);
        assert_null(p.value);
        free(image.rgb);
    }
    fclose(f);
    assert_true(n >= 50);
}

/* The two halves give what the whole gives. */
static void halves(void **state) {
    struct mg_patch_config c = {16, 2, 2, 4096, 65536, {.5f, .4f, .3f}, {.5f, .2f, .3f}};
    struct mg_image image = {.rgb = source("noise", 3, 130, 70), .width = 130, .height = 70};
    struct mg_patches whole, small, cut;
    assert_int_equal(mg_patches_make(&image, &c, &whole, NULL), MG_OK);
    assert_int_equal(mg_patches_resize(&image, &c, &small, NULL), MG_OK);
    assert_null(small.value);
    assert_memory_equal(small.rgb, whole.rgb, (size_t)whole.n * 16 * 16 * 3);
    assert_int_equal(mg_patches_cut(small.rgb, small.grid_h, small.grid_w, &c, &cut, NULL), MG_OK);
    assert_memory_equal(cut.value, whole.value, whole.n * whole.dim * sizeof(float));
    mg_patches_free(&cut);
    assert_int_equal(mg_patches_cut(small.rgb, 3, 4, &c, &cut, NULL), MG_ERR_ARGUMENT);
    c.temporal = 0;
    assert_int_equal(mg_patches_cut(small.rgb, 2, 2, &c, &cut, NULL), MG_ERR_ARGUMENT);
    mg_patches_free(&whole);
    mg_patches_free(&small);
    free(image.rgb);
}

static void aspect_refused(void **state) {
    static const uint32_t size[][3] = {{1093, 5, 0}, {1000, 5, 1}, {20000, 1, 0}, {1, 201, 0},
                                       {1, 200, 1}};
    struct mg_patch_config c = {16, 2, 2, 65536, 1 << 20, {.5f, .5f, .5f}, {.5f, .5f, .5f}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        struct mg_image image = {.width = size[i][0], .height = size[i][1]};
        struct mg_patches p;
        struct mg_err err = {0};
        image.rgb = source("noise", 1, image.width, image.height);
        enum mg_status s = mg_patches_make(&image, &c, &p, &err);
        assert_int_equal(s, size[i][2] ? MG_OK : MG_ERR_LIMIT);
        if (s != MG_OK) {
            assert_string_equal(err.code, "image_aspect");
            assert_null(p.value);
            assert_null(p.rgb);
        }
        mg_patches_free(&p);
        free(image.rgb);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smart_resize_like_transformers),
        cmocka_unit_test(sizes_that_cannot_be),
        cmocka_unit_test(resize_like_torchvision),
        cmocka_unit_test(patches_like_transformers),
        cmocka_unit_test(halves),
        cmocka_unit_test(aspect_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
