/* Fuzz target: the body of a chat request. What comes out must keep the limits that the code behind
 * relies on, and an error must not repeat the body. */
#include "api/chat_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const struct mg_chat_request *r) {
    const struct mg_request *c = &r->common;
    size_t n_image = 0;
    if (r->n_message < 1 || r->n_message > MG_CHAT_MAX_MESSAGES) abort();
    if (c->n < 1 || c->n > MG_REQUEST_MAX_N || c->top_logprobs > MG_REQUEST_MAX_TOP_LOGPROBS ||
        c->n_stop > MG_REQUEST_MAX_STOP || c->n_bias > MG_REQUEST_MAX_BIAS ||
        c->n_warning > MG_REQUEST_MAX_WARNINGS)
        abort();
    if (c->max_tokens.set && c->max_tokens.value < 1) abort();
    if (c->temperature.set && !(c->temperature.value >= 0 && c->temperature.value <= 100)) abort();
    for (size_t i = 0; i < c->n_stop; i++)
        if (!c->stop[i][0] || strlen(c->stop[i]) > MG_REQUEST_MAX_STOP_BYTES) abort();
    for (size_t i = 0; i < r->n_message; i++) {
        for (size_t k = 0; k < r->message[i].n_part; k++) {
            const struct mg_chat_part *p = &r->message[i].part[k];
            if (p->kind == MG_CHAT_IMAGE) {
                n_image++;
                if ((p->source.kind == MG_SOURCE_BYTES) != (p->source.bytes != NULL) ||
                    (p->source.kind == MG_SOURCE_BYTES) != (p->source.text == NULL))
                    abort();
            } else if (strlen(p->text) != p->n_text) {
                abort();
            }
            if (p->kind == MG_CHAT_TOOL_CALL && (!p->name || !p->name[0])) abort();
        }
    }
    if (n_image != r->n_image || n_image > 8) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct mg_chat_limits limits = {.max_image_bytes = 4096, .max_images = 8};
    struct mg_chat_request *r;
    struct mg_fault f = {0};
    enum mg_status status = mg_chat_request_parse((const char *)data, n, &limits, &r, &f);
    if ((status == MG_OK) != (f.err.status == MG_OK) || (status == MG_OK) != (r != NULL)) abort();
    if (status != MG_OK) {
        struct mg_fault_kind kind;
        mg_fault_kind(&f.err, &kind);
        if (!f.err.text[0] || kind.http != 400) abort();
        /* Only our own words: printable ASCII. */
        for (const char *c = f.err.text; *c; c++)
            if (*c < 0x20 || *c >= 0x7F) abort();
    }
    if (r) check(r);
    mg_chat_request_free(r);
    return 0;
}
