/* cli/trace.c - margay trace: reads a conversation from a JSON file and has the engine write its
 * stages.
 *
 *     {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"},
 *                                                {"type": "text", "text": "What is it?"}]}]}
 *
 * Pictures are looked for in --images. Everything else in the file is ignored, as the cases of
 * tests/oracle carry their expected results there.
 */
#include "cli/commands.h"

#include "base/io.h"
#include "engine/trace.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define MAX_MESSAGES_BYTES ((size_t)64 << 20)

static enum mg_status wrong(struct mg_err *err, size_t message, const char *what) {
    return mg_fail(err, MG_ERR_FORMAT, "messages", "message %zu: %s", message + 1, what);
}

static int find_role(const char *name) {
    static const char *const role[] = {[MG_SYSTEM] = "system",
                                       [MG_USER] = "user",
                                       [MG_ASSISTANT] = "assistant",
                                       [MG_TOOL] = "tool"};
    for (int i = 0; name && i < 4; i++)
        if (!strcmp(name, role[i])) return i;
    return -1;
}

static enum mg_status read_part(struct mg_options *o, json_t *from, size_t message,
                                struct mg_trace_part *to, struct mg_err *err) {
    const char *type = json_string_value(json_object_get(from, "type"));
    json_t *text = json_object_get(from, "text"), *image = json_object_get(from, "image");
    if (type && !strcmp(type, "text") && json_is_string(text)) {
        *to =
            (struct mg_trace_part){.text = json_string_value(text), .n = json_string_length(text)};
        return MG_OK;
    }
    if (!type || strcmp(type, "image") || !json_is_string(image))
        return wrong(err, message, "a part is neither {type: text, text} nor {type: image, image}");
    const char *name = json_string_value(image), *folder = mg_opt_text(o, MG_OPT_IMAGES, NULL);
    char path[4096];
    if (strlen(name) != json_string_length(image) || strlen(name) >= sizeof path)
        return wrong(err, message, "the path of a picture has a zero byte or is too long");
    if (!folder || name[0] == '/')
        snprintf(path, sizeof path, "%s", name);
    else if (mg_path_join(path, sizeof path, folder, name, err))
        return MG_ERR_ARGUMENT;
    *to = (struct mg_trace_part){.image = true, .n = strlen(path)};
    to->text = mg_arena_strdup(&o->arena, path, to->n);
    return to->text ? MG_OK : mg_fail_memory(err, "messages");
}

static enum mg_status read_turn(struct mg_options *o, json_t *from, size_t message,
                                struct mg_trace_turn *to, struct mg_err *err) {
    int role = find_role(json_string_value(json_object_get(from, "role")));
    if (role < 0) return wrong(err, message, "role is none of system, user, assistant, tool");
    json_t *content = json_object_get(from, "content");
    size_t n = json_is_array(content) ? json_array_size(content) : 1;
    struct mg_trace_part *part = mg_arena_alloc(&o->arena, n, sizeof *part);
    if (!part) return mg_fail_memory(err, "messages");
    *to = (struct mg_trace_turn){.role = role, .part = part, .n_part = n};
    if (json_is_string(content)) {
        part[0] = (struct mg_trace_part){.text = json_string_value(content),
                                         .n = json_string_length(content)};
        return MG_OK;
    }
    if (!json_is_array(content))
        return wrong(err, message, "content is neither a string nor a list of parts");
    for (size_t i = 0; i < n; i++) {
        enum mg_status st = read_part(o, json_array_get(content, i), message, &part[i], err);
        if (st) return st;
    }
    return MG_OK;
}

static enum mg_status read_messages(struct mg_options *o, json_t *root, struct mg_trace_turn **turn,
                                    size_t *n_turn, struct mg_err *err) {
    json_t *messages = json_is_array(root) ? root : json_object_get(root, "messages");
    *n_turn = json_array_size(messages);
    if (!*n_turn)
        return mg_fail(err, MG_ERR_FORMAT, "messages", "there is no list of messages in the file");
    *turn = mg_arena_alloc(&o->arena, *n_turn, sizeof **turn);
    if (!*turn) return mg_fail_memory(err, "messages");
    enum mg_status st = MG_OK;
    for (size_t i = 0; i < *n_turn && !st; i++)
        st = read_turn(o, json_array_get(messages, i), i, &(*turn)[i], err);
    return st;
}

static enum mg_status run(struct mg_options *o, const struct mg_trace_turn *turn, size_t n_turn,
                          struct mg_err *err) {
    mg_engine *engine = NULL;
    int64_t most = mg_opt_int(o, MG_OPT_MAX_TOKENS, 32);
    if (most < 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "trace needs a --max-tokens of 0 or more");
    enum mg_status st = mg_session_open(o, &engine, err);
    if (!st)
        st = mg_trace_run(engine, turn, n_turn, mg_opt_text(o, MG_OPT_PIXEL_VALUES, NULL),
                          (size_t)most, mg_opt_text(o, MG_OPT_OUT, NULL), err);
    mg_engine_close(engine);
    return st;
}

enum mg_exit mg_cmd_trace(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_buf text = {.max = MAX_MESSAGES_BYTES};
    struct mg_trace_turn *turn = NULL;
    size_t n_turn = 0;
    json_t *root = NULL;
    enum mg_status st = MG_OK;
    const char *messages = mg_opt_text(o, MG_OPT_MESSAGES, NULL);
    if (!messages || !mg_opt_set(o, MG_OPT_OUT))
        st =
            mg_fail(&err, MG_ERR_ARGUMENT, "usage", "trace needs --messages FILE and --out FOLDER");
    if (!st) st = mg_file_read(messages, MAX_MESSAGES_BYTES, &text, &err);
    if (!st) {
        json_error_t where;
        root = json_loadb((const char *)text.data, text.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                          &where);
        if (!root)
            st = mg_fail(&err, MG_ERR_FORMAT, "messages", "%s line %d: %s", messages, where.line,
                         where.text);
    }
    if (!st) st = read_messages(o, root, &turn, &n_turn, &err);
    if (!st) st = run(o, turn, n_turn, &err);
    json_decref(root);
    mg_buf_free(&text);
    return st ? mg_report(o, &err) : MG_EXIT_OK;
}
