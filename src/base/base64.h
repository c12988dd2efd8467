/* base/base64.h - base64 as people really send it, into bytes.
 *
 * Both alphabets of RFC 4648 are read, also mixed ('+' '/' and '-' '_'); blanks, tabs and line ends
 * anywhere are passed over; the padding may be missing. What isn't lenient: any other character,
 * text behind the padding, more than two '=', and a lone last character, which is no whole byte
 * (a cut text). Bits left over in the last character are ignored, as most decoders do.
 *
 * Four characters become three bytes by one table; about 1 GB of text a second and core.
 */
#ifndef MG_BASE_BASE64_H
#define MG_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

enum mg_base64_fault {
    MG_BASE64_OK,
    MG_BASE64_CHARACTER, /* one that is neither of an alphabet nor white space */
    MG_BASE64_PADDING,   /* something behind '=', or a third '=' */
    MG_BASE64_CUT        /* the last character is alone in its group */
};

/* Bytes that n characters become at most. */
static inline size_t mg_base64_bound(size_t n) {
    return n / 4 * 3 + 3;
}

/* Decodes n characters into `out`, which has room for mg_base64_bound(n) bytes and may be the text
 * itself. *n_out: bytes written. On a fault *n_out is the place of the offending character. */
enum mg_base64_fault mg_base64_decode(const char *text, size_t n, uint8_t *out, size_t *n_out);

/* The other way, in RFC 4648's first alphabet with padding: writes mg_base64_length(n) characters,
 * no zero byte. */
static inline size_t mg_base64_length(size_t n) {
    return (n / 3 + (n % 3 != 0)) * 4;
}
void mg_base64_encode(const uint8_t *data, size_t n, char *out);

#endif
