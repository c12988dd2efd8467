/* net/sse.h - server-sent events over a stream of http_server.h (WHATWG HTML, "text/event-stream").
 *
 * Each event goes out at once: "data: TEXT\n\n". A comment goes out when nothing did for a while,
 * so that proxies and clients keep a silent stream open, and to find out whether the client has
 * left. No "id:" lines: clients that keep the last id make an empty event of the next comment.
 */
#ifndef MG_NET_SSE_H
#define MG_NET_SSE_H

#include "net/http_server.h"

/* Head and ping of a stream of events, status 200. ping_seconds 0: 10. */
enum mg_status mg_sse_begin(struct mg_http_exchange *x, double ping_seconds);
/* One event; line ends inside `data` become further data lines. event NULL: no "event:" line. */
enum mg_status mg_sse_send(struct mg_http_exchange *x, const char *event, const char *data,
                           size_t n);
/* As text, for those who put it elsewhere (and for tests). */
bool mg_sse_format(struct mg_buf *out, const char *event, const char *data, size_t n);

#endif
