/* The JSON writer: commas, escapes, numbers that come back, a full buffer, memory that fails. */
#include "alloc.h"
#include "api/json_write.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void commas_and_nesting(void **state) {
    struct mg_buf b = {0};
    struct mg_jwrite j = {.out = &b};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "a", "x");
    mg_jwrite_kstr(&j, "b", NULL);
    mg_jwrite_key(&j, "c");
    mg_jwrite_open(&j, '[');
    mg_jwrite_open(&j, '{');
    mg_jwrite_close(&j, '}');
    mg_jwrite_open(&j, '[');
    mg_jwrite_close(&j, ']');
    mg_jwrite_int(&j, INT64_MIN);
    mg_jwrite_uint(&j, UINT64_MAX);
    mg_jwrite_bool(&j, true);
    mg_jwrite_null(&j);
    mg_jwrite_close(&j, ']');
    mg_jwrite_kbool(&j, "d", false);
    mg_jwrite_knull(&j, "e");
    mg_jwrite_kint(&j, "f", -1);
    mg_jwrite_kuint(&j, "g", 2);
    mg_jwrite_kfixed(&j, "h", 2.5, 3);
    mg_jwrite_close(&j, '}');
    assert_string_equal((char *)b.data,
                        "{\"a\":\"x\",\"b\":null,\"c\":[{},[],-9223372036854775808,"
                        "18446744073709551615,true,null],\"d\":false,\"e\":null,\"f\":-1,\"g\":2,"
                        "\"h\":2.5}");
    mg_buf_free(&b);
}

static void strings(void **state) {
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } c[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xE2\x80\xA8\xE2\x80\xA9", 6, "\"\xE2\x80\xA8\xE2\x80\xA9\""},
        {"\xF0\x9F\x98\x80\xC3\xA9", 6, "\"\xF0\x9F\x98\x80\xC3\xA9\""},
        {"a\xFF"
         "b",
         3,
         "\"a\xEF\xBF\xBD"
         "b\""},
        {"\xC3", 1, "\"\xEF\xBF\xBD\""},
        {"\xF0\x9F\x98", 3, "\"\xEF\xBF\xBD\""},
        {"\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"\xC0\xAF", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"\xE2\x80"
         "a",
         3,
         "\"\xEF\xBF\xBD"
         "a\""},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_buf b = {0};
        struct mg_jwrite j = {.out = &b};
        mg_jwrite_string(&j, c[i].text, c[i].n);
        assert_string_equal((char *)b.data, c[i].want);
        json_t *back = json_loads((char *)b.data, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(back);
        json_decref(back);
        mg_buf_free(&b);
    }
}

static void numbers_come_back(void **state) {
    uint64_t seed = 88172645463325252u;
    struct mg_buf b = {0};
    for (int i = 0; i < 20000; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        double x;
        memcpy(&x, &seed, sizeof x);
        if (i < 2000) x = (double)(seed % 100000) / 1000;
        struct mg_jwrite j = {.out = &b};
        b.n = 0;
        mg_jwrite_real(&j, x);
        if (!isfinite(x)) {
            assert_string_equal((char *)b.data, "null");
            continue;
        }
        assert_true(strtod((char *)b.data, NULL) == x);
        assert_int_equal(strspn((char *)b.data, "0123456789+-.e"), b.n);
        if (i < 2000) assert_true(b.n <= 6);
    }
    static const struct {
        double x;
        const char *real, *fixed;
    } c[] = {
        {0, "0", "0"},
        {-0.0, "-0", "0"},
        {0.1, "0.1", "0.1"},
        {1e300, "1e+300", "1e+300"},
        {NAN, "null", "null"},
        {INFINITY, "null", "null"},
        {-INFINITY, "null", "null"},
        {1234.5678, "1234.5678", "1234.568"},
        {1200, "1200", "1200"},
        {100, "100", "100"},
        {-0.0001, "-0.0001", "0"},
        {0.9996, "0.9996", "1"},
        {DBL_MIN, "2.2250738585072014e-308", "0"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_jwrite j = {.out = &b};
        b.n = 0;
        mg_jwrite_real(&j, c[i].x);
        assert_string_equal((char *)b.data, c[i].real);
        j.comma = false;
        b.n = 0;
        mg_jwrite_fixed(&j, c[i].x, 3);
        assert_string_equal((char *)b.data, c[i].fixed);
    }
    mg_buf_free(&b);
}

static void write_some(struct mg_buf *b) {
    struct mg_jwrite j = {.out = b};
    mg_jwrite_open(&j, '{');
    for (int i = 0; i < 200; i++) mg_jwrite_kstr(&j, "key", "some \"text\"\n");
    mg_jwrite_close(&j, '}');
}

static void a_full_buffer_is_remembered(void **state) {
    struct mg_buf b = {.max = 500};
    write_some(&b);
    assert_true(b.failed && b.n <= 500);
    mg_buf_free(&b);
    size_t n = 0;
    for (bool failed = true; failed; n++) {
        alloc_fail_at(n);
        write_some(&b);
        failed = alloc_has_failed();
        alloc_fail_at(SIZE_MAX);
        b.max = 0;
        mg_buf_free(&b);
        if (!failed) break;
        struct mg_buf again = {0};
        alloc_fail_at(n);
        write_some(&again);
        assert_true(again.failed);
        alloc_fail_at(SIZE_MAX);
        mg_buf_free(&again);
    }
    assert_true(n > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_and_nesting),
        cmocka_unit_test(strings),
        cmocka_unit_test(numbers_come_back),
        cmocka_unit_test(a_full_buffer_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
