/* api/completion_request.h - the body of POST /v1/completions: a text goes on.
 *
 * `prompt` is a string or a list of one string; lists of several, and token ids, are refused by
 * name. All else is as in api/request.h, but `logprobs` is a number here (how many others).
 */
#ifndef MG_API_COMPLETION_REQUEST_H
#define MG_API_COMPLETION_REQUEST_H

#include "api/request.h"

struct mg_completion_request {
    struct mg_request common;
    const char *prompt; /* n_prompt bytes, a zero byte behind them, none within; may be empty */
    size_t n_prompt;
    struct mg_arena arena;
};

/* As mg_chat_request_parse. */
enum mg_status mg_completion_request_parse(const char *body, size_t n,
                                           struct mg_completion_request **out, struct mg_fault *f);
void mg_completion_request_free(struct mg_completion_request *r); /* NULL is fine */

#endif
