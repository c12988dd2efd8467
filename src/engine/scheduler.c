/* engine/scheduler.c - the queue and its threads; what runs is in schedule.c. See scheduler.h. */
#include "engine/schedule.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void lock(struct mg_scheduler *s) {
    pthread_mutex_lock(&s->mutex);
}
static void unlock(struct mg_scheduler *s) {
    pthread_mutex_unlock(&s->mutex);
}

/* --- lists, under the lock --- */
static void append(struct job_list *l, struct job *j) {
    j->next = NULL;
    *(l->last ? &l->last->next : &l->first) = j;
    l->last = j;
    l->n++;
}

static void take_out(struct job_list *l, struct job *j) {
    struct job *before = NULL;
    for (struct job *i = l->first; i != j; i = i->next) before = i;
    *(before ? &before->next : &l->first) = j->next;
    if (l->last == j) l->last = before;
    j->next = NULL;
    l->n--;
}

/* The tenants of the jobs that have a place, found once for all that wait: each of 100,000 is then
 * compared with 16, and not with each other. */
struct busy {
    const uint8_t *tenant[MG_MAX_RUNNING];
    size_t n;
};

static struct busy find_busy(const struct mg_scheduler *s) {
    struct busy b = {.n = 0};
    for (const struct job *j = s->all; j && b.n < s->n_taken; j = j->next_of_all)
        if (j->taken) b.tenant[b.n++] = j->o.tenant;
    return b;
}

static size_t running_of(const struct busy *b, const uint8_t *tenant) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) n += memcmp(b->tenant[i], tenant, MG_TENANT_BYTES) == 0;
    return n;
}

uint64_t mg_last_turn(const struct mg_scheduler *s, const uint8_t *tenant) {
    for (size_t i = 0; i < MG_SERVED; i++)
        if (s->served[i].turn && memcmp(s->served[i].tenant, tenant, MG_TENANT_BYTES) == 0)
            return s->served[i].turn;
    return 0;
}

static void note_turn(struct mg_scheduler *s, const uint8_t *tenant) {
    size_t at = 0;
    uint64_t known = mg_last_turn(s, tenant);
    for (size_t i = 0; i < MG_SERVED; i++) {
        if (s->served[i].turn == known && known) at = i;
        if (!known && s->served[i].turn < s->served[at].turn) at = i;
    }
    memcpy(s->served[at].tenant, tenant, MG_TENANT_BYTES);
    s->served[at].turn = ++s->turns;
}

/* Whose turn it is: of the tenants with the fewest running the one that was served longest ago, and
 * its oldest job. */
static struct job *next_waiting(const struct mg_scheduler *s) {
    struct job *best = NULL;
    struct busy busy = find_busy(s);
    size_t fewest = SIZE_MAX;
    uint64_t longest_ago = UINT64_MAX;
    for (struct job *j = s->waiting.first; j; j = j->next) {
        if (j->displaced) continue;
        size_t n = running_of(&busy, j->o.tenant);
        uint64_t turn = n <= fewest ? mg_last_turn(s, j->o.tenant) : 0;
        if (n > fewest || (n == fewest && turn >= longest_ago)) continue;
        fewest = n;
        longest_ago = turn;
        best = j;
    }
    return best;
}

/* --- a full queue --- */
static bool has_room(const struct mg_scheduler *s, size_t bytes) {
    return s->waiting.n - s->n_displaced < s->options.max_waiting &&
           bytes <= s->options.max_waiting_bytes - (s->waiting_bytes - s->displaced_bytes);
}

/* The newest question of the tenant that has most of the queue (bytes of it, or places), if that is
 * more than the one of `o` would have with one more. */
