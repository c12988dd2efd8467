/* cli/load_arrivals.h - when requests of an open loop are due, and the random numbers of a run.
 *
 * The times depend on the pattern and the seed alone, never on how fast the server answers: that is
 * what makes the loop open. Seconds from the beginning, in rising order:
 *
 *     constant    k / rate
 *     poisson     gaps from the exponential distribution of mean 1 / rate, as independent people's
 *     burst:N     N at once every N / rate seconds
 *     ramp:A-B    a Poisson process whose rate goes in a straight line from A to B over `seconds`,
 *                 after `hold` seconds at A; at B from then on
 *
 * The ramp inverts the number of arrivals expected by time t: L(t) = A t up to the hold, then with
 * u = t - hold, A hold + A u + (B - A) u^2 / (2 seconds). Pure; one thread.
 */
#ifndef MG_CLI_LOAD_ARRIVALS_H
#define MG_CLI_LOAD_ARRIVALS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A small generator (a counter through a mixing function): the same numbers everywhere for the same
 * seed. */
struct mg_load_random {
    uint64_t state;
};
uint64_t mg_load_random_bits(struct mg_load_random *r);
double mg_load_random_unit(struct mg_load_random *r);            /* [0, 1) */
size_t mg_load_random_below(struct mg_load_random *r, size_t n); /* 0..n-1, n > 0 */

enum mg_load_pattern { MG_LOAD_POISSON, MG_LOAD_CONSTANT, MG_LOAD_BURST, MG_LOAD_RAMP };

struct mg_load_arrivals {
    enum mg_load_pattern pattern;
    double rate;    /* a second; the ramp's at its beginning */
    double to;      /* the ramp's at its end */
    double hold;    /* seconds at the first rate before the ramp begins */
    double seconds; /* of the ramp, > 0 */
    uint64_t burst; /* requests at once */
    struct mg_load_random random;
    /* Own: */
    uint64_t n;      /* arrivals so far */
    double expected; /* POISSON and RAMP: L at the last arrival */
};

/* "poisson", "constant", "burst:8", "ramp:1-20" into pattern, burst, rate and to; the rest is the
 * caller's. */
enum mg_status mg_load_arrivals_parse(const char *text, struct mg_load_arrivals *out,
                                      struct mg_err *err);
/* Seconds of the next arrival; never before the last one. */
double mg_load_arrivals_next(struct mg_load_arrivals *a);

#endif
