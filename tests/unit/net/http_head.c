/* Request heads and chunked bodies: what is taken, what is refused with which status, and that cuts
 * don't matter. */
#include "net/http_chunk.h"
#include "net/http_head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define H "Host: x\r\n"

static const struct {
    const char *text, *method, *path, *query;
    size_t n_field;
    enum mg_http_framing framing;
    uint64_t length;
    bool keep_alive, expect, upgrade;
} good[] = {
    {"GET / HTTP/1.1\r\n" H "\r\n", "GET", "/", "", 1, .keep_alive = true},
    {"\r\nGET /a/b?c=d?e HTTP/1.1\r\nhost:x\r\n\r\n", "GET", "/a/b", "c=d?e", 1,
     .keep_alive = true},
    {"GET / HTTP/1.0\r\n\r\n", "GET", "/", "", 0},
    {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET", "/", "", 1, .keep_alive = true},
    {"GET /? HTTP/1.1\r\n" H "Connection: x, CLOSE ,y\r\n\r\n", "GET", "/", "", 2},
    {"M-X!~ /%00%ff HTTP/1.9\r\n" H "\r\n", "M-X!~", "/%00%ff", "", 1, .keep_alive = true},
    {"GET http://h:80/p?q HTTP/1.1\r\n" H "\r\n", "GET", "/p", "q", 1, .keep_alive = true},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS", "", "", 1, .keep_alive = true},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "POST", "/", "", 2, .keep_alive = true},
    {"POST / HTTP/1.1\r\n" H "content-LENGTH:\t 123456789012345678 \t\r\n\r\n", "POST", "/", "", 2,
     MG_HTTP_LENGTH, 123456789012345678, .keep_alive = true},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: CHUNKED\r\nExpect: 100-Continue\r\n\r\n", "POST",
     "/", "", 3, MG_HTTP_CHUNKED, .keep_alive = true, .expect = true},
    {"GET / HTTP/1.1\r\n" H "Connection: keep-alive\r\nConnection: Upgrade\r\n\r\n", "GET", "/", "",
     3, .keep_alive = true, .upgrade = true},
    {"GET / HTTP/1.1\r\nHost:\r\nA:\r\nB: \xC3\xA9\tx\r\n\r\n", "GET", "/", "", 3,
     .keep_alive = true},
};

static const struct {
    const char *text;
    int status;
} bad[] = {
    {"\r\n\r\n", 400},
    {" GET / HTTP/1.1\r\n", 400},
    {"GET  / HTTP/1.1\r\n", 400},
    {"GET /  HTTP/1.1\r\n", 400},
    {"GET / HTTP/1.1 \r\n", 400},
    {"GET\t/ HTTP/1.1\r\n", 400},
    {"GET /\r\n", 400},
    {"GET\r\n", 400},
    {"G(T / HTTP/1.1\r\n", 400},
    {"ABCDEFGHIJKLMNOPQRSTU / HTTP/1.1\r\n", 400},
    {"GET x HTTP/1.1\r\n", 400},
    {"GET * HTTP/1.1\r\n", 400},
    {"GET /#f HTTP/1.1\r\n", 400},
    {"GET /\xC3\xA9 HTTP/1.1\r\n", 400},
    {"GET http://u@h/ HTTP/1.1\r\n", 400},
    {"GET http:///x HTTP/1.1\r\n", 400},
    {"GET http://h HTTP/1.1\r\n", 400},
    {"CONNECT h:443 HTTP/1.1\r\n", 400},
    {"GET / http/1.1\r\n", 400},
    {"GET / HTTP/1.x\r\n", 400},
    {"GET / HTTP/11\r\n", 400},
    {"GET / HTTP/2.0\r\n", 505},
    {"GET / HTTP/0.9\r\n", 505},
    {"GET / HTTP/1.1\n", 400},
    {"GET / HTTP/1.1\rX", 400},
    {"GET / HTTP/1.1\r\r\n", 400},
    {"\x16\x03\x01", 400},
    {"GET /\x7F", 400},
    {"GET / HTTP/1.1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" H H "\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" H " folded\r\n", 400},
    {"GET / HTTP/1.1\r\n" H "\tfolded\r\n", 400},
    {"GET / HTTP/1.1\r\nName\r\n", 400},
    {"GET / HTTP/1.1\r\nName : v\r\n", 400},
    {"GET / HTTP/1.1\r\n: v\r\n", 400},
    {"GET / HTTP/1.1\r\nNa\xC3\xA9me: v\r\n", 400},
    {"GET / HTTP/1.1\r\nA: b\nC: d\r\n", 400},
    {"GET / HTTP/1.1\r\nA: b\rC: d\r\n", 400},
    {"GET / HTTP/1.1\r\nA: \x01\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1,1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 0x1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1 1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Content-Length: 1234567890123456789\r\n\r\n", 400},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n", 501},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding:\r\n\r\n", 501},
    {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
     400},
    {"POST / HTTP/1.1\r\n" H "Expect: more\r\n\r\n", 417},
};

