/* server/gateway.c - see gateway.h. The loop's side; what speaks to Redis is gateway_link.c. */
#include "server/gateway_link.h"

#include "api/job_request.h"
#include "api/json_write.h"
#include "api/server_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- a relay's life --- */
void relay_drop_request(struct relay *r) {
    mg_job_request_free(r->request);
    for (size_t i = 0; i < r->n_picture; i++) upload_drop(r->upload[i]);
    r->request = NULL;
    r->n_picture = 0;
}

void relay_unref(struct relay *r) {
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    relay_drop_request(r);
    mg_buf_free(&r->whole);
    mg_buf_free(&r->fields);
    free(r);
}

static struct relay *open_relay(struct mg_server *s, struct mg_http_exchange *x,
                                enum relay_kind kind) {
    uint8_t tenant[MG_TENANT_BYTES];
    struct relay *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    atomic_init(&r->refs, 1);
    r->g = s->gateway;
    r->kind = kind;
    r->exchange = mg_http_id(x);
    r->began = mg_clock();
    server_tenant(s, x, tenant);
    mg_hex(tenant, sizeof tenant, r->tenant);
    snprintf(r->place, sizeof r->place, "0-0");
    return r;
}

static bool asks_for(const struct mg_http_exchange *x, const char *name) {
    const char *value = mg_http_header(x, name);
    return value && (!strcmp(value, "1") || !strcasecmp(value, "true"));
}

static void on_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    struct relay *r = user;
    (void)x;
    atomic_store(&r->gone, true);
    gateway_forget(r);
    bool left = reason != MG_HTTP_END_DONE && reason != MG_HTTP_END_STOPPED;
    if (r->kind == RELAY_ASK && left && !r->ended && !r->detached) gateway_cancel_later(r);
    relay_unref(r);
}

/* --- replies --- */
static void fault_of(const char *code, struct mg_fault *f) {
    static const struct {
        const char *code, *text;
    } known[] = {
        {"queue_full", "the queue is full, and others have less in it"},
        {"queue_timeout", "no worker had a place for it in time"},
        {"queue_unavailable", "the queue can't be reached, or takes nothing more"},
        {"invalid_offset", "the answer ends before that offset"},
        {"worker_lost", "the workers that began it were lost, as often as is allowed"},
        {"answer_changed", "the worker was lost, and another one answers differently"},
        {"picture_gone", "a picture of the request is no longer in the queue"},
        {"answer_too_large", "the answer is too large for the queue"},
        {"job_cancelled", "the job was cancelled"},
        {"job_id_taken", "another key has a job of this id"},
        {"job_lost", "the queue has lost the job"},
        {"out_of_memory", "out of memory"},
        {"shutting_down", "the gateway is being stopped; the job goes on"},
    };
    if (!strcmp(code, "cancelled")) code = "job_cancelled";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].code, code))
            mg_fault_set(f, MG_ERR_IO, known[i].code, "", "%s", known[i].text);
    mg_fault_set(f, MG_ERR_IO, "queue_error", "", "the queue could not answer");
}

static void add_job_field(struct relay *r, struct mg_http_exchange *x) {
    if (r->id[0]) mg_http_add_field(x, "x-margay-job", r->id);
}

static void fail_relay(struct relay *r, struct mg_http_exchange *x, const struct mg_fault *f,
                       double retry_seconds) {
    struct mg_fault_kind kind;
    struct mg_buf out = {0};
    r->ended = true;
    mg_fault_kind(&f->err, &kind);
    if (r->begun) {
        count_error(r->g->s, kind.type);
        mg_buf_add_str(&out, "data: ");
        mg_fault_write(f, &out);
        mg_buf_add_str(&out, "\n\n");
        if (!out.failed) mg_http_stream_write(x, out.data, out.n);
        mg_http_stream_end(x);
    } else if (!mg_http_has_replied(x)) {
        add_job_field(r, x);
        if (retry_seconds > 1 && kind.retry) {
            char text[16];
            snprintf(text, sizeof text, "%.0f", retry_seconds);
            count_error(r->g->s, kind.type);
            mg_http_add_field(x, "Retry-After", text);
            mg_fault_write(f, &out);
            mg_http_reply(x, kind.http, "application/json", out.data, out.n);
        } else {
            reply_fault(x, f);
        }
    }
    mg_buf_free(&out);
}

