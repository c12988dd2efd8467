/* tests/kernel/bench_kernel.c - how far the kernels are from what this machine can do, in one run.
 *
 * Peaks are measured here, between the rows (single-threaded), by the loops of kernels/limits.h:
 * one instruction in registers, reading of 512 MB with prefetch. Each row prints the median of up
 * to RUNS shares of the peak measured right before, since neighbours on a virtual machine change
 * the clock, and the best rate over the best peak. Not a test: `ninja bench_kernel &&
 * tests/kernel/bench_kernel`. bench_kernel [seconds per row, default 0.4] [word that a row's name
 * must contain]
 */
#include "kernels/kernels.h"
#include "kernels/limits.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds_per_row = 0.4;
static const char *only;

/* This thread's processor time: other programs' slices don't count, what they do to caches and
 * memory does. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

/* --- peaks, by the loops of kernels/limits.h */
static struct mg_limit_set limits; /* of the tier being measured */

/* GFLOP/s of the tier's best instruction of a kind; the loops are in order of the tiers. */
static double loop_peak(enum mg_limit kind) {
    enum { ROUNDS = 400000 };
    double best = 0;
    for (size_t i = limits.n_loop; i-- > 0 && best == 0;) {
        if (limits.loop[i].kind != kind) continue;
        double t = now(), operations = limits.loop[i].run(ROUNDS);
        best = operations / (now() - t) * 1e-9;
    }
    return best;
}

enum { BIG = 512 << 20 };
static char *big; /* BIG bytes, written once */

static size_t reader; /* the one of the set that reads fastest here */

/* GB/s of the best of a few distances. */
static double read_by(size_t which) {
    static const size_t distance[] = {0, 2048, 4096, 8192};
    double best = 0;
    for (size_t i = 0; i < 4; i++) {
        double t = now();
        volatile uint64_t sink = limits.reader[which].run(big, BIG, distance[i]);
        best = fmax(best, BIG / (now() - t) * 1e-9);
        (void)sink;
    }
    return best;
}

static double read_peak(void) {
    return read_by(reader);
}

static void pick_reader(void) {
    double best = 0;
    for (size_t r = 0; r < limits.n_reader; r++) {
        double rate = read_by(r);
        if (rate <= best) continue;
        best = rate;
        reader = r;
    }
}

/* --- rows */
static struct mg_kernels table;
static enum mg_tier tier;

static double compute_peak(bool dot) {
    return loop_peak(dot ? MG_LIMIT_BF16 : MG_LIMIT_F32);
}

static float *randoms(size_t n) {
    float *x = mg_alloc(n, sizeof *x);
    for (size_t i = 0; x && i < n; i++) x[i] = (float)(i * 2654435761u % 1000) * 1e-3f - 0.5f;
    return x;
}

static bool skip(const char *name) {
    return only && !strstr(name, only);
}

enum { RUNS = 64 };

static void report(const char *name, double *share, double *rate, size_t n, const char *unit) {
    double top = 0; /* the best peak seen beside the best rate seen */
    for (size_t i = 0; i < n; i++) top = fmax(top, share[i] > 0 ? rate[i] / share[i] : 0);
    double s = median(share, n), r = median(rate, n), best = top > 0 ? rate[n - 1] / top : 0;
    printf("%-6s %-44s %8.1f %-7s %5.1f %% of peak (best %5.1f %%, %zu runs)\n", mg_tier_name(tier),
           name, r, unit, 100 * s, 100 * best, n);
    fflush(stdout);
}

