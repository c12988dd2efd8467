/* cli/bench_child.c - start-up and memory, measured in fresh processes of this program.
 *
 * The parent starts /proc/self/exe with its own command line and two more variables:
 *     MARGAY_BENCH_CHILD=FD:NANOSECONDS:0|1   where to answer; the clock at the start; ask or not
 *     MARGAY_BENCH_FOLDER=FOLDER              the model, so that the child doesn't look for it
 * and the child writes one line of four numbers, or its error, which is then the parent's. Its peak
 * is its own VmHWM: what wait4 tells counts the parent's pages from before the exec. Anonymous
 * memory is looked at between layers, since its peak is inside the vision tower.
 */
#include "cli/bench.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ORDER "MARGAY_BENCH_CHILD"
#define FOLDER "MARGAY_BENCH_FOLDER"
#define MAX_ARGUMENTS 1024
#define MIB 1048576.0

extern char **environ;

bool mg_bench_is_child(void) {
    return getenv(ORDER) != NULL && getenv(FOLDER) != NULL;
}

const char *mg_bench_child_folder(void) {
    return getenv(FOLDER);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- the child */
struct watch {
    size_t anon; /* the most bytes seen */
};

static void look_at_memory(struct watch *w) {
    size_t anon, peak;
    mg_memory_use(&anon, &peak);
    w->anon = mg_max_size(w->anon, anon);
}

static bool on_event(void *user, const struct mg_event *event) {
    if (event->kind == MG_EVENT_STAGE) look_at_memory(user);
    return true;
}

static enum mg_status ask(struct mg_options *o, const char *folder, mg_chat *chat,
                          struct mg_bench_start *out, struct mg_err *err) {
    struct mg_buf picture = {0}, text = {0};
    struct watch watch = {0};
    struct mg_answer answer = {0};
    struct mg_answer_options options;
    struct mg_image_report image = {0};
    mg_answer_options_init(&options);
    options.max_tokens = 8; /* the peak is before the first */
    options.ignore_end = options.no_loop_check = true;
    enum mg_status st = mg_bench_load_picture(o, 0, &picture, err);
    if (!st) st = mg_chat_add_image(chat, picture.data, picture.n, err);
    mg_buf_free(&picture);
    if (!st) mg_chat_image(chat, 0, &image);
    if (!st) st = mg_bench_make_text(o, folder, image.tokens, &text, err);
    if (!st) st = mg_chat_add_text_n(chat, MG_USER, (const char *)text.data, text.n, err);
    look_at_memory(&watch);
    if (!st) st = mg_chat_answer(chat, &options, on_event, &watch, &answer, err);
    mg_buf_free(&text);
    look_at_memory(&watch);
    size_t anon, peak;
    mg_memory_use(&anon, &peak);
    out->first_request_ms = answer.first_token_ms;
    out->peak_rss_mb = (double)peak / MIB;
    out->rss_anon_mb = (double)watch.anon / MIB;
    return st;
}

enum mg_status mg_bench_child(struct mg_options *o, struct mg_err *err) {
    int fd = -1, wants = 0;
    long long begin = 0;
    const char *order = getenv(ORDER), *folder = getenv(FOLDER);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!order || !folder || sscanf(order, "%d:%lld:%d", &fd, &begin, &wants) != 3)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "%s is for bench's own processes", ORDER);
    mg_engine *engine = NULL;
    mg_chat *chat = NULL;
    struct mg_bench_start start = {0};
    /* A question of text alone: a picture's time is not the start's. */
    enum mg_status st = mg_session_open(o, &engine, err);
    if (!st) st = mg_chat_open(engine, &chat, err);
    if (!st) st = mg_chat_add_text(chat, MG_USER, "What is this?", err);
    start.ready_ms = (double)(now_ns() - begin) * 1e-6;
    if (!st && wants) {
        mg_chat_close(chat);
        st = mg_chat_open(engine, &chat, err);
        if (!st) st = ask(o, folder, chat, &start, err);
    }
    if (!st) {
        char line[160];
        int n = snprintf(line, sizeof line, "%.6f %.6f %.6f %.6f\n", start.ready_ms,
                         start.first_request_ms, start.peak_rss_mb, start.rss_anon_mb);
        st = mg_write(fd, line, (size_t)n, err);
    } else if (err->status) {
        char line[sizeof err->code + sizeof err->text + 16];
        int n = snprintf(line, sizeof line, "!%d %s\n%s", (int)err->status, err->code, err->text);
        if (!mg_write(fd, line, (size_t)n, NULL))
            snprintf(err->code, sizeof err->code, "closed"); /* the parent tells it, not this one */
    }
    mg_chat_close(chat);
    mg_engine_close(engine);
    return st;
}

