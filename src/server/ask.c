/* server/ask.c - a question's life.
 *
 *   loop thread            preparing thread        engine thread           loop thread
 *   parse, find pictures   turns and pictures      events, the end         send, forget
 *   ask_begin              prepare_chat            on_event, on_done       flush
 *
 * What is to be sent is written into a->out where it arises, under the mutex, and the loop is told
 * once (flush). A stream begins with the first sign of work on it, so that what is wrong with a
 * request is found before: it gets an ordinary error. An exchange that ends cancels its jobs; the
 * question itself goes when nobody has it any more.
 */
#include "server/internal.h"

#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* --- life --- */
void ask_unref(struct ask *a) {
    if (atomic_fetch_sub(&a->refs, 1) != 1) return;
    for (size_t i = 0; i < a->n_choice; i++) {
        mg_buf_free(&a->choice[i].text);
        free(a->choice[i].logprob);
    }
    mg_chat_request_free(a->chat);
    mg_completion_request_free(a->completion);
    mg_buf_free(&a->out);
    free(a->choice);
    free(a->bias);
    free(a->fetch);
    free(a->image);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

static void flush(void *arg);

/* The loop is to look at `out`. Under the mutex. */
static void post(struct ask *a) {
    if (a->posted) return;
    a->posted = true;
    atomic_fetch_add(&a->refs, 1);
    if (mg_http_server_post(a->s->http, flush, a) == MG_OK) return;
    a->posted = false; /* the next event tries again */
    atomic_fetch_sub(&a->refs, 1);
}

void ask_cancel(struct ask *a) {
    for (size_t i = 0; i < a->n_choice; i++)
        if (a->choice[i].job) mg_scheduler_cancel(a->s->scheduler, a->choice[i].job);
    for (size_t i = 0; a->fetch && i < a->chat->n_image; i++)
        if (a->fetch[i]) mg_remote_cancel(a->s->remote, a->fetch[i]);
}

static void on_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    struct ask *a = user;
    (void)x, (void)reason;
    a->gone = true;
    if (a->n_fetch) /* no job has been handed in that would be counted */
        mg_metrics_add_at(a->s->metrics, MG_M_CANCELLED, 1,
                          mg_metrics_label(MG_M_CANCELLED, 0, "fetch"), 0, 0);
    ask_cancel(a);
    ask_unref(a);
}

static bool is_stream(const struct ask *a) {
    return a->kind == ASK_SOCKET || a->common->stream;
}

/* --- the loop sends --- */
static enum mg_status begin_stream(struct ask *a, struct mg_http_exchange *x) {
    mg_http_add_field(x, "Cache-Control", "no-cache");
    mg_http_add_field(x, "X-Accel-Buffering", "no");
    a->streaming = true;
    enum mg_status status = mg_http_stream_begin(x, 200, "text/event-stream");
    if (status != MG_OK || a->job[0]) return status; /* gateways ping for themselves */
    return mg_http_stream_ping(x, ": ping\n\n", 8, a->s->o.ping_seconds);
}

static void send_stream(struct ask *a, struct mg_http_exchange *x, const struct mg_buf *out,
                        bool finished) {
    enum mg_status status = a->streaming ? MG_OK : begin_stream(a, x);
    if (status == MG_OK && out->n) status = mg_http_stream_write(x, out->data, out->n);
    if (status == MG_OK && finished) mg_http_stream_end(x);
}

static void add_cache_fields(const struct ask *a, struct mg_http_exchange *x) {
    const char *name = mg_reply_cache_name(a->cache);
    char text[16];
    if (!name || a->http != 200) return;
    mg_http_add_field(x, "x-cache", name);
    if (a->cache != MG_CACHE_NEAR) return;
    snprintf(text, sizeof text, "%.4f", a->cache_distance);
    mg_http_add_field(x, "x-cache-distance", text);
}

static void send_whole(struct ask *a, struct mg_http_exchange *x, const struct mg_buf *out) {
    if (a->retry) {
        double seconds = a->retry_seconds;
        if (!(seconds > 0)) {
            struct mg_scheduler_counts c;
            mg_scheduler_counts(a->s->scheduler, &c);
            seconds = c.waiting ? 5 : 1;
        }
        add_retry_after(x, seconds);
    }
    add_cache_fields(a, x);
    mg_http_reply(x, a->http, "application/json", out->data, out->n);
}

