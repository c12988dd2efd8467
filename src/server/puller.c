/* server/puller.c - see puller.h. */
#include "server/puller.h"

#include "api/image_source.h"
#include "api/stream_resume.h"
#include "net/http_response.h"
#include "server/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    FLUSH_BYTES = 16 << 10,
    MOST_EMIT = 64 << 10,  /* of a stream with one call: gateways pass it on in one write */
    MOST_REPLY = 32 << 20, /* bytes of an answer that wait for Redis */
    MOST_PICTURES = 64,    /* kept for jobs to come */
    ABOUT_BEATS = 4        /* beats between two tellings of what this worker is */
};
static const size_t most_picture_bytes = (size_t)128 << 20;
static const double flush_seconds = 0.03, look_seconds = 0.5, reap_seconds = 1, again_seconds = 0.1;

/* --- pictures; shared by jobs, the list of recent ones and questions of the server --- */
struct bytes {
    atomic_int refs;
    size_t n;
    uint8_t data[];
};

static void bytes_unref(void *shared) {
    struct bytes *b = shared;
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) free(b);
}

struct recent { /* newest first; the taking thread's */
    char tenant[MG_JOB_TENANT_BYTES], digest[65];
    struct bytes *bytes;
    struct recent *next;
};

struct named {
    struct mg_job_blob blob;
    struct bytes *bytes; /* NULL: not yet there */
};

/* --- jobs under way --- */
/* FETCHING: its pictures are on their way, which may take longer than a lease lasts; the running
 * thread does nothing but renew that. */
enum stage { FETCHING, BEGUN, UNBEGUN };

struct run {
    struct puller *p;
    char id[MG_JOB_ID_BYTES], tenant[MG_JOB_TENANT_BYTES]; /* constant in `all` */
    unsigned attempt;                                      /* likewise */
    struct run *next;                                      /* in `all`, under the mutex */
    struct run *next_taken;                                /* the taking thread's */
    atomic_int stage;

    /* The taking thread's while FETCHING, then the running thread's. */
    struct named *picture; /* [n_picture] constant once BEGUN */
    size_t n_picture;
    int fd; /* ours of the pair; -1: closed */
    struct mg_buf request;
    size_t sent;
    struct mg_http_response response;
    struct mg_buf head;       /* what is told of the reply's head */
    struct mg_resume resume;  /* of an event stream */
    bool resumed;             /* an earlier attempt has begun it: its head is out */
    struct mg_buf out;        /* not yet in Redis */
    uint64_t from;            /* bytes of the answer before `out` */
    double out_at;            /* when its first byte came, 0: it is empty */
    bool emitted;             /* something of this attempt is in Redis */
    const char *state, *code; /* not NULL: how it ends */
    bool give_back, counted;
    bool over; /* to be freed */
};

struct puller {
    struct mg_server *s;
    struct puller_options o;
    char *about, worker[64];
    struct mg_queue *taking, *running; /* a link for each thread */
    pthread_t take_thread, run_thread;
    bool take_started, run_started;
    int wake; /* eventfd: the running thread has something to look at */
    atomic_int stops;
    atomic_bool closing, taken_all;  /* no more jobs will be added */
    double stop_at;                  /* running thread: when all has to be back; 0: not stopping */
    struct recent *recent;           /* taking thread */
    double next_reap;                /* likewise */
    bool away;                       /* likewise: the log has it */
    char place[MG_JOB_PLACE_BYTES];  /* likewise */
    struct run *taken, **last_taken; /* likewise: FETCHING, in the order of their turns */

    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t freed;  /* a place */
    struct run *all;
    size_t n_all;

    atomic_uint_fast64_t n_taken, n_emitted, n_lost, n_returned;
    atomic_bool up;
};

static void wake_up(const struct puller *p) {
    uint64_t one = 1;
    if (write(p->wake, &one, sizeof one) < 0) return; /* it is awake already */
}

static void run_free(struct run *r) {
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    for (size_t i = 0; i < r->n_picture; i++) bytes_unref(r->picture[i].bytes);
    free(r->picture);
    mg_buf_free(&r->request);
    mg_buf_free(&r->head);
    mg_buf_free(&r->out);
    mg_http_response_free(&r->response);
    mg_resume_free(&r->resume);
    free(r);
}

