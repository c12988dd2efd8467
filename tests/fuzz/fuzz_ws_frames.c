/* Fuzz target: what a client may send on a connection that has been upgraded to WebSocket (or, when
 * the first byte is odd, on a fresh one), through a socket pair, in pieces. Messages must be within
 * the limit, texts UTF-8; nothing may stay when the client has gone. */
#include "net/http_internal.h"
#include "net/websocket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/event.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_MESSAGE 300

static bool is_utf8(const uint8_t *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t c = s[i++], more = c < 0x80 ? 0 : c < 0xC2 ? 9 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        if (more == 9 || c > 0xF4 || more > n - i) return false;
        if (c == 0xE0 && s[i] < 0xA0) return false;
        if (c == 0xED && s[i] > 0x9F) return false;
        if (c == 0xF0 && s[i] < 0x90) return false;
        if (c == 0xF4 && s[i] > 0x8F) return false;
        for (; more; more--)
            if ((s[i++] & 0xC0) != 0x80) return false;
    }
    return true;
}

static void on_message(struct mg_http_exchange *x, enum mg_ws_kind kind, const uint8_t *data,
                       size_t n, void *user) {
    if (n > MAX_MESSAGE || data[n] != 0) abort();
    if (kind == MG_WS_TEXT && !is_utf8(data, n)) abort();
    if (n == 1) mg_ws_close(x, 1000, "one byte");
    mg_ws_send(x, kind, data, n);
}

static void get_ws(struct mg_http_exchange *x, void *user) {
    mg_ws_accept(x, &(struct mg_ws_options){.max_message = MAX_MESSAGE, .on_message = on_message});
}

static void echo(struct mg_http_exchange *x, void *user) {
    struct mg_slice body = mg_http_body(x);
    mg_http_reply(x, 200, "a/b", body.data, body.n);
}

static const struct mg_http_route routes[] = {{"GET", "/ws", get_ws}, {"POST", "/{a}", echo}};

static void turn(struct mg_http_server *s, int fd) {
    uint8_t sink[4096];
    event_base_loop(s->base, EVLOOP_NONBLOCK);
    while (recv(fd, sink, sizeof sink, 0) > 0) continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char head[] =
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    static struct mg_http_server *s;
    struct mg_err err = {0};
    struct mg_http_options o = {
        .host = "127.0.0.1", .route = routes, .n_route = 2, .max_body = 500};
    int pair[2];
    if (n < 2) return 0;
    if (!s && mg_http_server_open(&o, &s, &err)) abort();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair)) abort();
    mg_http_conn_open(s, pair[0], true, "unix", false);
    if (data[0] % 2 == 0 && send(pair[1], head, sizeof head - 1, MSG_NOSIGNAL) < 0) abort();
    size_t step = data[1] ? data[1] : n;
    for (size_t at = 2; at < n; at += step) {
        /* The server may have closed. */
        if (send(pair[1], data + at, mg_min_size(step, n - at), MSG_NOSIGNAL) < 0) break;
        turn(s, pair[1]);
    }
    turn(s, pair[1]);
    close(pair[1]);
    for (int i = 0; i < 4; i++) event_base_loop(s->base, EVLOOP_NONBLOCK);
    if (s->counts.connection || s->counts.exchange || s->counts.body_bytes) abort();
    return 0;
}
