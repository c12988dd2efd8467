/* The loops that measure the machine: they read every byte they claim, and count what they do. */
#include "kernels/limits.h"

#include "base/io.h"
#include "base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

static struct mg_features machine;

/* Every tier up to the machine's, so that no loop is left out where a higher one covers it. */
static struct mg_limit_set set_of(int tier) {
    struct mg_features f = machine;
    struct mg_limit_set set;
    f.tier = (enum mg_tier)tier;
    mg_limit_set_init(&set, &f);
    return set;
}

/* A reader's word against a plain sum over the same bytes, up against an unreadable page. */
static void test_readers_read_all(void **state) {
    (void)state;
    enum { PAGE = 4096, MAX = 4 * PAGE };
    uint8_t *map =
        mmap(NULL, MAX + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + MAX, PAGE, PROT_NONE), 0);
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < MAX / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(map + 8 * i, &x, 8);
    }
    struct mg_limit_set set = set_of((int)machine.best);
    assert_true(set.n_reader >= 1);
    for (size_t r = 0; r < set.n_reader; r++)
        for (size_t n = 0; n <= MAX; n += 512)
            for (size_t distance = 0; distance <= 4096; distance += 2048) {
                uint64_t want = 0, word;
                for (size_t i = 0; i < n; i += 8) memcpy(&word, map + MAX - n + i, 8), want ^= word;
                if (set.reader[r].run(map + MAX - n, n, distance) != want)
                    fail_msg("%s, %zu bytes", set.reader[r].name, n);
            }
    munmap(map, MAX + PAGE);
}

/* The count grows by the round, and is the instruction's own: sums x lanes x products x 2. */
static void test_operations(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double per_round;
    } want[] = {
        {"plain C", 16 * 2},
        {"vfmadd, 256 bits", 12 * 8 * 2},
        {"vpmaddubsw, 256 bits", 12 * 8 * 4 * 2},
        {"vpdpbusd, 256 bits", 12 * 8 * 4 * 2},
        {"vfmadd, 512 bits", 16 * 16 * 2},
        {"vpmaddubsw, 512 bits", 16 * 16 * 4 * 2},
        {"vpdpbusd, 512 bits", 16 * 16 * 4 * 2},
        {"vdpbf16ps, 512 bits", 16 * 16 * 2 * 2},
        {"tdpbusd", 6.0 * 16 * 16 * 64 * 2},
        {"tdpbf16ps", 6.0 * 16 * 16 * 32 * 2},
    };
    size_t before = 0;
    for (int tier = 0; tier <= (int)machine.best; tier++) {
        if (tier == MG_TIER_AVXVNNI && !machine.avx_vnni) continue;
        struct mg_limit_set set = set_of(tier);
        assert_true(set.n_loop > before);
        before = set.n_loop;
        for (size_t i = 0; i < set.n_loop; i++) {
            size_t k = 0, n = sizeof want / sizeof want[0];
            while (k < n && strcmp(want[k].name, set.loop[i].name)) k++;
            if (k == n) fail_msg("%s isn't in this table", set.loop[i].name);
            assert_true(set.loop[i].run(0) == 0);
            assert_true(set.loop[i].run(1000) == 1000 * want[k].per_round);
        }
    }
}

/* Two pools on one buffer: rates are there, finite, and the best is no less than the median. */
static void test_measure(void **state) {
    (void)state;
    struct mg_err err = {0};
    struct mg_pool *pool = NULL;
    struct mg_limits one, two;
    assert_int_equal(mg_pool_open(2, NULL, &pool, &err), MG_OK);
    assert_int_equal(mg_limits_open(&two, &machine, pool, 1, NULL, &err), MG_OK);
    assert_int_equal(mg_limits_open(&one, &machine, NULL, 0, &two, &err), MG_OK);
    struct mg_limits *each[2] = {&one, &two};
    for (int i = 0; i < 2; i++) {
        assert_true(mg_limits_rate(each[i], MG_LIMIT_F32).median == 0); /* nothing measured yet */
        mg_limits_round(each[i]);
        mg_limits_round(each[i]);
        for (int kind = 0; kind < MG_N_LIMIT; kind++) {
            struct mg_limit_rate r = mg_limits_rate(each[i], (enum mg_limit)kind);
            bool has = kind != MG_LIMIT_INT8 || machine.tier >= MG_TIER_AVX2;
            assert_true(isfinite(r.median) && isfinite(r.best) && r.best >= r.median);
            assert_int_equal(r.median > 0, has);
            assert_int_equal(r.name[0] != 0, has);
        }
        double f32 = mg_limits_rate(each[i], MG_LIMIT_F32).median;
        assert_true(mg_limits_rate(each[i], MG_LIMIT_BF16).median >= f32);
    }
    assert_ptr_equal(one.buffer, two.buffer);
    mg_limits_close(&one);
    mg_limits_close(&two);
    mg_pool_close(pool);
}

/* The median of what the ring holds, by numbers put in by hand. */
static void test_median(void **state) {
    (void)state;
    struct mg_limits l = {0};
    l.set = set_of(MG_TIER_REF);
    double rate[] = {5, 1, 4, 2};
    memcpy(l.loop[0].rate, rate, sizeof rate);
    l.loop[0].n = 4;
    l.loop[0].best = 7;
    assert_true(mg_limits_rate(&l, MG_LIMIT_F32).median == 3);
    assert_true(mg_limits_rate(&l, MG_LIMIT_F32).best == 7);
    l.loop[0].n = 3;
    assert_true(mg_limits_loop_rate(&l, 0).median == 4);
    for (size_t i = 0; i < MG_MAX_LIMIT_SAMPLE; i++) l.loop[0].rate[i] = 9;
    l.loop[0].n = 1000;
    assert_true(mg_limits_loop_rate(&l, 0).median == 9);
}

int main(void) {
    mg_features_detect(&machine);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_read_all),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_median),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