/* --- the taking thread --- */
static struct bytes *find_recent(struct puller *p, const char *tenant, const char *digest) {
    for (struct recent **at = &p->recent; *at; at = &(*at)->next) {
        struct recent *e = *at;
        if (strcmp(e->digest, digest) != 0 || strcmp(e->tenant, tenant) != 0) continue;
        *at = e->next;
        e->next = p->recent;
        p->recent = e;
        atomic_fetch_add(&e->bytes->refs, 1);
        return e->bytes;
    }
    return NULL;
}

static void forget_recent(struct puller *p, size_t most, size_t most_bytes) {
    size_t n = 0, bytes = 0;
    for (struct recent **at = &p->recent; *at;) {
        struct recent *e = *at;
        if (n < most && bytes + e->bytes->n <= most_bytes) {
            n++;
            bytes += e->bytes->n;
            at = &e->next;
            continue;
        }
        *at = e->next;
        bytes_unref(e->bytes);
        free(e);
    }
}

static enum mg_status get_picture(struct puller *p, const char *tenant, const char *digest,
                                  struct bytes **out, struct mg_err *err) {
    *out = find_recent(p, tenant, digest);
    if (*out) return MG_OK;
    struct mg_buf b = {0};
    enum mg_status st = mg_queue_blob(p->taking, tenant, digest, &b, err);
    struct bytes *bytes = st ? NULL : malloc(sizeof *bytes + b.n);
    struct recent *e = st ? NULL : calloc(1, sizeof *e);
    if (!st && (!bytes || !e)) {
        free(bytes);
        free(e);
        bytes = NULL;
        st = mg_fail_memory(err, "picture");
    } else if (!st) {
        atomic_init(&bytes->refs, 2);
        bytes->n = b.n;
        memcpy(bytes->data, b.data, b.n);
        *e = (struct recent){.bytes = bytes, .next = p->recent};
        snprintf(e->tenant, sizeof e->tenant, "%s", tenant);
        snprintf(e->digest, sizeof e->digest, "%s", digest);
        p->recent = e;
        forget_recent(p, MOST_PICTURES, most_picture_bytes);
    }
    mg_buf_free(&b);
    *out = bytes;
    return st;
}

/* Events of earlier attempts, as they are read. */
struct earlier {
    struct run *r;
    char place[MG_JOB_PLACE_BYTES];
    size_t n; /* events of this reading */
    struct mg_err err;
};

static void on_earlier(void *user, const struct mg_queue_event *e) {
    struct earlier *w = user;
    w->n++;
    snprintf(w->place, sizeof w->place, "%s", e->place);
    if (e->head) w->r->resumed = true;
    if (e->data.n && !w->err.status)
        mg_resume_learn(&w->r->resume, e->data.data, e->data.n, &w->err);
}

static enum mg_status learn_earlier(struct puller *p, struct run *r, struct mg_err *err) {
    struct earlier w = {.r = r, .place = "0-0"};
    const char *id = r->id, *after = w.place;
    do {
        w.n = 0;
        enum mg_status st = mg_queue_events(p->taking, &id, &after, 1, on_earlier, &w, err);
        if (st) return st;
    } while (w.n && !w.err.status);
    return w.err.status ? mg_fail(err, w.err.status, w.err.code, "%s", w.err.text) : MG_OK;
}

/* One field of a reply's head that the client is to see. */
static void on_field(void *user, const char *name, const char *value) {
    struct run *r = user;
    static const char *const kept[] = {"Content-Type", "Retry-After", "x-cache",
                                       "x-cache-distance"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!strcasecmp(name, kept[i])) mg_buf_printf(&r->head, "%s: %s\n", kept[i], value);
}

static bool write_request(struct puller *p, struct run *r, const struct mg_job_taken *job) {
    r->request.max = SIZE_MAX;
    return mg_buf_printf(&r->request,
                         "POST %s%s HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n"
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                         "X-Margay-Job: %s\r\nX-Margay-Tenant: %s\r\nX-Margay-Created: %lld\r\n"
                         "\r\n",
                         p->o.prefix ? p->o.prefix : "", job->path, job->body.n, job->id,
                         job->tenant, (long long)(job->created_ms / 1000)) &&
           mg_buf_add(&r->request, job->body.data, job->body.n);
}

/* What can't be begun for a reason that is the job's own ends; for other reasons it is given back,
 * as a start that failed, so that it doesn't come again for ever. Where that fails too, the next
 * `mine` does it, as it is no longer in `all`. */
