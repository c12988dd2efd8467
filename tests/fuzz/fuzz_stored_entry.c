/* Fuzz target: entries of a shared store, as somebody else may have left them: the front, then what
 * the body is taken for. Input: a byte that says how much of the rest is the front, and the rest.
 *
 * No fuzzer finds a SHA-256 or a key, so the entry is read twice: as it is, and with magic,
 * version, key and digest made right. Promises: what is taken has the lengths it says and lies
 * within the input; features have the wanted shape and finite numbers; an answer's ids are of the
 * vocabulary and its text is UTF-8; what is written again is the same bytes. */
#include "engine/shared_value.h"
#include "text/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_VOCAB = 1000, MOST = 1 << 20 };

static void need(bool promise) {
    if (!promise) abort();
}

static struct mg_store_key key_of(enum mg_store_kind kind) {
    struct mg_store_key key = {.kind = kind};
    memset(key.tenant, 't', sizeof key.tenant);
    memset(key.model, 'm', sizeof key.model);
    memset(key.digest, 'd', sizeof key.digest);
    return key;
}

static struct mg_store_value value_of(const struct mg_entry *e, const uint8_t *body) {
    struct mg_store_value v = {.made = e->made, .n_head = e->n_head, .n_body = e->n_body};
    memcpy(v.head, e->head, sizeof v.head);
    v.body = mg_alloc(v.n_body, 1);
    need(v.body != NULL);
    if (v.n_body) memcpy(v.body, body, v.n_body);
    return v;
}

static void as_picture(struct mg_store_value *v) {
    for (size_t n_token = 1; n_token <= 4; n_token++) {
        const struct mg_shared_shape want = {n_token, 2, 3};
        struct mg_picture p = {0};
        if (!mg_shared_picture_take(v, &want, &p)) continue;
        need(!v->body && p.n_token == n_token && p.n_map == 2 && p.width == 3);
        for (size_t i = 0; i < n_token * 6; i++) need(isfinite(p.row[i]));
        v->body = (uint8_t *)p.row; /* back again */
    }
}

static void as_answer(const struct mg_store_value *v) {
    struct mg_cached_answer a;
    if (!mg_shared_answer_read(v, N_VOCAB, &a)) {
        need(!a.text && !a.token && !a.logprob);
        return;
    }
    bool nfc;
    need(mg_utf8_check((const uint8_t *)a.text, a.n_text, &nfc) && a.text[a.n_text] == 0);
    for (size_t i = 0; i < a.n_token; i++) need(a.token[i] >= 0 && a.token[i] < N_VOCAB);
    for (size_t i = 0; i < a.n_logprob; i++) {
        need(a.logprob[i].id >= 0 && a.logprob[i].id < N_VOCAB && !isnan(a.logprob[i].logprob));
        need(a.logprob[i].n_top <= MG_MAX_LOGPROBS);
    }
    struct mg_answer again = {.text = a.text,
                              .n_text = a.n_text,
                              .token = a.token,
                              .n_token = a.n_token,
                              .finish_reason = a.finish_reason,
                              .stop_detail = a.stop_detail};
    uint8_t head[MG_ENTRY_MAX_HEAD];
    size_t n_head;
    struct mg_buf body = {0};
    need(mg_shared_answer_write(&again, a.logprob, a.n_logprob, head, &n_head, &body));
    need(n_head == v->n_head && memcmp(head, v->head, n_head) == 0);
    need(body.n == v->n_body && (!body.n || memcmp(body.data, v->body, body.n) == 0));
    mg_buf_free(&body);
    mg_shared_answer_free(&a);
}

static void run(const uint8_t *front, size_t n_front, const uint8_t *body, size_t n_body) {
    for (int kind = 0; kind < MG_N_STORE_KIND; kind++) {
        struct mg_store_key key = key_of((enum mg_store_kind)kind);
        struct mg_entry e;
        struct mg_err err = {0};
        enum mg_status st = mg_entry_parse(front, n_front, &key, MOST, &e, &err);
        need(st == err.status && (st == MG_OK || (err.text[0] && err.code[0])));
        if (st != MG_OK) continue;
        need(e.n_body <= MOST && e.piece > 0 && e.n_head <= MG_ENTRY_MAX_HEAD);
        size_t all = 0, n = mg_entry_pieces(&e);
        for (size_t i = 0; i < n && n < 1000; i++) all += mg_entry_piece(&e, i);
        need(n >= 1000 || all == e.n_body);
        if (e.n_body > n_body) continue;
        if (mg_entry_check(&e, &key, body, NULL) != MG_OK) continue;
        struct mg_store_value v = value_of(&e, body);
        as_picture(&v);
        as_answer(&v);
        free(v.body);
    }
}

/* The same entry as its writer would have made it: everything right but what it holds. */
static void correct(const uint8_t *front, size_t n_front, const uint8_t *body, size_t n_body) {
    struct mg_store_key key = key_of(front[12] & 1 ? MG_STORE_ANSWER : MG_STORE_PICTURE);
    uint8_t out[MG_ENTRY_MAX];
    size_t n;
    need(mg_entry_write(&key, 1, 1 + front[112], front + MG_ENTRY_FIXED, n_front - MG_ENTRY_FIXED,
                        body, n_body, out, &n));
    need(n == n_front);
    run(out, n, body, n_body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 1 || n > MOST) return 0;
    size_t n_front = mg_min_size(data[0], n - 1), n_body = n - 1 - n_front;
    /* blocks of their own, so that reading past an end is seen */
    uint8_t *front = malloc(n_front + !n_front), *body = malloc(n_body + !n_body);
    need(front && body);
    memcpy(front, data + 1, n_front);
    memcpy(body, data + 1 + n_front, n_body);
    run(front, n_front, body, n_body);
    if (n_front >= MG_ENTRY_FIXED && n_front <= MG_ENTRY_MAX) correct(front, n_front, body, n_body);
    free(front);
    free(body);
    return 0;
}
