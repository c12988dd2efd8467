/* api/server_reply.c - see server_reply.h. */
#include "api/server_reply.h"

#include "api/json_write.h"

static bool done(struct mg_jwrite *j, char bracket) {
    mg_jwrite_close(j, bracket);
    return !j->out->failed;
}

static void capabilities(struct mg_jwrite *j) {
    mg_jwrite_key(j, "capabilities");
    mg_jwrite_open(j, '[');
    mg_jwrite_str(j, "completion");
    mg_jwrite_str(j, "multimodal");
    mg_jwrite_close(j, ']');
}

static void write_model(struct mg_jwrite *j, const struct mg_model_reply *m) {
    mg_jwrite_open(j, '{');
    mg_jwrite_kstr(j, "id", m->id);
    mg_jwrite_kstr(j, "object", "model");
    mg_jwrite_kint(j, "created", m->created);
    mg_jwrite_kstr(j, "owned_by", "margay");
    mg_jwrite_kuint(j, "max_model_len", m->context);
    mg_jwrite_key(j, "meta");
    mg_jwrite_open(j, '{');
    mg_jwrite_kuint(j, "n_vocab", m->n_vocab);
    mg_jwrite_kuint(j, "n_ctx", m->context);
    mg_jwrite_kuint(j, "n_ctx_train", m->context_max);
    mg_jwrite_kuint(j, "n_embd", m->n_embd);
    mg_jwrite_kuint(j, "n_params", m->n_params);
    mg_jwrite_kuint(j, "size", m->bytes);
    mg_jwrite_kstr(j, "weights", m->weights);
    mg_jwrite_close(j, '}');
    capabilities(j);
    mg_jwrite_close(j, '}');
}

bool mg_model_write(struct mg_buf *out, const struct mg_model_reply *model) {
    struct mg_jwrite j = {.out = out};
    write_model(&j, model);
    return !out->failed;
}

bool mg_models_write(struct mg_buf *out, const struct mg_model_reply *model, size_t n) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "object", "list");
    mg_jwrite_key(&j, "data");
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n; i++) write_model(&j, &model[i]);
    mg_jwrite_close(&j, ']');
    mg_jwrite_key(&j, "models");
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n; i++) {
        mg_jwrite_open(&j, '{');
        mg_jwrite_kstr(&j, "name", model[i].id);
        mg_jwrite_kstr(&j, "model", model[i].id);
        capabilities(&j);
        mg_jwrite_close(&j, '}');
    }
    mg_jwrite_close(&j, ']');
    return done(&j, '}');
}

static void write_file(struct mg_jwrite *j, const struct mg_upload_reply *file) {
    mg_jwrite_open(j, '{');
    mg_jwrite_kstr(j, "id", file->id);
    mg_jwrite_kstr(j, "object", "file");
    mg_jwrite_kuint(j, "bytes", file->bytes);
    mg_jwrite_kint(j, "created_at", file->created);
    if (file->expires) mg_jwrite_kint(j, "expires_at", file->expires);
    mg_jwrite_kstr(j, "filename", file->filename);
    mg_jwrite_kstr(j, "purpose", file->purpose);
    mg_jwrite_kstr(j, "status", "processed");
    mg_jwrite_close(j, '}');
}

bool mg_upload_write(struct mg_buf *out, const struct mg_upload_reply *file) {
    struct mg_jwrite j = {.out = out};
    write_file(&j, file);
    return !out->failed;
}

bool mg_uploads_write(struct mg_buf *out, const struct mg_upload_reply *file, size_t n) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "object", "list");
    mg_jwrite_key(&j, "data");
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n; i++) write_file(&j, &file[i]);
    mg_jwrite_close(&j, ']');
    mg_jwrite_kbool(&j, "has_more", false);
    return done(&j, '}');
}

bool mg_upload_deleted_write(struct mg_buf *out, const char *id) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "id", id);
    mg_jwrite_kstr(&j, "object", "file");
    mg_jwrite_kbool(&j, "deleted", true);
    return done(&j, '}');
}

bool mg_health_write(struct mg_buf *out, const char *status) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "status", status);
    return done(&j, '}');
}

bool mg_ready_write(struct mg_buf *out, const struct mg_ready_reply *r) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kbool(&j, "ready", r->ready);
    mg_jwrite_kstr(&j, "status", r->status);
    if (r->detail) mg_jwrite_kstr(&j, "detail", r->detail);
    mg_jwrite_kuint(&j, "running", r->running);
    mg_jwrite_kuint(&j, "waiting", r->waiting);
    mg_jwrite_kuint(&j, "queue_limit", r->queue_limit);
    return done(&j, '}');
}

