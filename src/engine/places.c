/* engine/places.c - the order in which those that wait will be taken, to tell them their places.
 *
 *   places taken: | oldest | ... | newest | <- the next: of the tenants with the fewest here
 *        ends first ^                          the one that was served longest ago
 *
 * next_waiting (scheduler.c) chooses when a place has become free; here the same choice is made for
 * one after another, on counts of our own. Whose answer ends first can't be known: the one that
 * began first is taken for it. With more than MG_SERVED tenants in the queue the rest of them are
 * taken for people who ask once and have nothing running, which comes close.
 */
#include "engine/schedule.h"

#include <string.h>

struct group {
    const uint8_t *tenant; /* NULL: of all the others */
    struct job *first, **last;
    size_t running;
    uint64_t turn;
};

struct queue {
    struct group group[MG_SERVED + 1];
    size_t n;
    struct group *place[MG_MAX_RUNNING]; /* [n_place] taken, oldest first; NULL: nobody who waits */
    size_t n_place;
};

static struct group *find_group(struct queue *q, const uint8_t *tenant) {
    for (size_t i = 0; i < q->n; i++)
        if (q->group[i].tenant && memcmp(q->group[i].tenant, tenant, MG_TENANT_BYTES) == 0)
            return &q->group[i];
    return NULL;
}

static struct group *add_group(struct mg_scheduler *s, struct queue *q, const uint8_t *tenant) {
    if (q->n > MG_SERVED) return &q->group[MG_SERVED];
    struct group *g = &q->group[q->n++];
    bool rest = q->n > MG_SERVED;
    *g = (struct group){.tenant = rest ? NULL : tenant,
                        .last = &g->first,
                        .turn = rest ? 0 : mg_last_turn(s, tenant)};
    return g;
}

static void add_waiting(struct mg_scheduler *s, struct queue *q, struct job *j) {
    struct group *g = find_group(q, j->o.tenant);
    if (!g) g = add_group(s, q, j->o.tenant);
    j->next_of_tenant = NULL;
    *g->last = j;
    g->last = &j->next_of_tenant;
}

static void add_taken(struct mg_scheduler *s, struct queue *q) {
    const struct job *taken[MG_MAX_RUNNING];
    size_t n = 0;
    for (const struct job *j = s->all; j && n < s->n_taken; j = j->next_of_all) {
        if (!j->taken) continue;
        size_t at = n++;
        for (; at && taken[at - 1]->turn > j->turn; at--) taken[at] = taken[at - 1];
        taken[at] = j;
    }
    for (size_t i = 0; i < n; i++) {
        struct group *g = find_group(q, taken[i]->o.tenant);
        q->place[q->n_place++] = g;
        if (g) g->running++;
    }
}

static bool is_before(const struct group *a, const struct group *b) {
    if (a->running != b->running) return a->running < b->running;
    if (a->turn != b->turn) return a->turn < b->turn;
    return a->first->id < b->first->id;
}

static struct group *choose(struct queue *q) {
    struct group *best = NULL;
    for (size_t i = 0; i < q->n; i++)
        if (q->group[i].first && (!best || is_before(&q->group[i], best))) best = &q->group[i];
    return best;
}

static void end_oldest(struct queue *q) {
    struct group *g = q->place[0];
    if (g) g->running--;
    memmove(q->place, q->place + 1, --q->n_place * sizeof *q->place);
}

void mg_find_places(struct mg_scheduler *s) {
    struct queue q = {.n = 0};
    uint64_t turn = s->turns;
    size_t n = 0;
    for (struct job *j = s->waiting.first; j; j = j->next) {
        j->place = 0;
        if (!j->displaced) add_waiting(s, &q, j);
    }
    add_taken(s, &q);
    for (struct group *g; (g = choose(&q)) != NULL;) {
        g->first->place = ++n;
        g->first = g->first->next_of_tenant;
        if (q.n_place == s->options.max_running) end_oldest(&q);
        q.place[q.n_place++] = g->tenant ? g : NULL;
        if (!g->tenant) continue;
        g->running++;
        g->turn = ++turn;
    }
}
