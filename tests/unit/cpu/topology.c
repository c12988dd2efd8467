/* How many threads, and where, on the machines of fixtures/ (made by make_fixtures.py); the
 * numbers wanted are worked out by hand. Rows 62 and 64 of the list of known faults. Then the same
 * files with random damage. */
#include "base/io.h"
#include "cpu/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES "tests/unit/cpu/fixtures/"

struct want {
    const char *name;
    int n_online, n_affinity, n_core, n_core_near, n_node;
    double quota;
    const char *quota_path;
    int n_thread;
    const char *cpu; /* joined by spaces */
    size_t memory;
    const char *memory_path;
};

#define GIB ((size_t)1 << 30)
static const struct want wants[] = {
    {"no_quota", 4, 4, 4, 4, 1, 0, "", 4, "0 1 2 3", 0, ""},
    {"v2_quota_1.5", 8, 8, 8, 8, 1, 1.5, "/sys/fs/cgroup", 2, "0 1 2 3 4 5 6 7", 4 * GIB,
     "/sys/fs/cgroup"},
    {"v2_grandparent_2", 8, 8, 8, 8, 1, 2, "/sys/fs/cgroup/kubepods", 2, "0 1 2 3 4 5 6 7", GIB,
     "/sys/fs/cgroup/kubepods/pod1"},
    {"v1_quota_2.5", 8, 8, 8, 8, 1, 2.5, "/sys/fs/cgroup/cpu,cpuacct", 3, "0 1 2 3 4 5 6 7",
     2 * GIB, "/sys/fs/cgroup/memory"},
    {"v1_parent_3", 8, 8, 8, 8, 1, 3, "/sys/fs/cgroup/cpu/a", 3, "0 1 2 3 4 5 6 7", 0, ""},
    {"v2_outside", 8, 8, 8, 8, 1, 6, "/odd place", 6, "0 1 2 3 4 5 6 7", 0, ""},
    {"v2_bind", 8, 8, 8, 8, 1, 4.5, "/sys/fs/cgroup/inner", 5, "0 1 2 3 4 5 6 7", 0, ""},
    {"quota_below_one", 4, 4, 4, 4, 1, 0.2, "/sys/fs/cgroup", 1, "0 1 2 3", 0, ""},
    {"cpuset_0-1_of_16", 16, 2, 2, 2, 1, 0, "", 2, "0 1", 0, ""},
    {"smt_4c8t", 8, 8, 4, 4, 1, 0, "", 4, "0 1 2 3", 0, ""},
    {"smt_part", 8, 4, 3, 3, 1, 0, "", 3, "1 2 6", 0, ""},
    {"two_nodes", 16, 16, 8, 4, 2, 0, "", 4, "0 1 2 3 4 5 6 7", 0, ""},
    {"two_nodes_part", 16, 10, 5, 4, 2, 0, "", 4, "4 5 6 7 3", 0, ""},
    {"four_nodes", 8, 8, 8, 4, 4, 0, "", 4, "0 4 2 6 1 5 3 7", 0, ""},
    {"offline", 6, 6, 6, 6, 1, 0, "", 6, "0 1 2 5 6 7", 0, ""},
    {"no_sysfs", 3, 3, 3, 3, 1, 0, "", 3, "0 1 2", 0, ""},
    {"nothing", 1, 1, 1, 1, 1, 0, "", 1, "0", 0, ""},
    {"contradiction", 4, 2, 2, 2, 1, 0, "", 2, "8 9", 0, ""},
    {"garbage", 4, 4, 4, 4, 1, 0, "", 4, "0 1 2 3", 0, ""},
};

static void known_machines(void **state) {
    (void)state;
    static struct mg_topology t;
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        const struct want *w = &wants[i];
        char root[256], cpu[256] = "";
        snprintf(root, sizeof root, "%s%s", FIXTURES, w->name);
        mg_topology_read(root, &t);
        for (int k = 0; k < t.n_core && strlen(cpu) < 200; k++)
            snprintf(cpu + strlen(cpu), sizeof cpu - strlen(cpu), "%s%d", k ? " " : "", t.cpu[k]);
        if (t.n_online != w->n_online || t.n_affinity != w->n_affinity || t.n_core != w->n_core ||
            t.n_core_near != w->n_core_near || t.n_node != w->n_node || t.n_thread != w->n_thread ||
            t.quota < w->quota - 1e-9 || t.quota > w->quota + 1e-9 ||
            strcmp(t.quota_path, w->quota_path) || strcmp(cpu, w->cpu) ||
            t.memory_limit != w->memory || strcmp(t.memory_path, w->memory_path))
            fail_msg("%s: online %d affinity %d cores %d near %d nodes %d quota %g (%s) threads %d "
                     "on %s, "
                     "memory %zu (%s)",
                     w->name, t.n_online, t.n_affinity, t.n_core, t.n_core_near, t.n_node, t.quota,
                     t.quota_path, t.n_thread, cpu, t.memory_limit, t.memory_path);
    }
}

