/* net/http_server.c - the server: listening, accepting, stopping, reloading, posted functions.
 *
 * Stopping goes in steps, all on the loop: (1) listening sockets and idle connections are closed,
 * the rest goes on with "Connection: close"; (2) at the deadline requests that are still being read
 * are cut, and every open exchange's on_stop is called; (3) what then still waits to go out has a
 * second; the loop ends when the last connection has.
 */
#include "net/http_internal.h"
#include "net/websocket.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/event.h>

#define BACKLOG 1024
#define ACCEPTS 64              /* connections taken at a time */
#define LAST_SECONDS 1.0        /* for what on_stop wrote to go out */
#define CALLBACKS 2             /* before the kernel is asked again what is new */
enum { FIRST, N_PRIORITY = 3 }; /* of events; libevent gives the middle one by default */
/* That a connection without a request may stay when there are too many. */
#define FRESH_SECONDS 1.0
#define RELISTEN_SECONDS 0.1 /* after accept failed for want of descriptors or memory */

static void note(struct mg_http_server *s, enum mg_status status, const char *text) {
    if (s->o.note) s->o.note(status, text, s->o.user);
}

static bool set_timer(struct event *timer, double seconds) {
    if (seconds < 0) seconds = 0;
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - floor(seconds)) * 1e6)};
    return evtimer_add(timer, &tv) == 0;
}

/* --- connections come and go --- */

/* The WebSocket whose last message is longest ago, of those where nothing is under way. */
static struct mg_http_conn *find_idle_socket(struct mg_http_server *s, double before) {
    struct mg_http_conn *oldest = NULL;
    for (struct mg_http_conn *c = s->conn; c; c = c->next) {
        double at = c->state == MG_HTTP_WEBSOCKET ? mg_ws_idle_since(c->x) : before;
        if (at < before) before = at, oldest = c;
    }
    return oldest;
}

/* Closes the connection that has been idle longest, or if none is such a WebSocket; false when
 * there is none either. One that has just come may be about to ask. */
static bool evict_idle(struct mg_http_server *s) {
    struct mg_http_conn *oldest = NULL;
    double now = mg_clock();
    for (struct mg_http_conn *c = s->conn; c; c = c->next)
        if (mg_http_conn_is_idle(c) && (c->n_request || c->state_at < now - FRESH_SECONDS) &&
            (!oldest || c->state_at < oldest->state_at))
            oldest = c;
    if (!oldest && (oldest = find_idle_socket(s, now - FRESH_SECONDS)))
        mg_ws_close(oldest->x, MG_WS_TRY_LATER, "others need the connection");
    if (oldest) mg_http_conn_die(oldest, MG_HTTP_END_DONE);
    return oldest != NULL;
}

static void set_listening(struct mg_http_server *s, bool on) {
    for (size_t i = 0; i < s->n_listener; i++) {
        if (on)
            event_add(s->listener[i].event, NULL);
        else
            event_del(s->listener[i].event);
    }
}

static void on_relisten(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_server *s = arg;
    if (!s->stopping) set_listening(s, true);
}

