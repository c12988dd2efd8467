/* net/http_connection.c - one connection: a state machine over a socket that doesn't block.
 *
 *     READ_HEAD -> READ_BODY -> BUSY -> READ_HEAD ...            one exchange after another
 *                                  \--> WEBSOCKET
 *                                   \-> LINGER -> freed
 *
 * One edge-triggered event serves a connection for all its life: it tells once of everything new
 * (bytes, room to write, the other side's FIN, a reset), whether or not we read now. So while an
 * exchange is BUSY nothing is read - pipelined requests wait in the kernel, which slows the sender
 * - and the client's leaving is seen all the same: at each event poll() is asked what the kernel
 * knows. A level-triggered event without reading would either fire without end or, with libevent's
 * EV_CLOSED alone, miss a reset.
 *
 * conn_work does whatever can be done now and is safe to call at any time. Nothing is freed in it:
 * mg_http_conn_die marks, the server's reaper frees. The timer is set for the earliest of the
 * limits and, when it fires early because a limit has moved on since, only set again.
 */
#include "net/http_internal.h"

#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/event.h>

/* What is read or written for one connection before others have their turn. */
#define TURN_BYTES (1 << 18)
#define TURN_SECONDS 0.002
/* Bytes of WebSocket frames at a time: they may be hundreds of messages. */
#define WS_SLICE 2048

#define LINGER_SECONDS 10.0  /* in all */
#define LINGER_IDLE 2.0      /* without a byte */
#define KEEPALIVE_SECONDS 60 /* without a sign of life: the kernel asks */
#define UNACKED_MS 60000     /* bytes not acknowledged for so long: the connection is dead */

static const char continue_line[] = "HTTP/1.1 100 Continue\r\n\r\n";

static void set_state(struct mg_http_conn *c, enum mg_http_state state) {
    c->state = state;
    c->state_at = c->read_at = mg_clock();
}

bool mg_http_conn_is_idle(const struct mg_http_conn *c) {
    return !c->dead && c->state == MG_HTTP_READ_HEAD && !c->head_begun && c->held.n == 0 &&
           evbuffer_get_length(c->out) == 0;
}

void mg_http_conn_die(struct mg_http_conn *c, enum mg_http_end reason) {
    if (c->dead) return;
    struct mg_http_server *s = c->server;
    c->dead = true;
    c->end = reason;
    if (c->prev) c->prev->next = c->next;
    if (c->next) c->next->prev = c->prev;
    if (s->conn == c) s->conn = c->next;
    c->prev = NULL;
    c->next = s->dying;
    s->dying = c;
    event_active(s->reap, EV_TIMEOUT, 1);
}

void mg_http_conn_free(struct mg_http_conn *c) {
    if (c->io) event_free(c->io);
    if (c->work) event_free(c->work);
    if (c->timer) event_free(c->timer);
    if (c->out) evbuffer_free(c->out);
    mg_wire_close(&c->wire);
    mg_http_head_free(&c->head);
    mg_buf_free(&c->held);
    free(c);
}

void mg_http_conn_schedule(struct mg_http_conn *c) {
    if (!c->dead) event_active(c->work, EV_TIMEOUT, 1);
}

/* There is no memory to go on. As long as nothing of a reply has gone out, one that needs none is
 * sent: what the queue holds is at most that reply's own beginning. */
static void out_of_memory(struct mg_http_conn *c) {
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
                               "Retry-After: 1\r\nConnection: close\r\n\r\n";
    bool unanswered = c->x ? !c->x->streaming && !c->x->ws : c->head_begun;
    if (unanswered && c->state != MG_HTTP_LINGER) {
        mg_wire_write_now(&c->wire, text, sizeof text - 1);
        if (c->x) c->x->status = 503;
    }
    mg_http_conn_die(c, MG_HTTP_END_MEMORY);
}

bool mg_http_conn_add(struct mg_http_conn *c, const void *data, size_t n) {
    if (c->dead) return false;
    if (evbuffer_get_length(c->out) == 0) c->write_at = mg_clock();
    if (n == 0 || evbuffer_add(c->out, data, n) == 0) return true;
    out_of_memory(c);
    return false;
}

bool mg_http_conn_add_view(struct mg_http_conn *c, const void *data, size_t n,
                           mg_http_release_fn *release, void *arg) {
    if (!c->dead && evbuffer_get_length(c->out) == 0) c->write_at = mg_clock();
    if (!c->dead && n && evbuffer_add_reference(c->out, data, n, release, arg) == 0) return true;
    release(data, n, arg);
    if (c->dead) return false;
    if (n) out_of_memory(c);
    return n == 0;
}

