/* store/redis_url.c - see redis_url.h. */
#include "store/redis_url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_DATABASE 1000000 /* far above any server's `databases` */

static enum mg_status wrong(struct mg_err *err, const char *what) {
    return mg_fail(err, MG_ERR_ARGUMENT, "redis_url",
                   "not an address like redis://user:password@host:6379/0: %s", what);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* [s, end) with %XX decoded; false when it doesn't fit, is broken, or holds a NUL. */
static bool decode(const char *s, const char *end, char *out, size_t cap) {
    size_t n = 0;
    while (s < end) {
        int byte = (unsigned char)*s++;
        if (byte == '%') {
            if (end - s < 2 || hex_digit(s[0]) < 0 || hex_digit(s[1]) < 0) return false;
            byte = hex_digit(s[0]) * 16 + hex_digit(s[1]);
            s += 2;
        }
        if (byte == 0 || n + 1 >= cap) return false;
        out[n++] = (char)byte;
    }
    out[n] = '\0';
    return true;
}

/* Digits only, at most `max`; -1 otherwise. */
static long number(const char *s, const char *end, long max) {
    long v = 0;
    if (s == end) return -1;
    for (; s < end; s++) {
        if (*s < '0' || *s > '9') return -1;
        v = v * 10 + (*s - '0');
        if (v > max) return -1;
    }
    return v;
}

static enum mg_status take_user(const char *s, const char *at, struct mg_redis_url *out,
                                struct mg_err *err) {
    const char *colon = memchr(s, ':', (size_t)(at - s));
    if (!colon) return wrong(err, "a user needs a password (user:password@, or :password@)");
    if (!decode(s, colon, out->user, sizeof out->user))
        return wrong(err, "the user is too long or badly encoded");
    if (!decode(colon + 1, at, out->password, sizeof out->password))
        return wrong(err, "the password is too long or badly encoded (encode % as %25)");
    out->has_password = true;
    return MG_OK;
}

static enum mg_status take_host(const char *s, const char *end, struct mg_redis_url *out,
                                struct mg_err *err) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    static const char address[] = "0123456789abcdefABCDEF:.";
    bool bracket = s < end && *s == '[';
    if (bracket) s++;
    size_t n = strspn(s, bracket ? address : name);
    if (n == 0 || n >= sizeof out->host || n > (size_t)(end - s))
        return wrong(err, "there is no host in it");
    memcpy(out->host, s, n);
    out->host[n] = '\0';
    s += n;
    if (bracket && (s == end || *s++ != ']')) return wrong(err, "no ']' after the address");
    if (s == end) return MG_OK;
    long port = *s == ':' ? number(s + 1, end, 65535) : -1;
    if (port < 1) return wrong(err, "the port is a number from 1 to 65535");
    snprintf(out->port, sizeof out->port, "%ld", port);
    return MG_OK;
}

enum mg_status mg_redis_url_parse(const char *text, struct mg_redis_url *out, struct mg_err *err) {
    memset(out, 0, sizeof *out);
    snprintf(out->port, sizeof out->port, "6379");
    if (strncasecmp(text, "redis://", 8) == 0)
        text += 8;
    else if (strncasecmp(text, "rediss://", 9) == 0)
        text += 9, out->tls = true;
    else
        return wrong(err, "it begins with redis:// or rediss://");
    /* The password may hold any character but '/', '?' and '#', so the last '@' ends it. */
    const char *end = text + strcspn(text, "/?#"), *at = end, *host = text;
    if (*end == '?' || *end == '#') return wrong(err, "'?' and '#' have no meaning in it");
    while (at > text && at[-1] != '@') at--;
    if (at > text) {
        host = at;
        enum mg_status st = take_user(text, at - 1, out, err);
        if (st) return st;
    }
    enum mg_status st = take_host(host, end, out, err);
    if (st || *end == '\0' || end[1] == '\0') return st;
    long database = number(end + 1, end + strlen(end), MAX_DATABASE);
    if (database < 0) return wrong(err, "behind the host stands the database's number");
    out->database = (int)database;
    return MG_OK;
}

void mg_redis_url_show(const struct mg_redis_url *url, char *out, size_t cap) {
    bool v6 = strchr(url->host, ':') != NULL;
    snprintf(out, cap, "%s://%s%s%s%s%s:%s/%d", url->tls ? "rediss" : "redis", url->user,
             url->user[0] ? "@" : "", v6 ? "[" : "", url->host, v6 ? "]" : "", url->port,
             url->database);
    mg_text_defuse(out);
}
