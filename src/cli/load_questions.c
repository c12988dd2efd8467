/* cli/load_questions.c - what margay load asks: pictures and questions read once, as the pieces of
 * JSON that all requests share (load.h).
 *
 *     {"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"   head
 *     data:image/png;base64,...                                                         picture
 *     "}},{"type":"text","text":"                                                       middle
 *     What is it?                                                                       question
 *     "}]}],"model":...,"max_tokens":...,"stream":true,...}                             tail
 */
#include "cli/load.h"

#include "base/base64.h"
#include "base/io.h"
#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_PICTURES 100000
#define MAX_PICTURE_BYTES ((size_t)256 << 20)
#define MAX_ALL_BYTES ((size_t)4 << 30) /* of all pictures as text */
#define MAX_QUESTIONS 1000000
#define MAX_QUESTIONS_BYTES ((size_t)256 << 20)
static const char default_question[] = "What is in this picture?";
static const char default_bare[] = "Write a few sentences about the sea.";

static void take_text(struct mg_load_text *out, struct mg_buf *from) {
    *out = (struct mg_load_text){(char *)from->data, from->n};
    *from = (struct mg_buf){0};
}

/* The text as JSON without its quotes. */
static bool quoted(struct mg_load_text *out, const char *text, size_t n) {
    struct mg_buf b = {0};
    struct mg_json j = {.out = &b};
    mg_json_string(&j, text, n);
    if (b.failed) {
        mg_buf_free(&b);
        return false;
    }
    memmove(b.data, b.data + 1, b.n - 1);
    b.n -= 2;
    take_text(out, &b);
    return true;
}

static bool grow(void **list, size_t n, size_t size) {
    if (n & (n - 1)) return true; /* room is doubled at powers of two */
    void *grown = mg_realloc(*list, n ? 2 * n : 1, size);
    if (!grown) return false;
    *list = grown;
    return true;
}

static const char *mime_of(const uint8_t *data, size_t n) {
    switch (mg_image_sniff(data, n)) {
    case MG_IMAGE_JPEG: return "image/jpeg";
    case MG_IMAGE_PNG: return "image/png";
    case MG_IMAGE_WEBP: return "image/webp";
    case MG_IMAGE_GIF: return "image/gif";
    case MG_IMAGE_BMP: return "image/bmp";
    case MG_IMAGE_HEIC: return "image/heic";
    case MG_IMAGE_AVIF: return "image/avif";
    default: return NULL;
    }
}

static bool data_url(struct mg_load_text *out, const char *mime, const struct mg_buf *file) {
    struct mg_buf b = {.max = SIZE_MAX};
    size_t length = mg_base64_length(file->n);
    mg_buf_printf(&b, "data:%s;base64,", mime);
    if (!mg_buf_reserve(&b, length)) {
        mg_buf_free(&b);
        return false;
    }
    mg_base64_encode(file->data, file->n, (char *)b.data + b.n);
    b.n += length;
    take_text(out, &b);
    return true;
}

/* Reads one file of the folder; no picture is no error. *total: bytes of text so far. */
static enum mg_status add_picture(struct mg_load_questions *q, const struct mg_load_plan *p,
                                  const char *name, size_t *total, struct mg_err *err) {
    char path[4096];
    struct stat st;
    struct mg_buf file = {.max = MAX_PICTURE_BYTES};
    if (name[0] == '.' || mg_path_join(path, sizeof path, p->pictures, name, NULL) ||
        stat(path, &st) || !S_ISREG(st.st_mode))
        return MG_OK;
    enum mg_status status = mg_file_read(path, MAX_PICTURE_BYTES, &file, err);
    const char *mime = status || !file.n ? NULL : mime_of(file.data, file.n);
    if (status || !mime) {
        mg_buf_free(&file);
        return status;
    }
    *total += mg_base64_length(file.n);
    if (q->n_picture == MAX_PICTURES || *total > MAX_ALL_BYTES)
        status = mg_fail(err, MG_ERR_LIMIT, "pictures",
                         "%s has more than %d pictures, or more than 4 GB of them", p->pictures,
                         MAX_PICTURES);
    size_t i = q->n_picture;
    bool ok = !status && grow((void **)&q->picture, i, sizeof *q->picture) &&
              grow((void **)&q->name, i, sizeof *q->name) &&
              grow((void **)&q->file, i, sizeof *q->file);
    if (ok) {
        q->picture[i] = q->file[i] = (struct mg_load_text){0};
        q->name[i] = strdup(name);
        q->n_picture++;
        ok = q->name[i] != NULL;
        if (ok && p->upload)
            take_text(&q->file[i], &file);
        else if (ok)
            ok = data_url(&q->picture[i], mime, &file);
    }
    mg_buf_free(&file);
    return status ? status : ok ? MG_OK : mg_fail_memory(err, "pictures");
}

