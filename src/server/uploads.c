/* server/uploads.c - POST /v1/files: a picture sent once and asked about many times.
 *
 * Files are in memory, for a day unless asked for less or more, each its tenant's alone; when their
 * bytes are more than the budget, or they are more than MOST_FILES (the list is searched by the
 * loop thread), the oldest go. The id is random, 128 bits.
 */
#include "api/multipart.h"
#include "api/server_reply.h"
#include "server/internal.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT_SECONDS = 86400, MOST_FILES = 4096 };

static void free_upload(struct uploads *u, struct upload **at) {
    struct upload *gone = *at;
    *at = gone->next;
    if (!gone->next) u->last = at;
    u->n--;
    u->bytes -= gone->n;
    free(gone->data);
    free(gone);
}

void uploads_free(struct uploads *u) {
    while (u->first) free_upload(u, &u->first);
}

static void drop_expired(struct uploads *u) {
    int64_t now = unix_seconds();
    for (struct upload **at = &u->first; *at;)
        if ((*at)->expires <= now)
            free_upload(u, at);
        else
            at = &(*at)->next;
}

/* Makes room for one more of n bytes: the oldest go. */
static void make_room(struct uploads *u, size_t n) {
    while (u->first && (u->bytes + n > u->budget || u->n >= MOST_FILES)) free_upload(u, &u->first);
}

static void add(struct uploads *u, struct upload *new) {
    *(u->last ? u->last : &u->first) = new;
    u->last = &new->next;
    u->n++;
    u->bytes += new->n;
}

static struct upload **find(struct uploads *u, const uint8_t *tenant, const char *id) {
    drop_expired(u);
    struct upload **at = &u->first;
    while (*at &&
           (strcmp((*at)->id, id) != 0 || memcmp((*at)->tenant, tenant, MG_TENANT_BYTES) != 0))
        at = &(*at)->next;
    return at;
}

const struct upload *upload_find(struct uploads *u, const uint8_t *tenant, const char *id) {
    return *find(u, tenant, id);
}

static struct mg_upload_reply describe(const struct upload *u) {
    return (struct mg_upload_reply){.id = u->id,
                                    .bytes = u->n,
                                    .created = u->created,
                                    .expires = u->expires,
                                    .filename = u->filename,
                                    .purpose = u->purpose};
}

void route_files_post(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_slice body = mg_http_body(x);
    struct mg_upload in;
    struct mg_fault f = {0};
    const char *type = mg_http_header(x, "Content-Type");
    size_t most = mg_min_size(s->facts.max_image_bytes, s->uploads.budget);
    if (mg_upload_parse(type ? type : "", body.data, body.n, most, &in, &f) != MG_OK) {
        reply_fault(x, &f);
        return;
    }
    struct upload *u = calloc(1, sizeof *u);
    uint8_t *data = malloc(in.data.n);
    if (!u || !data) {
        free(u);
        free(data);
        mg_fault_memory(&f, "upload");
        reply_fault(x, &f);
        return;
    }
    drop_expired(&s->uploads);
    make_room(&s->uploads, in.data.n);
    memcpy(data, in.data.data, in.data.n);
    u->data = data;
    u->n = in.data.n;
    memcpy(u->id, "file-", 5);
    random_digits(u->id + 5, 32);
    server_tenant(s, x, u->tenant);
    u->created = unix_seconds();
    u->expires = u->created + (in.seconds ? in.seconds : KEPT_SECONDS);
    memcpy(u->filename, in.filename, sizeof u->filename);
    memcpy(u->purpose, in.purpose, sizeof u->purpose);
    add(&s->uploads, u);
    struct mg_buf out = {0};
    struct mg_upload_reply reply = describe(u);
    reply_json(x, &out, mg_upload_write(&out, &reply));
}

void route_files_list(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    uint8_t tenant[MG_TENANT_BYTES];
    server_tenant(s, x, tenant);
    drop_expired(&s->uploads);
    size_t n = s->uploads.n, at = n;
    struct mg_upload_reply *list = mg_alloc(n, sizeof *list);
    struct mg_buf out = {0};
    for (const struct upload *u = s->uploads.first; list && u; u = u->next) /* newest first */
        if (memcmp(u->tenant, tenant, sizeof tenant) == 0) list[--at] = describe(u);
    reply_json(x, &out, list && mg_uploads_write(&out, list + at, n - at));
    free(list);
}

/* The upload that the path names; NULL: replied that there is none. */
static struct upload **of_path(struct mg_http_exchange *x, struct mg_server *s) {
    uint8_t tenant[MG_TENANT_BYTES];
    const char *id = mg_http_param(x, "id");
    server_tenant(s, x, tenant);
    struct upload **u = find(&s->uploads, tenant, id ? id : "");
    if (*u) return u;
    reply_err(x, MG_ERR_NOT_FOUND, "file_not_found", "there is no such file (any more)");
    return NULL;
}

void route_file_get(struct mg_http_exchange *x, void *user) {
    struct upload **u = of_path(x, user);
    if (!u) return;
    struct mg_upload_reply reply = describe(*u);
    struct mg_buf out = {0};
    reply_json(x, &out, mg_upload_write(&out, &reply));
}

void route_file_content(struct mg_http_exchange *x, void *user) {
    struct upload **u = of_path(x, user);
    if (!u) return;
    mg_http_add_field(x, "X-Content-Type-Options", "nosniff");
    mg_http_add_field(x, "Content-Disposition", "attachment");
    mg_http_reply(x, 200, "application/octet-stream", (*u)->data, (*u)->n);
}

void route_file_delete(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct upload **u = of_path(x, s);
    if (!u) return;
    struct mg_buf out = {0};
    bool ok = mg_upload_deleted_write(&out, (*u)->id);
    free_upload(&s->uploads, u);
    reply_json(x, &out, ok);
}
