/* text/bpe.h - the merges, and the merging of one piece of text.
 *
 * A merge is (left id, right id) -> rank and the id of both joined; the pair of lowest rank,
 * leftmost first, is joined until none is left. The table is one 64-bit word a merge:
 *
 *     | left id 20 | right id 20 | rank + 1 24 |     0 is an empty slot; at most 2/3 full
 *
 * with the new id apart, [rank]. Short pieces are merged by looking through the ranks again after
 * each merge (quadratic, but nothing beats it up to some dozens of symbols); longer ones with a
 * heap, O(n log n), so that a megabyte without a space is no way to hold the program up. Built by
 * one thread, then read by any number.
 */
#ifndef MG_TEXT_BPE_H
#define MG_TEXT_BPE_H

#include "base/mem.h"

#define MG_MERGE_MAX_N 4000000u /* merges; ranks fit 24 bits */

struct mg_bpe {
    uint64_t *slot; /* [mask + 1], owned */
    size_t mask;    /* slots - 1 */
    size_t n_slot;    /* slots taken; less than n when a pair was given twice */
    uint32_t *new_id; /* [cap] by rank, owned */
    size_t n, cap;    /* ranks given out */
    uint64_t seed[2]; /* of the hash */
    /* The id of each byte's own token, or -1: such bytes vanish, as in the reference. */
    int32_t byte[256];
};

bool mg_bpe_init(struct mg_bpe *m, size_t expect);
void mg_bpe_free(struct mg_bpe *m);
/* Fetches what mg_bpe_add will touch; only for speed. */
void mg_bpe_aim(const struct mg_bpe *m, uint32_t left, uint32_t right);
/* The next rank. A pair given twice has its last rank, as in the reference. False: no memory. */
bool mg_bpe_add(struct mg_bpe *m, uint32_t left, uint32_t right, uint32_t new_id);

/* Room that merging needs; one per encoding, kept between pieces. Zero-initialise. */
struct mg_bpe_symbol {
    int32_t id;
    /* Of it and the next; UINT32_MAX when they don't merge, or once it was joined to another. */
    uint32_t rank;
    uint32_t before, next; /* places, UINT32_MAX at the ends */
};
struct mg_bpe_work {
    struct mg_bpe_symbol *symbol; /* [n_symbol], owned */
    size_t n_symbol;              /* room */
    uint64_t *heap; /* rank << 32 | place of the left symbol; [n_heap], owned */
    size_t n_heap;  /* room */
};
void mg_bpe_work_free(struct mg_bpe_work *w);

/* Appends the ids of piece[0..n), n < 2^31. False: out of memory. */
bool mg_bpe_piece(const struct mg_bpe *m, struct mg_bpe_work *w, const uint8_t *piece, size_t n,
                  struct mg_ids *out);

#endif
