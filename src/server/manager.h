/* server/manager.h - margay serve under a service manager (net/notify.h): ready once the model is
 * warm, a line of what it is doing, signs of life as long as the engine gets on.
 *
 *     open -> "loading" ... mg_server_run: ready, every few seconds status and watchdog
 *          -> reloading and ready again -> stopping
 *
 * A sign of life is withheld when the engine has had work for STALLED_SECONDS (server.c)
 * without getting on, or when the loop itself stands: it is the loop that sends them.
 */
#ifndef MG_SERVER_MANAGER_H
#define MG_SERVER_MANAGER_H

#include "net/notify.h"

/* Loop thread, but for open and close. */
struct mg_manager {
    struct mg_notify notify;
    bool ready;    /* READY=1 has been sent */
    bool stopping; /* STOPPING=1 has been sent */
    char told[96]; /* the last STATUS */
    double alive;  /* mg_clock of the last WATCHDOG */
};

/* What the loop knows at a tick. */
struct mg_manager_state {
    bool ready, stalled, stopping;
    size_t running, waiting;
};

/* A bad address is a warning in the log. */
void mg_manager_open(struct mg_manager *m);
void mg_manager_close(struct mg_manager *m);
/* Tells what is new at `now`; the seconds after which it wants to be called again, 0 never. */
double mg_manager_tick(struct mg_manager *m, const struct mg_manager_state *state, double now);
void mg_manager_reload(struct mg_manager *m, bool begins);
void mg_manager_stop(struct mg_manager *m);

#endif
