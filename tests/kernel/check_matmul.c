/* tests/kernel/check_matmul.c - matmul and prepare.
 *
 * Bound of one output p = sum x w + bias: a chain of n roundings errs by at most n EPS sum|x w| (1
 * + small). A tier adds at most BLOCK products in one chain, then at most k / 512 + 1 block sums,
 * then a tree of 4 levels and the bias:
 *     |p - exact| <= (min(k, BLOCK) + k/512 + 8) EPS (sum|x w| + |bias|) * 1.01 + 1e-37
 * The epilogue's slope is at most 1.13 (GELU), 1.1 (SiLU), its own error at
 * most 1e-6 max(1, |value|).
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 };

struct matmul_case {
    size_t m, n, k, pad_x, pad_w, pad_y;
    enum mg_mode mode;
    enum mg_dtype wtype;
    enum mg_epilogue epilogue;
    bool bias;
};

static const char *const type_name[] = {"f32", "f16", "bf16"};
static const char *const epilogue_name[] = {"store", "add", "gelu_tanh", "gelu_erf", "swiglu"};

static float bf16_round(float f) { return mg_bf16_to_f32(mg_f32_to_bf16(f)); }

/* A weight of about normal size in its type, seldom a subnormal. */
static void random_weight(enum mg_dtype type, void *p, size_t i) {
    float v = (float)rand_normal();
    if (type == MG_F32) {
        ((float *)p)[i] = v;
    } else if (type == MG_BF16) {
        ((uint16_t *)p)[i] = mg_f32_to_bf16(v);
    } else { /* sign, exponent 2^-6 .. 2^1 or subnormal, any fraction */
        uint64_t r = rand_u64();
        uint64_t exponent = r % 64 ? 9 + (r >> 8) % 8 : 0;
        ((uint16_t *)p)[i] = (uint16_t)((r >> 16 & 0x83ff) | exponent << 10);
    }
}

static void *random_weights(struct check *c, const struct matmul_case *s) {
    size_t ld = s->k + s->pad_w, n = s->n ? (s->n - 1) * ld + s->k : 0;
    void *w = guard_alloc(c, n * mg_dtype_size(s->wtype));
    for (size_t i = 0; i < n; i++) random_weight(s->wtype, w, i);
    return w;
}

static double weight(const struct matmul_case *s, const void *w, size_t j, size_t i) {
    float v = mg_load_f32(s->wtype, w, j * (s->k + s->pad_w) + i);
    return s->mode == MG_MODE_BF16 ? bf16_round(v) : v;
}

/* Sum and sum of absolute values of row i of x with column j of w. */
static void exact(const struct matmul_case *s, const float *x, const void *w, size_t j, double *sum,
                  double *size) {
    *sum = *size = 0;
    for (size_t i = 0; i < s->k; i++) {
        double p = (s->mode == MG_MODE_BF16 ? bf16_round(x[i]) : x[i]) * weight(s, w, j, i);
        *sum += p;
        *size += fabs(p);
    }
}

static double sum_bound(const struct matmul_case *s, double size) {
    double terms = (s->k < BLOCK ? s->k : BLOCK) + s->k / 512 + 8;
    return terms * EPS * size * 1.01 + 1e-37;
}

static void check_output(struct check *c, const struct matmul_case *s, const struct mg_matmul *op,
                         const float *x, const float *y0, size_t i, size_t j) {
    double p, size, p2 = 0, size2 = 0, want, bound, got = op->y[i * op->ldy + j];
    exact(s, x + i * (s->k + s->pad_x), op->w, j, &p, &size);
    if (op->bias) {
        p += op->bias[j];
        size += fabs(op->bias[j]);
    }
    bound = sum_bound(s, size);
    want = p;
    switch (s->epilogue) {
    case MG_EPI_STORE: break;
    case MG_EPI_ADD:
        want = y0[i * op->ldy + j] + p;
        bound += EPS * fabs(want) * 2;
        break;
    case MG_EPI_GELU_TANH:
        want = 0.5 * p * (1 + tanh(sqrt(2 / M_PI) * (p + 0.044715 * p * p * p)));
        bound = 1.13 * bound + 1e-6 * fmax(1, fabs(want));
        break;
    case MG_EPI_GELU_ERF:
        want = 0.5 * p * (1 + erf(p / sqrt(2)));
        bound = 1.13 * bound + 1e-6 * fmax(1, fabs(want));
        break;
    default: /* SWIGLU */
        exact(s, x + i * (s->k + s->pad_x), op->w2, j, &p2, &size2);
        want = p / (1 + exp(-p)) * p2;
        bound = (1.1 * bound + 1e-6 * fmax(1, fabs(p))) * (fabs(p2) + sum_bound(s, size2)) +
                fabs(p) * sum_bound(s, size2) + EPS * 2 * fabs(want);
        break;
    }
    check_near(c, i, j, got, want, bound);
}

static void run(struct check *c, const struct mg_matmul *op, bool backwards, void *scratch,
                size_t bytes) {
    size_t n = c->t->matmul_tasks(op);
    for (size_t i = 0; i < n; i++) {
        memset(scratch, 0xff, bytes);
        c->t->matmul(op, backwards ? n - 1 - i : i, scratch);
    }
}

