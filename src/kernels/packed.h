/* kernels/packed.h - weight matrices in the one layout that every integer kernel reads in place.
 *
 * A matrix of n outputs and k inputs is cut into panels of 32 outputs. A panel runs along k in
 * blocks of 64, each of two tiles of 16 outputs; a tile is 16 lines of 64 bytes, a line 16 outputs
 * x 4 neighbours in k. One line is an operand of vpdpbusd, one tile an operand of tdpbusd, and a
 * thread that walks a panel reads one stream:
 *
 *   INT8   [n/32][k/64]{ tile 0: [16 k4][16 output][4 k] i8, tile 1 }       2048 bytes a block
 *   INT4   [n/32][k/64]{ sub: [2 tile][2 group][16 output] i8,                64
 *                        tile 0: [8][16 output][4 k] of two nibbles,
 *                        tile 1 }                                           1024, so 1088 a block
 *
 * INT8: w = scale[output] * q, q in -127..127.
 * INT4: w = scale[output] * sub * (nibble - 8); a group is 32 neighbours in k, sub in -15..15, so
 *       sub * (nibble - 8) is a whole number in -120..120 and the kernels may widen a panel to
 *       INT8. The low nibbles of line i are k4 line 2i of the tile, the high ones line 2i + 1.
 *
 * n and k are padded with zero weights to multiples of 32 and 64. `sum` is the sum over k of the
 * whole numbers, by which the activations' zero point is taken out again.
 *
 * Interleaved (the gate and up projections): tile 2j of the matrix is gate's outputs 16j..16j+15,
 * tile 2j + 1 up's, so that a panel holds both factors of 16 results; n counts the results.
 *
 * Activations: x = scale * (q - zero), q in 0..255, one scale and zero point a row, zero exact.
 * Where a few values are far larger than the rest, as in language models, one scale would leave the
 * rest with few steps. So up to MG_MAX_LOUD blocks of 64 inputs of a row may have "loud" values:
 * these are zero in the row proper, and stand with a scale of their own, as signed bytes, behind
 * it, where the block's other values are zero:
 *
 *   row: [k up to whole blocks] u8 | [n_loud][64] i8, x = loud_scale * q
 *
 * The products' sums are exact integers (k is at most MG_PACK_MAX_K), so neither the order of
 * adding nor the number of rows, nor how a product is cut into tasks, changes a bit.
 */
#ifndef MG_KERNELS_PACKED_H
#define MG_KERNELS_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mg_pack { MG_PACK_INT8, MG_PACK_INT4, MG_N_PACK };

enum {
    MG_PANEL = 32,        /* outputs of a panel */
    MG_TILE = 16,         /* outputs of a tile */
    MG_PACK_K = 64,       /* inputs of a block */
    MG_PACK_GROUP = 32,   /* INT4: inputs that share a sub-scale */
    MG_PACK_ALIGN = 64,   /* bytes, of `data` */
    MG_PACK_MAX_K = 65536 /* inputs: 255 * 127 * k must fit an int32_t */
};

struct mg_packed {
    enum mg_pack kind;
    bool interleaved;
    size_t n, k;        /* outputs (results when interleaved) and inputs, without the padding */
    const void *data;   /* mg_packed_bytes, 64-byte aligned, usually in a read-only mapping */
    const float *scale; /* [panels * 32], 0 for padding; a view like `data` */
    const int32_t *sum; /* [panels * 32]; likewise */
};

/* A row of activations whose values span less than this counts as zeros. */
#define MG_LEAST_RANGE 1e-30f

enum { MG_MAX_LOUD = 4, MG_MAX_LOUD_BLOCKS = 1024 };

/* What belongs to one row of activations beside its bytes. */
struct mg_row_scale {
    float scale;      /* NaN when the row was not finite, so that its products aren't either */
    int32_t zero;     /* the q that stands for 0, 0..255 */
    float loud_scale; /* of the loud blocks' bytes */
    uint16_t n_loud;  /* loud blocks, 0 for most rows */
    uint16_t loud[MG_MAX_LOUD];        /* blocks, ascending */
    int16_t loud_sum[2 * MG_MAX_LOUD]; /* sums of the loud values, by groups of 32 */
};

