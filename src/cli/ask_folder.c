/* cli/ask_folder.c - margay ask --folder: one question about every picture in a folder, a JSON line
 * each.
 *
 * The model is loaded once. A line is written whole, with one write, when its answer is there; so a
 * run that was killed leaves at most one torn line, which the next run with the same --output cuts
 * off before it goes on with the pictures that have no line. The output file is locked against a
 * second run.
 */
#include "cli/commands.h"

#include "base/io.h"
#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_OUTPUT_BYTES ((size_t)1 << 30)

struct batch {
    struct mg_options *o;
    const char *folder, *question;
    size_t n_question;
    char **name; /* n_name file names, sorted, owned */
    size_t n_name;
    json_t *done; /* set of names that have a line already */
    int fd;       /* where lines go */
    bool owns_fd;
    size_t n_answered, n_failed, n_skipped;
    struct mg_progress progress;
};

/* A picture by its name's ending, or by its first bytes. */
static bool is_picture(const char *path, const char *name) {
    static const char *const ending[] = {".jpg", ".jpeg", ".png",  ".webp", ".gif",
                                         ".bmp", ".heic", ".heif", ".avif"};
    struct stat st;
    if (name[0] == '.' || stat(path, &st) || !S_ISREG(st.st_mode)) return false;
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof ending / sizeof ending[0]; i++)
        if (!strcasecmp(dot, ending[i])) return true;
    uint8_t head[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, head, sizeof head) : -1;
    if (fd >= 0) close(fd);
    return n > 0 && mg_image_sniff(head, (size_t)n) != MG_IMAGE_UNKNOWN;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum mg_status list_folder(struct batch *b, struct mg_err *err) {
    DIR *dir = opendir(b->folder);
    if (!dir) return mg_fail_errno(err, "read the folder", b->folder, errno);
    enum mg_status st = MG_OK;
    size_t cap = 0;
    for (struct dirent *e; !st && (errno = 0, e = readdir(dir));) {
        char path[4096];
        if (mg_path_join(path, sizeof path, b->folder, e->d_name, NULL)) continue;
        if (!is_picture(path, e->d_name)) continue;
        if (b->n_name == cap) {
            char **grown = mg_realloc(b->name, cap = cap ? cap * 2 : 64, sizeof *grown);
            if (grown)
                b->name = grown;
            else
                st = mg_fail_memory(err, "file names");
        }
        if (!st && !(b->name[b->n_name] = strdup(e->d_name)))
            st = mg_fail_memory(err, "file names");
        if (!st) b->n_name++;
    }
    if (!st && errno) st = mg_fail_errno(err, "read the folder", b->folder, errno);
    closedir(dir);
    if (!st && !b->n_name)
        st = mg_fail(err, MG_ERR_NOT_FOUND, "no_pictures", "no picture in %s", b->folder);
    if (!st) qsort(b->name, b->n_name, sizeof *b->name, by_name);
    return st;
}

