/* api/fault.h - what is wrong with a request, and how that is told: HTTP status, type and code.
 *
 * One table (fault.c) turns an error of ours into what clients of the OpenAI API know. It goes by
 * the error's code, else by its status. What clients do with it: 408, 409, 429 and 5xx are tried
 * again, so anything that would fail the same way next time is another 4xx.
 *
 *     {"error":{"message":"...","type":"invalid_request_error","param":"top_p","code":"..."}}
 *
 * Types are llama-server's. `code` is our stable word. Errors whose text may name files of the
 * server (checkpoint, disk) are told by a fixed sentence; the log has the text.
 */
#ifndef MG_API_FAULT_H
#define MG_API_FAULT_H

#include "base/err.h"
#include "base/mem.h"

#define MG_PARAM_BYTES 96

/* An error and the field of the request that it is about. Zero it before use. */
struct mg_fault {
    struct mg_err err;
    char param[MG_PARAM_BYTES]; /* "messages[0].content[1].image_url", "" when no field is to blame
                                 */
};

/* Sets the error unless one is set. `param` may be "". The text must hold nothing of the request
 * but numbers and positions. Returns the status. */
enum mg_status mg_fault_set(struct mg_fault *f, enum mg_status status, const char *code,
                            const char *param, const char *fmt, ...) MG_PRINTF(5, 6);
/* Out of memory while making `what`. */
enum mg_status mg_fault_memory(struct mg_fault *f, const char *what);

struct mg_fault_kind {
    const char *code; /* the word sent, "" for none; lives as long as the error or the program */
    const char *type; /* "invalid_request_error", ... */
    int http;         /* 400.. */
    bool retry;       /* a Retry-After header belongs to it */
    bool public_text; /* err.text may be shown */
};
/* What an error (status not MG_OK) is for a client. */
void mg_fault_kind(const struct mg_err *err, struct mg_fault_kind *out);

/* Appends the error object; false when the buffer could not grow. */
bool mg_fault_write(const struct mg_fault *f, struct mg_buf *out);
/* The same of a bare error. */
bool mg_err_write(const struct mg_err *err, struct mg_buf *out);
/* The inner object alone ({"message",...}), for events that wrap it themselves. */
struct mg_jwrite;
void mg_fault_object(const struct mg_fault *f, struct mg_jwrite *j);

#endif
