/* server/manager.c - see manager.h. */
#include "server/manager.h"

#include "base/io.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define WARMING_SECONDS 0.05 /* until it is ready */
#define STATUS_SECONDS 2.0   /* between two looks, and so between two lines of status */

void mg_manager_open(struct mg_manager *m) {
    struct mg_err err = {0};
    *m = (struct mg_manager){.alive = mg_clock()};
    if (mg_notify_open(&m->notify, &err) != MG_OK)
        mg_log(MG_LOG_WARN, "%s: the service manager is told nothing", err.text);
    mg_notify_send(&m->notify, "STATUS=loading the model");
}

void mg_manager_close(struct mg_manager *m) {
    mg_notify_close(&m->notify);
}

static void say(struct mg_manager *m, const struct mg_manager_state *state) {
    char text[sizeof m->told];
    snprintf(text, sizeof text, "STATUS=%s; %zu running, %zu waiting",
             state->stopping  ? "stopping"
             : state->stalled ? "the engine does not get on"
             : state->ready   ? "serving"
                              : "warming up",
             state->running, state->waiting);
    if (strcmp(text, m->told) != 0 && mg_notify_send(&m->notify, text))
        memcpy(m->told, text, sizeof text);
}

double mg_manager_tick(struct mg_manager *m, const struct mg_manager_state *state, double now) {
    if (m->notify.fd < 0) return 0;
    if (state->ready && !m->ready && !state->stopping)
        m->ready = mg_notify_send(&m->notify, "READY=1");
    if (state->stopping) mg_manager_stop(m);
    say(m, state);
    double next = m->ready || state->stopping ? STATUS_SECONDS : WARMING_SECONDS;
    double every = m->notify.watchdog_seconds;
    if (every > 0) {
        /* Four times as often as it must be; a stalled engine's manager waits in vain. */
        if (!state->stalled && now - m->alive >= every / 4 &&
            mg_notify_send(&m->notify, "WATCHDOG=1"))
            m->alive = now;
        if (next > every / 4) next = every / 4;
    }
    return next;
}

void mg_manager_reload(struct mg_manager *m, bool begins) {
    char text[64];
    struct timespec now = {0};
    if (!m->ready || m->stopping) return; /* READY=1 would say too much */
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    if (begins)
        mg_notify_send(&m->notify, text);
    else
        m->ready = mg_notify_send(&m->notify, "READY=1"); /* else the next tick's */
}

void mg_manager_stop(struct mg_manager *m) {
    if (!m->stopping) m->stopping = mg_notify_send(&m->notify, "STOPPING=1");
}
