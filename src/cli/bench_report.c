/* cli/bench_report.c - what margay bench found, as a table, as JSON, and as CSV.
 *
 * The table shows each figure's median, its range in brackets, the shortest time that the machine
 * would allow and the share of it that was reached. What was not measured is left out, never shown
 * as zero. JSON is one object (the names are part of the interface); CSV has one line a figure,
 * quoted as RFC 4180 says.
 */
#include "cli/bench.h"
#include "cli/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Kinds of limits: keys and units of JSON, words for people. */
static const struct {
    const char *key, *by, *label, *unit;
} limit_info[MG_N_LIMIT] = {
    [MG_LIMIT_F32] = {"f32_gflop_s", "f32_by", "f32", "GFLOP/s"},
    [MG_LIMIT_BF16] = {"bf16_gflop_s", "bf16_by", "bf16", "GFLOP/s"},
    [MG_LIMIT_INT8] = {"int8_gop_s", "int8_by", "int8", "GOP/s"},
    [MG_LIMIT_READ] = {"read_gb_s", "read_by", "read", "GB/s"},
};
static const enum mg_limit limit_order[MG_N_LIMIT] = {MG_LIMIT_READ, MG_LIMIT_INT8, MG_LIMIT_BF16,
                                                      MG_LIMIT_F32};

/* Digits behind the point, so that about four figures are told. */
static int decimals(double x) {
    x = fabs(x);
    return x >= 1000 ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : 3;
}

static const struct mg_bench_limits *full_limits(const struct mg_bench *b) {
    return &b->limits[b->n_limits - 1];
}

/* The weights that a token reads may lie in the last-level cache; memory is no limit then. */
static bool in_cache(const struct mg_bench *b) {
    return b->cache_bytes && b->bytes_per_token < (double)b->cache_bytes;
}

/* --- JSON */
static void json_number(struct mg_json *j, const char *key, double x) {
    mg_json_key(j, key);
    mg_json_number(j, x, 4);
}

static void json_count(struct mg_json *j, const char *key, size_t x) {
    mg_json_key(j, key);
    mg_json_int(j, (int64_t)x);
}

static void json_text(struct mg_json *j, const char *key, const char *text) {
    mg_json_key(j, key);
    mg_json_str(j, text);
}

static void json_rates(struct mg_json *j, const struct mg_bench_limits *l, bool names) {
    for (int i = 0; i < MG_N_LIMIT; i++) {
        enum mg_limit kind = limit_order[i];
        if (!(l->rate[kind].median > 0)) continue;
        json_number(j, limit_info[kind].key, l->rate[kind].median * 1e-9);
        if (names) json_text(j, limit_info[kind].by, l->rate[kind].name);
    }
}

static void json_machine(struct mg_json *j, const struct mg_bench *b) {
    mg_json_key(j, "machine");
    mg_json_open(j, '{');
    json_text(j, "cpu", b->features.brand);
    json_text(j, "tier", mg_tier_name(b->features.tier));
    json_text(j, "tier_reason", b->features.reason);
    json_count(j, "threads", b->n_thread);
    json_count(j, "cores", (size_t)b->topology.n_core);
    json_count(j, "processors", (size_t)b->topology.n_online);
    json_count(j, "nodes", (size_t)b->topology.n_node);
    if (b->topology.quota > 0) json_number(j, "quota", b->topology.quota);
    if (b->cache_bytes) json_number(j, "cache_mb", (double)b->cache_bytes / 1048576);
    mg_json_key(j, "virtual");
    mg_json_bool(j, b->features.hypervisor);
    json_number(j, "steal_share", b->steal_share);
    mg_json_close(j, '}');
    mg_json_key(j, "limits");
    mg_json_open(j, '{');
    json_rates(j, full_limits(b), true);
    json_count(j, "rounds", b->n_round);
    json_count(j, "read_prefetch_bytes", b->read_distance);
    json_count(j, "read_buffer_bytes", b->read_buffer);
    mg_json_key(j, "instructions_g_s");
    mg_json_open(j, '{');
    for (size_t i = 0; i < b->n_loop; i++)
        json_number(j, b->loop[i].name, b->loop[i].median * 1e-9);
    mg_json_close(j, '}');
    mg_json_key(j, "by_threads");
    mg_json_open(j, '[');
    for (size_t i = 0; i < b->n_limits; i++) {
        mg_json_open(j, '{');
        json_count(j, "threads", b->limits[i].n_thread);
        json_rates(j, &b->limits[i], false);
        mg_json_close(j, '}');
    }
    mg_json_close(j, ']');
    mg_json_close(j, '}');
}

