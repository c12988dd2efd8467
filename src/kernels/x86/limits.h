/* kernels/x86/limits.h - the x86 tiers' loops for limits.h.
 *
 * Every loop holds ACC independent sums in registers, enough to cover the instruction's latency on
 * two ports, and is fully unrolled over them. An empty asm statement behind each instruction keeps
 * every sum in one register and the compiler from computing anything at once. Plain C: included by
 * limits.c, which has no ISA flags, too.
 */
#ifndef MG_KERNELS_X86_LIMITS_H
#define MG_KERNELS_X86_LIMITS_H

#include "kernels/limits.h"

/* Each adds its tier's own. */
void mg_avx2_add_limits(struct mg_limit_set *s);
void mg_avxvnni_add_limits(struct mg_limit_set *s); /* in limits_avx2.c */
void mg_avx512_add_limits(struct mg_limit_set *s);
void mg_vnni_add_limits(struct mg_limit_set *s);
void mg_bf16_add_limits(struct mg_limit_set *s);
void mg_amx_add_limits(struct mg_limit_set *s);

static inline void mg_add_loop(struct mg_limit_set *s, const char *name, enum mg_limit kind,
                               double (*run)(size_t n)) {
    if (s->n_loop < MG_MAX_LIMIT_LOOP)
        s->loop[s->n_loop++] = (struct mg_limit_loop){name, kind, run};
}
static inline void mg_add_reader(struct mg_limit_set *s, const char *name,
                                 uint64_t (*run)(const void *p, size_t n, size_t distance)) {
    if (s->n_reader < MG_MAX_LIMIT_READER)
        s->reader[s->n_reader++] = (struct mg_limit_reader){name, run};
}

/* A full unroll is what keeps gcc 12 from putting the sums on the stack. */
#if defined(__clang__)
#define MG_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MG_UNROLL _Pragma("GCC unroll 32")
#endif

/* The value stays in its register and may have changed. */
#if defined(__AVX512F__)
#define MG_KEEP(x) __asm__ volatile("" : "+v"(x))
#else
#define MG_KEEP(x) __asm__ volatile("" : "+x"(x))
#endif

#endif