static void bench_gemm(const char *name, size_t m, size_t n, size_t k, enum mg_mode mode,
                       enum mg_epilogue epi) {
    char label[80];
    bool dot = table.x_type[mode] == MG_BF16;
    snprintf(label, sizeof label, "gemm %s %zux%zux%zu %s", name, m, n, k,
             mode == MG_MODE_F32 ? "f32"
             : dot               ? "bf16 dot"
                                 : "bf16 by fma");
    if (skip(label)) return;
    size_t ldx = k + 32;
    float *x = randoms(m * ldx), *y = randoms(m * n), *wf = randoms(n * k), *bias = randoms(n);
    void *px = mg_alloc(m * ldx, 4);
    uint16_t *w = mg_alloc(n * k, 2), *w2 = mg_alloc(n * k, 2);
    table.to_bf16(wf, w, n * k);
    table.to_bf16(wf, w2, n * k);
    table.prepare(mode, x, ldx, px, ldx, m, k);
    bool swiglu = epi == MG_EPI_SWIGLU;
    struct mg_matmul op = {
        mode, epi, px, ldx, w, swiglu ? w2 : NULL, k, MG_BF16, swiglu ? NULL : bias, y, n, m, n, k};
    void *scratch = mg_alloc(table.matmul_scratch(&op), 1);
    double share[RUNS], rate[RUNS], end = now() + seconds_per_row;
    size_t runs = 0;
    while (runs < RUNS && (runs < 3 || now() < end)) {
        double peak = compute_peak(dot), t = now();
        for (size_t i = 0; i < table.matmul_tasks(&op); i++) table.matmul(&op, i, scratch);
        t = now() - t;
        rate[runs] = 2.0 * (double)m * (double)n * (double)k * (swiglu ? 2 : 1) / t * 1e-9;
        share[runs] = rate[runs] / peak;
        runs++;
    }
    report(label, share, rate, runs, "GFLOP/s");
    free(x), free(y), free(wf), free(bias), free(px), free(w), free(w2), free(scratch);
}

/* m rows through as many 6144 x 2048 matrices as lie in `big`: always other weights. */
static void bench_gemv(size_t m, size_t n, size_t k, enum mg_mode mode) {
    char label[80];
    bool dot = table.x_type[mode] == MG_BF16;
    snprintf(label, sizeof label, "gemv %zux%zux%zu %s", m, n, k,
             mode == MG_MODE_F32 ? "f32"
             : dot               ? "bf16 dot"
                                 : "bf16 by fma");
    if (skip(label)) return;
    size_t ldx = k + 32; /* 64 bytes or more off a multiple of 4 KB, as kernels.h asks */
    float *x = randoms(m * ldx), *y = randoms(m * n);
    void *px = mg_alloc(m * ldx, 4);
    table.prepare(mode, x, ldx, px, ldx, m, k);
    double share[RUNS], rate[RUNS], end = now() + seconds_per_row;
    size_t runs = 0, matrix = n * k * 2, count = BIG / matrix;
    struct mg_matmul op = {mode, MG_EPI_STORE, px, ldx, big, NULL, k, MG_BF16, NULL, y, n, m, n, k};
    void *scratch = mg_alloc(table.matmul_scratch(&op), 1);
    while (runs < RUNS && (runs < 3 || now() < end)) {
        double peak = read_peak(), t = now();
        for (size_t i = 0; i < count; i++) {
            op.w = big + i * matrix;
            for (size_t j = 0; j < table.matmul_tasks(&op); j++) table.matmul(&op, j, scratch);
        }
        t = now() - t;
        rate[runs] = (double)(count * matrix) / t * 1e-9;
        share[runs] = rate[runs] / peak;
        runs++;
    }
    report(label, share, rate, runs, "GB/s");
    free(x), free(y), free(px), free(scratch);
}

/* Packed weights: many rows against the peak of integer products, few rows against reading;
 * matrices for few rows come round so that they stand in memory, not in a cache. */
