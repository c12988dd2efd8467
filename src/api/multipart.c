/* api/multipart.c - see multipart.h. */
#include "api/multipart.h"

#include "text/unicode.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct cursor {
    const char *at, *end;
};

static bool is_token(char c) {
    return c > 0x20 && c < 0x7F && !strchr("()<>@,;:\\\"/[]?=", c);
}

static void skip_blanks(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t')) c->at++;
}

static bool same_word(struct mg_slice a, const char *b) {
    return a.n == strlen(b) && strncasecmp((const char *)a.data, b, a.n) == 0;
}

/* "; name=value" or "; name="value"" at the cursor. False at the end or where it is malformed. In a
 * quoted value a backslash stays as it is (browsers write %22 for a quote, and paths have
 * backslashes), but the character behind it doesn't end the value. */
static bool next_parameter(struct cursor *c, struct mg_slice *name, struct mg_slice *value) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != ';') return false;
    c->at++;
    skip_blanks(c);
    const char *begin = c->at;
    while (c->at < c->end && is_token(*c->at)) c->at++;
    *name = (struct mg_slice){(const uint8_t *)begin, (size_t)(c->at - begin)};
    if (name->n == 0 || c->at == c->end || *c->at != '=') return false;
    c->at++;
    bool quoted = c->at < c->end && *c->at == '"';
    begin = c->at += quoted;
    while (c->at < c->end && (quoted ? *c->at != '"' : is_token(*c->at))) {
        if (quoted && *c->at == '\\' && c->end - c->at > 1) c->at++;
        c->at++;
    }
    *value = (struct mg_slice){(const uint8_t *)begin, (size_t)(c->at - begin)};
    if (quoted && c->at == c->end) return false;
    c->at += quoted;
    return true;
}

static enum mg_status bad(struct mg_fault *f, const char *text) {
    return mg_fault_set(f, MG_ERR_FORMAT, "invalid_multipart", "",
                        "the body is not valid multipart/form-data: %s", text);
}

static enum mg_status find_boundary(const char *content_type, struct mg_slice *out,
                                    struct mg_fault *f) {
    static const char want[] = "multipart/form-data";
    struct cursor c = {content_type, content_type + strlen(content_type)};
    struct mg_slice name, value;
    *out = (struct mg_slice){0};
    skip_blanks(&c);
    if ((size_t)(c.end - c.at) >= strlen(want) && !strncasecmp(c.at, want, strlen(want))) {
        c.at += strlen(want);
        while (next_parameter(&c, &name, &value))
            if (same_word(name, "boundary") && !out->n) *out = value;
    }
    for (size_t i = 0; i < out->n; i++)
        if (out->data[i] < 0x20 || out->data[i] >= 0x7F) out->n = 0;
    if (out->n == 0 || out->n > MG_MULTIPART_MAX_BOUNDARY)
        return mg_fault_set(f, MG_ERR_UNSUPPORTED, "unsupported_media_type", "",
                            "wanted the content type multipart/form-data with a boundary");
    return MG_OK;
}

static enum mg_status read_disposition(struct cursor c, struct mg_multipart_part *part,
                                       struct mg_fault *f) {
    struct mg_slice name, value;
    const char *begin = c.at;
    while (c.at < c.end && is_token(*c.at)) c.at++;
    if (!same_word((struct mg_slice){(const uint8_t *)begin, (size_t)(c.at - begin)}, "form-data"))
        return bad(f, "a part that is no form-data");
    while (next_parameter(&c, &name, &value)) {
        if (same_word(name, "name")) part->name = value;
        if (same_word(name, "filename")) part->filename = value;
    }
    skip_blanks(&c);
    return c.at == c.end ? MG_OK : bad(f, "a Content-Disposition that can't be read");
}

/* A part's head, [at, end) without the empty line. */
static enum mg_status read_head(const char *at, const char *end, struct mg_multipart_part *part,
                                struct mg_fault *f) {
    while (at < end) {
        const char *line_end = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (!line_end) line_end = end;
        const char *colon = memchr(at, ':', (size_t)(line_end - at));
        if (!colon) return bad(f, "a line of a part's head without a colon");
        struct mg_slice key = {(const uint8_t *)at, (size_t)(colon - at)};
        struct cursor value = {colon + 1, line_end};
        skip_blanks(&value);
        while (value.end > value.at && (value.end[-1] == ' ' || value.end[-1] == '\t')) value.end--;
        struct mg_slice text = {(const uint8_t *)value.at, (size_t)(value.end - value.at)};
        enum mg_status status = MG_OK;
        if (same_word(key, "content-disposition")) status = read_disposition(value, part, f);
        if (same_word(key, "content-type")) part->type = text;
        if (same_word(key, "content-transfer-encoding") && !same_word(text, "binary") &&
            !same_word(text, "8bit") && !same_word(text, "7bit"))
            status = bad(f, "a part with a transfer encoding");
        if (status != MG_OK) return status;
        at = line_end + (line_end < end ? 2 : 0);
    }
    if (part->name.n == 0) return bad(f, "a part without a name");
    return MG_OK;
}