void mg_http_conn_no_memory(struct mg_http_conn *c) {
    if (!c->dead) out_of_memory(c);
}

void mg_http_conn_flush(struct mg_http_conn *c) {
    if (c->dead) return;
    if (evbuffer_get_length(c->out) > 0) {
        ssize_t wrote = mg_wire_write(&c->wire, c->out, TURN_BYTES);
        if (wrote == MG_WIRE_ERROR) {
            mg_http_conn_die(c, MG_HTTP_END_LEFT);
            return;
        }
        if (wrote > 0) c->write_at = mg_clock();
        if (wrote >= TURN_BYTES) mg_http_conn_schedule(c);
    }
    if (c->x && (c->x->finished || c->x->wants_drain) && evbuffer_get_length(c->out) == 0)
        mg_http_conn_schedule(c);
    mg_http_conn_arm(c);
}

/* --- time --- */

static double earlier(double a, double b) {
    return a < b ? a : b;
}

static double body_deadline(const struct mg_http_conn *c) {
    const struct mg_http_options *o = &c->server->o;
    double got = c->x ? (double)c->x->body.n : 0;
    double slow = c->state_at + o->body_seconds + got / (double)o->body_rate;
    return earlier(c->read_at + o->body_seconds, slow);
}

static double deadline(const struct mg_http_conn *c) {
    const struct mg_http_options *o = &c->server->o;
    double at = INFINITY;
    if (evbuffer_get_length(c->out) > 0) at = c->write_at + o->write_seconds;
    switch (c->state) {
    case MG_HTTP_READ_HEAD:
        return earlier(
            at, c->state_at + (c->head_begun || !c->n_request ? o->head_seconds : o->idle_seconds));
    case MG_HTTP_READ_BODY: return earlier(at, body_deadline(c));
    case MG_HTTP_BUSY:
        if (c->x && c->x->n_ping && !c->x->finished)
            at = earlier(at, c->x->wrote_at + c->x->ping_seconds);
        return at;
    case MG_HTTP_WEBSOCKET: return earlier(at, mg_ws_deadline(c->x));
    case MG_HTTP_LINGER:
        return earlier(c->read_at + (c->server->stopping ? LINGER_IDLE / 4 : LINGER_IDLE),
                       c->state_at + LINGER_SECONDS);
    }
    return at;
}

void mg_http_conn_arm(struct mg_http_conn *c) {
    if (c->dead) return;
    double at = deadline(c);
    if (isinf(at) || (c->armed > 0 && c->armed <= at)) return;
    double wait = at - mg_clock();
    if (wait < 0) wait = 0;
    struct timeval tv = {(time_t)wait, (suseconds_t)((wait - floor(wait)) * 1e6) + 1000};
    if (tv.tv_usec > 999999) tv = (struct timeval){tv.tv_sec + 1, tv.tv_usec - 1000000};
    if (evtimer_add(c->timer, &tv))
        mg_http_conn_die(c, MG_HTTP_END_MEMORY);
    else
        c->armed = at;
}

/* --- requests --- */

/* Answers instead of the route. */
static void answer(struct mg_http_conn *c, int status, const char *code, const char *text) {
    if (c->dead) return;
    if (!c->x) c->x = mg_http_exchange_new(c);
    if (!c->x) {
        out_of_memory(c);
        return;
    }
    set_state(c, MG_HTTP_BUSY);
    mg_http_reply_error(c->x, status, code, text);
}

/* The same where the connection ends with it, since the rest of the request is not read. */
static void refuse(struct mg_http_conn *c, int status, const char *code, const char *text) {
    c->close_after = true;
    answer(c, status, code, text);
}

static const char *code_of(int status) {
    switch (status) {
    case 403: return "forbidden";
    case 404: return "not_found";
    case 405: return "method_not_allowed";
    case 408: return "request_timeout";
    case 413: return "body_too_large";
    case 414: return "uri_too_long";
    case 415: return "unsupported_encoding";
    case 417: return "expectation_failed";
    case 431: return "header_too_large";
    case 501: return "not_implemented";
    case 503: return "unavailable";
    case 505: return "http_version";
    default: return "bad_request";
    }
}

static void body_done(struct mg_http_conn *c) {
    set_state(c, MG_HTTP_BUSY);
    c->x->route->fn(c->x, c->server->o.user);
}

