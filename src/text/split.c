/* text/split.c - see split.h. `cls` is mg_unicode_class()'s table throughout. */
#include "text/split.h"

#include "text/unicode.h"

/* The end of "'s" and the like at s[at] == '\'', or `at`. Upper and lower case; U+017F (long s)
 * folds to s. */
static size_t contraction(const uint8_t *s, size_t n, size_t at) {
    if (n - at < 2) return at;
    uint8_t a = s[at + 1] | 32, b = n - at > 2 ? s[at + 2] | 32 : 0;
    if (s[at + 1] < 0x80) {
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
        if (n - at > 2 && s[at + 2] < 0x80 &&
            ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')))
            return at + 3;
        return at;
    }
    if (n - at > 2 && s[at + 1] == 0xC5 && s[at + 2] == 0xBF) return at + 3;
    return at;
}

static size_t letters(const uint8_t *cls, const uint8_t *s, size_t n, size_t at) {
    while (at < n) {
        size_t next = at;
        if (!(cls[mg_utf8_get(s, &next)] & MG_CH_LETTER)) break;
        at = next;
    }
    return at;
}

/* [^\s\p{L}\p{N}]+[\r\n]* from a character that is known to be of the first kind. */
static size_t symbols(const uint8_t *cls, const uint8_t *s, size_t n, size_t at) {
    while (at < n) {
        size_t next = at;
        if (cls[mg_utf8_get(s, &next)] & (MG_CH_LETTER | MG_CH_NUMBER | MG_CH_SPACE)) break;
        at = next;
    }
    while (at < n && (s[at] == '\r' || s[at] == '\n')) at++;
    return at;
}

/* White space that no letter or symbol takes with it: up to the last line end in the run; or,
 * without one, the run less its last character when something follows that isn't space. */
static size_t spaces(const uint8_t *cls, const uint8_t *s, size_t n, size_t at) {
    size_t from = at, last = at, line_end = at; /* last: where the run's last character begins */
    while (at < n) {
        size_t next = at;
        uint8_t k = cls[mg_utf8_get(s, &next)];
        if (!(k & MG_CH_SPACE)) break;
        last = at;
        at = next;
        if (k & MG_CH_NEWLINE) line_end = at;
    }
    if (line_end > from) return line_end;
    return at < n && last > from ? last : at;
}

size_t mg_split_next(const uint8_t *cls, const uint8_t *s, size_t n, size_t at) {
    size_t second = at;
    uint32_t c = mg_utf8_get(s, &second);
    uint8_t k = cls[c];
    if (k & MG_CH_LETTER) return letters(cls, s, n, second);
    if (k & MG_CH_NUMBER) return second;
    if (c == '\'') {
        size_t end = contraction(s, n, at);
        if (end > at) return end;
    }
    uint8_t k2 = 0;
    bool more = second < n;
    if (more) {
        size_t third = second;
        k2 = cls[mg_utf8_get(s, &third)];
        if ((k2 & MG_CH_LETTER) && !(k & MG_CH_NEWLINE)) return letters(cls, s, n, third);
    }
    if (!(k & MG_CH_SPACE)) return symbols(cls, s, n, second);
    if (c == ' ' && more && !(k2 & (MG_CH_LETTER | MG_CH_NUMBER | MG_CH_SPACE)))
        return symbols(cls, s, n, second);
    return spaces(cls, s, n, at);
}
