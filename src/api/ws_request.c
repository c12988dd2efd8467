/* api/ws_request.c - see ws_request.h. */
#include "api/ws_request.h"

#include "api/request_read.h"

#include <string.h>

static enum mg_status read_id(const struct mg_jdoc *doc, struct mg_ws_request *out,
                              struct mg_fault *f) {
    const json_t *id = mg_jdoc_get(doc->root, "id");
    if (!id) return MG_OK;
    const char *text = json_string_value(id);
    bool fine = text && json_string_length(id) <= MG_WS_MAX_ID;
    for (const char *c = text; fine && *c; c++) fine = *c >= 0x20 && *c < 0x7F;
    if (!fine || strlen(text) != json_string_length(id))
        return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "id",
                            "id: must be a string of at most %d printable ASCII characters",
                            MG_WS_MAX_ID);
    memcpy(out->id, text, strlen(text) + 1);
    return MG_OK;
}

enum mg_status mg_ws_request_parse(const char *text, size_t n, const struct mg_chat_limits *limits,
                                   struct mg_ws_request *out, struct mg_fault *f) {
    *out = (struct mg_ws_request){0};
    struct mg_jdoc doc;
    enum mg_status status = mg_jdoc_parse(text, n, &doc, f);
    if (status != MG_OK) return status;
    const json_t *type = mg_jdoc_get(doc.root, "type");
    status = read_id(&doc, out, f);
    if (status == MG_OK && type && mg_jdoc_is(type, "cancel"))
        out->kind = MG_WS_CANCEL;
    else if (status == MG_OK && type && !mg_jdoc_is(type, "question"))
        status = mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "type",
                              "type: must be question or cancel");
    else if (status == MG_OK)
        status = mg_chat_request_read(&doc, true, limits, &out->chat, f);
    mg_jdoc_free(&doc);
    return status;
}

void mg_ws_request_free(struct mg_ws_request *r) {
    mg_chat_request_free(r->chat);
    r->chat = NULL;
}