/* Without descriptors accept fails before it looks whether anybody is there. */
static bool has_more(int listening) {
    struct pollfd p = {.fd = listening, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

static void on_accept(evutil_socket_t listening, short what, void *arg) {
    struct mg_http_listener *l = arg;
    struct mg_http_server *s = l->server;
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage address = {0};
        socklen_t n = sizeof address;
        int fd = accept4(l->fd, (struct sockaddr *)&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
            if (!has_more(l->fd)) return;
            if (evict_idle(s)) return; /* its descriptor is free at the next turn */
            note(s, MG_ERR_LIMIT, "no more descriptors or memory for connections; waiting");
            set_listening(s, false);
            set_timer(s->relisten, RELISTEN_SECONDS);
            return;
        }
        s->counts.accepted++;
        bool full = s->counts.connection - s->n_refused >= s->o.max_connection && !evict_idle(s);
        if (full) s->counts.refused++;
        if (full && s->n_refused >= MG_HTTP_MAX_REFUSED) {
            close(fd);
            continue;
        }
        char peer[MG_PEER_TEXT];
        mg_address_text((struct sockaddr *)&address, n, peer);
        mg_http_conn_open(s, fd, l->is_unix, peer, full);
    }
}

struct adopted {
    struct mg_http_server *server;
    int fd;
};

static void on_adopted(void *arg) {
    struct adopted *a = arg;
    struct mg_http_server *s = a->server;
    if (s->stopping) {
        close(a->fd);
    } else {
        struct mg_http_conn *c = mg_http_conn_open(s, a->fd, true, "internal", false);
        if (c) c->internal = true;
    }
    free(a);
}

void mg_http_server_adopt(struct mg_http_server *s, int fd) {
    struct adopted *a = malloc(sizeof *a);
    if (a) *a = (struct adopted){s, fd};
    if (a && mg_http_server_post(s, on_adopted, a) == MG_OK) return;
    free(a);
    close(fd);
}

static void end_if_empty(struct mg_http_server *s) {
    if (s->stopping && !s->conn && !s->dying) event_base_loopbreak(s->base);
}

/* Frees what has died, ending its exchanges. Their on_end may let others die. */
static void reap(struct mg_http_server *s) {
    while (s->dying) {
        struct mg_http_conn *c = s->dying;
        s->dying = c->next;
        struct mg_http_exchange *x = c->x;
        c->x = NULL;
        if (x) mg_http_exchange_end(x, c->end);
        s->counts.connection--;
        if (c->refuse) s->n_refused--;
        mg_http_conn_free(c);
    }
}

static void on_reap(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_server *s = arg;
    reap(s);
    end_if_empty(s);
}

/* --- stopping --- */

static void close_listeners(struct mg_http_server *s) {
    bool is_unix = false;
    for (size_t i = 0; i < s->n_listener; i++) {
        if (s->listener[i].event) event_free(s->listener[i].event);
        close(s->listener[i].fd);
        is_unix = is_unix || s->listener[i].is_unix;
    }
    if (is_unix && !s->o.n_fd) mg_listen_unix_remove(s->o.unix_path, &s->unix_file);
    s->n_listener = 0;
}

static void call_last(struct mg_http_conn *c) {
    struct mg_http_exchange *x = c->x;
    bool open = x && (c->state == MG_HTTP_BUSY || c->state == MG_HTTP_WEBSOCKET);
    if (open && !x->finished && x->on_stop) x->on_stop(x, x->user);
    if (c->dead || c->state == MG_HTTP_LINGER) return;
    bool upgraded = c->state == MG_HTTP_WEBSOCKET;
    if (upgraded) mg_ws_close(x, MG_WS_GOING_AWAY, "the server is stopping");
    if (!open || (!upgraded && !x->finished && evbuffer_get_length(c->out) == 0))
        mg_http_conn_die(c, MG_HTTP_END_STOPPED);
}

static void last_call(struct mg_http_server *s) {
    s->last_call = true;
    /* An on_stop may end other connections, so each search begins anew. */
    for (struct mg_http_conn *c = s->conn; c;) {
        if (c->called_last) {
            c = c->next;
            continue;
        }
        c->called_last = true;
        call_last(c);
        c = s->conn;
    }
    if (!set_timer(s->stop_timer, LAST_SECONDS)) event_base_loopbreak(s->base);
}

static void on_stop_timer(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_server *s = arg;
    if (!s->last_call) {
        last_call(s);
        return;
    }
    while (s->conn) mg_http_conn_die(s->conn, MG_HTTP_END_STOPPED);
}

static void stop(struct mg_http_server *s, double seconds) {
    double at = mg_clock() + seconds;
    if (s->last_call || (s->stopping && at >= s->stop_at)) return;
    s->stop_at = at;
    if (!set_timer(s->stop_timer, seconds)) event_base_loopbreak(s->base);
    if (s->stopping) return;
    s->stopping = true;
    close_listeners(s);
    for (struct mg_http_conn *c = s->conn, *next; c; c = next) {
        next = c->next;
        if (mg_http_conn_is_idle(c)) mg_http_conn_die(c, MG_HTTP_END_DONE);
    }
    if (s->o.on_stopping) s->o.on_stopping(s->o.user);
    end_if_empty(s);
}

static void reload(struct mg_http_server *s) {
    struct mg_err err = {0};
    mg_tls_context *fresh;
    if (s->o.before_reload) s->o.before_reload(s->o.user);
    if (s->tls) {
        if (mg_tls_context_open(s->o.tls_cert, s->o.tls_key, &fresh, &err)) {
            note(s, err.status, err.text);
        } else {
            mg_tls_context_close(s->tls);
            s->tls = fresh;
        }
    }
    if (s->o.on_reload) s->o.on_reload(s->o.user);
}

static void on_tick(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_server *s = arg;
    double next = s->o.tick(s->o.user);
    if (next > 0) set_timer(s->ticker, next);
}

static void on_posted(evutil_socket_t fd, short what, void *arg) {
    struct mg_http_server *s = arg;
    mg_post_queue_run(&s->posts);
    if (atomic_exchange(&s->reload_asked, false)) reload(s);
    if (atomic_exchange(&s->stop_asked, false)) stop(s, atomic_load(&s->drain_ms) * 1e-3);
}

void mg_http_server_stop(struct mg_http_server *s, unsigned drain_ms) {
    unsigned before = atomic_load(&s->drain_ms);
    while (drain_ms < before && !atomic_compare_exchange_weak(&s->drain_ms, &before, drain_ms))
        continue;
    atomic_store(&s->stop_asked, true);
    mg_post_queue_wake(&s->posts);
}

void mg_http_server_reload(struct mg_http_server *s) {
    atomic_store(&s->reload_asked, true);
    mg_post_queue_wake(&s->posts);
}

enum mg_status mg_http_server_post(struct mg_http_server *s, mg_post_fn *fn, void *arg) {
    return mg_post_queue_put(&s->posts, fn, arg);
}

/* --- opening and running --- */

static void fill_defaults(struct mg_http_options *o) {
    if (!o->unix_mode) o->unix_mode = 0600;
    if (!o->max_head) o->max_head = 32 << 10;
    if (!o->max_body) o->max_body = (size_t)64 << 20;
    if (!o->max_body_total) o->max_body_total = (size_t)512 << 20;
    if (!o->max_connection) o->max_connection = 1024;
    if (!o->max_queued) o->max_queued = 1 << 20;
    if (!o->max_request) o->max_request = 1000;
    if (!o->max_post) o->max_post = 65536;
    if (!(o->idle_seconds > 0)) o->idle_seconds = 75;
    if (!(o->head_seconds > 0)) o->head_seconds = 15;
    if (!(o->body_seconds > 0)) o->body_seconds = 30;
    if (!o->body_rate) o->body_rate = 1024;
    if (!(o->write_seconds > 0)) o->write_seconds = 60;
}

static enum mg_status check_options(const struct mg_http_options *o, struct mg_err *err) {
    if (!o->host && !o->unix_path && !o->n_fd)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "neither a host nor a socket's path to listen on");
    if (!o->tls_cert != !o->tls_key)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "TLS needs both a certificate and a key");
    for (size_t i = 0; i < o->n_route; i++)
        if (o->route[i].pattern[0] != '/' || !o->route[i].method || !o->route[i].fn)
            return mg_fail(err, MG_ERR_ARGUMENT, "", "route %zu is incomplete", i);
    return MG_OK;
}

