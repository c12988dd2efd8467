/* net/websocket.h - an exchange that becomes a WebSocket (RFC 6455), over wslay's frames.
 *
 * A route's function (GET, HTTP/1.1) calls mg_ws_accept; from then on messages come whole to
 * on_message, and the exchange lives until either side closes: on_end as for any exchange. Text is
 * UTF-8 (others are closed with 1007), a message has at most max_message bytes (1009), frames of
 * the client must be masked (1002). Fragments are joined; pings are answered, and sent when the
 * client has been silent; one that stays silent is cut. No extensions.
 *
 * What the client does not read is queued; over options.max_queued of the server the connection is
 * cut. mg_http_queued and mg_http_on_drain work as for streams. Loop thread only.
 */
#ifndef MG_NET_WEBSOCKET_H
#define MG_NET_WEBSOCKET_H

#include "net/http_server.h"

#define MG_WS_NORMAL 1000
#define MG_WS_GOING_AWAY 1001
#define MG_WS_PROTOCOL 1002
#define MG_WS_POLICY 1008
#define MG_WS_TOO_BIG 1009
#define MG_WS_INTERNAL 1011
#define MG_WS_TRY_LATER 1013

enum mg_ws_kind { MG_WS_TEXT, MG_WS_BINARY };

struct mg_ws_options {
    const char
        *protocol;       /* chosen when the client offers it (Sec-WebSocket-Protocol); NULL: none */
    size_t max_message;  /* bytes [16 MiB] */
    double ping_seconds; /* of silence before a ping; three times that: cut [20] */
    /* `data` is a view valid during the call; text has a zero byte behind it. */
    void (*on_message)(struct mg_http_exchange *x, enum mg_ws_kind kind, const uint8_t *data,
                       size_t n, void *user);
    /* Nothing is under way here: when there are too many connections it may be closed (1013) for
     * one that has just come. NULL: never. */
    bool (*is_idle)(struct mg_http_exchange *x, void *user);
};

/* Answers the upgrade. When the request is none, comes from a foreign origin (mg_http_is_foreign)
 * or asks for another version, replies with an error itself and returns MG_ERR_ARGUMENT. */
enum mg_status mg_ws_accept(struct mg_http_exchange *x, const struct mg_ws_options *options);
/* MG_ERR_CANCELLED: closed or closing. MG_ERR_LIMIT: too much is queued; the connection is cut. */
enum mg_status mg_ws_send(struct mg_http_exchange *x, enum mg_ws_kind kind, const void *data,
                          size_t n);
/* Begins the closing handshake; the client has 5 seconds for its part. reason: at most 120 bytes.
 */
void mg_ws_close(struct mg_http_exchange *x, int code, const char *reason);
/* What the client's close frame said; 0: it has sent none, 1005: one without a code. */
int mg_ws_close_code(const struct mg_http_exchange *x);

#endif
