/* model/decoder.c - see decoder.h. */
#include "model/decoder.h"

#include "model/position.h"

#include <math.h>
#include <string.h>

enum mg_status mg_decoder_work_open(struct mg_decoder_work *w, const struct mg_model *model,
                                    size_t rows, struct mg_err *err) {
    const struct mg_text_config *c = &model->config.text;
    *w = (struct mg_decoder_work){.rows = rows, .arena.chunk_size = 4096};
    size_t longest = mg_max_size(mg_max_size(c->hidden, c->n_head * c->head_dim), c->ffn);
    w->ldx = mg_row_stride(c->hidden);
    w->ldqkv = mg_row_stride((c->n_head + 2 * c->n_head_kv) * c->head_dim);
    w->ldatt = mg_row_stride(c->n_head * c->head_dim);
    w->ldffn = mg_row_stride(c->ffn);
    w->x = mg_arena_alloc(&w->arena, rows * w->ldx, sizeof(float));
    w->norm = mg_arena_alloc(&w->arena, rows * w->ldx, sizeof(float));
    w->qkv = mg_arena_alloc(&w->arena, rows * w->ldqkv, sizeof(float));
    w->att = mg_arena_alloc(&w->arena, rows * w->ldatt, sizeof(float));
    w->ffn = mg_arena_alloc(&w->arena, rows * w->ldffn, sizeof(float));
    w->in.rows = mg_arena_alloc(&w->arena, mg_input_bytes(rows, longest), 1);
    w->in.xs = mg_arena_alloc(&w->arena, rows, sizeof *w->in.xs);
    w->cos = mg_arena_alloc(&w->arena, rows * c->head_dim / 2, sizeof(float));
    w->sin = mg_arena_alloc(&w->arena, rows * c->head_dim / 2, sizeof(float));
    w->top = mg_arena_alloc(&w->arena, mg_packed_panels(&model->head.packed) * MG_MAX_TOP + 1,
                            sizeof *w->top);
    if (w->x && w->norm && w->qkv && w->att && w->ffn && w->in.rows && w->in.xs && w->cos &&
        w->sin && w->top)
        return MG_OK;
    mg_decoder_work_close(w);
    return mg_fail_memory(err, "decoder rows");
}

void mg_decoder_work_close(struct mg_decoder_work *w) {
    mg_arena_free(&w->arena);
    *w = (struct mg_decoder_work){0};
}

/* What the row functions of one pass share. */
struct pass {
    const struct mg_model *model;
    struct mg_decoder_work *w;
    const struct mg_span *span;
    size_t n_span;
    const struct mg_row *row;
    size_t m, layer;
    const float *norm_weight;   /* of the norm being taken */
    const struct mg_linear *to; /* what its rows are prepared for */
};

static void embed_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct pass *p = arg;
    size_t hidden = p->model->config.text.hidden;
    for (size_t i = row0; i < row1; i++) {
        float *x = p->w->x + i * p->w->ldx;
        if (p->row[i].feature)
            memcpy(x, p->row[i].feature, hidden * sizeof *x);
        else
            mg_model_embed(p->model, c->kernels, p->row[i].id, x);
    }
}

static void norm_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct pass *p = arg;
    const struct mg_text_config *t = &p->model->config.text;
    float *norm = p->w->norm + row0 * p->w->ldx;
    c->kernels->rms_norm(p->w->x + row0 * p->w->ldx, p->w->ldx, p->norm_weight, t->norm_eps, norm,
                         p->w->ldx, row1 - row0, t->hidden);
    mg_prepare_rows(c, p->to, norm, p->w->ldx, &p->w->in, row0, row1);
}

/* q and k: norm per head, rotary; then k and v into the conversation. */
static void head_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct pass *p = arg;
    const struct mg_text_config *t = &p->model->config.text;
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    size_t d = t->head_dim, half = d / 2;
    for (size_t i = row0; i < row1; i++) {
        float *q = p->w->qkv + i * p->w->ldqkv, *k = q + t->n_head * d;
        c->kernels->rms_norm(q, d, l->q_norm, t->norm_eps, q, d, t->n_head, d);
        c->kernels->rms_norm(k, d, l->k_norm, t->norm_eps, k, d, t->n_head_kv, d);
        /* q and k lie side by side */
        c->kernels->rope(q, p->w->ldqkv, 1, t->n_head + t->n_head_kv, d, p->w->cos + i * half,
                         p->w->sin + i * half);
    }
    const struct mg_span *span = p->span;
    for (size_t i = row0, first = 0; i < row1; first += span++->n) {
        size_t end = mg_min_size(row1, first + span->n);
        const float *k = p->w->qkv + i * p->w->ldqkv + t->n_head * d;
        for (size_t h = 0; i < end && h < t->n_head_kv; h++)
            mg_kv_store(span->kv, c->kernels, p->layer, h, span->kv->n + i - first, end - i,
                        k + h * d, k + (t->n_head_kv + h) * d, p->w->ldqkv);
        i = mg_max_size(i, end);
    }
}

