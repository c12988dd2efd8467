/* engine/trace.c - see trace.h. */
#include "engine/trace.h"

#include "base/npy.h"
#include "engine/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct trace {
    mg_engine *e;
    mg_chat *chat;
    const char *dir;
    struct layout layout;
    size_t n_patch, dim; /* of all pictures */
    float *pixels;       /* [n_patch][dim] */
    bool given;          /* they came from a file */
    struct mg_err *err;
};

static enum mg_status write_stage(struct trace *t, const char *name, enum mg_npy_type type,
                                  int n_dim, size_t d0, size_t d1, const void *data) {
    char path[4096], file[64];
    size_t dim[2] = {d0, d1};
    snprintf(file, sizeof file, "%s.npy", name);
    enum mg_status status = mg_path_join(path, sizeof path, t->dir, file, t->err);
    return status == MG_OK ? mg_npy_write(path, type, n_dim, dim, data, t->err) : status;
}

static enum mg_status add_turns(struct trace *t, const struct mg_trace_turn *turn, size_t n_turn) {
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < n_turn && status == MG_OK; i++)
        for (size_t j = 0; j < turn[i].n_part && status == MG_OK; j++) {
            const struct mg_trace_part *p = &turn[i].part[j];
            status = p->image ? mg_chat_add_image_file(t->chat, p->text, t->err)
                              : mg_chat_add_text_n(t->chat, turn[i].role, p->text, p->n, t->err);
        }
    if (status == MG_OK && n_turn == 0)
        status = mg_fail(t->err, MG_ERR_ARGUMENT, "", "no messages");
    return status;
}

/* The pictures' rasters are made anew from the given values, and what is pruned is decided on them.
 */
static enum mg_status prune_given(struct trace *t) {
    const float *at = t->pixels;
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < t->chat->n_image && status == MG_OK; i++) {
        struct chat_image *image = &t->chat->image[i];
        mg_patches_to_rgb(at, image->grid_h, image->grid_w, &t->e->patch_config, image->rgb);
        at += (size_t)image->grid_h * image->grid_w * t->dim;
        status = mg_chat_prune(t->e, t->e->options.prune, t->e->options.prune_near, image, t->err);
    }
    return status;
}

/* The pictures' own patches one after another, or those of the given file. */
static enum mg_status make_pixels(struct trace *t, const char *file) {
    const struct mg_patch_config *c = &t->e->patch_config;
    t->dim = 3 * (size_t)c->temporal * c->patch * c->patch;
    for (size_t i = 0; i < t->chat->n_image; i++)
        t->n_patch += (size_t)t->chat->image[i].grid_h * t->chat->image[i].grid_w;
    t->pixels = mg_alloc(t->n_patch * t->dim, sizeof(float));
    if (!t->pixels) return mg_fail_memory(t->err, "pixel values");
    float *at = t->pixels;
    for (size_t i = 0; i < t->chat->n_image; i++) {
        struct chat_image *image = &t->chat->image[i];
        struct mg_patches p;
        enum mg_status status =
            mg_patches_cut(image->rgb, image->grid_h, image->grid_w, c, &p, t->err);
        if (status != MG_OK) return status;
        memcpy(at, p.value, p.n * p.dim * sizeof *at);
        at += p.n * p.dim;
        mg_patches_free(&p);
    }
    if (!file) return MG_OK;
    struct mg_npy npy;
    enum mg_status status = mg_npy_read(file, &npy, t->err);
    if (status != MG_OK) return status;
    if (npy.type != MG_NPY_F32 || npy.n_dim != 2 || npy.dim[0] != t->n_patch ||
        npy.dim[1] != t->dim)
        status = mg_fail(t->err, MG_ERR_ARGUMENT, "", "%s: wanted f32 [%zu][%zu]", file, t->n_patch,
                         t->dim);
    else
        memcpy(t->pixels, npy.data, npy.n * sizeof(float));
    mg_npy_free(&npy);
    t->given = true;
    return status == MG_OK ? prune_given(t) : status;
}

static enum mg_status write_prompt(struct trace *t) {
    struct layout *l = &t->layout;
    size_t n_image = t->chat->n_image;
    int32_t *out = mg_alloc(mg_max_size(3 * l->n, 3 * n_image), sizeof *out);
    if (!out) return mg_fail_memory(t->err, "trace");
    for (size_t i = 0; i < l->n; i++) out[i] = l->prompt.ids.id[i];
    enum mg_status status = write_stage(t, "input_ids", MG_NPY_I32, 1, l->n, 0, out);
    for (size_t axis = 0; axis < 3; axis++)
        for (size_t i = 0; i < l->n; i++) out[axis * l->n + i] = l->pos[i][axis];
    if (status == MG_OK) status = write_stage(t, "position_ids", MG_NPY_I32, 2, 3, l->n, out);
    for (size_t i = 0; i < n_image; i++) {
        out[3 * i] = 1;
        out[3 * i + 1] = (int32_t)t->chat->image[i].grid_h;
        out[3 * i + 2] = (int32_t)t->chat->image[i].grid_w;
    }
    if (status == MG_OK && n_image)
        status = write_stage(t, "image_grid_thw", MG_NPY_I32, 2, n_image, 3, out);
    free(out);
    return status;
}

