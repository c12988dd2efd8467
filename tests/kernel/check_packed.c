/* tests/kernel/check_packed.c - rounding of activations and products with packed weights.
 *
 * Matrices are packed here line by line as packed.h describes the layout, not by the converter.
 * STORE, ADD and TOP must have exactly the bits of the formula, evaluated here with 64-bit sums;
 * the other epilogues are compared with double within a bound. A product's rows must not depend on
 * how many stand beside them, nor on the order of tasks.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct packed_case {
    size_t m, n, k;
    enum mg_pack kind;
    enum mg_epilogue epilogue;
    bool bias;
    size_t pad_y;
    bool extreme; /* the largest products of one sign, which overflow narrow sums first */
};

static const char *const epilogue_word[] = {"store",    "add",    "gelu tanh",
                                            "gelu erf", "swiglu", "top"};

/* Whole numbers [tiles * 16][k] in the order of the matrix's tiles. */
struct matrix {
    struct mg_packed w;
    int *whole;
    size_t columns; /* panels * 32 */
};

static void fill_int8(int8_t *to, const struct matrix *m, size_t panel) {
    for (size_t b = 0; b < mg_packed_blocks(m->w.k); b++)
        for (size_t tile = 0; tile < 2; tile++)
            for (size_t k4 = 0; k4 < 16; k4++)
                for (size_t c = 0; c < 16; c++)
                    for (size_t i = 0; i < 4; i++) {
                        size_t j = b * 64 + k4 * 4 + i, col = panel * 32 + tile * 16 + c;
                        *to++ = (int8_t)(j < m->w.k ? m->whole[col * m->w.k + j] : 0);
                    }
}

/* Draws sub-scales and nibbles and notes the whole numbers that they stand for. */
static void fill_int4(uint8_t *to, struct matrix *m, size_t panel, bool extreme) {
    size_t k = m->w.k;
    for (size_t b = 0; b < mg_packed_blocks(k); b++, to += 1088) {
        for (size_t i = 0; i < 64; i++) {
            int sub = extreme ? (i % 2 ? 15 : -15) : (int)(rand_u64() % 31) - 15;
            to[i] = (uint8_t)(int8_t)sub;
        }
        for (size_t tile = 0; tile < 2; tile++)
            for (size_t line = 0; line < 8; line++)
                for (size_t c = 0; c < 16; c++)
                    for (size_t i = 0; i < 4; i++) {
                        int two[2];
                        for (size_t h = 0; h < 2; h++) {
                            size_t in = (2 * line + h) * 4 + i, j = b * 64 + in;
                            size_t col = panel * 32 + tile * 16 + c;
                            two[h] = extreme ? (c % 4 < 2 ? 0 : 15) : (int)(rand_u64() % 16);
                            if (j >= k || m->whole[col * k] == 1000) two[h] = 8;
                            int sub = (int8_t)to[tile * 32 + in / 32 * 16 + c];
                            if (j < k && m->whole[col * k] != 1000)
                                m->whole[col * k + j] = sub * (two[h] - 8);
                        }
                        to[64 + tile * 512 + line * 64 + c * 4 + i] =
                            (uint8_t)(two[0] | two[1] << 4);
                    }
    }
}

static struct matrix make_matrix(struct check *c, const struct packed_case *s) {
    struct matrix m = {
        .w = {.kind = s->kind, .interleaved = s->epilogue == MG_EPI_SWIGLU, .n = s->n, .k = s->k}};
    size_t panels = mg_packed_panels(&m.w), width = mg_packed_width(&m.w), k = s->k;
    m.columns = panels * 32;
    m.whole = guard_alloc(c, m.columns * k * sizeof(int) + 4);
    float *scale = guard_alloc(c, m.columns * sizeof(float));
    int32_t *sum = guard_alloc(c, m.columns * sizeof(int32_t));
    char *data = guard_alloc(c, mg_packed_bytes(&m.w));
    for (size_t col = 0; col < m.columns; col++) {
        bool exists = col / 32 * width + (m.w.interleaved ? col % 16 : col % 32) < s->n;
        for (size_t j = 0; j < k; j++)
            m.whole[col * k + j] = !exists      ? 0
                                   : s->extreme ? (col % 2 ? 127 : -127)
                                                : (int)(rand_u64() % 255) - 127;
        if (k && !exists && s->kind == MG_PACK_INT4) m.whole[col * k] = 1000; /* keep it zero */
        scale[col] = exists ? (float)(0.002 + 0.01 * fabs(rand_unit())) : 0;
    }
    for (size_t p = 0; p < panels; p++) {
        char *to = data + p * mg_packed_panel_bytes(s->kind, k);
        if (s->kind == MG_PACK_INT8)
            fill_int8((int8_t *)to, &m, p);
        else
            fill_int4((uint8_t *)to, &m, p, s->extreme);
    }
    for (size_t col = 0; col < m.columns; col++) {
        sum[col] = 0;
        for (size_t j = 0; j < k; j++) {
            if (m.whole[col * k + j] == 1000) m.whole[col * k + j] = 0;
            sum[col] += m.whole[col * k + j];
        }
    }
    m.w.data = data;
    m.w.scale = scale;
    m.w.sum = sum;
    return m;
}

