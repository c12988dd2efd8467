/* cli/load_record.c - what came of the requests: counts, histograms, a row a second. See load.h. */
#include "cli/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const mg_load_kind_name[MG_N_LOAD_KIND] = {
    [MG_LOAD_OK] = "ok",
    [MG_LOAD_LEFT] = "left",
    [MG_LOAD_UNFINISHED] = "unfinished",
    [MG_LOAD_REFUSED] = "refused",
    [MG_LOAD_CONNECT] = "connect",
    [MG_LOAD_TLS] = "tls",
    [MG_LOAD_TIMEOUT] = "timeout",
    [MG_LOAD_CUT] = "cut",
    [MG_LOAD_MALFORMED] = "malformed",
    [MG_LOAD_STATUS] = "status",
    [MG_LOAD_IN_STREAM] = "in_stream",
    [MG_LOAD_UNSENT] = "unsent",
    [MG_LOAD_MEMORY] = "memory",
};

void mg_load_record_begin(struct mg_load_record *r, double begin) {
    r->begin = r->end = begin;
}

/* Figures of the row that ends. */
static void close_second(struct mg_load_record *r) {
    if (!r->n_second) return;
    struct mg_load_second *s = &r->second[r->n_second - 1];
    const struct mg_load_histogram *h = &r->this_second;
    s->under_way = (uint32_t)r->under_way;
    s->p50 = (float)mg_load_histogram_quantile(h, 0.5);
    s->p95 = (float)mg_load_histogram_quantile(h, 0.95);
    s->max = (float)mg_load_histogram_quantile(h, 1);
    if (h->n) r->this_second = (struct mg_load_histogram){0};
}

static bool add_second(struct mg_load_record *r) {
    if (r->n_second == r->cap_second) {
        size_t cap = r->cap_second ? 2 * r->cap_second : 64;
        struct mg_load_second *grown = mg_realloc(r->second, cap, sizeof *grown);
        if (!grown) {
            r->lacks_memory = true;
            return false;
        }
        r->second = grown;
        r->cap_second = cap;
    }
    close_second(r);
    r->second[r->n_second++] = (struct mg_load_second){0};
    return true;
}

/* The row of this time, made with those before it; NULL after the last that there may be. */
static struct mg_load_second *second_at(struct mg_load_record *r, double now) {
    double t = now - r->begin;
    if (!(t >= 0) || t >= MG_LOAD_MAX_SECOND) return NULL;
    while (r->n_second <= (size_t)t)
        if (!add_second(r)) return NULL;
    return &r->second[(size_t)t];
}

void mg_load_record_sent(struct mg_load_record *r, double due) {
    struct mg_load_second *s = second_at(r, due);
    r->n_sent++;
    if (s) s->sent++;
    if (++r->under_way > r->most_under_way) r->most_under_way = r->under_way;
}

void mg_load_record_chunk(struct mg_load_record *r, double now, double gap, bool first) {
    struct mg_load_second *s = second_at(r, now);
    if (s) s->chunk++;
    if (!first) mg_load_histogram_add(&r->between, gap);
}

static void add_error(struct mg_load_record *r, const struct mg_load_outcome *x) {
    size_t i = 0;
    for (; i < r->n_error; i++) {
        const struct mg_load_error_row *row = &r->error[i];
        if (row->kind == x->kind && row->status == x->status && !strcmp(row->code, x->code)) break;
    }
    if (i == r->n_error && i < MG_LOAD_MAX_ERROR_ROW) {
        struct mg_load_error_row *row = &r->error[r->n_error++];
        *row = (struct mg_load_error_row){.kind = x->kind, .status = x->status};
        snprintf(row->code, sizeof row->code, "%s", x->code);
        if (r->n_error == MG_LOAD_MAX_ERROR_ROW) /* takes all that is new from here on */
            snprintf(row->code, sizeof row->code, "others");
    }
    r->error[mg_min_size(i, MG_LOAD_MAX_ERROR_ROW - 1)].n++;
}

static void add_tokens(int64_t *sum, int64_t n) {
    if (n > 0) *sum += n;
}

static void add_answer(struct mg_load_record *r, const struct mg_load_outcome *x) {
    int64_t tokens = x->completion_tokens >= 0 ? x->completion_tokens : (int64_t)x->n_chunk;
    mg_load_histogram_add(&r->answer, x->end - x->due);
    mg_load_histogram_add(&r->service, x->end - x->sent);
    mg_load_histogram_add(&r->this_second, x->end - x->due);
    if (x->n_chunk) mg_load_histogram_add(&r->first, x->first - x->due);
    if (x->n_chunk && tokens > 1)
        mg_load_histogram_add(&r->token, (x->last - x->first) / (double)(tokens - 1));
    add_tokens(&r->prompt_tokens, x->prompt_tokens);
    add_tokens(&r->cached_tokens, x->cached_tokens);
    add_tokens(&r->image_tokens, x->image_tokens);
    add_tokens(&r->completion_tokens, tokens);
    r->n_usage += x->completion_tokens >= 0;
    r->n_chunk += x->n_chunk;
}

void mg_load_record_outcome(struct mg_load_record *r, const struct mg_load_outcome *x) {
    struct mg_load_second *s = second_at(r, x->end);
    if (x->end > r->end) r->end = x->end;
    r->under_way--;
    r->n_kind[x->kind]++;
    r->n_byte += x->n_byte;
    r->n_retry_after += x->retry_after;
    if (x->sent > 0) mg_load_histogram_add(&r->late, x->sent - x->due);
    if (x->kind == MG_LOAD_OK) add_answer(r, x);
    if (x->kind >= MG_LOAD_REFUSED) add_error(r, x);
    if (!s) return;
    s->ok += x->kind == MG_LOAD_OK;
    s->error += x->kind >= MG_LOAD_REFUSED;
}

void mg_load_record_end(struct mg_load_record *r, double now) {
    if (r->interrupted && now > r->end) r->end = now;
    close_second(r);
}

void mg_load_record_free(struct mg_load_record *r) {
    free(r->second);
    mg_buf_free(&r->csv);
    r->second = NULL;
}

uint64_t mg_load_record_errors(const struct mg_load_record *r) {
    uint64_t n = 0;
    for (int k = MG_LOAD_REFUSED; k < MG_N_LOAD_KIND; k++) n += r->n_kind[k];
    return n;
}

double mg_load_record_error_share(const struct mg_load_record *r) {
    uint64_t errors = mg_load_record_errors(r), all = errors + r->n_kind[MG_LOAD_OK];
    return all ? 100.0 * (double)errors / (double)all : 0;
}