enum mg_status mg_multipart_parse(const char *content_type, const void *body, size_t n,
                                  struct mg_multipart *out, struct mg_fault *f) {
    *out = (struct mg_multipart){0};
    struct mg_slice boundary;
    enum mg_status status = find_boundary(content_type ? content_type : "", &boundary, f);
    if (status != MG_OK) return status;
    char mark[MG_MULTIPART_MAX_BOUNDARY + 5];
    size_t n_mark = (size_t)snprintf(mark, sizeof mark, "\r\n--%.*s", (int)boundary.n,
                                     (const char *)boundary.data);
    const char *at = body, *end = at + n;
    /* The first boundary may be the body's first bytes, else it begins a line. */
    if (n >= n_mark - 2 && memcmp(at, mark + 2, n_mark - 2) == 0) {
        at += n_mark - 2;
    } else {
        const char *first = n ? memmem(at, n, mark, n_mark) : NULL;
        if (!first) return bad(f, "there is no boundary");
        at = first + n_mark;
    }
    while (end - at < 2 || memcmp(at, "--", 2) != 0) {
        while (at < end && (*at == ' ' || *at == '\t')) at++; /* padding behind a boundary */
        if (end - at < 2 || memcmp(at, "\r\n", 2) != 0)
            return bad(f, "a boundary with more behind it");
        at += 2;
        if (out->n == MG_MULTIPART_MAX_PARTS) return bad(f, "too many parts");
        size_t look = mg_min_size((size_t)(end - at), MG_MULTIPART_MAX_HEAD);
        const char *head_end = memmem(at, look, "\r\n\r\n", 4);
        if (!head_end) return bad(f, "a part's head without an end, or too long");
        struct mg_multipart_part *part = &out->part[out->n];
        status = read_head(at, head_end, part, f);
        if (status != MG_OK) return status;
        /* The line end before the boundary belongs to the boundary; it may be the head's own. */
        const char *data = head_end + 4,
                   *next = memmem(data - 2, (size_t)(end - (data - 2)), mark, n_mark);
        if (!next) return bad(f, "the closing boundary is missing");
        part->data =
            (struct mg_slice){(const uint8_t *)data, next < data ? 0 : (size_t)(next - data)};
        out->n++;
        at = next + n_mark;
    }
    return MG_OK;
}

const struct mg_multipart_part *mg_multipart_find(const struct mg_multipart *m, const char *name) {
    for (size_t i = 0; i < m->n; i++)
        if (m->part[i].name.n == strlen(name) &&
            memcmp(m->part[i].name.data, name, strlen(name)) == 0)
            return &m->part[i];
    return NULL;
}

/* The last component of a client's path, without what could harm a terminal or a page's markup. */
static void clean_name(struct mg_slice s, const char *fallback, char *out, size_t cap) {
    size_t from = 0, n = 0;
    bool nfc;
    for (size_t i = 0; i < s.n; i++)
        if (s.data[i] == '/' || s.data[i] == '\\') from = i + 1;
    for (size_t i = from; i < s.n && n + 1 < cap; i++)
        out[n++] = strchr("<>&\"'`", s.data[i]) ? '_' : (char)s.data[i]; /* a zero byte too */
    while (n && !mg_utf8_check((const uint8_t *)out, n, &nfc) && s.n - from > n) n--;
    out[n] = '\0';
    mg_text_defuse(out);
    if (!n || !mg_utf8_check((const uint8_t *)out, n, &nfc)) snprintf(out, cap, "%s", fallback);
}

static enum mg_status read_seconds(const struct mg_multipart *m, int64_t *out, struct mg_fault *f) {
    static const char name[] = "expires_after[seconds]";
    const struct mg_multipart_part *part = mg_multipart_find(m, name);
    if (!part) return MG_OK;
    int64_t x = 0;
    for (size_t i = 0; i < part->data.n && x <= MG_UPLOAD_MAX_SECONDS; i++) {
        uint8_t c = part->data.data[i];
        x = c >= '0' && c <= '9' ? x * 10 + (c - '0') : INT64_MAX;
    }
    if (x < 1 || x > MG_UPLOAD_MAX_SECONDS)
        return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", name, "%s: must be from 1 to %d",
                            name, MG_UPLOAD_MAX_SECONDS);
    *out = x;
    return MG_OK;
}

enum mg_status mg_upload_parse(const char *content_type, const void *body, size_t n,
                               size_t max_bytes, struct mg_upload *out, struct mg_fault *f) {
    *out = (struct mg_upload){0};
    struct mg_multipart m;
    enum mg_status status = mg_multipart_parse(content_type, body, n, &m, f);
    if (status != MG_OK) return status;
    const struct mg_multipart_part *file = mg_multipart_find(&m, "file"),
                                   *purpose = mg_multipart_find(&m, "purpose");
    if (!file)
        return mg_fault_set(f, MG_ERR_ARGUMENT, "missing_field", "file",
                            "file: wanted a picture under this name");
    if (file->data.n == 0)
        return mg_fault_set(f, MG_ERR_FORMAT, "image_empty", "file",
                            "file: there are no bytes in it");
    if (file->data.n > max_bytes)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", "file", "file: more than %zu bytes",
                            max_bytes);
    if (purpose && purpose->data.n >= sizeof out->purpose)
        return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "purpose", "purpose: too long");
    status = read_seconds(&m, &out->seconds, f);
    if (status != MG_OK) return status;
    out->data = file->data;
    clean_name(file->filename, "upload", out->filename, sizeof out->filename);
    clean_name(purpose ? purpose->data : (struct mg_slice){0}, "vision", out->purpose,
               sizeof out->purpose);
    return MG_OK;
}
