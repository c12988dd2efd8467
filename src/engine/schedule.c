/* engine/schedule.c - which rows share a pass, and when the vision tower gives way.
 *
 *   rows of a pass: | greedy answers, with guesses | sampled answers | prompts, oldest first |
 *
 * While answers are being said a pass takes only as many prompt tokens as make it PASS_STRETCH
 * times as long as one without; and between two such passes the vision tower gets as much time as
 * the last pass took. So the gap between two tokens stays within three times the idle gap.
 */
#include "engine/schedule.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define PASS_STRETCH 2.0 /* duration of a pass with prompt tokens against one without */
enum { FIRST_PROMPT_ROWS = 32, LEAST_PROMPT_ROWS = 16 };

enum { MOST_PASSED = 8 }; /* later jobs that one which waits for memory lets go first */

void mg_note_counts(struct mg_scheduler *s) {
    struct mg_scheduler_counts *c = &s->counts;
    c->running = s->n_run;
    c->passes = s->passes;
    c->pass_rows = s->pass_rows;
    c->feature_queries = s->features.queries;
    c->feature_hits = s->features.hits;
    c->feature_bytes = s->features.bytes;
    c->features = s->features.n;
    c->prefix_queries = s->prefixes.queries;
    c->prefix_hits = s->prefixes.hits;
    c->prefix_bytes = s->prefixes.bytes;
    c->prefixes = s->prefixes.n;
    c->answer_queries = s->answers.queries;
    c->answer_hits = s->answers.hits;
    c->answer_near_hits = s->answers.near_hits;
    c->answer_bytes = s->answers.bytes;
    c->answers = s->answers.n;
    c->feature_budget = s->features.budget;
    c->prefix_budget = s->prefixes.budget;
    c->answer_budget = s->answers.budget;
    c->kv_tokens = 0;
    for (size_t i = 0; i < s->n_run; i++)
        if (s->run[i]->chat) c->kv_tokens += s->run[i]->chat->kv.n;
    c->last_progress = mg_clock();
}

/* --- events --- */
/* What has been told is only kept for the cache of answers. */
static void note_told(struct job *j) {
    j->n_told = j->n_logprob;
    if (!j->keep) j->n_told = j->n_logprob = 0;
}

static bool on_event(void *user, const struct mg_event *e) {
    struct job *j = user;
    struct mg_job_event out = {.kind = e->kind == MG_EVENT_TEXT ? MG_JOB_TEXT : MG_JOB_STAGE,
                               .stage = e->stage,
                               .done = e->done,
                               .total = e->total,
                               .prompt_tokens = j->run.answer.prompt_tokens,
                               .cached_tokens = j->run.answer.cached_tokens,
                               .text = e->text,
                               .n_text = e->n_text,
                               .n_token = j->chat->answer_ids.n,
                               .logprob = mg_job_untold(j),
                               .n_logprob = e->kind == MG_EVENT_TEXT ? j->n_logprob - j->n_told : 0,
                               .answer = &j->run.answer,
                               .queue_ms = (j->began - j->submitted) * 1e3};
    if (e->kind == MG_EVENT_TEXT && j->run.stage == MG_STAGE_DECODE)
        out.decode_ms = (mg_clock() - j->run.stage_start) * 1e3;
    j->o.event(j->o.user, &out);
    if (e->kind == MG_EVENT_TEXT) note_told(j);
    return true;
}

/* --- ends --- */
static void remove_run(struct mg_scheduler *s, struct job *j) {
    size_t at = 0;
    while (s->run[at] != j) at++;
    s->n_run--;
    memmove(s->run + at, s->run + at + 1, (s->n_run - at) * sizeof *s->run);
}

static void end(struct mg_scheduler *s, struct job *j, enum mg_status status) {
    remove_run(s, j);
    if (j->open) {
        status = mg_run_finish(&j->run, status, false, &j->err);
        if (status == MG_OK && j->keep)
            mg_answer_put(&s->answers, &j->key, j->chat, &j->run.answer, j->logprob, j->n_logprob,
                          mg_clock());
        /* what was read before somebody lost patience is right all the same */
        bool sound = status == MG_OK || status == MG_ERR_CANCELLED;
        if (sound && !j->o.no_prefix) mg_prefix_keep(&s->prefixes, j->chat);
        s->slot[j->slot].used = false;
        s->kv_used -= j->kv_need;
    }
    mg_tell_counts(s); /* who then asks finds this job's in them */
    mg_job_end(s, j, status);
    if (status == MG_ERR_MEMORY) mg_give_way(s);
}

