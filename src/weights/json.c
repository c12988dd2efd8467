/* weights/json.c - see json.h. */
#include "weights/config.h"
#include "weights/json.h"

#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts nesting and separators outside of strings. Wrong JSON is no concern here: jansson finds
 * it. */
static enum mg_status check_size(const char *file, const char *text, size_t n, size_t max_depth,
                                 size_t max_values, struct mg_err *err) {
    size_t depth = 0, values = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        switch (c) {
        case '"': in_string = true; break;
        case '[':
        case '{':
            if (++depth > max_depth)
                return mg_fail(err, MG_ERR_LIMIT, "json_too_deep",
                               "%s: nested more than %zu levels deep", file, max_depth);
            break;
        case ']':
        case '}':
            if (depth) depth--;
            break;
        case ',':
        case ':':
            if (++values > max_values)
                return mg_fail(err, MG_ERR_LIMIT, "json_too_large", "%s: more than %zu values",
                               file, max_values);
            break;
        default: break;
        }
    }
    return MG_OK;
}

static const char *json_reason(const json_error_t *e) {
    switch (json_error_code(e)) {
    case json_error_duplicate_key: return "a key that stands twice in one object";
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "something follows the outermost object";
    case json_error_invalid_utf8: return "not valid UTF-8";
    case json_error_numeric_overflow: return "a number out of range";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a zero byte in a string";
    case json_error_stack_overflow: return "nested too deep";
    default: return "not valid JSON";
    }
}

enum mg_status mg_json_parse(const char *file, const char *text, size_t n, size_t max_depth,
                             size_t max_values, json_t **out, struct mg_err *err) {
    *out = NULL;
    enum mg_status status = check_size(file, text, n, max_depth, max_values, err);
    if (status != MG_OK) return status;
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        if (json_error_code(&error) == json_error_out_of_memory) return mg_fail_memory(err, file);
        return mg_fail(err, MG_ERR_FORMAT, "invalid_json", "%s: line %d, column %d: %s", file,
                       error.line, error.column, json_reason(&error));
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return mg_fail(err, MG_ERR_FORMAT, "invalid_json", "%s: wanted an object, found a list",
                       file);
    }
    *out = root;
    return MG_OK;
}

const char *mg_text_clean(char *out, size_t cap, const char *s, size_t n) {
    size_t take = mg_min_size(n, cap - 1);
    if (take < n) {
        take -= 3;
        while (take && ((unsigned char)s[take] & 0xC0) == 0x80) take--;
    }
    for (size_t i = 0; i < take; i++) out[i] = s[i] ? s[i] : '?'; /* a zero byte ends nothing */
    memcpy(out + take, take < n ? "..." : "", take < n ? 4 : 1);
    mg_text_defuse(out);
    return out;
}

const char *mg_json_found(char *out, size_t cap, const json_t *value) {
    char word[44];
    if (!value) {
        snprintf(out, cap, "nothing");
        return out;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(out, cap, "an object"); break;
    case JSON_ARRAY: snprintf(out, cap, "a list of %zu", json_array_size(value)); break;
    case JSON_STRING:
        mg_text_clean(word, sizeof word, json_string_value(value), json_string_length(value));
        snprintf(out, cap, "\"%s\"", word);
        break;
    case JSON_INTEGER: snprintf(out, cap, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: snprintf(out, cap, "the real number %g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(out, cap, "true"); break;
    case JSON_FALSE: snprintf(out, cap, "false"); break;
    case JSON_NULL: snprintf(out, cap, "null"); break;
    }
    return out;
}

enum mg_status mg_folder_check(const char *folder, struct mg_err *err) {
    struct stat st;
    if (stat(folder, &st) != 0) {
        if (errno == ENOENT)
            return mg_fail(err, MG_ERR_NOT_FOUND, "folder_not_found",
                           "there is no folder %s; wanted one with config.json, tokenizer.json and "
                           "model.safetensors",
                           folder);
        return mg_fail_errno(err, "open the folder", folder, errno);
    }
    if (!S_ISDIR(st.st_mode))
        return mg_fail(err, MG_ERR_ARGUMENT, "not_a_folder",
                       "%s is not a folder; wanted the folder that holds config.json and "
                       "model.safetensors",
                       folder);
    if (access(folder, X_OK) != 0) return mg_fail_errno(err, "enter the folder", folder, errno);
    return MG_OK;
}
