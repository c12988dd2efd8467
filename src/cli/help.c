/* cli/help.c - everything that people and shells read about options, made from the one table.
 *
 *     margay --help, margay COMMAND --help   plain text, at most 90 columns
 *     margay help --man                      roff with the man macros
 *     margay completion bash|zsh             scripts for those shells
 */
#include "cli/commands.h"

#include "base/io.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COLUMNS 90
#define INDENT 30

/* Words of `text` in lines from column `at`, later lines from `indent`; paragraphs at newlines. */
static void wrap(struct mg_buf *out, const char *text, size_t at, size_t indent) {
    for (const char *s = text; *s;) {
        if (*s == '\n') {
            mg_buf_printf(out, "\n%*s", (int)indent, "");
            at = indent;
            s++;
            continue;
        }
        size_t n = strcspn(s, " \n");
        if (at > indent && at + 1 + n > COLUMNS) {
            mg_buf_printf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            mg_buf_add_byte(out, ' ');
            at++;
        }
        mg_buf_add(out, s, n);
        at += n;
        s += n;
        while (*s == ' ') s++;
    }
    mg_buf_add_byte(out, '\n');
}

/* "-n, --max-tokens, --predict N" */
static void spellings(struct mg_buf *out, const struct mg_opt_info *info) {
    size_t start = out->n;
    for (int dashes = 1; dashes <= 2; dashes++) {
        for (size_t i = 0; i < 6 && info->alias[i]; i++) {
            int have = info->alias[i][1] == '-' ? 2 : 1;
            if (have == dashes)
                mg_buf_printf(out, "%s%s", out->n > start ? ", " : "", info->alias[i]);
        }
        if (dashes == 1)
            mg_buf_printf(out, "%s--%s%s", out->n > start ? ", " : "",
                          info->negatable ? "[no-]" : "", info->name);
    }
    if (info->value) mg_buf_printf(out, " %s", info->value);
}

/* The help sentence with choices, default and environment names behind it. */
static void sentence(struct mg_buf *out, enum mg_opt id) {
    const struct mg_opt_info *info = &mg_opts[id];
    mg_buf_add_str(out, info->help);
    if (info->fallback) mg_buf_printf(out, " [default: %s]", info->fallback);
    if (info->argv_only) return;
    char name[64];
    mg_option_env_name(id, name, sizeof name);
    mg_buf_printf(out, " [%s%s%s]", name, info->llama ? ", " : "", info->llama ? info->llama : "");
}

static void option_help(struct mg_buf *out, enum mg_opt id) {
    struct mg_buf left = {0}, right = {0};
    spellings(&left, &mg_opts[id]);
    sentence(&right, id);
    if (left.data && right.data) {
        mg_buf_printf(out, "  %s", (char *)left.data);
        size_t at = left.n + 2;
        if (at + 2 > INDENT) {
            mg_buf_printf(out, "\n%*s", INDENT, "");
        } else {
            mg_buf_printf(out, "%*s", (int)(INDENT - at), "");
        }
        wrap(out, (char *)right.data, INDENT, INDENT);
    }
    mg_buf_free(&left);
    mg_buf_free(&right);
}

static void command_help(struct mg_buf *out, enum mg_command command) {
    const struct mg_command_info *info = &mg_commands[command];
    mg_buf_printf(out, "usage: margay %s %s\n\n", info->name, info->arguments);
    wrap(out, info->detail, 0, 0);
    const char *group = "";
    for (int pass = 0; pass < MG_N_OPT; pass++) { /* groups in order of their first option */
        if (!(mg_opts[pass].commands >> command & 1)) continue;
        bool seen = false;
        for (int i = 0; i < pass; i++)
            seen |= (mg_opts[i].commands >> command & 1) &&
                    !strcmp(mg_opts[i].group, mg_opts[pass].group);
        if (seen) continue;
        group = mg_opts[pass].group;
        mg_buf_printf(out, "\n%s:\n", group);
        for (int i = pass; i < MG_N_OPT; i++)
            if ((mg_opts[i].commands >> command & 1) && !strcmp(mg_opts[i].group, group))
                option_help(out, i);
    }
    if (info->example[0]) mg_buf_add_str(out, "\nExamples:\n");
    for (size_t i = 0; i < 4 && info->example[i]; i++)
        mg_buf_printf(out, "  %s\n", info->example[i]);
}