static void write_image_props(struct mg_jwrite *j, const struct mg_props_reply *p) {
    mg_jwrite_key(j, "images");
    mg_jwrite_open(j, '{');
    mg_jwrite_key(j, "formats");
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < p->n_format; i++) mg_jwrite_str(j, p->format[i]);
    mg_jwrite_close(j, ']');
    mg_jwrite_kuint(j, "min_tokens", p->image_min_tokens);
    mg_jwrite_kuint(j, "max_tokens", p->image_max_tokens);
    mg_jwrite_kuint(j, "patch", p->patch);
    mg_jwrite_kuint(j, "merge", p->merge);
    mg_jwrite_kuint(j, "max_count", p->max_images);
    mg_jwrite_kuint(j, "max_bytes", p->max_image_bytes);
    mg_jwrite_kuint(j, "max_pixels", p->max_image_pixels);
    mg_jwrite_kuint(j, "transfer_side", p->transfer_side);
    mg_jwrite_kuint(j, "transfer_side_high", p->transfer_side_high);
    mg_jwrite_kbool(j, "urls", p->urls);
    mg_jwrite_kbool(j, "files", p->files);
    mg_jwrite_close(j, '}');
}

bool mg_props_write(struct mg_buf *out, const struct mg_props_reply *p) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_key(&j, "default_generation_settings");
    mg_jwrite_open(&j, '{');
    mg_jwrite_kuint(&j, "n_ctx", p->context);
    mg_jwrite_key(&j, "params");
    mg_jwrite_open(&j, '{');
    mg_jwrite_kfixed(&j, "temperature", p->sampling.temperature, 4);
    mg_jwrite_kint(&j, "top_k", p->sampling.top_k);
    mg_jwrite_kfixed(&j, "top_p", p->sampling.top_p, 4);
    mg_jwrite_kfixed(&j, "min_p", p->sampling.min_p, 4);
    mg_jwrite_kfixed(&j, "repeat_penalty", p->sampling.repeat_penalty, 4);
    mg_jwrite_kfixed(&j, "presence_penalty", p->sampling.presence_penalty, 4);
    mg_jwrite_kfixed(&j, "frequency_penalty", p->sampling.frequency_penalty, 4);
    mg_jwrite_kint(&j, "max_tokens", p->sampling.max_tokens);
    mg_jwrite_close(&j, '}');
    mg_jwrite_close(&j, '}');
    mg_jwrite_kuint(&j, "total_slots", p->n_slot);
    mg_jwrite_kstr(&j, "model_alias", p->model);
    mg_jwrite_key(&j, "modalities");
    mg_jwrite_open(&j, '{');
    mg_jwrite_kbool(&j, "vision", p->vision);
    mg_jwrite_kbool(&j, "audio", false);
    mg_jwrite_close(&j, '}');
    mg_jwrite_kstr(&j, "build_info", p->version);
    mg_jwrite_kstr(&j, "weights", p->weights);
    mg_jwrite_kstr(&j, "tier", p->tier);
    mg_jwrite_kint(&j, "threads", p->n_thread);
    write_image_props(&j, p);
    mg_jwrite_kuint(&j, "max_body_bytes", p->max_body_bytes);
    mg_jwrite_kbool(&j, "answer_cache", p->answer_cache);
    return done(&j, '}');
}

bool mg_slots_write(struct mg_buf *out, const struct mg_slot_reply *slot, size_t n) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n; i++) {
        const struct mg_slot_reply *s = &slot[i];
        mg_jwrite_open(&j, '{');
        mg_jwrite_kuint(&j, "id", s->id);
        mg_jwrite_kuint(&j, "n_ctx", s->context);
        mg_jwrite_kbool(&j, "is_processing", s->busy);
        mg_jwrite_kstr(&j, "stage", s->stage);
        mg_jwrite_kuint(&j, "prompt_tokens", s->prompt_tokens);
        mg_jwrite_kuint(&j, "cached_tokens", s->cached_tokens);
        mg_jwrite_kuint(&j, "image_tokens", s->image_tokens);
        mg_jwrite_kuint(&j, "images", s->images);
        mg_jwrite_kuint(&j, "generated_tokens", s->generated_tokens);
        mg_jwrite_kfixed(&j, "seconds", s->seconds, 3);
        mg_jwrite_close(&j, '}');
    }
    return done(&j, ']');
}
