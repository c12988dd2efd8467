/* tests/kernel/check_attention.c - attention: vision, prefill and decoding shapes.
 *
 * Bound: a score errs by at most E = (d + 4) EPS max_p |scale| sum|q k|, which shifts every weight
 * by a factor of at most exp(2E); exp adds 4e-7 and the rounding of (score - top) EPS |score - top|
 * (in E's size); sums of n weights and of n products add n EPS each at worst (chains of at most
 * 512, then blocks). With c = min(n, 512) + n/512 + 8,
 *     |out - exact| <= (2.1 E + 4 EPS max|score| + 4e-7 + 2 c EPS) * max|v|
 *
 * Where the table says attention_bf16 and keys are bf16, the exact result is that of q * scale
 * rounded to bf16, and rounding the weights adds 2^-9 max|v|.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attention_case {
    size_t n_head, n_head_kv, d, n_q, n_kv;
    bool causal;
    enum mg_dtype type;
    size_t pad;  /* extra elements in every stride */
    float scale; /* 0: 1/sqrt(d) */
    double size; /* of the entries of q: large ones make the softmax sharp */
};

/* As stored, at the places that kernels.h describes: counted here line by line. */
static double load_key(const struct mg_attention *op, size_t g, size_t pos, size_t j) {
    size_t at = g * op->head_stride_kv, d = op->head_dim;
    if (op->kv_type == MG_BF16) {
        size_t line = pos / 16 * (d / 2) + j / 2;
        return mg_load_f32(MG_BF16, op->k, at + line * 32 + pos % 16 * 2 + j % 2);
    }
    return ((const float *)op->k)[at + (pos / 16 * d + j) * 16 + pos % 16];
}

static double load_value(const struct mg_attention *op, size_t g, size_t pos, size_t j) {
    size_t at = g * op->head_stride_kv, dv = (op->head_dim + 15) / 16 * 16;
    if (op->kv_type == MG_BF16)
        return mg_load_f32(MG_BF16, op->v, at + pos / 2 * 2 * dv + 2 * j + pos % 2);
    return ((const float *)op->v)[at + pos * dv + j];
}

static void check_row(struct check *c, const struct mg_attention *op, size_t i, size_t h) {
    bool half = c->t->attention_bf16 && op->kv_type == MG_BF16;
    double scale = half ? 1 : op->scale;
    size_t g = h / (op->n_head / op->n_head_kv), n = op->causal ? op->first_pos + i + 1 : op->n_kv;
    double *s = malloc((n + 1) * sizeof *s), top = -INFINITY, total = 0, widest = 0, largest = 0,
           v_top = 0;
    const float *q = op->q + i * op->ldq + h * op->head_dim;
    for (size_t p = 0; p < n; p++) {
        double sum = 0, size = 0;
        for (size_t j = 0; j < op->head_dim; j++) {
            double of_q = half ? mg_bf16_to_f32(mg_f32_to_bf16(q[j] * op->scale)) : q[j];
            double t = of_q * load_key(op, g, p, j);
            sum += t;
            size += fabs(t);
            v_top = fmax(v_top, fabs(load_value(op, g, p, j)));
        }
        s[p] = sum * scale;
        widest = fmax(widest, size * fabs(scale));
        largest = fmax(largest, fabs(s[p]));
        top = fmax(top, s[p]);
    }
    for (size_t p = 0; p < n; p++) total += s[p] = exp(s[p] - top);
    double chain = (n < 512 ? n : 512) + n / 512 + 8, e = (op->head_dim + 4) * EPS * widest;
    double bound =
        (2.1 * e + 4 * EPS * largest + 4e-7 + 2 * chain * EPS + (half ? 0x1p-9 : 0)) * v_top;
    for (size_t j = 0; j < op->head_dim; j++) {
        double want = 0;
        for (size_t p = 0; p < n; p++) want += s[p] * load_value(op, g, p, j);
        if (n) want /= total;
        if (!check_near(c, i, h * op->head_dim + j, op->out[i * op->ldo + h * op->head_dim + j],
                        want, bound))
            break;
    }
    free(s);
}

static void run(struct check *c, const struct mg_attention *op, bool backwards) {
    size_t n = c->t->attention_tasks(op), bytes = (c->t->attention_scratch(op) + 63) & ~(size_t)63;
    void *scratch = guard_alloc(c, bytes);
    check_true(c, bytes < (16u << 20), "scratch over 16 MB", 0, 0);
    for (size_t i = 0; i < n; i++) {
        memset(scratch, 0xff, bytes);
        c->t->attention(op, backwards ? n - 1 - i : i, scratch);
    }
}

