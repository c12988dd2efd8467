/* api/chat_reply.c - see chat_reply.h. Keys stand in the order of OpenAI's own replies, ours behind
 * them. */
#include "api/chat_reply.h"

#include "api/json_write.h"
#include "text/unicode.h"

#include <math.h>
#include <string.h>

#define MS_DECIMALS 3

const char *mg_reply_cache_name(enum mg_reply_cache cache) {
    switch (cache) {
    case MG_CACHE_MISS: return "miss";
    case MG_CACHE_EXACT: return "exact";
    case MG_CACHE_NEAR: return "near";
    default: return NULL;
    }
}

static void write_head(struct mg_jwrite *j, const struct mg_reply_head *head, bool chunk) {
    mg_jwrite_kstr(j, "id", head->id);
    mg_jwrite_kstr(j, "object",
                   head->completion ? "text_completion"
                   : chunk          ? "chat.completion.chunk"
                                    : "chat.completion");
    mg_jwrite_kint(j, "created", head->created);
    mg_jwrite_kstr(j, "model", head->model);
}

static void write_logprob(struct mg_jwrite *j, double logprob) {
    if (isnan(logprob))
        mg_jwrite_null(j);
    else
        mg_jwrite_real(j, (double)(float)fmax(logprob, -9999));
}

static void write_token(struct mg_jwrite *j, const struct mg_reply_token *t, bool with_top) {
    mg_jwrite_open(j, '{');
    mg_jwrite_key(j, "token");
    mg_jwrite_string(j, t->text, t->n_text);
    mg_jwrite_key(j, "logprob");
    write_logprob(j, t->logprob);
    mg_jwrite_key(j, "bytes");
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < t->n_text; i++) mg_jwrite_uint(j, (unsigned char)t->text[i]);
    mg_jwrite_close(j, ']');
    if (with_top) {
        mg_jwrite_key(j, "top_logprobs");
        mg_jwrite_open(j, '[');
        for (size_t i = 0; i < t->n_top; i++) write_token(j, &t->top[i], false);
        mg_jwrite_close(j, ']');
    }
    mg_jwrite_close(j, '}');
}

static size_t count_characters(const struct mg_reply_token *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_text; i++) n += ((unsigned char)t->text[i] & 0xC0) != 0x80;
    return n;
}

/* Two tokens may be spelled alike once what isn't UTF-8 has become U+FFFD; an object must not have
 * a key twice. */
static void write_top_map(struct mg_jwrite *j, const struct mg_reply_token *t) {
    bool nfc;
    mg_jwrite_open(j, '{');
    for (size_t i = 0; i < t->n_top; i++) {
        const struct mg_reply_token *top = &t->top[i];
        if (!mg_utf8_check((const uint8_t *)top->text, top->n_text, &nfc)) continue;
        if (memchr(top->text, 0, top->n_text)) continue;
        bool twice = false;
        for (size_t k = 0; k < i && !twice; k++)
            twice = t->top[k].n_text == top->n_text &&
                    memcmp(t->top[k].text, top->text, top->n_text) == 0;
        if (twice) continue;
        mg_jwrite_key_n(j, top->text, top->n_text);
        write_logprob(j, top->logprob);
    }
    mg_jwrite_close(j, '}');
}

/* The older form, of completions: four lists. */
static void write_completion_logprobs(struct mg_jwrite *j, const struct mg_reply_choice *c) {
    mg_jwrite_open(j, '{');
    mg_jwrite_key(j, "tokens");
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < c->n_token; i++)
        mg_jwrite_string(j, c->token[i].text, c->token[i].n_text);
    mg_jwrite_close(j, ']');
    mg_jwrite_key(j, "token_logprobs");
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < c->n_token; i++) write_logprob(j, c->token[i].logprob);
    mg_jwrite_close(j, ']');
    mg_jwrite_key(j, "top_logprobs");
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < c->n_token; i++) write_top_map(j, &c->token[i]);
    mg_jwrite_close(j, ']');
    mg_jwrite_key(j, "text_offset");
    mg_jwrite_open(j, '[');
    size_t at = c->text_at;
    for (size_t i = 0; i < c->n_token; i++) {
        mg_jwrite_uint(j, at);
        at += count_characters(&c->token[i]);
    }
    mg_jwrite_close(j, ']');
    mg_jwrite_close(j, '}');
}

static void write_logprobs(struct mg_jwrite *j, const struct mg_reply_head *head,
                           const struct mg_reply_choice *c) {
    mg_jwrite_key(j, "logprobs");
    if (!c || !c->logprobs) {
        mg_jwrite_null(j);
    } else if (head->completion) {
        write_completion_logprobs(j, c);
    } else {
        mg_jwrite_open(j, '{');
        mg_jwrite_key(j, "content");
        mg_jwrite_open(j, '[');
        for (size_t i = 0; i < c->n_token; i++) write_token(j, &c->token[i], true);
        mg_jwrite_close(j, ']');
        mg_jwrite_knull(j, "refusal");
        mg_jwrite_close(j, '}');
    }
}

