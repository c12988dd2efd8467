/* engine/shared_cache.c - see shared_cache.h. */
#include "engine/shared_cache.h"

#include "engine/schedule.h"
#include "engine/shared_value.h"
#include "store/redis_store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Raised whenever features or answers come out otherwise than before with the same weights, and the
 * program's version stays. */
enum { RESULTS = 1 };

/* --- the model's identity --- */
static void add_number(struct mg_sha256 *h, double x) {
    mg_sha256_update(h, &x, sizeof x);
}

static void add_text(struct mg_sha256 *h, const char *text) {
    add_number(h, (double)strlen(text));
    mg_sha256_update(h, text, strlen(text));
}

/* What of the configuration decides a result and is no tensor's shape. */
static void add_config(struct mg_sha256 *h, const struct mg_config *c) {
    const struct mg_text_config *t = &c->text;
    const struct mg_vision_config *v = &c->vision;
    const double number[] = {t->n_head,     t->n_head_kv,  t->head_dim,    t->norm_eps,
                             t->rope_theta, t->section[0], t->section[1],  t->section[2],
                             t->tied,       v->n_head,     v->patch,       v->temporal,
                             v->merge,      v->norm_eps,   v->in_channels, c->image_token};
    mg_sha256_update(h, number, sizeof number);
    for (int i = 0; i < 3; i++) {
        add_number(h, (double)c->preprocess.mean[i]);
        add_number(h, (double)c->preprocess.std[i]);
    }
    add_number(h, (double)v->n_deepstack);
    for (size_t i = 0; i < v->n_deepstack; i++) add_number(h, (double)v->deepstack[i]);
    add_number(h, (double)c->generation.n_end_token);
    for (size_t i = 0; i < c->generation.n_end_token; i++)
        add_number(h, c->generation.end_token[i]);
}

static void add_tensors(struct mg_sha256 *h, const struct mg_weights *w) {
    for (size_t i = 0; i < mg_weights_count(w); i++) {
        const struct mg_tensor *t = mg_weights_at(w, i);
        add_text(h, t->name);
        add_number(h, t->dtype);
        add_number(h, t->n_dim);
        for (int k = 0; k < t->n_dim; k++) add_number(h, (double)t->dim[k]);
        mg_sha256_update(h, t->data, t->n * mg_dtype_size(t->dtype));
    }
}

static void add_pieces(struct mg_sha256 *h, const struct mg_tokenizer *t) {
    size_t n = mg_tokenizer_n(t);
    add_number(h, (double)n);
    for (size_t i = 0; i < n; i++) {
        struct mg_slice piece = mg_tokenizer_piece(t, (int32_t)i);
        add_number(h, (double)piece.n);
        if (piece.n) mg_sha256_update(h, piece.data, piece.n);
    }
}

enum mg_status mg_shared_model(const mg_engine *e, uint8_t out[MG_SHA256_BYTES],
                               struct mg_err *err) {
    const struct mg_model *m = e->model;
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    add_text(&h, "margay model");
    add_text(&h, mg_version());
    add_number(&h, RESULTS);
    add_text(&h, mg_tier_name(e->features.tier));
    add_number(&h, e->features.intel); /* which of two bf16 kernels is chosen */
    add_number(&h, e->mode);
    add_number(&h, m->packed);
    add_config(&h, &m->config);
    if (m->packed) { /* of the file's own digests, not of its source's times */
        add_text(&h, m->manifest.matrices_sha256);
        add_text(&h, m->manifest.small_sha256);
    } else {
        add_tensors(&h, m->weights);
    }
    add_pieces(&h, e->tokenizer);
    return mg_sha256_finish(&h, out) ? MG_OK : mg_fail_memory(err, "model's identity");
}

/* --- opening --- */
enum mg_status mg_shared_open(struct mg_shared *c, const mg_engine *e,
                              const struct mg_scheduler_options *o, void (*news)(void *user),
                              void *user, struct mg_err *err) {
    *c = (struct mg_shared){.store = o->store};
    if (!o->store && !o->redis.url) return MG_OK;
    enum mg_status status = mg_shared_model(e, c->model, err);
    if (status == MG_OK && !o->store) {
        const struct mg_shared_options *r = &o->redis;
        struct mg_redis_store_options q = {.url = r->url,
                                           .tls = {r->ca_file, r->cert_file, r->key_file},
                                           .seconds = r->seconds,
                                           .budget = r->budget,
                                           .observe = r->observe,
                                           .user = r->user};
        status = mg_redis_store_open(&q, &c->store, err);
        c->owned = true;
    }
    if (status != MG_OK) {
        *c = (struct mg_shared){0};
        return status;
    }
    mg_store_on_news(c->store, news, user);
    return MG_OK;
}

void mg_shared_close(struct mg_shared *c) {
    if (!c->store) return;
    mg_store_on_news(c->store, NULL, NULL);
    if (c->owned) mg_store_close(c->store);
    c->store = NULL;
}

