/* text/unicode.h - UTF-8, character classes and NFC as the reference tokenizer has them.
 *
 * The classes come from unicode_tables.c, which was measured on the reference: its regex engine and
 * its NFC each carry their own edition of Unicode. NFC itself is utf8proc's decomposition and
 * composition, applied only around characters that the reference's NFC may touch (class MG_CH_NFC):
 * any other character is a starter that nothing before it joins, so the text between two of them
 * can be treated alone. That makes the result independent of utf8proc's edition. Everything here
 * may be called by any thread.
 */
#ifndef MG_TEXT_UNICODE_H
#define MG_TEXT_UNICODE_H

#include "base/mem.h"

struct mg_range {
    uint32_t first, last; /* code points, inclusive */
};
extern const struct mg_range mg_range_letter[], mg_range_number[], mg_range_space[], mg_range_nfc[];
extern const size_t mg_n_range_letter, mg_n_range_number, mg_n_range_space, mg_n_range_nfc;

enum {
    MG_CH_LETTER = 1,  /* \p{L} */
    MG_CH_NUMBER = 2,  /* \p{N} */
    MG_CH_SPACE = 4,   /* \s */
    MG_CH_NEWLINE = 8, /* CR or LF, also SPACE */
    MG_CH_NFC = 16     /* NFC may change it, move it, or join it to what stands before */
};

/* One byte of MG_CH_ bits for each of the 0x110000 code points. Built at the first call, never
 * freed. */
const uint8_t *mg_unicode_class(void);

/* How s[0..n), n > 0, begins. Returns the length of a well-formed character with its code point in
 * *c; or 0 when there is none, with the length of the longest piece that could begin one (1..3) in
 * *bad. When that piece is all of s[0..n) and more bytes could complete it, *c is 1, else 0. */
size_t mg_utf8_next(const uint8_t *s, size_t n, uint32_t *c, size_t *bad);

/* The character at `s`, which is known to be well-formed; its length is added to *at. */
static inline uint32_t mg_utf8_get(const uint8_t *s, size_t *at) {
    const uint8_t *p = s + *at;
    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *at += 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *at += 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *at += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
           (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

/* True when s[0..n) is UTF-8. *nfc: some character in it has class NFC. */
bool mg_utf8_check(const uint8_t *s, size_t n, bool *nfc);

/* Appends s[0..n) with every piece that makes no UTF-8 as U+FFFD (one per longest piece). */
bool mg_utf8_lossy(const uint8_t *s, size_t n, struct mg_buf *out);

/* Appends the NFC of s[0..n), which is UTF-8. Linear in n. False: out of memory. */
bool mg_nfc(const uint8_t *s, size_t n, struct mg_buf *out);

#endif