static void json_image(struct mg_json *j, const struct mg_bench *b) {
    mg_json_key(j, "image");
    mg_json_open(j, '{');
    json_text(j, "format", b->image.format);
    json_count(j, "width", b->image.width);
    json_count(j, "height", b->image.height);
    mg_json_key(j, "resized");
    mg_json_open(j, '{');
    json_count(j, "width", b->image.resized_width);
    json_count(j, "height", b->image.resized_height);
    mg_json_close(j, '}');
    json_count(j, "patches", b->n_patch);
    json_count(j, "tokens", b->image.tokens);
    mg_json_close(j, '}');
}

static void json_figures(struct mg_json *j, const struct mg_bench *b) {
    for (int m = 0; m < MG_N_METRIC; m++) {
        const struct mg_figure *f = &b->figure[m];
        if (!f->n) continue;
        json_number(j, mg_metrics[m].key, f->median);
        if (mg_metrics[m].share && f->limit > 0)
            json_number(j, mg_metrics[m].share, mg_figure_share(f));
    }
    mg_json_key(j, "least");
    mg_json_open(j, '{');
    for (int m = 0; m < MG_N_METRIC; m++)
        if (b->figure[m].n && b->figure[m].limit > 0)
            json_number(j, mg_metrics[m].key, b->figure[m].limit);
    mg_json_close(j, '}');
    mg_json_key(j, "range");
    mg_json_open(j, '{');
    for (int m = 0; m < MG_N_METRIC; m++) {
        if (!b->figure[m].n) continue;
        mg_json_key(j, mg_metrics[m].key);
        mg_json_open(j, '[');
        mg_json_number(j, b->figure[m].min, 4);
        mg_json_number(j, b->figure[m].max, 4);
        mg_json_close(j, ']');
    }
    mg_json_close(j, '}');
    if (!b->n_batch) return;
    char key[24];
    mg_json_key(j, "decode_batch");
    mg_json_open(j, '{');
    for (size_t i = 0; i < b->n_batch; i++) {
        snprintf(key, sizeof key, "%zu", b->batch[i]);
        json_number(j, key, b->batch_figure[i].median);
    }
    mg_json_close(j, '}');
    mg_json_key(j, "decode_batch_share_of_limit");
    mg_json_open(j, '{');
    for (size_t i = 0; i < b->n_batch; i++) {
        snprintf(key, sizeof key, "%zu", b->batch[i]);
        json_number(j, key, mg_figure_share(&b->batch_figure[i]));
    }
    mg_json_close(j, '}');
}

bool mg_bench_json(const struct mg_bench *b, struct mg_buf *out) {
    struct mg_json j = {.out = out};
    mg_json_open(&j, '{');
    json_text(&j, "version", mg_version());
    json_machine(&j, b);
    json_text(&j, "model", b->model);
    mg_json_key(&j, "random_weights");
    mg_json_bool(&j, b->random_weights);
    json_count(&j, "parameters", b->n_parameter);
    json_text(&j, "weights", b->weights);
    json_image(&j, b);
    json_count(&j, "prompt_tokens", b->prompt_tokens);
    json_count(&j, "generated_tokens", b->generated_tokens);
    json_count(&j, "second_prompt_tokens", b->second_prompt_tokens);
    json_figures(&j, b);
    mg_json_key(&j, "work");
    mg_json_open(&j, '{');
    json_number(&j, "vision_gflop", mg_work_total(&b->vision_work) * 1e-9);
    json_number(&j, "prefill_gflop", mg_work_total(&b->prefill_work) * 1e-9);
    json_number(&j, "decode_mb_per_token", b->bytes_per_token * 1e-6);
    mg_json_key(&j, "decode_in_cache");
    mg_json_bool(&j, in_cache(b));
    mg_json_close(&j, '}');
    mg_json_key(&j, "runs");
    mg_json_open(&j, '[');
    for (size_t i = 0; i < b->n_run; i++) {
        mg_json_open(&j, '{');
        for (int m = 0; m < MG_METRIC_READY; m++)
            json_number(&j, mg_metrics[m].key, b->run[i].value[m]);
        mg_json_close(&j, '}');
    }
    mg_json_close(&j, ']');
    mg_json_close(&j, '}');
    return mg_buf_add_byte(out, '\n');
}