/* The last rows as a later chunk of the prompt: the same bits. */
static void check_chunk(struct check *c, const struct mg_attention *all, size_t count) {
    if (count >= all->n_q) return;
    struct mg_attention part = *all;
    size_t at = all->n_q - count;
    part.n_q = count;
    part.first_pos = all->first_pos + at;
    part.q = all->q + at * all->ldq;
    part.out =
        guard_alloc(c, ((count - 1) * all->ldo + all->n_head * all->head_dim) * sizeof(float));
    run(c, &part, false);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < all->n_head * all->head_dim; j++)
            if (!check_true(
                    c, same_bits(part.out[i * all->ldo + j], all->out[(at + i) * all->ldo + j]),
                    "a row's bits depend on the chunk", at + i, j))
                return;
}

/* Random keys and values of all heads by the table's store_kv, in runs of 1, 2, 3 .. positions,
 * each compared with its rounding. */
static void store_all(struct check *c, const struct mg_attention *op, void *keys, void *values,
                      size_t head_bytes) {
    size_t d = op->head_dim;
    enum { RUN = 70, PAD = 3 };
    size_t ld = d + PAD, run = 0;
    float *k = guard_alloc(c, ((RUN - 1) * ld + d) * sizeof *k),
          *v = guard_alloc(c, ((RUN - 1) * ld + d) * sizeof *v);
    for (size_t g = 0; g < op->n_head_kv; g++)
        for (size_t p = 0, n; p < op->n_kv; p += n) {
            run = run % RUN + 1;
            n = run < op->n_kv - p ? run : op->n_kv - p;
            for (size_t i = 0; i < n * ld - PAD; i++) {
                k[i] = (float)rand_normal();
                v[i] = (float)rand_normal();
            }
            c->t->store_kv(op->kv_type, k, v, ld, d, (char *)keys + g * head_bytes,
                           (char *)values + g * head_bytes, p, n);
            for (size_t i = 0; i < n * d; i++) {
                size_t at = i / d * ld + i % d;
                bool half = op->kv_type == MG_BF16;
                float want_k = half ? mg_bf16_to_f32(mg_f32_to_bf16(k[at])) : k[at];
                float want_v = half ? mg_bf16_to_f32(mg_f32_to_bf16(v[at])) : v[at];
                check_true(c, (float)load_key(op, g, p + i / d, i % d) == want_k, "stored key",
                           p + i / d, i % d);
                check_true(c, (float)load_value(op, g, p + i / d, i % d) == want_v, "stored value",
                           p + i / d, i % d);
            }
        }
}

static void one_case(struct check *c, const struct attention_case *s) {
    if (c->failed) return;
    c->seed = c->seed * 31 + 7;
    rand_seed(c->seed);
    snprintf(c->where, sizeof c->where,
             "heads %zu/%zu d %zu n_q %zu n_kv %zu%s kv %s pad %zu size %g", s->n_head,
             s->n_head_kv, s->d, s->n_q, s->n_kv, s->causal ? " causal" : "",
             s->type == MG_BF16 ? "bf16" : "f32", s->pad, s->size);
    size_t width = s->n_head * s->d, size = mg_dtype_size(s->type);
    struct mg_attention op = {.ldq = width + s->pad,
                              .kv_type = s->type,
                              .n_head = s->n_head,
                              .n_head_kv = s->n_head_kv,
                              .head_dim = s->d,
                              .n_q = s->n_q,
                              .n_kv = s->n_kv,
                              .causal = s->causal,
                              .first_pos = s->causal ? s->n_kv - s->n_q : 0,
                              .scale = s->scale != 0 ? s->scale : (float)(1 / sqrt((double)s->d)),
                              .ldo = width + s->pad};
    /* Exactly the room that is promised; the padding keeps its NaN pattern. */
    op.head_stride_kv = mg_kv_room(s->n_kv, s->d) + s->pad * 32;
    size_t nq = s->n_q ? (s->n_q - 1) * op.ldq + width : 0;
    size_t nk = s->n_head_kv * op.head_stride_kv;
    float *q = guard_alloc(c, nq * sizeof(float)), *again = guard_alloc(c, nq * sizeof(float));
    for (size_t i = 0; i < nq; i++) q[i] = (float)(rand_normal() * s->size);
    void *k = guard_alloc(c, nk * size), *v = guard_alloc(c, nk * size);
    op.q = q, op.k = k, op.v = v;
    store_all(c, &op, k, v, op.head_stride_kv * size);
    op.out = again;
    run(c, &op, true);
    float *out = op.out = guard_alloc(c, nq * sizeof(float));
    memset(out, 0xee, nq * sizeof(float));
    run(c, &op, false);
    size_t step = s->n_q > 40 ? s->n_q / 25 : 1, heads = s->n_kv > 3000 ? 3 : 1;
    for (size_t i = 0; i < s->n_q && !c->failed; i += i + step < s->n_q ? step : 1)
        for (size_t h = i % heads; h < s->n_head && !c->failed; h += heads) check_row(c, &op, i, h);
    float mark;
    memset(&mark, 0xee, 4);
    for (size_t i = 0; i < nq && !c->failed; i++) {
        bool inside = i % op.ldo < width;
        check_true(c, same_bits(out[i], inside ? again[i] : mark),
                   inside ? "the order of tasks shows" : "wrote between the rows", i / op.ldo,
                   i % op.ldo);
    }
    for (size_t count = 1; s->causal && count < 20 && !c->failed; count += 4)
        check_chunk(c, &op, count);
    guard_free_all();
}

