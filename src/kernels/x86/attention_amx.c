/* kernels/x86/attention_amx.c - attention on bf16 keys and values by AMX tiles.
 *
 * 16 positions of keys and 32 dimensions are a tile B as they lie, likewise 32 positions of values
 * and 16 dimensions (kernels.h): nothing is packed. A task's rows (attention_rows.h) meet the keys
 * in blocks of KEYS, 32 rows at a time:
 *
 *     scores [32][KEYS] f32  =  q [32][d] bf16 * keys         2 x 2 tiles of sums over d
 *     weights [32][KEYS] bf16, in place of the scores          softmax, by vectors
 *     sums [32][d] f32      +=  weights * values               2 x 2 tiles of sums over KEYS
 *
 * scale * q and the weights are rounded to bf16. Each row of a tile is computed by itself and
 * blocks are counted from key 0, so that a row has the same bits alone and among others; hidden
 * keys add exact zeros. What lies behind the last position is not to be used, and zero times it
 * may be NaN: the last 32 values are copied with zeros behind them.
 *
 * Head sizes that are no multiple of 32 and f32 keys go to avx512.
 *
 *   scratch:  scores [32][KEYS + 16]  q [R][d] bf16  sums [R][d]  top, total [R]
 *             the last values [16][d][2] bf16       (R rows of a task)
 */
#include "kernels/x86/attention_rows.h"
#include "kernels/x86/tile.h"
#include "kernels/x86/x86.h"

#if defined(MG_TILE_STANDIN)
#define mg_amx_init_attention mg_standin_init_attention
#define BELOW(name) mg_avx2_##name
#else
#define BELOW(name) mg_avx512_##name
#endif

enum { MR = 32, K = 32, COLUMNS = 16, TILE = 1024 };
/* Rows of a task, and keys of a block: its scores and 32 keys of each head fit L1 and half of L2.
 */
enum { BLOCK_ROWS = 256, KEYS = 256, LD_SCORES = KEYS + 16 };

INLINE bool by_tiles(const struct mg_attention *op) {
    return op->kv_type == MG_BF16 && op->head_dim % K == 0;
}

/* Query positions per task: blocks of about equal size, whole groups of MR rows where that is
 * possible. */
INLINE size_t task_positions(const struct mg_attention *op) {
    size_t group = group_size(op), most = mg_max_size(1, BLOCK_ROWS / group);
    size_t blocks = (op->n_q + most - 1) / most;
    if (!blocks) return 1;
    size_t even = (op->n_q + blocks - 1) / blocks;
    return MR % group == 0 ? mg_round_up(even, MR / group) : even;
}

static size_t amx_tasks(const struct mg_attention *op) {
    if (!by_tiles(op)) return BELOW(attention_tasks)(op);
    size_t per = task_positions(op);
    return op->n_head_kv * ((op->n_q + per - 1) / per);
}

static size_t amx_scratch(const struct mg_attention *op) {
    if (!by_tiles(op)) return BELOW(attention_scratch)(op);
    size_t d = op->head_dim, rows = mg_round_up(task_positions(op) * group_size(op), MR);
    return MR * LD_SCORES * 4 + rows * d * 2 + rows * d * 4 + 2 * mg_round_up(rows, 16) * 4 +
           K * d * 2;
}

/* The parts of a task's scratch, and where it is. */
struct task {
    const struct mg_attention *op;
    float *scores, *sums, *top, *total;
    uint16_t *q;
    char *last; /* values of the last, incomplete block of 32 positions, or NULL */
    size_t d, rows, group, pos;
    const char *keys, *values; /* of the head */
    size_t configured;         /* rows of the tiles now */
};

/* scores[..][n] of the rows at q, n a multiple of 32; 16 rows or fewer have no lower tiles. */
static void tile_scores(const struct task *t, const uint16_t *q, bool lower, const char *keys,
                        size_t n) {
    const size_t line = LD_SCORES * sizeof(float), ldq = t->d * 2, tile = t->d / K * TILE;
    for (size_t p = 0; p < n; p += 2 * COLUMNS) {
        const char *b = keys + p / COLUMNS * tile, *a = (const char *)q;
        float *c = t->scores + p;
        tile_zero(0);
        tile_zero(1);
        if (lower) {
            tile_zero(2);
            tile_zero(3);
        }
        for (size_t j = 0; j < t->d; j += K, a += 64, b += TILE) {
            tile_load(6, b, 64);
            tile_load(4, a, ldq);
            tile_dot_bf16(0, 4, 6);
            tile_load(7, b + tile, 64);
            tile_dot_bf16(1, 4, 7);
            if (!lower) continue;
            tile_load(5, a + 16 * ldq, ldq);
            tile_dot_bf16(2, 5, 6);
            tile_dot_bf16(3, 5, 7);
        }
        tile_store(0, c, line);
        tile_store(1, c + COLUMNS, line);
        if (!lower) continue;
        tile_store(2, c + 16 * LD_SCORES, line);
        tile_store(3, c + 16 * LD_SCORES + COLUMNS, line);
    }
}

/* sums[..][d] (+)= the weights * values of n positions, a multiple of 32; the last 32 of them are
 * at `last` unless that is NULL. */
