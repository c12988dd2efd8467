/* base64: against a plain encoder, lenient and strict cases, in place, and its speed on request. */
#include "base/base64.h"
#include "base/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t encode(const uint8_t *in, size_t n, bool url_safe, bool pad, size_t line, char *out) {
    size_t o = 0, column = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = (uint32_t)in[i] << 16;
        size_t k = n - i < 3 ? n - i : 3;
        if (k > 1) x |= (uint32_t)in[i + 1] << 8;
        if (k > 2) x |= in[i + 2];
        for (size_t c = 0; c < 4; c++) {
            char ch = c <= k ? standard[x >> (18 - 6 * c) & 63] : '=';
            if (url_safe && ch == '+') ch = '-';
            if (url_safe && ch == '/') ch = '_';
            if (ch == '=' && !pad) continue;
            out[o++] = ch;
            if (line && ++column % line == 0) {
                out[o++] = '\r';
                out[o++] = '\n';
            }
        }
    }
    return o;
}

static void every_length_comes_back(void **state) {
    uint8_t in[200], out[1024];
    char text[1024];
    uint32_t seed = 1;
    for (size_t n = 0; n <= sizeof in; n++) {
        for (size_t i = 0; i < n; i++) in[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
        for (int kind = 0; kind < 16; kind++) {
            static const size_t line[] = {0, 1, 7, 76};
            size_t len = encode(in, n, kind & 1, kind & 2, line[kind >> 2], text), got;
            assert_true(mg_base64_bound(len) <= sizeof out);
            memset(out, 0xEE, sizeof out);
            assert_int_equal(mg_base64_decode(text, len, out, &got), MG_BASE64_OK);
            assert_int_equal(got, n);
            assert_memory_equal(out, in, n);
            assert_int_equal(out[mg_base64_bound(len)], 0xEE);
            /* The text may be overwritten as it is read. */
            assert_int_equal(mg_base64_decode(text, len, (uint8_t *)text, &got), MG_BASE64_OK);
            assert_int_equal(got, n);
            assert_memory_equal(text, in, n);
        }
    }
}

static void all_characters_have_their_place(void **state) {
    for (int c = 0; c < 256; c++) {
        char text[12] = "AAAAAAAAAA";
        uint8_t out[16];
        size_t n;
        text[9] = (char)c; /* the second of its group: in the slow part */
        enum mg_base64_fault fault = mg_base64_decode(text, 10, out, &n);
        const char *at = c ? strchr(standard, c) : NULL;
        int value = at ? (int)(at - standard) : c == '-' ? 62 : c == '_' ? 63 : -1;
        if (value >= 0) {
            assert_int_equal(fault, MG_BASE64_OK);
            assert_int_equal(n, 7);
            assert_int_equal(out[6], value >> 4);
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '=') {
            assert_int_equal(fault, MG_BASE64_CUT);
        } else {
            assert_int_equal(fault, MG_BASE64_CHARACTER);
            assert_int_equal(n, 9);
        }
        char head[] = "AAAAAAAAA";
        head[3] = (char)c; /* in the fast part */
        fault = mg_base64_decode(head, 8, out, &n);
        if (value >= 0) {
            assert_int_equal(fault, MG_BASE64_OK);
            assert_int_equal(out[2], value);
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            assert_int_equal(fault, MG_BASE64_OK);
            assert_int_equal(n, 5);
        } else {
            assert_int_equal(fault, c == '=' ? MG_BASE64_PADDING : MG_BASE64_CHARACTER);
            assert_int_equal(n, c == '=' ? 4 : 3);
        }
    }
}

static void what_is_lenient_and_what_not(void **state) {
    static const struct {
        const char *text;
        enum mg_base64_fault fault;
        size_t n;
    } c[] = {
        {"", MG_BASE64_OK, 0},
        {"  \n", MG_BASE64_OK, 0},
        {"QQ==", MG_BASE64_OK, 1},
        {"QQ=", MG_BASE64_OK, 1},
        {"QQ", MG_BASE64_OK, 1},
        {"QR==", MG_BASE64_OK, 1},
        {"QUI=", MG_BASE64_OK, 2},
        {"QUI", MG_BASE64_OK, 2},
        {"Q Q\r\n=\t=\n", MG_BASE64_OK, 1},
        {"Q", MG_BASE64_CUT, 1},
        {"QUJDQ", MG_BASE64_CUT, 5},
        {"QQ===", MG_BASE64_PADDING, 4},
        {"QQ==QQ==", MG_BASE64_PADDING, 4},
        {"QUJDQQ=A", MG_BASE64_PADDING, 7},
        {"QUJD!UJD", MG_BASE64_CHARACTER, 4},
        {"QUJDQUJDQUJD\x80", MG_BASE64_CHARACTER, 12},
        {"QQ==!", MG_BASE64_CHARACTER, 4},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        uint8_t out[64];
        size_t n = 999;
        assert_int_equal(mg_base64_decode(c[i].text, strlen(c[i].text), out, &n), c[i].fault);
        assert_int_equal(n, c[i].n);
    }
}

/* RFC 4648's own examples, and every length there and back. */
static void encoding(void **state) {
    static const char *const pair[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        char out[16] = "xxxxxxxxxxxxxxx";
        size_t n = mg_base64_length(strlen(pair[i][0]));
        assert_int_equal(n, strlen(pair[i][1]));
        mg_base64_encode((const uint8_t *)pair[i][0], strlen(pair[i][0]), out);
        assert_memory_equal(out, pair[i][1], n);
        assert_int_equal(out[n], 'x');
    }
    uint8_t bytes[300], back[304];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 151 + i / 7);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        char text[404];
        size_t got;
        mg_base64_encode(bytes, n, text);
        assert_int_equal(mg_base64_decode(text, mg_base64_length(n), back, &got), MG_BASE64_OK);
        assert_int_equal(got, n);
        assert_memory_equal(back, bytes, n);
    }
}

/* With the argument `time`: how fast, best of several. */
static void print_speed(void) {
    size_t n = (size_t)32 << 20, got;
    char *text = malloc(n);
    uint8_t *out = malloc(mg_base64_bound(n));
    double best = 1e9;
    for (size_t i = 0; i < n; i++) text[i] = standard[i * 7 & 63];
    for (int k = 0; k < 10; k++) {
        double start = mg_clock();
        mg_base64_decode(text, n, out, &got);
        double took = mg_clock() - start;
        if (took < best) best = took;
    }
    printf("%.0f MB of text a second\n", (double)n / best / 1e6);
    free(text);
    free(out);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_comes_back),
        cmocka_unit_test(all_characters_have_their_place),
        cmocka_unit_test(what_is_lenient_and_what_not),
        cmocka_unit_test(encoding),
    };
    if (argc > 1 && !strcmp(argv[1], "time")) {
        print_speed();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
