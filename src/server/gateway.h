/* server/gateway.h - margay serve --queue: the server without a model. Requests go into a queue
 * (store/job_queue.h), answers come out of it, byte for byte as the worker's server wrote them.
 *
 *   loop thread           sending thread           reading thread
 *   request, pictures --> submit, cancel, state
 *   reply <---------------------------------------- inbox, events
 *
 * The inbox is a stream of notes ("there is something new of job J") that the queue's script writes
 * to for each gateway that watches a job, so that one waiting call serves any number of jobs; what
 * is behind a note that was lost is found by looking at all open jobs once a second.
 *
 * A client that leaves cancels its job unless it named it (X-Margay-Job) or said
 * X-Margay-Detach: 1; X-Margay-Background: 1 gets an id at once. GET /v1/jobs/{id} says how a job
 * is, or with Accept: text/event-stream goes on with its events behind ?offset=BYTES or
 * Last-Event-ID; DELETE cancels. Only the key that asked may do so.
 */
#ifndef MG_SERVER_GATEWAY_H
#define MG_SERVER_GATEWAY_H

#include "net/http_server.h"
#include "store/job_queue.h"

struct mg_server;
struct gateway;

enum mg_status gateway_open(struct mg_server *s, const struct mg_queue_options *o,
                            struct gateway **out, struct mg_err *err);
/* *out has to be closed also when this fails. */
enum mg_status gateway_start(struct gateway *g, struct mg_err *err);
/* Ends its threads, before the HTTP server is closed; gateway_close after it. NULL is fine. */
void gateway_stop(struct gateway *g);
void gateway_close(struct gateway *g);

/* Its routes in place of those that need a model; *n of them. */
const struct mg_http_route *gateway_routes(size_t *n);
/* Jobs of the queue. */
void gateway_load(struct gateway *g, size_t *running, size_t *waiting);
/* Gauges of the queue, for /metrics. */
void gateway_gauges(struct gateway *g);

#endif
