/* cli/load_run.c - the loop of margay load (load.h): who asks when, over which connection.
 *
 *     closed: client ... asks -> answer ends -> thinks -> asks ...
 *     open:   arrival timer -> call -> connection free or new? -> send
 *                                  '-> else waits in the queue, its latency counting
 *
 * A call is in one of two lists: waiting (no connection yet) or under way. A client of the closed
 * loop keeps its connection, as a browser would. Others lie on a stack, the last used on top, so
 * that those not needed age and are closed by the server. The run ends when nobody will ask any
 * more and no call is left; when that takes longer than an answer may, what is left is cut off. All
 * on one thread; the handler of ctrl-C is libevent's and runs in the loop.
 */
#include "cli/load_call.h"

#include "base/io.h"

#include <event2/event.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WAITING 100000   /* calls that wait for a connection: some 60 MB */
#define MAX_RETRY_AFTER 60.0 /* seconds that a client waits because it was told to */
#define FIRST_PAUSE 0.05     /* seconds after a first failure to connect, then twice as long, */
#define LONGEST_PAUSE 1.0    /* up to this */
#define TICK_MS 200          /* between looks at the end, and drawings of the progress line */
#define CSV_BYTES 65536      /* of lines that are written together */
#define LATE_SHARE 1000      /* arrivals made in one go before connections have their turn */

struct list {
    struct mg_load_call *first, *last;
    size_t n;
};

struct client {
    struct run *run;
    size_t index;
    struct event *timer; /* owned */
    struct mg_load_random random;
    unsigned n_failed;         /* in a row to connect */
    struct mg_load_link *kept; /* its connection between questions, owned */
    bool over;
};

struct run {
    struct mg_load_plan *p;
    struct mg_load_questions *q;
    struct mg_load_record *r;
    struct event_base *base;
    mg_tls_context *tls;
    struct mg_progress progress;
    struct mg_load_random random;
    double begin, stop; /* clock: of the run, and from when on nobody asks; INFINITY */
    uint64_t n_call, n_counted;
    struct client *client; /* closed: n_client, owned */
    struct event *arrival, *tick, *interrupt, *terminate;
    double next;  /* open: clock of the next arrival */
    bool no_more; /* open: there is none */
    struct list waiting, under_way;
    struct mg_load_link **idle; /* stack, n_idle of room for max_connection, owned */
    size_t n_idle, n_link;
    size_t *order;  /* permutation of the pictures, owned */
    size_t at;      /* in it */
    double left_at; /* clock at which nobody asked any more; 0: they do */
    struct mg_err *err;
};

static void start_waiting(struct run *run);

static struct timeval timeval_of(double seconds) {
    if (!(seconds > 0)) seconds = 0;
    if (seconds > 1e9) seconds = 1e9;
    time_t whole = (time_t)seconds;
    return (struct timeval){whole, (suseconds_t)((seconds - (double)whole) * 1e6)};
}

static void set_timer(struct event *timer, double seconds) {
    struct timeval tv = timeval_of(seconds);
    event_add(timer, &tv);
}

static void put(struct list *l, struct mg_load_call *c) {
    c->next = NULL;
    c->before = l->last;
    if (l->last)
        l->last->next = c;
    else
        l->first = c;
    l->last = c;
    l->n++;
}

static void take_out(struct list *l, struct mg_load_call *c) {
    if (c->before)
        c->before->next = c->next;
    else
        l->first = c->next;
    if (c->next)
        c->next->before = c->before;
    else
        l->last = c->before;
    l->n--;
}

/* --- connections --- */

static void close_link(struct run *run, struct mg_load_link *link) {
    if (!link) return;
    mg_load_link_close(link);
    run->n_link--;
}

static bool on_body(struct mg_load_link *link, const uint8_t *data, size_t n) {
    return mg_load_call_body(link->user, data, n);
}

static void on_ended(struct mg_load_link *link, enum mg_load_kind kind, const char *code,
                     bool reusable);

/* The server has closed a connection that lay on the stack. */
static void on_gone(struct mg_load_link *link) {
    struct run *run = link->user;
    struct client *keeper = link->keeper;
    if (keeper) {
        keeper->kept = NULL;
    } else {
        size_t i = 0;
        while (run->idle[i] != link) i++;
        memmove(run->idle + i, run->idle + i + 1, (run->n_idle - i - 1) * sizeof *run->idle);
        run->n_idle--;
    }
    close_link(run, link);
}

