/* text/tool_json.c - see tool_json.h. The reference parses what the client sent and writes it
 * again, so the spelling that the model sees (blanks, escapes, 1e3 or 1000.0) is Python's, not the
 * client's. */
#include "text/tool_json.h"

#include "text/json_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 4000 /* characters; Python refuses whole numbers not much longer */

/* Where a key was written in the output. */
struct written {
    size_t at, n;
};

struct writer {
    struct mg_jread j;
    struct mg_buf *out;
    struct written *key; /* keys of the objects that are open, innermost last; owned */
    size_t n_key, cap_key;
};

static bool put(struct writer *w, const void *p, size_t n) {
    if (w->j.status != MG_OK) return false;
    if (mg_buf_add(w->out, p, n)) return true;
    return mg_jread_fail(&w->j, MG_ERR_LIMIT, "too much text");
}

static bool put_string(struct writer *w, struct mg_slice s) {
    static const char plain_escape[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    size_t from = 0;
    put(w, "\"", 1);
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char esc[8] = {'\\'};
        const char *p = c ? strchr(plain_escape, c) : NULL;
        if (p)
            esc[1] = letter[p - plain_escape];
        else
            snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        put(w, s.data + from, i - from);
        put(w, esc, strlen(esc));
        from = i + 1;
    }
    put(w, s.data + from, s.n - from);
    return put(w, "\"", 1);
}

/* Python's repr: the fewest digits that read back as the same number; an exponent below 1e-4 and
 * from 1e16. */
static void float_text(double v, char *out, size_t cap) {
    char e[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, v);
        if (strtod(e, NULL) == v) break;
    }
    const char *p = e, *sign = *p == '-' ? "-" : "";
    if (*p == '-') p++;
    char digit[20];
    size_t n = 0;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digit[n++] = *p;
    digit[n] = '\0';
    int exponent = *p ? (int)strtol(p + 1, NULL, 10) : 0;
    if (exponent < -4 || exponent >= 16)
        snprintf(out, cap, "%s%c%s%se%c%02d", sign, digit[0], n > 1 ? "." : "", digit + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, cap, "%s0.%.*s%s", sign, -exponent - 1, "000", digit);
    else if (n > (size_t)exponent + 1)
        snprintf(out, cap, "%s%.*s.%s", sign, exponent + 1, digit, digit + exponent + 1);
    else
        snprintf(out, cap, "%s%s%.*s.0", sign, digit, exponent + 1 - (int)n, "0000000000000000");
}

static bool put_number(struct writer *w) {
    struct mg_slice s;
    char text[NUMBER_MAX + 1], out[64];
    if (!mg_jread_number(&w->j, &s)) return false;
    if (s.n > NUMBER_MAX) return mg_jread_fail(&w->j, MG_ERR_LIMIT, "a number too long");
    memcpy(text, s.data, s.n);
    text[s.n] = '\0';
    if (!strpbrk(text, ".eE")) return strcmp(text, "-0") ? put(w, text, s.n) : put(w, "0", 1);
    double v = strtod(text, NULL);
    if (isinf(v))
        snprintf(out, sizeof out, "%sInfinity", v < 0 ? "-" : "");
    else
        float_text(v, out, sizeof out);
    return put(w, out, strlen(out));
}

static bool put_value(struct writer *w);

/* Remembers the key just written from out[at..]; `first` is where the object's keys begin. */
static bool new_key(struct writer *w, size_t first, size_t at) {
    struct written k = {at, w->out->n - at};
    if (w->n_key - first >= MG_TOOL_KEYS_MAX)
        return mg_jread_fail(&w->j, MG_ERR_LIMIT, "more than 1000 keys in an object");
    for (size_t i = first; i < w->n_key; i++)
        if (w->key[i].n == k.n && memcmp(w->out->data + w->key[i].at, w->out->data + at, k.n) == 0)
            return mg_jread_fail(&w->j, MG_ERR_FORMAT, "a key that is given twice");
    if (w->n_key == w->cap_key) {
        size_t cap = w->cap_key ? w->cap_key * 2 : 64;
        struct written *p = mg_realloc(w->key, cap, sizeof *p);
        if (!p) return mg_jread_fail(&w->j, MG_ERR_MEMORY, "out of memory");
        w->key = p;
        w->cap_key = cap;
    }
    w->key[w->n_key++] = k;
    return true;
}

static bool put_object(struct writer *w) {
    struct mg_slice key;
    size_t first = w->n_key;
    bool more = false;
    put(w, "{", 1);
    mg_jread_open(&w->j, '{');
    while (mg_jread_key(&w->j, &key)) {
        if (more) put(w, ", ", 2);
        more = true;
        size_t at = w->out->n;
        if (!put_string(w, key) || !new_key(w, first, at)) return false;
        put(w, ": ", 2);
        put_value(w);
    }
    w->n_key = first;
    return put(w, "}", 1);
}

static bool put_array(struct writer *w) {
    bool more = false;
    put(w, "[", 1);
    mg_jread_open(&w->j, '[');
    while (mg_jread_element(&w->j)) {
        if (more) put(w, ", ", 2);
        more = true;
        put_value(w);
    }
    return put(w, "]", 1);
}

/* As deep as the reader's MG_JREAD_DEPTH at most. */
static bool put_value(struct writer *w) {
    struct mg_slice s;
    bool b = false;
    switch (mg_jread_peek(&w->j)) {
    case '{': return put_object(w);
    case '[': return put_array(w);
    case '"': return mg_jread_string(&w->j, &s) && put_string(w, s);
    case '0': return put_number(w);
    case 't':
    case 'f': return mg_jread_bool(&w->j, &b) && (b ? put(w, "true", 4) : put(w, "false", 5));
    case 'n': return mg_jread_null(&w->j) && put(w, "null", 4);
    default: return mg_jread_fail(&w->j, MG_ERR_FORMAT, "a value is expected");
    }
}

enum mg_status mg_tool_json(struct mg_slice tools, struct mg_buf *out, size_t *n_tool,
                            struct mg_err *err) {
    struct writer w = {.out = out};
    *n_tool = 0;
    mg_jread_init(&w.j, "tools", tools.data, tools.n, tools.n + 16, err);
    mg_jread_open(&w.j, '[');
    while (mg_jread_element(&w.j)) {
        put(&w, "\n", 1);
        put_value(&w);
        ++*n_tool;
    }
    mg_jread_end(&w.j);
    mg_jread_free(&w.j);
    free(w.key);
    return w.j.status;
}
