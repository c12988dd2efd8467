/* kernels/x86/packed_vnni.c - products with packed integer weights by vpdpbusd, and the rounding of
 * activations.
 *
 * The micro-kernel walks one panel along k for up to 13 rows of x, with a zmm of sums per row and
 * tile: 26 sums, 2 lines of weights, 1 broadcast, of 32 registers (13 divides 676 and 169, the rows
 * of a 416 x 416 picture). With few rows several sums per row and tile run side by side to hide the
 * instruction's latency. Integer sums are exact, so none of this can be seen in a result.
 *
 * INT4: up to 6 rows expand nibbles to bytes in registers, sum a group of 32, multiply by the
 * sub-scale and add. More rows: the panel is widened to INT8 into scratch once and used from L2.
 */
#include "kernels/x86/ivec.h"
#include "kernels/x86/packed_finish.h"
#include "kernels/x86/quantise.h"
#include "kernels/x86/x86.h"

#include <string.h>

enum { MAX_ROWS = 13, ROWS4 = 6 };

/* How an INT8 panel is fetched ahead from memory: two lines with each step, since all 32 at once
 * would take the line-fill buffers from the work; or all 32 at the block's begin, better for one
 * and two rows on Intel, which have little work. On Zen 4 those two have it by steps and far ahead.
 */
enum fetch { STEPS, AT_ONCE, FAR_STEPS };
enum { FAR = 16384 };

/* sums[r][32] over `blocks` blocks of an INT8 panel. `end`: of what comes from memory, where
 * fetching ahead stops; NULL: the panel is in L2 and is fetched into L1, where two products a cycle
 * need it. */
