/* net/http_response.h - takes an HTTP/1 reply apart as its bytes come: the client's side of
 * http_head.h.
 *
 * A pure state machine: how the bytes were cut on their way does not matter. Replies come from
 * other people's servers, so line ends without CR are taken and fields that nobody asks about are
 * read over; what would leave the body's end in doubt (two lengths that differ, a coding other
 * than chunked) is an error. Replies of 1xx are skipped. RFC 9112 is the reference.
 *
 *     struct mg_http_response r = {0};
 *     while (n) {
 *         feed = mg_http_response_feed(&r, data, n, &used, &piece);     piece: bytes of the body
 *         data += used, n -= used ...
 *     }
 *     at the connection's end: mg_http_response_end(&r)
 *
 * Allocates the line that is being read, nothing else. One thread at a time.
 */
#ifndef MG_NET_HTTP_RESPONSE_H
#define MG_NET_HTTP_RESPONSE_H

#include "net/http_chunk.h"

#define MG_HTTP_MAX_RESPONSE_HEAD 65536 /* bytes of all lines of a head */

struct mg_http_response {
    /* Once `headed`: */
    bool headed; /* the head has been read */
    int status;  /* 200..999 */
    int minor;   /* HTTP/1.minor */
    bool keep_alive;
    bool event_stream;  /* Content-Type is text/event-stream */
    double retry_after; /* seconds, 0 when not told or told as a date */

    const char *fault; /* after BAD: one sentence, constant */

    /* Set by the owner, or NULL: called for each field of the head. */
    void (*field)(void *user, const char *name, const char *value);
    void *user;

    /* Own: */
    struct mg_buf line;
    size_t n_head;    /* bytes of the head so far */
    bool any;         /* a byte has come */
    bool chunked;     /* framing of the body: chunked, */
    bool has_length;  /* or `left` bytes, or up to the connection's end */
    bool close, keep; /* words of Connection */
    bool strange;     /* a transfer coding that can't be read */
    bool done;
    uint64_t left;
    struct mg_http_chunk chunk;
};

/* Takes 1..n bytes (*used); *piece is a view of `data`, perhaps empty. DONE: the reply has ended.
 * After DONE and BAD only end, reset or free. */
enum mg_http_feed mg_http_response_feed(struct mg_http_response *r, const uint8_t *data, size_t n,
                                        size_t *used, struct mg_slice *piece);
/* The connection has ended: was that the reply's end as well? */
bool mg_http_response_end(const struct mg_http_response *r);
/* Ready for the next reply on the same connection; the line's memory is kept. */
void mg_http_response_reset(struct mg_http_response *r);
void mg_http_response_free(struct mg_http_response *r);

#endif