static const struct mg_load_link_owner link_owner = {on_body, on_ended, on_gone};

static struct mg_load_link *new_link(struct run *run) {
    struct mg_load_link *link = mg_load_link_open(run->base, run->p, run->tls, &link_owner);
    if (!link) return NULL;
    run->n_link++;
    run->r->n_opened++;
    return link;
}

/* Puts a connection aside for the next question: of this client, where each has its own. */
static void keep(struct run *run, struct mg_load_link *link, struct client *client) {
    link->user = run;
    link->keeper = client && run->p->max_connection >= run->p->n_client ? client : NULL;
    if (link->keeper)
        client->kept = link;
    else
        run->idle[run->n_idle++] = link;
}

static struct mg_load_link *kept_or_new(struct run *run, struct client *client) {
    if (client && client->kept) {
        struct mg_load_link *link = client->kept;
        client->kept = NULL;
        return link;
    }
    return run->n_idle ? run->idle[--run->n_idle] : new_link(run);
}

/* --- calls --- */

static void client_goes_on(struct client *client, const struct mg_load_outcome *x,
                           double retry_after);

static void write_csv(struct run *run, size_t least) {
    struct mg_buf *csv = &run->r->csv;
    if (csv->n < least || csv->n == 0) return;
    if (run->err->status == MG_OK && mg_write(STDOUT_FILENO, csv->data, csv->n, run->err))
        event_base_loopbreak(run->base);
    csv->n = 0;
}

/* The call has its outcome; its link is closed, or kept by others. */
static void finish(struct run *run, struct mg_load_call *c, double retry_after) {
    struct client *client = c->client;
    if (c->counted) {
        mg_load_record_outcome(run->r, &c->x);
        if (run->p->csv) {
            const char *name = run->q->n_picture ? run->q->name[c->x.picture] : NULL;
            mg_load_csv_line(&run->r->csv, &c->x, run->r->begin, name);
            write_csv(run, CSV_BYTES);
        }
    }
    struct mg_load_outcome x = c->x;
    mg_load_call_free(c);
    if (client) client_goes_on(client, &x, retry_after);
}

static void on_ended(struct mg_load_link *link, enum mg_load_kind kind, const char *code,
                     bool reusable) {
    struct mg_load_call *c = link->user;
    struct run *run = c->run;
    double now = mg_clock();
    /* The server has closed the kept connection while the request was on its way (RFC 9112, 9.3.1):
     * once more, on a fresh one; its time goes on. */
    if (kind == MG_LOAD_CUT && link->n_request > 1 && !link->response.any && !c->resent) {
        double sent = c->x.sent;
        close_link(run, link);
        c->link = NULL;
        c->resent = true;
        link = new_link(run);
        if (link && mg_load_call_send(c, run->p, run->q, link, sent)) {
            run->r->n_resent++;
            return;
        }
        kind = MG_LOAD_MEMORY;
        reusable = false;
    }
    double retry_after = link ? link->response.retry_after : 0;
    mg_load_call_ended(c, kind, code, now);
    c->link = NULL;
    take_out(&run->under_way, c);
    if (reusable) {
        keep(run, link, c->client);
    } else {
        close_link(run, link);
    }
    finish(run, c, retry_after);
    start_waiting(run);
}

/* Time is up: for the client's patience, or for the answer. */
static void on_timer(evutil_socket_t fd, short what, void *arg) {
    struct mg_load_call *c = arg;
    struct run *run = c->run;
    (void)fd, (void)what;
    enum mg_load_kind kind = c->x.kind != MG_LOAD_OK ? c->x.kind
                             : c->leaving            ? MG_LOAD_LEFT
                                                     : MG_LOAD_TIMEOUT;
    mg_load_call_ended(c, kind, "", mg_clock());
    take_out(&run->under_way, c);
    close_link(run, c->link);
    c->link = NULL;
    finish(run, c, 0);
    start_waiting(run);
}

static double usual_time(const struct run *run) {
    return run->r->service.n ? mg_load_histogram_mean(&run->r->service) : 1;
}

