/* cli/doctor_redis.c - is the Redis server there: connect, log in, PING, each within 200 ms, the
 * limit that holds while serving. Later commands are timed too: one that takes long makes the
 * shared cache slower than computing. */
#include "cli/doctor.h"

#include "base/io.h"
#include "store/redis_link.h"

#include <stdio.h>
#include <string.h>

#define LIMIT 0.2 /* seconds */
#define FAR 0.020 /* seconds */
#define N_PING 5  /* of which the best counts */

static const char *remedy(struct mg_doctor *d, const struct mg_redis_url *u, const char *code) {
    if (!strcmp(code, "redis_refused"))
        return mg_doctor_text(d,
                              "sudo systemctl start redis-server there, or correct the address; "
                              "`bind` and `port` in redis.conf say where it listens (%s:%s wanted)",
                              u->host, u->port);
    if (!strcmp(code, "redis_auth"))
        return "MARGAY_REDIS=redis://USER:PASSWORD@HOST:PORT/0 with what redis-cli ACL LIST, or "
               "requirepass in redis.conf, has";
    if (!strcmp(code, "redis_host"))
        return mg_doctor_text(d, "getent hosts %s; correct the name or /etc/resolv.conf", u->host);
    if (!strcmp(code, "redis_tls"))
        return "--redis-ca-file FILE with the authority that signed its certificate (redis:// for "
               "a server without TLS)";
    if (!strcmp(code, "redis_loading")) return "wait until it is ready: redis-cli INFO persistence";
    if (!strcmp(code, "redis_closed"))
        return "rediss:// for a server with TLS; redis-cli CONFIG GET maxclients";
    return mg_doctor_text(d,
                          "redis-cli -h %s -p %s --latency; is it stopped, or the way to it "
                          "blocked?",
                          u->host, u->port);
}

enum mg_status mg_doctor_redis(struct mg_doctor *d, struct mg_err *err) {
    const char *text = mg_opt_text(d->o, MG_OPT_REDIS, NULL), *const ping[] = {"PING"};
    struct mg_redis_tls files = {.ca_file = mg_opt_text(d->o, MG_OPT_REDIS_CA, NULL),
                                 .cert_file = mg_opt_text(d->o, MG_OPT_REDIS_CERT, NULL),
                                 .key_file = mg_opt_text(d->o, MG_OPT_REDIS_KEY, NULL)};
    struct mg_redis_link *link = NULL;
    struct mg_redis_url url;
    struct mg_err why = {0};
    char shown[320];
    if (!text) return MG_OK;
    enum mg_status st = mg_redis_url_parse(text, &url, err);
    if (st) {
        if (err) snprintf(err->code, sizeof err->code, "usage");
        return st;
    }
    mg_redis_url_show(&url, shown, sizeof shown);
    st = mg_redis_link_open(&url, &files, LIMIT, &link, &why);
    double best = LIMIT;
    for (int i = 0; i < N_PING && !st; i++) {
        double begin = mg_clock();
        st = mg_redis_link_call(link, LIMIT, 1, ping, NULL, NULL, &why);
        if (st) mg_err_prefix(&why, "Redis at %s", shown);
        double took = mg_clock() - begin;
        if (!st && took < best) best = took;
    }
    mg_redis_link_close(link);
    if (st)
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "redis",
                      "Without it each margay has caches of its own, and a queue does not work.",
                      remedy(d, &url, why.code), "%s", why.text);
    else if (best > FAR)
        mg_doctor_say(d, MG_LEVEL_WARNING, "redis",
                      "Every look into the shared cache takes at least as long.",
                      "use a server in the same network; redis-cli --latency measures",
                      "Redis at %s answers, in %.0f ms", shown, 1e3 * best);
    else
        mg_doctor_say(d, MG_LEVEL_OK, "redis", NULL, NULL, "Redis at %s: answers in %.2f ms", shown,
                      1e3 * best);
    return MG_OK;
}
