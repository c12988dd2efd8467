/* cli/load.c - margay load: asks an OpenAI-compatible server as many people would, and tells how it
 * did. See load.h for the parts.
 *
 * Exit status: 0 when something worked and no limit of --fail-above was passed, 1 otherwise, 130
 * when it was interrupted (what there is is printed all the same).
 */
#include "cli/commands.h"
#include "cli/load.h"

#include "base/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum mg_status print(const struct mg_load_plan *p, const struct mg_load_questions *q,
                            const struct mg_load_record *r, struct mg_err *err) {
    struct mg_buf text = {0};
    bool ok = p->json ? mg_load_json(p, q, r, &text) : mg_load_table(p, q, r, &text);
    enum mg_status status =
        ok ? mg_write(p->csv ? STDERR_FILENO : STDOUT_FILENO, text.data, text.n, err)
           : mg_fail_memory(err, "report");
    mg_buf_free(&text);
    if (!status && p->svg) {
        status = mg_load_plot(p, r, &text) ? mg_file_write(p->svg, text.data, text.n, err)
                                           : mg_fail_memory(err, "plot");
        mg_buf_free(&text);
    }
    return status;
}

/* What of the limits was passed, told; nothing that worked is told as well. */
static bool judge(const struct mg_load_plan *p, const struct mg_load_record *r) {
    bool good = true;
    if (!r->n_kind[MG_LOAD_OK]) {
        /* Clients that all left on purpose are no failure. */
        good = !mg_load_record_errors(r) && r->n_kind[MG_LOAD_LEFT];
        if (!good) mg_log(MG_LOG_ERROR, "no request was answered");
    }
    for (size_t i = 0; i < p->n_limit; i++) {
        const struct mg_load_limit *l = &p->limit[i];
        const struct mg_load_histogram *h = l->what == MG_LOAD_LIMIT_FIRST ? &r->first : &r->answer;
        bool errors = l->what == MG_LOAD_LIMIT_ERRORS;
        double is = errors ? mg_load_record_error_share(r)
                           : 1e3 * mg_load_histogram_quantile(h, l->quantile);
        if (is <= l->most) continue;
        good = false;
        mg_log(MG_LOG_ERROR, "--fail-above %s: it is %.4g %s", l->text, is, errors ? "%" : "ms");
    }
    return good;
}

enum mg_exit mg_cmd_load(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_load_questions questions = {0};
    struct mg_load_record *r = mg_alloc_zero(1, sizeof *r);
    struct mg_load_plan *p = mg_alloc_zero(1, sizeof *p);
    enum mg_status status = r && p ? MG_OK : mg_fail_memory(&err, "results");
    bool good = false;
    mg_interrupt_arm();
    if (!status) status = mg_load_plan_read(o, p, &err);
    if (!status) status = mg_load_plan_files(p, &err);
    if (!status) status = mg_load_questions_open(&questions, p, &err);
    if (!status) status = mg_load_plan_resolve(p, &err);
    if (!status) status = mg_load_run(p, &questions, r, &err);
    if (!status) status = print(p, &questions, r, &err);
    if (!status && !r->interrupted) good = judge(p, r);
    enum mg_exit code = status           ? mg_report(o, &err)
                        : r->interrupted ? MG_EXIT_INTERRUPTED
                        : good           ? MG_EXIT_OK
                                         : MG_EXIT_FAILED;
    mg_load_questions_close(&questions);
    if (r) mg_load_record_free(r);
    free(r);
    free(p);
    return code;
}