static struct job *to_displace(const struct mg_scheduler *s, const struct mg_job *o, bool bytes) {
    struct {
        const uint8_t *tenant;
        struct job *newest;
        size_t used;
    } share[MG_SERVED];
    size_t n = 0, own = bytes ? o->bytes : 1, most = 0;
    for (struct job *j = s->waiting.first; j; j = j->next) {
        size_t used = bytes ? j->o.bytes : 1, i = 0;
        if (j->displaced) continue;
        if (memcmp(j->o.tenant, o->tenant, MG_TENANT_BYTES) == 0) {
            own += used;
            continue;
        }
        while (i < n && memcmp(share[i].tenant, j->o.tenant, MG_TENANT_BYTES) != 0) i++;
        if (i == MG_SERVED) continue; /* a queue with so many tenants in it is shared out */
        if (i == n) n++, share[i].tenant = j->o.tenant, share[i].used = 0;
        share[i].used += used;
        share[i].newest = j;
        if (share[i].used > share[most].used) most = i;
    }
    return n && share[most].used > own ? share[most].newest : NULL;
}

static void displace(struct mg_scheduler *s, struct job *j, bool on) {
    j->displaced = on;
    if (on) {
        s->n_displaced++;
        s->displaced_bytes += j->o.bytes;
    } else {
        s->n_displaced--;
        s->displaced_bytes -= j->o.bytes;
    }
}

/* In a full queue those who have most of it make room for others; false: nobody has to. */
static bool make_room(struct mg_scheduler *s, const struct mg_job *o) {
    struct job *gone[32];
    size_t n = 0;
    while (!has_room(s, o->bytes)) {
        bool count_fits = s->waiting.n - s->n_displaced < s->options.max_waiting;
        struct job *j = n < 32 ? to_displace(s, o, count_fits) : NULL;
        if (!j) {
            while (n) displace(s, gone[--n], false);
            return false;
        }
        displace(s, gone[n++] = j, true);
    }
    return true;
}

/* Not to be touched any more afterwards. */
static void forget(struct mg_scheduler *s, struct job *j) {
    struct job **at = &s->all;
    while (*at != j) at = &(*at)->next_of_all;
    *at = j->next_of_all;
    free(j->logprob);
    free(j);
}

/* --- ends --- */
void mg_job_end(struct mg_scheduler *s, struct job *j, enum mg_status status) {
    struct mg_job_result result = {.status = status,
                                   .err = &j->err,
                                   .answer = &j->run.answer,
                                   .chat = j->chat,
                                   .queue_ms =
                                       ((j->began ? j->began : mg_clock()) - j->submitted) * 1e3,
                                   .from = j->from,
                                   .distance = j->distance,
                                   .logprob = mg_job_untold(j),
                                   .n_logprob = j->n_logprob - j->n_told};
    j->o.done(j->o.user, &result);
    mg_run_close(&j->run);
    lock(s);
    mg_chat *chat = j->chat;
    j->chat = NULL; /* who cancels it now finds nothing */
    unlock(s);
    mg_chat_close(chat);
    lock(s);
    if (j->taken) s->n_taken--;
    if (j->began) {
        double took = mg_clock() - j->began;
        s->job_seconds = s->job_seconds ? 0.8 * s->job_seconds + 0.2 * took : took;
    }
    forget(s, j);
    pthread_cond_signal(&s->to_prepare);
    unlock(s);
}

/* --- the preparing thread: the queue's order, deadlines, pictures' bytes --- */
static double seconds_ahead(const struct mg_scheduler *s, size_t position) {
    if (!s->job_seconds) return -1;
    return s->job_seconds * (double)position / (double)s->options.max_running;
}

/* Tells those that wait their places. The list can't lose anybody meanwhile but by this thread. */
static void tell_places(struct mg_scheduler *s) {
    lock(s);
    mg_find_places(s);
    for (struct job *j = s->waiting.first; j; j = j->next) {
        struct mg_job_event e = {.kind = MG_JOB_QUEUED, .position = j->place};
        double ahead = seconds_ahead(s, j->place);
        e.estimate_ms = ahead < 0 ? -1 : ahead * 1e3;
        if (!j->place) continue; /* it has come meanwhile */
        unlock(s);
        j->o.event(j->o.user, &e);
        lock(s);
    }
    unlock(s);
}

