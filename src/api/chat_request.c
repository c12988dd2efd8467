/* api/chat_request.c - see chat_request.h. */
#include "api/chat_request.h"

#include "api/request_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_IMAGE_BYTES ((size_t)64 << 20)
#define DEFAULT_IMAGES 64
#define MAX_PIXELS ((int64_t)1 << 40)

struct chat_reader {
    struct mg_reader r;
    struct mg_chat_request *out;
    size_t max_image_bytes, max_images;
    size_t n_part; /* so far, of all messages */
};

static enum mg_status invalid(struct chat_reader *c, const char *param, const char *text) {
    return mg_fault_set(c->r.f, MG_ERR_ARGUMENT, "invalid_value", param, "%s: %s", param, text);
}

static enum mg_status add_text(struct chat_reader *c, const json_t *value, const char *param,
                               struct mg_chat_part *part) {
    struct mg_slice text;
    enum mg_status status = mg_jdoc_text(c->r.doc, value, c->r.arena, param, &text, c->r.f);
    if (status != MG_OK) return status;
    *part = (struct mg_chat_part){.text = (const char *)text.data, .n_text = text.n};
    return MG_OK;
}

static enum mg_status read_detail(struct chat_reader *c, const json_t *object, const char *path,
                                  struct mg_image_wish *wish) {
    static const char *const name[] = {[MG_DETAIL_AUTO] = "auto",
                                       [MG_DETAIL_LOW] = "low",
                                       [MG_DETAIL_HIGH] = "high",
                                       [MG_DETAIL_ORIGINAL] = "original"};
    const json_t *detail = mg_jdoc_get(object, "detail");
    if (!detail) return MG_OK;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (!mg_jdoc_is(detail, name[i])) continue;
        wish->detail = (enum mg_image_detail)i;
        return MG_OK;
    }
    return mg_read_warn(&c->r, "%sdetail: not one of low, auto, high, original; auto is used",
                        path);
}

static enum mg_status read_prune(struct chat_reader *c, const json_t *object, const char *path,
                                 struct mg_image_wish *wish) {
    const char *text = NULL;
    enum mg_status status = mg_read_text(&c->r, object, path, "prune", 16, &text);
    if (status != MG_OK || !text) return status;
    wish->prune_set = true;
    wish->prune = MG_PRUNE_NEAR;
    wish->prune_near = 0;
    if (!strcmp(text, "off")) {
        wish->prune = MG_PRUNE_OFF;
        return MG_OK;
    }
    if (!strcmp(text, "exact")) {
        wish->prune = MG_PRUNE_EXACT;
        return MG_OK;
    }
    const char *digits = text + strlen("near=");
    if (!strncmp(text, "near=", strlen("near=")) && *digits && strlen(digits) <= 3 &&
        !digits[strspn(digits, "0123456789")]) {
        unsigned long near = strtoul(digits, NULL, 10);
        wish->prune_near = (uint8_t)near;
        if (near <= UINT8_MAX) return MG_OK;
    }
    char param[MG_PARAM_BYTES];
    mg_read_name(param, path, "prune");
    return invalid(c, param, "must be off, exact, or near=N with N from 0 to 255");
}

/* What may stand beside a picture's source or in the object with it; called for both. */
static enum mg_status read_wish(struct chat_reader *c, const json_t *object, const char *path,
                                struct mg_image_wish *wish) {
    struct mg_set_int min = {0}, max = {0};
    enum mg_status status = read_detail(c, object, path, wish);
    if (status == MG_OK)
        status = mg_read_int(&c->r, object, path, "min_pixels", 1, MAX_PIXELS, &min);
    if (status == MG_OK)
        status = mg_read_int(&c->r, object, path, "max_pixels", 1, MAX_PIXELS, &max);
    if (status == MG_OK) status = read_prune(c, object, path, wish);
    if (min.set) wish->min_pixels = (uint64_t)min.value;
    if (max.set) wish->max_pixels = (uint64_t)max.value;
    return status;
}

