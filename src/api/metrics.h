/* api/metrics.h - what the server counts, and Prometheus' text form of it (version 0.0.4).
 *
 * One table (metrics.c) has every metric with its labels and all values these can have, so nothing
 * is allocated while counting and no request can make a new time series: a value that isn't in the
 * list counts as its last one, "other". Users, paths, model names from requests never are labels.
 *
 *     mg_metrics_add_at(m, MG_M_HTTP_REQUESTS, 1, route, method, code)
 *     mg_metrics_add(m, MG_M_GENERATED_TOKENS, 12)
 *     mg_metrics_observe(m, MG_M_TTFT, seconds)
 *
 * Any thread may add, set, observe and write: cells are atomics, each add is one or two relaxed
 * instructions, no lock is taken. A scrape in between sees each cell whole, not all cells of one
 * moment. Labels are numbers here; mg_metrics_label finds the number of a text once, when routes
 * are set up.
 */
#ifndef MG_API_METRICS_H
#define MG_API_METRICS_H

#include "base/err.h"
#include "base/mem.h"

enum mg_metric {
    /* Counters. */
    MG_M_REQUESTS,      /* endpoint, finish_reason */
    MG_M_HTTP_REQUESTS, /* route, method, code */
    MG_M_PROMPT_TOKENS, /* source */
    MG_M_IMAGE_TOKENS,
    MG_M_IMAGES, /* format, outcome */
    MG_M_GENERATED_TOKENS,
    MG_M_DRAFTED_TOKENS,
    MG_M_ACCEPTED_TOKENS,
    MG_M_IMAGE_CACHE_QUERIES,
    MG_M_IMAGE_CACHE_HITS,
    MG_M_PROMPT_CACHE_QUERIES, /* tokens */
    MG_M_PROMPT_CACHE_HITS,    /* tokens */
    MG_M_ANSWER_CACHE_QUERIES,
    MG_M_ANSWER_CACHE_HITS, /* kind */
    MG_M_CANCELLED,         /* phase */
    MG_M_ERRORS,            /* type */
    MG_M_SHARED_QUERIES,    /* kind */
    MG_M_SHARED_HITS,       /* kind */
    MG_M_SHARED_STORED,     /* kind */
    MG_M_SHARED_DROPPED,    /* what */
    MG_M_SHARED_ERRORS,     /* reason */
    MG_M_SHARED_BYTES,      /* direction */
    /* Of a gateway's queue, all gateways and workers together. */
    MG_M_QUEUE_SUBMITTED,
    MG_M_QUEUE_REFUSED,
    MG_M_QUEUE_TAKEOVERS,
    MG_M_QUEUE_RETURNED,
    MG_M_QUEUE_ENDED, /* state */
    /* Of a worker. */
    MG_M_JOBS_TAKEN,
    MG_M_JOBS_LOST,
    MG_M_JOBS_RETURNED,
    /* Gauges. */
    MG_M_QUEUE_JOBS, /* state */
    MG_M_QUEUE_BYTES,
    MG_M_QUEUE_SLOTS,
    MG_M_QUEUE_WORKERS,
    MG_M_RUNNING,
    MG_M_WAITING,
    MG_M_SLOTS, /* state */
    MG_M_KV_USAGE,
    MG_M_CACHE_BYTES, /* cache: image, prompt, answer */
    MG_M_CACHE_LIMIT, /* likewise */
    MG_M_REDIS_UP,
    MG_M_MODEL_LOADED,
    MG_M_CONNECTIONS,
    /* Histograms. */
    MG_M_TTFT,
    MG_M_TIME_PER_TOKEN,
    MG_M_REQUEST_SECONDS,
    MG_M_QUEUE_SECONDS,
    MG_M_JOB_WAIT,
    MG_M_IMAGE_DECODE_SECONDS,
    MG_M_VISION_SECONDS,
    MG_M_PREFILL_SECONDS,
    MG_M_DECODE_SECONDS,
    MG_M_PROMPT_TOKENS_SIZE,
    MG_M_GENERATED_TOKENS_SIZE,
    MG_M_IMAGE_TOKENS_SIZE,
    MG_M_SHARED_READ_SECONDS,
    MG_M_SHARED_WRITE_SECONDS,
    MG_N_METRIC
};

struct mg_metrics;

enum mg_status mg_metrics_open(struct mg_metrics **out, struct mg_err *err);
void mg_metrics_close(struct mg_metrics *m); /* NULL is fine */

/* The number of `text` among the values of the metric's i-th label, upper and lower case alike;
 * that of the last value ("other" where there is one) when it isn't there. */
unsigned mg_metrics_label(enum mg_metric id, unsigned i, const char *text);

/* Up to three label values, those that the metric has; what is out of range counts as "other". */
void mg_metrics_add_at(struct mg_metrics *m, enum mg_metric id, uint64_t n, unsigned a, unsigned b,
                       unsigned c);
void mg_metrics_set_at(struct mg_metrics *m, enum mg_metric id, double x, unsigned a);
void mg_metrics_observe(struct mg_metrics *m, enum mg_metric id, double x);
static inline void mg_metrics_add(struct mg_metrics *m, enum mg_metric id, uint64_t n) {
    mg_metrics_add_at(m, id, n, 0, 0, 0);
}
static inline void mg_metrics_set(struct mg_metrics *m, enum mg_metric id, double x) {
    mg_metrics_set_at(m, id, x, 0);
}
/* A gauge one up or down. */
void mg_metrics_step(struct mg_metrics *m, enum mg_metric id, int by);
/* A counter's or gauge's value, for tests and /slots. */
double mg_metrics_value(const struct mg_metrics *m, enum mg_metric id, unsigned a, unsigned b,
                        unsigned c);

/* What doesn't change or is known elsewhere; read at the scrape. */
struct mg_metrics_info {
    const char *model, *weights, *tier, *version; /* labels of margay_model_info */
    int n_thread;
    /* Of the process; a negative number leaves the metric out. */
    double cpu_seconds, start_seconds; /* used so far; since 1970 */
    double resident_bytes, open_fds, max_fds;
};
/* Appends the exposition; false when the buffer could not grow. */
bool mg_metrics_write(const struct mg_metrics *m, const struct mg_metrics_info *info,
                      struct mg_buf *out);
#define MG_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
