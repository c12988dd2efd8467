/* cpu/pool.h - the thread pool that runs kernels.
 *
 * One job at a time: `n_task` tasks, handed out dynamically, each run by exactly one thread; the
 * caller is thread 0 and works too. Between jobs a worker spins for a bounded time (by clock,
 * since PAUSE differs by processor) and then sleeps on a futex, so an idle pool costs nothing and
 * a busy neighbour is not starved. The caller waits only for tasks that somebody has begun: a
 * worker that sleeps or is off the processor delays no job. Which thread runs a task never changes
 * a result. Only the pool's owner calls mg_pool_run; from inside a task it must not be called.
 *
 * Tasks run with denormals flushed to zero (FTZ and DAZ), on the caller too, whose mode is put
 * back after; that holds for every number of threads and for the NULL pool. Worker threads take no
 * signals.
 */
#ifndef MG_CPU_POOL_H
#define MG_CPU_POOL_H

#include "base/err.h"

#include <stddef.h>

#define MG_MAX_THREAD 1024

struct mg_pool;

/* task in [0, n_task), thread in [0, mg_pool_size). Must not fail: tasks report through `arg`. */
typedef void mg_task_fn(void *arg, size_t task, size_t thread);

/* n_thread in 1..MG_MAX_THREAD, that many including the caller. cpu: n_thread processors to pin
 * to, or NULL for none; cpu[0] is for the calling thread, which keeps that pin until mg_pool_close
 * (threads that it makes in between inherit it). A pin that the system refuses is a warning in the
 * log. */
enum mg_status mg_pool_open(int n_thread, const int *cpu, struct mg_pool **out, struct mg_err *err);
/* NULL is fine. Called by the thread that opened the pool when it was pinned. */
void mg_pool_close(struct mg_pool *pool);
size_t mg_pool_size(const struct mg_pool *pool); /* 1 for NULL */

/* Runs all tasks; returns when each has finished. A NULL pool runs them in order on the caller.
 * What tasks wrote is visible to the caller after, what the caller wrote before is visible to the
 * tasks. */
void mg_pool_run(struct mg_pool *pool, mg_task_fn *fn, void *arg, size_t n_task);

#endif
