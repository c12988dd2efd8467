/* engine/answer_cache.c - see answer_cache.h. Some thousands of entries at most: a list is
 * searched, which costs microseconds where an answer costs seconds. */
#include "engine/answer_cache.h"

#include <stdlib.h>
#include <string.h>

enum { FORMAT = 2 }; /* of the key */

static void unlink_entry(struct mg_answer_cache *c, struct mg_cached_answer *a) {
    *(a->newer ? &a->newer->older : &c->newest) = a->older;
    *(a->older ? &a->older->newer : &c->oldest) = a->newer;
    a->newer = a->older = NULL;
    c->bytes -= a->bytes;
    c->n--;
}

static void link_newest(struct mg_answer_cache *c, struct mg_cached_answer *a) {
    a->newer = NULL;
    a->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = a;
    c->newest = a;
    c->bytes += a->bytes;
    c->n++;
}

static void free_entry(struct mg_cached_answer *a) {
    for (size_t i = 0; i < a->n_print; i++) mg_fingerprint_free(&a->print[i]);
    free(a->print);
    free(a->text);
    free(a->token);
    free(a->logprob);
    free(a);
}

static void drop(struct mg_answer_cache *c, struct mg_cached_answer *a) {
    unlink_entry(c, a);
    free_entry(a);
}

void mg_answer_cache_shrink(struct mg_answer_cache *c, size_t budget) {
    while (c->oldest && c->bytes > budget) drop(c, c->oldest);
}

static bool is_old(const struct mg_answer_cache *c, const struct mg_cached_answer *a, double now) {
    return c->seconds > 0 && now - a->made > c->seconds;
}

static const struct mg_cached_answer *use(struct mg_answer_cache *c, struct mg_cached_answer *a) {
    unlink_entry(c, a);
    link_newest(c, a);
    return a;
}

bool mg_answer_is_decided(const struct mg_job *job) {
    return job->answer.temperature < 1e-5f;
}

static void add_size(struct mg_sha256 *h, uint64_t n) {
    mg_sha256_update(h, &n, sizeof n);
}

static void add_text(struct mg_sha256 *h, const char *s) {
    add_size(h, strlen(s));
    mg_sha256_update(h, s, strlen(s));
}

/* What isn't here changes no answer at temperature 0: seed, top-k, top-p, min-p, drafts. */
static void add_options(struct mg_sha256 *h, const struct mg_run *r, const struct mg_job *job) {
    const struct mg_answer_options *o = &job->answer;
    const float number[] = {o->repetition_penalty, o->presence_penalty, o->frequency_penalty};
    mg_sha256_update(h, number, sizeof number);
    add_size(h, r->most); /* what of max_tokens fits into the context */
    add_size(h, o->ignore_end | o->no_loop_check << 1 | job->logprobs << 2);
    add_size(h, job->logprobs ? job->n_top_logprobs : 0);
    add_size(h, o->n_stop);
    for (size_t i = 0; i < o->n_stop; i++) add_text(h, o->stop[i]);
    add_size(h, job->n_bias);
    for (size_t i = 0; i < job->n_bias; i++) {
        mg_sha256_update(h, &job->bias[i].id, sizeof job->bias[i].id);
        mg_sha256_update(h, &job->bias[i].value, sizeof job->bias[i].value);
    }
}

static void add_model(struct mg_sha256 *h, const mg_engine *e) {
    const struct mg_model *m = e->model;
    add_size(h, FORMAT);
    add_text(h, mg_version());
    /* what the files hold, not when they were written: the same on every machine */
    add_text(h, m->packed ? m->manifest.small_sha256 : "");
    add_text(h, m->packed ? m->manifest.matrices_sha256 : "");
    add_size(h, m->n_parameter);
    add_size(h, mg_weights_bytes(m->weights));
    add_size(h, (uint64_t)e->mode << 32 | (uint64_t)m->packed);
    add_text(h, mg_tier_name(e->features.tier));
}

static bool make_key(const struct mg_run *r, const struct mg_job *job, bool pixels,
                     uint8_t out[MG_SHA256_BYTES]) {
    const mg_chat *chat = r->chat;
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    add_text(&h, pixels ? "margay answer" : "margay answer of such pictures");
    add_model(&h, chat->engine);
    mg_sha256_update(&h, job->tenant, sizeof job->tenant);
    add_options(&h, r, job);
    add_size(&h, r->layout.n);
    mg_sha256_update(&h, r->layout.prompt.ids.id, r->layout.n * sizeof(int32_t));
    add_size(&h, chat->n_image);
    for (size_t i = 0; i < chat->n_image; i++) {
        const struct chat_image *image = &chat->image[i];
        add_size(&h, (uint64_t)image->grid_h << 32 | image->grid_w);
        add_size(&h, image->n_token);
        add_size(&h, image->kept.index != NULL);
        if (pixels) mg_sha256_update(&h, image->key, sizeof image->key);
    }
    return mg_sha256_finish(&h, out);
}

