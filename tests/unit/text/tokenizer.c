/* The tokenizer against recorded answers of the `tokenizers` library, both ways (fault 31). */
#include "support.h"

#include "base/io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct mg_ids encode(const char *text, size_t n, bool special) {
    struct mg_ids ids = {0};
    struct mg_err err = {0};
    if (mg_tokenizer_encode(real_tokenizer(), text, n, special, &ids, &err) != MG_OK)
        fail_msg("%s", err.text);
    return ids;
}

static void assert_decodes(const struct mg_ids *ids, bool skip, const char *want, size_t n,
                           size_t number) {
    struct mg_buf out = {0};
    assert_true(mg_tokenizer_decode(real_tokenizer(), ids->id, ids->n, skip, &out));
    if (out.n != n || memcmp(out.data, want, n) != 0)
        fail_msg("line %zu decodes to something else", number + 1);
    mg_buf_free(&out);
}

static void one_vector(json_t *line, size_t number) {
    json_t *text = json_object_get(line, "text"), *decoded = json_object_get(line, "decoded");
    struct mg_ids ids = encode(json_string_value(text), json_string_length(text), true);
    assert_ids(&ids, json_object_get(line, "ids"), number);
    assert_decodes(&ids, false, json_string_value(decoded), json_string_length(decoded), number);
    mg_ids_free(&ids);
}

static void recorded_vectors(void **state) {
    assert_int_equal(for_each_line("tests/data/text/vectors.jsonl.gz", one_vector), 1591);
}

static void one_random(json_t *line, size_t number) {
    if (number == 0) return; /* the seed */
    json_t *text = json_array_get(line, 0);
    struct mg_ids ids = encode(json_string_value(text), json_string_length(text), true);
    assert_ids(&ids, json_array_get(line, 1), number);
    mg_ids_free(&ids);
}

static void random_strings(void **state) {
    assert_int_equal(for_each_line("tests/data/text/random.jsonl.gz", one_random), 3361);
}

static void one_decode(json_t *line, size_t number) {
    struct mg_ids ids = ids_of(json_array_get(line, 0));
    for (size_t skip = 0; skip < 2; skip++) {
        json_t *want = json_array_get(line, 1 + skip);
        assert_decodes(&ids, skip, json_string_value(want), json_string_length(want), number);
        struct mg_buf out = {0}; /* streamed, token by token */
        struct mg_detok d = {0};
        for (size_t i = 0; i < ids.n; i++) {
            if (skip && mg_tokenizer_is_special(real_tokenizer(), ids.id[i])) continue;
            assert_true(mg_detok_add(&d, mg_tokenizer_piece(real_tokenizer(), ids.id[i]), &out));
        }
        assert_true(mg_detok_flush(&d, &out));
        assert_int_equal(out.n, json_string_length(want));
        assert_memory_equal(out.data, json_string_value(want), out.n);
        mg_buf_free(&out);
    }
    mg_ids_free(&ids);
}

static void recorded_decodes(void **state) {
    assert_int_equal(for_each_line("tests/data/text/decodes.jsonl.gz", one_decode), 400);
}

/* Added tokens are found only on request, the longest first. */
static void added_tokens(void **state) {
    const struct mg_tokenizer *t = real_tokenizer();
    assert_int_equal(mg_tokenizer_added(t, "<|im_end|>"), 151645);
    assert_int_equal(mg_tokenizer_added(t, "<tool_call>"), 151657);
    assert_int_equal(mg_tokenizer_added(t, "the"), -1);
    assert_int_equal(mg_tokenizer_added(t, "<|nothing|>"), -1);
    assert_int_equal(mg_tokenizer_n(t), 151669);
    assert_true(mg_tokenizer_is_special(t, 151645));
    assert_false(mg_tokenizer_is_special(t, 151657));
    assert_false(mg_tokenizer_is_special(t, 5));
    assert_false(mg_tokenizer_is_special(t, -1));
    assert_false(mg_tokenizer_is_special(t, INT32_MAX));
    assert_int_equal(mg_tokenizer_piece(t, -1).n, 0);
    assert_int_equal(mg_tokenizer_piece(t, INT32_MIN).n, 0);
    assert_int_equal(mg_tokenizer_piece(t, 151669).n, 0);
    static const char *const text = "a<|im_start|>b</tool_call><|image_pad|>";
    struct mg_ids on = encode(text, strlen(text), true), off = encode(text, strlen(text), false);
    static const int32_t want[] = {64, 151644, 65, 151658, 151655};
    assert_int_equal(on.n, 5);
    assert_memory_equal(on.id, want, sizeof want);
    for (size_t i = 0; i < off.n; i++) assert_true(off.id[i] < 151643);
    assert_decodes(&off, false, text, strlen(text), 0);
    mg_ids_free(&on);
    mg_ids_free(&off);
}

