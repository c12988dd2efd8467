/* cli/load_answer.h - what a reply to POST /v1/chat/completions says: text, usage, errors.
 *
 * Takes the body as it comes. A stream is events of JSON chunks up to "[DONE]"; anything else is
 * one JSON object, kept whole (at most MG_LOAD_MAX_BODY bytes) until it ends. Servers differ: a
 * stream may end without [DONE] when each choice had its finish_reason; text may come as content,
 * reasoning_content, reasoning or tool_calls; usage may be in any chunk. Pure but for memory.
 */
#ifndef MG_CLI_LOAD_ANSWER_H
#define MG_CLI_LOAD_ANSWER_H

#include "cli/load.h"

#include "net/sse_reader.h"

#define MG_LOAD_MAX_BODY ((size_t)16 << 20)

struct mg_load_answer {
    /* Called for each piece of text of a stream. */
    void (*chunk)(void *user);
    void *user;

    bool stream;   /* events are read */
    bool finished; /* a finish_reason has come */
    bool done;     /* [DONE] has */
    bool failed;   /* an error in the stream; its code is there */
    bool malformed;
    char code[MG_LOAD_CODE];
    int64_t prompt_tokens, cached_tokens, image_tokens, completion_tokens; /* -1: not told */
    uint64_t n_byte;

    /* Own: */
    struct mg_sse_reader sse;
    struct mg_buf body;
};

void mg_load_answer_begin(struct mg_load_answer *a, bool stream, void (*chunk)(void *), void *user);
/* false: the rest is of no use (malformed, failed). */
bool mg_load_answer_feed(struct mg_load_answer *a, const uint8_t *data, size_t n);
/* The body has ended: how did the request? `status` is that of the reply. */
enum mg_load_kind mg_load_answer_end(struct mg_load_answer *a, int status);
void mg_load_answer_free(struct mg_load_answer *a);

/* A server's word in `out`: letters, digits and "_.-", cut; other characters become '_'. */
void mg_load_code(const char *text, char out[MG_LOAD_CODE]);

#endif
