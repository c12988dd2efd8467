/* net/listen.c - see listen.h. */
#include "net/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PORT_TRIES 20 /* for one free port with several addresses */

uint16_t mg_listen_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return 0;
    if (a.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&a)->sin_port);
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return 0;
}

void mg_listen_host(int fd, char out[MG_PEER_TEXT]) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    out[0] = 0;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return;
    if (a.ss_family == AF_INET)
        inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, out, MG_PEER_TEXT);
    if (a.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, out, MG_PEER_TEXT);
}

#define FIRST_INHERITED 3 /* by the protocol: after standard input, output and error */

static enum mg_status inherit(int fd, struct mg_err *err) {
    int listens = 0, kind = 0;
    socklen_t n = sizeof listens, m = sizeof kind;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &m) || !listens || kind != SOCK_STREAM)
        return mg_fail(err, MG_ERR_ARGUMENT, "listen_fds",
                       "descriptor %d of the service manager does not listen for connections", fd);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
        return mg_fail_errno(err, "use", "a socket of the service manager", errno);
    return MG_OK;
}

enum mg_status mg_listen_inherited(int fd[MG_LISTEN_MAX], size_t *n, struct mg_err *err) {
    const char *count = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    enum mg_status status = MG_OK;
    *n = 0;
    if (count && pid && strtol(pid, NULL, 10) == (long)getpid()) {
        long all = strtol(count, NULL, 10);
        if (all < 0 || all > MG_LISTEN_MAX)
            status = mg_fail(err, MG_ERR_ARGUMENT, "listen_fds",
                             "LISTEN_FDS is not a number from 0 to %d", MG_LISTEN_MAX);
        for (int i = 0; i < all && !status; i++) {
            fd[i] = FIRST_INHERITED + i;
            status = inherit(fd[i], err);
            if (!status) *n = (size_t)i + 1;
        }
    }
    while (status && *n) close(fd[--*n]);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    return status;
}

static int listen_on(const struct addrinfo *a, uint16_t port, bool both, int backlog) {
    struct sockaddr_storage address = {0};
    memcpy(&address, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET) ((struct sockaddr_in *)&address)->sin_port = htons(port);
    if (a->ai_family == AF_INET6) ((struct sockaddr_in6 *)&address)->sin6_port = htons(port);
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int one = 1, only6 = !both;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof only6);
    if (bind(fd, (struct sockaddr *)&address, a->ai_addrlen) || listen(fd, backlog)) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

static bool family_is_missing(int e) {
    return e == EAFNOSUPPORT || e == EADDRNOTAVAIL || e == EPROTONOSUPPORT;
}

/* One try at all addresses; errno and false when one fails for a reason other than its family. */
static bool listen_all(const struct addrinfo *list, uint16_t port, bool both, int backlog,
                       int fd[MG_LISTEN_MAX], size_t *n) {
    *n = 0;
    int missing = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && *n < MG_LISTEN_MAX; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        int one = listen_on(a, *n && !port ? mg_listen_port(fd[0]) : port, both, backlog);
        if (one >= 0) {
            fd[(*n)++] = one;
        } else if (family_is_missing(errno)) {
            missing = errno;
        } else {
            int e = errno;
            while (*n) close(fd[--*n]);
            errno = e;
            return false;
        }
    }
    errno = missing;
    return *n > 0;
}

enum mg_status mg_listen_tcp(const char *host, uint16_t port, int backlog, int fd[MG_LISTEN_MAX],
                             size_t *n, uint16_t *actual, struct mg_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    *n = 0;
    int failed = getaddrinfo(host, NULL, &hints, &list);
    if (failed)
        return mg_fail(err, MG_ERR_ARGUMENT, "host", "can't listen on %s: %s", host,
                       gai_strerror(failed));
    bool both = !strcmp(host, "::");
    for (int i = 0; i < PORT_TRIES; i++) {
        if (listen_all(list, port, both, backlog, fd, n)) break;
        if (port || errno != EADDRINUSE) break; /* a free port of one address, taken at another */
    }
    int e = errno;
    freeaddrinfo(list);
    if (*n == 0)
        return mg_fail(err, MG_ERR_IO, e == EADDRINUSE ? "port_in_use" : "",
                       "can't listen on %s port %u: %s", host, port, strerror(e));
    *actual = mg_listen_port(fd[0]);
    return MG_OK;
}

/* A socket file that nobody listens on any more is taken away. */
static enum mg_status clear_path(const struct sockaddr_un *address, struct mg_err *err) {
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st)) return MG_OK; /* bind will tell what else is wrong */
    if (!S_ISSOCK(st.st_mode))
        return mg_fail(err, MG_ERR_IO, "path_in_use", "%s stands there and is not a socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return mg_fail_errno(err, "make a socket for", path, errno);
    bool stale =
        connect(fd, (const struct sockaddr *)address, sizeof *address) && errno == ECONNREFUSED;
    close(fd);
    if (!stale)
        return mg_fail(err, MG_ERR_IO, "path_in_use", "somebody listens on %s already", path);
    if (unlink(path)) return mg_fail_errno(err, "remove", path, errno);
    return MG_OK;
}

enum mg_status mg_listen_unix(const char *path, unsigned mode, int backlog, int *fd,
                              struct mg_listen_file *file, struct mg_err *err) {
    struct stat st;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *fd = -1;
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "a socket's path has 1 to %zu bytes",
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path));
    enum mg_status status = clear_path(&address, err);
    if (status) return status;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s < 0) return mg_fail_errno(err, "make a socket for", path, errno);
    /* The mode is set before the file exists, so there is no moment with more rights than these;
     * the umask may have taken some off, hence chmod. */
    if (fchmod(s, mode & 0777) || bind(s, (struct sockaddr *)&address, sizeof address)) {
        int e = errno;
        close(s);
        return mg_fail_errno(err, "listen on", path, e);
    }
    if (lstat(path, &st) || chmod(path, mode & 0777) || listen(s, backlog)) {
        int e = errno;
        close(s);
        unlink(path);
        return mg_fail_errno(err, "listen on", path, e);
    }
    *fd = s;
    *file = (struct mg_listen_file){st.st_dev, st.st_ino};
    return MG_OK;
}

void mg_listen_unix_remove(const char *path, const struct mg_listen_file *file) {
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_dev == file->device && st.st_ino == file->inode)
        unlink(path);
}

void mg_address_text(const struct sockaddr *address, socklen_t n, char out[MG_PEER_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (n >= sizeof(struct sockaddr_in) && address->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &a->sin_addr, host, sizeof host);
        snprintf(out, MG_PEER_TEXT, "%s:%u", host, ntohs(a->sin_port));
    } else if (n >= sizeof(struct sockaddr_in6) && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof host);
        snprintf(out, MG_PEER_TEXT, "[%s]:%u", host, ntohs(a->sin6_port));
    } else {
        snprintf(out, MG_PEER_TEXT, "unix");
    }
}
