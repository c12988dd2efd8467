/* kernels/kernels.h - every operation that takes time, as one table of functions.
 *
 * mg_kernels_init fills the table with `ref` (plain C, the definition) and lets each tier up to the
 * machine's override what it does better. A kernel is single-threaded over a range of tasks or rows
 * that the caller picks; how the range is cut never changes a result: blocking is fixed by the
 * shapes alone.
 *
 * A row of a matrix product has the same bits beside any other rows: in `ref` always, in the x86
 * tiers among all m <= 8 and among all m > 8, with packed weights always.
 *
 * x86: avx2 and avx512 multiply in f32 in both modes; bf16 uses vdpbf16ps in MG_MODE_BF16 except on
 * Intel, where it has half the rate of the f32 multiply-add (Emerald Rapids: 88 against 177 GFLOP/s
 * in tests/kernel/bench_kernel); amx multiplies more than 8 rows in tiles, in MG_MODE_BF16 and with
 * packed weights.
 *
 * Two compute modes for matrix products:
 *   MG_MODE_F32    x in f32, weights widened to f32, f32 multiply and add. The definition.
 *   MG_MODE_BF16   x rounded to bf16 (ties to even), weights rounded to bf16 (BF16 weights are
 *                  unchanged), products added in f32.
 * All float matrices are row-major; ld* are in elements. Activation buffers are 64-byte aligned,
 * but row strides are arbitrary (a stride of a multiple of 4 KB is legal but slow: pad it by 64
 * bytes).
 */
#ifndef MG_KERNELS_KERNELS_H
#define MG_KERNELS_KERNELS_H

#include "cpu/features.h"
#include "kernels/dtype.h"
#include "kernels/packed.h"

#include <stdbool.h>
#include <stddef.h>

enum mg_mode { MG_MODE_F32, MG_MODE_BF16 };

enum mg_epilogue {
    MG_EPI_STORE,     /* y = p */
    MG_EPI_ADD,       /* y += p: the residual */
    MG_EPI_GELU_TANH, /* y = gelu_tanh(p) */
    MG_EPI_GELU_ERF,  /* y = gelu_erf(p) */
    MG_EPI_SWIGLU,    /* y = silu(p) * p2, p2 = x * w2^T; bias must be NULL */
    MG_EPI_TOP        /* no y: the largest p of each task; packed products only */
};

/* y[m][n] = epilogue(x[m][k] * w[n][k]^T + bias[n]). */
struct mg_matmul {
    enum mg_mode mode;
    enum mg_epilogue epilogue;
    const void *x; /* [m][ldx] of the table's x_type[mode], as made by mg_kernels.prepare */
    size_t ldx;
    /* [n][ldw], as in the checkpoint; element-aligned only, may be a read-only mapping */
    const void *w;
    const void *w2; /* SWIGLU: the second matrix, same type and stride; else NULL */
    size_t ldw;
    enum mg_dtype wtype; /* F32, F16 or BF16 */
    const float *bias;   /* [n] or NULL */
    float *y;            /* [m][ldy] */
    size_t ldy;
    size_t m, n, k;
};

/* The largest result among the columns of a task; of equals the first. */
struct mg_top {
    float value;    /* NaN when any of them was */
    uint32_t index; /* column */
};

/* The same with packed weights (packed.h). With s the exact integer sum of (q - zero) * w, a result
 * is float(s) * (w.scale * x.scale), where the row has loud blocks + float(their sum) * (w.scale *
 * x.loud_scale), + bias, each rounded in this order on every tier; STORE, ADD and TOP have the same
 * bits everywhere, the others differ in how exp is computed. SWIGLU needs an interleaved w, and an
 * interleaved w allows nothing else. */
struct mg_packed_matmul {
    enum mg_epilogue epilogue;
    const struct mg_packed *w;
    const uint8_t *x;              /* [m][ldx], as `quantise` makes them */
    size_t ldx;                    /* a multiple of 64, at least mg_packed_stride(k) */
    const struct mg_row_scale *xs; /* [m] */
    const float *bias;             /* [w->n] or NULL */
    float *y;                      /* [m][ldy] */
    size_t ldy;
    struct mg_top *top; /* TOP: [tasks][m] */
    size_t m;
};

/* Keys and values of one head, as mg_kernels.store_kv lays them out: a line of 64 bytes is 16
 * positions (keys) or 16 dimensions (values), so that both products of attention run along lines,
 * one query row or many.
 *   F32:   keys [n/16][d][16]           values [n][dv]
 *   BF16:  keys [n/16][d/2][16][2]      values [n/2][dv][2]       dv = d up to a multiple of 16
 * Room for whole blocks of MG_KV_BLOCK positions must be there; what lies behind the last position
 * is never used. head_dim is even. */
enum { MG_KV_BLOCK = 32 };
static inline size_t mg_kv_width(size_t d) {
    return (d + 15) / 16 * 16;
}
/* Elements of the keys, and of the values, of a head with room for n positions. */
static inline size_t mg_kv_room(size_t n, size_t d) {
    return (n + MG_KV_BLOCK - 1) / MG_KV_BLOCK * MG_KV_BLOCK * mg_kv_width(d);
}
/* Places of position p and dimension j. */
static inline size_t mg_kv_key_place(enum mg_dtype type, size_t d, size_t p, size_t j) {
    return type == MG_BF16 ? (p / 16 * (d / 2) + j / 2) * 32 + p % 16 * 2 + j % 2
                           : (p / 16 * d + j) * 16 + p % 16;
}
static inline size_t mg_kv_value_place(enum mg_dtype type, size_t d, size_t p, size_t j) {
    return type == MG_BF16 ? p / 2 * 2 * mg_kv_width(d) + j * 2 + p % 2 : p * mg_kv_width(d) + j;
}

