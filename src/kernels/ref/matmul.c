/* kernels/ref/matmul.c - y = epilogue(x * w^T + bias), the definition.
 *
 * p[i][j] = float(sum over k ascending of double(x[i][k]) * double(w[j][k])); the bias is added to
 * the double sum before rounding. A task is a block of COLS columns for all rows. The block's
 * weights are widened (in bf16 mode also rounded) into the scratch once per task, which changes
 * nothing but the time; four columns run side by side to hide the latency of the additions.
 */
#include "kernels/ref/ref.h"

#include <math.h>

enum { COLS = 8 };

static void prepare(enum mg_mode mode, const float *in, size_t ldin, void *out, size_t ldout,
                    size_t m, size_t k) {
    float *to = out;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < k; j++) {
            float v = in[i * ldin + j];
            to[i * ldout + j] = mode == MG_MODE_BF16 ? mg_bf16_to_f32(mg_f32_to_bf16(v)) : v;
        }
}

static size_t tasks(const struct mg_matmul *op) { return op->m ? (op->n + COLS - 1) / COLS : 0; }

static size_t scratch_size(const struct mg_matmul *op) {
    size_t blocks = op->epilogue == MG_EPI_SWIGLU ? 2 : 1;
    return (blocks * COLS * op->k * sizeof(float) + 63) & ~(size_t)63;
}

static void load_weights(const struct mg_matmul *op, const void *w, size_t col, size_t n_col,
                         float *out) {
    for (size_t j = 0; j < n_col; j++)
        for (size_t k = 0; k < op->k; k++) {
            float v = mg_load_f32(op->wtype, w, (col + j) * op->ldw + k);
            if (op->mode == MG_MODE_BF16 && op->wtype != MG_BF16)
                v = mg_bf16_to_f32(mg_f32_to_bf16(v));
            out[j * op->k + k] = v;
        }
}

/* out[j] = x . w[j] for j in 0..n_col-1 */
static void dot_columns(const float *x, const float *w, size_t k, size_t n_col, double *out) {
    size_t j = 0;
    for (; j + 4 <= n_col; j += 4) {
        const float *w0 = w + j * k, *w1 = w0 + k, *w2 = w1 + k, *w3 = w2 + k;
        double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (size_t i = 0; i < k; i++) {
            double v = x[i];
            s0 += v * w0[i];
            s1 += v * w1[i];
            s2 += v * w2[i];
            s3 += v * w3[i];
        }
        out[j] = s0, out[j + 1] = s1, out[j + 2] = s2, out[j + 3] = s3;
    }
    for (; j < n_col; j++) {
        double s = 0;
        for (size_t i = 0; i < k; i++) s += (double)x[i] * w[j * k + i];
        out[j] = s;
    }
}

float mg_ref_finish(enum mg_epilogue epilogue, float y, double sum, double sum2) {
    float p = (float)sum;
    double v = p;
    switch (epilogue) {
    case MG_EPI_ADD: return y + p;
    case MG_EPI_GELU_TANH:
        return (float)(0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v))));
    case MG_EPI_GELU_ERF: return (float)(0.5 * v * (1 + erf(v * 0.70710678118654752440)));
    case MG_EPI_SWIGLU: return (float)(v / (1 + exp(-v)) * (float)sum2);
    default: return p;
    }
}

static void matmul(const struct mg_matmul *op, size_t task, void *scratch) {
    size_t col = task * COLS, n_col = op->n - col < COLS ? op->n - col : COLS;
    float *w = scratch, *w2 = w + COLS * op->k;
    double sum[COLS] = {0}, sum2[COLS] = {0};
    load_weights(op, op->w, col, n_col, w);
    if (op->epilogue == MG_EPI_SWIGLU) load_weights(op, op->w2, col, n_col, w2);
    for (size_t i = 0; i < op->m; i++) {
        const float *x = (const float *)op->x + i * op->ldx;
        float *y = op->y + i * op->ldy + col;
        dot_columns(x, w, op->k, n_col, sum);
        if (op->epilogue == MG_EPI_SWIGLU) dot_columns(x, w2, op->k, n_col, sum2);
        for (size_t j = 0; j < n_col; j++) {
            double s = op->bias ? sum[j] + op->bias[col + j] : sum[j];
            y[j] = mg_ref_finish(op->epilogue, op->epilogue == MG_EPI_ADD ? y[j] : 0, s, sum2[j]);
        }
    }
}

void mg_ref_init_matmul(struct mg_kernels *t) {
    t->x_type[MG_MODE_F32] = MG_F32;
    t->x_type[MG_MODE_BF16] = MG_F32;
    t->prepare = prepare;
    t->matmul_tasks = tasks;
    t->matmul_scratch = scratch_size;
    t->matmul = matmul;
}
