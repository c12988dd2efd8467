/* store/breaker.c - see breaker.h. */
#include "store/breaker.h"

void mg_breaker_init(struct mg_breaker *b, double now) {
    *b = (struct mg_breaker){.state = MG_BREAKER_OPEN, .wait = MG_BREAKER_FIRST, .next = now};
}

bool mg_breaker_probe(struct mg_breaker *b, double now) {
    if (b->state != MG_BREAKER_OPEN || now < b->next) return false;
    b->state = MG_BREAKER_HALF_OPEN;
    return true;
}

static bool counts(const struct mg_breaker *b, bool probe) {
    return b->state == (probe ? MG_BREAKER_HALF_OPEN : MG_BREAKER_CLOSED);
}

void mg_breaker_success(struct mg_breaker *b, bool probe) {
    if (!counts(b, probe)) return;
    b->state = MG_BREAKER_CLOSED;
    b->failures = 0;
    b->wait = MG_BREAKER_FIRST;
}

void mg_breaker_failure(struct mg_breaker *b, bool probe, double now) {
    if (!counts(b, probe)) return;
    if (!probe && ++b->failures < MG_BREAKER_THRESHOLD) return;
    b->state = MG_BREAKER_OPEN;
    b->failures = 0;
    b->next = now + b->wait;
    b->wait = b->wait * 2 < MG_BREAKER_MOST ? b->wait * 2 : MG_BREAKER_MOST;
}
