/* cli/pull.c - margay pull: a checkpoint from a Hugging Face compatible server into a folder.
 *
 *     GET ENDPOINT/api/models/REPO/revision/R?blobs=true    what there is (pull_list.h)
 *     GET ENDPOINT/REPO/resolve/COMMIT/FILE                 each file that is needed (net/fetch.h)
 *
 * The listing names the commit, and all files are asked for by it, so that a push in the meantime
 * can't mix two versions. Files that are there already are checked and kept. A file appears under
 * its name only when it is whole and its digest right; until then it is FILE.part, and an
 * interrupted run is gone on with by the same command. The folder is locked against a second pull.
 *
 * HF_TOKEN goes to the endpoint's own host and port only, and into no message. One thread.
 */
#include "cli/commands.h"
#include "cli/pull_list.h"

#include "base/io.h"
#include "net/url.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DEFAULT_ENDPOINT "https://huggingface.co"
#define MAX_PATH 4096
#define RATE_SECONDS 5.0
#define LINE_SECONDS 10.0 /* between lines of progress where there is no terminal */

enum outcome { FETCHED, RESUMED, KEPT };

struct pull {
    struct mg_options *o;
    const char *repo, *revision, *folder;
    char endpoint[1024]; /* without a slash at the end */
    char host[256];
    bool has_token;
    struct mg_pull_list list;
    enum outcome *outcome; /* list.n, owned */
    uint64_t *received;    /* list.n, owned: bytes that came */
    struct mg_fetch *fetch;
    struct mg_progress progress;
    int lock; /* the folder, -1 when not open */
    /* Progress: bytes of all files that are to be fetched. */
    const char *now;        /* file on its way */
    uint64_t total, before; /* in all; of files that are done */
    uint64_t last_done;
    double last_time;                    /* clock at the last measurement, 0 none yet */
    double recent_bytes, recent_seconds; /* fading sums: how fast it has been of late */
    double last_line;                    /* clock */
};

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* 4255140312 -> "4.26 GB" */
static const char *bytes_text(char out[24], uint64_t bytes) {
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    double x = (double)bytes;
    size_t k = 0;
    for (; x >= 999.5 && k < 4; k++) x /= 1000;
    snprintf(out, 24, "%.*f %s", k && x < 99.95 ? (x < 9.995 ? 2 : 1) : 0, x, unit[k]);
    return out;
}

static const char *time_text(char out[24], double seconds) {
    if (seconds < 100)
        snprintf(out, 24, "%.0f s", seconds);
    else if (seconds < 5970)
        snprintf(out, 24, "%.0f min", seconds / 60);
    else
        snprintf(out, 24, "%.1f h", seconds / 3600);
    return out;
}

/* --- what fetch calls back --- */

static bool stopped(void *user) {
    return mg_interrupt_seen();
}

static void note(void *user, const char *text) {
    struct pull *p = user;
    mg_progress_clear(&p->progress);
    mg_log(MG_LOG_WARN, "%s", text);
}

/* Bytes a second, of the last RATE_SECONDS above all. */
static void measure(struct pull *p, uint64_t done) {
    double now = mg_clock(), since = now - p->last_time;
    bool again = p->last_time == 0 || done < p->last_done; /* a pause, or a file begun anew */
    if (!again && since < 0.25) return;
    if (!again) {
        double keep = exp(-since / RATE_SECONDS);
        p->recent_bytes = p->recent_bytes * keep + (double)(done - p->last_done);
        p->recent_seconds = p->recent_seconds * keep + since;
    }
    p->last_time = now;
    p->last_done = done;
}

static void show(struct pull *p, const char *doing, uint64_t done, uint64_t total, bool moving) {
    if (!p->progress.on) return;
    if (moving) measure(p, done);
    double now = mg_clock();
    if (now - p->last_line < (p->progress.tty ? 0.1 : LINE_SECONDS) &&
        !(p->progress.tty && done == total))
        return;
    p->last_line = now;
    char have[24], all[24], per_second[24], left[24], line[256], speed[64] = "";
    double rate = p->recent_seconds > 0 ? p->recent_bytes / p->recent_seconds : 0;
    if (moving && rate >= 1)
        snprintf(speed, sizeof speed, ", %s/s, %s left", bytes_text(per_second, (uint64_t)rate),
                 time_text(left, (double)(total - done) / rate));
    /* The name is last: it is what a narrow terminal can spare. */
    snprintf(line, sizeof line, "%s%s of %s%s: %s", doing, bytes_text(have, done),
             bytes_text(all, total), speed, p->now);
    if (p->progress.tty)
        mg_progress_bar(&p->progress, total ? (double)done / (double)total : 1, line);
    else
        mg_progress_say(&p->progress, "%s", line);
}