/* A cache is worth less than an answer: half of what they hold goes back to the system. */
bool mg_give_way(struct mg_scheduler *s) {
    bool some = s->prefixes.n || s->features.n || s->answers.n;
    mg_prefix_store_shrink(&s->prefixes, s->prefixes.bytes / 2);
    mg_feature_cache_shrink(&s->features, s->features.bytes / 2);
    mg_answer_cache_shrink(&s->answers, s->answers.bytes / 2);
    malloc_trim(0);
    return some;
}

static bool is_cancelled(const struct job *j) {
    return atomic_load_explicit(&((struct job *)j)->cancelled, memory_order_relaxed);
}

static void end_cancelled(struct mg_scheduler *s) {
    for (size_t i = s->n_run; i-- > 0;) {
        struct job *j = s->run[i];
        if (j != s->looking && is_cancelled(j))
            end(s, j, mg_fail(&j->err, MG_ERR_CANCELLED, "cancelled", "stopped on request"));
    }
}

/* --- opening --- */
static size_t free_slot(const struct mg_scheduler *s) {
    size_t i = 0;
    while (s->slot[i].used) i++;
    return i;
}

static enum mg_status open_run(struct mg_scheduler *s, struct job *j) {
    j->slot = free_slot(s);
    struct slot *slot = &s->slot[j->slot];
    j->run = (struct mg_run){.chat = j->chat,
                             .o = &j->o.answer,
                             .event = on_event,
                             .user = j,
                             .sampler = slot->sampler,
                             .draft = &slot->draft,
                             .prefixes = j->o.no_prefix ? NULL : &s->prefixes,
                             .all_logits = j->o.logprobs || j->o.n_bias};
    enum mg_status status = mg_run_open(&j->run, &j->err);
    if (status == MG_OK) status = mg_sampler_bias(slot->sampler, j->o.bias, j->o.n_bias, &j->err);
    return status;
}

/* --- answers that are there --- */
bool mg_job_wants_similar(const struct mg_scheduler *s, const struct job *j) {
    return s->options.similar && j->o.similar > 0 && s->options.answer_budget &&
           !j->o.no_answer_cache && mg_answer_is_decided(&j->o);
}

/* Looks for the answer of a job that was just opened. NULL: it has to be made. */
static const struct mg_cached_answer *find_answer(struct mg_scheduler *s, struct job *j) {
    double now = mg_clock();
    if (!s->answers.budget || j->o.no_answer_cache || !mg_answer_is_decided(&j->o)) return NULL;
    struct mg_err none = {0}; /* without a key it is simply not kept */
    if (mg_answer_key_make(&j->run, &j->o, &j->key, &none) != MG_OK) return NULL;
    const struct mg_cached_answer *a = mg_answer_find(&s->answers, &j->key, now);
    j->from = a ? MG_FROM_CACHE : MG_FROM_MODEL_ASKED;
    if (!a && mg_job_wants_similar(s, j)) {
        a = mg_answer_find_near(&s->answers, &j->key, j->chat, j->o.similar, now, &j->distance);
        if (a) j->from = MG_FROM_CACHE_NEAR;
    }
    j->keep = !a;
    return a;
}

/* Says it as if it had been made. Nothing was computed, and the numbers say so. */
static enum mg_status repeat(struct job *j, const struct mg_cached_answer *a) {
    struct mg_run *r = &j->run;
    mg_chat *chat = j->chat;
    j->logprob = mg_alloc(a->n_logprob, sizeof *a->logprob);
    bool ok = j->logprob && mg_ids_reserve(&chat->answer_ids, a->n_token) &&
              mg_buf_add(&r->ready, a->text, a->n_text);
    for (size_t i = 0; i < a->n_token && ok; i++) ok = mg_ids_add(&chat->answer_ids, a->token[i]);
    if (!ok) return mg_fail_memory(&j->err, "answer");
    if (a->n_logprob) memcpy(j->logprob, a->logprob, a->n_logprob * sizeof *a->logprob);
    j->n_logprob = j->cap_logprob = a->n_logprob;
    for (size_t i = 0; i < chat->n_image; i++) /* nor was it looked at, though decoded */
        chat->image[i].report.cached = true;
    return mg_run_repeat(r, a->finish_reason, a->stop_detail, &j->err);
}

