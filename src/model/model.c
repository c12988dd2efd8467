/* model/model.c - see model.h. */
#include "model/model.h"

#include "model/position.h"
#include "weights/fits.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define VISION "model.visual."
#define TEXT "model.language_model."

/* Everything the bind functions need; the first failure sticks in `status`. */
struct binder {
    struct mg_model *model;
    struct mg_err *err;
    enum mg_status status;
    char prefix[128]; /* of the names, e.g. "model.language_model.layers.3." */
};

static void set_prefix(struct binder *b, const char *fmt, ...) MG_PRINTF(2, 3);
static void set_prefix(struct binder *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->prefix, sizeof b->prefix, fmt, ap);
    va_end(ap);
}

static const struct mg_tensor *need(struct binder *b, const char *name, int n_dim,
                                    const size_t *dim) {
    char full[256];
    const struct mg_tensor *t = NULL;
    if (b->status != MG_OK) return NULL;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    b->status = mg_weights_need(b->model->weights, full, n_dim, dim, &t, b->err);
    return b->status == MG_OK ? t : NULL;
}

static float *bind_vector(struct binder *b, const char *name, size_t n) {
    const struct mg_tensor *t = need(b, name, 1, &n);
    if (!t) return NULL;
    float *out = mg_arena_alloc(&b->model->arena, n, sizeof *out);
    if (!out) {
        b->status = mg_fail_memory(b->err, name);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) out[i] = mg_load_f32(t->dtype, t->data, i);
    return out;
}

/* The packed matrix of this name, if there is one. */
static bool bind_packed(struct binder *b, const char *name, bool interleaved, size_t n, size_t k,
                        struct mg_linear *out) {
    char full[192];
    bool found = false;
    if (b->status != MG_OK || !b->model->packed) return false;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    *out = (struct mg_linear){.n = n, .k = k};
    b->status =
        mg_packed_find(b->model->weights, full, interleaved, n, k, &found, &out->packed, b->err);
    return found && b->status == MG_OK;
}

static void bind_linear_shape(struct binder *b, const char *name, int n_dim, const size_t *dim,
                              bool bias, struct mg_linear *out) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct mg_tensor *t = need(b, full, n_dim, dim);
    if (!t) return;
    *out = (struct mg_linear){.w = t->data, .type = t->dtype, .n = dim[0], .k = t->n / dim[0]};
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) out->bias = bind_vector(b, full, dim[0]);
}

static void bind_linear(struct binder *b, const char *name, size_t n, size_t k, bool bias,
                        struct mg_linear *out) {
    size_t dim[2] = {n, k};
    if (!bind_packed(b, name, false, n, k, out)) {
        bind_linear_shape(b, name, 2, dim, bias, out);
        return;
    }
    char full[96];
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) out->bias = bind_vector(b, full, n);
}

static void bind_layer_norm(struct binder *b, const char *name, size_t n,
                            struct mg_layer_norm *out) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    out->w = bind_vector(b, full, n);
    snprintf(full, sizeof full, "%s.bias", name);
    out->b = bind_vector(b, full, n);
}

static void bind_merger(struct binder *b, bool post_shuffle, struct mg_merger *out) {
    const struct mg_vision_config *c = &b->model->config.vision;
    size_t wide = c->hidden * c->merge * c->merge;
    out->post_shuffle = post_shuffle;
    bind_layer_norm(b, "norm", post_shuffle ? wide : c->hidden, &out->norm);
    bind_linear(b, "linear_fc1", wide, wide, true, &out->fc1);
    bind_linear(b, "linear_fc2", c->out, wide, true, &out->fc2);
}

static void bind_vision(struct binder *b) {
    const struct mg_vision_config *c = &b->model->config.vision;
    struct mg_vision *v = &b->model->vision;
    set_prefix(b, VISION);
    size_t conv[5] = {c->hidden, c->in_channels, c->temporal, c->patch, c->patch};
    bind_linear_shape(b, "patch_embed.proj", 5, conv, true, &v->patch_embed);
    size_t table[2] = {c->n_position, c->hidden};
    v->position = need(b, "pos_embed.weight", 2, table);
    v->block = mg_arena_alloc(&b->model->arena, c->depth, sizeof *v->block);
    if (!v->block) {
        b->status = mg_fail_memory(b->err, "vision blocks");
        return;
    }
    for (size_t i = 0; i < c->depth && b->status == MG_OK; i++) {
        struct mg_vision_block *block = &v->block[i];
        memset(block, 0, sizeof *block);
        set_prefix(b, VISION "blocks.%zu.", i);
        bind_layer_norm(b, "norm1", c->hidden, &block->norm1);
        bind_layer_norm(b, "norm2", c->hidden, &block->norm2);
        bind_linear(b, "attn.qkv", 3 * c->hidden, c->hidden, true, &block->qkv);
        bind_linear(b, "attn.proj", c->hidden, c->hidden, true, &block->proj);
        bind_linear(b, "mlp.linear_fc1", c->ffn, c->hidden, true, &block->fc1);
        bind_linear(b, "mlp.linear_fc2", c->hidden, c->ffn, true, &block->fc2);
    }
    set_prefix(b, VISION "merger.");
    bind_merger(b, false, &v->merger);
    for (size_t i = 0; i < c->n_deepstack && b->status == MG_OK; i++) {
        set_prefix(b, VISION "deepstack_merger_list.%zu.", i);
        bind_merger(b, true, &v->deepstack[i]);
    }
}

