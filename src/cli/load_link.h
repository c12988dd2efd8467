/* cli/load_link.h - one connection of margay load, with one request on it at a time.
 *
 *     open, send -> CONNECTING -> BUSY --the reply is complete--> READY --send--> BUSY ...
 *                       |           |                             |
 *                       '-----------'---- ended, not reusable     '---- gone
 *
 * Everything is told from the event loop, never from within open or send, so the owner may open and
 * send from within what it is told; but it must not close the link from within `body`. After
 * `ended` with reusable false, and after `gone`, the owner closes it.
 */
#ifndef MG_CLI_LOAD_LINK_H
#define MG_CLI_LOAD_LINK_H

#include "cli/load.h"

#include "net/http_response.h"
#include "net/wire.h"

#include <event2/event.h>

struct mg_load_link;
struct mg_load_link_owner {
    /* Bytes of the reply's body; its head is in link->response. false: gives the reply up as
     * MG_LOAD_MALFORMED. */
    bool (*body)(struct mg_load_link *link, const uint8_t *data, size_t n);
    /* The request is over: MG_LOAD_OK when the reply came whole, whatever its status. `code` is a
     * word about what was wrong, or "". */
    void (*ended)(struct mg_load_link *link, enum mg_load_kind kind, const char *code,
                  bool reusable);
    /* The server has closed a link that was READY. */
    void (*gone)(struct mg_load_link *link);
};

struct mg_load_link {
    const struct mg_load_link_owner *owner;
    void *user;   /* the owner's: whose request is on it */
    void *keeper; /* the owner's: who has it between requests */
    const struct mg_load_plan *plan;
    struct mg_wire wire;
    struct event *event; /* of the socket, or a timer while there is none; owned */
    struct event_base *base;
    mg_tls_context *tls;
    enum { MG_LINK_CONNECTING, MG_LINK_READY, MG_LINK_BUSY } state;
    short watched;        /* EV_READ, EV_WRITE of `event` */
    int connect_error;    /* errno, told when the loop comes */
    bool handshaking;     /* TLS has not finished */
    struct evbuffer *out; /* the request, as far as not written; owned */
    struct mg_http_response response;
    uint64_t n_request; /* sent on it */
};

/* NULL: no memory. What goes wrong with connecting is told to the request. */
struct mg_load_link *mg_load_link_open(struct event_base *base, const struct mg_load_plan *plan,
                                       mg_tls_context *tls, const struct mg_load_link_owner *owner);
/* Sends head and then the pieces, which stay the caller's and must live until the link's end: right
 * after open, and then after `ended` with reusable. False: no memory; then close it. */
bool mg_load_link_send(struct mg_load_link *link, const struct mg_buf *head,
                       const struct mg_slice *piece, size_t n_piece);
/* Also in the midst of a request, which then is not told of. */
void mg_load_link_close(struct mg_load_link *link);

#endif