static void flush(void *arg) {
    struct ask *a = arg;
    pthread_mutex_lock(&a->mutex);
    struct mg_buf out = a->out;
    a->out = (struct mg_buf){0};
    a->posted = false;
    bool finished = a->finished, begun = a->begun;
    pthread_mutex_unlock(&a->mutex);
    bool was_gone = a->gone;
    struct mg_http_exchange *x = was_gone ? NULL : mg_http_find(a->s->http, a->exchange);
    if (x && a->kind == ASK_SOCKET) {
        socket_send(x, &out);
        if (finished) socket_forget(x, a);
    } else if (x && begun) {
        send_stream(a, x, &out, finished);
    } else if (x && finished && !mg_http_has_replied(x)) {
        send_whole(a, x, &out);
    }
    mg_buf_free(&out);
    /* Of several answers one may have failed. Who was gone has been cancelled then, and all are by
     * the time that the scheduler is closed. */
    if (finished && !was_gone) ask_cancel(a);
    ask_unref(a);
}

/* --- what is written into `out`, under the mutex --- */
/* A socket's message: its length, then its bytes. */
static size_t begin_message(struct ask *a) {
    uint32_t none = 0;
    mg_buf_add(&a->out, &none, sizeof none);
    return a->out.n;
}
static void end_message(struct ask *a, size_t at) {
    uint32_t n = (uint32_t)(a->out.n - at);
    if (!a->out.failed) memcpy(a->out.data + at - sizeof n, &n, sizeof n);
}

static void begin_chunks(struct ask *a) {
    if (a->begun) return;
    a->begun = true;
    for (size_t i = 0; i < a->n_choice; i++) mg_chunk_begin(&a->out, &a->head, i);
}

/* The question ends with an error, if it hasn't ended yet. */
static void fail(struct ask *a) {
    if (a->finished) return;
    struct mg_fault_kind kind;
    mg_fault_kind(&a->fault.err, &kind);
    a->finished = true;
    a->http = kind.http;
    a->retry = kind.retry;
    count_error(a->s, kind.type);
    if (!kind.public_text) mg_log(MG_LOG_ERROR, "%s", a->fault.err.text);
    if (a->kind == ASK_SOCKET) {
        size_t at = begin_message(a);
        mg_ws_error(&a->out, a->ws_id[0] ? a->ws_id : NULL, &a->fault);
        end_message(a, at);
    } else if (a->begun) {
        mg_chunk_error(&a->out, &a->fault);
    } else {
        mg_buf_free(&a->out);
        mg_fault_write(&a->fault, &a->out);
    }
}

/* A fault that the loop thread finds: it is told at once, not behind all that waits to be read.
 * Of a socket's question this may be the end. */
static void fail_now(struct ask *a, const struct mg_fault *f) {
    pthread_mutex_lock(&a->mutex);
    a->fault = *f;
    fail(a);
    pthread_mutex_unlock(&a->mutex);
    atomic_fetch_add(&a->refs, 1);
    flush(a);
}

static void on_stop(struct mg_http_exchange *x, void *user) {
    struct ask *a = mg_http_user(x);
    struct mg_fault f = {0};
    (void)user;
    mg_fault_set(&f, MG_ERR_CANCELLED, "shutting_down", "", "the server is being stopped");
    fail_now(a, &f); /* what is posted may come too late */
    ask_cancel(a);
}

/* --- events, on the preparing and the engine thread --- */
static const char *stage_name(const struct mg_job_event *e) {
    if (e->kind == MG_JOB_QUEUED) return "queue";
    if (e->decoding) return "decode";
    return e->stage == MG_STAGE_VISION ? "vision" : "prefill";
}

static struct mg_reply_progress progress_of(const struct ask *a, const struct mg_job_event *e) {
    bool vision = e->kind == MG_JOB_STAGE && !e->decoding && e->stage == MG_STAGE_VISION;
    bool prefill = e->kind == MG_JOB_STAGE && !e->decoding && e->stage == MG_STAGE_PREFILL;
    return (struct mg_reply_progress){.stage = stage_name(e),
                                      .step = e->done,
                                      .of = vision || prefill ? e->total : 0,
                                      .total = e->prompt_tokens,
                                      .cache = e->cached_tokens,
                                      .processed = prefill ? e->done : e->cached_tokens,
                                      .time_ms = (mg_clock() - a->began) * 1e3,
                                      .queue_position = e->position,
                                      .estimate_ms =
                                          e->kind == MG_JOB_QUEUED ? e->estimate_ms : -1};
}

