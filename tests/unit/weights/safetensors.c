/* The safetensors header reader: one crafted file per rule (faults.md 67), each in a block of its
 * exact size so that an over-read is seen under ASan. What is accepted was compared with
 * safetensors 0.8 in Python; where we are stricter the row says so. */
#include "base/io.h"
#include "weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Of this process, so that a busy machine doesn't fail a test. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#define A4 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}" /* one F32 */

struct seen {
    size_t n;
    struct mg_tensor t[8];
    char name[8][520];
    uint8_t first[8]; /* first data byte */
};

static enum mg_status see(void *arg, const struct mg_tensor *t, struct mg_err *err) {
    struct seen *s = arg;
    if (s->n < 8) {
        s->t[s->n] = *t;
        snprintf(s->name[s->n], sizeof s->name[0], "%s", t->name);
        if (t->n) {
            const volatile uint8_t *p = t->data; /* first and last byte must be there */
            s->first[s->n] = p[0];
            (void)p[t->n * mg_dtype_size(t->dtype) - 1];
        }
    }
    s->n++;
    return MG_OK;
}

/* Parses header length + header + n_data bytes 0, 1, 2... */
static enum mg_status parse(uint64_t length, const char *header, size_t n_header, size_t n_data,
                            struct seen *seen, struct mg_err *err) {
    uint8_t *file = malloc(8 + n_header + n_data);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++) file[8 + n_header + i] = (uint8_t)i;
    *seen = (struct seen){0};
    enum mg_status status = mg_safetensors_parse(file, 8 + n_header + n_data, see, seen, err);
    free(file);
    return status;
}

static void good_files(void **state) {
    struct mg_err err = {0};
    struct seen s;
    /* Out of order in the header, spaces everywhere, metadata, a scalar, an empty tensor, trailing
     * spaces. */
    static const char header[] =
        "{ \"b\\u00e4\" : {\"shape\":[2,3],\"data_offsets\":[4,16],\"dtype\":\"BF16\"},\n"
        "\"__metadata__\":{\"format\":\"pt\",\"x\\\"y\":\"\\ud83c\\udf0a\\u0000\"},\t"
        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"none\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
        "\"half\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[16,20]}} ";
    assert_int_equal((sizeof header - 1) % 4, 0); /* alignment of the data */
    assert_int_equal(parse(sizeof header - 1, header, sizeof header - 1, 20, &s, &err), MG_OK);
    assert_int_equal(s.n, 4);
    assert_string_equal(s.name[0], "scalar");
    assert_int_equal(s.t[0].n_dim, 0);
    assert_int_equal(s.t[0].n, 1);
    assert_string_equal(s.name[1], "none");
    assert_int_equal(s.t[1].n, 0);
    assert_int_equal(s.t[1].dtype, MG_I64);
    assert_string_equal(s.name[2], "b\xC3\xA4");
    assert_int_equal(s.t[2].dtype, MG_BF16);
    assert_int_equal(s.t[2].n_dim, 2);
    assert_int_equal(s.t[2].dim[0], 2);
    assert_int_equal(s.t[2].dim[1], 3);
    assert_int_equal(s.first[2], 4);
    assert_int_equal(s.t[3].dtype, MG_F16);
    assert_int_equal(s.t[3].n_dim, 6);
    assert_int_equal(s.first[3], 16);
    assert_int_equal(parse(2, "{}", 2, 0, &s, &err), MG_OK);
    assert_int_equal(s.n, 0);
    static const char null_metadata[] = "{\"__metadata__\":null," A4 "}  ";
    assert_int_equal(
        parse(sizeof null_metadata - 1, null_metadata, sizeof null_metadata - 1, 4, &s, &err),
        MG_OK);
}

