/* net/post_queue.c - see post_queue.h. */
#include "net/post_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum mg_status mg_post_queue_open(struct mg_post_queue *q, size_t cap, struct mg_err *err) {
    *q = (struct mg_post_queue){.cap = cap, .fd = -1};
    q->ring = mg_alloc_zero(cap, sizeof *q->ring);
    if (!q->ring) return mg_fail_memory(err, "queue of the loop");
    if (pthread_mutex_init(&q->lock, NULL)) {
        mg_post_queue_close(q);
        return mg_fail_memory(err, "lock of the loop's queue");
    }
    q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->fd < 0) {
        int e = errno;
        pthread_mutex_destroy(&q->lock);
        mg_post_queue_close(q);
        return mg_fail_errno(err, "make", "an eventfd", e);
    }
    return MG_OK;
}

/* The oldest entry, when there is one. */
static bool take(struct mg_post_queue *q, struct mg_post *out) {
    pthread_mutex_lock(&q->lock);
    bool some = q->n > 0;
    if (some) {
        *out = q->ring[q->first];
        q->first = (q->first + 1) % q->cap;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return some;
}

void mg_post_queue_close(struct mg_post_queue *q) {
    if (q->fd >= 0) {
        pthread_mutex_lock(&q->lock);
        q->closed = true;
        pthread_mutex_unlock(&q->lock);
        struct mg_post post;
        while (take(q, &post)) post.fn(post.arg);
        pthread_mutex_destroy(&q->lock);
        close(q->fd);
    }
    free(q->ring);
    *q = (struct mg_post_queue){.fd = -1};
}

void mg_post_queue_wake(const struct mg_post_queue *q) {
    int e = errno; /* a signal handler may be calling */
    ssize_t ignored = write(q->fd, &(uint64_t){1}, 8);
    (void)ignored; /* EAGAIN: the counter is full, so it is readable already */
    errno = e;
}

enum mg_status mg_post_queue_put(struct mg_post_queue *q, mg_post_fn *fn, void *arg) {
    pthread_mutex_lock(&q->lock);
    bool room = !q->closed && q->n < q->cap;
    if (room) {
        q->ring[(q->first + q->n) % q->cap] = (struct mg_post){fn, arg};
        q->n++;
    }
    pthread_mutex_unlock(&q->lock);
    if (!room) return MG_ERR_LIMIT;
    mg_post_queue_wake(q);
    return MG_OK;
}

void mg_post_queue_run(struct mg_post_queue *q) {
    uint64_t count;
    ssize_t ignored = read(q->fd, &count, 8);
    (void)ignored;
    pthread_mutex_lock(&q->lock);
    size_t n = q->n;
    pthread_mutex_unlock(&q->lock);
    struct mg_post post;
    while (n-- > 0 && take(q, &post)) post.fn(post.arg);
}
