/* api/fault.c - see fault.h. */
#include "api/fault.h"

#include "api/json_write.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char invalid[] = "invalid_request_error", server[] = "server_error",
                  unavailable[] = "unavailable_error";

/* Codes that say more than their status does. A name that ends in '*' stands for all that begin
 * so. */
static const struct {
    const char *code, *type;
    int http;
    bool retry, public_text;
} by_code[] = {
    {"context_length_exceeded", "exceed_context_size_error", 400, false, true},
    {"invalid_api_key", "authentication_error", 401, false, true},
    {"name_not_allowed", "permission_error", 403, false, true},
    {"origin_not_allowed", "permission_error", 403, false, true},
    {"not_found", "not_found_error", 404, false, true},
    {"file_not_found", "not_found_error", 404, false, true},
    {"model_not_found", "not_found_error", 404, false, true},
    {"method_not_allowed", invalid, 405, false, true},
    {"request_timeout", invalid, 408, false, true},
    {"body_too_large", invalid, 413, false, true},
    {"uri_too_long", invalid, 414, false, true},
    {"unsupported_media_type", invalid, 415, false, true},
    {"unsupported_encoding", invalid, 415, false, true},
    {"expectation_failed", invalid, 417, false, true},
    {"upgrade_required", invalid, 426, false, true},
    {"websocket_version", invalid, 426, false, true},
    {"header_too_large", invalid, 431, false, true},
    {"rate_limited", "rate_limit_error", 429, true, true},
    {"queue_full", unavailable, 503, true, true},
    {"queue_timeout", unavailable, 503, true, true},
    {"loading", unavailable, 503, true, true},
    {"shutting_down", unavailable, 503, true, true},
    {"out_of_memory", unavailable, 503, true, true},
    {"queue_unavailable", unavailable, 503, true, true},
    {"picture_gone", unavailable, 503, true, true},
    {"job_lost", unavailable, 503, true, true},
    {"job_not_found", "not_found_error", 404, false, true},
    {"job_id_taken", invalid, 409, false, true},
    {"invalid_job_id", invalid, 400, false, true},
    {"invalid_offset", invalid, 400, false, true},
    {"job_cancelled", invalid, 400, false, true},
    {"worker_lost", server, 500, false, true},
    {"answer_changed", server, 500, false, true},
    {"answer_too_large", server, 500, false, true},
    {"queue_error", server, 500, false, true},
    {"not_implemented", "not_supported_error", 501, false, true},
    {"http_version", "not_supported_error", 505, false, true},
    {"busy", unavailable, 503, true, true},
    {"unavailable", unavailable, 503, true, true},
    /* Of a picture's URL, whose text names the host at most. 4xx, so that a client doesn't make us
     * ask that host again and again. */
    {"image_fetch", invalid, 400, false, true},
    /* Of the checkpoint, not of the request. */
    {"tokenizer_*", server, 500, false, false},
    {"checksum", server, 500, false, false},
    {"not_packed", server, 500, false, false},
    {"no_cache", server, 500, false, false},
};

static const struct {
    const char *type;
    int http;
    bool retry, public_text;
} by_status[] = {
    [MG_OK] = {server, 500, false, false},
    [MG_ERR_ARGUMENT] = {invalid, 400, false, true},
    [MG_ERR_NOT_FOUND] = {"not_found_error", 404, false, false},
    [MG_ERR_IO] = {server, 500, false, false},
    [MG_ERR_FORMAT] = {invalid, 400, false, true},
    [MG_ERR_UNSUPPORTED] = {invalid, 400, false, true},
    [MG_ERR_LIMIT] = {invalid, 400, false, true},
    [MG_ERR_CONTEXT] = {"exceed_context_size_error", 400, false, true},
    [MG_ERR_NUMERIC] = {server, 500, false, true},
    [MG_ERR_CANCELLED] = {unavailable, 503, false, true},
    [MG_ERR_MEMORY] = {unavailable, 503, true, true},
};

enum mg_status mg_fault_set(struct mg_fault *f, enum mg_status status, const char *code,
                            const char *param, const char *fmt, ...) {
    if (!f || f->err.status != MG_OK) return status;
    char text[sizeof f->err.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(f->param, sizeof f->param, "%s", param);
    return mg_fail(&f->err, status, code, "%s", text);
}

enum mg_status mg_fault_memory(struct mg_fault *f, const char *what) {
    return mg_fail_memory(f ? &f->err : NULL, what);
}

static bool matches(const char *pattern, const char *code) {
    size_t n = strlen(pattern);
    if (n && pattern[n - 1] == '*') return strncmp(pattern, code, n - 1) == 0;
    return strcmp(pattern, code) == 0;
}

void mg_fault_kind(const struct mg_err *err, struct mg_fault_kind *out) {
    unsigned status = (unsigned)err->status;
    if (status >= sizeof by_status / sizeof *by_status) status = MG_OK;
    *out = (struct mg_fault_kind){.code = err->code,
                                  .type = by_status[status].type,
                                  .http = by_status[status].http,
                                  .retry = by_status[status].retry,
                                  .public_text = by_status[status].public_text};
    for (size_t i = 0; i < sizeof by_code / sizeof *by_code; i++) {
        if (!matches(by_code[i].code, err->code)) continue;
        out->type = by_code[i].type;
        out->http = by_code[i].http;
        out->retry = by_code[i].retry;
        out->public_text = by_code[i].public_text;
        return;
    }
    if (err->status == MG_ERR_CONTEXT) out->code = "context_length_exceeded";
    if (err->status == MG_ERR_MEMORY) out->code = "out_of_memory";
}

void mg_fault_object(const struct mg_fault *f, struct mg_jwrite *j) {
    struct mg_fault_kind kind;
    mg_fault_kind(&f->err, &kind);
    const char *text = f->err.text;
    if (!kind.public_text || !text[0])
        text = kind.http == 404  ? "not found"
               : kind.http < 500 ? "the request can't be served"
                                 : "an error of the server; its log says more";
    mg_jwrite_open(j, '{');
    mg_jwrite_kstr(j, "message", text);
    mg_jwrite_kstr(j, "type", kind.type);
    mg_jwrite_kstr(j, "param", f->param[0] ? f->param : NULL);
    mg_jwrite_kstr(j, "code", kind.code[0] ? kind.code : NULL);
    mg_jwrite_close(j, '}');
}

bool mg_fault_write(const struct mg_fault *f, struct mg_buf *out) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_key(&j, "error");
    mg_fault_object(f, &j);
    mg_jwrite_close(&j, '}');
    return !out->failed;
}

bool mg_err_write(const struct mg_err *err, struct mg_buf *out) {
    struct mg_fault f = {.err = *err};
    return mg_fault_write(&f, out);
}
