/* api/chat_request.h - the body of POST /v1/chat/completions as a conversation.
 *
 * The result owns all it holds and knows nothing of OpenAI: other dialects fill in the same struct.
 * Texts and lists lie in one arena, pictures' bytes each in a block of its own, so that they can be
 * handed on and freed one by one.
 *
 *     messages[]: {"role":"user","content":"text" | null | [part, ...]}
 *     part:  {"type":"text","text":"..."}           (input_text, output_text, refusal: the same)
 *            "..."                                   a bare string
 *            {"type":"image_url","image_url":{"url":"...","detail":"low"} | "..."}
 *            {"type":"input_image","image_url":"..." | "file_id":"..."}
 *            {"type":"image_file","image_file":{"file_id":"..."} | "file_id":"..."}
 *            {"type":"image","image":"..." | "image_url":"..." | "url":"..."}
 *     beside a picture's source, or in the object with it:
 *            detail low|auto|high|original, min_pixels, max_pixels, prune off|exact|near=N
 *
 * What a picture's text may be: image_source.h. A message without content (null, missing, "", [])
 * stays, as a turn without parts. Assistant turns may carry tool_calls (name and argument text),
 * tool turns an answer; function is read as tool, developer as system. Pictures may stand in a turn
 * of any role, as text/prompt.h can write them.
 *
 * Error texts name the place ("messages[2].content[0].image_url: ...") and hold nothing of the
 * request but numbers. Memory: json_doc.h; at the peak the body, the pictures, and what the
 * conversation's text takes twice.
 */
#ifndef MG_API_CHAT_REQUEST_H
#define MG_API_CHAT_REQUEST_H

#include "api/image_source.h"
#include "api/request.h"

#define MG_CHAT_MAX_MESSAGES 4096
#define MG_CHAT_MAX_PARTS 16384 /* in all */
#define MG_CHAT_MAX_NAME 256    /* bytes of a tool's name or a call's id */

enum mg_image_detail { MG_DETAIL_AUTO, MG_DETAIL_LOW, MG_DETAIL_HIGH, MG_DETAIL_ORIGINAL };

/* What a request wants done to a picture. */
struct mg_image_wish {
    enum mg_image_detail detail;
    uint64_t min_pixels, max_pixels; /* of the resized picture; 0: not given */
    bool prune_set;
    enum mg_prune_mode prune;
    uint8_t prune_near;
};

enum mg_chat_part_kind { MG_CHAT_TEXT, MG_CHAT_IMAGE, MG_CHAT_TOOL_CALL };

struct mg_chat_part {
    enum mg_chat_part_kind kind;
    const char *text; /* TEXT: the text; TOOL_CALL: its arguments; NUL behind it, none within */
    size_t n_text;
    const char *name;              /* TOOL_CALL: the function's */
    struct mg_image_source source; /* IMAGE */
    struct mg_image_wish wish;     /* IMAGE */
};

struct mg_chat_message {
    enum mg_chat_role role;
    struct mg_chat_part *part; /* [n_part] in order; tool calls behind the content */
    size_t n_part;
    const char *tool_call_id; /* of a tool's answer, NULL when not given */
};

struct mg_chat_request {
    struct mg_request common;
    struct mg_chat_message *message; /* [n_message], at least 1 */
    size_t n_message;
    size_t n_image;             /* pictures in all messages */
    bool add_generation_prompt; /* default true; only /apply-template heeds it */
    struct mg_arena arena;
};

struct mg_chat_limits {
    size_t max_image_bytes; /* of one picture; 0: 64 MiB */
    size_t max_images;      /* 0: 64 */
};

/* body: n bytes, only read. limits NULL: all defaults. On success *out is owned by the caller; on
 * failure it is NULL and `f` says what is wrong. */
enum mg_status mg_chat_request_parse(const char *body, size_t n,
                                     const struct mg_chat_limits *limits,
                                     struct mg_chat_request **out, struct mg_fault *f);
void mg_chat_request_free(struct mg_chat_request *r); /* NULL is fine */

/* Puts a picture that came beside the request (a binary WebSocket frame) before the parts of the
 * last user message. `bytes` is malloc'd and moves in, also on failure. */
enum mg_status mg_chat_request_add_image_take(struct mg_chat_request *r, uint8_t *bytes, size_t n,
                                              struct mg_fault *f);

#endif