static struct event_base *open_base(void) {
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (!config) return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK); /* one thread; others use the eventfd */
    /* A connection that goes on by itself (mg_http_conn_schedule) is active again at once; without
     * this nobody else would be heard as long as its client sends or reads faster than we do. */
    if (event_config_set_max_dispatch_interval(config, NULL, CALLBACKS, 0) == 0 &&
        !event_config_require_features(config, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE))
        base = event_base_new_with_config(config);
    event_config_free(config);
    /* What other threads have posted (pieces of streams, questions that have been read) goes before
     * connections, which may be hundreds with something new. */
    if (base && event_base_priority_init(base, N_PRIORITY)) {
        event_base_free(base);
        base = NULL;
    }
    return base;
}

/* The sockets that were handed over; s->n_listener are its own from here on. */
static enum mg_status take_listeners(struct mg_http_server *s, struct mg_err *err) {
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < s->o.n_fd; i++) {
        if (s->n_listener == MG_LISTEN_MAX) {
            close(s->o.fd[i]);
            status =
                mg_fail(err, MG_ERR_LIMIT, "", "more than %d sockets to listen on", MG_LISTEN_MAX);
            continue;
        }
        bool is_unix = mg_listen_port(s->o.fd[i]) == 0;
        if (!is_unix && !s->port) s->port = mg_listen_port(s->o.fd[i]);
        s->listener[s->n_listener++] =
            (struct mg_http_listener){.server = s, .fd = s->o.fd[i], .is_unix = is_unix};
    }
    return status;
}

