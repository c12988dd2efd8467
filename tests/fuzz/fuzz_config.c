/* Fuzz target: config.json, the preprocessing file and generation_config.json, with a zero byte
 * between them; a part that isn't there is an absent file. */
#include "weights/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The ranges that the code behind relies on. */
static void check(const struct mg_config *c) {
    const struct mg_text_config *t = &c->text;
    const struct mg_vision_config *v = &c->vision;
    const struct mg_preprocess_config *p = &c->preprocess;
    const struct mg_generation_config *g = &c->generation;
    if (t->hidden < 1 || t->hidden > 65536 || t->n_layer < 1 || t->n_layer > MG_MAX_LAYER ||
        t->n_head < 1 || t->n_head > 1024 || t->n_head_kv < 1 || t->n_head % t->n_head_kv ||
        t->head_dim < 2 || t->head_dim > 1024 || t->head_dim % 2 || t->ffn < 1 || t->ffn > 262144 ||
        t->n_vocab < 1 || t->n_vocab > 1 << 24 || t->max_position < 1 || t->max_position > 1 << 24)
        abort();
    if ((t->section[0] + t->section[1] + t->section[2]) * 2 != t->head_dim) abort();
    if (!(t->norm_eps >= 0 && t->norm_eps <= 0.1f) ||
        !(t->rope_theta >= 1 && t->rope_theta <= 1e12f))
        abort();
    if (v->hidden < 1 || v->hidden > 65536 || v->depth < 1 || v->depth > MG_MAX_LAYER ||
        v->n_head < 1 || v->hidden % v->n_head || v->hidden / v->n_head % 4 ||
        v->hidden / v->n_head > 1024 || v->ffn < 1 || v->ffn > 262144 || v->patch < 1 ||
        v->patch > 64 || v->temporal < 1 || v->temporal > 8 || v->merge < 1 || v->merge > 8 ||
        v->out != t->hidden || v->in_channels != 3 || v->n_position < 1 ||
        v->n_position > 1024 * 1024 || v->n_deepstack > MG_MAX_DEEPSTACK)
        abort();
    size_t side = (size_t)lround(sqrt((double)v->n_position));
    if (side * side != v->n_position) abort();
    for (size_t i = 0; i < v->n_deepstack; i++)
        if (v->deepstack[i] >= v->depth || (i && v->deepstack[i] <= v->deepstack[i - 1])) abort();
    if (p->min_pixels < 1 || p->min_pixels > p->max_pixels || p->max_pixels > (uint64_t)1 << 40 ||
        p->patch != v->patch || p->merge != v->merge || p->temporal != v->temporal)
        abort();
    for (int i = 0; i < 3; i++)
        if (!isfinite(p->mean[i]) || !(p->std[i] > 0) || !isfinite(p->std[i])) abort();
    if (!(g->temperature >= 0 && g->temperature <= 100) || !(g->top_p >= 0 && g->top_p <= 1) ||
        g->top_k < 0 || !(g->repetition_penalty > 0 && g->repetition_penalty <= 100) ||
        g->n_end_token > MG_MAX_END_TOKEN)
        abort();
    for (size_t i = 0; i < g->n_end_token; i++)
        if (g->end_token[i] < 0 || (size_t)g->end_token[i] >= t->n_vocab) abort();
    const int32_t id[4] = {c->image_token, c->video_token, c->vision_start, c->vision_end};
    for (int i = 0; i < 4; i++) {
        if (id[i] < 0 || (size_t)id[i] >= t->n_vocab) abort();
        for (int j = 0; j < i; j++)
            if (id[i] == id[j]) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *part[3] = {0}; /* each in a block of its own size */
    size_t size[3] = {0}, at = 0;
    for (int i = 0; i < 3 && at <= n; i++) {
        const uint8_t *zero = i < 2 && at < n ? memchr(data + at, 0, n - at) : NULL;
        size[i] = zero ? (size_t)(zero - data) - at : n - at;
        part[i] = malloc(size[i] ? size[i] : 1);
        if (!part[i]) break;
        if (size[i]) memcpy(part[i], data + at, size[i]);
        at += size[i] + 1;
    }
    struct mg_config c;
    struct mg_err err = {0};
    enum mg_status status =
        mg_config_parse(part[0], size[0], part[1], size[1], part[2], size[2], &c, &err);
    if ((status == MG_OK) != (err.status == MG_OK) || (status != MG_OK && !err.text[0])) abort();
    if (status == MG_OK) check(&c);
    for (int i = 0; i < 3; i++) free(part[i]);
    return 0;
}
