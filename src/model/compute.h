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
    mg_tick_fn *tick; /* may be NULL; set by who runs an answer, for its time */
    void *tick_user;
};

enum mg_status mg_compute_open(struct mg_compute *c, const struct mg_kernels *kernels,
                               struct mg_pool *pool, enum mg_mode mode, struct mg_err *err);
void mg_compute_close(struct mg_compute *c);

/* MG_ERR_CANCELLED when the tick says so. */
enum mg_status mg_compute_tick(const struct mg_compute *c, size_t done, size_t total,
                               struct mg_err *err);

/* A weight matrix and its bias: row-major as in a checkpoint, or packed (kernels/packed.h). */
struct mg_linear {
    const void *w;      /* [n][k], a view into the mapping; NULL when packed */
    enum mg_dtype type; /* F32, F16, BF16 */
    size_t n, k;
    float *bias;             /* [n] f32 in the model's arena, or NULL */
    struct mg_packed packed; /* data NULL when row-major */
};
static inline bool mg_linear_is_packed(const struct mg_linear *l) {
    return l->packed.data != NULL;
}

/* Rows made ready for a matrix: what they are made of depends on it. */
struct mg_input {
    void *rows;              /* [m][ld]: u8 for packed weights, else x_type of the compute mode */
    size_t ld;               /* elements; set by mg_prepare_begin */
    struct mg_row_scale *xs; /* [m], packed weights only; both owned by who makes the input */
};
/* Bytes of `rows` that hold m rows of k values for any matrix. */
size_t mg_input_bytes(size_t m, size_t k);

/* f32 rows -> rows ready for l, over the pool. */
void mg_compute_prepare(struct mg_compute *c, const struct mg_linear *l, const float *in,
                        size_t ldin, struct mg_input *x, size_t m);
/* The same in two parts for a caller that is within a job of its own: sets x->ld, then any rows.
 * `in` is row row0. */
void mg_prepare_begin(const struct mg_linear *l, struct mg_input *x);
void mg_prepare_rows(const struct mg_compute *c, const struct mg_linear *l, const float *in,
                     size_t ldin, const struct mg_input *x, size_t row0, size_t row1);

/* y = epilogue(x * l) for rows first .. first+m-1 of x; y is the first row's. */
struct mg_product {
    const struct mg_linear *l;
    const struct mg_linear *up; /* SWIGLU with row-major weights: the second matrix */
    const struct mg_input *x;
    size_t first, m;
    float *y;   /* [m][ldy] f32, the first row's; unused for TOP */
    size_t ldy; /* elements */
    enum mg_epilogue epilogue;
    struct mg_top *top; /* TOP: [mg_compute_top_tasks][m] */
};
#define MG_MAX_PRODUCT 4
/* At most MG_MAX_PRODUCT independent products as one job. */
enum mg_status mg_compute_products(struct mg_compute *c, const struct mg_product *p, size_t n,
                                   struct mg_err *err);
/* One product of all m rows of x. */
enum mg_status mg_compute_linear(struct mg_compute *c, const struct mg_linear *l,
                                 const struct mg_input *x, size_t m, float *y, size_t ldy,
                                 enum mg_epilogue epilogue, struct mg_err *err);
/* Entries of `top` a row for a packed matrix and m rows. */
size_t mg_compute_top_tasks(const struct mg_compute *c, const struct mg_linear *l, size_t m);

/* n independent attentions, of any number of conversations, as one job. */
enum mg_status mg_compute_attention(struct mg_compute *c, const struct mg_attention *op, size_t n,
                                    struct mg_err *err);

/* fn over rows [0, m) in blocks; fn works on [row0, row1). Small m runs on the caller. */
typedef void mg_rows_fn(const struct mg_compute *c, void *arg, size_t row0, size_t row1);
void mg_compute_rows(struct mg_compute *c, mg_rows_fn *fn, void *arg, size_t m);

/* Row stride in elements for rows of k values: k padded so that rows don't fall on the same cache
 * sets. */
static inline size_t mg_row_stride(size_t k) {
    return mg_round_up(k, 16) + 16;
}

#endif
