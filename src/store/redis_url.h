/* store/redis_url.h - the address of a Redis server as people write it.
 *
 *     redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]        rediss:// for TLS
 *
 * USER and PASSWORD may be percent-encoded; ":PASSWORD@" without a user is the default user's. The
 * text comes from an operator, but may hold a secret: no message repeats any part of it, and
 * mg_redis_url_show leaves the password out.
 */
#ifndef MG_STORE_REDIS_URL_H
#define MG_STORE_REDIS_URL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct mg_redis_url {
    bool tls;
    bool has_password;  /* AUTH is needed */
    char host[256];     /* name or address; an IPv6 address without its brackets */
    char port[6];       /* "6379" when the URL names none */
    char user[256];     /* decoded, "" for the default user */
    char password[512]; /* decoded */
    int database;       /* 0 when the URL names none */
};

/* MG_ERR_ARGUMENT, code redis_url. */
enum mg_status mg_redis_url_parse(const char *text, struct mg_redis_url *out, struct mg_err *err);

/* "rediss://user@host:6379/0", cut when it doesn't fit. */
void mg_redis_url_show(const struct mg_redis_url *url, char *out, size_t cap);

#endif
