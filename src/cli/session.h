/* cli/session.h - what the answering commands share: finding the model, ctrl-C, progress, writing.
 *
 * Interrupts. Before an answer runs (loading, decoding pictures, waiting for input) nothing needs
 * saving, so the handler ends the process with 130 at once. While one runs, the first ctrl-C
 * cancels it and the second kills. A chat at its prompt asks instead to be told
 * (mg_interrupt_wait).
 *
 * Progress goes to standard error: a line per stage, or one bar rewritten in place when that is a
 * terminal. One thread; only the signal handler runs beside it.
 */
#ifndef MG_CLI_SESSION_H
#define MG_CLI_SESSION_H

#include "cli/options.h"
#include "margay/margay.h"

/* Exit codes of every command. */
enum mg_exit { MG_EXIT_OK = 0, MG_EXIT_FAILED = 1, MG_EXIT_USAGE = 2, MG_EXIT_INTERRUPTED = 130 };

/* "margay: TEXT" on stderr; 2 for a usage error (with a hint at --help), 130 when cancelled,
 * else 1. */
enum mg_exit mg_report(const struct mg_options *o, const struct mg_err *err);

/* All n bytes to fd, or MG_ERR_IO. A reader that has gone (EPIPE) has code "closed". */
enum mg_status mg_write(int fd, const void *data, size_t n, struct mg_err *err);

/* Closed standard descriptors become ones that fail, so that no file takes their number; SIGPIPE is
 * ignored. */
void mg_session_prepare(void);

/* The model folder that the options name, or the shipped one; `demo` is set for that. Valid as long
 * as the options.
 */
enum mg_status mg_session_folder(struct mg_options *o, const char **folder, bool *demo,
                                 struct mg_err *err);
/* Opens the engine by the options, says so on stderr, and arms ctrl-C. */
enum mg_status mg_session_open(struct mg_options *o, mg_engine **out, struct mg_err *err);
/* The answer's options; the stop strings are views into `o`. */
void mg_session_answer_options(const struct mg_options *o, const mg_engine *engine,
                               struct mg_answer_options *out);

void mg_interrupt_arm(void);
/* Likewise, for a server that is not there yet: SIGTERM, by which service managers stop what they
 * started, ends the process with 0. */
void mg_interrupt_arm_service(void);
/* From here to mg_interrupt_end ctrl-C cancels this chat's answer. */
void mg_interrupt_begin(mg_chat *chat);
bool mg_interrupt_end(void); /* true when it was interrupted */
/* From here ctrl-C interrupts a blocking read with EINTR instead of ending the process. */
void mg_interrupt_wait(void);
/* Between the two: waits until standard input has something; false: a signal came first. */
bool mg_interrupt_input(void);
bool mg_interrupt_seen(void);  /* one has come since mg_interrupt_wait */
bool mg_interrupt_woken(void); /* since mg_interrupt_wait; disarms that again */

struct mg_progress {
    bool on, tty;
    int stage;   /* enum mg_stage last told, -1 none */
    bool drawn;  /* a bar stands on the terminal's line */
    double last; /* clock of the last drawing */
};
void mg_progress_init(struct mg_progress *p, const struct mg_options *o);
void mg_progress_say(struct mg_progress *p, const char *fmt, ...) MG_PRINTF(2, 3);
void mg_progress_event(struct mg_progress *p, const struct mg_event *event);
/* A bar and a line on a terminal, cut to its width so that it can be rewritten in place. */
void mg_progress_bar(struct mg_progress *p, double share, const char *line);
/* Bytes written of a conversion, with the time left; a line now and then when not on a terminal.
 * `begin`: clock of its beginning. */
void mg_progress_convert(struct mg_progress *p, double begin, uint64_t done, uint64_t total);
void mg_progress_clear(struct mg_progress *p);

/* One answer, streamed to stdout when `stream`. A closed or full stdout stops it: `err` then says
 * so. On interruption the status is MG_ERR_CANCELLED, `out` is valid all the same if it has a
 * finish_reason. */
struct mg_run {
    struct mg_progress *progress;
    bool stream; /* pieces to stdout */
    bool any;    /* something was written */
    char last;   /* byte written last */
    enum mg_status write_status;
    struct mg_err *err;
};
enum mg_status mg_session_answer(mg_chat *chat, const struct mg_answer_options *options,
                                 struct mg_run *run, struct mg_answer *out, struct mg_err *err);

/* A conversation that begins with --system-prompt. On failure *out is open or NULL: close it. */
enum mg_status mg_session_open_chat(const struct mg_options *o, mg_engine *engine, mg_chat **out,
                                    struct mg_err *err);
/* "a.png,b.png" of --image, in pieces: calls fn for each. A file that has the whole name counts as
 * one. */
typedef enum mg_status mg_path_fn(void *user, const char *path, struct mg_err *err);
enum mg_status mg_session_split_paths(struct mg_options *o, const char *paths, mg_path_fn *fn,
                                      void *user, struct mg_err *err);

#endif
