/* net/http_head.c - see http_head.h. */
#include "net/http_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KEEP_BYTES 4096 /* of a head's memory over a reset */

bool mg_http_is_token_char(uint8_t c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

static bool is_blank(uint8_t c) {
    return c == ' ' || c == '\t';
}

static enum mg_http_feed bad(struct mg_http_head *h, int status, const char *fault) {
    h->status = status;
    h->fault = fault;
    h->done = true;
    return MG_HTTP_BAD;
}

const char *mg_http_head_text(const struct mg_http_head *h, struct mg_http_span s) {
    return h->bytes.data && s.n ? (const char *)h->bytes.data + s.at : "";
}

static const struct mg_http_field_span *find(const struct mg_http_head *h, const char *name,
                                             size_t from) {
    size_t n = strlen(name);
    for (size_t i = from; i < h->n_field; i++) {
        const struct mg_http_field_span *f = &h->field[i];
        if (f->name.n == n && !strncasecmp((const char *)h->bytes.data + f->name.at, name, n))
            return f;
    }
    return NULL;
}

const char *mg_http_head_field(const struct mg_http_head *h, const char *name) {
    const struct mg_http_field_span *f = find(h, name, 0);
    return f ? mg_http_head_text(h, f->value) : NULL;
}

static bool value_lists(const uint8_t *value, size_t n, const char *word) {
    size_t n_word = strlen(word);
    for (size_t i = 0; i < n;) {
        while (i < n && (is_blank(value[i]) || value[i] == ',')) i++;
        size_t at = i;
        while (i < n && value[i] != ',') i++;
        size_t end = i;
        while (end > at && is_blank(value[end - 1])) end--;
        if (end - at == n_word && !strncasecmp((const char *)value + at, word, n_word)) return true;
    }
    return false;
}

bool mg_http_head_lists(const struct mg_http_head *h, const char *name, const char *word) {
    const struct mg_http_field_span *f = NULL;
    for (size_t from = 0; (f = find(h, name, from)); from = (size_t)(f - h->field) + 1)
        if (value_lists(h->bytes.data + f->value.at, f->value.n, word)) return true;
    return false;
}

/* "/path?query", "http://host/path?query" or "*"; sets path and query. */
static const char *read_target(struct mg_http_head *h) {
    const char *t = (const char *)h->bytes.data + h->target.at;
    size_t n = h->target.n, at = 0;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)t[i] < 0x21 || (uint8_t)t[i] > 0x7E || t[i] == '#')
            return "the request target holds a character that must be encoded";
    bool is_options = h->method.n == 7 && !memcmp(h->bytes.data + h->method.at, "OPTIONS", 7);
    if (n == 1 && t[0] == '*' && is_options) return NULL;
    if (t[0] != '/') {
        size_t scheme = n > 7 && !strncasecmp(t, "http://", 7)    ? 7
                        : n > 8 && !strncasecmp(t, "https://", 8) ? 8
                                                                  : 0;
        if (!scheme) return "the request target is neither a path nor an http URL";
        for (at = scheme; at < n && t[at] != '/' && t[at] != '?'; at++)
            if (t[at] == '@') return "the request target names a user";
        if (at == scheme) return "the request target names no host";
        if (at == n || t[at] == '?') return "the request target names no path";
    }
    const char *question = memchr(t + at, '?', n - at);
    size_t end = question ? (size_t)(question - t) : n;
    h->path = (struct mg_http_span){h->target.at + (uint32_t)at, (uint32_t)(end - at)};
    if (question)
        h->query = (struct mg_http_span){h->target.at + (uint32_t)end + 1, (uint32_t)(n - end - 1)};
    return NULL;
}

