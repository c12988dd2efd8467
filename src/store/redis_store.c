/* store/redis_store.c - see redis_store.h. One mutex (the base's) covers queues, breaker and
 * counts; no command is sent while it is held. */
#include "store/redis_store.h"

#include "base/io.h"
#include "store/breaker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSAL_SECONDS 60.0
#define FLUSH_SECONDS 1.0 /* for what is still to be put at the end */

/* What the writing thread is to do. */
enum chore_kind { PUT, TOUCH, DROP };
struct chore {
    enum chore_kind kind;
    struct mg_store_put *put; /* PUT: owned */
    struct mg_store_key key;  /* the others */
    struct chore *next;
};

struct lane { /* of one thread */
    struct mg_redis_link *link;
    bool used; /* the link has answered before: it may have been closed since */
};

struct redis_store {
    struct mg_byte_store base;
    struct mg_redis_url url;
    char shown[320];
    struct mg_redis_tls tls; /* owned texts */
    struct mg_redis_space space;
    void (*observe)(void *user, bool put, double seconds);
    void *user;
    pthread_t reader, writer;
    bool reader_runs, writer_runs;
    struct lane read_lane, write_lane; /* their threads' */

    /* Under base.mutex. */
    pthread_cond_t to_read, to_write;
    struct mg_store_read *first_read, **last_read; /* the list holds a reference of each */
    size_t n_read;
    struct chore *first_chore, **last_chore;
    size_t n_chore, put_bytes;
    struct mg_breaker breaker;
    bool stop;
    double flush_end;                /* with stop */
    double last_read_at;             /* of the last command of the reading thread */
    enum { UNKNOWN, UP, DOWN } told; /* in the log */
    bool told_moved, told_refusal;
    double next_refusal; /* when it may be told again */
    struct mg_store_counts counts;
};

static void lock(struct redis_store *s) {
    pthread_mutex_lock(&s->base.mutex);
}
static void unlock(struct redis_store *s) {
    pthread_mutex_unlock(&s->base.mutex);
}

static void wait_until(struct redis_store *s, pthread_cond_t *c, double when) {
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    pthread_cond_timedwait(c, &s->base.mutex, &t);
}

/* --- state changes; under the mutex --- */
static void end_reads(struct redis_store *s) {
    while (s->first_read) {
        struct mg_store_read *r = s->first_read;
        s->first_read = r->next;
        s->counts.read[r->key.kind].dropped++;
        mg_store_read_done(r, MG_STORE_MISSING, NULL);
    }
    s->last_read = &s->first_read;
    s->n_read = 0;
}

/* Says in the log what has changed; `why` of a failure. */
static void tell(struct redis_store *s, const char *why) {
    bool up = mg_breaker_allows(&s->breaker);
    if (s->breaker.state == MG_BREAKER_HALF_OPEN) return;
    if (up && s->told == DOWN)
        mg_log(MG_LOG_WARN, "shared cache: Redis at %s is back", s->shown);
    else if (up && s->told == UNKNOWN)
        mg_log(MG_LOG_INFO, "shared cache: Redis at %s", s->shown);
    else if (!up && s->told != DOWN)
        mg_log(MG_LOG_WARN, "shared cache: going on without Redis at %s: %s", s->shown, why);
    s->told = up ? UP : DOWN;
    if (!up) end_reads(s);
}

static void note(struct redis_store *s, bool ok, bool probe, const char *why) {
    if (ok)
        mg_breaker_success(&s->breaker, probe);
    else
        mg_breaker_failure(&s->breaker, probe, mg_clock());
    tell(s, why);
}

/* --- links --- */
/* An error reply leaves a link as it is. */
static bool is_reply(const struct mg_err *err) {
    static const char *const code[] = {"redis_auth", "redis_error", "redis_loading", "redis_moved"};
    for (size_t i = 0; i < sizeof code / sizeof *code; i++)
        if (strcmp(err->code, code[i]) == 0) return true;
    return false;
}

