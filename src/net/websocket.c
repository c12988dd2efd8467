/* net/websocket.c - see websocket.h.
 *
 * wslay reads from the bytes that the connection feeds and writes into the connection's queue. It
 * is told not to keep messages, so their bytes are counted and limited here. Its two directions
 * share no state, so that it may send from inside its own reading: a message's answer goes out, and
 * counts against the limit on what waits, before the next message is looked at.
 */
#include "net/websocket.h"

#include "base/sha256.h"
#include "net/http_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>
#include <wslay/wslay.h>

#define CLOSE_SECONDS 5.0 /* for the other side's close frame */
#define SILENCE 3         /* ping intervals without a byte until the connection is cut */
#define KEY_CHARS 24      /* of Sec-WebSocket-Key: 16 bytes in base64 */

struct mg_ws {
    wslay_event_context_ptr context; /* owned */
    struct mg_ws_options o;
    struct mg_buf message; /* data frames so far */
    const uint8_t *in;     /* what is being fed */
    size_t n_in;
    bool control;    /* the current frame is no data frame */
    bool failed;     /* wslay has given up; what it queued is still sent */
    double ping_at;  /* mg_clock: the next ping */
    double used_at;  /* mg_clock: the last message in or out */
    double close_at; /* mg_clock: the other side's last moment to close; 0: not closing */
    int close_code;
};

/* --- wslay's callbacks --- */

