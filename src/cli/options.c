/* cli/options.c - reads a command line by the table, checks values, and suggests what was meant.
 *
 * Order of work: argv, then the environment, then the INI file; a value is stored only over a
 * weaker source, so the order decides nothing but which error is met first. A list (`--stop`,
 * `--image`) grows within one source and is replaced by a stronger one.
 */
#include "cli/options.h"

#include "base/io.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool parse_bool(const char *text, bool *out) {
    static const char *const yes[] = {"1", "on", "true", "enabled", "yes"};
    static const char *const no[] = {"0", "off", "false", "disabled", "no"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (!strcasecmp(text, yes[i])) {
            *out = true;
            return true;
        }
        if (!strcasecmp(text, no[i])) {
            *out = false;
            return true;
        }
    }
    return false;
}

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *c = choices; *c;) {
        size_t len = strcspn(c, "|");
        if (len == n && !memcmp(c, text, n)) return true;
        c += len + (c[len] == '|');
    }
    return false;
}

static enum mg_status add_to_list(struct mg_options *o, struct mg_opt_value *v, const char *text,
                                  struct mg_err *err) {
    const char **list = mg_arena_alloc(&o->arena, v->n_list + 1, sizeof *list);
    if (!list) return mg_fail_memory(err, "options");
    if (v->n_list) memcpy(list, v->list, v->n_list * sizeof *list);
    list[v->n_list++] = text;
    v->list = list;
    return MG_OK;
}

static enum mg_status store_int(const struct mg_opt_info *info, const char *what, const char *text,
                                struct mg_opt_value *v, struct mg_err *err) {
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s takes a whole number, not '%.40s'", what,
                       text);
    if (errno == ERANGE || (double)x < info->min || (double)x > info->max)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s must be from %.0f to %.0f, not %.40s",
                       what, info->min, info->max, text);
    v->integer = x;
    return MG_OK;
}

static enum mg_status store_float(const struct mg_opt_info *info, const char *what,
                                  const char *text, struct mg_opt_value *v, struct mg_err *err) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s takes a number, not '%.40s'", what, text);
    if (x < info->min || x > info->max)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s must be from %g to %g, not %.40s", what,
                       info->min, info->max, text);
    v->number = x;
    return MG_OK;
}

enum mg_status mg_option_store(struct mg_options *o, enum mg_opt id, const char *what,
                               const char *text, enum mg_opt_source source, struct mg_err *err) {
    const struct mg_opt_info *info = &mg_opts[id];
    struct mg_opt_value *v = &o->value[id];
    if (v->source > source) return MG_OK;
    struct mg_opt_value next = {.source = source};
    switch (info->type) {
    case MG_TYPE_FLAG:
        if (!parse_bool(text, &next.on))
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s takes on or off, not '%.40s'", what,
                           text);
        break;
    case MG_TYPE_INT:
        if (store_int(info, what, text, &next, err)) return MG_ERR_ARGUMENT;
        break;
    case MG_TYPE_FLOAT:
        if (store_float(info, what, text, &next, err)) return MG_ERR_ARGUMENT;
        break;
    case MG_TYPE_STRING:
    case MG_TYPE_LIST:
        if (!*text) return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s is empty", what);
        next.text = text;
        break;
    case MG_TYPE_CHOICE:
        if (!is_choice(info->choice, text))
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s is one of %s, not '%.40s'", what,
                           info->choice, text);
        next.text = text;
        break;
    }
    if (info->type == MG_TYPE_LIST) {
        if (v->source == source) {
            next.list = v->list;
            next.n_list = v->n_list;
        }
        enum mg_status st = add_to_list(o, &next, text, err);
        if (st) return st;
    }
    *v = next;
    return MG_OK;
}

/* Is `word` (n bytes, with dashes) a spelling of the option? *negated: as --no-NAME. */
static bool spelled(const struct mg_opt_info *info, const char *word, size_t n, bool *negated) {
    *negated = false;
    size_t len = strlen(info->name);
    if (n == len + 2 && !memcmp(word, "--", 2) && !memcmp(word + 2, info->name, len)) return true;
    for (size_t i = 0; i < sizeof info->alias / sizeof info->alias[0] && info->alias[i]; i++)
        if (strlen(info->alias[i]) == n && !memcmp(word, info->alias[i], n)) return true;
    *negated = info->negatable && n == len + 5 && !memcmp(word, "--no-", 5) &&
               !memcmp(word + 5, info->name, len);
    return *negated;
}