struct row {
    const char *what, *header;
    size_t n_data;
    enum mg_status want;
    const char *text; /* part of the error */
};

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct row rows[] = {
    {"hole", "{" A4 "," T("b", "F32", "[1]", "[8,12]") "}", 12, MG_ERR_FORMAT, "gap"},
    {"hole at the start", "{" T("b", "F32", "[1]", "[4,8]") "}", 8, MG_ERR_FORMAT, "gap"},
    {"data after the last tensor", "{" A4 "}", 5, MG_ERR_FORMAT,
     "end at byte 4 of the data, the file has 5"},
    {"data but no tensor", "{}", 1, MG_ERR_FORMAT, "end at byte 0"},
    {"overlap", "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8,
     MG_ERR_FORMAT, "tensor b begins at byte 4 of the data, before the tensor before it ends (8)"},
    {"same place twice", "{" A4 "," T("b", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "before"},
    {"end past the file", "{" T("a", "F32", "[2]", "[0,8]") "}", 4, MG_ERR_FORMAT,
     "has 4 bytes of data"},
    {"begin > end", "{" T("a", "F32", "[1]", "[4,0]") "}", 4, MG_ERR_FORMAT, "data_offsets [4, 0]"},
    {"offsets far away",
     "{" T("a", "F32", "[1]", "[18446744073709551612,18446744073709551615]") "}", 4, MG_ERR_FORMAT,
     "data_offsets"},
    {"offset over 64 bits", "{" T("a", "F32", "[1]", "[0,18446744073709551616]") "}", 4,
     MG_ERR_FORMAT, "a smaller number"},
    {"shape smaller than data", "{" T("a", "F32", "[1]", "[0,8]") "}", 8, MG_ERR_FORMAT,
     "1 elements of F32 are 4 bytes, data_offsets give 8"},
    {"shape larger than data", "{" T("w.x", "BF16", "[3,7]", "[0,8]") "}", 8, MG_ERR_FORMAT,
     "tensor w.x: 21 elements of BF16 are 42 bytes"},
    {"product wraps to 0", "{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0,
     MG_ERR_FORMAT, "larger than memory"},
    {"bytes wrap to 0", "{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, MG_ERR_FORMAT,
     "larger than memory"},
    {"wraps before a 0",
     "{" T("a", "U8", "[9223372036854775808,9223372036854775808,0]", "[0,0]") "}", 0, MG_ERR_FORMAT,
     "larger than memory"},
    {"unknown dtype", "{" T("a", "F33", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "unknown dtype F33"},
    {"dtype of another case", "{" T("a", "f32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "unknown dtype"},
    {"known but unsupported", "{" T("q", "F8_E4M3", "[4]", "[0,4]") "}", 4, MG_ERR_UNSUPPORTED,
     "tensor q has dtype F8_E4M3; wanted a checkpoint in BF16, F16 or F32"},
    {"7 dimensions", "{" T("a", "F32", "[1,1,1,1,1,1,1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "6 dimensions"},
    {"name twice", "{" A4 "," T("a", "F32", "[1]", "[4,8]") "}", 8, MG_ERR_FORMAT,
     "tensor a stands twice"},
    {"name twice by escape", "{" A4 "," T("\\u0061", "F32", "[1]", "[4,8]") "}", 8, MG_ERR_FORMAT,
     "twice"},
    {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}," A4 "}", 4, MG_ERR_FORMAT,
     "once"},
    {"key twice", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, MG_ERR_FORMAT, "once each"},
    {"key missing", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, MG_ERR_FORMAT,
     "before the tensor's"},
    {"no keys", "{\"a\":{}}", 0, MG_ERR_FORMAT, "a string"},
    {"another key (stricter)",
     "{\"a\":{\"x\":1,\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, MG_ERR_FORMAT,
     "no key besides"},
    {"one offset", "{" T("a", "F32", "[1]", "[0]") "}", 4, MG_ERR_FORMAT, "two data_offsets"},
    {"three offsets", "{" T("a", "F32", "[1]", "[0,4,4]") "}", 4, MG_ERR_FORMAT,
     "two data_offsets"},
    {"negative dimension", "{" T("a", "F32", "[-1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "a whole number"},
    {"fraction", "{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, MG_ERR_FORMAT, "',' or ']'"},
    {"exponent", "{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, MG_ERR_FORMAT, "',' or ']'"},
    {"leading zero", "{" T("a", "F32", "[01]", "[0,4]") "}", 4, MG_ERR_FORMAT, "a whole number"},
    {"comma at the end", "{" T("a", "F32", "[1,]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "a whole number"},
    {"comma after the last tensor", "{" A4 ",}", 4, MG_ERR_FORMAT, "a string"},
    {"tensor is a list (stricter)", "{\"a\":[\"F32\",[1],[0,4]]}", 4, MG_ERR_FORMAT, "'{'"},
    {"tensor is null", "{\"a\":null}", 0, MG_ERR_FORMAT, "'{'"},
    {"metadata not text", "{\"__metadata__\":{\"a\":1}," A4 "}", 4, MG_ERR_FORMAT, "a string"},
    {"header not an object", "[]", 0, MG_ERR_FORMAT, "'{'"},
    {"space first (stricter)", " {" A4 "}", 4, MG_ERR_FORMAT, "'{'"},
    {"something after", "{" A4 "} x", 4, MG_ERR_FORMAT, "nothing after"},
    {"ends in a string", "{\"a", 0, MG_ERR_FORMAT, "the end of a string"},
    {"ends in an escape", "{\"a\\", 0, MG_ERR_FORMAT, "an escape"},
    {"ends in \\u", "{\"a\\u00", 0, MG_ERR_FORMAT, "an escape"},
    {"ends after ':'", "{\"a\":", 0, MG_ERR_FORMAT, "'{'"},
    {"empty header", "", 0, MG_ERR_FORMAT, "'{'"},
    {"empty name (stricter)", "{" T("", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "a tensor's name"},
    {"zero byte in a name (stricter)", "{" T("a\\u0000b", "F32", "[1]", "[0,4]") "}", 4,
     MG_ERR_FORMAT, "zero byte"},
    {"lone surrogate", "{" T("\\ud800", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "an escape"},
    {"low surrogate first", "{" T("\\udc00\\ud800", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "an escape"},
    {"unknown escape", "{" T("\\q", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "an escape"},
    {"control character", "{" T("a\n", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "control character"},
    {"UTF-8 cut short", "{" T("a\xE6\xBC", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "UTF-8"},
    {"UTF-8 too long a form", "{" T("\xC0\x80", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "UTF-8"},
    {"UTF-8 surrogate", "{" T("\xED\xA0\x80", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "UTF-8"},
    {"UTF-8 over U+10FFFF", "{" T("\xF4\x90\x80\x80", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT,
     "UTF-8"},
    {"UTF-8 lone tail", "{" T("\x80", "F32", "[1]", "[0,4]") "}", 4, MG_ERR_FORMAT, "UTF-8"},
    {"no UTF-8 in metadata", "{\"__metadata__\":{\"a\":\"\xFF\"}," A4 "}", 4, MG_ERR_FORMAT,
     "UTF-8"},
};

static void broken_files(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct mg_err err = {0};
        struct seen s;
        enum mg_status status =
            parse(strlen(r->header), r->header, strlen(r->header), r->n_data, &s, &err);
        if (status != r->want || !strstr(err.text, r->text))
            fail_msg("%s: status %d, text \"%s\"", r->what, status, err.text);
        assert_int_equal(s.n, 0); /* nothing is handed out of a broken file */
    }
}

static void every_truncation_is_an_error(void **state) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," A4 "," T("b", "BF16", "[2,1]", "[4,8]") "} ";
    size_t n = sizeof header - 1, all = 8 + n + 8;
    uint8_t whole[400] = {(uint8_t)n};
    memcpy(whole + 8, header, n);
    for (size_t take = 0; take < all; take++) {
        uint8_t *exact = malloc(take ? take : 1);
        memcpy(exact, whole, take);
        struct seen s = {0};
        assert_int_equal(mg_safetensors_parse(exact, take, see, &s, NULL), MG_ERR_FORMAT);
        assert_int_equal(s.n, 0);
        free(exact);
    }
}

static void header_length(void **state) {
    static const uint64_t length[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63, 100000001, 12,
                                      3};
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        struct mg_err err = {0};
        struct seen s;
        assert_int_equal(parse(length[i], "{}", 2, 0, &s, &err), MG_ERR_FORMAT);
        assert_non_null(strstr(err.text, "the limit is 2"));
    }
    struct mg_err err = {0};
    struct seen s = {0};
    assert_int_equal(mg_safetensors_parse((const uint8_t *)"\1\0\0\0\0\0\0", 7, see, &s, &err),
                     MG_ERR_FORMAT);
    assert_int_equal(mg_safetensors_parse(NULL, 0, see, &s, NULL), MG_ERR_FORMAT);
}

static void unaligned_data(void **state) {
    struct mg_err err = {0};
    struct seen s;
    static const char header[] =
        "{" T("u", "U8", "[1]", "[0,1]") "," T("f", "F32", "[1]", "[1,5]") "}";
    assert_int_equal(parse(sizeof header - 1, header, sizeof header - 1, 5, &s, &err),
                     MG_ERR_FORMAT);
    assert_string_equal(err.code, "tensor_unaligned");
    assert_non_null(strstr(err.text, "tensor f (F32)"));
}

static void long_names(void **state) {
    for (size_t n = 511; n <= 513; n++) {
        char header[1000], name[520];
        memset(name, 'n', n);
        name[n] = '\0';
        int len =
            snprintf(header, sizeof header,
                     "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", name);
        struct mg_err err = {0};
        struct seen s;
        enum mg_status want = n <= 512 ? MG_OK : MG_ERR_LIMIT;
        assert_int_equal(parse((uint64_t)len, header, (size_t)len, 4, &s, &err), want);
        if (want == MG_OK) assert_string_equal(s.name[0], name);
    }
    /* A long name and terminal escapes don't get into an error text. */
    struct mg_err err = {0};
    struct seen s;
    static const char hostile[] =
        "{\"\\u001b[31m\xC2\x9B"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000\":"
        "{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,4]}}";
    assert_int_equal(parse(sizeof hostile - 1, hostile, sizeof hostile - 1, 4, &s, &err),
                     MG_ERR_FORMAT);
    assert_null(strchr(err.text, 0x1b));
    assert_null(strstr(err.text, "\xC2\x9B"));
    assert_non_null(strstr(err.text, "?[31m??0000"));
    assert_non_null(strstr(err.text, "000...:"));
}

static void number_of_tensors(void **state) {
    for (int n = 100000; n <= 100001; n++) {
        struct mg_buf b = {.max = 20000000};
        for (int i = 0; i < n; i++)
            mg_buf_printf(&b, "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                          i ? ',' : '{', i, i, i + 1);
        mg_buf_add_str(&b, "}");
        struct mg_err err = {0};
        struct seen s;
        enum mg_status status = parse(b.n, (char *)b.data, b.n, (size_t)n, &s, &err);
        assert_int_equal(status, n == 100000 ? MG_OK : MG_ERR_LIMIT);
        if (n == 100000) assert_int_equal(s.n, n);
        mg_buf_free(&b);
    }
}

/* Headers made to be slow: a second is the limit, several times what a plain build needs, and no
 * memory to speak of. */
static void hostile_headers_are_cheap(void **state) {
    static const struct {
        const char *head, *unit;
    } row[] = {{"{\"a\":", "["},
               {"{\"a\":", "{\"a\":"},
               {"{\"__metadata__\":", "{\"a\":"},
               {"{", " "},
               {"{\"__metadata__\":{\"a\":\"", "x"},
               {"{\"__metadata__\":{\"a\":\"", "\\u1234"},
               {"{\"a\":{\"shape\":[", "1,"},
               {"{\"__metadata__\":{", "\"\":\"\","},
               {"{\"__metadata__\":{\"a\":\"", "\xC3\xA4"}};
    size_t n = 40000000;
    char *header = malloc(n);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        size_t at = strlen(row[i].head), k = strlen(row[i].unit);
        memcpy(header, row[i].head, at);
        for (; at + k <= n; at += k) memcpy(header + at, row[i].unit, k);
        memset(header + at, ' ', n - at);
        struct mg_err err = {0};
        struct seen s;
        uint8_t *file = malloc(8 + n);
        for (int j = 0; j < 8; j++) file[j] = (uint8_t)((uint64_t)n >> 8 * j);
        memcpy(file + 8, header, n);
        size_t before, after, peak;
        mg_memory_use(&before, &peak);
        double t = cpu_seconds();
        s = (struct seen){0};
        assert_int_not_equal(mg_safetensors_parse(file, 8 + n, see, &s, &err), MG_OK);
        t = cpu_seconds() - t;
        mg_memory_use(&after, &peak);
        free(file);
        if (t > 1) fail_msg("%s%s...: %.2f s", row[i].head, row[i].unit, t);
        assert_true(after < before + ((size_t)64 << 20));
    }
    free(header);
}

static enum mg_status stop(void *arg, const struct mg_tensor *t, struct mg_err *err) {
    ++*(int *)arg;
    return mg_fail(err, MG_ERR_CANCELLED, "", "enough");
}

static void callback_can_stop(void **state) {
    static const char header[] =
        "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[1,2]") "}";
    uint8_t file[200] = {sizeof header - 1};
    memcpy(file + 8, header, sizeof header - 1);
    int calls = 0;
    struct mg_err err = {0};
    assert_int_equal(mg_safetensors_parse(file, 8 + sizeof header - 1 + 2, stop, &calls, &err),
                     MG_ERR_CANCELLED);
    assert_int_equal(calls, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(header_length),
        cmocka_unit_test(unaligned_data),
        cmocka_unit_test(long_names),
        cmocka_unit_test(number_of_tensors),
        cmocka_unit_test(hostile_headers_are_cheap),
        cmocka_unit_test(callback_can_stop),
    };
    return cmocka_run_group_tests_name("weights.safetensors", tests, NULL, NULL);
}