/* --- CSV */
static void csv_text(struct mg_buf *out, const char *name, const char *text) {
    mg_buf_printf(out, "%s,,\"", name);
    for (const char *c = text; *c; c++) {
        if (*c == '"') mg_buf_add_byte(out, '"');
        mg_buf_add_byte(out, (uint8_t)*c);
    }
    mg_buf_add_str(out, "\",,,\r\n");
}

static void csv_number(struct mg_buf *out, const char *name, const char *unit, double x) {
    mg_buf_printf(out, "%s,%s,%.10g,,,\r\n", name, unit, x);
}

static void csv_figure(struct mg_buf *out, const char *name, const char *unit,
                       const struct mg_figure *f) {
    mg_buf_printf(out, "%s,%s,%.4f,%.4f,%.4f,", name, unit, f->median, f->min, f->max);
    if (f->limit > 0) mg_buf_printf(out, "%.4f", mg_figure_share(f));
    mg_buf_add_str(out, "\r\n");
}

bool mg_bench_csv(const struct mg_bench *b, struct mg_buf *out) {
    char key[48];
    mg_buf_add_str(out, "name,unit,value,least,greatest,share_of_limit\r\n");
    csv_text(out, "version", mg_version());
    csv_text(out, "cpu", b->features.brand);
    csv_text(out, "tier", mg_tier_name(b->features.tier));
    csv_number(out, "threads", "", (double)b->n_thread);
    csv_number(out, "steal_share", "", b->steal_share);
    csv_text(out, "model", b->model);
    csv_text(out, "weights", b->weights);
    csv_number(out, "image_width", "pixels", b->image.width);
    csv_number(out, "image_height", "pixels", b->image.height);
    csv_number(out, "image_patches", "", (double)b->n_patch);
    csv_number(out, "image_tokens", "", (double)b->image.tokens);
    csv_number(out, "prompt_tokens", "", (double)b->prompt_tokens);
    csv_number(out, "generated_tokens", "", (double)b->generated_tokens);
    csv_number(out, "runs", "", (double)b->n_run);
    for (int m = 0; m < MG_N_METRIC; m++)
        if (b->figure[m].n) csv_figure(out, mg_metrics[m].key, mg_metrics[m].unit, &b->figure[m]);
    for (size_t i = 0; i < b->n_batch; i++) {
        snprintf(key, sizeof key, "decode_batch_%zu", b->batch[i]);
        csv_figure(out, key, "ms", &b->batch_figure[i]);
    }
    for (size_t i = 0; i < b->n_limits; i++)
        for (int k = 0; k < MG_N_LIMIT; k++) {
            enum mg_limit kind = limit_order[k];
            double rate = b->limits[i].rate[kind].median;
            snprintf(key, sizeof key, "limit_%s_%zu_threads", limit_info[kind].key,
                     b->limits[i].n_thread);
            if (rate > 0) csv_number(out, key, limit_info[kind].unit, rate * 1e-9);
        }
    return !out->failed;
}

/* --- the table */
static void number(struct mg_buf *out, int width, double x) {
    mg_buf_printf(out, "%*.*f", width, decimals(x), x);
}

