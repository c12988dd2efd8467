/* kernels/limits.c - see limits.h. The loops of `ref`, and the running of all loops over the pool.
 */
#include "kernels/limits.h"

#include "base/io.h"
#include "base/mem.h"
#include "kernels/x86/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TASK_SECONDS 3e-4
#define TASKS_PER_THREAD 24           /* of a compute slice: about 7 ms */
#define SLICES 3                      /* of which the best is the sample */
#define READ_TASK ((size_t)4 << 20)   /* bytes */
#define READ_SLICE ((size_t)64 << 20) /* bytes */
#define MIN_BUFFER (8 * READ_SLICE)   /* 512 MiB */
#define MAX_BUFFER ((size_t)2 << 30)

enum { ACC = 16 };

static double plain_f32(size_t n) {
    float a[ACC], m = 0.999f;
    for (int i = 0; i < ACC; i++) a[i] = (float)i;
    for (size_t r = 0; r < n; r++) {
        for (int i = 0; i < ACC; i++) a[i] = a[i] * m + 1e-3f;
        __asm__ volatile("" : "+m"(m));
    }
    float sum = 0;
    for (int i = 0; i < ACC; i++) sum += a[i];
    volatile float sink = sum;
    (void)sink;
    return (double)n * ACC * 2;
}

static uint64_t plain_read(const void *p, size_t n, size_t distance) {
    const uint64_t *at = p, *end = at + n / 8;
    uint64_t s[4] = {0};
    for (; at < end; at += 8) {
        if (distance) __builtin_prefetch((const char *)at + distance);
        for (int i = 0; i < 4; i++) s[i] ^= at[i] ^ at[4 + i];
    }
    return s[0] ^ s[1] ^ s[2] ^ s[3];
}

void mg_limit_set_init(struct mg_limit_set *set, const struct mg_features *features) {
    *set = (struct mg_limit_set){0};
    mg_add_loop(set, "plain C", MG_LIMIT_F32, plain_f32);
    mg_add_reader(set, "plain C", plain_read);
#if defined(__x86_64__)
    if (features->tier >= MG_TIER_AVX2) mg_avx2_add_limits(set);
    if (features->tier >= MG_TIER_AVXVNNI && features->avx_vnni) mg_avxvnni_add_limits(set);
    if (features->tier >= MG_TIER_AVX512) mg_avx512_add_limits(set);
    if (features->tier >= MG_TIER_VNNI) mg_vnni_add_limits(set);
    if (features->tier >= MG_TIER_BF16) mg_bf16_add_limits(set);
    if (features->tier >= MG_TIER_AMX) mg_amx_add_limits(set);
#endif
}

size_t mg_limits_buffer_bytes(void) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t want = cache > 0 ? mg_min_size((size_t)cache, MAX_BUFFER) * 4 : MIN_BUFFER;
    want = mg_min_size(mg_max_size(want, MIN_BUFFER), MAX_BUFFER);
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long kb;
        if (sscanf(line, "MemAvailable: %llu", &kb) != 1) continue;
        want = mg_min_size(want, (size_t)kb * 1024 / 4);
        break;
    }
    if (f) fclose(f);
    return want;
}

/* --- over the pool */
struct job {
    const struct mg_limits *l;
    const struct mg_limit_loop *loop; /* NULL: read */
    size_t rounds;
    const uint8_t *from; /* of this reading slice */
    size_t reader, distance;
};

static void compute_task(void *arg, size_t task, size_t thread) {
    const struct job *j = arg;
    (void)task, (void)thread;
    j->loop->run(j->rounds);
}

static void read_task(void *arg, size_t task, size_t thread) {
    const struct job *j = arg;
    (void)thread;
    volatile uint64_t sink =
        j->l->set.reader[j->reader].run(j->from + task * READ_TASK, READ_TASK, j->distance);
    (void)sink;
}

static void fill_task(void *arg, size_t task, size_t thread) {
    const struct job *j = arg;
    (void)thread;
    uint64_t *w = (uint64_t *)(uintptr_t)(j->from + task * READ_TASK);
    for (size_t i = 0; i < READ_TASK / 8; i++) w[i] = (task * READ_TASK + i) * 0x9e3779b97f4a7c15u;
}

/* Operations a second of one slice of loop i. */
static double compute_slice(const struct mg_limits *l, size_t i) {
    struct job j = {.l = l, .loop = &l->set.loop[i], .rounds = l->rounds[i]};
    size_t n_task = TASKS_PER_THREAD * mg_pool_size(l->pool);
    double per_task = j.loop->run(1) * (double)j.rounds, t = mg_clock();
    mg_pool_run(l->pool, compute_task, &j, n_task);
    return per_task * (double)n_task / (mg_clock() - t);
}

