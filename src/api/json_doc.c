/* api/json_doc.c - see json_doc.h. Outside of strings the first pass only counts: whether brackets
 * and commas stand where they may is jansson's to find out. */
#include "api/json_doc.h"

#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson doesn't tell of every allocation that fails: it may call the text malformed, or lose a
 * character of it and go on. So its allocations are watched, from before main so that no thread can
 * be within jansson. */
static _Thread_local bool starved; /* one has failed on this thread since it was cleared */

static void *watched_malloc(size_t n) {
    void *p = malloc(n);
    if (!p) starved = true;
    return p;
}

static void watched_free(void *p) {
    free(p);
}

__attribute__((constructor)) static void watch_jansson(void) {
    json_set_alloc_funcs(watched_malloc, watched_free);
}

/* NULL with starved set, or with `error` filled in. */
static json_t *load(const char *text, size_t n, size_t flags, json_error_t *error) {
    starved = false;
    json_t *root = json_loadb(text, n, flags, error);
    if (!starved) return root;
    json_decref(root);
    return NULL;
}

#define STAND_IN_BYTES 14 /* \u0000 and eight hexadecimal digits */

struct scan {
    const char *body;
    size_t n;
    struct mg_jdoc *doc;
    struct mg_buf skeleton; /* what jansson reads, owned */
    size_t copied;          /* bytes of the body that are in the skeleton or lifted */
    struct mg_fault *f;
};

static enum mg_status bad_json(struct mg_fault *f, size_t at, const char *what) {
    return mg_fault_set(f, MG_ERR_FORMAT, "invalid_json", "",
                        "the body is not valid JSON: %s at byte %zu", what, at);
}

/* Eight bytes at once: one of them is a quote, a backslash or a control character. Which of them is
 * not asked here, a borrow may name a later byte too. */
static bool special_within(const char *at) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t x, quote, back;
    memcpy(&x, at, sizeof x);
    quote = x ^ (ones * '"');
    back = x ^ (ones * '\\');
    return ((((quote - ones) & ~quote) | ((back - ones) & ~back) | ((x - ones * 0x20) & ~x)) &
            high) != 0;
}

/* From behind the opening quote to the closing one, at *end. */
static enum mg_status scan_string(struct scan *s, size_t begin, size_t *end, bool *escaped) {
    *escaped = false;
    for (size_t i = begin;;) {
        while (s->n - i >= 8 && !special_within(s->body + i)) i += 8;
        if (i >= s->n) return bad_json(s->f, s->n, "the text ends within a string");
        char c = s->body[i];
        if (c == '"') {
            *end = i;
            return MG_OK;
        }
        if ((unsigned char)c < 0x20) return bad_json(s->f, i, "a control character in a string");
        if (c != '\\') {
            i++;
            continue;
        }
        *escaped = true;
        if (s->n - i >= 6 && memcmp(s->body + i, "\\u0000", 6) == 0)
            return bad_json(s->f, i, "a zero byte in a string");
        if (s->n - i < 2) return bad_json(s->f, s->n, "the text ends within a string");
        if ((unsigned char)s->body[i + 1] < 0x20)
            return bad_json(s->f, i + 1, "a control character in a string");
        i += 2;
    }
}

/* jansson calls whole numbers beyond 64 bits an error; here they are numbers, and whether one is
 * too large for its field is that field's to say. From its first character, the number becomes one
 * with an exponent and as many bytes, so that places stay what they are: 36893488147419103232
 * becomes 3.68934881474192e19. The last digit kept is one higher (but for a 9): what is beyond 64
 * bits stays beyond. Moves *at to its last character. */
