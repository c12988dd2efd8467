/* engine/answer.c - generating one answer: look at new pictures, read new tokens, then token by
 * token.
 *
 * What is already in the conversation's keys and values is compared by identity (token id, or
 * picture and place in it) and only the rest is read. The last prompt token is always computed,
 * since its logits are needed.
 */
#include "engine/internal.h"

#include "engine/loop.h"
#include "engine/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PADDING_IDS 1024

void mg_answer_options_init(struct mg_answer_options *o) {
    *o = (struct mg_answer_options){.max_tokens = 512, .top_p = 1, .repetition_penalty = 1};
}

void mg_answer_options_model(const mg_engine *engine, struct mg_answer_options *o) {
    const struct mg_generation_config *g = &engine->model->config.generation;
    mg_answer_options_init(o);
    o->repetition_penalty = g->repetition_penalty;
    if (!g->do_sample) return;
    o->temperature = g->temperature;
    o->top_k = g->top_k;
    o->top_p = g->top_p;
}

enum mg_status mg_chat_prefill(struct mg_chat *chat, const struct layout *l, size_t from,
                               mg_progress_fn *progress, void *user, struct mg_err *err) {
    mg_engine *e = chat->engine;
    for (size_t at = from; at < l->n;) {
        if (progress && !progress(user, at, l->n))
            return mg_fail(err, MG_ERR_CANCELLED, "cancelled", "stopped on request");
        size_t m = mg_min_size(e->options.prefill_chunk, l->n - at);
        for (size_t i = 0; i < m; i++) e->row[i] = mg_layout_row(chat, l, at + i);
        struct mg_span span = {&chat->kv, m};
        enum mg_status status =
            mg_decoder_pass(e->model, &e->compute, &e->work, &span, 1, e->row, m, err);
        if (status != MG_OK) return status;
        for (size_t i = 0; i < m; i++) chat->kv_id[at + i] = mg_layout_identity(l, at + i);
        at += m;
    }
    chat->next_pos = l->next_pos;
    return MG_OK;
}

enum mg_status mg_chat_feed(struct mg_chat *chat, const int32_t *id, size_t n, int32_t pos,
                            struct mg_err *err) {
    mg_engine *e = chat->engine;
    struct mg_span span = {&chat->kv, n};
    for (size_t i = 0; i < n; i++) {
        int32_t at = pos + (int32_t)i;
        e->row[i] = (struct mg_row){.id = id[i], .pos = {at, at, at}};
    }
    enum mg_status status =
        mg_decoder_pass(e->model, &e->compute, &e->work, &span, 1, e->row, n, err);
    for (size_t i = 0; i < n && status == MG_OK; i++) chat->kv_id[chat->kv.n - n + i] = id[i];
    if (status == MG_OK) chat->next_pos = pos + (int32_t)n;
    return status;
}

enum mg_status mg_chat_step(struct mg_chat *chat, int32_t id, int32_t pos, struct mg_err *err) {
    return mg_chat_feed(chat, &id, 1, pos, err);
}

/* Ids that can come out: all, but for the padding behind the tokenizer's that a vocabulary's size
 * is rounded up with. */
static size_t useful_ids(const mg_engine *e) {
    size_t all = e->model->config.text.n_vocab, n = mg_tokenizer_n(e->tokenizer);
    return e->model->packed && all - n <= MAX_PADDING_IDS ? n : all;
}

enum mg_status mg_chat_top(struct mg_chat *chat, size_t n, int32_t *id, struct mg_err *err) {
    mg_engine *e = chat->engine;
    enum mg_status status = mg_decoder_top(e->model, &e->compute, &e->work, e->work.last + 1 - n, n,
                                           useful_ids(e), e->logits, id, err);
    for (size_t i = 0; i < n && status == MG_OK; i++)
        if (id[i] < 0)
            status = mg_fail(err, MG_ERR_NUMERIC, "logits_not_finite",
                             "the model gave a logit that is not a finite number");
    return status;
}