static void lane_close(struct lane *l) {
    mg_redis_link_close(l->link);
    *l = (struct lane){0};
}

static enum mg_status lane_open(struct redis_store *s, struct lane *l, double seconds,
                                struct mg_err *err) {
    if (l->link) return MG_OK;
    if (seconds <= 0) return mg_fail(err, MG_ERR_LIMIT, "redis_late", "it is too slow");
    return mg_redis_link_open(&s->url, &s->tls, seconds, &l->link, err);
}

/* After a call: whether it is to be tried once more, since the server had closed the link. */
static bool lane_settle(struct lane *l, enum mg_status st, struct mg_err *err) {
    if (st == MG_OK || is_reply(err)) {
        l->used = true;
        return false;
    }
    bool stale = l->used && strcmp(err->code, "redis_closed") == 0;
    lane_close(l);
    if (stale) mg_err_clear(err);
    return stale;
}

/* --- the reading thread --- */
static enum mg_status probe(struct redis_store *s, struct mg_err *err) {
    struct lane *l = &s->read_lane;
    for (;;) {
        double end = mg_clock() + MG_REDIS_LIMIT;
        enum mg_status st = lane_open(s, l, MG_REDIS_LIMIT, err);
        if (st == MG_OK) {
            double left = end - mg_clock();
            st = mg_redis_entry_probe(l->link, left > 0.05 ? left : 0.05, err);
        }
        if (!lane_settle(l, st, err)) return st;
    }
}

static void on_progress(void *user) {
    struct mg_store_read *r = user;
    double now = mg_clock();
    pthread_mutex_lock(&r->store->mutex);
    r->progress = now;
    pthread_mutex_unlock(&r->store->mutex);
}

static enum mg_status read_one(struct redis_store *s, struct mg_store_read *r,
                               enum mg_redis_found *found, struct mg_store_value *value,
                               struct mg_err *err) {
    struct lane *l = &s->read_lane;
    for (;;) {
        double first_end = r->begun + MG_REDIS_LIMIT;
        enum mg_status st = lane_open(s, l, first_end - mg_clock(), err);
        if (st == MG_OK)
            st =
                mg_redis_entry_read(l->link, &r->key, r->max_body, MG_REDIS_LIMIT, first_end,
                                    r->begun + MG_REDIS_LONGEST, on_progress, r, found, value, err);
        if (!lane_settle(l, st, err)) return st;
    }
}

static bool add_chore(struct redis_store *s, enum chore_kind kind, const struct mg_store_key *key,
                      struct mg_store_put *put);

/* What came of a read; under the mutex. */
static void count_read(struct redis_store *s, const struct mg_store_read *r, enum mg_status st,
                       enum mg_redis_found found, const struct mg_err *err) {
    if (st != MG_OK) {
        bool late = strcmp(err->code, "redis_late") == 0, moved = !strcmp(err->code, "redis_moved");
        uint64_t *count =
            late ? &s->counts.read[r->key.kind].late : &s->counts.read[r->key.kind].failed;
        ++*count;
        if (moved && !s->told_moved)
            mg_log(MG_LOG_WARN,
                   "shared cache: Redis at %s is a node of a cluster, and redirections are not "
                   "followed: only what this node has is used (%s)",
                   s->shown, err->text);
        s->told_moved |= moved;
        if (!late && !moved && st != MG_ERR_MEMORY) note(s, false, false, err->text);
        return;
    }
    note(s, true, false, NULL);
    switch (found) {
    case MG_REDIS_HIT:
        s->counts.read[r->key.kind].hits++;
        add_chore(s, TOUCH, &r->key, NULL);
        break;
    case MG_REDIS_MISS: s->counts.read[r->key.kind].misses++; break;
    case MG_REDIS_PARTIAL: /* else it would count as known, and never be put in full */
        s->counts.read[r->key.kind].misses++;
        add_chore(s, DROP, &r->key, NULL);
        break;
    case MG_REDIS_DAMAGED:
        s->counts.read[r->key.kind].damaged++;
        add_chore(s, DROP, &r->key, NULL);
        break;
    }
}

