/* kernels/ref/norm.c - RMS norm, layer norm and rotary embedding, the definition. Sums and the
 * formula in double, rounded to f32 once per element. */
#include "kernels/ref/ref.h"

#include <math.h>

static void rms_norm(const float *in, size_t ldin, const float *w, float eps, float *out,
                     size_t ldout, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        const float *x = in + i * ldin;
        float *y = out + i * ldout;
        double sum = 0;
        for (size_t j = 0; j < k; j++) sum += (double)x[j] * x[j];
        double r = 1 / sqrt(sum / (double)k + eps);
        for (size_t j = 0; j < k; j++) y[j] = (float)(x[j] * r * w[j]);
    }
}

static void layer_norm(const float *in, size_t ldin, const float *w, const float *b, float eps,
                       float *out, size_t ldout, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        const float *x = in + i * ldin;
        float *y = out + i * ldout;
        double sum = 0, var = 0;
        for (size_t j = 0; j < k; j++) sum += x[j];
        double mean = sum / (double)k;
        for (size_t j = 0; j < k; j++) var += (x[j] - mean) * (x[j] - mean);
        double r = 1 / sqrt(var / (double)k + eps);
        for (size_t j = 0; j < k; j++) y[j] = (float)((x[j] - mean) * r * w[j] + b[j]);
    }
}

static void rope(float *x, size_t ldx, size_t m, size_t n_head, size_t head_dim,
                 const float *cosines, const float *sines) {
    size_t half = head_dim / 2;
    for (size_t i = 0; i < m; i++)
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + i * ldx + h * head_dim;
            for (size_t j = 0; j < half; j++) {
                double a = p[j], b = p[j + half], c = cosines[i * half + j],
                       s = sines[i * half + j];
                p[j] = (float)(a * c - b * s);
                p[j + half] = (float)(b * c + a * s);
            }
        }
}

void mg_ref_init_norm(struct mg_kernels *t) {
    t->rms_norm = rms_norm;
    t->layer_norm = layer_norm;
    t->rope = rope;
}
