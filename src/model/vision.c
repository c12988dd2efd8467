/* model/vision.c - see vision.h.
 *
 * Working memory for n patches of width h: the residual x and the prepared rows (n*h each), q k v
 * (3*n*h), and blocks of mlp_rows() rows of the MLP, so that memory is linear in n with a small
 * factor:
 *
 *   x, norm [n][h+pad]   rows [n][max(dim, h)+pad]   qkv [n][3h+pad]   keys, values [n][h]
 *   mlp [mlp_rows][ffn+pad], and prepared; wide [mlp_rows][4h]
 */
#include "model/vision.h"

#include "model/position.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of the MLP and mergers at a time. 16 MB of f32 at ffn 4096; where tiles multiply, as much as
 * stays in L2 between the two products: the vision tower is 15 % faster with 128 to 256 rows, while
 * VNNI is a little slower, since the weights are read more often. */
#define MOST_MLP_ROWS 1024
#define TILE_MLP_ROWS 256

struct work {
    const struct mg_model *model;
    struct mg_compute *c;
    const struct mg_vision_config *config;
    size_t n, grid_h, grid_w; /* patches looked at; the whole picture's grid */
    size_t block;             /* being computed */
    size_t ldx, ldqkv, ldmlp, ldwide;
    float *x;             /* [n][ldx] residual stream */
    float *norm;          /* [n][ldx] normed rows; also attention output */
    struct mg_input rows; /* [n] prepared rows; also of patches */
    float *qkv;           /* [n][ldqkv] */
    enum mg_dtype kv_type;
    size_t head_stride;       /* elements */
    void *keys, *values;      /* [n_head][head_stride], see kernels.h */
    float *mlp;               /* [mlp_rows][ldmlp], or merger rows [.][ldwide] */
    struct mg_input mlp_rows; /* the same, prepared */
    float *wide;              /* [mlp_rows][wide] merger input */
    float *cos, *sin;         /* [n][head_dim/2] */
    uint32_t (*place)[2];     /* [n] row and column of each patch in the whole grid */
    struct mg_arena arena;
};

void mg_picture_free(struct mg_picture *f) {
    free(f->row);
    *f = (struct mg_picture){0};
}

static size_t mlp_rows(const struct mg_compute *c) {
    return c->kernels->tier >= MG_TIER_AMX ? TILE_MLP_ROWS : MOST_MLP_ROWS;
}

static enum mg_status make_work(struct work *w, struct mg_err *err) {
    const struct mg_vision_config *c = w->config;
    size_t dim = c->in_channels * c->temporal * c->patch * c->patch;
    size_t wide = c->hidden * c->merge * c->merge, half = c->hidden / c->n_head / 2;
    w->ldx = mg_row_stride(c->hidden);
    w->ldqkv = mg_row_stride(3 * c->hidden);
    w->ldmlp = mg_row_stride(c->ffn);
    w->ldwide = mg_row_stride(wide);
    size_t most = mg_min_size(w->n, mlp_rows(w->c)), mlp = most * mg_max_size(w->ldmlp, w->ldwide);
    w->arena.chunk_size = 4096; /* each of the blocks below gets a chunk of its own */
    w->x = mg_arena_alloc(&w->arena, w->n * w->ldx, sizeof(float));
    w->norm = mg_arena_alloc(&w->arena, w->n * w->ldx, sizeof(float));
    w->rows.rows = mg_arena_alloc(&w->arena, mg_input_bytes(w->n, mg_max_size(dim, c->hidden)), 1);
    w->rows.xs = mg_arena_alloc(&w->arena, w->n, sizeof *w->rows.xs);
    w->qkv = mg_arena_alloc(&w->arena, w->n * w->ldqkv, sizeof(float));
    w->kv_type = w->c->mode == MG_MODE_F32 ? MG_F32 : MG_BF16;
    w->head_stride = mg_kv_room(w->n, 2 * half) + 32;
    size_t kv_bytes = c->n_head * w->head_stride * mg_dtype_size(w->kv_type);
    w->keys = mg_arena_alloc(&w->arena, kv_bytes, 1);
    w->values = mg_arena_alloc(&w->arena, kv_bytes, 1);
    w->mlp = mg_arena_alloc(&w->arena, mlp, sizeof(float));
    w->mlp_rows.rows =
        mg_arena_alloc(&w->arena, mg_input_bytes(most, mg_max_size(c->ffn, wide)), 1);
    w->mlp_rows.xs = mg_arena_alloc(&w->arena, most, sizeof *w->mlp_rows.xs);
    w->wide = mg_arena_alloc(&w->arena, most * wide, sizeof(float));
    w->cos = mg_arena_alloc(&w->arena, w->n * half, sizeof(float));
    w->sin = mg_arena_alloc(&w->arena, w->n * half, sizeof(float));
    w->place = mg_arena_alloc(&w->arena, w->n, sizeof *w->place);
    if (!w->x || !w->keys || !w->values || !w->norm || !w->rows.rows || !w->rows.xs || !w->qkv ||
        !w->mlp || !w->mlp_rows.rows || !w->mlp_rows.xs || !w->wide || !w->cos || !w->sin ||
        !w->place)
        return mg_fail_memory(err, "vision tower");
    return MG_OK;
}

