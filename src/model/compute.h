/* model/compute.h - running kernels over the thread pool.
 *
 * A mg_compute belongs to the one thread that runs the model. It holds the kernel table, the pool,
 * the compute mode and one scratch block per thread, grown when an operation needs more and kept,
 * so that decoding allocates nothing once it has run. Each call returns when its result is
 * complete.
 */
#ifndef MG_MODEL_COMPUTE_H
#define MG_MODEL_COMPUTE_H

#include "base/err.h"
#include "base/mem.h"
#include "cpu/pool.h"
#include "kernels/kernels.h"

/* Asked between layers: false stops the computation with MG_ERR_CANCELLED. done of total layers. */
typedef bool mg_tick_fn(void *user, size_t done, size_t total);

struct mg_compute {
    const struct mg_kernels *kernels; /* borrowed */
    struct mg_pool *pool;             /* borrowed; NULL computes on the caller alone */
    enum mg_mode mode;
    size_t n_thread;
    void **scratch; /* [n_thread] blocks of scratch_bytes, owned */
    size_t scratch_bytes;
    mg_tick_fn *tick; /* may be NULL */
    void *tick_user;
};

enum mg_status mg_compute_open(struct mg_compute *c, const struct mg_kernels *kernels,
                               struct mg_pool *pool, enum mg_mode mode, struct mg_err *err);
void mg_compute_close(struct mg_compute *c);

/* MG_ERR_CANCELLED when the tick says so. */
enum mg_status mg_compute_tick(const struct mg_compute *c, size_t done, size_t total,
                               struct mg_err *err);

/* A weight matrix as it lies in the checkpoint, and its bias. */
struct mg_linear {
    const void *w;      /* [n][k], a view into the mapping */
    enum mg_dtype type; /* F32, F16, BF16 */
    size_t n, k;
    float *bias; /* [n] f32, owned, or NULL */
};

/* The product of prepared rows x with one matrix; `epilogue` other than SWIGLU. */
struct mg_matmul mg_linear_op(const struct mg_compute *c, const struct mg_linear *l, const void *x,
                              size_t ldx, size_t m, float *y, size_t ldy,
                              enum mg_epilogue epilogue);

/* Several independent products as one job. */
enum mg_status mg_compute_matmul(struct mg_compute *c, const struct mg_matmul *op, size_t n_op,
                                 struct mg_err *err);
enum mg_status mg_compute_attention(struct mg_compute *c, const struct mg_attention *op,
                                    struct mg_err *err);

/* fn over rows [0, m) in blocks; fn works on [row0, row1). Small m runs on the caller. */
typedef void mg_rows_fn(const struct mg_compute *c, void *arg, size_t row0, size_t row1);
void mg_compute_rows(struct mg_compute *c, mg_rows_fn *fn, void *arg, size_t m);

/* f32 rows -> prepared rows for the compute mode, over the pool. */
void mg_compute_prepare(struct mg_compute *c, const float *in, size_t ldin, void *out, size_t ldout,
                        size_t m, size_t k);

/* Row stride in elements for rows of k values: k padded so that rows don't fall on the same cache
 * sets. */
static inline size_t mg_row_stride(size_t k) {
    return mg_round_up(k, 16) + 16;
}

#endif
