/* text/hash.h - seeded hashing for the token and merge tables.
 *
 * Two 64-bit words multiplied to 128 bits and folded: a few cycles for the short keys that these
 * tables have. The seed is drawn per table, so that a file can't be written to make all keys meet
 * in one place. Results of the tokenizer never depend on it. Not for security beyond that.
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

static inline uint64_t mg_hash_load8(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* p[0..n) with n <= 8, zeros behind. */
static inline uint64_t mg_hash_word(const uint8_t *p, size_t n) {
    if (n == 8) return mg_hash_load8(p);
    uint64_t v = 0;
    if (n & 4) {
        uint32_t w;
        memcpy(&w, p + (n & 3), 4);
        v = w;
    }
    for (size_t i = n & 3; i-- > 0;) v = v << 8 | p[i];
    return v;
}

/* The hash of a key over 8 bytes. */
static inline uint64_t mg_hash_long(const uint8_t *p, size_t n, uint64_t s0, uint64_t s1) {
    uint64_t h = s0 + n;
    for (; n > 16; p += 16, n -= 16)
        h = mg_hash_mix(mg_hash_load8(p) ^ s1, mg_hash_load8(p + 8) ^ h);
    uint64_t a = n >= 8 ? mg_hash_load8(p) : mg_hash_word(p, n);
    uint64_t b = n >= 8 ? mg_hash_load8(p + n - 8) : 0;
    return mg_hash_mix(a ^ s1, b ^ h);
}

#endif