static enum mg_status read_source(struct chat_reader *c, const json_t *value, const char *param,
                                  bool is_id, struct mg_image_source *out) {
    struct mg_buf scratch = {.max = SIZE_MAX};
    struct mg_slice text = {0};
    enum mg_status status = mg_jdoc_bytes(c->r.doc, value, &scratch, param, &text, c->r.f);
    const char *s = (const char *)text.data;
    if (status == MG_OK && is_id && !mg_file_id_valid(s, text.n)) {
        status = invalid(c, param, "not the id of an uploaded file");
    } else if (status == MG_OK && is_id) {
        *out = (struct mg_image_source){.kind = MG_SOURCE_FILE_ID,
                                        .text = mg_arena_strdup(c->r.arena, s, text.n)};
        if (!out->text) status = mg_fault_memory(c->r.f, "picture");
    } else if (status == MG_OK) {
        status =
            mg_image_source_read(s, text.n, c->max_image_bytes, c->r.arena, param, out, c->r.f);
    }
    mg_buf_free(&scratch);
    return status;
}

/* A picture part. The source may stand at several places; the first that is there counts. */
static enum mg_status read_image(struct chat_reader *c, const json_t *object, const char *path,
                                 struct mg_chat_part *part) {
    static const struct {
        const char *key, *inner;
    } place[] = {{"image_url", "url"},
                 {"image", "url"},
                 {"url", "url"},
                 {"file_id", "file_id"},
                 {"image_file", "file_id"}};
    *part = (struct mg_chat_part){.kind = MG_CHAT_IMAGE};
    if (c->out->common.fast) part->wish.detail = MG_DETAIL_LOW;
    if (++c->out->n_image > c->max_images)
        return mg_fault_set(c->r.f, MG_ERR_LIMIT, "too_many_images", "messages",
                            "messages: more than %zu pictures", c->max_images);
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        const json_t *value = mg_jdoc_get(object, place[i].key);
        if (!value) continue;
        char param[MG_PARAM_BYTES], inner[MG_PARAM_BYTES];
        mg_read_name(param, path, place[i].key);
        enum mg_status status = read_wish(c, object, path, &part->wish);
        bool is_id = !strcmp(place[i].inner, "file_id");
        if (json_is_object(value)) {
            mg_read_name(inner, param, ".");
            if (status == MG_OK) status = read_wish(c, value, inner, &part->wish);
            const json_t *text = mg_jdoc_get(value, place[i].inner);
            if (!text && !is_id) {
                text = mg_jdoc_get(value, "file_id");
                is_id = text != NULL;
            }
            if (status == MG_OK && !json_is_string(text))
                return mg_read_wrong(&c->r, inner, place[i].inner, "a string", text);
            value = text;
        } else if (status == MG_OK && !json_is_string(value)) {
            return mg_read_wrong(&c->r, path, place[i].key, "a string or an object", value);
        }
        if (status == MG_OK && part->wish.min_pixels && part->wish.max_pixels &&
            part->wish.min_pixels > part->wish.max_pixels)
            status = invalid(c, param, "min_pixels is larger than max_pixels");
        if (status == MG_OK) status = read_source(c, value, param, is_id, &part->source);
        return status;
    }
    return mg_read_wrong(&c->r, path, "image_url", "a string or an object", NULL);
}

/* path: "messages[0].content[1]." */
static enum mg_status read_part(struct chat_reader *c, const json_t *value, const char *path,
                                const char *param, struct mg_chat_part *part) {
    static const char *const text_type[] = {"text", "input_text", "output_text", "refusal"},
                             *const image_type[] = {"image_url", "input_image", "image_file",
                                                    "image"},
                             *const other[] = {"input_audio", "file",  "input_file",  "video",
                                               "video_url",   "audio", "image_base64"};
    if (json_is_string(value)) return add_text(c, value, param, part);
    if (!json_is_object(value))
        return mg_read_wrong(&c->r, "", param, "an object or a string", value);
    const json_t *type = mg_jdoc_get(value, "type");
    if (!json_is_string(type)) {
        if (type) return mg_read_wrong(&c->r, path, "type", "a string", type);
        /* Some clients leave it out where the key says it all. */
        if (mg_jdoc_get(value, "image_url")) return read_image(c, value, path, part);
        if (!mg_jdoc_get(value, "text"))
            return mg_read_wrong(&c->r, path, "type", "a string", type);
    }
    for (size_t i = 0; i < sizeof text_type / sizeof *text_type; i++) {
        if (type && !mg_jdoc_is(type, text_type[i])) continue;
        const char *key = type && mg_jdoc_is(type, "refusal") ? "refusal" : "text";
        const json_t *text = mg_jdoc_get(value, key);
        if (!json_is_string(text)) return mg_read_wrong(&c->r, path, key, "a string", text);
        return add_text(c, text, param, part);
    }
    for (size_t i = 0; i < sizeof image_type / sizeof *image_type; i++)
        if (mg_jdoc_is(type, image_type[i])) return read_image(c, value, path, part);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (mg_jdoc_is(type, other[i]))
            return mg_fault_set(c->r.f, MG_ERR_UNSUPPORTED, "unsupported_value", param,
                                "%s: parts of the type %s can't be read; text and image_url can",
                                param, other[i]);
    return mg_fault_set(c->r.f, MG_ERR_UNSUPPORTED, "unsupported_value", param,
                        "%s: a part of an unknown type; text and image_url are known", param);
}

