/* tests/unit/image/heif.c - HEIC and AVIF with libheif, and what is said without it.
 *
 * Fault 9. Without libheif on the machine (or without a decoder in it) the first test is skipped;
 * the second always runs, since MARGAY_LIBHEIF= switches the library off. The switch is read once a
 * process, so each has a child.
 */
#include "common.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `check` in a child with the variable set (or left alone for NULL); its result. */
static int in_child(int (*check)(void), const char *value) {
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (value)
            setenv("MARGAY_LIBHEIF", value, 1);
        else
            unsetenv("MARGAY_LIBHEIF");
        _exit(check());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* 0: as it should be; 1: not, said on stderr; 2: the library can't decode one of them. */
static int decodes(void) {
    struct pack p;
    struct record r;
    int result = 0;
    pack_open(&p, DATA "heif.pack");
    while (pack_next(&p, &r)) {
        struct mg_image_options o = mg_image_options_default;
        struct mg_image image;
        struct mg_err err = {0};
        memcpy(o.background, r.background, 3);
        enum mg_status s = mg_image_decode(r.file, r.n_file, &o, &image, &err);
        if (s == MG_ERR_UNSUPPORTED) {
            fprintf(stderr, "%s: %s\n", r.name, err.text);
            result = result ? result : 2;
            continue;
        }
        if (s != MG_OK || image.width != r.width || image.height != r.height ||
            (int)image.info.format != r.format || image.info.has_alpha != r.alpha) {
            fprintf(stderr, "%s: %s\n", r.name, s == MG_OK ? "another size or kind" : err.text);
            return 1;
        }
        uint8_t *want = record_rgb(&r);
        for (size_t i = 0; i < (size_t)r.width * r.height * 3; i++)
            if (abs(image.rgb[i] - want[i]) > r.tolerance) {
                fprintf(stderr, "%s: byte %zu is %d, expected %d\n", r.name, i, image.rgb[i],
                        want[i]);
                return 1;
            }
        free(want);
        mg_image_free(&image);
        /* Half of it, and one byte less, are refused. */
        for (int k = 0; k < 2; k++)
            if (mg_image_decode(r.file, k ? r.n_file - 1 : r.n_file / 2, &o, &image, NULL) !=
                MG_ERR_FORMAT) {
                fprintf(stderr, "%s: a cut file isn't refused\n", r.name);
                return 1;
            }
        /* The header's size counts before any pixel. */
        o.limits.max_pixels = 100;
        if (mg_image_decode(r.file, r.n_file, &o, &image, NULL) != MG_ERR_LIMIT) return 1;
    }
    mg_map_close(&p.map);
    return result;
}

/* Found by fuzzing: 610 bytes whose bitstream claims far more than the boxes do. */
static int bounds_bomb(void) {
    struct mg_buf file = {0};
    struct mg_image image;
    struct mg_err err = {0};
    struct rusage used;
    if (mg_file_read("tests/fuzz/corpus/image_heif/bomb-small-boxes.avif", 4096, &file, &err) !=
        MG_OK)
        return 1;
    enum mg_status s = mg_image_decode(file.data, file.n, NULL, &image, &err);
    getrusage(RUSAGE_CHILDREN, &used);
    mg_buf_free(&file);
    if (s == MG_OK || !err.text[0] || used.ru_maxrss > 600 * 1024) {
        fprintf(stderr, "status %d, %ld KB: %s\n", s, used.ru_maxrss, err.text);
        return 1;
    }
    return 0;
}

static int refuses(void) {
    struct pack p;
    struct record r;
    size_t n = 0;
    pack_open(&p, DATA "heif.pack");
    for (; pack_next(&p, &r); n++) {
        struct mg_image image;
        struct mg_image_info info;
        struct mg_err err = {0};
        if (mg_image_decode(r.file, r.n_file, NULL, &image, &err) != MG_ERR_UNSUPPORTED ||
            strcmp(err.code, "image_format_unsupported") != 0 || !strstr(err.text, "JPEG") ||
            !strstr(err.text, mg_image_format_name((enum mg_image_format)r.format)) ||
            mg_image_probe(r.file, r.n_file, NULL, &info, NULL) != MG_ERR_UNSUPPORTED)
            return 1;
    }
    mg_map_close(&p.map);
    return n >= 3 ? 0 : 1;
}

static void with_libheif(void **state) {
    void *so = dlopen("libheif.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        print_message("libheif.so.1 isn't on this machine\n");
        skip();
    }
    dlclose(so);
    int result = in_child(decodes, NULL);
    if (result == 2) skip();
    assert_int_equal(result, 0);
    assert_int_equal(in_child(bounds_bomb, NULL), 0);
}

static void without_libheif(void **state) {
    assert_int_equal(in_child(refuses, ""), 0);
    assert_int_equal(in_child(refuses, "libnothing-of-this-name.so.9"), 0);
    assert_int_equal(in_child(refuses, "libm.so.6"), 0); /* a library without the functions */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_libheif),
        cmocka_unit_test(without_libheif),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
