/* tests/kernel/kernel.c - every function of every tier up to the machine's, once per distinct
 * pointer.
 *
 * Prints `ok|not ok - TIER OP (worst X of bound)`, `SKIP tier NAME` for what the machine lacks, and
 * the closing line `kernel: N passed, N failed, N skipped`; exit 1 on any failure. A crash is
 * caught and blamed on the function. Arguments: names of tiers to test (all by default). Tiers
 * above the machine's can be run under qemu-user:
 *     qemu-x86_64 -cpu max tests/kernel/kernel avx2
 */
#include "check.h"

#include "kernels/x86/x86.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int passed, failed, skipped;
static sigjmp_buf crash_jump;
static volatile sig_atomic_t armed;

/* --- guarded buffers */
enum { MAX_BLOCKS = 64 };
static struct {
    void *map;
    size_t size;
} blocks[MAX_BLOCKS];
static size_t n_blocks;

void *guard_alloc(const struct check *c, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    char *map = mmap(NULL, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || n_blocks == MAX_BLOCKS ||
        (body && mprotect(map + page, body, PROT_READ | PROT_WRITE))) {
        printf("Bail out! no memory for guarded buffers\n");
        exit(2);
    }
    blocks[n_blocks].map = map;
    blocks[n_blocks++].size = body + 2 * page;
    memset(map + page, 0xff, body);
    return c->at_end ? map + page + body - bytes : map + page;
}

void guard_free_all(void) {
    while (n_blocks) {
        n_blocks--;
        munmap(blocks[n_blocks].map, blocks[n_blocks].size);
    }
}

/* --- numbers: splitmix64 */
static uint64_t state;
void rand_seed(uint64_t seed) { state = seed; }
uint64_t rand_u64(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
double rand_unit(void) { return (double)(int64_t)rand_u64() * 0x1p-63; }
double rand_normal(void) {
    double s = 0;
    for (int i = 0; i < 4; i++) s += rand_unit();
    return s * 0.8660254037844386; /* variance of one is 1/3 */
}

/* --- comparing */
bool same_bits(float a, float b) { return !memcmp(&a, &b, 4); }

static void blame(struct check *c, const char *text) {
    if (!c->failed)
        printf("# %s %s: %s\n#   case %s, guard page %s, seed %llu\n", c->tier, c->op, text,
               c->where, c->at_end ? "behind" : "in front", (unsigned long long)c->seed);
    c->failed = true;
}

bool check_near(struct check *c, size_t row, size_t col, double got, double want, double bound) {
    if (isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= bound) {
        if (isfinite(want) && bound > 0 && fabs(got - want) / bound > c->worst)
            c->worst = fabs(got - want) / bound;
        return true;
    }
    char text[200];
    snprintf(text, sizeof text, "first difference at [%zu][%zu]: got %.9g, want %.9g, bound %.3g",
             row, col, got, want, bound);
    blame(c, text);
    return false;
}

bool check_true(struct check *c, bool ok, const char *what, size_t row, size_t col) {
    if (ok) return true;
    char text[200];
    snprintf(text, sizeof text, "%s at [%zu][%zu]", what, row, col);
    blame(c, text);
    return false;
}

/* --- running */
static void on_crash(int sig) {
    if (!armed) _exit(3);
    armed = 0;
    siglongjmp(crash_jump, sig);
}

void run_op(struct check *c, const char *op, void (*f)(struct check *c)) {
    c->op = op;
    c->worst = 0;
    c->failed = false;
    strcpy(c->where, "none");
    for (volatile int side = 0; side < 2; side++) {
        c->at_end = side == 0;
        int sig = sigsetjmp(crash_jump, 1);
        if (sig) {
            blame(c, sig == SIGILL ? "illegal instruction" : "touched memory outside its buffers");
        } else {
            armed = 1;
            f(c);
        }
        armed = 0;
        guard_free_all();
    }
    printf("%s - %s %s (worst %.3f of bound)\n", c->failed ? "not ok" : "ok", c->tier, op,
           c->worst);
    fflush(stdout);
    c->failed ? failed++ : passed++;
}

/* Tables tested so far: a function met again needs no second test. */
static struct mg_kernels done[MG_N_TIER + 2];
static size_t n_done;

#define NEW(field) is_new(t, offsetof(struct mg_kernels, field))
static bool is_new(const struct mg_kernels *t, size_t offset) {
    for (size_t i = 0; i < n_done; i++)
        if (!memcmp((const char *)t + offset, (const char *)&done[i] + offset,
                    sizeof(void (*)(void))))
            return false;
    return true;
}

static void run_table(const struct mg_kernels *t, const char *name) {
    static const struct {
        const char *op;
        size_t offset;
    } vector[] = {
        {"rms_norm", offsetof(struct mg_kernels, rms_norm)},
        {"layer_norm", offsetof(struct mg_kernels, layer_norm)},
        {"rope", offsetof(struct mg_kernels, rope)},
        {"add", offsetof(struct mg_kernels, add)},
        {"gelu_tanh", offsetof(struct mg_kernels, gelu_tanh)},
        {"gelu_erf", offsetof(struct mg_kernels, gelu_erf)},
        {"silu_mul", offsetof(struct mg_kernels, silu_mul)},
        {"softmax", offsetof(struct mg_kernels, softmax)},
        {"widen", offsetof(struct mg_kernels, widen)},
        {"to_bf16", offsetof(struct mg_kernels, to_bf16)},
        {"all_finite", offsetof(struct mg_kernels, all_finite)},
        {"argmax", offsetof(struct mg_kernels, argmax)},
    };
    struct check c = {.t = t, .tier = name, .sweep = t->tier != MG_TIER_REF};
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++)
        if (is_new(t, vector[i].offset)) run_op(&c, vector[i].op, check_vector);
    if (NEW(prepare)) run_op(&c, "prepare", check_prepare);
    if (NEW(matmul)) run_op(&c, "matmul", check_matmul);
    if (NEW(quantise)) run_op(&c, "quantise", check_quantise);
    if (NEW(packed_matmul)) run_op(&c, "packed_matmul", check_packed);
    if (NEW(attention)) run_op(&c, "attention", check_attention);
    done[n_done++] = *t;
}