/* Blocks that may be loud in rows of k. */
static inline size_t mg_packed_max_loud(size_t k) {
    size_t blocks = (k + MG_PACK_K - 1) / MG_PACK_K, most = blocks / 8;
    if (blocks > MG_MAX_LOUD_BLOCKS) return 0;
    return most < MG_MAX_LOUD ? most : MG_MAX_LOUD;
}

/* Which blocks have loud values: as few of the largest (of equals the first) as make the rest four
 * times smaller than the row's largest value, or if that is not to be had twice; else none. top:
 * [n_block] largest magnitudes. Gives their number, and in *level the largest magnitude of
 * the rest: what is over it is loud. */
static inline size_t mg_loud_pick(const float *top, size_t n_block, size_t most, uint16_t *out,
                                  float *level) {
    float left[MG_MAX_LOUD + 1]; /* the largest when i are taken out */
    uint16_t at[MG_MAX_LOUD + 1];
    size_t n = 0;
    if (most == 0) return 0;
    for (size_t i = 0; i <= most; i++) {
        left[i] = -1;
        for (size_t b = 0; b < n_block; b++) {
            int taken = 0;
            for (size_t j = 0; j < i; j++) taken |= at[j] == b;
            if (!taken && top[b] > left[i]) left[i] = top[b], at[i] = (uint16_t)b;
        }
    }
    for (int quieter = 4; !n && quieter >= 2; quieter -= 2)
        for (size_t i = most; i >= 1; i--)
            if (left[i] * (float)quieter <= left[0]) n = i;
    if (!(left[0] > 0)) n = 0;
    *level = left[n];
    for (size_t i = 0; i < n; i++) { /* ascending */
        size_t j = i;
        for (; j > 0 && out[j - 1] > at[i]; j--) out[j] = out[j - 1];
        out[j] = at[i];
    }
    return n;
}

/* Results of a panel. */
static inline size_t mg_packed_width(const struct mg_packed *w) {
    return w->interleaved ? MG_TILE : MG_PANEL;
}
static inline size_t mg_packed_panels(const struct mg_packed *w) {
    return (w->n + mg_packed_width(w) - 1) / mg_packed_width(w);
}
static inline size_t mg_packed_blocks(size_t k) {
    return (k + MG_PACK_K - 1) / MG_PACK_K;
}
/* Bytes of a panel of k inputs. */
static inline size_t mg_packed_panel_bytes(enum mg_pack kind, size_t k) {
    size_t block = MG_PANEL * MG_PACK_K;
    if (kind == MG_PACK_INT4) block = block / 2 + MG_PANEL * 2;
    return mg_packed_blocks(k) * block;
}
static inline size_t mg_packed_bytes(const struct mg_packed *w) {
    return mg_packed_panels(w) * mg_packed_panel_bytes(w->kind, w->k);
}

/* Row stride in bytes for quantised rows of k values: whole blocks, room for the loud ones, and an
 * odd number of cache lines so that rows don't fall on the same sets. */
static inline size_t mg_packed_stride(size_t k) {
    size_t lines = mg_packed_blocks(k) + mg_packed_max_loud(k);
    return (lines + (lines % 2 == 0)) * 64;
}

/* Place of output `column` (0..31 within its panel) and input j within an INT8 panel, in bytes. */
static inline size_t mg_packed_place(size_t column, size_t j) {
    return j / MG_PACK_K * 2048 + column / MG_TILE * 1024 + j % MG_PACK_K / 4 * 64 +
           column % MG_TILE * 4 + j % 4;
}
/* The whole number of an INT4 panel there. */
static inline int mg_packed_int4(const void *panel, size_t column, size_t j) {
    const uint8_t *block = (const uint8_t *)panel + j / MG_PACK_K * 1088;
    size_t tile = column / MG_TILE, c = column % MG_TILE, in = j % MG_PACK_K, line = in / 4;
    int8_t sub = (int8_t)block[tile * 32 + in / MG_PACK_GROUP * 16 + c];
    uint8_t two = block[64 + tile * 512 + line / 2 * 64 + c * 4 + in % 4];
    return sub * ((line % 2 ? two >> 4 : two & 15) - 8);
}

#endif
