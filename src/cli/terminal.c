/* cli/terminal.c - the signal, progress and writing part of session.h.
 *
 * The handler touches only sig_atomic_t flags, an atomic pointer, and async-signal-safe calls.
 * `mode` says what a ctrl-C means now: end the process, cancel the running answer, or only wake the
 * reader of standard input.
 */
#include "cli/session.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum mode { MODE_END, MODE_CANCEL, MODE_WAKE };
static volatile sig_atomic_t mode = MODE_END, interrupted, stopping_is_success;
static _Atomic(mg_chat *) running;

static void on_interrupt(int sig) {
    int saved = errno;
    interrupted = 1;
    if (mode == MODE_END && sig == SIGTERM && stopping_is_success) _exit(MG_EXIT_OK);
    if (mode == MODE_END) {
        static const char text[] = "\rmargay: interrupted\n";
        ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
        (void)ignored;
        _exit(MG_EXIT_INTERRUPTED);
    }
    if (mode == MODE_CANCEL) {
        mg_chat *chat = atomic_load(&running);
        if (chat) mg_chat_cancel(chat);
        signal(sig, SIG_DFL); /* the second one kills */
    }
    errno = saved;
}

void mg_interrupt_arm(void) {
    /* No SA_RESTART: a read of standard input must wake up. */
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

void mg_interrupt_arm_service(void) {
    stopping_is_success = 1;
    mg_interrupt_arm();
}

void mg_interrupt_begin(mg_chat *chat) {
    interrupted = 0;
    atomic_store(&running, chat);
    mode = MODE_CANCEL;
}

bool mg_interrupt_end(void) {
    mode = MODE_END;
    atomic_store(&running, NULL);
    bool was = interrupted;
    interrupted = 0;
    if (was) mg_interrupt_arm();
    return was;
}

void mg_interrupt_wait(void) {
    interrupted = 0;
    mode = MODE_WAKE;
}

bool mg_interrupt_input(void) {
    /* A signal between the prompt and the read would be lost; ppoll lets it in only while it
     * waits. */
    sigset_t ints, before;
    sigemptyset(&ints);
    sigaddset(&ints, SIGINT);
    sigaddset(&ints, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ints, &before);
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!interrupted && ppoll(&in, 1, NULL, &before) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !interrupted;
}

bool mg_interrupt_seen(void) {
    return interrupted;
}

bool mg_interrupt_woken(void) {
    mode = MODE_END;
    bool was = interrupted;
    interrupted = 0;
    return was;
}

void mg_session_prepare(void) {
    /* 0 opens for writing only, 1 and 2 for reading only: whoever uses them gets an error, not a
     * file. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            break;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write() */
}

enum mg_status mg_write(int fd, const void *data, size_t n, struct mg_err *err) {
    const char *at = data;
    while (n > 0) {
        ssize_t wrote = write(fd, at, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EPIPE)
            return mg_fail(err, MG_ERR_IO, "closed", "the reader of the output has gone");
        if (wrote < 0)
            return mg_fail(err, MG_ERR_IO, "write", "can't write the output: %s", strerror(errno));
        at += wrote;
        n -= (size_t)wrote;
    }
    return MG_OK;
}

enum mg_exit mg_report(const struct mg_options *o, const struct mg_err *err) {
    if (err->status == MG_ERR_CANCELLED) {
        fputs("margay: interrupted\n", stderr);
        return MG_EXIT_INTERRUPTED;
    }
    if (!strcmp(err->code, "closed")) return MG_EXIT_FAILED; /* whoever left wants no message */
    fprintf(stderr, "margay: %s\n", *err->text ? err->text : mg_status_name(err->status));
    if (strcmp(err->code, "usage") && strcmp(err->code, "config")) return MG_EXIT_FAILED;
    if (!strcmp(err->code, "usage"))
        fprintf(stderr, "margay: 'margay %s --help' lists the options\n",
                mg_commands[o->command].name);
    return MG_EXIT_USAGE;
}

void mg_progress_init(struct mg_progress *p, const struct mg_options *o) {
    *p = (struct mg_progress){.on = mg_opt_flag(o, MG_OPT_PROGRESS, true),
                              .tty = isatty(STDERR_FILENO) == 1,
                              .stage = -1};
}

void mg_progress_clear(struct mg_progress *p) {
    if (p->drawn) fputs("\r\033[K", stderr);
    p->drawn = false;
}

void mg_progress_say(struct mg_progress *p, const char *fmt, ...) {
    if (!p->on) return;
    mg_progress_clear(p);
    va_list ap;
    va_start(ap, fmt);
    fputs("margay: ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (!p->tty) fputc('\n', stderr);
    p->drawn = p->tty;
    fflush(stderr);
}

void mg_progress_event(struct mg_progress *p, const struct mg_event *event) {
    static const char *const name[] = {"looking", "reading", "answering"};
    static const char *const unit[] = {"blocks", "tokens", "tokens"};
    if (!p->on) return;
    bool first = p->stage != (int)event->stage;
    p->stage = (int)event->stage;
    if (!p->tty) {
        if (first)
            mg_progress_say(p, "%s (%zu %s)", name[event->stage], event->total, unit[event->stage]);
        return;
    }
    double now = mg_clock();
    if (!first && event->done < event->total && now - p->last < 0.05) return;
    p->last = now;
    enum { WIDTH = 24 };
    char bar[WIDTH + 1];
    size_t full = event->total ? event->done * WIDTH / event->total : 0;
    for (size_t i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[Kmargay: %-9s [%s] %zu of %zu %s", name[event->stage], bar, event->done,
            event->total, unit[event->stage]);
    fflush(stderr);
    p->drawn = true;
}

void mg_progress_bar(struct mg_progress *p, double share, const char *line) {
    enum { WIDTH = 12 };
    char bar[WIDTH + 1], all[400];
    size_t full = (size_t)(share * WIDTH);
    for (size_t i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    struct winsize size;
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20 ? 80 : size.ws_col;
    snprintf(all, mg_min_size(sizeof all, columns), "margay: [%s] %s", bar, line);
    fprintf(stderr, "\r\033[K%s", all);
    fflush(stderr);
    p->drawn = true;
}

void mg_progress_convert(struct mg_progress *p, double begin, uint64_t done, uint64_t total) {
    double now = mg_clock(), took = now - begin, share = total ? (double)done / (double)total : 1;
    if (!p->on || now - p->last < (p->tty ? 0.1 : 10)) return;
    if (!p->tty && p->last == 0) { /* the first line only when it takes a while */
        p->last = now;
        return;
    }
    p->last = now;
    char line[160];
    snprintf(line, sizeof line, "converting: %llu of %llu MB, %.0f s left",
             (unsigned long long)(done / 1000000), (unsigned long long)(total / 1000000),
             share > 0 ? took / share - took : 0);
    if (p->tty)
        mg_progress_bar(p, share, line);
    else
        mg_progress_say(p, "%s", line);
}
