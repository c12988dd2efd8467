/* api/chat_reply.h - answers as OpenAI's clients read them: whole, as server-sent events, and as
 * WebSocket messages.
 *
 * A stream is, for one answer (n > 1: the same per index, in any order):
 *
 *     mg_chunk_begin      data: {"id":..,"object":"chat.completion.chunk","created":..,"model":..,
 *                           "choices":[{"index":0,"delta":{"role":"assistant","content":""},..}]}
 *     mg_chunk_progress   data: {.. "delta":{},"finish_reason":null}],"prompt_progress":{..}}
 *     mg_chunk_text       data: {.. "delta":{"content":"The"} ..}
 *     mg_chunk_finish     data: {.. "delta":{},"finish_reason":"stop"}],"images":[..],"timings":..}
 *     mg_chunk_usage      data: {.. "choices":[],"usage":{..}}      with include_usage only
 *     mg_chunk_done       data: [DONE]
 *
 * each followed by an empty line. id, created and model are the same in all; the caller makes them
 * once. There are never `id:` lines. What is not known yet is null or left out, as OpenAI does.
 * All text must be cut between characters (the engine's events are). Functions return false when
 * the buffer could not grow; it holds part of an event then and must not be sent.
 *
 * Plain structs, all borrowed during the call; times in milliseconds.
 */
#ifndef MG_API_CHAT_REPLY_H
#define MG_API_CHAT_REPLY_H

#include "api/fault.h"
#include "margay/margay.h"

/* The same in every chunk of a stream. */
struct mg_reply_head {
    const char *id;    /* "chatcmpl-...", "cmpl-..." */
    int64_t created;   /* seconds since 1970 */
    const char *model; /* as the server calls it */
    bool completion;   /* /v1/completions: text_completion objects with "text" */
    bool usage;        /* include_usage was asked for: other chunks carry "usage":null */
};

struct mg_reply_usage {
    size_t prompt_tokens, completion_tokens;
    size_t cached_tokens, image_tokens; /* of the prompt's */
};

/* A token with its log-probability and the likeliest at its place. */
struct mg_reply_token {
    const char *text; /* n_text bytes, need not be whole characters */
    size_t n_text;
    double logprob;                   /* -infinity is written as -9999, as OpenAI does */
    const struct mg_reply_token *top; /* [n_top], theirs NULL */
    size_t n_top;
};

struct mg_reply_choice {
    size_t index;
    const char *text;
    size_t n_text;
    const char *finish_reason; /* "stop", "length"; "cancelled" is told as "stop" with a detail */
    const char *stop_detail;   /* "end_token", "stop_string", "repetition", or NULL */
    bool logprobs;             /* were asked for */
    const struct mg_reply_token *token; /* [n_token], of the text */
    size_t n_token;
    size_t text_at; /* completions' text_offset of the first token: characters before it */
};

struct mg_reply_image {
    struct mg_image_report report;
    uint32_t frame_used; /* from 0 */
    const char *cache;   /* "hit", "miss", "off", or NULL: hit or miss by report.cached */
};

struct mg_reply_timings {
    size_t prompt_n;  /* prompt tokens computed, without the cached */
    size_t cache_n;   /* prompt tokens that were there */
    double prompt_ms; /* reading the prompt, pictures included */
    size_t predicted_n;
    double predicted_ms;
    double queue_ms, image_ms, vision_ms, first_token_ms, total_ms;
    size_t passes, drafted, accepted; /* of the model; tokens guessed and right */
};

enum mg_reply_cache { MG_CACHE_UNUSED, MG_CACHE_MISS, MG_CACHE_EXACT, MG_CACHE_NEAR };
/* "miss", "exact", "near" for the x-cache header; NULL when no answer cache was asked. */
const char *mg_reply_cache_name(enum mg_reply_cache cache);

/* What is told beside the answer. */
struct mg_reply_extra {
    const struct mg_reply_image *image; /* [n_image] */
    size_t n_image;
    const struct mg_reply_timings *timings; /* NULL: none */
    enum mg_reply_cache cache;
    double cache_distance; /* with MG_CACHE_NEAR: share of the picture's hash that differs, 0..1 */
    const char *const *warning; /* [n_warning] */
    size_t n_warning;
};

/* The whole reply. extra may be NULL. */
bool mg_reply_write(struct mg_buf *out, const struct mg_reply_head *head,
                    const struct mg_reply_choice *choice, size_t n_choice,
                    const struct mg_reply_usage *usage, const struct mg_reply_extra *extra);

/* Where a request is, while there is no text. */
struct mg_reply_progress {
    const char *stage;              /* "queue", "decode" (pictures), "vision", "prefill" */
    size_t step, of;                /* within the stage; of 0: not known, both are left out */
    size_t total, cache, processed; /* prompt tokens: all, from the cache, read so far */
    double time_ms;                 /* since reading began */
    size_t queue_position;          /* with stage "queue": 1 is next */
    double estimate_ms;             /* until the first token; < 0: not known */
};

bool mg_chunk_begin(struct mg_buf *out, const struct mg_reply_head *head, size_t index);
bool mg_chunk_progress(struct mg_buf *out, const struct mg_reply_head *head,
                       const struct mg_reply_progress *progress);
/* A piece of text: index, text, logprobs, token are used. timings may be NULL. */
bool mg_chunk_text(struct mg_buf *out, const struct mg_reply_head *head,
                   const struct mg_reply_choice *piece, const struct mg_reply_timings *timings);
/* index, finish_reason, stop_detail are used. extra may be NULL. */
bool mg_chunk_finish(struct mg_buf *out, const struct mg_reply_head *head,
                     const struct mg_reply_choice *choice, const struct mg_reply_extra *extra);
bool mg_chunk_usage(struct mg_buf *out, const struct mg_reply_head *head,
                    const struct mg_reply_usage *usage);
bool mg_chunk_done(struct mg_buf *out);
/* An error after the headers; the stream ends with it, without [DONE]. */
bool mg_chunk_error(struct mg_buf *out, const struct mg_fault *f);
bool mg_chunk_ping(struct mg_buf *out); /* a comment, against silence */

/* WebSocket messages, each a text frame. */
bool mg_ws_progress(struct mg_buf *out, const char *id, const struct mg_reply_progress *progress);
bool mg_ws_token(struct mg_buf *out, const char *id, const char *text, size_t n);
/* {"type":"result","text":..,"finish_reason":..} and all that the whole reply has beside it. */
bool mg_ws_result(struct mg_buf *out, const struct mg_reply_head *head,
                  const struct mg_reply_choice *choice, const struct mg_reply_usage *usage,
                  const struct mg_reply_extra *extra);
/* {"type":"error","error":{...}}; id NULL: of no question. */
bool mg_ws_error(struct mg_buf *out, const char *id, const struct mg_fault *f);

#endif