enum mg_status mg_chat_logits(struct mg_chat *chat, struct mg_err *err) {
    mg_engine *e = chat->engine;
    size_t last = e->work.last;
    enum mg_status status =
        mg_decoder_logits(e->model, &e->compute, &e->work, last, e->logits, err);
    if (status != MG_OK) return status;
    if (!e->kernels.all_finite(e->logits, e->model->config.text.n_vocab))
        return mg_fail(err, MG_ERR_NUMERIC, "logits_not_finite",
                       "the model gave logits that are not finite");
    return MG_OK;
}

/* One answer while it is being made. */
struct run {
    mg_chat *chat;
    const struct mg_answer_options *o;
    mg_event_fn *event;
    void *user;
    struct mg_answer *answer;
    struct layout layout;
    struct mg_stop *stop;
    struct mg_loop loop;
    struct mg_detok detok;
    struct mg_buf whole, ready; /* scratch: whole characters, releasable text */
    enum mg_stage stage;
    size_t stage_done;
    size_t picture, n_picture; /* vision: which of how many new ones */
    bool stopped;              /* the caller's event said so */
    bool plain;       /* greedy without penalties: the likeliest token is all that matters */
    size_t max_draft; /* tokens to guess at most; 0: no drafts */
    int32_t ahead[MG_MAX_TOP]; /* tokens that are decided, but not said yet */
    size_t n_ahead, next_ahead;
};

/* Asked between layers: the cancel flag only, so that it costs nothing; vision also reports
 * progress. */
static bool tick(void *user, size_t done, size_t total) {
    struct run *r = user;
    if (r->stopped || atomic_load_explicit(&r->chat->cancel, memory_order_relaxed)) return false;
    if (r->stage != MG_STAGE_VISION || !r->event) return true;
    struct mg_event e = {.kind = MG_EVENT_STAGE,
                         .stage = MG_STAGE_VISION,
                         .done = r->picture * total + done,
                         .total = r->n_picture * total,
                         .token = -1};
    if (e.done == r->stage_done && done) return true;
    r->stage_done = e.done;
    if (!r->event(r->user, &e)) r->stopped = true;
    return !r->stopped;
}

static bool report_prefill(void *user, size_t done, size_t total) {
    struct run *r = user;
    struct mg_event e = {
        .kind = MG_EVENT_STAGE, .stage = r->stage, .done = done, .total = total, .token = -1};
    if (r->event && !r->event(r->user, &e)) r->stopped = true;
    return !r->stopped;
}

/* Tokens at the front of the prompt whose keys and values are already there. */
static size_t cached_prefix(const struct run *r) {
    size_t n = 0, most = mg_min_size(r->chat->kv.n, r->layout.n - 1);
    while (n < most && r->chat->kv_id[n] == mg_layout_identity(&r->layout, n)) n++;
    return n;
}

static enum mg_status check_context(const struct run *r, struct mg_err *err) {
    size_t context = r->chat->engine->options.context;
    if (r->layout.n < context) return MG_OK;
    return mg_fail(
        err, MG_ERR_CONTEXT, "context_length_exceeded",
        "the prompt has %zu tokens (%zu of them from pictures), the context holds %zu including "
        "the answer",
        r->layout.n, r->layout.n_image_token, context);
}

static enum mg_status look(struct run *r, struct mg_err *err) {
    mg_chat *chat = r->chat;
    double start = mg_clock();
    r->stage = MG_STAGE_VISION;
    for (size_t i = 0; i < chat->n_image; i++) r->n_picture += !chat->image[i].picture.row;
    for (size_t i = 0; i < chat->n_image; i++) {
        struct chat_image *image = &chat->image[i];
        bool is_new = !image->picture.row;
        if (!image->counted) r->answer->image_ms += image->report.decode_ms;
        image->counted = true;
        enum mg_status status = mg_chat_encode(chat, i, NULL, err);
        if (status != MG_OK) {
            mg_err_prefix(err, "picture %zu", i + 1);
            return status;
        }
        r->picture += is_new;
    }
    r->answer->vision_ms = (mg_clock() - start) * 1e3;
    return MG_OK;
}