/* Places of the kept cells, counted through all pictures. */
static enum mg_status write_kept(struct trace *t) {
    size_t first = 0, n = 0, merge = t->e->patch_config.merge;
    int32_t *out = mg_alloc(t->layout.n_image_token, sizeof *out);
    if (!out) return mg_fail_memory(t->err, "trace");
    for (size_t i = 0; i < t->chat->n_image; i++) {
        const struct chat_image *image = &t->chat->image[i];
        for (size_t k = 0; k < image->n_token; k++)
            out[n++] = (int32_t)(first + (image->kept.index ? image->kept.index[k] : k));
        first += (size_t)image->grid_h * image->grid_w / merge / merge;
    }
    enum mg_status status = write_stage(t, "kept", MG_NPY_I32, 1, n, 0, out);
    free(out);
    return status;
}

/* Encodes the pictures, from the given values if there are any; a pruned picture's are first
 * brought together at their beginning. */
static enum mg_status encode(struct trace *t) {
    float *pixels = t->pixels;
    size_t merge = t->e->patch_config.merge, cell = merge * merge * t->dim; /* values */
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < t->chat->n_image && status == MG_OK; i++) {
        struct chat_image *image = &t->chat->image[i];
        for (size_t k = 0; k < image->kept.n; k++)
            memmove(pixels + k * cell, pixels + image->kept.index[k] * cell, cell * sizeof *pixels);
        status = mg_chat_encode(t->chat, i, t->given ? pixels : NULL, t->err);
        pixels += (size_t)image->grid_h * image->grid_w * t->dim;
    }
    return status;
}

static enum mg_status write_vision(struct trace *t) {
    enum mg_status status =
        write_stage(t, "pixel_values", MG_NPY_F32, 2, t->n_patch, t->dim, t->pixels);
    if (status == MG_OK && t->e->options.prune != MG_PRUNE_OFF) status = write_kept(t);
    if (status == MG_OK) status = encode(t);
    if (status != MG_OK) return status;
    size_t n_map = t->chat->image[0].picture.n_map, width = t->chat->image[0].picture.width;
    float *rows = mg_alloc(t->layout.n_image_token * width, sizeof *rows);
    if (!rows) return mg_fail_memory(t->err, "trace");
    for (size_t map = 0; map < n_map && status == MG_OK; map++) {
        float *at = rows;
        for (size_t i = 0; i < t->chat->n_image; i++) {
            const struct mg_picture *p = &t->chat->image[i].picture;
            memcpy(at, p->row + map * p->n_token * width, p->n_token * width * sizeof *at);
            at += p->n_token * width;
        }
        char name[32] = "vision";
        if (map) snprintf(name, sizeof name, "deepstack_%zu", map - 1);
        status = write_stage(t, name, MG_NPY_F32, 2, t->layout.n_image_token, width, rows);
    }
    free(rows);
    return status;
}

static enum mg_status write_answer(struct trace *t, size_t max_tokens) {
    size_t n_vocab = t->e->model->config.text.n_vocab;
    enum mg_status status = mg_chat_prefill(t->chat, &t->layout, 0, NULL, NULL, t->err);
    if (status == MG_OK) status = mg_chat_logits(t->chat, t->err);
    if (status == MG_OK) status = write_stage(t, "logits", MG_NPY_F32, 1, n_vocab, 0, t->e->logits);
    int32_t *greedy = mg_alloc(max_tokens, sizeof *greedy);
    if (status == MG_OK && !greedy) status = mg_fail_memory(t->err, "trace");
    for (size_t i = 0; i < max_tokens && status == MG_OK; i++) {
        greedy[i] = (int32_t)t->e->kernels.argmax(t->e->logits, n_vocab);
        if (i + 1 == max_tokens) break;
        status = mg_chat_step(t->chat, greedy[i], t->layout.next_pos + (int32_t)i, t->err);
        if (status == MG_OK) status = mg_chat_logits(t->chat, t->err);
    }
    if (status == MG_OK) status = write_stage(t, "greedy", MG_NPY_I32, 1, max_tokens, 0, greedy);
    free(greedy);
    return status;
}

enum mg_status mg_trace_run(mg_engine *e, const struct mg_trace_turn *turn, size_t n_turn,
                            const char *pixel_values, size_t max_tokens, const char *out_dir,
                            struct mg_err *err) {
    struct trace t = {.e = e, .dir = out_dir, .err = err};
    if (mkdir(out_dir, 0777) != 0 && errno != EEXIST)
        return mg_fail_errno(err, "make the folder", out_dir, errno);
    enum mg_status status = mg_chat_open(e, &t.chat, err);
    if (status == MG_OK) status = add_turns(&t, turn, n_turn);
    if (status == MG_OK && t.chat->n_image) status = make_pixels(&t, pixel_values);
    if (status == MG_OK) status = mg_layout_make(t.chat, &t.layout, err);
    if (status == MG_OK &&
        (t.layout.n > e->options.context || max_tokens > e->options.context - t.layout.n))
        status = mg_fail(err, MG_ERR_CONTEXT, "context_length_exceeded",
                         "%zu prompt tokens and %zu more don't fit into %zu", t.layout.n,
                         max_tokens, e->options.context);
    if (status == MG_OK) status = write_prompt(&t);
    if (status == MG_OK && t.chat->n_image) status = write_vision(&t);
    if (status == MG_OK) status = write_answer(&t, max_tokens);
    mg_layout_free(&t.layout);
    free(t.pixels);
    mg_chat_close(t.chat);
    return status;
}
