/* kernels/ref/ref.h - plain scalar C: the definition of every operation in kernels.h.
 *
 * All sums run in double, in ascending index order, and are rounded to f32 once at the end; exp,
 * tanh and erf are the C library's in double. A product of two f32 is exact in double, so a result
 * depends neither on how many rows are computed together nor on tasks, chunks or threads. Built
 * with -O2, no contraction into FMA and no vectoriser: the same bits from every compiler (but for
 * the last bit of the library's exp, tanh, erf).
 */
#ifndef MG_KERNELS_REF_REF_H
#define MG_KERNELS_REF_REF_H

#include "kernels/kernels.h"

/* Each sets its part of the table. */
void mg_ref_init_matmul(struct mg_kernels *t);
void mg_ref_init_packed(struct mg_kernels *t);
void mg_ref_init_attention(struct mg_kernels *t);
void mg_ref_init_norm(struct mg_kernels *t);   /* rms_norm, layer_norm, rope */
void mg_ref_init_vector(struct mg_kernels *t); /* add .. argmax */

/* y after the epilogue of results p and p2 (SWIGLU's second factor) with bias; for ADD `y` is what
 * was there. */
float mg_ref_finish(enum mg_epilogue epilogue, float y, double p, double p2);

#endif
