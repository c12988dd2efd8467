/* base/sha256.h - SHA-256 of bytes as they come, and the SHA-1 by which git names a file.
 *
 * The work is done by OpenSSL's libcrypto, which uses the processor's SHA instructions where there
 * are any; no other file includes its headers. One struct belongs to one thread at a time.
 *
 *     struct mg_sha256 h;
 *     mg_sha256_begin(&h);
 *     mg_sha256_update(&h, data, n);          as often as needed
 *     if (!mg_sha256_finish(&h, digest)) ...  or mg_sha256_drop(&h) to give up
 *
 * Whatever fails in between (out of memory) is remembered and told by mg_sha256_finish.
 */
#ifndef MG_BASE_SHA256_H
#define MG_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_SHA256_BYTES 32
#define MG_SHA1_BYTES 20
/* Digits of the text and its zero byte. */
#define MG_SHA256_HEX (2 * MG_SHA256_BYTES + 1)
#define MG_SHA1_HEX (2 * MG_SHA1_BYTES + 1)

struct mg_sha256 {
    void *context; /* libcrypto's, owned from begin to finish or drop; NULL: it has failed */
};
void mg_sha256_begin(struct mg_sha256 *h);
void mg_sha256_update(struct mg_sha256 *h, const void *data, size_t n);
/* Fills `digest` and frees; false (digest all zero) when anything failed since begin. */
bool mg_sha256_finish(struct mg_sha256 *h, uint8_t digest[MG_SHA256_BYTES]);
void mg_sha256_drop(struct mg_sha256 *h); /* also fine after finish, and on a zeroed struct */
/* The whole at once. */
bool mg_sha256(const void *data, size_t n, uint8_t digest[MG_SHA256_BYTES]);

/* SHA-1 is here for git's object names only; it protects against damage, not against an enemy. */
struct mg_sha1 {
    void *context; /* as above */
};
void mg_sha1_begin(struct mg_sha1 *h);
/* The same, already fed with the head that git puts before a file of n bytes: the name of its
 * "blob". */
void mg_sha1_begin_blob(struct mg_sha1 *h, uint64_t n);
void mg_sha1_update(struct mg_sha1 *h, const void *data, size_t n);
bool mg_sha1_finish(struct mg_sha1 *h, uint8_t digest[MG_SHA1_BYTES]);
void mg_sha1_drop(struct mg_sha1 *h);

/* Lower-case hexadecimal digits of n bytes and a zero byte: 2 * n + 1 chars. */
void mg_hex(const uint8_t *bytes, size_t n, char *out);
/* The other way: exactly 2 * n digits of either case and no more; false otherwise. */
bool mg_hex_parse(const char *text, uint8_t *bytes, size_t n);

#endif