static void on_stop(struct mg_http_exchange *x, void *user) {
    struct relay *r = mg_http_user(x);
    struct mg_fault f = {0};
    (void)user;
    if (r->ended) return;
    fault_of("shutting_down", &f);
    fail_relay(r, x, &f, 0);
}

/* "200\nContent-Type: text/event-stream\n" */
static void read_head(struct relay *r, const char *head) {
    r->status = (int)strtol(head, NULL, 10);
    if (r->status < 200 || r->status > 599) r->status = 500;
    const char *line = strchr(head, '\n');
    mg_buf_free(&r->fields);
    if (line) mg_buf_add_str(&r->fields, line + 1);
    r->stream = line && strstr(line, "Content-Type: text/event-stream") != NULL;
}

/* The head's fields but the content type, which is copied to `type`. */
static void add_fields(struct relay *r, struct mg_http_exchange *x, char *type, size_t cap) {
    char *line = r->fields.data ? (char *)r->fields.data : NULL, *next;
    snprintf(type, cap, "application/json");
    for (; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *colon = strstr(line, ": ");
        if (!colon) continue;
        *colon = 0;
        if (!strcasecmp(line, "Content-Type"))
            snprintf(type, cap, "%s", colon + 2);
        else
            mg_http_add_field(x, line, colon + 2);
    }
}

static enum mg_status begin_stream(struct relay *r, struct mg_http_exchange *x) {
    char type[80];
    r->begun = true;
    add_fields(r, x, type, sizeof type);
    add_job_field(r, x);
    mg_http_add_field(x, "Cache-Control", "no-cache");
    mg_http_add_field(x, "X-Accel-Buffering", "no");
    enum mg_status st = mg_http_stream_begin(x, 200, "text/event-stream");
    if (st) return st;
    return mg_http_stream_ping(x, ": ping\n\n", 8, r->g->s->o.ping_seconds);
}

/* The events of a resumed stream get an id: where the answer is after the last of them. */
static void write_with_id(struct mg_http_exchange *x, struct mg_slice data, uint64_t end) {
    struct mg_buf out = {0};
    size_t at = 0;
    for (size_t i = 0; i + 2 < data.n; i++)
        if (data.data[i] == '\n' && data.data[i + 1] == '\n') at = i + 2;
    bool whole = data.n > 1 && !memcmp(data.data + data.n - 2, "\n\n", 2);
    mg_buf_add(&out, data.data, whole ? at : 0);
    if (whole) mg_buf_printf(&out, "id: %llu\n", (unsigned long long)end);
    mg_buf_add(&out, data.data + (whole ? at : 0), data.n - (whole ? at : 0));
    mg_http_stream_write(x, out.data, out.n);
    mg_buf_free(&out);
}

static void take_data(struct relay *r, struct mg_http_exchange *x, struct mg_slice data,
                      uint64_t end) {
    uint64_t begin = end - data.n;
    if (end <= r->offset) return; /* it has that */
    if (begin < r->offset) {
        data.data += r->offset - begin;
        data.n -= (size_t)(r->offset - begin);
    }
    r->offset = end;
    if (!r->stream) {
        if (!mg_buf_add(&r->whole, data.data, data.n)) mg_buf_free(&r->whole);
        return;
    }
    if (!r->begun && begin_stream(r, x) != MG_OK) return;
    if (r->kind == RELAY_RESUME)
        write_with_id(x, data, end);
    else
        mg_http_stream_write(x, data.data, data.n);
}

static void reply_whole(struct relay *r, struct mg_http_exchange *x) {
    char type[80];
    struct mg_fault f = {0};
    if (r->kind == RELAY_RESUME && r->whole.n > RELAY_AHEAD) { /* without Accept it is there */
        fault_of("answer_too_large", &f);
        fail_relay(r, x, &f, 0);
        return;
    }
    r->ended = true;
    if (r->kind == RELAY_RESUME) { /* as the one event that it is */
        if (!r->begun && begin_stream(r, x) != MG_OK) return;
        mg_buf_add_str(&r->whole, "\n\ndata: [DONE]\n\n");
        mg_http_stream_write(x, "data: ", 6);
        mg_http_stream_write(x, r->whole.data, r->whole.n);
        mg_http_stream_end(x);
        return;
    }
    add_fields(r, x, type, sizeof type);
    add_job_field(r, x);
    mg_http_reply_take(x, r->status ? r->status : 500, type, &r->whole);
}

