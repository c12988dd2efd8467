/* text/vocab.c - see vocab.h. */
#include "text/vocab.h"

#include "text/hash.h"
#include "text/unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100..
 * in order ---- */

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

static uint64_t hash_of(const struct mg_vocab *v, uint64_t word, uint32_t kind) {
    return mg_hash_mix(word ^ v->seed[0], v->seed[1] + kind);
}

void mg_vocab_aim(const struct mg_vocab *v, const uint8_t *bytes, size_t n, bool literal,
                  struct mg_vocab_probe *out) {
    out->bytes = bytes;
    out->n = n;
    out->word = n <= 8 ? mg_hash_word(bytes, n) : mg_hash_long(bytes, n, v->seed[0], v->seed[1]);
    out->kind = (uint32_t)n * 2 + literal;
    out->hash = hash_of(v, out->word, out->kind);
    __builtin_prefetch(&v->slot[out->hash & v->mask]);
}

/* The slot that has the token, or the empty one where it would go. */
static struct mg_vocab_slot *slot_of(const struct mg_vocab *v, const struct mg_vocab_probe *p) {
    size_t at = p->hash & v->mask;
    for (;; at = (at + 1) & v->mask) {
        struct mg_vocab_slot *slot = &v->slot[at];
        if (slot->id1 == 0) return slot;
        if (slot->word != p->word || slot->kind != p->kind) continue;
        if (p->n <= 8) return slot;
        if (memcmp(v->pool.data + v->token[slot->id1 - 1].at, p->bytes, p->n) == 0) return slot;
    }
}

bool mg_vocab_init(struct mg_vocab *v, size_t expect) {
    *v = (struct mg_vocab){0};
    mg_hash_seed(v->seed);
    v->seed[1] |= 1u << 20; /* never 0 with a kind added */
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
        size_t at = (size_t)hash_of(v, v->slot[i].word, v->slot[i].kind) & mask;
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

int32_t mg_vocab_look(const struct mg_vocab *v, const struct mg_vocab_probe *p) {
    return (int32_t)slot_of(v, p)->id1 - 1;
}

int32_t mg_vocab_find(const struct mg_vocab *v, const uint8_t *bytes, size_t n, bool literal) {
    struct mg_vocab_probe p;
    mg_vocab_aim(v, bytes, n, literal, &p);
    return mg_vocab_look(v, &p);
}

int32_t mg_vocab_find_text(const struct mg_vocab *v, struct mg_slice text) {
    uint8_t bytes[MG_TOKEN_MAX_BYTES];
    bool literal;
    size_t n = mg_vocab_bytes(text, bytes, &literal);
    return mg_vocab_find(v, bytes, n, literal);
}

enum mg_vocab_add mg_vocab_add(struct mg_vocab *v, const struct mg_vocab_probe *p, uint32_t id) {
    if (v->n_slot >= (v->mask + 1) / 3 * 2 && !grow_slots(v)) return MG_VOCAB_MEMORY;
    if (!grow_tokens(v, (size_t)id + 1)) return MG_VOCAB_MEMORY;
    struct mg_vocab_slot *slot = slot_of(v, p);
    struct mg_token *t = &v->token[id];
    if (slot->id1) return MG_VOCAB_TWICE;
    if (t->flags & MG_TOKEN_USED) return MG_VOCAB_ID_TAKEN;
    size_t at = v->pool.n;
    if (!mg_buf_add(&v->pool, p->bytes, p->n)) return MG_VOCAB_MEMORY;
    *t = (struct mg_token){(uint32_t)at, (uint16_t)p->n, MG_TOKEN_USED};
    if (p->kind & 1) t->flags |= MG_TOKEN_LITERAL;
    *slot = (struct mg_vocab_slot){p->word, id + 1, p->kind};
    v->n_slot++;
    v->n = mg_max_size(v->n, (size_t)id + 1);
    return MG_VOCAB_ADDED;
}
