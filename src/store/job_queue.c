/* store/job_queue.c - see job_queue.h. Replies are checked for their form: what a foreign hand has
 * put under our names is an error, never trusted. */
#include "store/job_queue.h"

#include "base/io.h"
#include "base/sha256.h"

#include <hiredis/hiredis.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_ARG = 600,   /* of one call */
    MAX_READ = 256,  /* jobs whose events are read by one call */
    LOOK_AHEAD = 32, /* jobs among which a picture may decide */
    INBOX_NOTES = 512
};
static const double first_pause = 0.05, longest_pause = 2, reap_seconds = 0.9;
/* A call has its time, and that of its bytes at a slow network's pace. A picture's size isn't known
 * before it is there. */
static const double bytes_a_second = 8e6, picture_seconds = 5;
static const size_t blob_seconds = 300; /* until the job that names it is submitted */

extern const char mg_job_queue_lua[]; /* job_queue.S */

struct mg_queue {
    struct mg_queue_options o; /* with defaults */
    char name[MG_QUEUE_NAME_BYTES], base[MG_QUEUE_NAME_BYTES + 24];
    char meta[MG_QUEUE_NAME_BYTES + 24];
    char sha[MG_SHA1_HEX]; /* the script's name */
    struct mg_redis_link *link;
    double pause, next_try; /* after a failure; mg_clock */
    struct mg_err why;      /* of it */
};

/* One call's arguments. */
struct args {
    int n;
    const char *text[MAX_ARG];
    size_t n_byte[MAX_ARG];
    char number[40][24]; /* where numbers are written */
    size_t n_number;
    bool over;
};

static void add_n(struct args *a, const void *data, size_t n) {
    if (a->n == MAX_ARG) {
        a->over = true;
        return;
    }
    a->text[a->n] = n ? data : "";
    a->n_byte[a->n++] = n;
}
static void add(struct args *a, const char *text) {
    add_n(a, text, strlen(text));
}
static void add_int(struct args *a, uint64_t x) {
    if (a->n_number == sizeof a->number / sizeof *a->number) {
        a->over = true;
        return;
    }
    char *out = a->number[a->n_number++];
    snprintf(out, sizeof *a->number, "%llu", (unsigned long long)x);
    add(a, out);
}
static void add_ms(struct args *a, double seconds) {
    add_int(a, (uint64_t)llround(seconds * 1e3));
}

bool mg_queue_name_valid(const char *name) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
    size_t n = strlen(name);
    return n && n < MG_QUEUE_NAME_BYTES && !name[strspn(name, good)];
}

static bool script_name(char out[MG_SHA1_HEX]) {
    uint8_t digest[MG_SHA1_BYTES];
    struct mg_sha1 h;
    mg_sha1_begin(&h);
    mg_sha1_update(&h, mg_job_queue_lua, strlen(mg_job_queue_lua));
    bool ok = mg_sha1_finish(&h, digest);
    mg_hex(digest, sizeof digest, out);
    return ok;
}

#define DEFAULT(field, value)                                                                      \
    if (!((field) > 0)) (field) = (value)

enum mg_status mg_queue_open(const struct mg_queue_options *options, struct mg_queue **out,
                             struct mg_err *err) {
    *out = NULL;
    const char *name = options->name ? options->name : "default";
    if (!mg_queue_name_valid(name))
        return mg_fail(
            err, MG_ERR_ARGUMENT, "usage",
            "a queue's name has 1 to %d letters, digits, and - _ . :", MG_QUEUE_NAME_BYTES - 1);
    struct mg_queue *q = calloc(1, sizeof *q);
    if (!q) return mg_fail_memory(err, "queue");
    q->o = *options;
    DEFAULT(q->o.lease_seconds, 10);
    DEFAULT(q->o.max_tries, 3);
    DEFAULT(q->o.wait_seconds, 300);
    DEFAULT(q->o.keep_seconds, 600);
    DEFAULT(q->o.live_seconds, 3600);
    DEFAULT(q->o.max_waiting, 1000);
    DEFAULT(q->o.max_bytes, (size_t)1 << 30);
    DEFAULT(q->o.call_seconds, 1);
    DEFAULT(q->o.aged_seconds, 30);
    snprintf(q->name, sizeof q->name, "%s", name);
    q->o.name = q->name;
    snprintf(q->base, sizeof q->base, "margay:{q:%s}:", name);
    snprintf(q->meta, sizeof q->meta, "margay:{q:%s}:meta", name);
    if (!script_name(q->sha)) {
        free(q);
        return mg_fail_memory(err, "queue's script");
    }
    *out = q;
    return MG_OK;
}