/* Fills `done` from the lines that are there; *whole: bytes up to the last line's end. */
static enum mg_status read_done(struct batch *b, const char *path, const struct mg_buf *text,
                                size_t *whole, struct mg_err *err) {
    const char *at = (const char *)text->data;
    size_t left = text->n;
    for (size_t line = 1; left; line++) {
        const char *end = memchr(at, '\n', left);
        if (!end) break;
        size_t n = (size_t)(end - at);
        json_t *object = json_loadb(at, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        json_t *name = json_object_get(object, "image");
        if (n && !json_is_string(name)) {
            json_decref(object);
            return mg_fail(err, MG_ERR_FORMAT, "output",
                           "%s line %zu is not one of margay's answers; not "
                           "touching the file",
                           path, line);
        }
        if (n) json_object_set_new(b->done, json_string_value(name), json_true());
        json_decref(object);
        at = end + 1;
        left -= n + 1;
    }
    *whole = text->n - left;
    return MG_OK;
}

static enum mg_status open_output(struct batch *b, struct mg_err *err) {
    b->fd = STDOUT_FILENO;
    const char *path = mg_opt_text(b->o, MG_OPT_OUTPUT, NULL);
    b->done = json_object();
    if (!b->done) return mg_fail_memory(err, "file names");
    if (!path) return MG_OK;
    b->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (b->fd < 0) return mg_fail_errno(err, "open", path, errno);
    b->owns_fd = true;
    if (flock(b->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return mg_fail(err, MG_ERR_IO, "output", "%s is in use by another margay", path);
    struct stat st;
    if (fstat(b->fd, &st) || !S_ISREG(st.st_mode))
        return MG_OK; /* a device or pipe has no lines to skip */
    struct mg_buf text = {.max = MAX_OUTPUT_BYTES};
    size_t whole = 0;
    enum mg_status status = mg_file_read(path, MAX_OUTPUT_BYTES, &text, err);
    if (!status) status = read_done(b, path, &text, &whole, err);
    if (!status && whole < text.n && ftruncate(b->fd, (off_t)whole))
        status = mg_fail_errno(err, "mend", path, errno);
    mg_buf_free(&text);
    return status;
}

static enum mg_status write_line(struct batch *b, const char *name, const mg_chat *chat,
                                 const struct mg_answer *answer, const struct mg_err *failure,
                                 struct mg_err *err) {
    struct mg_buf out = {0};
    struct mg_json j = {.out = &out};
    mg_json_open(&j, '{');
    mg_json_key(&j, "image"), mg_json_str(&j, name);
    mg_json_key(&j, "question"), mg_json_string(&j, b->question, b->n_question);
    if (failure) {
        mg_json_key(&j, "error"), mg_json_open(&j, '{');
        mg_json_key(&j, "code"),
            mg_json_str(&j, *failure->code ? failure->code : mg_status_name(failure->status));
        mg_json_key(&j, "message"), mg_json_str(&j, failure->text);
        mg_json_close(&j, '}');
    } else {
        mg_json_answer(&j, chat, answer);
    }
    mg_json_close(&j, '}');
    enum mg_status st = mg_buf_add_byte(&out, '\n') ? mg_write(b->fd, out.data, out.n, err)
                                                    : mg_fail_memory(err, "JSON");
    mg_buf_free(&out);
    return st;
}

/* One picture. Only what stops the whole run is returned: no output any more, or ctrl-C. */
static enum mg_status ask_one(struct batch *b, mg_engine *engine,
                              const struct mg_answer_options *options, const char *name,
                              struct mg_err *err) {
    char path[4096];
    struct mg_err own = {0};
    struct mg_answer answer = {0};
    mg_chat *chat = NULL;
    enum mg_status st = mg_path_join(path, sizeof path, b->folder, name, &own);
    if (!st) st = mg_session_open_chat(b->o, engine, &chat, &own);
    if (!st) st = mg_chat_add_image_file(chat, path, &own);
    if (!st) st = mg_chat_add_text_n(chat, MG_USER, b->question, b->n_question, &own);
    if (!st) {
        struct mg_run run = {.progress = &b->progress};
        st = mg_session_answer(chat, options, &run, &answer, &own);
    }
    enum mg_status stop = MG_OK;
    if (st == MG_ERR_CANCELLED) {
        stop = mg_fail(err, st, own.code, "%s", own.text);
    } else {
        b->n_failed += st != MG_OK;
        b->n_answered += st == MG_OK;
        if (st) mg_log(MG_LOG_ERROR, "%s: %s", name, own.text);
        stop = write_line(b, name, chat, &answer, st ? &own : NULL, err);
    }
    mg_chat_close(chat);
    return stop;
}

static enum mg_status ask_all(struct batch *b, struct mg_err *err) {
    mg_engine *engine;
    struct mg_answer_options options;
    enum mg_status st = mg_session_open(b->o, &engine, err);
    if (st) return st;
    mg_session_answer_options(b->o, engine, &options);
    /* A bar per stage is too restless over many pictures: one line a picture. */
    struct mg_progress line;
    mg_progress_init(&line, b->o);
    for (size_t i = 0; i < b->n_name && !st; i++) {
        if (json_object_get(b->done, b->name[i])) {
            b->n_skipped++;
            continue;
        }
        char shown[256]; /* a file name has at most 255 bytes */
        snprintf(shown, sizeof shown, "%s", b->name[i]);
        mg_text_defuse(shown);
        mg_progress_say(&line, "[%zu/%zu] %s", i + 1, b->n_name, shown);
        mg_progress_clear(&line);
        st = ask_one(b, engine, &options, b->name[i], err);
    }
    mg_engine_close(engine);
    return st;
}

enum mg_exit mg_ask_folder(struct mg_options *o, const char *question, size_t n_question) {
    struct mg_err err = {0};
    struct batch b = {.o = o,
                      .folder = mg_opt_text(o, MG_OPT_FOLDER, "."),
                      .question = question,
                      .n_question = n_question,
                      .fd = -1};
    mg_progress_init(&b.progress, o);
    b.progress.on = false;
    enum mg_status st = list_folder(&b, &err);
    if (!st) st = open_output(&b, &err);
    if (!st) st = ask_all(&b, &err);
    enum mg_exit code = st ? mg_report(o, &err) : b.n_failed ? MG_EXIT_FAILED : MG_EXIT_OK;
    if (b.n_answered + b.n_failed + b.n_skipped)
        fprintf(stderr, "margay: %zu answered, %zu failed, %zu skipped of %zu\n", b.n_answered,
                b.n_failed, b.n_skipped, b.n_name);
    if (b.owns_fd && close(b.fd) && !code) {
        fprintf(stderr, "margay: can't write the output: %s\n", strerror(errno));
        code = MG_EXIT_FAILED;
    }
    for (size_t i = 0; i < b.n_name; i++) free(b.name[i]);
    free(b.name);
    json_decref(b.done);
    return code;
}
