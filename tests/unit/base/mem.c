/* Checked sizes, aligned blocks, capped buffer, id list, arena. */
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void products_and_sums_are_checked(void **state) {
    size_t v = 7;
    assert_true(mg_mul_size(1 << 20, 1 << 20, &v));
    assert_int_equal(v, (size_t)1 << 40);
    v = 7;
    assert_false(mg_mul_size((size_t)1 << 32, (size_t)1 << 32, &v)); /* wraps to 0 */
    assert_int_equal(v, 7);
    assert_false(mg_mul_size(SIZE_MAX / 2 + 1, 2, &v));
    assert_true(mg_mul_size(SIZE_MAX / 2, 2, &v));
    v = 7;
    assert_false(mg_add_size(SIZE_MAX, 1, &v));
    assert_int_equal(v, 7);
    assert_true(mg_add_size(SIZE_MAX, 0, &v));
    assert_int_equal(mg_round_up(0, 64), 0);
    assert_int_equal(mg_round_up(65, 64), 128);
}

static void blocks_are_aligned_and_never_wrap(void **state) {
    for (size_t n = 0; n < 200; n += 13) {
        unsigned char *p = mg_alloc_zero(n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(p[i], 0);
        free(p);
    }
    assert_null(mg_alloc((size_t)1 << 32, (size_t)1 << 32));
    assert_null(mg_alloc(SIZE_MAX, 1));
    assert_null(mg_alloc_zero(SIZE_MAX - 10, 1));
    char *p = mg_realloc(NULL, 3, 1);
    memcpy(p, "ab", 3);
    assert_null(mg_realloc(p, SIZE_MAX / 2, 3)); /* and leaves the block */
    assert_string_equal(p, "ab");
    p = mg_realloc(p, 1000, 5);
    assert_string_equal(p, "ab");
    free(p);
}

static void buffer_keeps_its_cap(void **state) {
    struct mg_buf b = {.max = 10};
    assert_true(mg_buf_add_str(&b, "12345"));
    assert_true(mg_buf_printf(&b, "%d", 678));
    assert_true(mg_buf_add_byte(&b, '9'));
    assert_int_equal(b.n, 9);
    assert_string_equal((char *)b.data, "123456789");
    assert_false(mg_buf_add_str(&b, "ab"));
    assert_true(b.failed);
    assert_false(mg_buf_add_byte(&b, 'a')); /* sticky although it would fit */
    assert_string_equal((char *)b.data, "123456789");
    mg_buf_free(&b);
    assert_int_equal(b.max, 10);
    assert_false(b.failed);
    assert_true(mg_buf_add_str(&b, "1234567890")); /* exactly the cap */
    assert_int_equal(b.data[10], 0);
    mg_buf_free(&b);
}

static void buffer_refuses_sizes_that_wrap(void **state) {
    struct mg_buf b = {.max = SIZE_MAX};
    assert_false(mg_buf_reserve(&b, SIZE_MAX));
    mg_buf_free(&b);
    assert_true(mg_buf_add(&b, "x", 1));
    assert_false(mg_buf_reserve(&b, SIZE_MAX));
    mg_buf_free(&b);
    struct mg_buf by_default = {0};
    assert_false(mg_buf_reserve(&by_default, ((size_t)1 << 30) + 1)); /* 1 GiB */
    mg_buf_free(&by_default);
}

static void buffer_grows_and_stays_terminated(void **state) {
    struct mg_buf b = {0};
    for (int i = 0; i < 5000; i++) {
        assert_true(mg_buf_add_byte(&b, (uint8_t)('a' + i % 26)));
        assert_int_equal(strlen((char *)b.data), i + 1);
        if (i > 100) i += 37, mg_buf_printf(&b, "%37s", ""), assert_int_equal(b.n, i + 1);
    }
    mg_buf_free(&b);
    assert_true(mg_buf_add(&b, NULL, 0)); /* nothing from nowhere is fine, and terminates */
    assert_int_equal(b.data[0], 0);
    mg_buf_free(&b);
}

static void id_list(void **state) {
    struct mg_ids ids = {0};
    for (int32_t i = 0; i < 1000; i++) assert_true(mg_ids_add(&ids, i * 3));
    assert_int_equal(ids.n, 1000);
    for (int32_t i = 0; i < 1000; i++) assert_int_equal(ids.id[i], i * 3);
    assert_false(mg_ids_reserve(&ids, SIZE_MAX));
    assert_false(mg_ids_reserve(&ids, SIZE_MAX / 4));
    assert_int_equal(ids.id[999], 2997);
    mg_ids_free(&ids);
    assert_null(ids.id);
}

static void arena_is_aligned_and_separate(void **state) {
    struct mg_arena a = {.chunk_size = 1000};
    unsigned char *block[300];
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)(i * 7 % 260); /* 0 bytes too; larger than a chunk now and then */
        if (i % 50 == 49) n = 5000;
        block[i] = mg_arena_alloc(&a, n, 1);
        assert_non_null(block[i]);
        assert_int_equal((uintptr_t)block[i] % 64, 0);
        memset(block[i], i & 255, n);
    }
    for (int i = 0; i < 300; i++) {
        size_t n = i % 50 == 49 ? 5000 : (size_t)(i * 7 % 260);
        for (size_t j = 0; j < n; j++) assert_int_equal(block[i][j], i & 255);
    }
    assert_true(a.used >= 6 * 5000);
    assert_null(mg_arena_alloc(&a, (size_t)1 << 33, (size_t)1 << 31));
    assert_null(mg_arena_alloc(&a, SIZE_MAX, 1));
    assert_string_equal(mg_arena_strdup(&a, "abcdef", 3), "abc");
    mg_arena_free(&a);
    assert_int_equal(a.used, 0);
    assert_int_equal(a.chunk_size, 1000);
    assert_non_null(mg_arena_alloc(&a, 1, 1)); /* usable again */
    mg_arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_sums_are_checked),
        cmocka_unit_test(blocks_are_aligned_and_never_wrap),
        cmocka_unit_test(buffer_keeps_its_cap),
        cmocka_unit_test(buffer_refuses_sizes_that_wrap),
        cmocka_unit_test(buffer_grows_and_stays_terminated),
        cmocka_unit_test(id_list),
        cmocka_unit_test(arena_is_aligned_and_separate),
    };
    return cmocka_run_group_tests_name("base.mem", tests, NULL, NULL);
}
