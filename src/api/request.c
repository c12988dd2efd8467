/* api/request.c - see request.h and request_read.h. */
#include "api/request_read.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that are taken as they are: where they go, and their range. */
struct number_field {
    const char *name;
    bool whole;
    double min, max;
    size_t at; /* offset of a mg_set_int or mg_set_real in mg_request */
};
#define INT_FIELD(name, low, high, member)                                                         \
    { name, true, low, high, offsetof(struct mg_request, member) }
#define REAL_FIELD(name, low, high, member)                                                        \
    { name, false, low, high, offsetof(struct mg_request, member) }
/* A later spelling of a member wins over an earlier one. */
static const struct number_field numbers[] = {
    INT_FIELD("max_tokens", -2, INT32_MAX, max_tokens),
    INT_FIELD("max_completion_tokens", -2, INT32_MAX, max_tokens),
    REAL_FIELD("temperature", 0, 100, temperature),
    REAL_FIELD("top_p", 0, 1, top_p),
    INT_FIELD("top_k", -1, INT32_MAX, top_k),
    REAL_FIELD("min_p", 0, 1, min_p),
    INT_FIELD("seed", (double)INT64_MIN, (double)INT64_MAX, seed),
    REAL_FIELD("presence_penalty", -100, 100, presence_penalty),
    REAL_FIELD("frequency_penalty", -100, 100, frequency_penalty),
    REAL_FIELD("repetition_penalty", 0.01, 100, repetition_penalty),
    REAL_FIELD("repeat_penalty", 0.01, 100, repetition_penalty),
};
#define N_NUMBER (sizeof numbers / sizeof *numbers)

bool mg_request_field(size_t i, struct mg_request_field *out) {
    static const struct mg_request_field more[] = {
        {"n", true, 1, MG_REQUEST_MAX_N},
        {"top_logprobs", true, 0, MG_REQUEST_MAX_TOP_LOGPROBS},
    };
    if (i < N_NUMBER)
        *out = (struct mg_request_field){numbers[i].name, numbers[i].whole, numbers[i].min,
                                         numbers[i].max};
    else if (i - N_NUMBER < sizeof more / sizeof *more)
        *out = more[i - N_NUMBER];
    else
        return false;
    return true;
}

void mg_read_name(char out[MG_PARAM_BYTES], const char *path, const char *key) {
    snprintf(out, MG_PARAM_BYTES, "%s%s", path, key);
}

enum mg_status mg_read_wrong(struct mg_reader *r, const char *path, const char *key,
                             const char *wanted, const json_t *found) {
    char name[MG_PARAM_BYTES];
    mg_read_name(name, path, key);
    return mg_fault_set(r->f, MG_ERR_ARGUMENT, found ? "invalid_value" : "missing_field", name,
                        "%s: wanted %s, found %s", name, wanted, mg_jdoc_kind(found));
}

static enum mg_status unsupported(struct mg_reader *r, const char *name, const char *text) {
    return mg_fault_set(r->f, MG_ERR_UNSUPPORTED, "unsupported_value", name, "%s: %s", name, text);
}

enum mg_status mg_read_warn(struct mg_reader *r, const char *fmt, ...) {
    if (r->n_warning == MG_REQUEST_MAX_WARNINGS) return MG_OK;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *copy = mg_arena_strdup(r->arena, text, strlen(text));
    if (!copy) return mg_fault_memory(r->f, "request");
    r->warning[r->n_warning++] = copy;
    return MG_OK;
}

enum mg_status mg_read_bool(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, struct mg_set_bool *out) {
    const json_t *value = mg_jdoc_get(object, key);
    if (!value) return MG_OK;
    if (!json_is_boolean(value)) return mg_read_wrong(r, path, key, "true or false", value);
    *out = (struct mg_set_bool){true, json_is_true(value)};
    return MG_OK;
}

/* "%g" of a limit, but whole numbers in full. */
static const char *limit(char out[40], double x) {
    snprintf(out, 40, fabs(x) < 1e15 && x == floor(x) ? "%.0f" : "%g", x);
    return out;
}