/* Sets what it needs; whether there is so much. */
static bool fits(const struct mg_scheduler *s, struct job *j) {
    size_t most = s->engine->options.context, left;
    left = s->kv_budget - mg_min_size(s->kv_budget, s->kv_used);
    j->kv_need = mg_kv_bytes(&j->chat->kv, most);
    if (!s->kv_used || j->kv_need <= left) return true;
    /* perhaps it needs less than all of the context */
    size_t answer = mg_min_size(j->o.answer.max_tokens, most);
    j->kv_need =
        mg_kv_bytes(&j->chat->kv, mg_min_size(most, mg_chat_rough_tokens(j->chat) + answer));
    return j->kv_need <= left;
}

/* Opens what there is memory for; the first can always go on. What has to wait lets a few later
 * ones pass, and then nobody: those that run come to an end. */
static void open_prepared(struct mg_scheduler *s) {
    size_t most = s->engine->options.context, n_waiting = 0;
    bool shut = false;
    for (size_t i = 0; i < s->n_run; i++) {
        struct job *j = s->run[i];
        if (j->open) continue;
        if (j->status != MG_OK) {
            end(s, j, j->status);
            i--;
            continue;
        }
        if (shut) continue;
        if (!fits(s, j)) {
            n_waiting++;
            shut = j->n_passed >= MOST_PASSED;
            continue;
        }
        enum mg_status status = open_run(s, j);
        if (status != MG_OK) {
            mg_run_close(&j->run);
            end(s, j, status);
            i--;
            continue;
        }
        size_t tokens = mg_min_size(most, j->run.layout.n + j->run.most);
        j->kv_need = mg_kv_bytes(&j->chat->kv, tokens);
        s->kv_used += j->kv_need;
        s->slot[j->slot].used = true;
        j->open = true;
        for (size_t k = 0; k < i && n_waiting; k++) s->run[k]->n_passed += !s->run[k]->open;
        const struct mg_cached_answer *known = find_answer(s, j);
        if (!known) continue;
        end(s, j, repeat(j, known));
        i--;
    }
}

/* --- a pass --- */
struct plan {
    struct mg_span span[MG_MAX_SPAN];
    size_t first[MG_MAX_SPAN];             /* row of each */
    size_t n, rows;                        /* spans, rows */
    size_t n_plain, plain_rows, n_sampled; /* the first spans; rows of the greedy ones */
    size_t prompt_rows;
};

static bool can_pass(const struct mg_scheduler *s, const struct job *j) {
    return j->open && j->looked && j != s->looking && !j->run.over;
}

static void add(struct mg_scheduler *s, struct plan *p, struct job *j, size_t room,
                size_t guesses) {
    size_t n = mg_run_fill(&j->run, s->engine->row + p->rows, room, guesses);
    s->in_pass[p->n] = j;
    p->first[p->n] = p->rows;
    p->span[p->n++] = (struct mg_span){&j->chat->kv, n};
    p->rows += n;
}

/* Prompt tokens beside answers that are being said. */
static size_t prompt_room(const struct mg_scheduler *s, const struct plan *p) {
    if (!p->n) return s->engine->options.prefill_chunk;
    size_t most = s->engine->work.rows - p->rows;
    double rows = FIRST_PROMPT_ROWS;
    if (s->row_seconds > 0 && s->idle_seconds > 0)
        rows = (PASS_STRETCH - 1) * s->idle_seconds / s->row_seconds;
    size_t n = rows < LEAST_PROMPT_ROWS ? LEAST_PROMPT_ROWS : rows > 4096 ? 4096 : (size_t)rows;
    return mg_min_size(n, most);
}

static void make_plan(struct mg_scheduler *s, struct plan *p) {
    *p = (struct plan){0};
    size_t n_saying = 0;
    for (size_t i = 0; i < s->n_run; i++)
        n_saying += can_pass(s, s->run[i]) && s->run[i]->run.stage == MG_STAGE_DECODE;
    size_t guesses = n_saying == 1 ? MG_MAX_TOP - 1 : n_saying == 2 ? 3 : 0;
    for (int plain = 1; plain >= 0; plain--) {
        for (size_t i = 0; i < s->n_run; i++) {
            struct job *j = s->run[i];
            if (can_pass(s, j) && j->run.stage == MG_STAGE_DECODE && j->run.plain == plain)
                add(s, p, j, MG_MAX_TOP, guesses);
        }
        if (plain) p->n_plain = p->n, p->plain_rows = p->rows;
    }
    p->n_sampled = p->n - p->n_plain;
    size_t room = prompt_room(s, p);
    for (size_t i = 0; i < s->n_run && room && p->n < MG_MAX_SPAN; i++) {
        struct job *j = s->run[i];
        if (!can_pass(s, j) || j->run.stage == MG_STAGE_DECODE) continue;
        size_t before = p->rows;
        add(s, p, j, room, 0);
        room -= p->rows - before;
        p->prompt_rows += p->rows - before;
    }
    s->n_in_pass = p->n;
}

