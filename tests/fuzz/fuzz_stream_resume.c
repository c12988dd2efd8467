/* Fuzz target: an event stream that a worker finds in the queue and goes on with. Input: two bytes
 * that say how much of the rest is known to the client, one that says how the new stream comes, and
 * the events.
 *
 * Promises: an error has a code and a text; what comes out is whole events. Where an answer is gone
 * on with that begins with what is known - here the very same events - known and new text together
 * are the answer's, for each choice. */
#include "api/stream_resume.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 1 << 16 };

static void need(bool promise) {
    if (!promise) abort();
}

static void need_error(enum mg_status st, const struct mg_err *err) {
    need(st == err->status && (st == MG_OK || (err->code[0] && err->text[0])));
}

/* Adds the text of each choice in these events. */
static void read_texts(const uint8_t *data, size_t n, struct mg_buf *text) {
    static const char front[] = "data: ";
    const uint8_t *end;
    for (size_t at = 0; n - at > 1 && (end = memmem(data + at, n - at, "\n\n", 2)) != NULL;) {
        size_t m = (size_t)(end - (data + at)) + 2, i;
        json_t *value, *root = m > sizeof front && !memcmp(data + at, front, sizeof front - 1)
                                   ? json_loadb((const char *)data + at + sizeof front - 1,
                                                m - (sizeof front - 1), JSON_ALLOW_NUL, NULL)
                                   : NULL;
        json_array_foreach(json_object_get(root, "choices"), i, value) {
            json_int_t k = json_integer_value(json_object_get(value, "index"));
            json_t *delta = json_object_get(value, "delta"),
                   *s = json_object_get(delta ? delta : value, delta ? "content" : "text");
            if (k < 0 || k >= MG_RESUME_CHOICES || !json_is_string(s)) continue;
            need(mg_buf_add(&text[k], json_string_value(s), json_string_length(s)));
        }
        json_decref(root);
        at += m;
    }
}

/* How much of the first n bytes are whole events. */
static size_t whole(const uint8_t *data, size_t n) {
    while (n && !(n >= 2 && data[n - 1] == '\n' && data[n - 2] == '\n')) n--;
    return n;
}

static void go_on(const uint8_t *known, size_t n_known, const uint8_t *data, size_t n, size_t piece,
                  bool same) {
    struct mg_resume r = {0};
    struct mg_buf out = {.max = SIZE_MAX};
    struct mg_err err = {0};
    enum mg_status st = mg_resume_learn(&r, known, n_known, &err);
    need_error(st, &err);
    need(st || r.n_choice <= MG_RESUME_CHOICES);
    bool fresh = !st && mg_resume_is_whole(&r);
    for (size_t at = 0; !st && at < n; at += piece) {
        st = mg_resume_feed(&r, data + at, mg_min_size(piece, n - at), &out, &err);
        need_error(st, &err);
    }
    need(whole(out.data, out.n) == out.n);
    if (!st && fresh && same) {
        struct mg_buf *text = calloc(2 * MG_RESUME_CHOICES, sizeof *text);
        need(text != NULL);
        for (size_t i = 0; i < 2 * MG_RESUME_CHOICES; i++) text[i].max = SIZE_MAX;
        read_texts(known, n_known, text);
        read_texts(out.data, out.n, text);
        read_texts(data, n, text + MG_RESUME_CHOICES);
        for (size_t i = 0; i < MG_RESUME_CHOICES; i++) {
            const struct mg_buf *a = &text[i], *b = &text[MG_RESUME_CHOICES + i];
            need(a->n == b->n && (!a->n || !memcmp(a->data, b->data, a->n)));
            mg_buf_free(&text[i]);
            mg_buf_free(&text[MG_RESUME_CHOICES + i]);
        }
        free(text);
    }
    mg_buf_free(&out);
    mg_resume_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 3 || n > MOST) return 0;
    size_t most = n - 3, cut = (size_t)data[0] + 256 * (size_t)data[1],
           piece = data[2] ? data[2] : most + 1;
    uint8_t *events = malloc(most + 1); /* a block of its own */
    need(events != NULL);
    memcpy(events, data + 3, most);
    cut = mg_min_size(cut, most);
    size_t known = whole(events, cut);
    go_on(events, known, events, most, piece, true);
    go_on(events, cut, events + cut, most - cut, piece, false);
    free(events);
    return 0;
}
