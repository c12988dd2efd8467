/* engine/sampler.c - see sampler.h.
 *
 * A vocabulary of 152k is never sorted: top-k keeps a heap of k while scanning, and top-p pops only as many
 * candidates from a heap as it keeps.
 */
#include "engine/sampler.h"

#include "base/err.h"
#include "base/mem.h"
#include "engine/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t id;
};

struct mg_sampler {
    size_t n_vocab;
    struct mg_answer_options o;   /* stop strings not used */
    uint8_t *seen;                /* [n_vocab] 1: in prompt or answer */
    uint32_t *count;              /* [n_vocab] times in the answer */
    int32_t *seen_id;             /* [n_seen] the ids marked in seen */
    size_t n_seen;
    struct candidate *candidate;  /* [n_vocab] */
    double *weight;               /* [n_vocab] */
    uint64_t rng[4];
};

enum mg_status mg_sampler_open(size_t n_vocab, struct mg_sampler **out, struct mg_err *err) {
    struct mg_sampler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return mg_fail_memory(err, "sampler");
    s->n_vocab = n_vocab;
    s->seen = mg_alloc_zero(n_vocab, sizeof *s->seen);
    s->count = mg_alloc_zero(n_vocab, sizeof *s->count);
    s->seen_id = mg_alloc(n_vocab, sizeof *s->seen_id);
    s->candidate = mg_alloc(n_vocab, sizeof *s->candidate);
    s->weight = mg_alloc(n_vocab, sizeof *s->weight);
    if (!s->seen || !s->count || !s->seen_id || !s->candidate || !s->weight) {
        mg_sampler_close(s);
        return mg_fail_memory(err, "sampler");
    }
    *out = s;
    return MG_OK;
}

void mg_sampler_close(struct mg_sampler *s) {
    if (!s) return;
    free(s->seen);
    free(s->count);
    free(s->seen_id);
    free(s->candidate);
    free(s->weight);
    free(s);
}

static bool in_range(double v, double low, double high) { return v >= low && v <= high; }

enum mg_status mg_answer_options_check(const struct mg_answer_options *o, struct mg_err *err) {
    const struct {
        const char *name, *range;
        bool ok;
    } check[] = {
        {"temperature", "0 to 100", in_range(o->temperature, 0, 100)},
        {"top_k", "0 or more", o->top_k >= 0},
        {"top_p", "over 0 and at most 1", in_range(o->top_p, 0, 1) && o->top_p > 0},
        {"min_p", "0 to 1", in_range(o->min_p, 0, 1)},
        {"repetition_penalty", "over 0 and at most 100",
         in_range(o->repetition_penalty, 0, 100) && o->repetition_penalty > 0},
        {"presence_penalty", "-100 to 100", in_range(o->presence_penalty, -100, 100)},
        {"frequency_penalty", "-100 to 100", in_range(o->frequency_penalty, -100, 100)},
        {"stop", "at most 16 strings of 1 to 1,024 bytes", mg_stop_valid(o->stop, o->n_stop)},
    };
    for (size_t i = 0; i < sizeof check / sizeof *check; i++)
        if (!check[i].ok)
            return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option", "%s must be %s", check[i].name,
                           check[i].range);
    return MG_OK;
}

static uint64_t splitmix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }

