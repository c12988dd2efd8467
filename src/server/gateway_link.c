/* server/gateway_link.c - the gateway's two threads that speak to Redis. See gateway.h.
 *
 * Sending: orders of the loop, one after another; once a second it looks at the queue and reaps.
 * While Redis is away an order is tried for a second or two, then its client gets 503; jobs whose
 * submit may have been done all the same are cancelled when Redis is there again.
 *
 * Reading: waits for notes in the inbox, reads the events of the jobs they name, and hands them to
 * the loop. A relay is not read while the loop still has what was read before (`busy`).
 */
#include "server/gateway_link.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_READ = 256 }; /* jobs read at a time */
static const double look_seconds = 1, patience_seconds = 2, doubt_seconds = 5, away_leases = 6,
                    longest_away_seconds = 60, cancel_seconds = 120, pause_seconds = 0.05,
                    held_seconds = 0.005;
/* For so long the reading thread looks every held_seconds whether the loop has passed on what it
 * has; after that the loop wakes it. */
static const double quick_seconds = 0.02;

static void lock(struct gateway *g) {
    pthread_mutex_lock(&g->mutex);
}
static void unlock(struct gateway *g) {
    pthread_mutex_unlock(&g->mutex);
}

static bool is_closing(struct gateway *g) {
    lock(g);
    bool closing = g->closing;
    unlock(g);
    return closing;
}

/* --- from the loop --- */
static enum mg_status put_order(struct gateway *g, struct order *o) {
    lock(g);
    bool closing = g->closing;
    if (!closing) {
        o->next = NULL;
        *g->last = o;
        g->last = &o->next;
        pthread_cond_signal(&g->more);
    }
    unlock(g);
    return closing ? MG_ERR_CANCELLED : MG_OK;
}

static void drop_order(struct order *o) {
    if (o->relay) relay_unref(o->relay);
    free(o);
}

enum mg_status gateway_order(struct relay *r, enum order_kind kind) {
    struct order *o = calloc(1, sizeof *o);
    if (!o) return MG_ERR_MEMORY;
    *o = (struct order){.relay = r, .kind = kind, .until = mg_clock() + patience_seconds};
    memcpy(o->id, r->id, sizeof o->id);
    memcpy(o->tenant, r->tenant, sizeof o->tenant);
    atomic_fetch_add(&r->refs, 1);
    enum mg_status st = put_order(r->g, o);
    if (st) drop_order(o);
    return st;
}

/* A cancel that nobody waits for. */
static void cancel_order(struct gateway *g, const char *id, const char *tenant) {
    struct order *o = calloc(1, sizeof *o);
    if (!o) return;
    *o = (struct order){.kind = ORDER_CANCEL, .until = mg_clock() + cancel_seconds};
    snprintf(o->id, sizeof o->id, "%s", id);
    snprintf(o->tenant, sizeof o->tenant, "%s", tenant);
    if (put_order(g, o) != MG_OK) free(o);
}

void gateway_cancel_later(struct relay *r) {
    if (r->id[0]) cancel_order(r->g, r->id, r->tenant);
}

static void watch(struct relay *r) {
    struct gateway *g = r->g;
    lock(g);
    if (!r->watched && !atomic_load(&r->gone)) {
        atomic_fetch_add(&r->refs, 1);
        r->watched = r->dirty = true;
        r->heard = mg_clock();
        r->next = g->watched;
        g->watched = r;
    }
    unlock(g);
}

void gateway_forget(struct relay *r) {
    struct gateway *g = r->g;
    bool was = false;
    lock(g);
    for (struct relay **at = &g->watched; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            r->watched = false;
            was = true;
            break;
        }
    unlock(g);
    if (was) relay_unref(r);
}

void gateway_more(struct relay *r) {
    struct gateway *g = r->g;
    lock(g);
    bool wake = r->busy && r->dirty && r->watched && mg_clock() - r->busy_at >= quick_seconds;
    r->busy = false;
    unlock(g);
    if (wake) gateway_order(r, ORDER_NOTE);
}

/* --- to the loop --- */
static struct answer *new_answer(struct relay *r, const char *code) {
    struct answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    atomic_fetch_add(&r->refs, 1);
    a->relay = r;
    a->whole.max = (size_t)64 << 20;
    snprintf(a->code, sizeof a->code, "%s", code);
    return a;
}