static enum mg_status scan_number(struct scan *s, size_t *at) {
    bool negative = s->body[*at] == '-';
    const char *most = negative ? "9223372036854775808" : "9223372036854775807";
    size_t begin = *at + negative, end = begin, n_most = strlen(most);
    while (end < s->n && s->body[end] >= '0' && s->body[end] <= '9') end++;
    size_t digits = end - begin;
    while (end < s->n && s->body[end] && strchr("0123456789.eE+-", s->body[end])) end++;
    *at = end - 1;
    if (end - begin > digits || digits < n_most || s->body[begin] == '0') return MG_OK;
    if (digits == n_most && memcmp(s->body + begin, most, digits) <= 0) return MG_OK;
    char exponent[24];
    int n = snprintf(exponent, sizeof exponent, "e%zu", digits - 1);
    mg_buf_add(&s->skeleton, s->body + s->copied, begin + 1 - s->copied);
    mg_buf_add(&s->skeleton, ".", 1);
    size_t last = begin + digits - 2 - (size_t)n;
    mg_buf_add(&s->skeleton, s->body + begin + 1, last - begin - 1);
    char up = (char)(s->body[last] + (s->body[last] < '9'));
    mg_buf_add(&s->skeleton, &up, 1);
    if (!mg_buf_add(&s->skeleton, exponent, (size_t)n)) return mg_fault_memory(s->f, "request");
    s->copied = end;
    return MG_OK;
}

/* Whether the string that ends at `end` is a key. */
static bool is_key(const struct scan *s, size_t end) {
    size_t i = end + 1;
    while (i < s->n && strchr(" \t\r\n", s->body[i]) && s->body[i]) i++;
    return i < s->n && s->body[i] == ':';
}

static enum mg_status lift(struct scan *s, size_t begin, size_t end, bool escaped) {
    struct mg_jdoc *doc = s->doc;
    if (doc->n_lifted == doc->cap_lifted) {
        size_t cap = doc->cap_lifted ? doc->cap_lifted * 2 : 16;
        void *grown = mg_realloc(doc->lifted, cap, sizeof *doc->lifted);
        if (!grown) return mg_fault_memory(s->f, "request");
        doc->lifted = grown;
        doc->cap_lifted = cap;
    }
    char stand_in[STAND_IN_BYTES + 1];
    snprintf(stand_in, sizeof stand_in, "\\u0000%08x", (unsigned)doc->n_lifted);
    mg_buf_add(&s->skeleton, s->body + s->copied, begin - s->copied);
    if (!mg_buf_add(&s->skeleton, stand_in, STAND_IN_BYTES))
        return mg_fault_memory(s->f, "request");
    s->copied = end;
    doc->lifted[doc->n_lifted++] =
        (struct mg_jdoc_string){.at = begin, .n = end - begin, .escaped = escaped};
    return MG_OK;
}

static enum mg_status make_skeleton(struct scan *s) {
    size_t depth = 0, values = 0, containers = 0;
    for (size_t i = 0; i < s->n; i++) {
        switch (s->body[i]) {
        case '"': {
            size_t begin = i + 1;
            bool escaped;
            enum mg_status status = scan_string(s, begin, &i, &escaped);
            if (status == MG_OK && i - begin >= MG_JDOC_LONG && !is_key(s, i))
                status = lift(s, begin, i, escaped);
            if (status != MG_OK) return status;
            break;
        }
        case '[':
        case '{':
            if (++depth > MG_JDOC_DEPTH)
                return mg_fault_set(s->f, MG_ERR_LIMIT, "json_too_deep", "",
                                    "the body is nested more than %d levels deep", MG_JDOC_DEPTH);
            if (++containers > MG_JDOC_CONTAINERS)
                return mg_fault_set(s->f, MG_ERR_LIMIT, "json_too_large", "",
                                    "the body has more than %zu objects and lists",
                                    MG_JDOC_CONTAINERS);
            break;
        case ']':
        case '}':
            if (depth) depth--;
            break;
        case ',':
        case ':':
            if (++values > MG_JDOC_VALUES)
                return mg_fault_set(s->f, MG_ERR_LIMIT, "json_too_large", "",
                                    "the body has more than %zu values", MG_JDOC_VALUES);
            break;
        default:
            if (s->body[i] == '-' || (s->body[i] >= '0' && s->body[i] <= '9')) {
                enum mg_status status = scan_number(s, &i);
                if (status != MG_OK) return status;
            }
            break;
        }
    }
    if (!mg_buf_add(&s->skeleton, s->body + s->copied, s->n - s->copied))
        return mg_fault_memory(s->f, "request");
    return MG_OK;
}

