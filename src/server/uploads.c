/* server/uploads.c - POST /v1/files: a picture sent once and asked about many times.
 *
 * Files are in memory, for a day unless asked for less or more, each its tenant's alone; when they
 * are more than the budget the oldest go, of the tenant that has most. Who asks about one uses its
 * bytes without a copy, and they count until nobody does. The id is random, 128 bits.
 */
#include "api/multipart.h"
#include "api/server_reply.h"
#include "server/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEPT_SECONDS = 86400,
    LEAST_BYTES = 64 << 10, /* that a file counts as: bounds how many there are */
    TENANTS = 64            /* whose shares are told apart */
};

/* --- bytes; any thread --- */
static size_t cost(size_t n) {
    return mg_max_size(n, LEAST_BYTES);
}

static void unref(void *shared) {
    struct upload_bytes *b = shared;
    if (atomic_fetch_sub(&b->refs, 1) != 1) return;
    if (b->held) atomic_fetch_sub(b->held, cost(b->n));
    free(b);
}

void upload_lend(const struct upload *u, struct mg_image_source *to) {
    atomic_fetch_add(&u->bytes->refs, 1);
    to->kind = MG_SOURCE_BYTES;
    to->bytes = u->bytes->data;
    to->n_bytes = u->bytes->n;
    to->release = unref;
    to->shared = u->bytes;
}

void upload_drop(struct upload *u) {
    if (!u) return;
    if (u->bytes) unref(u->bytes);
    free(u);
}

struct upload *upload_share(const struct upload *u) {
    struct upload *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *u;
    copy->next = NULL;
    atomic_fetch_add(&copy->bytes->refs, 1);
    return copy;
}

/* --- the list --- */
static void remove_upload(struct upload **at) {
    struct upload *gone = *at;
    *at = gone->next;
    upload_drop(gone);
}

void uploads_free(struct uploads *u) {
    while (u->first) remove_upload(&u->first);
}

static void drop_expired(struct uploads *u) {
    double now = mg_clock();
    for (struct upload **at = &u->first; *at;)
        if ((*at)->until <= now)
            remove_upload(at);
        else
            at = &(*at)->next;
}

/* The oldest that nobody uses of the tenant that has most, this one's with n bytes more; NULL:
 * there is none. */
static struct upload **to_go(struct uploads *u, const uint8_t *tenant, size_t n) {
    struct {
        const uint8_t *tenant;
        struct upload **oldest;
        size_t bytes;
    } share[TENANTS] = {{tenant, NULL, n}};
    size_t n_share = 1, most = 0;
    struct upload **first = NULL;
    for (struct upload **at = &u->first; *at; at = &(*at)->next) {
        size_t i = 0;
        bool unused = atomic_load(&(*at)->bytes->refs) == 1;
        if (unused && !first) first = at;
        while (i < n_share && memcmp(share[i].tenant, (*at)->tenant, MG_TENANT_BYTES) != 0) i++;
        if (i == TENANTS) continue;
        if (i == n_share) {
            n_share++;
            share[i].tenant = (*at)->tenant;
            share[i].oldest = NULL;
            share[i].bytes = 0;
        }
        if (unused && !share[i].oldest) share[i].oldest = at;
        share[i].bytes += cost((*at)->bytes->n);
    }
    for (size_t i = 0; i < n_share; i++)
        if (share[i].oldest && (!share[most].oldest || share[i].bytes > share[most].bytes))
            most = i;
    return share[most].oldest ? share[most].oldest : first;
}