/* The option of this command with that spelling, or -1; *elsewhere: one of another command, or -1.
 */
static int find_option(enum mg_command command, const char *word, size_t n, bool *negated,
                       int *elsewhere) {
    *elsewhere = -1;
    for (int i = 0; i < MG_N_OPT; i++) {
        bool no;
        if (!spelled(&mg_opts[i], word, n, &no)) continue;
        if (mg_opts[i].commands >> command & 1) {
            *negated = no;
            return i;
        }
        *elsewhere = i;
    }
    return -1;
}

static const struct mg_ignored_option *find_ignored(const char *word, size_t n) {
    for (size_t i = 0; i < mg_n_ignored_option; i++)
        for (size_t j = 0; j < 4 && mg_ignored_options[i].name[j]; j++)
            if (strlen(mg_ignored_options[i].name[j]) == n &&
                !memcmp(mg_ignored_options[i].name[j], word, n))
                return &mg_ignored_options[i];
    return NULL;
}

static enum mg_status unknown(enum mg_command command, const char *word, size_t n, int elsewhere,
                              struct mg_err *err) {
    const char *name = mg_commands[command].name;
    if (elsewhere >= 0) {
        int other = 0;
        while (!(mg_opts[elsewhere].commands >> other & 1)) other++;
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s has no option %.*s; %s has", name, (int)n,
                       word, mg_commands[other].name);
    }
    char typed[64], near[64];
    snprintf(typed, sizeof typed, "%.*s", (int)mg_min_size(n, 60), word);
    if (mg_option_suggest(command, typed, near, sizeof near))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s has no option %s; did you mean %s?", name,
                       typed, near);
    return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                   "%s has no option %s (put -- before an argument that begins with a dash)", name,
                   typed);
}

/* One option at argv[*at]; moves *at past a value that it took. */
static enum mg_status take_option(struct mg_options *o, int argc, char **argv, int *at,
                                  struct mg_buf *ignored, struct mg_err *err) {
    const char *word = argv[*at];
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    bool negated = false;
    int elsewhere;
    int id = find_option(o->command, word, n, &negated, &elsewhere);
    if (id < 0) {
        const struct mg_ignored_option *skip = find_ignored(word, n);
        if (!skip) return unknown(o->command, word, n, elsewhere, err);
        if (!equals && *at + 1 < argc &&
            (skip->n_value == 1 || (skip->n_value < 0 && is_choice("on|off|auto", argv[*at + 1]))))
            ++*at;
        mg_buf_printf(ignored, "%s%.*s", ignored->n ? ", " : "", (int)n, word);
        return MG_OK;
    }
    char what[64];
    snprintf(what, sizeof what, "%.*s", (int)mg_min_size(n, 60), word);
    if (mg_opts[id].type == MG_TYPE_FLAG) {
        if (negated && equals)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s takes no value", what);
        const char *text = negated ? "off" : equals ? equals + 1 : "on";
        return mg_option_store(o, id, what, text, MG_FROM_ARGV, err);
    }
    const char *text = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    if (!text)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s needs a value (%s)", what,
                       mg_opts[id].value);
    return mg_option_store(o, id, what, text, MG_FROM_ARGV, err);
}

enum mg_status mg_options_parse(struct mg_options *o, enum mg_command command, int argc,
                                char **argv, struct mg_err *err) {
    *o = (struct mg_options){.command = command};
    struct mg_buf ignored = {.max = 4096};
    enum mg_status st = MG_OK;
    o->arg = mg_arena_alloc(&o->arena, (size_t)argc + 1, sizeof *o->arg);
    if (!o->arg) return mg_fail_memory(err, "options");
    bool options = true;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--"))
            break;
        else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            o->help = true;
    if (o->help) return MG_OK;
    for (int i = 0; i < argc && !st; i++) {
        const char *word = argv[i];
        if (options && !strcmp(word, "--"))
            options = false;
        else if (options && word[0] == '-' && word[1])
            st = take_option(o, argc, argv, &i, &ignored, err);
        else if (o->n_arg < mg_commands[command].max_arg)
            o->arg[o->n_arg++] = word;
        else
            st = mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s takes %s, not '%.60s'",
                         mg_commands[command].name,
                         mg_commands[command].max_arg ? "one argument" : "no arguments", word);
    }
    if (!st) st = mg_options_read_env(o, err);
    if (!st) st = mg_options_read_ini(o, err);
    if (!st && ignored.n)
        mg_log(MG_LOG_WARN, "for graphics cards, ignored here: %s", (const char *)ignored.data);
    mg_buf_free(&ignored);
    return st;
}

