/* net/notify.h - tells a service manager how the process does, by systemd's protocol without its
 * library: datagrams of "NAME=VALUE" lines to the socket that NOTIFY_SOCKET names.
 *
 *     READY=1       it serves               STOPPING=1    it has begun to end
 *     STATUS=TEXT   a line for people       RELOADING=1   it reads its files anew, until READY=1
 *     WATCHDOG=1    it gets on; due at least once in the time that WATCHDOG_USEC gives
 *
 * The socket is a path, or a name that is no file when it begins with @. Nothing here waits: a
 * datagram that the manager has no room for is not sent, and the caller tries again.
 *
 * One thread at a time.
 */
#ifndef MG_NET_NOTIFY_H
#define MG_NET_NOTIFY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

struct mg_notify {
    int fd; /* -1: nobody wants to be told */
    struct sockaddr_un to;
    socklen_t n_to;
    double watchdog_seconds; /* a sign of life is due within each; 0: none is */
};

/* From the environment, whose variables are taken away, so that no child takes itself for us. An
 * address that can't be used is MG_ERR_ARGUMENT, and `out` as if there were none. */
enum mg_status mg_notify_open(struct mg_notify *out, struct mg_err *err);
/* Lines, with no last newline. True also when nobody wants to be told. */
bool mg_notify_send(const struct mg_notify *n, const char *lines);
void mg_notify_close(struct mg_notify *n);

#endif
