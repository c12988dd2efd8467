/* tests/kernel/check.h - what the kernel tests share: guarded buffers, numbers, comparing, blame.
 *
 * A check runs a table function on buffers that end (or begin) at an unreadable page and compares
 * with values computed here in double, not with `ref`, so that `ref` is tested like any other tier.
 */
#ifndef TESTS_KERNEL_CHECK_H
#define TESTS_KERNEL_CHECK_H

#include "kernels/kernels.h"

#include <setjmp.h>

#define EPS 0x1p-24 /* half a unit in the last place of 1.0f: the relative error of one rounding   \
                     */

struct check {
    const struct mg_kernels *t;
    const char *tier; /* for messages */
    const char *op;   /* the function under test */
    char where[160];  /* the case, filled before each run */
    uint64_t seed;    /* of the case */
    double worst;     /* largest error / bound of this op */
    bool failed;      /* this op failed */
    bool at_end;      /* buffers touch the guard page behind (else the one in front) */
    bool sweep;       /* larger shapes too */
};

/* Buffers: freed all together by guard_free_all. Filled with a NaN pattern. */
void *guard_alloc(const struct check *c, size_t bytes);
void guard_free_all(void);

/* Numbers: a sequence from c->seed. */
void rand_seed(uint64_t seed);
uint64_t rand_u64(void);
double rand_unit(void);   /* -1 .. 1 */
double rand_normal(void); /* about normal, mean 0, variance 1 */

/* Fails c with c->where and the place unless |got - want| <= bound (NaN wants NaN, infinity the
 * same). */
bool check_near(struct check *c, size_t row, size_t col, double got, double want, double bound);
bool check_true(struct check *c, bool ok, const char *what, size_t row, size_t col);
bool same_bits(float a, float b);

/* Runs f(c) for both guard sides under signal handlers, prints one line, counts. */
void run_op(struct check *c, const char *op, void (*f)(struct check *c));

void check_matmul(struct check *c);
void check_prepare(struct check *c);
void check_packed(struct check *c);
void check_quantise(struct check *c);
void check_attention(struct check *c);
void check_vector(struct check *c);

#endif