static const char about[] = "Answers questions about pictures with Qwen3-VL on an ordinary CPU.";
static const char precedence[] =
    "An option given on the command line wins over its MARGAY_ variable, that over llama-server's "
    "LLAMA_ARG_ "
    "variable, that over the INI file, that over the default. Switches take 1, on, true, enabled, "
    "yes or 0, off, "
    "false, disabled, no. llama-server's options for graphics cards are accepted and ignored.";
static const char exits[] =
    "0: done. 1: failed, with the reason on standard error. 2: wrong usage. 130: interrupted.";

bool mg_help_text(int command, struct mg_buf *out) {
    if (command >= 0) {
        command_help(out, (enum mg_command)command);
        return !out->failed;
    }
    mg_buf_printf(out, "usage: margay COMMAND [options]\n\n%s\n\nCommands:\n", about);
    for (int i = 0; i < MG_N_CMD; i++)
        mg_buf_printf(out, "  %-12s%s\n", mg_commands[i].name, mg_commands[i].summary);
    mg_buf_add_str(
        out, "\n'margay COMMAND --help' lists a command's options, 'margay help --man' is the "
             "manual.\n\n");
    wrap(out, precedence, 0, 0);
    mg_buf_add_byte(out, '\n');
    mg_buf_add_str(out, "Exit status: ");
    wrap(out, exits, 13, 0);
    mg_buf_add_str(out, "\nExamples:\n");
    for (int i = 0; i < MG_N_CMD; i++)
        if (mg_commands[i].example[0] && i != MG_CMD_TRACE)
            mg_buf_printf(out, "  %s\n", mg_commands[i].example[0]);
    return !out->failed;
}

/* Text for roff: backslashes and dashes escaped, a leading dot or quote guarded. */
static void roff(struct mg_buf *out, const char *text) {
    bool start = true;
    for (const char *s = text; *s; s++) {
        if (start && (*s == '.' || *s == '\'')) mg_buf_add_str(out, "\\&");
        if (*s == '\\')
            mg_buf_add_str(out, "\\e");
        else if (*s == '-')
            mg_buf_add_str(out, "\\-");
        else if (*s == '\n')
            mg_buf_add_str(out, "\n.PP");
        if (*s == '\n')
            mg_buf_add_byte(out, '\n');
        else if (*s != '\\' && *s != '-')
            mg_buf_add_byte(out, (uint8_t)*s);
        start = *s == '\n';
    }
    mg_buf_add_byte(out, '\n');
}

static void roff_option(struct mg_buf *out, enum mg_opt id) {
    struct mg_buf text = {0};
    spellings(&text, &mg_opts[id]);
    mg_buf_add_str(out, ".TP\n.B ");
    if (text.data) roff(out, (char *)text.data);
    mg_buf_free(&text);
    sentence(&text, id);
    if (text.data) roff(out, (char *)text.data);
    mg_buf_free(&text);
    if (mg_opts[id].commands == (1u << MG_N_CMD) - 1) return;
    mg_buf_add_str(out, "Of: ");
    bool any = false;
    for (int c = 0; c < MG_N_CMD; c++) {
        if (!(mg_opts[id].commands >> c & 1)) continue;
        mg_buf_printf(out, "%s%s", any ? ", " : "", mg_commands[c].name);
        any = true;
    }
    mg_buf_add_str(out, ".\n");
}