/* Asked between layers of a pass: it is given up when a prompt in it is not wanted any more; the
 * others lose a part of one token's time. */
static bool pass_tick(void *user, size_t done, size_t total) {
    struct mg_scheduler *s = user;
    (void)done, (void)total;
    for (size_t i = 0; i < s->n_in_pass; i++)
        if (s->in_pass[i]->run.stage != MG_STAGE_DECODE && is_cancelled(s->in_pass[i]))
            return false;
    return true;
}

static void decide(struct mg_scheduler *s, struct job *j, const int32_t *id) {
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < mg_run_wanted(&j->run) && status == MG_OK; i++)
        if (id[i] < 0)
            status = mg_fail(&j->err, MG_ERR_NUMERIC, "logits_not_finite",
                             "the model gave a logit that is not a finite number");
    if (status == MG_OK) status = mg_run_decide(&j->run, id, &j->err);
    const char *detail = j->run.answer.stop_detail;
    if (j->n_logprob > j->n_told && detail && strcmp(detail, "end_token") == 0)
        j->n_logprob--; /* the end is no part of the answer */
    if (status != MG_OK || j->run.over) end(s, j, status);
}

/* The logits as they came are needed for the log-probability of what is picked. */
static enum mg_status note_logprob(struct mg_scheduler *s, struct job *j, const float *logits,
                                   int32_t id, const struct mg_logprob *top, size_t n_top) {
    size_t n_vocab = s->engine->model->config.text.n_vocab;
    if (j->n_logprob == j->cap_logprob) {
        size_t more = mg_max_size(8, j->cap_logprob * 2);
        void *p = mg_realloc(j->logprob, more, sizeof *j->logprob);
        if (!p) return mg_fail_memory(&j->err, "log-probabilities");
        j->logprob = p;
        j->cap_logprob = more;
    }
    struct mg_token_logprob *l = &j->logprob[j->n_logprob++];
    *l = (struct mg_token_logprob){
        .id = id, .logprob = mg_logprob_of(logits, n_vocab, id), .n_top = n_top};
    memcpy(l->top, top, n_top * sizeof *top);
    return MG_OK;
}

static enum mg_status pick(struct mg_scheduler *s, struct job *j, float *logits, int32_t *id) {
    mg_engine *e = s->engine;
    size_t n_vocab = e->model->config.text.n_vocab, n_top = 0;
    struct mg_logprob top[MG_MAX_LOGPROBS];
    if (!e->kernels.all_finite(logits, n_vocab))
        return mg_fail(&j->err, MG_ERR_NUMERIC, "logits_not_finite",
                       "the model gave logits that are not finite");
    if (!j->o.logprobs) return mg_sampler_pick(j->run.sampler, logits, id, &j->err);
    memcpy(e->logits, logits, n_vocab * sizeof *logits);
    enum mg_status status = MG_OK;
    if (j->o.n_top_logprobs)
        status = mg_logprobs_top(logits, n_vocab, j->o.n_top_logprobs, top, &n_top, &j->err);
    if (status == MG_OK) status = mg_sampler_pick(j->run.sampler, logits, id, &j->err);
    return status == MG_OK ? note_logprob(s, j, e->logits, *id, top, n_top) : status;
}

static void sample(struct mg_scheduler *s, struct job *j, float *logits) {
    int32_t id;
    enum mg_status status = pick(s, j, logits, &id);
    if (status == MG_OK)
        decide(s, j, &id);
    else
        end(s, j, status);
}

/* The next tokens of all in the pass that want one. `who` outlives the ends of jobs. */
static enum mg_status choose(struct mg_scheduler *s, const struct plan *p, struct job *const *who,
                             struct mg_err *err) {
    mg_engine *e = s->engine;
    size_t n_vocab = e->model->config.text.n_vocab;
    int32_t id[MG_MAX_TOP];
    enum mg_status status = MG_OK;
    size_t sampled = p->n_plain + p->n_sampled;
    if (p->n_sampled) /* before anything else is written over */
        status = mg_decoder_logits_rows(e->model, &e->compute, &e->work, p->plain_rows,
                                        p->n_sampled, s->logits, n_vocab, err);
    if (status == MG_OK && p->n_plain)
        status = mg_decoder_top(e->model, &e->compute, &e->work, 0, p->plain_rows,
                                mg_engine_useful_ids(e), e->logits, id, err);
    if (status != MG_OK) return status;
    for (size_t i = 0; i < p->n_plain; i++) decide(s, who[i], id + p->first[i]);
    for (size_t i = p->n_plain; i < sampled; i++)
        sample(s, who[i], s->logits + (i - p->n_plain) * n_vocab);
    for (size_t i = sampled; i < p->n && status == MG_OK; i++) {
        struct job *j = who[i];
        size_t last = p->first[i] + p->span[i].n - 1;
        if (!mg_run_wanted(&j->run)) continue;
        if (j->run.plain) {
            status = mg_decoder_top(e->model, &e->compute, &e->work, last, 1,
                                    mg_engine_useful_ids(e), e->logits, id, err);
            if (status == MG_OK) decide(s, j, id);
        } else {
            status = mg_decoder_logits(e->model, &e->compute, &e->work, last, s->logits, err);
            if (status == MG_OK) sample(s, j, s->logits);
        }
    }
    return status;
}

