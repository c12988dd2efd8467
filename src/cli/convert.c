/* cli/convert.c - margay convert: a checkpoint folder into one packed file, and the check of one.
 *
 * Prints which matrices are kept at which precision and how far off they are (the square root of
 * squared error over squares, in percent), as a table or with --json as one object.
 */
#include "cli/commands.h"

#include "base/io.h"
#include "cpu/features.h"
#include "cpu/topology.h"
#include "weights/convert.h"
#include "weights/packed_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct conversion {
    struct mg_progress progress;
    double begin;
};

static bool on_progress(void *user, uint64_t done, uint64_t total) {
    struct conversion *c = user;
    mg_progress_convert(&c->progress, c->begin, done, total);
    return !mg_interrupt_seen();
}

static double percent_off(const struct mg_convert_part *p) {
    return p->square > 0 ? 100 * sqrt(p->error / p->square) : 0;
}

static enum mg_exit print_table(struct mg_options *o, const char *path,
                                const struct mg_convert_report *r) {
    struct mg_buf b = {0};
    mg_buf_printf(&b, "%-16s %-5s %9s %12s %9s %8s\n", "matrices", "kept", "count", "weights", "MB",
                  "off by");
    for (int m = 0; m < MG_N_MATRIX; m++)
        for (int s = 0; s < 3; s++) {
            const struct mg_convert_part *p = &r->part[m][s];
            if (!p->count) continue;
            mg_buf_printf(&b, "%-16s %-5s %9zu %10.1f M %9.1f %7.2f %%\n",
                          mg_matrix_name((enum mg_matrix)m), mg_store_name((enum mg_store)s),
                          p->count, (double)p->weights / 1e6, (double)p->bytes / 1e6,
                          percent_off(p));
        }
    mg_buf_printf(&b, "%s: %.1f MB in %.1f s\n", path, (double)r->bytes / 1e6, r->seconds);
    return mg_print(o, &b);
}

static enum mg_exit print_json(struct mg_options *o, const char *path, const char *weights,
                               const struct mg_convert_report *r) {
    struct mg_buf b = {0};
    struct mg_json j = {.out = &b};
    mg_json_open(&j, '{');
    mg_json_key(&j, "file"), mg_json_str(&j, path);
    mg_json_key(&j, "weights"), mg_json_str(&j, weights);
    mg_json_key(&j, "bytes"), mg_json_int(&j, (int64_t)r->bytes);
    mg_json_key(&j, "seconds"), mg_json_number(&j, r->seconds, 3);
    mg_json_key(&j, "matrices"), mg_json_open(&j, '[');
    for (int m = 0; m < MG_N_MATRIX; m++)
        for (int s = 0; s < 3; s++) {
            const struct mg_convert_part *p = &r->part[m][s];
            const char *part = mg_matrix_name((enum mg_matrix)m);
            const char *store = mg_store_name((enum mg_store)s);
            if (!p->count) continue;
            mg_json_open(&j, '{');
            mg_json_key(&j, "part"), mg_json_str(&j, part);
            mg_json_key(&j, "kept"), mg_json_str(&j, store);
            mg_json_key(&j, "count"), mg_json_int(&j, (int64_t)p->count);
            mg_json_key(&j, "weights"), mg_json_int(&j, (int64_t)p->weights);
            mg_json_key(&j, "bytes"), mg_json_int(&j, (int64_t)p->bytes);
            mg_json_key(&j, "off_percent"), mg_json_number(&j, percent_off(p), 4);
            mg_json_close(&j, '}');
        }
    mg_json_close(&j, ']');
    mg_json_close(&j, '}');
    mg_buf_add_byte(&b, '\n');
    return mg_print(o, &b);
}

static enum mg_exit verify(struct mg_options *o, const char *path) {
    struct mg_err err = {0};
    struct mg_weights *w = NULL;
    struct mg_manifest m;
    bool packed = false;
    enum mg_status st = mg_weights_open(path, &w, &err);
    if (!st) st = mg_manifest_read(w, &packed, &m, &err);
    if (!st && !packed)
        st = mg_fail(&err, MG_ERR_FORMAT, "not_packed", "%s is not a packed file", path);
    if (!st) st = mg_manifest_verify(&m, &err);
    if (!st) {
        struct mg_buf b = {0};
        mg_buf_printf(&b, "%s: whole, %s weights\n", path, mg_file_weights_name(m.weights));
        mg_weights_close(w);
        return mg_print(o, &b);
    }
    mg_weights_close(w);
    return mg_report(o, &err);
}

static enum mg_file_weights wanted(const struct mg_options *o) {
    for (int i = 0; i < MG_N_FILE_WEIGHTS; i++)
        if (mg_opt_is(o, MG_OPT_WEIGHTS, mg_file_weights_name((enum mg_file_weights)i)))
            return (enum mg_file_weights)i;
    return MG_FILE_INT8;
}

enum mg_exit mg_cmd_convert(struct mg_options *o) {
    struct mg_err err = {0};
    if (o->n_arg != 1) {
        mg_fail(&err, MG_ERR_ARGUMENT, "usage", "convert takes one folder, or one file to verify");
        return mg_report(o, &err);
    }
    if (mg_opt_flag(o, MG_OPT_VERIFY, false)) return verify(o, o->arg[0]);
    const char *path = mg_opt_text(o, MG_OPT_OUT, NULL);
    struct conversion c = {.begin = mg_clock()};
    struct mg_convert_report report;
    struct mg_topology topology;
    struct mg_pool *pool = NULL;
    enum mg_status st = MG_OK;
    if (!path)
        st = mg_fail(&err, MG_ERR_ARGUMENT, "usage", "convert needs the new file's name: -o FILE");
    if (mg_opt_is(o, MG_OPT_WEIGHTS, "f32"))
        st = mg_fail(&err, MG_ERR_ARGUMENT, "usage", "--weights of convert: int8, int4 or bf16");
    if (st) return mg_report(o, &err);
    mg_progress_init(&c.progress, o);
    mg_topology_read("", &topology);
    int n_thread = (int)mg_opt_int(o, MG_OPT_THREADS, 0);
    st = mg_pool_open(n_thread > 0 ? n_thread : topology.n_thread, NULL, &pool, &err);
    struct mg_convert_options options = {
        .weights = wanted(o), .pool = pool, .progress = on_progress, .user = &c};
    mg_interrupt_arm();
    mg_interrupt_wait(); /* the first ctrl-C is seen in on_progress */
    if (!st) st = mg_convert_file(o->arg[0], path, &options, &report, &err);
    mg_interrupt_woken();
    mg_pool_close(pool);
    mg_progress_clear(&c.progress);
    if (st) return mg_report(o, &err);
    if (mg_opt_flag(o, MG_OPT_JSON, false))
        return print_json(o, path, mg_file_weights_name(options.weights), &report);
    return print_table(o, path, &report);
}
