/* What a packed file holds, against the checkpoint it was made of: every number dequantised by a
 * loop of this file's own (places as in kernels/packed.h's picture) and compared with the number at
 * its row and column, so that a row at the wrong place, or of the wrong one of fused matrices, is
 * seen. And what is refused, cancelled or reported.
 */
#include "base/io.h"
#include "weights/convert.h"
#include "weights/packed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TIED "tests/oracle/tiny-tied"
#define UNTIED "tests/oracle/tiny-untied"
#define TEXT "model.language_model."

static char folder[256];

static int open_folder(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/margay-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static size_t count_files(bool remove) {
    DIR *d = opendir(folder);
    size_t n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (remove) unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
    return n;
}

static int close_folder(void **state) {
    (void)state;
    count_files(true);
    return rmdir(folder);
}

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static struct mg_weights *convert(const char *model, enum mg_file_weights kind, int threads,
                                  struct mg_convert_report *report) {
    struct mg_pool *pool = NULL;
    struct mg_err err = {0};
    struct mg_weights *w;
    int fd = memfd_create("packed", MFD_CLOEXEC);
    if (threads > 1 && mg_pool_open(threads, NULL, &pool, &err) != MG_OK) fail_msg("%s", err.text);
    struct mg_convert_options o = {.weights = kind, .pool = pool};
    if (mg_convert_fd(model, fd, &o, report, &err) != MG_OK) fail_msg("%s", err.text);
    if (mg_weights_open_fd(fd, "packed", &w, &err) != MG_OK) fail_msg("%s", err.text);
    close(fd);
    mg_pool_close(pool);
    return w;
}

static const struct mg_tensor *need(const struct mg_weights *w, const char *name,
                                    const char *more) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", name, more);
    const struct mg_tensor *t = mg_weights_find(w, full);
    if (!t) fail_msg("there is no %s", full);
    return t;
}

/* Row r, input j of the matrix in a packed file. */
static double number_at(const struct mg_weights *w, const char *name, size_t column, size_t j) {
    const struct mg_tensor *t = need(w, name, ".packed");
    size_t block = t->dim[2], c = column % 32, line = j % 64 / 4;
    const uint8_t *at = (const uint8_t *)t->data + (column / 32 * t->dim[1] + j / 64) * block;
    double scale = (double)((const float *)need(w, name, ".scale")->data)[column];
    if (block == 2048) return scale * (int8_t)at[c / 16 * 1024 + line * 64 + c % 16 * 4 + j % 4];
    int sub = (int8_t)at[c / 16 * 32 + j % 64 / 32 * 16 + c % 16];
    int two = at[64 + c / 16 * 512 + line / 2 * 64 + c % 16 * 4 + j % 4];
    return scale * sub * ((line % 2 ? two >> 4 : two & 15) - 8);
}

struct off {
    double error, square, worst; /* worst: in steps of an int8 row */
};

/* Rows of one source matrix stand from column `first` on, in tiles of 16 every `every`. */
static void compare(const struct mg_weights *w, const char *name, const struct mg_tensor *source,
                    size_t first, size_t every, struct off *off) {
    size_t k = source->dim[1];
    for (size_t r = 0; r < source->dim[0]; r++) {
        size_t column = first + (every ? r / 16 * every + r % 16 : r);
        double top = 0, error = 0, square = 0;
        for (size_t j = 0; j < k; j++) {
            double x = (double)mg_load_f32(source->dtype, source->data, r * k + j);
            double d = x - number_at(w, name, column, j);
            top = fmax(top, fabs(x));
            error += d * d;
            square += x * x;
        }
        off->error += error;
        off->square += square;
        if (top > 0) off->worst = fmax(off->worst, sqrt(error / (double)k) / (top / 127));
    }
}

/* int8: rounding to nearest, at most half a step anywhere; int4: one sixteenth or so of the
 * numbers' size. A wrong row would be off by the whole size, 1.4. */