static void nodes_are_told(void **state) {
    (void)state;
    static struct mg_topology t;
    mg_topology_read(FIXTURES "two_nodes_part", &t);
    static const int node[] = {1, 1, 1, 1, 0};
    assert_memory_equal(t.node, node, sizeof node);
    mg_topology_read(FIXTURES "four_nodes", &t);
    static const int nodes[] = {0, 0, 2, 2, 1, 1, 3, 3};
    assert_memory_equal(t.node, nodes, sizeof nodes);
}

static void check_sane(const struct mg_topology *t) {
    assert_in_range(t->n_online, 1, MG_MAX_CPU);
    assert_in_range(t->n_affinity, 1, MG_MAX_CPU);
    assert_in_range(t->n_core, 1, t->n_affinity);
    assert_in_range(t->n_core_near, 1, t->n_core);
    assert_in_range(t->n_thread, 1, t->n_core_near);
    assert_in_range(t->n_node, 1, MG_MAX_CPU);
    assert_true(t->quota >= 0);
    static uint8_t seen[MG_MAX_CPU];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < t->n_core; i++) {
        assert_in_range(t->cpu[i], 0, MG_MAX_CPU - 1);
        assert_int_equal(seen[t->cpu[i]]++, 0);
    }
}

static void this_machine(void **state) {
    (void)state;
    static struct mg_topology t;
    mg_topology_read("", &t);
    check_sane(&t);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        assert_int_equal(t.n_affinity, CPU_COUNT(&set));
        for (int i = 0; i < t.n_core; i++) assert_true(CPU_ISSET(t.cpu[i], &set));
    }
}

static uint64_t random_state = 42;
static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static char work[] = "/tmp/mg-topology-XXXXXX";

static void copy_damaged(const char *from, const char *to) {
    struct mg_buf b = {0};
    assert_int_equal(mg_file_read(from, 1 << 20, &b, NULL), MG_OK);
    static const char bytes[] = "0123456789-,:/\\ \n\t.xmax-1\xff";
    if (b.n && random_u32() % 3 == 0) {
        for (uint32_t i = 0, n = 1 + random_u32() % 8; i < n; i++) {
            size_t at = random_u32() % b.n;
            switch (random_u32() % 3) {
            case 0: b.data[at] = (uint8_t)random_u32(); break;
            case 1: b.data[at] = (uint8_t)bytes[random_u32() % (sizeof bytes - 1)]; break;
            default: b.n = at + 1; break;
            }
        }
    }
    FILE *f = fopen(to, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data ? (void *)b.data : "", 1, b.n, f), b.n);
    fclose(f);
    mg_buf_free(&b);
}

static const char *tree;
static int copy_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)ftw;
    char to[1024];
    snprintf(to, sizeof to, "%s/t%s", work, path + strlen(tree));
    if (kind == FTW_D)
        mkdir(to, 0700);
    else
        copy_damaged(path, to);
    return 0;
}
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static void damaged_files(void **state) {
    (void)state;
    static struct mg_topology t;
    static const char *names[] = {"v2_grandparent_2", "v1_quota_2.5", "smt_part", "two_nodes",
                                  "garbage"};
    assert_non_null(mkdtemp(work));
    for (int round = 0; round < 30; round++) {
        for (size_t i = 0; i < 5; i++) {
            char name[256], copy[256];
            snprintf(name, sizeof name, "%s%s", FIXTURES, names[i]);
            snprintf(copy, sizeof copy, "%s/t", work);
            tree = name;
            assert_int_equal(nftw(name, copy_one, 16, 0), 0);
            mg_topology_read(copy, &t);
            check_sane(&t);
            assert_int_equal(nftw(copy, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
        }
    }
    rmdir(work);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_machines),
        cmocka_unit_test(nodes_are_told),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