static const char *reason(const json_error_t *e) {
    switch (json_error_code(e)) {
    case json_error_duplicate_key: return "a key that stands twice in one object";
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "something behind the value";
    case json_error_invalid_utf8: return "a byte that is not UTF-8";
    case json_error_numeric_overflow: return "a number out of range";
    case json_error_null_byte_in_key:
    case json_error_null_character: return "a zero byte in a string";
    default: return "something unexpected";
    }
}

/* A place in the skeleton as a place in the body. */
static size_t body_place(const struct mg_jdoc *doc, size_t at) {
    size_t longer = 0;
    for (size_t i = 0; i < doc->n_lifted; i++) {
        if (doc->lifted[i].at > at + longer) break;
        longer += doc->lifted[i].n - STAND_IN_BYTES;
    }
    return at + longer;
}

enum mg_status mg_jdoc_parse(const char *body, size_t n, struct mg_jdoc *out, struct mg_fault *f) {
    *out = (struct mg_jdoc){.body = body};
    struct scan s = {.body = body, .n = n, .doc = out, .skeleton = {.max = SIZE_MAX}, .f = f};
    enum mg_status status = n == 0 ? mg_fault_set(f, MG_ERR_FORMAT, "invalid_json", "",
                                                  "the body is empty; wanted a JSON object")
                                   : make_skeleton(&s);
    if (status != MG_OK) goto out;
    json_error_t error;
    out->root = load((const char *)s.skeleton.data, s.skeleton.n,
                     JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!out->root) {
        status = starved ? mg_fault_memory(f, "request")
                         : bad_json(f, body_place(out, (size_t)error.position), reason(&error));
    } else if (!json_is_object(out->root)) {
        status = mg_fault_set(f, MG_ERR_FORMAT, "invalid_json", "",
                              "the body is %s; wanted a JSON object", mg_jdoc_kind(out->root));
    }
out:
    mg_buf_free(&s.skeleton);
    if (status != MG_OK) mg_jdoc_free(out);
    return status;
}

void mg_jdoc_free(struct mg_jdoc *doc) {
    json_decref(doc->root);
    free(doc->lifted);
    *doc = (struct mg_jdoc){0};
}

json_t *mg_jdoc_get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* The lifted string that a value stands for, or NULL. */
static const struct mg_jdoc_string *lifted(const struct mg_jdoc *doc, const json_t *string) {
    const char *text = json_string_value(string);
    if (json_string_length(string) != STAND_IN_BYTES - 5 || text[0] != '\0') return NULL;
    size_t i = strtoul(text + 1, NULL, 16);
    return i < doc->n_lifted ? &doc->lifted[i] : NULL;
}

bool mg_jdoc_place(const struct mg_jdoc *doc, const json_t *string, size_t *at, size_t *n) {
    const struct mg_jdoc_string *l = lifted(doc, string);
    if (!l) return false;
    *at = l->at;
    *n = l->n;
    return true;
}

/* Undoes the escapes of a long string where they are single ASCII characters, as in base64 with
 * "\/" and in text with "\n": one copy instead of jansson's four. False when there are others, or
 * wrong ones, which are left to jansson. */
