/* base/mem.c - see mem.h. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *mg_alloc(size_t n, size_t size) {
    size_t bytes;
    if (!mg_mul_size(n, size, &bytes) || bytes > PTRDIFF_MAX - 64) return NULL;
    return aligned_alloc(64, mg_round_up(bytes ? bytes : 1, 64));
}

void *mg_alloc_zero(size_t n, size_t size) {
    void *p = mg_alloc(n, size);
    if (p) memset(p, 0, n * size);
    return p;
}

void *mg_realloc(void *p, size_t n, size_t size) {
    size_t bytes;
    if (!mg_mul_size(n, size, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

bool mg_buf_reserve(struct mg_buf *b, size_t n) {
    size_t max = b->max ? b->max : (size_t)1 << 30, need;
    if (b->failed || !mg_add_size(b->n, n, &need) || need > max || need > PTRDIFF_MAX - 64) {
        b->failed = true;
        return false;
    }
    if (need < b->cap) return true; /* one byte stays free for the NUL */
    size_t cap = mg_max_size(mg_max_size(need + 1, b->cap + b->cap / 2), 64);
    uint8_t *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

bool mg_buf_add(struct mg_buf *b, const void *data, size_t n) {
    if (!mg_buf_reserve(b, n)) return false;
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = 0;
    return true;
}

bool mg_buf_add_str(struct mg_buf *b, const char *s) { return mg_buf_add(b, s, strlen(s)); }
bool mg_buf_add_byte(struct mg_buf *b, uint8_t byte) { return mg_buf_add(b, &byte, 1); }

bool mg_buf_printf(struct mg_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !mg_buf_reserve(b, (size_t)n)) return false;
    va_start(ap, fmt);
    vsnprintf((char *)b->data + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return true;
}

void mg_buf_free(struct mg_buf *b) {
    free(b->data);
    *b = (struct mg_buf){.max = b->max};
}

bool mg_ids_reserve(struct mg_ids *ids, size_t n) {
    size_t need;
    if (!mg_add_size(ids->n, n, &need)) return false;
    if (need <= ids->cap) return true;
    size_t cap = mg_max_size(mg_max_size(need, ids->cap * 2), 64);
    int32_t *p = mg_realloc(ids->id, cap, sizeof *p);
    if (!p) return false;
    ids->id = p;
    ids->cap = cap;
    return true;
}

bool mg_ids_add(struct mg_ids *ids, int32_t id) {
    if (!mg_ids_reserve(ids, 1)) return false;
    ids->id[ids->n++] = id;
    return true;
}

void mg_ids_free(struct mg_ids *ids) {
    free(ids->id);
    *ids = (struct mg_ids){0};
}

struct mg_arena_chunk {
    struct mg_arena_chunk *next;
    size_t n, cap; /* bytes used and there, after this header */
};
#define CHUNK_HEAD 64 /* the header's own place, so that data stays aligned */

void *mg_arena_alloc(struct mg_arena *a, size_t n, size_t size) {
    size_t bytes;
    if (!mg_mul_size(n, size, &bytes) || bytes > PTRDIFF_MAX / 2) return NULL;
    bytes = mg_round_up(bytes ? bytes : 1, 64);
    struct mg_arena_chunk *c = a->chunk;
    if (!c || c->cap - c->n < bytes) {
        size_t cap = mg_max_size(bytes, a->chunk_size ? a->chunk_size : 65536);
        c = mg_alloc(1, CHUNK_HEAD + cap);
        if (!c) return NULL;
        *c = (struct mg_arena_chunk){.next = a->chunk, .cap = cap};
        a->chunk = c;
    }
    void *p = (uint8_t *)c + CHUNK_HEAD + c->n;
    c->n += bytes;
    a->used += bytes;
    return p;
}

char *mg_arena_strdup(struct mg_arena *a, const char *s, size_t n) {
    char *p = mg_arena_alloc(a, n + 1, 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

void mg_arena_free(struct mg_arena *a) {
    for (struct mg_arena_chunk *c = a->chunk, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct mg_arena){.chunk_size = a->chunk_size};
}
