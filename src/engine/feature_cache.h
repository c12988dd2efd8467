/* engine/feature_cache.h - pictures that were encoded, kept for the next question about them.
 *
 * The key is SHA-256 over all that makes the features (mg_chat_add_image_as). Entries are shared by
 * counting, dropped least recently used first when over the budget, and put in only after the
 * vision tower has succeeded, or from a shared store. Engine's thread only, but for
 * mg_feature_release: a shared store's thread holds what it is still to send. No I/O.
 */
#ifndef MG_ENGINE_FEATURE_CACHE_H
#define MG_ENGINE_FEATURE_CACHE_H

#include "base/sha256.h"
#include "model/vision.h"

#include <stdatomic.h>

struct mg_feature {
    uint8_t key[MG_SHA256_BYTES];
    struct mg_picture picture; /* owned */
    size_t bytes;
    atomic_size_t refs; /* users; one more while in the cache */
    struct mg_feature *newer, *older;
};

struct mg_feature_cache {
    size_t budget, bytes, n;            /* bytes; bytes and entries now */
    uint64_t queries, hits;             /* since the beginning */
    struct mg_feature *newest, *oldest; /* list by last use */
};

/* Whether it is there; this counts as no query. */
bool mg_feature_has(const struct mg_feature_cache *c, const uint8_t *key);
/* NULL: not there. The caller gets a reference. */
struct mg_feature *mg_feature_find(struct mg_feature_cache *c, const uint8_t *key);
/* The picture moves in; the caller gets a reference. NULL when memory is short (then it has not
 * moved). What is over the budget leaves the cache; a picture over all of it is shared but not
 * kept. c NULL: shared only. */
struct mg_feature *mg_feature_put_take(struct mg_feature_cache *c, const uint8_t *key,
                                       struct mg_picture *picture);
/* Counts a picture that nobody had to look for, since its keys and values are still there. */
void mg_feature_skipped(struct mg_feature_cache *c);
void mg_feature_hold(struct mg_feature *f);    /* one more user */
void mg_feature_release(struct mg_feature *f); /* any thread; NULL is fine */
/* Makes the cache fit so many bytes. */
void mg_feature_cache_shrink(struct mg_feature_cache *c, size_t budget);

#endif
