/* tokenizer.json that is unusual, unsupported, damaged or hostile: the right answer, or a clear
 * error. */
#include "support.h"

#include "base/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A small whole file in parts, so that each case replaces one. */
enum { VERSION, ADDED, NORMALIZER, PRE, POST, DECODER, MODEL_HEAD, VOCAB, MERGES, N_PART };
#define PATTERN                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "              \
    "?[^\\\\s\\\\p{L}"                                                                             \
    "\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT                                                                                      \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" PATTERN                                        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTES                                                                                      \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"      \
    "false}"
#define END_TOKEN "{\"id\":7,\"content\":\"<end>\",\"special\":true}"
static const char *const whole[N_PART] = {
    "\"version\":\"1.0\"",
    "\"added_tokens\":[" END_TOKEN "]",
    "\"normalizer\":{\"type\":\"NFC\"}",
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT "," BYTES "]}",
    "\"post_processor\":null",
    "\"decoder\":{\"type\":\"ByteLevel\"}",
    "\"type\":\"BPE\",\"dropout\":null",
    ("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
     "ab\":4,\"c\":5,\"abc\":6}"),
    "\"merges\":[[\"a\",\"b\"],[\"\xC4\xA0\",\"ab\"],[\"ab\",\"c\"]]",
};

static void join(char *out, size_t cap, int part, const char *instead) {
    const char *p[N_PART];
    for (int i = 0; i < N_PART; i++) p[i] = i == part ? instead : whole[i];
    int n = snprintf(out, cap, "{%s,%s,%s,%s,%s,%s,\"model\":{%s,%s,%s}}", p[0], p[1], p[2], p[3],
                     p[4], p[5], p[6], p[7], p[8]);
    assert_true(n > 0 && (size_t)n < cap);
}

static enum mg_status parse(const char *json, size_t n, struct mg_tokenizer **tok,
                            struct mg_err *err) {
    *err = (struct mg_err){0};
    /* An exact copy, so that reading over the end is seen. */
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, json, n);
    enum mg_status status = mg_tokenizer_parse(copy, n, tok, err);
    free(copy);
    assert_int_equal(status, err->status);
    assert_true((status == MG_OK) == (*tok != NULL));
    if (status != MG_OK) assert_true(err->text[0] != '\0');
    return status;
}

static void expect_ids(const char *json, const char *text, size_t n, const int32_t *want) {
    struct mg_tokenizer *tok;
    struct mg_err err;
    if (parse(json, strlen(json), &tok, &err) != MG_OK) fail_msg("%s", err.text);
    struct mg_ids ids = {0};
    assert_int_equal(mg_tokenizer_encode(tok, text, strlen(text), true, &ids, &err), MG_OK);
    assert_int_equal(ids.n, n);
    if (n) assert_memory_equal(ids.id, want, n * sizeof *want);
    mg_ids_free(&ids);
    mg_tokenizer_close(tok);
}

static char json[1 << 16];

/* Spellings that mean the same; the ids were checked with the `tokenizers` library on the same
 * files. */
static void good_files(void **state) {
    static const struct {
        int part;
        const char *instead;
    } row[] = {
        {VERSION, "\"version\":\"1.0\""},
        {VERSION, "\"truncation\":null,\"padding\":{\"x\":[1,2,{}]}"},
        {POST, "\"post_processor\":" BYTES},
        {POST, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
               "\"id\":\"A\","
               "\"type_id\":0}}],\"pair\":[],\"special_tokens\":{}}"},
        {MODEL_HEAD,
         "\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,"
         "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"dropout\":0.0"},
        {MERGES, "\"merges\":[\"#version: 0.2\",\"a b\",\"\xC4\xA0 ab\",\"ab c\"]"},
        {MERGES, "\"merges\":[[\"\\u0061\",\"b\"],\"\\u0120 ab\",[\"ab\",\"c\"]]"},
        {VOCAB, "\"vocab\":{\"c\":5,\"abc\":6,\"\\u0120\":3,\"\\u0120ab\":4,\"ab\":2,\"\\u0062\":1,"
                "\"a\":0}"},
        {DECODER,
         "\"decoder\":{\"add_prefix_space\":true,\"use_regex\":true,\"type\":\"ByteLevel\"}"},
    };
    static const int32_t want[] = {6, 4, 7, 2, 2};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        join(json, sizeof json, row[i].part, row[i].instead);
        expect_ids(json,
                   "abc ab<end>ab\xC3\xA9"
                   "ab",
                   5, want); /* bytes without a token vanish */
    }
    /* merges before vocab, model first, blanks everywhere */
    snprintf(json, sizeof json, " {\n\"model\" : { %s , %s , %s } ,\t%s,%s,%s,%s,%s,%s\r\n} ",
             whole[MERGES], whole[VOCAB], whole[MODEL_HEAD], whole[PRE], whole[DECODER],
             whole[ADDED], whole[NORMALIZER], whole[POST], whole[VERSION]);
    expect_ids(json,
               "abc ab<end>ab\xC3\xA9"
               "ab",
               5, want);
}

