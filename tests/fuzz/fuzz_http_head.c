/* Fuzz target: heads and chunked bodies of requests, whole and cut by a step that the first byte
 * chooses: both must give the same, and what is taken must be what http_head.h promises. */
#include "net/http_chunk.h"
#include "net/http_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static enum mg_http_feed read_head(struct mg_http_head *h, const uint8_t *data, size_t n,
                                   size_t step, size_t *total) {
    enum mg_http_feed result = MG_HTTP_MORE;
    *total = 0;
    while (*total < n && result == MG_HTTP_MORE) {
        size_t used, take = mg_min_size(step, n - *total);
        result = mg_http_head_feed(h, data + *total, take, &used);
        if (used == 0 || used > take || (used < take && result == MG_HTTP_MORE)) abort();
        *total += used;
    }
    return result;
}

static void check_text(const struct mg_http_head *h, struct mg_http_span s) {
    if (s.n && s.at + s.n >= h->bytes.n) abort();
    if (strlen(mg_http_head_text(h, s)) != s.n) abort();
}

static void check_head(const struct mg_http_head *h) {
    check_text(h, h->method);
    check_text(h, h->target);
    if (!h->method.n || !h->target.n || h->n_field > MG_HTTP_MAX_FIELD) abort();
    if (h->path.n && mg_http_head_text(h, h->path)[0] != '/') abort();
    size_t n_host = 0, n_length = 0;
    for (size_t i = 0; i < h->n_field; i++) {
        const char *name = mg_http_head_text(h, h->field[i].name);
        const char *value = mg_http_head_text(h, h->field[i].value);
        check_text(h, h->field[i].name);
        check_text(h, h->field[i].value);
        if (!*name || strpbrk(name, " \t:\r\n") || strpbrk(value, "\r\n")) abort();
        if (*value == ' ' || (*value && strchr(" \t", value[strlen(value) - 1]))) abort();
        n_host += !strcasecmp(name, "host");
        n_length += !strcasecmp(name, "content-length") || !strcasecmp(name, "transfer-encoding");
    }
    if (n_host > 1 || (h->minor && n_host == 0) || n_length > 1) abort();
    if (h->framing == MG_HTTP_LENGTH && h->length == 0) abort();
}

static void same(const struct mg_http_head *a, const struct mg_http_head *b) {
    if (a->status != b->status || a->fault != b->fault || a->n_field != b->n_field) abort();
    if (a->framing != b->framing || a->length != b->length || a->bytes.n != b->bytes.n) abort();
    if (a->bytes.n && memcmp(a->bytes.data, b->bytes.data, a->bytes.n) != 0) abort();
    if (memcmp(a->field, b->field, a->n_field * sizeof a->field[0]) != 0) abort();
}

/* FNV-1a over the body, and how it ended. */
static uint64_t read_chunks(const uint8_t *data, size_t n, size_t step) {
    struct mg_http_chunk c = {0};
    enum mg_http_feed result = MG_HTTP_MORE;
    uint64_t hash = 1469598103934665603u;
    size_t total = 0;
    while (total < n && result == MG_HTTP_MORE) {
        struct mg_slice piece;
        size_t used, take = mg_min_size(step, n - total);
        result = mg_http_chunk_feed(&c, data + total, take, &used, &piece);
        if (used == 0 || used > take || piece.n > used) abort();
        if (piece.n && (piece.data < data + total || piece.data + piece.n > data + total + used))
            abort();
        for (size_t i = 0; i < piece.n; i++) hash = (hash ^ piece.data[i]) * 1099511628211u;
        total += used;
    }
    if ((result == MG_HTTP_BAD) != (c.fault != NULL)) abort();
    return (hash ^ (uint64_t)result) * 1099511628211u ^ (result == MG_HTTP_MORE ? 0 : total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    size_t step = data[0] % 37 + 1, whole_n, cut_n;
    data++, n--;
    struct mg_http_head whole = {.max = 4096}, cut = {.max = 4096};
    enum mg_http_feed result = read_head(&whole, data, n, n, &whole_n);
    if (read_head(&cut, data, n, step, &cut_n) != result || whole_n != cut_n) abort();
    same(&whole, &cut);
    if ((result == MG_HTTP_BAD) != (whole.fault && whole.status >= 400)) abort();
    if (result == MG_HTTP_DONE) check_head(&whole);
    /* What stands behind the head is its body; without a head all of it is one. */
    size_t at = result == MG_HTTP_DONE ? whole_n : 0;
    if (read_chunks(data + at, n - at, n) != read_chunks(data + at, n - at, step)) abort();
    mg_http_head_free(&whole);
    mg_http_head_free(&cut);
    return 0;
}