static void end_relay(struct relay *r, struct mg_http_exchange *x, const char *state,
                      const char *code, double retry_seconds) {
    struct mg_fault f = {0};
    if (!strcmp(state, "done") && r->stream) {
        r->ended = true;
        if (!r->begun && begin_stream(r, x) != MG_OK) return;
        mg_http_stream_end(x);
    } else if (!strcmp(state, "done")) {
        reply_whole(r, x);
    } else {
        fault_of(code, &f);
        fail_relay(r, x, &f, retry_seconds);
    }
}

static void on_drain(struct mg_http_exchange *x, void *user) {
    (void)x;
    gateway_more(user);
}

void on_delivery(void *arg) {
    struct delivery *d = arg;
    struct relay *r = d->relay;
    struct mg_http_exchange *x =
        atomic_load(&r->gone) ? NULL : mg_http_find(r->g->s->http, r->exchange);
    if (x && !r->ended && d->anew && r->begun) {
        struct mg_fault f = {0};
        fault_of("answer_changed", &f);
        fail_relay(r, x, &f, 0);
    } else if (x && !r->ended) {
        if (d->anew) {
            mg_buf_free(&r->whole);
            r->offset = 0;
        }
        if (d->head.n) read_head(r, (char *)d->head.data);
        if (d->data.n) take_data(r, x, (struct mg_slice){d->data.data, d->data.n}, d->end);
        if (d->state[0]) {
            end_relay(r, x, d->state, d->code, d->retry_seconds);
        } else if (mg_http_queued(x) > RELAY_AHEAD) {
            mg_http_on_drain(x, on_drain);
        } else {
            gateway_more(r);
        }
    }
    mg_buf_free(&d->head);
    mg_buf_free(&d->data);
    free(d);
    relay_unref(r);
}

/* --- jobs handed in --- */
static bool is_job_id(const char *id) {
    return strlen(id) == MG_JOB_ID_BYTES - 1 && !strncmp(id, "job-", 4) &&
           strspn(id + 4, "0123456789abcdef") == 32;
}

static void read_job(struct work *w) {
    mg_job_request_parse((const char *)w->body.data, w->body.n, w->s->facts.max_image_bytes,
                         &w->job, &w->f);
}

/* Uploads that the request names, by a reference to their bytes. */
static enum mg_status find_uploads(struct mg_server *s, struct relay *r, const uint8_t *tenant,
                                   struct mg_fault *f) {
    r->n_picture = r->request->n_picture;
    r->bytes = r->request->body.n;
    for (size_t i = 0; i < r->n_picture; i++) {
        struct mg_job_picture *p = &r->request->picture[i];
        if (!p->bytes) {
            const struct upload *u = upload_find(&s->uploads, tenant, p->name);
            if (!u)
                return mg_fault_set(f, MG_ERR_NOT_FOUND, "file_not_found", "messages",
                                    "there is no such uploaded file (any more)");
            r->upload[i] = upload_share(u);
            if (!r->upload[i]) return mg_fault_memory(f, "picture");
            p->n = u->bytes->n;
        }
        r->bytes += p->n;
    }
    return MG_OK;
}