static void progress(void *user, uint64_t done, uint64_t total) {
    struct pull *p = user;
    uint64_t all = p->before + done;
    show(p, "", all, all > p->total ? all : p->total, true);
}

static void checking(void *user, uint64_t done, uint64_t total) {
    struct pull *p = user;
    if (total >= 64u << 20) show(p, "checking ", done, total, false);
}

/* Lines of progress count from here again. */
static void begin_file(struct pull *p, const char *name) {
    p->now = name;
    p->last_time = 0;
    p->last_line = p->progress.tty ? 0 : mg_clock();
}

/* --- asking the server --- */

static enum mg_status read_endpoint(struct pull *p, struct mg_err *err) {
    const char *text = environment("HF_ENDPOINT");
    if (!text) text = DEFAULT_ENDPOINT;
    size_t n = strlen(text);
    while (n && text[n - 1] == '/') n--;
    struct mg_url url;
    struct mg_err why = {0};
    if (n >= sizeof p->endpoint)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "HF_ENDPOINT has %zu bytes", n);
    snprintf(p->endpoint, sizeof p->endpoint, "%.*s", (int)n, text);
    if (mg_url_parse(p->endpoint, &url, &why))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "HF_ENDPOINT is %s", why.text);
    if (url.query)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "HF_ENDPOINT may not have a part that begins with ? or #");
    memcpy(p->host, url.host, sizeof p->host);
    p->has_token = environment("HF_TOKEN") != NULL;
    if (p->has_token && !url.https && !mg_url_is_local(&url))
        mg_log(MG_LOG_WARN, "HF_ENDPOINT is http: HF_TOKEN travels unencrypted to %s", p->host);
    return MG_OK;
}

static enum mg_status open_fetch(struct pull *p, struct mg_err *err) {
    const char *ca = environment("CURL_CA_BUNDLE");
    struct mg_fetch_options options = {
        .token = environment("HF_TOKEN"),
        .token_to = p->endpoint,
        .agent = "margay/" MARGAY_VERSION,
        .ca_file = ca ? ca : environment("SSL_CERT_FILE"),
        .n_connection = (size_t)mg_opt_int(p->o, MG_OPT_CONNECTIONS, 4),
        .n_retry = (size_t)mg_opt_int(p->o, MG_OPT_RETRIES, 8),
        .stall_seconds = mg_opt_float(p->o, MG_OPT_STALL_TIME, 30),
        .stopped = stopped,
        .note = note,
        .progress = progress,
        .checking = checking,
        .user = p,
    };
    return mg_fetch_open(&options, &p->fetch, err);
}

/* A final refusal in words that say what to do. */
static enum mg_status explain(const struct pull *p, struct mg_err *err) {
    enum mg_status status = err->status;
    bool is_401 = !strcmp(err->code, "http_401"), is_403 = !strcmp(err->code, "http_403");
    if (!is_401 && !is_403 && strcmp(err->code, "http_404")) return status;
    mg_err_clear(err);
    if (is_403 || (is_401 && p->has_token))
        return mg_fail(err, status, is_401 ? "http_401" : "http_403",
                       "%s refuses %s (%s): it is gated or private; accept its terms at %s/%s, and "
                       "set HF_TOKEN to an access token that may read it%s",
                       p->host, p->repo, is_401 ? "401" : "403", p->endpoint, p->repo,
                       p->has_token ? " (the one that is set may not)" : "");
    if (is_401)
        return mg_fail(err, status, "http_401",
                       "%s has no %s for everybody (401): either the name is wrong, or it is gated "
                       "or private; then accept its terms at %s/%s, and set HF_TOKEN to an access "
                       "token",
                       p->host, p->repo, p->endpoint, p->repo);
    return mg_fail(err, status, "http_404", "%s has no %s with a revision %s (404)", p->host,
                   p->repo, p->revision);
}