static float exact_result(const struct mg_packed_matmul *op, const struct matrix *m, size_t i,
                          size_t column) {
    const uint8_t *x = op->x + i * op->ldx;
    int64_t sum = 0;
    for (size_t j = 0; j < m->w.k; j++)
        sum += ((int64_t)x[j] - op->xs[i].zero) * m->whole[column * m->w.k + j];
    volatile float scale = m->w.scale[column] * op->xs[i].scale;
    volatile float p = (float)sum;
    p = p * scale;
    if (!op->xs[i].n_loud) return p;
    size_t blocks = (m->w.k + 63) / 64;
    const int8_t *loud = (const int8_t *)x + blocks * 64;
    sum = 0;
    for (size_t b = 0; b < op->xs[i].n_loud; b++)
        for (size_t j = 0; j < 64; j++) {
            size_t at = op->xs[i].loud[b] * 64u + j;
            if (at < m->w.k) sum += (int64_t)loud[b * 64 + j] * m->whole[column * m->w.k + at];
        }
    volatile float loud_scale = m->w.scale[column] * op->xs[i].loud_scale, p2 = (float)sum;
    p2 = p2 * loud_scale;
    p = p + p2;
    return p;
}

static void check_result(struct check *c, const struct packed_case *s,
                         const struct mg_packed_matmul *op, const struct matrix *m, const float *y0,
                         size_t i, size_t j) {
    size_t column = m->w.interleaved ? j / 16 * 32 + j % 16 : j;
    volatile float p = exact_result(op, m, i, column);
    if (op->bias) p = p + op->bias[j];
    float got = op->y[i * op->ldy + j];
    double v = p;
    switch (s->epilogue) {
    case MG_EPI_STORE: check_true(c, same_bits(got, p), "wrong bits", i, j); break;
    case MG_EPI_ADD:
        p = y0[i * op->ldy + j] + p;
        check_true(c, same_bits(got, p), "wrong bits", i, j);
        break;
    case MG_EPI_GELU_TANH:
        v = 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
        check_near(c, i, j, got, v, 1e-6 * fmax(1, fabs(v)));
        break;
    case MG_EPI_GELU_ERF:
        v = 0.5 * v * (1 + erf(v / sqrt(2)));
        check_near(c, i, j, got, v, 1e-6 * fmax(1, fabs(v)));
        break;
    default: {
        double up = exact_result(op, m, i, column + 16);
        v = v / (1 + exp(-v));
        check_near(c, i, j, got, v * up, 1e-6 * fmax(1, fabs(v)) * fmax(1, fabs(up)));
    }
    }
}

static void check_top(struct check *c, const struct mg_packed_matmul *op, const struct matrix *m) {
    size_t tasks = c->t->packed_tasks(op);
    for (size_t i = 0; i < op->m; i++) {
        float best = -INFINITY, got = -INFINITY;
        size_t want = 0, at = 0;
        for (size_t j = 0; j < m->w.n; j++) {
            volatile float p = exact_result(op, m, i, j);
            if (op->bias) p = p + op->bias[j];
            if (p > best) best = p, want = j;
        }
        for (size_t t = 0; t < tasks; t++)
            if (op->top[t * op->m + i].value > got)
                got = op->top[t * op->m + i].value, at = op->top[t * op->m + i].index;
        check_true(c, same_bits(got, best) && at == want, "wrong largest", i, at);
    }
}

static void run_packed(struct check *c, const struct mg_packed_matmul *op, bool backwards) {
    size_t n = c->t->packed_tasks(op), bytes = (c->t->packed_scratch(op) + 63) & ~(size_t)63;
    void *scratch = guard_alloc(c, bytes);
    for (size_t i = 0; i < n; i++) {
        memset(scratch, 0xff, bytes);
        c->t->packed_matmul(op, backwards ? n - 1 - i : i, scratch);
    }
}

