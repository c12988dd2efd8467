/* engine/shared_value.c - see shared_value.h. */
#include "engine/shared_value.h"

#include "text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORM = 1, MOST_TOKENS = 1 << 20 };
static const char *const reason[] = {"stop", "length"};
static const char *const detail[] = {NULL, "end_token", "stop_string", "repetition"};
enum { N_REASON = sizeof reason / sizeof *reason, N_DETAIL = sizeof detail / sizeof *detail };

static void put_u32(uint8_t *at, uint32_t x) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(x >> 8 * i);
}

static uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* --- pictures --- */
size_t mg_shared_picture_head(const struct mg_shared_shape *s, uint8_t out[MG_ENTRY_MAX_HEAD]) {
    put_u32(out, FORM);
    put_u32(out + 4, (uint32_t)s->n_token);
    put_u32(out + 8, (uint32_t)s->n_map);
    put_u32(out + 12, (uint32_t)s->width);
    return 16;
}

size_t mg_shared_picture_bytes(const struct mg_shared_shape *s) {
    size_t n;
    if (s->n_token > UINT32_MAX || s->n_map > UINT32_MAX || s->width > UINT32_MAX) return SIZE_MAX;
    if (!mg_mul_size(s->n_token, s->n_map, &n) || !mg_mul_size(n, s->width, &n) ||
        !mg_mul_size(n, sizeof(float), &n))
        return SIZE_MAX;
    return n;
}

