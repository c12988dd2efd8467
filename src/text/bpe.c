/* text/bpe.c - see bpe.h. */
#include "text/bpe.h"

#include "text/hash.h"

#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define NOWHERE UINT32_MAX
/* Pieces of at most so many bytes are merged without the heap. */
#define SHORT_PIECE 96

/* ---- the table ---- */

static uint64_t pair_key(uint32_t left, uint32_t right) { return (uint64_t)left << 20 | right; }

static size_t pair_hash(const struct mg_bpe *m, uint64_t key) {
    return (size_t)mg_hash_mix(key ^ m->seed[0], m->seed[1]);
}

static uint32_t rank_of(const struct mg_bpe *m, int32_t left, int32_t right) {
    uint64_t key = pair_key((uint32_t)left, (uint32_t)right);
    for (size_t at = pair_hash(m, key) & m->mask; m->slot[at]; at = (at + 1) & m->mask)
        if (m->slot[at] >> 24 == key) return (uint32_t)(m->slot[at] & 0xFFFFFF) - 1;
    return NO_RANK;
}

bool mg_bpe_init(struct mg_bpe *m, size_t expect) {
    *m = (struct mg_bpe){0};
    mg_hash_seed(m->seed);
    m->seed[1] |= 1;
    size_t slots = 1024;
    while (slots / 3 * 2 < expect && slots < 4u * MG_MERGE_MAX_N) slots *= 2;
    m->slot = mg_alloc_zero(slots, sizeof *m->slot);
    m->mask = slots - 1;
    for (size_t b = 0; b < 256; b++) m->byte[b] = -1;
    return m->slot != NULL;
}

void mg_bpe_free(struct mg_bpe *m) {
    free(m->slot);
    free(m->new_id);
    *m = (struct mg_bpe){0};
}

static bool grow_slots(struct mg_bpe *m) {
    size_t slots = (m->mask + 1) * 2, mask = slots - 1;
    uint64_t *slot = mg_alloc_zero(slots, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i <= m->mask; i++) {
        if (!m->slot[i]) continue;
        size_t at = pair_hash(m, m->slot[i] >> 24) & mask;
        while (slot[at]) at = (at + 1) & mask;
        slot[at] = m->slot[i];
    }
    free(m->slot);
    m->slot = slot;
    m->mask = mask;
    return true;
}

void mg_bpe_aim(const struct mg_bpe *m, uint32_t left, uint32_t right) {
    __builtin_prefetch(&m->slot[pair_hash(m, pair_key(left, right)) & m->mask]);
}

bool mg_bpe_add(struct mg_bpe *m, uint32_t left, uint32_t right, uint32_t new_id) {
    if (m->n_slot >= (m->mask + 1) / 3 * 2 && !grow_slots(m)) return false;
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 1024;
        uint32_t *p = mg_realloc(m->new_id, cap, sizeof *p);
        if (!p) return false;
        m->new_id = p;
        m->cap = cap;
    }
    uint64_t key = pair_key(left, right);
    size_t at = pair_hash(m, key) & m->mask;
    while (m->slot[at] && m->slot[at] >> 24 != key) at = (at + 1) & m->mask;
    if (!m->slot[at]) m->n_slot++;
    m->slot[at] = key << 24 | (m->n + 1);
    m->new_id[m->n++] = new_id;
    return true;
}

/* ---- short pieces ---- */

static bool merge_short(const struct mg_bpe *m, const uint8_t *piece, size_t n,
                        struct mg_ids *out) {
    int32_t id[SHORT_PIECE];
    uint32_t rank[SHORT_PIECE]; /* of (i, i + 1) */
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (m->byte[piece[i]] >= 0) id[k++] = m->byte[piece[i]];
    for (size_t i = 0; i + 1 < k; i++) rank[i] = rank_of(m, id[i], id[i + 1]);
    while (k > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < k; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        id[best] = (int32_t)m->new_id[rank[best]];
        size_t behind = k - best - 2; /* symbols after the pair */
        memmove(id + best + 1, id + best + 2, behind * sizeof *id);
        if (behind > 1) memmove(rank + best + 1, rank + best + 2, (behind - 1) * sizeof *rank);
        k--;
        if (best > 0) rank[best - 1] = rank_of(m, id[best - 1], id[best]);
        if (best + 1 < k) rank[best] = rank_of(m, id[best], id[best + 1]);
    }
    if (k == 0) return true;
    if (!mg_ids_reserve(out, k)) return false;
    memcpy(out->id + out->n, id, k * sizeof *id);
    out->n += k;
    return true;
}

