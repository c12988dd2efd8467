/* store/store.c - see store.h: what all stores have in common. */
#include "store/store.h"

#include "base/io.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void mg_store_init(struct mg_byte_store *s, const struct mg_store_ops *ops) {
    s->ops = ops;
    s->news = NULL;
    s->user = NULL;
    pthread_mutex_init(&s->mutex, NULL);
}

void mg_store_destroy(struct mg_byte_store *s) {
    pthread_mutex_destroy(&s->mutex);
}

/* --- reads --- */
struct mg_store_read *mg_store_read_begin(struct mg_byte_store *s, const struct mg_store_key *key,
                                          size_t max_body) {
    struct mg_store_read *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->store = s;
    r->key = *key;
    r->max_body = max_body;
    r->begun = r->progress = mg_clock();
    r->refs = 2;
    pthread_mutex_lock(&s->mutex);
    bool taken = s->ops->read(s, r);
    pthread_mutex_unlock(&s->mutex);
    if (taken) return r;
    free(r);
    return NULL;
}

enum mg_store_state mg_store_read_take(struct mg_store_read *r, struct mg_store_value *value) {
    pthread_mutex_lock(&r->store->mutex);
    enum mg_store_state state = r->state;
    if (state == MG_STORE_FOUND) {
        *value = r->value;
        r->value.body = NULL;
    }
    pthread_mutex_unlock(&r->store->mutex);
    return state;
}

double mg_store_read_progress(struct mg_store_read *r) {
    pthread_mutex_lock(&r->store->mutex);
    double at = r->progress;
    pthread_mutex_unlock(&r->store->mutex);
    return at;
}

const struct mg_store_key *mg_store_read_key(const struct mg_store_read *r) {
    return &r->key;
}

/* Under the mutex. */
static void let_go(struct mg_store_read *r) {
    if (--r->refs) return;
    free(r->value.body);
    free(r);
}

void mg_store_read_end(struct mg_store_read *r) {
    if (!r) return;
    struct mg_byte_store *s = r->store;
    pthread_mutex_lock(&s->mutex);
    let_go(r);
    pthread_mutex_unlock(&s->mutex);
}

void mg_store_read_done(struct mg_store_read *r, enum mg_store_state state,
                        struct mg_store_value *value) {
    struct mg_byte_store *s = r->store;
    r->state = state;
    if (state == MG_STORE_FOUND) r->value = *value;
    let_go(r);
    if (s->news) s->news(s->user);
}

/* --- puts --- */
void mg_store_put_free(struct mg_store_put *p) {
    if (p->release) p->release(p->user);
    free(p);
}

void mg_store_put(struct mg_byte_store *s, const struct mg_store_key *key, const void *head,
                  size_t n_head, const void *body, size_t n_body, double seconds,
                  void (*release)(void *user), void *user) {
    struct mg_store_put *p = calloc(1, sizeof *p);
    if (!p) {
        if (release) release(user);
        return;
    }
    p->key = *key;
    p->n_head = mg_min_size(n_head, sizeof p->head);
    if (n_head) memcpy(p->head, head, p->n_head);
    p->body = body;
    p->n_body = n_body;
    p->seconds = seconds;
    p->made = (int64_t)time(NULL);
    p->release = release;
    p->user = user;
    pthread_mutex_lock(&s->mutex);
    bool taken = s->ops->put(s, p);
    pthread_mutex_unlock(&s->mutex);
    if (!taken) mg_store_put_free(p);
}

void mg_store_on_news(struct mg_byte_store *s, void (*news)(void *user), void *user) {
    pthread_mutex_lock(&s->mutex);
    s->news = news;
    s->user = user;
    pthread_mutex_unlock(&s->mutex);
}

void mg_store_counts(struct mg_byte_store *s, struct mg_store_counts *out) {
    *out = (struct mg_store_counts){0};
    pthread_mutex_lock(&s->mutex);
    s->ops->counts(s, out);
    pthread_mutex_unlock(&s->mutex);
}

void mg_store_close(struct mg_byte_store *s) {
    if (!s) return;
    s->ops->close(s);
    mg_store_destroy(s);
    free(s);
}
