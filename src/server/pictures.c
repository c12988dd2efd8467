/* server/pictures.c - where a request's pictures come from, and what is never opened.
 *
 * file: URLs name files below the media folder, which is opened once; the kernel keeps the rest
 * beneath it (openat2 without symbolic links), and only regular files are read. Remote pictures
 * come from allowed hosts only (net/remote.h). Errors are fixed sentences: they say nothing about
 * what exists.
 */
#include "server/internal.h"
#include "server/puller.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOW_DETAIL_TOKENS 169 /* as --detail low */

struct mg_image_want picture_want(const struct mg_server *s, const struct mg_image_wish *wish,
                                  bool fast) {
    uint64_t side = (uint64_t)s->facts.patch * s->facts.merge, cell = side * side;
    struct mg_image_want want = {.min_pixels = wish->min_pixels,
                                 .max_pixels = wish->max_pixels,
                                 .prune_set = wish->prune_set,
                                 .prune = wish->prune,
                                 .near = wish->prune_near};
    bool low = wish->detail == MG_DETAIL_LOW || (fast && wish->detail == MG_DETAIL_AUTO);
    if (low && !want.max_pixels) want.max_pixels = LOW_DETAIL_TOKENS * cell;
    want.model_limits = wish->detail == MG_DETAIL_HIGH || wish->detail == MG_DETAIL_ORIGINAL;
    return want;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The path of file:///path, file://path or file:path, decoded and relative. */
static bool media_name(const struct mg_server *s, const char *url, char *out, size_t cap) {
    const char *p = url + strlen("file:");
    if (p[0] == '/' && p[1] == '/') p += 2;
    size_t n = 0, root = strlen(s->o.media_path);
    for (; *p && n + 1 < cap; p++) {
        int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        if (*p == '%' && low < 0) return false;
        int c = *p == '%' ? high << 4 | low : (unsigned char)*p;
        if (*p == '%') p += 2;
        if (c == 0) return false;
        out[n++] = (char)c;
    }
    if (*p) return false;
    out[n] = 0;
    while (root && s->o.media_path[root - 1] == '/') root--;
    size_t skip = 0;
    if (out[0] == '/' && strncmp(out, s->o.media_path, root) == 0 && out[root] == '/') skip = root;
    while (out[skip] == '/') skip++;
    memmove(out, out + skip, n - skip + 1);
    return out[0] != 0;
}

enum mg_status picture_from_media(const struct mg_server *s, const char *url, struct mg_buf *out,
                                  struct mg_err *err) {
    if (s->media_fd < 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "image_source",
                       "pictures by file: are not allowed on this server (--media-path)");
    char name[4096];
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    struct stat st;
    int fd = -1;
    if (media_name(s, url, name, sizeof name))
        fd = (int)syscall(SYS_openat2, s->media_fd, name, &how, sizeof how);
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
    bool large = ok && (uint64_t)st.st_size > s->facts.max_image_bytes;
    size_t n = ok && !large ? (size_t)st.st_size : 0, got = 0;
    if (n && !mg_buf_reserve(out, n)) {
        close(fd);
        return mg_fail_memory(err, "picture");
    }
    while (got < n) {
        uint8_t piece[65536];
        ssize_t r = read(fd, piece, mg_min_size(sizeof piece, n - got));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0 || !mg_buf_add(out, piece, (size_t)r)) break;
        got += (size_t)r;
    }
    if (fd >= 0) close(fd);
    if (large)
        return mg_fail(err, MG_ERR_LIMIT, "image_too_large",
                       "the picture's file has over %zu bytes", s->facts.max_image_bytes);
    if (!ok || got < n)
        return mg_fail(err, MG_ERR_ARGUMENT, "image_source",
                       "there is no such picture file below the media folder");
    return MG_OK;
}

size_t pictures_most(const struct mg_server *s) {
    return mg_max_size(s->o.max_body, s->facts.max_image_bytes);
}

enum mg_status pictures_hold(struct ask *a, size_t n, const char *param, struct mg_fault *f) {
    size_t most = pictures_most(a->s);
    if (n > most - a->held)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", param,
                            "the question's pictures together have over %zu bytes", most);
    a->held += n;
    return MG_OK;
}

/* --- remote pictures --- */
struct fetched {
    struct ask *a; /* a reference */
    struct mg_image_source *source;
    size_t i; /* of a->fetch */
    struct mg_err err;
    uint8_t *data;
    size_t n;
    size_t message, part;
};

static void on_loop(void *arg) {
    struct fetched *f = arg;
    struct ask *a = f->a;
    char param[MG_PARAM_BYTES];
    a->fetch[f->i] = 0;
    snprintf(param, sizeof param, "messages[%zu].content[%zu].image_url", f->message, f->part);
    if (a->fetch_fault.err.status != MG_OK) {
        /* the question is lost already */
    } else if (f->err.status == MG_ERR_MEMORY) {
        mg_fault_memory(&a->fetch_fault, "picture");
    } else if (f->err.status != MG_OK) {
        mg_fault_set(&a->fetch_fault, MG_ERR_ARGUMENT, "image_fetch", param,
                     "the picture could not be fetched: %s", f->err.text);
    } else if (pictures_hold(a, f->n, param, &a->fetch_fault) == MG_OK) {
        f->source->kind = MG_SOURCE_BYTES;
        f->source->bytes = f->data;
        f->source->n_bytes = f->n;
        f->data = NULL;
    }
    free(f->data);
    free(f);
    a->n_fetch--;
    if (!a->n_fetch) ask_begin(a);
    ask_unref(a);
}