static void write_finish(struct mg_jwrite *j, const struct mg_reply_choice *c) {
    bool cancelled = c->finish_reason && !strcmp(c->finish_reason, "cancelled");
    mg_jwrite_kstr(j, "finish_reason", cancelled ? "stop" : c->finish_reason);
    if (cancelled || c->stop_detail)
        mg_jwrite_kstr(j, "stop_detail", cancelled ? "cancelled" : c->stop_detail);
}

static void write_usage(struct mg_jwrite *j, const struct mg_reply_usage *u) {
    mg_jwrite_key(j, "usage");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "prompt_tokens", u->prompt_tokens);
    mg_jwrite_kuint(j, "completion_tokens", u->completion_tokens);
    mg_jwrite_kuint(j, "total_tokens", u->prompt_tokens + u->completion_tokens);
    mg_jwrite_key(j, "prompt_tokens_details");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "cached_tokens", u->cached_tokens);
    mg_jwrite_kuint(j, "image_tokens", u->image_tokens);
    mg_jwrite_close(j, '}');
    mg_jwrite_close(j, '}');
}

static void write_image(struct mg_jwrite *j, const struct mg_reply_image *image) {
    const struct mg_image_report *r = &image->report;
    mg_jwrite_open(j, '{');
    mg_jwrite_kstr(j, "format", r->format);
    mg_jwrite_kuint(j, "width", r->width);
    mg_jwrite_kuint(j, "height", r->height);
    mg_jwrite_kint(j, "orientation", r->orientation);
    mg_jwrite_kbool(j, "turned", r->orientation > 1);
    mg_jwrite_kuint(j, "frames", r->frames);
    mg_jwrite_kuint(j, "frame_used", image->frame_used);
    mg_jwrite_kbool(j, "alpha", r->alpha);
    mg_jwrite_key(j, "resized");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "width", r->resized_width);
    mg_jwrite_kuint(j, "height", r->resized_height);
    mg_jwrite_close(j, '}');
    mg_jwrite_kuint(j, "tokens", r->tokens);
    mg_jwrite_kuint(j, "cells", r->cells);
    mg_jwrite_kuint(j, "kept", r->kept);
    mg_jwrite_kuint(j, "bytes", r->bytes);
    mg_jwrite_kstr(j, "cache", image->cache ? image->cache : r->cached ? "hit" : "miss");
    mg_jwrite_kfixed(j, "decode_ms", r->decode_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "vision_ms", r->vision_ms, MS_DECIMALS);
    mg_jwrite_close(j, '}');
}

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

static void write_timings(struct mg_jwrite *j, const struct mg_reply_timings *t) {
    mg_jwrite_key(j, "timings");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "cache_n", t->cache_n);
    mg_jwrite_kuint(j, "prompt_n", t->prompt_n);
    mg_jwrite_kfixed(j, "prompt_ms", t->prompt_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "prompt_per_token_ms", ratio(t->prompt_ms, (double)t->prompt_n),
                     MS_DECIMALS);
    mg_jwrite_kfixed(j, "prompt_per_second", ratio(1e3 * (double)t->prompt_n, t->prompt_ms),
                     MS_DECIMALS);
    mg_jwrite_kuint(j, "predicted_n", t->predicted_n);
    mg_jwrite_kfixed(j, "predicted_ms", t->predicted_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "predicted_per_token_ms", ratio(t->predicted_ms, (double)t->predicted_n),
                     MS_DECIMALS);
    mg_jwrite_kfixed(j, "predicted_per_second",
                     ratio(1e3 * (double)t->predicted_n, t->predicted_ms), MS_DECIMALS);
    if (t->drafted) {
        mg_jwrite_kuint(j, "draft_n", t->drafted);
        mg_jwrite_kuint(j, "draft_n_accepted", t->accepted);
    }
    mg_jwrite_kfixed(j, "queue_ms", t->queue_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "image_ms", t->image_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "vision_ms", t->vision_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "first_token_ms", t->first_token_ms, MS_DECIMALS);
    mg_jwrite_kfixed(j, "total_ms", t->total_ms, MS_DECIMALS);
    mg_jwrite_key(j, "drafts");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "passes", t->passes);
    mg_jwrite_kuint(j, "drafted", t->drafted);
    mg_jwrite_kuint(j, "accepted", t->accepted);
    mg_jwrite_close(j, '}');
    mg_jwrite_close(j, '}');
}