static enum mg_status read_pictures(struct mg_load_questions *q, const struct mg_load_plan *p,
                                    struct mg_err *err) {
    struct dirent **entry = NULL;
    int n = scandir(p->pictures, &entry, NULL, alphasort);
    if (n < 0) return mg_fail_errno(err, "read the folder", p->pictures, errno);
    enum mg_status status = MG_OK;
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        if (!status) status = add_picture(q, p, entry[i]->d_name, &total, err);
        free(entry[i]);
    }
    free(entry);
    if (!status && !q->n_picture)
        status = mg_fail(err, MG_ERR_NOT_FOUND, "no_pictures", "no picture in %s", p->pictures);
    return status;
}

static enum mg_status add_question(struct mg_load_questions *q, const char *text, size_t n,
                                   struct mg_err *err) {
    if (q->n_question == MAX_QUESTIONS)
        return mg_fail(err, MG_ERR_LIMIT, "questions", "more than %d questions", MAX_QUESTIONS);
    if (!grow((void **)&q->question, q->n_question, sizeof *q->question) ||
        !quoted(&q->question[q->n_question], text, n))
        return mg_fail_memory(err, "questions");
    q->n_question++;
    return MG_OK;
}

/* A question a line; empty lines don't count. */
static enum mg_status read_questions(struct mg_load_questions *q, const char *path,
                                     struct mg_err *err) {
    struct mg_buf text = {.max = MAX_QUESTIONS_BYTES};
    enum mg_status status = mg_file_read(path, MAX_QUESTIONS_BYTES, &text, err);
    for (size_t at = 0; at < text.n && !status;) {
        const char *line = (const char *)text.data + at;
        const char *end = memchr(line, '\n', text.n - at);
        size_t n = end ? (size_t)(end - line) : text.n - at;
        at += n + 1;
        while (n && strchr(" \t\r", line[n - 1])) n--;
        if (n) status = add_question(q, line, n, err);
    }
    mg_buf_free(&text);
    if (!status && !q->n_question)
        status = mg_fail(err, MG_ERR_FORMAT, "questions", "no question in %s", path);
    return status;
}

enum mg_status mg_load_questions_open(struct mg_load_questions *q, const struct mg_load_plan *p,
                                      struct mg_err *err) {
    *q = (struct mg_load_questions){0};
    enum mg_status status = p->pictures ? read_pictures(q, p, err) : MG_OK;
    if (status) return status;
    if (p->questions) return read_questions(q, p->questions, err);
    const char *text = p->question ? p->question : p->pictures ? default_question : default_bare;
    return add_question(q, text, strlen(text), err);
}

/* The members of the body but messages, with those of --extra in place of ours. */
static json_t *members(const struct mg_load_plan *p, struct mg_err *err) {
    json_error_t fault;
    json_t *o = json_object(), *extra = NULL;
    bool ok = o && !json_object_set_new(o, "model", json_string(p->model)) &&
              !json_object_set_new(o, "max_tokens", json_integer(p->max_tokens)) &&
              !json_object_set_new(o, "stream", json_boolean(p->stream)) &&
              (!p->stream ||
               !json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1)));
    if (ok && p->extra) {
        extra = json_loads(p->extra, JSON_REJECT_DUPLICATES, &fault);
        if (!json_is_object(extra) || json_object_get(extra, "messages") ||
            json_object_get(extra, "stream")) {
            mg_fail(err, MG_ERR_ARGUMENT, "usage",
                    "--extra is a JSON object without \"messages\" and \"stream\"%s%.100s",
                    extra ? "" : ": ", extra ? "" : fault.text);
            json_decref(extra);
            json_decref(o);
            return NULL;
        }
        const char *key;
        json_t *value;
        json_object_foreach(extra, key, value) {
            if (json_is_null(value))
                json_object_del(o, key);
            else
                ok = ok && !json_object_set(o, key, value);
        }
        json_decref(extra);
    }
    if (ok) return o;
    json_decref(o);
    mg_fail_memory(err, "request");
    return NULL;
}

