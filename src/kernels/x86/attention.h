/* kernels/x86/attention.h - softmax(scale q k^T) v for the tier that includes this (see vec.h).
 *
 * A task's rows (attention_rows.h, about BLOCK_ROWS) meet its keys in blocks of KEYS, MR rows at a
 * time: scores (they fit L1), softmax, and the product with v.
 *
 * Both products are the same micro-kernel: MR rows of f32 against two vectors of columns that lie
 * in lines one behind another (kernels.h); with BF16 a line has two neighbours in the inner
 * dimension, the first in the low halves:
 *
 *     scores[r][16 positions] += q[r][j] * low + q[r][j+1] * high      lines of keys, j = 0, 2, ...
 *     sums[r][16 dimensions]  += p[r][i] * low + p[r][i+1] * high      lines of values, i likewise
 *
 * With MG_DOT_BF16 such a step is one vdpbf16ps: then scale * q and the softmax's weights are
 * rounded to bf16 and lie in pairs, a dword each, in the same buffers.
 *
 * Each output is one chain in ascending order, whatever the number of rows, and hidden keys add
 * exact zeros: a row has the same bits in any chunk of the prompt.
 *
 *   scratch:  q [R][d]  sums [R][dv]  top, total [R]  scores [MR][KEYS + 16]   (R rows of a block)
 */
#ifndef MG_KERNELS_X86_ATTENTION_H
#define MG_KERNELS_X86_ATTENTION_H

#include "kernels/x86/attention_rows.h"
#include "kernels/x86/gemm.h"

enum { BLOCK_ROWS = 240, KEYS = 512, LD_SCORES = KEYS + 16 };
/* Vectors of a line: a zmm holds one, two ymm do. Columns of two lines resp. one. */
enum { LINE_VECTORS = 16 / VL };

/* Query positions per task: blocks of about equal size, whole groups of MR rows where that is
 * possible. */
INLINE size_t block_positions(const struct mg_attention *op) {
    size_t group = group_size(op), most = mg_max_size(1, BLOCK_ROWS / group);
    size_t blocks = (op->n_q + most - 1) / most;
    if (!blocks) return 1;
    size_t even = (op->n_q + blocks - 1) / blocks;
    return MR % group == 0 ? mg_round_up(even, MR / group) : even;
}

static size_t attention_tasks(const struct mg_attention *op) {
    size_t per = block_positions(op);
    return op->n_head_kv * ((op->n_q + per - 1) / per);
}

static size_t attention_scratch(const struct mg_attention *op) {
    size_t d = op->head_dim, rows = block_positions(op) * group_size(op);
    size_t floats = rows * (d + mg_kv_width(d) + 2) + (size_t)MR * LD_SCORES + 4 * 16;
    return mg_round_up(floats * sizeof(float), 64);
}

#if defined(MG_DOT_BF16)
INLINE vf pair_step(vf sum, vf a, vf b) {
    return step(sum, a, b);
}
/* The low half of each pair; what lies in the high one is not to be used. */
INLINE vf only_low(vf pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(0xffff)));
}
#else
INLINE vf pair_step(vf sum, vf a, vf b) {
    return (void)a, (void)b, sum;
}
INLINE vf only_low(vf pairs) {
    return pairs;
}
#endif

/* Lines of columns: vector v of inner index i (F32) or pair i (BF16) is at b + i * step + at[v]. */
struct lines {
    const char *b;
    size_t step;  /* bytes from an inner index (pair) to the next */
    size_t at[2]; /* bytes of the two vectors */
    size_t k;     /* inner indices */
};

