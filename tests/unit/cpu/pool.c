/* The thread pool: every task exactly once whatever the counts, late workers, open and close,
 * sleep, mode of the floating-point unit. Run it under -Db_sanitize=thread too. With the argument
 * "time" it prints the cost of an empty job instead. */
#include "base/io.h"
#include "cpu/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* How much fewer jobs a sanitizer's build runs. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SLOW 20
#elif defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SLOW 5
#else
#define SLOW 1
#endif

static uint64_t random_state = 1;
static uint64_t random_u64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static struct mg_pool *open_pool(int n_thread) {
    struct mg_pool *pool;
    struct mg_err err = {0};
    assert_int_equal(mg_pool_open(n_thread, NULL, &pool, &err), MG_OK);
    assert_int_equal(mg_pool_size(pool), n_thread);
    return pool;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Plain memory on purpose: TSan and the sums find a task that ran twice or in another job. */
struct job {
    uint64_t stamp;
    uint64_t out[256];
    size_t n_task, n_thread;
};

static void stamp_task(void *arg, size_t task, size_t thread) {
    struct job *j = arg;
    if (task < j->n_task && thread < j->n_thread) j->out[task] += j->stamp + task;
}

static void other_task(void *arg, size_t task, size_t thread) {
    struct job *j = arg;
    if (task < j->n_task && thread < j->n_thread) j->out[task] += 3 * j->stamp + task;
}

static void run_jobs(int n_thread, size_t n_job) {
    struct mg_pool *pool = open_pool(n_thread);
    static struct job job[2]; /* in turn, as the scratch of two layers would be */
    for (size_t i = 0; i < n_job; i++) {
        struct job *j = &job[i & 1];
        uint64_t r = random_u64();
        size_t n = r % 8 == 0 ? (r >> 8) % 257 : (r >> 8) % 6; /* 0 and 1 often */
        *j = (struct job){.stamp = r, .n_task = n, .n_thread = (size_t)n_thread};
        mg_task_fn *fn = r & 64 ? stamp_task : other_task;
        mg_pool_run(pool, fn, j, n);
        uint64_t scale = r & 64 ? 1 : 3;
        for (size_t k = 0; k < 256; k++)
            if (j->out[k] != (k < n ? scale * r + k : 0))
                fail_msg("job %zu of %zu tasks, %d threads: task %zu is wrong", i, n, n_thread, k);
    }
    mg_pool_close(pool);
}

static void many_tiny_jobs(void **state) {
    (void)state;
    run_jobs(1, 100000 / SLOW);
    run_jobs(2, 2000000 / SLOW);
    run_jobs(3, 300000 / SLOW);
}

static void more_threads_than_processors(void **state) {
    (void)state;
    double begin = mg_clock();
    run_jobs(16, 200000 / SLOW);
    run_jobs(64, 20000 / SLOW);
    double took = mg_clock() - begin;
    if (took > 60) fail_msg("crawls: %.1f s", took);
}

static void unequal_task(void *arg, size_t task, size_t thread) {
    (void)thread;
    uint64_t *out = arg, x = task + 1;
    for (size_t i = 0; i < task * task; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    out[task] = x;
}

static void results_do_not_depend_on_threads(void **state) {
    (void)state;
    uint64_t want[100], got[100];
    mg_pool_run(NULL, unequal_task, want, 100);
    for (int n_thread = 1; n_thread <= 8; n_thread++) {
        struct mg_pool *pool = open_pool(n_thread);
        memset(got, 0, sizeof got);
        mg_pool_run(pool, unequal_task, got, 100);
        assert_memory_equal(got, want, sizeof got);
        mg_pool_close(pool);
    }
}

/* Workers asleep at each job, and a caller that has to sleep for the last one. */
static void sleepy_task(void *arg, size_t task, size_t thread) {
    (void)thread;
    atomic_int *n = arg;
    if (task == 1) usleep(2000);
    atomic_fetch_add(n, 1);
}

static void both_sides_sleep(void **state) {
    (void)state;
    struct mg_pool *pool = open_pool(4);
    for (int i = 0; i < 100; i++) {
        atomic_int n = 0;
        mg_pool_run(pool, sleepy_task, &n, 4);
        assert_int_equal(atomic_load(&n), 4);
        if (i % 4 == 0) usleep((useconds_t)(random_u64() % 400));
    }
    mg_pool_close(pool);
}

static size_t count_lines(const char *path, const char *key) {
    FILE *f = fopen(path, "re");
    char line[256];
    unsigned long v = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) v = strtoul(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return v;
}

static void opening_leaks_nothing(void **state) {
    (void)state;
    size_t anon0 = 0, anon1, peak;
    /* a sanitizer may have one of its own, made with the first of ours */
    mg_pool_close(open_pool(2));
    size_t n_thread0 = count_lines("/proc/self/status", "Threads:");
    assert_true(n_thread0 <= 2);
    for (int i = 0; i < 1000; i++) {
        struct mg_pool *pool = open_pool(1 + i % 5);
        atomic_int n = 1;
        if (i % 2) mg_pool_run(pool, sleepy_task, &n, 1);
        mg_pool_close(pool);
        if (i == 200) mg_memory_use(&anon0, &peak);
    }
    mg_pool_close(NULL);
    mg_memory_use(&anon1, &peak);
    /* a joined thread is counted until the kernel has done with it, a moment after the join */
    size_t n_thread = 0;
    for (int i = 0; i < 5000; i++) {
        n_thread = count_lines("/proc/self/status", "Threads:");
        if (n_thread == n_thread0) break;
        usleep(1000);
    }
    assert_int_equal(n_thread, n_thread0);
    if (SLOW == 1 && anon1 > anon0 + (256 << 10))
        fail_msg("grew from %zu to %zu bytes", anon0, anon1);
}

static void idle_pool_uses_no_time(void **state) {
    (void)state;
    struct mg_pool *pool = open_pool(8);
    atomic_int n = 0;
    mg_pool_run(pool, sleepy_task, &n, 8);
    usleep(50000); /* all have stopped spinning */
    double before = cpu_seconds();
    usleep(500000);
    double used = cpu_seconds() - before;
    mg_pool_close(pool);
    if (used > 0.005 * SLOW) fail_msg("idle for 0.5 s, used %.4f s", used);
}

/* 1e-39 is a denormal, and so is half of it, unless inputs are taken as zero. */
struct denormal {
    volatile float in, half;
    float out[64];
};
static void denormal_task(void *arg, size_t task, size_t thread) {
    (void)thread;
    struct denormal *d = arg;
    d->out[task] = d->in * d->half;
    usleep(200);
}

static void denormals_are_flushed_inside_only(void **state) {
    (void)state;
#if defined(__x86_64__) || defined(__aarch64__)
    static const int threads[] = {0, 1, 2, 4};
    for (size_t i = 0; i < 4; i++) {
        struct mg_pool *pool = threads[i] ? open_pool(threads[i]) : NULL;
        for (size_t n = 1; n <= 64; n += 63) {
            struct denormal d = {.in = 1e-39f, .half = 0.5f};
            for (size_t k = 0; k < 64; k++) d.out[k] = 1;
            mg_pool_run(pool, denormal_task, &d, n);
            for (size_t k = 0; k < n; k++) assert_true(d.out[k] == 0.0f);
            volatile float y = d.in * d.half;
            assert_true(y > 0.0f);
        }
        mg_pool_close(pool);
    }
#else
    skip();
#endif
}

static void place_task(void *arg, size_t task, size_t thread) {
    int *at = arg;
    (void)task;
    at[thread] = sched_getcpu();
    usleep(500);
}

static void pins_and_survives_bad_pins(void **state) {
    (void)state;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int cpu[3], n = 0, at[3] = {-1, -1, -1};
    for (int c = 0; c < CPU_SETSIZE && n < 3; c++)
        if (CPU_ISSET(c, &before)) cpu[n++] = c;
    struct mg_pool *pool;
    assert_int_equal(mg_pool_open(n, cpu, &pool, NULL), MG_OK);
    for (int i = 0; i < 20; i++) mg_pool_run(pool, place_task, at, 16);
    for (int i = 0; i < n; i++)
        if (at[i] >= 0) assert_int_equal(at[i], cpu[i]);
    mg_pool_close(pool);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));

    mg_log_set_level(MG_LOG_ERROR); /* the warnings are meant */
    int bad[3] = {1023, 99999, -7};
    assert_int_equal(mg_pool_open(3, bad, &pool, NULL), MG_OK);
    mg_pool_run(pool, place_task, at, 16);
    mg_pool_close(pool);
    mg_log_set_level(MG_LOG_WARN);
}

