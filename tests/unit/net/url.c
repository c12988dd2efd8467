/* URLs: which are taken, which of them mean the same server, and the texts of headers. */
#include "net/transfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void taken(void **state) {
    static const struct {
        const char *url, *host, *port;
        bool https, query;
    } good[] = {
        {"https://huggingface.co", "huggingface.co", "443", true, false},
        {"http://127.0.0.1:8000/a/b", "127.0.0.1", "8000", false, false},
        {"HTTPS://Hub.Example:443/x?y", "Hub.Example", "443", true, true},
        {"http://[::1]/x#y", "[::1]", "80", false, true},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct mg_url u;
        struct mg_err err = {0};
        assert_int_equal(mg_url_parse(good[i].url, &u, &err), MG_OK);
        assert_string_equal(u.host, good[i].host);
        assert_string_equal(u.port, good[i].port);
        assert_int_equal(u.https, good[i].https);
        assert_int_equal(u.query, good[i].query);
    }
}

static void refused(void **state) {
    static const char *const bad[] = {"",
                                      "huggingface.co",
                                      "/a/b",
                                      "file:///etc/passwd",
                                      "ftp://host/x",
                                      "javascript:x",
                                      "http://",
                                      "http://user@host/",
                                      "http://user:secret@host/",
                                      "http://:secret@host/",
                                      "http://host/a b",
                                      "http://host/\r\nX: y",
                                      "http://host/\xc3\xa4",
                                      "http://host:99999/",
                                      "http://host:x/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mg_url u;
        struct mg_err err = {0};
        if (mg_url_parse(bad[i], &u, &err) != MG_ERR_ARGUMENT) fail_msg("taken: %s", bad[i]);
        assert_true(err.text[0] && !strstr(err.text, "secret"));
    }
    char *longest = malloc(MG_URL_MAX + 10);
    memset(longest, 'a', MG_URL_MAX + 9);
    longest[MG_URL_MAX + 9] = 0;
    memcpy(longest, "http://a/", 9);
    struct mg_url u;
    assert_int_equal(mg_url_parse(longest, &u, NULL), MG_ERR_ARGUMENT);
    free(longest);
}

static void same_server(void **state) {
    static const struct {
        const char *a, *b;
        bool same;
    } pairs[] = {
        {"https://a.example/x", "https://A.Example:443/y?z", true},
        {"http://a/", "http://a:80/", true},
        {"http://a/", "https://a/", false},
        {"http://a:1/", "http://a:2/", false},
        {"http://a/", "http://a.b/", false},
        {"http://a.example/", "http://b.a.example/", false},
        {"http://127.0.0.1/", "http://localhost/", false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct mg_url a, b;
        assert_int_equal(mg_url_parse(pairs[i].a, &a, NULL), MG_OK);
        assert_int_equal(mg_url_parse(pairs[i].b, &b, NULL), MG_OK);
        assert_int_equal(mg_url_same_origin(&a, &b), pairs[i].same);
    }
}

static void escaping(void **state) {
    struct mg_buf b = {0};
    assert_true(mg_url_escape(&b, "refs/pr/1 %?#&+\xc3\xa4-._~Az09"));
    assert_string_equal((char *)b.data, "refs%2Fpr%2F1%20%25%3F%23%26%2B%C3%A4-._~Az09");
    mg_buf_free(&b);
}

static void content_range(void **state) {
    static const struct {
        const char *text;
        uint64_t from, to, total;
    } good[] = {
        {" bytes 0-99/1000\r\n", 0, 100, 1000},
        {"bytes 5-5/6", 5, 6, 6},
        {" Bytes 0-0/*\r\n", 0, 1, UINT64_MAX},
        {"bytes=2-3/4", 2, 4, 4},
        {" bytes */7\r\n", 0, 0, 7},
        {"bytes 18446744073709551613-18446744073709551614/*", UINT64_MAX - 2, UINT64_MAX,
         UINT64_MAX},
    };
    uint64_t from, to, total;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(mg_http_content_range(good[i].text, &from, &to, &total));
        assert_true(from == good[i].from && to == good[i].to && total == good[i].total);
    }
    static const char *const bad[] = {"",
                                      "bytes",
                                      "bytes 1",
                                      "bytes 1-",
                                      "bytes 1-2",
                                      "bytes 1-2/",
                                      "bytes 2-1/9",
                                      "bytes 0-9/9",
                                      "bytes -1-2/9",
                                      "bytes 1-2/9x",
                                      "items 1-2/9",
                                      "bytes */",
                                      "bytes */x",
                                      "bytes 1-2/99999999999999999999",
                                      "bytes 1-18446744073709551615/*",
                                      "bytes 99999999999999999999-2/9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (mg_http_content_range(bad[i], &from, &to, &total)) fail_msg("taken: %s", bad[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taken),    cmocka_unit_test(refused),       cmocka_unit_test(same_server),
        cmocka_unit_test(escaping), cmocka_unit_test(content_range),
    };
    return cmocka_run_group_tests_name("net.url", tests, NULL, NULL);
}
