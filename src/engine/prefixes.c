/* engine/prefixes.c - see prefixes.h. */
#include "engine/prefixes.h"

#include <stdlib.h>
#include <string.h>

struct mg_prefix {
    struct mg_kv kv;                 /* owned */
    int64_t *id;                     /* [kv.n] as mg_chat.kv_id, owned */
    int32_t next_pos;                /* position after the last token */
    uint8_t tenant[MG_TENANT_BYTES]; /* whose it is */
    uint8_t (*key)[MG_SHA256_BYTES]; /* [n_image] owned */
    size_t n_image, bytes;
    struct mg_prefix *newer, *older;
};

static void unlink_entry(struct mg_prefix_store *s, struct mg_prefix *p) {
    *(p->newer ? &p->newer->older : &s->newest) = p->older;
    *(p->older ? &p->older->newer : &s->oldest) = p->newer;
    p->newer = p->older = NULL;
    s->bytes -= p->bytes;
    s->n--;
}

static void link_newest(struct mg_prefix_store *s, struct mg_prefix *p) {
    p->newer = NULL;
    p->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = p;
    s->newest = p;
    s->bytes += p->bytes;
    s->n++;
}

static void free_entry(struct mg_prefix *p) {
    mg_kv_close(&p->kv);
    free(p->id);
    free(p->key);
    free(p);
}

void mg_prefix_store_shrink(struct mg_prefix_store *s, size_t budget) {
    while (s->oldest && s->bytes > budget) {
        struct mg_prefix *p = s->oldest;
        unlink_entry(s, p);
        free_entry(p);
    }
}

/* The picture that an identity is of, or -1. */
static int64_t image_of(int64_t id) {
    return id < 0 ? (-1 - id) >> 32 : -1;
}

/* Tokens at the front that are the same; not within a picture. */
static size_t common(const struct mg_prefix *p, const mg_chat *chat, const struct layout *l) {
    size_t n = 0, most = mg_min_size(p->kv.n, l->n - 1), border = 0;
    int64_t last = -1;
    if (memcmp(p->tenant, chat->tenant, sizeof p->tenant) != 0) return 0;
    for (; n < most; n++) {
        int64_t id = mg_layout_identity(l, n), image = image_of(id);
        if (image != last || image < 0) border = n;
        if (id != p->id[n]) break;
        if (image != last && image >= 0 &&
            ((size_t)image >= p->n_image ||
             memcmp(p->key[image], chat->image[image].key, MG_SHA256_BYTES) != 0))
            break;
        last = image;
    }
    bool inside = n < l->n && last >= 0 && image_of(mg_layout_identity(l, n)) == last;
    return inside ? border : n;
}

static void take_all(struct mg_prefix_store *s, struct mg_prefix *p, mg_chat *chat) {
    mg_kv_close(&chat->kv);
    chat->kv = p->kv;
    p->kv = (struct mg_kv){0};
    memcpy(chat->kv_id, p->id, chat->kv.n * sizeof *p->id);
    chat->next_pos = p->next_pos;
    unlink_entry(s, p);
    free_entry(p);
}

void mg_prefix_use(struct mg_prefix_store *s, mg_chat *chat, const struct layout *l) {
    struct mg_prefix *best = NULL;
    size_t n = MG_LEAST_PREFIX - 1;
    for (struct mg_prefix *p = s->newest; p; p = p->older) {
        size_t same = common(p, chat, l);
        if (same > n) n = same, best = p;
    }
    s->queries += l->n;
    if (!best || chat->kv.n) return;
    s->hits += n;
    if (n == best->kv.n) {
        take_all(s, best, chat);
        return;
    }
    mg_kv_copy(&chat->kv, &best->kv, n);
    memcpy(chat->kv_id, best->id, n * sizeof *best->id);
    unlink_entry(s, best);
    link_newest(s, best);
}

/* The first n tokens of both are the same. */
static bool begin_alike(const struct mg_prefix *p, const mg_chat *chat, size_t n) {
    int64_t last = -1;
    if (memcmp(p->tenant, chat->tenant, sizeof p->tenant) != 0) return false;
    if (memcmp(p->id, chat->kv_id, n * sizeof *p->id) != 0) return false;
    for (size_t i = 0; i < n; i++) {
        int64_t image = image_of(p->id[i]);
        if (image != last && image >= 0 &&
            memcmp(p->key[image], chat->image[image].key, MG_SHA256_BYTES) != 0)
            return false;
        last = image;
    }
    return true;
}

/* Of two sequences of which one begins with the other only the longer is worth its place. true:
 * the store has the longer one already. */
static bool is_superfluous(struct mg_prefix_store *s, const mg_chat *chat) {
    for (struct mg_prefix *p = s->newest, *older; p; p = older) {
        older = p->older;
        if (!begin_alike(p, chat, mg_min_size(p->kv.n, chat->kv.n))) continue;
        unlink_entry(s, p);
        if (p->kv.n > chat->kv.n) {
            link_newest(s, p);
            return true;
        }
        free_entry(p);
    }
    return false;
}

void mg_prefix_keep(struct mg_prefix_store *s, mg_chat *chat) {
    size_t n = chat->kv.n, bytes = n * sizeof(int64_t);
    bytes += s->by_space ? chat->kv.bytes : mg_kv_bytes(&chat->kv, n);
    if (n < MG_LEAST_PREFIX || bytes > s->budget || is_superfluous(s, chat)) return;
    struct mg_prefix *p = calloc(1, sizeof *p);
    if (!p) return;
    p->id = mg_alloc(n, sizeof *p->id);
    p->key = mg_alloc(chat->n_image, sizeof *p->key);
    if (!p->id || !p->key) {
        free_entry(p);
        return;
    }
    memcpy(p->id, chat->kv_id, n * sizeof *p->id);
    memcpy(p->tenant, chat->tenant, sizeof p->tenant);
    for (size_t i = 0; i < chat->n_image; i++)
        memcpy(p->key[i], chat->image[i].key, MG_SHA256_BYTES);
    p->n_image = chat->n_image;
    p->next_pos = chat->next_pos;
    mg_kv_cut(&chat->kv, n); /* memory of what was taken back */
    p->kv = chat->kv;
    chat->kv = (struct mg_kv){0};
    p->bytes = bytes;
    if (s->n >= MG_MAX_PREFIXES) mg_prefix_store_shrink(s, s->bytes - 1); /* the oldest goes */
    mg_prefix_store_shrink(s, s->budget - bytes);
    link_newest(s, p);
}