static struct mg_reply_token token_of(const struct mg_tokenizer *t, int32_t id, double logprob) {
    struct mg_slice piece = mg_tokenizer_piece(t, id);
    return (struct mg_reply_token){
        .text = (const char *)piece.data, .n_text = piece.n, .logprob = logprob};
}

/* [n] tokens with their rivals in one block (free it); NULL when there are none or memory is
 * short. */
static struct mg_reply_token *tokens_of(const struct mg_server *s, const struct mg_token_logprob *l,
                                        size_t n) {
    const struct mg_tokenizer *t = mg_engine_tokenizer(s->engine);
    size_t all = n;
    for (size_t i = 0; i < n; i++) all += l[i].n_top;
    struct mg_reply_token *out = n ? mg_alloc(all, sizeof *out) : NULL, *top = out + n;
    for (size_t i = 0; out && i < n; i++) {
        out[i] = token_of(t, l[i].id, (double)l[i].logprob);
        out[i].top = top;
        out[i].n_top = l[i].n_top;
        for (size_t k = 0; k < l[i].n_top; k++)
            *top++ = token_of(t, l[i].top[k].id, (double)l[i].top[k].logprob);
    }
    return out;
}

static bool keep_logprobs(struct choice *c, const struct mg_token_logprob *l, size_t n) {
    if (c->n_logprob + n > c->cap_logprob) {
        size_t more = mg_max_size(c->n_logprob + n, 2 * c->cap_logprob);
        void *p = mg_realloc(c->logprob, more, sizeof *l);
        if (!p) return false;
        c->logprob = p;
        c->cap_logprob = more;
    }
    if (n) memcpy(c->logprob + c->n_logprob, l, n * sizeof *l);
    c->n_logprob += n;
    return true;
}

static struct mg_reply_timings timings_of(const struct ask *a, const struct mg_answer *w,
                                          size_t n_token, double decode_ms, double queue_ms) {
    return (struct mg_reply_timings){.prompt_n = w->prompt_tokens - w->cached_tokens,
                                     .cache_n = w->cached_tokens,
                                     .prompt_ms = w->vision_ms + w->prefill_ms,
                                     .predicted_n = n_token,
                                     .predicted_ms = decode_ms,
                                     .queue_ms = queue_ms,
                                     .image_ms = w->image_ms,
                                     .vision_ms = w->vision_ms,
                                     .first_token_ms = queue_ms + w->first_token_ms,
                                     .total_ms = (mg_clock() - a->began) * 1e3,
                                     .passes = w->passes,
                                     .drafted = w->drafted_tokens,
                                     .accepted = w->accepted_tokens};
}

static void write_text(struct choice *c, const struct mg_job_event *e) {
    struct ask *a = c->ask;
    if (a->kind == ASK_SOCKET) {
        size_t at = begin_message(a);
        mg_ws_token(&a->out, a->ws_id[0] ? a->ws_id : NULL, e->text, e->n_text);
        end_message(a, at);
        return;
    }
    begin_chunks(a);
    struct mg_reply_token *token = tokens_of(a->s, e->logprob, e->n_logprob);
    struct mg_reply_choice piece = {.index = c->index,
                                    .text = e->text,
                                    .n_text = e->n_text,
                                    .logprobs = a->common->logprobs,
                                    .token = token,
                                    .n_token = token ? e->n_logprob : 0};
    struct mg_reply_timings t;
    bool timed = a->common->timings_per_token;
    if (timed) t = timings_of(a, e->answer, e->n_token, e->decode_ms, e->queue_ms);
    mg_chunk_text(&a->out, &a->head, &piece, timed ? &t : NULL);
    free(token);
}

static void on_event(void *user, const struct mg_job_event *e) {
    struct choice *c = user;
    struct ask *a = c->ask;
    if (!is_stream(a)) {
        if (e->kind == MG_JOB_TEXT && !keep_logprobs(c, e->logprob, e->n_logprob)) c->lost = true;
        return;
    }
    struct mg_reply_progress progress = progress_of(a, e);
    pthread_mutex_lock(&a->mutex);
    if (a->finished) {
        pthread_mutex_unlock(&a->mutex);
        return;
    }
    size_t before = a->out.n;
    if (e->kind == MG_JOB_TEXT) {
        write_text(c, e);
    } else if (a->kind == ASK_SOCKET) {
        size_t at = begin_message(a);
        mg_ws_progress(&a->out, a->ws_id[0] ? a->ws_id : NULL, &progress);
        end_message(a, at);
    } else {
        if (!e->decoding) begin_chunks(a); /* pictures may still be found wrong */
        if (a->begun && a->common->return_progress) mg_chunk_progress(&a->out, &a->head, &progress);
    }
    if (a->out.n != before) post(a);
    pthread_mutex_unlock(&a->mutex);
}

