/* cli/load_link.c - see load_link.h. */
#include "cli/load_link.h"

#include <errno.h>
#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

enum {
    TURN_BYTES = 262144, /* written before other links have their turn */
    READ_BYTES = 16384,
    READS = 16 /* of one link before others have their turn */
};
#define RETRY_MS 5 /* until a Unix socket whose queue is full is tried again */

static void on_ready(evutil_socket_t fd, short what, void *arg);

/* Watches the socket, or (RETRY) waits; nothing can fail that could be mended. */
static void watch(struct mg_load_link *link, short what) {
    if (link->watched == what && event_pending(link->event, what, NULL)) return;
    event_del(link->event);
    event_assign(link->event, link->base, link->wire.fd, (short)(what | EV_PERSIST), on_ready,
                 link);
    event_add(link->event, NULL);
    link->watched = what;
}

static void wait_ms(struct mg_load_link *link, int ms) {
    struct timeval tv = {.tv_usec = ms * 1000};
    event_del(link->event);
    event_assign(link->event, link->base, -1, EV_TIMEOUT, on_ready, link);
    event_add(link->event, &tv);
    link->watched = 0;
}

static void try_connect(struct mg_load_link *link) {
    const struct mg_load_plan *p = link->plan;
    link->connect_error = 0;
    if (link->wire.fd < 0) {
        int fd = socket(p->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            link->connect_error = errno;
            wait_ms(link, 0);
            return;
        }
        int on = 1;
        if (!p->unix_path) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        link->wire.fd = fd;
    }
    if (connect(link->wire.fd, (const struct sockaddr *)&p->address, p->n_address) == 0 ||
        errno == EINPROGRESS || errno == EINTR) {
        watch(link, EV_WRITE);
    } else if (errno == EAGAIN && p->unix_path) {
        link->connect_error = EAGAIN;
        wait_ms(link, RETRY_MS);
    } else {
        link->connect_error = errno;
        wait_ms(link, 0);
    }
}

struct mg_load_link *mg_load_link_open(struct event_base *base, const struct mg_load_plan *plan,
                                       mg_tls_context *tls,
                                       const struct mg_load_link_owner *owner) {
    struct mg_load_link *link = mg_alloc_zero(1, sizeof *link);
    if (!link) return NULL;
    link->owner = owner;
    link->plan = plan;
    link->base = base;
    link->tls = tls;
    link->wire.fd = -1;
    link->state = MG_LINK_CONNECTING;
    link->out = evbuffer_new();
    link->event = event_new(base, -1, EV_TIMEOUT, on_ready, link);
    if (!link->out || !link->event) {
        mg_load_link_close(link);
        return NULL;
    }
    try_connect(link);
    return link;
}

void mg_load_link_close(struct mg_load_link *link) {
    if (!link) return;
    if (link->event) event_free(link->event);
    mg_wire_close(&link->wire);
    if (link->out) evbuffer_free(link->out);
    mg_http_response_free(&link->response);
    free(link);
}

/* The last thing done with a link: its owner may close it or send anew on it. */
static void ended(struct mg_load_link *link, enum mg_load_kind kind, const char *code,
                  bool reusable) {
    if (reusable) {
        link->state = MG_LINK_READY;
        watch(link, EV_READ);
    } else {
        event_del(link->event);
    }
    link->owner->ended(link, kind, code, reusable);
}

static void no_connection(struct mg_load_link *link, int e) {
    static const struct {
        int number;
        const char *name;
    } known[] = {{EADDRNOTAVAIL, "EADDRNOTAVAIL"},
                 {EMFILE, "EMFILE"},
                 {ENFILE, "ENFILE"},
                 {EHOSTUNREACH, "EHOSTUNREACH"},
                 {ENETUNREACH, "ENETUNREACH"},
                 {ETIMEDOUT, "ETIMEDOUT"},
                 {ECONNRESET, "ECONNRESET"},
                 {EACCES, "EACCES"}};
    bool refused = e == ECONNREFUSED || (e == ENOENT && link->plan->unix_path);
    const char *code = "";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].number == e) code = known[i].name;
    ended(link, refused ? MG_LOAD_REFUSED : MG_LOAD_CONNECT, code, false);
}

