/* base/err.h - filling in a struct mg_err.
 *
 * Every function here returns the status it was given, so that a failure is one statement:
 *     return mg_fail(err, MG_ERR_FORMAT, "image_truncated", "JPEG ends after %zu bytes", n);
 * `err` may be NULL where a caller doesn't want the text. A second failure on the way out never
 * overwrites the first: mg_fail keeps an err that is already set.
 */
#ifndef MG_BASE_ERR_H
#define MG_BASE_ERR_H

#include "margay/status.h"

#if defined(__GNUC__)
#define MG_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define MG_PRINTF(fmt, first)
#endif

/* `code`: stable word of at most 31 bytes, or "". */
enum mg_status mg_fail(struct mg_err *err, enum mg_status status, const char *code, const char *fmt,
                       ...) MG_PRINTF(4, 5);

/* Out of memory while making `what` ("tokenizer merges"). */
enum mg_status mg_fail_memory(struct mg_err *err, const char *what);

/* errno of a failed system call on `path`: not found, permission, ... `what`: "open", "read". */
enum mg_status mg_fail_errno(struct mg_err *err, const char *what, const char *path, int errnum);

/* Puts "PREFIX: " before the text of an error already set (a file or picture name). */
void mg_err_prefix(struct mg_err *err, const char *fmt, ...) MG_PRINTF(2, 3);

/* Control characters become '?': a file's name must not command the terminal that reads of it.
 * mg_fail and mg_err_prefix do it to their texts. */
void mg_text_defuse(char *s);

void mg_err_clear(struct mg_err *err);

#endif
