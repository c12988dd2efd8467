/* kernels/x86/x86.h - what each x86 tier sets in the table. Plain C: included by files without ISA
 * flags too. */
#ifndef MG_KERNELS_X86_X86_H
#define MG_KERNELS_X86_X86_H

#include "kernels/kernels.h"

/* Vectors, norms, rotary embedding. */
void mg_avx2_init_vector(struct mg_kernels *t);
void mg_avx512_init_vector(struct mg_kernels *t);
/* Matrix products, both modes in f32 FMA; x_type is F32 twice. */
void mg_avx2_init_matmul(struct mg_kernels *t);
void mg_avx512_init_matmul(struct mg_kernels *t);
void mg_avx512_matmul(const struct mg_matmul *op, size_t task, void *scratch);
size_t mg_avx2_matmul_scratch(const struct mg_matmul *op);
void mg_avx2_matmul(const struct mg_matmul *op, size_t task, void *scratch);
/* As avx512, but MG_MODE_BF16 by vdpbf16ps; x_type[MG_MODE_BF16] is BF16. */
void mg_bf16_init_matmul(struct mg_kernels *t);
size_t mg_bf16_matmul_scratch(const struct mg_matmul *op);
void mg_bf16_matmul(const struct mg_matmul *op, size_t task, void *scratch);
/* As bf16, but many rows by tiles; needs bf16's columns of a task. */
void mg_amx_init_matmul(struct mg_kernels *t);
/* Products with packed integer weights; avx2 and vnni also the rounding of activations. */
void mg_avx2_init_packed(struct mg_kernels *t);
size_t mg_avx2_packed_scratch(const struct mg_packed_matmul *op);
void mg_avx2_packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch);
void mg_avxvnni_init_packed(struct mg_kernels *t);
void mg_avx512_init_packed(struct mg_kernels *t);
void mg_vnni_init_packed(struct mg_kernels *t, bool intel); /* differ in speed only */
size_t mg_vnni_packed_scratch(const struct mg_packed_matmul *op);
void mg_vnni_packed_matmul(const struct mg_packed_matmul *op, size_t task, void *scratch);
void mg_amx_init_packed(struct mg_kernels *t);
/* The AMX files compiled for AVX2 with the stand-in of tile.h, in the kernel test only. */
void mg_standin_init_packed(struct mg_kernels *t);
void mg_standin_init_matmul(struct mg_kernels *t);
void mg_standin_init_attention(struct mg_kernels *t);
void mg_avx2_init_attention(struct mg_kernels *t);
void mg_avx512_init_attention(struct mg_kernels *t);
size_t mg_avx2_attention_tasks(const struct mg_attention *op);
size_t mg_avx2_attention_scratch(const struct mg_attention *op);
void mg_avx2_attention(const struct mg_attention *op, size_t task, void *scratch);
size_t mg_avx512_attention_tasks(const struct mg_attention *op);
size_t mg_avx512_attention_scratch(const struct mg_attention *op);
void mg_avx512_attention(const struct mg_attention *op, size_t task, void *scratch);
void mg_bf16_init_attention(struct mg_kernels *t);
void mg_amx_init_attention(struct mg_kernels *t);

#endif