/* All that a feed yields, as one text. */
static char *story(const char *text, size_t n, const size_t *cut, size_t n_cut) {
    static char out[4][8192];
    static int turn;
    char *s = out[turn++ % 4], *end = s;
    struct mg_http_head h = {.max = 1000};
    enum mg_http_feed result = MG_HTTP_MORE;
    size_t total = 0;
    for (size_t i = 0; i <= n_cut && result == MG_HTTP_MORE; i++) {
        size_t to = i < n_cut ? cut[i] : n, used;
        uint8_t *piece = malloc(to - total ? to - total : 1); /* its own block, for ASan */
        memcpy(piece, text + total, to - total);
        result = mg_http_head_feed(&h, piece, to - total, &used);
        free(piece);
        total += used;
    }
    end += snprintf(end, 200, "%d %zu %d %s;", result, total, h.status, h.fault ? h.fault : "");
    if (result == MG_HTTP_DONE) {
        end += snprintf(end, 2000, "%s %s %s %s %d %d %d %llu;", mg_http_head_text(&h, h.method),
                        mg_http_head_text(&h, h.target), mg_http_head_text(&h, h.path),
                        mg_http_head_text(&h, h.query), h.keep_alive, h.minor, h.framing,
                        (unsigned long long)h.length);
        for (size_t i = 0; i < h.n_field; i++)
            end += snprintf(end, 200, "%s=%s;", mg_http_head_text(&h, h.field[i].name),
                            mg_http_head_text(&h, h.field[i].value));
    }
    mg_http_head_free(&h);
    return s;
}

/* Cut at each byte, and into single bytes: the same as whole. */
static void check_cuts(const char *text) {
    char more[2048];
    size_t n = (size_t)snprintf(more, sizeof more, "%sREST", text), all[2048];
    const char *whole = story(more, n, NULL, 0);
    for (size_t i = 0; i <= n; i++) {
        assert_string_equal(story(more, n, &i, 1), whole);
        all[i] = i;
    }
    assert_string_equal(story(more, n, all, n), whole);
}

static void taken(void **state) {
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct mg_http_head h = {.max = 1000};
        size_t used, n = strlen(good[i].text);
        assert_int_equal(mg_http_head_feed(&h, (const uint8_t *)good[i].text, n, &used),
                         MG_HTTP_DONE);
        assert_int_equal(used, n);
        assert_string_equal(mg_http_head_text(&h, h.method), good[i].method);
        char *path = strndup(mg_http_head_text(&h, h.path), h.path.n);
        assert_string_equal(path, good[i].path);
        free(path);
        assert_string_equal(mg_http_head_text(&h, h.query), good[i].query);
        assert_int_equal(h.n_field, good[i].n_field);
        assert_int_equal(h.framing, good[i].framing);
        assert_int_equal(h.length, good[i].length);
        assert_int_equal(h.keep_alive, good[i].keep_alive);
        assert_int_equal(h.expect_continue, good[i].expect);
        assert_int_equal(h.upgrade, good[i].upgrade);
        mg_http_head_free(&h);
        check_cuts(good[i].text);
    }
}