/* Broken bytes are read as U+FFFD, one for each longest piece that could begin a character. */
static void broken_utf8(void **state) {
    static const struct {
        const char *bytes, *as;
    } row[] = {{"a\xFFz", "a\xEF\xBF\xBDz"},
               {"\xE4\xB8", "\xEF\xBF\xBD"},
               {"\xE4\xB8\xE4\xB8\xAD", "\xEF\xBF\xBD\xE4\xB8\xAD"},
               {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
               {"\xC0\xAF<|im_end|>", "\xEF\xBF\xBD\xEF\xBF\xBD<|im_end|>"},
               {"e\xCC\x81\x80", "e\xCC\x81\xEF\xBF\xBD"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_ids a = encode(row[i].bytes, strlen(row[i].bytes), true);
        struct mg_ids b = encode(row[i].as, strlen(row[i].as), true);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
        mg_ids_free(&a);
        mg_ids_free(&b);
    }
}

/* Words of a megabyte: the ids are what smaller ones give, and it ends. */
static void long_words(void **state) {
    size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n);
    struct mg_ids ids = encode(text, n, false), eight = encode("aaaaaaaa", 8, false);
    assert_int_equal(eight.n, 1);
    assert_int_equal(ids.n, n / 8);
    for (size_t i = 0; i < ids.n; i++) assert_int_equal(ids.id[i], eight.id[0]);
    mg_ids_free(&ids);
    mg_ids_free(&eight);
    text[0] = 'e'; /* and a pile of marks, each pair out of order: U+0301 U+0323 */
    size_t at = 1;
    for (; at + 4 <= n; at += 4) memcpy(text + at, "\xCC\x81\xCC\xA3", 4);
    ids = encode(text, at, false);
    struct mg_buf out = {0};
    assert_true(mg_tokenizer_decode(real_tokenizer(), ids.id, ids.n, false, &out));
    assert_memory_equal(out.data, "\xE1\xBA\xB9\xCC\xA3\xCC\xA3",
                        7); /* e with the first dot below, then dots */
    assert_memory_equal(out.data + out.n - 4, "\xCC\x81\xCC\x81", 4);
    mg_buf_free(&out);
    mg_ids_free(&ids);
    free(text);
}

static void limits(void **state) {
    struct mg_ids ids = {0};
    struct mg_err err = {0};
    char nothing = 0;
    size_t too_long = ((size_t)64 << 20) + 1; /* refused before a byte is read */
    assert_int_equal(mg_tokenizer_encode(real_tokenizer(), &nothing, too_long, false, &ids, &err),
                     MG_ERR_LIMIT);
    assert_int_equal(ids.n, 0);
    mg_err_clear(&err);
    assert_int_equal(mg_tokenizer_encode(real_tokenizer(), "", 0, true, &ids, &err), MG_OK);
    assert_int_equal(ids.n, 0);
    struct mg_tokenizer *tok;
    assert_int_equal(mg_tokenizer_open("tests/no-such-folder", &tok, &err), MG_ERR_NOT_FOUND);
    assert_null(tok);
    mg_ids_free(&ids);
}

/* Threads share one tokenizer from its first use on. */
static void *thread_body(void *arg) {
    const struct mg_tokenizer *t = arg;
    size_t *n = malloc(sizeof *n);
    struct mg_ids ids = {0};
    static const char *const text =
        "The quick brown fox; \xE6\xB8\xA9\xE5\xBA\xA6\xE8\xAE\xA1 don't 123";
    for (int i = 0; i < 200; i++) mg_tokenizer_encode(t, text, strlen(text), true, &ids, NULL);
    *n = ids.n;
    mg_ids_free(&ids);
    return n;
}

static void threads(void **state) {
    struct mg_buf json = unpack("tests/data/text/tokenizer.json.gz");
    struct mg_tokenizer *tok;
    assert_int_equal(mg_tokenizer_parse(json.data, json.n, &tok, NULL), MG_OK);
    mg_buf_free(&json);
    pthread_t thread[4];
    size_t *n[4];
    for (size_t i = 0; i < 4; i++) pthread_create(&thread[i], NULL, thread_body, tok);
    for (size_t i = 0; i < 4; i++) pthread_join(thread[i], (void **)&n[i]);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(*n[i], *n[0]);
        if (i) free(n[i]);
    }
    assert_int_equal(*n[0] % 200, 0);
    free(n[0]);
    mg_tokenizer_close(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_vectors), cmocka_unit_test(random_strings),
        cmocka_unit_test(recorded_decodes), cmocka_unit_test(added_tokens),
        cmocka_unit_test(broken_utf8),      cmocka_unit_test(long_words),
        cmocka_unit_test(limits),           cmocka_unit_test(threads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    real_tokenizer_close();
    return failed;
}