static ssize_t on_recv(wslay_event_context_ptr context, uint8_t *buf, size_t n, int flags,
                       void *user) {
    struct mg_http_exchange *x = user;
    struct mg_ws *ws = x->ws;
    if (ws->n_in == 0 || x->conn->dead) {
        wslay_event_set_error(context, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    n = mg_min_size(n, ws->n_in);
    memcpy(buf, ws->in, n);
    ws->in += n;
    ws->n_in -= n;
    return (ssize_t)n;
}

static ssize_t on_send(wslay_event_context_ptr context, const uint8_t *data, size_t n, int flags,
                       void *user) {
    struct mg_http_exchange *x = user;
    if (!mg_http_conn_add(x->conn, data, n)) {
        wslay_event_set_error(context, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    x->bytes_out += n;
    return (ssize_t)n;
}

static void on_frame(wslay_event_context_ptr context,
                     const struct wslay_event_on_frame_recv_start_arg *arg, void *user) {
    struct mg_http_exchange *x = user;
    x->ws->control = wslay_is_ctrl_frame(arg->opcode);
    if (!x->ws->control && arg->payload_length > x->ws->o.max_message - x->ws->message.n)
        mg_ws_close(x, MG_WS_TOO_BIG, "the message is over the limit");
}

static void forget_message(struct mg_http_exchange *x) {
    mg_http_release(x, x->ws->message.n);
    mg_buf_free(&x->ws->message);
}

static void on_chunk(wslay_event_context_ptr context,
                     const struct wslay_event_on_frame_recv_chunk_arg *arg, void *user) {
    struct mg_http_exchange *x = user;
    struct mg_ws *ws = x->ws;
    if (ws->control || ws->close_at > 0) return;
    if (arg->data_length > ws->o.max_message - ws->message.n) {
        mg_ws_close(x, MG_WS_TOO_BIG, "the message is over the limit");
        return;
    }
    bool room = mg_http_hold(x, arg->data_length);
    if (room && !mg_buf_add(&ws->message, arg->data, arg->data_length)) {
        mg_http_release(x, arg->data_length);
        room = false;
    }
    if (!room) {
        mg_ws_close(x, MG_WS_TRY_LATER, "no memory for this message now");
        return;
    }
    x->bytes_in += arg->data_length;
}

static void on_message(wslay_event_context_ptr context,
                       const struct wslay_event_on_msg_recv_arg *arg, void *user) {
    struct mg_http_exchange *x = user;
    struct mg_ws *ws = x->ws;
    if (arg->opcode == WSLAY_CONNECTION_CLOSE) {
        ws->close_code = arg->status_code ? arg->status_code : WSLAY_CODE_NO_STATUS_RCVD;
        return;
    }
    if (arg->opcode != WSLAY_TEXT_FRAME && arg->opcode != WSLAY_BINARY_FRAME) return;
    ws->used_at = mg_clock();
    if (ws->close_at > 0 || x->conn->dead) {
        forget_message(x);
        return;
    }
    if (!mg_buf_reserve(&ws->message, 0)) {
        mg_ws_close(x, MG_WS_TRY_LATER, "no memory for this message now");
        return;
    }
    ws->message.data[ws->message.n] = 0;
    if (ws->o.on_message)
        ws->o.on_message(x, arg->opcode == WSLAY_TEXT_FRAME ? MG_WS_TEXT : MG_WS_BINARY,
                         ws->message.data, ws->message.n, x->user);
    forget_message(x);
}

static const struct wslay_event_callbacks callbacks = {
    .recv_callback = on_recv,
    .send_callback = on_send,
    .on_frame_recv_start_callback = on_frame,
    .on_frame_recv_chunk_callback = on_chunk,
    .on_msg_recv_callback = on_message,
};

/* --- sending --- */

/* Lets wslay write its queue; the limit on what waits. */
static enum mg_status pump(struct mg_http_exchange *x) {
    struct mg_ws *ws = x->ws;
    struct mg_http_conn *c = x->conn;
    if (wslay_event_send(ws->context)) ws->failed = true;
    if (!c->dead) mg_http_conn_flush(c);
    if (c->dead) return MG_ERR_CANCELLED;
    size_t queued = evbuffer_get_length(c->out);
    if (queued) x->wants_drain = true;
    if (queued > c->server->o.max_queued) {
        mg_http_conn_die(c, MG_HTTP_END_SLOW);
        return MG_ERR_LIMIT;
    }
    if (mg_ws_is_over(x)) mg_http_conn_schedule(c);
    mg_http_conn_arm(c);
    return MG_OK;
}

static bool is_open(const struct mg_http_exchange *x) {
    return x->ws && !x->ended && !x->conn->dead && !x->ws->failed;
}

enum mg_status mg_ws_send(struct mg_http_exchange *x, enum mg_ws_kind kind, const void *data,
                          size_t n) {
    if (!x->ws) return MG_ERR_ARGUMENT;
    if (!is_open(x) || x->ws->close_at > 0) return MG_ERR_CANCELLED;
    struct wslay_event_msg msg = {
        .opcode = kind == MG_WS_TEXT ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME,
        .msg = data,
        .msg_length = n,
    };
    int result = wslay_event_queue_msg(x->ws->context, &msg);
    x->ws->used_at = mg_clock();
    if (result == WSLAY_ERR_NO_MORE_MSG) return MG_ERR_CANCELLED;
    if (result == WSLAY_ERR_NOMEM) {
        mg_http_conn_die(x->conn, MG_HTTP_END_MEMORY);
        return MG_ERR_MEMORY;
    }
    if (result) return MG_ERR_ARGUMENT;
    return pump(x);
}

void mg_ws_close(struct mg_http_exchange *x, int code, const char *reason) {
    if (!is_open(x) || x->ws->close_at > 0) return;
    size_t n = reason ? mg_min_size(strlen(reason), 120) : 0;
    x->ws->close_at = mg_clock() + CLOSE_SECONDS;
    forget_message(x);
    if (wslay_event_queue_close(x->ws->context, (uint16_t)code, (const uint8_t *)reason, n) ==
        WSLAY_ERR_NOMEM)
        mg_http_conn_die(x->conn, MG_HTTP_END_MEMORY);
    else
        pump(x);
}

int mg_ws_close_code(const struct mg_http_exchange *x) {
    return x->ws ? x->ws->close_code : 0;
}

/* --- what the connection calls --- */

void mg_ws_feed(struct mg_http_exchange *x, const uint8_t *data, size_t n) {
    struct mg_ws *ws = x->ws;
    ws->in = data;
    ws->n_in = n;
    ws->ping_at = mg_clock() + ws->o.ping_seconds;
    int result = ws->failed ? 0 : wslay_event_recv(ws->context);
    ws->n_in = 0;
    if (result) ws->failed = true;
    if (result == WSLAY_ERR_NOMEM)
        mg_http_conn_die(x->conn, MG_HTTP_END_MEMORY);
    else if (!x->conn->dead)
        pump(x);
}

double mg_ws_deadline(const struct mg_http_exchange *x) {
    const struct mg_ws *ws = x->ws;
    return ws->close_at > 0 && ws->close_at < ws->ping_at ? ws->close_at : ws->ping_at;
}

void mg_ws_tick(struct mg_http_exchange *x, double now) {
    struct mg_ws *ws = x->ws;
    if (ws->close_at > 0 && ws->close_at <= now) {
        mg_http_conn_die(x->conn, MG_HTTP_END_DONE);
    } else if (ws->ping_at <= now) {
        if (now - x->conn->read_at >= SILENCE * ws->o.ping_seconds) {
            mg_http_conn_die(x->conn, MG_HTTP_END_LEFT);
            return;
        }
        struct wslay_event_msg ping = {.opcode = WSLAY_PING};
        ws->ping_at = now + ws->o.ping_seconds;
        if (wslay_event_queue_msg(ws->context, &ping) == 0) pump(x);
    }
}

double mg_ws_idle_since(struct mg_http_exchange *x) {
    struct mg_ws *ws = x->ws;
    if (ws->message.n || !ws->o.is_idle || !ws->o.is_idle(x, x->user)) return INFINITY;
    return ws->used_at;
}

bool mg_ws_is_over(const struct mg_http_exchange *x) {
    const struct mg_ws *ws = x->ws;
    return ws->failed || (wslay_event_get_close_sent(ws->context) &&
                          (wslay_event_get_close_received(ws->context) ||
                           (!wslay_event_get_read_enabled(ws->context) && !(ws->close_at > 0))));
}

void mg_ws_free(struct mg_ws *ws) {
    if (!ws) return;
    if (ws->context) wslay_event_context_free(ws->context);
    mg_buf_free(&ws->message);
    free(ws);
}

/* --- the handshake --- */

static void base64(const uint8_t *data, size_t n, char *out) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)data[i] << 16;
        if (i + 1 < n) v |= (uint32_t)data[i + 1] << 8;
        if (i + 2 < n) v |= data[i + 2];
        *out++ = digit[v >> 18];
        *out++ = digit[v >> 12 & 63];
        *out++ = i + 1 < n ? digit[v >> 6 & 63] : '=';
        *out++ = i + 2 < n ? digit[v & 63] : '=';
    }
    *out = '\0';
}

/* Is it the base64 form of 16 bytes? */
static bool is_key(const char *key) {
    if (!key || strlen(key) != KEY_CHARS || strcmp(key + KEY_CHARS - 2, "==") != 0) return false;
    for (size_t i = 0; i < KEY_CHARS - 2; i++) {
        char c = key[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '+' || c == '/'))
            return false;
    }
    return true;
}

