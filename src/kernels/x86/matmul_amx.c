/* kernels/x86/matmul_amx.c - products of MG_MODE_BF16 by AMX tiles.
 *
 * The weights stay as in the checkpoint; a task packs a block of its PANEL columns into tiles: 16
 * columns by 32 inputs, two neighbours in k a dword, four tiles for each 32 inputs. 32 rows of x by
 * two tiles across are 2 x 2 tiles of sums, which stay in tiles over a block of k and wait in
 * scratch between blocks. Rows of x are read in place, but for their last, incomplete tile, which
 * is copied.
 *
 * The instruction rounds as vdpbf16ps does, in another order. Blocks depend on k alone and sums of
 * a row on nothing beside it, so a row has the same bits among any others. FEW rows and MG_MODE_F32
 * are bf16's.
 *
 *   scratch:  sums [ROWS][PANEL] f32, tiles [PANEL/16][K_TILES] of 1 KB, x's last tile [32][32]
 * bf16
 */
#include "kernels/x86/matmul_rows.h"
#include "kernels/x86/tile.h"
#include "kernels/x86/x86.h"

#if defined(MG_TILE_STANDIN)
#define mg_amx_init_matmul mg_standin_init_matmul
enum { FEW = 0 };
#define BELOW(name) mg_avx2_##name
#else
enum { FEW = 8 };
#define BELOW(name) mg_bf16_##name
#endif

enum {
    ROWS = 512,
    MR = 32,
    COLUMNS = 16,
    SLICES = PANEL / COLUMNS,
    K = 32,
    K_TILES = 64,
    TILE = 1024
};

static void prepare(enum mg_mode mode, const float *in, size_t ldin, void *out, size_t ldout,
                    size_t m, size_t k) {
    prepare_rows(true, mode, in, ldin, out, ldout, m, k);
}

INLINE bool below(const struct mg_matmul *op) {
    return op->mode == MG_MODE_F32 || op->m <= FEW;
}

static size_t amx_scratch(const struct mg_matmul *op) {
    if (below(op)) return BELOW(matmul_scratch)(op);
    return mg_min_size(op->m, ROWS) * PANEL * sizeof(float) + SLICES * K_TILES * TILE + MR * K * 2;
}

/* VL pairs of neighbours from element i of a weight row of n more elements; beyond them zero. */
INLINE vf load_pairs(enum mg_dtype type, const char *row, size_t i, size_t n) {
    vf lo = v_load_type(type, row, i, n), hi = v_zero();
    if (n > VL) hi = v_load_type(type, row, i + VL, n - VL);
    return v_pairs_bf16(lo, hi);
}

INLINE vf load_bf16_pairs(const char *row, size_t i) {
#if defined(__AVX512F__)
    return _mm512_loadu_ps(row + 2 * i);
#else
    return _mm256_loadu_ps((const float *)(const void *)(row + 2 * i));
#endif
}

/* A tile from nc rows of weights at w, n > 0 inputs from k0 on; the rest is zero. */
INLINE void pack_tile(enum mg_dtype type, const char *w, size_t stride, size_t nc, size_t k0,
                      size_t n, char *tile) {
    for (size_t c0 = 0; c0 < COLUMNS; c0 += VL)
        for (size_t i0 = 0; i0 < K; i0 += 2 * VL) {
            vf r[VL];
            bool whole = type == MG_BF16 && nc >= c0 + VL && n >= i0 + 2 * VL;
            if (whole) {
                UNROLL for (int i = 0; i < VL; i++) {
                    const char *row = w + (c0 + (size_t)i) * stride;
                    _mm_prefetch(row + 2 * k0 + 256, _MM_HINT_T0);
                    r[i] = load_bf16_pairs(row, k0 + i0);
                }
            } else {
                for (size_t i = 0; i < VL; i++)
                    r[i] = c0 + i < nc && n > i0
                               ? load_pairs(type, w + (c0 + i) * stride, k0 + i0, n - i0)
                               : v_zero();
            }
            v_transpose(r);
            UNROLL for (int i = 0; i < VL; i++)
                v_store((float *)(void *)(tile + (i0 / 2 + (size_t)i) * 64 + c0 * 4), r[i]);
        }
}

static void pack(enum mg_dtype type, const char *w, size_t stride, size_t nc, size_t k0, size_t n,
                 char *tiles) {
    for (size_t i = 0; i < n; i += K, tiles += TILE) {
        if (type == MG_BF16)
            pack_tile(MG_BF16, w, stride, nc, k0 + i, n - i, tiles);
        else if (type == MG_F16)
            pack_tile(MG_F16, w, stride, nc, k0 + i, n - i, tiles);
        else
            pack_tile(MG_F32, w, stride, nc, k0 + i, n - i, tiles);
    }
}

/* Two slices of columns by the rows that the tiles are configured for, over n tiles of x in place
 * and then x's last one at `tail`, if there is. */