static void end_unbegun(struct run *r, const struct mg_err *why) {
    struct puller *p = r->p;
    enum mg_owner owner;
    struct mg_err err = {0};
    bool own = !strcmp(why->code, "blob_gone") || !strcmp(why->code, "answer_stream");
    mg_log(MG_LOG_WARN, "job %s: %s", r->id, why->text);
    if (own)
        mg_queue_emit(p->taking, r->id, r->attempt, "", r->from, (struct mg_slice){0}, "failed",
                      strcmp(why->code, "blob_gone") ? "answer_changed" : "picture_gone", &owner,
                      &err);
    else if (mg_queue_release(p->taking, r->id, r->attempt, true, &owner, &err) == MG_OK)
        atomic_fetch_add(owner == MG_OWNER_LOST ? &p->n_lost : &p->n_returned, 1);
    atomic_store(&r->stage, UNBEGUN);
    wake_up(p);
}

/* Into `all`, so that its lease is renewed; begun by begin_taken. */
static void on_taken(void *user, const struct mg_job_taken *job) {
    struct puller *p = user;
    struct run *r = calloc(1, sizeof *r);
    if (!r) return;
    atomic_init(&r->stage, FETCHING);
    r->p = p;
    r->fd = -1;
    r->attempt = job->attempt;
    r->from = job->offset;
    snprintf(r->id, sizeof r->id, "%s", job->id);
    snprintf(r->tenant, sizeof r->tenant, "%s", job->tenant);
    r->response.field = on_field;
    r->response.user = r;
    atomic_fetch_add(&p->n_taken, 1);
    mg_metrics_observe(p->s->metrics, MG_M_JOB_WAIT, job->waited_seconds);
    r->picture = calloc(job->n_blob + 1, sizeof *r->picture);
    if (r->picture) r->n_picture = job->n_blob;
    for (size_t i = 0; i < r->n_picture; i++) r->picture[i].blob = job->blob[i];
    if (!r->picture || !write_request(p, r, job)) mg_buf_free(&r->request);
    *p->last_taken = r;
    p->last_taken = &r->next_taken;
    pthread_mutex_lock(&p->mutex);
    r->next = p->all;
    p->all = r;
    p->n_all++;
    pthread_mutex_unlock(&p->mutex);
}

static void begin_run(struct puller *p, struct run *r) {
    struct mg_err err = {0};
    int fd[2];
    enum mg_status st = r->request.n ? MG_OK : mg_fail_memory(&err, "job");
    for (size_t i = 0; i < r->n_picture && !st; i++)
        st = get_picture(p, r->tenant, r->picture[i].blob.digest, &r->picture[i].bytes, &err);
    if (!st && r->from) st = learn_earlier(p, r, &err);
    if (!st && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) != 0)
        st = mg_fail_errno(&err, "make", "a socket pair", errno);
    if (st) {
        end_unbegun(r, &err);
        return;
    }
    r->fd = fd[0];
    atomic_store(&r->stage, BEGUN);
    mg_http_server_adopt(p->s->http, fd[1]);
    wake_up(p);
}

static void begin_taken(struct puller *p) {
    struct run *r = p->taken;
    p->taken = NULL;
    p->last_taken = &p->taken;
    while (r) { /* once it has begun the running thread may free it */
        struct run *next = r->next_taken;
        begin_run(p, r);
        r = next;
    }
}

static size_t free_places(struct puller *p) {
    pthread_mutex_lock(&p->mutex);
    size_t n = p->o.places - mg_min_size(p->o.places, p->n_all);
    pthread_mutex_unlock(&p->mutex);
    return n;
}