/* --- the end --- */
static void note_metrics(struct ask *a, const struct mg_job_result *r) {
    struct mg_metrics *m = a->s->metrics;
    const struct mg_answer *w = r->answer;
    static const char *const endpoint[] = {"chat_completions", "completions", "ws"};
    const char *finish = r->status == MG_OK              ? w->finish_reason
                         : r->status == MG_ERR_CANCELLED ? "cancelled"
                                                         : "error";
    if (w->stop_detail && strcmp(w->stop_detail, "repetition") == 0) finish = "repetition";
    mg_metrics_add_at(m, MG_M_REQUESTS, 1, mg_metrics_label(MG_M_REQUESTS, 0, endpoint[a->kind]),
                      mg_metrics_label(MG_M_REQUESTS, 1, finish), 0);
    mg_metrics_observe(m, MG_M_REQUEST_SECONDS, mg_clock() - a->began);
    mg_metrics_observe(m, MG_M_QUEUE_SECONDS, r->queue_ms / 1e3);
    if (strcmp(finish, "cancelled") == 0)
        mg_metrics_add_at(m, MG_M_CANCELLED, 1,
                          mg_metrics_label(MG_M_CANCELLED, 0,
                                           !r->chat            ? "queue"
                                           : w->n_token        ? "decode"
                                           : !w->prompt_tokens ? "image"
                                           : w->prefill_ms > 0 ? "prefill"
                                           : w->image_tokens   ? "vision"
                                                               : "prefill"),
                          0, 0);
    for (size_t i = 0; r->chat && i < mg_chat_image_count(r->chat); i++) {
        struct mg_image_report image;
        mg_chat_image(r->chat, i, &image);
        mg_metrics_add_at(m, MG_M_IMAGES, 1, mg_metrics_label(MG_M_IMAGES, 0, image.format),
                          mg_metrics_label(MG_M_IMAGES, 1, "ok"), 0);
        mg_metrics_observe(m, MG_M_IMAGE_DECODE_SECONDS, image.decode_ms / 1e3);
        if (!image.cached && image.vision_ms > 0) /* it was looked at */
            mg_metrics_observe(m, MG_M_VISION_SECONDS, image.vision_ms / 1e3);
    }
    if (r->status != MG_OK) return;
    mg_metrics_add_at(m, MG_M_PROMPT_TOKENS, w->prompt_tokens - w->cached_tokens, 0, 0, 0);
    mg_metrics_add_at(m, MG_M_PROMPT_TOKENS, w->cached_tokens, 1, 0, 0);
    mg_metrics_add(m, MG_M_IMAGE_TOKENS, w->image_tokens);
    if (r->from >= MG_FROM_CACHE) return; /* nothing was read or generated */
    mg_metrics_add(m, MG_M_GENERATED_TOKENS, w->n_token);
    mg_metrics_add(m, MG_M_DRAFTED_TOKENS, w->drafted_tokens);
    mg_metrics_add(m, MG_M_ACCEPTED_TOKENS, w->accepted_tokens);
    mg_metrics_observe(m, MG_M_TTFT, (r->queue_ms + w->first_token_ms) / 1e3);
    if (w->n_token > 1) mg_metrics_observe(m, MG_M_TIME_PER_TOKEN, w->decode_ms_per_token / 1e3);
    mg_metrics_observe(m, MG_M_PREFILL_SECONDS, w->prefill_ms / 1e3);
    mg_metrics_observe(m, MG_M_DECODE_SECONDS,
                       w->decode_ms_per_token * (double)(w->n_token ? w->n_token - 1 : 0) / 1e3);
    mg_metrics_observe(m, MG_M_PROMPT_TOKENS_SIZE, (double)w->prompt_tokens);
    mg_metrics_observe(m, MG_M_GENERATED_TOKENS_SIZE, (double)w->n_token);
    if (w->image_tokens) mg_metrics_observe(m, MG_M_IMAGE_TOKENS_SIZE, (double)w->image_tokens);
}

static void note_cache(struct ask *a, const struct mg_job_result *r) {
    static const enum mg_reply_cache cache[] = {[MG_FROM_MODEL] = MG_CACHE_UNUSED,
                                                [MG_FROM_MODEL_ASKED] = MG_CACHE_MISS,
                                                [MG_FROM_CACHE] = MG_CACHE_EXACT,
                                                [MG_FROM_CACHE_NEAR] = MG_CACHE_NEAR};
    a->cache = cache[r->from];
    a->cache_distance = r->distance;
}