static enum mg_status out_of_range(struct mg_reader *r, const char *path, const char *key,
                                   double min, double max) {
    char name[MG_PARAM_BYTES], low[40], high[40];
    mg_read_name(name, path, key);
    return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", name, "%s: must be from %s to %s",
                        name, limit(low, min), limit(high, max));
}

enum mg_status mg_read_int(struct mg_reader *r, const json_t *object, const char *path,
                           const char *key, int64_t min, int64_t max, struct mg_set_int *out) {
    const json_t *value = mg_jdoc_get(object, key);
    if (!value) return MG_OK;
    int64_t x;
    if (json_is_integer(value)) {
        x = json_integer_value(value);
    } else if (json_is_real(value)) {
        double real = json_real_value(value);
        if (real != floor(real)) return mg_read_wrong(r, path, key, "a whole number", value);
        if (!(real >= -0x1p63 && real < 0x1p63))
            return out_of_range(r, path, key, (double)min, (double)max);
        x = (int64_t)real;
    } else {
        return mg_read_wrong(r, path, key, "a whole number", value);
    }
    if (x < min || x > max) return out_of_range(r, path, key, (double)min, (double)max);
    *out = (struct mg_set_int){true, x};
    return MG_OK;
}

enum mg_status mg_read_real(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, double min, double max, struct mg_set_real *out) {
    const json_t *value = mg_jdoc_get(object, key);
    if (!value) return MG_OK;
    if (!json_is_number(value)) return mg_read_wrong(r, path, key, "a number", value);
    double x = json_number_value(value);
    if (!(x >= min && x <= max)) return out_of_range(r, path, key, min, max);
    *out = (struct mg_set_real){true, x};
    return MG_OK;
}

enum mg_status mg_read_text(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, size_t max, const char **out) {
    const json_t *value = mg_jdoc_get(object, key);
    if (!value) return MG_OK;
    if (!json_is_string(value)) return mg_read_wrong(r, path, key, "a string", value);
    char name[MG_PARAM_BYTES];
    mg_read_name(name, path, key);
    struct mg_slice text;
    enum mg_status status = mg_jdoc_text(r->doc, value, r->arena, name, &text, r->f);
    if (status == MG_OK && text.n > max)
        status = mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", name,
                              "%s: longer than %zu bytes", name, max);
    if (status == MG_OK) *out = (const char *)text.data;
    return status;
}

static enum mg_status read_numbers(struct mg_reader *r, struct mg_request *out) {
    for (size_t i = 0; i < N_NUMBER; i++) {
        const struct number_field *field = &numbers[i];
        void *at = (char *)out + field->at;
        int64_t min = field->min <= -0x1p63 ? INT64_MIN : (int64_t)field->min,
                max = field->max >= 0x1p63 ? INT64_MAX : (int64_t)field->max;
        enum mg_status status =
            field->whole
                ? mg_read_int(r, r->doc->root, "", field->name, min, max, at)
                : mg_read_real(r, r->doc->root, "", field->name, field->min, field->max, at);
        if (status != MG_OK) return status;
        if (out->max_tokens.set &&
            out->max_tokens.value == 0) /* also where a later one would win */
            return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", field->name,
                                "%s: must be at least 1, or -1 for as many as fit", field->name);
    }
    out->max_tokens_all = out->max_tokens.set && out->max_tokens.value < 0;
    if (out->max_tokens_all) out->max_tokens = (struct mg_set_int){0};
    if (out->top_k.value < 0) out->top_k.value = 0;
    if (out->seed.value == -1) out->seed = (struct mg_set_int){0};
    return MG_OK;
}

