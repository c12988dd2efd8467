/* kernels/x86/packed_amx.c - products with packed integer weights by AMX tiles.
 *
 * A packed tile is a tile B as it lies, 16 rows of x are a tile A as they lie. 32 rows by a panel
 * are 2 x 2 tiles of sums, which stay in tiles over all of k; the last rows have a configuration
 * with their true number. The tiles leave the vector units free: meanwhile, a share at each step,
 * the sums of the 32 rows before become results, and the task's next panel is fetched, or (INT4)
 * widened to INT8 into the other of two buffers in scratch. Without that the results take as long
 * as the sums. Few rows are limited by memory and go to vnni.
 *
 *   scratch:  two blocks of sums [32][32]; INT4: two panels as INT8
 */
#include "kernels/x86/ivec.h"
#include "kernels/x86/packed_finish.h"
#include "kernels/x86/tile.h"
#include "kernels/x86/x86.h"

#if defined(MG_TILE_STANDIN)
#define mg_amx_init_packed mg_standin_init_packed
enum { FEW8 = 0, FEW4 = 0 }; /* so that tiles are tested with few rows too */
#define FEW_MATMUL mg_avx2_packed_matmul
#define FEW_SCRATCH mg_avx2_packed_scratch
#else
/* INT8: one row is as fast by vnni, which needs no tiles; a step of 2 rows takes two threads 77 to
 * 83 ms by tiles, 88 by vnni. INT4: vnni reads nibbles in place. */
enum { FEW8 = 1, FEW4 = 6 };
#define FEW_MATMUL mg_vnni_packed_matmul
#define FEW_SCRATCH mg_vnni_packed_scratch
#endif

enum { MR = 32, MOST_PANELS = 8, TILE = 1024 };
/* Rows of x that meet all panels of a task before the next: they stay in L2 (2 MB where there is
 * AMX). 676 rows of 4096 are more than that: 28 % of the tiles' peak, 55 % in parts. */
enum { ROWS_BYTES = 5 << 18 };

enum { FINISH_ROWS = 2 };

/* What is done beside the tiles' work. */
struct beside {
    /* Sums that wait to become results: rows at .. end-1 of a panel. */
    const struct mg_packed_matmul *op;
    const int32_t *sums; /* of row `at` */
    size_t task, panel, at, end;
    size_t period, wait; /* FINISH_ROWS of them every `period` steps; steps until the next */
    /* Where the results of the rows that are being summed will go: rows fetch .. fetch_end-1 of y.
     */
    const float *y; /* of row `fetch` */
    size_t fetch, fetch_end;
    /* The next panel, made ready in equal shares by the steps of all groups of rows. */
    const char *from, *from_end; /* what is left of it; equal when there is none */
    char *to;                    /* INT4: where the next block goes as INT8; else NULL */
    size_t share;                /* INT8: bytes to fetch at each step */
    size_t groups, steps;        /* INT4: a block every `groups` steps; steps since the last */
};

INLINE void finish_some(struct beside *s, size_t rows) {
    rows = mg_min_size(rows, s->end - s->at);
    finish_panel(s->op, s->task, s->panel, s->at, rows, s->sums);
    s->at += rows;
    s->sums += rows * MG_PANEL;
}

INLINE void step_beside(struct beside *s) {
    if (--s->wait == 0) {
        s->wait = s->period;
        for (size_t i = 0; i < FINISH_ROWS && s->fetch < s->fetch_end; i++, s->fetch++) {
            __builtin_prefetch(s->y, 1);
            __builtin_prefetch(s->y + 16, 1);
            s->y += s->op->ldy;
        }
        if (s->at < s->end) finish_some(s, FINISH_ROWS);
    }
    if (s->from == s->from_end) return;
    if (!s->to) {
        const char *stop = s->from + mg_min_size(s->share, (size_t)(s->from_end - s->from));
        for (; s->from < stop; s->from += 64) _mm_prefetch(s->from, _MM_HINT_T1);
    } else if (++s->steps == s->groups) {
        s->steps = 0;
        prefetch_block(s->from, s->from_end, BLOCK4);
        widen_block(s->from, s->to);
        s->from += BLOCK4;
        s->to += BLOCK8;
    }
}

/* sums[rows][32] of 17..32 rows over an INT8 panel; end: of what may be fetched ahead. */
static void rows_32(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                    struct beside *beside, int32_t *sums) {
    const size_t line = MG_PANEL * sizeof *sums;
    const uint8_t *x1 = x + MG_TILE * ldx;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (size_t b = 0; b < blocks; b++, w += BLOCK8, x += 64, x1 += 64) {
        prefetch_block(w, end, BLOCK8);
        tile_load(6, w, 64);
        tile_load(4, x, ldx);
        tile_dot_int8(0, 4, 6);
        tile_load(7, w + TILE, 64);
        tile_dot_int8(1, 4, 7);
        tile_load(5, x1, ldx);
        tile_dot_int8(2, 5, 6);
        tile_dot_int8(3, 5, 7);
        step_beside(beside);
    }
    tile_store(0, sums, line);
    tile_store(1, sums + MG_TILE, line);
    tile_store(2, sums + MG_TILE * MG_PANEL, line);
    tile_store(3, sums + MG_TILE * MG_PANEL + MG_TILE, line);
}