/* q, k and v in one packed matrix, q and k in one, or three. */
static void bind_qkv(struct binder *b, struct mg_decoder_layer *l) {
    const struct mg_text_config *c = &b->model->config.text;
    size_t q = c->n_head * c->head_dim, kv = c->n_head_kv * c->head_dim;
    l->n_qkv = 1;
    if (bind_packed(b, "self_attn.qkv_proj", false, q + 2 * kv, c->hidden, &l->qkv[0])) return;
    if (!bind_packed(b, "self_attn.qk_proj", false, q + kv, c->hidden, &l->qkv[0])) {
        bind_linear(b, "self_attn.q_proj", q, c->hidden, false, &l->qkv[0]);
        bind_linear(b, "self_attn.k_proj", kv, c->hidden, false, &l->qkv[l->n_qkv++]);
    }
    bind_linear(b, "self_attn.v_proj", kv, c->hidden, false, &l->qkv[l->n_qkv++]);
    /* One set of prepared rows serves all of them. */
    for (size_t i = 1; i < l->n_qkv && b->status == MG_OK; i++)
        if (mg_linear_is_packed(&l->qkv[i]) != mg_linear_is_packed(&l->qkv[0]))
            b->status = mg_fail(b->err, MG_ERR_UNSUPPORTED, "",
                                "%sself_attn: some of q, k, v are packed, some are not", b->prefix);
}

static void bind_layers(struct binder *b) {
    struct mg_model *model = b->model;
    const struct mg_text_config *c = &model->config.text;
    model->layer = mg_arena_alloc(&model->arena, c->n_layer, sizeof *model->layer);
    if (!model->layer) {
        b->status = mg_fail_memory(b->err, "decoder layers");
        return;
    }
    size_t q = c->n_head * c->head_dim;
    for (size_t i = 0; i < c->n_layer && b->status == MG_OK; i++) {
        struct mg_decoder_layer *l = &model->layer[i];
        memset(l, 0, sizeof *l);
        set_prefix(b, TEXT "layers.%zu.", i);
        l->input_norm = bind_vector(b, "input_layernorm.weight", c->hidden);
        l->post_norm = bind_vector(b, "post_attention_layernorm.weight", c->hidden);
        l->q_norm = bind_vector(b, "self_attn.q_norm.weight", c->head_dim);
        l->k_norm = bind_vector(b, "self_attn.k_norm.weight", c->head_dim);
        bind_qkv(b, l);
        bind_linear(b, "self_attn.o_proj", c->hidden, q, false, &l->o);
        if (!bind_packed(b, "mlp.gate_up_proj", true, c->ffn, c->hidden, &l->gate)) {
            bind_linear(b, "mlp.gate_proj", c->ffn, c->hidden, false, &l->gate);
            bind_linear(b, "mlp.up_proj", c->ffn, c->hidden, false, &l->up);
            if (b->status == MG_OK && (mg_linear_is_packed(&l->gate) ||
                                       mg_linear_is_packed(&l->up) || l->gate.type != l->up.type))
                b->status = mg_fail(b->err, MG_ERR_UNSUPPORTED, "",
                                    "%smlp.gate_proj and up_proj have different element types, or "
                                    "are packed apart",
                                    b->prefix);
        }
        bind_linear(b, "mlp.down_proj", c->hidden, c->ffn, false, &l->down);
    }
}

/* Tied: one matrix under either name. */
static void bind_head(struct binder *b) {
    struct mg_model *model = b->model;
    const struct mg_text_config *c = &model->config.text;
    size_t dim[2] = {c->n_vocab, c->hidden};
    const struct mg_tensor *extra = mg_weights_find(model->weights, "lm_head.weight");
    bool has_embed = mg_weights_find(model->weights, TEXT "embed_tokens.weight") ||
                     mg_weights_find(model->weights, TEXT "embed_tokens.packed");
    bool only_head =
        c->tied && !has_embed && (extra || mg_weights_find(model->weights, "lm_head.packed"));
    set_prefix(b, "%s", only_head ? "" : TEXT);
    bind_linear(b, only_head ? "lm_head" : "embed_tokens", dim[0], dim[1], false, &model->embed);
    set_prefix(b, TEXT);
    model->final_norm = bind_vector(b, "norm.weight", c->hidden);
    set_prefix(b, "%s", "");
    if (b->status != MG_OK) return;
    if (!c->tied) {
        bind_linear(b, "lm_head", c->n_vocab, c->hidden, false, &model->head);
        return;
    }
    model->head = model->embed;
}

