/* engine/loop.h - noticing an answer that only repeats itself.
 *
 * The end of the answer is periodic with period p when each of its tokens equals the one p before.
 * For every p up to MG_LOOP_PERIOD the length of that tail is kept, one comparison a token. Only
 * the smallest p counts whose tail has MG_LOOP_TOKENS tokens and 4 repeats; how many repeats make
 * it a loop depends on what one period holds, since a page may well have 60 equal rows but no 60
 * equal sentences:
 *
 *     one period holds                              p         a loop from
 *     no line end, no cell border                   1-512     192 tokens and 4 repeats
 *     lines that end as sentences, no cell border   6-512     192 tokens and 4 repeats
 *     other line ends, no cell border               1-64      192 tokens and 64 repeats
 *     cell borders, no line end                     1-128     192 tokens and 64 repeats
 *     line ends and cell borders: rows of a table   1-128     2048 tokens and 64 repeats
 *     the last three, longer                        -512      these tokens, and as many repeats as
 *                                                             give 64 lines, but 8 to 24
 *
 * So 60 equal rows of up to 64 tokens (128 with borders) pass whole, 200 short ones of two empty
 * cells too, as do long numbers and dotted lines; a token, a phrase, a sentence or a paragraph that
 * repeats without end is stopped within 200 tokens of where it began for periods up to 50, and at
 * its fourth repeat above.
 *
 * Limits. A row that repeats without end is indistinguishable from a table of such rows, and is
 * stopped late: a line of 15 tokens after 960, a table row after 2048. A loop in which something
 * counts up is no exact repeat and never found; nor is a period over MG_LOOP_PERIOD. A page with
 * 64 equal lines that are no sentences is cut there.
 */
#ifndef MG_ENGINE_LOOP_H
#define MG_ENGINE_LOOP_H

#include "base/err.h"
#include "base/mem.h"

#define MG_LOOP_PERIOD 512 /* longest period that is watched, tokens */
#define MG_LOOP_RING 1024  /* a power of two over MG_LOOP_PERIOD */

#define MG_LOOP_TOKENS 192        /* no shorter tail is a loop */
#define MG_LOOP_TABLE_TOKENS 2048 /* nor, with rows of a table, one shorter than this */
#define MG_LOOP_REPEATS 4
#define MG_LOOP_ROWS 64      /* repeats of what may be a row: 60 must pass */
#define MG_LOOP_LEAST_LONG 8 /* repeats of periods too long for one row: MG_LOOP_ROWS lines, */
#define MG_LOOP_MOST_LONG 24 /* but within these */

/* What a token's text holds. */
enum {
    MG_LOOP_NEWLINE = 1,
    MG_LOOP_CELL = 2, /* '|', a tab, '<' of HTML, '&' of LaTeX */
    MG_LOOP_DIGIT = 4,
    MG_LOOP_STOP = 8 /* its last visible character is . ! ? or one of their full-width forms */
};

struct mg_loop {
    size_t n;                    /* tokens so far */
    int32_t token[MG_LOOP_RING]; /* ring: token i at i % MG_LOOP_RING, as all below */
    uint8_t flag[MG_LOOP_RING];
    struct {                           /* of tokens 0..i, modulo 2^16: how many */
        uint16_t line, cell, sentence; /* end a line, hold a border, end a line as a sentence */
    } sum[MG_LOOP_RING];
    uint32_t equal[MG_LOOP_PERIOD + 1]; /* [p] tokens at the end that equal the one p before */
    size_t period, repeats;             /* once it is a loop: of what, and how often; else 0 */
};

/* The flags of a token from its bytes. */
unsigned mg_loop_flags(struct mg_slice text);
/* Takes a token in (a zeroed mg_loop is empty); true when the answer is a loop. */
bool mg_loop_add(struct mg_loop *l, int32_t token, unsigned flags);

#endif
