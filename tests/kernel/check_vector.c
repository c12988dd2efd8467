/* tests/kernel/check_vector.c - norms, rotary embedding and everything on plain vectors.
 *
 * Bounds are counted roundings (EPS each) of the formula, noted at each check. Element-wise
 * functions must also give an element the same bits wherever it stands.
 */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t lengths[] = {0,  1,  2,  7,  8,  9,  15,  16,  17,   31,
                                 32, 33, 47, 63, 64, 65, 127, 130, 1000, 2048};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Ordinary values with special ones between them. */
static float odd_value(size_t i) {
    static const float special[] = {0.0f,   -0.0f,   1e-40f, -1e-40f, 88.0f,    -88.0f,
                                    100.0f, -100.0f, 1e4f,   -1e4f,   INFINITY, -INFINITY,
                                    NAN,    1e-8f,   -87.4f, 5.9f,    -5.9f,    -13.0f};
    size_t n = sizeof special / sizeof *special;
    return i % 5 == 4 ? special[i / 5 % n] : (float)(rand_normal() * (i % 3 ? 3 : 0.1));
}

static void begin(struct check *c, size_t n) {
    c->seed = 99 + n;
    rand_seed(c->seed);
    snprintf(c->where, sizeof c->where, "n %zu", n);
}

static void check_activation(struct check *c) {
    bool erf_form = !strcmp(c->op, "gelu_erf"), silu = !strcmp(c->op, "silu_mul");
    for (size_t l = 0; l < N_LENGTHS && !c->failed; l++) {
        size_t n = lengths[l];
        begin(c, n);
        float *x = guard_alloc(c, n * 4), *u = guard_alloc(c, n * 4), *y = guard_alloc(c, n * 4);
        float *shifted = guard_alloc(c, n * 4);
        for (size_t i = 0; i < n; i++) x[i] = odd_value(i), u[i] = (float)rand_normal();
        memcpy(y, x, n * 4);
        memcpy(shifted, x, n * 4);
        size_t skip = n ? 1 : 0; /* the same elements one place further on */
        if (silu) {
            c->t->silu_mul(x, u, y, n);
            c->t->silu_mul(x + skip, u + skip, shifted + skip, n - skip);
        } else {
            (erf_form ? c->t->gelu_erf : c->t->gelu_tanh)(y, n);
            (erf_form ? c->t->gelu_erf : c->t->gelu_tanh)(shifted + skip, n - skip);
        }
        for (size_t i = 0; i < n; i++) {
            double v = x[i], want;
            if (silu)
                want = v / (1 + exp(-v)) * u[i];
            else if (erf_form)
                want = 0.5 * v * (1 + erf(v / sqrt(2)));
            else
                want = 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
            check_near(c, 0, i, y[i], want, 1e-6 * fmax(1, fabs(v)));
            bool same = same_bits(y[i], shifted[i]) || (isnan(y[i]) && isnan(shifted[i]));
            check_true(c, i < skip || same, "the place of an element shows", 0, i);
        }
        guard_free_all();
    }
}

static void check_add(struct check *c) {
    for (size_t l = 0; l < N_LENGTHS; l++) {
        size_t n = lengths[l];
        begin(c, n);
        float *x = guard_alloc(c, n * 4), *y = guard_alloc(c, n * 4), *y0 = guard_alloc(c, n * 4);
        for (size_t i = 0; i < n; i++)
            x[i] = (float)rand_normal(), y[i] = y0[i] = (float)rand_normal();
        c->t->add(y, x, n);
        for (size_t i = 0; i < n; i++)
            check_true(c, same_bits(y[i], y0[i] + x[i]), "wrong bits", 0, i);
        guard_free_all();
    }
}

/* p (EPS |x - top| + 4e-7 + n EPS): the difference, exp and the sum; weights under 2^-126 may
 * become 0. */
static void check_softmax(struct check *c) {
    for (size_t l = 1; l < N_LENGTHS && !c->failed; l++)
        for (int wide = 0; wide < 3; wide++) {
            size_t n = lengths[l];
            begin(c, n);
            float *x = guard_alloc(c, n * 4), *y = guard_alloc(c, n * 4);
            double top = -INFINITY, sum = 0;
            for (size_t i = 0; i < n; i++) {
                y[i] = x[i] = (float)(rand_normal() * (wide == 2 ? 60 : wide ? 8 : 1) - 3);
                if (wide && i && i % 11 == 0) y[i] = x[i] = -INFINITY; /* a hidden key */
                top = fmax(top, x[i]);
            }
            for (size_t i = 0; i < n; i++) sum += exp(x[i] - top);
            c->t->softmax(y, n);
            for (size_t i = 0; i < n; i++) {
                double want = exp(x[i] - top) / sum, far = isinf(x[i]) ? 0 : fabs(x[i] - top);
                check_near(c, 0, i, y[i], want, want * (far * EPS + 4e-7 + n * EPS) + 1.3e-38);
                if (isinf(x[i])) check_true(c, y[i] == 0, "a hidden key has weight", 0, i);
            }
            guard_free_all();
        }
}