INLINE void rows_int8(const int rows, const int split, const enum fetch fetch, const uint8_t *x,
                      size_t ldx, const char *w, size_t blocks, const char *end, int32_t *sums) {
    vi s[4][MAX_ROWS][2];
    UNROLL for (int c = 0; c < split; c++) {
        UNROLL for (int r = 0; r < rows; r++) s[c][r][0] = s[c][r][1] = _mm512_setzero_si512();
    }
    const uint8_t *x1 = x + 3 * ldx, *x2 = x + 6 * ldx, *x3 = x + 9 * ldx, *x4 = x + 12 * ldx;
    for (size_t b = 0; b < blocks; b++, w += BLOCK8) {
        const char *ahead = w + (!end ? BLOCK8 : fetch == FAR_STEPS ? FAR : AHEAD);
        if (end && ahead + BLOCK8 > end) ahead = w;
        if (fetch == AT_ONCE) prefetch_block(w, end, BLOCK8);
        for (int j = 0; j < 16; j += split) {
            UNROLL for (int c = 0; c < split; c++) {
                vi w0 = _mm512_load_si512(w + 64 * (j + c));
                vi w1 = _mm512_load_si512(w + 1024 + 64 * (j + c));
                if (fetch != AT_ONCE) {
                    _mm_prefetch(ahead + 128 * (j + c), _MM_HINT_T0);
                    _mm_prefetch(ahead + 128 * (j + c) + 64, _MM_HINT_T0);
                }
                UNROLL for (int r = 0; r < rows; r++) {
                    const uint8_t *base = r < 3 ? x : r < 6 ? x1 : r < 9 ? x2 : r < 12 ? x3 : x4;
                    vi v = i_broadcast(base + (size_t)(r % 3) * ldx + 64 * b + 4 * (j + c));
                    s[c][r][0] = _mm512_dpbusd_epi32(s[c][r][0], v, w0);
                    s[c][r][1] = _mm512_dpbusd_epi32(s[c][r][1], v, w1);
                }
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int t = 0; t < 2; t++) {
            vi a = s[0][r][t];
            UNROLL for (int c = 1; c < split; c++) a = _mm512_add_epi32(a, s[c][r][t]);
            _mm512_storeu_si512(sums + r * MG_PANEL + t * MG_TILE, a);
        }
    }
}

INLINE void rows_int4(const int rows, const uint8_t *x, size_t ldx, const char *w, size_t blocks,
                      const char *end, int32_t *sums) {
    vi s[ROWS4][2];
    UNROLL for (int r = 0; r < rows; r++) s[r][0] = s[r][1] = _mm512_setzero_si512();
    const uint8_t *x1 = x + 3 * ldx;
    for (size_t b = 0; b < blocks; b++, w += BLOCK4) {
        const char *ahead = w + AHEAD + BLOCK4 > end ? w : w + AHEAD;
        UNROLL for (int t = 0; t < 2; t++) {
            for (int g = 0; g < 2; g++) {
                vi even[ROWS4], odd[ROWS4];
                UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm512_setzero_si512();
                UNROLL for (int i = 0; i < 4; i++) {
                    vi low, high;
                    _mm_prefetch(ahead + 64 + t * 512 + (g * 4 + i) * 64, _MM_HINT_T0);
                    nibbles(w + 64 + t * 512 + (g * 4 + i) * 64, &low, &high);
                    UNROLL for (int r = 0; r < rows; r++) {
                        const uint8_t *at = (r < 3 ? x : x1) + (size_t)(r % 3) * ldx + 64 * b;
                        at += g * 32 + i * 8;
                        even[r] = _mm512_dpbusd_epi32(even[r], i_broadcast(at), low);
                        odd[r] = _mm512_dpbusd_epi32(odd[r], i_broadcast(at + 4), high);
                    }
                }
                vi sub = _mm512_cvtepi8_epi32(
                    _mm_load_si128((const __m128i *)(const void *)(w + t * 32 + g * 16)));
                UNROLL for (int r = 0; r < rows; r++) s[r][t] = _mm512_add_epi32(
                    s[r][t], _mm512_mullo_epi32(sub, _mm512_add_epi32(even[r], odd[r])));
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        _mm512_storeu_si512(sums + r * MG_PANEL, s[r][0]);
        _mm512_storeu_si512(sums + r * MG_PANEL + MG_TILE, s[r][1]);
    }
}

typedef void rows_fn(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                     int32_t *sums);
#define INT8_INSTANCE(NAME, N, SPLIT, FETCH)                                                       \
    static void NAME(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,  \
                     int32_t *sums) {                                                              \
        rows_int8(N, SPLIT, FETCH, x, ldx, w, blocks, end, sums);                                  \
    }
#define INT4_INSTANCE(N)                                                                           \
    static void int4_##N(const uint8_t *x, size_t ldx, const char *w, size_t blocks,               \
                         const char *end, int32_t *sums) {                                         \
        rows_int4(N, x, ldx, w, blocks, end, sums);                                                \
    }
INT8_INSTANCE(int8_1, 1, 4, AT_ONCE)
INT8_INSTANCE(int8_2, 2, 4, AT_ONCE)
INT8_INSTANCE(int8_1_far, 1, 4, FAR_STEPS)
INT8_INSTANCE(int8_2_far, 2, 4, FAR_STEPS)
INT8_INSTANCE(int8_3, 3, 2, STEPS)
INT8_INSTANCE(int8_4, 4, 2, STEPS)
INT8_INSTANCE(int8_5, 5, 1, STEPS)
INT8_INSTANCE(int8_6, 6, 1, STEPS)
INT8_INSTANCE(int8_7, 7, 1, STEPS)
INT8_INSTANCE(int8_8, 8, 1, STEPS)
INT8_INSTANCE(int8_9, 9, 1, STEPS)
INT8_INSTANCE(int8_10, 10, 1, STEPS)
INT8_INSTANCE(int8_11, 11, 1, STEPS)
INT8_INSTANCE(int8_12, 12, 1, STEPS)
INT8_INSTANCE(int8_13, 13, 1, STEPS)
INT4_INSTANCE(1)
INT4_INSTANCE(2)
INT4_INSTANCE(3)
INT4_INSTANCE(4)
INT4_INSTANCE(5)
INT4_INSTANCE(6)
static rows_fn *const int8[MAX_ROWS + 1] = {NULL,    int8_1,  int8_2,  int8_3, int8_4,
                                            int8_5,  int8_6,  int8_7,  int8_8, int8_9,
                                            int8_10, int8_11, int8_12, int8_13};
static rows_fn *const int8_far[3] = {NULL, int8_1_far, int8_2_far};
static rows_fn *const int4[ROWS4 + 1] = {NULL, int4_1, int4_2, int4_3, int4_4, int4_5, int4_6};

size_t mg_vnni_packed_scratch(const struct mg_packed_matmul *op) {
    size_t wide = op->w->kind == MG_PACK_INT4 && op->m > ROWS4
                      ? mg_packed_panel_bytes(MG_PACK_INT8, op->w->k)
                      : 0;
    return wide + 64;
}

/* All rows of x with one panel. next: the task's next panel or NULL, fetched meanwhile. */
INLINE void one_panel(const bool far, const struct mg_packed_matmul *op, size_t task, size_t panel,
                      const char *w, const char *next, const char *end, char *scratch) {
    size_t blocks = mg_packed_blocks(op->w->k), m = op->m;
    size_t bytes = mg_packed_panel_bytes(op->w->kind, op->w->k);
    bool is4 = op->w->kind == MG_PACK_INT4;
    if (is4 && m > ROWS4) {
        widen_panel(w, blocks, w + bytes, scratch);
        w = scratch;
        is4 = false;
        end = NULL;
    }
    rows_fn *const *fn = is4 ? int4 : far && m <= 2 ? int8_far : int8;
    size_t most = is4 ? ROWS4 : MAX_ROWS, n = (m + most - 1) / most;
    _Alignas(64) int32_t sums[MAX_ROWS * MG_PANEL];
    for (size_t i = 0, row = 0; i < n; i++) {
        size_t rows = (m - row + n - i - 1) / (n - i); /* even parts */
        fn[rows](op->x + row * op->ldx, op->ldx, w, blocks, i ? NULL : end, sums);
        if (next && n > 1)
            for (size_t at = i * bytes / n & ~(size_t)63; at < (i + 1) * bytes / n; at += 64)
                _mm_prefetch(next + at, _MM_HINT_T1);
        finish_panel(op, task, panel, row, rows, sums);
        row += rows;
    }
}

INLINE void all_panels(const bool far, const struct mg_packed_matmul *op, size_t task,
                       void *scratch) {
    size_t per = task_panels(op), panel = task * per;
    size_t end = mg_min_size(panel + per, mg_packed_panels(op->w));
    size_t bytes = mg_packed_panel_bytes(op->w->kind, op->w->k);
    const char *w = op->w->data, *stop = w + end * bytes;
    begin_top(op, task, panel);
    for (; panel < end; panel++)
        one_panel(far, op, task, panel, w + panel * bytes,
                  panel + 1 < end ? w + (panel + 1) * bytes : NULL, stop, scratch);
}

void mg_vnni_packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    all_panels(false, op, task, scratch);
}

static void packed_matmul_far(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    all_panels(true, op, task, scratch);
}

void mg_vnni_init_packed(struct mg_kernels *t, bool intel) {
    t->quantise = quantise;
    t->packed_tasks = packed_tasks;
    t->packed_scratch = mg_vnni_packed_scratch;
    t->packed_matmul = intel ? mg_vnni_packed_matmul : packed_matmul_far;
}
