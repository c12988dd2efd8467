/* kernels/x86/packed_madd.h - products of many rows with packed integer weights without VNNI, for
 * the tier that includes this (see vec.h).
 *
 * INT8: bytes widened to 16 bits and vpmaddwd, whose sums can't overflow. A lane of a line holds
 * four neighbours in k; its even bytes make one pair, its odd ones another, for x as for w, so
 * widening takes shifts and no shuffles. (vpmaddubsw with signs moved from one factor to the other,
 * as avx2 does it with few rows, takes as many instructions on fewer ports; splitting w in two
 * nibbles takes more.)
 *
 * INT4: vpmaddubsw on x and the nibbles less 8: a group of 32 inputs sums to 8 * 2 * 255 * 8 =
 * 32640 at most, just inside 16 bits; then one vpmaddwd by the sub-scale. Nearly twice as fast.
 *
 * The micro-kernel has the shape of gemm.h's: MR rows by a strip of two vectors, whose sums are in
 * registers. A task goes in parts of CHUNK blocks of k: the part of two panels is widened into
 * scratch, where it stays in L1, and the sums of ROWS rows wait in scratch too.
 *
 *   scratch:  sums [ROWS][64] i32, two panels' parts, x widened [MR][CHUNK * 32 + 16] dwords
 */
#ifndef MG_KERNELS_X86_PACKED_MADD_H
#define MG_KERNELS_X86_PACKED_MADD_H

#include "kernels/x86/ivec.h"
#include "kernels/x86/packed_finish.h"

#if defined(__AVX512F__)
/* A strip is the panel: vectors of tile 0 and of tile 1. */
enum { MR = 12, STRIPS = 1, SECOND = 1024 };
#else
/* A strip is a tile: the halves of its lines. */
enum { MR = 6, STRIPS = 2, SECOND = VEC };
#endif
enum {
    CHUNK = 4, /* blocks of k in a part */
    ROWS = 32 * MR,
    PAIR = 2 * MG_PANEL,                          /* columns of sums */
    X_ROW = CHUNK * 32 + 16,                      /* dwords */
    STRIP8 = CHUNK * 16 * 4 * VEC,                /* bytes of a widened strip of a part */
    STRIP4 = CHUNK * (16 * 2 * VEC + 2 * 2 * VEC) /* with its sub-scales */
};

/* sum += pairs of x and w. As two instructions in one piece, since gcc 12 otherwise computes all
 * products of a step first, and keeps half of the sums on the stack. */
INLINE void add_pairs(vi *sum, vi x, vi w) {
    vi t;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+v"(*sum), "=&v"(t) : "v"(w), "v"(x));
}
INLINE void add_pairs8(vi *sum, vi x, vi w) {
    vi t;
    __asm__("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+v"(*sum), "=&v"(t) : "v"(w), "v"(x));
}

/* Row of u8 as dwords of two 16-bit numbers: even bytes of four neighbours, then odd ones. */
static void widen_x(const uint8_t *x, size_t blocks, int32_t *to) {
    const __m256i even = _mm256_set1_epi16(0x00ff);
    for (size_t i = 0; i < blocks * 2; i++, x += 32, to += 16) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)x);
        __m256i a = _mm256_and_si256(v, even), b = _mm256_srli_epi16(v, 8);
        __m256i lo = _mm256_unpacklo_epi32(a, b), hi = _mm256_unpackhi_epi32(a, b);
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(lo, hi, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 8), _mm256_permute2x128_si256(lo, hi, 0x31));
    }
}

INLINE vi even_bytes(vi a) {
    return i_signed16(i_left16(a, 8), 8);
}
INLINE vi odd_bytes(vi a) {
    return i_signed16(a, 8);
}

/* Strip s of `blocks` INT8 blocks: [k4][even, odd][2 vectors]. */
static void widen_strip8(const char *w, size_t blocks, char *to) {
    for (size_t b = 0; b < blocks; b++, w += BLOCK8)
        for (int i = 0; i < 16; i++, to += 4 * VEC) UNROLL for (int v = 0; v < 2; v++) {
                vi a = i_load(w + i * 64 + v * SECOND);
                i_store(to + v * VEC, even_bytes(a));
                i_store(to + (2 + v) * VEC, odd_bytes(a));
            }
}