static void check_convert(struct check *c) {
    bool narrow = !strcmp(c->op, "to_bf16");
    for (size_t l = 0; l < N_LENGTHS && !c->failed; l++)
        for (int type = narrow ? MG_BF16 : MG_F32; type <= MG_BF16; type++) {
            size_t n = lengths[l];
            begin(c, n);
            snprintf(c->where, sizeof c->where, "n %zu type %d", n, type);
            float *x = guard_alloc(c, n * 4);
            void *h = guard_alloc(c, n * mg_dtype_size((enum mg_dtype)type));
            for (size_t i = 0; i < n; i++) { /* any bits at all, and ties */
                uint32_t bits = (uint32_t)rand_u64();
                if (i % 4 == 1) bits = (bits & 0xffff0000) | 0x8000;
                memcpy(x + i, &bits, 4);
            }
            if (narrow) {
                c->t->to_bf16(x, h, n);
                for (size_t i = 0; i < n; i++)
                    check_true(c, ((uint16_t *)h)[i] == mg_f32_to_bf16(x[i]), "wrong bits", 0, i);
            } else {
                for (size_t i = 0; i < n * mg_dtype_size((enum mg_dtype)type) / 2; i++)
                    ((uint16_t *)h)[i] = (uint16_t)rand_u64();
                c->t->widen((enum mg_dtype)type, h, x, n);
                for (size_t i = 0; i < n; i++) {
                    float want = mg_load_f32((enum mg_dtype)type, h, i);
                    /* A signalling f16 NaN becomes quiet in hardware. */
                    bool same =
                        same_bits(x[i], want) || (type == MG_F16 && isnan(x[i]) && isnan(want));
                    check_true(c, same, "wrong bits", 0, i);
                }
            }
            guard_free_all();
        }
    /* every f16 and bf16 there is */
    uint16_t *all = guard_alloc(c, 65536 * 2), *back = guard_alloc(c, 65536 * 2);
    float *wide = guard_alloc(c, 65536 * 4);
    for (size_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    strcpy(c->where, "all 65,536 halves");
    c->t->widen(narrow ? MG_BF16 : MG_F16, all, wide, 65536);
    c->t->to_bf16(wide, back, 65536);
    for (size_t i = 0; i < 65536; i++) {
        float want = mg_load_f32(narrow ? MG_BF16 : MG_F16, all, i);
        check_true(c, isnan(want) ? isnan(wide[i]) : same_bits(wide[i], want), "wrong bits", 0, i);
        if (narrow && !isnan(want)) check_true(c, back[i] == i, "there and back differs", 0, i);
    }
}

static void check_search(struct check *c) {
    bool finite = !strcmp(c->op, "all_finite");
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t l = 0; l < N_LENGTHS && !c->failed; l++) {
        size_t n = lengths[l];
        begin(c, n);
        float *x = guard_alloc(c, n * 4);
        for (size_t i = 0; i < n; i++) x[i] = (float)(rand_normal() * 1e30);
        if (finite) {
            check_true(c, c->t->all_finite(x, n), "finite values refused", 0, 0);
            for (size_t i = 0; i < n; i++)
                for (size_t b = 0; b < 3; b++) {
                    float old = x[i];
                    x[i] = bad[b];
                    check_true(c, !c->t->all_finite(x, n), "missed", b, i);
                    x[i] = old;
                }
        } else {
            for (size_t i = 0; i < n;
                 i++) { /* the largest at i, again at the end, NaN before and after it */
                float old = x[i], last = x[n - 1], first = x[0];
                x[0] = x[n - 1] = NAN;
                x[i] = 3e38f;
                if (i % 2) x[n - 1] = 3e38f;
                check_true(c, c->t->argmax(x, n) == i, "wrong place", 0, i);
                x[0] = first, x[n - 1] = last, x[i] = old;
            }
            for (size_t i = 0; i < n; i++) x[i] = NAN;
            if (n) check_true(c, c->t->argmax(x, n) == 0, "all NaN", 0, 0);
            if (n) x[n - 1] = -INFINITY;
            if (n) check_true(c, c->t->argmax(x, n) == n - 1, "-infinity after NaN", 0, n - 1);
        }
        guard_free_all();
    }
}

/* Sums: at most k/32 + 8 roundings in a chain (vectors of 8 at least, four at a time), ref none;
 * relative to the sum of squares, halved by the root. layer_norm: x - mean errs by EPS (|x| +
 * |mean|) and by the mean's error. */