/* c[r][0..2 VL-1] (+)= a[r] . lines, r < rows; lda, ldc in floats (of a: dwords). */
INLINE void line_rows(const int rows, const int vectors, const bool pairs, const float *a,
                      size_t lda, const struct lines *l, float *c, size_t ldc, bool add) {
    vf sum[MR][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = v_zero();
    const float *a1 = a + 3 * lda, *a2 = a + 6 * lda, *a3 = a + 9 * lda;
    const char *b = l->b;
    size_t k = l->k, i = 0, line_step = l->step, second = l->at[1];
    b += l->at[0];
    second -= l->at[0];
    if (!pairs) {
        for (; i < k; i++, b += line_step) {
            vf b0 = v_load((const float *)(const void *)b), b1 = v_zero();
            if (vectors > 1) b1 = v_load((const float *)(const void *)(b + second));
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i]);
                sum[r][0] = v_fma(x, b0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, b1, sum[r][1]);
            }
        }
    } else if (DOT) {
        const char *end = b + (k + 1) / 2 * line_step;
        for (; b < end; i++, b += line_step) {
            vf b0 = v_load((const float *)(const void *)b), b1 = v_zero();
            if (vectors > 1) b1 = v_load((const float *)(const void *)(b + second));
            if (2 * i + 1 == k) b0 = only_low(b0), b1 = only_low(b1);
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i]);
                sum[r][0] = pair_step(sum[r][0], x, b0);
                if (vectors > 1) sum[r][1] = pair_step(sum[r][1], x, b1);
            }
        }
    } else {
        for (; i < k; i += 2, b += line_step) {
            vi two0 = v_load_bits(b), two1 = vectors > 1 ? v_load_bits(b + second) : two0;
            vf l0 = v_low_bf16(two0), l1 = v_low_bf16(two1);
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i]);
                sum[r][0] = v_fma(x, l0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, l1, sum[r][1]);
            }
            if (i + 1 == k) break;
            vf h0 = v_high_bf16(two0), h1 = v_high_bf16(two1);
            UNROLL for (int r = 0; r < rows; r++) {
                const float *base = r < 3 ? a : r < 6 ? a1 : r < 9 ? a2 : a3;
                vf x = v_set(base[(size_t)(r % 3) * lda + i + 1]);
                sum[r][0] = v_fma(x, h0, sum[r][0]);
                if (vectors > 1) sum[r][1] = v_fma(x, h1, sum[r][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + (size_t)r * ldc + v * VL;
            v_store(to, add ? v_add(v_load(to), sum[r][v]) : sum[r][v]);
        }
    }
}

typedef void line_fn(const float *a, size_t lda, const struct lines *l, float *c, size_t ldc,
                     bool add);
#define LINE_INSTANCE(N)                                                                           \
    static void line_f32_##N(const float *a, size_t lda, const struct lines *l, float *c,          \
                             size_t ldc, bool add) {                                               \
        line_rows(N, 2, false, a, lda, l, c, ldc, add);                                            \
    }                                                                                              \
    static void line_bf16_##N(const float *a, size_t lda, const struct lines *l, float *c,         \
                              size_t ldc, bool add) {                                              \
        line_rows(N, 2, true, a, lda, l, c, ldc, add);                                             \
    }
LINE_INSTANCE(1)
LINE_INSTANCE(2)
LINE_INSTANCE(3)
LINE_INSTANCE(4)
LINE_INSTANCE(5)
LINE_INSTANCE(6)
#if defined(__AVX512F__)
LINE_INSTANCE(7)
LINE_INSTANCE(8)
LINE_INSTANCE(9)
LINE_INSTANCE(10)
LINE_INSTANCE(11)
LINE_INSTANCE(12)
#endif
static line_fn *const line_product[2][MR + 1] = {
    {NULL, line_f32_1, line_f32_2, line_f32_3, line_f32_4, line_f32_5, line_f32_6,
#if defined(__AVX512F__)
     line_f32_7, line_f32_8, line_f32_9, line_f32_10, line_f32_11, line_f32_12
#endif
    },
    {NULL, line_bf16_1, line_bf16_2, line_bf16_3, line_bf16_4, line_bf16_5, line_bf16_6,
#if defined(__AVX512F__)
     line_bf16_7, line_bf16_8, line_bf16_9, line_bf16_10, line_bf16_11, line_bf16_12
#endif
    }};

/* The parts of a task's scratch. */
struct block {
    float *q, *sums, *top, *total, *scores;
    size_t rows, d, dv;
    size_t ldq;                /* dwords of a row of q */
    size_t pos;                /* query position of row 0 */
    const char *keys, *values; /* of the head */
};

