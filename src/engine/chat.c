/* engine/chat.c - a conversation's turns and pictures. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

enum mg_status mg_chat_open(mg_engine *engine, mg_chat **out, struct mg_err *err) {
    *out = NULL;
    struct mg_chat *chat = calloc(1, sizeof *chat);
    if (!chat) return mg_fail_memory(err, "chat");
    chat->engine = engine;
    const struct mg_text_config *t = &engine->model->config.text;
    enum mg_dtype type = engine->mode == MG_MODE_BF16 ? MG_BF16 : MG_F32;
    enum mg_status status = mg_kv_open(&chat->kv, type, t->n_layer, t->n_head_kv, t->head_dim,
                                       engine->options.context, err);
    if (status == MG_OK) {
        chat->kv_id = mg_alloc(engine->options.context, sizeof *chat->kv_id);
        if (!chat->kv_id) status = mg_fail_memory(err, "chat");
    }
    if (status != MG_OK) {
        mg_chat_close(chat);
        return status;
    }
    *out = chat;
    return MG_OK;
}

static void free_image(struct chat_image *image) {
    free(image->rgb);
    mg_cells_free(&image->kept);
    mg_fingerprint_close(image->print);
    if (image->shared)
        mg_feature_release(image->shared);
    else
        mg_picture_free(&image->picture);
}

void mg_chat_close(mg_chat *chat) {
    if (!chat) return;
    for (size_t i = 0; i < chat->n_turn; i++) {
        mg_buf_free(&chat->turn[i].text);
        free(chat->turn[i].part);
    }
    for (size_t i = 0; i < chat->n_image; i++) free_image(&chat->image[i]);
    free(chat->turn);
    free(chat->image);
    free(chat->kv_id);
    mg_kv_close(&chat->kv);
    mg_buf_free(&chat->answer_text);
    mg_ids_free(&chat->answer_ids);
    free(chat);
}

/* Makes room for one more element of `size` bytes in a list; false when memory is short. */
static bool grow(void **list, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return true;
    size_t more = mg_max_size(4, *cap * 2);
    void *p = mg_realloc(*list, more, size);
    if (!p) return false;
    *list = p;
    *cap = more;
    return true;
}

enum mg_status mg_chat_add_part(struct mg_chat *chat, enum mg_chat_role role, bool new_turn,
                                const char *text, size_t n, const size_t *image,
                                struct mg_err *err) {
    new_turn |= chat->n_turn == 0 || chat->turn[chat->n_turn - 1].role != role;
    if (new_turn && !grow((void **)&chat->turn, chat->n_turn, &chat->cap_turn, sizeof *chat->turn))
        return mg_fail_memory(err, "chat");
    struct chat_turn fresh = {.role = role}, *t = new_turn ? &fresh : &chat->turn[chat->n_turn - 1];
    bool join =
        !image && t->n_part && !t->part[t->n_part - 1].is_image; /* text on text: one part */
    bool ok = join || grow((void **)&t->part, t->n_part, &t->cap_part, sizeof *t->part);
    if (ok && !image) ok = mg_buf_add(&t->text, text, n);
    if (!ok) {
        t->text.failed = false;
        if (new_turn) {
            mg_buf_free(&fresh.text);
            free(fresh.part);
        }
        return mg_fail_memory(err, "chat");
    }
    if (join)
        t->part[t->n_part - 1].n += n;
    else if (image)
        t->part[t->n_part++] = (struct chat_part){.is_image = true, .image = *image};
    else
        t->part[t->n_part++] = (struct chat_part){.at = t->text.n - n, .n = n};
    if (new_turn) chat->turn[chat->n_turn++] = fresh;
    return MG_OK;
}

enum mg_status mg_chat_add_text_n(mg_chat *chat, enum mg_chat_role role, const char *text, size_t n,
                                  struct mg_err *err) {
    if ((unsigned)role > MG_TOOL) return mg_fail(err, MG_ERR_ARGUMENT, "", "no such role");
    return mg_chat_add_part(chat, role, false, text, n, NULL, err);
}

enum mg_status mg_chat_add_text(mg_chat *chat, enum mg_chat_role role, const char *text,
                                struct mg_err *err) {
    return mg_chat_add_text_n(chat, role, text, strlen(text), err);
}

