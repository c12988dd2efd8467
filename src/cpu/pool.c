/* cpu/pool.c - see pool.h.
 *
 * All of the protocol lives in one 64-bit word, `state`:
 *
 *     63            32 31      19  18    17    16  15          0
 *     [ job number    |          |WAIT |QUIT |OPEN| n_active   ]
 *
 * A job is published by one store with a new job number and OPEN. A worker joins by a
 * compare-and-swap that adds 1 to n_active and succeeds only while OPEN stands, so that a worker
 * which wakes late can neither read the fields of a job that is being replaced nor take a task of
 * the next job with the last one's function: it joins the job whose number it read in that same
 * word, or none. Whoever joined draws tasks from `next` and leaves by subtracting 1. When the
 * caller finds no task left it clears OPEN (nobody joins any more) and waits for n_active = 0;
 * after that fn, arg, n_task and `next` belong to the caller alone again.
 *
 * Sleeping: a worker counts itself in n_sleep and looks at `state` again before it waits on
 * `wake`; the caller stores `state` and then looks at n_sleep. All four are sequentially
 * consistent, so one of the two sees the other. The caller sleeps on `done` after setting WAIT,
 * which the last worker finds in the word it leaves by.
 */
#include "cpu/pool.h"

#include "base/io.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define N_ACTIVE 0xFFFFu
#define OPEN ((uint64_t)1 << 16)
#define QUIT ((uint64_t)1 << 17)
#define WAIT ((uint64_t)1 << 18)
#define JOB ((uint64_t)1 << 32)

#define LINE 128 /* two cache lines: the prefetcher fetches them in pairs */
#define STACK_BYTES (2u << 20)
/* A decoder layer's serial parts are far shorter than SPIN_NS, a pause between requests far
 * longer. With more threads than processors whoever spins keeps another from working. */
#define SPIN_NS 80000
#define SPIN_NS_CROWDED 2000

struct worker {
    struct mg_pool *pool;
    pthread_t thread;
    size_t index; /* thread number that tasks see, 1 .. n_thread-1 */
    int cpu;      /* to pin to, or -1 */
};

struct mg_pool {
    /* Line 1: the word, and the job that it publishes. Written by the caller while n_active = 0
     * and not OPEN. */
    _Alignas(LINE) _Atomic uint64_t state;
    mg_task_fn *fn;
    void *arg;
    size_t n_task;
    _Alignas(LINE) atomic_size_t next;    /* the first task that nobody has taken */
    _Alignas(LINE) _Atomic uint32_t wake; /* workers wait for it to change */
    _Atomic uint32_t n_sleep;             /* workers that wait, or are about to */
    _Alignas(LINE) _Atomic uint32_t done; /* the caller waits for it to change */
    /* Constant after mg_pool_open. */
    _Alignas(LINE) struct worker *worker; /* n_thread - 1 of them, owned */
    size_t n_thread;
    int64_t spin_ns;
    bool pinned;           /* the opener's mask was changed: */
    cpu_set_t caller_mask; /* and this is what it was */
};

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t while_it_is) {
    /* A signal or a stale wake-up returns early; both callers look again. */
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Sets flush-to-zero and denormals-are-zero on this thread; gives what was set. */
static uint64_t denormals_off(void) {
#if defined(__x86_64__) || defined(__SSE2__)
    uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040u);
    return old;
#elif defined(__aarch64__)
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" ::"r"(old | (uint64_t)1 << 24));
    return old;
#else
    return 0;
#endif
}

static void denormals_restore(uint64_t old) {
#if defined(__x86_64__) || defined(__SSE2__)
    _mm_setcsr((uint32_t)old);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(old));
#else
    (void)old;
#endif
}

static void draw_tasks(struct mg_pool *pool, size_t thread) {
    mg_task_fn *fn = pool->fn;
    void *arg = pool->arg;
    size_t n_task = pool->n_task;
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= n_task) return;
        fn(arg, task, thread);
    }
}

/* There is something for a worker that has taken part in job `seen`. */
static bool news(uint64_t state, uint64_t seen) {
    return state & QUIT || (state & OPEN && (state & ~(JOB - 1)) != seen);
}

/* Waits until there are news; the word that told them. */
static uint64_t wait_for_job(struct mg_pool *pool, uint64_t seen) {
    int64_t until = 0;
    for (unsigned i = 0;; i++) {
        uint64_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
        if (news(state, seen)) return state;
        if (i % 32 == 0) {
            int64_t now = now_ns();
            if (!until) until = now + pool->spin_ns;
            if (now >= until) break;
        }
        pause_a_little();
    }
    atomic_fetch_add(&pool->n_sleep, 1);
    uint64_t state;
    for (;;) {
        uint32_t wake = atomic_load(&pool->wake);
        state = atomic_load(&pool->state);
        if (news(state, seen)) break;
        futex_wait(&pool->wake, wake);
    }
    atomic_fetch_sub(&pool->n_sleep, 1);
    return state;
}

static void work(struct mg_pool *pool, size_t thread) {
    uint64_t seen = 0;
    for (;;) {
        uint64_t state = wait_for_job(pool, seen);
        if (state & QUIT) return;
        if (!atomic_compare_exchange_weak(&pool->state, &state, state + 1)) continue;
        seen = state & ~(JOB - 1);
        draw_tasks(pool, thread);
        state = atomic_fetch_sub(&pool->state, 1);
        if (state & WAIT && (state & N_ACTIVE) == 1) {
            atomic_fetch_add(&pool->done, 1);
            futex_wake(&pool->done, 1);
        }
    }
}

