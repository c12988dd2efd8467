/* The small texts of HTTP, events, keys and log lines. */
#include "base/io.h"
#include "net/access_log.h"
#include "net/api_keys.h"
#include "net/http_gzip.h"
#include "net/http_text.h"
#include "net/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static void dates(void **state) {
    char text[MG_HTTP_DATE];
    mg_http_date(784111777, text);
    assert_string_equal(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    mg_http_date(0, text);
    assert_string_equal(text, "Thu, 01 Jan 1970 00:00:00 GMT");
    mg_http_date(1709251199, text);
    assert_string_equal(text, "Thu, 29 Feb 2024 23:59:59 GMT");
}

static void decoding(void **state) {
    char out[64];
    assert_true(mg_http_decode("a%20b%2Fc+%e2%82%AC", 19, false, out));
    assert_string_equal(out, "a b/c+\xE2\x82\xAC");
    assert_true(mg_http_decode("a+b%2B", 6, true, out));
    assert_string_equal(out, "a b+");
    assert_true(mg_http_decode("", 0, true, out));
    assert_string_equal(out, "");
    static const char *const bad[] = {"%", "%4", "a%", "%g0", "%0g", "%00", "%-1", "% 1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(mg_http_decode(bad[i], strlen(bad[i]), false, out));
}

static void queries(void **state) {
    static const struct {
        const char *query, *name, *value; /* value NULL: not there */
    } table[] = {
        {"a=1&b=2", "b", "2"}, {"a=1&b=2", "c", NULL}, {"", "a", NULL},     {"a", "a", ""},
        {"a&b=", "b", ""},     {"a=b=c", "a", "b=c"},  {"&&a=1", "a", "1"}, {"%61=1", "a", "1"},
        {"aa=1", "a", NULL},   {"a=1&a=2", "a", "1"},  {"=1", "a", NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *value = NULL;
        size_t n = 0;
        bool found = mg_http_query_find(table[i].query, table[i].name, &value, &n);
        assert_int_equal(found, table[i].value != NULL);
        if (!found) continue;
        assert_int_equal(n, strlen(table[i].value));
        assert_memory_equal(value, table[i].value, n);
    }
}

static void encodings(void **state) {
    static const char *const yes[] = {"gzip",          "GZIP",      "a, gzip", "gzip;q=0.1",
                                      "gzip ; q=0.01", "x-gzip,br", "*",       "br;q=1, *;q=0.5",
                                      "gzip;q=1.000",  ",,gzip,,"};
    static const char *const no[] = {"",           "br",    "gzipp",        "gzip;q=0",
                                     "gzip;q=0.0", "*;q=0", "*, gzip;q=0",  "identity",
                                     "g",          ";gzip", "gzip; Q=0.000"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        assert_true(mg_http_accepts_gzip(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) assert_false(mg_http_accepts_gzip(no[i]));
    assert_false(mg_http_accepts_gzip(NULL));
    assert_true(mg_http_is_compressible("application/json; charset=utf-8"));
    assert_true(mg_http_is_compressible("TEXT/html"));
    assert_false(mg_http_is_compressible("text/event-stream; x"));
    assert_false(mg_http_is_compressible("image/png"));
    assert_false(mg_http_is_compressible(NULL));
}

static void ids_and_fields(void **state) {
    char a[MG_HTTP_REQUEST_ID], b[MG_HTTP_REQUEST_ID], x[140];
    mg_http_make_request_id(a);
    mg_http_make_request_id(b);
    assert_int_equal(strlen(a), 32);
    assert_string_not_equal(a, b);
    assert_true(mg_http_is_request_id(a));
    memset(x, 'x', sizeof x);
    x[128] = 0;
    assert_true(mg_http_is_request_id(x));
    x[128] = 'x';
    x[129] = 0;
    assert_false(mg_http_is_request_id(x));
    assert_false(mg_http_is_request_id(""));
    assert_false(mg_http_is_request_id("a b"));
    assert_false(mg_http_is_request_id("a\r\nb"));
    assert_false(mg_http_is_request_id("\xC3\xA9"));
    assert_true(mg_http_is_field("X-A", "b c\t\xC3\xA9"));
    assert_false(mg_http_is_field("X-A", "b\r\nSet-Cookie: c"));
    assert_false(mg_http_is_field("X A", "b"));
    assert_false(mg_http_is_field("", "b"));
    assert_false(mg_http_is_field("A:", "b"));
}

static void gzip(void **state) {
    uint8_t data[20000], back[20000];
    struct mg_buf out = {0};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i % 7 + 'a');
    assert_true(mg_gzip(data, sizeof data, &out));
    assert_true(out.n > 18 && out.n < 1000);
    z_stream z = {
        .next_in = out.data, .avail_in = (uInt)out.n, .next_out = back, .avail_out = sizeof back};
    assert_int_equal(inflateInit2(&z, 31), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(z.total_out, sizeof data);
    inflateEnd(&z);
    assert_memory_equal(data, back, sizeof data);
    mg_buf_free(&out);
    unsigned seed = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
    assert_false(mg_gzip(data, sizeof data, &out)); /* noise gets no shorter */
    assert_int_equal(out.n, 0);
    assert_false(mg_gzip(data, 0, &out));
}

static void events(void **state) {
    static const struct {
        const char *event, *data, *text;
    } table[] = {
        {NULL, "{}", "data: {}\n\n"},
        {"ping", "x", "event: ping\ndata: x\n\n"},
        {NULL, "", "data: \n\n"},
        {NULL, "a\nb\r\nc\rd", "data: a\ndata: b\ndata: c\ndata: d\n\n"},
        {NULL, "a\n", "data: a\ndata: \n\n"},
        {NULL, "\n\n", "data: \ndata: \ndata: \n\n"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct mg_buf out = {0};
        assert_true(mg_sse_format(&out, table[i].event, table[i].data, strlen(table[i].data)));
        assert_string_equal((char *)out.data, table[i].text);
        mg_buf_free(&out);
    }
}

static void keys(void **state) {
    static const char *const list[] = {"one", "two"};
    char path[] = "/tmp/margay-keys-XXXXXX";
    struct mg_err err = {0};
    struct mg_api_keys k;
    close(mkstemp(path));
    assert_int_equal(mg_file_write(path, "#x\n three\r\n\nfour", 16, &err), MG_OK);
    assert_int_equal(mg_api_keys_open(&k, list, 2, path, &err), MG_OK);
    assert_int_equal(k.n, 4);
    static const char *const all[] = {"one", "two", "three", "four"};
    for (int i = 0; i < 4; i++) assert_int_equal(mg_api_keys_find(&k, all[i], strlen(all[i])), i);
    static const char *const wrong[] = {"", "on", "onee", "#x", "x", "Two", " three", "three\r"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(mg_api_keys_find(&k, wrong[i], strlen(wrong[i])), -1);
    assert_int_equal(mg_file_write(path, "five\n", 5, &err), MG_OK);
    assert_int_equal(mg_api_keys_reload(&k, &err), MG_OK);
    assert_int_equal(mg_api_keys_find(&k, "five", 4), 2);
    assert_int_equal(mg_api_keys_find(&k, "three", 5), -1);
    assert_int_equal(mg_api_keys_find(&k, "two", 3), 1);
    assert_int_equal(mg_file_write(path, "a b\n", 4, &err), MG_OK);
    assert_int_equal(mg_api_keys_reload(&k, &err), MG_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "printable"));
    assert_null(strstr(err.text, "a b"));
    assert_int_equal(mg_api_keys_find(&k, "five", 4), 2);
    mg_api_keys_close(&k);
    unlink(path);
    mg_err_clear(&err);
    assert_int_equal(mg_api_keys_open(&k, list, 2, path, &err), MG_ERR_NOT_FOUND);
    static const char *const empty[] = {""};
    mg_err_clear(&err);
    assert_int_equal(mg_api_keys_open(&k, empty, 1, NULL, &err), MG_ERR_ARGUMENT);
}

static void log_lines(void **state) {
    struct mg_http_record r = {.seconds = 1.5,
                               .peer = "[::1]:5",
                               .method = "GET",
                               .target = "/a\"\xFF?key=1",
                               .request_id = "id",
                               .agent = "a\n\"b",
                               .pattern = "/{x}",
                               .status = 200,
                               .bytes_in = 3,
                               .bytes_out = 4,
                               .end = MG_HTTP_END_LEFT};
    struct mg_buf out = {0};
    assert_true(mg_access_log_format(&out, &r, false, 1000000000.25));
    assert_string_equal(
        (char *)out.data,
        "[::1]:5 2001-09-09T01:46:40.250Z \"GET /a\\\"\\u00ff\" 200 4 1.500 left id "
        "\"a\\u000a\\\"b\"\n");
    mg_buf_free(&out);
    assert_true(mg_access_log_format(&out, &r, true, 1000000000.25));
    assert_string_equal(
        (char *)out.data,
        "{\"time\":\"2001-09-09T01:46:40.250Z\",\"peer\":\"[::1]:5\",\"method\":\"GET\","
        "\"path\":\"/a\\\"\\u00ff\",\"route\":\"/{x}\",\"status\":200,\"bytes_in\":3,"
        "\"bytes_out\":4,\"seconds\":1.500000,\"end\":\"left\",\"request_id\":\"id\","
        "\"agent\":\"a\\u000a\\\"b\"}\n");
    mg_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dates),     cmocka_unit_test(decoding),       cmocka_unit_test(queries),
        cmocka_unit_test(encodings), cmocka_unit_test(ids_and_fields), cmocka_unit_test(gzip),
        cmocka_unit_test(events),    cmocka_unit_test(keys),           cmocka_unit_test(log_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
