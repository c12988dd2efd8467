/* engine/sampler.c - see sampler.h.
 *
 * Thresholds instead of sorting. A float's bits, turned so that they order as unsigned numbers do
 * (`order_key`), are looked at eight at a time from the top: a histogram says in which of 256 bins
 * the k-th largest lies (or the token at which p is reached, when bins count weight), and only
 * that bin is divided further. Four rounds find the exact value. Top-k keeps no more than k and a
 * margin of keys while scanning the row, so that its rounds run over few; the scan itself is one
 * comparison a token.
 */
#include "engine/sampler.h"

#include "base/err.h"
#include "base/mem.h"
#include "engine/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY_BELOW 1e-5f /* dividing by less would only make the largest certain, or overflow */
#define TOP_K_MARGIN 1024  /* keys over k before the threshold is found anew */

struct mg_sampler {
    size_t n_vocab;
    struct mg_answer_options o; /* stop strings not used */
    double top_p;               /* o.top_p as the decimal fraction it was written as */
    const struct mg_bias *bias; /* [n_bias], borrowed */
    size_t n_bias;
    uint8_t *seen;    /* [n_vocab] 1: in prompt or answer */
    uint32_t *count;  /* [n_vocab] times in the answer */
    int32_t *seen_id; /* [n_seen] the ids marked in seen */
    size_t n_seen;
    uint32_t *key;                  /* [n_vocab] scratch of top-k */
    struct mg_candidate *candidate; /* [n_vocab] */
    uint64_t rng[4];
};

enum mg_status mg_sampler_open(size_t n_vocab, struct mg_sampler **out, struct mg_err *err) {
    *out = NULL;
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "a vocabulary of %zu tokens", n_vocab);
    struct mg_sampler *s = calloc(1, sizeof *s);
    if (!s) return mg_fail_memory(err, "sampler");
    s->n_vocab = n_vocab;
    s->seen = mg_alloc_zero(n_vocab, sizeof *s->seen);
    s->count = mg_alloc_zero(n_vocab, sizeof *s->count);
    s->seen_id = mg_alloc(n_vocab, sizeof *s->seen_id);
    s->key = mg_alloc(n_vocab, sizeof *s->key);
    s->candidate = mg_alloc(n_vocab, sizeof *s->candidate);
    s->o = (struct mg_answer_options){.repetition_penalty = 1, .top_p = 1};
    s->top_p = 1;
    if (!s->seen || !s->count || !s->seen_id || !s->key || !s->candidate) {
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
    free(s->key);
    free(s->candidate);
    free(s);
}

static bool in_range(double v, double low, double high) {
    return v >= low && v <= high;
}

enum mg_status mg_answer_options_check(const struct mg_answer_options *o, struct mg_err *err) {
    const struct {
        const char *name, *range;
        bool ok;
    } check[] = {
        {"temperature", "0 to 100", in_range(o->temperature, 0, 100)},
        {"top_k", "0 or more", o->top_k >= 0},
        {"top_p", "over 0 and at most 1", in_range(o->top_p, 0, 1) && o->top_p > 0},
        {"min_p", "0 to 1", in_range(o->min_p, 0, 1)},
        {"repetition_penalty", "0.01 to 100", in_range(o->repetition_penalty, 0.01f, 100)},
        {"presence_penalty", "-100 to 100", in_range(o->presence_penalty, -100, 100)},
        {"frequency_penalty", "-100 to 100", in_range(o->frequency_penalty, -100, 100)},
        {"stop", "at most 16 strings of 1 to 1,024 bytes of UTF-8",
         mg_stop_valid(o->stop, o->n_stop)},
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

static uint64_t rotate(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

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

/* 0.8f came from "0.8" and is 0.800000012: the reference computes 1 - 0.8 with the decimal number.
 */
static double as_decimal(float x) {
    double d = round((double)x * 1e6) / 1e6;
    return (float)d == x ? d : x;
}

enum mg_status mg_sampler_start(struct mg_sampler *s, const struct mg_answer_options *o,
                                struct mg_err *err) {
    enum mg_status status = mg_answer_options_check(o, err);
    if (status != MG_OK) return status;
    for (size_t i = 0; i < s->n_seen; i++) s->seen[s->seen_id[i]] = 0, s->count[s->seen_id[i]] = 0;
    s->n_seen = s->n_bias = 0;
    s->o = *o;
    s->top_p = as_decimal(o->top_p);
    uint64_t state = o->seed;
    for (size_t i = 0; i < 4; i++) s->rng[i] = splitmix(&state);
    return MG_OK;
}

enum mg_status mg_sampler_bias(struct mg_sampler *s, const struct mg_bias *bias, size_t n,
                               struct mg_err *err) {
    if (n > MG_MAX_BIAS)
        return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option",
                       "logit_bias must be at most %d tokens", MG_MAX_BIAS);
    for (size_t i = 0; i < n; i++) {
        if (bias[i].id < 0 || (size_t)bias[i].id >= s->n_vocab)
            return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option",
                           "logit_bias: there is no token %d, ids are 0 to %zu", (int)bias[i].id,
                           s->n_vocab - 1);
        if (!in_range(bias[i].value, -100, 100) && bias[i].value != -INFINITY)
            return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option",
                           "logit_bias of token %d must be -100 to 100", (int)bias[i].id);
    }
    s->bias = bias;
    s->n_bias = n;
    return MG_OK;
}