static void check_matrix(const struct mg_weights *w, const char *name, bool four,
                         const struct off *off) {
    double relative = sqrt(off->error / off->square);
    assert_int_equal(need(w, name, ".packed")->dim[2], four ? 1088 : 2048);
    if (!(four ? relative < 0.15 : off->worst <= 0.5 && relative < 0.02))
        fail_msg("%s is off by %g, %g steps", name, relative, off->worst);
    if (four) assert_true(relative > 0.02); /* it is 4 bit */
}

static void check_alone(const struct mg_weights *w, const struct mg_weights *source,
                        const char *name, bool four) {
    struct off off = {0};
    compare(w, name, need(source, name, ".weight"), 0, 0, &off);
    check_matrix(w, name, four, &off);
}

static void check_layer(const struct mg_weights *w, const struct mg_weights *source, size_t layer,
                        bool four) {
    char base[128], name[192];
    const char *part[3] = {"q_proj", "k_proj", "v_proj"};
    struct off off = {0};
    size_t first = 0;
    snprintf(base, sizeof base, TEXT "layers.%zu.", layer);
    char fused[192];
    snprintf(fused, sizeof fused, "%sself_attn.%s", base, four ? "qk_proj" : "qkv_proj");
    for (int i = 0; i < (four ? 2 : 3); i++) {
        snprintf(name, sizeof name, "%sself_attn.%s", base, part[i]);
        const struct mg_tensor *t = need(source, name, ".weight");
        compare(w, fused, t, first, 0, &off);
        first += t->dim[0];
    }
    check_matrix(w, fused, four, &off);
    if (four) {
        snprintf(name, sizeof name, "%sself_attn.v_proj", base);
        check_alone(w, source, name, false);
    }
    snprintf(name, sizeof name, "%sself_attn.o_proj", base);
    check_alone(w, source, name, four);
    snprintf(name, sizeof name, "%smlp.down_proj", base);
    check_alone(w, source, name, four);
    off = (struct off){0};
    snprintf(fused, sizeof fused, "%smlp.gate_up_proj", base);
    snprintf(name, sizeof name, "%smlp.gate_proj", base);
    compare(w, fused, need(source, name, ".weight"), 0, 32, &off);
    snprintf(name, sizeof name, "%smlp.up_proj", base);
    compare(w, fused, need(source, name, ".weight"), 16, 32, &off);
    check_matrix(w, fused, four, &off);
}

/* Vectors are the same numbers in f32; what isn't packed is bf16. */
static void check_rest(const struct mg_weights *w, const struct mg_weights *source, bool packed) {
    size_t vectors = 0, matrices = 0;
    for (size_t i = 0; i < mg_weights_count(source); i++) {
        const struct mg_tensor *t = mg_weights_at(source, i), *got = mg_weights_find(w, t->name);
        if (t->n_dim == 1) {
            assert_true(got && got->dtype == MG_F32 && got->n == t->n);
            for (size_t j = 0; j < t->n; j++)
                assert_true(((const float *)got->data)[j] == mg_load_f32(t->dtype, t->data, j));
            vectors++;
        } else if (got) {
            assert_true(got->dtype == MG_BF16 && got->n == t->n && got->n_dim == t->n_dim);
            assert_memory_equal(got->dim, t->dim, sizeof t->dim);
            for (size_t j = 0; j < t->n; j++) {
                float x = mg_load_f32(t->dtype, t->data, j), y = mg_load_f32(MG_BF16, got->data, j);
                assert_true(fabsf(x - y) <= fabsf(x) / 256); /* half of bf16's last place */
            }
            matrices++;
        } else {
            assert_true(packed);
        }
    }
    assert_true(vectors > 40);
    if (packed) assert_int_equal(matrices, 2); /* patch embedding and table of positions */
}

