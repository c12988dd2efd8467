/* engine/run.c - see run.h. */
#include "engine/run.h"

#include <string.h>

/* Tells of progress; false once the caller has said stop. */
static bool report_stage(struct mg_run *r, size_t done, size_t total) {
    struct mg_event e = {
        .kind = MG_EVENT_STAGE, .stage = r->stage, .done = done, .total = total, .token = -1};
    r->stage_done = done;
    if (r->event && !r->stopped && !r->event(r->user, &e)) r->stopped = true;
    return !r->stopped;
}

bool mg_run_is_stopped(const struct mg_run *r) {
    return r->stopped || mg_chat_is_cancelled(r->chat);
}

bool mg_run_tick(struct mg_run *r, size_t done, size_t total) {
    if (mg_run_is_stopped(r)) return false;
    size_t all = r->picture * total + done;
    if (r->stage != MG_STAGE_VISION || (all == r->stage_done && done)) return true;
    return report_stage(r, all, r->n_picture * total);
}

static enum mg_status check_context(const struct mg_run *r, struct mg_err *err) {
    size_t context = r->chat->engine->options.context;
    if (r->layout.n < context) return MG_OK;
    return mg_fail(
        err, MG_ERR_CONTEXT, "context_length_exceeded",
        "the prompt has %zu tokens (%zu of them from pictures), the context holds %zu including "
        "the answer",
        r->layout.n, r->layout.n_image_token, context);
}

/* Tokens at the front of the prompt whose keys and values are already there. */
static size_t cached_prefix(const struct mg_run *r) {
    size_t n = 0, most = mg_min_size(r->chat->kv.n, r->layout.n - 1);
    while (n < most && r->chat->kv_id[n] == mg_layout_identity(&r->layout, n)) n++;
    return n;
}

/* Drafts pay where a pass waits for memory: not in the reference kernels. */
static size_t most_drafts(const struct mg_run *r) {
    const mg_engine *e = r->chat->engine;
    /* A packed file may hold plain bf16 matrices: of those, products of up to 8 rows are alike. */
    size_t most = mg_linear_is_packed(&e->model->head) ? MG_MAX_TOP - 1 : 7;
    if (!r->draft || !r->plain || r->o->draft < 0 || e->features.tier == MG_TIER_REF) return 0;
    return r->o->draft ? mg_min_size((size_t)r->o->draft, most) : mg_min_size(8, most);
}

bool mg_run_needs_look(const struct mg_run *r, size_t i) {
    const struct chat_image *image = &r->chat->image[i];
    return !image->picture.row && r->layout.prompt.image_at[i] + image->n_token > r->read;
}

void mg_run_count_pictures(struct mg_run *r) {
    r->n_picture = 0;
    for (size_t i = 0; i < r->chat->n_image; i++) r->n_picture += mg_run_needs_look(r, i);
}

enum mg_status mg_run_open(struct mg_run *r, struct mg_err *err) {
    mg_chat *chat = r->chat;
    r->start = r->stage_start = mg_clock();
    chat->answer_text.n = 0;
    chat->answer_text.failed = false; /* an earlier answer may have run out of memory */
    chat->answer_ids.n = 0;
    enum mg_status status = mg_sampler_start(r->sampler, r->o, err);
    if (status == MG_OK) status = mg_stop_open(r->o->stop, r->o->n_stop, &r->stop, err);
    if (status == MG_OK && chat->n_turn == 0)
        status = mg_fail(err, MG_ERR_ARGUMENT, "", "nothing to answer: the conversation is empty");
    if (status == MG_OK) status = mg_layout_make(chat, &r->layout, err);
    if (status == MG_OK) status = check_context(r, err);
    if (status != MG_OK) return status;
    const struct mg_answer_options *o = r->o;
    mg_sampler_prompt(r->sampler, r->layout.prompt.ids.id, r->layout.n);
    r->plain = !r->all_logits && o->temperature < 1e-5f && o->repetition_penalty == 1 &&
               o->presence_penalty == 0 && o->frequency_penalty == 0;
    r->max_draft = most_drafts(r);
    if (r->max_draft && !mg_draft_begin(r->draft, r->layout.prompt.ids.id, r->layout.n))
        return mg_fail_memory(err, "draft");
    r->most = mg_min_size(o->max_tokens, chat->engine->options.context - r->layout.n);
    if (r->prefixes) mg_prefix_use(r->prefixes, chat, &r->layout);
    r->read = cached_prefix(r);
    r->answer.prompt_tokens = r->layout.n;
    r->answer.image_tokens = r->layout.n_image_token;
    r->answer.cached_tokens = r->read;
    r->stage = MG_STAGE_VISION;
    mg_run_count_pictures(r);
    return MG_OK;
}

/* Until the first row is filled the conversation's keys and values stay as they were. */
static void begin_reading(struct mg_run *r) {
    mg_kv_cut(&r->chat->kv, r->read);
    r->stage = MG_STAGE_PREFILL;
    r->stage_start = mg_clock();
}

