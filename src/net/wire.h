/* net/wire.h - bytes in and out of a connected socket that doesn't block, with or without TLS.
 *
 * Calls return at once; the caller comes again when the socket has something new. The handshake of
 * TLS happens inside the first reads. Nothing here raises SIGPIPE without TLS; with it the caller
 * has the signal blocked, since OpenSSL writes by itself.
 */
#ifndef MG_NET_WIRE_H
#define MG_NET_WIRE_H

#include "net/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct evbuffer;

struct mg_wire {
    int fd;      /* owned */
    mg_tls *tls; /* owned, or NULL */
    bool broken; /* an operation has failed: no more TLS on it */
    bool ended;  /* mg_wire_end has been called */
};

#define MG_WIRE_AGAIN (-1) /* nothing now */
#define MG_WIRE_ERROR (-2) /* the connection is no more */

/* 1..n bytes read, 0: the other side has ended its sending, or one of the above. */
ssize_t mg_wire_read(struct mg_wire *w, uint8_t *data, size_t n);
/* Writes from the front of `out` what can be written now, and takes it off, until that is `most`
 * bytes or a little more; the number of bytes, MG_WIRE_AGAIN for none, MG_WIRE_ERROR. */
ssize_t mg_wire_write(struct mg_wire *w, struct evbuffer *out, ssize_t most);
/* What can be written now of n bytes, without allocating: a last word. */
void mg_wire_write_now(struct mg_wire *w, const void *data, size_t n);
/* Ends our sending and goes on reading; false when that can't be done now. */
bool mg_wire_end(struct mg_wire *w);
void mg_wire_close(struct mg_wire *w);

/* What the kernel knows of the other side without reading a byte. */
enum mg_wire_peer {
    MG_PEER_THERE,
    MG_PEER_ENDED, /* its FIN has come: it has closed, or only ended its sending */
    MG_PEER_GONE   /* closed both ways, reset, timed out */
};
enum mg_wire_peer mg_wire_peer(const struct mg_wire *w);

#endif