/* ---- long pieces: least rank on top, among equals the leftmost ---- */

/* Four children a node: half the levels of two, and four children share a cache line. */
static void sift_down(uint64_t *heap, size_t n, size_t at) {
    uint64_t v = heap[at];
    for (;;) {
        size_t child = at * 4 + 1, end = mg_min_size(child + 4, n), least = child;
        if (child >= n) break;
        for (size_t i = child + 1; i < end; i++)
            if (heap[i] < heap[least]) least = i;
        if (heap[least] >= v) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = v;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t v) {
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 4] > v) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = v;
}

void mg_bpe_work_free(struct mg_bpe_work *w) {
    free(w->symbol);
    free(w->heap);
    *w = (struct mg_bpe_work){0};
}

/* Each merge takes an entry out and puts at most two in, so the heap never holds more than 2 n. */
static bool work_reserve(struct mg_bpe_work *w, size_t n) {
    if (n > w->n_symbol) {
        struct mg_bpe_symbol *s = mg_realloc(w->symbol, n, sizeof *s);
        if (!s) return false;
        w->symbol = s;
        w->n_symbol = n;
    }
    if (2 * n > w->n_heap) {
        uint64_t *heap = mg_realloc(w->heap, 2 * n, sizeof *heap);
        if (!heap) return false;
        w->heap = heap;
        w->n_heap = 2 * n;
    }
    return true;
}

/* The pair that begins at `left` is new: its rank, and its entry when it merges. */
static void push_pair(const struct mg_bpe *m, struct mg_bpe_work *w, size_t *n_heap,
                      uint32_t left) {
    struct mg_bpe_symbol *s = &w->symbol[left];
    s->rank = s->next == NOWHERE ? NO_RANK : rank_of(m, s->id, w->symbol[s->next].id);
    if (s->rank != NO_RANK) heap_push(w->heap, n_heap, (uint64_t)s->rank << 32 | left);
}

static bool merge_long(const struct mg_bpe *m, struct mg_bpe_work *w, const uint8_t *piece,
                       size_t n, struct mg_ids *out) {
    if (!work_reserve(w, n)) return false;
    struct mg_bpe_symbol *s = w->symbol;
    size_t k = 0, n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = m->byte[piece[i]];
        if (id < 0) continue;
        s[k] = (struct mg_bpe_symbol){id, NO_RANK, (uint32_t)k - 1, (uint32_t)k + 1};
        k++;
    }
    if (k == 0) return true;
    s[k - 1].next = NOWHERE; /* s[0].before is NOWHERE by wrapping around */
    for (size_t i = 0; i + 1 < k; i++) {
        s[i].rank = rank_of(m, s[i].id, s[i + 1].id);
        if (s[i].rank != NO_RANK) w->heap[n_heap++] = (uint64_t)s[i].rank << 32 | i;
    }
    for (size_t i = n_heap / 4 + 1; i-- > 0;)
        if (i < n_heap) sift_down(w->heap, n_heap, i);
    while (n_heap > 0) {
        uint32_t rank = (uint32_t)(w->heap[0] >> 32), left = (uint32_t)w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap) sift_down(w->heap, n_heap, 0);
        if (s[left].rank != rank) continue; /* one side was merged since */
        uint32_t right = s[left].next;
        s[left].id = (int32_t)m->new_id[rank];
        s[left].next = s[right].next;
        s[right].rank = NO_RANK;
        if (s[right].next != NOWHERE) s[s[right].next].before = left;
        if (s[left].before != NOWHERE) push_pair(m, w, &n_heap, s[left].before);
        push_pair(m, w, &n_heap, left);
    }
    for (uint32_t i = 0; i != NOWHERE; i = s[i].next)
        if (!mg_ids_add(out, s[i].id)) return false;
    return true;
}

bool mg_bpe_piece(const struct mg_bpe *m, struct mg_bpe_work *w, const uint8_t *piece, size_t n,
                  struct mg_ids *out) {
    return n <= SHORT_PIECE ? merge_short(m, piece, n, out) : merge_long(m, w, piece, n, out);
}
