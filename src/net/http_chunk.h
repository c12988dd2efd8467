/* net/http_chunk.h - takes "Transfer-Encoding: chunked" off a request's body, strictly.
 *
 * A pure state machine like http_head.h's: cuts don't matter, a lone CR or LF, an overlong number
 * or a blank around it is an error. Extensions and trailer fields are read over and forgotten;
 * together they may have MG_HTTP_MAX_OVERHEAD bytes, and they hold no control characters.
 *
 *     struct mg_http_chunk c = {0};
 *     while (n) {
 *         feed = mg_http_chunk_feed(&c, data, n, &used, &piece);    piece: bytes of the body, or
 * none data += used, n -= used ...
 *
 * Allocates nothing.
 */
#ifndef MG_NET_HTTP_CHUNK_H
#define MG_NET_HTTP_CHUNK_H

#include "net/http_head.h"

#define MG_HTTP_MAX_OVERHEAD 16384 /* bytes of extensions and trailers of one body */

struct mg_http_chunk {
    int state;
    uint64_t left;     /* bytes of this chunk still to come, or its length as far as read */
    unsigned n_digit;  /* of that length */
    size_t overhead;   /* bytes of extensions and trailers so far */
    bool line_empty;   /* of the trailer's current line */
    const char *fault; /* after BAD: one sentence, constant; the answer's status is 400 */
};

/* Takes 1..n bytes (*used); *piece is a view of `data`, perhaps empty. DONE: the body has ended.
 * After DONE and BAD it must not be called again. */
enum mg_http_feed mg_http_chunk_feed(struct mg_http_chunk *c, const uint8_t *data, size_t n,
                                     size_t *used, struct mg_slice *piece);

#endif
