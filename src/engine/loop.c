/* engine/loop.c - see loop.h. */
#include "engine/loop.h"

#include <string.h>

#define AT(i) ((i) & (MG_LOOP_RING - 1))

/* The text before `n` ends with . ! ? or the full-width 。 ！ ？ (three bytes each). */
static bool ends_sentence(const uint8_t *s, size_t n) {
    static const char wide[3][4] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"};
    if (n == 0) return false;
    if (s[n - 1] == '.' || s[n - 1] == '!' || s[n - 1] == '?') return true;
    for (size_t i = 0; i < 3 && n >= 3; i++)
        if (memcmp(s + n - 3, wide[i], 3) == 0) return true;
    return false;
}

unsigned mg_loop_flags(struct mg_slice text) {
    unsigned flags = 0;
    size_t visible = 0; /* bytes up to the last that is no space */
    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.data[i];
        if (c == '\n') flags |= MG_LOOP_NEWLINE;
        if (c == '|' || c == '\t' || c == '<' || c == '&') flags |= MG_LOOP_CELL;
        if (c >= '0' && c <= '9') flags |= MG_LOOP_DIGIT;
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') visible = i + 1;
    }
    if (ends_sentence(text.data, visible)) flags |= MG_LOOP_STOP;
    return flags;
}

/* Token i, that has a line end, closes a sentence: "word" "." "\n" or "word" ".\n", but not "12"
 * "." "\n". */
static bool ends_line_as_sentence(const struct mg_loop *l, size_t i) {
    unsigned before = i >= 1 ? l->flag[AT(i - 1)] : 0, before2 = i >= 2 ? l->flag[AT(i - 2)] : 0;
    if (!(l->flag[AT(i)] & MG_LOOP_NEWLINE)) return false;
    if (l->flag[AT(i)] & MG_LOOP_STOP) return !(before & MG_LOOP_DIGIT);
    return before & MG_LOOP_STOP && !(before & MG_LOOP_DIGIT) && !(before2 & MG_LOOP_DIGIT);
}

/* Tokens that a tail of period p must have to be a loop; at least p + 1 tokens are there. */
static size_t loop_size(const struct mg_loop *l, size_t p) {
    size_t last = AT(l->n - 1), first = AT(l->n - 1 - p);
    uint16_t line = l->sum[last].line - l->sum[first].line;
    uint16_t cell = l->sum[last].cell - l->sum[first].cell;
    uint16_t sentence = l->sum[last].sentence - l->sum[first].sentence;
    bool prose = !cell && (!line || (2 * sentence >= line && p >= 6));
    size_t repeats = MG_LOOP_REPEATS, most_row = cell ? 128 : 64;
    if (!prose && p <= most_row) {
        repeats = MG_LOOP_ROWS;
    } else if (!prose) {
        repeats = line ? (MG_LOOP_ROWS + line - 1) / line : MG_LOOP_MOST_LONG;
        repeats = mg_max_size(mg_min_size(repeats, MG_LOOP_MOST_LONG), MG_LOOP_LEAST_LONG);
    }
    return mg_max_size(repeats * p, line && cell ? MG_LOOP_TABLE_TOKENS : MG_LOOP_TOKENS);
}

bool mg_loop_add(struct mg_loop *l, int32_t token, unsigned flags) {
    size_t i = l->n++, most = mg_min_size(i, MG_LOOP_PERIOD), at = AT(i), prev = AT(i - 1);
    l->token[at] = token;
    l->flag[at] = (uint8_t)flags;
    l->sum[at] = l->sum[prev]; /* the zeros of the unused end before the first token */
    bool blank = l->flag[prev] & MG_LOOP_NEWLINE; /* the second of two line ends is no line */
    l->sum[at].line += flags & MG_LOOP_NEWLINE && !blank;
    l->sum[at].cell += (flags & MG_LOOP_CELL) != 0;
    l->sum[at].sentence += ends_line_as_sentence(l, i);
    for (size_t p = 1; p <= most; p++)
        l->equal[p] = l->token[AT(i - p)] == token ? l->equal[p] + 1 : 0;
    for (size_t p = 1; p <= most; p++) {
        size_t tail = l->equal[p] + p;
        if (tail < MG_LOOP_TOKENS || tail < MG_LOOP_REPEATS * p) continue;
        /* A multiple of this p would qualify with fewer repeats: the smallest decides alone. */
        if (tail < loop_size(l, p)) return false;
        l->period = p;
        l->repeats = tail / p;
        return true;
    }
    return false;
}