/* Bytes of the reply; false: the request has ended, and the link may be no more. */
static bool take(struct mg_load_link *link, const uint8_t *data, size_t n) {
    while (n > 0) {
        size_t used = 0;
        struct mg_slice piece;
        enum mg_http_feed feed = mg_http_response_feed(&link->response, data, n, &used, &piece);
        data += used;
        n -= used;
        bool bad = feed == MG_HTTP_BAD;
        if (bad || (piece.n && !link->owner->body(link, piece.data, piece.n))) {
            ended(link, MG_LOAD_MALFORMED, bad ? "http" : "", false);
            return false;
        }
        if (feed != MG_HTTP_DONE) continue;
        /* After a reply that came before the request was out (413), or with something behind it,
         * nobody knows where the next one begins. */
        bool reusable = link->response.keep_alive && link->plan->keep_alive && n == 0 &&
                        evbuffer_get_length(link->out) == 0;
        ended(link, MG_LOAD_OK, "", reusable);
        return false;
    }
    return true;
}

/* The connection is no more. */
static void on_end(struct mg_load_link *link, bool failed) {
    if (link->state == MG_LINK_READY) {
        event_del(link->event);
        link->owner->gone(link);
    } else if (link->handshaking) {
        ended(link, MG_LOAD_TLS, mg_tls_distrusted(link->wire.tls) ? "certificate" : "handshake",
              false);
    } else if (!failed && mg_http_response_end(&link->response)) {
        ended(link, MG_LOAD_OK, "", false);
    } else {
        ended(link, MG_LOAD_CUT, "", false);
    }
}

/* A write that fails says nothing of its own: the reading end tells, and may still have a reply. */
static void write_some(struct mg_load_link *link) {
    if (evbuffer_get_length(link->out) &&
        mg_wire_write(&link->wire, link->out, TURN_BYTES) == MG_WIRE_ERROR)
        evbuffer_drain(link->out, evbuffer_get_length(link->out));
    watch(link, evbuffer_get_length(link->out) ? EV_READ | EV_WRITE : EV_READ);
}

static void read_some(struct mg_load_link *link) {
    uint8_t data[READ_BYTES]; /* a TLS record: OpenSSL holds none back that no event tells of */
    for (int i = 0; i < READS; i++) {
        ssize_t n = mg_wire_read(&link->wire, data, sizeof data);
        if (link->handshaking && mg_tls_ready(link->wire.tls)) {
            link->handshaking = false;
            write_some(link);
        }
        if (n == MG_WIRE_AGAIN) return;
        if (n <= 0 || link->state != MG_LINK_BUSY) {
            on_end(link, n < 0);
            return;
        }
        if (!take(link, data, (size_t)n)) return;
        if ((size_t)n < sizeof data && !link->wire.tls) return; /* that was all */
    }
}

static void on_connected(struct mg_load_link *link) {
    int error = 0;
    socklen_t n = sizeof error;
    if (getsockopt(link->wire.fd, SOL_SOCKET, SO_ERROR, &error, &n)) error = errno;
    if (error) {
        no_connection(link, error);
        return;
    }
    link->state = MG_LINK_BUSY;
    if (!link->tls) {
        write_some(link);
        return;
    }
    link->wire.tls = mg_tls_connect(link->tls, link->wire.fd, link->plan->tls_name);
    if (!link->wire.tls) {
        ended(link, MG_LOAD_MEMORY, "", false);
        return;
    }
    link->handshaking = true;
    watch(link, EV_READ);
    read_some(link); /* begins the handshake */
}

static void on_ready(evutil_socket_t fd, short what, void *arg) {
    struct mg_load_link *link = arg;
    (void)fd;
    if (link->state != MG_LINK_CONNECTING) {
        if (what & EV_WRITE && !link->handshaking) write_some(link);
        if (what & EV_READ) read_some(link);
    } else if (!(what & EV_TIMEOUT)) {
        on_connected(link);
    } else if (link->connect_error && link->connect_error != EAGAIN) {
        no_connection(link, link->connect_error);
    } else {
        try_connect(link);
    }
}

bool mg_load_link_send(struct mg_load_link *link, const struct mg_buf *head,
                       const struct mg_slice *piece, size_t n_piece) {
    mg_http_response_reset(&link->response);
    bool ok = evbuffer_add(link->out, head->data, head->n) == 0;
    for (size_t i = 0; i < n_piece && ok; i++)
        if (piece[i].n)
            ok = evbuffer_add_reference(link->out, piece[i].data, piece[i].n, NULL, NULL) == 0;
    if (!ok) return false;
    link->n_request++;
    if (link->state == MG_LINK_READY) {
        link->state = MG_LINK_BUSY;
        write_some(link);
    }
    return true;
}
