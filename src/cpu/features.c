/* cpu/features.c - finding the tier: CPUID, XCR0, the system's word on AMX, and MARGAY_CPU.
 *
 * A bit in CPUID says what the processor can do; a bit in XCR0 says that the system saves the
 * registers it needs. Only both together make an instruction safe (a hypervisor may show the first
 * without the second). AMX needs a third thing: Linux gives each process its tile memory on
 * request, ARCH_REQ_XCOMP_PERM, and refuses when the signal stack is too small. The request holds
 * for all threads made later, so mg_features_detect belongs at the start of the program, before any
 * thread.
 */
#include "cpu/features.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tier_names[MG_N_TIER] = {"ref",  "avx2", "avxvnni", "avx512",
                                                   "vnni", "bf16", "amx"};

const char *mg_tier_name(enum mg_tier tier) {
    return (unsigned)tier < MG_N_TIER ? tier_names[tier] : "unknown";
}

int mg_tier_parse(const char *name) {
    for (int i = 0; name && i < MG_N_TIER; i++)
        if (!strcmp(name, tier_names[i])) return i;
    return -1;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };

/* Leaf and subleaf; all zero where the processor has no such leaf. */
static void cpuid(uint32_t leaf, uint32_t sub, uint32_t r[4]) {
    uint32_t top = __get_cpuid_max(leaf & 0x80000000u, NULL);
    memset(r, 0, 16);
    if (top >= leaf) __cpuid_count(leaf, sub, r[EAX], r[EBX], r[ECX], r[EDX]);
}

static uint64_t read_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool bit(uint32_t word, int n) { return word >> n & 1; }

/* ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA: true when this process may use tiles. */
static bool request_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

static void read_brand(char out[64]) {
    uint32_t top = __get_cpuid_max(0x80000000u, NULL), word[12];
    out[0] = 0;
    if (top < 0x80000004u) return;
    for (uint32_t i = 0; i < 3; i++) cpuid(0x80000002u + i, 0, word + 4 * i);
    char raw[49];
    memcpy(raw, word, 48);
    raw[48] = 0;
    size_t n = 0;
    for (const char *s = raw; *s; s++) { /* single spaces, none at the ends */
        if (*s == ' ' && (!n || s[1] == ' ' || !s[1])) continue;
        out[n++] = *s;
    }
    out[n] = 0;
}

/* The highest tier whose every condition holds; *why gets the first one that doesn't. *avx_vnni:
 * the 256-bit vpdpbusd can be used. */
static enum mg_tier best_tier(const char **why, bool *avx_vnni) {
    uint32_t l1[4], l7[4], l7s1[4], l1d[4];
    cpuid(1, 0, l1);
    cpuid(7, 0, l7);
    cpuid(7, 1, l7s1);
    if (!bit(l1[ECX], 27)) return *why = "the system does not save vector registers", MG_TIER_REF;
    uint64_t xcr0 = read_xcr0();
    if ((xcr0 & 6) != 6) return *why = "the system does not save AVX registers (XCR0)", MG_TIER_REF;
    if (!bit(l1[ECX], 28) || !bit(l7[EBX], 5)) return *why = "no AVX2 in CPUID", MG_TIER_REF;
    if (!bit(l1[ECX], 12)) return *why = "no FMA in CPUID", MG_TIER_REF;
    if (!bit(l1[ECX], 29)) return *why = "no F16C in CPUID", MG_TIER_REF;
    *avx_vnni = bit(l7s1[EAX], 4);
    enum mg_tier narrow = *avx_vnni ? MG_TIER_AVXVNNI : MG_TIER_AVX2;
    if (!bit(l7[EBX], 16) || !bit(l7[EBX], 30) || !bit(l7[EBX], 17) || !bit(l7[EBX], 31))
        return *why = "no AVX-512 F, BW, DQ and VL in CPUID", narrow;
    if ((xcr0 & 0xe0) != 0xe0)
        return *why = "the system does not save AVX-512 registers (XCR0)", narrow;
    if (!bit(l7[ECX], 11)) return *why = "no AVX512_VNNI in CPUID", MG_TIER_AVX512;
    if (!bit(l7s1[EAX], 5)) return *why = "no AVX512_BF16 in CPUID", MG_TIER_VNNI;
    if (!bit(l7[EDX], 24) || !bit(l7[EDX], 25) || !bit(l7[EDX], 22))
        return *why = "no AMX tiles in CPUID", MG_TIER_BF16;
    cpuid(0x1d, 0, l1d);
    if (l1d[EAX] < 1) return *why = "AMX has no tile palette", MG_TIER_BF16;
    if ((xcr0 & 0x60000) != 0x60000)
        return *why = "the system does not save AMX tiles (XCR0)", MG_TIER_BF16;
    if (!request_tiles()) return *why = "the system refused AMX tiles (arch_prctl)", MG_TIER_BF16;
    return *why = "this is the highest tier", MG_TIER_AMX;
}

static void detect_machine(struct mg_features *out) {
    uint32_t l0[4], l1[4];
    cpuid(0, 0, l0);
    cpuid(1, 0, l1);
    char vendor[13];
    memcpy(vendor, &l0[EBX], 4);
    memcpy(vendor + 4, &l0[EDX], 4);
    memcpy(vendor + 8, &l0[ECX], 4);
    vendor[12] = 0;
    out->intel = !strcmp(vendor, "GenuineIntel");
    out->hypervisor = bit(l1[ECX], 31);
    read_brand(out->brand);
    const char *why = "";
    out->best = best_tier(&why, &out->avx_vnni);
    snprintf(out->reason, sizeof out->reason, "%s", why);
}

#else

static void detect_machine(struct mg_features *out) {
    out->best = MG_TIER_REF;
    snprintf(out->reason, sizeof out->reason, "not an x86-64 processor");
}

#endif

void mg_features_detect(struct mg_features *out) {
    memset(out, 0, sizeof *out);
    detect_machine(out);
    out->tier = out->best;
    const char *wish = getenv("MARGAY_CPU");
    if (!wish || !*wish) return;
    int cap = mg_tier_parse(wish);
    if (cap < 0) {
        snprintf(out->warning, sizeof out->warning,
                 "MARGAY_CPU=%.24s is not ref, avx2, avxvnni, avx512, vnni, bf16 or amx; using %s",
                 wish, mg_tier_name(out->best));
    } else if (cap > (int)out->best) {
        snprintf(out->warning, sizeof out->warning,
                 "MARGAY_CPU=%s is above this machine (%.80s); using %s", wish, out->reason,
                 mg_tier_name(out->best));
    } else if (cap == MG_TIER_AVXVNNI && !out->avx_vnni) {
        snprintf(out->warning, sizeof out->warning,
                 "MARGAY_CPU=%s: this machine has no AVX-VNNI; using %s", wish,
                 mg_tier_name(out->best));
    } else {
        out->tier = (enum mg_tier)cap;
        snprintf(out->reason, sizeof out->reason, "MARGAY_CPU=%s", wish);
    }
}