static void drop_answer(struct answer *a) {
    relay_unref(a->relay);
    mg_buf_free(&a->whole);
    free(a);
}

/* The loop's ring is full only while the loop is far behind. */
static void post(struct gateway *g, mg_post_fn *fn, void *arg, void (*drop)(void *arg)) {
    while (mg_http_server_post(g->s->http, fn, arg) != MG_OK) {
        if (is_closing(g)) {
            drop(arg);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void drop_answer_arg(void *arg) {
    drop_answer(arg);
}

static void tell_answer(struct gateway *g, struct answer *a) {
    if (a) post(g, on_answer, a, drop_answer_arg);
}

static void drop_delivery(void *arg) {
    struct delivery *d = arg;
    relay_unref(d->relay);
    mg_buf_free(&d->head);
    mg_buf_free(&d->data);
    free(d);
}

/* --- the sending thread --- */
static enum mg_status submit(struct gateway *g, struct relay *r, enum mg_submit *told,
                             double *seconds, struct mg_err *err) {
    struct mg_job_request *q = r->request;
    struct mg_job_blob blob[MG_JOB_MAX_PICTURES];
    struct mg_slice data[MG_JOB_MAX_PICTURES];
    for (size_t i = 0; i < r->n_picture; i++) {
        struct mg_job_picture *p = &q->picture[i];
        uint8_t digest[MG_SHA256_BYTES];
        data[i] = p->bytes ? (struct mg_slice){p->bytes, p->n}
                           : (struct mg_slice){r->upload[i]->bytes->data, p->n};
        if (!p->digest[0]) {
            if (!mg_sha256(data[i].data, data[i].n, digest)) return mg_fail_memory(err, "picture");
            mg_hex(digest, sizeof digest, p->digest);
        }
        memcpy(blob[i].name, p->name, sizeof blob[i].name);
        memcpy(blob[i].digest, p->digest, sizeof blob[i].digest);
    }
    struct mg_job_order job = {.id = r->id,
                               .tenant = r->tenant,
                               .priority = r->priority,
                               .stream = q->stream,
                               .gateway = g->name,
                               .path = r->path,
                               .body = q->body.data,
                               .n_body = q->body.n,
                               .bytes = r->bytes,
                               .blob = blob,
                               .data = data,
                               .n_blob = r->n_picture};
    return mg_queue_submit(g->sending, &job, told, seconds, err);
}

static void on_whole(void *user, const struct mg_queue_event *e) {
    struct answer *a = user;
    if (e->head) a->status = (int)strtol(e->head, NULL, 10);
    mg_buf_add(&a->whole, e->data.data, e->data.n);
}

static enum mg_status tell_state(struct gateway *g, struct relay *r, struct mg_err *err) {
    struct answer *a = new_answer(r, "");
    if (!a) return mg_fail_memory(err, "job");
    const char *id = r->id, *after = "0-0";
    enum mg_status st = mg_queue_state(g->sending, r->id, r->tenant, "", &a->job, err);
    if (!st && !a->job.stream && !strcmp(a->job.state, "done"))
        st = mg_queue_events(g->sending, &id, &after, 1, on_whole, a, err);
    if (st)
        drop_answer(a);
    else
        tell_answer(g, a);
    return st;
}

static enum mg_status hand_in(struct gateway *g, struct relay *r, struct mg_err *err) {
    enum mg_submit told;
    double seconds;
    if (atomic_load(&r->gone) && !r->detached) return MG_OK;
    if (!r->background) watch(r); /* before the first note can come */
    enum mg_status st = submit(g, r, &told, &seconds, err);
    if (!st && told == MG_SUBMIT_FULL) {
        gateway_forget(r);
        struct answer *a = new_answer(r, "queue_full");
        if (a) a->retry_seconds = seconds;
        tell_answer(g, a);
        return MG_OK;
    }
    if (st) return st;
    g->full = false;
    relay_drop_request(r); /* it is in Redis */
    /* Who left in between has been cancelled before it was there. */
    if (atomic_load(&r->gone) && !r->detached) cancel_order(g, r->id, r->tenant);
    return MG_OK;
}

static enum mg_status do_submit(struct gateway *g, struct relay *r, struct mg_err *err) {
    enum mg_status st = r->request ? hand_in(g, r, err) : MG_OK; /* none: only the rest failed */
    return !st && r->background && !r->request ? tell_state(g, r, err) : st;
}

/* Has the job ended before what its client says that it has? Then nothing would ever come. */
static bool is_beyond(const struct relay *r, const struct mg_job_state *job) {
    return job->ended_ms && strtoull(r->place, NULL, 10) > job->offset;
}

static enum mg_status do_watch(struct gateway *g, struct relay *r, struct mg_err *err) {
    struct mg_job_state job;
    enum mg_status st = mg_queue_state(g->sending, r->id, r->tenant, g->name, &job, err);
    if (st) return st;
    if (!job.state[0]) {
        tell_answer(g, new_answer(r, ""));
    } else if (is_beyond(r, &job)) {
        tell_answer(g, new_answer(r, "invalid_offset"));
    } else {
        watch(r);
        mg_queue_note(g->sending, g->name, r->id, NULL); /* else the next sweep finds it */
    }
    return MG_OK;
}

static enum mg_status do_order(struct gateway *g, struct order *o, struct mg_err *err) {
    bool found;
    enum mg_status st = MG_OK;
    switch (o->kind) {
    case ORDER_SUBMIT: return do_submit(g, o->relay, err);
    case ORDER_WATCH: return do_watch(g, o->relay, err);
    case ORDER_STATE: return tell_state(g, o->relay, err);
    case ORDER_NOTE: return mg_queue_note(g->sending, g->name, o->id, err);
    case ORDER_CANCEL:
        st = mg_queue_cancel(g->sending, o->id, o->tenant, &found, err);
        return st || !o->relay ? st : tell_state(g, o->relay, err);
    }
    return MG_OK;
}

/* Is it the connection, so that the order is worth another try? */
static bool is_full(const struct mg_err *err) {
    return !strcmp(err->code, "redis_full");
}
static bool is_away(const struct mg_err *err) {
    return !strncmp(err->code, "redis_", 6) && strcmp(err->code, "redis_error") != 0 &&
           !is_full(err);
}

static void give_up(struct gateway *g, struct order *o, const struct mg_err *err) {
    bool said = is_away(err) || (is_full(err) && g->full);
    if (!said) mg_log(MG_LOG_WARN, "queue: %s", err->text);
    g->full = g->full || is_full(err);
    if (!o->relay || o->kind == ORDER_NOTE) return;
    if (o->kind == ORDER_SUBMIT) {
        gateway_forget(o->relay);
        /* It may have got there; a client that named it will ask again. */
        if (!o->relay->detached) cancel_order(g, o->id, o->tenant);
    }
    const char *code = !strcmp(err->code, "job_id_taken") ? "job_id_taken"
                       : is_away(err) || is_full(err)     ? "queue_unavailable"
                       : err->status == MG_ERR_MEMORY     ? "out_of_memory"
                                                          : "queue_error";
    struct answer *a = new_answer(o->relay, code);
    if (a) a->retry_seconds = 2;
    tell_answer(g, a);
}

static void note_up(struct gateway *g, bool up, const struct mg_err *err) {
    lock(g);
    bool was = g->up;
    g->up = up;
    unlock(g);
    if (was && !up) mg_log(MG_LOG_WARN, "the queue is away: %s", err->text);
    if (!was && up) mg_log(MG_LOG_INFO, "the queue is there");
}

/* What one worker says: kept once for each model. */
struct abouts {
    struct mg_buf about[GATEWAY_MODELS];
    size_t n, n_worker;
};

static void on_about(void *user, const char *about, size_t n) {
    struct abouts *a = user;
    a->n_worker++;
    for (size_t i = 0; i < a->n; i++)
        if (a->about[i].n == n && !memcmp(a->about[i].data, about, n)) return;
    if (a->n < GATEWAY_MODELS && mg_buf_add(&a->about[a->n], about, n)) a->n++;
}

static bool look(struct gateway *g) {
    struct mg_queue_look seen;
    struct mg_err err = {0};
    struct abouts a = {0};
    unsigned lost;
    enum mg_status st = mg_queue_look(g->sending, &seen, on_about, &a, &err);
    if (!st) st = mg_queue_reap(g->sending, &lost, &err);
    note_up(g, st == MG_OK, &err);
    if (!st) {
        lock(g);
        for (size_t i = 0; i < g->n_about; i++) mg_buf_free(&g->about[i]);
        memcpy(g->about, a.about, sizeof a.about);
        g->n_about = a.n;
        g->n_worker = a.n_worker;
        g->look = seen;
        unlock(g);
        return true;
    }
    for (size_t i = 0; i < GATEWAY_MODELS; i++) mg_buf_free(&a.about[i]);
    return false;
}

/* The next order, or NULL at `until`, or when closing. */
static struct order *next_order(struct gateway *g, double until, bool *closing) {
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
    lock(g);
    while (!g->first && !g->closing && mg_clock() < until)
        pthread_cond_timedwait(&g->more, &g->mutex, &at);
    struct order *o = g->first;
    *closing = g->closing;
    if (o) {
        g->first = o->next;
        if (!g->first) g->last = &g->first;
    }
    unlock(g);
    return o;
}

/* Redis is there: what was kept for that is tried again. */
static void order_held(struct gateway *g) {
    while (g->held) {
        struct order *o = g->held;
        g->held = o->next;
        if (put_order(g, o) != MG_OK) drop_order(o);
    }
}

/* Orders go on until each was tried once: a gateway that stops still cancels what it has to.
 * Cancels that nobody waits for don't hold up the rest while Redis is away. */
static void *send_orders(void *arg) {
    struct gateway *g = arg;
    double next_look = 0;
    bool closing = false;
    for (;;) {
        if (!closing && mg_clock() >= next_look) {
            if (look(g)) order_held(g);
            next_look = mg_clock() + look_seconds;
        }
        struct order *o = next_order(g, next_look, &closing);
        if (!o && closing) return NULL;
        if (!o) continue;
        struct mg_err err = {0};
        enum mg_status st = do_order(g, o, &err);
        if (!st || !is_away(&err)) note_up(g, true, &err);
        if (!st) order_held(g);
        if (st && is_away(&err) && !closing && mg_clock() < o->until) {
            if (!o->relay) {
                o->next = g->held;
                g->held = o;
                continue;
            }
            nanosleep(&(struct timespec){.tv_nsec = (long)(pause_seconds * 1e9)}, NULL);
            if (put_order(g, o) == MG_OK) continue;
        }
        if (st) give_up(g, o, &err);
        drop_order(o);
    }
}

/* --- the reading thread --- */
struct reading {
    struct relay *relay[MOST_READ]; /* references */
    struct delivery *delivery[MOST_READ];
    char place[MOST_READ][MG_JOB_PLACE_BYTES];
    size_t n_event[MOST_READ];
    size_t n;
};

static void on_note(void *user, const char *id) {
    struct gateway *g = user;
    lock(g);
    for (struct relay *r = g->watched; r; r = r->next)
        if (!strcmp(r->id, id)) r->dirty = true;
    unlock(g);
}

/* Is there one whose news wait for the loop, which may have passed on the last ones soon? */
static bool is_held_up(struct gateway *g) {
    bool any = false;
    double now = mg_clock();
    lock(g);
    for (struct relay *r = g->watched; r && !any; r = r->next)
        any = r->busy && r->dirty && now - r->busy_at < quick_seconds;
    unlock(g);
    return any;
}

/* Does an event begin where the last one ended? One that is resumed begins somewhere within. */
static bool follows(const struct reading *w, const struct mg_queue_event *e) {
    uint64_t at = strtoull(w->place[e->job], NULL, 10), begin = e->end - e->data.n;
    return begin == at || (w->relay[e->job]->kind == RELAY_RESUME && begin < at);
}

static void on_event(void *user, const struct mg_queue_event *e) {
    struct reading *w = user;
    struct relay *r = w->relay[e->job];
    struct delivery *d = w->delivery[e->job];
    w->n_event[e->job]++;
    if (!d && (d = calloc(1, sizeof *d)) != NULL) {
        atomic_fetch_add(&r->refs, 1);
        d->relay = r;
        w->delivery[e->job] = d;
    }
    if (!d || d->head.failed || d->data.failed) return; /* read again later: its place stays */
    if (e->data.n && !follows(w, e)) { /* Redis came back with less than it had, and went on */
        mg_buf_free(&d->head);
        mg_buf_free(&d->data);
        d->anew = true;
        d->state[0] = d->code[0] = 0;
        snprintf(w->place[e->job], sizeof w->place[e->job], "0-0");
    }
    if (d->anew) return;
    if (e->head) mg_buf_add_str(&d->head, e->head);
    if (e->data.n) {
        mg_buf_add(&d->data, e->data.data, e->data.n);
        d->end = e->end;
    }
    if (e->state) {
        snprintf(d->state, sizeof d->state, "%s", e->state);
        snprintf(d->code, sizeof d->code, "%s", e->code);
    }
    if (!d->head.failed && !d->data.failed)
        snprintf(w->place[e->job], sizeof w->place[e->job], "%s", e->place);
}

static bool has_job(const struct reading *w, const char *id) {
    for (size_t i = 0; i < w->n; i++)
        if (!strcmp(w->relay[i]->id, id)) return true;
    return false;
}

/* Those with news that the loop is ready for; all: whether a note came or not. To be read, no job
 * twice: a reply says only whose events they are, and each relay has its own place. True: there
 * are more. */
static bool gather(struct gateway *g, struct reading *w, bool all, bool to_read) {
    bool more = false;
    w->n = 0;
    lock(g);
    for (struct relay **at = &g->watched, *r; (r = *at) != NULL && w->n < MOST_READ;) {
        struct relay **here = at;
        at = &r->next;
        if (r->busy || (!r->dirty && !all)) continue;
        if (to_read && has_job(w, r->id)) {
            r->dirty = more = true;
            *here = r->next; /* it is the first the next time */
            r->next = g->watched;
            g->watched = r;
            at = here == &g->watched ? &r->next : here;
            continue;
        }
        if (to_read) r->dirty = false;
        atomic_fetch_add(&r->refs, 1);
        w->relay[w->n] = r;
        w->delivery[w->n] = NULL;
        w->n_event[w->n] = 0;
        memcpy(w->place[w->n], r->place, sizeof r->place);
        w->n++;
    }
    /* More than are read at a time take turns. */
    if (w->n == MOST_READ && g->watched) {
        struct relay *last = w->relay[w->n - 1], **end = &last->next;
        if (*end) {
            more = true;
            struct relay *rest = *end;
            *end = NULL;
            struct relay *front = g->watched;
            g->watched = rest;
            while (rest->next) rest = rest->next;
            rest->next = front;
        }
    }
    unlock(g);
    return more;
}

static void deliver(struct gateway *g, struct reading *w, bool *more) {
    for (size_t i = 0; i < w->n; i++) {
        struct relay *r = w->relay[i];
        struct delivery *d = w->delivery[i];
        if (d) {
            memcpy(r->place, w->place[i], sizeof r->place);
            r->heard = mg_clock();
            /* There may be more behind what one call brings; else a note will come. */
            bool again = w->n_event[i] >= MG_QUEUE_READ_EVENTS || d->anew || d->head.failed ||
                         d->data.failed;
            lock(g);
            r->busy = true;
            r->busy_at = r->heard;
            r->dirty = r->dirty || (again && !d->state[0]);
            unlock(g);
            *more = *more || again;
            post(g, on_delivery, d, drop_delivery);
        }
        relay_unref(r);
    }
}

/* After Redis was away: does it have less of a job than the client? */
static void look_for_losses(struct gateway *g, struct reading *w) {
    gather(g, w, true, false);
    for (size_t i = 0; i < w->n; i++) {
        struct relay *r = w->relay[i];
        struct mg_job_state job;
        struct mg_err err = {0};
        struct delivery *d = NULL;
        if (mg_queue_state(g->reading, r->id, r->tenant, g->name, &job, &err) == MG_OK &&
            job.state[0] && job.offset < strtoull(r->place, NULL, 10))
            d = calloc(1, sizeof *d);
        if (d) {
            atomic_fetch_add(&r->refs, 1);
            d->relay = r;
            d->anew = true;
            snprintf(r->place, sizeof r->place, "0-0");
            lock(g);
            r->busy = r->dirty = true;
            r->busy_at = mg_clock();
            unlock(g);
            post(g, on_delivery, d, drop_delivery);
        }
        relay_unref(r);
    }
}

/* A job that nothing was heard of: is it still there? Redis may have come back without it. */
static void tell_lost(struct gateway *g, struct relay *r, const char *code) {
    struct delivery *d = calloc(1, sizeof *d);
    if (!d) return;
    atomic_fetch_add(&r->refs, 1);
    d->relay = r;
    d->retry_seconds = 2;
    snprintf(d->state, sizeof d->state, "failed");
    snprintf(d->code, sizeof d->code, "%s", code);
    post(g, on_delivery, d, drop_delivery);
    gateway_forget(r);
}

static void doubt(struct gateway *g, struct reading *w) {
    double now = mg_clock();
    gather(g, w, true, false);
    for (size_t i = 0; i < w->n; i++) {
        struct relay *r = w->relay[i];
        struct mg_job_state job;
        struct mg_err err = {0};
        if (now - r->heard >= doubt_seconds && now - r->began >= doubt_seconds &&
            mg_queue_state(g->reading, r->id, r->tenant, g->name, &job, &err) == MG_OK) {
            if (!job.state[0])
                tell_lost(g, r, "job_lost");
            else if (is_beyond(r, &job))
                tell_lost(g, r, r->kind == RELAY_RESUME ? "invalid_offset" : "answer_changed");
            r->heard = now;
        }
        relay_unref(r);
    }
}

static void all_are_away(struct gateway *g, struct reading *w) {
    gather(g, w, true, false);
    for (size_t i = 0; i < w->n; i++) {
        struct relay *r = w->relay[i];
        if (r->kind == RELAY_ASK && !r->detached) gateway_cancel_later(r);
        tell_lost(g, r, "queue_unavailable");
        relay_unref(r);
    }
}

static enum mg_status read_news(struct gateway *g, struct reading *w, bool all, bool *more,
                                struct mg_err *err) {
    const char *id[MOST_READ], *after[MOST_READ];
    char place[MOST_READ][MG_JOB_PLACE_BYTES];
    if (gather(g, w, all, true)) *more = true;
    memcpy(place, w->place, sizeof place);
    for (size_t i = 0; i < w->n; i++) {
        id[i] = w->relay[i]->id;
        after[i] = place[i];
    }
    enum mg_status st =
        w->n ? mg_queue_events(g->reading, id, after, w->n, on_event, w, err) : MG_OK;
    deliver(g, w, more);
    return st;
}

static void *read_events(void *arg) {
    struct gateway *g = arg;
    struct reading *w = calloc(1, sizeof *w);
    char inbox[MG_JOB_PLACE_BYTES] = "";
    double next_sweep = 0, next_doubt = 0, heard = mg_clock();
    bool away = false;
    double most_away =
        fmin(longest_away_seconds, away_leases * mg_queue_settings(g->reading)->lease_seconds);
    while (w && !is_closing(g)) {
        struct mg_err err = {0};
        enum mg_status st = MG_OK;
        bool more = false, sweep = mg_clock() >= next_sweep;
        if (sweep) { /* the inbox is kept, and made anew if it is gone */
            char now[MG_JOB_PLACE_BYTES];
            st = mg_queue_inbox(g->reading, g->name, now, &err);
            if (!st && !inbox[0]) memcpy(inbox, now, sizeof now);
            if (!st && away) look_for_losses(g, w);
            away = away && st;
            next_sweep = mg_clock() + look_seconds;
        }
        if (!st) st = read_news(g, w, sweep, &more, &err);
        if (!st && sweep && mg_clock() >= next_doubt) {
            doubt(g, w);
            next_doubt = mg_clock() + doubt_seconds / 2;
        }
        double wait = more            ? 0
                      : is_held_up(g) ? held_seconds
                                      : fmax(0.001, next_sweep - mg_clock());
        if (!st) st = mg_queue_wait_inbox(g->reading, g->name, inbox, wait, on_note, g, &err);
        if (!st) {
            heard = mg_clock();
            continue;
        }
        next_sweep = 0;
        away = true;
        inbox[0] = 0; /* another server's places may be smaller */
        if (mg_clock() - heard > most_away) all_are_away(g, w);
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause_seconds * 1e9)}, NULL);
    }
    free(w);
    return NULL;
}