static void learn(struct mg_scheduler *s, const struct plan *p, double seconds) {
    s->pass_seconds = seconds;
    s->pass_end = mg_clock();
    s->passes++;
    s->pass_rows += p->rows;
    if (!p->prompt_rows)
        s->idle_seconds = s->idle_seconds > 0 ? 0.9 * s->idle_seconds + 0.1 * seconds : seconds;
    else if (p->prompt_rows >= LEAST_PROMPT_ROWS) {
        double more = seconds - (p->n > 1 || p->prompt_rows < 64 ? 0.5 * s->idle_seconds : 0);
        double row = (more > 0 ? more : seconds) / (double)p->prompt_rows;
        s->row_seconds = s->row_seconds > 0 ? 0.8 * s->row_seconds + 0.2 * row : row;
    }
}

/* false: there is nothing to pass. */
static bool pass(struct mg_scheduler *s) {
    mg_engine *e = s->engine;
    struct plan p;
    struct mg_err err = {0};
    struct job *who[MG_MAX_RUNNING];
    make_plan(s, &p);
    if (!p.n) return false;
    memcpy(who, s->in_pass, sizeof who);
    double start = mg_clock();
    e->compute.tick = pass_tick;
    e->compute.tick_user = s;
    enum mg_status status =
        mg_decoder_pass(e->model, &e->compute, &e->work, p.span, p.n, e->row, p.rows, &err);
    e->compute.tick = NULL;
    s->n_in_pass = 0;
    if (status == MG_OK) {
        for (size_t i = 0; i < p.n; i++) mg_run_passed(&who[i]->run);
        status = choose(s, &p, who, &err);
        learn(s, &p, mg_clock() - start);
    }
    if (status == MG_OK || status == MG_ERR_CANCELLED) return true;
    for (size_t i = s->n_run; i-- > 0;) /* what was in the pass and is still there */
        for (size_t k = 0; k < p.n; k++)
            if (s->run[i] == who[k]) {
                who[k]->err = err;
                end(s, who[k], status);
                break;
            }
    return true;
}

/* --- pictures --- */
/* Asked between the parts of a vision layer. */
static bool look_tick(void *user, size_t done, size_t total) {
    struct mg_scheduler *s = user;
    struct job *j = s->looking;
    if (is_cancelled(j) || !mg_run_tick(&j->run, done, total)) return false;
    mg_take_ready(s);
    open_prepared(s);
    end_cancelled(s);
    for (size_t i = 0; i < s->n_run; i++) /* those without pictures can go on */
        if (s->run[i]->open && !s->run[i]->looked && !s->run[i]->run.n_picture)
            s->run[i]->looked = mg_run_look(&s->run[i]->run, &s->run[i]->err) == MG_OK;
    if (mg_clock() - s->pass_end < s->pass_seconds) return true;
    pass(s);
    s->engine->compute.tick = look_tick;
    s->engine->compute.tick_user = s;
    return true;
}

/* One job's pictures; the others' passes run in between. */
static void look(struct mg_scheduler *s, struct job *j) {
    mg_engine *e = s->engine;
    s->looking = j;
    e->compute.tick = look_tick;
    e->compute.tick_user = s;
    enum mg_status status = mg_run_look(&j->run, &j->err);
    e->compute.tick = NULL;
    s->looking = NULL;
    j->looked = true;
    if (status != MG_OK) end(s, j, status);
}

void mg_work(struct mg_scheduler *s) {
    open_prepared(s);
    end_cancelled(s);
    for (size_t i = 0; i < s->n_run; i++)
        if (s->run[i]->open && !s->run[i]->looked) {
            look(s, s->run[i]);
            return;
        }
    pass(s);
}