static void deepstack_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct pass *p = arg;
    for (size_t i = row0; i < row1; i++) {
        const struct mg_row *r = &p->row[i];
        if (r->feature && p->layer + 1 < r->n_map)
            c->kernels->add(p->w->x + i * p->w->ldx, r->feature + (p->layer + 1) * r->map_stride,
                            p->model->config.text.hidden);
    }
}

/* RMSNorm of the residual rows, prepared for a product with `to`. */
static void norm_and_prepare(struct mg_compute *c, struct pass *p, const float *weight,
                             const struct mg_linear *to) {
    p->norm_weight = weight;
    p->to = to;
    mg_prepare_begin(to, &p->w->in);
    mg_compute_rows(c, norm_rows, p, p->m);
}

static enum mg_status attention(struct mg_compute *c, struct pass *p, struct mg_err *err) {
    const struct mg_text_config *t = &p->model->config.text;
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    struct mg_decoder_work *w = p->w;
    norm_and_prepare(c, p, l->input_norm, &l->qkv[0]);
    struct mg_product qkv[3];
    float *y = w->qkv;
    for (size_t i = 0; i < l->n_qkv; y += l->qkv[i++].n)
        qkv[i] =
            (struct mg_product){.l = &l->qkv[i], .x = &w->in, .m = p->m, .y = y, .ldy = w->ldqkv};
    enum mg_status status = mg_compute_products(c, qkv, l->n_qkv, err);
    if (status != MG_OK) return status;
    mg_compute_rows(c, head_rows, p, p->m);
    struct mg_attention att[MG_MAX_SPAN];
    size_t first = 0;
    for (size_t i = 0; i < p->n_span; first += p->span[i++].n) {
        const struct mg_kv *kv = p->span[i].kv;
        att[i] = (struct mg_attention){.q = w->qkv + first * w->ldqkv,
                                       .ldq = w->ldqkv,
                                       .k = mg_kv_keys(kv, p->layer),
                                       .v = mg_kv_values(kv, p->layer),
                                       .head_stride_kv = kv->head_stride,
                                       .kv_type = kv->type,
                                       .n_head = t->n_head,
                                       .n_head_kv = t->n_head_kv,
                                       .head_dim = t->head_dim,
                                       .n_q = p->span[i].n,
                                       .n_kv = kv->n + p->span[i].n,
                                       .causal = true,
                                       .first_pos = kv->n,
                                       .scale = 1.0f / sqrtf((float)t->head_dim),
                                       .out = w->att + first * w->ldatt,
                                       .ldo = w->ldatt};
    }
    status = mg_compute_attention(c, att, p->n_span, err);
    if (status != MG_OK) return status;
    mg_compute_prepare(c, &l->o, w->att, w->ldatt, &w->in, p->m);
    return mg_compute_linear(c, &l->o, &w->in, p->m, w->x, w->ldx, MG_EPI_ADD, err);
}

static enum mg_status mlp(struct mg_compute *c, struct pass *p, struct mg_err *err) {
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    struct mg_decoder_work *w = p->w;
    norm_and_prepare(c, p, l->post_norm, &l->gate);
    struct mg_product gate_up = {.l = &l->gate,
                                 .up = &l->up,
                                 .x = &w->in,
                                 .m = p->m,
                                 .y = w->ffn,
                                 .ldy = w->ldffn,
                                 .epilogue = MG_EPI_SWIGLU};
    enum mg_status status = mg_compute_products(c, &gate_up, 1, err);
    if (status != MG_OK) return status;
    mg_compute_prepare(c, &l->down, w->ffn, w->ldffn, &w->in, p->m);
    return mg_compute_linear(c, &l->down, &w->in, p->m, w->x, w->ldx, MG_EPI_ADD, err);
}

static enum mg_status check_room(const struct mg_span *span, size_t n_span, size_t m, size_t rows,
                                 struct mg_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < n_span; i++) {
        const struct mg_kv *kv = span[i].kv;
        if (span[i].n > kv->capacity - kv->n)
            return mg_fail(err, MG_ERR_CONTEXT, "context_length_exceeded",
                           "%zu more tokens don't fit: %zu of %zu places are taken", span[i].n,
                           kv->n, kv->capacity);
        n += span[i].n;
    }
    if (m == 0 || m > rows || n != m || n_span > MG_MAX_SPAN)
        return mg_fail(err, MG_ERR_CONTEXT, "context_length_exceeded",
                       "a pass of %zu rows in %zu conversations; at most %zu in %d", m, n_span,
                       rows, MG_MAX_SPAN);
    return MG_OK;
}

