/* api/json_doc.h - private to src/api: the JSON body of a request, read by jansson within limits.
 *
 * jansson copies every string, and its reader holds a second copy that grows by doubling: a picture
 * of 20 MB would pass through memory four times. Therefore one pass over the body goes first. It
 * counts nesting and values, and takes long strings out: the text that jansson sees has a short
 * stand-in there, a zero byte and a number. No request can forge one, since a zero byte in a string
 * of the body (\u0000) is refused in the same pass. So of a picture there is the body itself, and
 * the decoded bytes:
 *
 *     at the peak: body + decoded pictures (3/4 of their text) + tree + short strings
 *
 * The tree takes at most 130 bytes a value and 250 an object or list, some 40 MB within the limits
 * below. While a long string with escapes is read there is one more copy of it when they are single
 * ASCII characters (\/ as PHP writes it, \n), four when there are others.
 *
 *     body      {"url":"data:image/png;base64,iVBORw0KGgo..."}
 *     skeleton  {"url":"\u000000000000"}       lifted[0] = where the string stands in the body
 *
 * A long string that nobody asks for is not checked for UTF-8. The body must outlive the document.
 */
#ifndef MG_API_JSON_DOC_H
#define MG_API_JSON_DOC_H

#include "api/fault.h"

#include <jansson.h>

#define MG_JDOC_DEPTH 60                     /* nested arrays and objects, as MG_JREAD_DEPTH */
#define MG_JDOC_VALUES ((size_t)1 << 18)     /* commas and colons */
#define MG_JDOC_CONTAINERS ((size_t)1 << 15) /* objects and lists */
#define MG_JDOC_LONG 2048                    /* bytes from which a string is taken out */

/* A string of the body: what stands between its quotes. */
struct mg_jdoc_string {
    size_t at, n; /* bytes, in the body */
    bool escaped; /* there is a backslash in it */
};

struct mg_jdoc {
    json_t *root;                  /* an object; owned */
    const char *body;              /* borrowed */
    struct mg_jdoc_string *lifted; /* [n_lifted], owned */
    size_t n_lifted, cap_lifted;
};

/* The body must be one JSON object of UTF-8; a key that stands twice in an object, \u0000, and what
 * is over the limits above is refused. On failure `out` holds nothing. */
enum mg_status mg_jdoc_parse(const char *body, size_t n, struct mg_jdoc *out, struct mg_fault *f);
void mg_jdoc_free(struct mg_jdoc *doc); /* a zeroed one is fine */

/* A member of an object; NULL when it is missing, or null (which means the same here). */
json_t *mg_jdoc_get(const json_t *object, const char *key);

/* The text of a string value, unescaped, with a zero byte behind it, copied into `arena`. `param`
 * is named when a long string turns out not to be UTF-8. */
enum mg_status mg_jdoc_text(const struct mg_jdoc *doc, const json_t *string, struct mg_arena *arena,
                            const char *param, struct mg_slice *out, struct mg_fault *f);
/* A view, for those who look at every byte anyway (base64): a long string as it stands in the body,
 * unchecked; one with escapes is undone into `scratch`. It lives as long as both. */
enum mg_status mg_jdoc_bytes(const struct mg_jdoc *doc, const json_t *string,
                             struct mg_buf *scratch, const char *param, struct mg_slice *out,
                             struct mg_fault *f);
/* Where a long string stands in the body, without its quotes; false: it is a short one. */
bool mg_jdoc_place(const struct mg_jdoc *doc, const json_t *string, size_t *at, size_t *n);
/* The string is exactly `text`. */
bool mg_jdoc_is(const json_t *string, const char *text);

/* "an object", "a list", "a string", "a number", "a boolean", "nothing": for error texts. */
const char *mg_jdoc_kind(const json_t *value);

#endif
