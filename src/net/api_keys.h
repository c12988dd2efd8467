/* net/api_keys.h - who may ask: keys given by the operator, by list and by file.
 *
 * Only digests (SHA-256) are kept. A presented key is hashed first and its digest compared with
 * every stored one without stopping early, so neither lengths nor beginnings show in the time.
 * Keys come as "Authorization: Bearer KEY" or "X-Api-Key: KEY"; for a browser's WebSocket, which
 * can have neither, as a protocol "margay.key." and the key in base64url.
 *
 * A file has one key a line; blanks around it, empty lines and lines that begin with '#' don't
 * count. Which paths need a key is the caller's business. Loop thread only.
 */
#ifndef MG_NET_API_KEYS_H
#define MG_NET_API_KEYS_H

#include "base/sha256.h"
#include "net/http_server.h"

#define MG_API_MAX_KEY 4096  /* bytes of one key */
#define MG_API_MAX_KEYS 4096 /* keys */

struct mg_api_keys {
    uint8_t (*digest)[MG_SHA256_BYTES]; /* owned; first the list's, then the file's */
    size_t n;
    size_t n_list;    /* of them from the list */
    const char *file; /* borrowed, or NULL */
};

/* `key`: n_key texts, or NULL; `file`: or NULL. An empty key is an error. */
enum mg_status mg_api_keys_open(struct mg_api_keys *k, const char *const *key, size_t n_key,
                                const char *file, struct mg_err *err);
/* Reads the file again; when that fails, all stays as it was. */
enum mg_status mg_api_keys_reload(struct mg_api_keys *k, struct mg_err *err);
void mg_api_keys_close(struct mg_api_keys *k);

/* Index of this key, or -1. An index is good until the next reload; the digest names a key for
 * longer (caches kept apart). */
int mg_api_keys_find(const struct mg_api_keys *k, const void *key, size_t n);
/* Index of the key that the request brings, or -1: none, or a wrong one. */
int mg_api_keys_of(const struct mg_api_keys *k, const struct mg_http_exchange *x);

#endif
