/* engine/draft.c - see draft.h. */
#include "engine/draft.h"

#include <string.h>

#define ROW_COST 0.08f /* of a pass of one row: bench "decode_batch", 4 rows against 1 */
#define RETRY 24       /* chances after which a kind of draft that did not pay is tried again */

bool mg_draft_begin(struct mg_draft *d, const int32_t *id, size_t n) {
    d->said.n = 0;
    d->match = d->waited = 0;
    for (size_t i = 0; i < 5; i++) d->right[i] = 0.5f;
    for (size_t i = 0; i < n; i++)
        if (!mg_ids_add(&d->said, id[i])) return false;
    return true;
}

bool mg_draft_say(struct mg_draft *d, int32_t id) {
    return mg_ids_add(&d->said, id);
}

/* The place after the latest earlier occurrence of the last n tokens, or 0. */
static size_t find(const struct mg_ids *said, size_t n) {
    const int32_t *tail = said->id + said->n - n;
    for (size_t at = said->n - n; at-- > 0;)
        if (said->id[at] == tail[0] && !memcmp(said->id + at, tail, n * sizeof *tail))
            return at + n;
    return 0;
}

/* Tokens worth drafting when each is right with probability p. */
static size_t worth(float p) {
    size_t n = 0;
    for (float all = p; all > ROW_COST && n < MG_MAX_DRAFT; all *= p) n++;
    return n;
}

size_t mg_draft_propose(struct mg_draft *d, int32_t *out, size_t most) {
    d->match = 0;
    for (size_t n = 4; n >= 2; n--) {
        if (d->said.n <= n) continue;
        size_t from = find(&d->said, n);
        if (!from) continue;
        size_t count = worth(d->right[n]);
        if (!count && ++d->waited >= RETRY) {
            d->waited = 0;
            count = 1;
        }
        count = mg_min_size(mg_min_size(count, most), d->said.n - from);
        memcpy(out, d->said.id + from, count * sizeof *out);
        if (count) d->match = n;
        return count;
    }
    return 0;
}

void mg_draft_learn(struct mg_draft *d, size_t n, size_t right) {
    if (!d->match) return;
    float *share = &d->right[d->match];
    for (size_t i = 0; i < right; i++) *share += 0.15f * (1 - *share);
    if (right < n) *share -= 0.15f * *share; /* the first wrong one; what follows it says nothing */
}

void mg_draft_free(struct mg_draft *d) {
    mg_ids_free(&d->said);
}
