/* api/server_reply.h - what the server says about itself: models, files, health, properties, slots.
 *
 * Each writer takes a plain struct whose values the caller gives. None of them has a place for a
 * prompt or an answer: these routes may be polled by those who must not read other people's.
 * Returns false when the buffer could not grow.
 */
#ifndef MG_API_SERVER_REPLY_H
#define MG_API_SERVER_REPLY_H

#include "api/fault.h"

struct mg_model_reply {
    const char *id;     /* the name under which it is served */
    int64_t created;    /* seconds since 1970 */
    size_t context;     /* tokens a request may have; n_ctx */
    size_t context_max; /* the model's own limit; n_ctx_train */
    size_t n_vocab, n_embd;
    uint64_t n_params, bytes; /* parameters; of the weights */
    const char *weights;      /* "int8", ... */
};
/* GET /v1/models: OpenAI's list, and `models` beside it as llama-server has it. */
bool mg_models_write(struct mg_buf *out, const struct mg_model_reply *model, size_t n);
/* GET /v1/models/{id} */
bool mg_model_write(struct mg_buf *out, const struct mg_model_reply *model);

struct mg_upload_reply {
    const char *id; /* "file-..." */
    uint64_t bytes;
    int64_t created, expires; /* seconds since 1970; expires 0: never */
    const char *filename, *purpose;
};
bool mg_upload_write(struct mg_buf *out, const struct mg_upload_reply *file);
bool mg_uploads_write(struct mg_buf *out, const struct mg_upload_reply *file, size_t n);
/* DELETE /v1/files/{id} */
bool mg_upload_deleted_write(struct mg_buf *out, const char *id);

/* {"status":"ok"}. (While loading: mg_err_write of an error with the code "loading".) */
bool mg_health_write(struct mg_buf *out, const char *status);

/* GET /ready: each thing that answers depend on. */
struct mg_ready_reply {
    bool ready;
    const char *status; /* "ok", "loading", "degraded", "draining" */
    const char *detail; /* one sentence, or NULL */
    size_t running, waiting, queue_limit;
};
bool mg_ready_write(struct mg_buf *out, const struct mg_ready_reply *r);

/* GET /props */
struct mg_props_reply {
    const char *model, *version, *weights, *tier; /* model: its alias, never a path */
    size_t n_slot, context;                       /* tokens of one slot */
    int n_thread;
    bool vision;
    size_t image_min_tokens, image_max_tokens; /* of a picture by default */
    size_t patch, merge;                       /* pixels of a patch's side; patches of a token's */
    size_t max_images, max_image_bytes, max_body_bytes;
    uint64_t max_image_pixels;
    /* Longest side that is worth sending for detail auto, and for high. */
    size_t transfer_side, transfer_side_high;
    bool urls, files; /* pictures by http(s) URL; by file: below the media path */
    bool answer_cache;
    struct {
        double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
        int top_k;
        int64_t max_tokens;    /* -1: as many as fit */
    } sampling;                /* what a request that says nothing gets */
    const char *const *format; /* [n_format] pictures that can be read: "jpeg", ... */
    size_t n_format;
};
bool mg_props_write(struct mg_buf *out, const struct mg_props_reply *p);

/* GET /slots */
struct mg_slot_reply {
    size_t id;
    bool busy;
    const char *stage; /* "idle", "decode", "vision", "prefill", "generate" */
    size_t context;    /* tokens it has room for */
    size_t prompt_tokens, cached_tokens, image_tokens, images, generated_tokens;
    double seconds; /* since its request began */
};
bool mg_slots_write(struct mg_buf *out, const struct mg_slot_reply *slot, size_t n);

#endif
