/* store/redis_entries.h - kept entries as keys of a Redis server, over one blocking link.
 *
 *     margay:{SHARD}:v1:KIND:TENANT:HEX   a hash: field "h" is the entry's front (entry.h), "0",
 * "1"
 *                                         .. the pieces of its body, of MG_REDIS_PIECE bytes
 *     margay:{SHARD}:v1:index             sorted set of KIND:TENANT:HEX by the time of their expiry
 *     margay:{SHARD}:v1:sizes             hash of their bytes, and under "" the sum
 *
 * SHARD is 0 .. 15, from the key; the braces make Redis Cluster keep a shard's keys in one slot.
 * KIND is p (picture) or a (answer); TENANT a hash of whose it is, so that one tenant's entries can
 * be found and deleted; HEX the SHA-256 of the whole key. "h" is written last: who finds it finds
 * all of the body, or what was dropped meanwhile, which is a miss.
 *
 * Each piece is put by a script that counts its bytes and drops the entries that expire soonest
 * until the shard is within its part of the budget: by then they are those that were not used for
 * longest. So the budget holds at every moment. Until "h" is there an entry lives for a minute
 * only: a writer that dies, or is refused, half way leaves nothing behind. Pieces keep Redis, which
 * does one thing at a time, from being held up: putting one of 512 KB takes it 1.5 ms.
 *
 * The calls a Redis user needs: see docs/redis.md. One thread at a time per link.
 */
#ifndef MG_STORE_REDIS_ENTRIES_H
#define MG_STORE_REDIS_ENTRIES_H

#include "store/redis_link.h"
#include "store/store.h"

#define MG_REDIS_SHARDS 16
/* With what Redis needs for itself it fits 512 KB; the next size there is 640. */
#define MG_REDIS_PIECE (((size_t)512 << 10) - 128)
/* What an entry takes in Redis beside its bytes, counted to the budget. */
#define MG_REDIS_OVERHEAD 256

struct mg_redis_names {
    char entry[160], index[40], sizes[40], member[128];
};
void mg_redis_names_make(const struct mg_store_key *key, struct mg_redis_names *out);

struct mg_redis_space {
    double seconds; /* an entry's life after its last use */
    size_t budget;  /* bytes, of all shards together */
};

enum mg_redis_found {
    MG_REDIS_HIT,
    MG_REDIS_MISS,
    MG_REDIS_PARTIAL, /* the front is there, a piece is not: dropped meanwhile, or while it was put
                       */
    MG_REDIS_DAMAGED
};
/* Reads and checks an entry. Each command may take `limit` seconds, the first only until
 * `first_end` (mg_clock), all together until `end`; `progress` is called after each. A failure is
 * that of a command; MG_ERR_LIMIT (redis_late): it got on, but not by `end`. */
enum mg_status mg_redis_entry_read(struct mg_redis_link *link, const struct mg_store_key *key,
                                   size_t max_body, double limit, double first_end, double end,
                                   void (*progress)(void *user), void *user,
                                   enum mg_redis_found *found, struct mg_store_value *value,
                                   struct mg_err *err);
/* Puts one, unless it is there (*known). Each command may take `limit` seconds, none is begun after
 * `end` (MG_ERR_LIMIT, redis_late). */
enum mg_status mg_redis_entry_write(struct mg_redis_link *link, const struct mg_redis_space *space,
                                    const struct mg_store_put *put, double limit, double end,
                                    bool *known, struct mg_err *err);
/* It was used: it expires later. */
enum mg_status mg_redis_entry_touch(struct mg_redis_link *link, const struct mg_redis_space *space,
                                    const struct mg_store_key *key, double limit,
                                    struct mg_err *err);
/* It is of no use. */
enum mg_status mg_redis_entry_drop(struct mg_redis_link *link, const struct mg_store_key *key,
                                   double limit, struct mg_err *err);
/* Whether entries can be read: what a read does first, of a key that is not there. */
enum mg_status mg_redis_entry_probe(struct mg_redis_link *link, double limit, struct mg_err *err);

#endif