static void on_fetched(const struct mg_err *err, const uint8_t *data, size_t n, void *arg) {
    struct fetched *f = arg;
    f->err = *err;
    if (err->status == MG_OK) {
        f->data = malloc(n ? n : 1);
        f->n = n;
        if (f->data)
            memcpy(f->data, data, n);
        else
            mg_fail_memory(&f->err, "picture");
    }
    if (mg_http_server_post(f->a->s->http, on_loop, f) != MG_OK) {
        /* Only when a great many functions wait: the question stays unanswered until its client
         * leaves. The reference is kept, the bytes are not. */
        free(f->data);
        free(f);
    }
}

static enum mg_status fetch(struct ask *a, struct mg_image_source *source, size_t message,
                            size_t part, size_t i, struct mg_fault *f) {
    char param[MG_PARAM_BYTES];
    snprintf(param, sizeof param, "messages[%zu].content[%zu].image_url", message, part);
    if (!a->s->remote)
        return mg_fault_set(f, MG_ERR_ARGUMENT, "image_source", param,
                            "pictures by URL are not allowed on this server "
                            "(--allowed-media-domains); send the picture itself as a data URL");
    struct fetched *to = calloc(1, sizeof *to);
    if (!to) return mg_fault_memory(f, "picture");
    *to = (struct fetched){.a = a, .source = source, .i = i, .message = message, .part = part};
    struct mg_err err = {0};
    atomic_fetch_add(&a->refs, 1);
    a->n_fetch++;
    if (mg_remote_fetch(a->s->remote, source->text, on_fetched, to, &a->fetch[i], &err) == MG_OK)
        return MG_OK;
    a->n_fetch--;
    atomic_fetch_sub(&a->refs, 1); /* the exchange has one too */
    free(to);
    bool busy = err.status == MG_ERR_LIMIT && strcmp(err.code, "busy") == 0;
    bool forbidden = strcmp(err.code, "host_not_allowed") == 0; /* the server's choice */
    const char *code = busy ? "queue_full" : forbidden ? "host_not_allowed" : "image_fetch";
    return mg_fault_set(f, busy ? MG_ERR_LIMIT : MG_ERR_ARGUMENT, code, param,
                        "the picture could not be fetched: %s", err.text);
}

void count_bad_picture(const struct ask *a, const void *bytes, size_t n, const char *code) {
    const char *outcome = strcmp(code, "image_truncated") == 0            ? "truncated"
                          : strcmp(code, "image_damaged") == 0            ? "damaged"
                          : strcmp(code, "image_too_large") == 0          ? "too_large"
                          : strcmp(code, "image_format_unsupported") == 0 ? "unsupported"
                                                                          : "other";
    const char *format = mg_engine_image_format(bytes, n);
    mg_metrics_add_at(a->s->metrics, MG_M_IMAGES, 1, mg_metrics_label(MG_M_IMAGES, 0, format),
                      mg_metrics_label(MG_M_IMAGES, 1, outcome), 0);
}

/* What its header tells is told before any stream begins. */
static enum mg_status check(const struct ask *a, const struct mg_chat_part *part, size_t message,
                            size_t at, struct mg_fault *f) {
    struct mg_image_want want = picture_want(a->s, &part->wish, a->common->fast);
    struct mg_err err = {0};
    enum mg_status status =
        mg_engine_check_image(a->s->engine, part->source.bytes, part->source.n_bytes, &want, &err);
    char param[MG_PARAM_BYTES];
    if (status == MG_OK) return MG_OK;
    count_bad_picture(a, part->source.bytes, part->source.n_bytes, err.code);
    snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, at);
    mg_err_prefix(&err, "%s", param);
    return mg_fault_set(f, status, err.code, param, "%s", err.text);
}

enum mg_status pictures_resolve(struct ask *a, struct mg_fault *f) {
    struct mg_chat_request *r = a->chat;
    if (!r) return MG_OK;
    a->fetch = mg_alloc_zero(r->n_image, sizeof *a->fetch);
    if (!a->fetch) return mg_fault_memory(f, "pictures");
    for (size_t m = 0, i = 0; m < r->n_message; m++)
        for (size_t p = 0; p < r->message[m].n_part; p++) {
            struct mg_chat_part *part = &r->message[m].part[p];
            if (part->kind != MG_CHAT_IMAGE) continue;
            struct mg_image_source *source = &part->source;
            enum mg_status status = MG_OK;
            if (source->kind == MG_SOURCE_URL) status = fetch(a, source, m, p, i, f);
            if (source->kind == MG_SOURCE_FILE_ID) {
                if (a->job[0] && puller_lend(a->s->puller, a->job, source->text, source)) {
                    status = check(a, part, m, p, f);
                    if (status != MG_OK) return status;
                    i++;
                    continue;
                }
                const struct upload *u = upload_find(&a->s->uploads, a->tenant, source->text);
                char param[MG_PARAM_BYTES];
                snprintf(param, sizeof param, "messages[%zu].content[%zu].file_id", m, p);
                if (!u)
                    status = mg_fault_set(f, MG_ERR_NOT_FOUND, "file_not_found", param,
                                          "there is no such uploaded file (any more)");
                else
                    status = pictures_hold(a, u->bytes->n, param, f);
                if (status == MG_OK) upload_lend(u, source);
            }
            if (status == MG_OK && source->kind == MG_SOURCE_BYTES)
                status = check(a, part, m, p, f);
            if (status != MG_OK) return status;
            i++;
        }
    return MG_OK;
}
