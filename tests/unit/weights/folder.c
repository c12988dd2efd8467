/* Checkpoint folders: one file, shards with an index, and everything that can be wrong with them.
 * The folders are made here, in a temporary place. */
#include "base/io.h"
#include "weights/weights.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Of this process, so that a busy machine doesn't fail a test. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char dir[64];

static int setup(void **state) {
    strcpy(dir, "/tmp/margay-test-weights-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void put(const char *name, const void *data, size_t n) {
    char path[400];
    struct mg_err err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (mg_file_write(path, data, n, &err) != MG_OK) fail_msg("%s", err.text);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A safetensors file of the header, padded to 8 bytes, and the data; `cut` bytes are left out at
 * the end. */
static void put_tensors(const char *name, const char *header, const void *data, size_t n_data,
                        size_t cut) {
    struct mg_buf b = {0};
    uint64_t n = mg_round_up(strlen(header), 8);
    for (int i = 0; i < 8; i++) mg_buf_add_byte(&b, (uint8_t)(n >> 8 * i));
    mg_buf_printf(&b, "%-*s", (int)n, header);
    mg_buf_add(&b, data, n_data);
    put(name, b.data, b.n - cut);
    mg_buf_free(&b);
}

#define INDEX "model.safetensors.index.json"
#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"
#define ENTRY(name, shape, begin, end)                                                             \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static const float numbers[6] = {1, -2.5f, 3, 4, 5, 6};

static void put_two_shards(void) {
    put_tensors(SHARD1, "{" ENTRY("a", "[2,1]", "0", "8") "}", numbers, 8, 0);
    put_tensors(SHARD2,
                "{" ENTRY("b", "[3]", "0", "12") "," ENTRY("lm_head.weight", "[1]", "12", "16") "}",
                numbers, 16, 0);
    put_text(INDEX, "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"a\":\"" SHARD1
                    "\",\"b\":\"" SHARD2 "\"}}");
}

/* Fails unless opening gives this status and an error with these parts of text. */
static void want_failure(const char *what, enum mg_status want, const char *part,
                         const char *part2) {
    struct mg_err err = {0};
    struct mg_weights *w;
    enum mg_status status = mg_weights_open(dir, &w, &err);
    if (status == MG_OK) mg_weights_close(w);
    if (status != want || !strstr(err.text, part) || !strstr(err.text, part2))
        fail_msg("%s: status %d, text \"%s\"", what, status, err.text);
    assert_null(w);
}

static void three_dtypes_in_one_file(void **state) {
    static const uint8_t data[] = {0x80, 0x3f, 0x00, 0xc0, /* BF16 1, -2 */
                                   0x00, 0x3e, 0x01, 0x00, /* F16 1.5, 2^-24 */
                                   0x00, 0x00, 0x20, 0xc0, /* F32 -2.5 */
                                   1,    2,    3,    4};   /* U8 */
    put_tensors("model.safetensors",
                "{\"bf\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                "\"f16\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[4,8]},"
                "\"f32\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
                "\"u8\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[12,16]}}",
                data, sizeof data, 0);
    struct mg_err err = {0};
    struct mg_weights *w;
    assert_int_equal(mg_weights_open(dir, &w, &err), MG_OK);
    assert_int_equal(mg_weights_count(w), 4);
    assert_int_equal(mg_weights_bytes(w), 16);
    assert_string_equal(mg_weights_at(w, 1)->name, "f16");
    const struct mg_tensor *t;
    assert_int_equal(mg_weights_need(w, "bf", 1, (size_t[]){2}, &t, &err), MG_OK);
    assert_true(mg_load_f32(t->dtype, t->data, 0) == 1 && mg_load_f32(t->dtype, t->data, 1) == -2);
    assert_int_equal(mg_weights_need(w, "f16", 2, (size_t[]){1, 2}, &t, &err), MG_OK);
    assert_true(mg_load_f32(t->dtype, t->data, 0) == 1.5f &&
                mg_load_f32(t->dtype, t->data, 1) == 0x1p-24f);
    assert_int_equal(mg_weights_need(w, "f32", 1, (size_t[]){1}, &t, &err), MG_OK);
    assert_true(mg_load_f32(t->dtype, t->data, 0) == -2.5f);

    static const struct {
        const char *name;
        int n_dim;
        size_t dim[3];
        enum mg_status want;
        const char *code, *text;
    } row[] = {
        {"bf", 1, {3}, MG_ERR_FORMAT, "tensor_shape", "tensor bf: wanted shape [3], found [2]"},
        {"f16",
         2,
         {2, 1},
         MG_ERR_FORMAT,
         "tensor_shape",
         "tensor f16: wanted shape [2, 1], found [1, 2]"},
        {"f16",
         1,
         {2},
         MG_ERR_FORMAT,
         "tensor_shape",
         "tensor f16: wanted shape [2], found [1, 2]"},
        {"f32", 0, {0}, MG_ERR_FORMAT, "tensor_shape", "tensor f32: wanted shape [], found [1]"},
        {"u8",
         1,
         {4},
         MG_ERR_FORMAT,
         "tensor_dtype",
         "tensor u8: wanted dtype BF16, F16 or F32, found U8"},
        {"gone",
         2,
         {5, 6},
         MG_ERR_NOT_FOUND,
         "tensor_missing",
         "tensor gone is missing; wanted shape [5, 6]"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        mg_err_clear(&err);
        assert_int_equal(mg_weights_need(w, row[i].name, row[i].n_dim, row[i].dim, &t, &err),
                         row[i].want);
        assert_string_equal(err.text, row[i].text);
        assert_string_equal(err.code, row[i].code);
        assert_null(t);
    }
    assert_null(mg_weights_find(w, ""));
    assert_null(mg_weights_find(w, "bg"));
    mg_weights_close(w);
    mg_weights_close(NULL);
}

static void find_among_many(void **state) {
    struct mg_buf b = {0};
    int n = 3000;
    for (int i = 0; i < n; i++) /* names in an order that is not sorted */
        mg_buf_printf(&b,
                      "%c\"layer.%d.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? ',' : '{', i * 7919 % n, i * 4, i * 4 + 4);
    mg_buf_add_str(&b, "}");
    float *data = malloc(sizeof *data * (size_t)n);
    for (int i = 0; i < n; i++) data[i] = (float)(i * 7919 % n);
    put_tensors("model.safetensors", (char *)b.data, data, sizeof *data * (size_t)n, 0);
    struct mg_err err = {0};
    struct mg_weights *w;
    assert_int_equal(mg_weights_open(dir, &w, &err), MG_OK);
    for (int i = 0; i < n; i++) {
        char name[40];
        snprintf(name, sizeof name, "layer.%d.w", i);
        const struct mg_tensor *t = mg_weights_find(w, name);
        assert_non_null(t);
        assert_true(*(const float *)t->data == (float)i);
    }
    mg_weights_close(w);
    mg_buf_free(&b);
    free(data);
}

static void shards(void **state) {
    put_two_shards();
    struct mg_err err = {0};
    struct mg_weights *w;
    assert_int_equal(mg_weights_open(dir, &w, &err), MG_OK);
    assert_int_equal(mg_weights_count(w),
                     3); /* the extra lm_head.weight, which the index leaves out, is fine */
    assert_int_equal(mg_weights_bytes(w), 24);
    assert_true(*(const float *)mg_weights_find(w, "lm_head.weight")->data == 4);
    assert_true(((const float *)mg_weights_find(w, "a")->data)[1] == -2.5f);
    mg_weights_close(w);
    /* Shards may be links, as in the hub's cache folder. */
    char from[400], to[400];
    snprintf(from, sizeof from, "%s/blob", dir);
    snprintf(to, sizeof to, "%s/" SHARD1, dir);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(symlink("blob", to), 0);
    assert_int_equal(mg_weights_open(dir, &w, &err), MG_OK);
    mg_weights_close(w);
    /* The single file goes before the index, as in the reference. */
    put_tensors("model.safetensors", "{" ENTRY("single", "[1]", "0", "4") "}", numbers, 4, 0);
    assert_int_equal(mg_weights_open(dir, &w, &err), MG_OK);
    assert_int_equal(mg_weights_count(w), 1);
    mg_weights_close(w);
}

static void truncated_shard(void **state) {
    put_two_shards();
    put_tensors(SHARD2, "{" ENTRY("b", "[3]", "0", "12") "}", numbers, 12, 1);
    want_failure("truncated shard", MG_ERR_FORMAT, SHARD2, "truncated?");
    put_tensors(SHARD2, "{" ENTRY("b", "[3]", "0", "12") "}", numbers, 12, 50);
    want_failure("shard cut in its header", MG_ERR_FORMAT, SHARD2, "truncated?");
    put(SHARD2, "", 0);
    want_failure("empty shard", MG_ERR_FORMAT, SHARD2, "not a safetensors file");
}

static void index_and_shards_at_odds(void **state) {
    put_two_shards();
    put_text(INDEX, "{\"weight_map\":{\"a\":\"" SHARD2 "\",\"b\":\"" SHARD1 "\"}}");
    want_failure("in the other shard", MG_ERR_FORMAT, "is in model-0000",
                 INDEX " puts it into model-0000");
    put_text(INDEX, "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"c\":\"" SHARD2 "\"}}");
    want_failure("in no shard", MG_ERR_FORMAT, "tensor c is not in " SHARD2, INDEX);
    put_tensors(SHARD2, "{" ENTRY("a", "[3]", "0", "12") "}", numbers, 12, 0);
    put_text(INDEX, "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"b\":\"" SHARD2 "\"}}");
    want_failure("in both shards", MG_ERR_FORMAT, "tensor a stands in two of the files", "");
    put_text(INDEX, "{\"weight_map\":{\"a\":\"" SHARD1 "\",\"b\":\"model-9.safetensors\"}}");
    want_failure("no such file", MG_ERR_NOT_FOUND, "model-9.safetensors", INDEX);
}

static void names_in_the_index(void **state) {
    static const char *const bad[] = {"../../x", "../x", "/etc/passwd", "sub/x",  ".",
                                      "..",      "",     ".hidden",     "a\\\\b", "a\\nb",
                                      "./x",     "a/",   "\\u007f"};
    put_two_shards();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", bad[i]);
        put_text(INDEX, text);
        want_failure(bad[i], MG_ERR_FORMAT, "wanted a plain file name in the same folder",
                     "tensor a");
    }
    char text[600], name[300];
    memset(name, 'n', 256);
    name[256] = '\0';
    snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", name);
    put_text(INDEX, text);
    want_failure("256 bytes", MG_ERR_FORMAT, "plain file name", "nnn...");
}

static void broken_indexes(void **state) {
    static const struct {
        const char *text;
        enum mg_status want;
        const char *part;
    } row[] = {
        {"", MG_ERR_FORMAT, "the text ends too early"},
        {"{", MG_ERR_FORMAT, "ends too early"},
        {"[]", MG_ERR_FORMAT, "wanted an object, found a list"},
        {"{}", MG_ERR_FORMAT, "found nothing"},
        {"{\"weight_map\":[]}", MG_ERR_FORMAT, "found a list of 0"},
        {"{\"weight_map\":{}}", MG_ERR_FORMAT, "found an object"},
        {"{\"weight_map\":{\"a\":1}}", MG_ERR_FORMAT, "found 1"},
        {"{\"weight_map\":{\"a\":null}}", MG_ERR_FORMAT, "found null"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}", MG_ERR_FORMAT, "a key that stands twice"},
        {"{\"weight_map\":{\"a\":\"x\"}} x", MG_ERR_FORMAT, "something follows"},
        {"{\"weight_map\":{\"a\":\"\xFF\"}}", MG_ERR_FORMAT, "not valid UTF-8"},
        {"{\"weight_map\":{\"a\":\"x\\u0000\"}}", MG_ERR_FORMAT, "zero byte"},
        {"{\"x\":[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]}", MG_ERR_LIMIT, "nested more than 16"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        put_text(INDEX, row[i].text);
        want_failure(row[i].text, row[i].want, row[i].part, INDEX);
    }
}

static enum mg_status count(void *arg, const char *tensor, const char *file, struct mg_err *err) {
    ++*(size_t *)arg;
    return MG_OK;
}

/* 30 MB made to be slow or large. */
static void hostile_indexes_are_cheap(void **state) {
    static const char *const unit[] = {"[", "{\"a\":", "0,", "\"a\":\"b\",", " "};
    size_t n = 30000000;
    char *text = malloc(n);
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        static const char head[] = "{\"weight_map\":{\"a\":[";
        size_t k = strlen(unit[i]), at = sizeof head - 1;
        memcpy(text, head, at);
        for (; at + k <= n; at += k) memcpy(text + at, unit[i], k);
        memset(text + at, ' ', n - at);
        struct mg_err err = {0};
        size_t calls = 0, anon, before, after;
        mg_memory_use(&anon, &before);
        double t = cpu_seconds();
        assert_int_not_equal(mg_shard_index_parse(text, n, count, &calls, &err), MG_OK);
        t = cpu_seconds() - t;
        mg_memory_use(&anon, &after);
        if (t > 1) fail_msg("%s: %.2f s", unit[i], t);
        assert_true(after < before + ((size_t)500 << 20));
    }
    free(text);
}

static void largest_index(void **state) {
    struct mg_buf b = {0};
    mg_buf_add_str(&b, "{\"weight_map\":");
    for (int i = 0; i < 100000; i++)
        mg_buf_printf(&b, "%c\"model.layers.%d.w\":\"m-%d\"", i ? ',' : '{', i, i % 1000);
    mg_buf_add_str(&b, "}}");
    size_t calls = 0;
    struct mg_err err = {0};
    assert_int_equal(mg_shard_index_parse((char *)b.data, b.n, count, &calls, &err), MG_OK);
    assert_int_equal(calls, 100000);
    b.n -= 2;
    mg_buf_add_str(&b, ",\"one more\":\"m\"}}");
    assert_int_equal(mg_shard_index_parse((char *)b.data, b.n, count, &calls, &err), MG_ERR_LIMIT);
    mg_buf_free(&b);
}

static void too_many_shards(void **state) {
    struct mg_buf b = {0};
    mg_buf_add_str(&b, "{\"weight_map\":");
    for (int i = 0; i < 1001; i++) mg_buf_printf(&b, "%c\"t%d\":\"s%d\"", i ? ',' : '{', i, i);
    mg_buf_add_str(&b, "}}");
    put(INDEX, b.data, b.n);
    mg_buf_free(&b);
    want_failure("1001 shards", MG_ERR_LIMIT, "more than 1000 files", INDEX);
}

static void folders(void **state) {
    want_failure("empty folder", MG_ERR_NOT_FOUND, "looked for model.safetensors and " INDEX, dir);
    char was[64], path[200];
    strcpy(was, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    want_failure("weights are a folder", MG_ERR_IO, "not a regular file", "model.safetensors");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(10);
    want_failure("weights are a FIFO", MG_ERR_IO, "not a regular file", "model.safetensors");
    alarm(0);
    unlink(path);
    put_tensors("model.safetensors", "{}", "", 0, 0);
    want_failure("no tensor", MG_ERR_FORMAT, "holds no tensor", "");
    strcpy(dir + strlen(dir), "/x");
    want_failure("missing folder", MG_ERR_NOT_FOUND, "there is no folder", dir);
    strcpy(dir, was);
    struct mg_err err = {0};
    struct mg_weights *w;
    assert_int_equal(mg_weights_open(path, &w, &err), MG_ERR_FORMAT); /* one file is fine, but */
    assert_non_null(strstr(err.text, "holds no tensor"));
    char lengthy[5000];
    memset(lengthy, 'a', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    mg_err_clear(&err);
    assert_int_not_equal(mg_weights_open(lengthy, &w, &err), MG_OK);
}

static void unreadable(void **state) {
    put_tensors("model.safetensors", "{" ENTRY("a", "[1]", "0", "4") "}", numbers, 4, 0);
    char path[200];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    uid_t was = geteuid();
    struct mg_err file = {0}, folder = {0};
    struct mg_weights *w;
    chmod(path, 0);
    chmod(dir, 0755);
    if (was == 0 && seteuid(65534) != 0) skip();
    enum mg_status first = mg_weights_open(dir, &w, &file);
    assert_int_equal(seteuid(was), 0);
    chmod(dir, 0);
    if (was == 0 && seteuid(65534) != 0) skip();
    enum mg_status second = mg_weights_open(dir, &w, &folder);
    assert_int_equal(seteuid(was), 0);
    chmod(dir, 0755);
    assert_int_equal(first, MG_ERR_IO);
    assert_non_null(strstr(file.text, path));
    assert_non_null(strstr(file.text, strerror(EACCES)));
    assert_int_equal(second, MG_ERR_IO);
    assert_non_null(strstr(folder.text, dir));
    assert_non_null(strstr(folder.text, strerror(EACCES)));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(three_dtypes_in_one_file),
        CASE(find_among_many),
        CASE(shards),
        CASE(truncated_shard),
        CASE(index_and_shards_at_odds),
        CASE(names_in_the_index),
        CASE(broken_indexes),
        CASE(hostile_indexes_are_cheap),
        CASE(largest_index),
        CASE(too_many_shards),
        CASE(folders),
        CASE(unreadable),
    };
    return cmocka_run_group_tests_name("weights.folder", tests, NULL, NULL);
}