static void refused(void **state) {
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mg_http_head h = {.max = 1000};
        size_t used;
        enum mg_http_feed result =
            mg_http_head_feed(&h, (const uint8_t *)bad[i].text, strlen(bad[i].text), &used);
        if (result != MG_HTTP_BAD || h.status != bad[i].status)
            print_error("%s: %d, status %d\n", bad[i].text, result, h.status);
        assert_int_equal(result, MG_HTTP_BAD);
        assert_int_equal(h.status, bad[i].status);
        assert_true(h.fault && *h.fault);
        mg_http_head_free(&h);
        check_cuts(bad[i].text);
    }
}

static void fields(void **state) {
    static const char text[] = "GET / HTTP/1.1\r\n" H "A:  one two \r\nB: 1\r\nb: 2, x ,3\r\n\r\n";
    struct mg_http_head h = {.max = 1000};
    size_t used;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(mg_http_head_feed(&h, (const uint8_t *)text, sizeof text - 1, &used),
                         MG_HTTP_DONE);
        assert_string_equal(mg_http_head_field(&h, "a"), "one two");
        assert_string_equal(mg_http_head_field(&h, "B"), "1");
        assert_null(mg_http_head_field(&h, "c"));
        assert_null(mg_http_head_field(&h, ""));
        assert_true(mg_http_head_lists(&h, "B", "x"));
        assert_true(mg_http_head_lists(&h, "B", "1"));
        assert_true(mg_http_head_lists(&h, "B", "3"));
        assert_false(mg_http_head_lists(&h, "B", "2, x"));
        assert_false(mg_http_head_lists(&h, "B", ""));
        mg_http_head_reset(&h);
        assert_int_equal(h.n_field, 0);
    }
    mg_http_head_free(&h);
}

static void limits(void **state) {
    struct mg_http_head h = {.max = 100};
    char text[400];
    size_t used;
    memset(text, 'a', sizeof text);
    memcpy(text, "GET /", 5);
    assert_int_equal(mg_http_head_feed(&h, (uint8_t *)text, sizeof text, &used), MG_HTTP_BAD);
    assert_int_equal(h.status, 414);
    assert_int_equal(used, 101);
    mg_http_head_free(&h);
    memcpy(text, "GET / HTTP/1.1\r\nA: ", 19);
    assert_int_equal(mg_http_head_feed(&h, (uint8_t *)text, sizeof text, &used), MG_HTTP_BAD);
    assert_int_equal(h.status, 431);
    mg_http_head_free(&h);
    /* Exactly as many as may be. */
    static const char fits[] = "GET / HTTP/1.1\r\n" H "\r\n";
    h.max = sizeof fits - 1;
    assert_int_equal(mg_http_head_feed(&h, (const uint8_t *)fits, sizeof fits - 1, &used),
                     MG_HTTP_DONE);
    mg_http_head_free(&h);
    h.max = sizeof fits - 2;
    assert_int_equal(mg_http_head_feed(&h, (const uint8_t *)fits, sizeof fits - 1, &used),
                     MG_HTTP_BAD);
    mg_http_head_free(&h);
    for (size_t n = MG_HTTP_MAX_FIELD; n <= MG_HTTP_MAX_FIELD + 1; n++) {
        struct mg_buf many = {0};
        mg_buf_add_str(&many, "GET / HTTP/1.1\r\n" H);
        for (size_t i = 1; i < n; i++) mg_buf_add_str(&many, "a: b\r\n");
        mg_buf_add_str(&many, "\r\n");
        h.max = 10000;
        assert_int_equal(mg_http_head_feed(&h, many.data, many.n, &used),
                         n > MG_HTTP_MAX_FIELD ? MG_HTTP_BAD : MG_HTTP_DONE);
        if (n > MG_HTTP_MAX_FIELD) assert_int_equal(h.status, 431);
        mg_http_head_free(&h);
        mg_buf_free(&many);
    }
}

/* --- chunked bodies --- */

