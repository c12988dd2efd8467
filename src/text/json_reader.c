/* text/json_reader.c - see json_reader.h. */
#include "text/json_reader.h"

#include "text/unicode.h"

#include <string.h>

void mg_jread_init(struct mg_jread *j, const char *what, const void *text, size_t n,
                   size_t max_string, struct mg_err *err) {
    const uint8_t *p = n ? text : (const uint8_t *)"";
    *j = (struct mg_jread){.begin = p, .at = p, .end = p + n, .what = what};
    j->max_string = max_string;
    j->scratch.max = max_string;
    j->err = err;
}

void mg_jread_free(struct mg_jread *j) { mg_buf_free(&j->scratch); }

bool mg_jread_fail(struct mg_jread *j, enum mg_status status, const char *text) {
    if (j->status != MG_OK) return false;
    j->status = status;
    const char *code = status == MG_ERR_FORMAT ? "json_invalid" : "";
    mg_fail(j->err, status, code, "%s: %s at byte %zu", j->what, text, (size_t)(j->at - j->begin));
    return false;
}

bool mg_jread_is(struct mg_slice s, const char *text) {
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}

static void blanks(struct mg_jread *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r'))
        j->at++;
}

char mg_jread_peek(struct mg_jread *j) {
    if (j->status != MG_OK) return 0;
    blanks(j);
    if (j->at == j->end) return 0;
    char c = (char)*j->at;
    if (c == '-' || (c >= '0' && c <= '9')) return '0';
    return c && strchr("{[\"tfn", c) ? c : 0;
}

static bool expect(struct mg_jread *j, char c, const char *complaint) {
    if (j->status != MG_OK) return false;
    blanks(j);
    if (j->at == j->end) return mg_jread_fail(j, MG_ERR_FORMAT, "the text ends too early");
    if (*j->at != (uint8_t)c) return mg_jread_fail(j, MG_ERR_FORMAT, complaint);
    j->at++;
    return true;
}

bool mg_jread_open(struct mg_jread *j, char bracket) {
    const char *complaint = bracket == '{' ? "an object is expected" : "an array is expected";
    if (!expect(j, bracket, complaint)) return false;
    if (j->depth >= MG_JREAD_DEPTH) return mg_jread_fail(j, MG_ERR_LIMIT, "nested too deep");
    j->depth++;
    j->first |= (uint64_t)1 << j->depth;
    return true;
}

/* Reads "," or `close` (or nothing before the first element). True when an element follows. */
static bool another(struct mg_jread *j, char close) {
    if (j->status != MG_OK) return false;
    uint64_t bit = (uint64_t)1 << j->depth;
    blanks(j);
    if (j->at == j->end) return mg_jread_fail(j, MG_ERR_FORMAT, "the text ends too early");
    if (*j->at == (uint8_t)close) {
        j->at++;
        j->depth--;
        return false;
    }
    if (j->first & bit)
        j->first &= ~bit;
    else
        return expect(j, ',', "a comma or a closing bracket is expected");
    return true;
}

bool mg_jread_key(struct mg_jread *j, struct mg_slice *key) {
    return another(j, '}') && mg_jread_string(j, key) && expect(j, ':', "a colon is expected");
}

bool mg_jread_element(struct mg_jread *j) { return another(j, ']'); }

static bool hex4(struct mg_jread *j, uint32_t *out) {
    if (j->end - j->at < 4) return mg_jread_fail(j, MG_ERR_FORMAT, "the text ends too early");
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        uint8_t c = *j->at;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            digit = (c | 32u) - 'a' + 10u;
        else
            return mg_jread_fail(j, MG_ERR_FORMAT, "\\u needs four hex digits");
        *out = *out << 4 | digit;
    }
    return true;
}

static bool put_char(struct mg_jread *j, uint32_t c) {
    uint8_t b[4];
    size_t n = 0;
    if (c < 0x80) {
        b[n++] = (uint8_t)c;
    } else if (c < 0x800) {
        b[n++] = (uint8_t)(0xC0 | c >> 6);
        b[n++] = (uint8_t)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        b[n++] = (uint8_t)(0xE0 | c >> 12);
        b[n++] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        b[n++] = (uint8_t)(0x80 | (c & 0x3F));
    } else {
        b[n++] = (uint8_t)(0xF0 | c >> 18);
        b[n++] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
        b[n++] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        b[n++] = (uint8_t)(0x80 | (c & 0x3F));
    }
    return mg_buf_add(&j->scratch, b, n);
}

/* At the character behind a backslash; a surrogate pair takes both its escapes. */
static bool escape(struct mg_jread *j) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (j->at == j->end) return mg_jread_fail(j, MG_ERR_FORMAT, "the text ends too early");
    uint8_t c = *j->at;
    if (c != 'u') {
        const char *p = c ? strchr(from, c) : NULL;
        if (!p) return mg_jread_fail(j, MG_ERR_FORMAT, "an unknown escape");
        j->at++;
        return mg_buf_add_byte(&j->scratch, (uint8_t)to[p - from]);
    }
    uint32_t u = 0, low = 0;
    j->at++;
    if (!hex4(j, &u)) return false;
    if (u >= 0xDC00 && u < 0xE000) return mg_jread_fail(j, MG_ERR_FORMAT, "a lone surrogate");
    if (u >= 0xD800 && u < 0xDC00) {
        if (j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u')
            return mg_jread_fail(j, MG_ERR_FORMAT, "a lone surrogate");
        j->at += 2;
        if (!hex4(j, &low)) return false;
        if (low < 0xDC00 || low >= 0xE000)
            return mg_jread_fail(j, MG_ERR_FORMAT, "a lone surrogate");
        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    }
    return put_char(j, u);
}