/* Uniform in [0, 1), 53 bits. */
static double draw_uniform(uint64_t r[4]) {
    uint64_t result = rotate(r[1] * 5, 7) * 9, t = r[1] << 17;
    r[2] ^= r[0];
    r[3] ^= r[1];
    r[1] ^= r[2];
    r[0] ^= r[3];
    r[2] ^= t;
    r[3] = rotate(r[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

static void mark_seen(struct mg_sampler *s, int32_t id) {
    if (id < 0 || (size_t)id >= s->n_vocab || s->seen[id]) return;
    s->seen[id] = 1;
    s->seen_id[s->n_seen++] = id;
}

enum mg_status mg_sampler_start(struct mg_sampler *s, const struct mg_answer_options *o, struct mg_err *err) {
    enum mg_status status = mg_answer_options_check(o, err);
    if (status != MG_OK) return status;
    for (size_t i = 0; i < s->n_seen; i++) s->seen[s->seen_id[i]] = 0, s->count[s->seen_id[i]] = 0;
    s->n_seen = 0;
    s->o = *o;
    uint64_t state = o->seed;
    for (size_t i = 0; i < 4; i++) s->rng[i] = splitmix(&state);
    return MG_OK;
}

void mg_sampler_prompt(struct mg_sampler *s, const int32_t *id, size_t n) {
    for (size_t i = 0; i < n; i++) mark_seen(s, id[i]);
}

static void apply_penalties(const struct mg_sampler *s, float *logits) {
    float r = s->o.repetition_penalty, presence = s->o.presence_penalty, frequency = s->o.frequency_penalty;
    for (size_t i = 0; i < s->n_seen; i++) {
        int32_t id = s->seen_id[i];
        float v = logits[id];
        if (r != 1) v = v < 0 ? v * r : v / r;
        if (s->count[id]) v -= presence + frequency * (float)s->count[id];
        logits[id] = v;
    }
}

/* Larger logit first, then smaller id. */
static bool before(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Heaps with the candidate that comes last (least) or first (greatest) at the root. */
static bool above(const struct candidate *a, const struct candidate *b, bool least) {
    return least ? before(b, a) : before(a, b);
}

static void sift_down(struct candidate *heap, size_t n, size_t at, bool least) {
    struct candidate moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && above(&heap[child + 1], &heap[child], least)) child++;
        if (!above(&heap[child], &moved, least)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void make_heap(struct candidate *heap, size_t n, bool least) {
    for (size_t i = n / 2; i-- > 0;) sift_down(heap, n, i, least);
}

/* The candidates that top-k leaves, unordered: the k largest and whatever ties with the k-th. */
static size_t select_top_k(struct mg_sampler *s, const float *logits) {
    size_t k = s->o.top_k > 0 ? mg_min_size((size_t)s->o.top_k, s->n_vocab) : s->n_vocab, n = 0;
    struct candidate *c = s->candidate;
    float least = -INFINITY;
    if (k < s->n_vocab) {
        for (size_t i = 0; i < k; i++) c[i] = (struct candidate){logits[i], (int32_t)i};
        make_heap(c, k, true);
        for (size_t i = k; i < s->n_vocab; i++)
            if (logits[i] > c[0].logit) {
                c[0] = (struct candidate){logits[i], (int32_t)i};
                sift_down(c, k, 0, true);
            }
        least = c[0].logit;
    }
    for (size_t i = 0; i < s->n_vocab; i++)
        if (logits[i] >= least) c[n++] = (struct candidate){logits[i], (int32_t)i};
    return n;
}

/* Draws from candidates [0, n), likeliest first: weights relative to the likeliest. */
static int32_t draw(struct mg_sampler *s, size_t n) {
    struct candidate *heap = s->candidate;
    double total = 0, kept = 0, top, reached;
    make_heap(heap, n, false);
    top = heap[0].logit;
    for (size_t i = 0; i < n; i++) total += exp(((double)heap[i].logit - top) / s->o.temperature);
    /* Pop in order; what is popped lies behind the shrinking heap. */
    size_t left = n, taken = 0;
    while (left) {
        struct candidate best = heap[0];
        double w = exp(((double)best.logit - top) / s->o.temperature);
        if (taken && (kept >= s->o.top_p * total || w < s->o.min_p)) break;
        heap[0] = heap[--left];
        sift_down(heap, left, 0, false);
        heap[left] = best;
        s->weight[taken++] = w;
        kept += w;
    }
    double at = draw_uniform(s->rng) * kept;
    reached = 0;
    for (size_t i = 0; i < taken; i++) {
        reached += s->weight[i];
        if (at < reached) return heap[n - 1 - i].id;
    }
    return heap[n - taken].id;
}

enum mg_status mg_sampler_pick(struct mg_sampler *s, float *logits, int32_t *token, struct mg_err *err) {
    apply_penalties(s, logits);
    size_t best = 0;
    for (size_t i = 1; i < s->n_vocab; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    if (!isfinite(logits[best]))
        return mg_fail(err, MG_ERR_NUMERIC, "logits_not_finite", "the model gave no finite logit");
    *token = s->o.temperature > 0 ? draw(s, select_top_k(s, logits)) : (int32_t)best;
    mark_seen(s, *token);
    s->count[*token]++;
    return MG_OK;
}
