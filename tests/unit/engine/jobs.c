/* See jobs.h. */
#include "jobs.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t n_over;

struct question question(void (*fill)(mg_chat *, size_t), size_t i) {
    struct question q = {.fill = fill, .i = i};
    mg_answer_options_init(&q.job.answer);
    q.job.answer.max_tokens = MOST_TOKENS;
    q.job.answer.ignore_end = q.job.answer.no_loop_check = true;
    return q;
}

/* --- callbacks --- */
static void reach(struct question *q, enum place at) {
    pthread_mutex_lock(&mutex);
    if (q->n_done) q->late++;
    q->seen[at] = true;
    q->n_event[at]++;
    if (at > q->place) q->place = at;
    pthread_cond_broadcast(&changed);
    while (q->hold_at == at && !q->released) pthread_cond_wait(&changed, &mutex);
    uint64_t id = q->id;
    pthread_mutex_unlock(&mutex);
    if (q->cancel_at == at && q->n_event[at] > q->cancel_after)
        mg_scheduler_cancel(q->scheduler, id);
}

static void keep_logprobs(struct question *q, const struct mg_token_logprob *l, size_t n) {
    for (size_t i = 0; i < n && q->n_logprob < 256; i++) {
        q->logprob[q->n_logprob] = l[i].logprob;
        q->logprob_id[q->n_logprob++] = l[i].id;
    }
}

static void on_event(void *user, const struct mg_job_event *e) {
    struct question *q = user;
    enum place at = e->kind == MG_JOB_QUEUED      ? QUEUED
                    : e->kind == MG_JOB_TEXT      ? SAYING
                    : e->decoding                 ? DECODING
                    : e->stage == MG_STAGE_VISION ? LOOKING
                                                  : READING;
    if (at == QUEUED) q->position = e->position;
    if (at == SAYING) {
        if (q->n_said + e->n_text < sizeof q->said) {
            memcpy(q->said + q->n_said, e->text, e->n_text);
            q->n_said += e->n_text;
        }
        q->n_piece++;
        keep_logprobs(q, e->logprob, e->n_logprob);
    }
    reach(q, at);
}

static _Thread_local enum mg_status filled; /* of the prompt being filled in */

static enum mg_status on_prepare(void *user, mg_chat *chat, struct mg_err *err) {
    struct question *q = user;
    filled = MG_OK;
    q->fill(chat, q->i);
    return filled == MG_OK ? MG_OK : mg_fail(err, filled, "filling", "prompt not filled in");
}

static void take_answer(struct question *q, const struct mg_answer *a) {
    q->n_text = a->n_text < sizeof q->text ? a->n_text : sizeof q->text;
    if (q->n_text) memcpy(q->text, a->text, q->n_text);
    q->n_token = a->n_token < 256 ? a->n_token : 256;
    if (q->n_token) memcpy(q->token, a->token, q->n_token * sizeof *q->token);
    q->prompt = a->prompt_tokens;
    q->cached = a->cached_tokens;
    q->image = a->image_tokens;
    q->drafted = a->drafted_tokens;
    q->accepted = a->accepted_tokens;
    snprintf(q->finish, sizeof q->finish, "%s", a->finish_reason ? a->finish_reason : "");
    snprintf(q->detail, sizeof q->detail, "%s", a->stop_detail ? a->stop_detail : "");
}

