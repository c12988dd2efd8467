/* engine/build.h - filling a conversation as a server does: turns one by one, pictures with wishes
 * of their own, whose it is. For a chat that no other thread has; touches nothing of the engine but
 * what is constant.
 */
#ifndef MG_ENGINE_BUILD_H
#define MG_ENGINE_BUILD_H

#include "margay/margay.h"

enum { MG_TENANT_BYTES = 16 };

/* What is wanted of a picture beside the engine's options. */
struct mg_image_want {
    uint64_t min_pixels, max_pixels; /* of the resized picture; 0: the engine's */
    bool model_limits;               /* the model's own instead of the engine's */
    bool prune_set;                  /* prune and near instead of the engine's */
    enum mg_prune_mode prune;
    uint8_t near;
};

/* Begins a turn, also after one of the same role; it may stay empty. */
enum mg_status mg_chat_begin_turn(mg_chat *chat, enum mg_chat_role role, struct mg_err *err);
/* As mg_chat_add_image, into the turn that was begun last, whatever its role; want may be NULL. */
enum mg_status mg_chat_add_image_as(mg_chat *chat, enum mg_chat_role role, const void *bytes,
                                    size_t n, const struct mg_image_want *want, struct mg_err *err);
/* Somebody has called mg_chat_cancel: filling it in further is of no use. */
bool mg_chat_is_cancelled(const mg_chat *chat);
/* What can be told of a picture from its header, at once: the error that mg_chat_add_image_as would
 * give for its format, size or shape. HEIC and AVIF, which are read by a child process, pass. */
enum mg_status mg_engine_check_image(const mg_engine *engine, const void *bytes, size_t n,
                                     const struct mg_image_want *want, struct mg_err *err);
/* "jpeg", "png" .. by the first bytes; "unknown". */
const char *mg_engine_image_format(const void *bytes, size_t n);
/* The prompt is this text and nothing else: no turns, no template; control tokens in it are just
 * characters. The answer goes on from it. */
enum mg_status mg_chat_set_raw(mg_chat *chat, const char *text, size_t n, struct mg_err *err);

/* The prompt as the template makes it, as text with its control tokens. */
struct mg_buf;
enum mg_status mg_chat_prompt_text(const mg_chat *chat, bool open_answer, struct mg_buf *out,
                                   struct mg_err *err);
/* A picture of one token that can't be looked at, for mg_chat_prompt_text alone. */
enum mg_status mg_chat_add_image_mark(mg_chat *chat, enum mg_chat_role role, struct mg_err *err);

/* The tokenizer, for any thread; lives as long as the engine. */
struct mg_tokenizer;
const struct mg_tokenizer *mg_engine_tokenizer(const mg_engine *engine);

/* Numbers for those who describe the engine. */
struct mg_engine_facts {
    size_t patch, merge, image_min_tokens, image_max_tokens; /* of a picture by default */
    size_t context_max, n_vocab, n_embd;
    size_t max_images, max_image_bytes;
    uint64_t max_image_pixels;
};
void mg_engine_facts(const mg_engine *engine, struct mg_engine_facts *out);

#endif
