/* net/url.h - what outgoing requests need to know about a URL: is it one that may be asked, and do
 * two of them mean the same server. Parsing is libcurl's, so that what is checked is what is used.
 */
#ifndef MG_NET_URL_H
#define MG_NET_URL_H

#include "base/err.h"
#include "base/mem.h"

#define MG_URL_MAX 8192 /* bytes of a URL with its zero byte; signed ones take some 1,500 */

struct mg_url {
    bool https;
    char host[256]; /* as written, brackets of an IPv6 address kept */
    char port[8];   /* the scheme's own when the URL names none */
    bool query;     /* there is a '?' or a '#' part */
};

/* http or https, a host, no user or password, printable ASCII; MG_ERR_ARGUMENT otherwise. The text
 * never shows more of the URL than its scheme and host: the rest may be a signature. */
enum mg_status mg_url_parse(const char *url, struct mg_url *out, struct mg_err *err);
/* Scheme, host and port are the same. */
bool mg_url_same_origin(const struct mg_url *a, const struct mg_url *b);
/* The host is this machine. */
bool mg_url_is_local(const struct mg_url *url);
/* Adds `text` with everything percent-encoded but letters, digits and "-._~". */
bool mg_url_escape(struct mg_buf *out, const char *text);

#endif
