/* net/http_server.h - an HTTP/1.1 server on one loop thread; knows nothing of what it serves.
 *
 * Written on libevent's loop and buffers with a parser of our own, not on its evhttp, since evhttp
 * (2.1.12) gives no sight of a client that leaves while its reply is being made, aborts the process
 * when reading is switched on to see it and a pipelined request comes, and hands its socket over
 * to WebSocket only by force. Its bufferevents were left out for a like reason: they can't watch a
 * connection without reading from it (http_connection.c says how that is done here).
 *
 *     mg_http_server_open(&options, &server, &err)
 *     mg_http_server_run(server)           serves on the calling thread until stopped
 *     mg_http_server_stop(server, 10000)   from any thread or a signal handler
 *     mg_http_server_close(server)
 *
 * One request with its reply is an exchange. The route's function is called once the whole body is
 * there; it replies at once, or later from a function that is posted to the loop:
 *
 *     exchange --fn--> mg_http_reply                                           complete reply
 *                      mg_http_stream_begin, _write ..., _end                  piece by piece
 *                      mg_ws_accept (websocket.h), mg_sse_begin (sse.h)
 *
 * Every exchange that fn (or `admit`) has seen ends with exactly one call of its on_end, with the
 * reason; the pointer is dead afterwards. No callback is called from inside a mg_http_* call. Other
 * threads keep mg_http_id(x), and the function they post asks mg_http_find for the exchange.
 *
 * When a client leaves: a reset, or a closed Unix socket, is seen at once. TCP's FIN alone can mean
 * that it has closed, or that it has only ended its sending (shutdown, "nc -N"). The difference
 * shows when something is sent: so a HTTP/1.1 client gets "100 Continue" before a reply begins
 * (every HTTP/1.1 client must read over it), a stream with pings gets a ping. One that has closed
 * answers with a reset, and the exchange ends; one that has not gets its reply. Where nothing can
 * be sent (HTTP/1.0, a stream without pings, WebSocket) the FIN counts as leaving.
 *
 * Threads: everything belongs to the loop thread but mg_http_server_post (any thread), _stop and
 * _reload (any thread, any signal handler). SIGPIPE is blocked on the loop thread while it runs.
 */
#ifndef MG_NET_HTTP_SERVER_H
#define MG_NET_HTTP_SERVER_H

#include "base/err.h"
#include "base/mem.h"
#include "net/post_queue.h"

struct mg_http_server;
struct mg_http_exchange;

typedef void mg_http_fn(struct mg_http_exchange *x, void *user);

enum mg_http_end {
    MG_HTTP_END_DONE,    /* the whole reply has gone out to the kernel */
    MG_HTTP_END_LEFT,    /* the client has left */
    MG_HTTP_END_SLOW,    /* it did not read, or its queue was over the limit: cut */
    MG_HTTP_END_STOPPED, /* the server has stopped */
    MG_HTTP_END_MEMORY   /* out of memory: cut */
};
typedef void mg_http_end_fn(struct mg_http_exchange *x, enum mg_http_end reason, void *user);

struct mg_http_route {
    const char *method; /* "GET" serves HEAD as well */
    const char
        *pattern;    /* "/v1/models/{id}": {..} is one segment, not empty; a last {..*} the rest */
    mg_http_fn *fn;  /* its `user` is options.user */
    size_t max_body; /* bytes; 0: options.max_body */
    int tag;         /* the caller's own, see mg_http_tag */
};

/* One line of the access log; texts are views valid during the call. */
struct mg_http_record {
    double seconds;     /* from the first byte of the request to the end */
    const char *peer;   /* "127.0.0.1:5000" */
    const char *method; /* "" when the request could not be read, so for target */
    const char *target; /* as sent, with the query */
    const char *request_id;
    const char *agent;   /* User-Agent, or "" */
    const char *pattern; /* of the route, "" for none */
    int status;          /* 0: no reply was begun */
    uint64_t bytes_in;   /* of the body */
    uint64_t bytes_out;  /* of reply and head, before TLS, handed to the kernel or not */
    enum mg_http_end end;
    int tag; /* of the route, 0 for none */
};

/* Makes an error's body. x: the exchange; its path may be "" when the request could not be read.
 * `code`: a stable word, `text`: a sentence. Adds to `out`; returns the content type. */
typedef const char *mg_http_error_fn(struct mg_http_exchange *x, int status, const char *code,
                                     const char *text, struct mg_buf *out, void *user);