static void longest_added_token(void **state) {
    join(json, sizeof json, ADDED,
         "\"added_tokens\":[{\"id\":10,\"content\":\"<x\"},{\"id\":11,\"content\":\"<x><y\"},"
         "{\"id\":12,\"content\":\"<x>\"},{\"id\":13,\"content\":\"<\"},"
         "{\"id\":14,\"content\":\"e\xCC\x81!\",\"normalized\":true},{\"id\":2,\"content\":\"ab\"}"
         "]");
    expect_ids(json, "<x><y><x>a<x<<ab", 7, (int32_t[]){11, 12, 0, 10, 13, 13, 2});
    expect_ids(json, "a\xC3\xA9!b", 3, (int32_t[]){0, 14, 1}); /* composed here, not in the file */
    expect_ids(json, "ae\xCC\x81!b", 3, (int32_t[]){0, 14, 1});
}

static void refused_files(void **state) {
    static const struct {
        int part;
        const char *instead;
        enum mg_status status;
        const char *says;
    } row[] = {
        {VERSION, "\"version\":\"2.0\"", MG_ERR_UNSUPPORTED, "2.0"},
        {NORMALIZER, "\"normalizer\":{\"type\":\"NFKC\"}", MG_ERR_UNSUPPORTED, "NFKC"},
        {NORMALIZER, "\"normalizer\":null", MG_ERR_UNSUPPORTED, "normalizer"},
        {NORMALIZER, "\"x\":1", MG_ERR_UNSUPPORTED, "normalizer"},
        {PRE, "\"pre_tokenizer\":null", MG_ERR_UNSUPPORTED, "pre_tokenizer"},
        {PRE, "\"pre_tokenizer\":" BYTES, MG_ERR_UNSUPPORTED, "ByteLevel"},
        {PRE, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT "]}",
         MG_ERR_UNSUPPORTED, "Sequence"},
        {PRE, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES "," SPLIT "]}",
         MG_ERR_UNSUPPORTED, "ByteLevel"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT "," BYTES "," BYTES
         "]}",
         MG_ERR_UNSUPPORTED, "ByteLevel"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":"
         "{\"Regex\":\"\\\\p{M}+\"},\"behavior\":\"Isolated\"}," BYTES "]}",
         MG_ERR_UNSUPPORTED, "pattern \"\\p{M}+\""},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
         "\"pattern\":"
         "{\"String\":\"" PATTERN "\"},\"behavior\":\"Isolated\"}," BYTES "]}",
         MG_ERR_UNSUPPORTED, "pattern"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT
         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}]}",
         MG_ERR_UNSUPPORTED, "add_prefix_space"},
        {PRE,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT
         ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         MG_ERR_UNSUPPORTED, "use_regex"},
        {POST, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{\"x\":{}}}",
         MG_ERR_UNSUPPORTED, "special_tokens"},
        {POST, "\"post_processor\":{\"type\":\"Bert\\u0007\"}", MG_ERR_UNSUPPORTED, "Bert?"},
        {DECODER, "\"decoder\":{\"type\":\"WordPiece\"}", MG_ERR_UNSUPPORTED, "WordPiece"},
        {MODEL_HEAD, "\"type\":\"Unigram\"", MG_ERR_UNSUPPORTED, "Unigram"},
        {MODEL_HEAD, "\"dropout\":0.1", MG_ERR_UNSUPPORTED, "dropout"},
        {MODEL_HEAD, "\"unk_token\":\"<unk>\"", MG_ERR_UNSUPPORTED, "<unk>"},
        {MODEL_HEAD, "\"continuing_subword_prefix\":\"##\"", MG_ERR_UNSUPPORTED, "##"},
        {MODEL_HEAD, "\"end_of_word_suffix\":\"</w>\"", MG_ERR_UNSUPPORTED, "</w>"},
        {MODEL_HEAD, "\"byte_fallback\":true", MG_ERR_UNSUPPORTED, "byte_fallback"},
        {MODEL_HEAD, "\"ignore_merges\":true", MG_ERR_UNSUPPORTED, "ignore_merges"},
        {MODEL_HEAD, "\"dropout\":null,\"dropout\":null", MG_ERR_FORMAT, "twice"},
        {VOCAB, "\"v\":{}", MG_ERR_FORMAT, "no vocab"},
        {VOCAB, "\"vocab\":[]", MG_ERR_FORMAT, "object"},
        {VOCAB, "\"vocab\":{\"a\":0,\"b\":1,\"a\":2}", MG_ERR_FORMAT, "twice"},
        {VOCAB, "\"vocab\":{\"a\":0,\"b\":0}", MG_ERR_FORMAT, "two tokens have the id 0"},
        {VOCAB, "\"vocab\":{\"a\":-1}", MG_ERR_FORMAT, "whole number"},
        {VOCAB, "\"vocab\":{\"a\":1.5}", MG_ERR_FORMAT, "whole number"},
        {VOCAB, "\"vocab\":{\"a\":01}", MG_ERR_FORMAT, "malformed number"},
        {VOCAB, "\"vocab\":{\"a\":1000000}", MG_ERR_LIMIT, "too large"},
        {VOCAB, "\"vocab\":{\"a\":99999999999999999999999999}", MG_ERR_LIMIT, "too large"},
        {VOCAB, "\"vocab\":{\"\\ud800\":1}", MG_ERR_FORMAT, "surrogate"},
        {VOCAB, "\"vocab\":{\"\\udc00\":1}", MG_ERR_FORMAT, "surrogate"},
        {VOCAB, "\"vocab\":{\"\\ud800\\u0061\":1}", MG_ERR_FORMAT, "surrogate"},
        {VOCAB, "\"vocab\":{\"\\x\":1}", MG_ERR_FORMAT, "escape"},
        {VOCAB, "\"vocab\":{\"\\u12g4\":1}", MG_ERR_FORMAT, "hex"},
        {VOCAB, "\"vocab\":{\"\xFF\":1}", MG_ERR_FORMAT, "UTF-8"},
        {VOCAB, "\"vocab\":{\"\xED\xA0\x80\":1}", MG_ERR_FORMAT, "UTF-8"},
        {VOCAB, "\"vocab\":{\"a\nb\":1}", MG_ERR_FORMAT, "control character"},
        {VOCAB, "\"vocab\":{\"a\":0,}", MG_ERR_FORMAT, "string"},
        {VOCAB, "\"vocab\":{\"a\" 0}", MG_ERR_FORMAT, "colon"},
        {VOCAB, "\"vocab\":{\"a\":0 \"b\":1}", MG_ERR_FORMAT, "comma"},
        {MERGES, "\"m\":[]", MG_ERR_FORMAT, "no merges"},
        {MERGES, "\"merges\":[[\"a\",\"c\"]]", MG_ERR_FORMAT, "merge 0"},
        {MERGES, "\"merges\":[[\"a\",\"b\"],[\"a\",\"z\"]]", MG_ERR_FORMAT, "merge 1"},
        {MERGES, "\"merges\":[[\"a\"]]", MG_ERR_FORMAT, "two tokens"},
        {MERGES, "\"merges\":[[\"a\",\"b\",\"c\"]]", MG_ERR_FORMAT, "two tokens"},
        {MERGES, "\"merges\":[\"ab\"]", MG_ERR_FORMAT, "one space"},
        {MERGES, "\"merges\":[\"a b c\"]", MG_ERR_FORMAT, "one space"},
        {MERGES, "\"merges\":[\"\"]", MG_ERR_FORMAT, "one space"},
        {MERGES, "\"merges\":[3]", MG_ERR_FORMAT, "string"},
        {MERGES, "\"merges\":[[\"\xE4\xB8\xAD\",\"b\"]]", MG_ERR_UNSUPPORTED, "alphabet"},
        {ADDED, "\"added_tokens\":[{\"id\":7}]", MG_ERR_FORMAT, "content"},
        {ADDED, "\"added_tokens\":[{\"id\":7,\"content\":\"\"}]", MG_ERR_FORMAT, "content"},
        {ADDED, "\"added_tokens\":[{\"content\":\"x\"}]", MG_ERR_FORMAT, "id"},
        {ADDED, "\"added_tokens\":[{\"id\":3,\"content\":\"<x>\"}]", MG_ERR_FORMAT,
         "have the id 3"},
        {ADDED, "\"added_tokens\":[{\"id\":7,\"content\":\"ab\"}]", MG_ERR_FORMAT, "another id"},
        {ADDED, "\"added_tokens\":[" END_TOKEN "," END_TOKEN "]", MG_ERR_FORMAT,
         "added tokens have the id 7"},
        {ADDED, "\"added_tokens\":[{\"id\":7,\"content\":\"<x>\",\"lstrip\":true}]",
         MG_ERR_UNSUPPORTED, "lstrip"},
        {ADDED, "\"added_tokens\":[{\"id\":7,\"content\":\"<x>\",\"single_word\":true}]",
         MG_ERR_UNSUPPORTED, "single_word"},
        {ADDED, "\"added_tokens\":{}", MG_ERR_FORMAT, "array"},
        {ADDED, "\"version\":\"1.0\"", MG_ERR_FORMAT, "twice"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_tokenizer *tok;
        struct mg_err err;
        join(json, sizeof json, row[i].part, row[i].instead);
        enum mg_status status = parse(json, strlen(json), &tok, &err);
        if (status != row[i].status || !strstr(err.text, row[i].says))
            fail_msg("row %zu (%s): status %d, \"%s\"", i, row[i].instead, status, err.text);
    }
}

