/* cli/load_report.c - what came of a run of margay load as a table, as JSON and as lines of CSV.
 *
 * The members of the JSON object are listed in docs/load.md; they are only added to.
 */
#include "cli/load.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *label;
    size_t at; /* of the histogram in the record */
} times[] = {
    {"first_token", "first token", offsetof(struct mg_load_record, first)},
    {"between_tokens", "between tokens", offsetof(struct mg_load_record, between)},
    {"per_token", "each further token", offsetof(struct mg_load_record, token)},
    {"answer", "whole answer", offsetof(struct mg_load_record, answer)},
    {"answer_from_sending", "  from sending", offsetof(struct mg_load_record, service)},
    {"sent_late", "sent late", offsetof(struct mg_load_record, late)},
};
enum { N_TIME = sizeof times / sizeof times[0] };

static const struct {
    const char *name, *label;
    double q;
} points[] = {{"p50", "p50", 0.5},  {"p90", "p90", 0.9},       {"p95", "p95", 0.95},
              {"p99", "p99", 0.99}, {"p99_9", "p99.9", 0.999}, {"max", "max", 1}};
enum { N_POINT = sizeof points / sizeof points[0] };

static const struct mg_load_histogram *histogram(const struct mg_load_record *r, size_t i) {
    return (const struct mg_load_histogram *)((const char *)r + times[i].at);
}

static double elapsed(const struct mg_load_record *r) {
    return fmax(r->end - r->begin, 1e-9);
}

static const char *arrivals_text(const struct mg_load_plan *p, char *out, size_t cap) {
    const struct mg_load_arrivals *a = &p->arrivals;
    switch (a->pattern) {
    case MG_LOAD_POISSON: snprintf(out, cap, "poisson"); break;
    case MG_LOAD_CONSTANT: snprintf(out, cap, "constant"); break;
    case MG_LOAD_BURST: snprintf(out, cap, "burst:%llu", (unsigned long long)a->burst); break;
    case MG_LOAD_RAMP: snprintf(out, cap, "ramp:%g-%g", a->rate, a->to); break;
    }
    return out;
}

void mg_load_say_load(const struct mg_load_plan *p, char *out, size_t cap) {
    char text[64];
    if (!p->open && p->think > 0)
        snprintf(out, cap, "%zu client%s that think%s %g s", p->n_client,
                 p->n_client == 1 ? "" : "s", p->n_client == 1 ? "s" : "", p->think);
    else if (!p->open)
        snprintf(out, cap, "%zu client%s", p->n_client, p->n_client == 1 ? "" : "s");
    else if (p->arrivals.pattern == MG_LOAD_RAMP)
        snprintf(out, cap, "open loop, %g to %g a second", p->arrivals.rate, p->arrivals.to);
    else
        snprintf(out, cap, "open loop, %g a second, %s", p->arrivals.rate,
                 arrivals_text(p, text, sizeof text));
}

/* --- the table --- */

/* Four figures of a time in milliseconds. */
static void milliseconds(struct mg_buf *out, double seconds) {
    double ms = 1e3 * seconds;
    mg_buf_printf(out, "%10.*f", ms >= 1000 ? 0 : ms >= 100 ? 1 : ms >= 10 ? 2 : 3, ms);
}

static void table_times(const struct mg_load_record *r, struct mg_buf *out) {
    mg_buf_printf(out, "\n%-20s%8s%10s", "milliseconds", "n", "mean");
    for (size_t i = 0; i < N_POINT; i++) mg_buf_printf(out, "%10s", points[i].label);
    mg_buf_add_byte(out, '\n');
    for (size_t i = 0; i < N_TIME; i++) {
        const struct mg_load_histogram *h = histogram(r, i);
        if (!h->n) continue;
        mg_buf_printf(out, "%-20s%8llu", times[i].label, (unsigned long long)h->n);
        milliseconds(out, mg_load_histogram_mean(h));
        for (size_t j = 0; j < N_POINT; j++)
            milliseconds(out, mg_load_histogram_quantile(h, points[j].q));
        mg_buf_add_byte(out, '\n');
    }
}

