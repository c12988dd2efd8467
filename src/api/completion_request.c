/* api/completion_request.c - see completion_request.h. */
#include "api/completion_request.h"

#include "api/request_read.h"

#include <stdlib.h>

static enum mg_status read_prompt(struct mg_reader *r, struct mg_completion_request *out) {
    const json_t *prompt = mg_jdoc_get(r->doc->root, "prompt");
    if (json_is_array(prompt)) {
        const json_t *first = json_array_get(prompt, 0);
        if (json_is_integer(first) || json_is_array(first))
            return mg_fault_set(r->f, MG_ERR_UNSUPPORTED, "unsupported_value", "prompt",
                                "prompt: token ids can't be read; wanted text");
        if (json_array_size(prompt) != 1)
            return mg_fault_set(r->f, MG_ERR_UNSUPPORTED, "unsupported_value", "prompt",
                                "prompt: a list of %zu; one text at a time can be completed",
                                json_array_size(prompt));
        prompt = first;
    }
    if (!json_is_string(prompt))
        return mg_read_wrong(r, "", "prompt", "a string or a list of one string", prompt);
    struct mg_slice text;
    enum mg_status status = mg_jdoc_text(r->doc, prompt, r->arena, "prompt", &text, r->f);
    out->prompt = (const char *)text.data;
    out->n_prompt = text.n;
    return status;
}

enum mg_status mg_completion_request_parse(const char *body, size_t n,
                                           struct mg_completion_request **out, struct mg_fault *f) {
    *out = NULL;
    struct mg_jdoc doc;
    enum mg_status status = mg_jdoc_parse(body, n, &doc, f);
    if (status != MG_OK) return status;
    struct mg_completion_request *request = calloc(1, sizeof *request);
    if (!request) {
        mg_jdoc_free(&doc);
        return mg_fault_memory(f, "request");
    }
    struct mg_reader r = {.doc = &doc, .arena = &request->arena, .f = f};
    status = mg_request_read(&r, MG_DIALECT_COMPLETION, &request->common);
    if (status == MG_OK) status = read_prompt(&r, request);
    if (status == MG_OK) status = mg_request_warnings(&r, &request->common);
    mg_jdoc_free(&doc);
    if (status != MG_OK)
        mg_completion_request_free(request);
    else
        *out = request;
    return status;
}

void mg_completion_request_free(struct mg_completion_request *r) {
    if (!r) return;
    mg_arena_free(&r->arena);
    free(r);
}
