#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

struct mg_buf unpack(const char *path) {
    struct mg_buf out = {.max = 32u << 20};
    static char chunk[65536];
    gzFile f = gzopen(path, "rb");
    if (!f) fail_msg("can't open %s (tests run from the project's root)", path);
    int n;
    while ((n = gzread(f, chunk, sizeof chunk)) > 0)
        assert_true(mg_buf_add(&out, chunk, (size_t)n));
    assert_int_equal(n, 0);
    gzclose(f);
    return out;
}

static struct mg_tokenizer *real;

const struct mg_tokenizer *real_tokenizer(void) {
    if (!real) {
        struct mg_buf json = unpack("tests/data/text/tokenizer.json.gz");
        struct mg_err err = {0};
        if (mg_tokenizer_parse(json.data, json.n, &real, &err) != MG_OK) fail_msg("%s", err.text);
        mg_buf_free(&json);
    }
    return real;
}

void real_tokenizer_close(void) {
    mg_tokenizer_close(real);
    real = NULL;
}

size_t for_each_line(const char *path, void (*each)(json_t *line, size_t number)) {
    struct mg_buf text = unpack(path);
    size_t number = 0;
    for (char *p = (char *)text.data, *end; p < (char *)text.data + text.n; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        json_error_t e;
        json_t *line = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, &e);
        if (!line) fail_msg("%s line %zu: %s", path, number + 1, e.text);
        each(line, number++);
        json_decref(line);
    }
    mg_buf_free(&text);
    return number;
}

struct mg_ids ids_of(json_t *array) {
    struct mg_ids ids = {0};
    for (size_t i = 0; i < json_array_size(array); i++)
        assert_true(mg_ids_add(&ids, (int32_t)json_integer_value(json_array_get(array, i))));
    return ids;
}

void assert_ids(const struct mg_ids *got, json_t *want, size_t number) {
    size_t n = json_array_size(want);
    for (size_t i = 0; i < got->n && i < n; i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(want, i));
        if (got->id[i] != id)
            fail_msg("line %zu: id %zu is %d, the reference has %d", number + 1, i, got->id[i], id);
    }
    if (got->n != n) fail_msg("line %zu: %zu ids, the reference has %zu", number + 1, got->n, n);
}