bool mg_help_man(struct mg_buf *out) {
    mg_buf_printf(
        out,
        ".TH MARGAY 1 \"\" \"margay %s\" \"User Commands\"\n.SH NAME\nmargay \\- ask questions "
        "about pictures, on a CPU\n.SH SYNOPSIS\n",
        mg_version());
    for (int i = 0; i < MG_N_CMD; i++) {
        mg_buf_printf(out, ".B margay %s\n", mg_commands[i].name);
        if (*mg_commands[i].arguments) roff(out, mg_commands[i].arguments);
        mg_buf_add_str(out, ".br\n");
    }
    mg_buf_add_str(out, ".SH DESCRIPTION\n");
    roff(out, about);
    mg_buf_add_str(
        out,
        "Results go to standard output, progress and remarks to standard error.\n.SH COMMANDS\n");
    for (int i = 0; i < MG_N_CMD; i++) {
        mg_buf_printf(out, ".SS %s\n", mg_commands[i].name);
        roff(out, mg_commands[i].detail);
    }
    mg_buf_add_str(out, ".SH OPTIONS\n");
    for (int i = 0; i < MG_N_OPT; i++) roff_option(out, i);
    mg_buf_add_str(out, ".SH ENVIRONMENT\n");
    roff(out, precedence);
    mg_buf_add_str(
        out, ".TP\n.B MARGAY_CPU\nref, avx2, avxvnni, avx512, vnni, bf16 or amx: the most that the "
             "kernels may use.\n.SH FILES\n.TP\n.I ~/.config/margay/config.ini\n");
    roff(out, mg_opts[MG_OPT_CONFIG].help);
    mg_buf_add_str(out, ".SH EXIT STATUS\n");
    roff(out, exits);
    mg_buf_add_str(out, ".SH EXAMPLES\n.nf\n");
    for (int i = 0; i < MG_N_CMD; i++)
        for (size_t j = 0; j < 4 && mg_commands[i].example[j]; j++)
            roff(out, mg_commands[i].example[j]);
    mg_buf_add_str(out, ".fi\n");
    return !out->failed;
}

/* All spellings of a command's options, separated by blanks. */
static void all_spellings(struct mg_buf *out, enum mg_command command) {
    for (int i = 0; i < MG_N_OPT; i++) {
        const struct mg_opt_info *info = &mg_opts[i];
        if (!(info->commands >> command & 1)) continue;
        mg_buf_printf(out, "--%s ", info->name);
        if (info->negatable) mg_buf_printf(out, "--no-%s ", info->name);
        for (size_t j = 0; j < 6 && info->alias[j]; j++) mg_buf_printf(out, "%s ", info->alias[j]);
    }
}

/* "--detail" or "-x|--detail" as a case pattern. */
static void case_pattern(struct mg_buf *out, const struct mg_opt_info *info) {
    mg_buf_printf(out, "--%s", info->name);
    for (size_t j = 0; j < 6 && info->alias[j]; j++) mg_buf_printf(out, "|%s", info->alias[j]);
}

