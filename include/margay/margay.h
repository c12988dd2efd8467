/* margay/margay.h - answers questions about pictures with Qwen3-VL on a CPU.
 *
 * An engine holds one loaded model and its threads. A chat is a conversation: turns of text and
 * pictures that the caller adds, and answers that the engine generates and appends. What an earlier
 * answer has already read is kept, so the next question on the same pictures only reads the new
 * turn.
 *
 *     mg_engine *engine; mg_chat *chat; struct mg_err err = {0};
 *     mg_engine_open("models/demo", NULL, &engine, &err);
 *     mg_chat_open(engine, &chat, &err);
 *     mg_chat_add_image_file(chat, "receipt.png", &err);
 *     mg_chat_add_text(chat, MG_USER, "What is the total?", &err);
 *     mg_chat_answer(chat, NULL, print_event, NULL, NULL, &err);
 *
 * Threads: an engine runs one answer at a time; calls on it and its chats come from one thread,
 * except mg_chat_cancel, which any thread or signal handler may call. Text is UTF-8, sizes are
 * bytes, times are milliseconds. Every function that returns a status fills `err` (may be NULL) on
 * failure; one that is already filled is kept, so zero it before using it again.
 */
#ifndef MARGAY_MARGAY_H
#define MARGAY_MARGAY_H

#include "margay/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mg_engine mg_engine;
typedef struct mg_chat mg_chat;

const char *mg_version(void);

/* How the weights are computed with. */
enum mg_weight_mode {
    MG_WEIGHTS_AUTO, /* a packed file's own; a folder: int8 */
    MG_WEIGHTS_F32,  /* the definition: everything in f32, slow */
    MG_WEIGHTS_BF16,
    MG_WEIGHTS_INT8, /* 8-bit weights and activations, whole-number sums; from a packed file that is
                        made in the cache folder at first use */
    MG_WEIGHTS_INT4  /* 4-bit weights in the decoder's middle layers, else as int8 */
};

/* Progress of a conversion: bytes done of total. Return false to stop it. */
typedef bool mg_load_fn(void *user, uint64_t done, uint64_t total);

/* Cells of a picture (one token each) that only repeat their neighbours may be left out: charts,
 * screenshots and clean pages take a fraction of the time, photos gain nothing. The model was
 * trained on whole pictures, so the default is off. */
enum mg_prune_mode {
    MG_PRUNE_OFF,
    MG_PRUNE_EXACT, /* equal in every pixel */
    MG_PRUNE_NEAR   /* no value differs by more than prune_near */
};

/* Whether each thread is kept to a processor of its own. */
enum mg_pin {
    MG_PIN_AUTO, /* where memory has several NUMA nodes: to the nearest one's cores */
    MG_PIN_ON,
    MG_PIN_OFF /* the system moves threads away from a busy neighbour */
};

struct mg_engine_options {
    enum mg_weight_mode weights;
    const char *cache_dir; /* for packed files; NULL: $MARGAY_CACHE_DIR, $XDG_CACHE_HOME/margay or
                              ~/.cache/margay. Borrowed during mg_engine_open, as the next two */
    mg_load_fn *load;      /* may be NULL */
    void *load_user;
    const char *cpu_range; /* "0-3,8": compute on these processors only; the calling thread keeps to
                              them. NULL: all that the affinity mask allows. Borrowed likewise */
    enum mg_pin pin;
    int n_thread;   /* 0: as many as affinity, cgroup quota and physical cores allow */
    size_t context; /* most tokens of prompt and answer; 0: 8192, at most the model's own limit */
    size_t prefill_chunk;    /* prompt tokens per pass; 0: 512. Only time and memory depend on it */
    bool model_image_limits; /* pixel limits of the model's own files instead of image_max_tokens */
    size_t image_min_tokens, image_max_tokens; /* per picture; 0: the model's least, and 1024 */
    size_t max_image_bytes;                    /* of one picture file; 0: 64 MiB */
    uint64_t max_image_pixels; /* in the file, checked before decoding; 0: 128 Mpixel */
    uint32_t max_image_side;   /* 0: 32768 */
    size_t max_images;         /* in one chat; 0: 64 */
    enum mg_prune_mode prune;
    uint8_t prune_near; /* 8-bit steps, with MG_PRUNE_NEAR; 0 is exact */
    uint8_t
        background[3]; /* RGB under transparent pictures, used when background_set; else white */
    bool background_set;
};

/* Opens a checkpoint folder (safetensors, tokenizer.json, config.json), or one packed file that
 * `margay convert` made of it. options NULL: all defaults. */
enum mg_status mg_engine_open(const char *folder, const struct mg_engine_options *options,
                              mg_engine **out, struct mg_err *err);
void mg_engine_close(mg_engine *engine); /* after all of its chats; NULL is fine */

/* Reads all weights and runs the hot kernels once, so that the first question finds them ready. */
enum mg_status mg_engine_warm_up(mg_engine *engine, struct mg_err *err);

struct mg_engine_info {
    const char *tier; /* "ref", "avx2", ... : the kernels in use; lives as long as the engine */
    const char *tier_reason; /* why no higher one */
    const char *weights;     /* "f32", "bf16", "int8", "int4" */
    int n_thread;
    size_t context; /* tokens */
    size_t weight_bytes;
    size_t n_parameters;
    bool samples; /* generation_config.json asks for sampling */
};
void mg_engine_info(const mg_engine *engine, struct mg_engine_info *out);