static void write_extra(struct mg_jwrite *j, const struct mg_reply_extra *extra) {
    if (!extra) return;
    if (extra->n_image) {
        mg_jwrite_key(j, "images");
        mg_jwrite_open(j, '[');
        for (size_t i = 0; i < extra->n_image; i++) write_image(j, &extra->image[i]);
        mg_jwrite_close(j, ']');
    }
    if (extra->timings) write_timings(j, extra->timings);
    const char *cache = mg_reply_cache_name(extra->cache);
    if (cache) mg_jwrite_kstr(j, "x_cache", cache);
    if (extra->cache == MG_CACHE_NEAR)
        mg_jwrite_kfixed(j, "x_cache_distance", extra->cache_distance, 4);
    if (extra->n_warning) {
        mg_jwrite_key(j, "warnings");
        mg_jwrite_open(j, '[');
        for (size_t i = 0; i < extra->n_warning; i++) mg_jwrite_str(j, extra->warning[i]);
        mg_jwrite_close(j, ']');
    }
}

static void write_choice(struct mg_jwrite *j, const struct mg_reply_head *head,
                         const struct mg_reply_choice *c) {
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "index", c->index);
    if (head->completion) {
        mg_jwrite_key(j, "text");
        mg_jwrite_string(j, c->text, c->n_text);
    } else {
        mg_jwrite_key(j, "message");
        mg_jwrite_open(j, '{');
        mg_jwrite_kstr(j, "role", "assistant");
        mg_jwrite_key(j, "content");
        mg_jwrite_string(j, c->text, c->n_text);
        mg_jwrite_knull(j, "refusal");
        mg_jwrite_close(j, '}');
    }
    write_logprobs(j, head, c);
    write_finish(j, c);
    mg_jwrite_close(j, '}');
}

bool mg_reply_write(struct mg_buf *out, const struct mg_reply_head *head,
                    const struct mg_reply_choice *choice, size_t n_choice,
                    const struct mg_reply_usage *usage, const struct mg_reply_extra *extra) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    write_head(&j, head, false);
    mg_jwrite_key(&j, "choices");
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n_choice; i++) write_choice(&j, head, &choice[i]);
    mg_jwrite_close(&j, ']');
    write_usage(&j, usage);
    write_extra(&j, extra);
    mg_jwrite_close(&j, '}');
    return !out->failed;
}

/* One event, up to the list of choices. */
static struct mg_jwrite open_chunk(struct mg_buf *out, const struct mg_reply_head *head) {
    struct mg_jwrite j = {.out = out};
    mg_buf_add_str(out, "data: ");
    mg_jwrite_open(&j, '{');
    write_head(&j, head, true);
    mg_jwrite_key(&j, "choices");
    mg_jwrite_open(&j, '[');
    return j;
}

static void close_choices(struct mg_jwrite *j, const struct mg_reply_head *head) {
    mg_jwrite_close(j, ']');
    if (head->usage) mg_jwrite_knull(j, "usage");
}

static bool close_chunk(struct mg_jwrite *j) {
    mg_jwrite_close(j, '}');
    mg_buf_add_str(j->out, "\n\n");
    return !j->out->failed;
}

/* A choice of a chunk. role: the first. text NULL: an empty delta. */
static void write_delta(struct mg_jwrite *j, const struct mg_reply_head *head,
                        const struct mg_reply_choice *c, bool role, bool has_text) {
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "index", c->index);
    if (head->completion) {
        mg_jwrite_key(j, "text");
        mg_jwrite_string(j, has_text ? c->text : "", has_text ? c->n_text : 0);
    } else {
        mg_jwrite_key(j, "delta");
        mg_jwrite_open(j, '{');
        if (role) mg_jwrite_kstr(j, "role", "assistant");
        if (role || has_text) {
            mg_jwrite_key(j, "content");
            mg_jwrite_string(j, has_text ? c->text : "", has_text ? c->n_text : 0);
        }
        mg_jwrite_close(j, '}');
    }
    write_logprobs(j, head, has_text ? c : NULL);
    write_finish(j, c);
    mg_jwrite_close(j, '}');
}

bool mg_chunk_begin(struct mg_buf *out, const struct mg_reply_head *head, size_t index) {
    struct mg_jwrite j = open_chunk(out, head);
    const struct mg_reply_choice c = {.index = index};
    write_delta(&j, head, &c, true, false);
    close_choices(&j, head);
    return close_chunk(&j);
}