/* Sends on a kept or a new connection; the caller knows that there is room for one. */
static void send_call(struct run *run, struct mg_load_call *c) {
    struct mg_load_link *link = kept_or_new(run, c->client);
    double now = mg_clock();
    put(&run->under_way, c);
    bool ok = link && mg_load_call_send(c, run->p, run->q, link, now);
    if (link) c->link = link, link->user = c;
    double wait = run->p->timeout;
    if (ok && c->leave >= 0) {
        double leave = c->leave * usual_time(run);
        c->leaving = leave < wait;
        if (c->leaving) wait = leave;
    }
    if (!ok) { /* told from the loop, as every failure */
        c->leaving = false;
        c->x.kind = MG_LOAD_MEMORY;
        wait = 0;
    }
    set_timer(c->timer, wait);
}

static bool has_room(const struct run *run, const struct mg_load_call *c) {
    const struct client *client = c->client;
    return run->n_idle || (client && client->kept) || run->n_link < run->p->max_connection;
}

static void start_waiting(struct run *run) {
    while (run->waiting.n && has_room(run, run->waiting.first)) {
        struct mg_load_call *c = run->waiting.first;
        take_out(&run->waiting, c);
        send_call(run, c);
    }
}

/* Each picture comes up once before one comes again, in an order that the seed decides. */
static size_t next_picture(struct run *run) {
    size_t n = run->q->n_picture;
    if (n == 0) return 0;
    if (run->at == 0)
        for (size_t i = n - 1; i > 0; i--) {
            size_t j = mg_load_random_below(&run->random, i + 1), t = run->order[i];
            run->order[i] = run->order[j];
            run->order[j] = t;
        }
    size_t picture = run->order[run->at];
    run->at = (run->at + 1) % n;
    return picture;
}

/* A question that is due; false: no memory for it, or too many wait. */
static bool begin_call(struct run *run, struct client *client, double due) {
    struct mg_load_call *c = mg_alloc_zero(1, sizeof *c);
    if (c) c->timer = event_new(run->base, -1, EV_TIMEOUT, on_timer, c);
    if (!c || !c->timer) {
        mg_load_call_free(c);
        mg_fail_memory(run->err, "request");
        event_base_loopbreak(run->base);
        return false;
    }
    c->run = run;
    c->client = client;
    c->record = run->r;
    c->counted = due >= run->r->begin;
    c->x.index = c->counted ? run->n_counted++ : 0;
    c->key = (client ? client->index : run->n_call) % mg_max_size(1, run->p->n_key);
    run->n_call++;
    c->x.client = client ? client->index : 0;
    c->x.due = due;
    c->x.prompt_tokens = c->x.cached_tokens = c->x.image_tokens = c->x.completion_tokens = -1;
    c->x.picture = next_picture(run);
    c->x.question = mg_load_random_below(&run->random, run->q->n_question);
    bool leaves = mg_load_random_unit(&run->random) < run->p->abort;
    double when = mg_load_random_unit(&run->random);
    c->leave = leaves ? when : -1;
    if (c->counted) mg_load_record_sent(run->r, due);
    if (has_room(run, c)) {
        send_call(run, c);
    } else if (run->waiting.n < MAX_WAITING) {
        put(&run->waiting, c);
    } else {
        c->x.kind = MG_LOAD_UNSENT;
        c->x.end = mg_clock();
        finish(run, c, 0);
    }
    return true;
}

static bool asks_no_more(const struct run *run, double due) {
    return due >= run->stop || (run->p->n_request && run->n_counted >= run->p->n_request);
}

/* --- who asks --- */

static void on_client(evutil_socket_t fd, short what, void *arg) {
    struct client *client = arg;
    struct run *run = client->run;
    (void)fd, (void)what;
    if (client->over) return;
    double now = mg_clock();
    if (asks_no_more(run, now))
        client->over = true;
    else
        begin_call(run, client, now);
}