static bool unescape_ascii(const char *text, size_t n, struct mg_buf *scratch) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    scratch->n = 0;
    if (!mg_buf_reserve(scratch, n)) return true; /* and scratch->failed */
    for (size_t i = 0; i < n;) {
        const char *back = memchr(text + i, '\\', n - i);
        size_t plain = back ? (size_t)(back - text) - i : n - i;
        mg_buf_add(scratch, text + i, plain);
        i += plain;
        if (!back) break;
        /* The scan saw a character behind every backslash, and no zero byte. */
        const char *at = strchr(from, text[i + 1]);
        if (at) {
            mg_buf_add_byte(scratch, (uint8_t)to[at - from]);
            i += 2;
            continue;
        }
        char hex[5] = {0};
        if (text[i + 1] != 'u' || n - i < 6) return false;
        memcpy(hex, text + i + 2, 4);
        if (strspn(hex, "0123456789abcdefABCDEF") != 4) return false;
        unsigned long c = strtoul(hex, NULL, 16);
        if (c == 0 || c >= 0x80) return false;
        mg_buf_add_byte(scratch, (uint8_t)c);
        i += 6;
    }
    return true;
}

/* jansson wants the quotes, which stand around the string in the body. */
static enum mg_status unescape(const struct mg_jdoc *doc, const struct mg_jdoc_string *l,
                               struct mg_buf *scratch, const char *param, struct mg_fault *f) {
    if (unescape_ascii(doc->body + l->at, l->n, scratch))
        return scratch->failed ? mg_fault_memory(f, "request") : MG_OK;
    json_error_t error;
    json_t *value = load(doc->body + l->at - 1, l->n + 2, JSON_DECODE_ANY, &error);
    if (!value) {
        if (starved) return mg_fault_memory(f, "request");
        return mg_fault_set(f, MG_ERR_FORMAT, "invalid_json", param,
                            "%s: not a valid JSON string: %s", param, reason(&error));
    }
    scratch->n = 0;
    bool fits = mg_buf_add(scratch, json_string_value(value), json_string_length(value));
    json_decref(value);
    return fits ? MG_OK : mg_fault_memory(f, "request");
}

enum mg_status mg_jdoc_bytes(const struct mg_jdoc *doc, const json_t *string,
                             struct mg_buf *scratch, const char *param, struct mg_slice *out,
                             struct mg_fault *f) {
    const struct mg_jdoc_string *l = lifted(doc, string);
    if (l && l->escaped) {
        enum mg_status status = unescape(doc, l, scratch, param, f);
        if (status == MG_OK) *out = (struct mg_slice){scratch->data, scratch->n};
        return status;
    }
    *out = l ? (struct mg_slice){(const uint8_t *)doc->body + l->at, l->n}
             : (struct mg_slice){(const uint8_t *)json_string_value(string),
                                 json_string_length(string)};
    return MG_OK;
}

enum mg_status mg_jdoc_text(const struct mg_jdoc *doc, const json_t *string, struct mg_arena *arena,
                            const char *param, struct mg_slice *out, struct mg_fault *f) {
    struct mg_buf scratch = {.max = SIZE_MAX};
    struct mg_slice view;
    enum mg_status status = mg_jdoc_bytes(doc, string, &scratch, param, &view, f);
    bool nfc;
    if (status == MG_OK && lifted(doc, string) && !mg_utf8_check(view.data, view.n, &nfc))
        status =
            mg_fault_set(f, MG_ERR_FORMAT, "invalid_json", param, "%s: not valid UTF-8", param);
    if (status == MG_OK) {
        const char *copy = mg_arena_strdup(arena, (const char *)view.data, view.n);
        if (!copy) status = mg_fault_memory(f, "request");
        *out = (struct mg_slice){(const uint8_t *)copy, copy ? view.n : 0};
    }
    mg_buf_free(&scratch);
    return status;
}

bool mg_jdoc_is(const json_t *string, const char *text) {
    return json_is_string(string) && json_string_length(string) == strlen(text) &&
           memcmp(json_string_value(string), text, strlen(text)) == 0;
}

const char *mg_jdoc_kind(const json_t *value) {
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "nothing";
    }
}
