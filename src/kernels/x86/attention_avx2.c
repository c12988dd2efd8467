/* kernels/x86/attention_avx2.c - attention with AVX2, FMA and F16C; see attention.h. */
#include "kernels/x86/attention.h"
#include "kernels/x86/x86.h"

size_t mg_avx2_attention_tasks(const struct mg_attention *op) {
    return attention_tasks(op);
}

size_t mg_avx2_attention_scratch(const struct mg_attention *op) {
    return attention_scratch(op);
}

void mg_avx2_attention(const struct mg_attention *op, size_t task, void *scratch) {
    attention(op, task, scratch);
}

void mg_avx2_init_attention(struct mg_kernels *t) {
    init_attention(t);
}
