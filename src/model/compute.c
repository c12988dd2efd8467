/* model/compute.c - see compute.h. */
#include "model/compute.h"

#include <stdlib.h>

/* Rows per task: enough work to pay for handing it out, few enough to share. */
#define ROW_BLOCK 16

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

size_t mg_input_bytes(size_t m, size_t k) {
    return m * mg_max_size(mg_row_stride(k) * sizeof(float), mg_packed_stride(k));
}

/* One product as its kernel wants it. */
struct job_op {
    bool packed; /* `integer` is filled, else `plain` */
    struct mg_matmul plain;
    struct mg_packed_matmul integer;
    size_t n_task;
};

static void make_op(const struct mg_compute *c, const struct mg_product *p, struct job_op *out) {
    const struct mg_linear *l = p->l;
    out->packed = mg_linear_is_packed(l);
    if (out->packed) {
        out->integer =
            (struct mg_packed_matmul){.epilogue = p->epilogue,
                                      .w = &l->packed,
                                      .x = (const uint8_t *)p->x->rows + p->first * p->x->ld,
                                      .ldx = p->x->ld,
                                      .xs = p->x->xs + p->first,
                                      .bias = l->bias,
                                      .y = p->y,
                                      .ldy = p->ldy,
                                      .top = p->top,
                                      .m = p->m};
        out->n_task = c->kernels->packed_tasks(&out->integer);
        return;
    }
    size_t size = mg_dtype_size(c->kernels->x_type[c->mode]);
    out->plain = (struct mg_matmul){.mode = c->mode,
                                    .epilogue = p->epilogue,
                                    .x = (const char *)p->x->rows + p->first * p->x->ld * size,
                                    .ldx = p->x->ld,
                                    .w = l->w,
                                    .w2 = p->up ? p->up->w : NULL,
                                    .ldw = l->k,
                                    .wtype = l->type,
                                    .bias = l->bias,
                                    .y = p->y,
                                    .ldy = p->ldy,
                                    .m = p->m,
                                    .n = l->n,
                                    .k = l->k};
    out->n_task = c->kernels->matmul_tasks(&out->plain);
}

struct products_job {
    struct mg_compute *c;
    struct job_op op[MG_MAX_PRODUCT];
    size_t n_op;
};

static void run_product_task(void *arg, size_t task, size_t thread) {
    struct products_job *job = arg;
    void *scratch = job->c->scratch[thread];
    for (size_t i = 0; i < job->n_op; i++) {
        const struct job_op *op = &job->op[i];
        if (task < op->n_task) {
            if (op->packed)
                job->c->kernels->packed_matmul(&op->integer, task, scratch);
            else
                job->c->kernels->matmul(&op->plain, task, scratch);
            return;
        }
        task -= op->n_task;
    }
}

enum mg_status mg_compute_products(struct mg_compute *c, const struct mg_product *p, size_t n,
                                   struct mg_err *err) {
    struct products_job job = {.c = c, .n_op = n};
    size_t n_task = 0, scratch = 0;
    for (size_t i = 0; i < n; i++) {
        make_op(c, &p[i], &job.op[i]);
        n_task += job.op[i].n_task;
        scratch =
            mg_max_size(scratch, job.op[i].packed ? c->kernels->packed_scratch(&job.op[i].integer)
                                                  : c->kernels->matmul_scratch(&job.op[i].plain));
    }
    if (reserve_scratch(c, scratch, err) != MG_OK) return MG_ERR_MEMORY;
    mg_pool_run(c->pool, run_product_task, &job, n_task);
    return MG_OK;
}

enum mg_status mg_compute_linear(struct mg_compute *c, const struct mg_linear *l,
                                 const struct mg_input *x, size_t m, float *y, size_t ldy,
                                 enum mg_epilogue epilogue, struct mg_err *err) {
    struct mg_product p = {.l = l, .x = x, .m = m, .y = y, .ldy = ldy, .epilogue = epilogue};
    return mg_compute_products(c, &p, 1, err);
}

size_t mg_compute_top_tasks(const struct mg_compute *c, const struct mg_linear *l, size_t m) {
    struct mg_packed_matmul op = {.epilogue = MG_EPI_TOP, .w = &l->packed, .m = m};
    return c->kernels->packed_tasks(&op);
}

struct attention_job {
    struct mg_compute *c;
    const struct mg_attention *op;
    size_t n_op;
};

static void run_attention_task(void *arg, size_t task, size_t thread) {
    struct attention_job *job = arg;
    const struct mg_kernels *k = job->c->kernels;
    for (size_t i = 0; i < job->n_op; i++) {
        size_t n = k->attention_tasks(&job->op[i]);
        if (task < n) {
            k->attention(&job->op[i], task, job->c->scratch[thread]);
            return;
        }
        task -= n;
    }
}

enum mg_status mg_compute_attention(struct mg_compute *c, const struct mg_attention *op, size_t n,
                                    struct mg_err *err) {
    struct attention_job job = {c, op, n};
    size_t n_task = 0, scratch = 0;
    for (size_t i = 0; i < n; i++) {
        n_task += c->kernels->attention_tasks(&op[i]);
        scratch = mg_max_size(scratch, c->kernels->attention_scratch(&op[i]));
    }
    if (reserve_scratch(c, scratch, err) != MG_OK) return MG_ERR_MEMORY;
    mg_pool_run(c->pool, run_attention_task, &job, n_task);
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
    /* One block runs on the caller, but as a job: with denormals off like any number of rows. */
    mg_pool_run(c->pool, run_rows_task, &job, (m + ROW_BLOCK - 1) / ROW_BLOCK);
}

void mg_prepare_begin(const struct mg_linear *l, struct mg_input *x) {
    x->ld = mg_linear_is_packed(l) ? mg_packed_stride(l->k) : mg_row_stride(l->k);
}

void mg_prepare_rows(const struct mg_compute *c, const struct mg_linear *l, const float *in,
                     size_t ldin, const struct mg_input *x, size_t row0, size_t row1) {
    if (mg_linear_is_packed(l)) {
        c->kernels->quantise(in, ldin, (uint8_t *)x->rows + row0 * x->ld, x->ld, x->xs + row0,
                             row1 - row0, l->k);
        return;
    }
    size_t size = mg_dtype_size(c->kernels->x_type[c->mode]);
    c->kernels->prepare(c->mode, in, ldin, (char *)x->rows + row0 * x->ld * size, x->ld,
                        row1 - row0, l->k);
}

struct prepare_job {
    const struct mg_linear *l;
    const float *in;
    size_t ldin;
    const struct mg_input *x;
};

static void prepare_block(const struct mg_compute *c, void *arg, size_t row0, size_t row1) {
    struct prepare_job *job = arg;
    mg_prepare_rows(c, job->l, job->in + row0 * job->ldin, job->ldin, job->x, row0, row1);
}

void mg_compute_prepare(struct mg_compute *c, const struct mg_linear *l, const float *in,
                        size_t ldin, struct mg_input *x, size_t m) {
    struct prepare_job job = {l, in, ldin, x};
    mg_prepare_begin(l, x);
    mg_compute_rows(c, prepare_block, &job, m);
}