static bool mark_seen(struct mg_sampler *s, int32_t id) {
    if (id < 0 || (size_t)id >= s->n_vocab) return false;
    if (!s->seen[id]) s->seen_id[s->n_seen++] = id;
    s->seen[id] = 1;
    return true;
}

void mg_sampler_prompt(struct mg_sampler *s, const int32_t *id, size_t n) {
    for (size_t i = 0; i < n; i++) mark_seen(s, id[i]);
}

void mg_sampler_take(struct mg_sampler *s, int32_t id) {
    if (mark_seen(s, id)) s->count[id]++;
}

/* The first logit that is not finite, or n. */
static size_t find_bad(const float *logits, size_t n) {
    for (size_t i = 0; i < n; i += 256) { /* blocks without a branch inside, for the vectoriser */
        size_t end = mg_min_size(i + 256, n);
        uint32_t bad = 0;
        for (size_t k = i; k < end; k++) {
            uint32_t bits;
            memcpy(&bits, &logits[k], sizeof bits);
            bad |= (bits & 0x7F800000u) == 0x7F800000u;
        }
        if (!bad) continue;
        for (size_t k = i; k < end; k++)
            if (!isfinite(logits[k])) return k;
    }
    return n;
}

static enum mg_status check_finite(const float *logits, size_t n, struct mg_err *err) {
    size_t bad = find_bad(logits, n);
    if (bad == n) return MG_OK;
    return mg_fail(err, MG_ERR_NUMERIC, "logits_not_finite",
                   "the model gave a logit that is not finite, token %zu of %zu", bad, n);
}

/* Steps 1 to 3. */
static void apply_penalties(const struct mg_sampler *s, float *logits) {
    float r = s->o.repetition_penalty, presence = s->o.presence_penalty;
    float frequency = s->o.frequency_penalty;
    for (size_t i = 0; i < s->n_bias; i++) logits[s->bias[i].id] += s->bias[i].value;
    if (r == 1 && presence == 0 && frequency == 0) return;
    for (size_t i = 0; i < s->n_seen; i++) {
        int32_t id = s->seen_id[i];
        float v = logits[id];
        if (r != 1) v = v < 0 ? v * r : v / r;
        if (s->count[id]) v = v - frequency * (float)s->count[id] - presence;
        logits[id] = v;
    }
}

/* Index of the first largest. */
static size_t find_largest(const float *v, size_t n) {
    size_t best = 0;
    for (size_t i = 0; i < n; i += 256) {
        size_t end = mg_min_size(i + 256, n);
        float most = v[i];
        for (size_t k = i; k < end; k++) most = v[k] > most ? v[k] : most;
        if (i && most <= v[best]) continue;
        for (best = i; v[best] != most;) best++;
    }
    return best;
}

/* Unsigned order of the keys = order of the floats; both zeros are one. */
static uint32_t order_key(float v) {
    uint32_t bits;
    v += 0.0f;
    memcpy(&bits, &v, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float key_value(uint32_t key) {
    float v;
    key = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
    memcpy(&v, &key, sizeof v);
    return v;
}

/* The k-th largest of n keys, 1 <= k <= n. */
static uint32_t kth_largest(const uint32_t *key, size_t n, size_t k) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        size_t bin[256] = {0}, b = 255;
        for (size_t i = 0; i < n; i++)
            if ((key[i] & mask) == prefix) bin[key[i] >> shift & 255]++;
        for (; bin[b] < k; b--) k -= bin[b];
        prefix |= (uint32_t)b << shift;
        mask |= (uint32_t)255 << shift;
    }
    return prefix;
}