/* --- the parent */
/* This process' command line; `text` holds the words. */
static enum mg_status own_arguments(struct mg_buf *text, char *argv[MAX_ARGUMENTS + 1],
                                    struct mg_err *err) {
    enum mg_status st = mg_file_read("/proc/self/cmdline", (size_t)1 << 20, text, err);
    size_t n = 0;
    for (size_t at = 0; !st && at < text->n && n < MAX_ARGUMENTS; n++) {
        argv[n] = (char *)text->data + at;
        at += strlen(argv[n]) + 1;
    }
    argv[n] = NULL;
    return st;
}

/* "!STATUS CODE\nTEXT" is the child's failure; anything else that isn't four numbers is a crash. */
static enum mg_status take_failure(const char *line, int status, struct mg_err *err) {
    char code[sizeof err->code] = "";
    int number = 0, at = 0;
    if (sscanf(line, "!%d%n", &number, &at) == 1 && line[at] == ' ' && number > MG_OK &&
        number <= MG_ERR_MEMORY) {
        const char *name = line + at + 1, *end = strchr(name, '\n');
        if (end && (size_t)(end - name) < sizeof code) {
            memcpy(code, name, (size_t)(end - name));
            return mg_fail(err, (enum mg_status)number, code, "%s", end + 1);
        }
    }
    return mg_fail(err, MG_ERR_IO, "child",
                   "a fresh process for measuring start and memory failed (%s %d)",
                   WIFSIGNALED(status) ? "signal" : "exit status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Everything that the child writes, at most cap - 1 bytes. */
static size_t read_answer(int fd, char *line, size_t cap) {
    size_t n = 0;
    while (n + 1 < cap) {
        ssize_t got = read(fd, line + n, cap - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    line[n] = 0;
    return n;
}

static enum mg_status run_child(char *const argv[], const int pipe_fd[2],
                                struct mg_bench_start *out, struct mg_err *err) {
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed) return mg_fail_memory(err, "starting a process");
    posix_spawn_file_actions_addclose(&actions, pipe_fd[0]);
    failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fd[1]);
    if (failed) return mg_fail_errno(err, "start", "/proc/self/exe", failed);
    char line[sizeof err->code + sizeof err->text + 16];
    read_answer(pipe_fd[0], line, sizeof line);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 ||
        sscanf(line, "%lf %lf %lf %lf", &out->ready_ms, &out->first_request_ms, &out->peak_rss_mb,
               &out->rss_anon_mb) != 4)
        return take_failure(line, status, err);
    return MG_OK;
}

enum mg_status mg_bench_start(const char *folder, bool wants, struct mg_bench_start *out,
                              struct mg_err *err) {
    char *argv[MAX_ARGUMENTS + 1], order[80];
    struct mg_buf text = {0};
    int pipe_fd[2];
    *out = (struct mg_bench_start){0};
    enum mg_status st = own_arguments(&text, argv, err);
    if (!st && pipe(pipe_fd) != 0) st = mg_fail_errno(err, "make", "a pipe", errno);
    if (!st) {
        fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
        setenv(FOLDER, folder, 1);
        snprintf(order, sizeof order, "%d:%lld:%d", pipe_fd[1], (long long)now_ns(), wants);
        setenv(ORDER, order, 1);
        st = run_child(argv, pipe_fd, out, err);
        unsetenv(ORDER);
        unsetenv(FOLDER);
        close(pipe_fd[0]);
    }
    mg_buf_free(&text);
    return st;
}
