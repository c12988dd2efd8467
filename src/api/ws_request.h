/* api/ws_request.h - what a client says over /ws, one text frame each.
 *
 *     {"type":"cancel"} or {"type":"cancel","id":"q1"}    stops the answer
 *     {"type":"question", ...}                             a question; "type" may be left out
 *
 * A question is either the body of a chat request (with "messages"), or the short form
 *
 *     {"question":"What is this?","images":["data:...","margay-file:ID"],"image":"...",
 *      "system":"...", and any field of request.h}
 *
 * in which pictures stand before the question. Binary frames before it are pictures too; the caller
 * adds them (mg_chat_request_add_image_take). "id" is the client's own name for the question; it
 * comes back in the messages about it.
 */
#ifndef MG_API_WS_REQUEST_H
#define MG_API_WS_REQUEST_H

#include "api/chat_request.h"

#define MG_WS_MAX_ID 64

enum mg_ws_ask { MG_WS_QUESTION, MG_WS_CANCEL };

struct mg_ws_request {
    enum mg_ws_ask kind;
    char id[MG_WS_MAX_ID + 1];    /* printable ASCII, "" when not given */
    struct mg_chat_request *chat; /* QUESTION: owned, may be taken (leave NULL) */
};

/* On failure nothing is owned, but `id` is filled in when it could be read, for the error. */
enum mg_status mg_ws_request_parse(const char *text, size_t n, const struct mg_chat_limits *limits,
                                   struct mg_ws_request *out, struct mg_fault *f);
void mg_ws_request_free(struct mg_ws_request *r);

#endif