/* Called and returns under the mutex. */
static void serve_read(struct redis_store *s) {
    struct mg_store_read *r = s->first_read;
    enum mg_redis_found found = MG_REDIS_MISS;
    struct mg_store_value value = {0};
    struct mg_err err = {0};
    s->first_read = r->next;
    if (!s->first_read) s->last_read = &s->first_read;
    s->n_read--;
    double start = mg_clock();
    /* Too little time to tell a slow server from one that is away: it counts as neither. */
    if (mg_store_read_is_left(r) || start > r->begun + MG_REDIS_LIMIT * 0.75) {
        s->counts.read[r->key.kind].late++;
        mg_store_read_done(r, MG_STORE_MISSING, NULL);
        return;
    }
    unlock(s);
    enum mg_status st = read_one(s, r, &found, &value, &err);
    double now = mg_clock();
    if (s->observe) s->observe(s->user, false, now - start);
    lock(s);
    s->last_read_at = now;
    count_read(s, r, st, found, &err);
    bool hit = st == MG_OK && found == MG_REDIS_HIT;
    if (hit) s->counts.bytes_read += value.n_body;
    mg_store_read_done(r, hit ? MG_STORE_FOUND : MG_STORE_MISSING, &value);
}

/* When the reading thread has something to do that nobody asks for. */
static double next_probe(const struct redis_store *s) {
    if (s->breaker.state == MG_BREAKER_OPEN) return s->breaker.next;
    return s->breaker.failures ? s->last_read_at : s->last_read_at + MG_REDIS_IDLE;
}

/* Called and returns under the mutex. */
static void serve_probe(struct redis_store *s) {
    struct mg_err err = {0};
    bool is_probe = mg_breaker_probe(&s->breaker, mg_clock());
    unlock(s);
    enum mg_status st = probe(s, &err);
    lock(s);
    s->last_read_at = mg_clock();
    /* the probe's own slot may be another node's */
    bool ok = st == MG_OK || strcmp(err.code, "redis_moved") == 0;
    note(s, ok, is_probe, err.text);
}

static void *reader_main(void *arg) {
    struct redis_store *s = arg;
    lock(s);
    while (!s->stop) {
        if (s->first_read)
            serve_read(s);
        else if (mg_clock() >= next_probe(s))
            serve_probe(s);
        else
            wait_until(s, &s->to_read, next_probe(s));
    }
    end_reads(s);
    unlock(s);
    lane_close(&s->read_lane);
    return NULL;
}

/* --- the writing thread --- */
static enum mg_status do_chore(struct redis_store *s, const struct chore *c, bool *known,
                               struct mg_err *err) {
    struct lane *l = &s->write_lane;
    for (;;) {
        enum mg_status st = lane_open(s, l, MG_REDIS_LIMIT, err);
        if (st == MG_OK && c->kind == PUT)
            st = mg_redis_entry_write(l->link, &s->space, c->put, MG_REDIS_LIMIT,
                                      mg_clock() + MG_REDIS_LONGEST_PUT, known, err);
        else if (st == MG_OK && c->kind == TOUCH)
            st = mg_redis_entry_touch(l->link, &s->space, &c->key, MG_REDIS_LIMIT, err);
        else if (st == MG_OK)
            st = mg_redis_entry_drop(l->link, &c->key, MG_REDIS_LIMIT, err);
        if (!lane_settle(l, st, err)) return st;
    }
}

/* Puts are refused, or (why NULL) taken again. A server that is full to the brim takes one and
 * refuses the next: it is told once a minute at most. Under the mutex. */
