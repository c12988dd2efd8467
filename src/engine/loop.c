/* engine/loop.c - see loop.h. */
#include "engine/loop.h"

unsigned mg_loop_flags(struct mg_slice text) {
    unsigned flags = 0;
    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.data[i];
        if (c == '\n') flags |= MG_LOOP_NEWLINE;
        if (c == '|' || c == '\t' || c == '<') flags |= MG_LOOP_CELL;
        if (c >= '0' && c <= '9') flags |= MG_LOOP_DIGIT;
    }
    return flags;
}

static bool is_table_row(const struct mg_loop *l, size_t period) {
    unsigned all = 0;
    for (size_t i = 1; i <= period; i++) all |= l->flag[(l->n - i) % MG_LOOP_PERIOD];
    return (all & MG_LOOP_CELL) || ((all & MG_LOOP_NEWLINE) && (all & MG_LOOP_DIGIT));
}

bool mg_loop_add(struct mg_loop *l, int32_t token, unsigned flags) {
    size_t i = l->n++, most = mg_min_size(i, MG_LOOP_PERIOD);
    bool found = false;
    for (size_t p = 1; p <= most; p++)
        l->equal[p] = l->token[(i - p) % MG_LOOP_PERIOD] == token ? l->equal[p] + 1 : 0;
    l->token[i % MG_LOOP_PERIOD] = token;
    l->flag[i % MG_LOOP_PERIOD] = (uint8_t)flags;
    for (size_t p = 1; p <= most && !found; p++) {
        size_t tail = l->equal[p] + p;
        if (tail < MG_LOOP_TOKENS || tail < 3 * p) continue;
        found = tail >= MG_LOOP_ROWS * p || !is_table_row(l, p);
    }
    return found;
}