/* scratch is 64-byte aligned at both sides: sizes are rounded up. */
static void *scratch_for(struct check *c, const struct mg_matmul *op, size_t *bytes) {
    *bytes = (c->t->matmul_scratch(op) + 63) & ~(size_t)63;
    return guard_alloc(c, *bytes);
}

/* The same rows in smaller products: bits must agree within m <= 8 and within m > 8 (ref: always).
 */
static void check_rows_alone(struct check *c, const struct mg_matmul *all, const float *y0,
                             size_t elem) {
    size_t some = all->m > 8 ? 9 : 1;
    if (c->t->tier == MG_TIER_REF) some = 1;
    if (all->m == some || !all->m) return;
    size_t starts[] = {0, all->m / 2 > all->m - some ? all->m - some : all->m / 2, all->m - some};
    for (size_t s = 0; s < 3; s++) {
        struct mg_matmul part = *all;
        size_t at = starts[s], ny = (some - 1) * all->ldy + all->n, bytes;
        part.m = some;
        part.x = (const char *)all->x + at * all->ldx * elem;
        part.y = guard_alloc(c, ny * sizeof(float));
        memcpy(part.y, y0 + at * all->ldy, ny * sizeof(float));
        void *scratch = scratch_for(c, &part, &bytes);
        run(c, &part, false, scratch, bytes);
        for (size_t i = 0; i < some; i++)
            for (size_t j = 0; j < all->n; j++)
                if (!check_true(
                        c, same_bits(part.y[i * all->ldy + j], all->y[(at + i) * all->ldy + j]),
                        "a row's bits depend on the number of rows", at + i, j))
                    return;
    }
}

static void one_case(struct check *c, const struct matmul_case *s) {
    if (c->failed) return;
    c->seed = c->seed * 31 + 7;
    rand_seed(c->seed);
    snprintf(c->where, sizeof c->where,
             "m %zu n %zu k %zu, pads %zu %zu %zu, mode %s, weights %s, %s%s", s->m, s->n, s->k,
             s->pad_x, s->pad_w, s->pad_y, s->mode ? "bf16" : "f32", type_name[s->wtype],
             epilogue_name[s->epilogue], s->bias ? " + bias" : "");
    size_t ldx = s->k + s->pad_x, nx = s->m ? (s->m - 1) * ldx + s->k : 0;
    size_t elem = mg_dtype_size(c->t->x_type[s->mode]), bytes;
    float *x = guard_alloc(c, nx * sizeof(float));
    for (size_t i = 0; i < nx; i++) x[i] = (float)rand_normal();
    void *prepared = guard_alloc(c, nx * elem);
    c->t->prepare(s->mode, x, ldx, prepared, ldx, s->m, s->k);
    struct mg_matmul op = {.mode = s->mode,
                           .epilogue = s->epilogue,
                           .x = prepared,
                           .ldx = ldx,
                           .ldw = s->k + s->pad_w,
                           .wtype = s->wtype,
                           .ldy = s->n + s->pad_y,
                           .m = s->m,
                           .n = s->n,
                           .k = s->k};
    size_t ny = s->m ? (s->m - 1) * op.ldy + s->n : 0;
    op.w = random_weights(c, s);
    if (s->epilogue == MG_EPI_SWIGLU) op.w2 = random_weights(c, s);
    float *bias = s->bias ? guard_alloc(c, s->n * sizeof(float)) : NULL;
    for (size_t j = 0; bias && j < s->n; j++) bias[j] = (float)rand_normal();
    op.bias = bias;
    float *y0 = guard_alloc(c, ny * sizeof(float)), *y = guard_alloc(c, ny * sizeof(float));
    float *again = guard_alloc(c, ny * sizeof(float));
    for (size_t i = 0; i < ny; i++) y0[i] = (float)rand_normal();
    memcpy(y, y0, ny * sizeof(float));
    memcpy(again, y0, ny * sizeof(float));
    void *scratch = scratch_for(c, &op, &bytes);
    op.y = again;
    run(c, &op, true, scratch, bytes);
    op.y = y;
    run(c, &op, false, scratch, bytes);
    /* Every output of small products, a sample of rows and columns of large ones. */
    size_t step_i = s->m > 40 ? s->m / 20 : 1, step_j = s->n > 80 && s->k > 400 ? 7 : 1;
    for (size_t i = 0; i < s->m && !c->failed; i += i + step_i < s->m ? step_i : 1)
        for (size_t j = i % step_j; j < s->n && !c->failed; j += step_j)
            check_output(c, s, &op, x, y0, i, j);
    for (size_t i = 0; i < ny && !c->failed; i++) {
        check_true(c, same_bits(y[i], again[i]), "the order of tasks shows", i / op.ldy,
                   i % op.ldy);
        if (i % op.ldy >= s->n)
            check_true(c, same_bits(y[i], y0[i]), "wrote between the rows", i / op.ldy, i % op.ldy);
    }
    if (!c->failed) check_rows_alone(c, &op, y0, elem);
    guard_free_all();
}