/* Bytes a second of the next slice of the buffer, which was read longest ago. */
static double read_slice(struct mg_limits *l, size_t reader, size_t distance) {
    size_t n = mg_min_size(READ_SLICE, l->n_buffer);
    if (l->at + n > l->n_buffer) l->at = 0;
    struct job j = {.l = l, .from = l->buffer + l->at, .reader = reader, .distance = distance};
    double t = mg_clock();
    mg_pool_run(l->pool, read_task, &j, n / READ_TASK);
    t = mg_clock() - t;
    l->at += n;
    return (double)n / t;
}

static void calibrate(struct mg_limits *l) {
    static const size_t distance[] = {0, 1024, 2048, 4096, 8192, 16384};
    for (size_t i = 0; i < l->set.n_loop; i++) {
        double took = 0;
        for (l->rounds[i] = 64; took < TASK_SECONDS && l->rounds[i] < (size_t)1 << 32;) {
            l->rounds[i] *= 2;
            double t = mg_clock();
            l->set.loop[i].run(l->rounds[i]);
            took = mg_clock() - t;
        }
    }
    double best = 0;
    for (int pass = 0; pass < 2; pass++) /* twice: one disturbed slice must not decide */
        for (size_t r = 0; r < l->set.n_reader; r++)
            for (size_t d = 0; d < sizeof distance / sizeof distance[0]; d++) {
                double rate = read_slice(l, r, distance[d]);
                if (rate <= best) continue;
                best = rate;
                l->reader = r;
                l->distance = distance[d];
            }
}

enum mg_status mg_limits_open(struct mg_limits *l, const struct mg_features *features,
                              struct mg_pool *pool, size_t n_buffer, const struct mg_limits *other,
                              struct mg_err *err) {
    *l = (struct mg_limits){.pool = pool};
    mg_limit_set_init(&l->set, features);
    if (other) {
        l->buffer = other->buffer;
        l->n_buffer = other->n_buffer;
        l->at = other->at; /* what it read last may still be in a cache */
        l->borrowed = true;
    } else {
        l->n_buffer = mg_max_size(n_buffer / READ_SLICE, 1) * READ_SLICE;
        void *p =
            mmap(NULL, l->n_buffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            *l = (struct mg_limits){0};
            return mg_fail_memory(err, "the buffer for measuring the read bandwidth");
        }
        madvise(p, l->n_buffer, MADV_HUGEPAGE); /* where the system has none: a little slower */
        l->buffer = p;
        struct job j = {.l = l, .from = l->buffer};
        mg_pool_run(pool, fill_task, &j, l->n_buffer / READ_TASK);
    }
    calibrate(l);
    return MG_OK;
}

void mg_limits_close(struct mg_limits *l) {
    if (l->buffer && !l->borrowed) munmap(l->buffer, l->n_buffer);
    *l = (struct mg_limits){0};
}

static void take(struct mg_limit_samples *s, double rate) {
    s->rate[s->n++ % MG_MAX_LIMIT_SAMPLE] = rate;
    if (rate > s->best) s->best = rate;
}

void mg_limits_round(struct mg_limits *l) {
    for (size_t i = 0; i < l->set.n_loop; i++) {
        double best = 0;
        for (int s = 0; s < SLICES; s++) {
            double rate = compute_slice(l, i);
            if (rate > best) best = rate;
        }
        take(&l->loop[i], best);
    }
    double best = 0;
    for (int s = 0; s < 2 * SLICES; s++) {
        double rate = read_slice(l, l->reader, l->distance);
        if (rate > best) best = rate;
    }
    take(&l->read, best);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct mg_limit_rate rate_of(const struct mg_limit_samples *s, const char *name) {
    double sorted[MG_MAX_LIMIT_SAMPLE];
    size_t n = mg_min_size(s->n, MG_MAX_LIMIT_SAMPLE);
    if (n == 0) return (struct mg_limit_rate){.name = ""};
    memcpy(sorted, s->rate, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_size);
    double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    return (struct mg_limit_rate){.median = median, .best = s->best, .name = name};
}

struct mg_limit_rate mg_limits_loop_rate(const struct mg_limits *l, size_t loop) {
    return rate_of(&l->loop[loop], l->set.loop[loop].name);
}

struct mg_limit_rate mg_limits_rate(const struct mg_limits *l, enum mg_limit kind) {
    struct mg_limit_rate best = {.name = ""};
    if (kind == MG_LIMIT_READ) return rate_of(&l->read, l->set.reader[l->reader].name);
    for (size_t i = 0; i < l->set.n_loop; i++) {
        enum mg_limit k = l->set.loop[i].kind;
        if (k != kind && !(kind == MG_LIMIT_BF16 && k == MG_LIMIT_F32)) continue;
        struct mg_limit_rate r = mg_limits_loop_rate(l, i);
        if (r.median > best.median) best = r;
    }
    return best;
}
