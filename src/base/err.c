/* base/err.c - see err.h. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *mg_status_name(enum mg_status status) {
    switch (status) {
    case MG_OK: return "ok";
    case MG_ERR_ARGUMENT: return "wrong argument";
    case MG_ERR_NOT_FOUND: return "not found";
    case MG_ERR_IO: return "input/output error";
    case MG_ERR_FORMAT: return "malformed data";
    case MG_ERR_UNSUPPORTED: return "unsupported";
    case MG_ERR_LIMIT: return "over a limit";
    case MG_ERR_CONTEXT: return "context too small";
    case MG_ERR_NUMERIC: return "not a finite number";
    case MG_ERR_CANCELLED: return "cancelled";
    case MG_ERR_MEMORY: return "out of memory";
    }
    return "unknown status";
}

/* A cut text must not end inside a UTF-8 character. */
static void trim_partial_utf8(char *s, size_t cap, int wrote) {
    if (wrote < 0 || (size_t)wrote < cap) return;
    size_t n = strlen(s), i = n;
    while (i > 0 && ((unsigned char)s[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)s[i - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (i - 1) < need) s[i - 1] = '\0';
}

void mg_text_defuse(char *s) {
    for (unsigned char *p = (unsigned char *)s; *p; p++) {
        if (*p < 0x20 || *p == 0x7F) *p = '?';
        /* U+0080..U+009F are control characters too, C2 80..9F in UTF-8. */
        if (*p == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) p[0] = p[1] = '?';
    }
}

enum mg_status mg_fail(struct mg_err *err, enum mg_status status, const char *code, const char *fmt,
                       ...) {
    if (!err || err->status != MG_OK) return status;
    err->status = status;
    snprintf(err->code, sizeof err->code, "%s", code ? code : "");
    va_list ap;
    va_start(ap, fmt);
    int wrote = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    trim_partial_utf8(err->text, sizeof err->text, wrote);
    mg_text_defuse(err->text);
    return status;
}

enum mg_status mg_fail_memory(struct mg_err *err, const char *what) {
    return mg_fail(err, MG_ERR_MEMORY, "out_of_memory", "out of memory (%s)", what);
}

enum mg_status mg_fail_errno(struct mg_err *err, const char *what, const char *path, int errnum) {
    enum mg_status status = MG_ERR_IO;
    if (errnum == ENOENT || errnum == ENOTDIR) status = MG_ERR_NOT_FOUND;
    if (errnum == ENOMEM) status = MG_ERR_MEMORY;
    return mg_fail(err, status, "", "can't %s %s: %s", what, path, strerror(errnum));
}

void mg_err_prefix(struct mg_err *err, const char *fmt, ...) {
    if (!err || err->status == MG_OK) return;
    char head[240], all[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    int wrote = vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    trim_partial_utf8(head, sizeof head, wrote);
    wrote = snprintf(all, sizeof all, "%s: %s", head, err->text);
    trim_partial_utf8(all, sizeof all, wrote);
    mg_text_defuse(all);
    memcpy(err->text, all, sizeof all);
}

void mg_err_clear(struct mg_err *err) {
    if (err) memset(err, 0, sizeof *err);
}