void mg_queue_close(struct mg_queue *q) {
    if (!q) return;
    mg_redis_link_close(q->link);
    free(q);
}

const struct mg_queue_options *mg_queue_settings(const struct mg_queue *q) {
    return &q->o;
}

bool mg_queue_is_up(const struct mg_queue *q) {
    return q->link != NULL;
}

/* --- calls --- */
static bool is_away(const char *code) {
    return strcmp(code, "redis_error") != 0 && strcmp(code, "redis_full") != 0;
}

/* Errors of the server that are no fault of the command. Those within a script have the script's
 * name before them up to Redis 6.2, and behind them since. */
static const char *code_of(const struct mg_err *why) {
    static const struct {
        const char *word, *code;
    } known[] = {{"OOM command not allowed", "redis_full"},
                 {"MISCONF", "redis_full"},
                 {"NOREPLICAS", "redis_full"},
                 {"READONLY", "redis_readonly"}};
    for (size_t i = 0; !strcmp(why->code, "redis_error") && i < sizeof known / sizeof *known; i++)
        if (strstr(why->text, known[i].word)) return known[i].code;
    return why->code;
}

static void hang_up(struct mg_queue *q, const struct mg_err *why) {
    mg_redis_link_close(q->link);
    q->link = NULL;
    q->pause = q->pause > 0 ? fmin(q->pause * 2, longest_pause) : first_pause;
    /* A reply that was too large says nothing about the server: it is asked for less. */
    q->next_try = !strcmp(why->code, "redis_reply") ? 0 : mg_clock() + q->pause;
    q->why = *why;
}

static enum mg_status connect_now(struct mg_queue *q, struct mg_err *err) {
    struct mg_err why = {0};
    if (q->link) return MG_OK;
    if (mg_clock() < q->next_try)
        return mg_fail(err, q->why.status, q->why.code, "%s", q->why.text);
    enum mg_status st = mg_redis_link_open(&q->o.url, &q->o.tls, q->o.call_seconds, &q->link, &why);
    if (st == MG_OK) return MG_OK;
    hang_up(q, &why);
    return mg_fail(err, st, why.code, "%s", why.text);
}

/* Any command. What is wrong with the connection, or with the server, ends the connection. */
static enum mg_status command(struct mg_queue *q, double seconds, struct args *a, redisReply **out,
                              struct mg_err *err) {
    struct mg_err why = {0};
    *out = NULL;
    if (a->over) return mg_fail(err, MG_ERR_LIMIT, "queue_call", "too much for one call");
    enum mg_status st = connect_now(q, err);
    if (st) return st;
    st = mg_redis_link_call(q->link, seconds, a->n, a->text, a->n_byte, out, &why);
    if (st == MG_OK) {
        q->pause = 0;
        return MG_OK;
    }
    const char *code = code_of(&why);
    if (is_away(code)) hang_up(q, &why);
    return mg_fail(err, st, code, "%s", why.text);
}

/* The script: begin_script leaves room for what stands before its arguments. */
static void begin_script(struct mg_queue *q, struct args *a, const char *op) {
    a->n = 0;
    a->n_number = 0;
    a->over = false;
    add(a, "EVALSHA");
    add(a, q->sha);
    add(a, "1");
    add(a, q->meta);
    add(a, op);
}

static enum mg_status script(struct mg_queue *q, struct args *a, redisReply **out,
                             struct mg_err *err) {
    struct mg_err why = {0};
    double seconds = q->o.call_seconds;
    for (int i = 0; i < a->n; i++) seconds += (double)a->n_byte[i] / bytes_a_second;
    enum mg_status st = command(q, seconds, a, out, &why);
    if (st && strstr(why.text, "NOSCRIPT")) { /* the server has been restarted, or is a new one */
        a->text[0] = "EVAL";
        a->n_byte[0] = 4;
        a->text[1] = mg_job_queue_lua;
        a->n_byte[1] = strlen(mg_job_queue_lua);
        why = (struct mg_err){0};
        st = command(q, seconds, a, out, &why);
    }
    return st ? mg_fail(err, st, why.code, "%s", why.text) : MG_OK;
}

