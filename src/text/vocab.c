/* text/vocab.c - see vocab.h. */
#include "text/vocab.h"

#include "text/hash.h"
#include "text/unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100.. in order ---- */

#define ALPHABET_END 0x144
static int16_t byte_of[ALPHABET_END]; /* code point -> byte, or -1 */
static pthread_once_t byte_once = PTHREAD_ONCE_INIT;

static void build_alphabet(void) {
    for (size_t c = 0; c < ALPHABET_END; c++) byte_of[c] = -1;
    int16_t next = 0x100;
    for (int16_t b = 0; b < 256; b++) {
        bool own = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
        byte_of[own ? b : next++] = b;
    }
}

size_t mg_vocab_bytes(struct mg_slice text, uint8_t *out, bool *literal) {
    pthread_once(&byte_once, build_alphabet);
    size_t n = 0;
    *literal = false;
    for (size_t i = 0; i < text.n;) {
        uint32_t c = mg_utf8_get(text.data, &i);
        if (c >= ALPHABET_END || byte_of[c] < 0) {
            *literal = true;
            memcpy(out, text.data, text.n);
            return text.n;
        }
        out[n++] = (uint8_t)byte_of[c];
    }
    return n;
}

/* ---- the table ---- */

static uint64_t hash(const struct mg_vocab *v, const uint8_t *p, size_t n, bool literal) {
    return mg_hash_bytes(p, n, v->seed[0] ^ (literal ? 0x9E3779B97F4A7C15u : 0), v->seed[1]);
}

static bool same(const struct mg_vocab *v, const struct mg_token *t, const uint8_t *p, size_t n,
                 bool literal) {
    return t->n == n && ((t->flags & MG_TOKEN_LITERAL) != 0) == literal &&
           memcmp(v->pool.data + t->at, p, n) == 0;
}

bool mg_vocab_init(struct mg_vocab *v, size_t expect) {
    *v = (struct mg_vocab){0};
    mg_hash_seed(v->seed);
    size_t slots = 1024;
    while (slots / 3 * 2 < expect && slots < 4u * MG_TOKEN_MAX_N) slots *= 2;
    v->slot = mg_alloc_zero(slots, sizeof *v->slot);
    v->mask = slots - 1;
    return v->slot && mg_buf_add(&v->pool, "", 0);
}

void mg_vocab_free(struct mg_vocab *v) {
    mg_buf_free(&v->pool);
    free(v->token);
    free(v->slot);
    *v = (struct mg_vocab){0};
}

static bool grow_slots(struct mg_vocab *v) {
    size_t slots = (v->mask + 1) * 2, mask = slots - 1;
    struct mg_vocab_slot *slot = mg_alloc_zero(slots, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i <= v->mask; i++) {
        if (v->slot[i].id1 == 0) continue;
        const struct mg_token *t = &v->token[v->slot[i].id1 - 1];
        uint64_t h = hash(v, v->pool.data + t->at, t->n, t->flags & MG_TOKEN_LITERAL);
        size_t at = h & mask;
        while (slot[at].id1) at = (at + 1) & mask;
        slot[at] = v->slot[i];
    }
    free(v->slot);
    v->slot = slot;
    v->mask = mask;
    return true;
}

static bool grow_tokens(struct mg_vocab *v, size_t n) {
    if (n <= v->cap) return true;
    size_t cap = mg_min_size(mg_max_size(mg_max_size(n, v->cap * 2), 1024), MG_TOKEN_MAX_N);
    struct mg_token *token = mg_realloc(v->token, cap, sizeof *token);
    if (!token) return false;
    memset(token + v->cap, 0, (cap - v->cap) * sizeof *token);
    v->token = token;
    v->cap = cap;
    return true;
}

int32_t mg_vocab_find(const struct mg_vocab *v, const uint8_t *bytes, size_t n, bool literal) {
    uint64_t h = hash(v, bytes, n, literal);
    uint32_t tag = (uint32_t)(h >> 32);
    for (size_t at = h & v->mask; v->slot[at].id1; at = (at + 1) & v->mask)
        if (v->slot[at].tag == tag && same(v, &v->token[v->slot[at].id1 - 1], bytes, n, literal))
            return (int32_t)(v->slot[at].id1 - 1);
    return -1;
}

int32_t mg_vocab_find_text(const struct mg_vocab *v, struct mg_slice text) {
    uint8_t bytes[MG_TOKEN_MAX_BYTES];
    bool literal;
    size_t n = mg_vocab_bytes(text, bytes, &literal);
    return mg_vocab_find(v, bytes, n, literal);
}

enum mg_vocab_add mg_vocab_add(struct mg_vocab *v, struct mg_slice text, uint32_t id) {
    uint8_t bytes[MG_TOKEN_MAX_BYTES];
    bool literal;
    size_t n = mg_vocab_bytes(text, bytes, &literal);
    if (v->n_slot >= (v->mask + 1) / 3 * 2 && !grow_slots(v)) return MG_VOCAB_MEMORY;
    if (!grow_tokens(v, (size_t)id + 1)) return MG_VOCAB_MEMORY;
    uint64_t h = hash(v, bytes, n, literal);
    uint32_t tag = (uint32_t)(h >> 32);
    size_t at = h & v->mask;
    for (; v->slot[at].id1; at = (at + 1) & v->mask)
        if (v->slot[at].tag == tag && same(v, &v->token[v->slot[at].id1 - 1], bytes, n, literal))
            return MG_VOCAB_TWICE;
    struct mg_token *t = &v->token[id];
    if (t->flags & MG_TOKEN_USED) return MG_VOCAB_ID_TAKEN;
    t->at = (uint32_t)v->pool.n;
    t->n = (uint16_t)n;
    t->flags = (uint8_t)(MG_TOKEN_USED | (literal ? MG_TOKEN_LITERAL : 0));
    if (!mg_buf_add(&v->pool, bytes, n)) {
        t->flags = 0;
        return MG_VOCAB_MEMORY;
    }
    v->slot[at] = (struct mg_vocab_slot){tag, id + 1};
    v->n_slot++;
    v->n = mg_max_size(v->n, (size_t)id + 1);
    return MG_VOCAB_ADDED;
}