static void table_errors(const struct mg_load_record *r, struct mg_buf *out) {
    uint64_t errors = mg_load_record_errors(r);
    mg_buf_printf(out, "errors    %10llu  %.2f %%\n", (unsigned long long)errors,
                  mg_load_record_error_share(r));
    for (size_t i = 0; i < r->n_error; i++) {
        const struct mg_load_error_row *e = &r->error[i];
        char what[40];
        if (e->kind == MG_LOAD_STATUS)
            snprintf(what, sizeof what, "status %d", e->status);
        else
            snprintf(what, sizeof what, "%s", mg_load_kind_name[e->kind]);
        mg_buf_printf(out, "%20llu  %s%s%s\n", (unsigned long long)e->n, what, *e->code ? " " : "",
                      e->code);
    }
    if (r->n_retry_after)
        mg_buf_printf(out, "%20llu  said when to come again (Retry-After)\n",
                      (unsigned long long)r->n_retry_after);
}

static void table_remarks(const struct mg_load_record *r, struct mg_buf *out) {
    const struct mg_load_histogram *late = &r->late;
    double q = mg_load_histogram_quantile(late, 0.99);
    uint64_t lost = r->n_kind[MG_LOAD_OK] - r->n_usage;
    if (lost && r->n_chunk)
        mg_buf_printf(out,
                      "\n%llu answers came without usage: their tokens are the pieces of text\n",
                      (unsigned long long)lost);
    if (q > 0.01)
        mg_buf_printf(
            out,
            "\n1 %% of the requests were sent more than %.0f ms after they were due: they "
            "waited for\na connection (--max-connections), or this machine was too busy\n",
            1e3 * q);
    if (r->n_second == MG_LOAD_MAX_SECOND)
        mg_buf_add_str(out, "\nthe rows by second end after a day\n");
}

bool mg_load_table(const struct mg_load_plan *p, const struct mg_load_questions *q,
                   const struct mg_load_record *r, struct mg_buf *out) {
    char load[160];
    double seconds = elapsed(r);
    mg_load_say_load(p, load, sizeof load);
    mg_buf_printf(out, "%s, model %s: %s; %s of at most %ld tokens", p->url, p->model, load,
                  p->stream ? "streams" : "answers", p->max_tokens);
    if (q->n_picture)
        mg_buf_printf(out, ", %zu picture%s", q->n_picture, q->n_picture == 1 ? "" : "s");
    mg_buf_printf(out, ", %zu question%s, seed %llu\n\n", q->n_question,
                  q->n_question == 1 ? "" : "s", (unsigned long long)p->seed);
    uint64_t ok = r->n_kind[MG_LOAD_OK];
    mg_buf_printf(out, "requests  %10llu  in %.1f s%s\n", (unsigned long long)r->n_sent, seconds,
                  r->interrupted ? ", interrupted" : "");
    mg_buf_printf(out, "answers   %10llu  %.2f a second\n", (unsigned long long)ok,
                  (double)ok / seconds);
    table_errors(r, out);
    if (r->n_kind[MG_LOAD_LEFT])
        mg_buf_printf(out, "left      %10llu  on purpose\n",
                      (unsigned long long)r->n_kind[MG_LOAD_LEFT]);
    if (r->n_kind[MG_LOAD_UNFINISHED])
        mg_buf_printf(out, "unfinished%10llu\n", (unsigned long long)r->n_kind[MG_LOAD_UNFINISHED]);
    mg_buf_printf(out, "tokens    %10lld  %.1f a second", (long long)r->completion_tokens,
                  (double)r->completion_tokens / seconds);
    if (r->prompt_tokens)
        mg_buf_printf(out, "; of prompts %lld, %lld from caches, %lld of pictures",
                      (long long)r->prompt_tokens, (long long)r->cached_tokens,
                      (long long)r->image_tokens);
    mg_buf_printf(out, "\nconnections%9llu  at most %zu requests at a time",
                  (unsigned long long)r->n_opened, r->most_under_way);
    if (r->n_resent)
        mg_buf_printf(out, "; %llu requests sent again: the server had closed an idle connection",
                      (unsigned long long)r->n_resent);
    mg_buf_add_byte(out, '\n');
    table_times(r, out);
    table_remarks(r, out);
    return !out->failed;
}