/* What was asked for and this server does not do. */
static void note_warnings(struct ask *a) {
    const struct mg_request *r = a->common;
    const struct mg_scheduler_options *o = &a->s->o.scheduler;
    for (size_t i = 0; i < r->n_warning && i < MG_REQUEST_MAX_WARNINGS; i++)
        a->warning[a->n_warning++] = r->warning[i];
    if (r->answer_cache.value && !o->answer_budget)
        a->warning[a->n_warning++] = "answer_cache: this server keeps no answers";
    if (r->similar_cache.value && !(o->answer_budget && o->similar))
        a->warning[a->n_warning++] = "similar_cache: this server looks for no similar pictures";
}

/* What the first choice knows of all: pictures and times. */
static void note_extra(struct ask *a, const struct mg_job_result *r) {
    const struct mg_answer *w = r->answer;
    size_t n = mg_chat_image_count(r->chat);
    if (!a->image && n && (a->image = mg_alloc_zero(n, sizeof *a->image))) {
        a->n_image = n;
        for (size_t i = 0; i < n; i++) mg_chat_image(r->chat, i, &a->image[i].report);
    }
    if (a->timings.total_ms > 0) return;
    note_cache(a, r);
    a->timings =
        timings_of(a, w, w->n_token,
                   w->decode_ms_per_token * (double)(w->n_token ? w->n_token - 1 : 0), r->queue_ms);
}

static struct mg_reply_choice choice_of(const struct choice *c) {
    return (struct mg_reply_choice){.index = c->index,
                                    .text = c->text.data ? (char *)c->text.data : "",
                                    .n_text = c->text.n,
                                    .finish_reason = c->finish_reason,
                                    .stop_detail = c->stop_detail[0] ? c->stop_detail : NULL};
}

static struct mg_reply_usage usage_of(const struct ask *a) {
    struct mg_reply_usage u = a->choice[0].usage;
    for (size_t i = 1; i < a->n_choice; i++)
        u.completion_tokens += a->choice[i].usage.completion_tokens;
    return u;
}

static struct mg_reply_extra extra_of(const struct ask *a) {
    return (struct mg_reply_extra){.image = a->image,
                                   .n_image = a->n_image,
                                   .timings = &a->timings,
                                   .cache = a->cache,
                                   .cache_distance = a->cache_distance,
                                   .warning = a->warning,
                                   .n_warning = a->n_warning};
}

/* All choices are over. */
static void write_whole(struct ask *a) {
    struct mg_reply_choice *list = mg_alloc(a->n_choice, sizeof *list);
    struct mg_reply_token *token[MG_REQUEST_MAX_N] = {0};
    struct mg_reply_usage usage = usage_of(a);
    struct mg_reply_extra extra = extra_of(a);
    bool ok = list != NULL;
    for (size_t i = 0; i < a->n_choice && ok; i++) {
        const struct choice *c = &a->choice[i];
        list[i] = choice_of(c);
        list[i].logprobs = a->common->logprobs;
        list[i].token = token[i] = tokens_of(a->s, c->logprob, c->n_logprob);
        list[i].n_token = token[i] ? c->n_logprob : 0;
        if (a->completion) /* characters before the first token: none, the prompt isn't echoed */
            list[i].text_at = 0;
    }
    a->http = 200;
    if (ok && a->kind == ASK_SOCKET) {
        size_t at = begin_message(a);
        ok = mg_ws_result(&a->out, &a->head, &list[0], &usage, &extra);
        end_message(a, at);
    } else if (ok) {
        ok = mg_reply_write(&a->out, &a->head, list, a->n_choice, &usage, &extra);
    }
    for (size_t i = 0; i < a->n_choice; i++) free(token[i]);
    free(list);
    if (ok) {
        a->finished = true;
        return;
    }
    mg_buf_free(&a->out);
    mg_fault_memory(&a->fault, "reply");
    fail(a);
}