static void too_large(struct mg_http_conn *c) {
    char text[96];
    snprintf(text, sizeof text, "the body is larger than the limit of %zu bytes", c->x->max_body);
    refuse(c, 413, code_of(413), text);
}

/* The route, or what else is to be said to this head; true: go on to the body. */
static bool find_route(struct mg_http_conn *c) {
    struct mg_http_exchange *x = c->x;
    char allow[128] = "";
    int status = mg_http_exchange_route(x, allow, sizeof allow);
    bool is_options = !strcmp(mg_http_method(x), "OPTIONS");
    if ((status == 405 && is_options) || (is_options && !*mg_http_raw_path(x))) {
        if (c->head.framing != MG_HTTP_NO_BODY) c->close_after = true;
        set_state(c, MG_HTTP_BUSY);
        mg_http_reply_preflight(x, *allow ? allow : "GET, HEAD, POST, PUT, DELETE, OPTIONS");
        return false;
    }
    if (status == 0) return true;
    if (c->head.framing != MG_HTTP_NO_BODY) c->close_after = true;
    if (status == 405) mg_http_add_field(x, "Allow", allow);
    answer(c, status, code_of(status),
           status == 405 ? "this path does not know this method" : "there is nothing at this path");
    return false;
}

static void head_done(struct mg_http_conn *c, bool more) {
    struct mg_http_server *s = c->server;
    struct mg_http_exchange *x = c->x = mg_http_exchange_new(c);
    s->counts.requests++;
    if (!x) {
        out_of_memory(c);
        return;
    }
    x->readable = true;
    c->close_after = !c->head.keep_alive || c->n_request + 1 >= s->o.max_request;
    if (!mg_http_exchange_read(x)) {
        refuse(c, 400, code_of(400), "the path holds a malformed percent-encoding");
        return;
    }
    if (c->refuse || s->stopping) {
        mg_http_add_field(x, "Retry-After", "1");
        refuse(c, 503, code_of(503),
               c->refuse ? "too many connections" : "the server is shutting down");
        return;
    }
    if (!find_route(c)) return;
    const char *encoding = mg_http_header(x, "content-encoding");
    if (encoding && *encoding && c->head.framing != MG_HTTP_NO_BODY) {
        refuse(c, 415, code_of(415), "bodies with a Content-Encoding are not accepted");
        return;
    }
    x->max_body = x->route->max_body ? x->route->max_body : s->o.max_body;
    if (c->head.framing == MG_HTTP_LENGTH && c->head.length > x->max_body) {
        too_large(c);
        return;
    }
    if (s->o.admit) {
        bool keep = !c->close_after;
        s->o.admit(x, s->o.user);
        if (c->dead) return;
        if (x->begun) {
            if (!keep || c->head.framing != MG_HTTP_NO_BODY) c->close_after = true;
            set_state(c, MG_HTTP_BUSY);
            return;
        }
    }
    c->body_left = c->head.length;
    c->chunk = (struct mg_http_chunk){0};
    if (c->head.framing == MG_HTTP_NO_BODY) {
        body_done(c);
        return;
    }
    set_state(c, MG_HTTP_READ_BODY);
    if (c->head.expect_continue && !more &&
        mg_http_conn_add(c, continue_line, sizeof continue_line - 1))
        mg_http_conn_flush(c);
}

static void add_body(struct mg_http_conn *c, const uint8_t *data, size_t n) {
    struct mg_http_exchange *x = c->x;
    if (n > x->max_body - x->body.n) {
        too_large(c);
        return;
    }
    x->body.max = x->max_body;
    if (!mg_http_hold(x, n) || !mg_buf_add(&x->body, data, n)) {
        mg_http_add_field(x, "Retry-After", "1");
        refuse(c, 503, code_of(503), "no memory for this body now");
        return;
    }
    x->bytes_in += n;
}

static size_t feed_body(struct mg_http_conn *c, const uint8_t *data, size_t n) {
    size_t used;
    if (c->head.framing == MG_HTTP_LENGTH) {
        used = c->body_left < n ? (size_t)c->body_left : n;
        c->body_left -= used;
        add_body(c, data, used);
        if (c->body_left == 0 && c->state == MG_HTTP_READ_BODY && !c->dead) body_done(c);
        return used;
    }
    struct mg_slice piece;
    enum mg_http_feed result = mg_http_chunk_feed(&c->chunk, data, n, &used, &piece);
    if (piece.n) add_body(c, piece.data, piece.n);
    if (c->dead || c->state != MG_HTTP_READ_BODY) return used;
    if (result == MG_HTTP_BAD) refuse(c, 400, code_of(400), c->chunk.fault);
    if (result == MG_HTTP_DONE) body_done(c);
    return used;
}