/* The k-th largest score, k < n_vocab. */
static float top_k_threshold(struct mg_sampler *s, const float *score, size_t k) {
    size_t n = 0, cap = mg_min_size(k + mg_max_size(k, TOP_K_MARGIN), s->n_vocab);
    float least = -INFINITY; /* k keys are at least this: only more can move the threshold */
    bool full = false;
    for (size_t i = 0; i < s->n_vocab; i++) {
        if (full && !(score[i] > least)) continue;
        s->key[n++] = order_key(score[i]);
        if (n < cap || i + 1 == s->n_vocab) continue;
        uint32_t kth = kth_largest(s->key, n, k);
        size_t kept = 0;
        for (size_t j = 0; j < n; j++)
            if (s->key[j] > kth) s->key[kept++] = s->key[j];
        while (kept < k) s->key[kept++] = kth;
        n = k;
        least = key_value(kth);
        full = true;
    }
    return key_value(kth_largest(s->key, n, k));
}

/* e^x for -700 <= x <= 0, 0 below. Ours, since libm's last bit differs between versions and
 * machines: plain f64 operations in a fixed order (the build forbids contraction). Error under 2
 * ulp. */
static double exp_below_zero(double x) {
    static const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
    static const double inverse_factorial[14] = {1.0,
                                                 1.0,
                                                 1.0 / 2,
                                                 1.0 / 6,
                                                 1.0 / 24,
                                                 1.0 / 120,
                                                 1.0 / 720,
                                                 1.0 / 5040,
                                                 1.0 / 40320,
                                                 1.0 / 362880,
                                                 1.0 / 3628800,
                                                 1.0 / 39916800,
                                                 1.0 / 479001600,
                                                 1.0 / 6227020800};
    if (!(x >= -700)) return 0;
    int k = (int)(x * 0x1.71547652b82fep0 - 0.5); /* to the nearest, halves away from zero */
    double r = (x - k * ln2_high) - k * ln2_low;  /* |r| <= 0.347 */
    double sum = inverse_factorial[13];
    for (int i = 12; i >= 0; i--) sum = sum * r + inverse_factorial[i];
    uint64_t bits = (uint64_t)(1023 + k) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* Step 6 on the n candidates; the number left. */
static size_t keep_top_p(struct mg_sampler *s, size_t n) {
    struct mg_candidate *c = s->candidate;
    double total = 0, above = 0; /* weight of the candidates before the bins being looked at */
    for (size_t i = 0; i < n; i++) total += c[i].weight;
    double limit = s->top_p * total;
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double bin[256] = {0};
        int b = 255, last = -1; /* the last bin that holds any */
        for (size_t i = 0; i < n; i++) {
            uint32_t key = order_key(c[i].score);
            if ((key & mask) == prefix) bin[key >> shift & 255] += c[i].weight;
        }
        for (int i = 0; i < 256 && last < 0; i++)
            if (bin[i] > 0) last = i;
        for (; b > last && above + bin[b] < limit; b--) above += bin[b];
        if (b < 0) return n; /* weights too small to count: cannot be, the largest is 1 */
        prefix |= (uint32_t)b << shift;
        mask |= (uint32_t)255 << shift;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t key = order_key(c[i].score);
        if (key < prefix || (key == prefix && !(above < limit))) continue;
        if (key == prefix) above += c[i].weight; /* equals, in order of id */
        c[kept++] = c[i];
    }
    return kept;
}