static void tile_sums(const struct task *t, float *sums, bool lower, const char *values,
                      const char *last, size_t n, bool add) {
    const size_t ldp = LD_SCORES * sizeof(float), line = t->d * sizeof(float);
    for (size_t j = 0; j < t->d; j += 2 * COLUMNS) {
        float *c = sums + j;
        const char *a = (const char *)t->scores, *b = values + j * 4;
        if (add) {
            tile_load(0, c, line);
            tile_load(1, c + COLUMNS, line);
        } else {
            tile_zero(0);
            tile_zero(1);
        }
        if (lower && add) {
            tile_load(2, c + 16 * t->d, line);
            tile_load(3, c + 16 * t->d + COLUMNS, line);
        } else if (lower) {
            tile_zero(2);
            tile_zero(3);
        }
        for (size_t i = 0; i < n; i += K, a += 64, b += 16 * line) {
            if (last && i + K == n) b = last + j * 4;
            tile_load(6, b, line);
            tile_load(4, a, ldp);
            tile_dot_bf16(0, 4, 6);
            tile_load(7, b + 64, line);
            tile_dot_bf16(1, 4, 7);
            if (!lower) continue;
            tile_load(5, a + 16 * ldp, ldp);
            tile_dot_bf16(2, 5, 6);
            tile_dot_bf16(3, 5, 7);
        }
        tile_store(0, c, line);
        tile_store(1, c + COLUMNS, line);
        if (!lower) continue;
        tile_store(2, c + 16 * t->d, line);
        tile_store(3, c + 16 * t->d + COLUMNS, line);
    }
}

/* Rows r .. r+count-1 against the keys of the block that begins with `first`. */
static void block_rows(struct task *t, size_t r, size_t count, size_t first) {
    const struct mg_attention *op = t->op;
    size_t end = visible(op, t->pos + (r + count - 1) / t->group);
    if (end <= first) return;
    size_t n = mg_min_size(KEYS, end - first), wide = mg_round_up(n, K);
    const char *keys = t->keys + first * t->d * 2, *values = t->values + first * t->d * 2;
    if (count != t->configured) tile_configure_rows(t->configured = count);
    tile_scores(t, t->q + r * t->d, count > 16, keys, wide);
    for (size_t i = 0; i < count; i++) {
        size_t see = visible(op, t->pos + (r + i) / t->group);
        see = see > first ? mg_min_size(n, see - first) : 0;
        soften(t->scores + i * LD_SCORES, see, wide, t->top + r + i, t->total + r + i,
               t->sums + (r + i) * t->d, t->d, !first, true);
    }
    tile_sums(t, t->sums + r * t->d, count > 16, values, first + wide > op->n_kv ? t->last : NULL,
              wide, first > 0);
}

/* The values of the last positions with zeros behind them. */
static void copy_last(const struct mg_attention *op, const char *values, char *to) {
    size_t rest = op->n_kv % K, line = op->head_dim * 4;
    memset(to, 0, K / 2 * line);
    memcpy(to, values + (op->n_kv - rest) / 2 * line, (rest + 1) / 2 * line);
    if (rest % 2) /* the pair's second half is behind the last one */
        for (size_t i = 0; i < line; i += 4) memset(to + rest / 2 * line + i + 2, 0, 2);
}

INLINE void *take(char **at, size_t bytes) {
    void *p = *at;
    *at += mg_round_up(bytes, 64);
    return p;
}

static void amx_attention(const struct mg_attention *op, size_t index, void *scratch) {
    if (!by_tiles(op)) {
        BELOW(attention)(op, index, scratch);
        return;
    }
    size_t per = task_positions(op), blocks = (op->n_q + per - 1) / per, g = index / blocks;
    size_t at = g * op->head_stride_kv * 2;
    char *free = scratch;
    struct task t = {.op = op,
                     .d = op->head_dim,
                     .group = group_size(op),
                     .pos = index % blocks * per,
                     .keys = (const char *)op->k + at,
                     .values = (const char *)op->v + at};
    size_t positions = mg_min_size(per, op->n_q - t.pos);
    t.rows = positions * t.group;
    t.scores = take(&free, MR * LD_SCORES * sizeof *t.scores);
    t.q = take(&free, t.rows * t.d * sizeof *t.q);
    t.sums = take(&free, t.rows * t.d * sizeof *t.sums);
    t.top = take(&free, t.rows * sizeof *t.top);
    t.total = take(&free, t.rows * sizeof *t.total);
    size_t end = visible(op, t.pos + positions - 1);
    if (op->n_kv % K && mg_round_up(end, K) > op->n_kv) copy_last(op, t.values, t.last = free);
    load_queries(op, g, t.pos, positions, t.q, true);
    for (size_t r = 0; r < t.rows; r++) t.top[r] = -INFINITY;
    for (size_t first = 0; first < end; first += KEYS)
        for (size_t r = 0; r < t.rows; r += MR)
            block_rows(&t, r, mg_min_size(MR, t.rows - r), first);
    for (size_t r = 0; r < t.rows; r++) {
        float *out = out_row(op, g, t.pos, r);
        if (end)
            store_row(t.sums + r * t.d, t.total[r], out, t.d);
        else
            memset(out, 0, t.d * sizeof *out);
    }
    if (t.configured) tile_release();
}

void mg_amx_init_attention(struct mg_kernels *t) {
    t->attention_tasks = amx_tasks;
    t->attention_scratch = amx_scratch;
    t->attention = amx_attention;
    t->attention_bf16 = true;
}