/* The token after the prompt is decided with it. */
static enum mg_status first_token(struct run *r, struct mg_err *err) {
    mg_engine *e = r->chat->engine;
    r->n_ahead = 1;
    if (r->plain) return mg_chat_top(r->chat, 1, r->ahead, err);
    enum mg_status status = mg_chat_logits(r->chat, err);
    return status == MG_OK ? mg_sampler_pick(e->sampler, e->logits, r->ahead, err) : status;
}

static enum mg_status read_prompt(struct run *r, size_t cached, struct mg_err *err) {
    double start = mg_clock();
    r->stage = MG_STAGE_PREFILL;
    mg_kv_cut(&r->chat->kv, cached);
    enum mg_status status = mg_chat_prefill(r->chat, &r->layout, cached, report_prefill, r, err);
    if (status == MG_OK) status = first_token(r, err);
    r->answer->prefill_ms = (mg_clock() - start) * 1e3;
    return status;
}

/* Hands out what may be shown. false: out of memory. */
static bool release(struct run *r, int32_t token) {
    if (r->ready.failed || !mg_buf_add(&r->chat->answer_text, r->ready.data, r->ready.n))
        return false;
    if (r->ready.n && r->event && !r->stopped) { /* who has said stop is left alone */
        struct mg_event e = {.kind = MG_EVENT_TEXT,
                             .stage = MG_STAGE_DECODE,
                             .text = (char *)r->ready.data,
                             .n_text = r->ready.n,
                             .token = token,
                             .done = r->chat->answer_ids.n,
                             .total = r->o->max_tokens};
        if (!r->event(r->user, &e)) r->stopped = true;
    }
    r->ready.n = 0;
    return true;
}

/* Takes in a token's text; *stopped when a stop string is complete. false: out of memory. */
static bool add_text(struct run *r, int32_t token, bool *stopped) {
    const struct mg_tokenizer *tok = r->chat->engine->tokenizer;
    struct mg_slice piece = {0};
    if (!mg_tokenizer_is_special(tok, token)) piece = mg_tokenizer_piece(tok, token);
    r->whole.n = 0;
    if (!mg_detok_add(&r->detok, piece, &r->whole)) return false;
    if (!mg_stop_add(r->stop, r->whole.data, r->whole.n, &r->ready, stopped)) return false;
    return release(r, token);
}

static bool is_end(const struct run *r, int32_t token) {
    const struct mg_generation_config *g = &r->chat->engine->model->config.generation;
    for (size_t i = 0; i < g->n_end_token; i++)
        if (g->end_token[i] == token) return !r->o->ignore_end;
    return false;
}

static void finish(struct run *r, const char *reason, const char *detail) {
    r->answer->finish_reason = reason;
    r->answer->stop_detail = detail;
}

/* A draft ends before a token that has no business in an answer. */
static size_t draft(struct run *r, int32_t *out, size_t most) {
    size_t n = mg_draft_propose(&r->chat->engine->draft, out, most);
    for (size_t i = 0; i < n; i++)
        if (mg_tokenizer_is_special(r->chat->engine->tokenizer, out[i])) return i;
    return n;
}

/* Computes on from `token`, which was just said as the answer's n-th: the next token and, as far as
 * a draft was right, those after it. */
