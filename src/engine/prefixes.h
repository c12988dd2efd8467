/* engine/prefixes.h - keys and values of conversations that are over, for those that begin alike.
 *
 * An entry is a whole sequence: its tokens' identities and its pictures' keys, which say all that
 * made it, tenant included. A new prompt takes the longest common beginning, cut at a picture's
 * border: moved when the entry is used up by it (the same conversation goes on), else copied, which
 * costs a few milliseconds. Dropped least recently used first when over the budget. Engine's thread
 * only.
 */
#ifndef MG_ENGINE_PREFIXES_H
#define MG_ENGINE_PREFIXES_H

#include "engine/internal.h"

/* Entries at most: each is a mapping, of which a process may have some ten thousands, and all are
 * looked through for each prompt. */
#define MG_MAX_PREFIXES 512
/* Less than this is sooner read anew than copied. */
#define MG_LEAST_PREFIX 16

struct mg_prefix; /* one entry */

struct mg_prefix_store {
    size_t budget, bytes, n; /* bytes; bytes and entries now */
    bool by_space;           /* address space counts: an entry reserves a whole context's */
    uint64_t queries, hits;  /* tokens asked for, and found, since the beginning */
    struct mg_prefix *newest, *oldest;
};

/* Gives `chat`, which has no keys and values yet, what the store has of its prompt. Failing for
 * want of memory is no failure: there is less to take over. */
void mg_prefix_use(struct mg_prefix_store *s, mg_chat *chat, const struct layout *l);
/* Takes the keys and values out of a chat that is about to be closed, unless the store has them and
 * more; shorter ones that they begin with go. */
void mg_prefix_keep(struct mg_prefix_store *s, mg_chat *chat);
void mg_prefix_store_shrink(struct mg_prefix_store *s, size_t budget);

#endif