enum mg_status mg_chat_begin_turn(mg_chat *chat, enum mg_chat_role role, struct mg_err *err) {
    return mg_chat_add_part(chat, role, true, "", 0, NULL, err);
}

enum mg_status mg_chat_set_raw(mg_chat *chat, const char *text, size_t n, struct mg_err *err) {
    chat->raw = true;
    return mg_chat_add_part(chat, MG_USER, true, text, n, NULL, err);
}

static const char *report_format(enum mg_image_format format) {
    switch (format) {
    case MG_IMAGE_JPEG: return "jpeg";
    case MG_IMAGE_PNG: return "png";
    case MG_IMAGE_WEBP: return "webp";
    case MG_IMAGE_GIF: return "gif";
    case MG_IMAGE_BMP: return "bmp";
    case MG_IMAGE_HEIC: return "heic";
    case MG_IMAGE_AVIF: return "avif";
    case MG_IMAGE_UNKNOWN: break;
    }
    return "unknown";
}

enum mg_status mg_chat_prune(const mg_engine *engine, enum mg_prune_mode mode, uint8_t near,
                             struct chat_image *image, struct mg_err *err) {
    const struct mg_patch_config *c = &engine->patch_config;
    uint32_t rows = image->grid_h / c->merge, cols = image->grid_w / c->merge;
    mg_cells_free(&image->kept);
    image->n_token = (size_t)rows * cols;
    if (mode == MG_PRUNE_OFF) return MG_OK;
    enum mg_status status = mg_prune_cells(image->rgb, rows, cols, c->patch * c->merge,
                                           mode == MG_PRUNE_NEAR ? near : 0, &image->kept, err);
    if (status != MG_OK) return status;
    if (image->kept.n == image->n_token)
        mg_cells_free(&image->kept); /* the whole picture, as without pruning */
    else
        image->n_token = image->kept.n;
    return MG_OK;
}

static void fill_report(struct chat_image *image, const struct mg_image_info *info, size_t n_cell,
                        size_t bytes) {
    image->report = (struct mg_image_report){.format = report_format(info->format),
                                             .width = info->width,
                                             .height = info->height,
                                             .orientation = info->orientation,
                                             .frames = info->n_frame,
                                             .alpha = info->has_alpha,
                                             .tokens = image->n_token,
                                             .cells = n_cell,
                                             .kept = image->n_token,
                                             .bytes = bytes};
}

/* The engine's limits on the resized picture, or those wanted within the model's. */
static struct mg_patch_config patches_for(const mg_engine *engine,
                                          const struct mg_image_want *want) {
    struct mg_patch_config c = engine->patch_config;
    const struct mg_preprocess_config *p = &engine->model->config.preprocess;
    if (want->model_limits || want->min_pixels || want->max_pixels) {
        uint64_t least = p->min_pixels, most = p->max_pixels;
        if (want->model_limits) c.min_pixels = least, c.max_pixels = most;
        if (want->max_pixels) c.max_pixels = want->max_pixels;
        if (want->min_pixels) c.min_pixels = want->min_pixels;
        if (c.max_pixels > most) c.max_pixels = most;
        if (c.max_pixels < least) c.max_pixels = least;
        if (c.min_pixels < least) c.min_pixels = least;
        if (c.min_pixels > c.max_pixels) c.min_pixels = c.max_pixels;
    }
    return c;
}

/* What the header says, and the size that follows from it. */
static enum mg_status probe(const mg_engine *engine, const struct mg_patch_config *config,
                            const void *bytes, size_t n, struct mg_err *err) {
    struct mg_image_info info;
    uint32_t height, width;
    enum mg_status status = mg_image_probe(bytes, n, &engine->image_options, &info, err);
    return status == MG_OK ? mg_smart_resize(info.height, info.width, config, &height, &width, err)
                           : status;
}

const char *mg_engine_image_format(const void *bytes, size_t n) {
    return mg_image_format_name(mg_image_sniff(bytes, n));
}

enum mg_status mg_engine_check_image(const mg_engine *engine, const void *bytes, size_t n,
                                     const struct mg_image_want *want, struct mg_err *err) {
    enum mg_image_format format = mg_image_sniff(bytes, n);
    struct mg_patch_config config = patches_for(engine, want);
    if (format == MG_IMAGE_HEIC || format == MG_IMAGE_AVIF) return MG_OK;
    return probe(engine, &config, bytes, n, err);
}

