/* The streaming detokenizer (fault 32): joined, its output is the whole decoded at once, however
 * the bytes come. */
#include "support.h"

#include <string.h>

/* The right column is what a decoder makes that writes one U+FFFD per longest piece that could have
 * begun a character (Rust's from_utf8_lossy, Python's errors="replace"); recorded with Python. */
#define R "\xEF\xBF\xBD"
static const struct {
    const char *bytes, *want;
} row[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xF0\x9F\x8C\x8A\xF0\x9F\x8F\x96\xEF\xB8\x8F\xF0\xA0\xAE\xB7\xE9\xBE\x98",
     "\xF0\x9F\x8C\x8A\xF0\x9F\x8F\x96\xEF\xB8\x8F\xF0\xA0\xAE\xB7\xE9\xBE\x98"},
    {"\x80", R},
    {"\x80\x80"
     "a",
     R R "a"},
    {"\xC3", R},
    {"\xC3"
     "a",
     R "a"},
    {"\xC0\x80", R R},
    {"\xC1\xBF", R R},
    {"\xE4", R},
    {"\xE4\xB8", R},
    {"\xE4\xB8"
     "a",
     R "a"},
    {"\xE4\xB8\xE4\xB8\xAD", R "\xE4\xB8\xAD"},
    {"\xE4\xE4\xB8\xAD", R "\xE4\xB8\xAD"},
    {"\xE0\x80\xAF", R R R},
    {"\xE0\xA0", R},
    {"\xED\xA0\x80", R R R},
    {"\xED\x9F\xBF", "\xED\x9F\xBF"},
    {"\xF0\x9F\x8C", R},
    {"\xF0\x9F\x8C\xF0\x9F\x8C\x8A", R "\xF0\x9F\x8C\x8A"},
    {"\xF0\x9F"
     "a\x8C\x8A",
     R "a" R R},
    {"\xF0\x80\x80\x80", R R R R},
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    {"\xF4\x90\x80\x80", R R R R},
    {"\xF5\x80\x80\x80", R R R R},
    {"\xFF\xFE\xFD", R R R},
    {"a\xE4\xB8\xAD\xE4\xB8", "a\xE4\xB8\xAD" R},
    {"\xE2\x82\xAC\xE2\x82", "\xE2\x82\xAC" R},
    {R, R},
};

static void check(const char *bytes, size_t n, const size_t *cut, size_t n_cut, const char *want) {
    struct mg_detok d = {0};
    struct mg_buf out = {0};
    size_t from = 0;
    for (size_t i = 0; i <= n_cut; i++) {
        size_t to = i < n_cut ? cut[i] : n;
        assert_true(
            mg_detok_add(&d, (struct mg_slice){(const uint8_t *)bytes + from, to - from}, &out));
        from = to;
        /* What is out so far ends with a whole character: the last one has all its bytes. */
        size_t k = 0;
        while (k < out.n && k < 4 && (out.data[out.n - 1 - k] & 0xC0) == 0x80) k++;
        if (out.n) {
            uint8_t lead = out.data[out.n - 1 - k];
            assert_int_equal(k, lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0);
        }
    }
    assert_true(mg_detok_flush(&d, &out));
    assert_int_equal(out.n, strlen(want));
    assert_string_equal((char *)out.data, want);
    mg_buf_free(&out);
}

static void every_two_cuts(void **state) {
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        size_t n = strlen(row[r].bytes);
        check(row[r].bytes, n, NULL, 0, row[r].want);
        for (size_t a = 0; a <= n; a++)
            for (size_t b = a; b <= n; b++)
                check(row[r].bytes, n, (size_t[]){a, b}, 2, row[r].want);
    }
}

static void byte_by_byte(void **state) {
    size_t cut[64];
    for (size_t i = 0; i < 64; i++) cut[i] = i + 1;
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        size_t n = strlen(row[r].bytes);
        check(row[r].bytes, n, cut, n, row[r].want);
    }
}

/* One character after another comes out as soon as it can, and not before. */
static void no_delay(void **state) {
    static const char wave[] = "\xF0\x9F\x8C\x8A";
    struct mg_detok d = {0};
    struct mg_buf out = {0};
    for (size_t round = 1; round <= 3; round++)
        for (size_t i = 0; i < 4; i++) {
            assert_true(mg_detok_add(&d, (struct mg_slice){(const uint8_t *)wave + i, 1}, &out));
            assert_int_equal(out.n, i < 3 ? 4 * (round - 1) : 4 * round);
        }
    assert_true(mg_detok_flush(&d, &out));
    assert_int_equal(out.n, 12);
    mg_buf_free(&out);
}

static void full_buffer(void **state) {
    struct mg_detok d = {0};
    struct mg_buf out = {.max = 4};
    assert_false(mg_detok_add(&d, (struct mg_slice){(const uint8_t *)"abcde", 5}, &out));
    mg_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_cuts),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(no_delay),
        cmocka_unit_test(full_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
