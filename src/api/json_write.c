/* api/json_write.c - see json_write.h. Escapes are the six short ones and \u00XX; everything else
 * is UTF-8 as it stands (U+2028 and U+2029 too: JSON allows them). */
#include "api/json_write.h"

#include "text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void begin_value(struct mg_jwrite *j) {
    if (j->comma) mg_buf_add_byte(j->out, ',');
    j->comma = true;
}

void mg_jwrite_open(struct mg_jwrite *j, char bracket) {
    begin_value(j);
    mg_buf_add_byte(j->out, (uint8_t)bracket);
    j->comma = false;
}

void mg_jwrite_close(struct mg_jwrite *j, char bracket) {
    mg_buf_add_byte(j->out, (uint8_t)bracket);
    j->comma = true;
}

static void add_escaped(struct mg_buf *out, uint8_t c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt", hex[] = "0123456789abcdef";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        const char escape[2] = {'\\', to[at - from]};
        mg_buf_add(out, escape, sizeof escape);
    } else {
        const char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        mg_buf_add(out, escape, sizeof escape);
    }
}

static void add_quoted(struct mg_buf *out, const char *text, size_t n) {
    const uint8_t *s = (const uint8_t *)text;
    mg_buf_add_byte(out, '"');
    size_t plain = 0; /* start of what is copied as it stands */
    for (size_t i = 0; i < n;) {
        bool escape = s[i] < 0x20 || s[i] == '"' || s[i] == '\\';
        uint32_t character;
        size_t bad = 1, len = s[i] < 0x80 ? 1 : mg_utf8_next(s + i, n - i, &character, &bad);
        if (len && !escape) {
            i += len;
            continue;
        }
        mg_buf_add(out, s + plain, i - plain);
        if (escape)
            add_escaped(out, s[i]);
        else
            mg_buf_add_str(out, "\xEF\xBF\xBD");
        plain = i += bad;
    }
    if (n > plain) mg_buf_add(out, s + plain, n - plain);
    mg_buf_add_byte(out, '"');
}

void mg_jwrite_key(struct mg_jwrite *j, const char *key) {
    mg_jwrite_key_n(j, key, strlen(key));
}

void mg_jwrite_key_n(struct mg_jwrite *j, const char *key, size_t n) {
    begin_value(j);
    add_quoted(j->out, key, n);
    mg_buf_add_byte(j->out, ':');
    j->comma = false;
}

void mg_jwrite_string(struct mg_jwrite *j, const char *text, size_t n) {
    begin_value(j);
    add_quoted(j->out, text, n);
}

void mg_jwrite_str(struct mg_jwrite *j, const char *text) {
    if (text)
        mg_jwrite_string(j, text, strlen(text));
    else
        mg_jwrite_null(j);
}

void mg_jwrite_int(struct mg_jwrite *j, int64_t x) {
    begin_value(j);
    mg_buf_printf(j->out, "%" PRId64, x);
}

void mg_jwrite_uint(struct mg_jwrite *j, uint64_t x) {
    begin_value(j);
    mg_buf_printf(j->out, "%" PRIu64, x);
}

/* JSON's decimal point, whatever the locale's is. */
static void add_number(struct mg_buf *out, char *text) {
    for (char *c = text; *c; c++)
        if (!strchr("0123456789+-e", *c)) *c = '.';
    mg_buf_add_str(out, text);
}

void mg_jwrite_real(struct mg_jwrite *j, double x) {
    if (!isfinite(x)) {
        mg_jwrite_null(j);
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    begin_value(j);
    add_number(j->out, text);
}

void mg_jwrite_fixed(struct mg_jwrite *j, double x, int decimals) {
    if (!isfinite(x) || fabs(x) >= 1e15) {
        mg_jwrite_real(j, x);
        return;
    }
    char text[48];
    int n = snprintf(text, sizeof text, "%.*f", decimals, x);
    while (decimals > 0 && n > 1 && text[n - 1] == '0') text[--n] = '\0';
    if (decimals > 0 && n > 1 && (text[n - 1] < '0' || text[n - 1] > '9')) text[--n] = '\0';
    if (!strcmp(text, "-0")) memcpy(text, "0", 2);
    begin_value(j);
    add_number(j->out, text);
}

void mg_jwrite_bool(struct mg_jwrite *j, bool on) {
    begin_value(j);
    mg_buf_add_str(j->out, on ? "true" : "false");
}

void mg_jwrite_null(struct mg_jwrite *j) {
    begin_value(j);
    mg_buf_add_str(j->out, "null");
}

void mg_jwrite_kstr(struct mg_jwrite *j, const char *key, const char *text) {
    mg_jwrite_key(j, key);
    mg_jwrite_str(j, text);
}

void mg_jwrite_kint(struct mg_jwrite *j, const char *key, int64_t x) {
    mg_jwrite_key(j, key);
    mg_jwrite_int(j, x);
}

void mg_jwrite_kuint(struct mg_jwrite *j, const char *key, uint64_t x) {
    mg_jwrite_key(j, key);
    mg_jwrite_uint(j, x);
}

void mg_jwrite_kfixed(struct mg_jwrite *j, const char *key, double x, int decimals) {
    mg_jwrite_key(j, key);
    mg_jwrite_fixed(j, x, decimals);
}

void mg_jwrite_kbool(struct mg_jwrite *j, const char *key, bool on) {
    mg_jwrite_key(j, key);
    mg_jwrite_bool(j, on);
}

void mg_jwrite_knull(struct mg_jwrite *j, const char *key) {
    mg_jwrite_key(j, key);
    mg_jwrite_null(j);
}
