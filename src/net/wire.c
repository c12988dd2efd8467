/* net/wire.c - see wire.h. */
#include "net/wire.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#define TLS_RECORD 16384 /* bytes, the most that one record holds */

static ssize_t tls_result(struct mg_wire *w, int result) {
    switch (SSL_get_error(w->tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return MG_WIRE_AGAIN;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: w->broken = true; return MG_WIRE_ERROR;
    }
}

ssize_t mg_wire_read(struct mg_wire *w, uint8_t *data, size_t n) {
    if (w->tls) {
        if (w->broken) return MG_WIRE_ERROR;
        ERR_clear_error();
        int got = SSL_read(w->tls, data, n > INT_MAX ? INT_MAX : (int)n);
        return got > 0 ? got : tls_result(w, got);
    }
    for (;;) {
        ssize_t got = recv(w->fd, data, n, 0);
        if (got >= 0) return got;
        if (errno == EINTR) continue;
        return errno == EAGAIN || errno == EWOULDBLOCK ? MG_WIRE_AGAIN : MG_WIRE_ERROR;
    }
}

static ssize_t write_plain(struct mg_wire *w, struct evbuffer *out, size_t most) {
    struct evbuffer_iovec piece[16];
    int n = evbuffer_peek(out, (ev_ssize_t)most, NULL, piece, 16);
    struct iovec iov[16];
    if (n > 16) n = 16;
    for (int i = 0; i < n; i++) {
        size_t take = mg_min_size(piece[i].iov_len, most);
        iov[i] = (struct iovec){piece[i].iov_base, take};
        most -= take;
    }
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    for (;;) {
        ssize_t wrote = sendmsg(w->fd, &msg, MSG_NOSIGNAL);
        if (wrote >= 0) return wrote;
        if (errno == EINTR) continue;
        return errno == EAGAIN || errno == EWOULDBLOCK ? MG_WIRE_AGAIN : MG_WIRE_ERROR;
    }
}

static ssize_t write_tls(struct mg_wire *w, struct evbuffer *out) {
    if (w->broken) return MG_WIRE_ERROR;
    size_t n = evbuffer_get_length(out);
    if (n > TLS_RECORD) n = TLS_RECORD;
    uint8_t *data = evbuffer_pullup(out, (ev_ssize_t)n); /* small pieces travel in one record */
    if (!data) return MG_WIRE_ERROR;
    ERR_clear_error();
    int wrote = SSL_write(w->tls, data, (int)n);
    if (wrote > 0) return wrote;
    ssize_t result = tls_result(w, wrote);
    return result == 0 ? MG_WIRE_ERROR : result;
}

ssize_t mg_wire_write(struct mg_wire *w, struct evbuffer *out, ssize_t most) {
    ssize_t total = 0;
    while (evbuffer_get_length(out) > 0 && total < most) {
        ssize_t wrote = w->tls ? write_tls(w, out) : write_plain(w, out, (size_t)(most - total));
        if (wrote == MG_WIRE_ERROR) return MG_WIRE_ERROR;
        if (wrote <= 0) break;
        evbuffer_drain(out, (size_t)wrote);
        total += wrote;
    }
    return total ? total : MG_WIRE_AGAIN;
}

void mg_wire_write_now(struct mg_wire *w, const void *data, size_t n) {
    ERR_clear_error();
    if (!w->tls) {
        ssize_t ignored = send(w->fd, data, n, MSG_NOSIGNAL);
        (void)ignored;
    } else if (!w->broken && SSL_write(w->tls, data, (int)n) <= 0) {
        w->broken = true;
    }
}

bool mg_wire_end(struct mg_wire *w) {
    if (w->ended) return true;
    w->ended = true;
    if (w->tls && !w->broken && SSL_is_init_finished(w->tls)) {
        ERR_clear_error();
        if (SSL_shutdown(w->tls) < 0) ERR_clear_error();
    }
    return shutdown(w->fd, SHUT_WR) == 0;
}

void mg_wire_close(struct mg_wire *w) {
    if (w->tls) {
        if (!w->broken && !w->ended && SSL_is_init_finished(w->tls)) {
            ERR_clear_error();
            SSL_shutdown(w->tls);
        }
        ERR_clear_error();
        SSL_free(w->tls);
    }
    if (w->fd >= 0) close(w->fd);
    *w = (struct mg_wire){.fd = -1};
}

enum mg_wire_peer mg_wire_peer(const struct mg_wire *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) < 0) return MG_PEER_THERE;
    if (p.revents & (POLLERR | POLLHUP | POLLNVAL)) return MG_PEER_GONE;
    return p.revents & POLLRDHUP ? MG_PEER_ENDED : MG_PEER_THERE;
}