/* Takes bytes as far as the state wants them; returns how many. */
static size_t feed(struct mg_http_conn *c, const uint8_t *data, size_t n) {
    size_t total = 0;
    while (total < n && !c->dead) {
        size_t used;
        if (c->state == MG_HTTP_READ_HEAD) {
            if (!c->head_begun) set_state(c, MG_HTTP_READ_HEAD);
            c->head_begun = true;
            enum mg_http_feed result = mg_http_head_feed(&c->head, data + total, n - total, &used);
            total += used;
            if (result == MG_HTTP_BAD)
                refuse(c, c->head.status, code_of(c->head.status), c->head.fault);
            if (result == MG_HTTP_DONE) head_done(c, total < n);
        } else if (c->state == MG_HTTP_READ_BODY) {
            total += feed_body(c, data + total, n - total);
        } else if (c->state == MG_HTTP_WEBSOCKET) {
            size_t slice = mg_min_size(n - total, WS_SLICE);
            mg_ws_feed(c->x, data + total, slice);
            return total + slice;
        } else if (c->state == MG_HTTP_LINGER) {
            total = n;
        } else {
            break;
        }
    }
    return total;
}

/* --- the client's leaving --- */

/* The other side's FIN: finds out what it means, as http_server.h says. */
static void probe(struct mg_http_conn *c) {
    struct mg_http_exchange *x = c->x;
    if (c->is_unix || x->finished) return; /* a closed Unix socket looks different */
    if (!x->begun && c->head.minor == 1) {
        if (mg_http_conn_add(c, continue_line, sizeof continue_line - 1)) mg_http_conn_flush(c);
    } else if (x->begun && x->n_ping) {
        mg_http_stream_write(x, x->ping, x->n_ping);
    } else {
        mg_http_conn_die(c, MG_HTTP_END_LEFT);
    }
}

static void watch(struct mg_http_conn *c) {
    enum mg_wire_peer peer = mg_wire_peer(&c->wire);
    if (peer == MG_PEER_GONE) mg_http_conn_die(c, MG_HTTP_END_LEFT);
    if (peer == MG_PEER_ENDED && !c->peer_ended) {
        c->peer_ended = true;
        probe(c);
    }
}

/* --- the loop's calls --- */

static void finish_exchange(struct mg_http_conn *c) {
    struct mg_http_exchange *x = c->x;
    c->x = NULL;
    mg_http_exchange_end(x, MG_HTTP_END_DONE);
    if (c->dead) return;
    c->n_request++;
    mg_http_head_reset(&c->head);
    c->head_begun = false;
    if (!c->close_after && !c->server->stopping) {
        set_state(c, MG_HTTP_READ_HEAD);
        return;
    }
    /* A socket closed with unread bytes sends a reset, which may overtake the reply. */
    if (c->peer_ended || !mg_wire_end(&c->wire)) {
        mg_http_conn_die(c, MG_HTTP_END_DONE);
        return;
    }
    mg_buf_free(&c->held);
    c->held_at = 0;
    set_state(c, MG_HTTP_LINGER);
}

/* Lets the state have what was held back; true: there was something. */
static bool feed_held(struct mg_http_conn *c) {
    if (c->held.n == 0) return false;
    c->held_at += feed(c, c->held.data + c->held_at, c->held.n - c->held_at);
    if (c->held_at == c->held.n) {
        mg_buf_free(&c->held);
        c->held_at = 0;
    }
    return true;
}

static ssize_t read_more(struct mg_http_conn *c) {
    uint8_t *data = c->server->scratch;
    ssize_t got;
    if (c->state == MG_HTTP_LINGER && c->wire.tls) {
        /* Our side of TLS has ended; only the socket's bytes matter. */
        struct mg_wire bare = {.fd = c->wire.fd};
        got = mg_wire_read(&bare, data, MG_HTTP_SCRATCH);
    } else {
        got = mg_wire_read(&c->wire, data, MG_HTTP_SCRATCH);
    }
    if (got == MG_WIRE_ERROR || got == 0) {
        mg_http_conn_die(c, c->x ? MG_HTTP_END_LEFT : MG_HTTP_END_DONE);
        return got;
    }
    if (got < 0) return got;
    c->read_at = mg_clock();
    size_t used = feed(c, data, (size_t)got);
    if (!c->dead && used < (size_t)got && !mg_buf_add(&c->held, data + used, (size_t)got - used))
        mg_http_conn_die(c, MG_HTTP_END_MEMORY);
    return got;
}

