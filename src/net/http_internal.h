/* net/http_internal.h - what the files of the HTTP server share; nobody else includes it.
 *
 *     http_server.c      listening, accepting, stopping, reloading, posted functions
 *     http_connection.c  one connection's states, reading, time limits, the client's leaving
 *     http_exchange.c    one request: its texts, its routes, its end
 *     http_reply.c       heads and bodies of replies
 *     websocket.c        what an upgraded connection does instead
 */
#ifndef MG_NET_HTTP_INTERNAL_H
#define MG_NET_HTTP_INTERNAL_H

#include "base/io.h"
#include "net/http_chunk.h"
#include "net/http_server.h"
#include "net/http_text.h"
#include "net/listen.h"
#include "net/wire.h"

#include <stdatomic.h>

struct event;
struct event_base;
struct evbuffer;
struct mg_ws;

#define MG_HTTP_SCRATCH 65536   /* bytes read at a time */
#define MG_HTTP_BUCKETS 1024    /* of the table of exchanges by id */
#define MG_HTTP_MAX_SEGMENT 32  /* of a path */
#define MG_HTTP_MAX_PARAM 4     /* of a pattern */
#define MG_HTTP_MAX_PING 32     /* bytes */
#define MG_HTTP_MAX_REFUSED 256 /* connections over max_connection that get a 503 */

struct mg_http_listener {
    struct mg_http_server *server;
    struct event *event; /* owned */
    int fd;              /* owned */
    bool is_unix;
};

struct mg_http_conn {
    struct mg_http_server *server;
    struct mg_http_conn *prev, *next; /* in server->conn, or next alone in server->dying */
    struct mg_wire wire;
    struct event *io;     /* edge-triggered: readable, writable, closed by the other side */
    struct event *work;   /* made active by hand: go on with the state */
    struct event *timer;  /* see `armed` */
    struct evbuffer *out; /* what the kernel has not taken yet */
    struct mg_buf held;   /* read but not yet needed: pipelined requests; at most a scratch full */
    size_t held_at;       /* bytes of it that have been taken */
    struct mg_http_head head;
    struct mg_http_chunk chunk;
    uint64_t body_left;         /* bytes of a body with Content-Length */
    struct mg_http_exchange *x; /* owned; NULL while a head is read */
    enum mg_http_state {
        MG_HTTP_READ_HEAD,
        MG_HTTP_READ_BODY,
        MG_HTTP_BUSY,      /* the exchange is with the user, or its reply goes out */
        MG_HTTP_WEBSOCKET, /* upgraded */
        MG_HTTP_LINGER     /* our sending has ended; what still comes is thrown away */
    } state;
    size_t n_request; /* exchanges that have ended */
    bool is_unix;
    bool internal;    /* adopted: the other end is ours */
    bool refuse;      /* one too many: answered 503 */
    bool head_begun;  /* a byte of the head has come */
    bool close_after; /* no further request after this reply */
    bool peer_ended;  /* its FIN has been seen and dealt with */
    bool called_last; /* its on_stop has had its turn */
    bool dead;        /* in server->dying; nothing is done with it any more */
    enum mg_http_end end;
    /* Seconds of mg_clock: */
    double state_at; /* the state's beginning */
    double read_at;  /* last byte in */
    double write_at; /* last byte out, or when the first byte began to wait */
    double armed;    /* when the timer fires; 0: it is not set */
    char peer[MG_PEER_TEXT];
};

struct mg_http_exchange {
    uint64_t id;
    struct mg_http_exchange *next; /* in its bucket */
    struct mg_http_conn *conn;
    struct mg_arena arena; /* decoded texts */
    const struct mg_http_route *route;
    const char *path, *raw_path;
    struct mg_http_param {
        const char *name; /* in the pattern */
        size_t n_name;
        const char *value; /* in the arena */
    } param[MG_HTTP_MAX_PARAM];
    size_t n_param;
    struct mg_buf body;
    size_t max_body;      /* bytes */
    size_t counted;       /* bytes of the body in server->counts.body_bytes */
    size_t reply_counted; /* likewise of the reply in reply_bytes */
    struct mg_buf fields; /* lines that the user has added to the reply's head */
    bool has_encoding;    /* Content-Encoding is among them */
    bool no_memory;       /* for one of its texts: the reply is 503 */
    bool readable;        /* the request's head could be read */
    bool begun;           /* a reply's head is out */
    bool streaming, chunked, no_body;
    bool finished; /* the whole reply is in conn->out */
    bool wants_drain;
    bool ended; /* on_end has been or is being called */
    int status;
    uint64_t bytes_in, bytes_out; /* of bodies, received; of the reply */
    double began;                 /* mg_clock */
    double wrote_at;              /* the stream's last write */
    double ping_seconds;
    uint8_t ping[MG_HTTP_MAX_PING];
    size_t n_ping;
    struct mg_ws *ws; /* owned, see websocket.c */
    void *user;
    mg_http_end_fn *on_end;
    mg_http_fn *on_stop, *on_drain;
    char request_id[MG_HTTP_REQUEST_ID];
};