/* By the bits, so that the compiler can take several at once. */
static bool all_finite(const uint8_t *data, size_t n_byte) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n_byte; i += 4) {
        uint32_t bits;
        memcpy(&bits, data + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

bool mg_shared_picture_take(struct mg_store_value *v, const struct mg_shared_shape *want,
                            struct mg_picture *out) {
    uint8_t head[MG_ENTRY_MAX_HEAD];
    size_t n = mg_shared_picture_head(want, head), bytes = mg_shared_picture_bytes(want);
    if (v->n_head != n || memcmp(v->head, head, n) != 0) return false;
    if (!bytes || bytes == SIZE_MAX || v->n_body != bytes || !all_finite(v->body, bytes))
        return false;
    *out = (struct mg_picture){.n_token = want->n_token,
                               .n_map = want->n_map,
                               .width = want->width,
                               .row = (float *)(void *)v->body};
    v->body = NULL;
    return true;
}

/* --- answers --- */
/* The place of a text in a list, n when it isn't there. */
static uint32_t place_of(const char *text, const char *const *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (text == list[i] || (text && list[i] && strcmp(text, list[i]) == 0)) return i;
    return n;
}

static void add_u32(struct mg_buf *b, uint32_t x) {
    uint8_t at[4];
    put_u32(at, x);
    mg_buf_add(b, at, sizeof at);
}

static void add_float(struct mg_buf *b, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_u32(b, bits);
}

bool mg_shared_answer_write(const struct mg_answer *a, const struct mg_token_logprob *logprob,
                            size_t n_logprob, uint8_t head[MG_ENTRY_MAX_HEAD], size_t *n_head,
                            struct mg_buf *body) {
    uint32_t r = place_of(a->finish_reason, reason, N_REASON);
    uint32_t d = place_of(a->stop_detail, detail, N_DETAIL);
    *n_head = 24;
    if (r == N_REASON || d == N_DETAIL || a->n_token > MOST_TOKENS || n_logprob > MOST_TOKENS ||
        a->n_text > MG_SHARED_MAX_ANSWER)
        return false;
    body->max = MG_SHARED_MAX_ANSWER;
    put_u32(head, FORM);
    put_u32(head + 4, (uint32_t)a->n_text);
    put_u32(head + 8, (uint32_t)a->n_token);
    put_u32(head + 12, (uint32_t)n_logprob);
    put_u32(head + 16, r);
    put_u32(head + 20, d);
    mg_buf_add(body, a->text, a->n_text);
    for (size_t i = 0; i < a->n_token; i++) add_u32(body, (uint32_t)a->token[i]);
    for (size_t i = 0; i < n_logprob; i++) {
        const struct mg_token_logprob *l = &logprob[i];
        add_u32(body, (uint32_t)l->id);
        add_float(body, l->logprob);
        add_u32(body, (uint32_t)l->n_top);
        for (size_t k = 0; k < l->n_top; k++) {
            add_u32(body, (uint32_t)l->top[k].id);
            add_float(body, l->top[k].logprob);
        }
    }
    return !body->failed;
}

/* What is left of a body; `bad` once anything was wrong. */
struct reading {
    const uint8_t *at;
    size_t left, n_vocab;
    bool bad;
};

static uint32_t next_u32(struct reading *r) {
    if (r->left < 4) {
        r->bad = true;
        return 0;
    }
    uint32_t x = get_u32(r->at);
    r->at += 4;
    r->left -= 4;
    return x;
}

static int32_t next_id(struct reading *r) {
    uint32_t x = next_u32(r);
    if (x >= r->n_vocab || x > INT32_MAX) r->bad = true;
    return r->bad ? 0 : (int32_t)x;
}

static float next_float(struct reading *r) {
    uint32_t bits = next_u32(r);
    float x;
    memcpy(&x, &bits, sizeof x);
    if (isnan(x)) r->bad = true;
    return x;
}

static void next_logprob(struct reading *r, struct mg_token_logprob *l) {
    l->id = next_id(r);
    l->logprob = next_float(r);
    uint32_t n = next_u32(r);
    if (n > MG_MAX_LOGPROBS) r->bad = true;
    l->n_top = r->bad ? 0 : n;
    for (size_t k = 0; k < l->n_top; k++) {
        l->top[k].id = next_id(r);
        l->top[k].logprob = next_float(r);
    }
}

static bool read_body(struct reading *r, struct mg_cached_answer *out) {
    bool nfc;
    if (r->left < out->n_text || !mg_utf8_check(r->at, out->n_text, &nfc)) return false;
    /* each takes 4 and 12 bytes at least: no count asks for memory that the body doesn't pay for */
    size_t rest = r->left - out->n_text;
    if (out->n_token > rest / 4 || out->n_logprob > (rest - out->n_token * 4) / 12) return false;
    out->text = malloc(out->n_text + 1);
    out->token = mg_alloc(out->n_token, sizeof *out->token);
    out->logprob = mg_alloc_zero(out->n_logprob, sizeof *out->logprob);
    if (!out->text || !out->token || !out->logprob) return false;
    if (out->n_text) memcpy(out->text, r->at, out->n_text);
    out->text[out->n_text] = 0;
    r->at += out->n_text;
    r->left -= out->n_text;
    for (size_t i = 0; i < out->n_token; i++) out->token[i] = next_id(r);
    for (size_t i = 0; i < out->n_logprob && !r->bad; i++) next_logprob(r, &out->logprob[i]);
    return !r->bad && !r->left;
}

bool mg_shared_answer_read(const struct mg_store_value *v, size_t n_vocab,
                           struct mg_cached_answer *out) {
    *out = (struct mg_cached_answer){0};
    if (v->n_head != 24 || get_u32(v->head) != FORM || v->n_body > MG_SHARED_MAX_ANSWER)
        return false;
    uint32_t r = get_u32(v->head + 16), d = get_u32(v->head + 20);
    if (r >= N_REASON || d >= N_DETAIL) return false;
    out->n_text = get_u32(v->head + 4);
    out->n_token = get_u32(v->head + 8);
    out->n_logprob = get_u32(v->head + 12);
    out->finish_reason = reason[r];
    out->stop_detail = detail[d];
    struct reading body = {v->body, v->n_body, n_vocab, false};
    if (read_body(&body, out)) return true;
    mg_shared_answer_free(out);
    return false;
}

void mg_shared_answer_free(struct mg_cached_answer *a) {
    free(a->text);
    free(a->token);
    free(a->logprob);
    *a = (struct mg_cached_answer){0};
}