static void job_was_read(struct work *w, struct mg_http_exchange *x) {
    struct mg_server *s = w->s;
    struct mg_fault f = {0};
    uint8_t tenant[MG_TENANT_BYTES];
    if (!w->job) {
        reply_fault(x, &w->f);
        return;
    }
    const char *own = mg_http_header(x, "X-Margay-Job"); /* so that it may be asked again */
    if (own && !is_job_id(own)) {
        reply_err(x, MG_ERR_ARGUMENT, "invalid_job_id", "X-Margay-Job: job- and 32 digits 0-9 a-f");
        return;
    }
    struct relay *r = open_relay(s, x, RELAY_ASK);
    if (!r) {
        mg_fault_memory(&f, "question");
        reply_fault(x, &f);
        return;
    }
    r->request = w->job;
    w->job = NULL;
    r->stream = r->request->stream;
    r->background = asks_for(x, "X-Margay-Background");
    /* Who named the job may come back for it, also when only the connection is gone. */
    r->detached = own || r->background || asks_for(x, "X-Margay-Detach");
    const char *priority = mg_http_header(x, "X-Margay-Priority");
    r->priority = priority && !strcasecmp(priority, "high")  ? "high"
                  : priority && !strcasecmp(priority, "low") ? "low"
                                                             : "normal";
    const char *path = mg_http_path(x), *prefix = s->o.prefix;
    if (prefix && strncmp(path, prefix, strlen(prefix)) == 0) path += strlen(prefix);
    snprintf(r->path, sizeof r->path, "%s", path);
    if (own) {
        memcpy(r->id, own, sizeof r->id);
    } else {
        snprintf(r->id, sizeof r->id, "job-");
        random_digits(r->id + 4, 32);
    }
    server_tenant(s, x, tenant);
    mg_http_set_user(x, r);
    mg_http_on_end(x, on_end);
    mg_http_on_stop(x, on_stop);
    enum mg_status st = find_uploads(s, r, tenant, &f);
    if (!st && gateway_order(r, ORDER_SUBMIT) != MG_OK) st = mg_fault_memory(&f, "question");
    if (st) {
        r->id[0] = 0;
        fail_relay(r, x, &f, 0);
    }
}

static void route_job_post(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, read_job, job_was_read);
}

/* What became of an order, on the loop. */
static void write_job(struct mg_buf *out, const struct relay *r, const struct answer *a) {
    struct mg_jwrite j = {.out = out};
    const struct mg_job_state *v = &a->job;
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "id", r->id);
    mg_jwrite_kstr(&j, "object", "job");
    mg_jwrite_kstr(&j, "status", v->state);
    if (v->code[0]) mg_jwrite_kstr(&j, "code", v->code);
    mg_jwrite_kint(&j, "created_at", v->created_ms / 1000);
    if (v->ended_ms) mg_jwrite_kint(&j, "ended_at", v->ended_ms / 1000);
    mg_jwrite_kbool(&j, "stream", v->stream);
    mg_jwrite_kuint(&j, "attempt", v->attempt);
    mg_jwrite_kuint(&j, "offset", v->offset);
    mg_jwrite_kstr(&j, "priority", v->priority);
    if (!strcmp(v->state, "waiting")) mg_jwrite_kuint(&j, "ahead", v->ahead);
    if (a->status) {
        mg_jwrite_kint(&j, "response_status", a->status);
        mg_jwrite_key(&j, "response");
        if (a->whole.n)
            mg_buf_add(out, a->whole.data, a->whole.n); /* JSON as the worker wrote it */
        else
            mg_jwrite_null(&j);
        j.comma = true;
    }
    mg_jwrite_close(&j, '}');
}

/* The state of a job came, or why it didn't. */
void on_answer(void *arg) {
    struct answer *a = arg;
    struct relay *r = a->relay;
    struct mg_http_exchange *x =
        atomic_load(&r->gone) ? NULL : mg_http_find(r->g->s->http, r->exchange);
    struct mg_fault f = {0};
    struct mg_buf out = {0};
    if (x && !r->ended && a->code[0]) {
        fault_of(a->code, &f);
        fail_relay(r, x, &f, a->retry_seconds);
    } else if (x && !r->ended && !a->job.state[0]) {
        mg_fault_set(&f, MG_ERR_NOT_FOUND, "job_not_found", "", "there is no such job (any more)");
        r->ended = true;
        reply_fault(x, &f);
    } else if (x && !r->ended) {
        r->ended = true;
        write_job(&out, r, a);
        add_job_field(r, x);
        if (out.failed)
            reply_json(x, &out, false);
        else
            mg_http_reply(x, r->kind == RELAY_ASK ? 202 : 200, "application/json", out.data, out.n);
    }
    mg_buf_free(&out);
    mg_buf_free(&a->whole);
    free(a);
    relay_unref(r);
}

