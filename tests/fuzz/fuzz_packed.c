/* Fuzz target: a packed file's manifest, and the binding of its matrices. The input is a
 * container; one that begins with '{' is a header's text up to the last '}' before a zero byte, and
 * data behind that, which gets its length put in front and spaces up to a multiple of 64.
 *
 * No fuzzer finds a SHA-256, so the file is read twice: as it is, and with the digests of its
 * header and small tensors corrected. Both sides of the mapping's promises are checked here: views
 * within the file, sums that are those of the weights. */
#include "base/sha256.h"
#include "weights/packed_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void need(bool promise) {
    if (!promise) abort();
}

/* The view lies in the file: between the first tensor and what follows the last. */
static void need_inside(const struct mg_weights *w, const void *p, size_t bytes) {
    const struct mg_tensor *first = mg_weights_at(w, 0);
    const struct mg_tensor *last = mg_weights_at(w, mg_weights_count(w) - 1);
    const uint8_t *at = p, *begin = mg_weights_before(w, first).data;
    const uint8_t *end = mg_weights_after(w, last).data + mg_weights_after(w, last).n;
    need(at >= begin && at <= end && bytes <= (size_t)(end - at));
}

static void check_packed(const struct mg_weights *w, const struct mg_packed *p) {
    size_t panels = mg_packed_panels(p);
    need(p->data && (uintptr_t)p->data % MG_PACK_ALIGN == 0 && p->scale && p->sum);
    need_inside(w, p->data, mg_packed_bytes(p));
    need_inside(w, p->scale, panels * MG_PANEL * sizeof *p->scale);
    need_inside(w, p->sum, panels * MG_PANEL * sizeof *p->sum);
    for (size_t c = 0; panels && c < MG_PANEL; c++) {
        int64_t sum = 0;
        for (size_t j = 0; j < mg_packed_blocks(p->k) * MG_PACK_K; j++)
            sum += p->kind == MG_PACK_INT4 ? mg_packed_int4(p->data, c, j)
                                           : ((const int8_t *)p->data)[mg_packed_place(c, j)];
        need(sum == p->sum[c]);
    }
}

/* The matrix under this name, asked for in shapes that its dimensions allow and some more. */
static void bind(const struct mg_weights *w, const char *name, const struct mg_tensor *t) {
    size_t panels = t->n_dim ? t->dim[0] : 1, blocks = t->n_dim > 1 ? t->dim[1] : 1;
    if (panels > 4096 || blocks > 4096) panels = blocks = 1;
    const size_t n[] = {panels * 32, panels * 16, panels * 32 - 1 + !panels, 1, 33};
    const size_t k[] = {blocks * 64, blocks * 64 - 1 + !blocks, 1, 65};
    for (size_t i = 0; i < 5 * 4 * 2; i++) {
        struct mg_packed out;
        struct mg_err err = {0};
        bool found = false;
        enum mg_status status =
            mg_packed_find(w, name, i % 2, n[i / 8], k[i / 2 % 4], &found, &out, &err);
        need((status == MG_OK) == (err.status == MG_OK) && (status == MG_OK || err.text[0]));
        need(found);
        if (status == MG_OK) check_packed(w, &out);
    }
}

static void see(const struct mg_weights *w) {
    struct mg_manifest m;
    struct mg_config config;
    struct mg_err err = {0};
    bool packed = false;
    enum mg_status status = mg_manifest_read(w, &packed, &m, &err);
    need((status == MG_OK) == (err.status == MG_OK) && (status == MG_OK || err.text[0]));
    if (status == MG_OK && packed) {
        need(m.weights < MG_N_FILE_WEIGHTS && strlen(m.source_id) == 64 &&
             strlen(m.matrices_sha256) == 64);
        need_inside(w, m.matrices, m.matrices_bytes);
        status = mg_manifest_verify(&m, &err);
        need((status == MG_OK) == (err.status == MG_OK));
    }
    mg_err_clear(&err);
    status = mg_packed_file_config(w, &config, &err);
    need((status == MG_OK) == (err.status == MG_OK));
    struct mg_slice text = mg_packed_file_text(w, "tokenizer.json");
    if (text.data) need_inside(w, text.data, text.n);
    for (size_t i = 0; i < mg_weights_count(w) && i < 64; i++) {
        const struct mg_tensor *t = mg_weights_at(w, i);
        char name[256];
        size_t len = strlen(t->name);
        if (len < 7 || len > 200 || strcmp(t->name + len - 7, ".packed") != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)len - 7, t->name);
        bind(w, name, t);
    }
}

static void put_digest(uint8_t *json, size_t n, const char *key, const uint8_t *data,
                       size_t bytes) {
    uint8_t digest[MG_SHA256_BYTES], *at = memmem(json, n, key, strlen(key));
    char hex[MG_SHA256_HEX];
    if (!at || n - (size_t)(at - json) < strlen(key) + 64) return;
    if (!mg_sha256(data, bytes, digest)) return;
    mg_hex(digest, sizeof digest, hex);
    memcpy(at + strlen(key), hex, 64);
}

/* Corrects the digests in the file's bytes, where there are any to correct. */
static void correct(const struct mg_weights *w, uint8_t *file, size_t n) {
    const struct mg_tensor *t = mg_weights_find(w, "margay.json");
    if (!t || t->dtype != MG_U8) return;
    size_t at = mg_weights_before(w, t).n, after = at + t->n;
    static const char key[] = "\"small_bytes\":";
    char number[24] = "";
    uint8_t *small = memmem(file + at, t->n, key, sizeof key - 1);
    if (small) /* as far as it is within the text, and a zero byte */
        memcpy(number, small + sizeof key - 1,
               mg_min_size(20, (size_t)(file + after - (small + sizeof key - 1))));
    size_t bytes = strtoull(number, NULL, 10);
    if (bytes <= n - after) put_digest(file + at, t->n, "\"small_sha256\":\"", file + after, bytes);
    put_digest(file + at, t->n, "\"head_sha256\":\"", file, at);
}

static void run(uint8_t *file, size_t n) {
    for (int pass = 0; pass < 2; pass++) {
        struct mg_weights *w;
        struct mg_err err = {0};
        int fd = memfd_create("fuzz", MFD_CLOEXEC);
        if (fd < 0) return;
        bool written = write(fd, file, n) == (ssize_t)n;
        enum mg_status status = mg_weights_open_fd(fd, "fuzz", &w, &err);
        close(fd);
        if (!written || status != MG_OK) return;
        see(w);
        if (pass == 0) correct(w, file, n);
        mg_weights_close(w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2 || n > 1 << 20) return 0;
    bool text = data[0] == '{';
    const uint8_t *zero = text ? memchr(data, 0, n) : NULL;
    size_t header = zero ? (size_t)(zero - data) : n;
    while (text && header && data[header - 1] != '}') header--;
    size_t length = text ? mg_round_up(8 + header, 64) - 8 : 0, rest = text ? n - header : n;
    size_t front = text ? 8 + length : 0;
    uint8_t *file = malloc(front + rest);
    if (!file) return 0;
    if (text) {
        memset(file, ' ', front);
        for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)length >> 8 * i);
        memcpy(file + 8, data, header);
    }
    memcpy(file + front, data + (text ? header : 0), rest);
    run(file, front + rest);
    free(file);
    return 0;
}