/* All borrowed until mg_http_server_close; 0, NULL, false mean the default in brackets. */
struct mg_http_options {
    const char *host;      /* name or address to listen on; NULL: no TCP */
    uint16_t port;         /* 0: a free one */
    const char *unix_path; /* NULL: no Unix socket; one of the two is needed */
    unsigned unix_mode;    /* [0600] */
    /* [n_fd] sockets that listen already, in place of host and path; the server's even when opening
     * fails. A Unix socket's file is left where it is. */
    const int *fd;
    size_t n_fd;
    const char *tls_cert; /* PEM files; NULL: no TLS. Never on the Unix socket */
    const char *tls_key;
    const char *prefix; /* "/api": put before every pattern */

    const struct mg_http_route *route;
    size_t n_route;
    void *user; /* handed to all callbacks here and to the routes */

    /* Called when a request's head has been read and its route found, before the body and before
     * "100 Continue": may reply (401, 429), then the body is not read. */
    mg_http_fn *admit;
    mg_http_error_fn *error_body; /* [{"error":{"message","code"}}] */
    void (*log)(const struct mg_http_record *record, void *user);
    void (*note)(enum mg_status status, const char *text, void *user); /* troubles of the server */
    void (*on_reload)(void *user); /* see mg_http_server_reload */
    /* Stopping has begun: whoever holds idle WebSockets may close them, so that nobody waits. */
    void (*on_stopping)(void *user);
    void (*before_reload)(void *user); /* before certificate and key are read anew */
    /* Called when serving begins, and again after the seconds that it returns; 0: no more. It goes
     * on while stopping. */
    double (*tick)(void *user);

    const char *const *origin; /* CORS: "https://a.example"; "*": all; [none but our own] */
    size_t n_origin;

    size_t max_head;       /* bytes [32 KiB] */
    size_t max_body;       /* bytes of one request [64 MiB] */
    size_t max_body_total; /* bytes of all requests' bodies at a time, over it 503 [512 MiB]; and of
                            * large replies that have not been read, likewise */
    size_t max_connection; /* over it 503, after idle ones were closed, WebSockets last [1024] */
    size_t max_queued;     /* bytes of a stream that the client has not read [1 MiB] */
    size_t max_request;    /* requests on one connection [1000] */
    size_t max_post;       /* functions posted and not yet called [65536] */
    double idle_seconds;   /* between two requests [75] */
    double head_seconds;   /* for a head, handshake of TLS included [15] */
    double body_seconds;   /* without a byte of a body that is expected [30] */
    size_t body_rate;      /* bytes a second that a body must have on average after that [1024] */
    double write_seconds;  /* without a byte of what waits to be read [60] */
};

enum mg_status mg_http_server_open(const struct mg_http_options *options,
                                   struct mg_http_server **out, struct mg_err *err);
/* The port that is listened on, 0 without TCP. */
uint16_t mg_http_server_port(const struct mg_http_server *s);
/* Serves until stopped; MG_ERR_IO when the loop fails. */
enum mg_status mg_http_server_run(struct mg_http_server *s, struct mg_err *err);
/* Stops: no more connections, idle ones are closed, exchanges may end within drain_ms. Then each
 * open exchange's on_stop is called, which may write a last event, and after a moment for it to go
 * out (a second at most) the rest is cut. A further call can only shorten the time. */
void mg_http_server_stop(struct mg_http_server *s, unsigned drain_ms);
/* On the loop thread soon: reads certificate and key anew (new connections get them, the old files
 * stay in use when they can't be read, with a note), and calls options.on_reload. */
void mg_http_server_reload(struct mg_http_server *s);
/* Calls fn(arg) on the loop thread; exactly once if MG_OK was returned, at the latest in
 * mg_http_server_close. MG_ERR_LIMIT: max_post functions are waiting. */
enum mg_status mg_http_server_post(struct mg_http_server *s, mg_post_fn *fn, void *arg);
/* Serves a connected stream socket as one of the Unix socket's, marked as internal: the other end
 * is the program itself. Takes fd; closed when the server is stopping or memory is short. Any
 * thread.
 */
void mg_http_server_adopt(struct mg_http_server *s, int fd);
/* After run has returned, or without it; no other thread may use the server any more. */
void mg_http_server_close(struct mg_http_server *s);
bool mg_http_server_is_stopping(const struct mg_http_server *s);

struct mg_http_counts {
    size_t connection, exchange; /* now */
    uint64_t accepted, refused, requests;
    size_t body_bytes;  /* held now */
    size_t reply_bytes; /* of large replies not read yet */
};
void mg_http_server_counts(const struct mg_http_server *s, struct mg_http_counts *out);

