/* net/listen.h - sockets that listen: all addresses of a host name, or a path in the file system.
 */
#ifndef MG_NET_LISTEN_H
#define MG_NET_LISTEN_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define MG_LISTEN_MAX 8 /* addresses of one name; sockets handed over */
#define MG_PEER_TEXT 64 /* bytes of an address as text with its zero byte */

/* Listens on every address of `host` ("localhost": both families; "::": both at once) and the same
 * port, 0 for a free one. Addresses of a family that this machine lacks are passed over as long as
 * one is left. fd[0..*n-1] don't block and are the caller's. */
enum mg_status mg_listen_tcp(const char *host, uint16_t port, int backlog, int fd[MG_LISTEN_MAX],
                             size_t *n, uint16_t *actual, struct mg_err *err);

/* Which file a path named when it was listened on. */
struct mg_listen_file {
    dev_t device;
    ino_t inode;
};

/* Listens on a path, made with these mode bits. A socket that nobody listens on any more is
 * replaced; anything else that stands there is an error. */
enum mg_status mg_listen_unix(const char *path, unsigned mode, int backlog, int *fd,
                              struct mg_listen_file *file, struct mg_err *err);
/* Removes the path if it still names that file: another server may have taken it over. */
void mg_listen_unix_remove(const char *path, const struct mg_listen_file *file);

/* The sockets that a service manager has opened for this process (LISTEN_FDS, LISTEN_PID), *n 0
 * without. They don't block from here on and no child gets them; the variables are taken away. One
 * that does not listen for connections is an error, and all are closed. */
enum mg_status mg_listen_inherited(int fd[MG_LISTEN_MAX], size_t *n, struct mg_err *err);
/* The port that a socket listens on, 0 for a Unix socket. */
uint16_t mg_listen_port(int fd);
/* Its address without the port: "127.0.0.1", "::1"; "" for a Unix socket. */
void mg_listen_host(int fd, char out[MG_PEER_TEXT]);

/* "127.0.0.1:5000", "[::1]:5000", "unix". */
void mg_address_text(const struct sockaddr *address, socklen_t n, char out[MG_PEER_TEXT]);

#endif