void mg_options_free(struct mg_options *o) {
    mg_arena_free(&o->arena);
    *o = (struct mg_options){0};
}

int64_t mg_opt_int(const struct mg_options *o, enum mg_opt id, int64_t fallback) {
    return mg_opt_set(o, id) ? o->value[id].integer : fallback;
}

double mg_opt_float(const struct mg_options *o, enum mg_opt id, double fallback) {
    return mg_opt_set(o, id) ? o->value[id].number : fallback;
}

const char *mg_opt_text(const struct mg_options *o, enum mg_opt id, const char *fallback) {
    return mg_opt_set(o, id) ? o->value[id].text : fallback;
}

bool mg_opt_flag(const struct mg_options *o, enum mg_opt id, bool fallback) {
    return mg_opt_set(o, id) ? o->value[id].on : fallback;
}

bool mg_opt_is(const struct mg_options *o, enum mg_opt id, const char *choice) {
    const char *text = mg_opt_text(o, id, NULL);
    return text && !strcmp(text, choice);
}

int mg_command_find(const char *name) {
    for (int i = 0; i < MG_N_CMD; i++)
        if (!strcmp(mg_commands[i].name, name)) return i;
    return -1;
}

/* Edits (insert, delete, change, swap of neighbours) from a to b; words over 47 bytes are never
 * near. */
static size_t distance(const char *a, const char *b) {
    enum { MAX = 48 };
    size_t na = strlen(a), nb = strlen(b), row[3][MAX];
    if (na >= MAX || nb >= MAX) return MAX;
    size_t *before = row[0], *last = row[1], *now = row[2];
    memset(row, 0, sizeof row);
    for (size_t j = 0; j <= nb; j++) last[j] = j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = mg_min_size(d, mg_min_size(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = mg_min_size(d, before[j - 2] + 1);
            now[j] = d;
        }
        size_t *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[nb];
}

/* Keeps `candidate` in *best when it is nearer to what was typed, and near enough at all. */
static void consider(const char *typed, const char *candidate, size_t *best_d, const char **best) {
    size_t d = distance(typed, candidate), n = strlen(typed);
    if (n >= 3 && !strncmp(typed, candidate, n)) d = mg_min_size(d, 2);
    if (d < *best_d && d <= mg_max_size(1, mg_min_size(3, n / 3))) {
        *best_d = d;
        *best = candidate;
    }
}

const char *mg_command_suggest(const char *typed) {
    const char *best = NULL;
    size_t d = SIZE_MAX;
    for (int i = 0; i < MG_N_CMD; i++) consider(typed, mg_commands[i].name, &d, &best);
    return best;
}

const char *mg_option_suggest(enum mg_command command, const char *typed, char *buf, size_t cap) {
    const char *best = NULL;
    size_t d = SIZE_MAX;
    const char *bare = typed + strspn(typed, "-");
    bool no = !strncmp(bare, "no-", 3), long_form = !strncmp(typed, "--", 2);
    for (int i = 0; i < MG_N_OPT; i++) {
        if (!(mg_opts[i].commands >> command & 1)) continue;
        consider(no && mg_opts[i].negatable ? bare + 3 : bare, mg_opts[i].name, &d, &best);
        if (best == mg_opts[i].name)
            snprintf(buf, cap, "--%s%s", no && mg_opts[i].negatable ? "no-" : "", best);
        for (size_t j = 0; j < 6 && mg_opts[i].alias[j]; j++) {
            const char *alias = mg_opts[i].alias[j];
            if (!strncmp(alias, "--", 2) != long_form) continue;
            consider(typed, alias, &d, &best);
            if (best == alias) snprintf(buf, cap, "%s", best);
        }
    }
    return best ? buf : NULL;
}