/* Ends what was cancelled or has waited too long; gives the time of the next deadline, 0 none. */
static double weed(struct mg_scheduler *s) {
    double soonest = 0, now = mg_clock();
    for (bool again = true; again;) {
        again = false;
        soonest = 0;
        lock(s);
        for (struct job *j = s->waiting.first; j; j = j->next) {
            bool cancelled = atomic_load(&j->cancelled) || s->stop, late = now >= j->deadline;
            bool displaced = j->displaced;
            if (!cancelled && !late && !displaced) {
                if (!soonest || j->deadline < soonest) soonest = j->deadline;
                continue;
            }
            take_out(&s->waiting, j);
            s->waiting_bytes -= j->o.bytes;
            if (displaced) displace(s, j, false);
            unlock(s);
            enum mg_status status =
                cancelled ? mg_fail(&j->err, MG_ERR_CANCELLED, "cancelled", "stopped on request")
                : late    ? mg_fail(&j->err, MG_ERR_LIMIT, "queue_timeout",
                                    "waited %.0f s for a free place", now - j->submitted)
                          : mg_fail(&j->err, MG_ERR_LIMIT, "queue_full",
                                    "the queue is full, and others had fewer questions in it");
            mg_job_end(s, j, status);
            lock(s);
            again = true;
            break;
        }
        unlock(s);
    }
    return soonest;
}

/* Has the engine thread's caches give way; false: they have nothing more, or it ends. */
static bool find_memory(struct mg_scheduler *s) {
    lock(s);
    s->short_of_memory = true;
    pthread_cond_signal(&s->to_engine);
    while (s->short_of_memory && !s->stop) pthread_cond_wait(&s->to_go_on, &s->mutex);
    bool some = !s->short_of_memory && s->gave_way;
    s->short_of_memory = false;
    unlock(s);
    return some;
}

/* A conversation reserves address space for the whole context, which may be limited. */
static enum mg_status open_chat(struct mg_scheduler *s, struct job *j, mg_chat **chat) {
    enum mg_status status = mg_chat_open(s->engine, chat, &j->err);
    while (status == MG_ERR_MEMORY && !atomic_load(&j->cancelled) && find_memory(s)) {
        mg_err_clear(&j->err);
        status = mg_chat_open(s->engine, chat, &j->err);
    }
    return status;
}

static void prepare(struct mg_scheduler *s, struct job *j) {
    struct mg_job_event e = {.kind = MG_JOB_STAGE, .decoding = true};
    j->began = mg_clock();
    j->o.event(j->o.user, &e);
    mg_chat *chat = NULL;
    enum mg_status status = open_chat(s, j, &chat);
    if (status == MG_OK) {
        memcpy(chat->tenant, j->o.tenant, sizeof chat->tenant);
        chat->want_prints = mg_job_wants_similar(s, j);
        lock(s);
        j->chat = chat;
        if (atomic_load(&j->cancelled)) mg_chat_cancel(chat);
        unlock(s);
        status = j->o.prepare(j->o.user, chat, &j->err);
    }
    j->status = status;
    lock(s);
    append(&s->ready, j);
    pthread_cond_signal(&s->to_engine);
    unlock(s);
}

static void wait_until(struct mg_scheduler *s, pthread_cond_t *c, double when) {
    struct timespec t;
    if (!when) {
        pthread_cond_wait(c, &s->mutex);
        return;
    }
    t.tv_sec = (time_t)when;
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    pthread_cond_timedwait(c, &s->mutex, &t);
}

