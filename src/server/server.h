/* server/server.h - margay serve: one engine behind HTTP and WebSocket; margay worker: the same,
 * and jobs from a queue (puller.h); margay serve --queue: the front of it alone (gateway.h).
 *
 *   src/net (bytes) -> src/api (requests) -> src/server -> engine/scheduler.h (answers)
 *
 * Threads: the caller's runs the network loop and never computes; the scheduler's two compute.
 * Answers travel as bytes: the engine thread writes the next piece of a reply into the question's
 * buffer, the loop sends it.
 */
#ifndef MG_SERVER_SERVER_H
#define MG_SERVER_SERVER_H

#include "engine/scheduler.h"
#include "net/http_server.h"
#include "server/manager.h"

struct mg_server;
struct mg_queue_options; /* store/job_queue.h */

/* All borrowed until mg_server_close; 0 and NULL mean the default in brackets. */
struct mg_server_options {
    const char *host, *unix_path; /* one of them, or fd */
    uint16_t port;                /* 0: a free one */
    /* [n_fd] sockets that listen already, in place of host, port and path (net/http_server.h); the
     * caller sets host to an address of theirs that others reach, else to any, NULL for Unix. */
    const int *fd;
    size_t n_fd;
    struct mg_manager *manager; /* NULL: nobody is told how it does */
    const char *tls_cert, *tls_key;
    const char *prefix;         /* before every path */
    const char *const *api_key; /* [n_api_key]; none and no file: everybody may ask */
    size_t n_api_key;
    const char *api_key_file;
    const char *const *origin; /* [n_origin] of other sites' pages that may ask */
    size_t n_origin;
    /* [n_name] by which clients may call this server in Host, "*" for any. None: without keys on a
     * loopback address only names that no other site can have (README), else any. */
    const char *const *name;
    size_t n_name;
    const char *media_path;         /* folder that file: pictures are read from; NULL: none are */
    const char *const *remote_host; /* [n_remote_host] that pictures are fetched from; none */
    size_t n_remote_host;
    const char *access_log; /* file, "-" for standard error; NULL: none */
    bool access_log_json;
    const char *alias; /* the model's name to clients ["margay"] */
    bool no_metrics, no_slots;
    bool no_page;
    const char *page_path; /* folder that the page is served from; NULL: the one built in */
    size_t max_body;       /* bytes [64 MiB] */
    size_t upload_budget;  /* bytes of uploaded files kept [256 MiB] */
    unsigned drain_ms;     /* for answers under way when stopped [10,000] */
    double ping_seconds;   /* silence in a stream before a comment [10] */
    /* With an engine: takes jobs from this queue, as a worker. Without: hands requests in. NULL: no
     * queue. */
    const struct mg_queue_options *queue;
    struct mg_scheduler_options scheduler;
    struct mg_answer_options answer; /* what a request that says nothing gets */
    /* Once requests are taken; the URL is valid during the call. May be NULL. */
    void (*listening)(void *user, const char *url);
    void *user;
};

/* The engine is the server's until closed; NULL: a gateway, which needs options->queue. */
enum mg_status mg_server_open(mg_engine *engine, const struct mg_server_options *options,
                              struct mg_server **out, struct mg_err *err);
/* Serves on this thread until stopped. */
enum mg_status mg_server_run(struct mg_server *s, struct mg_err *err);
/* From any thread and from signal handlers. A second call cuts the time short. */
void mg_server_stop(struct mg_server *s);
void mg_server_reload(struct mg_server *s); /* keys, certificate, log file */
void mg_server_close(struct mg_server *s);

#endif
