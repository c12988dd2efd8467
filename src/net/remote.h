/* net/remote.h - fetches small files from hosts that the operator has allowed, for requests of
 * strangers: the guard against server-side request forgery.
 *
 * What protects, hop by hop, redirects included (they are followed here, not by libcurl):
 *   - http and https only, no user in the URL, never from https back to http;
 *   - the host (and a port other than the scheme's own) must be on the list, which is empty by
 *     default;
 *   - the address is judged where the socket to it is made, not where the name is resolved: what is
 *     checked is what is connected to, so a name that resolves differently the second time gains
 *     nothing (CURLOPT_RESOLVE would pin as well, with a resolver of ours beside libcurl's). Other
 *     than public addresses are refused unless address_ok says otherwise;
 *   - no proxy, no cookies, no credentials, no compression, certificates always checked;
 *   - limits on bytes, on time over all hops, on hops, on fetches at a time and waiting.
 *
 * All fetches share one thread. Texts of errors name no address and nothing of a URL but its host.
 * Codes: "url", "host_not_allowed", "address_not_allowed", "redirect", "too_large", "timeout",
 * "http_404" and the like, "certificate", "network", "busy"; MG_ERR_CANCELLED has none.
 *
 * Any thread may call fetch and cancel; open and close belong to one.
 */
#ifndef MG_NET_REMOTE_H
#define MG_NET_REMOTE_H

#include "base/err.h"
#include "base/mem.h"

#include <sys/socket.h>

/* Borrowed until close; 0 and NULL mean the default in brackets. */
struct mg_remote_options {
    /* "example.org", "*.example.org" (what is below it), "example.org:8080", "*" [none] */
    const char *const *host;
    size_t n_host;
    size_t max_bytes;    /* of one file [20 MiB] */
    double seconds;      /* of one fetch in all [20] */
    size_t max_hop;      /* redirects [3] */
    size_t max_active;   /* fetches at a time [16] */
    size_t max_waiting;  /* [256] */
    const char *agent;   /* User-Agent ["margay"] */
    const char *accept;  /* Accept ["image/" and any subtype] */
    const char *ca_file; /* PEM file of trusted certificates [the system's] */
    bool (*address_ok)(const struct sockaddr *address, socklen_t n, void *user); /* [public] */
    void *user;
};

struct mg_remote;
enum mg_status mg_remote_open(const struct mg_remote_options *options, struct mg_remote **out,
                              struct mg_err *err);
/* Cancels what is under way; each `done` has been called when it returns. */
void mg_remote_close(struct mg_remote *r);

/* Called once, on the fetching thread, soon after: it must not block. The bytes are a view valid
 * during the call, none unless err->status is MG_OK. */
typedef void mg_remote_done(const struct mg_err *err, const uint8_t *data, size_t n, void *arg);

/* Begins a fetch; *id names it for mg_remote_cancel and is never 0. What is wrong with the URL
 * itself, or MG_ERR_LIMIT "busy" when too many wait, is told at once, and `done` not called. */
enum mg_status mg_remote_fetch(struct mg_remote *r, const char *url, mg_remote_done *done,
                               void *arg, uint64_t *id, struct mg_err *err);
/* `done` is called with MG_ERR_CANCELLED unless it has been; does not wait for it. */
void mg_remote_cancel(struct mg_remote *r, uint64_t id);

/* Is the host of this URL on the list? For tests and for messages. */
enum mg_status mg_remote_check(const struct mg_remote *r, const char *url, struct mg_err *err);

#endif
