/* cli/json.h - writes JSON text into a buffer, piece by piece, always well-formed.
 *
 * The writer puts commas and colons itself; the caller opens and closes. Strings become valid
 * UTF-8: what isn't is written as U+FFFD. A number that isn't finite is written as null. Nothing is
 * allocated but the buffer's growth; a buffer that may not grow is remembered in it
 * (mg_buf.failed).
 *
 *     struct mg_json j = {.out = &buf};
 *     mg_json_open(&j, '{');
 *     mg_json_key(&j, "text"); mg_json_string(&j, text, n);
 *     mg_json_close(&j, '}');
 */
#ifndef MG_CLI_JSON_H
#define MG_CLI_JSON_H

#include "base/mem.h"

struct mg_json {
    struct mg_buf *out; /* borrowed */
    bool comma;         /* the next value or key is not the first here */
};

void mg_json_open(struct mg_json *j, char bracket);  /* '{' or '[' */
void mg_json_close(struct mg_json *j, char bracket); /* '}' or ']' */
void mg_json_key(struct mg_json *j, const char *key);
void mg_json_string(struct mg_json *j, const char *text, size_t n);
void mg_json_str(struct mg_json *j, const char *text); /* NULL gives null */
void mg_json_int(struct mg_json *j, int64_t x);
void mg_json_number(struct mg_json *j, double x, int decimals);
void mg_json_bool(struct mg_json *j, bool on);
void mg_json_null(struct mg_json *j);

#endif