static void add_position_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct work *w = arg;
    size_t hidden = w->config->hidden, side = (size_t)(sqrt((double)w->config->n_position) + 0.5);
    const struct mg_tensor *table = w->model->vision.position;
    size_t row_bytes = hidden * mg_dtype_size(table->dtype);
    float *tap = w->norm + row0 * w->ldx, sum[64]; /* norm's rows are free here */
    for (size_t i = row0; i < row1; i++) {
        size_t index[4];
        float weight[4];
        mg_position_taps(w->place[i][0], w->place[i][1], w->grid_h, w->grid_w, side, index, weight);
        float *x = w->x + i * w->ldx;
        for (size_t j0 = 0; j0 < hidden; j0 += 64) {
            size_t n = mg_min_size(64, hidden - j0);
            memset(sum, 0, sizeof sum);
            for (size_t t = 0; t < 4; t++) {
                const char *at = (const char *)table->data + index[t] * row_bytes;
                c->kernels->widen(table->dtype, at + j0 * mg_dtype_size(table->dtype), tap, n);
                for (size_t j = 0; j < n; j++) sum[j] += tap[j] * weight[t];
            }
            for (size_t j = 0; j < n; j++) x[j0 + j] += sum[j];
        }
    }
}

struct norm_job {
    const float *in;
    size_t ldin, width;
    const struct mg_layer_norm *norm;
    float eps;
    float *out;
    size_t ldout;
    const struct mg_linear *to; /* prepared for it into x, or NULL */
    struct mg_input *x;
};

static void norm_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct norm_job *j = arg;
    c->kernels->layer_norm(j->in + row0 * j->ldin, j->ldin, j->norm->w, j->norm->b, j->eps,
                           j->out + row0 * j->ldout, j->ldout, row1 - row0, j->width);
    if (j->to) mg_prepare_rows(c, j->to, j->out + row0 * j->ldout, j->ldout, j->x, row0, row1);
}

/* LayerNorm of the residual rows, prepared for a product with `to`. */
static void norm_and_prepare(struct work *w, const struct mg_layer_norm *norm,
                             const struct mg_linear *to) {
    struct norm_job job = {w->x,   w->ldx, w->config->hidden, norm, w->config->norm_eps, w->norm,
                           w->ldx, to,     &w->rows};
    mg_prepare_begin(to, &w->rows);
    mg_compute_rows(w->c, norm_rows, &job, w->n);
}

static void rope_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct work *w = arg;
    size_t d = w->config->hidden / w->config->n_head;
    /* q and k lie side by side: 2 * n_head heads of the row */
    c->kernels->rope(w->qkv + row0 * w->ldqkv, w->ldqkv, row1 - row0, 2 * w->config->n_head, d,
                     w->cos + row0 * (d / 2), w->sin + row0 * (d / 2));
    size_t hidden = w->config->hidden, stride = w->head_stride * mg_dtype_size(w->kv_type);
    for (size_t h = 0; h < w->config->n_head; h++) {
        const float *k = w->qkv + row0 * w->ldqkv + hidden + h * d;
        c->kernels->store_kv(w->kv_type, k, k + hidden, w->ldqkv, d, (char *)w->keys + h * stride,
                             (char *)w->values + h * stride, row0, row1 - row0);
    }
}

/* Patches that are computed between two ticks. A block's attention to 4,000 of them takes 0.2 s
 * altogether, and each costs more the more there are, so that fewer are taken of a larger picture.
 */
#define LINEAR_ROWS 4096
static size_t attention_rows(size_t n) {
    size_t rows = n ? ((size_t)1024 * 4096 / n) & ~(size_t)63 : 64;
    return mg_max_size(64, mg_min_size(1024, rows));
}

/* The tick within a block. */
static enum mg_status pause(struct work *w, struct mg_err *err) {
    return mg_compute_tick(w->c, w->block, w->config->depth, err);
}