/* --- JSON --- */

static void json_load(struct mg_json *j, const struct mg_load_plan *p,
                      const struct mg_load_questions *q) {
    char text[64];
    mg_json_key(j, "load"), mg_json_open(j, '{');
    mg_json_key(j, "loop"), mg_json_str(j, p->open ? "open" : "closed");
    if (p->open) {
        mg_json_key(j, "arrivals"), mg_json_str(j, arrivals_text(p, text, sizeof text));
        mg_json_key(j, "rate"), mg_json_number(j, p->arrivals.rate, 6);
    } else {
        mg_json_key(j, "clients"), mg_json_int(j, (int64_t)p->n_client);
        mg_json_key(j, "think_s"), mg_json_number(j, p->think, 3);
    }
    mg_json_key(j, "duration_s");
    if (p->duration > 0)
        mg_json_number(j, p->duration, 3);
    else
        mg_json_null(j);
    mg_json_key(j, "requests");
    if (p->n_request)
        mg_json_int(j, (int64_t)p->n_request);
    else
        mg_json_null(j);
    mg_json_key(j, "warm_up_s"), mg_json_number(j, p->warm_up, 3);
    mg_json_key(j, "abort"), mg_json_number(j, p->abort, 6);
    mg_json_key(j, "timeout_s"), mg_json_number(j, p->timeout, 3);
    mg_json_key(j, "max_connections"), mg_json_int(j, (int64_t)p->max_connection);
    mg_json_key(j, "keep_alive"), mg_json_bool(j, p->keep_alive);
    mg_json_key(j, "stream"), mg_json_bool(j, p->stream);
    mg_json_key(j, "max_tokens"), mg_json_int(j, p->max_tokens);
    mg_json_key(j, "pictures"), mg_json_int(j, (int64_t)q->n_picture);
    mg_json_key(j, "uploaded"), mg_json_bool(j, p->upload);
    mg_json_key(j, "questions"), mg_json_int(j, (int64_t)q->n_question);
    mg_json_key(j, "seed"), mg_json_int(j, (int64_t)p->seed);
    mg_json_close(j, '}');
}

static void json_requests(struct mg_json *j, const struct mg_load_record *r) {
    mg_json_key(j, "requests"), mg_json_open(j, '{');
    mg_json_key(j, "sent"), mg_json_int(j, (int64_t)r->n_sent);
    mg_json_key(j, "ok"), mg_json_int(j, (int64_t)r->n_kind[MG_LOAD_OK]);
    mg_json_key(j, "errors"), mg_json_int(j, (int64_t)mg_load_record_errors(r));
    mg_json_key(j, "left"), mg_json_int(j, (int64_t)r->n_kind[MG_LOAD_LEFT]);
    mg_json_key(j, "unfinished"), mg_json_int(j, (int64_t)r->n_kind[MG_LOAD_UNFINISHED]);
    mg_json_key(j, "error_percent"), mg_json_number(j, mg_load_record_error_share(r), 4);
    mg_json_key(j, "retry_after"), mg_json_int(j, (int64_t)r->n_retry_after);
    mg_json_key(j, "per_second");
    mg_json_number(j, (double)r->n_kind[MG_LOAD_OK] / elapsed(r), 4);
    mg_json_close(j, '}');
    mg_json_key(j, "errors"), mg_json_open(j, '[');
    for (size_t i = 0; i < r->n_error; i++) {
        const struct mg_load_error_row *e = &r->error[i];
        mg_json_open(j, '{');
        mg_json_key(j, "kind"), mg_json_str(j, mg_load_kind_name[e->kind]);
        mg_json_key(j, "status");
        if (e->status)
            mg_json_int(j, e->status);
        else
            mg_json_null(j);
        mg_json_key(j, "code"), mg_json_str(j, *e->code ? e->code : NULL);
        mg_json_key(j, "count"), mg_json_int(j, (int64_t)e->n);
        mg_json_close(j, '}');
    }
    mg_json_close(j, ']');
}

