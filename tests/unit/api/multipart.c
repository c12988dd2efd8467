/* multipart/form-data: what clients send, cut anywhere, and hostile forms. */
#include "api/multipart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TYPE "multipart/form-data; boundary=XX"

static bool is(struct mg_slice s, const char *text) {
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}

static void parts_are_found(void **state) {
    static const char body[] =
        "preamble\r\n--XX  \r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n"
        "--XX\r\ncontent-type:image/png \r\nContent-Disposition: form-data; filename=\"a "
        "\\\"b.png\""
        "; name=file\r\nX-Other: 1\r\n\r\n\r\n--X\r\n--YY\0\r\n\r\n--XX\r\n"
        "Content-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--XX--\r\nepilogue --XX";
    struct mg_multipart m;
    struct mg_fault f = {0};
    assert_int_equal(mg_multipart_parse(TYPE, body, sizeof body - 1, &m, &f), MG_OK);
    assert_int_equal(m.n, 3);
    assert_true(is(m.part[0].name, "purpose") && is(m.part[0].data, "vision"));
    assert_true(is(m.part[1].name, "file") && is(m.part[1].filename, "a \\\"b.png"));
    assert_true(is(m.part[1].type, "image/png"));
    assert_int_equal(m.part[1].data.n, 14);
    assert_memory_equal(m.part[1].data.data, "\r\n--X\r\n--YY\0\r\n", 14);
    assert_true(is(m.part[2].name, "empty") && m.part[2].data.n == 0);
    assert_ptr_equal(mg_multipart_find(&m, "file"), &m.part[1]);
    assert_null(mg_multipart_find(&m, "fil"));
}

static void content_types(void **state) {
    static const char body[] = "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--";
    static const struct {
        const char *type;
        bool fine;
    } c[] = {
        {"multipart/form-data; boundary=XX", true},
        {"Multipart/Form-Data;charset=utf-8;BOUNDARY=\"XX\"", true},
        {"multipart/form-data; boundary=XX; boundary=YY", true},
        {"multipart/form-data", false},
        {"multipart/form-data; boundary=", false},
        {"multipart/form-data; boundary=\"XX", false},
        {"multipart/form-data; boundary=\"X\nX\"", false},
        {"multipart/form-datax; boundary=XX", false},
        {"multipart/mixed; boundary=XX", false},
        {"application/json", false},
        {"", false},
        {NULL, false},
        {"multipart/form-data; boundary=12345678901234567890123456789012345678901234567890123456789"
         "012345678901",
         false},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_multipart m;
        struct mg_fault f = {0};
        enum mg_status status = mg_multipart_parse(c[i].type, body, sizeof body - 1, &m, &f);
        assert_int_equal(status, c[i].fine ? MG_OK : MG_ERR_UNSUPPORTED);
        struct mg_fault_kind kind;
        mg_fault_kind(&f.err, &kind);
        if (!c[i].fine) assert_int_equal(kind.http, 415);
    }
}

static void malformed_bodies(void **state) {
    static const char *const bad[] = {
        "",
        "--",
        "--XX",
        "--XX\r\n",
        "--XXY\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--",
        "--XX\r\n\r\n1\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data\r\n\r\n1\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n1\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n--XX--",
        "--XX\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=a; =\r\n\r\n1\r\n--XX--",
        "--XX\r\nnonsense\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--",
        ("--XX\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n"
         "\r\nQQ==\r\n--XX--"),
        "--XX\nContent-Disposition: form-data; name=a\n\n1\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1--XX--",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mg_multipart m;
        struct mg_fault f = {0};
        assert_int_equal(mg_multipart_parse(TYPE, bad[i], strlen(bad[i]), &m, &f), MG_ERR_FORMAT);
        assert_string_equal(f.err.code, "invalid_multipart");
    }
    /* A boundary begins a line; what stands before the first is no part. */
    static const char late[] = "x--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--";
    struct mg_fault none = {0};
    struct mg_multipart empty;
    assert_int_equal(mg_multipart_parse(TYPE, late, sizeof late - 1, &empty, &none), MG_OK);
    assert_int_equal(empty.n, 0);
    struct mg_buf b = {0}; /* one part more than there may be */
    struct mg_multipart m;
    struct mg_fault f = {0};
    for (int i = 0; i < MG_MULTIPART_MAX_PARTS; i++)
        mg_buf_add_str(&b, "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n");
    size_t n = b.n;
    mg_buf_add_str(&b, "--XX--");
    assert_int_equal(mg_multipart_parse(TYPE, b.data, b.n, &m, &f), MG_OK);
    assert_int_equal(m.n, MG_MULTIPART_MAX_PARTS);
    b.n = n;
    mg_buf_add_str(&b, "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--XX--");
    assert_int_equal(mg_multipart_parse(TYPE, b.data, b.n, &m, &f), MG_ERR_FORMAT);
    mg_buf_free(&b);
    f = (struct mg_fault){0}; /* a head over its limit */
    mg_buf_add_str(&b, "--XX\r\nContent-Disposition: form-data; name=a\r\nX: ");
    for (int i = 0; i < MG_MULTIPART_MAX_HEAD; i++) mg_buf_add_byte(&b, 'x');
    mg_buf_add_str(&b, "\r\n\r\n1\r\n--XX--");
    assert_int_equal(mg_multipart_parse(TYPE, b.data, b.n, &m, &f), MG_ERR_FORMAT);
    mg_buf_free(&b);
}