static void client_goes_on(struct client *client, const struct mg_load_outcome *x,
                           double retry_after) {
    double think = client->run->p->think, pause = 0;
    if (think > 0) pause = think * (0.5 + mg_load_random_unit(&client->random));
    bool failed = x->kind == MG_LOAD_REFUSED || x->kind == MG_LOAD_CONNECT ||
                  x->kind == MG_LOAD_TLS || x->kind == MG_LOAD_MEMORY;
    client->n_failed = failed ? client->n_failed + 1 : 0;
    if (failed)
        pause = fmax(pause, fmin(LONGEST_PAUSE, ldexp(FIRST_PAUSE, (int)client->n_failed - 1)));
    if (x->retry_after) pause = fmax(pause, fmin(retry_after, MAX_RETRY_AFTER));
    if (client->over) return;
    set_timer(client->timer, pause); /* from the loop also without a pause: no recursion */
}

static void next_arrival(struct run *run) {
    run->next = run->begin + mg_load_arrivals_next(&run->p->arrivals);
    run->no_more = asks_no_more(run, run->next);
}

static void on_arrival(evutil_socket_t fd, short what, void *arg) {
    struct run *run = arg;
    (void)fd, (void)what;
    double now = mg_clock();
    for (int i = 0; i < LATE_SHARE && run->next <= now && !run->no_more; i++) {
        if (!begin_call(run, NULL, run->next)) return;
        next_arrival(run);
    }
    if (!run->no_more) set_timer(run->arrival, run->next - mg_clock());
}

static void on_interrupt(evutil_socket_t sig, short what, void *arg) {
    struct run *run = arg;
    (void)sig, (void)what;
    run->r->interrupted = true;
    event_base_loopbreak(run->base);
}

/* All calls that are left end so. */
static void end_all(struct run *run, enum mg_load_kind under_way, enum mg_load_kind waiting) {
    double now = mg_clock();
    for (size_t i = 0; run->client && i < run->p->n_client; i++) run->client[i].over = true;
    while (run->under_way.n) {
        struct mg_load_call *c = run->under_way.first;
        mg_load_call_ended(c, under_way, "", now);
        take_out(&run->under_way, c);
        close_link(run, c->link);
        finish(run, c, 0);
    }
    while (run->waiting.n) {
        struct mg_load_call *c = run->waiting.first;
        mg_load_call_ended(c, waiting, "", now);
        take_out(&run->waiting, c);
        finish(run, c, 0);
    }
}

static void draw(struct run *run, double now) {
    const struct mg_load_record *r = run->r;
    const struct mg_load_plan *p = run->p;
    char line[240];
    double t = now - r->begin, share = 0;
    if (p->n_request) share = (double)(r->n_sent - r->under_way) / (double)p->n_request;
    if (p->duration > 0) share = fmax(share, t / p->duration);
    if (!run->progress.on || !run->progress.tty) return;
    if (t < 0) {
        snprintf(line, sizeof line, "warming up, %.0f s", -t);
    } else {
        int n = snprintf(
            line, sizeof line, "%.0f s: %llu answers, %llu errors, %zu under way, %.1f a second", t,
            (unsigned long long)r->n_kind[MG_LOAD_OK], (unsigned long long)mg_load_record_errors(r),
            r->under_way, t > 0 ? (double)r->n_kind[MG_LOAD_OK] / t : 0);
        if (r->answer.n && n > 0 && n < (int)sizeof line)
            snprintf(line + n, sizeof line - (size_t)n, ", p50 %.0f ms",
                     1e3 * mg_load_histogram_quantile(&r->answer, 0.5));
    }
    mg_progress_bar(&run->progress, fmin(fmax(share, 0), 1), line);
}

/* Is it over? And the progress line. */
static void on_tick(evutil_socket_t fd, short what, void *arg) {
    struct run *run = arg;
    (void)fd, (void)what;
    double now = mg_clock();
    draw(run, now);
    write_csv(run, 1);
    /* Clients that think when time is up ask no more. */
    bool none = run->p->open ? run->no_more : asks_no_more(run, now);
    if (none && !run->left_at) run->left_at = now;
    if (none && !run->waiting.n && !run->under_way.n) {
        event_base_loopbreak(run->base);
    } else if (run->left_at && now > run->left_at + run->p->timeout + 1) {
        end_all(run, MG_LOAD_TIMEOUT, MG_LOAD_UNSENT);
        event_base_loopbreak(run->base);
    }
}

/* --- the whole --- */

