/* net/http_exchange.c - one request: its texts, its route, its end.
 *
 * Paths are cut into segments while still encoded and decoded segment by segment, so that an
 * encoded slash stays inside its segment. A pattern's parameters point into the exchange's arena.
 */
#include "net/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>

#define ARENA_CHUNK 1024 /* bytes, enough for most requests */

struct mg_http_exchange *mg_http_exchange_new(struct mg_http_conn *c) {
    struct mg_http_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    struct mg_http_server *s = c->server;
    x->conn = c;
    x->began = c->state_at;
    x->arena.chunk_size = ARENA_CHUNK;
    x->path = x->raw_path = "";
    x->fields.max = 65536;
    x->id = ++s->last_id;
    struct mg_http_exchange **bucket = &s->bucket[x->id % MG_HTTP_BUCKETS];
    x->next = *bucket;
    *bucket = x;
    s->counts.exchange++;
    const char *id = c->head.status ? NULL : mg_http_head_field(&c->head, "x-request-id");
    if (id && mg_http_is_request_id(id))
        snprintf(x->request_id, sizeof x->request_id, "%s", id);
    else
        mg_http_make_request_id(x->request_id);
    return x;
}

/* In the arena; NULL: no memory, which the reply then says whatever it would have been. */
static char *alloc_text(struct mg_http_exchange *x, size_t n) {
    char *text = mg_arena_alloc(&x->arena, n + 1, 1);
    if (!text) x->no_memory = true;
    return text;
}

bool mg_http_exchange_read(struct mg_http_exchange *x) {
    const struct mg_http_head *h = &x->conn->head;
    char *raw = alloc_text(x, h->path.n), *path = alloc_text(x, h->path.n);
    if (!raw || !path) return false;
    memcpy(raw, mg_http_head_text(h, h->path), h->path.n);
    raw[h->path.n] = '\0';
    if (!mg_http_decode(raw, h->path.n, false, path)) return false;
    x->raw_path = raw;
    x->path = path;
    return true;
}

/* --- routes --- */

struct segments {
    const char *text[MG_HTTP_MAX_SEGMENT]; /* decoded, in the arena */
    const char *rest[MG_HTTP_MAX_SEGMENT]; /* from here to the end, encoded */
    size_t n;
};

static bool cut_path(struct mg_http_exchange *x, const char *path, struct segments *out) {
    out->n = 0;
    for (const char *at = path; *at == '/';) {
        size_t n = strcspn(++at, "/");
        if (out->n == MG_HTTP_MAX_SEGMENT) return false;
        char *text = alloc_text(x, n);
        if (!text || !mg_http_decode(at, n, false, text)) return false;
        out->text[out->n] = text;
        out->rest[out->n++] = at;
        at += n;
    }
    return true;
}

static bool take_param(struct mg_http_exchange *x, const char *name, size_t n_name,
                       const char *value) {
    if (x->n_param == MG_HTTP_MAX_PARAM) return false;
    x->param[x->n_param++] = (struct mg_http_param){name, n_name, value};
    return true;
}

static bool take_rest(struct mg_http_exchange *x, const char *name, size_t n_name,
                      const char *rest) {
    size_t n = strlen(rest);
    char *text = alloc_text(x, n);
    return text && mg_http_decode(rest, n, false, text) && take_param(x, name, n_name, text);
}

static bool match(struct mg_http_exchange *x, const char *pattern, const struct segments *s) {
    size_t i = 0;
    x->n_param = 0;
    for (const char *at = pattern; *at == '/'; i++) {
        size_t n = strcspn(++at, "/");
        if (i == s->n) return false;
        if (n >= 3 && at[0] == '{' && at[n - 2] == '*' && at[n - 1] == '}')
            return take_rest(x, at + 1, n - 3, s->rest[i]);
        if (n >= 2 && at[0] == '{' && at[n - 1] == '}') {
            if (!*s->text[i] || !take_param(x, at + 1, n - 2, s->text[i])) return false;
        } else if (strlen(s->text[i]) != n || memcmp(s->text[i], at, n) != 0) {
            return false;
        }
        at += n;
    }
    return i == s->n;
}