enum mg_chat_role { MG_SYSTEM, MG_USER, MG_ASSISTANT, MG_TOOL };

enum mg_status mg_chat_open(mg_engine *engine, mg_chat **out, struct mg_err *err);
void mg_chat_close(mg_chat *chat); /* NULL is fine */

/* Adds text to the last turn when that has the same role, else begins a new one. The text is copied
 * and is always plain text: control tokens in it are just characters. */
enum mg_status mg_chat_add_text(mg_chat *chat, enum mg_chat_role role, const char *text,
                                struct mg_err *err);
enum mg_status mg_chat_add_text_n(mg_chat *chat, enum mg_chat_role role, const char *text, size_t n,
                                  struct mg_err *err);
/* Adds a picture at this place of the user's turn (JPEG, PNG, WebP, GIF, BMP; HEIC and AVIF where
 * libheif is there). It is decoded and sized here, and looked at when an answer is wanted. */
enum mg_status mg_chat_add_image(mg_chat *chat, const void *bytes, size_t n, struct mg_err *err);
/* path "-" reads standard input. */
enum mg_status mg_chat_add_image_file(mg_chat *chat, const char *path, struct mg_err *err);

/* What was done to a picture. */
struct mg_image_report {
    const char *format;                     /* "jpeg", "png", ... */
    uint32_t width, height;                 /* upright, in the file */
    int orientation;                        /* EXIF 1..8, 1 = as stored */
    uint32_t frames;                        /* in the file; the first is used */
    bool alpha;                             /* transparent parts were put over the background */
    uint32_t resized_width, resized_height; /* what the model sees */
    size_t tokens;
    size_t cells, kept; /* of the resized picture, and those not pruned: kept = tokens */
    size_t bytes;       /* of the file */
    bool cached;        /* its features were there from an earlier answer */
    double decode_ms, vision_ms;
};
size_t mg_chat_image_count(const mg_chat *chat);
/* false when there is no picture i. */
bool mg_chat_image(const mg_chat *chat, size_t i, struct mg_image_report *out);

/* How an answer is generated. mg_answer_options_init gives greedy decoding with 512 tokens at most;
 * mg_answer_options_model takes generation_config.json's sampling instead. */
struct mg_answer_options {
    size_t max_tokens;
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: off */
    float top_p, min_p;       /* 1 and 0: off */
    float repetition_penalty; /* 1: off; over prompt text and answer, as the reference */
    float presence_penalty, frequency_penalty; /* 0: off; over the answer only */
    uint64_t seed;                             /* same seed, same answer */
    const char *const *stop; /* n_stop strings that end the answer and are not part of it */
    size_t n_stop;
    int draft; /* tokens to guess and check in one pass, which changes no answer: 0: as many as pay,
                  -1: none; at most 15. Greedy answers without penalties only */
    bool ignore_end;    /* go on after an end token (for measuring) */
    bool no_loop_check; /* don't stop an answer that only repeats itself */
};
void mg_answer_options_init(struct mg_answer_options *o);
void mg_answer_options_model(const mg_engine *engine, struct mg_answer_options *o);

enum mg_event_kind {
    MG_EVENT_STAGE, /* progress: stage, done of total */
    MG_EVENT_TEXT   /* the next piece of the answer: whole UTF-8 characters, never part of a stop
                       string */
};
enum mg_stage { MG_STAGE_VISION, MG_STAGE_PREFILL, MG_STAGE_DECODE };
struct mg_event {
    enum mg_event_kind kind;
    enum mg_stage stage;
    size_t done, total; /* vision: pictures' blocks; prefill, decode: tokens */
    const char *text;   /* NUL-terminated, lives during the call */
    size_t n_text;
    int32_t token; /* the token that completed this text, -1 at the final flush */
};
/* Return false to stop the answer (finish reason "cancelled"). */
typedef bool mg_event_fn(void *user, const struct mg_event *event);

struct mg_answer {
    const char *text; /* whole answer, NUL-terminated; lives until the next call on this chat */
    size_t n_text;
    const int32_t *token; /* generated ids without the end token; same life */
    size_t n_token;
    const char *finish_reason; /* "stop", "length" or "cancelled" */
    const char *stop_detail;   /* "end_token", "stop_string", "repetition", or NULL */
    size_t prompt_tokens, cached_tokens, image_tokens;
    size_t passes; /* of the model after the prompt; fewer than tokens when drafts were right */
    size_t drafted_tokens, accepted_tokens; /* guessed, and of those right */
    double image_ms, vision_ms, prefill_ms, first_token_ms, decode_ms_per_token, total_ms;
};

/* Generates the answer to the conversation so far and appends it as an assistant turn.
 * MG_ERR_CONTEXT is found before anything is computed. On failure the conversation is as before:
 * the question still stands, and text added next joins its turn. Stopped before the first token it
 * fails with MG_ERR_CANCELLED; later it succeeds with finish reason "cancelled" and keeps what was
 * said.
 * options NULL: init's; event and out may be NULL. */
enum mg_status mg_chat_answer(mg_chat *chat, const struct mg_answer_options *options,
                              mg_event_fn *event, void *user, struct mg_answer *out,
                              struct mg_err *err);

/* Asks a running answer to stop within one layer's time; with none running the next one stops at
 * once. Async-signal-safe. */
void mg_chat_cancel(mg_chat *chat);

#ifdef __cplusplus
}
#endif
#endif