enum mg_status mg_run_look(struct mg_run *r, struct mg_err *err) {
    mg_chat *chat = r->chat;
    double start = mg_clock();
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < chat->n_image && status == MG_OK; i++) {
        struct chat_image *image = &chat->image[i];
        bool is_new = mg_run_needs_look(r, i), counted = image->counted;
        if (!counted) r->answer.image_ms += image->report.decode_ms;
        image->counted = true;
        if (is_new)
            status = mg_chat_encode(chat, i, NULL, err);
        else
            image->report.cached = true, image->report.vision_ms = 0;
        if (!is_new && !counted && chat->engine->feature_cache)
            mg_feature_skipped(chat->engine->feature_cache);
        if (status != MG_OK) mg_err_prefix(err, "picture %zu", i + 1);
        r->picture += is_new;
    }
    r->answer.vision_ms += (mg_clock() - start) * 1e3;
    return status;
}

/* A draft ends before a token that has no business in an answer. */
static size_t guess(struct mg_run *r, int32_t *out, size_t most) {
    size_t n = mg_draft_propose(r->draft, out, most);
    for (size_t i = 0; i < n; i++)
        if (mg_tokenizer_is_special(r->chat->engine->tokenizer, out[i])) return i;
    return n;
}

size_t mg_run_fill(struct mg_run *r, struct mg_row *row, size_t room, size_t guesses) {
    mg_chat *chat = r->chat;
    if (r->stage == MG_STAGE_VISION) begin_reading(r);
    r->guessed = 0;
    if (r->stage == MG_STAGE_PREFILL) {
        report_stage(r, r->read, r->layout.n);
        r->fed = mg_min_size(room, r->layout.n - r->read);
        for (size_t i = 0; i < r->fed; i++) row[i] = mg_layout_row(chat, &r->layout, r->read + i);
        return r->fed;
    }
    size_t said = chat->answer_ids.n, left = r->most - said;
    r->feed[0] = chat->answer_ids.id[said - 1];
    guesses = mg_min_size(mg_min_size(guesses, room - 1), mg_min_size(r->max_draft, left - 1));
    if (guesses) r->guessed = guess(r, r->feed + 1, guesses);
    r->fed = 1 + r->guessed;
    for (size_t i = 0; i < r->fed; i++) {
        int32_t at = r->layout.next_pos + (int32_t)(said - 1 + i);
        row[i] = (struct mg_row){.id = r->feed[i], .pos = {at, at, at}};
    }
    return r->fed;
}

void mg_run_passed(struct mg_run *r) {
    mg_chat *chat = r->chat;
    int64_t *id = chat->kv_id + chat->kv.n - r->fed;
    if (r->stage == MG_STAGE_PREFILL) {
        for (size_t i = 0; i < r->fed; i++) id[i] = mg_layout_identity(&r->layout, r->read + i);
        r->read += r->fed;
        if (r->read == r->layout.n) chat->next_pos = r->layout.next_pos;
        return;
    }
    for (size_t i = 0; i < r->fed; i++) id[i] = r->feed[i];
    chat->next_pos += (int32_t)r->fed;
    r->answer.passes++;
}

size_t mg_run_wanted(const struct mg_run *r) {
    if (r->stage == MG_STAGE_PREFILL) return r->read == r->layout.n;
    return r->fed;
}