static enum mg_status strange(struct mg_err *err) {
    return mg_fail(err, MG_ERR_FORMAT, "queue_reply",
                   "the queue's keys hold what no margay of this version writes");
}

/* --- replies --- */
static bool is_text(const redisReply *r) {
    return r && (r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS);
}
static bool is_list(const redisReply *r, size_t least) {
    return r && r->type == REDIS_REPLY_ARRAY && r->elements >= least;
}
static const char *text_of(const redisReply *r) {
    return is_text(r) ? r->str : "";
}
static uint64_t int_of(const redisReply *r) {
    if (r && r->type == REDIS_REPLY_INTEGER) return r->integer < 0 ? 0 : (uint64_t)r->integer;
    return is_text(r) ? strtoull(r->str, NULL, 10) : 0;
}
static bool says(const redisReply *r, const char *word) {
    return is_text(r) && strcmp(r->str, word) == 0;
}
static void copy(char *out, size_t cap, const redisReply *r) {
    snprintf(out, cap, "%s", text_of(r));
}

static enum mg_status owner_of(redisReply *r, enum mg_owner *owner, struct mg_err *err) {
    enum mg_status st = MG_OK;
    if (says(r, "ok"))
        *owner = MG_OWNER_OK;
    else if (says(r, "cancel"))
        *owner = MG_OWNER_CANCEL;
    else if (says(r, "lost"))
        *owner = MG_OWNER_LOST;
    else if (says(r, "gap"))
        *owner = MG_OWNER_GAP;
    else
        st = strange(err);
    freeReplyObject(r);
    return st;
}

/* --- gateways --- */
static enum mg_status send_blobs(struct mg_queue *q, const struct mg_job_order *job,
                                 const redisReply *missing, struct mg_err *err) {
    struct args a;
    for (size_t i = 1; i < missing->elements; i++) {
        size_t k = 0;
        while (k < job->n_blob && !says(missing->element[i], job->blob[k].digest)) k++;
        if (k == job->n_blob) return strange(err);
        redisReply *r;
        begin_script(q, &a, "blob");
        add(&a, job->tenant);
        add(&a, job->blob[k].digest);
        add_int(&a, blob_seconds);
        add_n(&a, job->data[k].data, job->data[k].n);
        enum mg_status st = script(q, &a, &r, err);
        if (st) return st;
        freeReplyObject(r);
    }
    return MG_OK;
}

static void submit_args(struct mg_queue *q, const struct mg_job_order *job, struct args *a) {
    begin_script(q, a, "submit");
    add(a, job->id);
    add(a, job->tenant);
    add(a, job->priority);
    add(a, job->stream ? "1" : "0");
    add(a, job->gateway);
    add_ms(a, q->o.wait_seconds);
    add_int(a, (uint64_t)ceil(q->o.keep_seconds));
    add_int(a, (uint64_t)ceil(q->o.live_seconds));
    add_int(a, q->o.max_waiting);
    add_int(a, q->o.max_bytes);
    add_int(a, job->bytes);
    add(a, job->path);
    add_n(a, job->body, job->n_body);
    add_int(a, job->n_blob);
    for (size_t i = 0; i < job->n_blob; i++) {
        add(a, job->blob[i].name);
        add(a, job->blob[i].digest);
    }
}

enum mg_status mg_queue_submit(struct mg_queue *q, const struct mg_job_order *job,
                               enum mg_submit *told, double *seconds, struct mg_err *err) {
    struct args a;
    redisReply *r;
    *seconds = 0;
    if (job->n_blob > MG_JOB_MAX_BLOBS)
        return mg_fail(err, MG_ERR_LIMIT, "too_many_images", "more than %d pictures",
                       MG_JOB_MAX_BLOBS);
    for (int round = 0; round < 3; round++) {
        submit_args(q, job, &a);
        enum mg_status st = script(q, &a, &r, err);
        if (st) return st;
        const redisReply *word = is_list(r, 1) ? r->element[0] : NULL;
        if (says(word, "missing")) {
            st = send_blobs(q, job, r, err);
        } else if (says(word, "full") && is_list(r, 2)) {
            *told = MG_SUBMIT_FULL;
            *seconds = (double)int_of(r->element[1]);
            round = 3;
        } else if (says(word, "taken")) {
            st = mg_fail(err, MG_ERR_ARGUMENT, "job_id_taken", "the job's id is taken");
        } else if (says(word, "ok") || says(word, "known")) {
            *told = MG_SUBMIT_OK;
            round = 3;
        } else {
            st = strange(err);
        }
        freeReplyObject(r);
        if (st || round == 3) return st;
    }
    return mg_fail(err, MG_ERR_IO, "queue_blobs",
                   "Redis drops the pictures that it is given: its maxmemory is too small");
}

