/* net/http_response.c - see http_response.h. */
#include "net/http_response.h"

#include <string.h>
#include <strings.h>

#define MAX_RETRY_AFTER 86400 /* seconds; more is not believed */

static enum mg_http_feed bad(struct mg_http_response *r, const char *fault) {
    r->fault = fault;
    r->done = true;
    return MG_HTTP_BAD;
}

/* "HTTP/1.1 200 OK" */
static bool status_line(struct mg_http_response *r, const char *text, size_t n) {
    if (n < 12 || memcmp(text, "HTTP/1.", 7) || (text[7] != '0' && text[7] != '1') ||
        text[8] != ' ' || (n > 12 && text[12] != ' '))
        return false;
    int status = 0;
    for (int i = 9; i < 12; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        status = status * 10 + (text[i] - '0');
    }
    r->minor = text[7] - '0';
    r->status = status;
    return status >= 100;
}

/* A whole number of decimal digits and nothing else; false also when it doesn't fit. */
static bool whole_number(const char *text, uint64_t *out) {
    uint64_t x = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || x > (UINT64_MAX - 9) / 10) return false;
        x = x * 10 + (uint64_t)(*text - '0');
    }
    *out = x;
    return true;
}

static bool begins_with(const char *text, const char *word) {
    return !strncasecmp(text, word, strlen(word));
}

/* Does the list with commas hold the word? */
static bool lists(const char *list, const char *word) {
    size_t n_word = strlen(word);
    for (const char *at = list; *at;) {
        at += strspn(at, " \t,");
        size_t n = strcspn(at, ",");
        const char *next = at + n;
        while (n && (at[n - 1] == ' ' || at[n - 1] == '\t')) n--;
        if (n == n_word && !strncasecmp(at, word, n)) return true;
        at = next;
    }
    return false;
}

/* One field; what is wrong with it, or NULL. */
static const char *take_field(struct mg_http_response *r, char *line) {
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return "a line of the head is no field";
    *colon = 0;
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t n = strlen(value);
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = 0;
    uint64_t number;
    if (r->field && r->status >= 200) r->field(r->user, line, value);
    if (!strcasecmp(line, "Content-Length")) {
        if (!whole_number(value, &number)) return "Content-Length is no number";
        if (r->has_length && number != r->left) return "two Content-Lengths that differ";
        r->has_length = true;
        r->left = number;
    } else if (!strcasecmp(line, "Transfer-Encoding")) {
        if (!strcasecmp(value, "chunked"))
            r->chunked = true;
        else
            r->strange = strcasecmp(value, "identity") != 0;
    } else if (!strcasecmp(line, "Connection")) {
        r->close |= lists(value, "close");
        r->keep |= lists(value, "keep-alive");
    } else if (!strcasecmp(line, "Content-Type")) {
        static const char stream[] = "text/event-stream";
        r->event_stream =
            begins_with(value, stream) && strchr("; \t", value[sizeof stream - 1]) != NULL;
    } else if (!strcasecmp(line, "Retry-After") && whole_number(value, &number)) {
        r->retry_after = number < MAX_RETRY_AFTER ? (double)(uint32_t)number : MAX_RETRY_AFTER;
    }
    return NULL;
}

/* The empty line has come. */
static enum mg_http_feed end_head(struct mg_http_response *r) {
    if (r->status < 200) { /* 100 Continue, 103 Early Hints: the reply is still to come */
        size_t n_head = r->n_head;
        if (r->status == 101) return bad(r, "the protocol was changed unasked");
        mg_http_response_reset(r);
        r->any = true;
        r->n_head = n_head; /* not without end */
        return MG_HTTP_MORE;
    }
    if (r->strange) return bad(r, "a transfer coding other than chunked");
    r->headed = true;
    if (r->status == 204 || r->status == 304) {
        r->chunked = false;
        r->has_length = true;
        r->left = 0;
    }
    bool framed = r->chunked || r->has_length;
    r->keep_alive =
        framed && !r->close && !(r->chunked && r->has_length) && (r->minor == 1 || r->keep);
    if (!r->chunked && r->has_length && r->left == 0) {
        r->done = true;
        return MG_HTTP_DONE;
    }
    return MG_HTTP_MORE;
}

static enum mg_http_feed end_line(struct mg_http_response *r) {
    size_t n = r->line.n;
    if (n && r->line.data[n - 1] == '\r') n--;
    char *text = (char *)r->line.data;
    if (memchr(text, 0, n)) return bad(r, "a zero byte in the head");
    text[n] = 0;
    r->line.n = 0;
    if (r->status == 0) {
        if (n == 0 && r->n_head <= 2) return MG_HTTP_MORE; /* left over from a reply before */
        if (!status_line(r, text, n)) return bad(r, "the reply does not begin as HTTP/1 does");
        return MG_HTTP_MORE;
    }
    if (n == 0) return end_head(r);
    const char *fault = take_field(r, text);
    return fault ? bad(r, fault) : MG_HTTP_MORE;
}

static enum mg_http_feed feed_head(struct mg_http_response *r, const uint8_t *data, size_t n,
                                   size_t *used) {
    const uint8_t *end = memchr(data, '\n', n);
    size_t take = end ? (size_t)(end - data) + 1 : n;
    *used = take;
    r->n_head += take;
    if (r->n_head > MG_HTTP_MAX_RESPONSE_HEAD) return bad(r, "the head is too long");
    if (!mg_buf_add(&r->line, data, end ? take - 1 : take)) return bad(r, "out of memory");
    if (end && !r->line.data && !mg_buf_reserve(&r->line, 1)) return bad(r, "out of memory");
    return end ? end_line(r) : MG_HTTP_MORE;
}

enum mg_http_feed mg_http_response_feed(struct mg_http_response *r, const uint8_t *data, size_t n,
                                        size_t *used, struct mg_slice *piece) {
    *piece = (struct mg_slice){data, 0};
    r->any = true;
    if (!r->headed) return feed_head(r, data, n, used);
    if (r->chunked) {
        enum mg_http_feed feed = mg_http_chunk_feed(&r->chunk, data, n, used, piece);
        if (feed == MG_HTTP_BAD) return bad(r, r->chunk.fault);
        r->done = feed == MG_HTTP_DONE;
        return feed;
    }
    size_t take = r->has_length && r->left < n ? (size_t)r->left : n;
    *used = take;
    *piece = (struct mg_slice){data, take};
    if (!r->has_length) return MG_HTTP_MORE;
    r->left -= take;
    r->done = r->left == 0;
    return r->done ? MG_HTTP_DONE : MG_HTTP_MORE;
}

bool mg_http_response_end(const struct mg_http_response *r) {
    return r->done || (r->headed && !r->chunked && !r->has_length);
}

void mg_http_response_reset(struct mg_http_response *r) {
    struct mg_buf line = r->line;
    line.n = 0;
    *r = (struct mg_http_response){.line = line, .field = r->field, .user = r->user};
}

void mg_http_response_free(struct mg_http_response *r) {
    mg_buf_free(&r->line);
    *r = (struct mg_http_response){0};
}
