/* store/redis_store.h - a Redis server as a store (store.h), with threads of its own.
 *
 *   reading thread   one link: reads in the order in which they were asked for; probes of a server
 *                    that is away; every MG_REDIS_IDLE seconds a probe of one that nobody asks
 *   writing thread   another link, so that large bodies on their way out hold no read up: puts,
 *                    expiries set anew after a read, entries dropped that were found damaged
 *
 * Limits: connecting and each command take MG_REDIS_LIMIT at most, a whole read MG_REDIS_LONGEST
 * and only as long as pieces come. Queues are bounded, what doesn't fit is dropped and counted.
 * After MG_BREAKER_THRESHOLD failures in a row nothing is asked or put until a probe succeeds
 * (breaker.h); all reads that wait then end at once. Each change is one line in the log, as is the
 * first put of a series that the server refuses (once a minute at most). A server that is away at
 * the beginning, or does not let us in, is one that has not come back yet.
 *
 * A server in cluster mode is used as far as its own slots go: redirections are not followed.
 */
#ifndef MG_STORE_REDIS_STORE_H
#define MG_STORE_REDIS_STORE_H

#include "store/redis_entries.h"
#include "store/store.h"

#define MG_REDIS_LIMIT 0.2
#define MG_REDIS_LONGEST 1.0
#define MG_REDIS_LONGEST_PUT 3.0 /* of one entry; also how long closing may take */
#define MG_REDIS_IDLE 2.0
#define MG_REDIS_MAX_READS 256
#define MG_REDIS_MAX_PUTS 1024
#define MG_REDIS_MAX_PUT_BYTES ((size_t)128 << 20) /* of bodies that wait */

struct mg_redis_store_options { /* borrowed during the call */
    const char *url;
    struct mg_redis_tls tls;
    double seconds; /* an entry's life after its last use */
    size_t budget;  /* bytes of all entries in the server */
    /* Called by the store's threads with what a read or a put took, queue left out. May be NULL. */
    void (*observe)(void *user, bool put, double seconds);
    void *user;
};

/* Fails for a URL that is none (code redis_url) and for want of memory or threads; not for a
 * server that is away. Waits for the first connection, MG_REDIS_LIMIT at most. */
enum mg_status mg_redis_store_open(const struct mg_redis_store_options *o,
                                   struct mg_byte_store **out, struct mg_err *err);

#endif