/* "vision                2104 ms   [2011 - 2300]       1206     57 %" */
static void table_row(struct mg_buf *out, const char *label, const char *unit,
                      const struct mg_figure *f) {
    char range[48] = "";
    int digits = decimals(f->median);
    if (f->n > 1) snprintf(range, sizeof range, "[%.*f - %.*f]", digits, f->min, digits, f->max);
    mg_buf_printf(out, "  %-30s", label);
    number(out, 9, f->median);
    if (f->limit > 0) {
        mg_buf_printf(out, " %-4s %-19s", unit, range);
        number(out, 9, f->limit);
        mg_buf_printf(out, " %6.0f %%\n", 100 * mg_figure_share(f));
    } else {
        mg_buf_printf(out, *range ? " %-4s %s\n" : " %s%s\n", unit, range);
    }
}

static void table_limits(struct mg_buf *out, const struct mg_bench *b) {
    mg_buf_printf(out, "\n  %-13s", "limits");
    for (size_t i = 0; i < b->n_limits; i++)
        mg_buf_printf(out, " %4zu thread%s", b->limits[i].n_thread,
                      b->limits[i].n_thread == 1 ? " " : "s");
    mg_buf_add_str(out, "   by\n");
    for (int k = 0; k < MG_N_LIMIT; k++) {
        enum mg_limit kind = limit_order[k];
        const struct mg_limit_rate *full = &full_limits(b)->rate[kind];
        if (!(full->median > 0)) continue;
        mg_buf_printf(out, "  %-5s %-7s", limit_info[kind].label, limit_info[kind].unit);
        for (size_t i = 0; i < b->n_limits; i++)
            number(out, 13, b->limits[i].rate[kind].median * 1e-9);
        mg_buf_printf(out, "   %s", full->name);
        if (kind == MG_LIMIT_READ && b->read_distance)
            mg_buf_printf(out, ", prefetched %zu bytes ahead", b->read_distance);
        mg_buf_add_byte(out, '\n');
    }
}

bool mg_bench_table(const struct mg_bench *b, struct mg_buf *out) {
    mg_buf_printf(out, "margay %s on %s, %s kernels, %zu thread%s\n", mg_version(),
                  b->features.brand, mg_tier_name(b->features.tier), b->n_thread,
                  b->n_thread == 1 ? "" : "s");
    mg_buf_printf(out, "%s%s, %.1f M parameters, weights %s\n", b->model,
                  b->random_weights ? " (random weights)" : "", (double)b->n_parameter * 1e-6,
                  b->weights);
    mg_buf_printf(out,
                  "picture %u x %u seen as %u x %u: %zu patches, %zu tokens; prompt %zu tokens; "
                  "%zu generated; %zu run%s\n\n",
                  b->image.width, b->image.height, b->image.resized_width, b->image.resized_height,
                  b->n_patch, b->image.tokens, b->prompt_tokens, b->generated_tokens, b->n_run,
                  b->n_run == 1 ? "" : "s");
    mg_buf_printf(out, "  %-30s%9s      %-19s%9s %8s\n", "", "median", "[range]", "least", "share");
    for (int m = 0; m < MG_N_METRIC; m++) {
        if (b->figure[m].n) table_row(out, mg_metrics[m].label, mg_metrics[m].unit, &b->figure[m]);
        for (size_t i = 0; m == MG_METRIC_DECODE && i < b->n_batch; i++) {
            char label[48];
            snprintf(label, sizeof label, "  %zu conversations, each step", b->batch[i]);
            table_row(out, label, "ms", &b->batch_figure[i]);
        }
    }
    table_limits(out, b);
    if (in_cache(b))
        mg_buf_add_str(out, "\nThe weights fit into the cache: memory is no limit for a token "
                            "here, and its share says little.\n");
    if (b->steal_share >= 0.01)
        mg_buf_printf(out,
                      "\nOther machines on this host took %.0f %% of the processors' time: the "
                      "figures are too high by about that.\n",
                      100 * b->steal_share);
    return !out->failed;
}
