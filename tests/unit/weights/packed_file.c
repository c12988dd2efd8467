/* Packed files that are not as they were written: every byte of the header, of margay.json, of the
 * small tensors, and of the panels that are looked at when a matrix is bound; every length; shapes,
 * scales and sums that don't belong. Whole files come from the small checkpoints; single matrices
 * are made here.
 */
#include "base/sha256.h"
#include "model/model.h"
#include "weights/convert.h"
#include "weights/pack.h"
#include "weights/packed_file.h"

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
#ifdef __SANITIZE_ADDRESS__
#define THIN 11 /* ten times slower: fewer places */
#else
#define THIN 1
#endif

/* A packed file in memory: fd, its bytes for reading and writing, where its regions begin. */
struct file {
    int fd;
    uint8_t *data;
    size_t n, manifest, small, matrices;
};

static size_t find_text(const struct file *f, size_t from, const char *text) {
    uint8_t *at = memmem(f->data + from, f->n - from, text, strlen(text));
    assert_non_null(at);
    return (size_t)(at - f->data);
}

static struct file make_file(enum mg_file_weights weights) {
    struct file f = {.fd = memfd_create("packed", MFD_CLOEXEC)};
    struct mg_convert_options o = {.weights = weights};
    struct mg_err err = {0};
    struct stat st;
    assert_true(f.fd >= 0);
    if (mg_convert_fd(TIED, f.fd, &o, NULL, &err) != MG_OK) fail_msg("%s", err.text);
    assert_int_equal(fstat(f.fd, &st), 0);
    f.n = (size_t)st.st_size;
    f.data = mmap(NULL, f.n, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    assert_true(f.data != MAP_FAILED);
    uint64_t length;
    memcpy(&length, f.data, 8);
    f.manifest = 8 + (size_t)length;
    f.small = f.manifest + 1024;
    size_t at = find_text(&f, f.manifest, "\"small_bytes\":") + 14;
    f.matrices = f.small + strtoull((char *)f.data + at, NULL, 10);
    assert_int_equal(f.matrices % 4096, 0);
    return f;
}

static void close_file(struct file *f) {
    munmap(f->data, f->n);
    close(f->fd);
}

/* Opens it as a model; the manifest's status when it isn't even that. */
static enum mg_status open_model(const struct file *f, struct mg_manifest *m, struct mg_err *err) {
    struct mg_weights *w;
    struct mg_model *model = NULL;
    *err = (struct mg_err){0};
    enum mg_status status = mg_weights_open_fd(f->fd, "file", &w, err);
    if (status == MG_OK) status = mg_model_open("file", w, &model, err);
    if (status == MG_OK) {
        *m = model->manifest;
        m->matrices = NULL;
        mg_model_close(model);
    } else {
        assert_int_equal(err->status, status);
        assert_true(err->text[0]);
    }
    return status;
}

static void expect_whole(const struct file *f, enum mg_file_weights weights) {
    struct mg_manifest m;
    struct mg_err err;
    if (open_model(f, &m, &err) != MG_OK) fail_msg("%s", err.text);
    assert_int_equal(m.weights, weights);
    assert_int_equal(m.matrices_bytes, f->n - f->matrices);
}

/* Every byte of [from, to), one bit each (another one each time), is missed by nobody. */
static void flip_all(struct file *f, size_t from, size_t to, size_t step, const char *what) {
    struct mg_manifest m;
    struct mg_err err;
    for (size_t i = from; i < to; i += step) {
        f->data[i] ^= (uint8_t)(1 << i % 8);
        if (open_model(f, &m, &err) == MG_OK)
            fail_msg("%s: byte %zu of %zu changed, and nothing said so", what, i - from, to - from);
        f->data[i] ^= (uint8_t)(1 << i % 8);
    }
}

static void test_flips(void **state) {
    (void)state;
    for (int w = 0; w < MG_N_FILE_WEIGHTS; w++) {
        struct file f = make_file((enum mg_file_weights)w);
        expect_whole(&f, (enum mg_file_weights)w);
        flip_all(&f, 0, f.manifest, (w == MG_FILE_INT8 ? 3 : 23) * THIN, "header");
        flip_all(&f, f.small, f.matrices, (w == MG_FILE_INT8 ? 61 : 997) * THIN, "small tensors");
        flip_all(&f, f.small, f.small + 64, 1, "small tensors");
        flip_all(&f, f.matrices - 64, f.matrices, 1, "small tensors");
        expect_whole(&f, (enum mg_file_weights)w);
        close_file(&f);
    }
}

/* margay.json: what the file is opened by can't be changed unseen; the rest is for people
 * (source_sha256, the version), for the cache (source_id) or for verifying. */
static void test_flips_of_manifest(void **state) {
    (void)state;
    struct file f = make_file(MG_FILE_INT8);
    struct mg_manifest whole, m;
    struct mg_err err;
    assert_int_equal(open_model(&f, &whole, &err), MG_OK);
    size_t at[4][2] = {{find_text(&f, f.manifest, "\"source_sha256\":"), 16 + 66},
                       {find_text(&f, f.manifest, "\"margay\":"), 20},
                       {find_text(&f, f.manifest, "\"source_id\":") + 13, 64},
                       {find_text(&f, f.manifest, "\"matrices_sha256\":") + 19, 64}};
    size_t accepted = 0;
    for (size_t i = f.manifest; i < f.small; i += THIN)
        for (int bit = 0; bit < 8; bit++) {
            f.data[i] ^= (uint8_t)(1 << bit);
            if (open_model(&f, &m, &err) == MG_OK) {
                bool harmless = false;
                for (int k = 0; k < 4; k++) harmless |= i >= at[k][0] && i < at[k][0] + at[k][1];
                /* of digests upper case is the same; so is other white space */
                harmless |= bit == 5 && memchr("ABCDEF", f.data[i], 6);
                harmless |= strchr(" \n\t\r", f.data[i]) && i > at[1][0];
                if (!harmless) fail_msg("byte %zu, bit %d", i - f.manifest, bit);
                if (i >= at[2][0] && i < at[2][0] + 64) /* upper case reads as lower case */
                    assert_true(strcmp(m.source_id, whole.source_id) || (bit == 5));
                accepted++;
            }
            f.data[i] ^= (uint8_t)(1 << bit);
        }
    assert_true(accepted > 64 / THIN);
    close_file(&f);
}

/* A changed digest of the matrices, and any changed byte of them, is found by verifying. */
static void test_verify(void **state) {
    (void)state;
    for (int w = 0; w < MG_N_FILE_WEIGHTS; w++) {
        struct file f = make_file((enum mg_file_weights)w);
        struct mg_weights *weights;
        struct mg_manifest m;
        struct mg_err err = {0};
        bool packed = false;
        assert_int_equal(mg_weights_open_fd(f.fd, "file", &weights, &err), MG_OK);
        assert_int_equal(mg_manifest_read(weights, &packed, &m, &err), MG_OK);
        assert_true(packed);
        assert_int_equal(mg_manifest_verify(&m, &err), MG_OK);
        for (size_t i = f.matrices; i < f.n;
             i += i + 1 < f.n && f.n - i < 50000 ? f.n - i - 1 : 49999) {
            f.data[i] ^= 16;
            assert_int_equal(mg_manifest_verify(&m, &err), MG_ERR_FORMAT);
            assert_string_equal(err.code, "packed_damaged");
            mg_err_clear(&err);
            f.data[i] ^= 16;
        }
        assert_int_equal(mg_manifest_verify(&m, &err), MG_OK);
        mg_weights_close(weights);
        close_file(&f);
    }
}

/* First and last panel of every matrix of an int8 file: each byte counts in a sum. Of int4 a byte
 * holds two, and a sub-scale may be zero; what multiplies changes the sum. */
static void test_flips_of_panels(void **state) {
    (void)state;
    for (int kind = MG_FILE_INT8; kind <= MG_FILE_INT4; kind++) {
        struct file f = make_file((enum mg_file_weights)kind);
        struct mg_weights *w;
        struct mg_err err = {0};
        size_t tried = 0, missed = 0;
        assert_int_equal(mg_weights_open_fd(f.fd, "file", &w, &err), MG_OK);
        for (size_t i = 0; i < mg_weights_count(w); i++) {
            const struct mg_tensor *t = mg_weights_at(w, i);
            size_t len = strlen(t->name);
            if (len < 7 || strcmp(t->name + len - 7, ".packed") != 0) continue;
            size_t bytes = t->dim[1] * t->dim[2], sizes = t->dim[2];
            const struct mg_tensor *first = mg_weights_at(w, 0);
            size_t at =
                (size_t)((const uint8_t *)t->data - (const uint8_t *)first->data) + f.manifest;
            for (size_t j = 0; j < 40 / THIN; j++) {
                size_t panel = j % 2 ? t->dim[0] - 1 : 0;
                size_t byte = at + panel * bytes + (j * 7919 + i * 31) % bytes;
                struct mg_manifest m;
                f.data[byte] ^= 64;
                bool found = open_model(&f, &m, &err) != MG_OK;
                if (found) assert_string_equal(err.code, "packed_damaged");
                f.data[byte] ^= 64;
                tried++;
                missed += !found;
                if (sizes == 2048 && !found) fail_msg("%s, panel %zu", t->name, panel);
            }
        }
        assert_true(tried > 500 / THIN && missed * 20 < tried);
        mg_weights_close(w);
        expect_whole(&f, (enum mg_file_weights)kind);
        close_file(&f);
    }
}

static void test_truncation(void **state) {
    (void)state;
    struct file f = make_file(MG_FILE_INT4);
    struct mg_manifest m;
    struct mg_err err;
    size_t n = f.n;
    assert_int_equal(ftruncate(f.fd, (off_t)n + 1), 0); /* and one byte more */
    assert_true(open_model(&f, &m, &err) != MG_OK);
    assert_int_equal(ftruncate(f.fd, (off_t)n - 1), 0);
    assert_true(open_model(&f, &m, &err) != MG_OK);
    for (size_t k = n / 1024; k-- > 0;) {
        if (k * 1024 == n) continue;
        assert_int_equal(ftruncate(f.fd, (off_t)k * 1024), 0);
        if (open_model(&f, &m, &err) == MG_OK) fail_msg("%zu KB of %zu bytes", k, n);
    }
    close_file(&f);
}

static void test_format(void **state) {
    (void)state;
    struct file f = make_file(MG_FILE_INT8);
    struct mg_manifest m;
    struct mg_err err;
    size_t at = find_text(&f, f.manifest, "\"format\":") + 9;
    for (char c = '0'; c <= '9'; c++) {
        f.data[at] = (uint8_t)c;
        if (c - '0' == MG_PACKED_FORMAT) {
            assert_int_equal(open_model(&f, &m, &err), MG_OK);
            continue;
        }
        assert_int_equal(open_model(&f, &m, &err), MG_ERR_UNSUPPORTED);
        assert_string_equal(err.code, "packed_format");
        assert_non_null(strstr(err.text, "convert again"));
    }
    close_file(&f);
}

/* A container of one matrix "m", or of what is left of it. */
struct parts {
    enum mg_pack kind;
    bool interleaved;
    size_t n, k;
    const char *shape, *dtype, *scale, *sum; /* NULL: as it should be; "" leaves the tensor out */
    size_t shift;                            /* bytes before the matrix */
};

static enum mg_status find_matrix(const struct parts *p, size_t spoil, bool *found,
                                  struct mg_err *err) {
    struct mg_packed w = {.kind = p->kind, .interleaved = p->interleaved, .n = p->n, .k = p->k},
                     out;
    size_t panels = mg_packed_panels(&w), bytes = mg_packed_bytes(&w), width = mg_packed_width(&w);
    size_t block = mg_packed_panel_bytes(p->kind, 1), side = panels * MG_PANEL * 4;
    char head[1024], shape[64];
    snprintf(shape, sizeof shape, "[%zu,%zu,%zu]", panels, mg_packed_blocks(p->k), block);
    size_t at = 0;
    int n = snprintf(head, sizeof head,
                     "{\"pad\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}",
                     p->shift, p->shift);
    n += snprintf(head + n, sizeof head - (size_t)n,
                  ",\"m.packed\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                  p->dtype ? p->dtype : "U8", p->shape ? p->shape : shape, p->shift,
                  p->shift + bytes);
    at = p->shift + bytes;
    const char *side_text[] = {p->scale, p->sum}, *name[] = {"scale", "sum"},
               *type[] = {"F32", "I32"};
    for (int i = 0; i < 2; i++) {
        if (side_text[i] && !*side_text[i]) continue;
        char plain[64];
        snprintf(plain, sizeof plain, "\"%s\",\"shape\":[%zu]", type[i], panels * MG_PANEL);
        n += snprintf(head + n, sizeof head - (size_t)n,
                      ",\"m.%s\":{\"dtype\":%s,\"data_offsets\":[%zu,%zu]}", name[i],
                      side_text[i] ? side_text[i] : plain, at, at + side);
        at += side;
    }
    n += snprintf(head + n, sizeof head - (size_t)n, "}");
    size_t length = mg_round_up((size_t)n + 8, 64) - 8, total = 8 + length + at;
    int fd = memfd_create("matrix", MFD_CLOEXEC);
    uint8_t *file = calloc(1, total + 2 * side);
    assert_true(fd >= 0 && file);
    uint64_t word = length;
    memcpy(file, &word, 8);
    memset(file + 8, ' ', length);
    memcpy(file + 8, head, (size_t)n);
    uint8_t *data = file + 8 + length + p->shift;
    float *scale = mg_alloc_zero(panels * MG_PANEL + 1, sizeof *scale);
    int32_t *sum = mg_alloc_zero(panels * MG_PANEL + 1, sizeof *sum);
    float *x = mg_alloc(MG_PANEL * p->k + 1, sizeof *x);
    for (size_t i = 0; i < MG_PANEL * p->k; i++) x[i] = (float)((i * 2654435761u >> 7) % 200) - 99;
    for (size_t i = 0; i < panels; i++) {
        const float *row[MG_PANEL] = {NULL};
        double error[2] = {0};
        for (size_t c = 0; c < MG_PANEL; c++)
            if (i * width + c % width < p->n) row[c] = x + c * p->k;
        assert_true(mg_pack_panel(p->kind, row, p->k,
                                  data + i * mg_packed_panel_bytes(p->kind, p->k),
                                  scale + i * MG_PANEL, sum + i * MG_PANEL, error));
    }
    memcpy(data + bytes, scale, side);
    memcpy(data + bytes + side, sum, side);
    if (spoil) data[spoil - 1] ^= 1;
    assert_int_equal(write(fd, file, total), total);
    struct mg_weights *weights;
    enum mg_status status = mg_weights_open_fd(fd, "matrix", &weights, err);
    if (status != MG_OK) fail_msg("%s\n%s", err->text, head);
    status = mg_packed_find(weights, "m", p->interleaved, p->n, p->k, found, &out, err);
    if (status == MG_OK && *found && !spoil) {
        assert_true(out.kind == p->kind && out.n == p->n && out.k == p->k);
        assert_memory_equal(out.data, data, bytes);
        assert_memory_equal(out.scale, scale, side);
        assert_memory_equal(out.sum, sum, side);
    }
    mg_weights_close(weights);
    free(scale);
    free(sum);
    free(x);
    free(file);
    close(fd);
    return status;
}

static void test_shapes(void **state) {
    (void)state;
    static const size_t n[] = {1, 15, 16, 17, 31, 32, 33, 64, 65, 100};
    static const size_t k[] = {1, 31, 32, 33, 63, 64, 65, 128, 200};
    for (size_t i = 0; i < 10 * 9 * 4; i++) {
        struct parts p = {.kind = i % 2 ? MG_PACK_INT4 : MG_PACK_INT8,
                          .interleaved = i / 2 % 2,
                          .n = n[i / 4 % 10],
                          .k = k[i / 40]};
        struct mg_err err = {0};
        bool found = false;
        if (find_matrix(&p, 0, &found, &err) != MG_OK) fail_msg("%s", err.text);
        assert_true(found);
    }
}

static void test_refusals(void **state) {
    (void)state;
    const struct {
        struct parts p;
        const char *code;
    } wrong[] = {
        {{.shape = "[2,4,1024]"}, "tensor_shape"},
        {{.shape = "[1,4,2048]"}, "tensor_shape"},
        {{.shape = "[4,1,2048]"}, "tensor_shape"},
        {{.shape = "[8192]"}, "tensor_shape"},
        {{.shape = "[4,2048]"}, "tensor_shape"},
        {{.shape = "[1,2,2,2048]"}, "tensor_shape"},
        {{.dtype = "I8"}, "tensor_shape"},
        {{.scale = ""}, "tensor_shape"},
        {{.sum = ""}, "tensor_shape"},
        {{.scale = "", .sum = ""}, "tensor_shape"},
        {{.scale = "\"I32\",\"shape\":[64]"}, "tensor_shape"},
        {{.sum = "\"F32\",\"shape\":[64]"}, "tensor_shape"},
        {{.scale = "\"BF16\",\"shape\":[128]"}, "tensor_shape"},
        {{.sum = "\"I64\",\"shape\":[32]"}, "tensor_shape"},
        {{.shift = 4}, "tensor_unaligned"},
        {{.shift = 32}, "tensor_unaligned"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct parts p = wrong[i].p;
        struct mg_err err = {0};
        bool found = false;
        p.kind = MG_PACK_INT8;
        p.n = 50;
        p.k = 100; /* [2, 2, 2048] */
        assert_int_equal(find_matrix(&p, 0, &found, &err), MG_ERR_FORMAT);
        if (strcmp(err.code, wrong[i].code)) fail_msg("%zu: %s", i, err.text);
        assert_non_null(strstr(err.text, "m."));
    }
    /* right for another matrix */
    struct parts p = {.kind = MG_PACK_INT4, .n = 50, .k = 100, .shape = "[2,2,1088]"};
    struct mg_err err = {0};
    bool found = false;
    assert_int_equal(find_matrix(&p, 0, &found, &err), MG_OK);
    for (size_t spoil = 1; spoil < 8192 + 256; spoil += 37) { /* weights, scales; sums: below */
        p = (struct parts){.kind = MG_PACK_INT8, .n = 50, .k = 100};
        enum mg_status status = find_matrix(&p, spoil, &found, &err);
        assert_int_equal(status, spoil <= 8192 ? MG_ERR_FORMAT : MG_OK);
        mg_err_clear(&err);
    }
    for (size_t spoil = 8192 + 257; spoil <= 8192 + 512; spoil++) {
        assert_int_equal(find_matrix(&p, spoil, &found, &err), MG_ERR_FORMAT);
        assert_string_equal(err.code, "packed_damaged");
        mg_err_clear(&err);
    }
}

/* An ordinary checkpoint is no packed file, and has no packed matrices. */
static void test_checkpoint(void **state) {
    (void)state;
    struct mg_weights *w;
    struct mg_manifest m;
    struct mg_packed p;
    struct mg_err err = {0};
    bool packed = true, found = true;
    assert_int_equal(mg_weights_open(TIED, &w, &err), MG_OK);
    assert_int_equal(mg_manifest_read(w, &packed, &m, &err), MG_OK);
    assert_false(packed);
    assert_int_equal(
        mg_packed_find(w, "model.language_model.embed_tokens", false, 640, 96, &found, &p, &err),
        MG_OK);
    assert_false(found);
    assert_null(mg_packed_file_text(w, "config.json").data);
    mg_weights_close(w);
}

/* Replaces the text `old` of the header by `new` in the spaces behind it, and has the digest say
 * so. */
static void edit_header(struct file *f, const char *old, const char *new) {
    size_t at = find_text(f, 8, old), n_old = strlen(old), n_new = strlen(new), end = f->manifest;
    while (f->data[end - 1] == ' ') end--;
    assert_true(at + n_old < end && end - n_old + n_new <= f->manifest);
    memmove(f->data + at + n_new, f->data + at + n_old, end - at - n_old);
    memcpy(f->data + at, new, n_new);
    for (size_t i = end - n_old + n_new; i < end; i++) f->data[i] = ' ';
    uint8_t digest[MG_SHA256_BYTES];
    char hex[MG_SHA256_HEX];
    assert_true(mg_sha256(f->data, f->manifest, digest));
    mg_hex(digest, sizeof digest, hex);
    memcpy(f->data + find_text(f, f->manifest, "\"head_sha256\":") + 15, hex, sizeof hex - 1);
}

/* q and k packed, v not: rows are prepared once for all three, so that the file can't be computed
 * with, however right its digests are. v's matrix is made of the tokenizer's text. */
static void test_mixed(void **state) {
    (void)state;
    struct file f = make_file(MG_FILE_INT4);
    struct mg_weights *w;
    struct mg_manifest m;
    struct mg_err err = {0};
    char old[200], new[500];
    assert_int_equal(mg_weights_open_fd(f.fd, "file", &w, &err), MG_OK);
    const struct mg_tensor *t = mg_weights_find(w, "margay.file.tokenizer.json");
    assert_non_null(t);
    size_t n = t->n, used = 64 * 96 * 2; /* bf16 [64][96] */
    size_t from = (size_t)((const uint8_t *)t->data -
                           (const uint8_t *)mg_weights_find(w, "margay.json")->data);
    size_t odd = (f.manifest + from) % 2; /* tensors lie at multiples of their elements' size */
    assert_true(n > odd + used);
    mg_weights_close(w);
    edit_header(&f, "layers.1.self_attn.v_proj.packed", "layers.1.self_attn.v_proj.hidden");
    assert_int_equal(open_model(&f, &m, &err), MG_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "layers.1.self_attn.v_proj.weight"));
    snprintf(old, sizeof old,
             "\"margay.file.tokenizer.json\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%"
             "zu,%zu]}",
             n, from, from + n);
    snprintf(new, sizeof new,
             "\"model.language_model.layers.1.self_attn.v_proj.weight\":{\"dtype\":\"BF16\","
             "\"shape\":[64,96],\"data_offsets\":[%zu,%zu]},"
             "\"skip\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]},"
             "\"rest\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}",
             from + odd, from + odd + used, odd, from, from + odd, n - odd - used,
             from + odd + used, from + n);
    edit_header(&f, old, new);
    enum mg_status status = open_model(&f, &m, &err);
    if (status != MG_ERR_UNSUPPORTED) fail_msg("%s", err.text);
    assert_non_null(strstr(err.text, "layers.1.self_attn"));
    close_file(&f);
}

/* Sums of more inputs would not fit 32 bits. */
static void test_too_wide(void **state) {
    (void)state;
    struct parts p = {.kind = MG_PACK_INT8, .n = 1, .k = 65536};
    struct mg_err err = {0};
    bool found = false;
    assert_int_equal(find_matrix(&p, 0, &found, &err), MG_OK);
    assert_true(found);
    p.k++;
    assert_int_equal(find_matrix(&p, 0, &found, &err), MG_ERR_UNSUPPORTED);
    assert_string_equal(err.code, "packed_wide");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips),      cmocka_unit_test(test_flips_of_manifest),
        cmocka_unit_test(test_verify),     cmocka_unit_test(test_flips_of_panels),
        cmocka_unit_test(test_truncation), cmocka_unit_test(test_format),
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_checkpoint), cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_too_wide)};
    return cmocka_run_group_tests_name("weights.packed_file", tests, NULL, NULL);
}
