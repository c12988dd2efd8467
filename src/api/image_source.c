/* api/image_source.c - see image_source.h. */
#include "api/image_source.h"

#include "base/base64.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_DATA_HEAD 512 /* bytes of a data URL before its comma */

void mg_image_source_drop(struct mg_image_source *s) {
    if (s->release)
        s->release(s->shared);
    else
        free(s->bytes);
    s->release = NULL;
    s->bytes = NULL;
    s->n_bytes = 0;
}

static bool begins(const char *text, size_t n, const char *with) {
    size_t k = strlen(with);
    return n >= k && strncasecmp(text, with, k) == 0;
}

bool mg_file_id_valid(const char *id, size_t n) {
    if (n == 0 || n > MG_IMAGE_MAX_FILE_ID) return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", id[i]) ||
            !id[i])
            return false;
    return true;
}

static enum mg_status decode(const char *text, size_t n, size_t max_bytes, const char *param,
                             struct mg_image_source *out, struct mg_fault *f) {
    /* Line ends and padding are a few per cent at most; what is far over the limit takes no
     * memory. */
    if (n / 4 * 3 > max_bytes && n / 4 * 3 - max_bytes > max_bytes / 8 + 64)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", param,
                            "%s: a picture of more than %zu bytes", param, max_bytes);
    uint8_t *bytes = malloc(mg_base64_bound(n));
    size_t n_bytes;
    if (!bytes) return mg_fault_memory(f, "picture");
    enum mg_base64_fault fault = mg_base64_decode(text, n, bytes, &n_bytes);
    enum mg_status status = MG_OK;
    switch (fault) {
    case MG_BASE64_OK:
        if (n_bytes == 0)
            status = mg_fault_set(f, MG_ERR_FORMAT, "image_empty", param,
                                  "%s: there are no bytes in this picture", param);
        else if (n_bytes > max_bytes)
            status = mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", param,
                                  "%s: a picture of more than %zu bytes", param, max_bytes);
        break;
    case MG_BASE64_CHARACTER:
        status = mg_fault_set(f, MG_ERR_FORMAT, "image_base64", param,
                              "%s: neither a URL nor base64: character %zu of %zu is none of "
                              "base64's",
                              param, n_bytes + 1, n);
        break;
    case MG_BASE64_PADDING:
        status = mg_fault_set(f, MG_ERR_FORMAT, "image_base64", param,
                              "%s: base64 that goes on behind its padding, at character %zu of %zu",
                              param, n_bytes + 1, n);
        break;
    case MG_BASE64_CUT:
        status = mg_fault_set(f, MG_ERR_FORMAT, "image_base64", param,
                              "%s: base64 that was cut: its last character stands alone", param);
        break;
    }
    if (status != MG_OK) {
        free(bytes);
        return status;
    }
    out->bytes = bytes;
    out->n_bytes = n_bytes;
    return MG_OK;
}

static enum mg_status decode_data_url(const char *text, size_t n, size_t max_bytes,
                                      const char *param, struct mg_image_source *out,
                                      struct mg_fault *f) {
    const char *comma = memchr(text, ',', mg_min_size(n, MAX_DATA_HEAD));
    if (!comma)
        return mg_fault_set(f, MG_ERR_FORMAT, "image_data_url", param,
                            "%s: a data URL without a comma before its data", param);
    const char *mark = comma - strlen(";base64");
    if (mark < text || !begins(mark, strlen(";base64"), ";base64"))
        return mg_fault_set(f, MG_ERR_UNSUPPORTED, "image_data_url", param,
                            "%s: a data URL must say \";base64\" before its comma", param);
    return decode(comma + 1, n - (size_t)(comma + 1 - text), max_bytes, param, out, f);
}

static enum mg_status keep(const char *text, size_t n, struct mg_arena *arena, const char *param,
                           struct mg_image_source *out, struct mg_fault *f) {
    if (n > MG_IMAGE_MAX_URL)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_url", param, "%s: a URL of more than %d bytes",
                            param, MG_IMAGE_MAX_URL);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7F)
            return mg_fault_set(f, MG_ERR_FORMAT, "image_url", param,
                                "%s: a URL with a blank, control or non-ASCII character at %zu",
                                param, i + 1);
    out->text = mg_arena_strdup(arena, text, n);
    return out->text ? MG_OK : mg_fault_memory(f, "picture");
}

/* A scheme: letters, then ':', within the first characters. Base64 has no colon. */
static bool has_scheme(const char *text, size_t n) {
    for (size_t i = 0; i < n && i < 32; i++) {
        if (text[i] == ':') return i > 0;
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.", text[i]) ||
            !text[i])
            return false;
    }
    return false;
}

enum mg_status mg_image_source_read(const char *text, size_t n, size_t max_bytes,
                                    struct mg_arena *arena, const char *param,
                                    struct mg_image_source *out, struct mg_fault *f) {
    static const char upload[] = "margay-file:";
    *out = (struct mg_image_source){0};
    if (begins(text, n, "data:")) return decode_data_url(text, n, max_bytes, param, out, f);
    if (begins(text, n, "http://") || begins(text, n, "https://")) {
        out->kind = MG_SOURCE_URL;
        return keep(text, n, arena, param, out, f);
    }
    if (begins(text, n, "file:")) {
        out->kind = MG_SOURCE_FILE_URL;
        return keep(text, n, arena, param, out, f);
    }
    bool prefixed = begins(text, n, upload);
    size_t head = prefixed ? strlen(upload) : 0;
    if (prefixed || (n > 5 && memcmp(text, "file-", 5) == 0 && n <= MG_IMAGE_MAX_FILE_ID)) {
        if (!mg_file_id_valid(text + head, n - head))
            return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", param,
                                "%s: not the id of an uploaded file", param);
        out->kind = MG_SOURCE_FILE_ID;
        return keep(text + head, n - head, arena, param, out, f);
    }
    if (has_scheme(text, n))
        return mg_fault_set(f, MG_ERR_UNSUPPORTED, "image_url", param,
                            "%s: a URL of a kind that is not read; wanted data:, http:, https: or "
                            "file:",
                            param);
    return decode(text, n, max_bytes, param, out, f);
}