static const char upload[] =
    "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n--XX\r\n"
    "Content-Disposition: form-data; name=\"file\"; "
    "filename=\"C:\\dir\\<a>.png\"\r\n\r\n\x89PNG\r\n"
    "--XX--\r\n";

static void uploads(void **state) {
    struct mg_upload u;
    struct mg_fault f = {0};
    assert_int_equal(mg_upload_parse(TYPE, upload, sizeof upload - 1, 4, &u, &f), MG_OK);
    assert_true(is(u.data, "\x89PNG"));
    assert_string_equal(u.filename, "_a_.png");
    assert_string_equal(u.purpose, "user_data");
    assert_int_equal(mg_upload_parse(TYPE, upload, sizeof upload - 1, 3, &u, &f), MG_ERR_LIMIT);
    assert_string_equal(f.err.code, "image_too_large");
    assert_string_equal(f.param, "file");
    static const char empty[] =
        "--XX\r\nContent-Disposition: form-data; name=file\r\n\r\n\r\n--XX--";
    f = (struct mg_fault){0};
    assert_int_equal(mg_upload_parse(TYPE, empty, sizeof empty - 1, 9, &u, &f), MG_ERR_FORMAT);
    assert_string_equal(f.err.code, "image_empty");
    static const char other[] = "--XX\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n--XX--";
    f = (struct mg_fault){0};
    assert_int_equal(mg_upload_parse(TYPE, other, sizeof other - 1, 9, &u, &f), MG_ERR_ARGUMENT);
    assert_string_equal(f.err.code, "missing_field");
    static const struct {
        const char *given, *want;
    } name[] = {{"", "upload"},
                {"a/b/c.jpg", "c.jpg"},
                {"../..", ".."},
                {"x\x1b[31m.png", "x?[31m.png"},
                {"\xE7\x8C\xAB.png", "\xE7\x8C\xAB.png"},
                {"\xFF.png", "upload"},
                {"a/", "upload"}};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char body[300];
        int n =
            snprintf(body, sizeof body,
                     "--XX\r\nContent-Disposition: form-data; name=file; filename=\"%s\"\r\n\r\n"
                     "1\r\n--XX--",
                     name[i].given);
        f = (struct mg_fault){0};
        assert_int_equal(mg_upload_parse(TYPE, body, (size_t)n, 9, &u, &f), MG_OK);
        assert_string_equal(u.filename, name[i].want);
        assert_string_equal(u.purpose, "vision");
    }
    char body[700], longer[500]; /* cut between characters */
    for (size_t i = 0; i + 3 < sizeof longer; i += 3) memcpy(longer + i, "\xE7\x8C\xAB", 4);
    int n = snprintf(body, sizeof body,
                     "--XX\r\nContent-Disposition: form-data; name=file; filename=\"%s\"\r\n\r\n1"
                     "\r\n--XX--",
                     longer);
    f = (struct mg_fault){0};
    assert_int_equal(mg_upload_parse(TYPE, body, (size_t)n, 9, &u, &f), MG_OK);
    assert_int_equal(strlen(u.filename), 126);
}

/* As openai-python 3.57 sends it. */
static void an_upload_of_the_official_client(void **state) {
#define MARK "--ed499cc2bd48d56a2383324b4c138312"
#define FIELD(name, value)                                                                         \
    MARK "\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"
    static const char type[] = "multipart/form-data; boundary=ed499cc2bd48d56a2383324b4c138312",
                      head[] =
                          FIELD("purpose", "vision") FIELD("expires_after[anchor]", "created_at"),
                      file[] = MARK "\r\nContent-Disposition: form-data; name=\"file\"; "
                                    "filename=\"photo.png\"\r\nContent-Type: image/png\r\n\r\n"
                                    "\x89PNG\r\n\x1a\n\r\n" MARK "--\r\n";
    static const struct {
        const char *seconds;
        int64_t want; /* 0: refused */
    } c[] = {
        {"3600", 3600}, {"2592000", 2592000},          {"2592001", 0}, {"0", 0}, {"", 0}, {"1h", 0},
        {"-1", 0},      {"99999999999999999999999", 0}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_buf b = {0};
        struct mg_upload u;
        struct mg_fault f = {0};
        mg_buf_add_str(&b, head);
        mg_buf_printf(&b, FIELD("expires_after[seconds]", "%s") "%s", c[i].seconds, file);
        enum mg_status status = mg_upload_parse(type, b.data, b.n, 100, &u, &f);
        assert_int_equal(status, c[i].want ? MG_OK : MG_ERR_ARGUMENT);
        if (c[i].want) {
            assert_int_equal(u.seconds, c[i].want);
            assert_int_equal(u.data.n, 8);
            assert_string_equal(u.filename, "photo.png");
            assert_string_equal(u.purpose, "vision");
        } else {
            assert_string_equal(f.param, "expires_after[seconds]");
        }
        mg_buf_free(&b);
    }
}

static void a_cut_upload_is_an_error(void **state) {
    for (size_t n = 0; n < sizeof upload - 3; n++) {
        char *cut = malloc(n ? n : 1);
        struct mg_upload u;
        struct mg_fault f = {0};
        memcpy(cut, upload, n);
        assert_int_not_equal(mg_upload_parse(TYPE, cut, n, 100, &u, &f), MG_OK);
        free(cut);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_found),
        cmocka_unit_test(content_types),
        cmocka_unit_test(malformed_bodies),
        cmocka_unit_test(uploads),
        cmocka_unit_test(an_upload_of_the_official_client),
        cmocka_unit_test(a_cut_upload_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
