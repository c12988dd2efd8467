/* Work per picture and token of the published 2B shapes, against the figures of docs/speed.md
 * (counted by hand there), and of a small shape against loops that count one by one. */
#include "model/work.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct mg_text_config text_2b = {.hidden = 2048,
                                              .n_layer = 28,
                                              .n_head = 16,
                                              .n_head_kv = 8,
                                              .head_dim = 128,
                                              .ffn = 6144,
                                              .n_vocab = 151936};
static const struct mg_vision_config vision_2b = {.hidden = 1024,
                                                  .depth = 24,
                                                  .n_head = 16,
                                                  .ffn = 4096,
                                                  .patch = 16,
                                                  .temporal = 2,
                                                  .merge = 2,
                                                  .out = 2048,
                                                  .in_channels = 3,
                                                  .n_deepstack = 3};

/* `got` rounds to `want` in the digits that `want` is given in. */
static void assert_near(double got, double want, double half_digit) {
    if (!(fabs(got - want) <= half_digit)) fail_msg("%.4f, wanted %.4f", got, want);
}

static void test_vision_2b(void **state) {
    (void)state;
    struct mg_work w = mg_work_vision(&vision_2b, 676);
    assert_near(w.linear * 1e-9, 408, 0.5);
    assert_near(w.attention * 1e-9, 45, 0.5);
    assert_near(w.merger * 1e-9, 34, 0.5);
    assert_near(w.n_exp * 1e-6, 175, 0.6);
    assert_near(w.n_gelu * 1e-6, 66, 0.5);
    assert_near(w.patch * 1e-9, 2.13, 0.005); /* 2 * 676 * 1536 * 1024 */
    assert_near(mg_work_total(&w), w.linear + w.attention + w.merger + w.patch, 1);
    /* 1200 x 800 becomes 1216 x 800: 3,800 patches, of 3.9 TFLOP 1.4 are attention. */
    w = mg_work_vision(&vision_2b, 3800);
    assert_near(mg_work_total(&w) * 1e-12, 3.9, 0.05);
    assert_near(w.attention * 1e-12, 1.4, 0.05);
}

static void test_prefill_2b(void **state) {
    (void)state;
    struct mg_work w = mg_work_prefill(&text_2b, 0, 200);
    assert_near(w.linear * 1e-9, 564, 0.5);
    assert_near(w.attention * 1e-9, 5, 0.5);
    assert_near(w.head * 1e-9, 0.622, 0.001); /* 2 * 2048 * 151936 */
    /* Two halves do the work of the whole, and one head more. */
    struct mg_work a = mg_work_prefill(&text_2b, 0, 80), b = mg_work_prefill(&text_2b, 80, 120);
    assert_near(a.linear + b.linear, w.linear, 1);
    assert_near(a.attention + b.attention, w.attention, 1);
}

static void test_bytes_2b(void **state) {
    (void)state;
    /* scale and sum of weights, 4 bytes each, per channel; keys and values in bf16, 200 tokens */
    struct mg_weight_bits int8 = {.linear = 8, .head = 8, .per_channel = 64, .kv = 16};
    struct mg_weight_bits int4 = {.linear = 4.25, .head = 8, .per_channel = 64, .kv = 16};
    struct mg_weight_bits bf16 = {.linear = 16, .head = 16, .kv = 16};
    assert_near(mg_bytes_per_token(&text_2b, &int8, 200) * 1e-9, 1.75, 0.005);
    assert_near(mg_bytes_per_token(&text_2b, &int4, 200) * 1e-9, 1.1, 0.05);
    assert_near(mg_bytes_per_token(&text_2b, &bf16, 200) * 1e-9, 3.47, 0.008);
    struct mg_weight_bits head = {.head = 8};
    assert_near(mg_bytes_per_token(&text_2b, &head, 0) * 1e-9, 0.31, 0.005);
}

/* Layers 0 to 3 and 27 are 8 bit in an int4 file, and v in the others: weights/recipe.h. */
static void test_bits_2b(void **state) {
    (void)state;
    struct mg_weight_bits bits = mg_work_bits(&text_2b, MG_FILE_INT4);
    double v = 1024.0 * 2048, others = 2048.0 * (2048 + 1024 + 2048 + 3 * 6144);
    double want = (5 * (v + others) * 8 + 23 * (v * 8 + others * 4.25)) / (28 * (v + others));
    assert_near(bits.linear, want, 1e-9);
    assert_true(bits.head == 8 && bits.per_channel == 64 && bits.kv == 16);
    bits = mg_work_bits(&text_2b, MG_FILE_INT8);
    assert_near(mg_bytes_per_token(&text_2b, &bits, 200) * 1e-9, 1.75, 0.005);
    bits = mg_work_bits(&text_2b, MG_FILE_BF16);
    assert_near(mg_bytes_per_token(&text_2b, &bits, 200) * 1e-9, 3.47, 0.008);
}

/* Another shape, counted one product at a time. */
static void test_small_by_counting(void **state) {
    (void)state;
    struct mg_text_config t = {.hidden = 6,
                               .n_layer = 3,
                               .n_head = 4,
                               .n_head_kv = 2,
                               .head_dim = 5,
                               .ffn = 7,
                               .n_vocab = 11};
    size_t old = 4, fresh = 5, linear = 0, attention = 0, exps = 0, gates = 0, bits = 0;
    size_t shape[7][2] = {{20, 6}, {10, 6}, {10, 6}, {6, 20}, {7, 6}, {7, 6}, {6, 7}};
    for (size_t l = 0; l < t.n_layer; l++) {
        for (size_t m = 0; m < 7; m++) {
            bits += shape[m][0] * shape[m][1] * 8 + shape[m][0] * 64;
            for (size_t row = 0; row < fresh; row++) linear += 2 * shape[m][0] * shape[m][1];
        }
        bits += 2 * t.n_head_kv * t.head_dim * old * 16;
        for (size_t row = 0; row < fresh; row++) {
            gates += t.ffn;
            for (size_t h = 0; h < t.n_head; h++)
                for (size_t key = 0; key <= old + row; key++) attention += 4 * t.head_dim, exps++;
        }
    }
    bits += t.n_vocab * t.hidden * 8 + t.n_vocab * 64;
    struct mg_work w = mg_work_prefill(&t, old, fresh);
    struct mg_weight_bits int8 = {.linear = 8, .head = 8, .per_channel = 64, .kv = 16};
    assert_true(w.linear == (double)linear && w.attention == (double)attention);
    assert_true(w.n_exp == (double)exps && w.n_gelu == (double)gates && w.head == 2 * 6 * 11);
    assert_true(mg_bytes_per_token(&t, &int8, old) * 8 == (double)bits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vision_2b),         cmocka_unit_test(test_prefill_2b),
        cmocka_unit_test(test_bytes_2b),          cmocka_unit_test(test_bits_2b),
        cmocka_unit_test(test_small_by_counting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