static void write_progress(struct mg_jwrite *j, const struct mg_reply_progress *p, bool tokens) {
    if (tokens) {
        mg_jwrite_kuint(j, "total", p->total);
        mg_jwrite_kuint(j, "cache", p->cache);
        mg_jwrite_kuint(j, "processed", p->processed);
        mg_jwrite_kfixed(j, "time_ms", p->time_ms, MS_DECIMALS);
    }
    mg_jwrite_kstr(j, "stage", p->stage);
    if (p->of) {
        mg_jwrite_kuint(j, "step", p->step);
        mg_jwrite_kuint(j, tokens ? "of" : "total", p->of);
    }
    if (p->queue_position) mg_jwrite_kuint(j, "queue_position", p->queue_position);
    if (p->estimate_ms >= 0) mg_jwrite_kfixed(j, "estimate_ms", p->estimate_ms, 0);
}

bool mg_chunk_progress(struct mg_buf *out, const struct mg_reply_head *head,
                       const struct mg_reply_progress *progress) {
    struct mg_jwrite j = open_chunk(out, head);
    const struct mg_reply_choice c = {0};
    write_delta(&j, head, &c, false, false);
    close_choices(&j, head);
    mg_jwrite_key(&j, "prompt_progress");
    mg_jwrite_open(&j, '{');
    write_progress(&j, progress, true);
    mg_jwrite_close(&j, '}');
    return close_chunk(&j);
}

bool mg_chunk_text(struct mg_buf *out, const struct mg_reply_head *head,
                   const struct mg_reply_choice *piece, const struct mg_reply_timings *timings) {
    struct mg_jwrite j = open_chunk(out, head);
    struct mg_reply_choice c = *piece;
    c.finish_reason = c.stop_detail = NULL;
    write_delta(&j, head, &c, false, true);
    close_choices(&j, head);
    if (timings) write_timings(&j, timings);
    return close_chunk(&j);
}

bool mg_chunk_finish(struct mg_buf *out, const struct mg_reply_head *head,
                     const struct mg_reply_choice *choice, const struct mg_reply_extra *extra) {
    struct mg_jwrite j = open_chunk(out, head);
    write_delta(&j, head, choice, false, false);
    close_choices(&j, head);
    write_extra(&j, extra);
    return close_chunk(&j);
}

bool mg_chunk_usage(struct mg_buf *out, const struct mg_reply_head *head,
                    const struct mg_reply_usage *usage) {
    struct mg_jwrite j = open_chunk(out, head);
    mg_jwrite_close(&j, ']');
    write_usage(&j, usage);
    return close_chunk(&j);
}

bool mg_chunk_done(struct mg_buf *out) {
    return mg_buf_add_str(out, "data: [DONE]\n\n");
}
bool mg_chunk_ping(struct mg_buf *out) {
    return mg_buf_add_str(out, ":\n\n");
}

bool mg_chunk_error(struct mg_buf *out, const struct mg_fault *f) {
    mg_buf_add_str(out, "data: ");
    mg_fault_write(f, out);
    return mg_buf_add_str(out, "\n\n");
}

static struct mg_jwrite open_message(struct mg_buf *out, const char *type, const char *id) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "type", type);
    if (id) mg_jwrite_kstr(&j, "id", id);
    return j;
}

static bool close_message(struct mg_jwrite *j) {
    mg_jwrite_close(j, '}');
    return !j->out->failed;
}

bool mg_ws_progress(struct mg_buf *out, const char *id, const struct mg_reply_progress *progress) {
    struct mg_jwrite j = open_message(out, "progress", id);
    write_progress(&j, progress, false);
    return close_message(&j);
}

bool mg_ws_token(struct mg_buf *out, const char *id, const char *text, size_t n) {
    struct mg_jwrite j = open_message(out, "token", id);
    mg_jwrite_key(&j, "text");
    mg_jwrite_string(&j, text, n);
    return close_message(&j);
}

bool mg_ws_result(struct mg_buf *out, const struct mg_reply_head *head,
                  const struct mg_reply_choice *choice, const struct mg_reply_usage *usage,
                  const struct mg_reply_extra *extra) {
    struct mg_jwrite j = open_message(out, "result", head->id);
    mg_jwrite_kint(&j, "created", head->created);
    mg_jwrite_kstr(&j, "model", head->model);
    mg_jwrite_key(&j, "text");
    mg_jwrite_string(&j, choice->text, choice->n_text);
    write_finish(&j, choice);
    if (choice->logprobs) write_logprobs(&j, head, choice);
    write_usage(&j, usage);
    write_extra(&j, extra);
    return close_message(&j);
}

bool mg_ws_error(struct mg_buf *out, const char *id, const struct mg_fault *f) {
    struct mg_jwrite j = open_message(out, "error", id);
    mg_jwrite_key(&j, "error");
    mg_fault_object(f, &j);
    return close_message(&j);
}