struct mg_http_server {
    struct mg_http_options o; /* defaults filled in */
    struct event_base *base;
    struct mg_http_listener listener[MG_LISTEN_MAX + 1];
    size_t n_listener;
    struct mg_listen_file unix_file;
    uint16_t port;
    mg_tls_context *tls;
    struct mg_post_queue posts;
    struct event *posted;   /* posts.fd */
    struct event *reap;     /* active when `dying` is not empty */
    struct event *relisten; /* timer: accept again after the system had no more descriptors */
    struct event *stop_timer;
    struct event *ticker; /* NULL without options.tick */
    struct mg_http_conn *conn, *dying;
    struct mg_http_exchange *bucket[MG_HTTP_BUCKETS];
    uint64_t last_id;
    size_t n_refused; /* connections with `refuse` */
    struct mg_http_counts counts;
    uint8_t *scratch; /* MG_HTTP_SCRATCH bytes */
    time_t date_at;
    char date[MG_HTTP_DATE]; /* of date_at */
    /* Set by any thread or signal handler, then posts.fd is written: */
    atomic_bool stop_asked, reload_asked;
    atomic_uint drain_ms; /* the smallest asked for */
    bool stopping;
    bool last_call; /* on_stop has been called */
    double stop_at; /* when it is */
};

/* http_connection.c */
/* Takes over the socket. Out of memory: it is closed, and NULL. */
struct mg_http_conn *mg_http_conn_open(struct mg_http_server *s, int fd, bool is_unix,
                                       const char *peer, bool refuse);
void mg_http_conn_free(struct mg_http_conn *c);
/* Ends the connection: now nothing more is done with it, soon it is freed and its exchange ends
 * with this reason. */
void mg_http_conn_die(struct mg_http_conn *c, enum mg_http_end reason);
/* Writes what can be written; sets the timer. */
void mg_http_conn_flush(struct mg_http_conn *c);
/* Goes on with the state from the loop. */
void mg_http_conn_schedule(struct mg_http_conn *c);
/* Adds to `out`; dies and returns false when there is no memory. */
bool mg_http_conn_add(struct mg_http_conn *c, const void *data, size_t n);
/* The same without a copy; release is called either way. */
bool mg_http_conn_add_view(struct mg_http_conn *c, const void *data, size_t n,
                           mg_http_release_fn *release, void *arg);
/* Answers 503 where that still can be done, without allocating, and dies. */
void mg_http_conn_no_memory(struct mg_http_conn *c);
void mg_http_conn_arm(struct mg_http_conn *c);
bool mg_http_conn_is_idle(const struct mg_http_conn *c);

/* http_exchange.c */
struct mg_http_exchange *mg_http_exchange_new(struct mg_http_conn *c);
/* Decodes the path; false: it can't be. */
bool mg_http_exchange_read(struct mg_http_exchange *x);
/* Sets x->route; 0, or the status to refuse with, with Allow's value in `allow`. */
int mg_http_exchange_route(struct mg_http_exchange *x, char *allow, size_t n_allow);
void mg_http_exchange_end(struct mg_http_exchange *x, enum mg_http_end reason);
/* n bytes more of a body are held; false: over max_body_total. */
bool mg_http_hold(struct mg_http_exchange *x, size_t n);
void mg_http_release(struct mg_http_exchange *x, size_t n);

/* http_reply.c */
/* May the exchange's Origin read the reply? *origin: what Access-Control-Allow-Origin says. */
bool mg_http_cors_allowed(const struct mg_http_exchange *x, const char **origin);
void mg_http_reply_preflight(struct mg_http_exchange *x, const char *allow);
const char *mg_http_server_date(struct mg_http_server *s);

/* websocket.c: of an exchange with x->ws */
/* Takes all the bytes. */
void mg_ws_feed(struct mg_http_exchange *x, const uint8_t *data, size_t n);
/* When something is to be done by the clock. */
double mg_ws_deadline(const struct mg_http_exchange *x);
void mg_ws_tick(struct mg_http_exchange *x, double now);
/* mg_clock of its last message; INFINITY: something is under way. */
double mg_ws_idle_since(struct mg_http_exchange *x);
void mg_ws_free(struct mg_ws *ws);
/* Both close frames have passed: nothing more to read. */
bool mg_ws_is_over(const struct mg_http_exchange *x);

#endif
