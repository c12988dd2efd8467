/* cli/chat.c - margay chat: a conversation in the terminal, or over pipes.
 *
 * A line is a turn; lines that begin with / are commands. Answers go to standard output, the prompt
 * and all remarks to standard error, so that a pipe gets the answers alone. Ctrl-C stops an answer,
 * and at the prompt clears the line; over a pipe it ends the program.
 */
#include "cli/commands.h"

#include "base/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct talk {
    struct mg_options *o;
    mg_engine *engine;
    mg_chat *chat;
    struct mg_answer_options options;
    struct mg_progress progress;
    bool tty;    /* standard input is a terminal */
    bool failed; /* something went wrong on the way */
    bool quit;
    bool unanswered; /* the last question stands without an answer; the next joins its turn */
};

static void complain(struct talk *t, const struct mg_err *err) {
    fprintf(stderr, "margay: %s\n", err->text);
    t->failed = true;
}

static enum mg_status restart(struct talk *t, struct mg_err *err) {
    mg_chat_close(t->chat);
    t->chat = NULL;
    t->unanswered = false;
    return mg_session_open_chat(t->o, t->engine, &t->chat, err);
}

static enum mg_status add_image(void *user, const char *path, struct mg_err *err) {
    struct talk *t = user;
    if (!strcmp(path, "-"))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "chat reads your lines from standard input, no picture");
    enum mg_status st = mg_chat_add_image_file(t->chat, path, err);
    struct mg_image_report r;
    if (!st && mg_chat_image(t->chat, mg_chat_image_count(t->chat) - 1, &r))
        fprintf(stderr, "margay: picture %zu: %s, %u x %u, seen as %u x %u, %zu tokens%s\n",
                mg_chat_image_count(t->chat), r.format, r.width, r.height, r.resized_width,
                r.resized_height, r.tokens, r.kept < r.cells ? ", pruned" : "");
    return st;
}

/* A line that begins with a slash. Only a failure to go on at all is returned. */
static enum mg_status command(struct talk *t, char *line, struct mg_err *err) {
    size_t n = strcspn(line, " \t");
    char *argument = line + n + strspn(line + n, " \t");
    line[n] = 0;
    struct mg_err own = {0};
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) {
        t->quit = true;
    } else if (!strcmp(line, "/clear")) {
        fputs("margay: forgotten; the pictures too\n", stderr);
        return restart(t, err);
    } else if (!strcmp(line, "/image")) {
        if (!*argument)
            fputs("margay: /image needs a path\n", stderr);
        else if (add_image(t, argument, &own))
            complain(t, &own);
    } else {
        bool known = !strcmp(line, "/help");
        if (!known) fprintf(stderr, "margay: no command %.40s\n", line);
        fputs("  /image PATH   adds a picture to the next question\n"
              "  /clear        begins anew, without pictures\n"
              "  /quit         leaves (so does ctrl-D)\n"
              "  ctrl-C        stops an answer\n"
              "  a line that ends with \\ goes on in the next\n",
              stderr);
    }
    return MG_OK;
}

static enum mg_status turn(struct talk *t, const char *text, size_t n, struct mg_err *err) {
    struct mg_run run = {.progress = &t->progress, .stream = true};
    struct mg_answer answer;
    struct mg_err own = {0};
    enum mg_status st = t->unanswered ? mg_chat_add_text(t->chat, MG_USER, "\n", &own) : MG_OK;
    if (!st) st = mg_chat_add_text_n(t->chat, MG_USER, text, n, &own);
    if (!st) {
        st = mg_session_answer(t->chat, &t->options, &run, &answer, &own);
        t->unanswered = st && !answer.text;
    }
    if (run.write_status) return mg_fail(err, run.write_status, own.code, "%s", own.text);
    if ((!st || run.any) && (!run.any || run.last != '\n')) {
        enum mg_status wrote = mg_write(STDOUT_FILENO, "\n", 1, err);
        if (wrote) return wrote;
    }
    if (st == MG_ERR_CANCELLED)
        fputs("margay: stopped\n", stderr);
    else if (st) {
        complain(t, &own);
        if (st == MG_ERR_CONTEXT || st == MG_ERR_NUMERIC)
            fputs("margay: /clear begins anew\n", stderr);
    }
    if (st == MG_ERR_CANCELLED && !t->tty) return mg_fail(err, st, "interrupted", "interrupted");
    return MG_OK;
}

/* The next line into `out`, continued lines joined. false at the end of input; *interrupted: by
 * ctrl-C. */
static bool read_line(struct talk *t, char **line, size_t *cap, struct mg_buf *out,
                      bool *interrupted) {
    mg_buf_free(out);
    *interrupted = false;
    for (;;) {
        if (t->tty) mg_interrupt_wait(); /* before the prompt: whoever sees it may press ctrl-C */
        if (t->tty) fputs(out->n ? "... " : "> ", stderr);
        ssize_t n = t->tty && !mg_interrupt_input() ? -1 : getline(line, cap, stdin);
        if (t->tty) *interrupted = mg_interrupt_woken();
        if (*interrupted) {
            clearerr(stdin);
            fputc('\n', stderr);
            return true;
        }
        if (n < 0) return out->n > 0;
        if (n && (*line)[n - 1] == '\n') n--;
        if (n && (*line)[n - 1] == '\r') n--;
        bool more = n && (*line)[n - 1] == '\\';
        mg_buf_add(out, *line, (size_t)(more ? n - 1 : n));
        if (!more) return true;
        mg_buf_add_byte(out, '\n');
    }
}

static enum mg_status talk(struct talk *t, struct mg_err *err) {
    struct mg_options *o = t->o;
    mg_session_answer_options(o, t->engine, &t->options);
    mg_progress_init(&t->progress, o);
    enum mg_status st = restart(t, err);
    for (size_t i = 0; i < o->value[MG_OPT_IMAGE].n_list && !st; i++)
        st = mg_session_split_paths(o, o->value[MG_OPT_IMAGE].list[i], add_image, t, err);
    for (size_t i = 0; i < o->n_arg && !st; i++) st = add_image(t, o->arg[i], err);
    if (!st && t->tty) fputs("margay: ask away; /help lists the commands\n", stderr);
    struct mg_buf text = {.max = (size_t)16 << 20};
    char *line = NULL;
    size_t cap = 0;
    bool interrupted;
    while (!st && !t->quit && read_line(t, &line, &cap, &text, &interrupted)) {
        if (text.failed)
            st = mg_fail(err, MG_ERR_LIMIT, "line", "a line of more than 16 MiB");
        else if (interrupted || !text.n)
            continue;
        else if (text.data[0] == '/')
            st = command(t, (char *)text.data, err);
        else
            st = turn(t, (const char *)text.data, text.n, err);
    }
    if (!t->quit && t->tty) fputc('\n', stderr);
    free(line);
    mg_buf_free(&text);
    mg_chat_close(t->chat);
    return st;
}

enum mg_exit mg_cmd_chat(struct mg_options *o) {
    struct mg_err err = {0};
    struct talk t = {.o = o, .tty = isatty(STDIN_FILENO) == 1};
    enum mg_status st = mg_session_open(o, &t.engine, &err);
    if (!st) st = talk(&t, &err);
    mg_engine_close(t.engine);
    if (st) return mg_report(o, &err);
    return t.failed && !t.tty ? MG_EXIT_FAILED : MG_EXIT_OK;
}