/* --- the request; texts are views valid until on_end --- */
uint64_t mg_http_id(const struct mg_http_exchange *x); /* never 0, never used twice */
struct mg_http_exchange *mg_http_find(struct mg_http_server *s, uint64_t id); /* NULL: has ended */
struct mg_http_server *mg_http_server_of(const struct mg_http_exchange *x);
void *mg_http_server_user(const struct mg_http_server *s); /* options.user */
const char *mg_http_method(const struct mg_http_exchange *x);
const char *mg_http_path(const struct mg_http_exchange *x);     /* decoded, with the prefix */
const char *mg_http_raw_path(const struct mg_http_exchange *x); /* as sent */
/* Decoded; NULL when there is none. The first of several. */
const char *mg_http_query(struct mg_http_exchange *x, const char *name);
/* What stands for {name} of the route's pattern, decoded; NULL when there is none. */
const char *mg_http_param(struct mg_http_exchange *x, const char *name);
const char *mg_http_header(const struct mg_http_exchange *x, const char *name);
struct mg_slice mg_http_body(const struct mg_http_exchange *x);
/* Moves the body into `out`, which is empty before and the caller's afterwards; it no longer counts
 * as held. For exchanges that last long after their body has been read. */
void mg_http_take_body(struct mg_http_exchange *x, struct mg_buf *out);
const char *mg_http_peer(const struct mg_http_exchange *x);
const char *mg_http_request_id(const struct mg_http_exchange *x);
bool mg_http_is_tls(const struct mg_http_exchange *x);
bool mg_http_is_unix(const struct mg_http_exchange *x);     /* came over the Unix socket */
bool mg_http_is_internal(const struct mg_http_exchange *x); /* came by mg_http_server_adopt */
int mg_http_tag(const struct mg_http_exchange *x);          /* of the route; 0 for none */
/* There is an Origin and it is neither our own nor on the list. */
bool mg_http_is_foreign(const struct mg_http_exchange *x);

/* The caller's own pointer, NULL at first; handed to the callbacks below. */
void mg_http_set_user(struct mg_http_exchange *x, void *user);
void *mg_http_user(const struct mg_http_exchange *x);
void mg_http_on_end(struct mg_http_exchange *x, mg_http_end_fn *fn);
void mg_http_on_stop(struct mg_http_exchange *x, mg_http_fn *fn);
/* Called when a stream's queue, once not empty after a write, has become empty. */
void mg_http_on_drain(struct mg_http_exchange *x, mg_http_fn *fn);

/* --- the reply. MG_ERR_CANCELLED: the client has left, on_end is about to be called;
 * MG_ERR_ARGUMENT: not now (a second reply, a malformed field) --- */
/* Before the reply: one more header field. Date, x-request-id, Content-Type, Content-Length,
 * Connection, Vary for encodings and CORS are the server's. */
enum mg_status mg_http_add_field(struct mg_http_exchange *x, const char *name, const char *value);
/* A complete reply; `body` is copied. Compressed when that is worth it and the client takes it,
 * unless a Content-Encoding was added. content_type NULL: none. */
enum mg_status mg_http_reply(struct mg_http_exchange *x, int status, const char *content_type,
                             const void *body, size_t n);
/* The same with bytes that are not copied nor compressed: release(data, n, arg) is called once, on
 * the loop thread, when they have gone out or the reply has failed. They don't count as held. */
typedef void mg_http_release_fn(const void *data, size_t n, void *arg);
enum mg_status mg_http_reply_view(struct mg_http_exchange *x, int status, const char *content_type,
                                  const void *body, size_t n, mg_http_release_fn *release,
                                  void *arg);
/* The same with a buffer that is taken over, and left empty. */
enum mg_status mg_http_reply_take(struct mg_http_exchange *x, int status, const char *content_type,
                                  struct mg_buf *body);
/* A reply whose body options.error_body makes. */
enum mg_status mg_http_reply_error(struct mg_http_exchange *x, int status, const char *code,
                                   const char *text);
/* A reply in pieces: chunked, or until the connection ends for HTTP/1.0. Each write goes out at
 * once. MG_ERR_LIMIT: more than max_queued bytes wait; the connection is cut (so a single write
 * stays well below that). */
enum mg_status mg_http_stream_begin(struct mg_http_exchange *x, int status,
                                    const char *content_type);
enum mg_status mg_http_stream_write(struct mg_http_exchange *x, const void *data, size_t n);
enum mg_status mg_http_stream_end(struct mg_http_exchange *x);
/* The connection is cut without the end of the stream, so that the client sees it is not whole. */
void mg_http_stream_abort(struct mg_http_exchange *x);
/* After stream_begin: `data` (at most 32 bytes, copied) is written whenever nothing was for so many
 * seconds, and to find out whether the client is there. */
enum mg_status mg_http_stream_ping(struct mg_http_exchange *x, const void *data, size_t n,
                                   double seconds);
/* Bytes of the reply that the kernel has not taken yet: the client reads slowly. */
size_t mg_http_queued(const struct mg_http_exchange *x);
/* A reply has been begun. */
bool mg_http_has_replied(const struct mg_http_exchange *x);

#endif