/* --- opening and closing --- */
enum mg_status gateway_open(struct mg_server *s, const struct mg_queue_options *o,
                            struct gateway **out, struct mg_err *err) {
    *out = NULL;
    struct gateway *g = calloc(1, sizeof *g);
    if (!g) return mg_fail_memory(err, "gateway");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    g->s = s;
    g->last = &g->first;
    random_digits(g->name, 32);
    enum mg_status st = mg_queue_open(o, &g->sending, err);
    if (!st) st = mg_queue_open(o, &g->reading, err);
    *out = g;
    return st;
}

enum mg_status gateway_start(struct gateway *g, struct mg_err *err) {
    g->up = true; /* so that the log has it when it isn't */
    g->send_started = pthread_create(&g->send_thread, NULL, send_orders, g) == 0;
    g->read_started = g->send_started && pthread_create(&g->read_thread, NULL, read_events, g) == 0;
    return g->read_started ? MG_OK : mg_fail_memory(err, "gateway's thread");
}

void gateway_stop(struct gateway *g) {
    if (!g) return;
    lock(g);
    g->closing = true;
    pthread_cond_signal(&g->more);
    unlock(g);
    if (g->send_started) pthread_join(g->send_thread, NULL);
    if (g->read_started) pthread_join(g->read_thread, NULL);
    g->send_started = g->read_started = false;
}