static enum mg_status ask_list(struct pull *p, struct mg_err *err) {
    struct mg_buf url = {.max = MG_URL_MAX}, reply = {.max = MG_PULL_MAX_REPLY + 1};
    mg_buf_printf(&url, "%s/api/models/%s/revision/", p->endpoint, p->repo);
    mg_url_escape(&url, p->revision);
    mg_buf_add_str(&url, "?blobs=true");
    enum mg_status st = url.failed ? mg_fail_memory(err, "URL")
                                   : mg_fetch_bytes(p->fetch, (char *)url.data, p->repo,
                                                    MG_PULL_MAX_REPLY, &reply, err);
    if (st)
        st = explain(p, err);
    else
        st = mg_pull_list_parse(p->repo, reply.data ? (char *)reply.data : "", reply.n, &p->list,
                                err);
    uint8_t commit[MG_SHA1_BYTES];
    if (!st && *p->list.commit && mg_hex_parse(p->revision, commit, sizeof commit) &&
        strcasecmp(p->revision, p->list.commit))
        st = mg_fail(err, MG_ERR_FORMAT, "listing", "%s: asked for %s, the server lists %s",
                     p->repo, p->revision, p->list.commit);
    mg_buf_free(&url);
    mg_buf_free(&reply);
    if (st) return st;
    p->outcome = mg_alloc_zero(p->list.n, sizeof *p->outcome);
    p->received = mg_alloc_zero(p->list.n, sizeof *p->received);
    return p->outcome && p->received ? MG_OK : mg_fail_memory(err, "list of files");
}

/* --- the folder --- */

/* Makes the folder and those above it, and keeps other pulls out. */
static enum mg_status open_folder(struct pull *p, struct mg_err *err) {
    char path[MAX_PATH];
    if (snprintf(path, sizeof path, "%s", p->folder) >= MAX_PATH - (int)MG_PULL_MAX_NAME - 16)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the folder's name is too long");
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        mkdir(path, 0777); /* the last one tells what went wrong */
        *at = '/';
    }
    if (mkdir(path, 0777) && errno != EEXIST)
        return mg_fail_errno(err, "make the folder", p->folder, errno);
    p->lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->lock < 0) return mg_fail_errno(err, "open the folder", p->folder, errno);
    /* Where a file system has no locks there is none. */
    if (flock(p->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return mg_fail(err, MG_ERR_IO, "locked", "another margay pull is at work in %s", p->folder);
    return MG_OK;
}

static enum mg_status describe(struct pull *p, size_t i, char path[MAX_PATH], struct mg_buf *url,
                               struct mg_fetch_file *out, struct mg_err *err) {
    const struct mg_pull_file *file = &p->list.file[i];
    enum mg_status st = mg_path_join(path, MAX_PATH, p->folder, file->name, err);
    if (st) return st;
    url->n = 0;
    url->max = MG_URL_MAX;
    mg_buf_printf(url, "%s/%s/resolve/", p->endpoint, p->repo);
    mg_url_escape(url, *p->list.commit ? p->list.commit : p->revision);
    mg_buf_add_byte(url, '/');
    mg_url_escape(url, file->name);
    if (url->failed) return mg_fail_memory(err, "URL");
    *out = (struct mg_fetch_file){.url = (char *)url->data,
                                  .name = file->name,
                                  .path = path,
                                  .size = file->size,
                                  .check = file->check};
    memcpy(out->digest, file->digest, sizeof out->digest);
    return MG_OK;
}

/* Which files are there, how many bytes are to come, and is there room for them. */
static enum mg_status survey(struct pull *p, struct mg_err *err) {
    uint64_t room = 0;
    struct mg_buf url = {0};
    enum mg_status st = MG_OK;
    for (size_t i = 0; i < p->list.n && !st; i++) {
        const struct mg_pull_file *file = &p->list.file[i];
        char path[MAX_PATH], part[MAX_PATH + 8];
        struct mg_fetch_file f;
        bool have = false;
        begin_file(p, file->name);
        st = describe(p, i, path, &url, &f, err);
        /* Without a digest and a size a file of that name proves nothing. */
        if (!st && file->size != UINT64_MAX && file->check != MG_FETCH_NO_CHECK)
            st = mg_fetch_have(p->fetch, &f, &have, err);
        p->outcome[i] = have ? KEPT : FETCHED;
        if (st || have || file->size == UINT64_MAX) continue;
        p->total += file->size; /* at most 256 times 2^42 */
        struct stat s;
        snprintf(part, sizeof part, "%s.part", path);
        uint64_t taken = stat(part, &s) ? 0 : (uint64_t)s.st_blocks * 512;
        room += taken < file->size ? file->size - taken : 0;
    }
    mg_buf_free(&url);
    struct statvfs fs;
    if (st || statvfs(p->folder, &fs)) return st;
    uint64_t free_bytes;
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &free_bytes))
        return MG_OK;
    char needs[24], has[24];
    if (room > free_bytes)
        return mg_fail(err, MG_ERR_IO, "disk_full", "%s needs %s more in %s, where %s are free",
                       p->repo, bytes_text(needs, room), p->folder, bytes_text(has, free_bytes));
    return MG_OK;
}