static char *chunk_story(const char *text, size_t n, size_t step) {
    static char out[2][4096];
    static int turn;
    char *s = out[turn++ % 2];
    struct mg_http_chunk c = {0};
    struct mg_buf body = {0};
    enum mg_http_feed result = MG_HTTP_MORE;
    size_t total = 0;
    while (total < n && result == MG_HTTP_MORE) {
        size_t take = mg_min_size(step, n - total), used;
        struct mg_slice piece;
        uint8_t *block = malloc(take);
        memcpy(block, text + total, take);
        result = mg_http_chunk_feed(&c, block, take, &used, &piece);
        assert_true(used >= 1 && used <= take && piece.n <= used);
        mg_buf_add(&body, piece.data, piece.n);
        free(block);
        total += used;
    }
    snprintf(s, 4096, "%d %zu %s %.*s", result, total, c.fault ? c.fault : "", (int)body.n,
             (char *)body.data);
    mg_buf_free(&body);
    return s;
}

static void chunks(void **state) {
    static const struct {
        const char *text, *body;
        enum mg_http_feed result;
    } table[] = {
        {"0\r\n\r\n", "", MG_HTTP_DONE},
        {"3\r\nabc\r\n0\r\n\r\nREST", "abc", MG_HTTP_DONE},
        {"00003;a=\"b;c\"\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: v\r\nU: w\r\n\r\n", "abc0123456789",
         MG_HTTP_DONE},
        {"3;\r\nabc\r\n000\r\n\r\n", "abc", MG_HTTP_DONE},
        {"3\r\nabc\r\n", "abc", MG_HTTP_MORE},
        {"\r\n", "", MG_HTTP_BAD},
        {"3\nabc\r\n", "", MG_HTTP_BAD},
        {"3 \r\nabc\r\n", "", MG_HTTP_BAD},
        {" 3\r\nabc\r\n", "", MG_HTTP_BAD},
        {"0x3\r\nabc\r\n", "", MG_HTTP_BAD},
        {"+3\r\nabc\r\n", "", MG_HTTP_BAD},
        {"3\r\nabcd\r\n", "abc", MG_HTTP_BAD},
        {"3\r\nabc\n0\r\n\r\n", "abc", MG_HTTP_BAD},
        {"3\r\nabc\r0\r\n\r\n", "abc", MG_HTTP_BAD},
        {"3;a\x01\r\nabc\r\n", "", MG_HTTP_BAD},
        {"3;a\nabc\r\n", "", MG_HTTP_BAD},
        {"1234567890123456\r\n", "", MG_HTTP_BAD},
        {"0\r\n folded\r\n\r\n", "", MG_HTTP_BAD},
        {"0\r\nT: v\n\r\n", "", MG_HTTP_BAD},
        {"0\r\n\n", "", MG_HTTP_BAD},
        {"0\r\n\rx", "", MG_HTTP_BAD},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        size_t n = strlen(table[i].text);
        const char *whole = chunk_story(table[i].text, n, n);
        char want[3] = {(char)('0' + (int)table[i].result), ' ', 0};
        if (strncmp(whole, want, 2)) print_error("%s: %s\n", table[i].text, whole);
        assert_memory_equal(whole, want, 2);
        const char *body = strrchr(whole, ' ') + 1;
        assert_string_equal(body, table[i].body);
        char kept[4096];
        snprintf(kept, sizeof kept, "%s", whole);
        for (size_t step = 1; step < n; step++)
            assert_string_equal(chunk_story(table[i].text, n, step), kept);
    }
}

static void chunk_overhead(void **state) {
    struct mg_buf text = {0};
    for (int i = 0; i < 3000; i++) mg_buf_add_str(&text, "1;abcdefgh\r\nx\r\n");
    const char *s = chunk_story((char *)text.data, text.n, text.n);
    assert_non_null(strstr(s, "too many bytes of chunk extensions"));
    mg_buf_free(&text);
    mg_buf_add_str(&text, "0\r\nA: ");
    for (int i = 0; i < MG_HTTP_MAX_OVERHEAD; i++) mg_buf_add_byte(&text, 'a');
    s = chunk_story((char *)text.data, text.n, text.n);
    assert_non_null(strstr(s, "too many bytes of chunk extensions"));
    mg_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taken),  cmocka_unit_test(refused), cmocka_unit_test(fields),
        cmocka_unit_test(limits), cmocka_unit_test(chunks),  cmocka_unit_test(chunk_overhead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