enum mg_status mg_queue_state(struct mg_queue *q, const char *id, const char *tenant,
                              const char *gateway, struct mg_job_state *out, struct mg_err *err) {
    struct args a;
    redisReply *r;
    *out = (struct mg_job_state){0};
    begin_script(q, &a, "state");
    add(&a, id);
    add(&a, tenant);
    add(&a, gateway);
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    if (is_list(r, 10)) {
        copy(out->state, sizeof out->state, r->element[0]);
        out->stream = says(r->element[1], "1");
        out->offset = int_of(r->element[2]);
        out->attempt = (unsigned)int_of(r->element[3]);
        out->created_ms = (int64_t)int_of(r->element[4]);
        out->ended_ms = (int64_t)int_of(r->element[5]);
        copy(out->code, sizeof out->code, r->element[6]);
        out->ahead = int_of(r->element[7]);
        copy(out->worker, sizeof out->worker, r->element[8]);
        copy(out->priority, sizeof out->priority, r->element[9]);
    } else if (!is_list(r, 0)) {
        st = strange(err);
    }
    freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_cancel(struct mg_queue *q, const char *id, const char *tenant, bool *found,
                               struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "cancel");
    add(&a, id);
    add(&a, tenant);
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    *found = !says(r, "none");
    freeReplyObject(r);
    return MG_OK;
}

/* A stream's entry: its fields one after another. */
static const redisReply *field(const redisReply *entry, const char *name) {
    if (!is_list(entry, 2) || !is_list(entry->element[1], 0)) return NULL;
    const redisReply *f = entry->element[1];
    for (size_t i = 0; i + 1 < f->elements; i += 2)
        if (says(f->element[i], name)) return is_text(f->element[i + 1]) ? f->element[i + 1] : NULL;
    return NULL;
}

static void tell_event(const redisReply *entry, size_t job, mg_queue_event_fn *fn, void *user) {
    const redisReply *head = field(entry, "h"), *data = field(entry, "d"),
                     *state = field(entry, "e");
    struct mg_queue_event e = {.job = job,
                               .head = head ? head->str : NULL,
                               .state = state ? state->str : NULL,
                               .code = text_of(field(entry, "c")),
                               .place = text_of(entry->element[0])};
    e.end = strtoull(e.place, NULL, 10);
    if (data) e.data = (struct mg_slice){(const uint8_t *)data->str, (size_t)data->len};
    if (e.data.n <= e.end && (head || data || state)) fn(user, &e);
}

static void tell_stream(const redisReply *stream, size_t n_base, const char *const *id, size_t from,
                        size_t to, mg_queue_event_fn *fn, void *user) {
    if (!is_list(stream, 2) || !is_text(stream->element[0]) || !is_list(stream->element[1], 0))
        return;
    const redisReply *key = stream->element[0], *list = stream->element[1];
    const char *name = key->len > n_base ? key->str + n_base : "";
    for (size_t i = from; i < to; i++) {
        if (strcmp(name, id[i]) != 0) continue;
        for (size_t k = 0; k < list->elements; k++)
            if (is_list(list->element[k], 2)) tell_event(list->element[k], i, fn, user);
    }
}