static enum mg_status open_clients(struct run *run, struct mg_err *err) {
    size_t n = run->p->n_client;
    run->client = mg_alloc_zero(n, sizeof *run->client);
    if (!run->client) return mg_fail_memory(err, "clients");
    for (size_t i = 0; i < n; i++) {
        struct client *c = &run->client[i];
        *c = (struct client){.run = run, .index = i};
        c->random.state = run->p->seed + (i + 1) * UINT64_C(0xD1342543DE82EF95);
        c->timer = event_new(run->base, -1, EV_TIMEOUT, on_client, c);
        if (!c->timer) return mg_fail_memory(err, "clients");
        set_timer(c->timer, 0);
    }
    return MG_OK;
}

static enum mg_status open_run(struct run *run, struct mg_err *err) {
    const struct mg_load_plan *p = run->p;
    run->idle = mg_alloc(p->max_connection, sizeof *run->idle);
    run->order = mg_alloc(run->q->n_picture, sizeof *run->order);
    run->arrival = event_new(run->base, -1, EV_TIMEOUT, on_arrival, run);
    run->tick = event_new(run->base, -1, EV_PERSIST, on_tick, run);
    run->interrupt = evsignal_new(run->base, SIGINT, on_interrupt, run);
    run->terminate = evsignal_new(run->base, SIGTERM, on_interrupt, run);
    if (!run->idle || !run->order || !run->arrival || !run->tick || !run->interrupt ||
        !run->terminate)
        return mg_fail_memory(err, "connections");
    for (size_t i = 0; i < run->q->n_picture; i++) run->order[i] = i;
    run->random.state = p->seed;
    event_add(run->interrupt, NULL);
    event_add(run->terminate, NULL);
    struct timeval tv = {.tv_usec = TICK_MS * 1000};
    event_add(run->tick, &tv);
    run->begin = mg_clock();
    run->stop = p->duration > 0 ? run->begin + p->warm_up + p->duration : INFINITY;
    mg_load_record_begin(run->r, run->begin + p->warm_up);
    if (!p->open) return open_clients(run, err);
    next_arrival(run);
    if (!run->no_more) set_timer(run->arrival, run->next - run->begin);
    return MG_OK;
}

static void close_run(struct run *run) {
    for (size_t i = 0; i < run->n_idle; i++) mg_load_link_close(run->idle[i]);
    for (size_t i = 0; run->client && i < run->p->n_client; i++) {
        if (run->client[i].timer) event_free(run->client[i].timer);
        mg_load_link_close(run->client[i].kept);
    }
    struct event *event[] = {run->arrival, run->tick, run->interrupt, run->terminate};
    for (size_t i = 0; i < sizeof event / sizeof event[0]; i++)
        if (event[i]) event_free(event[i]);
    free(run->client);
    free(run->idle);
    free(run->order);
}

enum mg_status mg_load_run(struct mg_load_plan *p, struct mg_load_questions *q,
                           struct mg_load_record *r, struct mg_err *err) {
    struct run run = {.p = p, .q = q, .r = r, .err = err};
    enum mg_status status = MG_OK;
    struct event_config *config = event_config_new();
    /* Without it timers are whole milliseconds late or early. */
    if (config) event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    run.base = config ? event_base_new_with_config(config) : NULL;
    if (config) event_config_free(config);
    if (!run.base) return mg_fail_memory(err, "event loop");
    mg_progress_init(&run.progress, p->o);
    if (p->parsed.https) status = mg_tls_client_open(p->ca_file, p->trust_all, &run.tls, err);
    if (!status) status = mg_load_prepare(p, q, run.base, run.tls, &run.progress, err);
    mg_progress_clear(&run.progress);
    if (!status) status = open_run(&run, err);
    if (!status) {
        if (p->csv) mg_load_csv_head(&r->csv);
        event_base_dispatch(run.base);
        end_all(&run, MG_LOAD_UNFINISHED, MG_LOAD_UNFINISHED);
        write_csv(&run, 1);
        mg_load_record_end(r, mg_clock());
        status = err->status;
    }
    mg_progress_clear(&run.progress);
    close_run(&run);
    event_base_free(run.base);
    mg_tls_context_close(run.tls);
    return status;
}