static void check_norm(struct check *c) {
    bool layer = !strcmp(c->op, "layer_norm");
    static const double offset[] = {0, 2, 300};
    for (size_t l = 1; l < N_LENGTHS && !c->failed; l++)
        for (size_t o = 0; o < 3; o++) {
            size_t k = lengths[l], m = 3, ldi = k + l % 3, ldo = k + l % 4;
            begin(c, k);
            snprintf(c->where, sizeof c->where, "m %zu k %zu offset %g", m, k, offset[o]);
            float *x = guard_alloc(c, ((m - 1) * ldi + k) * 4),
                  *y = guard_alloc(c, ((m - 1) * ldo + k) * 4);
            float *w = guard_alloc(c, k * 4), *b = guard_alloc(c, k * 4);
            for (size_t i = 0; i < (m - 1) * ldi + k; i++)
                x[i] = (float)(rand_normal() + offset[o]);
            for (size_t j = 0; j < k; j++) w[j] = (float)rand_normal(), b[j] = (float)rand_normal();
            float eps = 1e-6f;
            if (layer)
                c->t->layer_norm(x, ldi, w, b, eps, y, ldo, m, k);
            else
                c->t->rms_norm(x, ldi, w, eps, y, ldo, m, k);
            for (size_t i = 0; i < m; i++) {
                double mean = 0, var = 0, top = 0;
                for (size_t j = 0; j < k; j++)
                    mean += x[i * ldi + j], top = fmax(top, fabs(x[i * ldi + j]));
                mean = layer ? mean / (double)k : 0;
                for (size_t j = 0; j < k; j++) var += pow(x[i * ldi + j] - mean, 2);
                double r = 1 / sqrt(var / (double)k + eps), chain = (double)k / 32 + 16;
                for (size_t j = 0; j < k; j++) {
                    double z = (x[i * ldi + j] - mean) * r * w[j], want = z + (layer ? b[j] : 0);
                    double bound = chain * EPS * fabs(z) + 2 * EPS * fabs(want) + 1e-37;
                    if (layer)
                        bound += 4 * EPS * top * r * fabs(w[j]) * (1 + EPS * top * top * r * r * 4);
                    if (layer) bound += fabs(z) * 4 * EPS * top * r;
                    check_near(c, i, j, y[i * ldo + j], want, bound);
                }
            }
            /* in place: the same */
            if (layer)
                c->t->layer_norm(x, ldi, w, b, eps, x, ldi, m, k);
            else
                c->t->rms_norm(x, ldi, w, eps, x, ldi, m, k);
            for (size_t i = 0; i < m; i++)
                check_true(c, !memcmp(x + i * ldi, y + i * ldo, k * 4), "in place differs", i, 0);
            guard_free_all();
        }
}

static void check_rope(struct check *c) {
    static const size_t dims[] = {2, 4, 8, 16, 18, 30, 32, 34, 64, 66, 128};
    for (size_t l = 0; l < sizeof dims / sizeof *dims && !c->failed; l++) {
        size_t d = dims[l], half = d / 2, m = 4, heads = 3, ld = heads * d + l % 3;
        begin(c, d);
        size_t n = (m - 1) * ld + heads * d;
        float *x = guard_alloc(c, n * 4), *x0 = guard_alloc(c, n * 4);
        float *cs = guard_alloc(c, m * half * 4), *sn = guard_alloc(c, m * half * 4);
        for (size_t i = 0; i < n; i++) x[i] = x0[i] = (float)rand_normal();
        for (size_t i = 0; i < m * half; i++) {
            double angle = rand_unit() * 100;
            cs[i] = (float)cos(angle), sn[i] = (float)sin(angle);
        }
        c->t->rope(x, ld, m, heads, d, cs, sn);
        for (size_t i = 0; i < m; i++)
            for (size_t h = 0; h < heads; h++)
                for (size_t j = 0; j < half; j++) {
                    size_t at = i * ld + h * d + j;
                    double a = x0[at], b = x0[at + half], co = cs[i * half + j],
                           si = sn[i * half + j];
                    check_near(c, i, h * d + j, x[at], a * co - b * si,
                               2 * EPS * (fabs(a * co) + fabs(b * si)));
                    check_near(c, i, h * d + j + half, x[at + half], b * co + a * si,
                               2 * EPS * (fabs(b * co) + fabs(a * si)));
                }
        for (size_t i = 0; i < n; i++)
            if (i % ld >= heads * d)
                check_true(c, same_bits(x[i], x0[i]), "wrote between the rows", i / ld, i % ld);
        guard_free_all();
    }
}

void check_vector(struct check *c) {
    static const struct {
        const char *op;
        void (*f)(struct check *c);
    } all[] = {
        {"rms_norm", check_norm},
        {"layer_norm", check_norm},
        {"rope", check_rope},
        {"add", check_add},
        {"gelu_tanh", check_activation},
        {"gelu_erf", check_activation},
        {"silu_mul", check_activation},
        {"softmax", check_softmax},
        {"widen", check_convert},
        {"to_bf16", check_convert},
        {"all_finite", check_search},
        {"argmax", check_search},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].op, c->op)) all[i].f(c);
}
