/* store/entry.c - see entry.h. */
#include "store/entry.h"

#include <string.h>

static const char magic[8] = "MGCACHE";

enum {
    AT_VERSION = 8,
    AT_KIND = 12,
    AT_TENANT = 16,
    AT_MODEL = 32,
    AT_DIGEST = 64,
    AT_MADE = 96,
    AT_BODY = 104,
    AT_PIECE = 112,
    AT_HEAD = 116,
    AT_SHA = 120
};

static void put_number(uint8_t *at, uint64_t x, size_t n) {
    for (size_t i = 0; i < n; i++) at[i] = (uint8_t)(x >> 8 * i);
}

static uint64_t get_number(const uint8_t *at, size_t n) {
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++) x |= (uint64_t)at[i] << 8 * i;
    return x;
}

static void put_front(uint8_t *out, const struct mg_store_key *key, const struct mg_entry *e) {
    memcpy(out, magic, sizeof magic);
    put_number(out + AT_VERSION, MG_ENTRY_VERSION, 4);
    put_number(out + AT_KIND, (uint64_t)key->kind, 4);
    memcpy(out + AT_TENANT, key->tenant, sizeof key->tenant);
    memcpy(out + AT_MODEL, key->model, sizeof key->model);
    memcpy(out + AT_DIGEST, key->digest, sizeof key->digest);
    put_number(out + AT_MADE, (uint64_t)e->made, 8);
    put_number(out + AT_BODY, e->n_body, 8);
    put_number(out + AT_PIECE, e->piece, 4);
    put_number(out + AT_HEAD, e->n_head, 4);
}

static bool sum(const uint8_t *front, const struct mg_entry *e, const void *body,
                uint8_t out[MG_SHA256_BYTES]) {
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    mg_sha256_update(&h, front, AT_SHA);
    mg_sha256_update(&h, e->head, e->n_head);
    mg_sha256_update(&h, body, e->n_body);
    return mg_sha256_finish(&h, out);
}

bool mg_entry_write(const struct mg_store_key *key, int64_t made, size_t piece, const void *head,
                    size_t n_head, const void *body, size_t n_body, uint8_t out[MG_ENTRY_MAX],
                    size_t *n) {
    struct mg_entry e = {.made = made, .n_body = n_body, .piece = piece, .n_head = n_head};
    if (n_head) memcpy(e.head, head, n_head);
    put_front(out, key, &e);
    if (!sum(out, &e, body, out + AT_SHA)) return false;
    if (n_head) memcpy(out + MG_ENTRY_FIXED, head, n_head);
    *n = MG_ENTRY_FIXED + n_head;
    return true;
}

static enum mg_status refuse(struct mg_err *err, const char *code, const char *what) {
    return mg_fail(err, MG_ERR_FORMAT, code, "kept entry: %s", what);
}

enum mg_status mg_entry_parse(const void *data, size_t n, const struct mg_store_key *want,
                              size_t max_body, struct mg_entry *out, struct mg_err *err) {
    const uint8_t *p = data;
    *out = (struct mg_entry){0};
    if (n < MG_ENTRY_FIXED || n > MG_ENTRY_MAX)
        return refuse(err, "entry_length", "its front is too short or too long");
    if (memcmp(p, magic, sizeof magic) != 0)
        return refuse(err, "entry_magic", "it is something else");
    if (get_number(p + AT_VERSION, 4) != MG_ENTRY_VERSION)
        return refuse(err, "entry_version", "it has the form of another version");
    if (get_number(p + AT_KIND, 4) != (uint64_t)want->kind ||
        memcmp(p + AT_TENANT, want->tenant, sizeof want->tenant) != 0 ||
        memcmp(p + AT_MODEL, want->model, sizeof want->model) != 0 ||
        memcmp(p + AT_DIGEST, want->digest, sizeof want->digest) != 0)
        return refuse(err, "entry_key", "it belongs to another key");
    uint64_t body = get_number(p + AT_BODY, 8), piece = get_number(p + AT_PIECE, 4);
    uint64_t head = get_number(p + AT_HEAD, 4), made = get_number(p + AT_MADE, 8);
    if (head != n - MG_ENTRY_FIXED)
        return refuse(err, "entry_length", "its front has another length than it says");
    if (body > max_body || !piece || made > INT64_MAX)
        return refuse(err, "entry_shape", "its lengths can't be");
    out->made = (int64_t)made;
    out->n_body = (size_t)body;
    out->piece = (size_t)piece;
    out->n_head = (size_t)head;
    memcpy(out->sha256, p + AT_SHA, sizeof out->sha256);
    memcpy(out->head, p + MG_ENTRY_FIXED, out->n_head);
    return MG_OK;
}

size_t mg_entry_pieces(const struct mg_entry *e) {
    return e->n_body / e->piece + (e->n_body % e->piece != 0);
}

size_t mg_entry_piece(const struct mg_entry *e, size_t i) {
    return mg_min_size(e->piece, e->n_body - i * e->piece);
}

enum mg_status mg_entry_check(const struct mg_entry *e, const struct mg_store_key *key,
                              const void *body, struct mg_err *err) {
    uint8_t front[AT_SHA], found[MG_SHA256_BYTES];
    put_front(front, key, e);
    if (!sum(front, e, body, found)) return mg_fail_memory(err, "kept entry's digest");
    if (memcmp(found, e->sha256, sizeof found) != 0)
        return refuse(err, "entry_digest", "its digest differs");
    return MG_OK;
}