/* The same of INT4, [group]{ [k4][2 vectors] -8..7, sub-scales [2 vectors] }. */
static void widen_strip4(const char *w, int strip, size_t blocks, char *to) {
    const int second = STRIPS == 1 ? 512 : VEC, second_sub = STRIPS == 1 ? 32 : VL;
    for (size_t b = 0; b < blocks; b++, w += BLOCK4)
        for (int g = 0; g < 2; g++) {
            for (int i = 0; i < 4; i++, to += 4 * VEC) UNROLL for (int v = 0; v < 2; v++) {
                    vi low, high;
                    nibbles(w + 64 + strip * 512 + (g * 4 + i) * 64 + v * second, &low, &high);
                    i_store(to + v * VEC, low);
                    i_store(to + (2 + v) * VEC, high);
                }
            UNROLL for (int v = 0; v < 2; v++)
                i_store(to + v * VEC, sub_scales(w + strip * 32 + g * 16 + v * second_sub));
            to += 2 * VEC;
        }
}

/* sums[r][0 .. 2 VL - 1] (+)= over `blocks` blocks of a widened strip; ldx and ld in elements. */
INLINE void many8_rows(const int rows, const int32_t *x, size_t ldx, const char *w, size_t blocks,
                       int32_t *sums, size_t ld, bool add) {
    vi s[MR][2];
    UNROLL for (int r = 0; r < rows; r++) s[r][0] = s[r][1] = i_zero();
    const int32_t *x1 = x + 3 * ldx, *x2 = x + 6 * ldx, *x3 = x + 9 * ldx;
    for (size_t i = 0; i < blocks * 32; i++, w += 2 * VEC) {
        vi w0 = i_load(w), w1 = i_load(w + VEC);
        UNROLL for (int r = 0; r < rows; r++) {
            const int32_t *base = r < 3 ? x : r < 6 ? x1 : r < 9 ? x2 : x3;
            vi v = i_set(base[(size_t)(r % 3) * ldx + i]);
            add_pairs(&s[r][0], v, w0);
            add_pairs(&s[r][1], v, w1);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        int32_t *to = sums + (size_t)r * ld;
        i_store(to, add ? i_add(i_load(to), s[r][0]) : s[r][0]);
        i_store(to + VL, add ? i_add(i_load(to + VL), s[r][1]) : s[r][1]);
    }
}

INLINE void many4_rows(const int rows, const uint8_t *x, size_t ldx, const char *w, size_t blocks,
                       int32_t *sums, size_t ld, bool add) {
    const uint8_t *x1 = x + 3 * ldx, *x2 = x + 6 * ldx, *x3 = x + 9 * ldx;
    for (size_t g = 0; g < blocks * 2; g++, w += 18 * VEC, add = true) {
        vi s[MR][2];
        UNROLL for (int r = 0; r < rows; r++) s[r][0] = s[r][1] = i_zero();
        for (int i = 0; i < 8; i++) {
            vi w0 = i_load(w + i * 2 * VEC), w1 = i_load(w + (i * 2 + 1) * VEC);
            UNROLL for (int r = 0; r < rows; r++) {
                const uint8_t *base = r < 3 ? x : r < 6 ? x1 : r < 9 ? x2 : x3;
                vi v = i_broadcast(base + (size_t)(r % 3) * ldx + g * 32 + i * 4);
                add_pairs8(&s[r][0], v, w0);
                add_pairs8(&s[r][1], v, w1);
            }
        }
        vi sub0 = i_load(w + 16 * VEC), sub1 = i_load(w + 17 * VEC);
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t *to = sums + (size_t)r * ld;
            vi a = i_pairs(s[r][0], sub0), b = i_pairs(s[r][1], sub1);
            i_store(to, add ? i_add(i_load(to), a) : a);
            i_store(to + VL, add ? i_add(i_load(to + VL), b) : b);
        }
    }
}

typedef void many8_fn(const int32_t *x, size_t ldx, const char *w, size_t blocks, int32_t *sums,
                      size_t ld, bool add);
typedef void many4_fn(const uint8_t *x, size_t ldx, const char *w, size_t blocks, int32_t *sums,
                      size_t ld, bool add);
#define MANY_INSTANCE(N)                                                                           \
    static void many8_##N(const int32_t *x, size_t ldx, const char *w, size_t blocks,              \
                          int32_t *sums, size_t ld, bool add) {                                    \
        many8_rows(N, x, ldx, w, blocks, sums, ld, add);                                           \
    }                                                                                              \
    static void many4_##N(const uint8_t *x, size_t ldx, const char *w, size_t blocks,              \
                          int32_t *sums, size_t ld, bool add) {                                    \
        many4_rows(N, x, ldx, w, blocks, sums, ld, add);                                           \
    }