static enum mg_status read_tool_call(struct chat_reader *c, const json_t *call, const char *path,
                                     struct mg_chat_part *part) {
    const json_t *type = mg_jdoc_get(call, "type"), *function = mg_jdoc_get(call, "function");
    char param[MG_PARAM_BYTES];
    if (type && !mg_jdoc_is(type, "function")) {
        mg_read_name(param, path, "type");
        return invalid(c, param, "only calls of the type function are known");
    }
    if (!json_is_object(function))
        return mg_read_wrong(&c->r, path, "function", "an object", function);
    mg_read_name(param, path, "function.");
    *part = (struct mg_chat_part){.kind = MG_CHAT_TOOL_CALL};
    enum mg_status status =
        mg_read_text(&c->r, function, param, "name", MG_CHAT_MAX_NAME, &part->name);
    if (status == MG_OK && (!part->name || !*part->name))
        return mg_read_wrong(&c->r, param, "name", "a string", NULL);
    const json_t *arguments = mg_jdoc_get(function, "arguments");
    if (status == MG_OK && arguments && !json_is_string(arguments))
        return mg_read_wrong(&c->r, param, "arguments", "a string of JSON", arguments);
    struct mg_slice text = {(const uint8_t *)"{}", 2};
    if (status == MG_OK && json_string_length(arguments))
        status = mg_jdoc_text(c->r.doc, arguments, c->r.arena, path, &text, c->r.f);
    part->text = (const char *)text.data;
    part->n_text = text.n;
    return status;
}

static enum mg_status read_role(struct chat_reader *c, const json_t *message, const char *path,
                                enum mg_chat_role *out) {
    static const struct {
        const char *name;
        enum mg_chat_role role;
    } known[] = {{"user", MG_USER},        {"assistant", MG_ASSISTANT}, {"system", MG_SYSTEM},
                 {"developer", MG_SYSTEM}, {"tool", MG_TOOL},           {"function", MG_TOOL}};
    const json_t *role = mg_jdoc_get(message, "role");
    if (!json_is_string(role)) return mg_read_wrong(&c->r, path, "role", "a string", role);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!mg_jdoc_is(role, known[i].name)) continue;
        *out = known[i].role;
        return MG_OK;
    }
    char param[MG_PARAM_BYTES];
    mg_read_name(param, path, "role");
    return invalid(c, param, "must be system, developer, user, assistant or tool");
}