enum mg_status mg_answer_key_make(const struct mg_run *r, const struct mg_job *job,
                                  struct mg_answer_key *out, struct mg_err *err) {
    if (make_key(r, job, true, out->exact) && make_key(r, job, false, out->rest)) return MG_OK;
    return mg_fail_memory(err, "answer's key");
}

static struct mg_cached_answer *find_exact(struct mg_answer_cache *c, const uint8_t *exact) {
    struct mg_cached_answer *a = c->newest;
    while (a && memcmp(a->key.exact, exact, sizeof a->key.exact) != 0) a = a->older;
    return a;
}

const struct mg_cached_answer *mg_answer_find(struct mg_answer_cache *c,
                                              const struct mg_answer_key *key, double now) {
    struct mg_cached_answer *a = find_exact(c, key->exact);
    c->queries++;
    if (!a) return NULL;
    if (is_old(c, a, now)) {
        drop(c, a);
        return NULL;
    }
    c->hits++;
    return use(c, a);
}

/* Pruning leaves out cells by their pixels: such pictures are compared by nothing else. */
static bool is_alike(const struct mg_cached_answer *a, const mg_chat *chat, double least,
                     double *distance) {
    *distance = 0;
    if (a->n_print != chat->n_image) return false;
    for (size_t i = 0; i < a->n_print; i++) {
        double d;
        if (!chat->image[i].print || chat->image[i].kept.index ||
            !mg_fingerprint_like(&a->print[i], chat->image[i].print, least, &d))
            return false;
        if (d > *distance) *distance = d;
    }
    return true;
}

const struct mg_cached_answer *mg_answer_find_near(struct mg_answer_cache *c,
                                                   const struct mg_answer_key *key,
                                                   const mg_chat *chat, double least, double now,
                                                   double *distance) {
    if (!chat->n_image) return NULL;
    for (struct mg_cached_answer *a = c->newest, *older; a; a = older) {
        older = a->older;
        if (memcmp(a->key.rest, key->rest, sizeof key->rest) != 0) continue;
        if (is_old(c, a, now)) {
            drop(c, a);
        } else if (is_alike(a, chat, least, distance)) {
            c->near_hits++;
            return use(c, a);
        }
    }
    return NULL;
}

/* The entry's fingerprints, when all pictures have one; they leave the chat. */
static bool take_prints(struct mg_cached_answer *a, mg_chat *chat) {
    for (size_t i = 0; i < chat->n_image; i++)
        if (!chat->image[i].print) return true;
    if (!chat->n_image) return true;
    a->print = mg_alloc_zero(chat->n_image, sizeof *a->print);
    if (!a->print) return false;
    for (size_t i = 0; i < chat->n_image; i++) {
        a->print[i] = *chat->image[i].print;
        *chat->image[i].print = (struct mg_fingerprint){0};
        mg_fingerprint_close(chat->image[i].print);
        chat->image[i].print = NULL;
        a->bytes += a->print[i].bytes;
    }
    a->n_print = chat->n_image;
    return true;
}

/* `size` bytes more than the n of the copy, zeroed: a text's end. */
static void *copy_of(const void *data, size_t n, size_t size, size_t more) {
    uint8_t *p = n <= (SIZE_MAX - more) / size ? malloc(n * size + more + !n) : NULL;
    if (!p) return NULL;
    if (n) memcpy(p, data, n * size);
    memset(p + n * size, 0, more);
    return p;
}

static bool fill(struct mg_cached_answer *a, mg_chat *chat, const struct mg_answer *answer,
                 const struct mg_token_logprob *logprob, size_t n_logprob) {
    a->text = copy_of(answer->text, answer->n_text, 1, 1);
    a->token = copy_of(answer->token, answer->n_token, sizeof *a->token, 0);
    a->logprob = copy_of(logprob, n_logprob, sizeof *logprob, 0);
    a->n_text = answer->n_text;
    a->n_token = answer->n_token;
    a->n_logprob = n_logprob;
    a->finish_reason = answer->finish_reason;
    a->stop_detail = answer->stop_detail;
    a->bytes = sizeof *a + a->n_text + a->n_token * sizeof *a->token + n_logprob * sizeof *logprob;
    return a->text && a->token && a->logprob && take_prints(a, chat);
}

void mg_answer_put(struct mg_answer_cache *c, const struct mg_answer_key *key, mg_chat *chat,
                   const struct mg_answer *answer, const struct mg_token_logprob *logprob,
                   size_t n_logprob, double now) {
    const char *reason = answer->finish_reason;
    if (!reason || (strcmp(reason, "stop") != 0 && strcmp(reason, "length") != 0)) return;
    struct mg_cached_answer *a = calloc(1, sizeof *a), *before = find_exact(c, key->exact);
    if (!a) return;
    if (!fill(a, chat, answer, logprob, n_logprob) || a->bytes > c->budget) {
        free_entry(a);
        return;
    }
    a->key = *key;
    a->made = now;
    if (before) drop(c, before); /* asked twice at the same time */
    mg_answer_cache_shrink(c, c->budget - a->bytes);
    link_newest(c, a);
}