MANY_INSTANCE(1)
MANY_INSTANCE(2)
MANY_INSTANCE(3)
MANY_INSTANCE(4)
MANY_INSTANCE(5)
MANY_INSTANCE(6)
#if defined(__AVX512F__)
MANY_INSTANCE(7)
MANY_INSTANCE(8)
MANY_INSTANCE(9)
MANY_INSTANCE(10)
MANY_INSTANCE(11)
MANY_INSTANCE(12)
#endif
static many8_fn *const many8[MR + 1] = {
    NULL,    many8_1, many8_2, many8_3,  many8_4,  many8_5,  many8_6,
#if defined(__AVX512F__)
    many8_7, many8_8, many8_9, many8_10, many8_11, many8_12,
#endif
};
static many4_fn *const many4[MR + 1] = {
    NULL,    many4_1, many4_2, many4_3,  many4_4,  many4_5,  many4_6,
#if defined(__AVX512F__)
    many4_7, many4_8, many4_9, many4_10, many4_11, many4_12,
#endif
};
/* The next part of a panel, or of the panel after it, into L2. */
INLINE void fetch(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* Panels panel .. end-1 (one or two) for rows row .. row+rows-1. */
static void many_part(const struct mg_packed_matmul *op, size_t task, size_t panel, size_t end,
                      size_t row, size_t rows, char *scratch) {
    const struct mg_packed *w = op->w;
    bool is4 = w->kind == MG_PACK_INT4;
    size_t block = is4 ? BLOCK4 : BLOCK8, blocks = mg_packed_blocks(w->k),
           each = mg_packed_panel_bytes(w->kind, w->k);
    size_t strip_bytes = is4 ? STRIP4 : STRIP8, groups = (rows + MR - 1) / MR;
    int32_t *sums = (int32_t *)(void *)scratch;
    char *wide = scratch + mg_min_size(op->m, ROWS) * PAIR * 4;
    int32_t *x = (int32_t *)(void *)(wide + 2 * STRIPS * STRIP8);
    if (!blocks) memset(sums, 0, rows * PAIR * 4);
    for (size_t b = 0; b < blocks; b += CHUNK) {
        size_t n = mg_min_size(CHUNK, blocks - b);
        for (size_t p = panel; p < end; p++)
            for (int s = 0; s < STRIPS; s++) {
                const char *from = (const char *)w->data + p * each;
                if (!s) fetch(from + (b + CHUNK) * block, CHUNK * block);
                char *to = wide + ((p - panel) * STRIPS + (size_t)s) * strip_bytes;
                if (is4)
                    widen_strip4(from + b * block, s, n, to);
                else
                    widen_strip8(from + b * block + s * 1024, n, to);
            }
        for (size_t g = 0, r = 0, some; g < groups; g++, r += some) {
            some = (rows - r + groups - g - 1) / (groups - g); /* even parts */
            const uint8_t *from = op->x + (row + r) * op->ldx + b * 64;
            for (size_t i = 0; !is4 && i < some; i++) widen_x(from + i * op->ldx, n, x + i * X_ROW);
            for (size_t s = 0; s < (end - panel) * STRIPS; s++) {
                int32_t *to = sums + r * PAIR + s * (2 * VL);
                if (is4)
                    many4[some](from, op->ldx, wide + s * strip_bytes, n, to, PAIR, b > 0);
                else
                    many8[some](x, X_ROW, wide + s * strip_bytes, n, to, PAIR, b > 0);
            }
        }
    }
    for (; panel < end; panel++, sums += MG_PANEL)
        for (size_t r = 0; r < rows; r++)
            finish_panel(op, task, panel, row + r, 1, sums + r * PAIR);
}

/* Panels panel .. end-1. */
static void many_panels(const struct mg_packed_matmul *op, size_t task, size_t panel, size_t end,
                        char *scratch) {
    for (; panel < end; panel += 2)
        for (size_t row = 0; row < op->m; row += ROWS)
            many_part(op, task, panel, mg_min_size(panel + 2, end), row,
                      mg_min_size(ROWS, op->m - row), scratch);
}

static size_t many_scratch(size_t m) {
    return mg_min_size(m, ROWS) * PAIR * 4 + 2 * STRIPS * STRIP8 + MR * X_ROW * 4;
}

#endif
