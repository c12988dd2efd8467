/* server/work.c - reading large requests beside the loop: 28 MB of base64 in JSON take 70 ms, a
 * megabyte of text to be tokenised up to 60 ms, and nobody else's stream is to wait for them.
 *
 * One thread, first come first served. Small requests are read on the loop thread at once: handing
 * them over and back would take longer than reading them.
 */
#include "server/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const size_t most_bytes = (size_t)512 << 20; /* that may wait to be read */

static void work_clear(struct work *w) {
    mg_chat_request_free(w->chat);
    mg_completion_request_free(w->completion);
    mg_ws_request_free(&w->ws);
    pictures_drop(&w->picture);
    upload_drop(w->upload);
    mg_job_request_free(w->job);
    mg_buf_free(&w->out);
    mg_buf_free(&w->held);
}

static void on_stop(struct mg_http_exchange *x, void *user) {
    (void)user;
    reply_err(x, MG_ERR_CANCELLED, "shutting_down", "the server is being stopped");
}

/* Loop thread. */
static void finish(void *arg) {
    struct work *w = arg;
    struct mg_http_exchange *x = mg_http_find(w->s->http, w->exchange);
    if (x && w->socket) {
        w->done(w, x);
    } else if (x && !mg_http_has_replied(x)) {
        mg_http_on_stop(x, NULL);
        w->done(w, x);
    }
    work_clear(w);
    free(w);
}

static struct work *next_work(struct worker *k) {
    pthread_mutex_lock(&k->mutex);
    while (!k->first && !k->closing) pthread_cond_wait(&k->more, &k->mutex);
    struct work *w = k->closing ? NULL : k->first;
    if (w) {
        k->first = w->next;
        if (!k->first) k->last = &k->first;
        k->bytes -= w->held.n;
    }
    pthread_mutex_unlock(&k->mutex);
    return w;
}

static bool is_closing(struct worker *k) {
    pthread_mutex_lock(&k->mutex);
    bool closing = k->closing;
    pthread_mutex_unlock(&k->mutex);
    return closing;
}

static void *run(void *arg) {
    struct worker *k = arg;
    for (struct work *w; (w = next_work(k)) != NULL;) {
        w->run(w);
        mg_buf_free(&w->held);
        w->body = (struct mg_slice){0};
        /* The loop's ring is full only while the loop is far behind. */
        while (mg_http_server_post(w->s->http, finish, w) != MG_OK) {
            if (is_closing(k)) {
                work_clear(w);
                free(w);
                break;
            }
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
    return NULL;
}

enum mg_status worker_open(struct worker *k, struct mg_err *err) {
    k->last = &k->first;
    pthread_mutex_init(&k->mutex, NULL);
    pthread_cond_init(&k->more, NULL);
    k->running = pthread_create(&k->thread, NULL, run, k) == 0;
    return k->running ? MG_OK : mg_fail_memory(err, "reading thread");
}

void worker_close(struct worker *k) {
    if (!k->last) return;
    if (k->running) {
        pthread_mutex_lock(&k->mutex);
        k->closing = true;
        pthread_cond_signal(&k->more);
        pthread_mutex_unlock(&k->mutex);
        pthread_join(k->thread, NULL);
    }
    while (k->first) {
        struct work *w = k->first;
        k->first = w->next;
        work_clear(w);
        free(w);
    }
    pthread_cond_destroy(&k->more);
    pthread_mutex_destroy(&k->mutex);
}

/* Takes *held if there is room. */
static bool put(struct worker *k, struct work *w, struct mg_buf *held) {
    pthread_mutex_lock(&k->mutex);
    bool room = k->bytes + held->n <= most_bytes;
    if (room) {
        w->held = *held;
        w->body = (struct mg_slice){held->data, held->n};
        *held = (struct mg_buf){0};
        k->bytes += w->held.n;
        *k->last = w;
        k->last = &w->next;
        pthread_cond_signal(&k->more);
    }
    pthread_mutex_unlock(&k->mutex);
    return room;
}

static enum mg_status no_room(struct mg_fault *f) {
    return mg_fault_set(f, MG_ERR_LIMIT, "busy", "", "too many large requests wait to be read");
}

enum mg_status work_add(const struct work *like, const void *data, size_t n, struct mg_fault *f) {
    struct work *w = malloc(sizeof *w);
    struct mg_buf held = {0};
    if (!w || !mg_buf_add(&held, data, n)) {
        free(w);
        mg_buf_free(&held);
        return mg_fault_memory(f, "request");
    }
    *w = *like;
    if (put(&like->s->worker, w, &held)) return MG_OK;
    free(w);
    mg_buf_free(&held);
    return no_room(f);
}

static void hand_over(struct mg_server *s, struct mg_http_exchange *x, const struct work *like) {
    struct work *w = malloc(sizeof *w);
    struct mg_fault f = {0};
    struct mg_buf held;
    if (!w) {
        mg_fault_memory(&f, "request");
        reply_fault(x, &f);
        return;
    }
    *w = *like;
    mg_http_take_body(x, &held);
    mg_http_on_stop(x, on_stop);
    if (put(&s->worker, w, &held)) return;
    free(w);
    mg_buf_free(&held);
    no_room(&f);
    reply_fault(x, &f);
}

void work_begin(struct mg_server *s, struct mg_http_exchange *x, work_fn *run_fn,
                work_done_fn *done) {
    struct work w = {.s = s, .exchange = mg_http_id(x), .run = run_fn, .done = done};
    const char *type = mg_http_header(x, "Content-Type");
    snprintf(w.type, sizeof w.type, "%s", type ? type : "");
    server_tenant(s, x, w.tenant);
    if (mg_http_body(x).n > WORK_SMALL_BYTES) {
        hand_over(s, x, &w);
        return;
    }
    w.body = mg_http_body(x);
    run_fn(&w);
    done(&w, x);
    work_clear(&w);
}