static enum mg_http_feed request_line(struct mg_http_head *h, size_t n) {
    const uint8_t *s = h->bytes.data + h->line;
    size_t at = 0;
    while (at < n && mg_http_is_token_char(s[at])) at++;
    if (at == 0 || at == n || s[at] != ' ' || at > MG_HTTP_MAX_METHOD)
        return bad(h, 400, "the request line does not begin with a method");
    h->method = (struct mg_http_span){(uint32_t)h->line, (uint32_t)at};
    size_t target = ++at;
    while (at < n && s[at] != ' ') at++;
    if (at == target || at == n)
        return bad(h, 400, "the request line is not METHOD TARGET HTTP/1.1");
    h->target = (struct mg_http_span){(uint32_t)(h->line + target), (uint32_t)(at - target)};
    const uint8_t *v = s + at + 1;
    if (n - at - 1 != 8 || memcmp(v, "HTTP/", 5) || v[5] < '0' || v[5] > '9' || v[6] != '.' ||
        v[7] < '0' || v[7] > '9')
        return bad(h, 400, "the request line does not end with a version of HTTP");
    if (v[5] != '1') return bad(h, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    h->minor = v[7] > '0';
    const char *fault = read_target(h);
    if (fault) return bad(h, 400, fault);
    h->begun = true;
    return MG_HTTP_MORE;
}

static enum mg_http_feed header_line(struct mg_http_head *h, size_t n) {
    const uint8_t *s = h->bytes.data + h->line;
    if (is_blank(s[0])) return bad(h, 400, "folded header lines are not accepted");
    size_t name = 0;
    while (name < n && mg_http_is_token_char(s[name])) name++;
    if (name == 0 || name == n || s[name] != ':')
        return bad(h, 400, "a header line is not NAME: VALUE");
    if (h->n_field == MG_HTTP_MAX_FIELD) return bad(h, 431, "more than 100 header fields");
    size_t at = name + 1, end = n;
    while (at < end && is_blank(s[at])) at++;
    while (end > at && is_blank(s[end - 1])) end--;
    struct mg_http_field_span *f = &h->field[h->n_field++];
    f->name = (struct mg_http_span){(uint32_t)h->line, (uint32_t)name};
    f->value = (struct mg_http_span){(uint32_t)(h->line + at), (uint32_t)(end - at)};
    return MG_HTTP_MORE;
}

static const char *check_host(const struct mg_http_head *h) {
    const struct mg_http_field_span *f = find(h, "host", 0);
    if (!f) return h->minor ? "an HTTP/1.1 request needs a Host field" : NULL;
    if (find(h, "host", (size_t)(f - h->field) + 1)) return "more than one Host field";
    for (size_t i = 0; i < f->value.n; i++) {
        uint8_t c = h->bytes.data[f->value.at + i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!plain && !(c && strchr("-._~:[]%!$&'()*+;=", c))) return "the Host field is malformed";
    }
    return NULL;
}

static enum mg_http_feed read_framing(struct mg_http_head *h) {
    const struct mg_http_field_span *te = find(h, "transfer-encoding", 0);
    const struct mg_http_field_span *cl = find(h, "content-length", 0);
    if (te && cl) return bad(h, 400, "Content-Length and Transfer-Encoding together");
    if (te) {
        if (h->minor == 0) return bad(h, 400, "Transfer-Encoding in an HTTP/1.0 request");
        if (find(h, "transfer-encoding", (size_t)(te - h->field) + 1))
            return bad(h, 400, "more than one Transfer-Encoding field");
        if (te->value.n != 7 ||
            strncasecmp((const char *)h->bytes.data + te->value.at, "chunked", 7))
            return bad(h, 501, "the only transfer coding understood is \"chunked\"");
        h->framing = MG_HTTP_CHUNKED;
    }
    if (cl) {
        if (find(h, "content-length", (size_t)(cl - h->field) + 1))
            return bad(h, 400, "more than one Content-Length field");
        if (cl->value.n == 0 || cl->value.n > 18)
            return bad(h, 400, "Content-Length is not a number");
        for (size_t i = 0; i < cl->value.n; i++) {
            uint8_t c = h->bytes.data[cl->value.at + i];
            if (c < '0' || c > '9') return bad(h, 400, "Content-Length is not a number");
            h->length = h->length * 10 + (uint64_t)(c - '0');
        }
        h->framing = h->length ? MG_HTTP_LENGTH : MG_HTTP_NO_BODY;
    }
    return MG_HTTP_DONE;
}

static void end_text(struct mg_http_head *h, struct mg_http_span s) {
    if (s.n) h->bytes.data[s.at + s.n] = 0;
}

static enum mg_http_feed finish(struct mg_http_head *h) {
    const char *fault = check_host(h);
    if (fault) return bad(h, 400, fault);
    enum mg_http_feed result = read_framing(h);
    if (result == MG_HTTP_BAD) return result;
    h->keep_alive = h->minor ? !mg_http_head_lists(h, "connection", "close")
                             : mg_http_head_lists(h, "connection", "keep-alive") &&
                                   !mg_http_head_lists(h, "connection", "close");
    h->upgrade = h->minor && mg_http_head_lists(h, "connection", "upgrade");
    const struct mg_http_field_span *expect = find(h, "expect", 0);
    if (expect && h->minor) {
        if (expect->value.n != 12 ||
            strncasecmp((const char *)h->bytes.data + expect->value.at, "100-continue", 12))
            return bad(h, 417, "the only expectation understood is \"100-continue\"");
        h->expect_continue = true;
    }
    end_text(h, h->method);
    end_text(h, h->target);
    for (size_t i = 0; i < h->n_field; i++) {
        end_text(h, h->field[i].name);
        end_text(h, h->field[i].value);
    }
    h->done = true;
    return MG_HTTP_DONE;
}

/* The line from h->line on is complete but for its end, CR LF, which was just added. */
static enum mg_http_feed end_line(struct mg_http_head *h) {
    size_t n = h->bytes.n - 2 - h->line;
    enum mg_http_feed result = MG_HTTP_MORE;
    if (!h->begun && n == 0) {
        if (h->blank) return bad(h, 400, "empty lines instead of a request");
        h->blank = true;
        h->bytes.n = 0;
    } else if (!h->begun) {
        result = request_line(h, n);
    } else if (n == 0) {
        return finish(h);
    } else {
        result = header_line(h, n);
    }
    h->line = h->bytes.n;
    return result;
}

enum mg_http_feed mg_http_head_feed(struct mg_http_head *h, const uint8_t *data, size_t n,
                                    size_t *used) {
    *used = 0;
    size_t max = mg_min_size(h->max, (size_t)16 << 20);
    if (h->done) return bad(h, 400, "a head that has ended was read on");
    size_t room = max > h->bytes.n ? max - h->bytes.n : 0;
    h->bytes.max = max + 1;
    if (!mg_buf_reserve(&h->bytes, mg_min_size(n, room)))
        return bad(h, 503, "out of memory for the request's head");
    for (size_t i = 0; i < n; i++) {
        uint8_t c = data[i];
        *used = i + 1;
        if (h->bytes.n >= max)
            return h->begun ? bad(h, 431, "the request's head is too long")
                            : bad(h, 414, "the request line is too long");
        bool after_cr = h->bytes.n > h->line && h->bytes.data[h->bytes.n - 1] == '\r';
        if (after_cr && c != '\n') return bad(h, 400, "a CR without LF in the head");
        if (!after_cr && c == '\n') return bad(h, 400, "a LF without CR in the head");
        if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F)
            return bad(h, 400, "a control character in the head");
        h->bytes.data[h->bytes.n++] = c;
        if (c != '\n') continue;
        enum mg_http_feed result = end_line(h);
        if (result != MG_HTTP_MORE) return result;
    }
    return MG_HTTP_MORE;
}

void mg_http_head_reset(struct mg_http_head *h) {
    struct mg_buf bytes = h->bytes;
    size_t max = h->max;
    if (bytes.cap > KEEP_BYTES || bytes.failed) mg_buf_free(&bytes);
    bytes.n = 0;
    *h = (struct mg_http_head){.max = max, .bytes = bytes};
}

void mg_http_head_free(struct mg_http_head *h) {
    mg_buf_free(&h->bytes);
    *h = (struct mg_http_head){.max = h->max};
}
