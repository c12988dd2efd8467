/* kernels/ref/vector.c - sums, activations, softmax, conversions and searches on vectors, the
 * definition. Functions are evaluated in double and rounded to f32 once. */
#include "kernels/ref/ref.h"

#include <math.h>

static void add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void gelu_tanh(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        x[i] = (float)(0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v))));
    }
}

static void gelu_erf(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        x[i] = (float)(0.5 * v * (1 + erf(v * 0.70710678118654752440)));
    }
}

static void silu_mul(const float *gate, const float *up, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double v = gate[i];
        out[i] = (float)(v / (1 + exp(-v)) * up[i]);
    }
}

static void softmax(float *x, size_t n) {
    double top = x[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > top) top = x[i];
    for (size_t i = 0; i < n; i++) sum += exp(x[i] - top);
    for (size_t i = 0; i < n; i++) x[i] = (float)(exp(x[i] - top) / sum);
}

static void widen(enum mg_dtype type, const void *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = mg_load_f32(type, in, i);
}

static void to_bf16(const float *in, uint16_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = mg_f32_to_bf16(in[i]);
}

static bool all_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static size_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return best;
}

void mg_ref_init_vector(struct mg_kernels *t) {
    t->add = add;
    t->gelu_tanh = gelu_tanh;
    t->gelu_erf = gelu_erf;
    t->silu_mul = silu_mul;
    t->softmax = softmax;
    t->widen = widen;
    t->to_bf16 = to_bf16;
    t->all_finite = all_finite;
    t->argmax = argmax;
}