/* --- /v1/jobs/{id} --- */
static void begin_job_route(struct mg_http_exchange *x, struct mg_server *s, enum relay_kind kind,
                            enum order_kind what, uint64_t offset) {
    const char *id = mg_http_param(x, "id");
    struct mg_fault f = {0};
    if (!id || !is_job_id(id)) {
        reply_err(x, MG_ERR_NOT_FOUND, "job_not_found", "there is no such job (any more)");
        return;
    }
    struct relay *r = open_relay(s, x, kind);
    if (!r) {
        mg_fault_memory(&f, "job");
        reply_fault(x, &f);
        return;
    }
    snprintf(r->id, sizeof r->id, "%s", id);
    r->offset = offset;
    r->detached = true;
    if (offset) {
        snprintf(r->place, sizeof r->place, "%llu-0", (unsigned long long)offset);
        r->stream = true;
    }
    mg_http_set_user(x, r);
    mg_http_on_end(x, on_end);
    mg_http_on_stop(x, on_stop);
    if (gateway_order(r, what) != MG_OK) {
        mg_fault_memory(&f, "job");
        fail_relay(r, x, &f, 0);
    }
}

static void route_job_get(struct mg_http_exchange *x, void *user) {
    const char *accept = mg_http_header(x, "Accept"), *at = mg_http_query(x, "offset");
    if (!accept || !strstr(accept, "text/event-stream")) {
        begin_job_route(x, user, RELAY_STATE, ORDER_STATE, 0);
        return;
    }
    if (!at) at = mg_http_header(x, "Last-Event-ID");
    size_t n = at ? strlen(at) : 0;
    if (n > 15 || (n && at[strspn(at, "0123456789")])) {
        reply_err(x, MG_ERR_ARGUMENT, "invalid_offset", "offset is a number of bytes");
        return;
    }
    begin_job_route(x, user, RELAY_RESUME, ORDER_WATCH, n ? strtoull(at, NULL, 10) : 0);
}

static void route_job_delete(struct mg_http_exchange *x, void *user) {
    begin_job_route(x, user, RELAY_STATE, ORDER_CANCEL, 0);
}

/* --- about itself and its workers --- */
static bool is_up(struct mg_server *s) {
    struct gateway_view v;
    gateway_view(s->gateway, &v);
    return v.up;
}

static void route_health(struct mg_http_exchange *x, void *user) {
    struct mg_buf out = {0};
    if (is_up(user))
        reply_json(x, &out, mg_health_write(&out, "ok"));
    else
        reply_err(x, MG_ERR_IO, "queue_unavailable", "the queue can't be reached");
}

static void route_ready(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct gateway_view v;
    struct mg_buf out = {0};
    gateway_view(s->gateway, &v);
    bool draining = mg_http_server_is_stopping(s->http);
    struct mg_ready_reply r = {.ready = v.up && !draining,
                               .status = draining ? "draining"
                                         : v.up   ? "ok"
                                                  : "degraded",
                               .detail = !v.up         ? "the queue can't be reached"
                                         : !v.n_worker ? "no worker is there; jobs wait"
                                                       : NULL,
                               .running = (size_t)v.look.running,
                               .waiting = (size_t)v.look.waiting,
                               .queue_limit = gateway_limit(s->gateway)};
    bool ok = mg_ready_write(&out, &r);
    if (ok && !r.ready) {
        mg_http_add_field(x, "Retry-After", "1");
        mg_http_reply(x, 503, "application/json", out.data, out.n);
        mg_buf_free(&out);
    } else {
        reply_json(x, &out, ok);
    }
}

static void route_models(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_model_reply m[GATEWAY_MODELS];
    struct gateway_models *g = gateway_models(s->gateway, m);
    struct mg_buf out = {0};
    const char *id = mg_http_param(x, "id");
    size_t i = 0;
    while (id && g && i < g->n && strcmp(m[i].id, id) != 0) i++;
    if (!g || (id && i == g->n))
        reply_err(x, MG_ERR_NOT_FOUND, "model_not_found", "there is no such model here");
    else
        reply_json(x, &out, id ? mg_model_write(&out, &m[i]) : mg_models_write(&out, m, g->n));
    gateway_models_free(g);
}