static enum mg_status read_switches(struct mg_reader *r, struct mg_request *out) {
    const json_t *root = r->doc->root;
    struct mg_set_bool stream = {0}, eos = {0}, progress = {0}, timings = {0}, usage = {0};
    const struct {
        const char *name;
        struct mg_set_bool *to;
    } field[] = {{"stream", &stream},
                 {"ignore_eos", &eos},
                 {"return_progress", &progress},
                 {"timings_per_token", &timings},
                 {"cache_prompt", &out->cache_prompt},
                 {"answer_cache", &out->answer_cache}};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        enum mg_status status = mg_read_bool(r, root, "", field[i].name, field[i].to);
        if (status != MG_OK) return status;
    }
    const json_t *options = mg_jdoc_get(root, "stream_options");
    if (options && !json_is_object(options))
        return mg_read_wrong(r, "", "stream_options", "an object", options);
    enum mg_status status =
        options ? mg_read_bool(r, options, "stream_options.", "include_usage", &usage) : MG_OK;
    if (status != MG_OK) return status;
    out->stream = stream.value;
    out->include_usage = usage.value;
    out->ignore_eos = eos.value;
    out->return_progress = progress.value;
    out->timings_per_token = timings.value;
    const json_t *similar = mg_jdoc_get(root, "similar_cache");
    if (json_is_number(similar)) {
        struct mg_set_real least = {0};
        status = mg_read_real(r, root, "", "similar_cache", 0.9, 1, &least);
        out->similar_cache = (struct mg_set_bool){true, true};
        out->similar_least = least.value;
        return status;
    }
    return mg_read_bool(r, root, "", "similar_cache", &out->similar_cache);
}

static enum mg_status read_stop(struct mg_reader *r, struct mg_request *out) {
    const json_t *stop = mg_jdoc_get(r->doc->root, "stop");
    if (!stop) return MG_OK;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (!json_is_array(stop) && !json_is_string(stop))
        return mg_read_wrong(r, "", "stop", "a string or a list of strings", stop);
    if (n > MG_REQUEST_MAX_STOP)
        return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", "stop",
                            "stop: at most %d strings", MG_REQUEST_MAX_STOP);
    const char **list = mg_arena_alloc(r->arena, n + 1, sizeof *list);
    if (!list) return mg_fault_memory(r->f, "request");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        struct mg_slice text;
        if (!json_is_string(one))
            return mg_read_wrong(r, "", "stop", "a string or a list of strings", one);
        enum mg_status status = mg_jdoc_text(r->doc, one, r->arena, "stop", &text, r->f);
        if (status != MG_OK) return status;
        if (text.n > MG_REQUEST_MAX_STOP_BYTES)
            return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", "stop",
                                "stop: a string of more than %d bytes", MG_REQUEST_MAX_STOP_BYTES);
        if (text.n) list[out->n_stop++] = (const char *)text.data;
    }
    out->stop = list;
    return MG_OK;
}

static enum mg_status wrong_bias(struct mg_reader *r, const char *text) {
    return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", "logit_bias", "logit_bias: %s",
                        text);
}

static enum mg_status bias_value(struct mg_reader *r, int64_t id, const json_t *value,
                                 struct mg_request_bias *out) {
    if (id < 0 || id > INT32_MAX) return wrong_bias(r, "a key that is no token id");
    double x = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (!json_is_number(value) && !json_is_false(value))
        return wrong_bias(r, "a value must be a number, or false");
    if (!json_is_false(value) && !(x >= -100 && x <= 100))
        return wrong_bias(r, "a value must be from -100 to 100");
    *out = (struct mg_request_bias){(int32_t)id, (float)x};
    return MG_OK;
}

