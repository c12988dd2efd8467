/* cli/main.c - finds the command, has its options read, and exits with what it returns. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum mg_exit command_fn(struct mg_options *o);
static command_fn *const run[MG_N_CMD] = {
    [MG_CMD_ASK] = mg_cmd_ask,
    [MG_CMD_CHAT] = mg_cmd_chat,
    [MG_CMD_SERVE] = mg_cmd_serve,
    [MG_CMD_TRACE] = mg_cmd_trace,
    [MG_CMD_TOKENIZE] = mg_cmd_tokenize,
    [MG_CMD_CONVERT] = mg_cmd_convert,
    [MG_CMD_PULL] = mg_cmd_pull,
    [MG_CMD_BENCH] = mg_cmd_bench,
    [MG_CMD_DOCTOR] = mg_cmd_doctor,
    [MG_CMD_WORKER] = mg_cmd_worker,
    [MG_CMD_LOAD] = mg_cmd_load,
    [MG_CMD_HEALTH] = mg_cmd_health,
    [MG_CMD_HELP] = mg_cmd_help,
    [MG_CMD_VERSION] = mg_cmd_version,
    [MG_CMD_COMPLETION] = mg_cmd_completion,
};

/* `margay` alone, a wrong command, or an option where the command belongs. */
static int no_command(const char *word) {
    struct mg_buf list = {0};
    for (int i = 0; i < MG_N_CMD; i++)
        mg_buf_printf(&list, "%s%s", i ? ", " : "", mg_commands[i].name);
    const char *near = word ? mg_command_suggest(word) : NULL;
    if (!word)
        fputs("margay: no command", stderr);
    else if (*word == '-')
        fprintf(stderr, "margay: the command comes first, not %.60s", word);
    else
        fprintf(stderr, "margay: no command %.60s", word);
    if (near) fprintf(stderr, "; did you mean %s?", near);
    fprintf(stderr, "\nmargay: there are %s ('margay --help' explains)\n",
            list.data ? (const char *)list.data : "");
    mg_buf_free(&list);
    return MG_EXIT_USAGE;
}

static int run_command(enum mg_command command, int argc, char **argv) {
    struct mg_options o;
    struct mg_err err = {0};
    int code;
    if (mg_options_parse(&o, command, argc, argv, &err)) {
        code = mg_report(&o, &err);
    } else if (o.help) {
        struct mg_buf text = {0};
        mg_help_text(command, &text);
        code = mg_print(&o, &text);
    } else {
        code = run[command](&o);
    }
    mg_options_free(&o);
    return code;
}

int main(int argc, char **argv) {
    mg_session_prepare();
    if (argc < 2) exit(no_command(NULL));
    const char *word = argv[1];
    static const struct {
        const char *word;
        enum mg_command command;
        char *argument;
    } spelling[] = {
        {"--help", MG_CMD_HELP, NULL},
        {"-h", MG_CMD_HELP, NULL},
        {"--version", MG_CMD_VERSION, NULL},
        {"--completion-bash", MG_CMD_COMPLETION, "bash"},
        {"--completion-zsh", MG_CMD_COMPLETION, "zsh"},
    };
    for (size_t i = 0; i < sizeof spelling / sizeof spelling[0]; i++) {
        char *arguments[] = {spelling[i].argument};
        if (!strcmp(word, spelling[i].word))
            exit(run_command(spelling[i].command, spelling[i].argument != NULL, arguments));
    }
    int command = mg_command_find(word);
    if (command < 0) exit(no_command(word));
    exit(run_command((enum mg_command)command, argc - 2, argv + 2));
}
