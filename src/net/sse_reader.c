/* net/sse_reader.c - see sse_reader.h. */
#include "net/sse_reader.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_MAX ((size_t)1 << 20)

static bool fault(struct mg_sse_reader *r, const char *text) {
    r->fault = text;
    return false;
}

static size_t limit(const struct mg_sse_reader *r) {
    return r->max_event ? r->max_event : DEFAULT_MAX;
}

static bool dispatch(struct mg_sse_reader *r) {
    bool more = true;
    if (r->has_data) {
        size_t n = r->data.n ? r->data.n - 1 : 0; /* without the last line's end */
        if (r->data.data) r->data.data[n] = 0;
        more = r->event(r->user, *r->name ? r->name : "message",
                        r->data.data ? (const char *)r->data.data : "", n);
    }
    r->data.n = 0;
    r->has_data = false;
    r->name[0] = 0;
    return more;
}

static bool is(const char *name, size_t n, const char *word) {
    return n == strlen(word) && !memcmp(name, word, n);
}

static bool end_line(struct mg_sse_reader *r) {
    const char *text = r->line.data ? (const char *)r->line.data : "";
    size_t n = r->line.n;
    r->line.n = 0;
    if (!r->begun && n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
        text += 3;
        n -= 3;
    }
    r->begun = true;
    if (n == 0) return dispatch(r);
    const char *colon = memchr(text, ':', n);
    size_t n_name = colon ? (size_t)(colon - text) : n;
    const char *value = colon ? colon + 1 : text + n;
    size_t n_value = n - (size_t)(value - text);
    if (n_value && *value == ' ') value++, n_value--;
    if (is(text, n_name, "data")) {
        if (r->data.n + n_value >= limit(r)) return fault(r, "an event is too long");
        r->has_data = true;
        if (!mg_buf_add(&r->data, value, n_value) || !mg_buf_add_byte(&r->data, '\n'))
            return fault(r, "out of memory");
    } else if (is(text, n_name, "event")) {
        snprintf(r->name, sizeof r->name, "%.*s", (int)mg_min_size(n_value, sizeof r->name - 1),
                 value);
    }
    return true;
}

bool mg_sse_reader_feed(struct mg_sse_reader *r, const uint8_t *data, size_t n) {
    for (size_t at = 0; at < n;) {
        if (r->after_cr && data[at] == '\n') {
            r->after_cr = false;
            at++;
            continue;
        }
        r->after_cr = false;
        size_t end = at;
        while (end < n && data[end] != '\n' && data[end] != '\r') end++;
        if (r->line.n + (end - at) > limit(r)) return fault(r, "a line of the stream is too long");
        if (end > at && !mg_buf_add(&r->line, data + at, end - at))
            return fault(r, "out of memory");
        if (end == n) return true;
        r->after_cr = data[end] == '\r';
        at = end + 1;
        if (!end_line(r)) return false;
    }
    return true;
}

void mg_sse_reader_free(struct mg_sse_reader *r) {
    mg_buf_free(&r->line);
    mg_buf_free(&r->data);
}
