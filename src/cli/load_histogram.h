/* cli/load_histogram.h - counts of times, from a microsecond to twelve days, with a bounded
 * relative error: log-linear buckets.
 *
 *     microseconds   buckets
 *     0..255         one each: exact
 *     256..511       128, 2 wide
 *     512..1023      128, 4 wide
 *     ...            128 in each doubling, up to 2^40
 *
 * A bucket speaks with its middle, so that a time of 256 us or more is off by at most half a
 * bucket's width: 1 part in 256, MG_LOAD_HISTOGRAM_ERROR. Shorter times are off by half a
 * microsecond at most, the rounding. Least, greatest and sum are kept exactly. Nothing is
 * allocated; a histogram has 34 KB. Zero-initialised is empty.
 */
#ifndef MG_CLI_LOAD_HISTOGRAM_H
#define MG_CLI_LOAD_HISTOGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_LOAD_HISTOGRAM_ERROR (1.0 / 256)
enum {
    MG_LOAD_SUB_BITS = 7,                  /* 128 buckets in a doubling */
    MG_LOAD_EXACT = 2 << MG_LOAD_SUB_BITS, /* microseconds below which each has its bucket */
    MG_LOAD_MAX_BITS = 40,
    MG_LOAD_N_BUCKET =
        MG_LOAD_EXACT + (MG_LOAD_MAX_BITS - MG_LOAD_SUB_BITS - 1) * (1 << MG_LOAD_SUB_BITS)
};

struct mg_load_histogram {
    uint64_t n;
    double sum, min, max; /* seconds; min and max only when n > 0 */
    uint64_t count[MG_LOAD_N_BUCKET];
};

/* Seconds; what is negative or no number counts as 0, what is over the range as its end. */
void mg_load_histogram_add(struct mg_load_histogram *h, double seconds);
/* The q-quantile by nearest rank: the least time such that at least q * n of them are not longer;
 * seconds, 0 when empty. 0 gives the least, 1 the greatest time exactly. */
double mg_load_histogram_quantile(const struct mg_load_histogram *h, double q);
double mg_load_histogram_mean(const struct mg_load_histogram *h);
/* How many took at most so long; exact at bucket borders, else with the bucket's whole count. */
uint64_t mg_load_histogram_up_to(const struct mg_load_histogram *h, double seconds);
/* Borders of a bucket, [*low, *high) in seconds. */
void mg_load_histogram_bucket(size_t i, double *low, double *high);

#endif
