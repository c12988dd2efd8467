/* net/notify.c - see notify.h. */
#include "net/notify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A whole number without sign that ends where the text ends; false for anything else. */
static bool number(const char *text, unsigned long long *out) {
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == 0;
}

static double watchdog(void) {
    unsigned long long us, pid;
    const char *whose = getenv("WATCHDOG_PID");
    if (!number(getenv("WATCHDOG_USEC"), &us)) return 0;
    if (whose && (!number(whose, &pid) || pid != (unsigned long long)getpid())) return 0;
    return (double)us * 1e-6;
}

static enum mg_status set_address(struct mg_notify *n, const char *name, struct mg_err *err) {
    size_t len = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || len < 2)
        return mg_fail(err, MG_ERR_ARGUMENT, "notify_socket",
                       "NOTIFY_SOCKET is neither a path nor a name that begins with @");
    if (len >= sizeof n->to.sun_path)
        return mg_fail(err, MG_ERR_ARGUMENT, "notify_socket",
                       "NOTIFY_SOCKET has more than %zu bytes", sizeof n->to.sun_path - 1);
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, name, len);
    /* A path with its zero byte, a name without one: there it would be part of it. */
    size_t tail = name[0] == '@' ? len : len + 1;
    if (name[0] == '@') n->to.sun_path[0] = 0;
    n->n_to = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + tail);
    return MG_OK;
}

enum mg_status mg_notify_open(struct mg_notify *out, struct mg_err *err) {
    *out = (struct mg_notify){.fd = -1};
    const char *name = getenv("NOTIFY_SOCKET");
    enum mg_status status = MG_OK;
    if (name && *name) {
        status = set_address(out, name, err);
        if (status == MG_OK) {
            out->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            if (out->fd < 0) status = mg_fail_errno(err, "make a socket for", name, errno);
        }
        if (status == MG_OK) out->watchdog_seconds = watchdog();
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return status;
}

bool mg_notify_send(const struct mg_notify *n, const char *lines) {
    if (n->fd < 0) return true;
    size_t len = strlen(lines);
    ssize_t sent;
    do {
        sent = sendto(n->fd, lines, len, MSG_NOSIGNAL, (const struct sockaddr *)&n->to, n->n_to);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)len;
}

void mg_notify_close(struct mg_notify *n) {
    if (n->fd >= 0) close(n->fd);
    n->fd = -1;
}
