/* store/store.h - bytes that several margays share, whatever keeps them.
 *
 *     read = mg_store_read_begin(store, &key, most)      NULL: not to be had now
 *     ... other work; `news` is called when something has come ...
 *     mg_store_read_state(read)                          WAITING, FOUND, MISSING
 *     mg_store_read_end(read)                            at any time, also while waiting
 *
 *     mg_store_put(store, &key, ...)                     kept some time later, or not at all
 *
 * Nobody waits here: reads and puts are queued, and the store's own threads do the work. Everything
 * is allowed to get lost, nothing to come back changed: what is FOUND has passed entry.h's checks.
 * A read that is asked for while the store is known to be away gives NULL at once. How long a read
 * may be waited for is the reader's business: mg_store_read_progress says when it last got on.
 *
 * Any thread may call all of this. `news` is called by the store's threads with its lock held: it
 * must not call the store.
 */
#ifndef MG_STORE_STORE_H
#define MG_STORE_STORE_H

#include "store/entry.h"

#include <pthread.h>

struct mg_byte_store;

enum mg_store_state { MG_STORE_WAITING, MG_STORE_FOUND, MG_STORE_MISSING };

/* What is there to a key. */
struct mg_store_value {
    int64_t made;
    uint8_t head[MG_ENTRY_MAX_HEAD]; /* [n_head] */
    size_t n_head, n_body;
    uint8_t *body; /* [n_body] 64-byte aligned, owned */
};

struct mg_store_read;
/* max_body: of a larger body nothing is read. */
struct mg_store_read *mg_store_read_begin(struct mg_byte_store *s, const struct mg_store_key *key,
                                          size_t max_body);
/* With FOUND *value is filled, once: the body is the caller's. */
enum mg_store_state mg_store_read_take(struct mg_store_read *r, struct mg_store_value *value);
double mg_store_read_progress(struct mg_store_read *r); /* mg_clock */
const struct mg_store_key *mg_store_read_key(const struct mg_store_read *r);
void mg_store_read_end(struct mg_store_read *r); /* NULL is fine */

/* The body is borrowed until `release` is called, by any thread (perhaps at once); the rest is
 * copied. seconds: how long it is good, 0 as the store keeps things. */
void mg_store_put(struct mg_byte_store *s, const struct mg_store_key *key, const void *head,
                  size_t n_head, const void *body, size_t n_body, double seconds,
                  void (*release)(void *user), void *user);

/* Called when a read has ended; NULL: by nobody. After the return no call of an earlier one is
 * under way. */
void mg_store_on_news(struct mg_byte_store *s, void (*news)(void *user), void *user);

struct mg_store_counts {
    bool up;      /* it answers */
    bool refuses; /* what is put is refused (no room, no right, read-only) */
    struct {      /* reads that have ended, by what came of them */
        uint64_t hits, misses, damaged, failed, late, dropped;
    } read[MG_N_STORE_KIND];
    struct {
        uint64_t kept, known, failed, refused, dropped; /* known: it was there already */
    } put[MG_N_STORE_KIND];
    uint64_t bytes_read, bytes_written; /* of bodies */
    size_t queued_bytes;                /* of bodies that are to be put */
};
void mg_store_counts(struct mg_byte_store *s, struct mg_store_counts *out);

/* All reads must have been ended. What is still to be put is put if that goes quickly. */
void mg_store_close(struct mg_byte_store *s); /* NULL is fine */

/* --- for those who make a store --- */
struct mg_store_read {
    struct mg_byte_store *store;
    struct mg_store_key key;
    size_t max_body;
    double begun; /* mg_clock */
    struct mg_store_read *next;
    /* Under store->mutex. */
    int refs; /* the reader's, the store's */
    enum mg_store_state state;
    double progress;
    struct mg_store_value value; /* with FOUND, until taken */
};
struct mg_store_put {
    struct mg_store_key key;
    uint8_t head[MG_ENTRY_MAX_HEAD];
    size_t n_head, n_body;
    const uint8_t *body; /* borrowed */
    double seconds;
    int64_t made;
    void (*release)(void *user); /* may be NULL */
    void *user;
    struct mg_store_put *next;
};
struct mg_store_ops {
    /* Under the mutex. False: not now (the reader is told so). */
    bool (*read)(struct mg_byte_store *s, struct mg_store_read *r);
    bool (*put)(struct mg_byte_store *s, struct mg_store_put *p); /* false: not taken */
    void (*counts)(struct mg_byte_store *s, struct mg_store_counts *out);
    /* Without it. Ends the threads, frees everything but the base. */
    void (*close)(struct mg_byte_store *s);
};
struct mg_byte_store { /* the first field of an implementation's struct */
    const struct mg_store_ops *ops;
    pthread_mutex_t mutex;
    void (*news)(void *user); /* under the mutex, as user */
    void *user;
};
void mg_store_init(struct mg_byte_store *s, const struct mg_store_ops *ops);
void mg_store_destroy(struct mg_byte_store *s);
/* The store is done with a read; takes value->body when FOUND. Under the mutex. */
void mg_store_read_done(struct mg_store_read *r, enum mg_store_state state,
                        struct mg_store_value *value);
/* Nobody waits for it any more. Under the mutex. */
static inline bool mg_store_read_is_left(const struct mg_store_read *r) {
    return r->refs == 1;
}
/* Releases the body and frees it. */
void mg_store_put_free(struct mg_store_put *p);

#endif
