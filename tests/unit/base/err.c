/* Filling in struct mg_err: the first failure stays, prefixes, cuts between characters. */
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Whole characters only (what the tests put in is valid). */
static void assert_utf8(const char *s) {
    size_t n = strlen(s), i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        size_t k = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        assert_true(i + k <= n);
        for (size_t j = 1; j < k; j++) assert_int_equal((unsigned char)s[i + j] & 0xC0, 0x80);
        i += k;
    }
}

static void first_failure_stays(void **state) {
    struct mg_err err = {0};
    assert_int_equal(mg_fail(&err, MG_ERR_FORMAT, "image_truncated", "ends after %d bytes", 12),
                     MG_ERR_FORMAT);
    assert_int_equal(mg_fail(&err, MG_ERR_IO, "other", "later"),
                     MG_ERR_IO); /* its own status comes back */
    assert_int_equal(err.status, MG_ERR_FORMAT);
    assert_string_equal(err.code, "image_truncated");
    assert_string_equal(err.text, "ends after 12 bytes");
    mg_err_clear(&err);
    assert_int_equal(err.status, MG_OK);
    assert_int_equal(mg_fail_memory(&err, "merges"), MG_ERR_MEMORY);
    assert_string_equal(err.text, "out of memory (merges)");
    assert_int_equal(mg_fail(NULL, MG_ERR_LIMIT, "", "nobody listens"), MG_ERR_LIMIT);
    mg_err_prefix(NULL, "x");
    mg_err_clear(NULL);
}

static void errno_becomes_a_status(void **state) {
    static const struct {
        int errnum;
        enum mg_status want;
    } row[] = {{ENOENT, MG_ERR_NOT_FOUND},
               {ENOTDIR, MG_ERR_NOT_FOUND},
               {ENOMEM, MG_ERR_MEMORY},
               {EACCES, MG_ERR_IO},
               {ENOSPC, MG_ERR_IO}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_err err = {0};
        assert_int_equal(mg_fail_errno(&err, "open", "some/file", row[i].errnum), row[i].want);
        assert_non_null(strstr(err.text, "can't open some/file: "));
        assert_non_null(strstr(err.text, strerror(row[i].errnum)));
    }
}

static void prefix_is_put_before(void **state) {
    struct mg_err err = {0};
    mg_err_prefix(&err, "nothing to prefix");
    assert_string_equal(err.text, "");
    mg_fail(&err, MG_ERR_FORMAT, "c", "bad");
    mg_err_prefix(&err, "%s %d", "file", 3);
    assert_string_equal(err.text, "file 3: bad");
    assert_string_equal(err.code, "c");
    assert_int_equal(err.status, MG_ERR_FORMAT);
}

static void long_texts_are_cut_between_characters(void **state) {
    static const char *const unit[] = {"a", "\xC3\xA4", "\xE6\xBC\xA2", "\xF0\x9F\x8C\x8A"};
    for (size_t shift = 0; shift < 5; shift++)
        for (size_t u = 0; u < 4; u++) {
            char long_text[2000] = "";
            memset(long_text, 'x', shift);
            for (size_t n = shift; n + 4 < sizeof long_text - 1; n += strlen(unit[u]))
                strcpy(long_text + n, unit[u]);
            struct mg_err err = {0};
            mg_fail(&err, MG_ERR_FORMAT, "a_code_that_is_longer_than_31_bytes", "%s", long_text);
            assert_int_equal(strlen(err.code), 31);
            assert_true(strlen(err.text) > sizeof err.text - 6);
            assert_utf8(err.text);
            mg_err_prefix(&err, "%s", long_text); /* both the prefix and the whole are cut */
            assert_true(strlen(err.text) > sizeof err.text - 6);
            assert_utf8(err.text);
            assert_non_null(strstr(err.text, ": "));
        }
}

static void control_characters_are_shown_as_marks(void **state) {
    struct mg_err err = {0};
    mg_fail(&err, MG_ERR_FORMAT, "c", "%s", "a\033[31m\nb\x7F\xC2\x9B\xC2\xA9\xC2");
    assert_string_equal(err.text, "a?[31m?b???\xC2\xA9\xC2");
    mg_err_prefix(&err, "%s", "x\r");
    assert_string_equal(err.text, "x?: a?[31m?b???\xC2\xA9\xC2");
}

static void every_status_has_a_name(void **state) {
    for (int i = MG_OK; i <= MG_ERR_MEMORY; i++) {
        assert_string_not_equal(mg_status_name((enum mg_status)i), "unknown status");
        for (int j = MG_OK; j < i; j++)
            assert_string_not_equal(mg_status_name((enum mg_status)i),
                                    mg_status_name((enum mg_status)j));
    }
    assert_string_equal(mg_status_name((enum mg_status)99), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_stays),
        cmocka_unit_test(errno_becomes_a_status),
        cmocka_unit_test(prefix_is_put_before),
        cmocka_unit_test(long_texts_are_cut_between_characters),
        cmocka_unit_test(control_characters_are_shown_as_marks),
        cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests_name("base.err", tests, NULL, NULL);
}