static void route_props(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_buf out = {0};
    if (gateway_props(s->gateway, &out))
        reply_json(x, &out, !out.failed);
    else
        reply_err(x, MG_ERR_LIMIT, "loading", "no worker has told what it is yet");
}

static void route_slots(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct gateway_view v;
    struct mg_slot_reply slot[256];
    gateway_view(s->gateway, &v);
    size_t n = (size_t)(v.look.slots < 256 ? v.look.slots : 256);
    for (size_t i = 0; i < n; i++) {
        bool busy = i < v.look.running;
        slot[i] =
            (struct mg_slot_reply){.id = i, .busy = busy, .stage = busy ? "generate" : "idle"};
    }
    struct mg_buf out = {0};
    reply_json(x, &out, mg_slots_write(&out, slot, n));
}

void gateway_load(struct gateway *g, size_t *running, size_t *waiting) {
    struct gateway_view v;
    gateway_view(g, &v);
    *running = (size_t)v.look.running;
    *waiting = (size_t)v.look.waiting;
}

void gateway_gauges(struct gateway *g) {
    struct gateway_view v;
    struct mg_metrics *m = g->s->metrics;
    gateway_view(g, &v);
    mg_metrics_set(m, MG_M_REDIS_UP, v.up);
    mg_metrics_set_at(m, MG_M_QUEUE_JOBS, (double)v.look.waiting, 0);
    mg_metrics_set_at(m, MG_M_QUEUE_JOBS, (double)v.look.running, 1);
    mg_metrics_set(m, MG_M_QUEUE_BYTES, (double)v.look.bytes);
    mg_metrics_set(m, MG_M_QUEUE_SLOTS, (double)v.look.slots);
    mg_metrics_set(m, MG_M_QUEUE_WORKERS, (double)v.n_worker);
    mg_metrics_set(m, MG_M_WAITING, (double)v.look.waiting);
    mg_metrics_set(m, MG_M_RUNNING, (double)v.look.running);
    mg_metrics_set(m, MG_M_MODEL_LOADED, v.n_worker > 0);
    static const enum mg_metric total[] = {
        MG_M_QUEUE_SUBMITTED, MG_M_QUEUE_REFUSED, MG_M_QUEUE_TAKEOVERS, MG_M_QUEUE_RETURNED,
        MG_M_QUEUE_ENDED,     MG_M_QUEUE_ENDED,   MG_M_QUEUE_ENDED,     MG_M_QUEUE_ENDED};
    const uint64_t now[] = {v.look.submitted, v.look.refused, v.look.takeovers, v.look.released,
                            v.look.done,      v.look.failed,  v.look.cancelled, v.look.dead};
    for (unsigned i = 0; i < 8; i++) {
        unsigned state = i < 4 ? 0 : i - 4;
        uint64_t told = (uint64_t)mg_metrics_value(m, total[i], state, 0, 0);
        if (now[i] > told) mg_metrics_add_at(m, total[i], now[i] - told, state, 0, 0);
    }
}

const struct mg_http_route *gateway_routes(size_t *n) {
    static const struct mg_http_route route[] = {
        {"POST", "/v1/chat/completions", route_job_post, 0, 0},
        {"POST", "/chat/completions", route_job_post, 0, 0},
        {"POST", "/v1/completions", route_job_post, 0, 0},
        {"POST", "/completions", route_job_post, 0, 0},
        {"POST", "/tokenize", route_job_post, 8 << 20, 0},
        {"POST", "/detokenize", route_job_post, 8 << 20, 0},
        {"POST", "/apply-template", route_job_post, 0, 0},
        {"GET", "/v1/jobs/{id}", route_job_get, 0, 0},
        {"DELETE", "/v1/jobs/{id}", route_job_delete, 0, 0},
        {"GET", "/v1/models", route_models, 0, 0},
        {"GET", "/models", route_models, 0, 0},
        {"GET", "/v1/models/{id}", route_models, 0, 0},
        {"GET", "/health", route_health, 0, TAG_PUBLIC},
        {"GET", "/ready", route_ready, 0, TAG_PUBLIC},
        {"GET", "/props", route_props, 0, 0},
        {"GET", "/slots", route_slots, 0, 0},
    };
    *n = sizeof route / sizeof *route;
    return route;
}