static void rows_32(const char *x, size_t ldx, const char *tail, const char *w, size_t n, bool add,
                    float *sums) {
    const size_t line = PANEL * sizeof *sums;
    const char *w1 = w + K_TILES * TILE, *x1 = x + 16 * ldx;
    float *lower = sums + 16 * PANEL;
    if (add) {
        tile_load(0, sums, line);
        tile_load(1, sums + COLUMNS, line);
        tile_load(2, lower, line);
        tile_load(3, lower + COLUMNS, line);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (size_t i = 0; i < n + (tail != NULL); i++, w += TILE, w1 += TILE, x += 64, x1 += 64) {
        size_t stride = i < n ? ldx : 64;
        if (i == n) x = tail, x1 = tail + 16 * 64;
        tile_load(6, w, 64);
        tile_load(4, x, stride);
        tile_dot_bf16(0, 4, 6);
        tile_load(7, w1, 64);
        tile_dot_bf16(1, 4, 7);
        tile_load(5, x1, stride);
        tile_dot_bf16(2, 5, 6);
        tile_dot_bf16(3, 5, 7);
    }
    tile_store(0, sums, line);
    tile_store(1, sums + COLUMNS, line);
    tile_store(2, lower, line);
    tile_store(3, lower + COLUMNS, line);
}

static void rows_16(const char *x, size_t ldx, const char *tail, const char *w, size_t n, bool add,
                    float *sums) {
    const size_t line = PANEL * sizeof *sums;
    const char *w1 = w + K_TILES * TILE;
    if (add) {
        tile_load(0, sums, line);
        tile_load(1, sums + COLUMNS, line);
    } else {
        tile_zero(0);
        tile_zero(1);
    }
    for (size_t i = 0; i < n + (tail != NULL); i++, w += TILE, w1 += TILE, x += 64) {
        if (i == n) x = tail;
        tile_load(4, x, i < n ? ldx : 64);
        tile_load(6, w, 64);
        tile_dot_bf16(0, 4, 6);
        tile_load(7, w1, 64);
        tile_dot_bf16(1, 4, 7);
    }
    tile_store(0, sums, line);
    tile_store(1, sums + COLUMNS, line);
}

/* First weight row of slice s of a task, and how many columns of it exist. */
INLINE const char *slice(const struct mg_matmul *op, size_t col, size_t n_col, size_t s,
                         size_t *count) {
    size_t first = s * COLUMNS;
    const char *w = op->w;
    if (op->epilogue == MG_EPI_SWIGLU && s >= SLICES / 2) {
        first -= PANEL / 2;
        w = op->w2;
    }
    *count = first < n_col ? mg_min_size(COLUMNS, n_col - first) : 0;
    return *count ? w + (col + first) * op->ldw * mg_dtype_size(op->wtype) : NULL;
}

/* sums[rows][PANEL] (+)= rows of x from element k0 on, n of them, times the packed tiles. */
static void block(const struct mg_matmul *op, size_t row, size_t rows, size_t k0, size_t n,
                  unsigned pairs, const char *tiles, char *tail, size_t *configured, float *sums) {
    size_t ldx = op->ldx * 2, rest = n % K;
    const char *x = (const char *)op->x + row * ldx + k0 * 2;
    for (size_t r = 0; r < rows; r += MR) {
        size_t some = mg_min_size(MR, rows - r);
        if (some != *configured) tile_configure_rows(*configured = some);
        if (rest)
            for (size_t i = 0; i < some; i++) {
                memset(tail + i * 64, 0, 64);
                memcpy(tail + i * 64, x + (r + i) * ldx + (n - rest) * 2, rest * 2);
            }
        for (size_t p = 0; p < SLICES / 2; p++)
            if (pairs >> p & 1)
                (some > 16 ? rows_32 : rows_16)(x + r * ldx, ldx, rest ? tail : NULL,
                                                tiles + 2 * p * K_TILES * TILE, n / K, k0 > 0,
                                                sums + r * PANEL + 2 * p * COLUMNS);
    }
}

static void amx_matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    if (below(op)) {
        BELOW(matmul)(op, task, scratch);
        return;
    }
    size_t cols = task_columns(op), col = task * cols, n_col = mg_min_size(cols, op->n - col);
    size_t chunk = mg_min_size(op->m, ROWS), configured = 0, count;
    float *sums = scratch;
    char *tiles = (char *)(sums + chunk * PANEL), *tail = tiles + SLICES * K_TILES * TILE;
    for (size_t row = 0; row < op->m; row += chunk) {
        size_t rows = mg_min_size(chunk, op->m - row), k0 = 0;
        do {
            size_t n = mg_min_size(K_TILES * K, op->k - k0);
            unsigned pairs = 0;
            for (size_t s = 0; s < SLICES; s++) {
                const char *w = slice(op, col, n_col, s, &count);
                if (count) pairs |= 1u << s / 2;
                if (pairs >> s / 2 & 1) /* also the second of a pair of which only one exists */
                    pack(op->wtype, w, op->ldw * mg_dtype_size(op->wtype), count, k0, n,
                         tiles + s * K_TILES * TILE);
            }
            block(op, row, rows, k0, n, pairs, tiles, tail, &configured, sums);
            k0 += n;
        } while (k0 < op->k);
        finish(op, row, rows, col, n_col, sums);
    }
    if (configured) tile_release();
}

void mg_amx_init_matmul(struct mg_kernels *t) {
    t->x_type[MG_MODE_F32] = MG_F32;
    t->x_type[MG_MODE_BF16] = MG_BF16;
    t->prepare = prepare;
    t->matmul_tasks = matmul_tasks;
    t->matmul_scratch = amx_scratch;
    t->matmul = amx_matmul;
}