void mg_shared_counts(const struct mg_shared *c, struct mg_shared_counts *out) {
    struct mg_store_counts n;
    *out = (struct mg_shared_counts){0};
    if (!c->store) return;
    mg_store_counts(c->store, &n);
    out->on = true;
    out->up = n.up;
    out->refuses = n.refuses;
    out->bytes_read = n.bytes_read;
    out->bytes_written = n.bytes_written;
    for (int i = 0; i < 2; i++) {
        out->hits[i] = n.read[i].hits;
        out->queries[i] = n.read[i].hits + n.read[i].misses + n.read[i].damaged + n.read[i].failed +
                          n.read[i].late + n.read[i].dropped;
        out->stored[i] = n.put[i].kept;
        out->damaged += n.read[i].damaged;
        out->failed += n.read[i].failed + n.put[i].failed;
        out->late += n.read[i].late;
        out->refused += n.put[i].refused;
        out->dropped[0] += n.read[i].dropped;
        out->dropped[1] += n.put[i].dropped;
    }
}

/* --- lookups --- */
static struct mg_store_key key_of(const struct mg_shared *c, enum mg_store_kind kind,
                                  const uint8_t *tenant, const uint8_t *digest) {
    struct mg_store_key key = {.kind = kind};
    memcpy(key.tenant, tenant, sizeof key.tenant);
    memcpy(key.model, c->model, sizeof key.model);
    memcpy(key.digest, digest, sizeof key.digest);
    return key;
}

void mg_lookup_begin(struct mg_scheduler *s, struct job *j) {
    struct mg_lookup *l = &j->lookup;
    l->waits = true; /* until the first poll, which comes at once */
    l->answer_over = !s->shared.store || !j->keep;
    l->n_picture = s->shared.store && j->run.n_picture ? j->chat->n_image : 0;
    if (!l->n_picture) return;
    l->picture = mg_alloc_zero(l->n_picture, sizeof *l->picture);
    l->picture_over = mg_alloc_zero(l->n_picture, sizeof *l->picture_over);
    if (!l->picture || !l->picture_over) l->n_picture = 0; /* then it is computed */
}

static bool has_waited(struct mg_store_read *r, double now) {
    return now - mg_store_read_progress(r) > MG_SHARED_PATIENCE;
}

static void leave(struct mg_store_read **r) {
    mg_store_read_end(*r);
    *r = NULL;
}

/* It may be too old by this server's rule, whatever the store keeps. */
static bool take_answer(struct mg_scheduler *s, struct job *j, struct mg_store_value *v) {
    struct mg_lookup *l = &j->lookup;
    double age = (double)time(NULL) - (double)v->made, now = mg_clock();
    if (age < 0) age = 0; /* of a machine whose clock is ahead */
    if (s->answers.seconds > 0 && age > s->answers.seconds) return false;
    if (!mg_shared_answer_read(v, s->engine->model->config.text.n_vocab, &l->known)) return false;
    struct mg_answer a = {.text = l->known.text,
                          .n_text = l->known.n_text,
                          .token = l->known.token,
                          .n_token = l->known.n_token,
                          .finish_reason = l->known.finish_reason,
                          .stop_detail = l->known.stop_detail};
    mg_answer_put(&s->answers, &j->key, j->chat, &a, l->known.logprob, l->known.n_logprob,
                  now - age);
    return true;
}

/* true: no answer is waited for. */
static bool poll_answer(struct mg_scheduler *s, struct job *j, double now) {
    struct mg_lookup *l = &j->lookup;
    struct mg_store_value v = {0};
    if (l->answer_over) return true;
    if (!l->answer) {
        struct mg_store_key key = key_of(&s->shared, MG_STORE_ANSWER, j->o.tenant, j->key.exact);
        l->answer = mg_store_read_begin(s->shared.store, &key, MG_SHARED_MAX_ANSWER);
        if (!l->answer) return l->answer_over = true;
    }
    enum mg_store_state state = mg_store_read_take(l->answer, &v);
    if (state == MG_STORE_WAITING && !has_waited(l->answer, now)) return false;
    if (state == MG_STORE_WAITING) l->n_picture = 0; /* nor will they come in time */
    if (state == MG_STORE_FOUND) l->found = take_answer(s, j, &v);
    free(v.body);
    leave(&l->answer);
    return l->answer_over = true;
}

static bool others_ask(const struct mg_scheduler *s, const struct job *j, const uint8_t *digest) {
    for (size_t i = 0; i < s->n_run; i++) {
        const struct mg_lookup *l = &s->run[i]->lookup;
        if (s->run[i] == j || !l->waits) continue;
        for (size_t k = 0; k < l->n_picture; k++)
            if (l->picture[k] &&
                memcmp(mg_store_read_key(l->picture[k])->digest, digest, MG_SHA256_BYTES) == 0)
                return true;
    }
    return false;
}

static bool asks_itself(const struct mg_lookup *l, const uint8_t *digest) {
    for (size_t k = 0; k < l->n_picture; k++)
        if (l->picture[k] &&
            memcmp(mg_store_read_key(l->picture[k])->digest, digest, MG_SHA256_BYTES) == 0)
            return true;
    return false;
}