static void tell_refusal(struct redis_store *s, const char *why) {
    double now = mg_clock();
    s->counts.refuses = why != NULL;
    if (why && !s->told_refusal && now >= s->next_refusal) {
        mg_log(MG_LOG_WARN, "shared cache: Redis at %s takes no entries: %s", s->shown, why);
        s->told_refusal = true;
        s->next_refusal = now + REFUSAL_SECONDS;
    } else if (!why && s->told_refusal) {
        mg_log(MG_LOG_WARN, "shared cache: Redis at %s takes entries again", s->shown);
        s->told_refusal = false;
    }
}

/* Under the mutex. */
static void count_chore(struct redis_store *s, const struct chore *c, enum mg_status st, bool known,
                        const struct mg_err *err) {
    const struct mg_store_key *key = c->kind == PUT ? &c->put->key : &c->key;
    bool refused = st != MG_OK && is_reply(err) && strcmp(err->code, "redis_loading") != 0;
    bool late = st != MG_OK && strcmp(err->code, "redis_late") == 0;
    if (st != MG_OK && !refused && !late && st != MG_ERR_MEMORY) note(s, false, false, err->text);
    if (refused && strcmp(err->code, "redis_moved") != 0)
        tell_refusal(s, err->text);
    else if (st == MG_OK && c->kind == PUT && !known)
        tell_refusal(s, NULL);
    if (c->kind != PUT) return;
    if (st == MG_OK && known)
        s->counts.put[key->kind].known++;
    else if (st == MG_OK)
        s->counts.put[key->kind].kept++, s->counts.bytes_written += c->put->n_body;
    else if (refused)
        s->counts.put[key->kind].refused++;
    else
        s->counts.put[key->kind].failed++;
}

static void free_chore(struct chore *c) {
    if (c->put) mg_store_put_free(c->put);
    free(c);
}

/* Called and returns under the mutex. */
static void serve_chore(struct redis_store *s) {
    struct chore *c = s->first_chore;
    struct mg_err err = {0};
    bool known = false;
    s->first_chore = c->next;
    if (!s->first_chore) s->last_chore = &s->first_chore;
    s->n_chore--;
    bool away = !mg_breaker_allows(&s->breaker) || (s->stop && mg_clock() > s->flush_end);
    if (away && c->kind == PUT) s->counts.put[c->put->key.kind].dropped++;
    unlock(s);
    double start = mg_clock();
    enum mg_status st = away ? MG_OK : do_chore(s, c, &known, &err);
    if (!away && c->kind == PUT && s->observe) s->observe(s->user, true, mg_clock() - start);
    lock(s);
    if (!away) count_chore(s, c, st, known, &err);
    if (c->kind == PUT) s->put_bytes -= c->put->n_body; /* held until now */
    unlock(s);
    free_chore(c);
    lock(s);
}

static void *writer_main(void *arg) {
    struct redis_store *s = arg;
    lock(s);
    while (!s->stop || s->first_chore) {
        if (s->first_chore)
            serve_chore(s);
        else
            pthread_cond_wait(&s->to_write, &s->base.mutex);
    }
    unlock(s);
    lane_close(&s->write_lane);
    return NULL;
}

/* --- from other threads; under the mutex --- */
static bool add_chore(struct redis_store *s, enum chore_kind kind, const struct mg_store_key *key,
                      struct mg_store_put *put) {
    /* once it stops nobody may be left to do it */
    struct chore *c = !s->stop && s->n_chore < MG_REDIS_MAX_PUTS ? calloc(1, sizeof *c) : NULL;
    if (!c) return false;
    c->kind = kind;
    c->put = put;
    if (key) c->key = *key;
    *s->last_chore = c;
    s->last_chore = &c->next;
    s->n_chore++;
    pthread_cond_signal(&s->to_write);
    return true;
}

static bool op_read(struct mg_byte_store *base, struct mg_store_read *r) {
    struct redis_store *s = (struct redis_store *)base;
    if (s->stop || !mg_breaker_allows(&s->breaker) || s->n_read >= MG_REDIS_MAX_READS) {
        s->counts.read[r->key.kind].dropped++;
        return false;
    }
    *s->last_read = r;
    s->last_read = &r->next;
    s->n_read++;
    pthread_cond_signal(&s->to_read);
    return true;
}

