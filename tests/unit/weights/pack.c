/* Packing (weights/pack.h) against a computation of its own: where each number stands, written out
 * from kernels/packed.h's picture; sums; how far off, no farther than plain rounding would be.
 */
#include "weights/pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_K 300
#define MAX_PANEL ((MAX_K / 64 + 1) * 2048)

static uint32_t random_state;
static double next_random(void) { /* -1..1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(int32_t)random_state / 2147483648.0;
}

static float value[32][MAX_K];
static const float *row[32];
static uint8_t panel[MAX_PANEL];
static float scale[32];
static int32_t sum[32];
static double error[2];

/* kind 0: even spread, 1: bell, 2: few huge, 3: tiny numbers, 4: one-sided */
static void fill(size_t k, size_t columns, int kind) {
    for (size_t c = 0; c < 32; c++) {
        row[c] = c < columns ? value[c] : NULL;
        for (size_t j = 0; j < k; j++) {
            double x = next_random();
            if (kind == 1) x = (x + next_random() + next_random() + next_random()) * 0.02;
            if (kind == 2) x = x * (next_random() > 0.97 ? 30 : 0.1);
            if (kind == 3) x *= 1e-12;
            if (kind == 4) x = fabs(x) + 0.2;
            value[c][j] = (float)x;
        }
    }
}

static bool pack(enum mg_pack kind, size_t k) {
    memset(panel, 0xA5, sizeof panel);
    error[0] = error[1] = 0;
    return mg_pack_panel(kind, row, k, panel, scale, sum, error);
}

static int int8_at(size_t c, size_t j) {
    size_t block = j / 64, tile = c / 16, line = j % 64 / 4;
    return (int8_t)panel[((block * 2 + tile) * 16 + line) * 64 + c % 16 * 4 + j % 4];
}
static int sub_at(size_t c, size_t j) {
    return (int8_t)panel[j / 64 * 1088 + c / 16 * 32 + j % 64 / 32 * 16 + c % 16];
}
static int nibble_at(size_t c, size_t j) {
    size_t line = j % 64 / 4;
    uint8_t two = panel[j / 64 * 1088 + 64 + c / 16 * 512 + line / 2 * 64 + c % 16 * 4 + j % 4];
    return (line % 2 ? two >> 4 : two & 15) - 8;
}
static int whole_at(enum mg_pack kind, size_t c, size_t j) {
    return kind == MG_PACK_INT8 ? int8_at(c, j) : sub_at(c, j) * nibble_at(c, j);
}

/* Sums, padding and the reported error, of either kind. */
static void check_common(enum mg_pack kind, size_t k) {
    double off = 0, square = 0;
    for (size_t c = 0; c < 32; c++) {
        long total = 0;
        for (size_t j = 0; j < (k + 63) / 64 * 64; j++) {
            int q = whole_at(kind, c, j);
            total += q;
            if (j >= k || !row[c]) {
                assert_int_equal(q, 0);
                continue;
            }
            double d = (double)value[c][j] - (double)scale[c] * q;
            off += d * d;
            square += (double)value[c][j] * (double)value[c][j];
        }
        assert_int_equal(total, sum[c]);
        if (!row[c]) assert_true(scale[c] == 0 && sum[c] == 0);
    }
    assert_true(fabs(error[1] - square) <= 1e-4 * square + 1e-60);
    assert_true(fabs(error[0] - off) <= 1e-3 * off + 1e-9 * square);
}

static const size_t lengths[] = {1,  2,  3,   4,   5,   31,  32,  33, 63,
                                 64, 65, 100, 127, 128, 129, 200, 300};
static const size_t columns[] = {32, 1, 15, 16, 17, 31, 0};

static void test_int8(void **state) {
    (void)state;
    random_state = 8;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths * 7 * 5; i++) {
        size_t k = lengths[i / 35], n = columns[i / 5 % 7];
        fill(k, n, (int)(i % 5));
        assert_true(pack(MG_PACK_INT8, k));
        check_common(MG_PACK_INT8, k);
        for (size_t c = 0; c < n; c++) {
            float top = 0;
            int largest = 0;
            for (size_t j = 0; j < k; j++) top = fmaxf(top, fabsf(value[c][j]));
            assert_true(scale[c] == top / 127);
            for (size_t j = 0; j < k; j++) {
                int q = int8_at(c, j);
                assert_in_range(q + 127, 0, 254);
                largest = abs(q) > largest ? abs(q) : largest;
                double steps = (double)value[c][j] / (double)scale[c];
                assert_true(fabs(steps - q) <= 0.5 + 1e-4);
            }
            assert_int_equal(largest, 127);
        }
    }
}

static void test_int8_rounding(void **state) {
    (void)state;
    static const float x[] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -127, 0, 0.49f};
    static const int want[] = {127, 0, 2, 2, 0, -2, -2, 126, -127, 0, 0};
    fill(11, 1, 0);
    memcpy(value[0], x, sizeof x);
    assert_true(pack(MG_PACK_INT8, 11));
    assert_true(scale[0] == 1);
    for (size_t j = 0; j < 11; j++) assert_int_equal(int8_at(0, j), want[j]);
}

