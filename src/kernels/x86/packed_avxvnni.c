/* kernels/x86/packed_avxvnni.c - products with packed integer weights by the 256-bit vpdpbusd of
 * processors without AVX-512 (Alder Lake and later).
 *
 * As packed_vnni.c with half the registers: up to 6 rows by one tile, 12 sums, 2 half lines of
 * weights and 1 broadcast, of 16. A panel is walked in steps of STEP blocks of tile 0 and then of
 * tile 1, the other tile's sums waiting in memory, so that a thread reads one stream from memory
 * and nothing twice. INT4: a panel is widened to INT8 in scratch; few rows are avx2's.
 */
#include "kernels/x86/ivec.h"
#include "kernels/x86/packed_finish.h"
#include "kernels/x86/x86.h"

#include <string.h>

enum { MAX_ROWS = 6, STEP = 2 };

INLINE vi dot(vi sum, vi x, vi w) {
    return _mm256_dpbusd_avx_epi32(sum, x, w);
}

/* sums[r][0..15] += over `blocks` blocks of a tile; split: sums that run side by side. */
INLINE void rows_int8(const int rows, const int split, const uint8_t *x, size_t ldx, const char *w,
                      size_t blocks, const char *end, int32_t *sums) {
    vi s[2][MAX_ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        s[0][r][0] = i_load(sums + r * MG_PANEL);
        s[0][r][1] = i_load(sums + r * MG_PANEL + VL);
        s[1][r][0] = s[1][r][1] = i_zero();
    }
    const uint8_t *x1 = x + 3 * ldx;
    for (size_t b = 0; b < blocks; b++, w += BLOCK8) {
        prefetch_block(w, end, BLOCK8);
        for (int j = 0; j < 16; j += split) {
            UNROLL for (int c = 0; c < split; c++) {
                vi w0 = i_load(w + 64 * (j + c)), w1 = i_load(w + 64 * (j + c) + VEC);
                UNROLL for (int r = 0; r < rows; r++) {
                    const uint8_t *base = r < 3 ? x : x1;
                    vi v = i_broadcast(base + (size_t)(r % 3) * ldx + 64 * b + 4 * (j + c));
                    s[c][r][0] = dot(s[c][r][0], v, w0);
                    s[c][r][1] = dot(s[c][r][1], v, w1);
                }
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int t = 0; t < 2; t++) {
            vi a = split > 1 ? i_add(s[0][r][t], s[1][r][t]) : s[0][r][t];
            i_store(sums + r * MG_PANEL + t * VL, a);
        }
    }
}

typedef void rows_fn(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                     int32_t *sums);
#define INSTANCE(N)                                                                                \
    static void int8_##N(const uint8_t *x, size_t ldx, const char *w, size_t blocks,               \
                         const char *end, int32_t *sums) {                                         \
        rows_int8(N, N < 3 ? 2 : 1, x, ldx, w, blocks, end, sums);                                 \
    }
INSTANCE(1)
INSTANCE(2)
INSTANCE(3)
INSTANCE(4)
INSTANCE(5)
INSTANCE(6)
static rows_fn *const int8[MAX_ROWS + 1] = {NULL, int8_1, int8_2, int8_3, int8_4, int8_5, int8_6};

/* avx2 sums nibbles in 16 bits: 1.5 times as fast as widening them for so few rows, and as
 * vpdpbusd on nibbles. */
INLINE bool by_avx2(const struct mg_packed_matmul *op) {
    return op->w->kind == MG_PACK_INT4 && op->m <= FEW_ROWS;
}

static size_t packed_scratch(const struct mg_packed_matmul *op) {
    if (by_avx2(op)) return mg_avx2_packed_scratch(op);
    return op->w->kind == MG_PACK_INT4 ? mg_packed_panel_bytes(MG_PACK_INT8, op->w->k) : 0;
}

/* All rows of x with one panel. next: the task's next panel or NULL, fetched meanwhile. */
static void one_panel(const struct mg_packed_matmul *op, size_t task, size_t panel, const char *w,
                      const char *next, const char *end, char *scratch) {
    size_t blocks = mg_packed_blocks(op->w->k), n = (op->m + MAX_ROWS - 1) / MAX_ROWS;
    size_t bytes = mg_packed_panel_bytes(op->w->kind, op->w->k);
    if (op->w->kind == MG_PACK_INT4) {
        widen_panel(w, blocks, w + bytes, scratch);
        w = scratch;
        end = NULL;
    }
    /* With many rows x, not w, is to stay in L1. */
    size_t step = op->m > MAX_ROWS ? blocks : STEP;
    _Alignas(64) int32_t sums[MAX_ROWS * MG_PANEL];
    for (size_t i = 0, row = 0; i < n; i++) {
        size_t rows = (op->m - row + n - i - 1) / (n - i); /* even parts */
        const uint8_t *x = op->x + row * op->ldx;
        const char *fetch = i ? NULL : end;
        memset(sums, 0, rows * MG_PANEL * 4);
        for (size_t b = 0; b < blocks; b += step) {
            size_t some = mg_min_size(step, blocks - b);
            const char *from = w + b * BLOCK8;
            int8[rows](x + b * 64, op->ldx, from, some, fetch, sums);
            int8[rows](x + b * 64, op->ldx, from + 1024, some, NULL, sums + MG_TILE);
        }
        if (next && n > 1)
            for (size_t at = i * bytes / n & ~(size_t)63; at < (i + 1) * bytes / n; at += 64)
                _mm_prefetch(next + at, _MM_HINT_T1);
        finish_panel(op, task, panel, row, rows, sums);
        row += rows;
    }
}

static void packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    if (by_avx2(op)) {
        mg_avx2_packed_matmul(op, task, scratch);
        return;
    }
    size_t per = task_panels(op), panel = task * per;
    size_t end = mg_min_size(panel + per, mg_packed_panels(op->w));
    size_t bytes = mg_packed_panel_bytes(op->w->kind, op->w->k);
    const char *w = op->w->data, *stop = w + end * bytes;
    begin_top(op, task, panel);
    for (; panel < end; panel++)
        one_panel(op, task, panel, w + panel * bytes,
                  panel + 1 < end ? w + (panel + 1) * bytes : NULL, stop, scratch);
}

void mg_avxvnni_init_packed(struct mg_kernels *t) {
    t->packed_tasks = packed_tasks;
    t->packed_scratch = packed_scratch;
    t->packed_matmul = packed_matmul;
}
