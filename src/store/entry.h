/* store/entry.h - what lies in a store that others can write to, and how little of it is believed.
 *
 *     offset  bytes  what (numbers are little-endian)
 *          0      8  magic "MGCACHE" and a zero byte
 *          8      4  version of this form
 *         12      4  kind
 *         16     16  tenant
 *         32     32  model: weights, kernels and version that made it
 *         64     32  digest: everything else that decides the content
 *         96      8  made: seconds since 1970
 *        104      8  bytes of the body
 *        112      4  bytes of a piece: the body is kept in pieces of this size, the last is shorter
 *        116      4  bytes of the head, at most MG_ENTRY_MAX_HEAD
 *        120     32  SHA-256 of the 120 bytes above, the head and the body
 *        152      n  head: what the kind has to say of its body (shape, counts)
 *
 * The body comes apart from this. An entry is taken only when every field is what the reader asked
 * for, the length is exact and the SHA-256 is right; the key, which is all of kind, tenant, model
 * and digest, is compared in full. So a foreign, cut, older or damaged entry is a miss. It is no
 * proof against somebody who may write to the store: he can make a right SHA-256, too. What the
 * body's numbers mean is checked by who reads them (engine/shared_value.h).
 *
 * Pure functions: any thread.
 */
#ifndef MG_STORE_ENTRY_H
#define MG_STORE_ENTRY_H

#include "base/err.h"
#include "base/mem.h"
#include "base/sha256.h"

#define MG_ENTRY_VERSION 1
#define MG_ENTRY_MAX_HEAD 64
#define MG_ENTRY_FIXED 152
#define MG_ENTRY_MAX (MG_ENTRY_FIXED + MG_ENTRY_MAX_HEAD)
#define MG_STORE_TENANT 16

enum mg_store_kind { MG_STORE_PICTURE, MG_STORE_ANSWER, MG_N_STORE_KIND };

struct mg_store_key {
    enum mg_store_kind kind;
    uint8_t tenant[MG_STORE_TENANT];
    uint8_t model[MG_SHA256_BYTES], digest[MG_SHA256_BYTES];
};

struct mg_entry {
    int64_t made;                    /* seconds since 1970 */
    size_t n_body, piece;            /* bytes; piece > 0 */
    uint8_t sha256[MG_SHA256_BYTES]; /* as the entry says */
    uint8_t head[MG_ENTRY_MAX_HEAD]; /* [n_head] */
    size_t n_head;
};

/* The entry's front for this body; *n its bytes. n_head <= MG_ENTRY_MAX_HEAD, piece > 0. False:
 * out of memory. */
bool mg_entry_write(const struct mg_store_key *key, int64_t made, size_t piece, const void *head,
                    size_t n_head, const void *body, size_t n_body, uint8_t out[MG_ENTRY_MAX],
                    size_t *n);

/* The front alone; nothing of the body is known yet but its length, which is at most max_body.
 * MG_ERR_FORMAT with code entry_length (too short, too long), entry_magic, entry_version, entry_key
 * (of another kind, tenant, model or content), entry_shape (lengths that can't be). */
enum mg_status mg_entry_parse(const void *data, size_t n, const struct mg_store_key *want,
                              size_t max_body, struct mg_entry *out, struct mg_err *err);

/* Pieces of the body, and the bytes of the i-th. */
size_t mg_entry_pieces(const struct mg_entry *e);
size_t mg_entry_piece(const struct mg_entry *e, size_t i);

/* The body [e->n_body] belongs to the front that was parsed for this key: entry_digest. */
enum mg_status mg_entry_check(const struct mg_entry *e, const struct mg_store_key *key,
                              const void *body, struct mg_err *err);

#endif
