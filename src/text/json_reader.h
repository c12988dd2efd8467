/* text/json_reader.h - a strict pull reader for JSON that comes from outside.
 *
 * Made for tokenizer.json (11 MB in a few hundredths of a second) and for tool definitions. Nothing
 * is built: the caller asks for what it expects next. RFC 8259 to the letter: UTF-8 only, no lone
 * surrogates, no raw control characters, no leading zeros, nothing after the value. After the first
 * failure every call does nothing and says false, so a caller may check `status` once at the end of
 * a loop:
 *
 *     mg_jread_open(&j, '{');
 *     while (mg_jread_key(&j, &key)) ...read or skip one value...
 *     if (j.status != MG_OK) ...
 */
#ifndef MG_TEXT_JSON_READER_H
#define MG_TEXT_JSON_READER_H

#include "base/err.h"
#include "base/mem.h"

#define MG_JREAD_DEPTH 60 /* nested arrays and objects */

struct mg_jread {
    const uint8_t *begin, *at, *end; /* the text, borrowed, and where we are */
    const char *what;                /* "tokenizer.json": begins every error text. Borrowed */
    struct mg_buf scratch;           /* the last string that had escapes in it, owned */
    size_t max_string;               /* bytes that a string may have */
    unsigned depth;                  /* open arrays and objects */
    uint64_t first;                  /* bit d: nothing was read yet at depth d */
    struct mg_err *err;              /* filled at the first failure, borrowed, may be NULL */
    enum mg_status status;
};

void mg_jread_init(struct mg_jread *j, const char *what, const void *text, size_t n,
                   size_t max_string, struct mg_err *err);
void mg_jread_free(struct mg_jread *j);

/* What comes next: '{' '[' '"' '0' (a number) 't' 'f' 'n', or 0 at anything else or after a
 * failure. */
char mg_jread_peek(struct mg_jread *j);
/* Begins an object '{' or array '['. */
bool mg_jread_open(struct mg_jread *j, char bracket);
/* The next key of the innermost object, or false after its end. The key lives until the next
 * string. */
bool mg_jread_key(struct mg_jread *j, struct mg_slice *key);
/* True when the innermost array has another element, or false after its end. */
bool mg_jread_element(struct mg_jread *j);
/* The slice lives until the next string (it is in the text itself when it has no escapes). */
bool mg_jread_string(struct mg_jread *j, struct mg_slice *out);
bool mg_jread_bool(struct mg_jread *j, bool *out);
bool mg_jread_null(struct mg_jread *j);
/* The number's own characters. */
bool mg_jread_number(struct mg_jread *j, struct mg_slice *out);
/* A whole number from 0 to max; MG_ERR_LIMIT above. */
bool mg_jread_uint(struct mg_jread *j, uint32_t max, uint32_t *out);
/* Any value, read as strictly as if it were wanted. */
bool mg_jread_skip(struct mg_jread *j);
/* Only white space is left. */
bool mg_jread_end(struct mg_jread *j);

/* Sets the failure: "WHAT: TEXT at byte N". Always false. */
bool mg_jread_fail(struct mg_jread *j, enum mg_status status, const char *text);

bool mg_jread_is(struct mg_slice s, const char *text);

#endif