static void on_done(void *user, const struct mg_job_result *r) {
    struct question *q = user;
    q->status = r->status;
    mg_scheduler_counts(q->scheduler, &q->counts);
    if (r->status != MG_OK) snprintf(q->code, sizeof q->code, "%s", r->err->code);
    if (r->status == MG_OK) take_answer(q, r->answer);
    keep_logprobs(q, r->logprob, r->n_logprob);
    q->from = r->from;
    q->distance = r->distance;
    struct mg_image_report report;
    if (r->chat && mg_chat_image(r->chat, 0, &report)) q->image_cached = report.cached;
    pthread_mutex_lock(&mutex);
    q->n_done++;
    q->place = DONE;
    q->order = ++n_over;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* --- asking --- */
static bool on_alone(void *user, const struct mg_event *e) {
    struct question *q = user;
    if (e->kind == MG_EVENT_TEXT && q->n_said + e->n_text < sizeof q->said) {
        memcpy(q->said + q->n_said, e->text, e->n_text);
        q->n_said += e->n_text;
    }
    return true;
}

void answer_alone(mg_engine *e, struct question *q) {
    struct mg_err err = {0};
    struct mg_answer a;
    mg_chat *chat = tiny_chat(e);
    q->fill(chat, q->i);
    if (mg_chat_answer(chat, &q->job.answer, on_alone, q, &a, &err) != MG_OK)
        fail_msg("%s", err.text);
    take_answer(q, &a);
    q->n_done = 1;
    mg_chat_close(chat);
}

enum mg_status try_ask(struct mg_scheduler *s, struct question *q) {
    struct mg_err err = {0};
    double retry = 0;
    q->job.prepare = on_prepare;
    q->job.event = on_event;
    q->job.done = on_done;
    q->job.user = q;
    q->scheduler = s;
    pthread_mutex_lock(&mutex); /* its events see the id */
    enum mg_status status = mg_scheduler_submit(s, &q->job, &q->id, &retry, &err);
    pthread_mutex_unlock(&mutex);
    if (status != MG_OK) snprintf(q->code, sizeof q->code, "%s", err.code);
    if (status == MG_ERR_LIMIT && !(retry > 0)) fail_msg("no time to try again after");
    return status;
}

void ask(struct mg_scheduler *s, struct question *q) {
    if (try_ask(s, q) != MG_OK) fail_msg("not taken in: %s", q->code);
}

void wait_place(struct question *q, enum place at) {
    pthread_mutex_lock(&mutex);
    while (q->place < at) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

void wait_done(struct question *q) {
    wait_place(q, DONE);
}

void release(struct question *q) {
    pthread_mutex_lock(&mutex);
    q->released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void ask_and_wait(struct mg_scheduler *s, struct question *q) {
    ask(s, q);
    wait_done(q);
}

void same_answer(const struct question *want, const struct question *got, const char *what) {
    if (got->n_done != 1 || got->late)
        fail_msg("%s: %d ends, %d late", what, got->n_done, got->late);
    if (got->status != MG_OK) fail_msg("%s: %s", what, got->code);
    for (size_t i = 0; i < want->n_token && i < got->n_token; i++)
        if (want->token[i] != got->token[i]) fail_msg("%s: token %zu differs", what, i);
    assert_int_equal(got->n_token, want->n_token);
    assert_int_equal(got->n_text, want->n_text);
    assert_memory_equal(got->text, want->text, want->n_text);
    assert_int_equal(got->n_said, want->n_text);
    assert_memory_equal(got->said, want->text, want->n_text);
    assert_string_equal(got->finish, want->finish);
    assert_string_equal(got->detail, want->detail);
    assert_int_equal(got->prompt, want->prompt);
    assert_int_equal(got->image, want->image);
}

struct mg_scheduler *open_scheduler(mg_engine *e, struct mg_scheduler_options o) {
    struct mg_err err = {0};
    struct mg_scheduler *s;
    if (mg_scheduler_open(e, &o, &s, &err) != MG_OK) fail_msg("%s", err.text);
    return s;
}

/* --- prompts; no assertions, they run on another thread --- */
void add_text(mg_chat *chat, enum mg_chat_role role, const char *text) {
    struct mg_err err = {0};
    if (mg_chat_add_text(chat, role, text, &err) != MG_OK) filled = err.status;
}

void add_picture(mg_chat *chat, const void *bytes, size_t n) {
    struct mg_err err = {0};
    if (mg_chat_add_image(chat, bytes, n, &err) != MG_OK) filled = err.status;
}

void add_file(mg_chat *chat, const char *name) {
    char path[96];
    struct mg_err err = {0};
    snprintf(path, sizeof path, IMAGES "%s", name);
    if (mg_chat_add_image_file(chat, path, &err) != MG_OK) filled = err.status;
}

void fill_text(mg_chat *chat, size_t i) {
    char text[96];
    snprintf(text, sizeof text, "question %zu: what is %zu + %zu, and which colour?", i, i * 7,
             i * i);
    add_text(chat, MG_USER, text);
}

void fill_mixed(mg_chat *chat, size_t i) {
    static const char *const image[] = {"odd.png",   "gray.png",  "shapes.png", "page.png",
                                        "small.png", "photo.jpg", "alpha.png"};
    if (i % 3 != 2) add_file(chat, image[i % 7]);
    fill_text(chat, i);
    if (i % 4 == 0) {
        add_text(chat, MG_ASSISTANT, "17");
        add_text(chat, MG_USER, "sure?");
    }
}

/* --- allocations, by --wrap at linking --- */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

static atomic_llong left = -1, now;
static atomic_bool failed;

static bool fails(void) {
    if (atomic_load(&left) < 0 || atomic_fetch_sub(&left, 1) != 0) return false;
    atomic_store(&failed, true);
    return true;
}

static void *count(void *p) {
    if (p) atomic_fetch_add(&now, (long long)malloc_usable_size(p));
    return p;
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : count(__real_malloc(n));
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : count(__real_calloc(n, size));
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : count(__real_aligned_alloc(align, n));
}
void *__wrap_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    long long before = p ? (long long)malloc_usable_size(p) : 0;
    void *q = __real_realloc(p, n);
    if (!q) return NULL;
    atomic_fetch_sub(&now, before);
    return count(q);
}
void __wrap_free(void *p) {
    if (p) atomic_fetch_sub(&now, (long long)malloc_usable_size(p));
    __real_free(p);
}

void alloc_fail_at(size_t n) {
    atomic_store(&failed, false);
    atomic_store(&left, n == SIZE_MAX ? -1 : (long long)n);
}
bool alloc_has_failed(void) {
    return atomic_load(&failed);
}
size_t alloc_now(void) {
    return (size_t)atomic_load(&now);
}
