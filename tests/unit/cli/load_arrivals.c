/* When requests are due: the patterns' statistics, seeds, and what --arrivals takes. */
#include "cli/load_arrivals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 100000 };
static double at[N];

static void fill(struct mg_load_arrivals a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        at[i] = mg_load_arrivals_next(&a);
        assert_true(at[i] >= (i ? at[i - 1] : 0));
    }
}

static void constant(void **state) {
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_CONSTANT, .rate = 8}, 1000);
    for (size_t i = 0; i < 1000; i++) assert_true(at[i] == (double)i / 8);
}

static void bursts(void **state) {
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_BURST, .rate = 20, .burst = 5}, 1000);
    for (size_t i = 0; i < 1000; i++) assert_true(fabs(at[i] - 0.25 * (double)(i / 5)) < 1e-9);
}

/* Gaps of mean 1/rate and of the same deviation, without memory, and counts in windows whose
 * variance is their mean; bounds of five standard errors. */
static void poisson(void **state) {
    double rate = 50, mean, square = 0, product = 0;
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_POISSON, .rate = rate, .random = {7}}, N);
    mean = at[N - 1] / N;
    assert_true(fabs(mean * rate - 1) < 5 / sqrt(N));
    for (size_t i = 1; i < N; i++) {
        double gap = at[i] - at[i - 1] - mean;
        square += gap * gap;
        if (i > 1) product += gap * (at[i - 1] - at[i - 2] - mean);
    }
    assert_true(fabs(sqrt(square / N) / mean - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(product / square) < 5 / sqrt(N));
    double counts = 0, squares = 0;
    size_t windows = (size_t)at[N - 1], k = 0;
    for (size_t w = 0; w < windows; w++) {
        size_t n = 0;
        while (at[k] < (double)w + 1) k++, n++;
        counts += (double)n;
        squares += (double)n * (double)n;
    }
    double m = counts / (double)windows, v = squares / (double)windows - m * m;
    assert_true(fabs(v / m - 1) < 5 * sqrt(2.0 / (double)windows));
    /* A third of the gaps are longer than 1.1 times the mean: e^-1.0986 = 1/3. */
    size_t longer = 0;
    for (size_t i = 1; i < N; i++) longer += at[i] - at[i - 1] > log(3) / rate;
    assert_true(fabs((double)longer / N - 1.0 / 3) < 5 * sqrt(2.0 / 9 / N));
}

static size_t before(double t, size_t n) {
    size_t k = 0;
    while (k < n && at[k] < t) k++;
    return k;
}

/* The number of arrivals by each time is the ramp's integral, within five deviations. */
static void ramp(void **state) {
    struct mg_load_arrivals a = {.pattern = MG_LOAD_RAMP, .random = {3}};
    struct mg_err err = {0};
    assert_int_equal(mg_load_arrivals_parse("ramp:10-110", &a, &err), MG_OK);
    a.hold = 20;
    a.seconds = 100;
    fill(a, 10000);
    static const double t[] = {10, 20, 45, 70, 120, 140};
    static const double expected[] = {100,
                                      200,
                                      200 + 25 * 10 + 0.5 * 625,
                                      200 + 500 + 0.5 * 2500,
                                      200 + 6000,
                                      200 + 6000 + 20 * 110};
    for (size_t i = 0; i < 6; i++)
        assert_true(fabs((double)before(t[i], 10000) - expected[i]) < 5 * sqrt(expected[i]));
}

static void ramps_from_and_to_nothing(void **state) {
    struct mg_load_arrivals up = {
        .pattern = MG_LOAD_RAMP, .rate = 0, .to = 100, .hold = 10, .seconds = 60, .random = {1}};
    fill(up, 3000);
    assert_true(at[0] > 10);
    assert_true(fabs((double)before(40, 3000) - 750) < 5 * sqrt(750));
    struct mg_load_arrivals down = {
        .pattern = MG_LOAD_RAMP, .rate = 100, .to = 0, .seconds = 60, .random = {1}};
    size_t n = 0;
    while (isfinite(mg_load_arrivals_next(&down)) && n < 10000) n++;
    assert_true(fabs((double)n - 3000) < 5 * sqrt(3000));
}

static void seeds(void **state) {
    static double first[100];
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_POISSON, .rate = 1, .random = {42}}, 100);
    memcpy(first, at, sizeof first);
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_POISSON, .rate = 1, .random = {42}}, 100);
    assert_memory_equal(first, at, sizeof first);
    fill((struct mg_load_arrivals){.pattern = MG_LOAD_POISSON, .rate = 1, .random = {43}}, 100);
    assert_memory_not_equal(first, at, sizeof first);
}

static void below(void **state) {
    struct mg_load_random r = {5};
    size_t count[7] = {0};
    for (int i = 0; i < 70000; i++) count[mg_load_random_below(&r, 7)]++;
    for (int i = 0; i < 7; i++) assert_true(fabs((double)count[i] - 10000) < 5 * sqrt(10000));
    double least = 1, most = 0;
    for (int i = 0; i < 100000; i++) {
        double x = mg_load_random_unit(&r);
        assert_true(x >= 0 && x < 1);
        least = fmin(least, x);
        most = fmax(most, x);
    }
    assert_true(least < 0.001 && most > 0.999);
}

static void parsing(void **state) {
    static const char *const good[] = {"poisson",  "constant",   "burst:1",    "burst:100000",
                                       "ramp:0-1", "ramp:1.5-0", "ramp:.5-1e3"};
    static const char *const bad[] = {
        "",          "Poisson",      "burst",      "burst:",    "burst:0", "burst:-1",
        "burst:1x",  "burst:100001", "ramp:1",     "ramp:-1-2", "ramp:1-", "ramp:0-0",
        "ramp:1-2x", "ramp:nan-1",   "ramp:1-1e7", "constant "};
    struct mg_load_arrivals a = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(mg_load_arrivals_parse(good[i], &a, NULL), MG_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mg_err err = {0};
        assert_int_equal(mg_load_arrivals_parse(bad[i], &a, &err), MG_ERR_ARGUMENT);
        assert_string_equal(err.code, "usage");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant),
        cmocka_unit_test(bursts),
        cmocka_unit_test(poisson),
        cmocka_unit_test(ramp),
        cmocka_unit_test(ramps_from_and_to_nothing),
        cmocka_unit_test(seeds),
        cmocka_unit_test(below),
        cmocka_unit_test(parsing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
