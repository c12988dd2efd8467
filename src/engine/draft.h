/* engine/draft.h - guessing the next tokens from what was said before.
 *
 * The last 4, 3 or 2 tokens are looked for earlier in prompt and answer; what followed there last
 * time is the draft. Text that repeats or quotes (tables, JSON, lists, lines of a document) is
 * guessed well, and checking some rows in one pass costs little while decoding waits for memory: a
 * row more costs about ROW_COST of a pass. A guess never changes an answer, since only tokens that
 * the model chooses itself are taken over.
 *
 * For each length of match the share of drafted tokens that were right is kept; a draft is as long
 * as its last token is still worth its row.
 */
#ifndef MG_ENGINE_DRAFT_H
#define MG_ENGINE_DRAFT_H

#include "base/mem.h"

#define MG_MAX_DRAFT 15

struct mg_draft {
    struct mg_ids said; /* prompt and answer, owned */
    float right[5];     /* by length of match (2 .. 4): share of tokens that were right */
    size_t match;       /* of the last proposal, 0 none */
    size_t waited;      /* chances let pass because drafts did not pay */
};

/* Begins with the prompt. false: out of memory. */
bool mg_draft_begin(struct mg_draft *d, const int32_t *id, size_t n);
bool mg_draft_say(struct mg_draft *d, int32_t id);
/* Up to `most` (<= MG_MAX_DRAFT) tokens that may follow; gives their number. */
size_t mg_draft_propose(struct mg_draft *d, int32_t *out, size_t most);
/* How many of the last proposal's n tokens were right. */
void mg_draft_learn(struct mg_draft *d, size_t n, size_t right);
void mg_draft_free(struct mg_draft *d);

#endif