static enum mg_status step(struct run *r, int32_t token, size_t left, struct mg_err *err) {
    mg_chat *chat = r->chat;
    mg_engine *e = chat->engine;
    int32_t pos = r->layout.next_pos + (int32_t)chat->answer_ids.n - 1, feed[MG_MAX_TOP];
    size_t before = chat->kv.n, n = 0, right = 0;
    feed[0] = token;
    if (r->max_draft && left > 1) n = draft(r, feed + 1, mg_min_size(r->max_draft, left - 1));
    enum mg_status status = mg_chat_feed(chat, feed, n + 1, pos, err);
    r->next_ahead = 0;
    r->n_ahead = 1;
    r->answer->passes++;
    if (status != MG_OK) return status;
    if (!r->plain) {
        status = mg_chat_logits(chat, err);
        return status == MG_OK ? mg_sampler_pick(e->sampler, e->logits, r->ahead, err) : status;
    }
    status = mg_chat_top(chat, n + 1, r->ahead, err);
    if (status != MG_OK) return status;
    while (right < n && r->ahead[right] == feed[right + 1]) right++;
    mg_draft_learn(&e->draft, n, right);
    r->n_ahead = right + 1;
    chat->kv.n = before + 1 + right; /* wrong guesses are written over */
    chat->next_pos = pos + 1 + (int32_t)right;
    r->answer->drafted_tokens += n;
    r->answer->accepted_tokens += right;
    return MG_OK;
}

/* An answer that ends within an accepted draft leaves the conversation as it would be without
 * drafts: the rest of the draft was never said. */
static void forget_unsaid(struct run *r) {
    size_t n = r->n_ahead - r->next_ahead;
    r->chat->kv.n -= n;
    r->chat->next_pos -= (int32_t)n;
}

/* The answer's tokens; the first one is decided. */
static enum mg_status generate(struct run *r, struct mg_err *err) {
    mg_chat *chat = r->chat;
    mg_engine *e = chat->engine;
    size_t room = e->options.context - r->layout.n, most = mg_min_size(r->o->max_tokens, room);
    finish(r, "length", NULL);
    while (chat->answer_ids.n < most) {
        int32_t token = r->ahead[r->next_ahead++];
        if (is_end(r, token)) {
            finish(r, "stop", "end_token");
            return MG_OK;
        }
        bool stopped = false;
        if (!mg_ids_add(&chat->answer_ids, token) || !add_text(r, token, &stopped) ||
            (r->max_draft && !mg_draft_say(&e->draft, token)))
            return mg_fail_memory(err, "answer");
        if (stopped) {
            forget_unsaid(r);
            finish(r, "stop", "stop_string");
            return MG_OK;
        }
        unsigned flags = mg_loop_flags(mg_tokenizer_piece(e->tokenizer, token));
        if (!r->o->no_loop_check && mg_loop_add(&r->loop, token, flags)) {
            forget_unsaid(r);
            finish(r, "stop", "repetition");
            return MG_OK;
        }
        size_t left = most - chat->answer_ids.n;
        if (left == 0 || r->next_ahead < r->n_ahead) continue;
        enum mg_status status = step(r, token, left, err);
        if (status != MG_OK) return status;
    }
    return MG_OK;
}

/* Drafts pay where a pass waits for memory: not in the reference kernels. */
static size_t most_drafts(const struct run *r) {
    const mg_engine *e = r->chat->engine;
    /* A packed file may hold plain bf16 matrices: of those, products of up to 8 rows are alike. */
    size_t most = mg_linear_is_packed(&e->model->head) ? MG_MAX_TOP - 1 : 7;
    if (!r->plain || r->o->draft < 0 || e->features.tier == MG_TIER_REF) return 0;
    return r->o->draft ? mg_min_size((size_t)r->o->draft, most) : mg_min_size(8, most);
}

