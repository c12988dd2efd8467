/* model/kv.c - see kv.h. */
#include "model/kv.h"

#include "base/mem.h"

#include <sys/mman.h>
#include <unistd.h>

/* One more line per head, so that the heads' rows don't all fall on the same cache sets. 0: more
 * than a size can say. */
static size_t head_room(enum mg_dtype type, size_t head_dim, size_t capacity) {
    size_t bytes;
    if (!mg_mul_size(mg_round_up(capacity, MG_KV_BLOCK),
                     mg_kv_width(head_dim) * mg_dtype_size(type), &bytes))
        return 0;
    return mg_round_up(bytes, 64) + 64;
}

size_t mg_kv_reserve(enum mg_dtype type, size_t n_layer, size_t n_head, size_t head_dim,
                     size_t capacity) {
    size_t bytes;
    return mg_mul_size(head_room(type, head_dim, capacity), 2 * n_layer * n_head, &bytes) ? bytes
                                                                                          : 0;
}

enum mg_status mg_kv_open(struct mg_kv *kv, enum mg_dtype type, size_t n_layer, size_t n_head,
                          size_t head_dim, size_t capacity, struct mg_err *err) {
    *kv = (struct mg_kv){.type = type,
                         .n_layer = n_layer,
                         .n_head = n_head,
                         .head_dim = head_dim,
                         .capacity = capacity};
    size_t head_bytes = head_room(type, head_dim, capacity);
    size_t bytes = mg_kv_reserve(type, n_layer, n_head, head_dim, capacity);
    if (!bytes) return mg_fail_memory(err, "keys and values");
    kv->head_stride = head_bytes / mg_dtype_size(type);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return mg_fail(err, MG_ERR_MEMORY, "out_of_memory",
                       "can't reserve %zu MiB for the keys and values of %zu tokens (ulimit -v, or "
                       "vm.overcommit_memory 2); a smaller context needs less",
                       bytes >> 20, capacity);
    kv->data = p;
    kv->bytes = bytes;
    return MG_OK;
}

void mg_kv_close(struct mg_kv *kv) {
    if (kv->data) munmap(kv->data, kv->bytes);
    *kv = (struct mg_kv){0};
}

void mg_kv_cut(struct mg_kv *kv, size_t n) {
    if (n >= kv->n) return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = mg_dtype_size(kv->type);
    size_t width = mg_kv_width(kv->head_dim) * size; /* of a token, at most */
    for (size_t i = 0; i < 2 * kv->n_layer * kv->n_head; i++) {
        size_t head = i * kv->head_stride * size;
        size_t from = mg_round_up(head + mg_round_up(n, 16) * width, page);
        size_t to = mg_min_size(head + mg_round_up(kv->n, 16) * width, kv->bytes) / page * page;
        if (from < to) madvise((char *)kv->data + from, to - from, MADV_DONTNEED);
    }
    kv->n = n;
}

static void *tensor_at(const struct mg_kv *kv, size_t i) {
    return (char *)kv->data + i * kv->n_head * kv->head_stride * mg_dtype_size(kv->type);
}

void *mg_kv_keys(const struct mg_kv *kv, size_t layer) {
    return tensor_at(kv, 2 * layer);
}
void *mg_kv_values(const struct mg_kv *kv, size_t layer) {
    return tensor_at(kv, 2 * layer + 1);
}

/* Tokens go in whole blocks, of which the last may hold some more. */
void mg_kv_copy(struct mg_kv *to, const struct mg_kv *from, size_t n) {
    size_t size = mg_dtype_size(from->type),
           bytes = mg_round_up(n, MG_KV_BLOCK) * mg_kv_width(from->head_dim) * size;
    for (size_t i = 0; i < 2 * from->n_layer; i++)
        for (size_t h = 0; h < from->n_head; h++)
            memcpy((char *)tensor_at(to, i) + h * to->head_stride * size,
                   (const char *)tensor_at(from, i) + h * from->head_stride * size, bytes);
    to->n = n;
}

/* Each head begins on pages of its own, or nearly so. */
size_t mg_kv_bytes(const struct mg_kv *kv, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = mg_dtype_size(kv->type);
    size_t head = mg_round_up(n, MG_KV_BLOCK) * mg_kv_width(kv->head_dim) * size;
    return 2 * kv->n_layer * kv->n_head * mg_round_up(head, page);
}

void mg_kv_store(const struct mg_kv *kv, const struct mg_kernels *kernels, size_t layer,
                 size_t head, size_t pos, size_t n, const float *key, const float *value,
                 size_t ld) {
    size_t at = head * kv->head_stride * mg_dtype_size(kv->type);
    kernels->store_kv(kv->type, key, value, ld, kv->head_dim, (char *)mg_kv_keys(kv, layer) + at,
                      (char *)mg_kv_values(kv, layer) + at, pos, n);
}