/* --- fetching --- */

static enum mg_status fetch_one(struct pull *p, size_t i, struct mg_buf *url, struct mg_err *err) {
    struct mg_pull_file *file = &p->list.file[i];
    char path[MAX_PATH], size[24];
    struct mg_fetch_file f;
    struct mg_fetch_result result;
    enum mg_status st = describe(p, i, path, url, &f, err);
    if (st) return st;
    begin_file(p, file->name);
    if (!p->progress.tty)
        mg_progress_say(&p->progress, "%s (%s)", file->name,
                        file->size == UINT64_MAX ? "size not known" : bytes_text(size, file->size));
    if (file->check == MG_FETCH_NO_CHECK)
        note(p, "the server has no checksum for this file; only its size is checked");
    st = mg_fetch_file(p->fetch, &f, &result, err);
    if (st) return explain(p, err);
    if (file->size == UINT64_MAX) p->total += result.size;
    file->size = result.size;
    p->before += result.size;
    p->received[i] = result.received;
    p->outcome[i] = result.resumed ? RESUMED : FETCHED;
    return MG_OK;
}

static enum mg_status print_json(struct pull *p, double seconds, struct mg_err *err) {
    static const char *const word[] = {"fetched", "resumed", "kept"};
    struct mg_buf text = {0};
    struct mg_json j = {.out = &text};
    uint64_t bytes = 0, received = 0;
    mg_json_open(&j, '{');
    mg_json_key(&j, "repo"), mg_json_str(&j, p->repo);
    mg_json_key(&j, "revision"), mg_json_str(&j, p->revision);
    mg_json_key(&j, "commit"), mg_json_str(&j, *p->list.commit ? p->list.commit : NULL);
    mg_json_key(&j, "folder"), mg_json_str(&j, p->folder);
    mg_json_key(&j, "files"), mg_json_open(&j, '[');
    for (size_t i = 0; i < p->list.n; i++) {
        const struct mg_pull_file *file = &p->list.file[i];
        char hex[MG_SHA256_HEX];
        bool git = file->check == MG_FETCH_GIT_SHA1;
        bytes += file->size;
        received += p->received[i];
        mg_json_open(&j, '{');
        mg_json_key(&j, "name"), mg_json_str(&j, file->name);
        mg_json_key(&j, "bytes"), mg_json_int(&j, (int64_t)file->size);
        mg_json_key(&j, "received_bytes"), mg_json_int(&j, (int64_t)p->received[i]);
        mg_json_key(&j, "state"), mg_json_str(&j, word[p->outcome[i]]);
        if (file->check != MG_FETCH_NO_CHECK) {
            mg_hex(file->digest, git ? MG_SHA1_BYTES : MG_SHA256_BYTES, hex);
            mg_json_key(&j, git ? "git_sha1" : "sha256"), mg_json_str(&j, hex);
        }
        mg_json_close(&j, '}');
    }
    mg_json_close(&j, ']');
    mg_json_key(&j, "bytes"), mg_json_int(&j, (int64_t)bytes);
    mg_json_key(&j, "received_bytes"), mg_json_int(&j, (int64_t)received);
    mg_json_key(&j, "seconds"), mg_json_number(&j, seconds, 3);
    mg_json_close(&j, '}');
    enum mg_status st = mg_buf_add_byte(&text, '\n')
                            ? mg_write(STDOUT_FILENO, text.data, text.n, err)
                            : mg_fail_memory(err, "JSON");
    mg_buf_free(&text);
    return st;
}

