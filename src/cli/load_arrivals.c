/* cli/load_arrivals.c - see load_arrivals.h. */
#include "cli/load_arrivals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RATE 1e6 /* arrivals a second */
#define MAX_BURST 100000

uint64_t mg_load_random_bits(struct mg_load_random *r) {
    /* The counter goes in steps of 2^64 over the golden ratio; the two multiplications spread each
     * bit of it over the word (Steele, Lea, Flood: Fast splittable pseudorandom generators). */
    uint64_t x = r->state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

double mg_load_random_unit(struct mg_load_random *r) {
    return (double)(mg_load_random_bits(r) >> 11) * 0x1p-53;
}

size_t mg_load_random_below(struct mg_load_random *r, size_t n) {
    return (size_t)(mg_load_random_unit(r) * (double)n);
}

/* A rate at *at; moves it behind. */
static bool read_rate(const char **at, double *out) {
    char *end;
    if (!strchr("0123456789.", **at) || !**at) return false;
    *out = strtod(*at, &end);
    if (end == *at || !(*out >= 0) || *out > MAX_RATE) return false;
    *at = end;
    return true;
}

enum mg_status mg_load_arrivals_parse(const char *text, struct mg_load_arrivals *out,
                                      struct mg_err *err) {
    const char *at = text;
    bool ok = true;
    if (!strcmp(text, "poisson")) {
        out->pattern = MG_LOAD_POISSON;
    } else if (!strcmp(text, "constant")) {
        out->pattern = MG_LOAD_CONSTANT;
    } else if (!strncmp(text, "burst:", 6)) {
        char *end;
        out->pattern = MG_LOAD_BURST;
        at += 6;
        unsigned long long n = *at >= '0' && *at <= '9' ? strtoull(at, &end, 10) : 0;
        ok = n >= 1 && n <= MAX_BURST && !*end;
        out->burst = n;
    } else if (!strncmp(text, "ramp:", 5)) {
        out->pattern = MG_LOAD_RAMP;
        at += 5;
        ok = read_rate(&at, &out->rate) && *at == '-' && (at++, read_rate(&at, &out->to)) && !*at &&
             out->rate + out->to > 0;
    } else {
        ok = false;
    }
    return ok ? MG_OK
              : mg_fail(err, MG_ERR_ARGUMENT, "usage",
                        "--arrivals is poisson, constant, burst:N (1 to %d) or ramp:FROM-TO "
                        "(requests a second, at most %.0f), not '%.40s'",
                        MAX_BURST, MAX_RATE, text);
}

/* The time at which `expected` arrivals are expected on the ramp. */
static double ramp_time(const struct mg_load_arrivals *a, double expected) {
    if (expected <= a->rate * a->hold && a->rate > 0) return expected / a->rate;
    double left = expected - a->rate * a->hold;
    double whole = 0.5 * (a->rate + a->to) * a->seconds; /* over all of the ramp */
    if (left >= whole) return a->to > 0 ? a->hold + a->seconds + (left - whole) / a->to : INFINITY;
    /* left = rate u + slope u^2 / 2, in the form that does not cancel when the slope is small. */
    double slope = (a->to - a->rate) / a->seconds;
    double root = sqrt(fmax(0, a->rate * a->rate + 2 * slope * left));
    return a->hold + 2 * left / (a->rate + root);
}

double mg_load_arrivals_next(struct mg_load_arrivals *a) {
    uint64_t k = a->n++;
    switch (a->pattern) {
    case MG_LOAD_CONSTANT: return (double)k / a->rate;
    case MG_LOAD_BURST: return (double)(k / a->burst) * (double)a->burst / a->rate;
    case MG_LOAD_POISSON:
    case MG_LOAD_RAMP: break;
    }
    a->expected -= log1p(-mg_load_random_unit(&a->random));
    return a->pattern == MG_LOAD_RAMP ? ramp_time(a, a->expected) : a->expected / a->rate;
}