/* All prepared rows through one matrix, with ticks in between. */
static enum mg_status linear(struct work *w, const struct mg_linear *l, float *y, size_t ldy,
                             enum mg_epilogue epilogue, struct mg_err *err) {
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < w->n && status == MG_OK; i += LINEAR_ROWS) {
        struct mg_product p = {.l = l,
                               .x = &w->rows,
                               .first = i,
                               .m = mg_min_size(LINEAR_ROWS, w->n - i),
                               .y = y + i * ldy,
                               .ldy = ldy,
                               .epilogue = epilogue};
        status = mg_compute_products(w->c, &p, 1, err);
        if (status == MG_OK) status = pause(w, err);
    }
    return status;
}

static enum mg_status attention(struct work *w, const struct mg_vision_block *b,
                                struct mg_err *err) {
    size_t hidden = w->config->hidden, d = hidden / w->config->n_head;
    norm_and_prepare(w, &b->norm1, &b->qkv);
    enum mg_status status = linear(w, &b->qkv, w->qkv, w->ldqkv, MG_EPI_STORE, err);
    if (status != MG_OK) return status;
    mg_compute_rows(w->c, rope_rows, w, w->n);
    struct mg_attention att = {.q = w->qkv,
                               .ldq = w->ldqkv,
                               .k = w->keys,
                               .v = w->values,
                               .head_stride_kv = w->head_stride,
                               .kv_type = w->kv_type,
                               .n_head = w->config->n_head,
                               .n_head_kv = w->config->n_head,
                               .head_dim = d,
                               .n_q = w->n,
                               .n_kv = w->n,
                               .scale = 1.0f / sqrtf((float)d),
                               .out = w->norm,
                               .ldo = w->ldx};
    size_t step = attention_rows(w->n);
    for (size_t i = 0; i < w->n && status == MG_OK; i += step) {
        att.q = w->qkv + i * w->ldqkv;
        att.out = w->norm + i * w->ldx;
        att.n_q = mg_min_size(step, w->n - i);
        status = mg_compute_attention(w->c, &att, 1, err);
        if (status == MG_OK) status = pause(w, err);
    }
    if (status != MG_OK) return status;
    mg_compute_prepare(w->c, &b->proj, w->norm, w->ldx, &w->rows, w->n);
    return linear(w, &b->proj, w->x, w->ldx, MG_EPI_ADD, err);
}

static enum mg_status mlp(struct work *w, const struct mg_vision_block *b, struct mg_err *err) {
    norm_and_prepare(w, &b->norm2, &b->fc1);
    for (size_t i = 0; i < w->n; i += mlp_rows(w->c)) {
        size_t m = mg_min_size(mlp_rows(w->c), w->n - i);
        struct mg_product fc1 = {.l = &b->fc1,
                                 .x = &w->rows,
                                 .first = i,
                                 .m = m,
                                 .y = w->mlp,
                                 .ldy = w->ldmlp,
                                 .epilogue = MG_EPI_GELU_TANH};
        enum mg_status status = mg_compute_products(w->c, &fc1, 1, err);
        if (status != MG_OK) return status;
        mg_compute_prepare(w->c, &b->fc2, w->mlp, w->ldmlp, &w->mlp_rows, m);
        status = mg_compute_linear(w->c, &b->fc2, &w->mlp_rows, m, w->x + i * w->ldx, w->ldx,
                                   MG_EPI_ADD, err);
        if (status == MG_OK) status = pause(w, err);
        if (status != MG_OK) return status;
    }
    return MG_OK;
}

/* Tokens tok0 .. tok0+m-1 as rows [m][wide] in w->wide, normed before or after the view. */
static void gather_merged(struct work *w, const struct mg_merger *g, size_t tok0, size_t m) {
    size_t hidden = w->config->hidden, unit = w->config->merge * w->config->merge,
           wide = hidden * unit;
    const float *x = w->x + tok0 * unit * w->ldx;
    float eps = w->config->norm_eps;
    if (!g->post_shuffle) {
        struct norm_job job = {x, w->ldx, hidden, &g->norm, eps, w->wide, hidden, NULL, NULL};
        mg_compute_rows(w->c, norm_rows, &job, m * unit);
        return;
    }
    for (size_t i = 0; i < m * unit; i++)
        memcpy(w->wide + i * hidden, x + i * w->ldx, hidden * sizeof(float));
    struct norm_job job = {w->wide, wide, wide, &g->norm, eps, w->wide, wide, NULL, NULL};
    mg_compute_rows(w->c, norm_rows, &job, m);
}