/* The rest of a choice's stream. */
static void write_end(struct ask *a, struct choice *c, const struct mg_job_result *r) {
    struct mg_reply_choice choice = choice_of(c);
    struct mg_reply_extra extra = extra_of(a);
    begin_chunks(a);
    struct mg_reply_token *token = tokens_of(a->s, r->logprob, r->n_logprob);
    if (token) { /* tokens that brought no text */
        struct mg_reply_choice piece = {.index = c->index,
                                        .text = "",
                                        .logprobs = true,
                                        .token = token,
                                        .n_token = r->n_logprob};
        mg_chunk_text(&a->out, &a->head, &piece, NULL);
    }
    free(token);
    mg_chunk_finish(&a->out, &a->head, &choice, &extra);
    if (a->n_over < a->n_choice) return;
    struct mg_reply_usage usage = usage_of(a);
    if (a->common->include_usage) mg_chunk_usage(&a->out, &a->head, &usage);
    mg_chunk_done(&a->out);
    a->finished = true;
}

static bool keep_answer(struct choice *c, const struct mg_job_result *r) {
    const struct mg_answer *w = r->answer;
    snprintf(c->finish_reason, sizeof c->finish_reason, "%s", w->finish_reason);
    snprintf(c->stop_detail, sizeof c->stop_detail, "%s", w->stop_detail ? w->stop_detail : "");
    c->usage = (struct mg_reply_usage){.prompt_tokens = w->prompt_tokens,
                                       .completion_tokens = w->n_token,
                                       .cached_tokens = w->cached_tokens,
                                       .image_tokens = w->image_tokens};
    if (is_stream(c->ask) && c->ask->kind != ASK_SOCKET) return true;
    return !c->lost && mg_buf_add(&c->text, w->text, w->n_text) &&
           keep_logprobs(c, r->logprob, r->n_logprob);
}

static void on_done(void *user, const struct mg_job_result *r) {
    struct choice *c = user;
    struct ask *a = c->ask;
    note_metrics(a, r);
    pthread_mutex_lock(&a->mutex);
    a->n_over++;
    c->over = true;
    if (a->finished) {
        /* another choice has failed, or the server stops */
    } else if (r->status != MG_OK) {
        a->fault.err = *r->err;
        fail(a);
    } else if (!keep_answer(c, r)) {
        mg_fault_memory(&a->fault, "reply");
        fail(a);
    } else {
        note_extra(a, r);
        if (is_stream(a) && a->kind != ASK_SOCKET)
            write_end(a, c, r);
        else if (a->n_over == a->n_choice)
            write_whole(a);
    }
    if (a->finished && a->out.failed) { /* the client sees that the end is missing */
        mg_buf_free(&a->out);
        a->begun = true;
    }
    post(a);
    pthread_mutex_unlock(&a->mutex);
    ask_unref(a);
}

/* --- preparing --- */
static enum mg_status add_picture(struct ask *a, mg_chat *chat, enum mg_chat_role role,
                                  struct mg_chat_part *part, struct mg_err *err) {
    struct mg_image_want want = picture_want(a->s, &part->wish, a->common->fast);
    struct mg_image_source *source = &part->source;
    struct mg_buf file = {.max = a->s->facts.max_image_bytes};
    const void *bytes = source->bytes;
    size_t n = source->n_bytes;
    if (mg_chat_is_cancelled(chat))
        return mg_fail(err, MG_ERR_CANCELLED, "cancelled", "stopped on request");
    if (source->kind == MG_SOURCE_FILE_URL) {
        enum mg_status status = picture_from_media(a->s, source->text, &file, err);
        if (status != MG_OK) return status;
        bytes = file.data;
        n = file.n;
    }
    enum mg_status status = mg_chat_add_image_as(chat, role, bytes, n, &want, err);
    if (status != MG_OK && err && bytes) count_bad_picture(a, bytes, n, err->code);
    mg_buf_free(&file);
    if (a->n_choice == 1) mg_image_source_drop(source); /* its raster has taken its place */
    return status;
}

static enum mg_status add_message(struct ask *a, mg_chat *chat, size_t i, struct mg_err *err) {
    struct mg_chat_message *m = &a->chat->message[i];
    enum mg_status status = mg_chat_begin_turn(chat, m->role, err);
    for (size_t k = 0; k < m->n_part && status == MG_OK; k++) {
        struct mg_chat_part *part = &m->part[k];
        if (part->kind == MG_CHAT_TEXT)
            status = mg_chat_add_text_n(chat, m->role, part->text, part->n_text, err);
        else if (part->kind == MG_CHAT_IMAGE)
            status = add_picture(a, chat, m->role, part, err);
        else
            status = mg_fail(err, MG_ERR_UNSUPPORTED, "unsupported_value",
                             "tool calls are not supported yet");
        if (status != MG_OK && part->kind == MG_CHAT_IMAGE && status != MG_ERR_MEMORY) {
            char where[80];
            snprintf(where, sizeof where, "messages[%zu].content[%zu]", i, k);
            mg_err_prefix(err, "%s", where);
        }
    }
    return status;
}