/* Each group's step is its largest / 7, in whole multiples of the output's: what anyone would do
 * first. Levels -8..7. */
static double simple_error(const float *x, size_t k) {
    double most = 0, off = 0;
    for (size_t j = 0; j < k; j++) most = fmax(most, fabs((double)x[j]) / 7);
    for (size_t g = 0; g < k; g += 32) {
        double top = 0, unit = most / 15;
        size_t end = g + 32 < k ? g + 32 : k;
        for (size_t j = g; j < end; j++) top = fmax(top, fabs((double)x[j]));
        double step = ceil(top / 7 / unit - 1e-9) * unit;
        for (size_t j = g; j < end; j++) {
            double q = step > 0 ? nearbyint((double)x[j] / step) : 0;
            q = q < -8 ? -8 : q > 7 ? 7 : q;
            off += ((double)x[j] - q * step) * ((double)x[j] - q * step);
        }
    }
    return off;
}

static void test_int4(void **state) {
    (void)state;
    random_state = 4;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths * 7 * 5; i++) {
        size_t k = lengths[i / 35], n = columns[i / 5 % 7];
        double ours = 0, simple = 0;
        fill(k, n, (int)(i % 5));
        assert_true(pack(MG_PACK_INT4, k));
        check_common(MG_PACK_INT4, k);
        for (size_t c = 0; c < n; c++) {
            assert_true(scale[c] > 0);
            for (size_t j = 0; j < (k + 63) / 64 * 64; j++)
                assert_in_range(sub_at(c, j) + 15, 0, 30);
            simple += simple_error(value[c], k);
        }
        ours = error[0];
        if (!(ours <= simple + 1e-9 * error[1]))
            fail_msg("k %zu, %zu outputs, kind %zu: error %g, simply %g", k, n, i % 5, ours,
                     simple);
    }
}

/* Whole multiples of a step with 16 levels come back as they are; the -8 goes to the larger side.
 */
static void test_int4_exact(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        fill(64, 1, 0);
        for (size_t j = 0; j < 64; j++) value[0][j] = (float)sign * 0.25f * ((float)(j % 16) - 8);
        assert_true(pack(MG_PACK_INT4, 64));
        for (size_t j = 0; j < 64; j++)
            assert_true(
                fabs((double)scale[0] * whole_at(MG_PACK_INT4, 0, j) - (double)value[0][j]) < 1e-6);
        assert_true(error[0] < 1e-10 * error[1]);
    }
}

static void test_zeros(void **state) {
    (void)state;
    for (int kind = 0; kind < MG_N_PACK; kind++)
        for (int tiny = 0; tiny < 2; tiny++) { /* a row of zeros, or of numbers near the smallest */
            fill(70, 3, 0);
            for (size_t j = 0; j < 70; j++) value[1][j] = tiny ? 1e-42f : 0;
            assert_true(pack((enum mg_pack)kind, 70));
            for (size_t j = 0; j < 70; j++) assert_int_equal(whole_at((enum mg_pack)kind, 1, j), 0);
            assert_true(scale[1] == 0 && sum[1] == 0);
            assert_true(scale[0] > 0 && scale[2] > 0);
        }
}

static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t k[] = {1, 33, 64, 129};
    for (size_t i = 0; i < 4 * 3 * MG_N_PACK; i++)
        for (size_t at = 0; at < k[i % 4]; at += at + 9 < k[i % 4] && at > 4 ? 8 : 1)
            for (size_t c = 0; c < 32; c += 31) {
                fill(k[i % 4], 32, 0);
                assert_true(pack((enum mg_pack)(i / 12), k[i % 4]));
                value[c][at] = bad[i / 4 % 3];
                assert_false(pack((enum mg_pack)(i / 12), k[i % 4]));
            }
}

/* Nothing of what was in the panel before is left. */
static void test_same_bytes(void **state) {
    (void)state;
    static uint8_t before[MAX_PANEL];
    for (int kind = 0; kind < MG_N_PACK; kind++) {
        size_t bytes = mg_packed_panel_bytes((enum mg_pack)kind, 100);
        assert_int_equal(bytes, 2 * (kind == MG_PACK_INT8 ? 2048 : 1088));
        fill(100, 19, 1);
        assert_true(pack((enum mg_pack)kind, 100));
        memcpy(before, panel, sizeof before);
        memset(panel, 0x5A, sizeof panel);
        assert_true(mg_pack_panel((enum mg_pack)kind, row, 100, panel, scale, sum, error));
        assert_memory_equal(panel, before, bytes);
        assert_int_equal(panel[bytes], 0x5A);
        assert_int_equal(before[bytes], 0xA5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8),      cmocka_unit_test(test_int8_rounding),
        cmocka_unit_test(test_int4),      cmocka_unit_test(test_int4_exact),
        cmocka_unit_test(test_zeros),     cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_same_bytes)};
    return cmocka_run_group_tests_name("weights.pack", tests, NULL, NULL);
}
