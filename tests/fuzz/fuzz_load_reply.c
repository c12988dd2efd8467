/* Fuzz target: replies as margay load reads them: head, chunks, events, JSON. The first byte
 * chooses how they are cut on their way; whole and cut must come to the same. */
#include "cli/load_answer.h"

#include "net/http_response.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct result {
    enum mg_http_feed feed;
    bool fed, end;
    int status;
    enum mg_load_kind kind;
    uint64_t n_chunk, n_byte;
    int64_t tokens[4];
    char code[MG_LOAD_CODE];
};

static void on_chunk(void *user) {
    ++*(uint64_t *)user;
}

static struct result read_reply(const uint8_t *data, size_t n, size_t step) {
    struct mg_http_response r = {0};
    struct mg_load_answer a = {0};
    struct result out;
    memset(&out, 0, sizeof out);
    out.feed = MG_HTTP_MORE;
    out.fed = true;
    bool begun = false;
    for (size_t at = 0; at < n && out.feed == MG_HTTP_MORE && out.fed;) {
        size_t used = 0, take = mg_min_size(step, n - at);
        struct mg_slice piece;
        out.feed = mg_http_response_feed(&r, data + at, take, &used, &piece);
        if (used == 0 || used > take || piece.n > used) abort();
        if (piece.n && piece.data < data + at) abort();
        at += used;
        if (r.headed && !begun) {
            mg_load_answer_begin(&a, r.status == 200 && r.event_stream, on_chunk, &out.n_chunk);
            begun = true;
        }
        if (piece.n && out.feed != MG_HTTP_BAD)
            out.fed = mg_load_answer_feed(&a, piece.data, piece.n);
    }
    if ((out.feed == MG_HTTP_BAD) != (r.fault != NULL)) abort();
    if (r.headed && (r.status < 200 || r.status > 999)) abort();
    out.status = r.headed ? r.status : 0;
    out.end = mg_http_response_end(&r) && out.feed != MG_HTTP_BAD;
    if (begun) {
        out.kind = mg_load_answer_end(&a, r.status);
        out.tokens[0] = a.prompt_tokens, out.tokens[1] = a.cached_tokens;
        out.tokens[2] = a.image_tokens, out.tokens[3] = a.completion_tokens;
        for (int i = 0; i < 4; i++)
            if (out.tokens[i] < -1) abort();
        memcpy(out.code, a.code, sizeof out.code);
        if (out.kind == MG_LOAD_OK && r.status != 200) abort();
        if (strlen(a.code) >= MG_LOAD_CODE) abort();
        mg_load_answer_free(&a);
    }
    mg_http_response_free(&r);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    struct result whole = read_reply(data + 1, n - 1, SIZE_MAX);
    struct result cut = read_reply(data + 1, n - 1, 1 + data[0] % 32);
    if (whole.feed != cut.feed && whole.fed && cut.fed) abort();
    if (whole.status != cut.status || whole.fed != cut.fed) abort();
    if (!whole.fed) return 0; /* it stopped somewhere within a piece */
    if (whole.end != cut.end || whole.kind != cut.kind || whole.n_chunk != cut.n_chunk) abort();
    if (memcmp(whole.tokens, cut.tokens, sizeof whole.tokens) != 0) abort();
    if (strcmp(whole.code, cut.code) != 0) abort();
    return 0;
}