/* All that makes the features: what is equal here has equal ones. */
static enum mg_status make_key(const mg_chat *chat, enum mg_prune_mode prune, uint8_t near,
                               struct chat_image *image, struct mg_err *err) {
    const mg_engine *e = chat->engine;
    uint32_t head[] = {
        1 /* version of this form */, image->grid_h,         image->grid_w,
        e->patch_config.patch,        e->patch_config.merge, (uint32_t)e->mode,
        (uint32_t)e->model->packed,   (uint32_t)prune,       prune == MG_PRUNE_NEAR ? near : 0};
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    mg_sha256_update(&h, "margay picture", 14);
    mg_sha256_update(&h, chat->tenant, sizeof chat->tenant);
    mg_sha256_update(&h, head, sizeof head);
    mg_sha256_update(&h, image->rgb,
                     (size_t)image->grid_h * image->grid_w * e->patch_config.patch *
                         e->patch_config.patch * 3);
    return mg_sha256_finish(&h, image->key) ? MG_OK : mg_fail_memory(err, "picture's key");
}

static enum mg_status make_print(struct chat_image *image, const mg_engine *e, struct mg_err *err) {
    uint32_t side = e->patch_config.patch;
    image->print = mg_alloc_zero(1, sizeof *image->print);
    if (!image->print) return mg_fail_memory(err, "picture's fingerprint");
    return mg_fingerprint_make(image->rgb, image->grid_w * side, image->grid_h * side, image->print,
                               err);
}

/* The header first: what is too large, too long or unknown fails before anything is decoded. */
static enum mg_status read_image(const mg_chat *chat, const struct mg_image_want *want,
                                 const void *bytes, size_t n, struct chat_image *out,
                                 struct mg_err *err) {
    const mg_engine *engine = chat->engine;
    struct mg_image_options o = engine->image_options;
    struct mg_patch_config config = patches_for(engine, want);
    enum mg_prune_mode prune = want->prune_set ? want->prune : engine->options.prune;
    uint8_t near = want->prune_set ? want->near : engine->options.prune_near;
    enum mg_status status = probe(engine, &config, bytes, n, err);
    if (status != MG_OK) return status;
    double start = mg_clock();
    struct mg_image image;
    struct mg_patches patches;
    status = mg_image_decode(bytes, n, &o, &image, err);
    if (status != MG_OK) return status;
    status = mg_patches_resize(&image, &config, &patches, err);
    if (status == MG_OK) {
        *out = (struct chat_image){
            .rgb = patches.rgb, .grid_h = patches.grid_h, .grid_w = patches.grid_w};
        patches.rgb = NULL;
        status = mg_chat_prune(engine, prune, near, out, err);
        if (status == MG_OK && engine->feature_cache)
            status = make_key(chat, prune, near, out, err);
        if (status == MG_OK && chat->want_prints) status = make_print(out, engine, err);
        fill_report(out, &image.info, patches.n_token, n);
        out->report.resized_width = out->grid_w * engine->patch_config.patch;
        out->report.resized_height = out->grid_h * engine->patch_config.patch;
        mg_patches_free(&patches);
    }
    mg_image_free(&image);
    out->report.decode_ms = (mg_clock() - start) * 1e3;
    return status;
}

enum mg_status mg_chat_add_image(mg_chat *chat, const void *bytes, size_t n, struct mg_err *err) {
    return mg_chat_add_image_as(chat, MG_USER, bytes, n, NULL, err);
}

