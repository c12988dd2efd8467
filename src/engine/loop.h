/* engine/loop.h - noticing an answer that only repeats itself.
 *
 * The tail of the answer is periodic with period p when each of its tokens equals the one p before. For every
 * p up to MG_LOOP_PERIOD the length of that tail is kept, one comparison a token. The answer is a loop when for some p
 *   - the tail has at least MG_LOOP_TOKENS tokens and 3 repeats, or
 *   - where the period looks like a row of a table (it holds a cell border, or a line end and a digit): 128 repeats.
 * So a table of 60 equal rows passes whole, as do long numbers and dotted lines; a sentence, a line or a token that
 * repeats without end is stopped within 200 tokens of its start for periods up to 66, after three for longer ones.
 * Known limits: equal lines without digits or cell borders are stopped after 160 tokens; a table of more than 128
 * equal rows is cut.
 */
#ifndef MG_ENGINE_LOOP_H
#define MG_ENGINE_LOOP_H

#include "base/err.h"
#include "base/mem.h"

#define MG_LOOP_PERIOD 128 /* longest period that is watched, tokens */
#define MG_LOOP_TOKENS 160
#define MG_LOOP_ROWS 128

/* What a token's text holds. */
enum { MG_LOOP_NEWLINE = 1, MG_LOOP_CELL = 2, MG_LOOP_DIGIT = 4 };

struct mg_loop {
    size_t n;                             /* tokens so far */
    int32_t token[MG_LOOP_PERIOD];        /* ring: token i at i % MG_LOOP_PERIOD */
    uint8_t flag[MG_LOOP_PERIOD];
    uint32_t equal[MG_LOOP_PERIOD + 1];   /* [p] tokens at the end that equal the one p before */
};

/* The flags of a token from its bytes: '|', a tab or '<' is a cell border. */
unsigned mg_loop_flags(struct mg_slice text);
/* Takes a token in (a zeroed mg_loop is empty); true when the answer is a loop. */
bool mg_loop_add(struct mg_loop *l, int32_t token, unsigned flags);

#endif
