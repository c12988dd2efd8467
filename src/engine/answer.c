/* engine/answer.c - one answer alone (run.h), and the model's passes for one conversation.
 */
#include "engine/run.h"

#include <math.h>

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

size_t mg_engine_useful_ids(const mg_engine *e) {
    size_t all = e->model->config.text.n_vocab, n = mg_tokenizer_n(e->tokenizer);
    return e->model->packed && all - n <= MAX_PADDING_IDS ? n : all;
}

enum mg_status mg_chat_top(struct mg_chat *chat, size_t n, int32_t *id, struct mg_err *err) {
    mg_engine *e = chat->engine;
    enum mg_status status = mg_decoder_top(e->model, &e->compute, &e->work, e->work.last + 1 - n, n,
                                           mg_engine_useful_ids(e), e->logits, id, err);
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

static bool tick(void *user, size_t done, size_t total) {
    return mg_run_tick(user, done, total);
}

/* The next tokens of the rows that were passed last. */
static enum mg_status choose(struct mg_run *r, int32_t *id, struct mg_err *err) {
    mg_engine *e = r->chat->engine;
    if (r->plain) return mg_chat_top(r->chat, mg_run_wanted(r), id, err);
    enum mg_status status = mg_chat_logits(r->chat, err);
    return status == MG_OK ? mg_sampler_pick(r->sampler, e->logits, id, err) : status;
}

static enum mg_status run_answer(struct mg_run *r, struct mg_err *err) {
    mg_engine *e = r->chat->engine;
    enum mg_status status = mg_run_look(r, err);
    while (status == MG_OK && !r->over) {
        int32_t id[MG_MAX_TOP];
        struct mg_span span = {.kv = &r->chat->kv};
        span.n = mg_run_fill(r, e->row, e->options.prefill_chunk, MG_MAX_TOP);
        if (r->stopped) return mg_fail(err, MG_ERR_CANCELLED, "cancelled", "stopped on request");
        status = mg_decoder_pass(e->model, &e->compute, &e->work, &span, 1, e->row, span.n, err);
        if (status != MG_OK) break;
        mg_run_passed(r);
        if (!mg_run_wanted(r)) continue;
        status = choose(r, id, err);
        if (status == MG_OK) status = mg_run_decide(r, id, err);
    }
    return status;
}

enum mg_status mg_chat_answer(mg_chat *chat, const struct mg_answer_options *options,
                              mg_event_fn *event, void *user, struct mg_answer *out,
                              struct mg_err *err) {
    struct mg_answer_options defaults;
    mg_answer_options_init(&defaults);
    struct mg_engine *e = chat->engine;
    struct mg_run r = {.chat = chat,
                       .o = options ? options : &defaults,
                       .event = event,
                       .user = user,
                       .sampler = e->sampler,
                       .draft = &e->draft};
    e->compute.tick = tick;
    e->compute.tick_user = &r;
    enum mg_status status = mg_run_open(&r, err);
    if (status == MG_OK) status = mg_run_finish(&r, run_answer(&r, err), true, err);
    e->compute.tick = NULL;
    atomic_store(&chat->cancel, false);
    mg_run_close(&r);
    if (out) *out = r.answer;
    return status;
}