static void wrong_counts_are_refused(void **state) {
    (void)state;
    static const int wrong[] = {0, -1, -2147483647, MG_MAX_THREAD + 1, 2147483647};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct mg_pool *pool = (struct mg_pool *)&wrong;
        struct mg_err err = {0};
        assert_int_equal(mg_pool_open(wrong[i], NULL, &pool, &err), MG_ERR_ARGUMENT);
        assert_null(pool);
        assert_non_null(strstr(err.text, "1 to 1024"));
    }
}

static void too_many_threads_is_an_error(void **state) {
    (void)state;
#if SLOW > 1
    skip(); /* a sanitizer's shadow needs more than the limit */
#else
    struct rlimit old, tight;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    tight = old;
    tight.rlim_cur = 256u << 20; /* 500 stacks of 2 MB don't fit */
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    struct mg_pool *pool;
    struct mg_err err = {0};
    enum mg_status status = mg_pool_open(500, NULL, &pool, &err);
    setrlimit(RLIMIT_AS, &old);
    assert_int_equal(status, MG_ERR_LIMIT);
    assert_null(pool);
    assert_int_equal(count_lines("/proc/self/status", "Threads:"), 1);
#endif
}

static void no_task(void *arg, size_t task, size_t thread) { (void)arg, (void)task, (void)thread; }

