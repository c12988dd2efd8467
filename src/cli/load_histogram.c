/* cli/load_histogram.c - see load_histogram.h. */
#include "cli/load_histogram.h"

#include <math.h>

enum { SUB = 1 << MG_LOAD_SUB_BITS };

static uint64_t microseconds(double seconds) {
    double us = seconds * 1e6;
    if (!(us > 0)) return 0;
    if (us >= (double)(UINT64_C(1) << MG_LOAD_MAX_BITS))
        return (UINT64_C(1) << MG_LOAD_MAX_BITS) - 1;
    uint64_t x = (uint64_t)llround(us);
    return x >> MG_LOAD_MAX_BITS ? (UINT64_C(1) << MG_LOAD_MAX_BITS) - 1 : x;
}

static size_t bucket_of(uint64_t us) {
    if (us < MG_LOAD_EXACT) return (size_t)us;
    unsigned top = 63u - (unsigned)__builtin_clzll(us); /* at least MG_LOAD_SUB_BITS + 1 */
    unsigned shift = top - MG_LOAD_SUB_BITS;
    return MG_LOAD_EXACT + (size_t)(shift - 1) * SUB + (size_t)((us >> shift) - SUB);
}

static void borders(size_t i, uint64_t *low, uint64_t *high) {
    if (i < MG_LOAD_EXACT) {
        *low = i;
        *high = i + 1;
        return;
    }
    size_t shift = (i - MG_LOAD_EXACT) / SUB + 1;
    *low = (uint64_t)((i - MG_LOAD_EXACT) % SUB + SUB) << shift;
    *high = *low + (UINT64_C(1) << shift);
}

void mg_load_histogram_add(struct mg_load_histogram *h, double seconds) {
    if (!(seconds > 0)) seconds = 0;
    if (h->n == 0 || seconds < h->min) h->min = seconds;
    if (h->n == 0 || seconds > h->max) h->max = seconds;
    h->n++;
    h->sum += seconds;
    h->count[bucket_of(microseconds(seconds))]++;
}

double mg_load_histogram_quantile(const struct mg_load_histogram *h, double q) {
    if (h->n == 0) return 0;
    if (q <= 0) return h->min;
    if (q >= 1) return h->max;
    /* 0.99 * 100 is a little over 99 in binary: such a rank must not become 100. */
    uint64_t rank = (uint64_t)ceil(q * (double)h->n * (1 - 1e-12)), seen = 0;
    if (rank >= h->n) return h->max;
    for (size_t i = 0; i < MG_LOAD_N_BUCKET; i++) {
        seen += h->count[i];
        if (seen < rank) continue;
        uint64_t low, high;
        borders(i, &low, &high);
        double middle = 0.5e-6 * (double)(low + high - 1);
        return fmin(fmax(middle, h->min), h->max);
    }
    return h->max;
}

double mg_load_histogram_mean(const struct mg_load_histogram *h) {
    return h->n ? h->sum / (double)h->n : 0;
}

uint64_t mg_load_histogram_up_to(const struct mg_load_histogram *h, double seconds) {
    if (h->n == 0 || seconds < h->min) return 0;
    if (seconds >= h->max) return h->n;
    size_t last = bucket_of(microseconds(seconds));
    uint64_t n = 0;
    for (size_t i = 0; i <= last; i++) n += h->count[i];
    return n;
}

void mg_load_histogram_bucket(size_t i, double *low, double *high) {
    uint64_t a, b;
    borders(i, &a, &b);
    *low = 1e-6 * (double)a;
    *high = 1e-6 * (double)b;
}