static struct mg_shared_shape shape_of(const mg_engine *e, const struct chat_image *image) {
    const struct mg_vision_config *v = &e->model->config.vision;
    return (struct mg_shared_shape){image->n_token, 1 + v->n_deepstack, v->out};
}

static void take_picture(struct mg_scheduler *s, struct chat_image *image,
                         struct mg_store_value *v) {
    struct mg_shared_shape shape = shape_of(s->engine, image);
    struct mg_picture picture = {0};
    if (!mg_shared_picture_take(v, &shape, &picture)) return;
    image->shared = mg_feature_put_take(&s->features, image->key, &picture);
    mg_picture_free(&picture); /* where it has not moved */
    if (!image->shared) return;
    image->picture = image->shared->picture;
    free(image->rgb);
    image->rgb = NULL;
}

/* true: picture i is not waited for. */
static bool poll_picture(struct mg_scheduler *s, struct job *j, size_t i, double now) {
    struct mg_lookup *l = &j->lookup;
    struct chat_image *image = &j->chat->image[i];
    struct mg_store_value v = {0};
    if (l->picture_over[i]) return true;
    if (!l->picture[i]) {
        if (!mg_run_needs_look(&j->run, i) || mg_feature_has(&s->features, image->key))
            return l->picture_over[i] = true;
        if (others_ask(s, j, image->key) || asks_itself(l, image->key)) return false;
        struct mg_shared_shape shape = shape_of(s->engine, image);
        struct mg_store_key key = key_of(&s->shared, MG_STORE_PICTURE, j->o.tenant, image->key);
        l->picture[i] = mg_store_read_begin(s->shared.store, &key, mg_shared_picture_bytes(&shape));
        if (!l->picture[i]) return l->picture_over[i] = true;
    }
    enum mg_store_state state = mg_store_read_take(l->picture[i], &v);
    if (state == MG_STORE_WAITING && !has_waited(l->picture[i], now)) return false;
    if (state == MG_STORE_FOUND) take_picture(s, image, &v);
    free(v.body);
    leave(&l->picture[i]);
    return l->picture_over[i] = true;
}

bool mg_lookup_poll(struct mg_scheduler *s, struct job *j) {
    struct mg_lookup *l = &j->lookup;
    double now = mg_clock();
    bool over = poll_answer(s, j, now);
    if (over && !l->found)
        for (size_t i = 0; i < l->n_picture; i++) over &= poll_picture(s, j, i, now);
    if (!over) return false;
    l->waits = false;
    mg_run_count_pictures(&j->run);
    return true;
}

double mg_lookup_deadline(const struct job *j) {
    const struct mg_lookup *l = &j->lookup;
    double first = l->answer ? mg_store_read_progress(l->answer) : mg_clock();
    bool any = l->answer != NULL;
    for (size_t i = 0; i < l->n_picture; i++) {
        if (!l->picture[i]) continue;
        double at = mg_store_read_progress(l->picture[i]);
        if (!any || at < first) first = at;
        any = true;
    }
    /* who waits for another's read is woken with it; here only in case it was cancelled */
    return any ? first + MG_SHARED_PATIENCE + 0.001 : mg_clock() + 0.02;
}

void mg_lookup_end(struct job *j) {
    struct mg_lookup *l = &j->lookup;
    leave(&l->answer);
    for (size_t i = 0; l->picture && i < j->chat->n_image; i++) leave(&l->picture[i]);
    free(l->picture);
    free(l->picture_over);
    mg_shared_answer_free(&l->known);
    *l = (struct mg_lookup){0};
}

/* --- puts --- */
static void release_feature(void *user) {
    mg_feature_release(user);
}

/* What is new here is new to the store, or was not found there in time. */
void mg_shared_put_pictures(struct mg_shared *c, const mg_chat *chat) {
    for (size_t i = 0; c->store && i < chat->n_image; i++) {
        const struct chat_image *image = &chat->image[i];
        uint8_t head[MG_ENTRY_MAX_HEAD];
        if (!image->shared || image->report.cached || !(image->report.vision_ms > 0)) continue;
        const struct mg_picture *p = &image->shared->picture;
        struct mg_shared_shape shape = {p->n_token, p->n_map, p->width};
        struct mg_store_key key = key_of(c, MG_STORE_PICTURE, chat->tenant, image->key);
        mg_feature_hold(image->shared);
        mg_store_put(c->store, &key, head, mg_shared_picture_head(&shape, head), p->row,
                     mg_shared_picture_bytes(&shape), 0, release_feature, image->shared);
    }
}

void mg_shared_put_answer(struct mg_shared *c, const struct job *j, double seconds) {
    uint8_t head[MG_ENTRY_MAX_HEAD];
    size_t n_head;
    struct mg_buf body = {0};
    if (!c->store) return;
    if (!mg_shared_answer_write(&j->run.answer, j->logprob, j->n_logprob, head, &n_head, &body)) {
        mg_buf_free(&body);
        return;
    }
    struct mg_store_key key = key_of(c, MG_STORE_ANSWER, j->o.tenant, j->key.exact);
    mg_store_put(c->store, &key, head, n_head, body.data, body.n, seconds, free, body.data);
}
