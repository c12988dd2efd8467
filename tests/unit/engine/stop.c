/* Stop strings (row 36 of the known faults): by hand, and against a search over the whole text. */
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mg_stop *open_stop(const char *const *stop, size_t n) {
    struct mg_stop *s;
    assert_int_equal(mg_stop_open(stop, n, &s, NULL), MG_OK);
    return s;
}

/* Feeds pieces, joined by '/', and gives what came out after each, joined likewise. */
static void check(const char *const *stop, size_t n_stop, const char *pieces, const char *want) {
    struct mg_stop *s = open_stop(stop, n_stop);
    struct mg_buf out = {0}, shown = {0};
    bool stopped = false;
    for (const char *p = pieces;;) {
        size_t n = strcspn(p, "/");
        out.n = 0;
        assert_true(mg_stop_add(s, p, n, &out, &stopped));
        mg_buf_add(&shown, out.data, out.n);
        mg_buf_add_byte(&shown, '/');
        if (p[n] == '\0') break;
        p += n + 1;
    }
    out.n = 0;
    assert_true(mg_stop_flush(s, &out));
    mg_buf_add(&shown, out.data, out.n);
    if (stopped) mg_buf_add_str(&shown, "!");
    assert_string_equal((char *)shown.data, want);
    mg_buf_free(&out);
    mg_buf_free(&shown);
    mg_stop_close(s);
}

static void by_hand(void **state) {
    (void)state;
    static const char *fox[] = {"own fox"};
    check(fox, 1, "The/ quick/ brown/ fox", "The/ quick/ br//!");
    check(fox, 1, "The quick brown fox jumps/ on", "The quick br//!");
    check(fox, 1, "The quick brown/ cat", "The quick br/own cat/");
    check(fox, 1, "The quick brown fo", "The quick br/own fo");
    check(NULL, 0, "any/thing", "any/thing/");
    static const char *two[] = {"bc", "abcd"};
    check(two, 2, "xa/b/c/d", "x//a//!"); /* bc is complete first, the a before it is text */
    static const char *ends[] = {"c", "abc", "bc"};
    check(ends, 3, "xa/b/cd", "x///!"); /* three end at one byte: the longest */
    static const char *border[] = {"aab"};
    check(border, 1, "a/a/a/a/b", "//a/a//!");
    static const char *line[] = {"\n\n"};
    check(line, 1, "one\n/two\n/\nthree", "one/\ntwo//!");
    static const char *han[] = {"\xE5\xA5\xBD"}; /* shares its first bytes with E5 A5 B6 */
    check(han, 1, "\xE5\xA5\xB6/\xE5/\xA5/\xBD", "\xE5\xA5\xB6////!");
}

static void held_back_text_is_a_beginning_only(void **state) {
    (void)state;
    static const char *stop[] = {"<answer>"};
    check(stop, 1, "a < b, a <b, <", "a < b, a <b, /<");
    check(stop, 1, "<answer", "/<answer");
    check(stop, 1, "<<<<", "<<</<");
}

static void wrong_ones_are_refused(void **state) {
    (void)state;
    char longest[MG_MAX_STOP_BYTES + 2];
    memset(longest, 'a', sizeof longest);
    longest[MG_MAX_STOP_BYTES + 1] = '\0';
    const char *many[MG_MAX_STOP + 1];
    for (size_t i = 0; i <= MG_MAX_STOP; i++) many[i] = longest + 1;
    struct mg_stop *s;
    static const struct {
        const char *stop[2];
        size_t n;
    } wrong[] = {{{"a", ""}, 2}, {{NULL}, 1}, {{"\xA5\xBD"}, 1}};
    for (size_t i = 0; i < 3; i++) {
        struct mg_err err = {0};
        assert_int_equal(mg_stop_open(wrong[i].stop, wrong[i].n, &s, &err), MG_ERR_ARGUMENT);
        assert_null(s);
        assert_non_null(strstr(err.text, "at most 16 strings of 1 to 1024"));
    }
    const char *too_long[] = {longest};
    assert_int_equal(mg_stop_open(too_long, 1, &s, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_stop_open(many, MG_MAX_STOP + 1, &s, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_stop_open(many, MG_MAX_STOP, &s, NULL), MG_OK);
    struct mg_buf out = {0};
    bool stopped;
    assert_true(mg_stop_add(s, "b", 1, &out, &stopped));
    assert_true(mg_stop_add(s, longest + 2, MG_MAX_STOP_BYTES - 1, &out, &stopped));
    assert_false(stopped);
    assert_int_equal(out.n, 1);
    assert_true(mg_stop_add(s, "a", 1, &out, &stopped));
    assert_true(stopped);
    assert_int_equal(out.n, 1);
    assert_int_equal(mg_stop_which(s), 0);
    mg_stop_close(s);
    mg_stop_close(NULL);
    mg_buf_free(&out);
}

static uint64_t random_state = 7;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* The definition: the first end of any stop string, and of those the longest. The length of the
 * text before it, or n. */
static size_t search(const char *text, size_t n, char stop[][12], size_t n_stop, bool *found) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stop; i++) {
            size_t k = strlen(stop[i]);
            if (k <= end && k > longest && memcmp(text + end - k, stop[i], k) == 0) longest = k;
        }
        *found = longest > 0;
        if (*found) return end - longest;
    }
    return n;
}

/* The most bytes at the end of the text that begin a stop string. */
static size_t begun(const char *text, size_t n, char stop[][12], size_t n_stop) {
    size_t most = 0;
    for (size_t i = 0; i < n_stop; i++)
        for (size_t k = strlen(stop[i]) - 1; k > most; k--)
            if (k <= n && memcmp(text + n - k, stop[i], k) == 0) most = k;
    return most;
}

static void against_a_whole_search(void **state) {
    (void)state;
    size_t n_found = 0;
    for (int round = 0; round < 60000; round++) {
        char stop[MG_MAX_STOP][12], text[81];
        const char *list[MG_MAX_STOP];
        size_t n_stop = 1 + random_below(round % 10 ? 4 : MG_MAX_STOP), n = random_below(80);
        uint32_t letters = 1 + random_below(3);
        for (size_t i = 0; i < n_stop; i++) {
            size_t k = 1 + random_below(11);
            for (size_t j = 0; j < k; j++) stop[i][j] = (char)('a' + random_below(letters));
            stop[i][k] = '\0';
            list[i] = stop[i];
        }
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + random_below(letters));
        bool found = false, stopped = false;
        size_t want = search(text, n, stop, n_stop, &found);
        struct mg_stop *s = open_stop(list, n_stop);
        struct mg_buf out = {0};
        for (size_t at = 0; at < n;) {
            size_t k = mg_min_size(random_below(9), n - at);
            assert_true(mg_stop_add(s, text + at, k, &out, &stopped));
            at += k;
            if (!stopped) assert_int_equal(out.n, at - begun(text, at, stop, n_stop));
        }
        assert_true(mg_stop_flush(s, &out));
        if (stopped != found || out.n != want ||
            memcmp(out.data ? (char *)out.data : "", text, want))
            fail_msg("round %d: %zu bytes and %d, wanted %zu and %d", round, out.n, stopped, want,
                     found);
        n_found += found;
        mg_buf_free(&out);
        mg_stop_close(s);
    }
    assert_in_range(n_found, 20000, 55000); /* both outcomes were tried */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(held_back_text_is_a_beginning_only),
        cmocka_unit_test(wrong_ones_are_refused),
        cmocka_unit_test(against_a_whole_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
