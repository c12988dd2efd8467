/* engine/stop.c - see stop.h. */
#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    size_t n;       /* bytes */
    size_t matched; /* the text so far ends with this many bytes of it; the most, under n */
    uint8_t byte[MG_MAX_STOP_BYTES];
    /* [k] length of the longest proper beginning of byte[0..k) that is its end too */
    uint16_t border[MG_MAX_STOP_BYTES + 1];
};

struct mg_stop {
    struct pattern *pattern; /* [n_pattern], owned */
    size_t n_pattern;
    uint8_t held[MG_MAX_STOP_BYTES]; /* the end of the text that may be part of a stop string */
    size_t n_held;                   /* the largest `matched` */
    int which;                       /* the string that ended the text, or -1 */
};

bool mg_stop_valid(const char *const *stop, size_t n_stop) {
    if (n_stop > MG_MAX_STOP || (n_stop && !stop)) return false;
    for (size_t i = 0; i < n_stop; i++) {
        size_t n = stop[i] ? strnlen(stop[i], MG_MAX_STOP_BYTES + 1) : 0;
        if (n == 0 || n > MG_MAX_STOP_BYTES || ((unsigned char)stop[i][0] & 0xC0) == 0x80)
            return false;
    }
    return true;
}

static void make_pattern(struct pattern *p, const char *text) {
    p->n = strlen(text);
    memcpy(p->byte, text, p->n);
    size_t k = 0;
    p->border[0] = 0;
    p->border[1] = 0;
    for (size_t i = 1; i < p->n; i++) {
        while (k > 0 && p->byte[i] != p->byte[k]) k = p->border[k];
        if (p->byte[i] == p->byte[k]) k++;
        p->border[i + 1] = (uint16_t)k;
    }
}

enum mg_status mg_stop_open(const char *const *stop, size_t n_stop, struct mg_stop **out,
                            struct mg_err *err) {
    *out = NULL;
    if (!mg_stop_valid(stop, n_stop))
        return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option",
                       "stop must be at most %d strings of 1 to %d bytes of UTF-8", MG_MAX_STOP,
                       MG_MAX_STOP_BYTES);
    struct mg_stop *s = calloc(1, sizeof *s);
    if (s) s->pattern = mg_alloc_zero(n_stop, sizeof *s->pattern);
    if (!s || !s->pattern) {
        mg_stop_close(s);
        return mg_fail_memory(err, "stop strings");
    }
    s->n_pattern = n_stop;
    s->which = -1;
    for (size_t i = 0; i < n_stop; i++) make_pattern(&s->pattern[i], stop[i]);
    *out = s;
    return MG_OK;
}

void mg_stop_close(struct mg_stop *s) {
    if (!s) return;
    free(s->pattern);
    free(s);
}

/* Takes a byte in; true when it completes the string. */
static bool advance(struct pattern *p, uint8_t c) {
    while (p->matched > 0 && p->byte[p->matched] != c) p->matched = p->border[p->matched];
    if (p->byte[p->matched] == c) p->matched++;
    return p->matched == p->n;
}

/* Appends the first n bytes of held + text[0..n_text); what follows them is the new held. */
static bool release(struct mg_stop *s, const uint8_t *text, size_t n_text, size_t n,
                    struct mg_buf *out) {
    size_t from_held = mg_min_size(n, s->n_held), from_text = n - from_held;
    if (!mg_buf_reserve(out, n) || !mg_buf_add(out, s->held, from_held) ||
        !mg_buf_add(out, text, from_text))
        return false;
    memmove(s->held, s->held + from_held, s->n_held - from_held);
    s->n_held -= from_held;
    if (n_text > from_text) memcpy(s->held + s->n_held, text + from_text, n_text - from_text);
    s->n_held += n_text - from_text;
    return true;
}

bool mg_stop_add(struct mg_stop *s, const void *text, size_t n, struct mg_buf *out, bool *stopped) {
    *stopped = s->which >= 0;
    if (*stopped || n == 0) return true;
    const uint8_t *byte = text;
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        size_t cut = 0;
        held = 0;
        for (size_t k = 0; k < s->n_pattern; k++) {
            struct pattern *p = &s->pattern[k];
            if (advance(p, byte[i]) && p->n > cut) {
                cut = p->n;
                s->which = (int)k;
            }
            held = mg_max_size(held, p->matched);
        }
        if (cut) {
            *stopped = true;
            size_t there = s->n_held + i + 1; /* held and new bytes up to the stop string's end */
            if (!release(s, byte, i + 1 - mg_min_size(cut, i + 1), there - cut, out)) return false;
            s->n_held = 0;
            return true;
        }
    }
    return release(s, byte, n, s->n_held + n - held, out);
}

bool mg_stop_flush(struct mg_stop *s, struct mg_buf *out) {
    if (s->which >= 0) return true;
    size_t n = s->n_held;
    s->n_held = 0;
    for (size_t k = 0; k < s->n_pattern; k++) s->pattern[k].matched = 0;
    return mg_buf_add(out, s->held, n);
}

int mg_stop_which(const struct mg_stop *s) {
    return s->which;
}