/* The same of 1..16 rows. */
static void rows_16(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                    struct beside *beside, int32_t *sums) {
    const size_t line = MG_PANEL * sizeof *sums;
    tile_zero(0);
    tile_zero(1);
    for (size_t b = 0; b < blocks; b++, w += BLOCK8, x += 64) {
        prefetch_block(w, end, BLOCK8);
        tile_load(4, x, ldx);
        tile_load(6, w, 64);
        tile_dot_int8(0, 4, 6);
        tile_load(7, w + TILE, 64);
        tile_dot_int8(1, 4, 7);
        step_beside(beside);
    }
    tile_store(0, sums, line);
    tile_store(1, sums + MG_TILE, line);
}

INLINE bool few(const struct mg_packed_matmul *op) {
    return op->m <= (op->w->kind == MG_PACK_INT4 ? FEW4 : FEW8);
}

/* Panels of a task with many rows: a long run, since nothing of the first one is ready before. */
INLINE size_t many_panels(const struct mg_packed_matmul *op) {
    return mg_max_size(1, mg_min_size(MOST_PANELS, mg_packed_panels(op->w) / 16));
}

static size_t amx_tasks(const struct mg_packed_matmul *op) {
    size_t per = many_panels(op);
    return few(op) ? packed_tasks(op) : (mg_packed_panels(op->w) + per - 1) / per;
}

#define SUMS_BYTES (2 * MR * MG_PANEL * sizeof(int32_t))

static size_t amx_scratch(const struct mg_packed_matmul *op) {
    if (few(op)) return FEW_SCRATCH(op);
    bool is4 = op->w->kind == MG_PACK_INT4;
    return SUMS_BYTES + (is4 ? 2 * mg_packed_panel_bytes(MG_PACK_INT8, op->w->k) : 0);
}

/* A task: its panels for some rows of x, then for the next. */
struct product {
    const struct mg_packed_matmul *op;
    struct beside beside;
    size_t first, last; /* panels */
    size_t configured;  /* rows of the tiles now */
    int32_t *sums;      /* two blocks of [32][32] */
    bool odd;           /* the second one is next */
};

/* Rows row .. end-1 of x with one panel as INT8. The last rows' sums are left to the next steps,
 * which take the other block of sums. fetch_end: of what may be fetched ahead. */
static void one_panel(struct product *p, size_t row, size_t end, size_t panel, const char *w,
                      const char *fetch_end) {
    const struct mg_packed_matmul *op = p->op;
    struct beside *beside = &p->beside;
    size_t blocks = mg_packed_blocks(op->w->k);
    for (; row < end; row += MR, fetch_end = NULL, p->odd = !p->odd) {
        size_t rows = mg_min_size(MR, end - row);
        int32_t *to = p->sums + (p->odd ? MR * MG_PANEL : 0);
        if (rows != p->configured) tile_configure_rows(p->configured = rows);
        beside->wait = beside->period;
        beside->fetch = row;
        beside->fetch_end = op->y ? row + rows : 0;
        if (op->y) beside->y = op->y + row * op->ldy + panel * mg_packed_width(op->w);
        (rows > MG_TILE ? rows_32 : rows_16)(op->x + row * op->ldx, op->ldx, w, blocks, fetch_end,
                                             beside, to);
        finish_some(beside, MR); /* what few steps have left */
        beside->panel = panel;
        beside->at = row;
        beside->end = row + rows;
        beside->sums = to;
    }
}

/* All panels of the task for rows row .. end-1. */
static void some_rows(struct product *p, size_t row, size_t end, char *panels) {
    const struct mg_packed *m = p->op->w;
    bool is4 = m->kind == MG_PACK_INT4;
    size_t bytes = mg_packed_panel_bytes(m->kind, m->k), blocks = mg_packed_blocks(m->k);
    size_t wide = blocks * BLOCK8, groups = (end - row + MR - 1) / MR;
    const char *w = (const char *)m->data + p->first * bytes;
    struct beside *beside = &p->beside;
    beside->share = ((BLOCK8 + groups - 1) / groups + 63) & ~(size_t)63;
    beside->groups = groups;
    if (is4) widen_panel(w, blocks, w + bytes, panels);
    for (size_t panel = p->first; panel < p->last; panel++, w += bytes) {
        bool more = panel + 1 < p->last, odd = (panel - p->first) % 2;
        beside->from = w + bytes;
        beside->from_end = w + bytes + (more && (is4 || !row) ? bytes : 0);
        beside->to = is4 ? panels + (odd ? 0 : wide) : NULL;
        beside->steps = 0;
        one_panel(p, row, end, panel, is4 ? panels + (odd ? wide : 0) : w,
                  !is4 && panel == p->first ? w + bytes : NULL);
    }
}

static void amx_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    if (few(op)) {
        FEW_MATMUL(op, task, scratch);
        return;
    }
    size_t per = many_panels(op), blocks = mg_packed_blocks(op->w->k);
    struct product p = {.op = op, .first = task * per, .sums = scratch};
    p.last = mg_min_size(p.first + per, mg_packed_panels(op->w));
    p.beside = (struct beside){
        .op = op, .task = task, .period = mg_max_size(1, blocks * FINISH_ROWS / MR)};
    begin_top(op, task, p.first);
    size_t chunk = mg_max_size(MR, ROWS_BYTES / mg_max_size(1, op->ldx) / MR * MR);
    for (size_t row = 0; row < op->m; row += chunk)
        some_rows(&p, row, mg_min_size(op->m, row + chunk), (char *)scratch + SUMS_BYTES);
    finish_some(&p.beside, MR);
    if (p.configured) tile_release();
}

void mg_amx_init_packed(struct mg_kernels *t) {
    t->packed_tasks = amx_tasks;
    t->packed_scratch = amx_scratch;
    t->packed_matmul = amx_matmul;
}