/* {"id": value}, or llama-server's [[id, value], ...]. */
static enum mg_status read_bias(struct mg_reader *r, struct mg_request *out) {
    json_t *bias = mg_jdoc_get(r->doc->root, "logit_bias");
    if (!bias) return MG_OK;
    if (!json_is_object(bias) && !json_is_array(bias))
        return mg_read_wrong(r, "", "logit_bias", "an object", bias);
    size_t n = json_is_object(bias) ? json_object_size(bias) : json_array_size(bias), at = 0;
    if (n > MG_REQUEST_MAX_BIAS) return wrong_bias(r, "more than 4096 tokens");
    struct mg_request_bias *list = mg_arena_alloc(r->arena, n + 1, sizeof *list);
    if (!list) return mg_fault_memory(r->f, "request");
    enum mg_status status = MG_OK;
    if (json_is_array(bias)) {
        for (; status == MG_OK && at < n; at++) {
            const json_t *pair = json_array_get(bias, at), *id = json_array_get(pair, 0);
            double x = json_number_value(id); /* also spelled as 64.0 */
            bool is_id = json_is_number(id) && x >= 0 && x <= INT32_MAX && x == floor(x);
            status = json_array_size(pair) == 2 && is_id
                         ? bias_value(r, (int64_t)x, json_array_get(pair, 1), &list[at])
                         : wrong_bias(r, "wanted pairs of a token id and a value");
        }
    } else {
        const char *key;
        json_t *value;
        json_object_foreach(bias, key, value) {
            size_t digits = strspn(key, "0123456789");
            bool id = digits && digits <= 10 && !key[digits];
            status = bias_value(r, id ? strtoll(key, NULL, 10) : -1, value, &list[at++]);
            if (status != MG_OK) break;
        }
    }
    out->bias = list;
    out->n_bias = n;
    return status;
}

/* Chat: a switch and a number beside it. Completions: the number alone. */
static enum mg_status read_logprobs(struct mg_reader *r, enum mg_dialect dialect,
                                    struct mg_request *out) {
    const json_t *root = r->doc->root, *logprobs = mg_jdoc_get(root, "logprobs");
    struct mg_set_bool on = {0};
    struct mg_set_int top = {0};
    enum mg_status status;
    if (dialect == MG_DIALECT_COMPLETION && json_is_number(logprobs)) {
        status = mg_read_int(r, root, "", "logprobs", 0, MG_REQUEST_MAX_TOP_LOGPROBS, &top);
        on.value = true;
    } else {
        status = mg_read_bool(r, root, "", "logprobs", &on);
        if (status == MG_OK)
            status = mg_read_int(r, root, "", "top_logprobs", 0, MG_REQUEST_MAX_TOP_LOGPROBS, &top);
        if (status == MG_OK && top.value > 0 && !on.value)
            status = mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", "top_logprobs",
                                  "top_logprobs: needs \"logprobs\": true beside it");
    }
    out->logprobs = on.value;
    out->top_logprobs = (size_t)top.value;
    return status;
}

static bool is_empty(const json_t *value) {
    return !value || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_string(value) && !json_string_length(value));
}

/* What changes the answer and isn't there yet. */
static enum mg_status refuse_missing(struct mg_reader *r, enum mg_dialect dialect) {
    const json_t *root = r->doc->root, *format = mg_jdoc_get(root, "response_format"),
                 *choice = mg_jdoc_get(root, "tool_choice"), *tools = mg_jdoc_get(root, "tools");
    if (format) {
        const json_t *type = json_is_string(format) ? format : mg_jdoc_get(format, "type");
        if (!json_is_string(type))
            return mg_read_wrong(r, "", "response_format", "an object with a type", format);
        if (!mg_jdoc_is(type, "text"))
            return unsupported(r, "response_format", "only the type \"text\" is there so far");
    }
    if (!is_empty(mg_jdoc_get(root, "grammar")))
        return unsupported(r, "grammar", "grammars are not there yet");
    if (!is_empty(mg_jdoc_get(root, "json_schema")))
        return unsupported(r, "json_schema", "JSON schemas are not there yet");
    if (choice && !json_is_string(choice) && !json_is_object(choice))
        return mg_read_wrong(r, "", "tool_choice", "a string or an object", choice);
    bool none = choice && mg_jdoc_is(choice, "none");
    if (choice && !none && !mg_jdoc_is(choice, "auto"))
        return unsupported(r, "tool_choice", "tools can't be called yet; only \"none\" is there");
    if (tools && !json_is_array(tools)) return mg_read_wrong(r, "", "tools", "a list", tools);
    if (!none && !is_empty(tools)) return unsupported(r, "tools", "tools can't be called yet");
    if (!none && !is_empty(mg_jdoc_get(root, "functions")))
        return unsupported(r, "functions", "functions can't be called yet");
    if (json_is_true(mg_jdoc_get(root, "continue_final_message")))
        return unsupported(r, "continue_final_message", "a turn can't be continued yet");
    if (dialect != MG_DIALECT_COMPLETION) return MG_OK;
    struct mg_set_bool echo = {0};
    enum mg_status status = mg_read_bool(r, root, "", "echo", &echo);
    if (status != MG_OK) return status;
    if (echo.value) return unsupported(r, "echo", "the prompt can't be echoed");
    const json_t *suffix = mg_jdoc_get(root, "suffix");
    if (suffix && !json_is_string(suffix))
        return mg_read_wrong(r, "", "suffix", "a string", suffix);
    if (!is_empty(suffix))
        return unsupported(r, "suffix", "the model can't fill in the middle of a text");
    return MG_OK;
}

