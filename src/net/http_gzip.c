/* net/http_gzip.c - see http_gzip.h. */
#include "net/http_gzip.h"

#include <zlib.h>

#define LEVEL 4        /* a third of level 6's time for about the same size, on JSON */
#define WINDOW 15 + 16 /* with gzip's head and tail */

bool mg_gzip(const void *data, size_t n, struct mg_buf *out) {
    z_stream z = {0};
    if (n < 32 || n > MG_GZIP_MAX) return false;
    if (deflateInit2(&z, LEVEL, Z_DEFLATED, WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK) return false;
    bool good = mg_buf_reserve(out, n - 1);
    if (good) {
        z.next_in = (Bytef *)(uintptr_t)data;
        z.avail_in = (uInt)n;
        z.next_out = out->data;
        z.avail_out = (uInt)n - 1;
        good = deflate(&z, Z_FINISH) == Z_STREAM_END;
        out->n = good ? z.total_out : 0;
    }
    deflateEnd(&z);
    if (!good) mg_buf_free(out);
    return good;
}
