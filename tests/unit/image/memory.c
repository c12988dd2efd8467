/* tests/unit/image/memory.c - fault 12: what a 24-megapixel JPEG costs, from bytes to patches.
 *
 * The pictures are made here by libjpeg's compressor. Each is taken in a child, whose peak (VmHWM)
 * is its own; the bound is 200 MB over the bytes of the file, of which the raster is 72. Not
 * measured under ASan, which keeps freed memory. The times are printed, not judged: the machine may
 * be busy.
 */
#include "common.h"

#include <jpeglib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { W = 6000, H = 4000 };

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Baseline 4:2:0 or progressive 4:4:4; free() the bytes. */
static uint8_t *make(bool progressive, size_t *n) {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr e;
    unsigned char *out = NULL;
    unsigned long size = 0;
    uint8_t *row = malloc((size_t)W * 3);
    uint32_t noise = 1;
    assert_non_null(row);
    c.err = jpeg_std_error(&e);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &size);
    c.image_width = W;
    c.image_height = H;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 85, TRUE);
    if (progressive) {
        c.comp_info[0].h_samp_factor = c.comp_info[0].v_samp_factor = 1;
        jpeg_simple_progression(&c);
    }
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        uint32_t y = c.next_scanline;
        for (uint32_t x = 0; x < W; x++) {
            noise = noise * 1664525u + 1013904223u;
            row[x * 3] = (uint8_t)(x / 24 + (noise >> 29));
            row[x * 3 + 1] = (uint8_t)(y / 16 + (noise >> 29));
            row[x * 3 + 2] = (uint8_t)(((x / 50 + y / 50) & 1) * 200);
        }
        JSAMPROW p = row;
        jpeg_write_scanlines(&c, &p, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    free(row);
    *n = size;
    return out;
}

static int cost(const uint8_t *bytes, size_t n, const char *name) {
    struct mg_patch_config c = {16, 2, 2, 65536, 1 << 20, {.5f, .5f, .5f}, {.5f, .5f, .5f}};
    struct mg_image image;
    struct mg_patches p;
    size_t anon, before, after;
    FILE *reset = fopen("/proc/self/clear_refs", "w"); /* 5: the peak starts again from here */
    if (!reset || fputs("5", reset) < 0 || fclose(reset) != 0)
        return 2;
    mg_memory_use(&anon, &before);
    double start = mg_clock();
    if (mg_image_decode(bytes, n, NULL, &image, NULL) != MG_OK)
        return 1;
    double decoded = mg_clock();
    if (mg_patches_make(&image, &c, &p, NULL) != MG_OK)
        return 1;
    double done = mg_clock();
    mg_memory_use(&anon, &after);
    mg_image_free(&image);
    mg_patches_free(&p);
    fprintf(stderr, "%s: decode %.0f ms, patches %.0f ms, peak +%zu MB\n", name,
            (decoded - start) * 1e3, (done - decoded) * 1e3, (after - before) >> 20);
    return !SANITIZED && after - before > (size_t)200 << 20;
}

static void check(bool progressive) {
    size_t n = 0;
    int status = -1;
    uint8_t *bytes = make(progressive, &n);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(cost(bytes, n, progressive ? "progressive 4:4:4" : "baseline 4:2:0"));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    free(bytes);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        skip(); /* no /proc here */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void baseline_24_megapixels(void **state) { check(false); }
static void progressive_24_megapixels(void **state) { check(true); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progressive_24_megapixels),
        cmocka_unit_test(baseline_24_megapixels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
