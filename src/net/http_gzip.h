/* net/http_gzip.h - compresses a complete reply's body. */
#ifndef MG_NET_HTTP_GZIP_H
#define MG_NET_HTTP_GZIP_H

#include "base/mem.h"

#define MG_GZIP_MIN 1024              /* bytes; shorter bodies gain nothing */
#define MG_GZIP_MAX ((size_t)4 << 20) /* bytes; longer ones would hold up the loop */

/* The gzip form of n bytes in `out`, which is empty; false (out empty again) when there is no
 * memory or it would not be shorter. */
bool mg_gzip(const void *data, size_t n, struct mg_buf *out);

#endif