static enum mg_status read_message(struct chat_reader *c, const json_t *message, size_t index,
                                   struct mg_chat_message *out) {
    char path[64], param[MG_PARAM_BYTES], inner[MG_PARAM_BYTES];
    snprintf(path, sizeof path, "messages[%zu].", index);
    if (!json_is_object(message)) {
        snprintf(param, sizeof param, "messages[%zu]", index);
        return mg_read_wrong(&c->r, "", param, "an object", message);
    }
    enum mg_status status = read_role(c, message, path, &out->role);
    if (status == MG_OK && out->role == MG_TOOL)
        status = mg_read_text(&c->r, message, path, "tool_call_id", MG_CHAT_MAX_NAME,
                              &out->tool_call_id);
    if (status != MG_OK) return status;
    const json_t *content = mg_jdoc_get(message, "content"),
                 *calls = mg_jdoc_get(message, "tool_calls");
    if (content && !json_is_string(content) && !json_is_array(content))
        return mg_read_wrong(&c->r, path, "content", "a string or a list of parts", content);
    if (calls && !json_is_array(calls))
        return mg_read_wrong(&c->r, path, "tool_calls", "a list", calls);
    size_t n_call = json_array_size(calls),
           n_content = json_is_array(content) ? json_array_size(content) : content != NULL;
    if (n_call && out->role != MG_ASSISTANT) {
        mg_read_name(param, path, "tool_calls");
        return invalid(c, param, "only an assistant's message can call tools");
    }
    if (n_content + n_call > MG_CHAT_MAX_PARTS - c->n_part)
        return mg_fault_set(c->r.f, MG_ERR_LIMIT, "too_many_parts", "messages",
                            "messages: more than %d parts", MG_CHAT_MAX_PARTS);
    c->n_part += n_content + n_call;
    out->part = mg_arena_alloc(c->r.arena, n_content + n_call, sizeof *out->part);
    if (!out->part) return mg_fault_memory(c->r.f, "request");
    for (size_t i = 0; i < n_content + n_call && status == MG_OK; i++) {
        struct mg_chat_part *part = &out->part[out->n_part++];
        *part = (struct mg_chat_part){0};
        bool is_call = i >= n_content;
        size_t k = is_call ? i - n_content : i;
        snprintf(param, sizeof param, "%s%s[%zu]", path, is_call ? "tool_calls" : "content", k);
        mg_read_name(inner, param, ".");
        if (is_call) {
            status = read_tool_call(c, json_array_get(calls, k), inner, part);
        } else if (json_is_array(content)) {
            status = read_part(c, json_array_get(content, k), inner, param, part);
        } else {
            mg_read_name(param, path, "content");
            status = add_text(c, content, param, part);
            if (status == MG_OK && part->n_text == 0) out->n_part--;
        }
    }
    return status;
}

static enum mg_status read_messages(struct chat_reader *c) {
    const json_t *messages = mg_jdoc_get(c->r.doc->root, "messages");
    struct mg_chat_request *out = c->out;
    if (!json_is_array(messages))
        return mg_read_wrong(&c->r, "", "messages", "a list of messages", messages);
    size_t n = json_array_size(messages);
    if (n == 0) return invalid(c, "messages", "there must be at least one message");
    if (n > MG_CHAT_MAX_MESSAGES)
        return mg_fault_set(c->r.f, MG_ERR_LIMIT, "too_many_messages", "messages",
                            "messages: more than %d", MG_CHAT_MAX_MESSAGES);
    out->message = mg_arena_alloc(c->r.arena, n, sizeof *out->message);
    if (!out->message) return mg_fault_memory(c->r.f, "request");
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < n && status == MG_OK; i++) {
        struct mg_chat_message *message = &out->message[out->n_message++];
        *message = (struct mg_chat_message){0};
        status = read_message(c, json_array_get(messages, i), i, message);
    }
    return status;
}

/* The short form of a question: pictures, then the text, in one user turn. */
static enum mg_status read_question(struct chat_reader *c) {
    const json_t *root = c->r.doc->root, *question = mg_jdoc_get(root, "question"),
                 *system = mg_jdoc_get(root, "system"), *image = mg_jdoc_get(root, "image"),
                 *images = mg_jdoc_get(root, "images");
    struct mg_chat_request *out = c->out;
    enum mg_status status = MG_OK;
    char param[MG_PARAM_BYTES];
    if (images && !json_is_array(images))
        return mg_read_wrong(&c->r, "", "images", "a list", images);
    if (question && !json_is_string(question))
        return mg_read_wrong(&c->r, "", "question", "a string", question);
    if (system && !json_is_string(system))
        return mg_read_wrong(&c->r, "", "system", "a string", system);
    size_t n_list = json_array_size(images), n = n_list + (image != NULL),
           n_turn = 1 + (system != NULL);
    if (n > c->max_images)
        return mg_fault_set(c->r.f, MG_ERR_LIMIT, "too_many_images", "images",
                            "images: more than %zu pictures", c->max_images);
    out->message = mg_arena_alloc(c->r.arena, n_turn, sizeof *out->message);
    struct mg_chat_part *part = mg_arena_alloc(c->r.arena, n + 2, sizeof *part);
    if (!out->message || !part) return mg_fault_memory(c->r.f, "request");
    if (system) {
        out->message[out->n_message++] =
            (struct mg_chat_message){.role = MG_SYSTEM, .part = part, .n_part = 1};
        *part = (struct mg_chat_part){0};
        status = add_text(c, system, "system", part++);
    }
    struct mg_chat_message *user = &out->message[out->n_message++];
    *user = (struct mg_chat_message){.role = MG_USER, .part = part};
    for (size_t i = 0; i < n && status == MG_OK; i++) {
        const json_t *one = i < n_list ? json_array_get(images, i) : image;
        user->part[user->n_part++] = (struct mg_chat_part){0};
        snprintf(param, sizeof param, i < n_list ? "images[%zu]" : "image", i);
        if (json_is_object(one)) { /* as a part has it: url or file_id, detail and the like */
            snprintf(param, sizeof param, i < n_list ? "images[%zu]." : "image.", i);
            status = read_image(c, one, param, &part[i]);
            continue;
        }
        if (!json_is_string(one)) return mg_read_wrong(&c->r, "", param, "a string", one);
        part[i].kind = MG_CHAT_IMAGE;
        part[i].wish.detail = out->common.fast ? MG_DETAIL_LOW : MG_DETAIL_AUTO;
        out->n_image++;
        status = read_source(c, one, param, false, &part[i].source);
    }
    if (status == MG_OK && question) {
        user->part[user->n_part] = (struct mg_chat_part){0};
        status = add_text(c, question, "question", &user->part[user->n_part++]);
    }
    return status;
}