enum mg_status mg_decoder_pass(const struct mg_model *model, struct mg_compute *c,
                               struct mg_decoder_work *w, const struct mg_span *span, size_t n_span,
                               const struct mg_row *row, size_t m, struct mg_err *err) {
    const struct mg_text_config *t = &model->config.text;
    if (check_room(span, n_span, m, w->rows, err) != MG_OK) return MG_ERR_CONTEXT;
    struct pass p = {.model = model, .w = w, .span = span, .n_span = n_span, .row = row, .m = m};
    bool pictures = false;
    size_t half = t->head_dim / 2;
    for (size_t i = 0; i < m; i++) {
        mg_text_rope(t, model->rope_freq, &row[i].pos, 1, w->cos + i * half, w->sin + i * half);
        pictures |= row[i].feature != NULL;
    }
    mg_compute_rows(c, embed_rows, &p, m);
    for (p.layer = 0; p.layer < t->n_layer; p.layer++) {
        enum mg_status status = mg_compute_tick(c, p.layer, t->n_layer, err);
        if (status == MG_OK) status = attention(c, &p, err);
        if (status == MG_OK) status = mlp(c, &p, err);
        if (status != MG_OK) return status;
        if (pictures) mg_compute_rows(c, deepstack_rows, &p, m);
    }
    for (size_t i = 0; i < n_span; i++) span[i].kv->n += span[i].n;
    w->last = m - 1;
    return MG_OK;
}

/* Final norm of rows first .. first+n-1, prepared for the head; they become rows 0 .. n-1. */
static void prepare_head(const struct mg_model *model, struct mg_compute *c,
                         struct mg_decoder_work *w, size_t first, size_t n) {
    const struct mg_text_config *t = &model->config.text;
    c->kernels->rms_norm(w->x + first * w->ldx, w->ldx, model->final_norm, t->norm_eps, w->norm,
                         w->ldx, n, t->hidden);
    mg_compute_prepare(c, &model->head, w->norm, w->ldx, &w->in, n);
}

enum mg_status mg_decoder_logits_rows(const struct mg_model *model, struct mg_compute *c,
                                      struct mg_decoder_work *w, size_t first, size_t n,
                                      float *logits, size_t ldl, struct mg_err *err) {
    prepare_head(model, c, w, first, n);
    return mg_compute_linear(c, &model->head, &w->in, n, logits, ldl, MG_EPI_STORE, err);
}

enum mg_status mg_decoder_logits(const struct mg_model *model, struct mg_compute *c,
                                 struct mg_decoder_work *w, size_t i, float *logits,
                                 struct mg_err *err) {
    return mg_decoder_logits_rows(model, c, w, i, 1, logits, model->config.text.n_vocab, err);
}

/* The best of all tasks for row i of n. */
static int32_t best_of(const struct mg_top *top, size_t n_task, size_t n, size_t i) {
    struct mg_top best = top[i];
    for (size_t t = 1; t < n_task && best.value == best.value; t++) {
        const struct mg_top *next = &top[t * n + i];
        if (next->value > best.value || next->value != next->value) best = *next;
    }
    return isfinite(best.value) ? (int32_t)best.index : -1;
}

enum mg_status mg_decoder_top(const struct mg_model *model, struct mg_compute *c,
                              struct mg_decoder_work *w, size_t first, size_t n, size_t n_vocab,
                              float *logits, int32_t *id, struct mg_err *err) {
    if (!mg_linear_is_packed(&model->head)) {
        enum mg_status status = MG_OK;
        for (size_t i = 0; i < n && status == MG_OK; i++) {
            status = mg_decoder_logits(model, c, w, first + i, logits, err);
            bool finite = status == MG_OK && c->kernels->all_finite(logits, n_vocab);
            id[i] = finite ? (int32_t)c->kernels->argmax(logits, n_vocab) : -1;
        }
        return status;
    }
    struct mg_linear head = model->head; /* without the ids that no token has */
    head.n = head.packed.n = mg_min_size(n_vocab, head.n);
    prepare_head(model, c, w, first, n);
    struct mg_product p = {.l = &head, .x = &w->in, .m = n, .epilogue = MG_EPI_TOP, .top = w->top};
    enum mg_status status = mg_compute_products(c, &p, 1, err);
    size_t n_task = mg_compute_top_tasks(c, &head, n);
    for (size_t i = 0; i < n && status == MG_OK; i++) id[i] = best_of(w->top, n_task, n, i);
    return status;
}
