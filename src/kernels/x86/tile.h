/* kernels/x86/tile.h - AMX tiles, by the processor or, with MG_TILE_STANDIN, in plain C.
 *
 * Eight tiles of up to 16 rows of 64 bytes. A configuration says how many rows and bytes each has;
 * an instruction on a tile outside it is an illegal instruction. C += A B reads a tile A of rows x
 * K, a tile B of K/4 rows of 4 K-neighbours a column (bf16: K/2 rows of 2), and adds into 32-bit C.
 *
 * The stand-in is for tests on processors without AMX: the same checks as the processor's (then
 * SIGILL, as there; a faulty configuration is a general protection fault, also SIGILL here) and the
 * same sums. It follows Intel's manual: loads set the rows beyond the tile's to zero; bf16 sums of
 * even and of odd K-neighbours are fused multiply-adds from zero, in turn, rounded to nearest even,
 * denormals as zero on both sides; then both are added to each other and to C.
 *
 * Tile numbers are literals: the instructions hold them.
 */
#ifndef MG_KERNELS_X86_TILE_H
#define MG_KERNELS_X86_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* As LDTILECFG reads it, at an address that is a multiple of 64. */
struct tile_config {
    _Alignas(64) uint8_t palette; /* 1 */
    uint8_t start_row;            /* 0 */
    uint8_t zero1[14];
    uint16_t bytes[8]; /* of a row, for each tile */
    uint16_t zero2[8];
    uint8_t rows[8];
    uint8_t zero3[8];
};

_Static_assert(sizeof(struct tile_config) == 64 && offsetof(struct tile_config, rows) == 48,
               "as LDTILECFG reads it");

#if defined(MG_TILE_STANDIN)

#include <math.h>

static _Thread_local struct {
    bool configured;
    struct tile_config config;
    uint8_t tile[8][16][64];
} amx;

static inline void need(bool condition) {
    if (!condition) __builtin_trap();
}

static inline void need_tile(int t) {
    need(amx.configured && t >= 0 && t < 8 && amx.config.rows[t] && amx.config.bytes[t]);
}

static inline void tile_configure(const struct tile_config *c) {
    need((uintptr_t)c % 64 == 0 && c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < 14; i++) need(!c->zero1[i]);
    for (int t = 0; t < 8; t++) {
        need(!c->zero2[t] && !c->zero3[t] && c->rows[t] <= 16 && c->bytes[t] <= 64);
        need(!c->rows[t] == !c->bytes[t]);
    }
    amx.config = *c;
    amx.configured = true;
    memset(amx.tile, 0, sizeof amx.tile);
}

static inline void tile_release(void) {
    memset(&amx, 0, sizeof amx);
}

static inline void tile_zero(int t) {
    need_tile(t);
    memset(amx.tile[t], 0, sizeof amx.tile[t]);
}

static inline void tile_load(int t, const void *from, size_t stride) {
    tile_zero(t);
    for (size_t r = 0; r < amx.config.rows[t]; r++)
        memcpy(amx.tile[t][r], (const char *)from + r * stride, amx.config.bytes[t]);
}

static inline void tile_store(int t, void *to, size_t stride) {
    need_tile(t);
    for (size_t r = 0; r < amx.config.rows[t]; r++)
        memcpy((char *)to + r * stride, amx.tile[t][r], amx.config.bytes[t]);
}

/* What every product checks. */
static inline void need_product(int c, int a, int b) {
    need_tile(c), need_tile(a), need_tile(b);
    need(c != a && a != b && c != b);
    const uint16_t *bytes = amx.config.bytes;
    need(bytes[c] % 4 == 0 && bytes[a] % 4 == 0 && bytes[b] % 4 == 0 && bytes[c] == bytes[b]);
    need(amx.config.rows[c] == amx.config.rows[a] && bytes[a] / 4 == amx.config.rows[b]);
}

/* c += a b, a of u8, b of i8. */
static inline void tile_dot_int8(int c, int a, int b) {
    need_product(c, a, b);
    for (int r = 0; r < amx.config.rows[c]; r++) {
        int32_t sum[16];
        memcpy(sum, amx.tile[c][r], 64);
        for (int k = 0; k < amx.config.bytes[a] / 4; k++) {
            const int8_t *w = (const int8_t *)amx.tile[b][k];
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < 4; i++) sum[n] += amx.tile[a][r][4 * k + i] * w[4 * n + i];
        }
        memcpy(amx.tile[c][r], sum, amx.config.bytes[c]);
    }
}

/* Zero, with its sign, for a denormal. */
static inline float flushed(float v) {
    return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

static inline float of_bf16(const uint8_t *p) {
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float v;
    memcpy(&v, &u, 4);
    return flushed(v);
}

/* c += a b in bf16. */
static inline void tile_dot_bf16(int c, int a, int b) {
    need_product(c, a, b);
    for (int r = 0; r < amx.config.rows[c]; r++)
        for (int n = 0; n < amx.config.bytes[c] / 4; n++) {
            float sum, part[2] = {0, 0};
            for (int k = 0; k < amx.config.bytes[a] / 4; k++)
                for (int i = 0; i < 2; i++)
                    part[i] = flushed(fmaf(of_bf16(&amx.tile[a][r][4 * k + 2 * i]),
                                           of_bf16(&amx.tile[b][k][4 * n + 2 * i]), part[i]));
            memcpy(&sum, &amx.tile[c][r][4 * n], 4);
            sum = flushed(flushed(sum) + flushed(part[0] + part[1]));
            memcpy(&amx.tile[c][r][4 * n], &sum, 4);
        }
}

#else

#include <immintrin.h>

/* gcc 12's intrinsics don't say what memory they read and write. */
#define TILE_MEMORY(p) __asm__ volatile("" : : "r"(p) : "memory")

static inline void tile_configure(const struct tile_config *c) {
    TILE_MEMORY(c);
    _tile_loadconfig(c);
}
#define tile_release() _tile_release()
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, stride)                                                                 \
    do {                                                                                           \
        TILE_MEMORY(from);                                                                         \
        _tile_loadd(t, from, stride);                                                              \
    } while (0)
#define tile_store(t, to, stride)                                                                  \
    do {                                                                                           \
        _tile_stored(t, to, stride);                                                               \
        TILE_MEMORY(to);                                                                           \
    } while (0)
#define tile_dot_int8(c, a, b) _tile_dpbusd(c, a, b)
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)

#endif

/* 2 x 2 tiles C 0..3 of `rows` (1..32) rows and 32 columns, A 4 and 5, B 6 and 7: rows beyond 16
 * are in tiles 2, 3 and 5, which don't exist when there are none. */
static inline void tile_configure_rows(size_t rows) {
    struct tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        bool second = t == 2 || t == 3 || t == 5;
        size_t n = t >= 6 ? 16 : second ? (rows > 16 ? rows - 16 : 0) : rows < 16 ? rows : 16;
        c.rows[t] = (uint8_t)n;
        c.bytes[t] = n ? 64 : 0;
    }
    tile_configure(&c);
}

#endif