enum mg_status mg_queue_events(struct mg_queue *q, const char *const *id, const char *const *after,
                               size_t n, mg_queue_event_fn *fn, void *user, struct mg_err *err) {
    enum { KEY = MG_QUEUE_NAME_BYTES + 32 + MG_JOB_ID_BYTES };
    char(*key)[KEY] = malloc(MAX_READ * sizeof *key);
    enum mg_status st = key ? MG_OK : mg_fail_memory(err, "queue");
    size_t together = MAX_READ;
    for (size_t at = 0, most; at < n && !st; at += most) {
        size_t n_base = 0;
        most = mg_min_size(n - at, together);
        struct args a = {0};
        redisReply *r;
        add(&a, "XREAD");
        add(&a, "COUNT");
        add_int(&a, MG_QUEUE_READ_EVENTS);
        add(&a, "STREAMS");
        for (size_t i = 0; i < most; i++) {
            int to_id = snprintf(key[i], KEY, "%sev:", q->base);
            snprintf(key[i] + to_id, KEY - (size_t)to_id, "%s", id[at + i]);
            n_base = (size_t)to_id;
            add(&a, key[i]);
        }
        for (size_t i = 0; i < most; i++) add(&a, after[at + i]);
        struct mg_err why = {0};
        st = command(q, q->o.call_seconds, &a, &r, &why);
        if (st && !strcmp(why.code, "redis_reply") && most > 1) { /* too much for one reply */
            together = most / 2;
            most = 0;
            st = MG_OK;
            continue;
        }
        if (st) {
            st = mg_fail(err, st, why.code, "%s", why.text);
            break;
        }
        for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < r->elements; i++)
            tell_stream(r->element[i], n_base, id, at, at + most, fn, user);
        freeReplyObject(r);
    }
    free(key);
    return st;
}

enum mg_status mg_queue_note(struct mg_queue *q, const char *gateway, const char *id,
                             struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "note");
    add(&a, gateway);
    add(&a, id);
    enum mg_status st = script(q, &a, &r, err);
    if (!st) freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_inbox(struct mg_queue *q, const char *gateway,
                              char place[MG_JOB_PLACE_BYTES], struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "inbox");
    add(&a, gateway);
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    copy(place, MG_JOB_PLACE_BYTES, r);
    freeReplyObject(r);
    return MG_OK;
}

/* XREAD with BLOCK on one stream; entries are told to fn if there is one. */
static enum mg_status wait_stream(struct mg_queue *q, const char *key,
                                  char place[MG_JOB_PLACE_BYTES], double seconds, uint64_t most,
                                  void (*fn)(void *user, const char *id), void *user,
                                  struct mg_err *err) {
    struct args a = {0};
    redisReply *r;
    add(&a, "XREAD");
    add(&a, "COUNT");
    add_int(&a, most);
    if (seconds > 0) {
        add(&a, "BLOCK");
        add_int(&a, (uint64_t)ceil(seconds * 1e3));
    }
    add(&a, "STREAMS");
    add(&a, key);
    add(&a, place);
    enum mg_status st = command(q, seconds + q->o.call_seconds, &a, &r, err);
    if (st) return st;
    const redisReply *list =
        is_list(r, 1) && is_list(r->element[0], 2) ? r->element[0]->element[1] : NULL;
    for (size_t i = 0; is_list(list, 0) && i < list->elements; i++) {
        const redisReply *id = field(list->element[i], "j");
        if (!id) continue;
        copy(place, MG_JOB_PLACE_BYTES, list->element[i]->element[0]);
        if (fn && id->len) fn(user, id->str);
    }
    freeReplyObject(r);
    return MG_OK;
}

enum mg_status mg_queue_wait_inbox(struct mg_queue *q, const char *gateway,
                                   char place[MG_JOB_PLACE_BYTES], double seconds,
                                   void (*fn)(void *user, const char *id), void *user,
                                   struct mg_err *err) {
    char key[MG_QUEUE_NAME_BYTES + 96];
    snprintf(key, sizeof key, "%sgw:%s", q->base, gateway);
    return wait_stream(q, key, place, seconds, INBOX_NOTES, fn, user, err);
}

static void read_look(const redisReply *pairs, struct mg_queue_look *out) {
    const struct {
        const char *name;
        uint64_t *to;
    } known[] = {{"waiting", &out->waiting},     {"bytes", &out->bytes},
                 {"slots", &out->slots},         {"submitted", &out->submitted},
                 {"refused", &out->refused},     {"takeovers", &out->takeovers},
                 {"released", &out->released},   {"ended:done", &out->done},
                 {"ended:failed", &out->failed}, {"ended:cancelled", &out->cancelled},
                 {"ended:dead", &out->dead}};
    for (size_t i = 0; i + 1 < pairs->elements; i += 2)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (says(pairs->element[i], known[k].name))
                *known[k].to = int_of(pairs->element[i + 1]);
}

