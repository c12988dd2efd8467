/* server/internal.h - what the server's files share.
 *
 *   server.c    opening, routes, who may ask, what the server says of itself
 *   ask.c       a question's life: request -> jobs -> reply or stream
 *   pictures.c  where pictures come from: uploads, the media folder, allowed hosts
 *   uploads.c   /v1/files
 *   socket.c    /ws
 *   work.c      reading large requests beside the loop
 *   tokens.c    /tokenize, /detokenize, /apply-template
 *   page.c      the web page
 *   puller.c    a worker's part: jobs from a queue
 *   gateway.c   a gateway's part: requests into a queue, answers out of it
 *   manager.c   what a service manager is told (manager.h)
 */
#ifndef MG_SERVER_INTERNAL_H
#define MG_SERVER_INTERNAL_H

#include "api/chat_reply.h"
#include "api/chat_request.h"
#include "api/completion_request.h"
#include "api/job_request.h"
#include "api/metrics.h"
#include "api/ws_request.h"
#include "net/access_log.h"
#include "net/api_keys.h"
#include "net/remote.h"
#include "base/io.h"
#include "server/page.h"
#include "server/server.h"

#include <pthread.h>
#include <stdatomic.h>

/* --- uploads.c; loop thread only --- */
struct upload_bytes {
    atomic_int refs; /* the upload, each question's picture, each reply */
    size_t n;
    atomic_size_t *held; /* uploads.held */
    uint8_t data[];
};
struct upload {
    char id[40]; /* "file-" and 32 digits */
    uint8_t tenant[MG_TENANT_BYTES];
    struct upload_bytes *bytes; /* a reference */
    int64_t created, expires;   /* seconds since 1970, as told */
    double until;               /* mg_clock: it expires whatever happens to the date */
    char filename[128], purpose[32];
    struct upload *next; /* oldest first */
};
struct uploads {
    struct upload *first;
    size_t budget;
    atomic_size_t held; /* by uploads, and by those who still use what is no upload any more */
};
void uploads_free(struct uploads *u);
/* The upload of this tenant, NULL when there is none (any more). */
const struct upload *upload_find(struct uploads *u, const uint8_t *tenant, const char *id);
/* Its bytes become the picture's, without a copy. */
void upload_lend(const struct upload *u, struct mg_image_source *to);
void upload_drop(struct upload *u);
/* One more with the same bytes, in no list; NULL without memory. */
struct upload *upload_share(const struct upload *u);
void route_files_post(struct mg_http_exchange *x, void *user);
void route_files_list(struct mg_http_exchange *x, void *user);
void route_file_get(struct mg_http_exchange *x, void *user);
void route_file_content(struct mg_http_exchange *x, void *user);
void route_file_delete(struct mg_http_exchange *x, void *user);

/* --- work.c: a request's body becomes a request or a reply, beside the loop when it is large ---
 */
enum { WORK_SMALL_BYTES = 16 << 10 }; /* up to here it is not worth it */
struct work;
typedef void work_fn(struct work *w); /* any thread; reads body, writes f and what it makes */
typedef void work_done_fn(struct work *w, struct mg_http_exchange *x); /* loop thread */
struct work {
    struct mg_server *s;
    uint64_t exchange;
    struct mg_slice body; /* during run only */
    struct mg_buf held;   /* its memory, if it was handed over */
    work_fn *run;
    work_done_fn *done;
    /* What comes of it; freed after done, which may take it (and leave NULL). */
    struct mg_fault f;
    struct mg_chat_request *chat;
    struct mg_completion_request *completion;
    struct mg_ws_request ws;
    struct mg_buf out;
    struct upload *upload;
    struct mg_job_request *job;
    struct waiting_picture *picture; /* SOCKET: that came before it, owned */
    uint8_t tenant[MG_TENANT_BYTES];
    double retry_seconds; /* with a fault that passes */
    char type[512];       /* the Content-Type, as far as it fits */
    bool socket;          /* one of a WebSocket's messages: the exchange goes on */
    struct work *next;
};
struct worker {
    pthread_t thread;
    bool running;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t more;
    struct work *first, **last; /* owned */
    size_t bytes;               /* of bodies that wait */
    bool closing;
};
enum mg_status worker_open(struct worker *k, struct mg_err *err);
/* Before the HTTP server is closed. Does nothing to a worker that was never opened. */
void worker_close(struct worker *k);
/* Runs `run` on x's body, at once or on the worker's thread, then `done` unless x has ended. */
void work_begin(struct mg_server *s, struct mg_http_exchange *x, work_fn *run, work_done_fn *done);
/* The same with a copy of these bytes, always on the worker's thread. Takes what `like` owns if
 * MG_OK is returned. */