static void bench_packed(enum mg_pack kind, size_t m, size_t n, size_t k, enum mg_epilogue epi) {
    char label[80];
    bool few = m <= 16;
    snprintf(label, sizeof label, "%s %s %zux%zux%zu", kind == MG_PACK_INT4 ? "int4" : "int8",
             few ? "gemv" : "gemm", m, n, k);
    if (skip(label)) return;
    struct mg_packed w = {.kind = kind, .interleaved = epi == MG_EPI_SWIGLU, .n = n, .k = k};
    size_t bytes = mg_packed_bytes(&w), copies = few ? BIG / bytes + 1 : 2, at = 0;
    char *data = mg_alloc(copies * bytes, 1);
    for (size_t i = 0; i < copies * bytes; i += 4)
        memcpy(data + i, &(uint32_t){(uint32_t)i * 2654435761u}, 4);
    size_t columns = mg_packed_panels(&w) * MG_PANEL, ldx = mg_packed_stride(k);
    int32_t *sum = mg_alloc_zero(columns, sizeof *sum);
    float *scale = randoms(columns), *x = randoms(m * k), *y = randoms(m * n);
    uint8_t *q = mg_alloc(m * ldx, 1);
    struct mg_row_scale *xs = mg_alloc(m, sizeof *xs);
    table.quantise(x, k, q, ldx, xs, m, k);
    w.scale = scale, w.sum = sum;
    struct mg_packed_matmul op = {
        .epilogue = epi, .w = &w, .x = q, .ldx = ldx, .xs = xs, .y = y, .ldy = n, .m = m};
    void *scratch = mg_alloc(table.packed_scratch(&op) + 64, 1);
    double share[RUNS], rate[RUNS], end = now() + seconds_per_row;
    size_t runs = 0;
    while (runs < RUNS && (runs < 3 || now() < end)) {
        double peak = few ? read_peak() : loop_peak(MG_LIMIT_INT8), t = now();
        size_t rounds = few ? copies : 1;
        for (size_t r = 0; r < rounds; r++) {
            w.data = data + at++ % copies * bytes;
            for (size_t i = 0; i < table.packed_tasks(&op); i++)
                table.packed_matmul(&op, i, scratch);
        }
        t = now() - t;
        double work = few ? (double)(rounds * bytes) : 2.0 * (double)m * (double)n * (double)k;
        rate[runs] = (epi == MG_EPI_SWIGLU && !few ? 2 : 1) * work / t * 1e-9;
        share[runs] = peak > 0 ? rate[runs] / peak : 0;
        runs++;
    }
    report(label, share, rate, runs, few ? "GB/s" : "GOP/s");
    free(data), free(sum), free(scale), free(x), free(y), free(q), free(xs), free(scratch);
}

static void bench_attention(const char *name, size_t heads, size_t heads_kv, size_t d, size_t n,
                            bool causal) {
    char label[80];
    snprintf(label, sizeof label, "attention %s %zux%zux%zu", name, n, heads, d);
    if (skip(label)) return;
    enum mg_dtype type = MG_BF16;
    size_t room = mg_kv_room(n, d), ld = heads * d;
    float *q = randoms(n * ld), *out = randoms(n * ld), *row = randoms(d);
    uint16_t *keys = mg_alloc_zero(heads_kv * room, 2), *values = mg_alloc_zero(heads_kv * room, 2);
    for (size_t g = 0; g < heads_kv; g++)
        for (size_t p = 0; p < n; p++) {
            row[p % d] = -row[p % d];
            table.store_kv(type, row, row, d, d, keys + g * room, values + g * room, p, 1);
        }
    struct mg_attention op = {.q = q,
                              .ldq = ld,
                              .k = keys,
                              .v = values,
                              .head_stride_kv = room,
                              .kv_type = type,
                              .n_head = heads,
                              .n_head_kv = heads_kv,
                              .head_dim = d,
                              .n_q = n,
                              .n_kv = n,
                              .causal = causal,
                              .scale = 0.125f,
                              .out = out,
                              .ldo = ld};
    void *scratch = mg_alloc(table.attention_scratch(&op), 1);
    double share[RUNS], rate[RUNS], end = now() + seconds_per_row;
    size_t runs = 0;
    while (runs < RUNS && (runs < 3 || now() < end)) {
        double peak = compute_peak(false), t = now();
        for (size_t i = 0; i < table.attention_tasks(&op); i++) table.attention(&op, i, scratch);
        t = now() - t;
        double pairs = causal ? (double)n * (double)(n + 1) / 2 : (double)n * (double)n;
        rate[runs] = 4.0 * pairs * (double)(heads * d) / t * 1e-9;
        share[runs] = rate[runs] / peak;
        runs++;
    }
    report(label, share, rate, runs, "GFLOP/s");
    free(q), free(out), free(row), free(keys), free(values), free(scratch);
}