static enum mg_status open_listeners(struct mg_http_server *s, struct mg_err *err) {
    int fd[MG_LISTEN_MAX];
    size_t n = 0;
    enum mg_status status = MG_OK;
    if (s->o.host && !s->o.n_fd)
        status = mg_listen_tcp(s->o.host, s->o.port, BACKLOG, fd, &n, &s->port, err);
    for (size_t i = 0; i < n; i++)
        s->listener[s->n_listener++] = (struct mg_http_listener){.server = s, .fd = fd[i]};
    if (!status && s->o.unix_path && !s->o.n_fd) {
        status = mg_listen_unix(s->o.unix_path, s->o.unix_mode, BACKLOG, fd, &s->unix_file, err);
        if (!status)
            s->listener[s->n_listener++] =
                (struct mg_http_listener){.server = s, .fd = fd[0], .is_unix = true};
    }
    for (size_t i = 0; i < s->n_listener && !status; i++) {
        struct mg_http_listener *l = &s->listener[i];
        l->event = event_new(s->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
        if (!l->event || event_add(l->event, NULL)) status = mg_fail_memory(err, "listening");
    }
    return status;
}

enum mg_status mg_http_server_open(const struct mg_http_options *options,
                                   struct mg_http_server **out, struct mg_err *err) {
    *out = NULL;
    struct mg_http_server *s = NULL;
    enum mg_status status = check_options(options, err);
    if (!status && !(s = calloc(1, sizeof *s))) status = mg_fail_memory(err, "HTTP server");
    if (status) {
        for (size_t i = 0; i < options->n_fd; i++) close(options->fd[i]);
        return status;
    }
    s->o = *options;
    s->posts.fd = -1;
    status = take_listeners(s, err);
    atomic_store(&s->drain_ms, UINT32_MAX);
    fill_defaults(&s->o);
    if (!status) status = mg_post_queue_open(&s->posts, s->o.max_post, err);
    if (status) goto out;
    s->scratch = malloc(MG_HTTP_SCRATCH);
    s->base = open_base();
    if (!s->scratch || !s->base) {
        status = mg_fail_memory(err, "HTTP server");
        goto out;
    }
    if (s->o.tick) s->ticker = evtimer_new(s->base, on_tick, s);
    s->posted = event_new(s->base, s->posts.fd, EV_READ | EV_PERSIST, on_posted, s);
    s->reap = event_new(s->base, -1, EV_PERSIST, on_reap, s);
    s->relisten = evtimer_new(s->base, on_relisten, s);
    s->stop_timer = evtimer_new(s->base, on_stop_timer, s);
    if (!s->posted || !s->reap || !s->relisten || !s->stop_timer || (s->o.tick && !s->ticker) ||
        event_priority_set(s->posted, FIRST) || event_add(s->posted, NULL)) {
        status = mg_fail_memory(err, "HTTP server");
        goto out;
    }
    if (s->o.tls_cert) status = mg_tls_context_open(s->o.tls_cert, s->o.tls_key, &s->tls, err);
    if (!status) status = open_listeners(s, err);
out:
    if (status)
        mg_http_server_close(s);
    else
        *out = s;
    return status;
}

/* OpenSSL writes to sockets by write(). A SIGPIPE that came meanwhile is taken away again. */
static void unblock_pipe(const sigset_t *before) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (sigtimedwait(&pipe, NULL, &(struct timespec){0}) == SIGPIPE) continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

enum mg_status mg_http_server_run(struct mg_http_server *s, struct mg_err *err) {
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    if (s->ticker) set_timer(s->ticker, 0);
    int result = event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY);
    while (s->conn) mg_http_conn_die(s->conn, MG_HTTP_END_STOPPED);
    reap(s);
    if (!sigismember(&before, SIGPIPE)) unblock_pipe(&before);
    if (result < 0) return mg_fail(err, MG_ERR_IO, "", "the event loop has failed");
    return MG_OK;
}

void mg_http_server_close(struct mg_http_server *s) {
    if (!s) return;
    while (s->conn) mg_http_conn_die(s->conn, MG_HTTP_END_STOPPED);
    reap(s);
    s->stopping = true;
    mg_post_queue_close(&s->posts);
    close_listeners(s);
    if (s->posted) event_free(s->posted);
    if (s->reap) event_free(s->reap);
    if (s->relisten) event_free(s->relisten);
    if (s->stop_timer) event_free(s->stop_timer);
    if (s->ticker) event_free(s->ticker);
    if (s->base) event_base_free(s->base);
    if (s->tls) mg_tls_context_close(s->tls);
    free(s->scratch);
    free(s);
}

uint16_t mg_http_server_port(const struct mg_http_server *s) {
    return s->port;
}
bool mg_http_server_is_stopping(const struct mg_http_server *s) {
    return s->stopping;
}

void mg_http_server_counts(const struct mg_http_server *s, struct mg_http_counts *out) {
    *out = s->counts;
}
