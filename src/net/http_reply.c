/* net/http_reply.c - heads and bodies of replies: complete ones and streams, compression, CORS.
 *
 * A reply's bytes go to conn->out and from there to the kernel at once. When the whole reply is in
 * `out` the exchange is `finished`; the connection ends it when `out` is empty.
 */
#include "net/http_gzip.h"
#include "net/http_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>

#define HEAD_MAX (MG_HTTP_REQUEST_ID + 66560) /* bytes of a reply's head */
#define NO_LENGTH UINT64_MAX
#define LARGE 65536 /* bytes of a reply from which on it counts as held until it has been read */

const char *mg_http_server_date(struct mg_http_server *s) {
    time_t now = time(NULL);
    if (now != s->date_at) {
        mg_http_date(now, s->date);
        s->date_at = now;
    }
    return s->date;
}

/* "https://host:1": is the part behind the scheme the request's Host? The scheme may differ, since
 * a proxy may have taken TLS off. */
static bool is_own(const char *origin, const char *host) {
    const char *at = strstr(origin, "://");
    return at && host && *host && !strcasecmp(at + 3, host);
}

bool mg_http_cors_allowed(const struct mg_http_exchange *x, const char **origin) {
    const struct mg_http_options *o = &x->conn->server->o;
    const char *from = mg_http_header(x, "origin");
    for (size_t i = 0; from && i < o->n_origin; i++) {
        if (!strcmp(o->origin[i], "*")) {
            *origin = "*";
            return true;
        }
        if (!strcasecmp(o->origin[i], from)) {
            *origin = from;
            return true;
        }
    }
    return false;
}

bool mg_http_is_foreign(const struct mg_http_exchange *x) {
    const char *from = mg_http_header(x, "origin"), *allowed;
    if (!from || is_own(from, mg_http_header(x, "host"))) return false;
    return !mg_http_cors_allowed(x, &allowed);
}

/* What a cache must know the reply depends on. */
static void add_vary(const struct mg_http_exchange *x, bool encoding, struct mg_buf *head) {
    bool origin = x->conn->server->o.n_origin > 0;
    if (encoding || origin)
        mg_buf_printf(head, "Vary: %s%s%s\r\n", encoding ? "Accept-Encoding" : "",
                      encoding && origin ? ", " : "", origin ? "Origin" : "");
}

/* Puts the head into the connection's queue. length NO_LENGTH: a stream. */
static enum mg_status add_head(struct mg_http_exchange *x, int status, const char *content_type,
                               uint64_t length, bool vary, bool gzip) {
    struct mg_http_conn *c = x->conn;
    struct mg_buf head = {.max = HEAD_MAX};
    const char *origin;
    bool readable = x->readable, is_head = readable && !strcmp(mg_http_method(x), "HEAD");
    bool bare = status == 204 || status == 304 || status < 200;
    x->no_body = is_head || bare;
    x->chunked = length == NO_LENGTH && readable && c->head.minor == 1 && !bare;
    if (c->server->stopping || (length == NO_LENGTH && !x->chunked && !x->no_body))
        c->close_after = true;
    mg_buf_printf(&head, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", status,
                  mg_http_reason(status), mg_http_server_date(c->server), x->request_id);
    if (content_type) mg_buf_printf(&head, "Content-Type: %s\r\n", content_type);
    if (x->chunked)
        mg_buf_add_str(&head, "Transfer-Encoding: chunked\r\n");
    else if (length != NO_LENGTH && !bare)
        mg_buf_printf(&head, "Content-Length: %" PRIu64 "\r\n", length);
    if (gzip) mg_buf_add_str(&head, "Content-Encoding: gzip\r\n");
    add_vary(x, vary, &head);
    if (readable && mg_http_cors_allowed(x, &origin))
        mg_buf_printf(&head,
                      "Access-Control-Allow-Origin: %s\r\n"
                      "Access-Control-Expose-Headers: x-request-id, retry-after\r\n",
                      origin);
    if (c->close_after)
        mg_buf_add_str(&head, "Connection: close\r\n");
    else if (c->head.minor == 0)
        mg_buf_add_str(&head, "Connection: keep-alive\r\n");
    mg_buf_add(&head, x->fields.data, x->fields.n);
    mg_buf_add_str(&head, "\r\n");
    bool good = !head.failed && !x->no_memory && mg_http_conn_add(c, head.data, head.n);
    if (good) {
        x->begun = true;
        x->status = status;
        x->bytes_out += head.n;
    }
    mg_buf_free(&head);
    if (!good) mg_http_conn_no_memory(c);
    return good ? MG_OK : MG_ERR_MEMORY;
}

static enum mg_status may_begin(const struct mg_http_exchange *x) {
    if (x->ended || x->conn->dead) return MG_ERR_CANCELLED;
    return x->begun ? MG_ERR_ARGUMENT : MG_OK;
}