/* Millions of elements a second; `peak` is reading and writing nothing, so no share. */
static void bench_vector(const char *name, void (*f)(float *x, size_t n)) {
    if (skip(name)) return;
    enum { N = 4096 };
    float *x = randoms(N), *y = randoms(N);
    double rate[RUNS], one[RUNS];
    for (size_t r = 0; r < RUNS; r++) {
        double t = now();
        for (int i = 0; i < 50; i++) memcpy(y, x, N * 4), f(y, N);
        t = now() - t;
        rate[r] = 50.0 * N / t * 1e-6;
        one[r] = 0;
    }
    report(name, one, rate, RUNS, "M/s");
    free(x), free(y);
}

static void bench_tier(const struct mg_features *machine, enum mg_tier which, bool intel) {
    struct mg_features f = *machine;
    f.tier = tier = which;
    f.intel = intel;
    mg_kernels_init(&table, &f);
    mg_limit_set_init(&limits, &f);
    if (reader >= limits.n_reader) reader = limits.n_reader - 1;
    for (int mode = 0; mode < 2; mode++) {
        enum mg_mode md = (enum mg_mode)mode;
        /* the same as avx512's */
        if (((which == MG_TIER_BF16 && !intel) || which == MG_TIER_AMX) && !mode) continue;
        bench_gemm("fc1", 676, 4096, 1024, md, MG_EPI_GELU_TANH);
        bench_gemm("fc2", 676, 1024, 4096, md, MG_EPI_ADD);
        bench_gemm("gate up", 183, 6144, 2048, md, MG_EPI_SWIGLU);
        bench_gemm("down", 183, 2048, 6144, md, MG_EPI_ADD);
        for (size_t m = 1; m <= 8; m = m == 1 ? 4 : 2 * m) bench_gemv(m, 6144, 2048, md);
        if (mode) bench_gemv(1, 2048, 6144, md);
    }
    if (which == MG_TIER_BF16 && !intel) {
        bench_attention("vision", 16, 16, 64, 676, false);
        bench_attention("prefill", 16, 8, 128, 200, true);
        return;
    }
    for (int kind = 0; kind < MG_N_PACK; kind++) {
        enum mg_pack p = (enum mg_pack)kind;
        bench_packed(p, 676, 4096, 1024, MG_EPI_GELU_TANH);
        bench_packed(p, 676, 1024, 4096, MG_EPI_ADD);
        bench_packed(p, 183, 6144, 2048, MG_EPI_SWIGLU);
        bench_packed(p, 183, 2048, 6144, MG_EPI_ADD);
        for (size_t m = 1; m <= 16; m *= 2) bench_packed(p, m, 12288, 2048, MG_EPI_STORE);
    }
    bench_attention("vision", 16, 16, 64, 676, false);
    bench_attention("prefill", 16, 8, 128, 200, true);
    bench_vector("gelu_tanh", table.gelu_tanh);
    bench_vector("gelu_erf", table.gelu_erf);
    bench_vector("softmax", table.softmax);
}

int main(int argc, char **argv) {
    if (argc > 1) seconds_per_row = atof(argv[1]);
    if (argc > 2) only = argv[2];
    struct mg_features machine;
    mg_features_detect(&machine);
    if (machine.tier < MG_TIER_AVX2 || !(big = mg_alloc(BIG, 1))) return 1;
    for (size_t i = 0; i < BIG; i += 2)
        memcpy(big + i, &(uint16_t){(uint16_t)(0x3c00 + i % 251)}, 2);
    mg_limit_set_init(&limits, &machine);
    pick_reader();
    printf("# %s: read %.1f GB/s\n", machine.brand, read_peak());
    for (size_t i = 0; i < limits.n_loop; i++) {
        double t = now(), operations = limits.loop[i].run(400000);
        printf("# %-24s %8.1f G/s\n", limits.loop[i].name, operations / (now() - t) * 1e-9);
    }
    if (machine.tier >= MG_TIER_AMX) bench_tier(&machine, MG_TIER_AMX, true);
    if (machine.tier >= MG_TIER_BF16) {
        bench_tier(&machine, MG_TIER_BF16, true);
        bench_tier(&machine, MG_TIER_BF16, false);
    } else if (machine.tier >= MG_TIER_AVX512) {
        bench_tier(&machine, MG_TIER_AVX512, true);
    }
    bench_tier(&machine, MG_TIER_AVX2, true);
    free(big);
    return 0;
}