static enum mg_status merge(struct work *w, const struct mg_merger *g, float *out,
                            struct mg_err *err) {
    size_t unit = w->config->merge * w->config->merge, n_token = w->n / unit;
    size_t wide = w->config->hidden * unit,
           chunk = mg_max_size(mg_min_size(w->n, mlp_rows(w->c)) / unit, 1);
    for (size_t i = 0; i < n_token; i += chunk) {
        size_t m = mg_min_size(chunk, n_token - i);
        gather_merged(w, g, i, m);
        mg_compute_prepare(w->c, &g->fc1, w->wide, wide, &w->mlp_rows, m);
        enum mg_status status = mg_compute_linear(w->c, &g->fc1, &w->mlp_rows, m, w->mlp, w->ldwide,
                                                  MG_EPI_GELU_ERF, err);
        if (status != MG_OK) return status;
        mg_compute_prepare(w->c, &g->fc2, w->mlp, w->ldwide, &w->mlp_rows, m);
        status = mg_compute_linear(w->c, &g->fc2, &w->mlp_rows, m, out + i * w->config->out,
                                   w->config->out, MG_EPI_STORE, err);
        if (status != MG_OK) return status;
    }
    size_t n = n_token * w->config->out;
    if (!w->c->kernels->all_finite(out, n))
        return mg_fail(err, MG_ERR_NUMERIC, "vision_not_finite",
                       "the vision tower gave values that are not finite for this picture");
    return MG_OK;
}

static enum mg_status run_blocks(struct work *w, struct mg_picture *out, struct mg_err *err) {
    const struct mg_vision_config *c = w->config;
    size_t map = out->n_token * out->width, next_map = 1;
    for (size_t i = 0; i < c->depth; i++) {
        w->block = i;
        enum mg_status status = pause(w, err);
        if (status == MG_OK) status = attention(w, &w->model->vision.block[i], err);
        if (status == MG_OK) status = mlp(w, &w->model->vision.block[i], err);
        for (size_t j = 0; j < c->n_deepstack && status == MG_OK; j++)
            if (c->deepstack[j] == i)
                status = merge(w, &w->model->vision.deepstack[j], out->row + map * next_map++, err);
        if (status != MG_OK) return status;
    }
    enum mg_status status = merge(w, &w->model->vision.merger, out->row, err);
    if (status == MG_OK) status = mg_compute_tick(w->c, c->depth, c->depth, err);
    return status;
}

static void fill_places(struct work *w, const struct mg_vision_input *in) {
    size_t unit = w->config->merge * w->config->merge;
    for (size_t i = 0; i < w->n; i++) {
        size_t row, col, whole = in->cell ? in->cell[i / unit] * unit + i % unit : i;
        mg_patch_place(whole, w->grid_w, w->config->merge, &row, &col);
        w->place[i][0] = (uint32_t)row;
        w->place[i][1] = (uint32_t)col;
    }
}

enum mg_status mg_vision_encode(const struct mg_model *model, struct mg_compute *c,
                                const struct mg_vision_input *in, struct mg_picture *out,
                                struct mg_err *err) {
    const struct mg_vision_config *config = &model->config.vision;
    size_t unit = config->merge * config->merge;
    struct work w = {.model = model,
                     .c = c,
                     .config = config,
                     .n = in->cell ? in->n_cell * unit : in->grid_h * in->grid_w,
                     .grid_h = in->grid_h,
                     .grid_w = in->grid_w};
    size_t dim = config->in_channels * config->temporal * config->patch * config->patch;
    *out = (struct mg_picture){
        .n_token = w.n / unit, .n_map = 1 + config->n_deepstack, .width = config->out};
    out->row = mg_alloc(out->n_map * out->n_token * out->width, sizeof(float));
    enum mg_status status = out->row ? make_work(&w, err) : mg_fail_memory(err, "vision tower");
    if (status == MG_OK) {
        fill_places(&w, in);
        mg_vision_rope((const uint32_t(*)[2])w.place, w.n, config->hidden / config->n_head, w.cos,
                       w.sin);
        mg_compute_prepare(c, &model->vision.patch_embed, in->patch, dim, &w.rows, w.n);
        status = mg_compute_linear(c, &model->vision.patch_embed, &w.rows, w.n, w.x, w.ldx,
                                   MG_EPI_STORE, err);
    }
    if (status == MG_OK) {
        mg_compute_rows(c, add_position_rows, &w, w.n);
        status = run_blocks(&w, out, err);
    }
    mg_arena_free(&w.arena);
    if (status != MG_OK) mg_picture_free(out);
    return status;
}