/* Steps 4 to 7 above temperature 0. */
static enum mg_status filter(struct mg_sampler *s, float *score, size_t *n_out,
                             struct mg_err *err) {
    float temperature = s->o.temperature, least = -INFINITY;
    if (temperature != 1)
        for (size_t i = 0; i < s->n_vocab; i++) score[i] /= temperature;
    float most = score[find_largest(score, s->n_vocab)];
    if (!isfinite(most))
        return mg_fail(err, MG_ERR_NUMERIC, "logits_not_finite",
                       "the largest logit is not finite after the penalties and the temperature");
    if (s->o.top_k > 0 && (size_t)s->o.top_k < s->n_vocab)
        least = top_k_threshold(s, score, (size_t)s->o.top_k);
    struct mg_candidate *c = s->candidate;
    size_t n = 0;
    for (size_t i = 0; i < s->n_vocab; i++)
        if (score[i] >= least && score[i] > -INFINITY)
            c[n++] = (struct mg_candidate){(int32_t)i, score[i], 0};
    for (size_t i = 0; i < n; i++) c[i].weight = exp_below_zero((double)c[i].score - most);
    if (s->top_p < 1) n = keep_top_p(s, n);
    if (s->o.min_p > 0) {
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (c[i].weight >= s->o.min_p) c[kept++] = c[i];
        n = kept;
    }
    *n_out = n;
    return MG_OK;
}

enum mg_status mg_sampler_candidates(struct mg_sampler *s, float *logits,
                                     const struct mg_candidate **out, size_t *n, double *total,
                                     struct mg_err *err) {
    enum mg_status status = check_finite(logits, s->n_vocab, err);
    if (status != MG_OK) return status;
    apply_penalties(s, logits);
    size_t best = find_largest(logits, s->n_vocab);
    if (logits[best] == -INFINITY)
        return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option", "logit_bias forbids every token");
    *out = s->candidate;
    if (s->o.temperature < GREEDY_BELOW) {
        s->candidate[0] = (struct mg_candidate){(int32_t)best, logits[best], 1};
        *n = 1;
    } else if ((status = filter(s, logits, n, err)) != MG_OK) {
        return status;
    }
    *total = 0;
    for (size_t i = 0; i < *n; i++) *total += s->candidate[i].weight;
    return MG_OK;
}

enum mg_status mg_sampler_pick(struct mg_sampler *s, float *logits, int32_t *token,
                               struct mg_err *err) {
    const struct mg_candidate *c;
    size_t n, i = 0;
    double total, sum = 0;
    enum mg_status status = mg_sampler_candidates(s, logits, &c, &n, &total, err);
    if (status != MG_OK) return status;
    if (s->o.temperature >= GREEDY_BELOW) {
        double at = draw_uniform(s->rng) * total;
        for (; i + 1 < n; i++) {
            sum += c[i].weight;
            if (sum > at) break;
        }
        while (i > 0 && !(c[i].weight > 0)) i--; /* rounding took `at` to the end */
    }
    *token = c[i].id;
    mg_sampler_take(s, *token);
    return MG_OK;
}

/* log of the sum of e^(logit - largest), and the largest. */
static double log_sum(const float *logits, size_t n, double *largest) {
    double sum = 0;
    *largest = logits[find_largest(logits, n)];
    for (size_t i = 0; i < n; i++) sum += exp_below_zero(logits[i] - *largest);
    return log(sum);
}

enum mg_status mg_logprobs_top(const float *logits, size_t n_vocab, size_t n,
                               struct mg_logprob *out, size_t *n_out, struct mg_err *err) {
    *n_out = 0;
    if (n > MG_MAX_LOGPROBS)
        return mg_fail(err, MG_ERR_ARGUMENT, "invalid_option", "top_logprobs must be 0 to %d",
                       MG_MAX_LOGPROBS);
    enum mg_status status = check_finite(logits, n_vocab, err);
    if (status != MG_OK || n == 0) return status;
    size_t have = 0;
    for (size_t i = 0; i < n_vocab; i++) { /* insertion into a list that few ever reach */
        if (have == n && logits[i] <= out[n - 1].logprob) continue;
        size_t at = have < n ? have++ : n - 1;
        for (; at > 0 && out[at - 1].logprob < logits[i]; at--) out[at] = out[at - 1];
        out[at] = (struct mg_logprob){(int32_t)i, logits[i]};
    }
    double largest, log_of_sum = log_sum(logits, n_vocab, &largest);
    for (size_t i = 0; i < have; i++)
        out[i].logprob = (float)(out[i].logprob - largest - log_of_sum);
    *n_out = have;
    return MG_OK;
}

float mg_logprob_of(const float *logits, size_t n_vocab, int32_t id) {
    double largest, log_of_sum = log_sum(logits, n_vocab, &largest);
    return (float)(logits[id] - largest - log_of_sum);
}
