/* cli/load_call.c - see load_call.h: requests are made and their replies judged here. */
#include "cli/load_call.h"

#include "base/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mg_load_head(const struct mg_load_plan *p, const char *method, const char *path, size_t key,
                  const char *type, size_t n_body, struct mg_buf *out) {
    mg_buf_printf(out,
                  "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: margay-load/%s\r\nAccept: "
                  "*/*\r\nConnection: %s\r\n",
                  method, p->path, path, p->host_field, mg_version(),
                  p->keep_alive ? "keep-alive" : "close");
    if (key < p->n_key) mg_buf_printf(out, "Authorization: Bearer %s\r\n", p->key[key]);
    for (size_t i = 0; i < p->n_header; i++) mg_buf_printf(out, "%s\r\n", p->header[i]);
    if (type) mg_buf_printf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", type, n_body);
    return mg_buf_add_str(out, "\r\n");
}

static struct mg_slice slice(const struct mg_load_text *text) {
    return (struct mg_slice){(const uint8_t *)text->data, text->n};
}

bool mg_load_call_send(struct mg_load_call *c, const struct mg_load_plan *p,
                       const struct mg_load_questions *q, struct mg_load_link *link, double now) {
    struct mg_slice piece[5];
    size_t n = 0, n_body = 0;
    if (q->n_picture) {
        piece[n++] = slice(&q->head);
        piece[n++] = slice(&q->picture[c->x.picture]);
        piece[n++] = slice(&q->middle);
    } else {
        piece[n++] = slice(&q->head_bare);
    }
    piece[n++] = slice(&q->question[c->x.question]);
    piece[n++] = slice(&q->tail);
    for (size_t i = 0; i < n; i++) n_body += piece[i].n;
    struct mg_buf head = {0};
    bool ok =
        mg_load_head(p, "POST", "/chat/completions", c->key, "application/json", n_body, &head) &&
        mg_load_link_send(link, &head, piece, n);
    mg_buf_free(&head);
    c->link = link;
    link->user = c;
    c->x.sent = now;
    return ok;
}

static void on_chunk(void *user) {
    struct mg_load_call *c = user;
    double now = mg_clock();
    bool first = c->x.n_chunk == 0;
    if (c->counted) mg_load_record_chunk(c->record, now, first ? 0 : now - c->x.last, first);
    if (first) c->x.first = now;
    c->x.last = now;
    c->x.n_chunk++;
}

static void begin_answer(struct mg_load_call *c) {
    const struct mg_http_response *r = &c->link->response;
    c->x.status = r->status;
    c->x.retry_after = r->status != 200 && r->retry_after > 0;
    c->answering = true;
    mg_load_answer_begin(&c->answer, r->status == 200 && r->event_stream, on_chunk, c);
}

bool mg_load_call_body(struct mg_load_call *c, const uint8_t *data, size_t n) {
    if (!c->answering) begin_answer(c);
    return mg_load_answer_feed(&c->answer, data, n);
}

static void code(struct mg_load_call *c, const char *text) {
    snprintf(c->x.code, sizeof c->x.code, "%s", text);
}

void mg_load_call_ended(struct mg_load_call *c, enum mg_load_kind kind, const char *text,
                        double now) {
    struct mg_load_answer *a = &c->answer;
    c->x.end = now;
    c->x.kind = kind;
    code(c, text);
    if (!c->answering && c->link && c->link->response.headed) begin_answer(c);
    if (!c->answering) return;
    c->x.prompt_tokens = a->prompt_tokens;
    c->x.cached_tokens = a->cached_tokens;
    c->x.image_tokens = a->image_tokens;
    c->x.completion_tokens = a->completion_tokens;
    c->x.n_byte = a->n_byte;
    /* What was cut off behind [DONE] is missed by nobody. */
    bool whole = kind == MG_LOAD_OK || (kind == MG_LOAD_CUT && a->done);
    if (!whole && kind != MG_LOAD_MALFORMED) return;
    if (kind == MG_LOAD_MALFORMED && !a->failed) {
        if (*a->code) code(c, a->code);
        return;
    }
    c->x.kind = mg_load_answer_end(a, c->x.status);
    c->x.prompt_tokens = a->prompt_tokens;
    c->x.cached_tokens = a->cached_tokens;
    c->x.image_tokens = a->image_tokens;
    c->x.completion_tokens = a->completion_tokens;
    code(c, a->code);
    const struct mg_load_plan *p = c->link->plan;
    if (c->x.kind == MG_LOAD_OK && p->stream && !a->stream) {
        c->x.kind = MG_LOAD_MALFORMED;
        code(c, "not_a_stream");
    }
}

void mg_load_call_free(struct mg_load_call *c) {
    if (!c) return;
    if (c->timer) event_free(c->timer);
    if (c->answering) mg_load_answer_free(&c->answer);
    free(c);
}