/* Weights and configuration, from a packed file or a folder. */
static enum mg_status open_files(struct mg_model *model, const char *path, struct mg_err *err) {
    enum mg_status status = MG_OK;
    struct stat st;
    if (!model->weights) { /* a folder's config first: its errors tell more about a wrong folder */
        if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
            status = mg_config_open(path, &model->config, err);
        if (status == MG_OK) status = mg_weights_open(path, &model->weights, err);
    }
    if (status == MG_OK)
        status = mg_manifest_read(model->weights, &model->packed, &model->manifest, err);
    if (status != MG_OK) return status;
    if (model->packed) return mg_packed_file_config(model->weights, &model->config, err);
    if (model->config.text.hidden == 0)
        return mg_fail(err, MG_ERR_FORMAT, "not_packed",
                       "%s is not a packed file; name the checkpoint's folder, or make one with "
                       "margay convert",
                       path);
    return MG_OK;
}

/* A packed file's numbers are counted by its shapes. */
static void count_parameters(struct mg_model *model) {
    for (size_t i = 0; i < mg_weights_count(model->weights); i++) {
        const struct mg_tensor *t = mg_weights_at(model->weights, i);
        size_t len = strlen(t->name);
        if (!model->packed || t->dtype == MG_BF16)
            model->n_parameter += t->n;
        else if (t->dtype == MG_F32 && (len < 6 || strcmp(t->name + len - 6, ".scale") != 0))
            model->n_parameter += t->n;
        else if (len > 7 && !strcmp(t->name + len - 7, ".packed") && t->n_dim == 3)
            model->n_parameter += t->dim[0] * MG_PANEL * t->dim[1] * MG_PACK_K;
    }
}

enum mg_status mg_model_open(const char *path, struct mg_weights *weights, struct mg_model **out,
                             struct mg_err *err) {
    *out = NULL;
    struct mg_model *model = calloc(1, sizeof *model);
    if (!model) {
        mg_weights_close(weights);
        return mg_fail_memory(err, "model");
    }
    model->weights = weights;
    struct binder b = {.model = model, .err = err};
    b.status = open_files(model, path, err);
    if (b.status == MG_OK && model->config.vision.out != model->config.text.hidden)
        b.status = mg_fail(err, MG_ERR_FORMAT, "",
                           "config.json: vision out_hidden_size %zu is not text hidden_size %zu",
                           model->config.vision.out, model->config.text.hidden);
    if (b.status == MG_OK) bind_vision(&b);
    if (b.status == MG_OK) bind_layers(&b);
    if (b.status == MG_OK) bind_head(&b);
    if (b.status == MG_OK) b.status = mg_checkpoint_fits(model->weights, &model->config, err);
    if (b.status == MG_OK) {
        const struct mg_text_config *c = &model->config.text;
        model->rope_freq = mg_arena_alloc(&model->arena, c->head_dim / 2, sizeof(float));
        if (model->rope_freq)
            mg_rope_freq(c, model->rope_freq);
        else
            b.status = mg_fail_memory(err, "rotary table");
    }
    if (b.status != MG_OK) {
        mg_model_close(model);
        return b.status;
    }
    count_parameters(model);
    *out = model;
    return MG_OK;
}

void mg_model_close(struct mg_model *model) {
    if (!model) return;
    mg_weights_close(model->weights);
    mg_arena_free(&model->arena);
    free(model);
}

void mg_model_embed(const struct mg_model *model, const struct mg_kernels *kernels, int32_t id,
                    float *out) {
    const struct mg_linear *e = &model->embed;
    size_t row = (size_t)id;
    if (!mg_linear_is_packed(e)) {
        kernels->widen(e->type, (const char *)e->w + row * e->k * mg_dtype_size(e->type), out,
                       e->k);
        return;
    }
    const int8_t *panel = (const int8_t *)e->packed.data +
                          row / MG_PANEL * mg_packed_panel_bytes(e->packed.kind, e->k);
    float scale = e->packed.scale[row];
    for (size_t j = 0; j < e->k; j++)
        out[j] = scale * (float)(e->packed.kind == MG_PACK_INT4
                                     ? mg_packed_int4(panel, row % MG_PANEL, j)
                                     : panel[mg_packed_place(row % MG_PANEL, j)]);
}