static void check_model(const char *model, size_t n_layer, size_t depth, bool tied) {
    struct mg_weights *source;
    struct mg_err err = {0};
    assert_int_equal(mg_weights_open(model, &source, &err), MG_OK);
    for (int kind = MG_FILE_INT8; kind <= MG_FILE_INT4; kind++) {
        struct mg_weights *w = convert(model, (enum mg_file_weights)kind, 2, NULL);
        for (size_t i = 0; i < n_layer; i++) /* the first and the last stay at 8 bit */
            check_layer(w, source, i, kind == MG_FILE_INT4 && i && i + 1 < n_layer);
        check_alone(w, source, TEXT "embed_tokens", false);
        if (!tied) check_alone(w, source, "lm_head", false);
        for (size_t i = 0; i < depth; i++) {
            static const char *const part[] = {"attn.qkv", "attn.proj", "mlp.linear_fc1",
                                               "mlp.linear_fc2"};
            char name[128];
            snprintf(name, sizeof name, "model.visual.blocks.%zu.%s", i, part[i]);
            check_alone(w, source, name, false);
        }
        check_alone(w, source, "model.visual.merger.linear_fc1", false);
        check_alone(w, source, "model.visual.merger.linear_fc2", false);
        check_alone(w, source, "model.visual.deepstack_merger_list.1.linear_fc2", false);
        check_rest(w, source, true);
        mg_weights_close(w);
    }
    struct mg_weights *w = convert(model, MG_FILE_BF16, 1, NULL);
    check_rest(w, source, false);
    mg_weights_close(w);
    mg_weights_close(source);
}

static void test_numbers(void **state) {
    (void)state;
    check_model(TIED, 4, 4, true);
    check_model(UNTIED, 3, 3, false);
}

/* The report's counts and errors, with the numbers counted here. */
static void test_report(void **state) {
    (void)state;
    struct mg_convert_report r;
    struct mg_weights *source, *w = convert(TIED, MG_FILE_INT4, 3, &r);
    struct mg_err err = {0};
    size_t numbers = 0, stored = 0, told = 0, told_bytes = 0;
    assert_int_equal(mg_weights_open(TIED, &source, &err), MG_OK);
    for (size_t i = 0; i < mg_weights_count(source); i++)
        if (mg_weights_at(source, i)->n_dim > 1) numbers += mg_weights_at(source, i)->n;
    for (size_t i = 0; i < mg_weights_count(w); i++) {
        const struct mg_tensor *t = mg_weights_at(w, i);
        if (t->dtype == MG_BF16 || t->n_dim == 3) stored += t->n * mg_dtype_size(t->dtype);
    }
    for (int p = 0; p < MG_N_MATRIX; p++)
        for (int s = 0; s < 3; s++) {
            told += r.part[p][s].weights;
            told_bytes += r.part[p][s].bytes;
            assert_true(r.part[p][s].count || (!r.part[p][s].weights && r.part[p][s].error == 0));
        }
    assert_int_equal(told, numbers);
    assert_int_equal(told_bytes, stored);
    const struct mg_convert_part *down = &r.part[MG_MATRIX_DOWN][MG_STORE_INT4];
    assert_int_equal(down->count, 2);
    struct off off = {0};
    for (size_t i = 1; i <= 2; i++) {
        char name[128];
        snprintf(name, sizeof name, TEXT "layers.%zu.mlp.down_proj", i);
        compare(w, name, need(source, name, ".weight"), 0, 0, &off);
    }
    assert_true(fabs(off.error - down->error) < 1e-3 * off.error);
    assert_true(fabs(off.square - down->square) < 1e-4 * off.square);
    assert_true(r.seconds > 0 && r.part[MG_MATRIX_HEAD][MG_STORE_INT8].count == 1);
    mg_weights_close(source);
    mg_weights_close(w);
}