/* out[i][h*head_dim ..] = softmax(scale * q k^T) v for query rows i and heads h; head h reads
 * key/value head h / (n_head / n_head_kv). Row i sees keys 0 .. n_kv-1, or when causal 0 ..
 * first_pos + i. The softmax is exact, in f32. Keys and values in bf16 are widened, or, where the
 * table says attention_bf16, q * scale and the weights of the values are rounded to bf16. A row's
 * bits are the same in any chunk of the prompt. */
struct mg_attention {
    const float *q; /* row i at q + i*ldq, head h at + h*head_dim */
    size_t ldq;
    const void *k, *v;     /* head g at + g*head_stride_kv elements, 64-byte aligned */
    size_t head_stride_kv; /* a multiple of 32 */
    enum mg_dtype kv_type; /* F32 or BF16 */
    size_t n_head, n_head_kv, head_dim;
    size_t n_q, n_kv;
    bool causal;
    size_t first_pos; /* causal: index of query row 0 among the keys; first_pos + n_q == n_kv */
    float scale;
    float *out;
    size_t ldo;
};

struct mg_kernels {
    enum mg_tier tier; /* of the features it was made for */

    /* What a prepared x is made of in each mode: F32 (rounded values in f32), or BF16. At most 4
     * bytes. */
    enum mg_dtype x_type[2];
    /* f32 rows [m][ldin] -> prepared rows [m][ldout] of x_type[mode]. In place (out == in) is
     * allowed when x_type[mode] is F32 and the strides are equal. */
    void (*prepare)(enum mg_mode mode, const float *in, size_t ldin, void *out, size_t ldout,
                    size_t m, size_t k);

    /* The product's columns are cut into tasks; each writes its own columns of y for all rows. */
    size_t (*matmul_tasks)(const struct mg_matmul *op);
    size_t (*matmul_scratch)(const struct mg_matmul *op); /* bytes per thread, 64-byte aligned */
    void (*matmul)(const struct mg_matmul *op, size_t task, void *scratch);

    /* f32 rows [m][ldin] of k values -> u8 rows [m][ldq] and their scales; the same bits on every
     * tier. ldq >= mg_packed_stride(k), a multiple of 64; what fills k's last block is the zero
     * point. */
    void (*quantise)(const float *in, size_t ldin, uint8_t *q, size_t ldq, struct mg_row_scale *xs,
                     size_t m, size_t k);
    size_t (*packed_tasks)(const struct mg_packed_matmul *op);
    size_t (*packed_scratch)(const struct mg_packed_matmul *op); /* bytes per thread */
    void (*packed_matmul)(const struct mg_packed_matmul *op, size_t task, void *scratch);

    /* Puts the keys k[n][d] and the values v[n][d] of one head, rows ld apart, into their places
     * for positions pos .. pos+n-1. Any positions of a head may be stored by different threads at
     * once. */
    void (*store_kv)(enum mg_dtype type, const float *k, const float *v, size_t ld, size_t d,
                     void *keys, void *values, size_t pos, size_t n);
    /* Attention is cut into tasks of (head group, block of query rows). */
    size_t (*attention_tasks)(const struct mg_attention *op);
    size_t (*attention_scratch)(const struct mg_attention *op);
    void (*attention)(const struct mg_attention *op, size_t task, void *scratch);
    bool attention_bf16;

    /* Rows. out == in is allowed. */
    /* out[i][j] = in[i][j] * rsqrt(mean_j(in^2) + eps) * w[j] */
    void (*rms_norm)(const float *in, size_t ldin, const float *w, float eps, float *out,
                     size_t ldout, size_t m, size_t k);
    /* out[i][j] = (in[i][j] - mean) * rsqrt(var + eps) * w[j] + b[j]; var divides by k */
    void (*layer_norm)(const float *in, size_t ldin, const float *w, const float *b, float eps,
                       float *out, size_t ldout, size_t m, size_t k);
    /* Rotate-half in place on n_head heads of head_dim in each row: with a = x[j], b = x[j + d/2]:
     * x[j] = a*cos[i][j] - b*sin[i][j];  x[j + d/2] = b*cos[i][j] + a*sin[i][j]. cos, sin:
     * [m][d/2]. */
    void (*rope)(float *x, size_t ldx, size_t m, size_t n_head, size_t head_dim, const float *cos,
                 const float *sin);

    /* Vectors of n. */
    void (*add)(float *y, const float *x, size_t n); /* y += x */
    void (*gelu_tanh)(float *x, size_t n);           /* 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
    void (*gelu_erf)(float *x, size_t n);            /* 0.5x(1+erf(x/sqrt 2)) */
    void (*silu_mul)(const float *gate, const float *up, float *out,
                     size_t n);          /* gate/(1+exp(-gate))*up */
    void (*softmax)(float *x, size_t n); /* exact row softmax, n >= 1 */
    void (*widen)(enum mg_dtype type, const void *in, float *out,
                  size_t n);                                   /* F32, F16, BF16 -> f32, exact */
    void (*to_bf16)(const float *in, uint16_t *out, size_t n); /* ties to even */
    bool (*all_finite)(const float *x, size_t n);
    /* Index of the first largest value; NaN never wins. n >= 1. */
    size_t (*argmax)(const float *x, size_t n);
};

/* Fills `t` for these features. Never fails. */
void mg_kernels_init(struct mg_kernels *t, const struct mg_features *features);

#endif