void check_attention(struct check *c) {
    c->seed = 777;
    static const struct attention_case cases[] = {
        {1, 1, 16, 1, 1, false, MG_F32, 0, 0, 1},
        {1, 1, 8, 0, 3, false, MG_F32, 0, 0, 1}, /* no query */
        {2, 1, 8, 3, 0, false, MG_F32, 0, 0, 1}, /* no key: zeros */
        {2, 2, 8, 30, 0, false, MG_F32, 0, 0, 1},
        {2, 2, 16, 4, 4, false, MG_F32, 1, 0, 1},
        {3, 3, 24, 13, 13, false, MG_F32, 3, 0, 1}, /* vision */
        {2, 2, 72, 25, 31, false, MG_F32, 1, 0, 4},
        {2, 2, 64, 33, 33, false, MG_F32, 5, 0, 30},
        {4, 2, 32, 1, 1, true, MG_BF16, 0, 0, 1}, /* decoding */
        {4, 2, 32, 1, 2, true, MG_F32, 2, 0, 1},
        {4, 2, 128, 1, 77, true, MG_BF16, 0, 0, 2},
        {16, 8, 128, 1, 130, true, MG_F32, 0, 0, 1},
        {6, 2, 40, 2, 65, true, MG_BF16, 1, 0, 1},
        {4, 1, 36, 2, 64, true, MG_F32, 0, 0, 1},
        {4, 2, 20, 4, 63, true, MG_BF16, 0, 0, 1}, /* verifying drafts */
        {8, 1, 18, 1, 19, true, MG_F32, 0, 0, 1},
        {4, 2, 32, 5, 5, true, MG_BF16, 0, 0, 1}, /* prefill */
        {4, 2, 32, 17, 17, true, MG_F32, 0, 0, 1},
        {2, 1, 128, 23, 40, true, MG_BF16, 2, 0, 3},
        {6, 2, 34, 31, 64, true, MG_F32, 1, -0.25f, 1},
        {2, 1, 64, 120, 160, true, MG_BF16, 0, 0, 1},
        {2, 2, 64, 45, 45, false, MG_BF16, 1, 0, 4}, /* vision */
        {1, 1, 32, 16, 257, false, MG_BF16, 0, 0, 1},
        {2, 1, 96, 19, 300, true, MG_BF16, 1, 0, 2},
        {6, 2, 64, 0, 3, false, MG_BF16, 0, 0, 1},
        {2, 2, 64, 30, 0, false, MG_BF16, 0, 0, 1},
    };
    static const struct attention_case large[] = {
        {2, 2, 64, 200, 676, false, MG_F32, 1, 0, 1}, /* several blocks of rows and of keys */
        {1, 1, 64, 393, 513, false, MG_F32, 3, 0, 10},
        {2, 1, 128, 300, 1100, true, MG_BF16, 0, 0, 2},
        {2, 2, 64, 200, 676, false, MG_BF16, 1, 0, 3},
        {3, 1, 64, 90, 513, true, MG_BF16, 3, 0, 10},
        {4, 2, 128, 1, 5000, true, MG_BF16, 0, 0, 1},
        {1, 1, 16, 20, 9000, false, MG_F32, 0, 0, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) one_case(c, &cases[i]);
    for (size_t i = 0; c->sweep && i < sizeof large / sizeof *large; i++) one_case(c, &large[i]);
    struct mg_attention vast = {
        .n_head = 16, .n_head_kv = 16, .head_dim = 64, .n_q = 65536, .n_kv = 65536};
    check_true(c, c->t->attention_scratch(&vast) <= (16u << 20),
               "scratch of 65,536 patches over 16 MB", 0, 0);
}
