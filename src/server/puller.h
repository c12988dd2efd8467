/* server/puller.h - margay worker: takes jobs from a queue (store/job_queue.h) and has them
 * answered by the server that it is part of.
 *
 *   taking thread     take -> pictures -> earlier events -> a socket pair -> the server's loop
 *   running thread    reply's bytes <- its socket;  emit, beat -> Redis
 *
 * Each job is a request over an internal connection (mg_http_server_adopt), so that reading it,
 * streams, errors and cancelling (closing the connection) are the server's own. Its fields
 * X-Margay-Job, -Tenant and -Created are believed there and nowhere else: they make two attempts at
 * a job alike (id, date, seed).
 *
 * The first bytes of an answer go to Redis at once, later ones every 30 ms or 16 KB; a reply that
 * is no stream goes whole. While Redis is away the answer is made on and kept.
 */
#ifndef MG_SERVER_PULLER_H
#define MG_SERVER_PULLER_H

#include "api/fault.h"
#include "store/job_queue.h"

struct mg_server;
struct puller;
struct mg_image_source;

struct puller_options {
    struct mg_queue_options queue;
    size_t places;        /* jobs at a time */
    double drain_seconds; /* for jobs under way when stopped; then they are given back */
    const char *prefix;   /* of the server's paths, or NULL */
    const char *about;    /* JSON that gateways show of this worker; copied */
};

/* Takes no job before puller_start. */
enum mg_status puller_open(struct mg_server *s, const struct puller_options *o, struct puller **out,
                           struct mg_err *err);
enum mg_status puller_start(struct puller *p, struct mg_err *err);
/* No more jobs; those under way end or are given back in time. Any thread, any signal handler. The
 * second time: given back at once. */
void puller_stop(struct puller *p);
/* Stops, waits for its threads. Before the HTTP server is closed. NULL is fine. */
void puller_close(struct puller *p);

/* The picture that a job's body calls `name`, for as long as `to` has it. Any thread. */
bool puller_lend(struct puller *p, const char *job, const char *name, struct mg_image_source *to);

struct puller_counts {
    size_t running;
    uint64_t taken, emitted, lost, returned; /* jobs; calls; attempts overtaken; given back */
    bool up;
};
void puller_counts(struct puller *p, struct puller_counts *out);

#endif