static enum mg_status read_preset(struct mg_reader *r, struct mg_request *out) {
    const json_t *preset = mg_jdoc_get(r->doc->root, "preset");
    if (!preset) return MG_OK;
    if (!json_is_string(preset)) return mg_read_wrong(r, "", "preset", "a string", preset);
    out->fast = mg_jdoc_is(preset, "fast");
    if (!out->fast && !mg_jdoc_is(preset, "default"))
        return mg_fault_set(r->f, MG_ERR_ARGUMENT, "invalid_value", "preset",
                            "preset: must be \"default\" or \"fast\"");
    if (!out->fast) return MG_OK;
    if (!out->temperature.set) out->temperature = (struct mg_set_real){true, 0};
    if (!out->max_tokens.set && !out->max_tokens_all)
        out->max_tokens = (struct mg_set_int){true, 128};
    return MG_OK;
}

enum mg_status mg_request_read(struct mg_reader *r, enum mg_dialect dialect,
                               struct mg_request *out) {
    *out = (struct mg_request){.n = 1};
    struct mg_set_int n = {true, 1};
    enum mg_status status =
        mg_read_text(r, r->doc->root, "", "model", MG_REQUEST_MAX_MODEL, &out->model);
    if (status == MG_OK) status = read_numbers(r, out);
    if (status == MG_OK) status = mg_read_int(r, r->doc->root, "", "n", 1, MG_REQUEST_MAX_N, &n);
    if (status == MG_OK) status = read_switches(r, out);
    if (status == MG_OK) status = read_stop(r, out);
    if (status == MG_OK) status = read_bias(r, out);
    if (status == MG_OK) status = read_logprobs(r, dialect, out);
    if (status == MG_OK) status = read_preset(r, out);
    if (status == MG_OK) status = refuse_missing(r, dialect);
    out->n = (size_t)n.value;
    return status;
}

enum mg_status mg_request_warnings(struct mg_reader *r, struct mg_request *out) {
    if (!r->n_warning) return MG_OK;
    const char **list = mg_arena_alloc(r->arena, r->n_warning, sizeof *list);
    if (!list) return mg_fault_memory(r->f, "request");
    memcpy(list, r->warning, r->n_warning * sizeof *list);
    out->warning = list;
    out->n_warning = r->n_warning;
    return MG_OK;
}

void mg_request_options(const struct mg_request *r, struct mg_answer_options *o) {
    if (r->max_tokens.set) o->max_tokens = (size_t)r->max_tokens.value;
    if (r->temperature.set) o->temperature = (float)r->temperature.value;
    if (r->top_k.set) o->top_k = (int)r->top_k.value;
    /* The sampler has no 0, which means the likeliest token alone. */
    if (r->top_p.set) o->top_p = fmaxf((float)r->top_p.value, 1e-9f);
    if (r->min_p.set) o->min_p = (float)r->min_p.value;
    if (r->repetition_penalty.set) o->repetition_penalty = (float)r->repetition_penalty.value;
    if (r->presence_penalty.set) o->presence_penalty = (float)r->presence_penalty.value;
    if (r->frequency_penalty.set) o->frequency_penalty = (float)r->frequency_penalty.value;
    if (r->seed.set) o->seed = (uint64_t)r->seed.value;
    if (r->n_stop) {
        o->stop = r->stop;
        o->n_stop = r->n_stop;
    }
    if (r->ignore_eos) o->ignore_end = true;
}
