/* cpu/features.h - what this processor may run, as tiers.
 *
 * A tier is a promise of a set of instructions, checked in CPUID, in XCR0 (what the system saves)
 * and, for AMX, by asking the kernel for permission. MARGAY_CPU=ref|avx2|avxvnni|avx512|vnni|bf16|
 * amx caps the tier; a value above what the machine has is refused with a warning and the best tier
 * is used.
 *   ref     plain C, the definition
 *   avx2    AVX2 + FMA + F16C (Haswell, Zen 1)
 *   avxvnni avx2 + AVX-VNNI (Alder Lake, Zen 5 without AVX-512): the 256-bit vpdpbusd
 *   avx512  F, BW, DQ, VL (Skylake server)
 *   vnni    avx512 + VNNI (Cascade Lake, Ice Lake)
 *   bf16    vnni + AVX512_BF16 (Zen 4, Sapphire Rapids)
 *   amx     bf16 + AMX tile, int8, bf16 (Sapphire Rapids)
 * Each tier holds those above it in this list but for avxvnni, which not every AVX-512 processor
 * has (Zen 4, Ice Lake): the field avx_vnni says whether the machine can run it.
 */
#ifndef MG_CPU_FEATURES_H
#define MG_CPU_FEATURES_H

#include <stdbool.h>
#include <stddef.h>

enum mg_tier {
    MG_TIER_REF,
    MG_TIER_AVX2,
    MG_TIER_AVXVNNI,
    MG_TIER_AVX512,
    MG_TIER_VNNI,
    MG_TIER_BF16,
    MG_TIER_AMX,
    MG_N_TIER
};

struct mg_features {
    enum mg_tier tier; /* what is used: the best, or what MARGAY_CPU caps it to */
    enum mg_tier best; /* what the machine has */
    bool intel;        /* GenuineIntel: FMA in f32 beats vdpbf16ps there, not on AMD;
                        * memory is fetched ahead otherwise */
    bool avx_vnni;     /* the 256-bit vpdpbusd: tier avxvnni can run here */
    bool hypervisor;   /* running in a virtual machine */
    char brand[64];    /* the processor's name, e.g. "AMD EPYC 9R14" */
    char reason[160];  /* why no higher tier, for people ("no AMX tiles in CPUID") */
    char warning[160]; /* "", or what was wrong with MARGAY_CPU; the caller prints it */
};

/* Fills in `out` for this machine; reads MARGAY_CPU. Never fails: the least is `ref`. Call it
 * before the first thread is made: AMX permission holds for the threads made after it was granted.
 */
void mg_features_detect(struct mg_features *out);
const char *mg_tier_name(enum mg_tier tier);
/* The tier with this name, or -1. */
int mg_tier_parse(const char *name);

#endif