static void say_done(struct pull *p, double seconds) {
    char size[24], took[24];
    uint64_t received = 0;
    size_t kept = 0;
    for (size_t i = 0; i < p->list.n; i++) {
        received += p->received[i];
        kept += p->outcome[i] == KEPT;
    }
    mg_progress_clear(&p->progress);
    p->progress.tty = false; /* these lines stay */
    if (kept == p->list.n)
        mg_progress_say(&p->progress, "%s: all %zu files are there already, and checked", p->folder,
                        kept);
    else
        mg_progress_say(&p->progress, "%s: %zu files, %s fetched in %s", p->folder, p->list.n,
                        bytes_text(size, received), time_text(took, seconds));
    bool plain_path =
        p->folder[strspn(p->folder, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
                                    "Z0123456789/._-")] == 0;
    const char *quote = plain_path ? "" : "\"";
    mg_progress_say(&p->progress, "ask it with: margay ask -m %s%s%s photo.jpg \"What is this?\"",
                    quote, p->folder, quote);
}

static enum mg_status run(struct pull *p, struct mg_err *err) {
    double start = mg_clock();
    enum mg_status st = read_endpoint(p, err);
    if (!st) st = open_fetch(p, err);
    if (!st) {
        mg_progress_say(&p->progress, "asking %s for %s", p->host, p->repo);
        st = ask_list(p, err);
    }
    if (!st) st = open_folder(p, err);
    if (!st) {
        char size[24];
        st = survey(p, err);
        if (!st && p->total)
            mg_progress_say(&p->progress, "%s to %s", bytes_text(size, p->total), p->folder);
    }
    struct mg_buf url = {0};
    for (size_t i = 0; i < p->list.n && !st; i++)
        if (p->outcome[i] != KEPT) st = fetch_one(p, i, &url, err);
    mg_buf_free(&url);
    if (st) return st;
    say_done(p, mg_clock() - start);
    return mg_opt_flag(p->o, MG_OPT_JSON, false) ? print_json(p, mg_clock() - start, err) : MG_OK;
}

enum mg_exit mg_cmd_pull(struct mg_options *o) {
    struct mg_err err = {0};
    struct pull p = {.o = o, .lock = -1};
    enum mg_status st = MG_OK;
    mg_progress_init(&p.progress, o);
    p.revision = mg_opt_text(o, MG_OPT_REVISION, "main");
    if (o->n_arg != 1)
        st = mg_fail(&err, MG_ERR_ARGUMENT, "usage",
                     "pull needs the name of a repository, such as Qwen/Qwen3-VL-2B-Instruct");
    if (!st) st = mg_pull_check_repo(o->arg[0], &err);
    if (!st) st = mg_pull_check_revision(p.revision, &err);
    if (!st) {
        p.repo = o->arg[0];
        p.folder = mg_opt_text(o, MG_OPT_OUT, strchr(p.repo, '/') + 1);
        mg_interrupt_arm();
        mg_interrupt_wait(); /* the first ctrl-C is seen in `stopped`, */
        st = run(&p, &err);
        mg_interrupt_woken(); /* one that comes later ends the process */
    }
    mg_progress_clear(&p.progress);
    if (st == MG_ERR_CANCELLED && p.lock >= 0)
        mg_log(MG_LOG_WARN, "what has come is kept; the same command goes on from there");
    mg_fetch_close(p.fetch);
    mg_pull_list_free(&p.list);
    free(p.outcome);
    free(p.received);
    if (p.lock >= 0) close(p.lock);
    return st ? mg_report(o, &err) : MG_EXIT_OK;
}