void gateway_close(struct gateway *g) {
    if (!g) return;
    gateway_stop(g);
    while (g->first) {
        struct order *o = g->first;
        g->first = o->next;
        drop_order(o);
    }
    while (g->held) {
        struct order *o = g->held;
        g->held = o->next;
        drop_order(o);
    }
    while (g->watched) gateway_forget(g->watched);
    for (size_t i = 0; i < g->n_about; i++) mg_buf_free(&g->about[i]);
    mg_queue_close(g->sending);
    mg_queue_close(g->reading);
    pthread_cond_destroy(&g->more);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

/* --- what is known --- */
void gateway_view(struct gateway *g, struct gateway_view *out) {
    lock(g);
    *out = (struct gateway_view){.up = g->up, .n_worker = g->n_worker, .look = g->look};
    unlock(g);
}

size_t gateway_limit(const struct gateway *g) {
    return mg_queue_settings(g->sending)->max_waiting;
}

static const char *text_in(const json_t *root, const char *key) {
    const char *text = json_string_value(json_object_get(root, key));
    return text ? text : "";
}
static uint64_t int_in(const json_t *root, const char *key) {
    json_int_t x = json_integer_value(json_object_get(root, key));
    return x < 0 ? 0 : (uint64_t)x;
}

struct gateway_models *gateway_models(struct gateway *g, struct mg_model_reply m[GATEWAY_MODELS]) {
    struct gateway_models *out = calloc(1, sizeof *out);
    if (!out) return NULL;
    lock(g);
    for (size_t i = 0; i < g->n_about; i++) {
        json_t *root = json_loadb((char *)g->about[i].data, g->about[i].n, 0, NULL);
        bool known = false;
        for (size_t k = 0; k < out->n; k++) known |= !strcmp(m[k].id, text_in(root, "alias"));
        if (!root || known || !text_in(root, "alias")[0]) {
            json_decref(root);
            continue;
        }
        m[out->n] = (struct mg_model_reply){.id = text_in(root, "alias"),
                                            .created = (int64_t)int_in(root, "created"),
                                            .context = int_in(root, "context"),
                                            .context_max = int_in(root, "context_max"),
                                            .n_vocab = int_in(root, "n_vocab"),
                                            .n_embd = int_in(root, "n_embd"),
                                            .n_params = int_in(root, "n_params"),
                                            .bytes = int_in(root, "bytes"),
                                            .weights = text_in(root, "weights")};
        out->root[out->n++] = root;
    }
    unlock(g);
    return out;
}

void gateway_models_free(struct gateway_models *m) {
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) json_decref(m->root[i]);
    free(m);
}

bool gateway_props(struct gateway *g, struct mg_buf *out) {
    bool found = false;
    lock(g);
    for (size_t i = 0; i < g->n_about && !found; i++) {
        json_t *root = json_loadb((char *)g->about[i].data, g->about[i].n, 0, NULL);
        char *text = json_dumps(json_object_get(root, "props"), JSON_COMPACT | JSON_PRESERVE_ORDER);
        if (text) found = mg_buf_add_str(out, text);
        free(text);
        json_decref(root);
    }
    unlock(g);
    return found;
}
