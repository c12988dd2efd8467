/* Position tables against the reference's (tests/data/model/make_golden.py). */
#include "base/npy.h"
#include "model/position.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static struct mg_npy load(const char *name) {
    char path[256];
    struct mg_npy npy;
    struct mg_err err = {0};
    snprintf(path, sizeof path, "tests/data/model/%s.npy", name);
    if (mg_npy_read(path, &npy, &err) != MG_OK) fail_msg("%s", err.text);
    return npy;
}

/* Fault 19: endpoints pinned, bilinear, in merge order, for grids from 2 x 2 to 112 x 160. */
static void test_interpolation(void **state) {
    (void)state;
    struct mg_npy table = load("table"), grids = load("grids"), want = load("interpolated");
    const float *t = table.data, *w = want.data;
    const int32_t *g = grids.data;
    size_t at = 0;
    double worst = 0;
    for (size_t i = 0; i < grids.dim[0]; i++) {
        size_t h = (size_t)g[2 * i], wd = (size_t)g[2 * i + 1];
        for (size_t p = 0; p < h * wd; p++, at++) {
            size_t row, col, index[4];
            float weight[4], sum = 0;
            mg_patch_place(p, wd, 2, &row, &col);
            mg_position_taps(row, col, h, wd, 48, index, weight);
            for (int k = 0; k < 4; k++) sum += t[index[k]] * weight[k];
            worst = fmax(worst, fabs((double)sum - (double)w[at]));
        }
    }
    assert_int_equal(at, want.n);
    if (!(worst <= 1e-5)) fail_msg("worst difference %g", worst);
    mg_npy_free(&table);
    mg_npy_free(&grids);
    mg_npy_free(&want);
}

static void compare(const char *name, const float *got, size_t n, double limit) {
    struct mg_npy want = load(name);
    assert_int_equal(want.n, n);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)((const float *)want.data)[i]);
        if (!(d <= limit)) fail_msg("%s[%zu] off by %g", name, i, d);
    }
    mg_npy_free(&want);
}

static void test_vision_rope(void **state) {
    (void)state;
    enum { N = 26 * 26, HALF = 32 };
    static uint32_t place[N][2];
    static float c[N * HALF], s[N * HALF];
    for (size_t i = 0; i < N; i++) {
        size_t row, col;
        mg_patch_place(i, 26, 2, &row, &col);
        place[i][0] = (uint32_t)row;
        place[i][1] = (uint32_t)col;
    }
    mg_vision_rope((const uint32_t(*)[2])place, N, 2 * HALF, c, s);
    compare("vision_cos", c, N * HALF, 2e-6);
    compare("vision_sin", s, N * HALF, 2e-6);
}

/* Angles up to 6000: one unit in the last place of the frequency moves them by 4e-4 at most. */
static void test_text_rope(void **state) {
    (void)state;
    enum { N = 64, HALF = 64 };
    struct mg_text_config config = {
        .head_dim = 128, .rope_theta = 5000000.0f, .section = {24, 20, 20}};
    struct mg_npy pos = load("text_pos");
    static float freq[HALF], c[N * HALF], s[N * HALF];
    mg_rope_freq(&config, freq);
    mg_text_rope(&config, freq, (const int32_t(*)[3])pos.data, N, c, s);
    compare("text_cos", c, N * HALF, 4e-4);
    compare("text_sin", s, N * HALF, 4e-4);
    mg_npy_free(&pos);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_interpolation),
                                       cmocka_unit_test(test_vision_rope),
                                       cmocka_unit_test(test_text_rope)};
    return cmocka_run_group_tests_name("model.position", tests, NULL, NULL);
}
