/* cli/load_prepare.c - before a run of margay load: who is asked (GET /v1/models where no model was
 * named), pictures uploaded (POST /v1/files), the requests' frame made. See load_call.h.
 */
#include "cli/load_call.h"

#include "base/io.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define MAX_REPLY ((size_t)4 << 20)

/* A request that is waited for. */
struct fetch {
    struct event_base *base;
    struct mg_buf body;
    enum mg_load_kind kind;
    int status;
    bool over, reusable;
};

static bool on_body(struct mg_load_link *link, const uint8_t *data, size_t n) {
    struct fetch *f = link->user;
    return mg_buf_add(&f->body, data, n);
}

static void on_ended(struct mg_load_link *link, enum mg_load_kind kind, const char *code,
                     bool reusable) {
    struct fetch *f = link->user;
    (void)code;
    f->kind = kind;
    f->status = link->response.status;
    f->over = true;
    f->reusable = reusable;
    event_base_loopbreak(f->base);
}

static void on_gone(struct mg_load_link *link) {
    struct fetch *f = link->user;
    f->reusable = false;
}

static const struct mg_load_link_owner owner = {on_body, on_ended, on_gone};

static void on_timeout(evutil_socket_t fd, short what, void *arg) {
    struct fetch *f = arg;
    (void)fd, (void)what;
    f->kind = MG_LOAD_TIMEOUT;
    f->over = true;
    event_base_loopbreak(f->base);
}

/* One request on a connection of its own; f->body is the caller's to free. */
static enum mg_status fetch(struct mg_load_plan *p, struct event_base *base, mg_tls_context *tls,
                            const char *method, const char *path, const char *type,
                            const struct mg_buf *body, struct fetch *f, struct mg_err *err) {
    *f = (struct fetch){.base = base, .body = {.max = MAX_REPLY}};
    struct mg_buf head = {0};
    struct mg_slice piece = {0};
    if (body) piece = (struct mg_slice){body->data, body->n};
    struct event *timer = event_new(base, -1, EV_TIMEOUT, on_timeout, f);
    struct mg_load_link *link = mg_load_link_open(base, p, tls, &owner);
    if (link) link->user = f;
    bool ok = timer && link && mg_load_head(p, method, path, 0, type, piece.n, &head) &&
              mg_load_link_send(link, &head, &piece, 1);
    struct timeval tv = {.tv_sec = (time_t)p->timeout,
                         .tv_usec = (suseconds_t)((p->timeout - (double)(time_t)p->timeout) * 1e6)};
    if (ok) event_add(timer, &tv);
    while (ok && !f->over && event_base_dispatch(base) == 0) continue;
    mg_load_link_close(link);
    if (timer) event_free(timer);
    mg_buf_free(&head);
    if (!ok) return mg_fail_memory(err, "request");
    if (f->kind == MG_LOAD_OK && f->status != 401 && f->status != 403) return MG_OK;
    const char *host = p->host_field;
    if (f->kind == MG_LOAD_OK)
        return mg_fail(err, MG_ERR_ARGUMENT, "api_key", "%s refuses %s (%d)%s", host, path,
                       f->status,
                       p->n_key ? ": the API key may not" : ": it wants an API key (--api-key)");
    return mg_fail(err, MG_ERR_IO, mg_load_kind_name[f->kind], "%s did not answer %s: %s%s", host,
                   path, mg_load_kind_name[f->kind],
                   f->kind == MG_LOAD_TLS ? " (--ca-file, --insecure)" : "");
}

static enum mg_status find_model(struct mg_load_plan *p, struct event_base *base,
                                 mg_tls_context *tls, struct mg_err *err) {
    struct fetch f;
    enum mg_status status = fetch(p, base, tls, "GET", "/models", NULL, NULL, &f, err);
    json_t *root = NULL;
    if (!status && f.status == 200 && f.body.n)
        root = json_loadb((const char *)f.body.data, f.body.n, 0, NULL);
    const json_t *id = json_object_get(json_array_get(json_object_get(root, "data"), 0), "id");
    const char *name = json_string_value(id);
    int n = snprintf(p->model, sizeof p->model, "%s", name ? name : "default");
    if (!status && (n < 0 || n >= (int)sizeof p->model))
        status = mg_fail(err, MG_ERR_LIMIT, "model", "the model's name is too long");
    if (!status && !name)
        mg_log(MG_LOG_WARN,
               "%s does not list its models (status %d); asking for \"default\", "
               "--model says otherwise",
               p->host_field, f.status);
    json_decref(root);
    mg_buf_free(&f.body);
    return status;
}

static enum mg_status upload(struct mg_load_plan *p, struct mg_load_questions *q, size_t i,
                             struct event_base *base, mg_tls_context *tls, struct mg_err *err) {
    struct fetch f = {0};
    struct mg_buf body = {0};
    char type[100];
    enum mg_status status = mg_load_questions_upload(q, i, &body, type, sizeof type, err);
    if (!status) status = fetch(p, base, tls, "POST", "/files", type, &body, &f, err);
    if (!status) {
        json_t *root = f.body.n ? json_loadb((const char *)f.body.data, f.body.n, 0, NULL) : NULL;
        const char *id = json_string_value(json_object_get(root, "id"));
        status = f.status == 200 && id
                     ? mg_load_questions_uploaded(q, i, id, err)
                     : mg_fail(err, MG_ERR_IO, "upload", "%s does not take the upload of %s (%d)",
                               p->host_field, q->name[i], f.status);
        json_decref(root);
    }
    mg_buf_free(&f.body);
    mg_buf_free(&body);
    return status;
}

enum mg_status mg_load_prepare(struct mg_load_plan *p, struct mg_load_questions *q,
                               struct event_base *base, mg_tls_context *tls,
                               struct mg_progress *progress, struct mg_err *err) {
    enum mg_status status = MG_OK;
    if (!*p->model) status = find_model(p, base, tls, err);
    for (size_t i = 0; i < q->n_picture && p->upload && !status; i++) {
        if (progress->tty && progress->on)
            mg_progress_say(progress, "uploading picture %zu of %zu", i + 1, q->n_picture);
        status = upload(p, q, i, base, tls, err);
    }
    return status ? status : mg_load_questions_frame(q, p, err);
}
