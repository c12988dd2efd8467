/* text/tokenizer.c - encoding and decoding; see tokenizer.h, and tokenizer_file.c for loading.
 *
 *     text -> UTF-8, broken pieces as U+FFFD -> [added tokens cut out] -> NFC -> [added tokens
 *     that are looked for in NFC] -> pieces (split.c) -> a whole token, or merges (bpe.c) -> ids
 *
 * Most pieces are one token, so a piece is looked up whole first. A token counts as whole only when
 * merging its bytes gives just it, which is tried once for each token and remembered.
 */
#include "text/split.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)64 << 20) /* bytes of one text */

void mg_tokenizer_close(struct mg_tokenizer *tok) {
    if (!tok) return;
    mg_vocab_free(&tok->vocab);
    mg_bpe_free(&tok->bpe);
    free(tok->raw.item);
    free(tok->normalized.item);
    mg_arena_free(&tok->arena);
    free((void *)tok->whole);
    free(tok);
}

/* ---- encoding ---- */

struct encoder {
    const struct mg_tokenizer *tok;
    const uint8_t *cls; /* mg_unicode_class() */
    bool special;       /* look for added tokens */
    bool nfc;           /* the text has characters that NFC may change */
    struct mg_bpe_work work;
    struct mg_buf normal; /* one stretch in NFC */
    struct mg_ids *out;
};

static bool add_id(struct mg_ids *out, int32_t id) {
    if (out->n == out->cap) return mg_ids_add(out, id);
    out->id[out->n++] = id;
    return true;
}

static bool encode_piece(struct encoder *e, const uint8_t *piece, size_t n) {
    const struct mg_tokenizer *tok = e->tok;
    if (n == 1) return tok->bpe.byte[*piece] < 0 || add_id(e->out, tok->bpe.byte[*piece]);
    int32_t id = n <= MG_TOKEN_MAX_BYTES ? mg_vocab_find(&tok->vocab, piece, n, false) : -1;
    uint8_t whole = MG_WHOLE_NO;
    if (id >= 0) whole = atomic_load_explicit(&tok->whole[id], memory_order_relaxed);
    if (whole == MG_WHOLE_YES) return add_id(e->out, id);
    size_t before = e->out->n;
    if (!mg_bpe_piece(&tok->bpe, &e->work, piece, n, e->out)) return false;
    if (whole == MG_WHOLE_UNKNOWN) {
        bool is = e->out->n == before + 1 && e->out->id[before] == id;
        atomic_store_explicit(&tok->whole[id], is ? MG_WHOLE_YES : MG_WHOLE_NO,
                              memory_order_relaxed);
    }
    return true;
}

static bool encode_plain(struct encoder *e, const uint8_t *s, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t end = mg_split_next(e->cls, s, n, at);
        if (!encode_piece(e, s + at, end - at)) return false;
        at = end;
    }
    return true;
}

/* The longest item of the set that s[0..n) begins with, or NULL. */
static const struct mg_added *longest(const struct mg_added_set *set, const uint8_t *s, size_t n) {
    const struct mg_added *best = NULL, *item = set->item;
    size_t lo = 0, hi = set->n; /* all of [lo, hi) begin with s[0..d) */
    for (size_t d = 0; lo < hi; d++) {
        for (; lo < hi && item[lo].n == d; lo++) best = &item[lo];
        if (d == n) break;
        size_t end = hi;
        for (size_t a = lo, b = hi; a < b;) { /* the first that isn't below s[d] */
            size_t mid = a + (b - a) / 2;
            if (item[mid].text[d] < s[d])
                a = mid + 1;
            else
                b = mid;
            lo = a;
        }
        for (size_t a = lo, b = hi; a < b;) { /* the first above */
            size_t mid = a + (b - a) / 2;
            if (item[mid].text[d] <= s[d])
                a = mid + 1;
            else
                b = mid;
            end = a;
        }
        hi = end;
    }
    return best;
}

/* Cuts added tokens out of s[0..n); what is between them goes to `rest`. */
static bool cut(struct encoder *e, const struct mg_added_set *set, const uint8_t *s, size_t n,
                bool (*rest)(struct encoder *, const uint8_t *, size_t)) {
    size_t from = 0, at = 0;
    while (e->special && set->n && at < n) {
        const struct mg_added *a = set->first[s[at]] ? longest(set, s + at, n - at) : NULL;
        if (!a) {
            at++;
            continue;
        }
        if (at > from && !rest(e, s + from, at - from)) return false;
        if (!add_id(e->out, a->id)) return false;
        from = at += a->n;
    }
    return from == n || rest(e, s + from, n - from);
}

static bool encode_normalised(struct encoder *e, const uint8_t *s, size_t n) {
    if (e->nfc) {
        e->normal.n = 0;
        if (!mg_nfc(s, n, &e->normal)) return false;
        s = e->normal.data;
        n = e->normal.n;
    }
    return cut(e, &e->tok->normalized, s, n, encode_plain);
}

