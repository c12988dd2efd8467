#include "alloc.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

static size_t left = SIZE_MAX, now, peak;
static bool failed;

static bool fails(void) {
    if (left == SIZE_MAX || left-- > 0) return false;
    left = SIZE_MAX;
    return failed = true;
}

static void *count(void *p) {
    if (p) now += malloc_usable_size(p);
    if (now > peak) peak = now;
    return p;
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : count(__real_malloc(n));
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : count(__real_calloc(n, size));
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : count(__real_aligned_alloc(align, n));
}
void *__wrap_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = __real_realloc(p, n);
    if (!q) return NULL;
    now -= now < before ? now : before;
    return count(q);
}
void __wrap_free(void *p) {
    size_t n = p ? malloc_usable_size(p) : 0;
    now -= now < n ? now : n;
    __real_free(p);
}

void alloc_fail_at(size_t n) {
    left = n;
    failed = false;
    peak = now;
}

bool alloc_has_failed(void) {
    return failed;
}
size_t alloc_peak(void) {
    return peak - now;
}