static const char standin[] = "amx-standin"; /* the AMX kernels on tiles in plain C */

static bool wanted(const char *name, int argc, char **argv) {
    bool hit = argc < 2;
    for (int i = 1; i < argc; i++) hit |= !strcmp(argv[i], name);
    return hit;
}

int main(int argc, char **argv) {
    struct sigaction act = {.sa_handler = on_crash, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
    sigaction(SIGILL, &act, NULL);
    struct mg_features machine;
    mg_features_detect(&machine);
    if (*machine.warning) printf("# %s\n", machine.warning);
    printf("# %s, up to %s (%s)\n", machine.brand, mg_tier_name(machine.tier), machine.reason);
    for (int tier = 0; tier < MG_N_TIER; tier++) {
        const char *name = mg_tier_name((enum mg_tier)tier);
        if (tier > (int)machine.tier || (tier == MG_TIER_AVXVNNI && !machine.avx_vnni)) {
            printf("SKIP tier %s\n", name);
            skipped++;
            continue;
        }
        if (!wanted(name, argc, argv)) continue;
        struct mg_features f = machine;
        struct mg_kernels t;
        f.tier = (enum mg_tier)tier;
        f.intel = true;     /* bf16 mode by f32 multiply-add */
        f.avx_vnni = tier == MG_TIER_AVXVNNI;
        mg_kernels_init(&t, &f);
        run_table(&t, name);
        if (tier != MG_TIER_BF16) continue;
        f.intel = false; /* by vdpbf16ps */
        mg_kernels_init(&t, &f);
        run_table(&t, "bf16");
    }
#if defined(__x86_64__)
    if (machine.best >= MG_TIER_AVX2 && wanted(standin, argc, argv)) {
        struct mg_features f = machine;
        struct mg_kernels t;
        f.tier = MG_TIER_AVX2;
        mg_kernels_init(&t, &f);
        mg_standin_init_packed(&t);
        mg_standin_init_matmul(&t);
        mg_standin_init_attention(&t);
        run_table(&t, standin);
    }
#endif
    printf("kernel: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}