/* Hands out what may be shown. false: out of memory. */
static bool release(struct mg_run *r, int32_t token) {
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
static bool add_text(struct mg_run *r, int32_t token, bool *stopped) {
    const struct mg_tokenizer *tok = r->chat->engine->tokenizer;
    struct mg_slice piece = {0};
    if (!mg_tokenizer_is_special(tok, token)) piece = mg_tokenizer_piece(tok, token);
    r->whole.n = 0;
    if (!mg_detok_add(&r->detok, piece, &r->whole)) return false;
    if (!mg_stop_add(r->stop, r->whole.data, r->whole.n, &r->ready, stopped)) return false;
    return release(r, token);
}

static bool is_end(const struct mg_run *r, int32_t token) {
    const struct mg_generation_config *g = &r->chat->engine->model->config.generation;
    for (size_t i = 0; i < g->n_end_token; i++)
        if (g->end_token[i] == token) return !r->o->ignore_end;
    return false;
}

/* An answer that ends within an accepted draft leaves the conversation as it would be without
 * drafts: the rest of the draft was never said. */
static void end(struct mg_run *r, const char *reason, const char *detail) {
    size_t n = r->n_ahead - r->next_ahead;
    r->chat->kv.n -= n;
    r->chat->next_pos -= (int32_t)n;
    r->answer.finish_reason = reason;
    r->answer.stop_detail = detail;
    r->over = true;
}

/* Says one decided token; the answer may be over with it. */
static enum mg_status say(struct mg_run *r, int32_t token, struct mg_err *err) {
    mg_chat *chat = r->chat;
    if (is_end(r, token)) {
        end(r, "stop", "end_token");
        return MG_OK;
    }
    bool stopped = false;
    if (!mg_ids_add(&chat->answer_ids, token) || !add_text(r, token, &stopped) ||
        (r->max_draft && !mg_draft_say(r->draft, token)))
        return mg_fail_memory(err, "answer");
    unsigned flags = mg_loop_flags(mg_tokenizer_piece(chat->engine->tokenizer, token));
    if (stopped)
        end(r, "stop", "stop_string");
    else if (!r->o->no_loop_check && mg_loop_add(&r->loop, token, flags))
        end(r, "stop", "repetition");
    else if (chat->answer_ids.n == r->most)
        end(r, "length", NULL);
    return MG_OK;
}

static void begin_saying(struct mg_run *r) {
    double now = mg_clock();
    r->answer.prefill_ms = (now - r->stage_start) * 1e3;
    r->answer.first_token_ms = (now - r->start) * 1e3 + r->answer.image_ms;
    r->stage = MG_STAGE_DECODE;
    r->stage_start = now;
}

enum mg_status mg_run_decide(struct mg_run *r, const int32_t *id, struct mg_err *err) {
    mg_chat *chat = r->chat;
    size_t right = 0;
    if (r->stage == MG_STAGE_PREFILL) {
        begin_saying(r);
        if (r->most == 0) {
            end(r, "length", NULL);
            return MG_OK;
        }
    } else {
        while (right < r->guessed && id[right] == r->feed[right + 1]) right++;
        if (r->max_draft) mg_draft_learn(r->draft, r->guessed, right);
        size_t wrong = r->guessed - right; /* wrong guesses are written over */
        chat->kv.n -= wrong;
        chat->next_pos -= (int32_t)wrong;
        r->answer.drafted_tokens += r->guessed;
        r->answer.accepted_tokens += right;
    }
    memcpy(r->ahead, id, (right + 1) * sizeof *id);
    r->n_ahead = right + 1;
    r->next_ahead = 0;
    while (r->next_ahead < r->n_ahead && !r->over) {
        enum mg_status status = say(r, r->ahead[r->next_ahead++], err);
        if (status != MG_OK) return status;
    }
    return MG_OK;
}

enum mg_status mg_run_repeat(struct mg_run *r, const char *reason, const char *detail,
                             struct mg_err *err) {
    mg_chat *chat = r->chat;
    for (size_t i = 0; i < chat->n_image; i++) {
        if (!chat->image[i].counted) r->answer.image_ms += chat->image[i].report.decode_ms;
        chat->image[i].counted = true;
    }
    r->answer.cached_tokens = r->layout.n;
    r->answer.first_token_ms = (mg_clock() - r->start) * 1e3 + r->answer.image_ms;
    r->answer.finish_reason = reason;
    r->answer.stop_detail = detail;
    r->over = true;
    return release(r, -1) ? MG_OK : mg_fail_memory(err, "answer");
}

/* The end of a text that was held back: part of a character, the beginning of a stop string. */
static bool flush_text(struct mg_run *r) {
    bool stopped = false;
    r->whole.n = 0;
    if (!mg_detok_flush(&r->detok, &r->whole)) return false;
    if (!mg_stop_add(r->stop, r->whole.data, r->whole.n, &r->ready, &stopped)) return false;
    if (!stopped && !mg_stop_flush(r->stop, &r->ready)) return false;
    return release(r, -1);
}

enum mg_status mg_run_finish(struct mg_run *r, enum mg_status status, bool keep,
                             struct mg_err *err) {
    mg_chat *chat = r->chat;
    struct mg_answer *a = &r->answer;
    size_t n = chat->answer_ids.n;
    if (n > 1 && r->stage == MG_STAGE_DECODE)
        a->decode_ms_per_token = (mg_clock() - r->stage_start) * 1e3 / (double)(n - 1);
    if (status == MG_ERR_CANCELLED && r->stage == MG_STAGE_DECODE) { /* what was said stays said */
        mg_err_clear(err);
        a->finish_reason = "cancelled";
        a->stop_detail = NULL;
        status = MG_OK;
    }
    if (status != MG_OK) return status;
    bool cut = a->stop_detail && strcmp(a->stop_detail, "stop_string") == 0;
    if (!cut && !flush_text(r)) return mg_fail_memory(err, "answer");
    a->text = chat->answer_text.data ? (char *)chat->answer_text.data : "";
    a->n_text = chat->answer_text.n;
    a->token = chat->answer_ids.id;
    a->n_token = n;
    a->total_ms = (mg_clock() - r->start) * 1e3 + a->image_ms;
    if (!keep) return MG_OK;
    return mg_chat_add_part(chat, MG_ASSISTANT, true, a->text, a->n_text, NULL, err);
}

void mg_run_close(struct mg_run *r) {
    mg_stop_close(r->stop);
    r->stop = NULL;
    mg_layout_free(&r->layout);
    mg_buf_free(&r->whole);
    mg_buf_free(&r->ready);
}