enum mg_status mg_queue_look(struct mg_queue *q, struct mg_queue_look *out,
                             void (*fn)(void *user, const char *about, size_t n), void *user,
                             struct mg_err *err) {
    struct args a;
    redisReply *r;
    *out = (struct mg_queue_look){0};
    begin_script(q, &a, "look");
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    if (is_list(r, 3) && is_list(r->element[0], 0) && is_list(r->element[2], 0)) {
        read_look(r->element[0], out);
        out->running = int_of(r->element[1]);
        const redisReply *about = r->element[2];
        for (size_t i = 0; fn && i < about->elements; i++)
            if (is_text(about->element[i]))
                fn(user, about->element[i]->str, (size_t)about->element[i]->len);
    } else {
        st = strange(err);
    }
    freeReplyObject(r);
    return st;
}

/* --- workers --- */
/* "name=digest name=digest" */
static bool read_blobs(const char *text, struct mg_job_taken *job) {
    while (*text) {
        const char *equal = strchr(text, '=');
        size_t n = equal ? (size_t)(equal - text) : 0;
        if (!n || job->n_blob == MG_JOB_MAX_BLOBS) return false;
        struct mg_job_blob *b = &job->blob[job->n_blob++];
        size_t n_digest = strcspn(equal + 1, " ");
        if (n >= sizeof b->name || n_digest >= sizeof b->digest) return false;
        snprintf(b->name, sizeof b->name, "%.*s", (int)n, text);
        snprintf(b->digest, sizeof b->digest, "%.*s", (int)n_digest, equal + 1);
        text = equal + 1 + n_digest;
        while (*text == ' ') text++;
    }
    return true;
}

static bool tell_taken(const redisReply *e, void (*fn)(void *user, const struct mg_job_taken *job),
                       void *user) {
    if (!is_list(e, 11)) return false;
    for (size_t i = 0; i < 11; i++)
        if (!is_text(e->element[i])) return false;
    struct mg_job_taken *job = calloc(1, sizeof *job);
    if (!job) return true; /* its lease will run out */
    *job = (struct mg_job_taken){
        .id = e->element[0]->str,
        .attempt = (unsigned)int_of(e->element[1]),
        .tenant = e->element[2]->str,
        .priority = e->element[3]->str,
        .stream = says(e->element[4], "1"),
        .path = e->element[5]->str,
        .body = {(const uint8_t *)e->element[6]->str, (size_t)e->element[6]->len},
        .created_ms = (int64_t)int_of(e->element[8]),
        .offset = int_of(e->element[9]),
        .waited_seconds = 1e-3 * (double)int_of(e->element[10])};
    bool ok = strlen(job->id) < MG_JOB_ID_BYTES && strlen(job->tenant) < MG_JOB_TENANT_BYTES &&
              read_blobs(e->element[7]->str, job);
    if (ok) fn(user, job);
    free(job);
    return ok;
}

enum mg_status mg_queue_take(struct mg_queue *q, const char *worker, size_t n,
                             const char *const *recent, size_t n_recent,
                             void (*fn)(void *user, const struct mg_job_taken *job), void *user,
                             char place[MG_JOB_PLACE_BYTES], struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "take");
    add(&a, worker);
    add_int(&a, n);
    add_int(&a, LOOK_AHEAD);
    add_ms(&a, q->o.aged_seconds);
    for (size_t i = 0; i < n_recent; i++) add(&a, recent[i]);
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    if (!is_list(r, 1) || !is_text(r->element[0])) st = strange(err);
    if (!st) copy(place, MG_JOB_PLACE_BYTES, r->element[0]);
    for (size_t i = 1; !st && i < r->elements; i++)
        if (!tell_taken(r->element[i], fn, user)) mg_log(MG_LOG_WARN, "a job that can't be read");
    freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_wait_jobs(struct mg_queue *q, const char place[MG_JOB_PLACE_BYTES],
                                  double seconds, struct mg_err *err) {
    char key[MG_QUEUE_NAME_BYTES + 32], from[MG_JOB_PLACE_BYTES];
    snprintf(key, sizeof key, "%sjobs", q->base);
    snprintf(from, sizeof from, "%s", place);
    return wait_stream(q, key, from, seconds, 1, NULL, NULL, err);
}