struct watch {
    uint64_t last, total;
    size_t calls, stop_at;
};
static bool watch(void *user, uint64_t done, uint64_t total) {
    struct watch *w = user;
    assert_true(done > w->last && done <= total && (!w->total || w->total == total));
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void test_progress_and_stop(void **state) {
    (void)state;
    struct watch w = {0};
    struct mg_convert_options o = {.weights = MG_FILE_INT8, .progress = watch, .user = &w};
    struct mg_err err = {0};
    assert_int_equal(mg_convert_file(TIED, in_folder("a"), &o, NULL, &err), MG_OK);
    struct stat st;
    assert_int_equal(stat(in_folder("a"), &st), 0);
    assert_int_equal(w.total, st.st_size);
    size_t calls = w.calls;
    assert_true(calls > 20);
    unlink(in_folder("a"));
    for (size_t at = 1; at <= calls; at += calls / 7) {
        w = (struct watch){.stop_at = at};
        assert_int_equal(mg_convert_file(TIED, in_folder("a"), &o, NULL, &err), MG_ERR_CANCELLED);
        assert_int_equal(w.calls, at);
        mg_err_clear(&err);
        assert_int_equal(count_files(false), 0);
    }
}

/* A copy of TIED in the folder; gives the weights' bytes. */
static struct mg_buf copy_model(void) {
    static const char *const name[] = {"config.json", "generation_config.json",
                                       "preprocessor_config.json", "tokenizer.json",
                                       "model.safetensors"};
    struct mg_buf b = {0};
    struct mg_err err = {0};
    for (size_t i = 0; i < 5; i++) {
        char from[256];
        snprintf(from, sizeof from, TIED "/%s", name[i]);
        b.n = 0;
        assert_int_equal(mg_file_read(from, (size_t)1 << 26, &b, &err), MG_OK);
        assert_int_equal(mg_file_write(in_folder(name[i]), b.data, b.n, &err), MG_OK);
    }
    return b;
}

/* One number that is none, in matrices that are packed: named, and no file. */
static void test_not_finite(void **state) {
    (void)state;
    struct mg_buf b = copy_model();
    struct mg_err err = {0};
    struct mg_weights *source;
    static const char *const name[] = {
        TEXT "embed_tokens.weight", TEXT "layers.2.mlp.up_proj.weight",
        TEXT "layers.1.self_attn.k_proj.weight", "model.visual.blocks.3.mlp.linear_fc2.weight"};
    char out[512];
    snprintf(out, sizeof out, "%s", in_folder("out.packed"));
    for (size_t i = 0; i < 8; i++) {
        struct mg_convert_options o = {.weights = i % 2 ? MG_FILE_INT4 : MG_FILE_INT8};
        assert_int_equal(mg_weights_open(TIED, &source, &err), MG_OK);
        const struct mg_tensor *t = need(source, name[i / 2], "");
        size_t back = mg_weights_after(source, t).n; /* bytes behind it */
        uint16_t bad = i % 3 ? 0x7FC0 : 0xFF80, was; /* NaN, -inf */
        uint8_t *at = b.data + b.n - back - 2 * (t->n - t->n / 3);
        memcpy(&was, at, 2);
        memcpy(at, &bad, 2);
        mg_weights_close(source);
        assert_int_equal(mg_file_write(in_folder("model.safetensors"), b.data, b.n, &err), MG_OK);
        assert_int_equal(mg_convert_file(folder, out, &o, NULL, &err), MG_ERR_NUMERIC);
        assert_string_equal(err.code, "weights_not_finite");
        assert_non_null(strstr(err.text, name[i / 2])); /* not those it is stacked with */
        assert_true(access(out, F_OK) != 0);
        mg_err_clear(&err);
        memcpy(at, &was, 2);
    }
    mg_buf_free(&b);
    count_files(true);
}

/* Missing and mis-shaped tensors are named as when the folder is opened. */
static void test_refusals(void **state) {
    (void)state;
    struct mg_buf b = copy_model();
    struct mg_err err = {0};
    struct mg_convert_options o = {.weights = MG_FILE_INT8};
    uint8_t *at = memmem(b.data, b.n, "layers.1.mlp.down_proj", 22);
    assert_non_null(at);
    at[0] = 'L';
    assert_int_equal(mg_file_write(in_folder("model.safetensors"), b.data, b.n, &err), MG_OK);
    assert_int_equal(mg_convert_file(folder, in_folder("x"), &o, NULL, &err), MG_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "layers.1.mlp.down_proj.weight"));
    mg_err_clear(&err);
    at[0] = 'l';
    assert_int_equal(mg_file_write(in_folder("model.safetensors"), b.data, b.n / 2, &err), MG_OK);
    assert_int_equal(mg_convert_file(folder, in_folder("x"), &o, NULL, &err), MG_ERR_FORMAT);
    mg_err_clear(&err);
    unlink(in_folder("config.json"));
    assert_int_equal(mg_convert_file(folder, in_folder("x"), &o, NULL, &err), MG_ERR_NOT_FOUND);
    mg_err_clear(&err);
    assert_int_equal(mg_convert_file("/nowhere", in_folder("x"), &o, NULL, &err), MG_ERR_NOT_FOUND);
    assert_true(access(in_folder("x"), F_OK) != 0);
    mg_buf_free(&b);
    count_files(true);
}

