/* server/page.h - the web page: its files, out of the program or, for work on it, out of a folder.
 *
 * Whoever reaches the server may have the page itself; what it asks for needs the key. Every file
 * comes with the headers that keep a browser from running or loading anything of others.
 */
#ifndef MG_SERVER_PAGE_H
#define MG_SERVER_PAGE_H

#include "net/http_server.h"

struct page;

enum { PAGE_ROUTES = 5 };

/* folder NULL: the embedded files. */
enum mg_status page_open(const char *folder, const char *prefix, struct page **out,
                         struct mg_err *err);
void page_close(struct page *p);
/* Fills in at most PAGE_ROUTES routes with this function and tag; returns how many. */
size_t page_routes(const struct page *p, mg_http_fn *fn, int tag, struct mg_http_route *route);
/* Answers a GET of one of them. */
void page_reply(const struct page *p, struct mg_http_exchange *x);

#endif