/* Moves over plain characters up to a quote or a backslash. */
static bool plain(struct mg_jread *j) {
    while (j->at < j->end) {
        uint8_t c = *j->at;
        if (c == '"' || c == '\\') return true;
        if (c < 0x20) return mg_jread_fail(j, MG_ERR_FORMAT, "a control character in a string");
        if (c < 0x80) {
            j->at++;
            continue;
        }
        uint32_t point;
        size_t bad, len = mg_utf8_next(j->at, (size_t)(j->end - j->at), &point, &bad);
        if (len == 0) return mg_jread_fail(j, MG_ERR_FORMAT, "bytes that are not UTF-8");
        j->at += len;
    }
    return mg_jread_fail(j, MG_ERR_FORMAT, "the text ends inside a string");
}

bool mg_jread_string(struct mg_jread *j, struct mg_slice *out) {
    if (!expect(j, '"', "a string is expected")) return false;
    const uint8_t *from = j->at;
    if (!plain(j)) return false;
    if (*j->at == '"') {
        *out = (struct mg_slice){from, (size_t)(j->at - from)};
        j->at++;
        if (out->n > j->max_string) return mg_jread_fail(j, MG_ERR_LIMIT, "a string too long");
        return true;
    }
    j->scratch.n = 0;
    for (;;) {
        if (!mg_buf_add(&j->scratch, from, (size_t)(j->at - from))) break;
        if (*j->at++ == '"') {
            *out = (struct mg_slice){j->scratch.data, j->scratch.n};
            return true;
        }
        if (!escape(j)) break;
        from = j->at;
        if (!plain(j)) break;
    }
    if (j->status != MG_OK) return false;
    size_t longest = j->scratch.n + (size_t)(j->at - from) + 4;
    if (longest > j->max_string) return mg_jread_fail(j, MG_ERR_LIMIT, "a string too long");
    return mg_jread_fail(j, MG_ERR_MEMORY, "out of memory");
}

static bool word(struct mg_jread *j, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, text, n) != 0)
        return mg_jread_fail(j, MG_ERR_FORMAT, "an unknown word");
    j->at += n;
    return true;
}

bool mg_jread_bool(struct mg_jread *j, bool *out) {
    char c = mg_jread_peek(j);
    if (c != 't' && c != 'f') return mg_jread_fail(j, MG_ERR_FORMAT, "true or false is expected");
    *out = c == 't';
    return word(j, *out ? "true" : "false");
}

bool mg_jread_null(struct mg_jread *j) {
    if (mg_jread_peek(j) != 'n') return mg_jread_fail(j, MG_ERR_FORMAT, "null is expected");
    return word(j, "null");
}

static size_t digits(struct mg_jread *j) {
    const uint8_t *from = j->at;
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++;
    return (size_t)(j->at - from);
}

bool mg_jread_number(struct mg_jread *j, struct mg_slice *out) {
    if (mg_jread_peek(j) != '0') return mg_jread_fail(j, MG_ERR_FORMAT, "a number is expected");
    const uint8_t *from = j->at;
    if (*j->at == '-') j->at++;
    bool zero = j->at < j->end && *j->at == '0';
    size_t n = digits(j);
    if (n == 0 || (zero && n > 1)) return mg_jread_fail(j, MG_ERR_FORMAT, "a malformed number");
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        if (digits(j) == 0) return mg_jread_fail(j, MG_ERR_FORMAT, "a malformed number");
    }
    if (j->at < j->end && (*j->at | 32) == 'e') {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) j->at++;
        if (digits(j) == 0) return mg_jread_fail(j, MG_ERR_FORMAT, "a malformed number");
    }
    *out = (struct mg_slice){from, (size_t)(j->at - from)};
    if (out->n > j->max_string) return mg_jread_fail(j, MG_ERR_LIMIT, "a number too long");
    return true;
}

bool mg_jread_uint(struct mg_jread *j, uint32_t max, uint32_t *out) {
    struct mg_slice s;
    if (!mg_jread_number(j, &s)) return false;
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.data[i] < '0' || s.data[i] > '9')
            return mg_jread_fail(j, MG_ERR_FORMAT, "a whole number is expected");
        if (v <= max) v = v * 10 + (s.data[i] - '0');
    }
    if (v > max) return mg_jread_fail(j, MG_ERR_LIMIT, "a number too large");
    *out = (uint32_t)v;
    return true;
}

bool mg_jread_skip(struct mg_jread *j) {
    struct mg_slice s;
    bool b;
    switch (mg_jread_peek(j)) {
    case '{':
        mg_jread_open(j, '{');
        while (mg_jread_key(j, &s)) mg_jread_skip(j);
        break;
    case '[':
        mg_jread_open(j, '[');
        while (mg_jread_element(j)) mg_jread_skip(j);
        break;
    case '"': mg_jread_string(j, &s); break;
    case '0': mg_jread_number(j, &s); break;
    case 't':
    case 'f': mg_jread_bool(j, &b); break;
    case 'n': mg_jread_null(j); break;
    default: mg_jread_fail(j, MG_ERR_FORMAT, "a value is expected");
    }
    return j->status == MG_OK;
}

bool mg_jread_end(struct mg_jread *j) {
    if (j->status != MG_OK) return false;
    blanks(j);
    return j->at == j->end || mg_jread_fail(j, MG_ERR_FORMAT, "text after the end");
}
