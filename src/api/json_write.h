/* api/json_write.h - writes JSON text into a buffer, piece by piece, always well-formed.
 *
 * The writer puts commas and colons itself; the caller opens and closes. Strings become valid
 * UTF-8: each piece that is none is written as U+FFFD (mg_utf8_lossy's rule). Nothing is
 * allocated but the buffer's growth; a buffer that may not grow remembers it (mg_buf.failed), so
 * that one look at the end is enough.
 *
 *     struct mg_jwrite j = {.out = &buf};
 *     mg_jwrite_open(&j, '{');
 *     mg_jwrite_kstr(&j, "model", name);
 *     mg_jwrite_key(&j, "choices"); mg_jwrite_open(&j, '['); ... mg_jwrite_close(&j, ']');
 *     mg_jwrite_close(&j, '}');
 *
 * One line is written, without blanks, as server-sent events need it. (cli/json.h is the command
 * line's own, with fixed decimals.)
 */
#ifndef MG_API_JSON_WRITE_H
#define MG_API_JSON_WRITE_H

#include "base/mem.h"

struct mg_jwrite {
    struct mg_buf *out; /* borrowed */
    bool comma;         /* the next value or key is not the first here */
};

void mg_jwrite_open(struct mg_jwrite *j, char bracket);  /* '{' or '[' */
void mg_jwrite_close(struct mg_jwrite *j, char bracket); /* '}' or ']' */
void mg_jwrite_key(struct mg_jwrite *j, const char *key);
void mg_jwrite_key_n(struct mg_jwrite *j, const char *key, size_t n);
void mg_jwrite_string(struct mg_jwrite *j, const char *text, size_t n);
void mg_jwrite_str(struct mg_jwrite *j, const char *text); /* NULL gives null */
void mg_jwrite_int(struct mg_jwrite *j, int64_t x);
void mg_jwrite_uint(struct mg_jwrite *j, uint64_t x);
/* The fewest digits that read back as the same double. NaN and infinities, which JSON has no
 * spelling for, are null. */
void mg_jwrite_real(struct mg_jwrite *j, double x);
/* Rounded to `decimals` places, zeros at the end left out: times. */
void mg_jwrite_fixed(struct mg_jwrite *j, double x, int decimals);
void mg_jwrite_bool(struct mg_jwrite *j, bool on);
void mg_jwrite_null(struct mg_jwrite *j);

/* A key and its value. */
void mg_jwrite_kstr(struct mg_jwrite *j, const char *key, const char *text);
void mg_jwrite_kint(struct mg_jwrite *j, const char *key, int64_t x);
void mg_jwrite_kuint(struct mg_jwrite *j, const char *key, uint64_t x);
void mg_jwrite_kfixed(struct mg_jwrite *j, const char *key, double x, int decimals);
void mg_jwrite_kbool(struct mg_jwrite *j, const char *key, bool on);
void mg_jwrite_knull(struct mg_jwrite *j, const char *key);

#endif
