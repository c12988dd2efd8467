/* model/decoder.c - see decoder.h. */
#include "model/decoder.h"

#include "model/position.h"

#include <math.h>
#include <string.h>

enum mg_status mg_decoder_work_open(struct mg_decoder_work *w, const struct mg_model *model,
                                    size_t rows, struct mg_err *err) {
    const struct mg_text_config *c = &model->config.text;
    *w = (struct mg_decoder_work){.rows = rows, .arena.chunk_size = 4096};
    w->ldx = mg_row_stride(c->hidden);
    w->ldq = mg_row_stride(c->n_head * c->head_dim);
    w->ldkv = mg_row_stride(c->n_head_kv * c->head_dim);
    w->ldffn = mg_row_stride(c->ffn);
    w->ldin = mg_max_size(mg_max_size(w->ldx, w->ldq), w->ldffn);
    w->x = mg_arena_alloc(&w->arena, rows * w->ldx, sizeof(float));
    w->norm = mg_arena_alloc(&w->arena, rows * w->ldx, sizeof(float));
    w->q = mg_arena_alloc(&w->arena, rows * w->ldq, sizeof(float));
    w->att = mg_arena_alloc(&w->arena, rows * w->ldq, sizeof(float));
    w->k = mg_arena_alloc(&w->arena, rows * w->ldkv, sizeof(float));
    w->v = mg_arena_alloc(&w->arena, rows * w->ldkv, sizeof(float));
    w->ffn = mg_arena_alloc(&w->arena, rows * w->ldffn, sizeof(float));
    w->in = mg_arena_alloc(&w->arena, rows * w->ldin, sizeof(float));
    w->cos = mg_arena_alloc(&w->arena, rows * c->head_dim / 2, sizeof(float));
    w->sin = mg_arena_alloc(&w->arena, rows * c->head_dim / 2, sizeof(float));
    if (w->x && w->norm && w->q && w->att && w->k && w->v && w->ffn && w->in && w->cos && w->sin)
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
    struct mg_kv *kv;
    const struct mg_row *row;
    size_t m, layer;
    const float *norm_weight; /* of the norm being taken */
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
    c->kernels->rms_norm(p->w->x + row0 * p->w->ldx, p->w->ldx, p->norm_weight, t->norm_eps,
                         p->w->norm + row0 * p->w->ldx, p->w->ldx, row1 - row0, t->hidden);
}

static void store_head(const struct mg_compute *c, const struct mg_kv *kv, void *head0, size_t head,
                       size_t at, const float *value) {
    size_t offset = head * kv->head_stride + at * kv->head_dim;
    if (kv->type == MG_BF16)
        c->kernels->to_bf16(value, (uint16_t *)head0 + offset, kv->head_dim);
    else
        memcpy((float *)head0 + offset, value, kv->head_dim * sizeof *value);
}