static void *prepare_main(void *arg) {
    struct mg_scheduler *s = arg;
    size_t told = 0;
    for (;;) {
        double soonest = weed(s);
        lock(s);
        struct job *j = s->n_taken < s->options.max_running ? next_waiting(s) : NULL;
        if (j) {
            take_out(&s->waiting, j);
            s->waiting_bytes -= j->o.bytes;
            j->taken = true;
            note_turn(s, j->o.tenant);
            j->turn = s->turns;
            s->n_taken++;
            s->counts.last_progress = mg_clock(); /* what was idle until now has not stalled */
        } else if (s->stop && !s->waiting.n) {
            unlock(s);
            return NULL;
        } else if (s->changed == told) {
            wait_until(s, &s->to_prepare, soonest);
            unlock(s);
            continue; /* there may be a place now */
        }
        bool tell = !j && s->waiting.n;
        told = s->changed;
        if (j) s->changed++;
        unlock(s);
        if (j)
            prepare(s, j);
        else if (tell)
            tell_places(s);
    }
}

/* --- from any thread --- */
/* Under the lock, which it opens. */
static enum mg_status refuse(struct mg_scheduler *s, double *retry_seconds, struct mg_err *err) {
    double ahead = seconds_ahead(s, s->options.max_running);
    size_t n = s->waiting.n;
    unlock(s);
    *retry_seconds = ahead < 1 ? 1 : ahead;
    return mg_fail(err, MG_ERR_LIMIT, "queue_full", "%zu questions are waiting already", n);
}

enum mg_status mg_scheduler_would_take(struct mg_scheduler *s, const uint8_t *tenant,
                                       double *retry_seconds, struct mg_err *err) {
    struct mg_job o = {.bytes = 0};
    memcpy(o.tenant, tenant, sizeof o.tenant);
    *retry_seconds = 1;
    lock(s);
    bool count_fits = s->waiting.n - s->n_displaced < s->options.max_waiting;
    if (s->stop || (!has_room(s, 0) && !to_displace(s, &o, count_fits)))
        return refuse(s, retry_seconds, err);
    unlock(s);
    return MG_OK;
}

enum mg_status mg_scheduler_submit(struct mg_scheduler *s, const struct mg_job *o, uint64_t *id,
                                   double *retry_seconds, struct mg_err *err) {
    struct job *j = calloc(1, sizeof *j);
    if (!j) return mg_fail_memory(err, "job");
    j->o = *o;
    j->submitted = mg_clock();
    j->deadline = j->submitted + (o->wait_seconds > 0 ? o->wait_seconds : s->options.wait_seconds);
    lock(s);
    if (s->stop || !make_room(s, o)) {
        free(j);
        return refuse(s, retry_seconds, err);
    }
    *id = j->id = ++s->last_id;
    j->next_of_all = s->all;
    s->all = j;
    append(&s->waiting, j);
    s->waiting_bytes += o->bytes;
    s->changed++;
    pthread_cond_signal(&s->to_prepare);
    unlock(s);
    return MG_OK;
}

void mg_scheduler_cancel(struct mg_scheduler *s, uint64_t id) {
    lock(s);
    struct job *j = s->all;
    while (j && j->id != id) j = j->next_of_all;
    if (j) {
        atomic_store(&j->cancelled, true);
        if (j->chat) mg_chat_cancel(j->chat);
        s->changed++;
        pthread_cond_signal(&s->to_prepare);
        pthread_cond_signal(&s->to_engine);
    }
    unlock(s);
}

void mg_scheduler_counts(struct mg_scheduler *s, struct mg_scheduler_counts *out) {
    lock(s);
    *out = s->counts;
    out->waiting = s->waiting.n;
    out->waiting_bytes = s->waiting_bytes;
    out->preparing = s->n_taken - mg_min_size(s->n_taken, out->running);
    out->slots = s->options.max_running;
    out->busy = s->n_taken > 0;
    unlock(s);
}