/* Each waits for the other: both threads must take part. */
static void meet_task(void *arg, size_t task, size_t thread) {
    atomic_int *n = arg;
    (void)task, (void)thread;
    atomic_fetch_add(n, 1);
    while (atomic_load(n) < 2) {}
}

/* Microseconds of a job: the best of short rounds during one second, so that a busy machine
 * disturbs little. */
static double job_us(struct mg_pool *pool, mg_task_fn *fn, size_t n_task, double pause_us) {
    enum { N_JOB = 20 };
    double best = 1e9, stop = mg_clock() + 1;
    while (mg_clock() < stop) {
        double sum = 0;
        for (int i = 0; i < N_JOB; i++) {
            atomic_int n = 0;
            double begin = mg_clock();
            mg_pool_run(pool, fn, &n, n_task);
            double end = mg_clock();
            sum += end - begin;
            while (pause_us > 0 && mg_clock() < end + pause_us * 1e-6) {}
        }
        if (sum / N_JOB < best) best = sum / N_JOB;
    }
    return best * 1e6;
}

static int print_times(void) {
    for (int n_thread = 1; n_thread <= 4; n_thread++) {
        struct mg_pool *pool = open_pool(n_thread);
        printf("%d threads, %d empty tasks: %.2f us a job\n", n_thread, 2 * n_thread,
               job_us(pool, no_task, 2 * (size_t)n_thread, 0));
        if (n_thread == 2) {
            printf("2 threads that both take part: %.2f us, after 10 us of pause %.2f us\n",
                   job_us(pool, meet_task, 2, 0), job_us(pool, meet_task, 2, 10));
            printf("the second one asleep (200 us of pause): %.2f us\n",
                   job_us(pool, meet_task, 2, 200));
        }
        mg_pool_close(pool);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "time") == 0) return print_times();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_leaks_nothing),
        cmocka_unit_test(many_tiny_jobs),
        cmocka_unit_test(more_threads_than_processors),
        cmocka_unit_test(results_do_not_depend_on_threads),
        cmocka_unit_test(both_sides_sleep),
        cmocka_unit_test(idle_pool_uses_no_time),
        cmocka_unit_test(denormals_are_flushed_inside_only),
        cmocka_unit_test(pins_and_survives_bad_pins),
        cmocka_unit_test(wrong_counts_are_refused),
        cmocka_unit_test(too_many_threads_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
