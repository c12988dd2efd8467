/* kernels/limits.h - what this machine can do at most: operations in registers, bytes from memory.
 *
 * A kernel or a phase is judged by its share of these. Each tier brings loops that keep one
 * instruction busy in registers (limits_TIER.c), and readers that stream a buffer with software
 * prefetch. They are run here by the threads of a pool, in short slices of many small tasks, so
 * that a neighbour on a virtual machine or a late thread spoils one slice and not the result.
 *
 *     open    calibrates: tasks of about 0.3 ms; the fastest reader and prefetch distance
 *     round   a few slices of every loop; the best of them is one sample
 *     rate    the median of the samples, or the best
 *
 * Call mg_limits_round between the measured runs: clock and neighbours change within seconds, and
 * only what was measured side by side can be compared. An operation is one multiplication or one
 * addition. One thread, the pool's owner, calls.
 */
#ifndef MG_KERNELS_LIMITS_H
#define MG_KERNELS_LIMITS_H

#include "base/err.h"
#include "cpu/features.h"
#include "cpu/pool.h"

#include <stdint.h>

enum mg_limit {
    MG_LIMIT_F32,
    MG_LIMIT_BF16,
    MG_LIMIT_INT8,
    MG_LIMIT_READ, /* bytes from memory */
    MG_N_LIMIT
};

/* One instruction kept busy. */
struct mg_limit_loop {
    const char *name;        /* "vdpbf16ps, 512 bits" */
    enum mg_limit kind;      /* F32, BF16 or INT8 */
    double (*run)(size_t n); /* n rounds; returns the operations done. Any thread */
};

/* One way of reading. */
struct mg_limit_reader {
    const char *name; /* "256 bits" */
    /* The exclusive or of all 64-bit words of n bytes (a multiple of 512) at p (64-byte aligned).
     * distance: bytes that the prefetch runs ahead, 0 for none. */
    uint64_t (*run)(const void *p, size_t n, size_t distance);
};

enum { MG_MAX_LIMIT_LOOP = 12, MG_MAX_LIMIT_READER = 4, MG_MAX_LIMIT_SAMPLE = 64 };

struct mg_limit_set {
    struct mg_limit_loop loop[MG_MAX_LIMIT_LOOP];
    size_t n_loop;
    struct mg_limit_reader reader[MG_MAX_LIMIT_READER];
    size_t n_reader;
};

/* What the features' tier allows, lower tiers' loops included. Never empty. */
void mg_limit_set_init(struct mg_limit_set *set, const struct mg_features *features);

struct mg_limit_samples {
    double rate[MG_MAX_LIMIT_SAMPLE]; /* operations or bytes a second, of the last rounds */
    size_t n;                         /* rounds so far; the ring holds at most the last 64 */
    double best;                      /* of all slices */
};

struct mg_limits {
    struct mg_limit_set set;
    struct mg_pool *pool;             /* borrowed; NULL: one thread, the caller's */
    size_t rounds[MG_MAX_LIMIT_LOOP]; /* argument of loop i for one task */
    size_t reader, distance;          /* what reads fastest */
    uint8_t *buffer;                  /* [n_buffer] mapping, written once; owned or borrowed */
    size_t n_buffer;                  /* bytes, a multiple of the slice */
    bool borrowed;                    /* the buffer is another's */
    size_t at;                        /* where the next slice begins */
    struct mg_limit_samples loop[MG_MAX_LIMIT_LOOP], read;
};

/* Bytes of a buffer that no cache holds: 4 times the last-level cache, at least 512 MB and at most
 * 2 GB, but no more than a quarter of the memory that is free here. */
size_t mg_limits_buffer_bytes(void);

/* The buffer (n_buffer bytes, rounded) is made here, or shared with `other` when that isn't NULL:
 * then close this one first. MG_ERR_MEMORY when there is no room for it. */
enum mg_status mg_limits_open(struct mg_limits *l, const struct mg_features *features,
                              struct mg_pool *pool, size_t n_buffer, const struct mg_limits *other,
                              struct mg_err *err);
void mg_limits_close(struct mg_limits *l);

/* One sample of everything, in about a third of a second. */
void mg_limits_round(struct mg_limits *l);

struct mg_limit_rate {
    double median, best; /* operations or bytes a second; 0: the machine has nothing of the kind */
    const char *name;    /* the loop or reader it comes from, "" for none */
};
/* The fastest loop of the kind. What is bf16 may also be computed in f32, so BF16 is never below
 * F32. */
struct mg_limit_rate mg_limits_rate(const struct mg_limits *l, enum mg_limit kind);
/* The same for one loop of the set. */
struct mg_limit_rate mg_limits_loop_rate(const struct mg_limits *l, size_t loop);

#endif