static enum mg_status prepare_chat(void *user, mg_chat *chat, struct mg_err *err) {
    struct choice *c = user;
    struct ask *a = c->ask;
    if (a->completion)
        return mg_chat_set_raw(chat, a->completion->prompt, a->completion->n_prompt, err);
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < a->chat->n_message && status == MG_OK; i++)
        status = add_message(a, chat, i, err);
    return status;
}

/* --- beginning --- */
/* Those of uploads are theirs. */
static size_t bytes_of(const struct ask *a) {
    if (a->completion) return a->completion->n_prompt;
    size_t n = 0;
    for (size_t i = 0; i < a->chat->n_message; i++)
        for (size_t k = 0; k < a->chat->message[i].n_part; k++) {
            const struct mg_chat_part *part = &a->chat->message[i].part[k];
            n += part->n_text + (part->source.release ? 0 : part->source.n_bytes);
        }
    return n;
}

static enum mg_status submit(struct ask *a, size_t i, size_t bytes, struct mg_err *err) {
    struct choice *c = &a->choice[i];
    const struct mg_request *r = a->common;
    struct mg_job job = {.prepare = prepare_chat,
                         .event = on_event,
                         .done = on_done,
                         .user = c,
                         .answer = c->o,
                         .bias = a->bias,
                         .n_bias = r->n_bias,
                         .logprobs = r->logprobs,
                         .n_top_logprobs = r->top_logprobs,
                         .bytes = i ? 0 : bytes,
                         .no_answer_cache = r->answer_cache.set && !r->answer_cache.value,
                         .similar = !r->similar_cache.value ? 0
                                    : r->similar_least > 0  ? r->similar_least
                                                            : MG_SIMILAR_LEAST,
                         .no_prefix = r->cache_prompt.set && !r->cache_prompt.value};
    memcpy(job.tenant, a->tenant, sizeof job.tenant);
    atomic_fetch_add(&a->refs, 1);
    enum mg_status status =
        mg_scheduler_submit(a->s->scheduler, &job, &c->job, &a->retry_seconds, err);
    if (status != MG_OK) atomic_fetch_sub(&a->refs, 1);
    return status;
}

void ask_begin(struct ask *a) {
    if (a->gone || a->n_fetch) return;
    if (a->fetch_fault.err.status != MG_OK) {
        fail_now(a, &a->fetch_fault);
        return;
    }
    size_t bytes = bytes_of(a);
    for (size_t i = 0; i < a->n_choice; i++) {
        struct mg_fault f = {0};
        if (submit(a, i, bytes, &f.err) == MG_OK) continue;
        fail_now(a, &f); /* cancels the others */
        return;
    }
}

static bool fill_choices(struct ask *a) {
    const struct mg_request *r = a->common;
    uint64_t seed;
    a->n_choice = a->kind == ASK_SOCKET ? 1 : r->n;
    a->choice = mg_alloc_zero(a->n_choice, sizeof *a->choice);
    a->bias = mg_alloc(r->n_bias, sizeof *a->bias);
    if (!a->choice || !a->bias) return false;
    if (a->job[0]) /* another attempt at the job gives the same answer */
        seed = strtoull(a->job + strlen(a->job) - 16, NULL, 16);
    else if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)(mg_clock() * 1e9);
    for (size_t i = 0; i < r->n_bias; i++)
        a->bias[i] = (struct mg_bias){r->bias[i].id, r->bias[i].value};
    for (size_t i = 0; i < a->n_choice; i++) {
        struct choice *c = &a->choice[i];
        c->ask = a;
        c->index = i;
        c->o = a->s->o.answer;
        c->o.seed = seed;
        mg_request_options(r, &c->o);
        if (r->max_tokens_all) c->o.max_tokens = SIZE_MAX;
        c->o.seed += i;
    }
    return true;
}

/* What is the same in each attempt at a queue's job. */
static void note_job(struct ask *a, struct mg_http_exchange *x, int64_t *created) {
    const char *job = server_job(x), *at = mg_http_header(x, "X-Margay-Created");
    size_t n = job ? strlen(job) : 0;
    if (n < 36 || n >= sizeof a->job) return;
    memcpy(a->job, job, n + 1);
    memcpy(strchr(a->id, '-') + 1, job + n - 32, 33);
    if (at) *created = strtoll(at, NULL, 10);
}