/* What is larger than its shard's part of the budget would only drive out everything else. */
static bool op_put(struct mg_byte_store *base, struct mg_store_put *p) {
    struct redis_store *s = (struct redis_store *)base;
    size_t most = mg_min_size(MG_REDIS_MAX_PUT_BYTES, s->space.budget / MG_REDIS_SHARDS);
    bool fits = p->n_body <= most && p->n_body <= MG_REDIS_MAX_PUT_BYTES - s->put_bytes;
    if (s->stop || !mg_breaker_allows(&s->breaker) || !fits || !add_chore(s, PUT, NULL, p)) {
        s->counts.put[p->key.kind].dropped++;
        return false;
    }
    s->put_bytes += p->n_body;
    return true;
}

static void op_counts(struct mg_byte_store *base, struct mg_store_counts *out) {
    struct redis_store *s = (struct redis_store *)base;
    *out = s->counts;
    out->up = s->told == UP;
    out->queued_bytes = s->put_bytes;
}

static void op_close(struct mg_byte_store *base) {
    struct redis_store *s = (struct redis_store *)base;
    lock(s);
    s->stop = true;
    s->flush_end = mg_clock() + FLUSH_SECONDS;
    pthread_cond_broadcast(&s->to_read);
    pthread_cond_broadcast(&s->to_write);
    unlock(s);
    if (s->reader_runs) pthread_join(s->reader, NULL);
    if (s->writer_runs) pthread_join(s->writer, NULL);
    lane_close(&s->read_lane); /* of a thread that never ran */
    pthread_cond_destroy(&s->to_read);
    pthread_cond_destroy(&s->to_write);
    free((char *)s->tls.ca_file);
    free((char *)s->tls.cert_file);
    free((char *)s->tls.key_file);
    memset(s->url.password, 0, sizeof s->url.password);
}

/* --- opening --- */
static bool copy_text(const char *from, const char **to) {
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

static enum mg_status start(struct redis_store *s, struct mg_err *err) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's own threads */
    s->reader_runs = pthread_create(&s->reader, NULL, reader_main, s) == 0;
    s->writer_runs = s->reader_runs && pthread_create(&s->writer, NULL, writer_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (s->writer_runs) return MG_OK;
    return mg_fail(err, MG_ERR_MEMORY, "thread", "the shared cache's threads can't be started");
}

enum mg_status mg_redis_store_open(const struct mg_redis_store_options *o,
                                   struct mg_byte_store **out, struct mg_err *err) {
    static const struct mg_store_ops ops = {op_read, op_put, op_counts, op_close};
    struct redis_store *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return mg_fail_memory(err, "shared cache");
    enum mg_status st = mg_redis_url_parse(o->url, &s->url, err);
    if (st != MG_OK) {
        free(s);
        return st;
    }
    mg_store_init(&s->base, &ops);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->to_read, &clock);
    pthread_cond_init(&s->to_write, &clock);
    pthread_condattr_destroy(&clock);
    mg_redis_url_show(&s->url, s->shown, sizeof s->shown);
    s->last_read = &s->first_read;
    s->last_chore = &s->first_chore;
    s->space = (struct mg_redis_space){.seconds = o->seconds, .budget = o->budget};
    s->observe = o->observe;
    s->user = o->user;
    mg_breaker_init(&s->breaker, mg_clock());
    if (!copy_text(o->tls.ca_file, &s->tls.ca_file) ||
        !copy_text(o->tls.cert_file, &s->tls.cert_file) ||
        !copy_text(o->tls.key_file, &s->tls.key_file))
        st = mg_fail_memory(err, "shared cache");
    if (st == MG_OK) {
        lock(s);
        serve_probe(s); /* here, so that the first question can be asked of it already */
        unlock(s);
        st = start(s, err);
    }
    if (st != MG_OK) {
        mg_store_close(&s->base);
        return st;
    }
    *out = &s->base;
    return MG_OK;
}
