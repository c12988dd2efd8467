/* cli/doctor_report.c - what margay doctor found, as text and as JSON; the names in JSON are part
 * of the interface. */
#include "cli/doctor.h"
#include "cli/json.h"

#include <stdio.h>
#include <string.h>

static const char *const level_name[MG_N_LEVEL] = {"ok", "note", "warning", "problem"};

static const struct {
    const char *key;
    const char *label, *unit;
} limit[MG_N_LIMIT] = {
    [MG_LIMIT_F32] = {"f32_gflop_s", "f32", "GFLOP/s"},
    [MG_LIMIT_BF16] = {"bf16_gflop_s", "bf16", "GFLOP/s"},
    [MG_LIMIT_INT8] = {"int8_gop_s", "int8", "GOP/s"},
    [MG_LIMIT_READ] = {"read_gb_s", "read", "GB/s"},
};

/* --- text */
static void text_expected(const struct mg_doctor *d, struct mg_buf *out) {
    if (!d->measured) return;
    mg_buf_printf(out, "\nexpected with %s, at the measured", d->model);
    for (int i = MG_N_LIMIT - 1; i >= 0; i--)
        if (d->rate[i].median > 0)
            mg_buf_printf(out, "%s %s %.4g %s", i == MG_N_LIMIT - 1 ? "" : ",", limit[i].label,
                          d->rate[i].median / 1e9, limit[i].unit);
    mg_buf_add_str(out, ":\n");
    for (int i = 0; i < MG_N_EXPECTED; i++) {
        const struct mg_expected *e = &d->expected[i];
        mg_buf_printf(out,
                      "  picture of %zu x %zu (%zu tokens): first word after %.1f s, %.0f ms a "
                      "token, answer of %zu tokens %.1f s\n",
                      e->width, e->height, e->image_tokens, e->first_seconds,
                      1e3 * e->token_seconds, e->answer_tokens, e->answer_seconds);
    }
}

static const char *plural(size_t n) {
    return n == 1 ? "" : "s";
}

bool mg_doctor_show_text(const struct mg_doctor *d, struct mg_buf *out) {
    for (size_t i = 0; i < d->n_finding; i++) {
        const struct mg_finding *f = &d->finding[i];
        mg_buf_printf(out, "%-8s %s\n", level_name[f->level], f->found);
        if (f->level == MG_LEVEL_OK) continue;
        mg_buf_printf(out, "         why:  %s\n         mend: %s\n", f->why, f->mend);
    }
    text_expected(d, out);
    size_t problems = mg_doctor_count(d, MG_LEVEL_PROBLEM),
           warnings = mg_doctor_count(d, MG_LEVEL_WARNING),
           notes = mg_doctor_count(d, MG_LEVEL_NOTE);
    mg_buf_printf(out, "\n%zu problem%s, %zu warning%s, %zu note%s\n", problems, plural(problems),
                  warnings, plural(warnings), notes, plural(notes));
    return !out->failed;
}

/* --- JSON */
static void number(struct mg_json *j, const char *key, double x, int decimals) {
    mg_json_key(j, key);
    mg_json_number(j, x, decimals);
}

static void integer(struct mg_json *j, const char *key, uint64_t x) {
    mg_json_key(j, key);
    mg_json_int(j, (int64_t)x);
}

static void string(struct mg_json *j, const char *key, const char *text) {
    mg_json_key(j, key);
    mg_json_str(j, text);
}

static void json_machine(const struct mg_doctor *d, struct mg_json *j) {
    static const char *const place[] = {[MG_PLACE_HOST] = "host",
                                        [MG_PLACE_DOCKER] = "docker",
                                        [MG_PLACE_KUBERNETES] = "kubernetes",
                                        [MG_PLACE_CONTAINER] = "container"};
    const struct mg_topology *t = &d->topology;
    mg_json_key(j, "machine");
    mg_json_open(j, '{');
    string(j, "cpu", d->features.brand);
    string(j, "tier", mg_tier_name(d->features.tier));
    string(j, "tier_reason", d->features.reason);
    integer(j, "processors", (uint64_t)t->n_online);
    integer(j, "allowed", (uint64_t)t->n_affinity);
    integer(j, "cores", (uint64_t)t->n_core);
    integer(j, "nodes", (uint64_t)t->n_node);
    integer(j, "threads", (uint64_t)d->n_thread);
    mg_json_key(j, "quota");
    if (t->quota > 0)
        mg_json_number(j, t->quota, 3);
    else
        mg_json_null(j);
    integer(j, "memory_bytes", d->memory_total);
    integer(j, "memory_available_bytes", d->memory_available);
    integer(j, "memory_limit_bytes", t->memory_limit);
    string(j, "place", place[d->place]);
    mg_json_close(j, '}');
}

static void json_expected(const struct mg_doctor *d, struct mg_json *j) {
    mg_json_key(j, "limits");
    mg_json_open(j, '{');
    for (int i = 0; i < MG_N_LIMIT; i++)
        if (d->rate[i].median > 0) number(j, limit[i].key, d->rate[i].median / 1e9, 3);
    mg_json_close(j, '}');
    mg_json_key(j, "expected");
    mg_json_open(j, '[');
    for (int i = 0; i < MG_N_EXPECTED && d->measured; i++) {
        const struct mg_expected *e = &d->expected[i];
        mg_json_open(j, '{');
        integer(j, "width", e->width);
        integer(j, "height", e->height);
        integer(j, "image_tokens", e->image_tokens);
        integer(j, "prompt_tokens", e->prompt_tokens);
        integer(j, "answer_tokens", e->answer_tokens);
        number(j, "first_token_s", e->first_seconds, 3);
        number(j, "ms_per_token", 1e3 * e->token_seconds, 2);
        number(j, "answer_s", e->answer_seconds, 3);
        mg_json_close(j, '}');
    }
    mg_json_close(j, ']');
}

bool mg_doctor_show_json(const struct mg_doctor *d, struct mg_buf *out) {
    struct mg_json j = {.out = out};
    mg_json_open(&j, '{');
    json_machine(d, &j);
    mg_json_key(&j, "model");
    mg_json_open(&j, '{');
    string(&j, "name", d->model);
    integer(&j, "weight_bytes", (uint64_t)d->weight_bytes);
    integer(&j, "question_bytes", (uint64_t)d->need_bytes);
    mg_json_close(&j, '}');
    json_expected(d, &j);
    mg_json_key(&j, "findings");
    mg_json_open(&j, '[');
    for (size_t i = 0; i < d->n_finding; i++) {
        const struct mg_finding *f = &d->finding[i];
        mg_json_open(&j, '{');
        string(&j, "id", f->id);
        string(&j, "level", level_name[f->level]);
        string(&j, "found", f->found);
        string(&j, "why", f->why);
        string(&j, "mend", f->mend);
        mg_json_close(&j, '}');
    }
    mg_json_close(&j, ']');
    integer(&j, "problems", mg_doctor_count(d, MG_LEVEL_PROBLEM));
    integer(&j, "warnings", mg_doctor_count(d, MG_LEVEL_WARNING));
    integer(&j, "notes", mg_doctor_count(d, MG_LEVEL_NOTE));
    mg_json_close(&j, '}');
    mg_buf_add_byte(out, '\n');
    return !out->failed;
}
