/* base/mem.h - checked sizes, aligned blocks, slices, a capped growing buffer, an arena.
 *
 * Out of memory is a NULL or a false here and becomes a status one level up. All blocks that
 * kernels see are 64-byte aligned (a cache line, a zmm register).
 */
#ifndef MG_BASE_MEM_H
#define MG_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a * b or a + b; false (and *out untouched) when it doesn't fit. */
static inline bool mg_mul_size(size_t a, size_t b, size_t *out) {
    size_t fits; /* the builtins store the wrapped result too */
    if (__builtin_mul_overflow(a, b, &fits)) return false;
    *out = fits;
    return true;
}
static inline bool mg_add_size(size_t a, size_t b, size_t *out) {
    size_t fits;
    if (__builtin_add_overflow(a, b, &fits)) return false;
    *out = fits;
    return true;
}

static inline size_t mg_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t mg_max_size(size_t a, size_t b) { return a > b ? a : b; }
/* Rounded up to a multiple of `to` (> 0); the caller knows that it fits. */
static inline size_t mg_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* 64-byte aligned, contents undefined; NULL when n * size overflows or memory is short. n == 0
 * gives a block that may be freed but not touched. Free with free(). */
void *mg_alloc(size_t n, size_t size);
void *mg_alloc_zero(size_t n, size_t size);
/* realloc of n * size bytes with the product checked; malloc alignment. NULL leaves the old block.
 */
void *mg_realloc(void *p, size_t n, size_t size);

/* Bytes owned by somebody else. */
struct mg_slice {
    const uint8_t *data;
    size_t n;
};

/* A growing byte buffer that refuses to grow over `max`. Zero-initialised plus max set is empty. */
struct mg_buf {
    uint8_t *data; /* NUL-terminated at [n] once anything was added */
    size_t n, cap;
    size_t max;  /* bytes; 0 means 1 GiB */
    bool failed; /* an add was refused; sticky until mg_buf_free */
};
bool mg_buf_add(struct mg_buf *b, const void *data, size_t n);
bool mg_buf_add_str(struct mg_buf *b, const char *s);
bool mg_buf_add_byte(struct mg_buf *b, uint8_t byte);
bool mg_buf_printf(struct mg_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes room for n more bytes without adding them. */
bool mg_buf_reserve(struct mg_buf *b, size_t n);
void mg_buf_free(struct mg_buf *b); /* empty again, max kept */

/* A growing list of token ids. */
struct mg_ids {
    int32_t *id;
    size_t n, cap;
};
bool mg_ids_add(struct mg_ids *ids, int32_t id);
bool mg_ids_reserve(struct mg_ids *ids, size_t n);
void mg_ids_free(struct mg_ids *ids);

/* Arena: blocks handed out one after another, all freed together. Grows by chunks. */
struct mg_arena_chunk;
struct mg_arena {
    struct mg_arena_chunk *chunk; /* newest first, owned */
    size_t chunk_size;            /* bytes of a new chunk, 0 means 64 KiB */
    size_t used;                  /* bytes handed out in all */
};
void *mg_arena_alloc(struct mg_arena *a, size_t n, size_t size); /* 64-byte aligned, or NULL */
char *mg_arena_strdup(struct mg_arena *a, const char *s, size_t n);
void mg_arena_free(struct mg_arena *a);

#endif
