/* model/compute.c - see compute.h. */
#include "model/compute.h"

#include <stdlib.h>

#define ROW_BLOCK 8 /* rows per task: enough work to pay for handing it out, few enough to share   \
                     */

enum mg_status mg_compute_open(struct mg_compute *c, const struct mg_kernels *kernels,
                               struct mg_pool *pool, enum mg_mode mode, struct mg_err *err) {
    *c = (struct mg_compute){.kernels = kernels, .pool = pool, .mode = mode};
    c->n_thread = pool ? mg_pool_size(pool) : 1;
    c->scratch = mg_alloc_zero(c->n_thread, sizeof *c->scratch);
    return c->scratch ? MG_OK : mg_fail_memory(err, "scratch of the threads");
}

void mg_compute_close(struct mg_compute *c) {
    for (size_t i = 0; c->scratch && i < c->n_thread; i++) free(c->scratch[i]);
    free(c->scratch);
    *c = (struct mg_compute){0};
}

enum mg_status mg_compute_tick(const struct mg_compute *c, size_t done, size_t total,
                               struct mg_err *err) {
    if (!c->tick || c->tick(c->tick_user, done, total)) return MG_OK;
    return mg_fail(err, MG_ERR_CANCELLED, "cancelled", "stopped on request");
}

static enum mg_status reserve_scratch(struct mg_compute *c, size_t bytes, struct mg_err *err) {
    if (bytes <= c->scratch_bytes) return MG_OK;
    for (size_t i = 0; i < c->n_thread; i++) {
        free(c->scratch[i]);
        c->scratch[i] = NULL;
    }
    c->scratch_bytes = 0;
    for (size_t i = 0; i < c->n_thread; i++) {
        c->scratch[i] = mg_alloc(bytes, 1);
        if (!c->scratch[i]) return mg_fail_memory(err, "scratch of a thread");
    }
    c->scratch_bytes = bytes;
    return MG_OK;
}

struct mg_matmul mg_linear_op(const struct mg_compute *c, const struct mg_linear *l, const void *x,
                              size_t ldx, size_t m, float *y, size_t ldy,
                              enum mg_epilogue epilogue) {
    return (struct mg_matmul){.mode = c->mode,
                              .epilogue = epilogue,
                              .x = x,
                              .ldx = ldx,
                              .w = l->w,
                              .ldw = l->k,
                              .wtype = l->type,
                              .bias = l->bias,
                              .y = y,
                              .ldy = ldy,
                              .m = m,
                              .n = l->n,
                              .k = l->k};
}

struct matmul_job {
    struct mg_compute *c;
    const struct mg_matmul *op;
    size_t n_op;
};

static void run_matmul_task(void *arg, size_t task, size_t thread) {
    struct matmul_job *job = arg;
    for (size_t i = 0; i < job->n_op; i++) {
        size_t n = job->c->kernels->matmul_tasks(&job->op[i]);
        if (task < n) {
            job->c->kernels->matmul(&job->op[i], task, job->c->scratch[thread]);
            return;
        }
        task -= n;
    }
}

enum mg_status mg_compute_matmul(struct mg_compute *c, const struct mg_matmul *op, size_t n_op,
                                 struct mg_err *err) {
    struct matmul_job job = {c, op, n_op};
    size_t n_task = 0, scratch = 0;
    for (size_t i = 0; i < n_op; i++) {
        n_task += c->kernels->matmul_tasks(&op[i]);
        scratch = mg_max_size(scratch, c->kernels->matmul_scratch(&op[i]));
    }
    if (reserve_scratch(c, scratch, err) != MG_OK) return MG_ERR_MEMORY;
    mg_pool_run(c->pool, run_matmul_task, &job, n_task);
    return MG_OK;
}

struct attention_job {
    struct mg_compute *c;
    const struct mg_attention *op;
};

static void run_attention_task(void *arg, size_t task, size_t thread) {
    struct attention_job *job = arg;
    job->c->kernels->attention(job->op, task, job->c->scratch[thread]);
}

enum mg_status mg_compute_attention(struct mg_compute *c, const struct mg_attention *op,
                                    struct mg_err *err) {
    struct attention_job job = {c, op};
    if (reserve_scratch(c, c->kernels->attention_scratch(op), err) != MG_OK) return MG_ERR_MEMORY;
    mg_pool_run(c->pool, run_attention_task, &job, c->kernels->attention_tasks(op));
    return MG_OK;
}

struct rows_job {
    struct mg_compute *c;
    mg_rows_fn *fn;
    void *arg;
    size_t m;
};

static void run_rows_task(void *arg, size_t task, size_t thread) {
    (void)thread;
    struct rows_job *job = arg;
    size_t row0 = task * ROW_BLOCK;
    job->fn(job->c, job->arg, row0, mg_min_size(row0 + ROW_BLOCK, job->m));
}

void mg_compute_rows(struct mg_compute *c, mg_rows_fn *fn, void *arg, size_t m) {
    struct rows_job job = {c, fn, arg, m};
    /* One block runs on the caller, but as a job: with denormals off like any other number of rows.
     */
    mg_pool_run(c->pool, run_rows_task, &job, (m + ROW_BLOCK - 1) / ROW_BLOCK);
}

struct prepare_job {
    const float *in;
    void *out;
    size_t ldin, ldout, k;
};

static void prepare_rows(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct prepare_job *job = arg;
    size_t size = mg_dtype_size(c->kernels->x_type[c->mode]);
    c->kernels->prepare(c->mode, job->in + row0 * job->ldin, job->ldin,
                        (char *)job->out + row0 * job->ldout * size, job->ldout, row1 - row0,
                        job->k);
}

void mg_compute_prepare(struct mg_compute *c, const float *in, size_t ldin, void *out, size_t ldout,
                        size_t m, size_t k) {
    struct prepare_job job = {in, out, ldin, ldout, k};
    mg_compute_rows(c, prepare_rows, &job, m);
}
