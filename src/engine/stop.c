/* engine/stop.c - see stop.h. */
#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

struct mg_stop {
    size_t n_stop;
    char *stop[MG_MAX_STOP];   /* owned */
    size_t length[MG_MAX_STOP];
    struct mg_buf held;        /* the end of the text so far that may be part of a stop string */
    bool stopped;
};

bool mg_stop_valid(const char *const *stop, size_t n_stop) {
    if (n_stop > MG_MAX_STOP) return false;
    for (size_t i = 0; i < n_stop; i++) {
        size_t n = stop[i] ? strnlen(stop[i], MG_MAX_STOP_BYTES + 1) : 0;
        if (n == 0 || n > MG_MAX_STOP_BYTES) return false;
    }
    return true;
}

enum mg_status mg_stop_open(const char *const *stop, size_t n_stop, struct mg_stop **out, struct mg_err *err) {
    *out = NULL;
    if (!mg_stop_valid(stop, n_stop))
        return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option",
                       "stop must be at most %d strings of 1 to %d bytes", MG_MAX_STOP, MG_MAX_STOP_BYTES);
    struct mg_stop *s = calloc(1, sizeof *s);
    for (; s && s->n_stop < n_stop; s->n_stop++) {
        s->length[s->n_stop] = strlen(stop[s->n_stop]);
        s->stop[s->n_stop] = strdup(stop[s->n_stop]);
        if (!s->stop[s->n_stop]) break;
    }
    if (!s || s->n_stop < n_stop) {
        mg_stop_close(s);
        return mg_fail_memory(err, "stop strings");
    }
    *out = s;
    return MG_OK;
}

void mg_stop_close(struct mg_stop *s) {
    if (!s) return;
    for (size_t i = 0; i < MG_MAX_STOP; i++) free(s->stop[i]);
    mg_buf_free(&s->held);
    free(s);
}

/* Length of the longest stop string that the held text ends with, or 0. */
static size_t complete_stop(const struct mg_stop *s) {
    size_t longest = 0;
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t n = s->length[i];
        if (n > longest && n <= s->held.n && memcmp(s->held.data + s->held.n - n, s->stop[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* Length of the longest end of the held text that begins a stop string. */
static size_t begun_stop(const struct mg_stop *s) {
    size_t longest = 0;
    for (size_t i = 0; i < s->n_stop; i++)
        for (size_t n = mg_min_size(s->length[i] - 1, s->held.n); n > longest; n--)
            if (memcmp(s->held.data + s->held.n - n, s->stop[i], n) == 0) longest = n;
    return longest;
}

static bool release(struct mg_stop *s, size_t n, struct mg_buf *out) {
    if (!mg_buf_add(out, s->held.data, n)) return false;
    memmove(s->held.data, s->held.data + n, s->held.n - n);
    s->held.n -= n;
    return true;
}

bool mg_stop_add(struct mg_stop *s, const void *text, size_t n, struct mg_buf *out, bool *stopped) {
    *stopped = s->stopped;
    if (s->stopped || n == 0) return true;
    if (s->n_stop == 0) return mg_buf_add(out, text, n);
    for (size_t i = 0; i < n; i++) {
        if (!mg_buf_add_byte(&s->held, ((const uint8_t *)text)[i])) return false;
        size_t match = complete_stop(s);
        if (match) {
            *stopped = s->stopped = true;
            return release(s, s->held.n - match, out);
        }
    }
    return release(s, s->held.n - begun_stop(s), out);
}

bool mg_stop_flush(struct mg_stop *s, struct mg_buf *out) {
    return s->stopped || s->held.n == 0 || release(s, s->held.n, out);
}