static void limits(void **state) {
    struct mg_tokenizer *tok;
    struct mg_err err;
    char token[5000], part[6000];
    memset(token, 'x', sizeof token);
    token[4096] = '\0'; /* as long as allowed */
    snprintf(part, sizeof part,
             "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
             "ab\":4,\"c\":5,"
             "\"abc\":6,\"%s\":8}",
             token);
    join(json, sizeof json, VOCAB, part);
    assert_int_equal(parse(json, strlen(json), &tok, &err), MG_OK);
    assert_int_equal(mg_tokenizer_piece(tok, 8).n, 4096);
    mg_tokenizer_close(tok);
    memset(token, 'x', 4097);
    token[4097] = '\0';
    snprintf(part, sizeof part, "\"vocab\":{\"%s\":8}", token);
    join(json, sizeof json, VOCAB, part);
    assert_int_equal(parse(json, strlen(json), &tok, &err), MG_ERR_LIMIT);
    memset(token, '[', 4000);
    token[4000] = '\0';
    snprintf(part, sizeof part, "\"truncation\":%s", token);
    join(json, sizeof json, VERSION, part);
    assert_int_equal(parse(json, strlen(json), &tok, &err), MG_ERR_LIMIT);
    assert_non_null(strstr(err.text, "deep"));
    size_t n = ((size_t)64 << 20) + 1; /* refused by its size alone */
    *json = '{';
    err = (struct mg_err){0};
    assert_int_equal(mg_tokenizer_parse(json, n, &tok, &err), MG_ERR_LIMIT);
    static const char *const scrap[] = {"",  " ", "{", "[]", "null", "{}", "{}x", "\xEF\xBB\xBF{}",
                                        "\0"};
    for (size_t i = 0; i < sizeof scrap / sizeof *scrap; i++)
        assert_int_not_equal(parse(scrap[i], strlen(scrap[i]), &tok, &err), MG_OK);
}

/* Cut anywhere it is an error; with any byte changed it is an error or a tokenizer, and never
 * worse. */
static void damage(void **state) {
    struct mg_tokenizer *tok;
    struct mg_err err;
    join(json, sizeof json, VERSION, whole[VERSION]);
    size_t n = strlen(json), good = 0;
    for (size_t i = 0; i < n; i++) assert_int_equal(parse(json, i, &tok, &err), MG_ERR_FORMAT);
    static const char change[] = "\"\\{}[]:,0\x01\xFF"
                                 "e";
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof change; k++) {
            char was = json[i];
            json[i] = change[k];
            if (parse(json, n, &tok, &err) == MG_OK) {
                struct mg_ids ids = {0};
                mg_tokenizer_encode(tok, "abc ab<end>", 11, true, &ids, &err);
                mg_ids_free(&ids);
                good++;
            }
            mg_tokenizer_close(tok);
            json[i] = was;
        }
    assert_true(good > 0 && good < n * sizeof change / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),    cmocka_unit_test(longest_added_token),
        cmocka_unit_test(refused_files), cmocka_unit_test(limits),
        cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