enum mg_status work_add(const struct work *like, const void *data, size_t n, struct mg_fault *f);

struct mg_server {
    struct mg_server_options o; /* defaults filled in */
    mg_engine *engine;
    struct mg_engine_info info;
    struct mg_engine_facts facts;
    struct mg_scheduler *scheduler;
    struct mg_http_server *http;
    struct mg_http_route *route; /* owned */
    struct mg_api_keys keys;
    bool keyed; /* a key is needed */
    struct mg_access_log log;
    struct mg_metrics *metrics;
    struct mg_remote *remote; /* NULL: nothing is fetched */
    struct uploads uploads;
    struct page *page;       /* NULL: none is served */
    struct puller *puller;   /* of a worker, else NULL */
    struct gateway *gateway; /* of a gateway, which has no engine and no scheduler, else NULL */
    struct worker worker;
    struct connection *socket; /* all open WebSockets */
    size_t socket_bytes;       /* of the pictures that wait there for their questions */
    char host[256];            /* this machine's name */
    int media_fd;              /* the media folder, -1 none */
    int64_t started;           /* seconds since 1970 */
    bool announced;
};

/* Of routes: need no key; are files of the page; bring questions. */
enum { TAG_PUBLIC = 1, TAG_PAGE = 2, TAG_QUESTION = 4 };

/* --- server.c --- */
/* Whose request it is: its key's digest, zeros when there are no keys. */
void server_tenant(const struct mg_server *s, const struct mg_http_exchange *x,
                   uint8_t tenant[MG_TENANT_BYTES]);
/* The id of the queue's job that this request is for, or NULL. Only our own connections say so. */
const char *server_job(const struct mg_http_exchange *x);
/* One more error of this type in the metrics. */
void count_error(struct mg_server *s, const char *type);
/* An error as JSON, with Retry-After where it belongs. */
void reply_fault(struct mg_http_exchange *x, const struct mg_fault *f);
void reply_fault_after(struct mg_http_exchange *x, const struct mg_fault *f, double seconds);
/* Whole seconds, 1 to 300. */
void add_retry_after(struct mg_http_exchange *x, double seconds);
void reply_err(struct mg_http_exchange *x, enum mg_status status, const char *code,
               const char *text);
/* A complete JSON reply; frees the buffer. ok false: out of memory. */
void reply_json(struct mg_http_exchange *x, struct mg_buf *body, bool ok);
int64_t unix_seconds(void);
/* n random hexadecimal digits and a zero byte. */
void random_digits(char *out, size_t n);

/* --- ask.c --- */
enum ask_kind { ASK_CHAT, ASK_COMPLETION, ASK_SOCKET };

/* One of the answers to a question; written by the thread that its job is with. */
struct choice {
    struct ask *ask;
    size_t index;
    uint64_t job; /* 0: none, or over */
    struct mg_answer_options o;
    /* Filled when it is over. */
    bool over;
    struct mg_buf text;
    char finish_reason[16], stop_detail[16];
    struct mg_token_logprob *logprob; /* [n_logprob] all tokens', owned */
    size_t n_logprob, cap_logprob;
    bool lost; /* there was no memory for one of them */
    struct mg_reply_usage usage;
};

struct ask {
    struct mg_server *s;
    atomic_int refs; /* the exchange, each job, each posted function, each fetch */
    enum ask_kind kind;
    struct mg_chat_request *chat; /* CHAT and SOCKET, owned */
    struct mg_completion_request *completion;
    const struct mg_request *common; /* of one of them */
    struct mg_bias *bias;            /* [common->n_bias] owned */
    struct mg_reply_head head;
    char id[48];                /* of the reply */
    char ws_id[MG_PARAM_BYTES]; /* SOCKET: the client's name for it */
    uint8_t tenant[MG_TENANT_BYTES];
    uint64_t exchange; /* mg_http_id */
    double began;      /* mg_clock */
    char job[40];      /* of a queue; "" for a client's own question */
    size_t n_choice;
    struct choice *choice; /* [n_choice] owned */