static bool accept_of(const char *key, char out[32]) {
    static const char suffix[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    uint8_t digest[MG_SHA1_BYTES];
    struct mg_sha1 h;
    mg_sha1_begin(&h);
    mg_sha1_update(&h, key, strlen(key));
    mg_sha1_update(&h, suffix, sizeof suffix - 1);
    if (!mg_sha1_finish(&h, digest)) return false;
    base64(digest, sizeof digest, out);
    return true;
}

static enum mg_status refuse(struct mg_http_exchange *x, int status, const char *code,
                             const char *text) {
    mg_http_reply_error(x, status, code, text);
    return MG_ERR_ARGUMENT;
}

static enum mg_status check_request(struct mg_http_exchange *x) {
    const struct mg_http_head *h = &x->conn->head;
    const char *version = mg_http_header(x, "sec-websocket-version");
    if (strcmp(mg_http_method(x), "GET") || !h->upgrade || h->framing != MG_HTTP_NO_BODY ||
        !mg_http_head_lists(h, "upgrade", "websocket")) {
        mg_http_add_field(x, "Upgrade", "websocket");
        mg_http_add_field(x, "Connection", "Upgrade");
        return refuse(x, 426, "upgrade_required", "this path is for WebSocket");
    }
    if (mg_http_is_foreign(x))
        return refuse(x, 403, "origin_not_allowed", "pages of this origin may not use this server");
    if (!version || strcmp(version, "13") != 0) {
        mg_http_add_field(x, "Sec-WebSocket-Version", "13");
        return refuse(x, 426, "websocket_version", "only version 13 of WebSocket is spoken here");
    }
    if (!is_key(mg_http_header(x, "sec-websocket-key")))
        return refuse(x, 400, "websocket_key", "the Sec-WebSocket-Key is malformed");
    return MG_OK;
}

static bool add_answer(struct mg_http_exchange *x) {
    const char *protocol = x->ws->o.protocol;
    struct mg_buf head = {.max = 131072};
    char accept[32];
    bool good = accept_of(mg_http_header(x, "sec-websocket-key"), accept);
    if (good) {
        mg_buf_printf(&head,
                      "HTTP/1.1 101 Switching Protocols\r\nDate: %s\r\nx-request-id: %s\r\n"
                      "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n",
                      mg_http_server_date(x->conn->server), x->request_id, accept);
        if (protocol && mg_http_head_lists(&x->conn->head, "sec-websocket-protocol", protocol))
            mg_buf_printf(&head, "Sec-WebSocket-Protocol: %s\r\n", protocol);
        mg_buf_add(&head, x->fields.data, x->fields.n);
        mg_buf_add_str(&head, "\r\n");
        good = !head.failed && mg_http_conn_add(x->conn, head.data, head.n);
        x->bytes_out += head.n;
    }
    mg_buf_free(&head);
    return good;
}

enum mg_status mg_ws_accept(struct mg_http_exchange *x, const struct mg_ws_options *options) {
    struct mg_http_conn *c = x->conn;
    if (x->ended || c->dead) return MG_ERR_CANCELLED;
    if (x->begun || c->state != MG_HTTP_BUSY || x->ws) return MG_ERR_ARGUMENT;
    enum mg_status status = check_request(x);
    if (status) return status;
    struct mg_ws *ws = calloc(1, sizeof *ws);
    if (ws) {
        ws->o = *options;
        if (!ws->o.max_message) ws->o.max_message = (size_t)16 << 20;
        if (!(ws->o.ping_seconds > 0)) ws->o.ping_seconds = 20;
        ws->message.max = ws->o.max_message;
        ws->used_at = mg_clock();
        ws->ping_at = ws->used_at + ws->o.ping_seconds;
        if (wslay_event_context_server_init(&ws->context, &callbacks, x)) ws->context = NULL;
    }
    if (!ws || !ws->context) {
        mg_ws_free(ws);
        mg_http_conn_no_memory(c);
        return MG_ERR_MEMORY;
    }
    wslay_event_config_set_no_buffering(ws->context, 1);
    x->ws = ws;
    if (!add_answer(x)) {
        mg_http_conn_no_memory(c);
        return MG_ERR_MEMORY;
    }
    x->begun = true;
    x->status = 101;
    c->state = MG_HTTP_WEBSOCKET;
    c->state_at = c->read_at = mg_clock();
    mg_http_conn_flush(c);
    mg_http_conn_schedule(c);
    return c->dead ? MG_ERR_CANCELLED : MG_OK;
}
