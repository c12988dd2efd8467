/* Histograms of times: buckets without gaps, quantiles against sorted values, the promised error.
 */
#include "cli/load_histogram.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct mg_load_histogram h;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void empty(void **state) {
    h = (struct mg_load_histogram){0};
    assert_true(mg_load_histogram_quantile(&h, 0.5) == 0);
    assert_true(mg_load_histogram_mean(&h) == 0);
    assert_int_equal(mg_load_histogram_up_to(&h, 1e9), 0);
}

/* Each bucket begins where the one before ends, is as narrow as promised, and takes what lies
 * within its borders and nothing else. */
static void buckets_join(void **state) {
    double end = 0, low, high;
    for (size_t i = 0; i < MG_LOAD_N_BUCKET; i++) {
        mg_load_histogram_bucket(i, &low, &high);
        assert_true(fabs(low - end) <= 1e-15 + 1e-12 * end);
        uint64_t us = (uint64_t)llround(low * 1e6), width = (uint64_t)llround((high - low) * 1e6);
        assert_true(us < MG_LOAD_EXACT ? width == 1 : width * 128 <= us);
        h = (struct mg_load_histogram){0};
        mg_load_histogram_add(&h, low);
        mg_load_histogram_add(&h, high - 1e-6);
        assert_int_equal(h.count[i], 2);
        end = high;
    }
    assert_true(fabs(end - ldexp(1e-6, MG_LOAD_MAX_BITS)) < 1);
}

static void what_is_out_of_range(void **state) {
    h = (struct mg_load_histogram){0};
    mg_load_histogram_add(&h, -1);
    mg_load_histogram_add(&h, NAN);
    assert_int_equal(h.count[0], 2);
    mg_load_histogram_add(&h, 1e300);
    mg_load_histogram_add(&h, ldexp(1e-6, MG_LOAD_MAX_BITS));
    assert_int_equal(h.count[MG_LOAD_N_BUCKET - 1], 2);
    assert_true(mg_load_histogram_quantile(&h, 1) == 1e300);
    assert_true(mg_load_histogram_quantile(&h, 0) == 0);
}

/* Hand-made counts: nearest rank, also where 0.99 * 100 is a little over 99. */
static void ranks(void **state) {
    h = (struct mg_load_histogram){0};
    for (int i = 1; i <= 100; i++) mg_load_histogram_add(&h, i * 1e-6);
    assert_true(fabs(mg_load_histogram_quantile(&h, 0.5) - 50e-6) < 1e-9);
    assert_true(fabs(mg_load_histogram_quantile(&h, 0.99) - 99e-6) < 1e-9);
    assert_true(fabs(mg_load_histogram_quantile(&h, 0.991) - 100e-6) < 1e-9);
    assert_true(fabs(mg_load_histogram_quantile(&h, 0.01) - 1e-6) < 1e-9);
    assert_true(fabs(mg_load_histogram_quantile(&h, 0.011) - 2e-6) < 1e-9);
    assert_true(fabs(mg_load_histogram_mean(&h) - 50.5e-6) < 1e-12);
    assert_int_equal(mg_load_histogram_up_to(&h, 30e-6), 30);
    assert_int_equal(mg_load_histogram_up_to(&h, 0.5e-6), 0);
}

/* Times over nine powers of ten: each quantile is within the promised error of the sorted list's.
 */
static void quantiles_of_many(void **state) {
    enum { N = 20000 };
    static double value[N];
    static const double q[] = {0.001, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999};
    uint32_t x = 12345;
    double sum = 0;
    h = (struct mg_load_histogram){0};
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        value[i] = pow(10, -5.0 + 9.0 * (x >> 8) / 16777216.0);
        sum += value[i];
        mg_load_histogram_add(&h, value[i]);
    }
    qsort(value, N, sizeof *value, by_size);
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) {
        double exact = value[(int)ceil(q[i] * N - 1e-9) - 1];
        double got = mg_load_histogram_quantile(&h, q[i]);
        assert_true(fabs(got - exact) <= 0.5e-6 + MG_LOAD_HISTOGRAM_ERROR * exact);
    }
    assert_true(mg_load_histogram_quantile(&h, 0) == value[0]);
    assert_true(mg_load_histogram_quantile(&h, 1) == value[N - 1]);
    assert_true(fabs(mg_load_histogram_mean(&h) * N - sum) < 1e-9 * sum);
    assert_int_equal(h.n, N);
}

/* The error is not merely small but the least that such buckets can promise: it is reached. */
static void error_is_reached(void **state) {
    h = (struct mg_load_histogram){0};
    mg_load_histogram_add(&h, 1e-6); /* keeps min and max out of it */
    mg_load_histogram_add(&h, 1.048576);
    mg_load_histogram_add(&h, 1.048576);
    mg_load_histogram_add(&h, 1e3);
    double off = mg_load_histogram_quantile(&h, 0.5) / 1.048576 - 1;
    assert_true(off > 0.9 * MG_LOAD_HISTOGRAM_ERROR && off <= MG_LOAD_HISTOGRAM_ERROR);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty),
        cmocka_unit_test(buckets_join),
        cmocka_unit_test(what_is_out_of_range),
        cmocka_unit_test(ranks),
        cmocka_unit_test(quantiles_of_many),
        cmocka_unit_test(error_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