static void allow_also(char *allow, size_t cap, const char *method) {
    size_t n = strlen(allow);
    const char *found = strstr(allow, method);
    if (found && (found[strlen(method)] == ',' || !found[strlen(method)])) return;
    snprintf(allow + n, cap - n, "%s%s", n ? ", " : "", method);
}

int mg_http_exchange_route(struct mg_http_exchange *x, char *allow, size_t n_allow) {
    const struct mg_http_options *o = &x->conn->server->o;
    const char *method = mg_http_method(x), *path = x->raw_path;
    size_t n_prefix = o->prefix ? strlen(o->prefix) : 0;
    if (n_prefix) {
        if (strncmp(path, o->prefix, n_prefix)) return 404;
        path += n_prefix;
        if (!*path) path = "/"; /* the prefix alone */
    }
    if (!strcmp(method, "HEAD")) method = "GET";
    struct segments s;
    if (!cut_path(x, path, &s)) return 404;
    for (size_t i = 0; i < o->n_route; i++) {
        const struct mg_http_route *r = &o->route[i];
        if (!match(x, r->pattern, &s)) continue;
        if (!strcmp(r->method, method)) {
            x->route = r;
            return 0;
        }
        /* What takes every path says nothing of which paths there are. */
        if (!strncmp(r->pattern, "/{", 2) && strstr(r->pattern, "*}")) continue;
        allow_also(allow, n_allow, r->method);
        if (!strcmp(r->method, "GET")) allow_also(allow, n_allow, "HEAD");
    }
    x->n_param = 0;
    if (!*allow) return 404;
    allow_also(allow, n_allow, "OPTIONS");
    return 405;
}

/* --- the end --- */

static void tell_log(const struct mg_http_exchange *x, enum mg_http_end reason) {
    const struct mg_http_conn *c = x->conn;
    const struct mg_http_options *o = &c->server->o;
    if (!o->log) return;
    const char *agent = x->readable ? mg_http_header(x, "user-agent") : NULL;
    struct mg_http_record record = {
        .seconds = mg_clock() - x->began,
        .peer = c->peer,
        .method = x->readable ? mg_http_head_text(&c->head, c->head.method) : "",
        .target = x->readable ? mg_http_head_text(&c->head, c->head.target) : "",
        .request_id = x->request_id,
        .agent = agent ? agent : "",
        .pattern = x->route ? x->route->pattern : "",
        .status = x->status,
        .bytes_in = x->bytes_in,
        .bytes_out = x->bytes_out,
        .end = reason,
        .tag = mg_http_tag(x),
    };
    o->log(&record, o->user);
}

void mg_http_exchange_end(struct mg_http_exchange *x, enum mg_http_end reason) {
    struct mg_http_server *s = x->conn->server;
    x->ended = true;
    tell_log(x, reason);
    if (x->on_end) x->on_end(x, reason, x->user);
    struct mg_http_exchange **at = &s->bucket[x->id % MG_HTTP_BUCKETS];
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    s->counts.exchange--;
    s->counts.body_bytes -= x->counted;
    s->counts.reply_bytes -= x->reply_counted;
    mg_ws_free(x->ws);
    mg_buf_free(&x->body);
    mg_buf_free(&x->fields);
    mg_arena_free(&x->arena);
    free(x);
}

/* --- what the user asks --- */

uint64_t mg_http_id(const struct mg_http_exchange *x) {
    return x->id;
}

struct mg_http_exchange *mg_http_find(struct mg_http_server *s, uint64_t id) {
    struct mg_http_exchange *x = s->bucket[id % MG_HTTP_BUCKETS];
    while (x && x->id != id) x = x->next;
    return x && !x->ended && !x->conn->dead ? x : NULL;
}

