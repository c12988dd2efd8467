/* cli/json.c - see json.h. Escapes are the six short ones and \u00XX; everything else is UTF-8 as
 * it stands. */
#include "cli/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void begin_value(struct mg_json *j) {
    if (j->comma) mg_buf_add_byte(j->out, ',');
    j->comma = true;
}

void mg_json_open(struct mg_json *j, char bracket) {
    begin_value(j);
    mg_buf_add_byte(j->out, (uint8_t)bracket);
    j->comma = false;
}

void mg_json_close(struct mg_json *j, char bracket) {
    mg_buf_add_byte(j->out, (uint8_t)bracket);
    j->comma = true;
}

/* Length of the valid UTF-8 character at s[0..n), 0 when there is none. */
static size_t utf8_length(const uint8_t *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return len;
}

static void add_escaped(struct mg_buf *out, uint8_t c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, c) : NULL;
    if (at)
        mg_buf_printf(out, "\\%c", to[at - from]);
    else
        mg_buf_printf(out, "\\u%04x", c);
}

static void add_quoted(struct mg_buf *out, const char *text, size_t n) {
    const uint8_t *s = (const uint8_t *)text;
    mg_buf_add_byte(out, '"');
    size_t plain = 0; /* start of what is copied as it stands */
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(s + i, n - i);
        bool escape = s[i] < 0x20 || s[i] == '"' || s[i] == '\\';
        if (len && !escape) {
            i += len;
            continue;
        }
        mg_buf_add(out, s + plain, i - plain);
        if (escape)
            add_escaped(out, s[i]);
        else
            mg_buf_add_str(out, "\xEF\xBF\xBD");
        plain = ++i;
    }
    mg_buf_add(out, s + plain, n - plain);
    mg_buf_add_byte(out, '"');
}

void mg_json_key(struct mg_json *j, const char *key) {
    begin_value(j);
    add_quoted(j->out, key, strlen(key));
    mg_buf_add_byte(j->out, ':');
    j->comma = false;
}

void mg_json_string(struct mg_json *j, const char *text, size_t n) {
    begin_value(j);
    add_quoted(j->out, text, n);
}

void mg_json_str(struct mg_json *j, const char *text) {
    if (text)
        mg_json_string(j, text, strlen(text));
    else
        mg_json_null(j);
}

void mg_json_int(struct mg_json *j, int64_t x) {
    begin_value(j);
    mg_buf_printf(j->out, "%" PRId64, x);
}

void mg_json_number(struct mg_json *j, double x, int decimals) {
    begin_value(j);
    if (isfinite(x))
        mg_buf_printf(j->out, "%.*f", decimals, x);
    else
        mg_buf_add_str(j->out, "null");
}

void mg_json_bool(struct mg_json *j, bool on) {
    begin_value(j);
    mg_buf_add_str(j->out, on ? "true" : "false");
}

void mg_json_null(struct mg_json *j) {
    begin_value(j);
    mg_buf_add_str(j->out, "null");
}
