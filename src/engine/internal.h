/* engine/internal.h - what the engine's files share; not for other folders (trace.h and margay.h
 * are).
 *
 * A conversation's way: turns and pictures (chat.c) -> prompt ids and rows with positions
 * (layout.c)
 * -> vision, prefill, decode (answer.c), guessing ahead (draft.c), several at once (batch.c). One
 * thread owns an engine and its chats; only mg_chat.cancel is touched from outside.
 */
#ifndef MG_ENGINE_INTERNAL_H
#define MG_ENGINE_INTERNAL_H

#include "base/io.h"
#include "cpu/topology.h"
#include "engine/build.h"
#include "engine/draft.h"
#include "engine/feature_cache.h"
#include "engine/sampler.h"
#include "image/fingerprint.h"
#include "image/patches.h"
#include "image/prune.h"
#include "margay/margay.h"
#include "model/decoder.h"
#include "model/vision.h"
#include "text/prompt.h"

#include <stdatomic.h>

struct mg_engine {
    struct mg_model *model;
    struct mg_tokenizer *tokenizer;
    struct mg_features features;
    struct mg_topology topology;
    struct mg_kernels kernels;
    struct mg_pool *pool;
    struct mg_compute compute;
    struct mg_decoder_work work;         /* of prefill_chunk rows, MG_MAX_TOP at least */
    struct mg_row *row;                  /* [work.rows] of the pass being made */
    float *logits;                       /* [n_vocab] */
    struct mg_draft draft;               /* of the answer being generated */
    struct mg_sampler *sampler;          /* made for n_vocab, reset per answer */
    struct mg_engine_options options;    /* defaults filled in */
    struct mg_patch_config patch_config; /* pixel limits of the options applied */
    struct mg_image_options image_options;
    enum mg_mode mode;
    int32_t image_token;
    struct mg_feature_cache *feature_cache; /* borrowed; NULL: pictures are not shared */
};

/* A picture of a conversation. Its resized raster is kept until its features are there.
 *
 * What is pruned is decided when the picture is added and stays so in this conversation; therefore
 * the picture's number and the token's number in it identify a token of the KV
 * (mg_layout_identity). A cache that outlives the conversation has to name the features by all that
 * makes them: the model and weight mode, grid_h and grid_w, the resized pixels, and what pruning
 * kept (options.prune and prune_near, off and exact being two things). */
struct chat_image {
    uint8_t *rgb;                 /* [height][width][3] resized, owned; NULL once encoded */
    uint32_t grid_h, grid_w;      /* patches of the whole picture */
    size_t n_token;               /* cells looked at */
    struct mg_cells kept;         /* these cells, when pruning left some out; index NULL: all */
    struct mg_picture picture;    /* features; row NULL until encoded; `shared`'s if there is one */
    struct mg_feature *shared;    /* a reference, or NULL: the picture is this conversation's own */
    uint8_t key[MG_SHA256_BYTES]; /* of the features; set when the engine has a cache of them */
    struct mg_fingerprint *print; /* owned; NULL unless the chat wants prints */
    struct mg_image_report report;
    bool counted; /* its decode time was part of an earlier answer */
};

/* A part of a turn: text at [at, at+n) of the turn's buffer, or picture `image`. */
struct chat_part {
    bool is_image;
    size_t at, n;
    size_t image;
};

struct chat_turn {
    enum mg_chat_role role;
    struct mg_buf text;     /* all text of the turn */
    struct chat_part *part; /* [n_part], owned */
    size_t n_part, cap_part;
};

struct mg_chat {
    mg_engine *engine;
    struct chat_turn *turn; /* [n_turn], owned */
    size_t n_turn, cap_turn;
    struct chat_image *image; /* [n_image], owned */
    size_t n_image, cap_image;
    struct mg_kv kv;
    int32_t next_pos; /* position of the token that comes after those in kv */
    int64_t *kv_id;   /* [kv.capacity] identity of each token in kv, see mg_layout_identity */
    struct mg_buf answer_text; /* of the last answer */
    struct mg_ids answer_ids;
    atomic_bool cancel;
    bool raw;                        /* the only turn's text is the prompt */
    bool want_prints;                /* pictures' fingerprints are made when they are added */
    uint8_t tenant[MG_TENANT_BYTES]; /* whose: what others have cached is not found */
};

/* The prompt as rows: ids, where pictures are, positions. */
struct layout {
    struct mg_prompt prompt;
    size_t n; /* prompt tokens */
    size_t n_image_token;
    int32_t (*pos)[3]; /* [n], owned */
    int32_t *image;    /* [n] index of the picture, or -1; owned */
    uint32_t *offset;  /* [n] token number within its picture; owned */
    int32_t next_pos;  /* position of the first answer token, not the token count */
};
enum mg_status mg_layout_make(const struct mg_chat *chat, struct layout *out, struct mg_err *err);
void mg_layout_free(struct layout *l);
/* Equal for equal tokens at equal places: the id, or picture and offset below zero. */
int64_t mg_layout_identity(const struct layout *l, size_t i);
/* Row i for the decoder; the picture's features must be there. */
struct mg_row mg_layout_row(const struct mg_chat *chat, const struct layout *l, size_t i);

/* At least as many tokens as the conversation has, and not many more; nothing is encoded. */
size_t mg_chat_rough_tokens(const struct mg_chat *chat);
/* Ids that can come out: all, but for the padding behind the tokenizer's that a vocabulary's size
 * is rounded up with. */
size_t mg_engine_useful_ids(const mg_engine *e);

/* Decides which cells of the resized picture are kept (n_token, kept). */
enum mg_status mg_chat_prune(const mg_engine *engine, enum mg_prune_mode mode, uint8_t near,
                             struct chat_image *image, struct mg_err *err);
/* Encodes picture i unless its features are there; `patches` ([n_token*merge^2][dim], of the kept
 * cells) replaces the picture's own values (trace), or NULL. */
enum mg_status mg_chat_encode(struct mg_chat *chat, size_t i, const float *patches,
                              struct mg_err *err);

/* Prompt tokens [from, l->n) into the conversation's keys and values; progress may be NULL. */
typedef bool mg_progress_fn(void *user, size_t done, size_t total);
enum mg_status mg_chat_prefill(struct mg_chat *chat, const struct layout *l, size_t from,
                               mg_progress_fn *progress, void *user, struct mg_err *err);
/* n (1 .. MG_MAX_TOP) tokens one after another, the first at position pos. */
enum mg_status mg_chat_feed(struct mg_chat *chat, const int32_t *id, size_t n, int32_t pos,
                            struct mg_err *err);
/* One generated token, at position pos. */
enum mg_status mg_chat_step(struct mg_chat *chat, int32_t id, int32_t pos, struct mg_err *err);
/* The likeliest token after each of the last n tokens of the last pass. */
enum mg_status mg_chat_top(struct mg_chat *chat, size_t n, int32_t *id, struct mg_err *err);
/* Logits after the last token, in engine->logits; checked to be finite. */
enum mg_status mg_chat_logits(struct mg_chat *chat, struct mg_err *err);

/* Appends a part; the turn is new when the role differs from the last turn's. */
enum mg_status mg_chat_add_part(struct mg_chat *chat, enum mg_chat_role role, bool new_turn,
                                const char *text, size_t n, const size_t *image,
                                struct mg_err *err);

#endif
