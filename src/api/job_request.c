/* api/job_request.c - see job_request.h. Where pictures stand in a message is chat_request.c's
 * knowledge; the keys here are the same. */
#include "api/job_request.h"

#include "api/image_source.h"
#include "api/json_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A string of the body that is replaced. */
struct cut {
    size_t at, n;
    size_t picture;
};

struct reader {
    const struct mg_jdoc *doc;
    struct mg_job_request *out;
    size_t max_bytes;
    struct mg_arena arena;
    struct cut cut[MG_JOB_MAX_PICTURES];
    size_t n_cut;
    struct mg_fault *f;
};

void mg_job_request_free(struct mg_job_request *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_picture; i++) free(r->picture[i].bytes);
    mg_buf_free(&r->body);
    free(r);
}

/* The picture of this name, a new one when there is none; NULL: too many. */
static struct mg_job_picture *picture_of(struct mg_job_request *r, const char *name) {
    for (size_t i = 0; i < r->n_picture; i++)
        if (!strcmp(r->picture[i].name, name)) return &r->picture[i];
    if (r->n_picture == MG_JOB_MAX_PICTURES) return NULL;
    struct mg_job_picture *p = &r->picture[r->n_picture++];
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

/* Bytes of an inline picture; taken over. */
static enum mg_status take_bytes(struct reader *r, const json_t *string,
                                 struct mg_image_source *source) {
    uint8_t digest[MG_SHA256_BYTES];
    char hex[MG_SHA256_HEX], name[48];
    struct cut c;
    if (!mg_jdoc_place(r->doc, string, &c.at, &c.n) || r->n_cut == MG_JOB_MAX_PICTURES)
        return MG_OK; /* short, or more than any server takes: stays where it is */
    if (!mg_sha256(source->bytes, source->n_bytes, digest)) return mg_fault_memory(r->f, "picture");
    mg_hex(digest, sizeof digest, hex);
    snprintf(name, sizeof name, "file-%.32s", hex);
    struct mg_job_picture *p = picture_of(r->out, name);
    if (!p) return MG_OK;
    if (!p->bytes) {
        p->bytes = source->bytes;
        p->n = source->n_bytes;
        memcpy(p->digest, hex, sizeof hex);
        source->bytes = NULL;
        source->n_bytes = 0;
    }
    c.picture = (size_t)(p - r->out->picture);
    r->cut[r->n_cut++] = c;
    return MG_OK;
}

static enum mg_status read_source(struct reader *r, const json_t *string, bool is_id) {
    struct mg_buf scratch = {.max = SIZE_MAX};
    struct mg_slice text = {0};
    struct mg_fault ignored = {0};
    struct mg_image_source source = {0};
    enum mg_status st = MG_OK;
    if (mg_jdoc_bytes(r->doc, string, &scratch, "", &text, &ignored) != MG_OK) goto out;
    const char *s = (const char *)text.data;
    if (is_id) {
        char name[MG_IMAGE_MAX_FILE_ID + 1];
        if (!mg_file_id_valid(s, text.n)) goto out;
        snprintf(name, sizeof name, "%.*s", (int)text.n, s);
        picture_of(r->out, name);
        goto out;
    }
    if (mg_image_source_read(s, text.n, r->max_bytes, &r->arena, "", &source, &ignored) != MG_OK)
        goto out;
    if (source.kind == MG_SOURCE_FILE_ID) picture_of(r->out, source.text);
    if (source.kind == MG_SOURCE_BYTES) st = take_bytes(r, string, &source);
    mg_image_source_drop(&source);
out:
    mg_buf_free(&scratch);
    return st;
}

static enum mg_status read_part(struct reader *r, const json_t *part) {
    static const struct {
        const char *key, *inner;
    } place[] = {{"image_url", "url"},
                 {"image", "url"},
                 {"url", "url"},
                 {"file_id", "file_id"},
                 {"image_file", "file_id"}};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        const json_t *value = mg_jdoc_get(part, place[i].key);
        bool is_id = !strcmp(place[i].inner, "file_id");
        if (!value) continue;
        if (json_is_object(value)) {
            const json_t *inner = mg_jdoc_get(value, place[i].inner);
            if (!inner && !is_id) {
                inner = mg_jdoc_get(value, "file_id");
                is_id = true;
            }
            value = inner;
        }
        return json_is_string(value) ? read_source(r, value, is_id) : MG_OK;
    }
    return MG_OK;
}

static enum mg_status read_messages(struct reader *r) {
    size_t i, k;
    json_t *message, *part;
    json_array_foreach(mg_jdoc_get(r->doc->root, "messages"), i, message) {
        json_array_foreach(mg_jdoc_get(message, "content"), k, part) {
            enum mg_status st = json_is_object(part) ? read_part(r, part) : MG_OK;
            if (st) return st;
        }
    }
    return MG_OK;
}

static int by_place(const void *a, const void *b) {
    const struct cut *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool write_body(struct reader *r, const char *body, size_t n) {
    struct mg_buf *out = &r->out->body;
    size_t at = 0;
    bool ok = true;
    if (r->n_cut) qsort(r->cut, r->n_cut, sizeof *r->cut, by_place);
    out->max = SIZE_MAX;
    for (size_t i = 0; i < r->n_cut && ok; i++) {
        const struct cut *c = &r->cut[i];
        ok = mg_buf_add(out, body + at, c->at - at) && mg_buf_add_str(out, "margay-file:") &&
             mg_buf_add_str(out, r->out->picture[c->picture].name);
        at = c->at + c->n;
    }
    return ok && mg_buf_add(out, body + at, n - at);
}

enum mg_status mg_job_request_parse(const char *body, size_t n, size_t max_bytes,
                                    struct mg_job_request **out, struct mg_fault *f) {
    struct mg_jdoc doc = {0};
    *out = NULL;
    enum mg_status st = mg_jdoc_parse(body, n, &doc, f);
    if (st) return st;
    struct mg_job_request *request = calloc(1, sizeof *request);
    struct reader *r = calloc(1, sizeof *r);
    if (!request || !r) {
        st = mg_fault_memory(f, "request");
    } else {
        *r = (struct reader){.doc = &doc, .out = request, .max_bytes = max_bytes, .f = f};
        request->stream = json_is_true(mg_jdoc_get(doc.root, "stream"));
        st = read_messages(r);
        if (!st && !write_body(r, body, n)) st = mg_fault_memory(f, "request");
        mg_arena_free(&r->arena);
    }
    mg_jdoc_free(&doc);
    free(r);
    if (st)
        mg_job_request_free(request);
    else
        *out = request;
    return st;
}
