/* net/post_queue.h - functions that other threads hand to the loop thread.
 *
 * A ring of fixed size under a mutex, with an eventfd that the loop watches. A function is put into
 * the ring before the eventfd is written, and the loop reads the eventfd before it takes from the
 * ring, so none waits unseen. Each accepted function is called exactly once: by
 * mg_post_queue_run, or by mg_post_queue_close if the loop has ended before.
 *
 * Any thread: put, wake. A signal handler: wake. The loop thread: the others.
 */
#ifndef MG_NET_POST_QUEUE_H
#define MG_NET_POST_QUEUE_H

#include "base/err.h"
#include "base/mem.h"

#include <pthread.h>

typedef void mg_post_fn(void *arg);

struct mg_post_queue {
    pthread_mutex_t lock; /* guards the fields below but fd */
    struct mg_post {
        mg_post_fn *fn;
        void *arg;
    } * ring;     /* cap entries, owned */
    size_t cap;   /* constant */
    size_t first; /* index of the oldest */
    size_t n;
    bool closed;
    int fd; /* eventfd, constant; readable when there is something to do */
};

enum mg_status mg_post_queue_open(struct mg_post_queue *q, size_t cap, struct mg_err *err);
/* Calls what is left, then frees. */
void mg_post_queue_close(struct mg_post_queue *q);

/* MG_ERR_LIMIT: the ring is full, or closed; fn will not be called. */
enum mg_status mg_post_queue_put(struct mg_post_queue *q, mg_post_fn *fn, void *arg);
/* Makes fd readable, no more. */
void mg_post_queue_wake(const struct mg_post_queue *q);
/* Calls the functions that are in the ring now; such as they put themselves wait for the next time.
 */
void mg_post_queue_run(struct mg_post_queue *q);

#endif
