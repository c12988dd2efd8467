/* net/probe.h - one GET of a small answer, from a server that should be near: for health checks.
 *
 * No proxy, no redirect, no second try; the whole takes `seconds` at most. Any thread, not before
 * others use libcurl's global state for the first time.
 */
#ifndef MG_NET_PROBE_H
#define MG_NET_PROBE_H

#include "base/err.h"
#include "base/mem.h"

struct mg_probe_options {
    const char *url;       /* http:// or https:// */
    const char *unix_path; /* connect there, whatever the URL's host is; NULL: to that host */
    const char *ca_file;   /* PEM file of trusted certificates; NULL: the system's */
    bool insecure;         /* any certificate will do */
    double seconds;
};

/* Any answer is MG_OK: its status, and its body in `out`, which is cut at out->max bytes. */
enum mg_status mg_probe_get(const struct mg_probe_options *options, int *status, struct mg_buf *out,
                            struct mg_err *err);

#endif