/* --- the engine thread --- */
void mg_take_ready(struct mg_scheduler *s) {
    lock(s);
    while (s->ready.n && s->n_run < MG_MAX_RUNNING) {
        struct job *j = s->ready.first;
        take_out(&s->ready, j);
        s->run[s->n_run++] = j;
    }
    mg_note_counts(s);
    bool give_way = s->short_of_memory;
    unlock(s);
    if (!give_way) return;
    bool gave_way = mg_give_way(s);
    lock(s);
    s->gave_way = gave_way;
    s->short_of_memory = false;
    pthread_cond_signal(&s->to_go_on);
    unlock(s);
}

void mg_tell_counts(struct mg_scheduler *s) {
    lock(s);
    mg_note_counts(s);
    unlock(s);
}

static void *engine_main(void *arg) {
    struct mg_scheduler *s = arg;
    struct mg_err err = {0};
    enum mg_status status = s->options.warm_up ? mg_engine_warm_up(s->engine, &err) : MG_OK;
    if (status != MG_OK) mg_log(MG_LOG_WARN, "warm-up: %s", err.text);
    lock(s);
    s->counts.ready = true;
    unlock(s);
    for (;;) {
        mg_take_ready(s);
        lock(s);
        while (!s->ready.n && !s->n_run && !s->stop && !s->short_of_memory)
            pthread_cond_wait(&s->to_engine, &s->mutex);
        bool over = s->stop && !s->n_taken && !s->waiting.n;
        if (s->stop && !over && !s->n_run && !s->ready.n) { /* the other thread has it */
            struct timespec t;
            clock_gettime(CLOCK_MONOTONIC, &t);
            t.tv_nsec += 10000000;
            if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
            pthread_cond_timedwait(&s->to_engine, &s->mutex, &t);
        }
        unlock(s);
        if (over) return NULL;
        if (s->n_run) mg_work(s);
    }
}

/* --- opening and closing --- */
static size_t memory_left(const mg_engine *e) {
    size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t limit = e->topology.memory_limit;
    if (limit && limit < all) all = limit;
    size_t used = mg_weights_bytes(e->model->weights) + ((size_t)512 << 20);
    return all > used ? all - used : 0;
}

/* Address space that the caches may take when it is limited (ulimit -v), beside the conversations
 * that run at a time and as much as they for all else; SIZE_MAX: it isn't. */
static size_t address_space_left(const struct mg_scheduler *s) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= SIZE_MAX / 2) return SIZE_MAX;
    const struct mg_engine *e = s->engine;
    const struct mg_text_config *t = &e->model->config.text;
    size_t chat = mg_kv_reserve(e->mode == MG_MODE_BF16 ? MG_BF16 : MG_F32, t->n_layer,
                                t->n_head_kv, t->head_dim, e->options.context);
    size_t all = (size_t)limit.rlim_cur, used = mg_memory_mapped();
    size_t left = all > used ? all - used : 0, most = SIZE_MAX;
    if (!mg_mul_size(chat, s->options.max_running + 1, &most)) return 0;
    return left / 2 > most ? left / 2 - most : 0;
}

static size_t within(size_t n, size_t least, size_t most) {
    return mg_max_size(least, mg_min_size(n, most));
}

static void fill_defaults(struct mg_scheduler *s, const struct mg_scheduler_options *o) {
    const size_t mb = (size_t)1 << 20;
    size_t left = memory_left(s->engine);
    if (o) s->options = *o;
    struct mg_scheduler_options *p = &s->options;
    p->max_running = within(p->max_running ? p->max_running : 8, 1, MG_MAX_RUNNING);
    if (!p->max_waiting) p->max_waiting = 256;
    if (!p->max_waiting_bytes) p->max_waiting_bytes = within(left / 8, 64 * mb, 1024 * mb);
    if (!(p->wait_seconds > 0)) p->wait_seconds = 300;
    if (!p->feature_budget) p->feature_budget = within(left / 10, 32 * mb, 1024 * mb);
    if (!p->prefix_budget) p->prefix_budget = within(left / 5, 64 * mb, 4096 * mb);
    size_t space = address_space_left(s);
    s->prefixes.by_space = space < SIZE_MAX;
    if (s->prefixes.by_space) {
        p->max_waiting_bytes = mg_min_size(p->max_waiting_bytes, mg_max_size(space / 4, 4 * mb));
        if (p->feature_budget != SIZE_MAX)
            p->feature_budget = mg_min_size(p->feature_budget, space / 4);
        if (p->prefix_budget != SIZE_MAX)
            p->prefix_budget = mg_min_size(p->prefix_budget, space / 2);
    }
    s->features.budget = p->feature_budget == SIZE_MAX ? 0 : p->feature_budget;
    s->answers.budget = p->answer_budget;
    s->answers.seconds = p->answer_seconds;
    s->prefixes.budget = p->prefix_budget == SIZE_MAX ? 0 : p->prefix_budget;
    s->kv_budget = within(left / 2, 128 * mb, SIZE_MAX);
}

