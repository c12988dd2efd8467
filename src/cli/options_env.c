/* cli/options_env.c - options from the environment and from an INI file.
 *
 *     threads = 4              ; for every command that has it
 *     [ask]
 *     max-tokens = 200         # only for ask, and stronger than the same key above
 *
 * Keys are options' names, or their other spellings without the dashes. An unknown key is an error
 * with its line, since a setting that is silently ignored is worse. Values may stand in double
 * quotes. The environment's booleans are 1/on/true/enabled/yes and 0/off/false/disabled/no. An
 * empty variable counts as unset.
 */
#include "cli/options.h"

#include "base/io.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_INI_BYTES ((size_t)1 << 20)

void mg_option_env_name(enum mg_opt id, char *buf, size_t cap) {
    size_t n = (size_t)snprintf(buf, cap, "MARGAY_%s", mg_opts[id].name);
    for (size_t i = 7; i < mg_min_size(n, cap - 1); i++)
        buf[i] = buf[i] == '-' ? '_' : (char)toupper((unsigned char)buf[i]);
}

enum mg_status mg_options_read_env(struct mg_options *o, struct mg_err *err) {
    for (int id = 0; id < MG_N_OPT; id++) {
        const struct mg_opt_info *info = &mg_opts[id];
        if (info->argv_only || !(info->commands >> o->command & 1)) continue;
        char name[64];
        mg_option_env_name(id, name, sizeof name);
        const char *ours = getenv(name), *theirs = info->llama ? getenv(info->llama) : NULL;
        enum mg_status st = MG_OK;
        if (ours && *ours)
            st = mg_option_store(o, id, name, ours, MG_FROM_ENV, err);
        else if (theirs && *theirs)
            st = mg_option_store(o, id, info->llama, theirs, MG_FROM_LLAMA_ENV, err);
        if (st) return st;
    }
    return MG_OK;
}

/* The option with this key, or -1. A key may belong to another command. */
static int find_key(const char *key) {
    for (int id = 0; id < MG_N_OPT; id++) {
        if (mg_opts[id].argv_only || id == MG_OPT_CONFIG) continue;
        if (!strcmp(key, mg_opts[id].name)) return id;
        for (size_t j = 0; j < 6 && mg_opts[id].alias[j]; j++)
            if (!strcmp(key, mg_opts[id].alias[j] + strspn(mg_opts[id].alias[j], "-"))) return id;
    }
    return -1;
}

static char *trim(char *s) {
    while (isspace((unsigned char)*s)) s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = 0;
    return s;
}

/* A value without its quotes, or without a comment behind it. Edited in place. */
static char *unquote(char *s) {
    size_t n = strlen(s);
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"') {
        s[n - 1] = 0;
        return s + 1;
    }
    for (char *c = s; *c; c++)
        if ((*c == '#' || *c == ';') && c > s && isspace((unsigned char)c[-1])) {
            *c = 0;
            break;
        }
    return trim(s);
}

/* One `key = value`. section: a command, -1 for all, -2 for one that isn't ours to read. */
static enum mg_status take_key(struct mg_options *o, char *line, int section, const char *file,
                               int number, struct mg_err *err) {
    char *equals = strchr(line, '=');
    if (!equals)
        return mg_fail(err, MG_ERR_ARGUMENT, "config", "%s line %d: not key = value", file, number);
    *equals = 0;
    char *key = trim(line), *value = unquote(trim(equals + 1));
    for (char *c = key; *c; c++)
        if (*c == '_') *c = '-';
    int id = find_key(key);
    if (id < 0) {
        char near[64], typed[72];
        snprintf(typed, sizeof typed, "--%.60s", key);
        const char *hint = mg_option_suggest(o->command, typed, near, sizeof near);
        return mg_fail(err, MG_ERR_ARGUMENT, "config", "%s line %d: no option '%.60s'%s%s%s", file,
                       number, key, hint ? "; did you mean " : "", hint ? hint + 2 : "",
                       hint ? "?" : "");
    }
    if (section >= 0 && !(mg_opts[id].commands >> section & 1))
        return mg_fail(err, MG_ERR_ARGUMENT, "config", "%s line %d: %s has no option %s", file,
                       number, mg_commands[section].name, mg_opts[id].name);
    if (!(mg_opts[id].commands >> o->command & 1) || (section >= 0 && section != (int)o->command))
        return MG_OK;
    char what[160];
    snprintf(what, sizeof what, "%.80s line %d: %s", file, number, mg_opts[id].name);
    const char *kept = mg_arena_strdup(&o->arena, value, strlen(value));
    if (!kept) return mg_fail_memory(err, "options");
    return mg_option_store(o, id, what, kept, section < 0 ? MG_FROM_INI : MG_FROM_INI_COMMAND, err);
}

static enum mg_status read_lines(struct mg_options *o, char *text, const char *file,
                                 struct mg_err *err) {
    int section = -1, number = 0;
    for (char *next; text; text = next) {
        next = strchr(text, '\n');
        if (next) *next++ = 0;
        number++;
        char *line = trim(text);
        if (!*line || *line == '#' || *line == ';') continue;
        if (*line == '[') {
            size_t n = strlen(line);
            if (line[n - 1] != ']')
                return mg_fail(err, MG_ERR_ARGUMENT, "config", "%s line %d: no ] after [", file,
                               number);
            line[n - 1] = 0;
            char *name = trim(line + 1);
            section = !strcmp(name, "*") ? -1 : mg_command_find(name);
            if (section < 0 && strcmp(name, "*"))
                return mg_fail(err, MG_ERR_ARGUMENT, "config", "%s line %d: no command '%.40s'",
                               file, number, name);
            continue;
        }
        enum mg_status st = take_key(o, line, section, file, number, err);
        if (st) return st;
    }
    return MG_OK;
}

/* The file that is read when none is named; false when the user has none. */
static bool default_path(char *path, size_t cap) {
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = -1;
    if (xdg && xdg[0] == '/')
        n = snprintf(path, cap, "%s/margay/config.ini", xdg);
    else if (home && home[0] == '/')
        n = snprintf(path, cap, "%s/.config/margay/config.ini", home);
    return n > 0 && (size_t)n < cap && !access(path, F_OK);
}

enum mg_status mg_options_read_ini(struct mg_options *o, struct mg_err *err) {
    if (!(mg_opts[MG_OPT_CONFIG].commands >> o->command & 1)) return MG_OK;
    char fallback[4096];
    const char *path = mg_opt_text(o, MG_OPT_CONFIG, NULL);
    if (!path) {
        if (!default_path(fallback, sizeof fallback)) return MG_OK;
        path = fallback;
    }
    struct mg_buf text = {.max = MAX_INI_BYTES};
    enum mg_status st = mg_file_read(path, MAX_INI_BYTES, &text, err);
    if (!st && text.n && memchr(text.data, 0, text.n))
        st = mg_fail(err, MG_ERR_FORMAT, "config", "%s is not a text file", path);
    if (!st && text.n) {
        const char *slash = strrchr(path, '/');
        st = read_lines(o, (char *)text.data, slash ? slash + 1 : path, err);
    }
    mg_buf_free(&text);
    return st;
}