static void bash(struct mg_buf *out) {
    mg_buf_add_str(out,
                   "# bash completion for margay; made by: margay completion bash\n_margay() {\n"
                   "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                   "    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"");
    for (int i = 0; i < MG_N_CMD; i++) mg_buf_printf(out, "%s ", mg_commands[i].name);
    mg_buf_add_str(out,
                   "--help --version\" -- \"$cur\"))\n        return\n    fi\n    case $prev in\n");
    for (int i = 0; i < MG_N_OPT; i++) {
        if (mg_opts[i].type != MG_TYPE_CHOICE) continue;
        mg_buf_add_str(out, "    ");
        case_pattern(out, &mg_opts[i]);
        mg_buf_add_str(out, ") COMPREPLY=($(compgen -W \"");
        for (const char *c = mg_opts[i].choice; *c; c++)
            mg_buf_add_byte(out, *c == '|' ? ' ' : (uint8_t)*c);
        mg_buf_add_str(out, "\" -- \"$cur\")); return ;;\n");
    }
    mg_buf_add_str(out, "    esac\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < MG_N_CMD; i++) {
        mg_buf_printf(out, "    %s) local words=\"", mg_commands[i].name);
        if (i == MG_CMD_HELP)
            for (int c = 0; c < MG_N_CMD; c++) mg_buf_printf(out, "%s ", mg_commands[c].name);
        if (i == MG_CMD_COMPLETION) mg_buf_add_str(out, "bash zsh ");
        all_spellings(out, i);
        mg_buf_add_str(out, "\" ;;\n");
    }
    mg_buf_add_str(out, "    *) local words= ;;\n    esac\n"
                        "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                        "    [[ $cur == -* ]] || COMPREPLY+=($(compgen -f -- \"$cur\"))\n}\n"
                        "complete -o filenames -F _margay margay\n");
}

/* Help inside zsh's '...[help]': quotes, brackets and colons would end it. */
static void zsh_text(struct mg_buf *out, const char *text) {
    for (const char *s = text; *s; s++) {
        if (*s == '\'')
            mg_buf_add_str(out, "'\\''");
        else if (strchr("[]:\\", *s))
            mg_buf_printf(out, "\\%c", *s);
        else
            mg_buf_add_byte(out, (uint8_t)*s);
    }
}

static void zsh_option(struct mg_buf *out, const char *dashes, const struct mg_opt_info *info) {
    mg_buf_printf(out, "            '*%s[", dashes);
    zsh_text(out, info->help);
    mg_buf_add_byte(out, ']');
    if (info->value) {
        mg_buf_printf(out, ":%s:", info->value);
        if (info->type == MG_TYPE_CHOICE) {
            mg_buf_add_byte(out, '(');
            for (const char *c = info->choice; *c; c++)
                mg_buf_add_byte(out, *c == '|' ? ' ' : (uint8_t)*c);
            mg_buf_add_byte(out, ')');
        } else if (!strcmp(info->value, "FOLDER")) {
            mg_buf_add_str(out, "_directories");
        } else if (!strncmp(info->value, "FILE", 4)) {
            mg_buf_add_str(out, "_files");
        }
    }
    mg_buf_add_str(out, "' \\\n");
}

static void zsh(struct mg_buf *out) {
    mg_buf_add_str(out, "#compdef margay\n# zsh completion for margay; made by: margay completion "
                        "zsh\n_margay() {\n"
                        "    if (( CURRENT == 2 )); then\n        local -a commands=(\n");
    for (int i = 0; i < MG_N_CMD; i++) {
        mg_buf_printf(out, "            '%s:", mg_commands[i].name);
        zsh_text(out, mg_commands[i].summary);
        mg_buf_add_str(out, "'\n");
    }
    mg_buf_add_str(out, "        )\n        _describe command commands\n        return\n    fi\n"
                        "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
                        "    case $command in\n");
    for (int c = 0; c < MG_N_CMD; c++) {
        mg_buf_printf(out, "    %s)\n        _arguments \\\n", mg_commands[c].name);
        for (int i = 0; i < MG_N_OPT; i++) {
            const struct mg_opt_info *info = &mg_opts[i];
            if (!(info->commands >> c & 1)) continue;
            char name[64];
            snprintf(name, sizeof name, "--%s", info->name);
            zsh_option(out, name, info);
            for (size_t j = 0; j < 6 && info->alias[j]; j++) zsh_option(out, info->alias[j], info);
        }
        mg_buf_add_str(out, c == MG_CMD_COMPLETION ? "            '1:shell:(bash zsh)' ;;\n"
                                                   : "            '*:file:_files' ;;\n");
    }
    mg_buf_add_str(out, "    esac\n}\n_margay \"$@\"\n");
}

bool mg_help_completion(const char *shell, struct mg_buf *out) {
    if (!strcmp(shell, "bash"))
        bash(out);
    else
        zsh(out);
    return !out->failed;
}

enum mg_exit mg_print(struct mg_options *o, struct mg_buf *text) {
    struct mg_err err = {0};
    if (text->failed)
        mg_fail_memory(&err, "text");
    else
        mg_write(STDOUT_FILENO, text->data, text->n, &err);
    mg_buf_free(text);
    return err.status ? mg_report(o, &err) : MG_EXIT_OK;
}

static enum mg_exit usage(struct mg_options *o, const char *text, const char *word) {
    struct mg_err err = {0};
    mg_fail(&err, MG_ERR_ARGUMENT, "usage", "%s%.60s", text, word);
    return mg_report(o, &err);
}

enum mg_exit mg_cmd_help(struct mg_options *o) {
    struct mg_buf text = {0};
    int command = o->n_arg ? mg_command_find(o->arg[0]) : -1;
    if (o->n_arg && command < 0) return usage(o, "no command ", o->arg[0]);
    if (mg_opt_flag(o, MG_OPT_MAN, false))
        mg_help_man(&text);
    else
        mg_help_text(command, &text);
    return mg_print(o, &text);
}

enum mg_exit mg_cmd_version(struct mg_options *o) {
    struct mg_buf text = {0};
    mg_buf_printf(&text, "margay %s\n", mg_version());
    return mg_print(o, &text);
}

enum mg_exit mg_cmd_completion(struct mg_options *o) {
    struct mg_buf text = {0};
    const char *shell = o->n_arg ? o->arg[0] : "";
    if (strcmp(shell, "bash") && strcmp(shell, "zsh"))
        return usage(o, "completion is for bash or zsh", *shell ? ", for no other shell" : "");
    mg_help_completion(shell, &text);
    return mg_print(o, &text);
}