static void json_times(struct mg_json *j, const struct mg_load_record *r) {
    mg_json_key(j, "times_ms"), mg_json_open(j, '{');
    for (size_t i = 0; i < N_TIME; i++) {
        const struct mg_load_histogram *h = histogram(r, i);
        mg_json_key(j, times[i].name), mg_json_open(j, '{');
        mg_json_key(j, "n"), mg_json_int(j, (int64_t)h->n);
        mg_json_key(j, "mean"), mg_json_number(j, h->n ? 1e3 * mg_load_histogram_mean(h) : NAN, 3);
        mg_json_key(j, "min"), mg_json_number(j, h->n ? 1e3 * h->min : NAN, 3);
        for (size_t k = 0; k < N_POINT; k++) {
            double x = h->n ? 1e3 * mg_load_histogram_quantile(h, points[k].q) : NAN;
            mg_json_key(j, points[k].name), mg_json_number(j, x, 3);
        }
        mg_json_close(j, '}');
    }
    mg_json_close(j, '}');
    mg_json_key(j, "relative_error"), mg_json_number(j, MG_LOAD_HISTOGRAM_ERROR, 6);
    mg_json_key(j, "answer_histogram_ms"), mg_json_open(j, '[');
    for (size_t i = 0; i < MG_LOAD_N_BUCKET; i++) {
        double low, high;
        if (!r->answer.count[i]) continue;
        mg_load_histogram_bucket(i, &low, &high);
        mg_json_open(j, '[');
        mg_json_number(j, 1e3 * low, 3), mg_json_number(j, 1e3 * high, 3);
        mg_json_int(j, (int64_t)r->answer.count[i]);
        mg_json_close(j, ']');
    }
    mg_json_close(j, ']');
}

static void json_rest(struct mg_json *j, const struct mg_load_record *r) {
    mg_json_key(j, "tokens"), mg_json_open(j, '{');
    mg_json_key(j, "prompt"), mg_json_int(j, r->prompt_tokens);
    mg_json_key(j, "cached"), mg_json_int(j, r->cached_tokens);
    mg_json_key(j, "image"), mg_json_int(j, r->image_tokens);
    mg_json_key(j, "completion"), mg_json_int(j, r->completion_tokens);
    mg_json_key(j, "pieces"), mg_json_int(j, (int64_t)r->n_chunk);
    mg_json_key(j, "answers_with_usage"), mg_json_int(j, (int64_t)r->n_usage);
    mg_json_key(j, "per_second");
    mg_json_number(j, (double)r->completion_tokens / elapsed(r), 4);
    mg_json_close(j, '}');
    mg_json_key(j, "connections"), mg_json_open(j, '{');
    mg_json_key(j, "opened"), mg_json_int(j, (int64_t)r->n_opened);
    mg_json_key(j, "requests_sent_again"), mg_json_int(j, (int64_t)r->n_resent);
    mg_json_key(j, "most_requests_at_a_time"), mg_json_int(j, (int64_t)r->most_under_way);
    mg_json_key(j, "bytes_received"), mg_json_int(j, (int64_t)r->n_byte);
    mg_json_close(j, '}');
    mg_json_key(j, "seconds"), mg_json_open(j, '[');
    for (size_t i = 0; i < r->n_second; i++) {
        const struct mg_load_second *s = &r->second[i];
        mg_json_open(j, '{');
        mg_json_key(j, "second"), mg_json_int(j, (int64_t)i);
        mg_json_key(j, "sent"), mg_json_int(j, s->sent);
        mg_json_key(j, "ok"), mg_json_int(j, s->ok);
        mg_json_key(j, "errors"), mg_json_int(j, s->error);
        mg_json_key(j, "pieces"), mg_json_int(j, s->chunk);
        mg_json_key(j, "under_way"), mg_json_int(j, s->under_way);
        mg_json_key(j, "answer_p50_ms"), mg_json_number(j, s->ok ? 1e3 * s->p50 : NAN, 3);
        mg_json_key(j, "answer_p95_ms"), mg_json_number(j, s->ok ? 1e3 * s->p95 : NAN, 3);
        mg_json_key(j, "answer_max_ms"), mg_json_number(j, s->ok ? 1e3 * s->max : NAN, 3);
        mg_json_close(j, '}');
    }
    mg_json_close(j, ']');
}