/* q and k: norm per head, rotary; then k and v into the conversation. */
static void head_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct pass *p = arg;
    const struct mg_text_config *t = &p->model->config.text;
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    size_t d = t->head_dim, half = d / 2;
    for (size_t i = row0; i < row1; i++) {
        float *q = p->w->q + i * p->w->ldq, *k = p->w->k + i * p->w->ldkv,
              *v = p->w->v + i * p->w->ldkv;
        c->kernels->rms_norm(q, d, l->q_norm, t->norm_eps, q, d, t->n_head, d);
        c->kernels->rms_norm(k, d, l->k_norm, t->norm_eps, k, d, t->n_head_kv, d);
        c->kernels->rope(q, p->w->ldq, 1, t->n_head, d, p->w->cos + i * half, p->w->sin + i * half);
        c->kernels->rope(k, p->w->ldkv, 1, t->n_head_kv, d, p->w->cos + i * half,
                         p->w->sin + i * half);
        for (size_t h = 0; h < t->n_head_kv; h++) {
            store_head(c, p->kv, mg_kv_keys(p->kv, p->layer), h, p->kv->n + i, k + h * d);
            store_head(c, p->kv, mg_kv_values(p->kv, p->layer), h, p->kv->n + i, v + h * d);
        }
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

/* RMSNorm of the residual rows, prepared for a product. */
static void norm_and_prepare(struct mg_compute *c, struct pass *p, const float *weight) {
    p->norm_weight = weight;
    mg_compute_rows(c, norm_rows, p, p->m);
    mg_compute_prepare(c, p->w->norm, p->w->ldx, p->w->in, p->w->ldin, p->m,
                       p->model->config.text.hidden);
}

static enum mg_status attention(struct mg_compute *c, struct pass *p, struct mg_err *err) {
    const struct mg_text_config *t = &p->model->config.text;
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    struct mg_decoder_work *w = p->w;
    norm_and_prepare(c, p, l->input_norm);
    struct mg_matmul qkv[3] = {
        mg_linear_op(c, &l->q, w->in, w->ldin, p->m, w->q, w->ldq, MG_EPI_STORE),
        mg_linear_op(c, &l->k, w->in, w->ldin, p->m, w->k, w->ldkv, MG_EPI_STORE),
        mg_linear_op(c, &l->v, w->in, w->ldin, p->m, w->v, w->ldkv, MG_EPI_STORE)};
    enum mg_status status = mg_compute_matmul(c, qkv, 3, err);
    if (status != MG_OK) return status;
    mg_compute_rows(c, head_rows, p, p->m);
    struct mg_attention att = {.q = w->q,
                               .ldq = w->ldq,
                               .k = mg_kv_keys(p->kv, p->layer),
                               .v = mg_kv_values(p->kv, p->layer),
                               .ldkv = t->head_dim,
                               .head_stride_kv = p->kv->head_stride,
                               .kv_type = p->kv->type,
                               .n_head = t->n_head,
                               .n_head_kv = t->n_head_kv,
                               .head_dim = t->head_dim,
                               .n_q = p->m,
                               .n_kv = p->kv->n + p->m,
                               .causal = true,
                               .first_pos = p->kv->n,
                               .scale = 1.0f / sqrtf((float)t->head_dim),
                               .out = w->att,
                               .ldo = w->ldq};
    status = mg_compute_attention(c, &att, err);
    if (status != MG_OK) return status;
    mg_compute_prepare(c, w->att, w->ldq, w->in, w->ldin, p->m, t->n_head * t->head_dim);
    struct mg_matmul o = mg_linear_op(c, &l->o, w->in, w->ldin, p->m, w->x, w->ldx, MG_EPI_ADD);
    return mg_compute_matmul(c, &o, 1, err);
}

static enum mg_status mlp(struct mg_compute *c, struct pass *p, struct mg_err *err) {
    const struct mg_decoder_layer *l = &p->model->layer[p->layer];
    struct mg_decoder_work *w = p->w;
    norm_and_prepare(c, p, l->post_norm);
    struct mg_matmul op =
        mg_linear_op(c, &l->gate, w->in, w->ldin, p->m, w->ffn, w->ldffn, MG_EPI_SWIGLU);
    op.w2 = l->up.w;
    enum mg_status status = mg_compute_matmul(c, &op, 1, err);
    if (status != MG_OK) return status;
    mg_compute_prepare(c, w->ffn, w->ldffn, w->in, w->ldin, p->m, p->model->config.text.ffn);
    op = mg_linear_op(c, &l->down, w->in, w->ldin, p->m, w->x, w->ldx, MG_EPI_ADD);
    return mg_compute_matmul(c, &op, 1, err);
}

enum mg_status mg_decoder_pass(const struct mg_model *model, struct mg_compute *c,
                               struct mg_decoder_work *w, struct mg_kv *kv,
                               const struct mg_row *row, size_t m, struct mg_err *err) {
    const struct mg_text_config *t = &model->config.text;
    if (m == 0 || m > w->rows || m > kv->capacity - kv->n)
        return mg_fail(err, MG_ERR_CONTEXT, "context_length_exceeded",
                       "%zu more tokens don't fit: %zu of %zu places are taken", m, kv->n,
                       kv->capacity);
    struct pass p = {.model = model, .w = w, .kv = kv, .row = row, .m = m};
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
    kv->n += m;
    w->last = m - 1;
    return MG_OK;
}

enum mg_status mg_decoder_logits(const struct mg_model *model, struct mg_compute *c,
                                 struct mg_decoder_work *w, size_t i, float *logits,
                                 struct mg_err *err) {
    const struct mg_text_config *t = &model->config.text;
    c->kernels->rms_norm(w->x + i * w->ldx, w->ldx, model->final_norm, t->norm_eps, w->norm, w->ldx,
                         1, t->hidden);
    mg_compute_prepare(c, w->norm, w->ldx, w->in, w->ldin, 1, t->hidden);
    struct mg_matmul op =
        mg_linear_op(c, &model->head, w->in, w->ldin, 1, logits, t->n_vocab, MG_EPI_STORE);
    return mg_compute_matmul(c, &op, 1, err);
}