static bool set(struct mg_load_text *out, const char *text) {
    free(out->data);
    out->data = strdup(text);
    out->n = out->data ? strlen(text) : 0;
    return out->data != NULL;
}

enum mg_status mg_load_questions_frame(struct mg_load_questions *q, const struct mg_load_plan *p,
                                       struct mg_err *err) {
    json_t *o = members(p, err);
    if (!o) return err->status;
    struct mg_buf tail = {0};
    char *text = json_dumps(o, JSON_COMPACT);
    size_t n = text ? strlen(text) : 0;
    json_decref(o);
    if (n > 2) { /* "{...}" without its first brace; "{}" has nothing to tell */
        mg_buf_add_str(&tail, "\"}]}],");
        mg_buf_add_str(&tail, text + 1);
    } else {
        mg_buf_add_str(&tail, "\"}]}]}");
    }
    free(text);
    bool ok = n && !tail.failed &&
              set(&q->head, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                            "\"image_url\",\"image_url\":{\"url\":\"") &&
              set(&q->middle, "\"}},{\"type\":\"text\",\"text\":\"") &&
              set(&q->head_bare, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                                 "\"text\",\"text\":\"");
    free(q->tail.data);
    take_text(&q->tail, &tail);
    return ok ? MG_OK : mg_fail_memory(err, "request");
}

enum mg_status mg_load_questions_upload(const struct mg_load_questions *q, size_t i,
                                        struct mg_buf *body, char *type, size_t cap,
                                        struct mg_err *err) {
    const struct mg_load_text *file = &q->file[i];
    char mark[48];
    /* A mark that the file does not hold; the first one will nearly always do. */
    for (unsigned k = 0;; k++) {
        snprintf(mark, sizeof mark, "margay-load-%08x", 0x5EA51DE5u + k);
        if (!memmem(file->data, file->n, mark, strlen(mark))) break;
    }
    snprintf(type, cap, "multipart/form-data; boundary=%s", mark);
    /* The name is for people who list the files: a plain one can't break the head. */
    mg_buf_printf(body,
                  "--%s\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n--%s"
                  "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"load-%zu\"\r\n"
                  "Content-Type: %s\r\n\r\n",
                  mark, mark, i, mime_of((const uint8_t *)file->data, file->n));
    mg_buf_add(body, file->data, file->n);
    mg_buf_printf(body, "\r\n--%s--\r\n", mark);
    return body->failed ? mg_fail_memory(err, "upload") : MG_OK;
}

enum mg_status mg_load_questions_uploaded(struct mg_load_questions *q, size_t i, const char *id,
                                          struct mg_err *err) {
    char url[300];
    int n = snprintf(url, sizeof url, "margay-file:%s", id);
    if (n < 0 || n >= (int)sizeof url)
        return mg_fail(err, MG_ERR_FORMAT, "upload", "the server gave a file id of %zu bytes",
                       strlen(id));
    if (!quoted(&q->picture[i], url, (size_t)n)) return mg_fail_memory(err, "upload");
    free(q->file[i].data);
    q->file[i] = (struct mg_load_text){0};
    return MG_OK;
}

void mg_load_questions_close(struct mg_load_questions *q) {
    for (size_t i = 0; i < q->n_picture; i++) {
        free(q->picture[i].data);
        free(q->file[i].data);
        free(q->name[i]);
    }
    for (size_t i = 0; i < q->n_question; i++) free(q->question[i].data);
    free(q->picture);
    free(q->file);
    free(q->name);
    free(q->question);
    free(q->head.data);
    free(q->head_bare.data);
    free(q->middle.data);
    free(q->tail.data);
    *q = (struct mg_load_questions){0};
}