/* A folder's identity: of its precision, of its files' names, sizes, times and samples of what is
 * in them; of no other files. */
static void test_source_id(void **state) {
    (void)state;
    char first[MG_SOURCE_ID], id[MG_SOURCE_ID];
    struct mg_buf b = copy_model();
    struct mg_err err = {0};
    assert_int_equal(mg_source_id(folder, MG_FILE_INT8, first, &err), MG_OK);
    assert_int_equal(strlen(first), 64);
#define SAME(expected)                                                                             \
    do {                                                                                           \
        assert_int_equal(mg_source_id(folder, MG_FILE_INT8, id, &err), MG_OK);                     \
        assert_int_equal(!strcmp(id, first), expected);                                            \
    } while (0)
    SAME(true);
    assert_int_equal(mg_source_id(folder, MG_FILE_INT4, id, &err), MG_OK);
    assert_string_not_equal(id, first);
    assert_int_equal(mg_file_write(in_folder("README.md"), "x", 1, &err), MG_OK);
    SAME(true);
    unlink(in_folder("README.md"));
    assert_int_equal(mg_file_write(in_folder("more.safetensors"), "x", 1, &err), MG_OK);
    SAME(false);
    unlink(in_folder("more.safetensors"));
    SAME(true);
    struct stat st;
    assert_int_equal(stat(in_folder("tokenizer.json"), &st), 0);
    struct timespec t[2] = {st.st_mtim, st.st_mtim};
    t[1].tv_nsec = (t[1].tv_nsec + 1) % 1000000000;
    assert_int_equal(utimensat(AT_FDCWD, in_folder("tokenizer.json"), t, 0), 0);
    SAME(false);
    assert_int_equal(
        utimensat(AT_FDCWD, in_folder("tokenizer.json"), &(struct timespec[2]){t[0], t[0]}[0], 0),
        0);
    SAME(true);
    /* Other contents under the same time, in the first bytes and in the middle of a large file. */
    static const char *const changed[] = {"tokenizer.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(stat(in_folder(changed[i]), &st), 0);
        size_t n = i ? (size_t)st.st_size / 2 : 1;
        int fd = open(in_folder(changed[i]), O_RDWR);
        uint8_t *old = malloc(n), *new = malloc(n);
        assert_true(fd >= 0 && old && new);
        assert_int_equal(pread(fd, old, n, st.st_size / 3), n);
        for (size_t j = 0; j < n; j++) new[j] = (uint8_t)(old[j] + 1);
        for (int back = 0; back < 2; back++) {
            assert_int_equal(pwrite(fd, back ? old : new, n, st.st_size / 3), n);
            assert_int_equal(futimens(fd, (struct timespec[2]){st.st_mtim, st.st_mtim}), 0);
            SAME(back);
        }
        free(old);
        free(new);
        close(fd);
    }
    assert_int_equal(truncate(in_folder("config.json"), 3), 0);
    SAME(false);
    assert_int_equal(mg_source_id("/nowhere", MG_FILE_INT8, id, &err), MG_ERR_NOT_FOUND);
    mg_buf_free(&b);
    count_files(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),           cmocka_unit_test(test_report),
        cmocka_unit_test(test_progress_and_stop), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_source_id)};
    return cmocka_run_group_tests_name("weights.convert", tests, open_folder, close_folder);
}