enum mg_status mg_tokenizer_encode(const struct mg_tokenizer *tok, const char *text, size_t n,
                                   bool special, struct mg_ids *out, struct mg_err *err) {
    if (n > TEXT_MAX)
        return mg_fail(err, MG_ERR_LIMIT, "text_too_large", "a text of %zu bytes, the limit is %zu",
                       n, TEXT_MAX);
    struct encoder e = {.tok = tok, .cls = mg_unicode_class(), .special = special, .out = out};
    struct mg_buf mended = {0};
    const uint8_t *s = (const uint8_t *)text;
    size_t before = out->n;
    bool ok = true;
    if (!mg_utf8_check(s, n, &e.nfc)) {
        ok = mg_utf8_lossy(s, n, &mended);
        s = mended.data;
        n = mended.n;
        ok = ok && mg_utf8_check(s, n, &e.nfc);
    }
    ok = ok && cut(&e, &tok->raw, s, n, encode_normalised);
    mg_bpe_work_free(&e.work);
    mg_buf_free(&e.normal);
    mg_buf_free(&mended);
    if (ok) return MG_OK;
    out->n = before;
    return mg_fail_memory(err, "tokenizing");
}

/* ---- decoding ---- */

struct mg_slice mg_tokenizer_piece(const struct mg_tokenizer *tok, int32_t id) {
    if (id < 0 || (size_t)id >= tok->vocab.n) return (struct mg_slice){NULL, 0};
    const struct mg_token *t = &tok->vocab.token[id];
    return (struct mg_slice){tok->vocab.pool.data + t->at, t->n};
}

int32_t mg_tokenizer_added(const struct mg_tokenizer *tok, const char *content) {
    struct mg_slice text = {(const uint8_t *)content, strlen(content)};
    bool nfc;
    if (text.n > MG_TOKEN_MAX_BYTES || !mg_utf8_check(text.data, text.n, &nfc)) return -1;
    int32_t id = mg_vocab_find_text(&tok->vocab, text);
    return id >= 0 && (tok->vocab.token[id].flags & MG_TOKEN_ADDED) ? id : -1;
}

bool mg_tokenizer_is_special(const struct mg_tokenizer *tok, int32_t id) {
    return id >= 0 && (size_t)id < tok->vocab.n && (tok->vocab.token[id].flags & MG_TOKEN_SPECIAL);
}

size_t mg_tokenizer_n(const struct mg_tokenizer *tok) { return tok->vocab.n; }

bool mg_tokenizer_decode(const struct mg_tokenizer *tok, const int32_t *id, size_t n,
                         bool skip_special, struct mg_buf *out) {
    struct mg_detok d = {0};
    for (size_t i = 0; i < n; i++) {
        if (skip_special && mg_tokenizer_is_special(tok, id[i])) continue;
        if (!mg_detok_add(&d, mg_tokenizer_piece(tok, id[i]), out)) return false;
    }
    return mg_detok_flush(&d, out);
}

static bool add_replacement(struct mg_buf *out) { return mg_buf_add(out, "\xEF\xBF\xBD", 3); }

/* Completes or gives up the tail with the bytes of the piece. *used: how many of them went. */
static bool finish_tail(struct mg_detok *d, struct mg_slice piece, size_t *used,
                        struct mg_buf *out) {
    uint8_t all[4];
    size_t take = mg_min_size(piece.n, sizeof all - d->n_tail), n = d->n_tail + take, bad;
    memcpy(all, d->tail, d->n_tail);
    memcpy(all + d->n_tail, piece.data, take);
    uint32_t c;
    size_t len = mg_utf8_next(all, n, &c, &bad);
    if (len == 0 && c == 1) { /* still not complete */
        memcpy(d->tail, all, n);
        d->n_tail = n;
        *used = take;
        return true;
    }
    *used = (len ? len : bad) - d->n_tail;
    d->n_tail = 0;
    return len ? mg_buf_add(out, all, len) : add_replacement(out);
}

bool mg_detok_add(struct mg_detok *d, struct mg_slice piece, struct mg_buf *out) {
    size_t at = 0;
    if (piece.n == 0) return true;
    if (d->n_tail && !finish_tail(d, piece, &at, out)) return false;
    size_t from = at;
    while (at < piece.n) {
        uint32_t c;
        size_t bad, len = mg_utf8_next(piece.data + at, piece.n - at, &c, &bad);
        if (len == 0) {
            if (!mg_buf_add(out, piece.data + from, at - from)) return false;
            if (c == 1) {
                memcpy(d->tail, piece.data + at, bad);
                d->n_tail = bad;
            } else if (!add_replacement(out)) {
                return false;
            }
            len = bad;
            from = at + bad;
        }
        at += len;
    }
    return mg_buf_add(out, piece.data + from, at - from);
}

bool mg_detok_flush(struct mg_detok *d, struct mg_buf *out) {
    bool held = d->n_tail > 0;
    d->n_tail = 0;
    return held ? add_replacement(out) : mg_buf_add(out, "", 0);
}