/* Makes room for n bytes; false: what is in use leaves none. */
static bool make_room(struct uploads *u, const uint8_t *tenant, size_t n) {
    struct upload **at;
    while (atomic_load(&u->held) + n > u->budget && (at = to_go(u, tenant, n)) != NULL)
        remove_upload(at);
    return atomic_load(&u->held) + n <= u->budget;
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

/* --- routes --- */
static struct mg_upload_reply describe(const struct upload *u) {
    return (struct mg_upload_reply){.id = u->id,
                                    .bytes = u->bytes->n,
                                    .created = u->created,
                                    .expires = u->expires,
                                    .filename = u->filename,
                                    .purpose = u->purpose};
}

static void read_upload(struct work *w) {
    struct mg_upload in;
    size_t most = mg_min_size(w->s->facts.max_image_bytes, w->s->uploads.budget);
    if (mg_upload_parse(w->type, w->body.data, w->body.n, most, &in, &w->f) != MG_OK) return;
    struct upload *u = calloc(1, sizeof *u);
    if (u) u->bytes = malloc(sizeof *u->bytes + in.data.n);
    if (!u || !u->bytes) {
        free(u);
        mg_fault_memory(&w->f, "upload");
        return;
    }
    atomic_init(&u->bytes->refs, 1);
    u->bytes->n = in.data.n;
    u->bytes->held = NULL;
    memcpy(u->bytes->data, in.data.data, in.data.n);
    u->created = unix_seconds();
    int64_t seconds = in.seconds ? in.seconds : KEPT_SECONDS;
    u->expires = u->created + seconds;
    u->until = mg_clock() + (double)seconds;
    memcpy(u->filename, in.filename, sizeof u->filename);
    memcpy(u->purpose, in.purpose, sizeof u->purpose);
    w->upload = u;
}

static void upload_was_read(struct work *w, struct mg_http_exchange *x) {
    struct mg_server *s = w->s;
    struct upload *u = w->upload;
    if (!u) {
        reply_fault(x, &w->f);
        return;
    }
    memcpy(u->id, "file-", 5);
    random_digits(u->id + 5, 32);
    server_tenant(s, x, u->tenant);
    drop_expired(&s->uploads);
    if (!make_room(&s->uploads, u->tenant, cost(u->bytes->n))) {
        reply_err(x, MG_ERR_LIMIT, "busy", "the files that are in use leave no room for this one");
        return;
    }
    w->upload = NULL;
    u->bytes->held = &s->uploads.held;
    atomic_fetch_add(&s->uploads.held, cost(u->bytes->n));
    struct upload **at = &s->uploads.first;
    while (*at) at = &(*at)->next;
    *at = u;
    struct mg_buf out = {0};
    struct mg_upload_reply reply = describe(u);
    reply_json(x, &out, mg_upload_write(&out, &reply));
}

void route_files_post(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, read_upload, upload_was_read);
}

void route_files_list(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    uint8_t tenant[MG_TENANT_BYTES];
    size_t n = 0;
    server_tenant(s, x, tenant);
    drop_expired(&s->uploads);
    for (const struct upload *u = s->uploads.first; u; u = u->next) n++;
    struct mg_upload_reply *list = mg_alloc(n, sizeof *list);
    struct mg_buf out = {0};
    size_t at = n; /* the newest first */
    for (const struct upload *u = s->uploads.first; list && u; u = u->next)
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

static void was_sent(const void *data, size_t n, void *bytes) {
    (void)data, (void)n;
    unref(bytes);
}

void route_file_content(struct mg_http_exchange *x, void *user) {
    struct upload **u = of_path(x, user);
    if (!u) return;
    mg_http_add_field(x, "X-Content-Type-Options", "nosniff");
    mg_http_add_field(x, "Content-Disposition", "attachment");
    struct upload_bytes *b = (*u)->bytes;
    atomic_fetch_add(&b->refs, 1);
    mg_http_reply_view(x, 200, "application/octet-stream", b->data, b->n, was_sent, b);
}

void route_file_delete(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct upload **u = of_path(x, s);
    if (!u) return;
    struct mg_buf out = {0};
    bool ok = mg_upload_deleted_write(&out, (*u)->id);
    remove_upload(u);
    reply_json(x, &out, ok);
}
