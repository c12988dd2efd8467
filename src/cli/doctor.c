/* cli/doctor.c - margay doctor: what this machine offers and what holds it back; see doctor.h. */
#include "cli/doctor.h"
#include "cli/commands.h"

#include "base/io.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE ((size_t)4 << 20) /* mountinfo and cpuinfo of large machines */

static const char *format(struct mg_doctor *d, const char *fmt, va_list args) {
    char text[4096];
    int n = vsnprintf(text, sizeof text, fmt, args);
    size_t length = n < 0 ? 0 : mg_min_size((size_t)n, sizeof text - 1);
    const char *kept = mg_arena_strdup(&d->o->arena, text, length);
    if (!kept) d->failed = true;
    return kept ? kept : "";
}

const char *mg_doctor_text(struct mg_doctor *d, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const char *text = format(d, fmt, args);
    va_end(args);
    return text;
}

void mg_doctor_say(struct mg_doctor *d, enum mg_level level, const char *id, const char *why,
                   const char *mend, const char *fmt, ...) {
    va_list args;
    if (d->n_finding == MG_MAX_FINDING) return;
    va_start(args, fmt);
    d->finding[d->n_finding++] = (struct mg_finding){
        .id = id, .level = level, .found = format(d, fmt, args), .why = why, .mend = mend};
    va_end(args);
}

const char *mg_doctor_by_place(const struct mg_doctor *d, const char *host, const char *docker,
                               const char *kubernetes, const char *container) {
    const char *text[] = {[MG_PLACE_HOST] = host,
                          [MG_PLACE_DOCKER] = docker,
                          [MG_PLACE_KUBERNETES] = kubernetes,
                          [MG_PLACE_CONTAINER] = container};
    if (text[d->place]) return text[d->place];
    return container ? container : host;
}

static bool full_path(const struct mg_doctor *d, const char *path, char out[8192]) {
    int n = snprintf(out, 8192, "%s%s", d->root, path);
    return n > 0 && n < 8192;
}

char *mg_doctor_read(struct mg_doctor *d, const char *path) {
    char full[8192], *kept = NULL;
    struct mg_buf b = {.max = MAX_FILE};
    if (full_path(d, path, full) && !mg_file_read(full, MAX_FILE, &b, NULL) && b.data) {
        size_t n = strnlen((const char *)b.data, b.n);
        while (n && strchr(" \t\r\n", b.data[n - 1])) n--;
        kept = mg_arena_strdup(&d->o->arena, (const char *)b.data, n);
        if (!kept) d->failed = true;
    }
    mg_buf_free(&b);
    return kept;
}

bool mg_doctor_number(struct mg_doctor *d, const char *path, uint64_t *out) {
    const char *text = mg_doctor_read(d, path);
    if (!text || *text < '0' || *text > '9') return false;
    char *end;
    *out = strtoull(text, &end, 10);
    return *end == '\0';
}

bool mg_doctor_field(const char *text, const char *key, uint64_t *out) {
    size_t n = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, n) != 0) continue;
        const char *s = line + n;
        while (*s == ' ' || *s == '\t') s++;
        if (s == line + n && key[n - 1] != ':') continue; /* "nr_throttled_x" is another */
        if (*s < '0' || *s > '9') return false;
        *out = strtoull(s, NULL, 10);
        return true;
    }
    return false;
}

bool mg_doctor_exists(struct mg_doctor *d, const char *path) {
    char full[8192];
    struct stat is;
    return full_path(d, path, full) && stat(full, &is) == 0;
}

size_t mg_doctor_count(const struct mg_doctor *d, enum mg_level level) {
    size_t n = 0;
    for (size_t i = 0; i < d->n_finding; i++) n += d->finding[i].level == level;
    return n;
}

static enum mg_status examine(struct mg_doctor *d, struct mg_err *err) {
    const char *range = mg_opt_text(d->o, MG_OPT_CPU_RANGE, NULL);
    enum mg_status st = MG_OK;
    d->root = mg_opt_text(d->o, MG_OPT_ROOT, "");
    if (*d->root) {
        struct stat is;
        if (stat(d->root, &is) != 0 || !S_ISDIR(is.st_mode))
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--root: no folder '%.200s'", d->root);
        if (range)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                           "--cpu-range is for this machine; with --root the folder's `affinity` "
                           "file has the processors");
    }
    if (range) st = mg_affinity_narrow(range, err);
    if (st && err) snprintf(err->code, sizeof err->code, "usage");
    if (st) return st;
    mg_topology_read(d->root, &d->topology);
    d->n_thread = (int)mg_opt_int(d->o, MG_OPT_THREADS, 0);
    if (d->n_thread < 1) d->n_thread = d->topology.n_thread;
    mg_doctor_place(d);
    mg_doctor_cpu(d);
    mg_doctor_model(d);
    mg_doctor_memory(d);
    mg_doctor_files(d);
    st = mg_doctor_redis(d, err);
    if (!st) mg_doctor_speed(d);
    if (!st && d->failed) st = mg_fail_memory(err, "findings");
    return st;
}

enum mg_exit mg_cmd_doctor(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_buf out = {0};
    struct mg_doctor *d = calloc(1, sizeof *d);
    enum mg_status st = d ? MG_OK : mg_fail_memory(&err, "findings");
    mg_interrupt_arm();
    if (!st && o->n_arg)
        st = mg_fail(&err, MG_ERR_ARGUMENT, "usage", "doctor takes options only, no arguments");
    if (!st) {
        d->o = o;
        st = examine(d, &err);
    }
    bool json = mg_opt_flag(o, MG_OPT_JSON, false);
    if (!st && !(json ? mg_doctor_show_json(d, &out) : mg_doctor_show_text(d, &out)))
        st = mg_fail_memory(&err, "findings");
    size_t problems = st ? 0 : mg_doctor_count(d, MG_LEVEL_PROBLEM);
    free(d);
    if (st) {
        mg_buf_free(&out);
        return mg_report(o, &err);
    }
    enum mg_exit code = mg_print(o, &out);
    return code ? code : problems ? MG_EXIT_FAILED : MG_EXIT_OK;
}