static void pin(pthread_t thread, size_t index, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int errnum = EINVAL;
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
        CPU_SET(cpu, &set);
        errnum = pthread_setaffinity_np(thread, sizeof set, &set);
    }
    if (errnum)
        mg_log(MG_LOG_WARN, "can't pin thread %zu to processor %d: %s", index, cpu,
               strerror(errnum));
}

static void *worker_main(void *p) {
    struct worker *w = p;
    char name[16];
    snprintf(name, sizeof name, "margay-%u", (unsigned)w->index % 10000);
    pthread_setname_np(pthread_self(), name);
    if (w->cpu >= 0) pin(pthread_self(), w->index, w->cpu);
    denormals_off();
    work(w->pool, w->index);
    return NULL;
}

/* Ends the first n workers and frees everything. */
static void dismiss(struct mg_pool *pool, size_t n) {
    atomic_fetch_or(&pool->state, QUIT);
    atomic_fetch_add(&pool->wake, 1);
    futex_wake(&pool->wake, INT_MAX);
    for (size_t i = 0; i < n; i++) pthread_join(pool->worker[i].thread, NULL);
    if (pool->pinned)
        pthread_setaffinity_np(pthread_self(), sizeof pool->caller_mask, &pool->caller_mask);
    free(pool->worker);
    free(pool);
}

static int start(struct mg_pool *pool, const int *cpu, size_t *n_started) {
    pthread_attr_t attr;
    int errnum = pthread_attr_init(&attr);
    if (errnum) return errnum;
    errnum = pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigset_t all, old;
    sigfillset(&all);
    /* Workers inherit it: signals go to the owner's threads. */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (size_t i = 0; i + 1 < pool->n_thread && !errnum; i++) {
        struct worker *w = &pool->worker[i];
        *w = (struct worker){.pool = pool, .index = i + 1, .cpu = cpu ? cpu[i + 1] : -1};
        errnum = pthread_create(&w->thread, &attr, worker_main, w);
        if (!errnum) ++*n_started;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return errnum;
}

enum mg_status mg_pool_open(int n_thread, const int *cpu, struct mg_pool **out,
                            struct mg_err *err) {
    *out = NULL;
    if (n_thread < 1 || n_thread > MG_MAX_THREAD)
        return mg_fail(err, MG_ERR_ARGUMENT, "threads", "%d threads; 1 to %d are possible",
                       n_thread, MG_MAX_THREAD);
    struct mg_pool *pool = aligned_alloc(LINE, mg_round_up(sizeof *pool, LINE));
    if (!pool) return mg_fail_memory(err, "thread pool");
    memset(pool, 0, sizeof *pool);
    atomic_init(&pool->state, 0);
    atomic_init(&pool->next, 0);
    atomic_init(&pool->wake, 0);
    atomic_init(&pool->n_sleep, 0);
    atomic_init(&pool->done, 0);
    pool->n_thread = (size_t)n_thread;
    pool->worker = mg_alloc_zero(pool->n_thread, sizeof *pool->worker);
    if (!pool->worker) {
        free(pool);
        return mg_fail_memory(err, "thread pool");
    }
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    pool->spin_ns = known && n_thread > CPU_COUNT(&allowed) ? SPIN_NS_CROWDED : SPIN_NS;

    size_t n_started = 0;
    int errnum = start(pool, cpu, &n_started);
    if (errnum) {
        dismiss(pool, n_started);
        return mg_fail(err, MG_ERR_LIMIT, "threads", "can't start thread %zu of %d: %s",
                       n_started + 2, n_thread, strerror(errnum));
    }
    if (cpu && known) { /* after the workers, which would inherit a mask of one processor */
        pool->caller_mask = allowed;
        pool->pinned = true;
        pin(pthread_self(), 0, cpu[0]);
    }
    *out = pool;
    return MG_OK;
}

void mg_pool_close(struct mg_pool *pool) {
    if (pool) dismiss(pool, pool->n_thread - 1);
}

size_t mg_pool_size(const struct mg_pool *pool) { return pool ? pool->n_thread : 1; }

/* Publishes the job and wakes as many sleepers as it has tasks for. */
static void publish(struct mg_pool *pool, mg_task_fn *fn, void *arg, size_t n_task) {
    pool->fn = fn;
    pool->arg = arg;
    pool->n_task = n_task;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&pool->state, memory_order_relaxed) & ~(JOB - 1)) + JOB;
    atomic_store(&pool->state, job | OPEN);
    uint32_t n_sleep = atomic_load(&pool->n_sleep);
    if (n_sleep > 0) {
        atomic_fetch_add(&pool->wake, 1);
        futex_wake(&pool->wake, (int)mg_min_size(n_sleep, n_task - 1));
    }
}

/* Lets nobody join any more and waits until all who did have left. */
static void finish(struct mg_pool *pool) {
    uint64_t state = atomic_fetch_and(&pool->state, ~OPEN);
    int64_t until = 0;
    for (unsigned i = 0; state & N_ACTIVE; i++) {
        if (i % 32 == 0) {
            int64_t now = now_ns();
            if (!until) until = now + pool->spin_ns;
            if (now >= until) break;
        }
        pause_a_little();
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
    while (state & N_ACTIVE) {
        uint32_t done = atomic_load(&pool->done);
        state = atomic_fetch_or(&pool->state, WAIT);
        if (state & N_ACTIVE) futex_wait(&pool->done, done);
    }
}

void mg_pool_run(struct mg_pool *pool, mg_task_fn *fn, void *arg, size_t n_task) {
    if (n_task == 0) return;
    uint64_t mode = denormals_off();
    if (!pool || pool->n_thread == 1 || n_task == 1) {
        for (size_t task = 0; task < n_task; task++) fn(arg, task, 0);
    } else {
        publish(pool, fn, arg, n_task);
        draw_tasks(pool, 0);
        finish(pool);
    }
    denormals_restore(mode);
}