enum mg_status mg_http_add_field(struct mg_http_exchange *x, const char *name, const char *value) {
    enum mg_status status = may_begin(x);
    if (status) return status;
    if (!mg_http_is_field(name, value)) return MG_ERR_ARGUMENT;
    size_t n = strlen(name) + strlen(value) + 4;
    if (n > x->fields.max - x->fields.n) return MG_ERR_LIMIT;
    if (!mg_buf_printf(&x->fields, "%s: %s\r\n", name, value)) return MG_ERR_MEMORY;
    if (!strcasecmp(name, "content-encoding")) x->has_encoding = true;
    return MG_OK;
}

static enum mg_status may_reply(const struct mg_http_exchange *x, int status,
                                const char *content_type) {
    enum mg_status result = may_begin(x);
    if (result) return result;
    bool good =
        status >= 200 && status <= 599 && (!content_type || mg_http_is_field("a", content_type));
    return good ? MG_OK : MG_ERR_ARGUMENT;
}

/* The whole reply is in `out`. */
static enum mg_status finish(struct mg_http_exchange *x) {
    x->finished = true;
    mg_http_conn_flush(x->conn);
    mg_http_conn_schedule(x->conn);
    return MG_OK;
}

/* n bytes of a reply wait to be read; false: too many do already. */
static bool hold_reply(struct mg_http_exchange *x, size_t n) {
    struct mg_http_server *s = x->conn->server;
    if (n < LARGE) return true;
    if (n > s->o.max_body_total - mg_min_size(s->counts.reply_bytes, s->o.max_body_total))
        return false;
    s->counts.reply_bytes += n;
    x->reply_counted += n;
    return true;
}

/* Clients that don't read are not to take all memory. */
static enum mg_status refuse_large(struct mg_http_exchange *x) {
    mg_http_add_field(x, "Retry-After", "1");
    return mg_http_reply_error(x, 503, "unavailable", "no memory for this reply now");
}

enum mg_status mg_http_reply(struct mg_http_exchange *x, int status, const char *content_type,
                             const void *body, size_t n) {
    enum mg_status result = may_reply(x, status, content_type);
    if (result) return result;
    struct mg_buf packed = {0};
    bool vary = n > MG_GZIP_MIN && mg_http_is_compressible(content_type) && !x->has_encoding;
    bool gzip = vary && mg_http_accepts_gzip(mg_http_header(x, "accept-encoding")) &&
                mg_gzip(body, n, &packed);
    if (gzip) {
        body = packed.data;
        n = packed.n;
    }
    if (!hold_reply(x, n)) {
        mg_buf_free(&packed);
        return refuse_large(x);
    }
    result = add_head(x, status, content_type, n, vary, gzip);
    if (!result && !x->no_body) {
        x->bytes_out += n;
        if (!mg_http_conn_add(x->conn, body, n)) result = MG_ERR_MEMORY;
    }
    mg_buf_free(&packed);
    return result ? result : finish(x);
}

enum mg_status mg_http_reply_view(struct mg_http_exchange *x, int status, const char *content_type,
                                  const void *body, size_t n, mg_http_release_fn *release,
                                  void *arg) {
    enum mg_status result = may_reply(x, status, content_type);
    if (!result) result = add_head(x, status, content_type, n, false, false);
    if (result || x->no_body) {
        release(body, n, arg);
        return result ? result : finish(x);
    }
    x->bytes_out += n;
    return mg_http_conn_add_view(x->conn, body, n, release, arg) ? finish(x) : MG_ERR_MEMORY;
}

static void free_data(const void *data, size_t n, void *arg) {
    (void)data, (void)n;
    free(arg);
}

enum mg_status mg_http_reply_take(struct mg_http_exchange *x, int status, const char *content_type,
                                  struct mg_buf *body) {
    struct mg_buf taken = *body;
    enum mg_status result;
    *body = (struct mg_buf){0};
    if (taken.n <= MG_GZIP_MAX) { /* copying is no matter, and it may be compressed */
        result = mg_http_reply(x, status, content_type, taken.data, taken.n);
    } else if (hold_reply(x, taken.cap)) {
        return mg_http_reply_view(x, status, content_type, taken.data, taken.n, free_data,
                                  taken.data);
    } else {
        result = may_reply(x, status, content_type);
        if (!result) result = refuse_large(x);
    }
    mg_buf_free(&taken);
    return result;
}

static const char *plain_error(const char *code, struct mg_buf *out) {
    mg_buf_printf(out, "{\"error\":{\"message\":\"%s\",\"code\":\"%s\"}}\n", code, code);
    return "application/json";
}