struct mg_http_server *mg_http_server_of(const struct mg_http_exchange *x) {
    return x->conn->server;
}

void *mg_http_server_user(const struct mg_http_server *s) {
    return s->o.user;
}

const char *mg_http_method(const struct mg_http_exchange *x) {
    return x->readable ? mg_http_head_text(&x->conn->head, x->conn->head.method) : "";
}

const char *mg_http_path(const struct mg_http_exchange *x) {
    return x->path;
}
const char *mg_http_raw_path(const struct mg_http_exchange *x) {
    return x->raw_path;
}

const char *mg_http_query(struct mg_http_exchange *x, const char *name) {
    const char *value;
    size_t n;
    if (!x->readable) return NULL;
    const char *query = mg_http_head_text(&x->conn->head, x->conn->head.query);
    if (!mg_http_query_find(query, name, &value, &n)) return NULL;
    char *text = alloc_text(x, n);
    return text && mg_http_decode(value, n, true, text) ? text : NULL;
}

const char *mg_http_param(struct mg_http_exchange *x, const char *name) {
    for (size_t i = 0; i < x->n_param; i++)
        if (strlen(name) == x->param[i].n_name &&
            !memcmp(name, x->param[i].name, x->param[i].n_name))
            return x->param[i].value;
    return NULL;
}

const char *mg_http_header(const struct mg_http_exchange *x, const char *name) {
    return x->readable ? mg_http_head_field(&x->conn->head, name) : NULL;
}

struct mg_slice mg_http_body(const struct mg_http_exchange *x) {
    return (struct mg_slice){x->body.data, x->body.n};
}

void mg_http_take_body(struct mg_http_exchange *x, struct mg_buf *out) {
    *out = x->body;
    x->body = (struct mg_buf){.max = x->body.max};
    mg_http_release(x, x->counted);
}

bool mg_http_hold(struct mg_http_exchange *x, size_t n) {
    struct mg_http_server *s = x->conn->server;
    if (n > s->o.max_body_total - mg_min_size(s->counts.body_bytes, s->o.max_body_total))
        return false;
    s->counts.body_bytes += n;
    x->counted += n;
    return true;
}

void mg_http_release(struct mg_http_exchange *x, size_t n) {
    n = mg_min_size(n, x->counted);
    x->conn->server->counts.body_bytes -= n;
    x->counted -= n;
}

const char *mg_http_peer(const struct mg_http_exchange *x) {
    return x->conn->peer;
}
const char *mg_http_request_id(const struct mg_http_exchange *x) {
    return x->request_id;
}
bool mg_http_is_tls(const struct mg_http_exchange *x) {
    return x->conn->wire.tls != NULL;
}
bool mg_http_is_unix(const struct mg_http_exchange *x) {
    return x->conn->is_unix;
}
bool mg_http_is_internal(const struct mg_http_exchange *x) {
    return x->conn->internal;
}
int mg_http_tag(const struct mg_http_exchange *x) {
    return x->route ? x->route->tag : 0;
}

void mg_http_set_user(struct mg_http_exchange *x, void *user) {
    x->user = user;
}
void *mg_http_user(const struct mg_http_exchange *x) {
    return x->user;
}
void mg_http_on_end(struct mg_http_exchange *x, mg_http_end_fn *fn) {
    x->on_end = fn;
}
void mg_http_on_stop(struct mg_http_exchange *x, mg_http_fn *fn) {
    x->on_stop = fn;
}
void mg_http_on_drain(struct mg_http_exchange *x, mg_http_fn *fn) {
    x->on_drain = fn;
}
bool mg_http_has_replied(const struct mg_http_exchange *x) {
    return x->begun;
}

size_t mg_http_queued(const struct mg_http_exchange *x) {
    return evbuffer_get_length(x->conn->out);
}