static enum mg_status open_run(struct run *r, struct mg_err *err) {
    mg_engine *e = r->chat->engine;
    enum mg_status status = mg_sampler_start(e->sampler, r->o, err);
    if (status == MG_OK) status = mg_stop_open(r->o->stop, r->o->n_stop, &r->stop, err);
    if (status == MG_OK && r->chat->n_turn == 0)
        status = mg_fail(err, MG_ERR_ARGUMENT, "", "nothing to answer: the conversation is empty");
    if (status == MG_OK) status = mg_layout_make(r->chat, &r->layout, err);
    if (status == MG_OK) status = check_context(r, err);
    if (status != MG_OK) return status;
    const struct mg_answer_options *o = r->o;
    mg_sampler_prompt(e->sampler, r->layout.prompt.ids.id, r->layout.n);
    r->plain = o->temperature < 1e-5f && o->repetition_penalty == 1 && o->presence_penalty == 0 &&
               o->frequency_penalty == 0;
    r->max_draft = most_drafts(r);
    if (r->max_draft && !mg_draft_begin(&e->draft, r->layout.prompt.ids.id, r->layout.n))
        status = mg_fail_memory(err, "draft");
    return status;
}

static void close_run(struct run *r) {
    mg_stop_close(r->stop);
    mg_layout_free(&r->layout);
    mg_buf_free(&r->whole);
    mg_buf_free(&r->ready);
}

/* The end of a text that was held back: part of a character, the beginning of a stop string. */
static bool flush_text(struct run *r) {
    bool stopped = false;
    r->whole.n = 0;
    if (!mg_detok_flush(&r->detok, &r->whole)) return false;
    if (!mg_stop_add(r->stop, r->whole.data, r->whole.n, &r->ready, &stopped)) return false;
    if (!stopped && !mg_stop_flush(r->stop, &r->ready)) return false;
    return release(r, -1);
}

static enum mg_status run_answer(struct run *r, double start, struct mg_err *err) {
    enum mg_status status = open_run(r, err);
    if (status != MG_OK) return status;
    struct mg_answer *a = r->answer;
    mg_chat *chat = r->chat;
    a->prompt_tokens = r->layout.n;
    a->image_tokens = r->layout.n_image_token;
    a->cached_tokens = cached_prefix(r);
    status = look(r, err);
    if (status == MG_OK) status = read_prompt(r, a->cached_tokens, err);
    if (status != MG_OK) return status;
    r->stage = MG_STAGE_DECODE;
    double decode = mg_clock();
    a->first_token_ms = (decode - start) * 1e3 + a->image_ms;
    status = generate(r, err);
    size_t n = chat->answer_ids.n;
    if (n > 1) a->decode_ms_per_token = (mg_clock() - decode) * 1e3 / (double)(n - 1);
    if (status == MG_ERR_CANCELLED) { /* what was said stays said */
        mg_err_clear(err);
        finish(r, "cancelled", NULL);
        status = MG_OK;
    }
    if (status != MG_OK) return status;
    bool cut = a->stop_detail && strcmp(a->stop_detail, "stop_string") == 0;
    if (!cut && !flush_text(r)) return mg_fail_memory(err, "answer");
    a->text = chat->answer_text.data ? (char *)chat->answer_text.data : "";
    a->n_text = chat->answer_text.n;
    a->token = chat->answer_ids.id;
    a->n_token = n;
    a->total_ms = (mg_clock() - start) * 1e3 + a->image_ms;
    return mg_chat_add_part(chat, MG_ASSISTANT, true, a->text, a->n_text, NULL, err);
}

enum mg_status mg_chat_answer(mg_chat *chat, const struct mg_answer_options *options,
                              mg_event_fn *event, void *user, struct mg_answer *out,
                              struct mg_err *err) {
    struct mg_answer_options defaults;
    struct mg_answer answer = {0};
    mg_answer_options_init(&defaults);
    struct run r = {.chat = chat,
                    .o = options ? options : &defaults,
                    .event = event,
                    .user = user,
                    .answer = &answer};
    chat->answer_text.n = 0;
    chat->answer_text.failed = false; /* an earlier answer may have run out of memory */
    chat->answer_ids.n = 0;
    chat->engine->compute.tick = tick;
    chat->engine->compute.tick_user = &r;
    enum mg_status status = run_answer(&r, mg_clock(), err);
    chat->engine->compute.tick = NULL;
    atomic_store(&chat->cancel, false);
    close_run(&r);
    if (out) *out = answer;
    return status;
}
