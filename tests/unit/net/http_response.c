/* Replies as a client reads them: framing, what ends them, and that cuts don't matter. */
#include "net/http_response.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct got {
    enum mg_http_feed feed;
    int status;
    bool keep_alive, event_stream, end; /* end: mg_http_response_end */
    double retry_after;
    size_t left; /* bytes behind the reply */
    char body[256];
};

/* Reads in pieces of `step` bytes. */
static struct got read_in(const char *text, size_t step) {
    struct got g = {.feed = MG_HTTP_MORE};
    struct mg_http_response r = {0};
    size_t n = strlen(text), at = 0, n_body = 0;
    while (at < n && g.feed == MG_HTTP_MORE) {
        size_t used = 0, take = mg_min_size(step, n - at);
        struct mg_slice piece;
        g.feed = mg_http_response_feed(&r, (const uint8_t *)text + at, take, &used, &piece);
        assert_true(used > 0 && used <= take);
        assert_true(n_body + piece.n < sizeof g.body);
        if (piece.n) memcpy(g.body + n_body, piece.data, piece.n); /* data may be NULL else */
        n_body += piece.n;
        at += used;
    }
    assert_true((g.feed == MG_HTTP_BAD) == (r.fault != NULL));
    g.status = r.status;
    g.keep_alive = r.keep_alive;
    g.event_stream = r.event_stream;
    g.retry_after = r.retry_after;
    g.end = mg_http_response_end(&r);
    g.left = n - at;
    mg_http_response_free(&r);
    return g;
}

static struct got reply(const char *text) {
    struct got whole = read_in(text, SIZE_MAX);
    for (size_t step = 1; step < 8; step++) {
        struct got cut = read_in(text, step);
        assert_int_equal(cut.feed, whole.feed);
        assert_int_equal(cut.status, whole.status);
        assert_int_equal(cut.keep_alive, whole.keep_alive);
        assert_int_equal(cut.end, whole.end);
        assert_string_equal(cut.body, whole.body);
        if (whole.feed == MG_HTTP_DONE) assert_int_equal(cut.left, whole.left);
    }
    return whole;
}

static void lengths(void **state) {
    struct got g = reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1");
    assert_int_equal(g.feed, MG_HTTP_DONE);
    assert_int_equal(g.status, 200);
    assert_string_equal(g.body, "hello");
    assert_int_equal(g.left, 8);
    assert_true(g.keep_alive);
    g = reply("HTTP/1.1 404 Not Found\r\ncontent-length:0\r\n\r\n");
    assert_int_equal(g.feed, MG_HTTP_DONE);
    assert_int_equal(g.status, 404);
    g = reply("HTTP/1.1 204 No Content\r\n\r\n");
    assert_int_equal(g.feed, MG_HTTP_DONE);
    g = reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell");
    assert_int_equal(g.feed, MG_HTTP_MORE);
    assert_false(g.end);
    g = reply("HTTP/1.1 200 OK\nContent-Length: 2\n\nok"); /* line ends of some small servers */
    assert_string_equal(g.body, "ok");
    assert_int_equal(g.feed, MG_HTTP_DONE);
}

static void chunks(void **state) {
    struct got g =
        reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: "
              "text/event-stream; charset=utf-8\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_int_equal(g.feed, MG_HTTP_DONE);
    assert_string_equal(g.body, "abcde");
    assert_true(g.event_stream && g.keep_alive);
    g = reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_false(g.end);
    g = reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnine\r\nabc\r\n");
    assert_int_equal(g.feed, MG_HTTP_BAD);
}

static void up_to_the_end(void **state) {
    struct got g = reply("HTTP/1.0 200 OK\r\nContent-Type: text/event-streams\r\n\r\nabc");
    assert_int_equal(g.feed, MG_HTTP_MORE);
    assert_true(g.end);
    assert_false(g.keep_alive || g.event_stream);
    assert_string_equal(g.body, "abc");
    assert_false(reply("").end);
    assert_false(reply("HTTP/1.1 200 OK\r\nContent-Ty").end);
}

static void connections(void **state) {
    assert_false(
        reply("HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 0\r\n\r\n").keep_alive);
    assert_false(reply("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").keep_alive);
    assert_true(
        reply("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n").keep_alive);
    assert_true(
        reply("HTTP/1.1 200 OK\r\nConnection: closed\r\nContent-Length: 0\r\n\r\n").keep_alive);
}

static void before_the_reply(void **state) {
    struct got g = reply("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
                         "HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 1\r\n\r\nx");
    assert_int_equal(g.feed, MG_HTTP_DONE);
    assert_int_equal(g.status, 429);
    assert_true(g.retry_after == 7);
    g = reply("HTTP/1.1 503 No\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n"
              "Content-Length: 0\r\n\r\n");
    assert_true(g.retry_after == 0);
    assert_int_equal(reply("HTTP/1.1 101 Switching\r\n\r\n").feed, MG_HTTP_BAD);
}

static void what_is_no_reply(void **state) {
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/2 200\r\n",
        "HTTP/1.1 20 OK\r\n",
        "HTTP/1.1 2000 OK\r\n",
        "HTTP/1.1  200 OK\r\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1 200 OK\r\nno field\r\n",
        "HTTP/1.1 200 OK\r\n: empty\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(reply(bad[i]).feed, MG_HTTP_BAD);
}

static void long_heads(void **state) {
    struct mg_http_response r = {0};
    struct mg_slice piece;
    size_t used, n = 0;
    enum mg_http_feed feed = MG_HTTP_MORE;
    const uint8_t *start = (const uint8_t *)"HTTP/1.1 200 OK\r\n";
    mg_http_response_feed(&r, start, 17, &used, &piece);
    for (; feed == MG_HTTP_MORE && n < 1 << 20; n += 8)
        feed = mg_http_response_feed(&r, (const uint8_t *)"a: bcd\r\n", 8, &used, &piece);
    assert_int_equal(feed, MG_HTTP_BAD);
    assert_true(n <= MG_HTTP_MAX_RESPONSE_HEAD + 8);
    mg_http_response_free(&r);
}

/* Two replies, one after the other, with one struct. */
static void again(void **state) {
    struct mg_http_response r = {0};
    static const char one[] = "HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    static const char two[] = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    struct mg_slice piece;
    size_t at = 0, used;
    while (at < sizeof one - 1) {
        mg_http_response_feed(&r, (const uint8_t *)one + at, sizeof one - 1 - at, &used, &piece);
        at += used;
    }
    assert_false(r.keep_alive);
    mg_http_response_reset(&r);
    assert_false(r.any);
    for (at = 0; at < sizeof two - 1; at += used)
        mg_http_response_feed(&r, (const uint8_t *)two + at, sizeof two - 1 - at, &used, &piece);
    assert_int_equal(r.status, 200);
    assert_true(r.keep_alive && mg_http_response_end(&r));
    mg_http_response_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),          cmocka_unit_test(chunks),
        cmocka_unit_test(up_to_the_end),    cmocka_unit_test(connections),
        cmocka_unit_test(before_the_reply), cmocka_unit_test(what_is_no_reply),
        cmocka_unit_test(long_heads),       cmocka_unit_test(again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