    /* Loop thread only. */
    bool gone;            /* the exchange is over */
    double retry_seconds; /* what the scheduler says when it takes no more; 0: nothing */
    size_t held;          /* bytes of pictures that the request named and did not bring */
    bool streaming;       /* the head of the stream is out */
    size_t n_fetch;       /* pictures on their way */
    uint64_t *fetch;      /* [n_image] their ids, owned */
    struct mg_fault fetch_fault;
    struct ask *next; /* of a socket's */

    pthread_mutex_t mutex; /* of what follows */
    struct mg_buf out;     /* to be sent: a stream's bytes, a socket's messages (each with its
                              length before it), or the whole reply */
    bool posted;           /* the loop has been told of `out` */
    bool begun;            /* the stream's first chunk has been written */
    bool finished;         /* nothing comes after `out` */
    size_t n_over;         /* choices */
    int http;              /* status of the whole reply */
    bool retry;            /* it asks to be tried again */
    struct mg_fault fault; /* the first that went wrong */
    struct mg_reply_image *image; /* [n_image] owned */
    size_t n_image;
    struct mg_reply_timings timings;
    enum mg_reply_cache cache; /* where the first choice's answer came from */
    double cache_distance;
    const char *warning[MG_REQUEST_MAX_WARNINGS + 2]; /* [n_warning] the request's and ours */
    size_t n_warning;
};

void route_chat(struct mg_http_exchange *x, void *user);
void route_completion(struct mg_http_exchange *x, void *user);
/* Takes the request; NULL when memory is short (the request is freed). */
struct ask *ask_open(struct mg_server *s, struct mg_http_exchange *x, enum ask_kind kind,
                     struct mg_chat_request *chat, struct mg_completion_request *completion);
/* Fetches what has to be fetched, then hands the jobs in. A fault is replied. */
void ask_begin(struct ask *a);
/* What the parser can't know: token ids; then pictures_resolve. */
enum mg_status ask_check(struct ask *a, struct mg_fault *f);
/* The head of a question has come: replies when the queue has no place for it, so that a large body
 * is not read in vain. */
void ask_admit(struct mg_server *s, struct mg_http_exchange *x);
void ask_cancel(struct ask *a);
void ask_unref(struct ask *a);

/* --- pictures.c --- */
/* Uploads become bytes, remote pictures are begun to be fetched (a->n_fetch). Loop thread. */
enum mg_status pictures_resolve(struct ask *a, struct mg_fault *f);
/* Most bytes of a question's pictures together, where they don't come in its own body: as many as
 * could come there. A small request must not come to gigabytes. */
size_t pictures_most(const struct mg_server *s);
/* n bytes more of pictures that the request only named. Loop thread. */
enum mg_status pictures_hold(struct ask *a, size_t n, const char *param, struct mg_fault *f);
/* A picture of the media folder into `out`. Any thread. */
enum mg_status picture_from_media(const struct mg_server *s, const char *url, struct mg_buf *out,
                                  struct mg_err *err);
/* One more picture that can't be used, by what its bytes are and what is wrong with them. */
void count_bad_picture(const struct ask *a, const void *bytes, size_t n, const char *code);
/* The wishes of a request in the engine's terms. */
struct mg_image_want picture_want(const struct mg_server *s, const struct mg_image_wish *wish,
                                  bool fast);

/* --- socket.c --- */
void route_socket(struct mg_http_exchange *x, void *user);
/* Sends the messages in `out`. */
void socket_send(struct mg_http_exchange *x, const struct mg_buf *out);
void socket_forget(struct mg_http_exchange *x, struct ask *a);
void pictures_drop(struct waiting_picture **list);
/* The server is being stopped: those that wait for nothing are closed. */
void sockets_close_idle(struct mg_server *s);

/* --- tokens.c --- */
void route_tokenize(struct mg_http_exchange *x, void *user);
void route_detokenize(struct mg_http_exchange *x, void *user);
void route_template(struct mg_http_exchange *x, void *user);

#endif