/* Each row alone gives the same bits. */
static void check_alone(struct check *c, const struct mg_packed_matmul *all, const float *y0) {
    size_t at = all->m / 2;
    struct mg_packed_matmul one = *all;
    one.m = 1;
    one.x = all->x + at * all->ldx;
    one.xs = all->xs + at;
    one.y = guard_alloc(c, all->w->n * sizeof(float));
    memcpy(one.y, y0 + at * all->ldy, all->w->n * sizeof(float));
    run_packed(c, &one, false);
    for (size_t j = 0; j < all->w->n; j++)
        check_true(c, same_bits(one.y[j], all->y[at * all->ldy + j]),
                   "a row's bits depend on the rows beside it", at, j);
}

static void one_packed(struct check *c, const struct packed_case *s) {
    if (c->failed) return;
    c->seed = c->seed * 31 + 7;
    rand_seed(c->seed);
    snprintf(c->where, sizeof c->where, "m %zu n %zu k %zu, %s, %s%s, pad %zu%s", s->m, s->n, s->k,
             s->kind == MG_PACK_INT8 ? "int8" : "int4", epilogue_word[s->epilogue],
             s->bias ? " + bias" : "", s->pad_y, s->extreme ? ", extreme" : "");
    struct matrix m = make_matrix(c, s);
    size_t ldx = mg_packed_stride(s->k), ldy = s->n + s->pad_y;
    size_t ny = s->m ? (s->m - 1) * ldy + s->n : 0;
    float *in = guard_alloc(c, s->m * s->k * sizeof(float));
    for (size_t i = 0; i < s->m * s->k; i++) in[i] = (float)(rand_normal() + 0.3);
    for (size_t i = 0; s->k && i < s->m; i++) /* some rows have a few huge values */
        for (size_t n = i % 6; n > 0; n--)
            in[i * s->k + rand_u64() % s->k] = (float)(rand_unit() * 200 * (double)n);
    struct mg_row_scale *xs = guard_alloc(c, s->m * sizeof *xs);
    uint8_t *x = guard_alloc(c, s->m * ldx);
    c->t->quantise(in, s->k, x, ldx, xs, s->m, s->k);
    for (size_t i = 0; s->extreme && i < s->m; i++) memset(x + i * ldx, i % 2 ? 0 : 255, s->k);
    float *bias = s->bias ? guard_alloc(c, s->n * sizeof(float)) : NULL;
    for (size_t j = 0; bias && j < s->n; j++) bias[j] = (float)rand_normal();
    float *y0 = guard_alloc(c, ny * sizeof(float)), *y = guard_alloc(c, ny * sizeof(float));
    float *again = guard_alloc(c, ny * sizeof(float));
    for (size_t i = 0; i < ny; i++) y0[i] = (float)rand_normal();
    memcpy(y, y0, ny * sizeof(float));
    memcpy(again, y0, ny * sizeof(float));
    struct mg_packed_matmul op = {.epilogue = s->epilogue,
                                  .w = &m.w,
                                  .x = x,
                                  .ldx = ldx,
                                  .xs = xs,
                                  .bias = bias,
                                  .y = again,
                                  .ldy = ldy,
                                  .m = s->m};
    if (s->epilogue == MG_EPI_TOP)
        op.top = guard_alloc(c, c->t->packed_tasks(&op) * s->m * sizeof *op.top);
    run_packed(c, &op, true);
    op.y = y;
    run_packed(c, &op, false);
    if (s->epilogue == MG_EPI_TOP) {
        check_top(c, &op, &m);
    } else {
        size_t step_i = s->m > 40 ? s->m / 20 : 1, step_j = s->n > 80 && s->k > 400 ? 7 : 1;
        for (size_t i = 0; i < s->m && !c->failed; i += step_i)
            for (size_t j = i % step_j; j < s->n && !c->failed; j += step_j)
                check_result(c, s, &op, &m, y0, i, j);
        for (size_t i = 0; i < ny && !c->failed; i++) {
            check_true(c, same_bits(y[i], again[i]), "the order of tasks shows", i / ldy, i % ldy);
            if (i % ldy >= s->n)
                check_true(c, same_bits(y[i], y0[i]), "wrote between the rows", i / ldy, i % ldy);
        }
        if (s->m > 1 && !c->failed) check_alone(c, &op, y0);
    }
    guard_free_all();
}