void check_matmul(struct check *c) {
    c->seed = 20261;
    static const size_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 23, 25};
    static const size_t cols[] = {1, 15, 16, 17, 31, 33, 63, 64, 65, 129};
    static const size_t inner[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 67, 130};
    size_t n = 0;
    /* All types, modes and epilogues; shapes and strides walk along. */
    for (int mode = 0; mode < 2; mode++)
        for (int type = MG_F32; type <= MG_BF16; type++)
            for (int epilogue = 0; epilogue <= MG_EPI_SWIGLU; epilogue++)
                for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, n++) {
                    struct matmul_case s = {rows[i],
                                            cols[n % 10],
                                            inner[n % 13],
                                            n % 3,
                                            n % 4,
                                            n % 5,
                                            (enum mg_mode)mode,
                                            (enum mg_dtype)type,
                                            (enum mg_epilogue)epilogue,
                                            epilogue != MG_EPI_SWIGLU && n % 2};
                    one_case(c, &s);
                }
    for (int mode = 0; mode < 2; mode++) {
        enum mg_mode md = (enum mg_mode)mode;
        const struct matmul_case edge[] = {
            {0, 5, 7, 0, 0, 0, md, MG_BF16, MG_EPI_STORE, false}, /* nothing to do */
            {3, 0, 7, 0, 0, 0, md, MG_BF16, MG_EPI_STORE, false},
            {3, 5, 0, 0, 0, 0, md, MG_BF16, MG_EPI_STORE, true}, /* y = bias */
            {20, 5, 0, 1, 1, 1, md, MG_BF16, MG_EPI_ADD, true},
            {1, 70, 515, 0, 0, 0, md, MG_BF16, MG_EPI_ADD,
             false}, /* blocks of the inner dimension */
            {9, 70, 511, 0, 0, 0, md, MG_BF16, MG_EPI_STORE, true},
            {14, 66, 513, 1, 3, 0, md, MG_BF16, MG_EPI_ADD, false},
            {11, 40, 1025, 1, 1, 0, md, MG_F16, MG_EPI_SWIGLU, false},
            {13, 34, 1037, 0, 1, 0, md, MG_F32, MG_EPI_GELU_ERF, true},
            {33, 20, 2085, 1, 0, 0, md, MG_BF16, MG_EPI_STORE, false},
        };
        for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) one_case(c, &edge[i]);
        const struct matmul_case large[] = {
            {169, 130, 96, 16, 0, 0, md, MG_BF16, MG_EPI_STORE, true},
            {200, 64, 64, 0, 0, 2, md, MG_BF16, MG_EPI_SWIGLU, false},
            {676, 70, 40, 0, 1, 0, md, MG_BF16, MG_EPI_GELU_TANH, true},
            {676, 33, 33, 1, 0, 0, md, MG_F32, MG_EPI_ADD, false},
            {8, 65, 6144, 0, 0, 0, md, MG_BF16, MG_EPI_ADD, false},
            {17, 48, 6144, 16, 0, 0, md, MG_BF16, MG_EPI_ADD, false},
        };
        for (size_t i = 0; c->sweep && i < sizeof large / sizeof *large; i++)
            one_case(c, &large[i]);
    }
}

void check_prepare(struct check *c) {
    c->seed = 5;
    for (size_t k = 0; k < 70; k += k < 36 ? 1 : 11)
        for (int mode = 0; mode < 2 && !c->failed; mode++) {
            size_t m = 3, ldin = k + 2, ldout = k + 5;
            enum mg_dtype type = c->t->x_type[mode];
            snprintf(c->where, sizeof c->where, "m 3 k %zu mode %d", k, mode);
            rand_seed(c->seed + k);
            float *in = guard_alloc(c, (2 * ldin + k) * sizeof(float));
            char *out = guard_alloc(c, (2 * ldout + k) * mg_dtype_size(type));
            for (size_t i = 0; i < 2 * ldin + k; i++) {
                uint32_t bits =
                    (uint32_t)rand_u64(); /* every kind of value, NaN and subnormals too */
                memcpy(in + i, &bits, 4);
                if (i % 3 == 0) in[i] = (float)rand_normal();
            }
            c->t->prepare((enum mg_mode)mode, in, ldin, out, ldout, m, k);
            for (size_t i = 0; i < m; i++)
                for (size_t j = 0; j < k; j++) {
                    float x = in[i * ldin + j], want = mode ? bf16_round(x) : x;
                    float got = mg_load_f32(type, out, i * ldout + j);
                    check_true(c, same_bits(got, want), "wrong bits", i, j);
                }
            if (type == MG_F32) { /* in place */
                c->t->prepare((enum mg_mode)mode, in, ldin, in, ldin, m, k);
                for (size_t i = 0; i < m; i++)
                    check_true(c, !memcmp(in + i * ldin, out + i * ldout * 4, k * 4),
                               "in place differs", i, 0);
            }
            guard_free_all();
        }
}
