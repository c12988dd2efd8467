/* text/vocab.h - the token table: bytes to id and id to bytes.
 *
 * tokenizer.json writes tokens in GPT-2's byte alphabet, one character for each byte; they are kept
 * here as the bytes that they stand for. A token with a character outside the alphabet (" ", for
 * one) stands for its own text and can never come out of a merge; it is kept as LITERAL, apart from
 * the others.
 *
 *     pool   "!" "\"" ... " the" ...          all bytes, one after another
 *     token  [id] -> offset, length, flags    ids may have gaps (flags 0)
 *     slot   [hash] -> word, length, id + 1   open addressing, at most 2/3 full, linear probing
 *
 * A slot's word is the token itself where it has at most 8 bytes (most do), so that finding it
 * touches one cache line; else its hash, and the pool decides. The hash is seeded per table, since
 * the file may be hostile. Built by one thread, then read by any number.
 */
#ifndef MG_TEXT_VOCAB_H
#define MG_TEXT_VOCAB_H

#include "base/mem.h"

#define MG_TOKEN_MAX_N 1000000u  /* tokens, added ones too; also over the largest id */
#define MG_TOKEN_MAX_BYTES 4096u /* of one token's text in the file */

enum {
    MG_TOKEN_USED = 1,    /* there is a token of this id */
    MG_TOKEN_LITERAL = 2, /* kept as its own text */
    MG_TOKEN_ADDED = 4,
    MG_TOKEN_SPECIAL = 8
};

struct mg_token {
    uint32_t at;   /* where its bytes begin in the pool */
    uint16_t n;    /* how many */
    uint8_t flags; /* MG_TOKEN_ bits */
};

struct mg_vocab_slot {
    uint64_t word; /* the token's bytes, zeros behind; or, over 8 bytes, their hash */
    uint32_t id1;  /* id + 1, 0 in an empty slot */
    uint32_t kind; /* length * 2 + LITERAL */
};

struct mg_vocab {
    struct mg_buf pool;         /* all tokens' bytes, owned */
    struct mg_token *token;     /* [cap], owned */
    size_t n, cap;              /* one more than the largest id; room */
    struct mg_vocab_slot *slot; /* [mask + 1], a power of two, owned */
    size_t mask, n_slot;        /* n_slot: slots taken */
    uint64_t seed[2];           /* of the hash */
};

/* Room for about `expect` tokens to begin with. False: out of memory. */
bool mg_vocab_init(struct mg_vocab *v, size_t expect);
void mg_vocab_free(struct mg_vocab *v);

/* The bytes that `text` (UTF-8, at most MG_TOKEN_MAX_BYTES) stands for into
 * out[MG_TOKEN_MAX_BYTES]; *literal when they are just its own. */
size_t mg_vocab_bytes(struct mg_slice text, uint8_t *out, bool *literal);

/* The id with these bytes, or -1. */
int32_t mg_vocab_find(const struct mg_vocab *v, const uint8_t *bytes, size_t n, bool literal);
/* The same for a token as the file writes it. */
int32_t mg_vocab_find_text(const struct mg_vocab *v, struct mg_slice text);

/* Finding in two steps: aiming at several tokens before looking at the first hides the wait for
 * memory, which is most of what loading takes. The bytes must stay until the look; growing in
 * between is fine. */
struct mg_vocab_probe {
    const uint8_t *bytes; /* [n], borrowed */
    size_t n;
    uint64_t word, hash; /* as in the slot; where to begin looking */
    uint32_t kind;
};
void mg_vocab_aim(const struct mg_vocab *v, const uint8_t *bytes, size_t n, bool literal,
                  struct mg_vocab_probe *out);
int32_t mg_vocab_look(const struct mg_vocab *v, const struct mg_vocab_probe *p);

enum mg_vocab_add { MG_VOCAB_ADDED, MG_VOCAB_TWICE, MG_VOCAB_ID_TAKEN, MG_VOCAB_MEMORY };
/* A new token of at most MG_TOKEN_MAX_BYTES; id < MG_TOKEN_MAX_N. */
enum mg_vocab_add mg_vocab_add(struct mg_vocab *v, const struct mg_vocab_probe *p, uint32_t id);

#endif