bool mg_load_json(const struct mg_load_plan *p, const struct mg_load_questions *q,
                  const struct mg_load_record *r, struct mg_buf *out) {
    struct mg_json j = {.out = out};
    mg_json_open(&j, '{');
    mg_json_key(&j, "url"), mg_json_str(&j, p->url);
    mg_json_key(&j, "model"), mg_json_str(&j, p->model);
    json_load(&j, p, q);
    mg_json_key(&j, "interrupted"), mg_json_bool(&j, r->interrupted);
    mg_json_key(&j, "elapsed_s"), mg_json_number(&j, elapsed(r), 3);
    json_requests(&j, r);
    json_times(&j, r);
    json_rest(&j, r);
    mg_json_close(&j, '}');
    return mg_buf_add_byte(out, '\n');
}

/* --- CSV --- */

void mg_load_csv_head(struct mg_buf *out) {
    mg_buf_add_str(out, "request,client,picture,question,due_s,late_ms,first_token_ms,answer_ms,"
                        "answer_from_sending_ms,outcome,status,code,prompt_tokens,cached_tokens,"
                        "image_tokens,completion_tokens,pieces,bytes\r\n");
}

/* A time that may not have come: then nothing. */
static void csv_ms(struct mg_buf *out, double from, double to) {
    if (from > 0 && to > 0)
        mg_buf_printf(out, ",%.3f", 1e3 * (to - from));
    else
        mg_buf_add_byte(out, ',');
}

static void csv_count(struct mg_buf *out, int64_t n) {
    if (n >= 0)
        mg_buf_printf(out, ",%lld", (long long)n);
    else
        mg_buf_add_byte(out, ',');
}

void mg_load_csv_line(struct mg_buf *out, const struct mg_load_outcome *x, double begin,
                      const char *picture) {
    mg_buf_printf(out, "%llu,%zu,", (unsigned long long)x->index, x->client);
    if (picture) { /* a file's name may hold anything */
        mg_buf_add_byte(out, '"');
        for (const char *c = picture; *c; c++) {
            if (*c == '"') mg_buf_add_byte(out, '"');
            mg_buf_add_byte(out, (uint8_t)*c);
        }
        mg_buf_add_byte(out, '"');
    }
    mg_buf_printf(out, ",%zu,%.6f", x->question, x->due - begin);
    bool ok = x->kind == MG_LOAD_OK;
    csv_ms(out, x->due, x->sent);
    csv_ms(out, x->due, x->first);
    csv_ms(out, x->due, ok ? x->end : 0);
    csv_ms(out, x->sent, ok ? x->end : 0);
    mg_buf_printf(out, ",%s", mg_load_kind_name[x->kind]);
    csv_count(out, x->status ? x->status : -1);
    mg_buf_printf(out, ",%s", x->code);
    csv_count(out, x->prompt_tokens);
    csv_count(out, x->cached_tokens);
    csv_count(out, x->image_tokens);
    csv_count(out, x->completion_tokens);
    mg_buf_printf(out, ",%llu,%llu\r\n", (unsigned long long)x->n_chunk,
                  (unsigned long long)x->n_byte);
}