/* scores[count][n up to a multiple of 2 VL] of rows r .. against keys first .. */
static void block_scores(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                         size_t first, size_t n) {
    bool pairs = op->kv_type == MG_BF16;
    size_t size = pairs ? 2 : 4, tile = 16 * b->d * size; /* bytes of 16 positions */
    struct lines l = {.step = 64, .k = b->d};
    l.at[1] = LINE_VECTORS == 1 ? tile : 32;
    for (size_t p = 0; p < n; p += NR) {
        l.b = b->keys + (first + p) / 16 * tile;
        line_product[pairs][count](b->q + r * b->ldq, b->ldq, &l, b->scores + p, LD_SCORES, false);
    }
}

static void block_sums(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                       size_t first, size_t n) {
    bool pairs = op->kv_type == MG_BF16;
    struct lines l = {.step = b->dv * 4, .k = n};
    l.b = b->values + (pairs ? first / 2 : first) * l.step;
    for (size_t j = 0; j < b->dv; j += NR) {
        l.at[0] = j * 4;
        l.at[1] = j + VL < b->dv ? l.at[0] + 4 * VL : l.at[0]; /* an odd line twice: no harm */
        float *c = b->sums + r * b->dv + j, odd[MR * NR];
        if (j + NR <= b->dv) {
            line_product[pairs][count](b->scores, LD_SCORES, &l, c, b->dv, first > 0);
            continue;
        }
        for (size_t i = 0; i < count; i++) v_store(odd + i * NR, v_load(c + i * b->dv));
        line_product[pairs][count](b->scores, LD_SCORES, &l, odd, NR, first > 0);
        for (size_t i = 0; i < count; i++) v_store(c + i * b->dv, v_load(odd + i * NR));
    }
}

/* Rows r .. r+count-1 against the n keys from `first` on. */
static void block_rows(const struct mg_attention *op, struct block *b, size_t r, size_t count,
                       size_t first, size_t n) {
    size_t group = group_size(op), last = visible(op, b->pos + (r + count - 1) / group);
    if (last <= first) return;
    n = mg_min_size(n, last - first);
    block_scores(op, b, r, count, first, n);
    for (size_t i = 0; i < count; i++) {
        float *s = b->scores + i * LD_SCORES, *sums = b->sums + (r + i) * b->dv;
        size_t see = visible(op, b->pos + (r + i) / group);
        see = see > first ? mg_min_size(n, see - first) : 0;
        if (DOT && op->kv_type == MG_BF16) /* an odd last one has a zero beside it */
            soften(s, see, n + n % 2, b->top + r + i, b->total + r + i, sums, b->dv, !first, true);
        else
            soften(s, see, n, b->top + r + i, b->total + r + i, sums, b->dv, !first, false);
    }
    block_sums(op, b, r, count, first, n);
}

static void attention(const struct mg_attention *op, size_t task, void *memory) {
    size_t per = block_positions(op), blocks = (op->n_q + per - 1) / per;
    size_t g = task / blocks, group = group_size(op);
    size_t at = g * op->head_stride_kv * mg_dtype_size(op->kv_type);
    bool half = DOT && op->kv_type == MG_BF16;
    struct block b = {.d = op->head_dim,
                      .ldq = half ? op->head_dim / 2 : op->head_dim,
                      .dv = mg_kv_width(op->head_dim),
                      .pos = task % blocks * per,
                      .keys = (const char *)op->k + at,
                      .values = (const char *)op->v + at};
    size_t positions = mg_min_size(per, op->n_q - b.pos);
    float *scratch = memory;
    b.rows = positions * group;
    b.scores = carve(&scratch, (size_t)MR * LD_SCORES);
    b.q = carve(&scratch, b.rows * b.d);
    b.sums = carve(&scratch, b.rows * b.dv);
    b.top = carve(&scratch, b.rows);
    b.total = carve(&scratch, b.rows);
    if (half)
        load_queries(op, g, b.pos, positions, b.q, true);
    else
        load_queries(op, g, b.pos, positions, b.q, false);
    for (size_t r = 0; r < b.rows; r++) b.top[r] = -INFINITY;
    size_t end = visible(op, b.pos + positions - 1);
    for (size_t first = 0; first < end; first += KEYS) {
        size_t n = mg_min_size(KEYS, end - first);
        for (size_t r = 0; r < b.rows; r += MR)
            block_rows(op, &b, r, mg_min_size(MR, b.rows - r), first, n);
    }
    for (size_t r = 0; r < b.rows; r++) {
        float *out = out_row(op, g, b.pos, r);
        if (end)
            store_row(b.sums + r * b.dv, b.total[r], out, b.d);
        else
            memset(out, 0, b.d * sizeof(float));
    }
}

