/* cli/load_answer.c - see load_answer.h. */
#include "cli/load_answer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

void mg_load_code(const char *text, char out[MG_LOAD_CODE]) {
    size_t n = 0;
    for (; text[n] && n < MG_LOAD_CODE - 1; n++) {
        char c = text[n];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '.' || c == '-';
        out[n] = plain ? c : '_';
    }
    out[n] = 0;
}

/* code, else type, of {"error": {...}}; servers have numbers there, or a bare text. */
static void take_code(struct mg_load_answer *a, const json_t *error) {
    static const char *const member[] = {"code", "type"};
    for (size_t i = 0; i < 2 && !*a->code; i++) {
        const json_t *value = json_object_get(error, member[i]);
        if (json_is_string(value)) mg_load_code(json_string_value(value), a->code);
        if (json_is_integer(value))
            snprintf(a->code, sizeof a->code, "%lld", (long long)json_integer_value(value));
    }
}

static void take_count(const json_t *object, const char *name, int64_t *out) {
    const json_t *value = json_object_get(object, name);
    if (json_is_integer(value) && json_integer_value(value) >= 0) *out = json_integer_value(value);
}

static void take_usage(struct mg_load_answer *a, const json_t *root) {
    const json_t *usage = json_object_get(root, "usage");
    if (!json_is_object(usage)) return;
    take_count(usage, "prompt_tokens", &a->prompt_tokens);
    take_count(usage, "completion_tokens", &a->completion_tokens);
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    take_count(details, "cached_tokens", &a->cached_tokens);
    take_count(details, "image_tokens", &a->image_tokens);
}

static bool has_text(const json_t *message) {
    static const char *const member[] = {"content", "reasoning_content", "reasoning"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *value = json_object_get(message, member[i]);
        if (json_is_string(value) && json_string_length(value)) return true;
    }
    return json_array_size(json_object_get(message, "tool_calls")) > 0;
}

static bool wrong(struct mg_load_answer *a, const char *code) {
    a->malformed = true;
    snprintf(a->code, sizeof a->code, "%s", code);
    return false;
}

/* One chunk of a stream, or a whole answer. */
static bool take_object(struct mg_load_answer *a, const json_t *root, const char *message) {
    if (!json_is_object(root)) return wrong(a, "json");
    const json_t *error = json_object_get(root, "error");
    if (error && !json_is_null(error)) {
        a->failed = true;
        take_code(a, error);
        return false;
    }
    const json_t *choices = json_object_get(root, "choices"), *choice;
    size_t i;
    if (!json_is_array(choices)) return wrong(a, "no_choices");
    take_usage(a, root);
    json_array_foreach(choices, i, choice) {
        const json_t *part = json_object_get(choice, message);
        if (!json_is_object(part)) return wrong(a, message);
        if (a->stream && has_text(part)) a->chunk(a->user);
        a->finished |= json_is_string(json_object_get(choice, "finish_reason"));
    }
    return true;
}

static bool on_event(void *user, const char *name, const char *data, size_t n) {
    struct mg_load_answer *a = user;
    if (a->done) return true;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        a->done = true;
        return true;
    }
    json_t *root = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
    bool more = take_object(a, root, "delta");
    json_decref(root);
    return more;
}

void mg_load_answer_begin(struct mg_load_answer *a, bool stream, void (*chunk)(void *),
                          void *user) {
    *a = (struct mg_load_answer){.chunk = chunk,
                                 .user = user,
                                 .stream = stream,
                                 .prompt_tokens = -1,
                                 .cached_tokens = -1,
                                 .image_tokens = -1,
                                 .completion_tokens = -1,
                                 .sse = {.event = on_event},
                                 .body = {.max = MG_LOAD_MAX_BODY}};
    a->sse.user = a;
}

bool mg_load_answer_feed(struct mg_load_answer *a, const uint8_t *data, size_t n) {
    a->n_byte += n;
    if (!a->stream) return mg_buf_add(&a->body, data, n) || wrong(a, "too_long");
    if (mg_sse_reader_feed(&a->sse, data, n)) return true;
    if (a->sse.fault) wrong(a, "event_too_long");
    return false;
}

enum mg_load_kind mg_load_answer_end(struct mg_load_answer *a, int status) {
    if (!a->stream && !a->malformed) {
        json_t *root = json_loadb(a->body.data ? (const char *)a->body.data : "", a->body.n,
                                  JSON_ALLOW_NUL, NULL);
        if (status != 200)
            take_code(a, json_object_get(root, "error"));
        else if (take_object(a, root, "message"))
            a->done = true;
        json_decref(root);
    }
    if (status != 200) return MG_LOAD_STATUS;
    if (a->failed) return MG_LOAD_IN_STREAM;
    if (a->malformed) return MG_LOAD_MALFORMED;
    if (a->done || a->finished) return MG_LOAD_OK;
    if (a->n_byte > 0 && !a->sse.begun) return wrong(a, "no_events"), MG_LOAD_MALFORMED;
    snprintf(a->code, sizeof a->code, "no_end");
    return MG_LOAD_CUT;
}

void mg_load_answer_free(struct mg_load_answer *a) {
    mg_sse_reader_free(&a->sse);
    mg_buf_free(&a->body);
}