struct ask *ask_open(struct mg_server *s, struct mg_http_exchange *x, enum ask_kind kind,
                     struct mg_chat_request *chat, struct mg_completion_request *completion) {
    struct ask *a = calloc(1, sizeof *a);
    if (!a) {
        mg_chat_request_free(chat);
        mg_completion_request_free(completion);
        return NULL;
    }
    a->s = s;
    a->kind = kind;
    a->chat = chat;
    a->completion = completion;
    a->common = chat ? &chat->common : &completion->common;
    a->exchange = mg_http_id(x);
    a->began = mg_clock();
    atomic_init(&a->refs, 1);
    pthread_mutex_init(&a->mutex, NULL);
    server_tenant(s, x, a->tenant);
    snprintf(a->id, sizeof a->id, completion ? "cmpl-" : "chatcmpl-");
    random_digits(a->id + strlen(a->id), 32);
    int64_t created = unix_seconds();
    note_job(a, x, &created);
    a->head = (struct mg_reply_head){.id = a->id,
                                     .created = created,
                                     .model = s->o.alias,
                                     .completion = completion != NULL,
                                     .usage = a->common->include_usage};
    note_warnings(a);
    if (!fill_choices(a)) {
        ask_unref(a);
        return NULL;
    }
    return a;
}

enum mg_status ask_check(struct ask *a, struct mg_fault *f) {
    size_t n_vocab = a->s->facts.n_vocab;
    for (size_t i = 0; i < a->common->n_bias; i++)
        if ((size_t)a->bias[i].id >= n_vocab)
            return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "logit_bias",
                                "logit_bias: there is no token %d, ids are 0 to %zu",
                                (int)a->bias[i].id, n_vocab - 1);
    return pictures_resolve(a, f);
}

/* A request that was read goes on its way. */
static void start(struct mg_http_exchange *x, struct ask *a) {
    struct mg_fault f = {0};
    if (!a) {
        mg_fault_memory(&f, "question");
        reply_fault(x, &f);
        return;
    }
    mg_http_set_user(x, a);
    mg_http_on_end(x, on_end);
    mg_http_on_stop(x, on_stop);
    if (ask_check(a, &f) != MG_OK) {
        fail_now(a, &f);
        ask_cancel(a);
        a->fetch_fault = f; /* pictures that come all the same begin nothing */
        return;
    }
    ask_begin(a);
}

/* --- a full queue --- */
static bool is_refused(struct mg_server *s, const uint8_t *tenant, double *retry_seconds,
                       struct mg_fault *f) {
    return mg_scheduler_would_take(s->scheduler, tenant, retry_seconds, &f->err) != MG_OK;
}

void ask_admit(struct mg_server *s, struct mg_http_exchange *x) {
    uint8_t tenant[MG_TENANT_BYTES];
    struct mg_fault f = {0};
    double seconds;
    const char *length = mg_http_header(x, "content-length");
    if (length && strtoull(length, NULL, 10) <= WORK_SMALL_BYTES) return;
    server_tenant(s, x, tenant);
    if (is_refused(s, tenant, &seconds, &f)) reply_fault_after(x, &f, seconds);
}

static void read_chat(struct work *w) {
    if (is_refused(w->s, w->tenant, &w->retry_seconds, &w->f)) return;
    struct mg_chat_limits limits = {w->s->facts.max_image_bytes, w->s->facts.max_images};
    mg_chat_request_parse((const char *)w->body.data, w->body.n, &limits, &w->chat, &w->f);
}

static void chat_was_read(struct work *w, struct mg_http_exchange *x) {
    struct mg_chat_request *r = w->chat;
    w->chat = NULL;
    if (r)
        start(x, ask_open(w->s, x, ASK_CHAT, r, NULL));
    else
        reply_fault_after(x, &w->f, w->retry_seconds);
}

void route_chat(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, read_chat, chat_was_read);
}

static void read_completion(struct work *w) {
    if (is_refused(w->s, w->tenant, &w->retry_seconds, &w->f)) return;
    mg_completion_request_parse((const char *)w->body.data, w->body.n, &w->completion, &w->f);
}

static void completion_was_read(struct work *w, struct mg_http_exchange *x) {
    struct mg_completion_request *r = w->completion;
    w->completion = NULL;
    if (r)
        start(x, ask_open(w->s, x, ASK_COMPLETION, NULL, r));
    else
        reply_fault_after(x, &w->f, w->retry_seconds);
}

void route_completion(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, read_completion, completion_was_read);
}