enum mg_status mg_http_reply_error(struct mg_http_exchange *x, int status, const char *code,
                                   const char *text) {
    enum mg_status result = may_begin(x);
    if (result) return result;
    const struct mg_http_options *o = &x->conn->server->o;
    struct mg_buf body = {.max = 65536};
    const char *type = o->error_body ? o->error_body(x, status, code, text, &body, o->user)
                                     : plain_error(code, &body);
    if (body.failed) mg_buf_free(&body); /* the status alone must do */
    result = mg_http_reply(x, status, body.n ? type : NULL, body.data, body.n);
    mg_buf_free(&body);
    return result;
}

/* OPTIONS: which methods there are, and what another site's script may do with them. */
void mg_http_reply_preflight(struct mg_http_exchange *x, const char *allow) {
    const char *origin, *wanted = mg_http_header(x, "access-control-request-method");
    mg_http_add_field(x, "Allow", allow);
    if (!wanted || !mg_http_header(x, "origin")) {
        mg_http_reply(x, 204, NULL, NULL, 0);
        return;
    }
    if (!mg_http_cors_allowed(x, &origin)) {
        if (mg_http_is_foreign(x))
            mg_http_reply_error(x, 403, "origin_not_allowed",
                                "scripts of this origin may not use this server");
        else
            mg_http_reply(x, 204, NULL, NULL, 0);
        return;
    }
    const char *headers = mg_http_header(x, "access-control-request-headers");
    mg_http_add_field(x, "Access-Control-Allow-Methods", allow);
    if (headers && *headers) mg_http_add_field(x, "Access-Control-Allow-Headers", headers);
    mg_http_add_field(x, "Access-Control-Max-Age", "600");
    mg_http_reply(x, 204, NULL, NULL, 0);
}

/* --- streams --- */

enum mg_status mg_http_stream_begin(struct mg_http_exchange *x, int status,
                                    const char *content_type) {
    enum mg_status result = may_begin(x);
    if (result) return result;
    if (status < 200 || status > 599 || (content_type && !mg_http_is_field("a", content_type)))
        return MG_ERR_ARGUMENT;
    result = add_head(x, status, content_type, NO_LENGTH, false, false);
    if (result) return result;
    x->streaming = true;
    x->wrote_at = mg_clock();
    mg_http_conn_flush(x->conn);
    return x->conn->dead ? MG_ERR_CANCELLED : MG_OK;
}

static enum mg_status may_write(const struct mg_http_exchange *x) {
    if (x->ended || x->conn->dead) return MG_ERR_CANCELLED;
    return x->streaming && !x->finished ? MG_OK : MG_ERR_ARGUMENT;
}

enum mg_status mg_http_stream_write(struct mg_http_exchange *x, const void *data, size_t n) {
    enum mg_status result = may_write(x);
    if (result || n == 0 || x->no_body) return result;
    struct mg_http_conn *c = x->conn;
    char line[24];
    int n_line = x->chunked ? snprintf(line, sizeof line, "%zx\r\n", n) : 0;
    if (!mg_http_conn_add(c, line, (size_t)n_line) || !mg_http_conn_add(c, data, n) ||
        !mg_http_conn_add(c, "\r\n", x->chunked ? 2 : 0))
        return MG_ERR_MEMORY;
    x->bytes_out += n + (size_t)n_line + (x->chunked ? 2 : 0);
    x->wrote_at = mg_clock();
    mg_http_conn_flush(c);
    if (c->dead) return MG_ERR_CANCELLED;
    size_t queued = evbuffer_get_length(c->out);
    if (queued) x->wants_drain = true;
    if (queued <= c->server->o.max_queued) return MG_OK;
    mg_http_conn_die(c, MG_HTTP_END_SLOW);
    return MG_ERR_LIMIT;
}

enum mg_status mg_http_stream_end(struct mg_http_exchange *x) {
    enum mg_status result = may_write(x);
    if (result) return result;
    if (x->chunked && !x->no_body) {
        if (!mg_http_conn_add(x->conn, "0\r\n\r\n", 5)) return MG_ERR_MEMORY;
        x->bytes_out += 5;
    }
    x->finished = true;
    mg_http_conn_flush(x->conn);
    mg_http_conn_schedule(x->conn);
    return MG_OK;
}

void mg_http_stream_abort(struct mg_http_exchange *x) {
    if (may_write(x) == MG_OK) mg_http_conn_die(x->conn, MG_HTTP_END_STOPPED);
}

enum mg_status mg_http_stream_ping(struct mg_http_exchange *x, const void *data, size_t n,
                                   double seconds) {
    enum mg_status result = may_write(x);
    if (result) return result;
    if (n == 0 || n > sizeof x->ping || !(seconds > 0)) return MG_ERR_ARGUMENT;
    memcpy(x->ping, data, n);
    x->n_ping = n;
    x->ping_seconds = seconds;
    mg_http_conn_arm(x->conn);
    return MG_OK;
}
