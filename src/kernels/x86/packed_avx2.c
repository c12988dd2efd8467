/* kernels/x86/packed_avx2.c - products with packed integer weights on AVX2, and the rounding of
 * activations.
 *
 * Many rows: packed_madd.h. With FEW rows or less memory is the limit, and the panel is read in
 * place, STEP blocks of one tile and then of the other: INT8 by vpmaddubsw of |x - 128| with w that
 * has taken the sign of x - 128 (vpmaddubsw saturates, and wants one side unsigned); INT4 as there.
 *
 *   scratch:  sums [FEW][32] i32, for INT8 x split [m][k / 2 + 16] dwords
 */
#include "kernels/x86/packed_madd.h"
#include "kernels/x86/quantise.h"
#include "kernels/x86/x86.h"

#include <string.h>

enum { FEW = 5, STEP = 2 };

/* A row of u8 as dwords of four signed bytes, x - 128, and of their sizes. */
static void split_x(const uint8_t *x, size_t blocks, int32_t *to) {
    for (size_t i = 0; i < blocks * 2; i++, x += 32, to += 16) {
        vi v = _mm256_xor_si256(i_load(x), i_set((int32_t)0x80808080)), size = _mm256_abs_epi8(v);
        vi lo = _mm256_unpacklo_epi32(v, size), hi = _mm256_unpackhi_epi32(v, size);
        i_store(to, _mm256_permute2x128_si256(lo, hi, 0x20));
        i_store(to + VL, _mm256_permute2x128_si256(lo, hi, 0x31));
    }
}

/* sum += (x - 128) w of four neighbours: |w| <= 127, so that 2 * 128 * 127 fits 16 bits. */
INLINE void add_signed(vi *sum, vi x, vi size, vi w) {
    vi t = _mm256_sign_epi8(w, x);
    add_pairs(sum, i_pairs8(size, t), _mm256_set1_epi16(1));
}

/* sums[r][] += over `blocks` INT8 blocks in place; x split. */
INLINE void few8_rows(const int rows, const int32_t *x, size_t ldx, const char *w, size_t blocks,
                      const char *end, int32_t *sums) {
    vi s[FEW][2];
    UNROLL for (int r = 0; r < rows; r++) {
        s[r][0] = i_load(sums + r * MG_PANEL);
        s[r][1] = i_load(sums + r * MG_PANEL + VL);
    }
    const int32_t *x1 = x + 3 * ldx;
    for (size_t b = 0; b < blocks; b++, w += BLOCK8) {
        prefetch_block(w, end, BLOCK8);
        for (int i = 0; i < 16; i++) {
            vi w0 = i_load(w + i * 64), w1 = i_load(w + i * 64 + SECOND);
            UNROLL for (int r = 0; r < rows; r++) {
                const int32_t *at = (r < 3 ? x : x1) + (size_t)(r % 3) * ldx + b * 32 + i * 2;
                vi sign = i_set(at[0]), size = i_set(at[1]);
                add_signed(&s[r][0], sign, size, w0);
                add_signed(&s[r][1], sign, size, w1);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        i_store(sums + r * MG_PANEL, s[r][0]);
        i_store(sums + r * MG_PANEL + VL, s[r][1]);
    }
}

/* All 32 outputs of `blocks` INT4 blocks. */
INLINE void few4_rows(const int rows, const uint8_t *x, size_t ldx, const char *w, size_t blocks,
                      const char *end, int32_t *sums) {
    const uint8_t *x1 = x + 3 * ldx;
    for (size_t b = 0; b < blocks; b++, w += BLOCK4) {
        prefetch_block(w, end, BLOCK4);
        for (int at = 0; at < 4 * LINE_V; at++) { /* tile, group, vector */
            int t = at / LINE_V / 2, g = at / LINE_V % 2, c = at % LINE_V;
            vi s[FEW];
            UNROLL for (int r = 0; r < rows; r++) s[r] = i_zero();
            UNROLL for (int i = 0; i < 4; i++) {
                vi low, high;
                nibbles(w + 64 + t * 512 + (g * 4 + i) * 64 + c * VEC, &low, &high);
                UNROLL for (int r = 0; r < rows; r++) {
                    const uint8_t *from =
                        (r < 3 ? x : x1) + (size_t)(r % 3) * ldx + b * 64 + g * 32 + i * 8;
                    add_pairs8(&s[r], i_broadcast(from), low);
                    add_pairs8(&s[r], i_broadcast(from + 4), high);
                }
            }
            vi sub = sub_scales(w + t * 32 + g * 16 + c * VL);
            UNROLL for (int r = 0; r < rows; r++) {
                int32_t *to = sums + r * MG_PANEL + t * MG_TILE + c * VL;
                i_store(to, i_add(i_load(to), i_pairs(s[r], sub)));
            }
        }
    }
}

typedef void few8_fn(const int32_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                     int32_t *sums);
typedef void few4_fn(const uint8_t *x, size_t ldx, const char *w, size_t blocks, const char *end,
                     int32_t *sums);
#define FEW_INSTANCE(N)                                                                            \
    static void few8_##N(const int32_t *x, size_t ldx, const char *w, size_t blocks,               \
                         const char *end, int32_t *sums) {                                         \
        few8_rows(N, x, ldx, w, blocks, end, sums);                                                \
    }                                                                                              \
    static void few4_##N(const uint8_t *x, size_t ldx, const char *w, size_t blocks,               \
                         const char *end, int32_t *sums) {                                         \
        few4_rows(N, x, ldx, w, blocks, end, sums);                                                \
    }