enum mg_status mg_queue_blob(struct mg_queue *q, const char *tenant, const char *digest,
                             struct mg_buf *out, struct mg_err *err) {
    char key[MG_QUEUE_NAME_BYTES + 160], hex[MG_SHA256_HEX];
    uint8_t found[MG_SHA256_BYTES];
    struct args a = {0};
    redisReply *r;
    snprintf(key, sizeof key, "%sblob:%s:%s", q->base, tenant, digest);
    add(&a, "GET");
    add(&a, key);
    enum mg_status st = command(q, q->o.call_seconds + picture_seconds, &a, &r, err);
    if (st) return st;
    if (r->type != REDIS_REPLY_STRING) {
        st = mg_fail(err, MG_ERR_NOT_FOUND, "blob_gone", "a picture of the job is no longer there");
    } else if (!mg_sha256(r->str, (size_t)r->len, found)) {
        st = mg_fail_memory(err, "picture");
    } else {
        mg_hex(found, sizeof found, hex);
        if (strcmp(hex, digest) != 0)
            st = mg_fail(err, MG_ERR_NOT_FOUND, "blob_gone", "a picture of the job was changed");
        else if (!mg_buf_add(out, r->str, (size_t)r->len))
            st = mg_fail_memory(err, "picture");
    }
    freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_emit(struct mg_queue *q, const char *id, unsigned attempt, const char *head,
                             uint64_t from, struct mg_slice data, const char *state,
                             const char *code, enum mg_owner *owner, struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "emit");
    add(&a, id);
    add_int(&a, attempt);
    add(&a, head);
    add_int(&a, from);
    add_n(&a, data.data, data.n);
    add(&a, state ? state : "");
    add(&a, code ? code : "");
    enum mg_status st = script(q, &a, &r, err);
    return st ? st : owner_of(r, owner, err);
}

enum mg_status mg_queue_release(struct mg_queue *q, const char *id, unsigned attempt, bool counted,
                                enum mg_owner *owner, struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "release");
    add(&a, id);
    add_int(&a, attempt);
    add(&a, counted ? "1" : "0");
    add_int(&a, q->o.max_tries);
    enum mg_status st = script(q, &a, &r, err);
    return st ? st : owner_of(r, owner, err);
}

enum mg_status mg_queue_beat(struct mg_queue *q, const char *worker, size_t slots,
                             const char *about, const char *const *id, const unsigned *attempt,
                             size_t n, mg_queue_owner_fn *fn, void *user, struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "beat");
    add(&a, worker);
    add_ms(&a, fmax(3 * q->o.lease_seconds, 5));
    add_int(&a, slots);
    add(&a, about ? about : "");
    for (size_t i = 0; i < n; i++) {
        add(&a, id[i]);
        add_int(&a, attempt[i]);
    }
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i + 2 < r->elements; i += 3)
        if (is_text(r->element[i]))
            fn(user, r->element[i]->str, (unsigned)int_of(r->element[i + 1]),
               says(r->element[i + 2], "cancel") ? MG_OWNER_CANCEL : MG_OWNER_LOST);
    freeReplyObject(r);
    return MG_OK;
}

enum mg_status mg_queue_mine(struct mg_queue *q, const char *worker, const char *const *id,
                             size_t n, struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "mine");
    add(&a, worker);
    for (size_t i = 0; i < n; i++) add(&a, id[i]);
    enum mg_status st = script(q, &a, &r, err);
    if (!st) freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_bye(struct mg_queue *q, const char *worker, struct mg_err *err) {
    struct args a;
    redisReply *r;
    begin_script(q, &a, "bye");
    add(&a, worker);
    enum mg_status st = script(q, &a, &r, err);
    if (!st) freeReplyObject(r);
    return st;
}

enum mg_status mg_queue_reap(struct mg_queue *q, unsigned *lost, struct mg_err *err) {
    struct args a;
    redisReply *r;
    *lost = 0;
    begin_script(q, &a, "reap");
    add_ms(&a, q->o.lease_seconds);
    add_int(&a, q->o.max_tries);
    add_ms(&a, reap_seconds);
    enum mg_status st = script(q, &a, &r, err);
    if (st) return st;
    *lost = (unsigned)int_of(r);
    freeReplyObject(r);
    return MG_OK;
}