void check_packed(struct check *c) {
    c->seed = 777;
    static const size_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 16, 17, 23, 27};
    static const size_t cols[] = {1, 15, 16, 17, 31, 32, 33, 64, 65, 129};
    static const size_t inner[] = {1, 3, 4, 31, 33, 64, 65, 200, 257, 512, 515, 1030, 2112};
    size_t n = 0;
    for (int kind = 0; kind < MG_N_PACK; kind++)
        for (int epilogue = 0; epilogue <= MG_EPI_TOP; epilogue++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, n++) {
                struct packed_case s = {rows[i],
                                        cols[n % 10],
                                        inner[n % 13],
                                        (enum mg_pack)kind,
                                        (enum mg_epilogue)epilogue,
                                        epilogue != MG_EPI_SWIGLU && n % 2,
                                        n % 5};
                one_packed(c, &s);
            }
    for (int kind = 0; kind < MG_N_PACK; kind++) {
        enum mg_pack p = (enum mg_pack)kind;
        const struct packed_case edge[] = {
            {0, 5, 7, p, MG_EPI_STORE, false, 0},
            {3, 0, 7, p, MG_EPI_STORE, false, 0},
            {3, 5, 0, p, MG_EPI_STORE, true, 0},
            {1, 700, 2048, p, MG_EPI_STORE, false, 0},
            {4, 1100, 513, p, MG_EPI_TOP, false, 0},
            {13, 600, 1024, p, MG_EPI_ADD, true, 1},
            {40, 1100, 96, p, MG_EPI_TOP, true, 0},
            {33, 1600, 70, p, MG_EPI_STORE, false, 0}, /* tasks of several panels */
            {2, 40, 200, p, MG_EPI_STORE, false, 0, true},
            {5, 33, 192, p, MG_EPI_STORE, false, 0, true},
            {14, 64, 200, p, MG_EPI_STORE, true, 0, true},
        };
        const struct packed_case large[] = {
            {169, 130, 96, p, MG_EPI_STORE, true, 0},    {200, 70, 128, p, MG_EPI_SWIGLU, false, 2},
            {676, 70, 64, p, MG_EPI_GELU_TANH, true, 0}, {676, 33, 33, p, MG_EPI_ADD, false, 0},
            {8, 65, 6144, p, MG_EPI_ADD, false, 0},      {17, 48, 6144, p, MG_EPI_ADD, false, 0},
            {1, 2050, 6144, p, MG_EPI_STORE, false, 0},
        };
        for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) one_packed(c, &edge[i]);
        for (size_t i = 0; c->sweep && i < sizeof large / sizeof *large; i++)
            one_packed(c, &large[i]);
    }
}