FEW_INSTANCE(1)
FEW_INSTANCE(2)
FEW_INSTANCE(3)
FEW_INSTANCE(4)
FEW_INSTANCE(5)
static few8_fn *const few8[FEW + 1] = {NULL, few8_1, few8_2, few8_3, few8_4, few8_5};
static few4_fn *const few4[FEW + 1] = {NULL, few4_1, few4_2, few4_3, few4_4, few4_5};

/* Dwords of a split row. */
INLINE size_t split_row(size_t k) {
    return mg_packed_blocks(k) * 32 + 16;
}

size_t mg_avx2_packed_scratch(const struct mg_packed_matmul *op) {
    if (op->m > FEW) return many_scratch(op->m);
    size_t split = op->w->kind == MG_PACK_INT8 ? op->m * split_row(op->w->k) : 0;
    return (FEW * MG_PANEL + split) * 4;
}

static void few_panel(const struct mg_packed_matmul *op, size_t task, size_t panel, const char *w,
                      const char *end, int32_t *sums, const int32_t *x) {
    size_t blocks = mg_packed_blocks(op->w->k), ldx = split_row(op->w->k);
    bool is4 = op->w->kind == MG_PACK_INT4;
    for (size_t i = 0; i < op->m * MG_PANEL; i++) /* INT8: x is 128 less */
        sums[i] = is4 ? 0 : 128 * op->w->sum[panel * MG_PANEL + i % MG_PANEL];
    if (is4) few4[op->m](op->x, op->ldx, w, blocks, end, sums);
    for (size_t b = 0; !is4 && b < blocks; b += STEP)
        for (int s = 0; s < STRIPS; s++)
            few8[op->m](x + b * 32, ldx, w + b * BLOCK8 + s * 1024, mg_min_size(STEP, blocks - b),
                        s ? NULL : end, sums + s * MG_TILE);
    finish_panel(op, task, panel, 0, op->m, sums);
}

void mg_avx2_packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch) {
    size_t per = task_panels(op), panel = task * per;
    size_t end = mg_min_size(panel + per, mg_packed_panels(op->w));
    begin_top(op, task, panel);
    if (op->m > FEW) {
        many_panels(op, task, panel, end, scratch);
        return;
    }
    size_t bytes = mg_packed_panel_bytes(op->w->kind, op->w->k);
    const char *w = op->w->data, *stop = w + end * bytes;
    int32_t *sums = scratch, *x = sums + FEW * MG_PANEL;
    for (size_t i = 0; op->w->kind == MG_PACK_INT8 && i < op->m; i++)
        split_x(op->x + i * op->ldx, mg_packed_blocks(op->w->k), x + i * split_row(op->w->k));
    for (; panel < end; panel++) few_panel(op, task, panel, w + panel * bytes, stop, sums, x);
}

void mg_avx2_init_packed(struct mg_kernels *t) {
    t->quantise = quantise;
    t->packed_tasks = packed_tasks;
    t->packed_scratch = mg_avx2_packed_scratch;
    t->packed_matmul = mg_avx2_packed_matmul;
}