static void store_one(enum mg_dtype type, const float *k, const float *v, size_t d, void *keys,
                      void *values, size_t pos) {
    if (type != MG_BF16) {
        float *to = (float *)keys + mg_kv_key_place(type, d, pos, 0);
        for (size_t j = 0; j < d; j++) to[16 * j] = k[j];
        memcpy((float *)values + mg_kv_value_place(type, d, pos, 0), v, d * sizeof *v);
        return;
    }
    /* A key's pair is one dword; a value's neighbour may be written by another thread meanwhile. */
    char *to = (char *)((uint16_t *)keys + mg_kv_key_place(type, d, pos, 0));
    uint16_t *value = (uint16_t *)values + mg_kv_value_place(type, d, pos, 0), half[VL];
    for (size_t j = 0; j < d; j += VL) {
        size_t n = mg_min_size(VL, d - j);
        v_store_bf16(half, n == VL ? v_load(k + j) : v_load_n(k + j, n));
        for (size_t i = 0; i < n; i += 2) memcpy(to + (j + i) * 32, half + i, 4);
        v_store_bf16(half, n == VL ? v_load(v + j) : v_load_n(v + j, n));
        for (size_t i = 0; i < n; i++) value[2 * (j + i)] = half[i];
    }
}

/* VL positions from a multiple of VL on in bf16, d a multiple of 2 VL: whole vectors of lines. */
static void store_vectors(const float *k, const float *v, size_t ld, size_t d, uint16_t *keys,
                          uint16_t *values, size_t pos) {
    char *to = (char *)(keys + mg_kv_key_place(MG_BF16, d, pos, 0));
    for (size_t j = 0; j < d; j += 2 * VL) {
        vf r[VL];
        UNROLL for (int i = 0; i < VL; i++) {
            const float *row = k + (size_t)i * ld + j;
            r[i] = v_pairs_bf16(v_load(row), v_load(row + VL));
        }
        v_transpose(r);
        UNROLL for (int i = 0; i < VL; i++)
            v_store((float *)(void *)(to + (j / 2 + (size_t)i) * 64), r[i]);
    }
    for (size_t i = 0; i < VL; i += 2, v += 2 * ld) {
        uint16_t *pair = values + mg_kv_value_place(MG_BF16, d, pos + i, 0);
        for (size_t j = 0; j < d; j += VL)
            v_store((float *)(void *)(pair + 2 * j), v_zip_bf16(v_load(v + j), v_load(v + ld + j)));
    }
}

static void store_kv(enum mg_dtype type, const float *k, const float *v, size_t ld, size_t d,
                     void *keys, void *values, size_t pos, size_t n) {
    size_t i = 0;
    while (i < n) {
        if (type == MG_BF16 && d % (2 * VL) == 0 && (pos + i) % VL == 0 && n - i >= VL) {
            store_vectors(k + i * ld, v + i * ld, ld, d, keys, values, pos + i);
            i += VL;
        } else {
            store_one(type, k + i * ld, v + i * ld, d, keys, values, pos + i);
            i++;
        }
    }
}

INLINE void init_attention(struct mg_kernels *t) {
    t->store_kv = store_kv;
    t->attention_tasks = attention_tasks;
    t->attention_scratch = attention_scratch;
    t->attention = attention;
    t->attention_bf16 = DOT;
}

#endif