enum mg_status mg_scheduler_open(mg_engine *engine, const struct mg_scheduler_options *options,
                                 struct mg_scheduler **out, struct mg_err *err) {
    *out = NULL;
    struct mg_scheduler *s = calloc(1, sizeof *s);
    if (!s) return mg_fail_memory(err, "scheduler");
    s->engine = engine;
    fill_defaults(s, options);
    size_t n_vocab = engine->model->config.text.n_vocab;
    s->logits = mg_alloc(s->options.max_running * n_vocab, sizeof *s->logits);
    enum mg_status status = s->logits ? MG_OK : mg_fail_memory(err, "scheduler");
    for (size_t i = 0; i < s->options.max_running && status == MG_OK; i++)
        status = mg_sampler_open(n_vocab, &s->slot[i].sampler, err);
    engine->feature_cache = &s->features;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->to_prepare, &clock);
    pthread_cond_init(&s->to_engine, &clock);
    pthread_cond_init(&s->to_go_on, &clock);
    pthread_condattr_destroy(&clock);
    if (status == MG_OK && pthread_create(&s->engine_thread, NULL, engine_main, s))
        status = mg_fail(err, MG_ERR_MEMORY, "thread", "the engine's thread can't be started");
    s->n_thread = status == MG_OK;
    if (status == MG_OK && pthread_create(&s->prepare_thread, NULL, prepare_main, s))
        status = mg_fail(err, MG_ERR_MEMORY, "thread", "the preparing thread can't be started");
    s->n_thread += status == MG_OK;
    if (status != MG_OK) {
        mg_scheduler_close(s);
        return status;
    }
    *out = s;
    return MG_OK;
}

void mg_scheduler_close(struct mg_scheduler *s) {
    if (!s) return;
    lock(s);
    s->stop = true;
    for (struct job *j = s->all; j; j = j->next_of_all) {
        atomic_store(&j->cancelled, true);
        if (j->chat) mg_chat_cancel(j->chat);
    }
    s->changed++;
    pthread_cond_broadcast(&s->to_prepare);
    pthread_cond_broadcast(&s->to_engine);
    pthread_cond_broadcast(&s->to_go_on);
    unlock(s);
    if (s->n_thread > 1) pthread_join(s->prepare_thread, NULL);
    lock(s);
    pthread_cond_broadcast(&s->to_engine);
    unlock(s);
    if (s->n_thread) pthread_join(s->engine_thread, NULL);
    s->engine->feature_cache = NULL;
    mg_feature_cache_shrink(&s->features, 0);
    mg_prefix_store_shrink(&s->prefixes, 0);
    mg_answer_cache_shrink(&s->answers, 0);
    for (size_t i = 0; i < MG_MAX_RUNNING; i++) {
        mg_sampler_close(s->slot[i].sampler);
        mg_draft_free(&s->slot[i].draft);
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->to_prepare);
    pthread_cond_destroy(&s->to_engine);
    pthread_cond_destroy(&s->to_go_on);
    free(s->logits);
    free(s);
}