/* Until a place is free, or for so long. */
static void wait_place(struct puller *p, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double at = (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec += (time_t)at;
    until.tv_nsec = (long)((at - floor(at)) * 1e9);
    pthread_mutex_lock(&p->mutex);
    pthread_cond_timedwait(&p->freed, &p->mutex, &until);
    pthread_mutex_unlock(&p->mutex);
}

/* Leases of this worker for jobs that it does not know: their take was lost on its way. */
static enum mg_status give_up_unknown(struct puller *p, struct mg_err *err) {
    const char *id[MG_MAX_RUNNING];
    char copy[MG_MAX_RUNNING][MG_JOB_ID_BYTES];
    size_t n = 0;
    pthread_mutex_lock(&p->mutex);
    for (struct run *r = p->all; r && n < MG_MAX_RUNNING; r = r->next) {
        memcpy(copy[n], r->id, sizeof copy[n]);
        id[n] = copy[n];
        n++;
    }
    pthread_mutex_unlock(&p->mutex);
    return mg_queue_mine(p->taking, p->worker, id, n, err);
}

static enum mg_status take_turn(struct puller *p, struct mg_err *err) {
    unsigned lost;
    enum mg_status st = MG_OK;
    if (mg_clock() >= p->next_reap) {
        st = mg_queue_reap(p->taking, &lost, err);
        if (!st) st = give_up_unknown(p, err);
        if (st) return st;
        p->next_reap = mg_clock() + reap_seconds;
    }
    struct mg_scheduler_counts c;
    mg_scheduler_counts(p->s->scheduler, &c);
    size_t n = c.ready ? free_places(p) : 0, n_recent = 0;
    if (!n) {
        wait_place(p, look_seconds);
        return MG_OK;
    }
    const char *recent[MOST_PICTURES];
    for (struct recent *e = p->recent; e && n_recent < MOST_PICTURES; e = e->next)
        recent[n_recent++] = e->digest;
    uint64_t before = atomic_load(&p->n_taken);
    st = mg_queue_take(p->taking, p->worker, n, recent, n_recent, on_taken, p, p->place, err);
    begin_taken(p);
    if (!st && atomic_load(&p->n_taken) == before && !atomic_load(&p->stops))
        st = mg_queue_wait_jobs(p->taking, p->place, look_seconds, err);
    return st;
}

static void *take_jobs(void *arg) {
    struct puller *p = arg;
    while (!atomic_load(&p->stops) && !atomic_load(&p->closing)) {
        struct mg_err err = {0};
        enum mg_status st = take_turn(p, &err);
        atomic_store(&p->up, st == MG_OK);
        if (st && !p->away) mg_log(MG_LOG_WARN, "the queue is away: %s", err.text);
        if (!st && p->away) mg_log(MG_LOG_WARN, "the queue is there again");
        p->away = st != MG_OK;
        if (st) {
            p->next_reap = 0; /* a take may have been lost */
            wait_place(p, again_seconds);
        }
    }
    forget_recent(p, 0, 0);
    atomic_store(&p->taken_all, true);
    wake_up(p);
    return NULL;
}

/* --- the running thread --- */
/* Else nothing of it but its name may be looked at. */
static bool has_begun(const struct run *r) {
    return atomic_load(&r->stage) == BEGUN;
}

static void close_run(struct run *r) {
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

static void end_run(struct run *r, const char *state, const char *code) {
    if (r->state || r->give_back) return;
    r->state = state;
    r->code = code;
    close_run(r);
}

static void return_run(struct run *r, bool counted) {
    if (r->state || r->give_back) return;
    r->give_back = true;
    r->counted = counted;
    close_run(r);
}

/* The reply has ended as it should. */
static void reply_is_whole(struct run *r) {
    bool busy = !r->response.event_stream && r->response.status == 503;
    if (busy && (atomic_load(&r->p->stops) || r->attempt < 3))
        return_run(r, !atomic_load(&r->p->stops));
    else if (r->resumed && !r->response.event_stream) /* the client has half a stream */
        end_run(r, "failed", "answer_changed");
    else
        end_run(r, "done", "");
}

static void take_body(struct run *r, struct mg_slice piece) {
    struct mg_err err = {0};
    if (!r->head.n || !piece.n) return;
    bool had = r->out.n > 0;
    if (r->response.event_stream) {
        if (mg_resume_feed(&r->resume, piece.data, piece.n, &r->out, &err) != MG_OK) {
            mg_log(MG_LOG_WARN, "job %s: %s", r->id, err.text);
            end_run(r, "failed", err.status == MG_ERR_NUMERIC ? "answer_changed" : "out_of_memory");
        }
    } else if (!mg_buf_add(&r->out, piece.data, piece.n)) {
        end_run(r, "failed", "out_of_memory");
    }
    if (r->out.n > MOST_REPLY) end_run(r, "failed", "answer_too_large");
    if (!had && r->out.n) r->out_at = mg_clock();
}

static void read_reply(struct run *r) {
    uint8_t data[65536];
    while (r->fd >= 0) {
        ssize_t got = read(r->fd, data, sizeof data);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) { /* the server has cut it: out of memory, or it is being stopped */
            return_run(r, !atomic_load(&r->p->stops));
            return;
        }
        for (size_t at = 0; at < (size_t)got && r->fd >= 0;) {
            size_t used = 0;
            struct mg_slice piece;
            bool headed = r->response.headed;
            enum mg_http_feed f =
                mg_http_response_feed(&r->response, data + at, (size_t)got - at, &used, &piece);
            at += used;
            if (!headed && r->response.headed) {
                char status[16];
                struct mg_buf fields = r->head;
                r->head = (struct mg_buf){0};
                snprintf(status, sizeof status, "%d\n", r->response.status);
                mg_buf_add_str(&r->head, status);
                if (fields.n) mg_buf_add(&r->head, fields.data, fields.n);
                mg_buf_free(&fields);
            }
            take_body(r, piece);
            if (f == MG_HTTP_BAD) return_run(r, true);
            if (f == MG_HTTP_DONE) reply_is_whole(r);
        }
    }
}

static void send_request(struct run *r) {
    while (r->fd >= 0 && r->sent < r->request.n) {
        ssize_t n = send(r->fd, r->request.data + r->sent, r->request.n - r->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* what ended it is found by reading */
        r->sent += (size_t)n;
    }
    if (r->request.n && r->sent == r->request.n) mg_buf_free(&r->request), r->sent = 0;
}

static void drop_run(struct run *r) {
    close_run(r);
    r->over = true;
}

/* As many whole events as come to at most so many bytes, one at least. */
static size_t whole_events(struct mg_slice data, size_t most) {
    for (size_t n = most; n > 1; n--)
        if (data.data[n - 1] == '\n' && data.data[n - 2] == '\n') return n;
    const uint8_t *end = memmem(data.data, data.n, "\n\n", 2);
    return end ? (size_t)(end - data.data) + 2 : data.n;
}

/* Its answer goes on to Redis, as far as it is due. */
static void push_run(struct run *r, double now) {
    struct puller *p = r->p;
    enum mg_owner owner = MG_OWNER_OK;
    struct mg_err err = {0};
    if (r->over || !has_begun(r)) return;
    if (r->give_back) {
        if (mg_queue_release(p->running, r->id, r->attempt, r->counted, &owner, &err) != MG_OK)
            return;
        atomic_fetch_add(owner == MG_OWNER_LOST ? &p->n_lost : &p->n_returned, 1);
        drop_run(r);
        return;
    }
    bool due = r->out.n && r->response.event_stream &&
               (!r->emitted || r->out.n >= FLUSH_BYTES || now - r->out_at >= flush_seconds);
    if (!due && !r->state) return;
    /* A stream's rest goes out also when it ends badly; half a whole reply does not. */
    bool half = r->state && strcmp(r->state, "done") != 0 && !r->response.event_stream;
    const char *head = r->emitted || r->resumed || half || !r->head.n ? "" : (char *)r->head.data;
    struct mg_slice data = {r->out.data, half ? 0 : r->out.n};
    const char *state = r->state;
    if (data.n > MOST_EMIT && r->response.event_stream) {
        data.n = whole_events(data, MOST_EMIT);
        if (data.n < r->out.n) state = NULL;
    }
    if (mg_queue_emit(p->running, r->id, r->attempt, head, r->from, data, state, r->code, &owner,
                      &err) != MG_OK)
        return;
    atomic_fetch_add(&p->n_emitted, 1);
    if (owner == MG_OWNER_GAP) {
        mg_log(MG_LOG_WARN, "job %s: Redis has lost a part of the answer; it is made anew", r->id);
        r->state = NULL;
        return_run(r, false);
        return;
    }
    if (owner == MG_OWNER_LOST) {
        atomic_fetch_add(&p->n_lost, r->state == NULL);
        drop_run(r);
        return;
    }
    if (state) {
        drop_run(r);
        return;
    }
    r->emitted = true;
    r->from += data.n;
    memmove(r->out.data, r->out.data + data.n, r->out.n - data.n);
    r->out.n -= data.n;
    r->out_at = r->out.n ? now - flush_seconds : 0;
    if (owner == MG_OWNER_CANCEL) end_run(r, "cancelled", "cancelled");
}

/* Only this thread takes runs out of `all`, and the other one puts them in front: what a snapshot
 * of the head reaches stays. */
static struct run *first_run(struct puller *p) {
    pthread_mutex_lock(&p->mutex);
    struct run *r = p->all;
    pthread_mutex_unlock(&p->mutex);
    return r;
}

/* One that has not begun is told again by a later beat. */
static void on_beat(void *user, const char *id, unsigned attempt, enum mg_owner owner) {
    struct puller *p = user;
    for (struct run *r = first_run(p); r; r = r->next) {
        if (!has_begun(r) || r->attempt != attempt || strcmp(r->id, id) != 0) continue;
        if (owner == MG_OWNER_CANCEL)
            end_run(r, "cancelled", "cancelled");
        else if (!r->state) /* a last emit may have been done without our hearing of it */
            drop_run(r);
    }
}

static void beat(struct puller *p, unsigned n_beat) {
    const char *id[MG_MAX_RUNNING];
    unsigned attempt[MG_MAX_RUNNING];
    size_t n = 0;
    struct mg_err err = {0};
    for (struct run *r = first_run(p); r && n < MG_MAX_RUNNING; r = r->next) {
        int stage = atomic_load(&r->stage);
        if (stage == UNBEGUN || (stage == BEGUN && r->over)) continue;
        id[n] = r->id;
        attempt[n++] = r->attempt;
    }
    bool tell = n_beat % ABOUT_BEATS == 0;
    mg_queue_beat(p->running, p->worker, p->o.places, tell ? p->about : NULL, id, attempt, n,
                  on_beat, p, &err);
}

static void free_over(struct puller *p) {
    struct run *gone = NULL;
    pthread_mutex_lock(&p->mutex);
    for (struct run **at = &p->all; *at;) {
        struct run *r = *at;
        if (atomic_load(&r->stage) != UNBEGUN && !(has_begun(r) && r->over)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = gone;
        gone = r;
        p->n_all--;
        pthread_cond_signal(&p->freed);
    }
    pthread_mutex_unlock(&p->mutex);
    while (gone) {
        struct run *r = gone;
        gone = r->next;
        run_free(r);
    }
}

/* How long until something is due, in milliseconds. */
static int sleep_ms(struct run *first, double now, double next_beat) {
    double at = next_beat;
    for (struct run *r = first; r; r = r->next) {
        if (!has_begun(r)) continue;
        if (r->state || r->give_back)
            at = fmin(at, now + 0.05);
        else if (r->out.n && r->response.event_stream)
            at = fmin(at, fmax(r->out_at + flush_seconds, now + 0.005));
    }
    return at <= now ? 0 : (int)ceil((at - now) * 1e3);
}

static void wait_io(struct puller *p, struct run *first, int ms) {
    struct pollfd fd[1 + MG_MAX_RUNNING];
    struct run *of[1 + MG_MAX_RUNNING];
    nfds_t n = 0;
    uint64_t times;
    fd[n++] = (struct pollfd){.fd = p->wake, .events = POLLIN};
    for (struct run *r = first; r && n <= MG_MAX_RUNNING; r = r->next) {
        if (!has_begun(r) || r->fd < 0) continue;
        of[n] = r;
        fd[n++] =
            (struct pollfd){.fd = r->fd, .events = (short)(POLLIN | (r->request.n ? POLLOUT : 0))};
    }
    if (poll(fd, n, ms) <= 0) return;
    if (fd[0].revents && read(p->wake, &times, sizeof times) < 0) return;
    for (nfds_t i = 1; i < n; i++) {
        if (fd[i].revents & POLLOUT) send_request(of[i]);
        if (fd[i].revents & (POLLIN | POLLHUP | POLLERR)) read_reply(of[i]);
    }
}

/* When stopping: at its time, all that is left goes back. */
static void look_at_stop(struct puller *p, double now) {
    int stops = atomic_load(&p->stops);
    if (!stops) return;
    double drain = p->o.drain_seconds;
    if (p->stop_at == 0) p->stop_at = now + fmax(0, drain - fmin(0.5, drain / 2));
    if (now < p->stop_at && stops < 2 && !atomic_load(&p->closing)) return;
    for (struct run *r = first_run(p); r; r = r->next)
        if (has_begun(r)) return_run(r, false);
}

static void *run_jobs(void *arg) {
    struct puller *p = arg;
    double next_beat = 0, give_up = 0;
    double every = fmin(look_seconds, mg_queue_settings(p->running)->lease_seconds / 4);
    for (unsigned n_beat = 0;;) {
        struct run *first = first_run(p);
        double now = mg_clock();
        wait_io(p, first, sleep_ms(first, now, next_beat));
        now = mg_clock();
        look_at_stop(p, now);
        for (struct run *r = first_run(p); r; r = r->next) push_run(r, now);
        if (now >= next_beat) {
            beat(p, n_beat++);
            next_beat = now + every;
        }
        free_over(p);
        bool empty = !first_run(p) && atomic_load(&p->taken_all);
        if (atomic_load(&p->closing) && !(give_up > 0)) give_up = now + 2;
        if (empty || (give_up > 0 && now >= give_up)) return NULL;
    }
}

/* --- opening and closing --- */
enum mg_status puller_open(struct mg_server *s, const struct puller_options *o, struct puller **out,
                           struct mg_err *err) {
    *out = NULL;
    struct puller *p = calloc(1, sizeof *p);
    if (!p) return mg_fail_memory(err, "queue");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p->s = s;
    p->o = *o;
    p->last_taken = &p->taken;
    p->o.places = mg_min_size(mg_max_size(p->o.places, 1), MG_MAX_RUNNING);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->about = strdup(o->about);
    snprintf(p->worker, sizeof p->worker, "%.40s-", s->host[0] ? s->host : "worker");
    random_digits(p->worker + strlen(p->worker), 8);
    enum mg_status st = p->wake >= 0 && p->about ? MG_OK : mg_fail_memory(err, "queue");
    if (!st) st = mg_queue_open(&o->queue, &p->taking, err);
    if (!st) st = mg_queue_open(&o->queue, &p->running, err);
    if (st)
        puller_close(p);
    else
        *out = p;
    return st;
}

enum mg_status puller_start(struct puller *p, struct mg_err *err) {
    p->run_started = pthread_create(&p->run_thread, NULL, run_jobs, p) == 0;
    p->take_started = p->run_started && pthread_create(&p->take_thread, NULL, take_jobs, p) == 0;
    if (!p->take_started) atomic_store(&p->taken_all, true);
    return p->take_started ? MG_OK : mg_fail_memory(err, "queue's thread");
}

void puller_stop(struct puller *p) {
    atomic_fetch_add(&p->stops, 1);
    wake_up(p);
}

void puller_close(struct puller *p) {
    if (!p) return;
    struct mg_err err = {0};
    atomic_fetch_add(&p->stops, 1);
    atomic_store(&p->closing, true);
    if (p->wake >= 0) wake_up(p);
    if (p->take_started) pthread_join(p->take_thread, NULL);
    if (p->run_started) pthread_join(p->run_thread, NULL);
    if (p->run_started) mg_queue_bye(p->running, p->worker, &err);
    while (p->all) {
        struct run *r = p->all;
        p->all = r->next;
        run_free(r);
    }
    forget_recent(p, 0, 0);
    mg_queue_close(p->taking);
    mg_queue_close(p->running);
    if (p->wake >= 0) close(p->wake);
    pthread_cond_destroy(&p->freed);
    pthread_mutex_destroy(&p->mutex);
    free(p->about);
    free(p);
}

bool puller_lend(struct puller *p, const char *job, const char *name, struct mg_image_source *to) {
    bool found = false;
    pthread_mutex_lock(&p->mutex);
    for (struct run *r = p->all; r && !found; r = r->next) {
        if (!has_begun(r) || strcmp(r->id, job) != 0) continue;
        for (size_t i = 0; i < r->n_picture && !found; i++) {
            struct bytes *b = r->picture[i].bytes;
            if (strcmp(r->picture[i].blob.name, name) != 0) continue;
            atomic_fetch_add(&b->refs, 1);
            to->kind = MG_SOURCE_BYTES;
            to->bytes = b->data;
            to->n_bytes = b->n;
            to->release = bytes_unref;
            to->shared = b;
            found = true;
        }
    }
    pthread_mutex_unlock(&p->mutex);
    return found;
}

void puller_counts(struct puller *p, struct puller_counts *out) {
    pthread_mutex_lock(&p->mutex);
    out->running = p->n_all;
    pthread_mutex_unlock(&p->mutex);
    out->taken = atomic_load(&p->n_taken);
    out->emitted = atomic_load(&p->n_emitted);
    out->lost = atomic_load(&p->n_lost);
    out->returned = atomic_load(&p->n_returned);
    out->up = atomic_load(&p->up);
}