enum mg_status mg_chat_request_read(const struct mg_jdoc *doc, bool short_form,
                                    const struct mg_chat_limits *limits,
                                    struct mg_chat_request **out, struct mg_fault *f) {
    *out = NULL;
    struct mg_chat_request *request = calloc(1, sizeof *request);
    if (!request) return mg_fault_memory(f, "request");
    struct chat_reader c = {
        .r = {.doc = doc, .arena = &request->arena, .f = f},
        .out = request,
        .max_image_bytes =
            limits && limits->max_image_bytes ? limits->max_image_bytes : DEFAULT_IMAGE_BYTES,
        .max_images = limits && limits->max_images ? limits->max_images : DEFAULT_IMAGES,
    };
    struct mg_set_bool open_answer = {true, true};
    enum mg_status status = mg_request_read(&c.r, MG_DIALECT_CHAT, &request->common);
    if (status == MG_OK)
        status = mg_read_bool(&c.r, doc->root, "", "add_generation_prompt", &open_answer);
    request->add_generation_prompt = open_answer.value;
    short_form &= !mg_jdoc_get(doc->root, "messages");
    if (status == MG_OK) status = short_form ? read_question(&c) : read_messages(&c);
    if (status == MG_OK) status = mg_request_warnings(&c.r, &request->common);
    if (status != MG_OK)
        mg_chat_request_free(request);
    else
        *out = request;
    return status;
}

enum mg_status mg_chat_request_parse(const char *body, size_t n,
                                     const struct mg_chat_limits *limits,
                                     struct mg_chat_request **out, struct mg_fault *f) {
    *out = NULL;
    struct mg_jdoc doc;
    enum mg_status status = mg_jdoc_parse(body, n, &doc, f);
    if (status == MG_OK) status = mg_chat_request_read(&doc, false, limits, out, f);
    mg_jdoc_free(&doc);
    return status;
}

void mg_chat_request_free(struct mg_chat_request *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_message; i++)
        for (size_t k = 0; k < r->message[i].n_part; k++)
            mg_image_source_drop(&r->message[i].part[k].source);
    mg_arena_free(&r->arena);
    free(r);
}

enum mg_status mg_chat_request_add_image_take(struct mg_chat_request *r, uint8_t *bytes, size_t n,
                                              struct mg_fault *f) {
    size_t i = r->n_message;
    while (i > 0 && r->message[i - 1].role != MG_USER) i--;
    struct mg_chat_message *message = i ? &r->message[i - 1] : NULL;
    struct mg_chat_part *grown =
        message ? mg_arena_alloc(&r->arena, message->n_part + 1, sizeof *grown) : NULL;
    if (!grown) {
        free(bytes);
        return message ? mg_fault_memory(f, "request")
                       : mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "messages",
                                      "messages: a picture needs a user's message");
    }
    if (message->n_part) memcpy(grown + 1, message->part, message->n_part * sizeof *grown);
    *grown =
        (struct mg_chat_part){.kind = MG_CHAT_IMAGE,
                              .source = {.kind = MG_SOURCE_BYTES, .bytes = bytes, .n_bytes = n},
                              .wish = {.detail = r->common.fast ? MG_DETAIL_LOW : MG_DETAIL_AUTO}};
    message->part = grown;
    message->n_part++;
    r->n_image++;
    return MG_OK;
}
