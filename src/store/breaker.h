/* store/breaker.h - when not to ask a server that has stopped answering.
 *
 *      closed --threshold failures in a row--> open --`next` has come--> half open
 *         ^                                      ^                          |
 *         +------------- the probe succeeded ----|--------------------------+
 *                                                +--- it failed: longer wait
 *
 * Closed: everybody asks. Open: nobody does, so nobody waits. Half open: one probe is under way and
 * nobody else asks. The wait between probes grows from MG_BREAKER_FIRST to MG_BREAKER_MOST seconds,
 * so that a server that is back is noticed within MG_BREAKER_MOST and the time of one probe. It
 * begins open, with a probe at once: nothing is known yet.
 *
 * No clock and no lock of its own: times come from the caller (mg_clock), who keeps it to one
 * thread at a time.
 */
#ifndef MG_STORE_BREAKER_H
#define MG_STORE_BREAKER_H

#include <stdbool.h>

#define MG_BREAKER_THRESHOLD 2 /* one slow command may be chance */
#define MG_BREAKER_FIRST 0.25
#define MG_BREAKER_MOST 2.0

enum mg_breaker_state { MG_BREAKER_CLOSED, MG_BREAKER_OPEN, MG_BREAKER_HALF_OPEN };

struct mg_breaker {
    enum mg_breaker_state state;
    unsigned failures; /* in a row, while closed */
    double wait;       /* seconds until the next probe, were this one to fail */
    double next;       /* open: when to probe */
};

void mg_breaker_init(struct mg_breaker *b, double now);
static inline bool mg_breaker_allows(const struct mg_breaker *b) {
    return b->state == MG_BREAKER_CLOSED;
}
/* True for the one who is to probe now; must be followed by a success or a failure. */
bool mg_breaker_probe(struct mg_breaker *b, double now);
/* What came of the probe, or of another call. Other calls count while closed only: one that was
 * begun before the breaker opened says nothing about now. */
void mg_breaker_success(struct mg_breaker *b, bool probe);
void mg_breaker_failure(struct mg_breaker *b, bool probe, double now);

#endif