static void conn_work(struct mg_http_conn *c) {
    double until = mg_clock() + TURN_SECONDS;
    for (size_t read = 0; !c->dead;) {
        mg_http_conn_flush(c);
        if (c->dead) return;
        struct mg_http_exchange *x = c->x;
        if (x && x->wants_drain && evbuffer_get_length(c->out) == 0) {
            x->wants_drain = false;
            if (x->on_drain) x->on_drain(x, x->user);
            if (c->dead) return;
        }
        if (c->state == MG_HTTP_BUSY) {
            if (x->finished && evbuffer_get_length(c->out) == 0) {
                finish_exchange(c);
                continue;
            }
            watch(c);
            break;
        }
        if (c->state == MG_HTTP_WEBSOCKET && mg_ws_is_over(x)) {
            if (evbuffer_get_length(c->out) > 0) break;
            c->close_after = true;
            finish_exchange(c);
            continue;
        }
        if (read >= TURN_BYTES || mg_clock() > until) {
            mg_http_conn_schedule(c);
            break;
        }
        if (feed_held(c)) continue;
        ssize_t got = read_more(c);
        if (got == MG_WIRE_AGAIN) break;
        if (got > 0) read += (size_t)got;
    }
    mg_http_conn_arm(c);
}

static void on_io(evutil_socket_t fd, short what, void *arg) {
    conn_work(arg);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_conn *c = arg;
    c->armed = 0;
    if (c->dead) return;
    double now = mg_clock();
    if (deadline(c) > now) {
        mg_http_conn_arm(c);
        return;
    }
    if (evbuffer_get_length(c->out) > 0 && c->write_at + c->server->o.write_seconds <= now) {
        mg_http_conn_die(c, MG_HTTP_END_SLOW);
    } else if (c->state == MG_HTTP_READ_HEAD && c->head_begun) {
        refuse(c, 408, code_of(408), "the request's head did not come in time");
    } else if (c->state == MG_HTTP_READ_BODY) {
        refuse(c, 408, code_of(408), "the request's body did not come in time");
    } else if (c->state == MG_HTTP_BUSY) {
        if (c->x && c->x->n_ping) mg_http_stream_write(c->x, c->x->ping, c->x->n_ping);
    } else if (c->state == MG_HTTP_WEBSOCKET) {
        mg_ws_tick(c->x, now);
    } else {
        mg_http_conn_die(c, MG_HTTP_END_DONE);
    }
    conn_work(c);
}

static void set_socket(int fd, bool is_unix) {
    if (is_unix) return;
    int one = 1, idle = KEEPALIVE_SECONDS, interval = 10, count = 3, unacked = UNACKED_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked, sizeof unacked);
}

struct mg_http_conn *mg_http_conn_open(struct mg_http_server *s, int fd, bool is_unix,
                                       const char *peer, bool refused) {
    struct mg_http_conn *c = calloc(1, sizeof *c);
    struct mg_wire wire = {.fd = fd};
    if (!c) {
        mg_wire_close(&wire);
        return NULL;
    }
    set_socket(fd, is_unix);
    c->server = s;
    c->wire = wire;
    c->is_unix = is_unix;
    c->refuse = refused;
    c->head.max = s->o.max_head;
    c->held.max = MG_HTTP_SCRATCH;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    set_state(c, MG_HTTP_READ_HEAD);
    bool tls = s->tls && !is_unix;
    if (tls) c->wire.tls = mg_tls_accept(s->tls, fd);
    short what = EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST;
    c->out = evbuffer_new();
    c->io = event_new(s->base, fd, what, on_io, c);
    c->work = event_new(s->base, -1, EV_PERSIST, on_io, c);
    c->timer = evtimer_new(s->base, on_timer, c);
    if (!c->out || !c->io || !c->work || !c->timer || (tls && !c->wire.tls) ||
        event_add(c->io, NULL)) {
        mg_http_conn_free(c);
        return NULL;
    }
    c->next = s->conn;
    if (s->conn) s->conn->prev = c;
    s->conn = c;
    s->counts.connection++;
    if (refused) s->n_refused++;
    mg_http_conn_arm(c);
    return c;
}
