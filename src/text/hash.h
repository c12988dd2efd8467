/* text/hash.h - seeded hashing for the token and merge tables.
 *
 * Two 64-bit words multiplied to 128 bits and folded: a few cycles for the short keys that these tables have.
 * The seed is drawn per table, so that a file can't be written to make all keys meet in one place. Results of
 * the tokenizer never depend on it. Not for security beyond that.
 */
#ifndef MG_TEXT_HASH_H
#define MG_TEXT_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Two words from the system's generator, or from clock and address where it has none. */
void mg_hash_seed(uint64_t seed[2]);

static inline uint64_t mg_hash_mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide p = (wide)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static inline uint64_t mg_hash_load(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static inline uint64_t mg_hash_bytes(const uint8_t *p, size_t n, uint64_t s0, uint64_t s1) {
    uint64_t a, b, h = s0 + n;
    while (n > 16) {
        h = mg_hash_mix(mg_hash_load(p, 8) ^ s1, mg_hash_load(p + 8, 8) ^ h);
        p += 16;
        n -= 16;
    }
    if (n >= 8) {
        a = mg_hash_load(p, 8);
        b = mg_hash_load(p + n - 8, 8);
    } else if (n >= 4) {
        a = mg_hash_load(p, 4);
        b = mg_hash_load(p + n - 4, 4);
    } else if (n > 0) {
        a = (uint64_t)p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
        b = 0;
    } else {
        a = b = 0;
    }
    h = mg_hash_mix(a ^ s1, b ^ h);
    return mg_hash_mix(h ^ s0, s1 ^ 0xA0761D6478BD642Fu);
}

#endif