static int by_size_down(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* How many blocks should be loud, by sorting: the fewest that leave a quarter, else a half. */
static size_t wanted_loud(const float *x, size_t k, float *level) {
    size_t blocks = (k + 63) / 64, most = blocks / 8 < 4 ? blocks / 8 : 4;
    float top[80] = {0};
    for (size_t j = 0; j < k; j++) top[j / 64] = fmaxf(top[j / 64], fabsf(x[j]));
    qsort(top, blocks, sizeof *top, by_size_down);
    for (float part = 0.25f; part < 1; part *= 2)
        for (size_t n = 1; n <= most; n++)
            if (top[n] <= top[0] * part && top[0] > 0) {
                *level = top[n];
                return n;
            }
    return 0;
}

static bool in_loud(const struct mg_row_scale *xs, size_t block) {
    bool hit = false;
    for (size_t i = 0; i < xs->n_loud; i++) hit |= xs->loud[i] == block;
    return hit;
}

static void check_loud_values(struct check *c, const float *x, size_t k, float level,
                              const int8_t *loud, const struct mg_row_scale *xs, size_t row) {
    float top = 0;
    for (size_t j = 0; j < k; j++) top = fmaxf(top, fabsf(x[j]));
    volatile float scale = top / 127, inverse = 127 / top;
    check_true(c, same_bits(xs->loud_scale, scale), "wrong loud scale", row, 0);
    for (size_t i = 0; i < xs->n_loud; i++) {
        check_true(c, !i || xs->loud[i] > xs->loud[i - 1], "loud blocks not in order", row, i);
        int sum[2] = {0};
        for (size_t j = 0; j < 64; j++) {
            size_t at = xs->loud[i] * 64u + j;
            long v = at < k && fabsf(x[at]) > level ? lrintf(x[at] * inverse) : 0;
            check_true(c,
                       loud[i * 64 + j] == (v > 127    ? 127
                                            : v < -127 ? -127
                                                       : v),
                       "wrong loud value", row, at);
            sum[j / 32] += loud[i * 64 + j];
        }
        check_true(c, sum[0] == xs->loud_sum[2 * i] && sum[1] == xs->loud_sum[2 * i + 1],
                   "wrong loud sum", row, i);
    }
}

/* One row: loud blocks, scale, zero point and every value against the formula. */
static void check_row(struct check *c, const float *x, size_t k, const uint8_t *q,
                      struct mg_row_scale xs, size_t row) {
    float low = 0, high = 0, level = INFINITY;
    bool finite = true;
    for (size_t j = 0; j < k; j++) finite &= isfinite(x[j]) != 0;
    size_t n_loud = finite ? wanted_loud(x, k, &level) : 0, blocks = (k + 63) / 64;
    for (size_t j = 0; j < k; j++)
        if (finite && fabsf(x[j]) <= level) {
            low = fminf(low, x[j]);
            high = fmaxf(high, x[j]);
        }
    if (!finite || !isfinite(high - low)) {
        check_true(c, isnan(xs.scale) && !xs.n_loud, "a row that is not finite has a scale", row,
                   0);
        return;
    }
    check_true(c, xs.n_loud == n_loud, "wrong number of loud blocks", row, n_loud);
    for (size_t b = 0; b < blocks; b++) {
        float top = 0;
        for (size_t j = b * 64; j < k && j < b * 64 + 64; j++) top = fmaxf(top, fabsf(x[j]));
        check_true(c, in_loud(&xs, b) == (top > level), "wrong block loud", row, b);
    }
    volatile float range = high - low;
    bool zeros = range < MG_LEAST_RANGE;
    volatile float scale = range / 255, inverse = zeros ? 0 : 255 / range;
    check_true(c, same_bits(xs.scale, zeros ? 0 : scale), "wrong scale", row, 0);
    check_true(c, xs.zero == (zeros ? 0 : (int32_t)lrintf(-low * inverse)), "wrong zero", row, 0);
    for (size_t j = 0; j < blocks * 64; j++) {
        long v = xs.zero + (j < k && fabsf(x[j]) <= level ? lrintf(x[j] * inverse) : 0);
        v = v < 0 ? 0 : v > 255 ? 255 : v;
        check_true(c, q[j] == v, "wrong value", row, j);
    }
    if (n_loud) check_loud_values(c, x, k, level, (const int8_t *)q + blocks * 64, &xs, row);
    for (size_t j = 0; j < k; j++) /* no farther than half a step, and its rounding */
        if (fabsf(x[j]) <= level)
            check_near(c, row, j, (double)xs.scale * (q[j] - xs.zero), x[j],
                       0.51 * fabs((double)xs.scale) + 1e-6 * (double)range + MG_LEAST_RANGE);
}

void check_quantise(struct check *c) {
    c->seed = 99;
    static const float odd[] = {0.0f, -0.0f, 1e-38f, -1e-31f, 3e38f, -3e38f, INFINITY, NAN};
    for (size_t k = 0; k < 4500; k += k < 70 ? 1 : k < 700 ? 43 : 809)
        for (int kind = 0; kind < 18 && !c->failed; kind++) {
            size_t m = 3, ldin = k + 3, ldq = mg_packed_stride(k);
            snprintf(c->where, sizeof c->where, "m 3 k %zu, kind %d", k, kind);
            rand_seed(c->seed + k * 18 + (size_t)kind);
            float *in = guard_alloc(c, ((m - 1) * ldin + k) * sizeof(float));
            uint8_t *q = guard_alloc(c, m * ldq);
            struct mg_row_scale *xs = guard_alloc(c, m * sizeof *xs);
            for (size_t i = 0; i < (m - 1) * ldin + k; i++) {
                in[i] = (float)rand_normal();
                if (kind == 1) in[i] = fabsf(in[i]) + 4; /* one-sided */
                if (kind == 2) in[i] = -fabsf(in[i]);
                if (kind == 3) in[i] = 0;
            }
            if (kind > 3 && kind < 12 && k) in[ldin + rand_u64() % k] = odd[kind - 4];
            for (int n = kind; k && n >= 12; n--) /* 1 to 6 loud values a row */
                for (size_t i = 0; i < m; i++)
                    in[i * ldin + rand_u64() % k] = (float)(rand_unit() * (n % 2 ? 9 : 90));
            c->t->quantise(in, ldin, q, ldq, xs, m, k);
            for (size_t i = 0; i < m; i++) check_row(c, in + i * ldin, k, q + i * ldq, xs[i], i);
            guard_free_all();
        }
}
