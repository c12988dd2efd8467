/* net/fetch.h - fetches bytes and files from an HTTP server that may fail in every way.
 *
 *     mg_fetch_bytes   a short answer into memory
 *     mg_fetch_file    a file of known size: in pieces over several connections, resumed after an
 *                      interruption (part.h), checked against its digest, renamed when whole
 *
 * Tried again, with growing pauses: connections that fail, end early or stall, answers 408, 425,
 * 429 and 5xx (Retry-After is obeyed), ranges and lengths that are not what was asked for. A server
 * that knows no ranges is asked for the whole. A file with the wrong digest is fetched once more
 * from its first byte.
 *
 * Redirects are followed here and not by libcurl: at most MG_FETCH_MAX_HOPS, only to http and
 * https, never from https to http, and the token goes to no server but the one it is for.
 * Certificates are always checked. HTTP_PROXY and its like are obeyed as libcurl does. Errors name
 * the host, never the rest of a URL (CDNs sign theirs) and never the token.
 *
 * An error's code is "http_404" and the like when the server's answer was final, "checksum",
 * "redirect", "certificate", "network" otherwise, or "" (disk, memory, interruption).
 *
 * One thread owns a struct mg_fetch; the callbacks are called on it.
 */
#ifndef MG_NET_FETCH_H
#define MG_NET_FETCH_H

#include "base/err.h"
#include "base/mem.h"
#include "base/sha256.h"

#define MG_FETCH_MAX_HOPS 10
#define MG_FETCH_MAX_CONNECTION 16

struct mg_fetch_options {
    const char *token;    /* sent as "Authorization: Bearer"; NULL: none. Printable ASCII. */
    const char *token_to; /* URL whose scheme, host and port are the only ones that get it */
    const char *agent;    /* User-Agent */
    const char *ca_file;  /* PEM file of trusted certificates; NULL: the system's */
    size_t n_connection;  /* of a large file, 1..MG_FETCH_MAX_CONNECTION */
    size_t n_retry;       /* failures in a row after which a request is given up */
    double stall_seconds; /* without data to speak of: the connection is given up; >= 1 */
    /* Each may be NULL; borrowed with `user` until mg_fetch_close. */
    bool (*stopped)(void *user);                                 /* true: end soon */
    void (*note)(void *user, const char *text);                  /* something is tried again */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes of this file */
    void (*checking)(void *user, uint64_t done, uint64_t total); /* digest of this file */
    void *user;
};

enum mg_fetch_check { MG_FETCH_NO_CHECK, MG_FETCH_SHA256, MG_FETCH_GIT_SHA1 };

struct mg_fetch_file {
    const char *url;  /* all borrowed */
    const char *name; /* in messages */
    const char *path; /* where it goes; its folder exists */
    uint64_t size;    /* bytes; UINT64_MAX: ask the server */
    enum mg_fetch_check check;
    uint8_t digest[MG_SHA256_BYTES]; /* GIT_SHA1: of the blob, the first MG_SHA1_BYTES */
};

struct mg_fetch_result {
    uint64_t size;     /* bytes of the file */
    uint64_t received; /* bytes of its content that came over the network, thrown away ones too */
    uint64_t resumed;  /* bytes that an earlier run had left */
};

struct mg_fetch;
enum mg_status mg_fetch_open(const struct mg_fetch_options *options, struct mg_fetch **out,
                             struct mg_err *err);
void mg_fetch_close(struct mg_fetch *f);

/* The body of a 200 answer to GET url, MG_ERR_LIMIT over `max` bytes. `name`: in messages. */
enum mg_status mg_fetch_bytes(struct mg_fetch *f, const char *url, const char *name, size_t max,
                              struct mg_buf *out, struct mg_err *err);

/* On failure what came so far is left for the next time, but for a wrong digest. */
enum mg_status mg_fetch_file(struct mg_fetch *f, const struct mg_fetch_file *file,
                             struct mg_fetch_result *out, struct mg_err *err);

/* Is there a file at file->path with this size and digest? Without a digest: with this size. */
enum mg_status mg_fetch_have(struct mg_fetch *f, const struct mg_fetch_file *file, bool *have,
                             struct mg_err *err);

#endif
