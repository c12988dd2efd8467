/* engine/feature_cache.c - see feature_cache.h. Some dozens of entries: a list is searched. */
#include "engine/feature_cache.h"

#include <stdlib.h>
#include <string.h>

static void unlink_entry(struct mg_feature_cache *c, struct mg_feature *f) {
    *(f->newer ? &f->newer->older : &c->newest) = f->older;
    *(f->older ? &f->older->newer : &c->oldest) = f->newer;
    f->newer = f->older = NULL;
}

static void link_newest(struct mg_feature_cache *c, struct mg_feature *f) {
    f->newer = NULL;
    f->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = f;
    c->newest = f;
}

bool mg_feature_has(const struct mg_feature_cache *c, const uint8_t *key) {
    const struct mg_feature *f = c->newest;
    while (f && memcmp(f->key, key, sizeof f->key) != 0) f = f->older;
    return f != NULL;
}

void mg_feature_hold(struct mg_feature *f) {
    atomic_fetch_add(&f->refs, 1);
}

struct mg_feature *mg_feature_find(struct mg_feature_cache *c, const uint8_t *key) {
    c->queries++;
    for (struct mg_feature *f = c->newest; f; f = f->older)
        if (memcmp(f->key, key, sizeof f->key) == 0) {
            unlink_entry(c, f);
            link_newest(c, f);
            mg_feature_hold(f);
            c->hits++;
            return f;
        }
    return NULL;
}

void mg_feature_skipped(struct mg_feature_cache *c) {
    c->queries++;
    c->hits++;
}

void mg_feature_release(struct mg_feature *f) {
    if (!f || atomic_fetch_sub(&f->refs, 1) != 1) return;
    mg_picture_free(&f->picture);
    free(f);
}

void mg_feature_cache_shrink(struct mg_feature_cache *c, size_t budget) {
    while (c->oldest && c->bytes > budget) {
        struct mg_feature *f = c->oldest;
        unlink_entry(c, f);
        c->bytes -= f->bytes;
        c->n--;
        mg_feature_release(f);
    }
}

struct mg_feature *mg_feature_put_take(struct mg_feature_cache *c, const uint8_t *key,
                                       struct mg_picture *picture) {
    struct mg_feature *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    memcpy(f->key, key, sizeof f->key);
    f->picture = *picture;
    *picture = (struct mg_picture){0};
    f->bytes = f->picture.n_map * f->picture.n_token * f->picture.width * sizeof(float);
    atomic_init(&f->refs, 1);
    if (!c || f->bytes > c->budget) return f;
    mg_feature_cache_shrink(c, c->budget - f->bytes);
    mg_feature_hold(f);
    link_newest(c, f);
    c->bytes += f->bytes;
    c->n++;
    return f;
}