enum mg_status mg_chat_add_image_as(mg_chat *chat, enum mg_chat_role role, const void *bytes,
                                    size_t n, const struct mg_image_want *want,
                                    struct mg_err *err) {
    static const struct mg_image_want none;
    if (chat->n_image >= chat->engine->options.max_images)
        return mg_fail(err, MG_ERR_LIMIT, "too_many_images",
                       "more than %zu pictures in one conversation",
                       chat->engine->options.max_images);
    if (!grow((void **)&chat->image, chat->n_image, &chat->cap_image, sizeof *chat->image))
        return mg_fail_memory(err, "chat");
    struct chat_image image = {0};
    enum mg_status status = read_image(chat, want ? want : &none, bytes, n, &image, err);
    if (status == MG_OK) status = mg_chat_add_part(chat, role, false, NULL, 0, &chat->n_image, err);
    if (status != MG_OK) {
        free_image(&image);
        return status;
    }
    chat->image[chat->n_image++] = image;
    if (image.kept.index)
        mg_log(MG_LOG_INFO, "picture %zu: %zu of %zu cells kept", chat->n_image, image.report.kept,
               image.report.cells);
    return MG_OK;
}

enum mg_status mg_chat_add_image_mark(mg_chat *chat, enum mg_chat_role role, struct mg_err *err) {
    if (!grow((void **)&chat->image, chat->n_image, &chat->cap_image, sizeof *chat->image))
        return mg_fail_memory(err, "chat");
    enum mg_status status = mg_chat_add_part(chat, role, false, NULL, 0, &chat->n_image, err);
    if (status == MG_OK) chat->image[chat->n_image++] = (struct chat_image){.n_token = 1};
    return status;
}

enum mg_status mg_chat_add_image_file(mg_chat *chat, const char *path, struct mg_err *err) {
    struct mg_buf bytes = {.max = chat->engine->options.max_image_bytes};
    enum mg_status status = mg_file_read(path, bytes.max, &bytes, err);
    if (status == MG_OK) {
        status = mg_chat_add_image(chat, bytes.data, bytes.n, err);
        mg_err_prefix(err, "%s", strcmp(path, "-") == 0 ? "standard input" : path);
    }
    mg_buf_free(&bytes);
    return status;
}

size_t mg_chat_rough_tokens(const struct mg_chat *chat) {
    size_t n = 64;
    for (size_t i = 0; i < chat->n_turn; i++) n += chat->turn[i].text.n + 16;
    for (size_t i = 0; i < chat->n_image; i++) n += chat->image[i].n_token + 2;
    return n;
}

size_t mg_chat_image_count(const mg_chat *chat) {
    return chat->n_image;
}

bool mg_chat_image(const mg_chat *chat, size_t i, struct mg_image_report *out) {
    if (i >= chat->n_image) return false;
    *out = chat->image[i].report;
    return true;
}

void mg_chat_cancel(mg_chat *chat) {
    atomic_store(&chat->cancel, true);
}

bool mg_chat_is_cancelled(const mg_chat *chat) {
    return atomic_load_explicit(&((mg_chat *)chat)->cancel, memory_order_relaxed);
}

enum mg_status mg_chat_encode(struct mg_chat *chat, size_t i, const float *patches,
                              struct mg_err *err) {
    struct chat_image *image = &chat->image[i];
    mg_engine *engine = chat->engine;
    image->report.cached = image->picture.row != NULL;
    image->report.vision_ms = 0;
    if (image->report.cached) return MG_OK;
    double start = mg_clock();
    if (engine->feature_cache &&
        (image->shared = mg_feature_find(engine->feature_cache, image->key))) {
        image->picture = image->shared->picture;
        image->report.cached = true;
        free(image->rgb);
        image->rgb = NULL;
        return MG_OK;
    }
    struct mg_patches own = {0};
    enum mg_status status = MG_OK;
    if (!patches) {
        status = mg_patches_cut_cells(image->rgb, image->grid_h, image->grid_w, image->kept.index,
                                      image->kept.n, &engine->patch_config, &own, err);
        patches = own.value;
    }
    struct mg_vision_input in = {.patch = patches,
                                 .grid_h = image->grid_h,
                                 .grid_w = image->grid_w,
                                 .cell = image->kept.index,
                                 .n_cell = image->kept.n};
    if (status == MG_OK)
        status = mg_vision_encode(engine->model, &engine->compute, &in, &image->picture, err);
    mg_patches_free(&own);
    if (status == MG_OK) {
        free(image->rgb);
        image->rgb = NULL;
        if (engine->feature_cache)
            image->shared = mg_feature_put_take(engine->feature_cache, image->key, &image->picture);
        if (image->shared) image->picture = image->shared->picture;
    }
    image->report.vision_ms = (mg_clock() - start) * 1e3;
    return status;
}
