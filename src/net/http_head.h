/* net/http_head.h - the head of an HTTP/1 request, read byte by byte and strictly.
 *
 * A pure state machine: the result does not depend on how the bytes were cut on their way, and it
 * takes none behind the empty line that ends the head. What two programs might read differently is
 * refused, since a proxy in front of us could be the other one (request smuggling): a lone LF or
 * CR, other control characters, folded lines, a blank before a colon, Content-Length together with
 * Transfer-Encoding or more than once, any coding but one "chunked". RFC 9112 is the reference;
 * one empty line before the request line is taken, as it recommends.
 *
 *     struct mg_http_head h = {.max = 32768};
 *     switch (mg_http_head_feed(&h, data, n, &used)) ...     as often as bytes come
 *     mg_http_head_reset(&h);                                for the next request
 *     mg_http_head_free(&h);
 *
 * Allocates only `bytes`, at most `max` of it. One thread at a time.
 */
#ifndef MG_NET_HTTP_HEAD_H
#define MG_NET_HTTP_HEAD_H

#include "base/mem.h"

#define MG_HTTP_MAX_FIELD 100 /* header fields of one request */
#define MG_HTTP_MAX_METHOD 20 /* bytes */

/* A part of `bytes`; once the head is done a zero byte stands behind it. */
struct mg_http_span {
    uint32_t at, n;
};

enum mg_http_feed { MG_HTTP_MORE, MG_HTTP_DONE, MG_HTTP_BAD };
enum mg_http_framing { MG_HTTP_NO_BODY, MG_HTTP_LENGTH, MG_HTTP_CHUNKED };

struct mg_http_head {
    size_t max; /* bytes that a head may have, at most 16 MiB; set by the owner */

    /* After DONE: */
    struct mg_http_span method, target;
    struct mg_http_span
        path; /* of the target: from its first '/' to '?', still encoded; n 0: "*" */
    struct mg_http_span query; /* behind '?'; n 0: there is none */
    struct mg_http_field_span {
        struct mg_http_span name, value; /* the value without blanks at its ends */
    } field[MG_HTTP_MAX_FIELD];
    size_t n_field;
    int minor; /* HTTP/1.minor, 0 or 1 */
    enum mg_http_framing framing;
    uint64_t length; /* bytes of the body when framing is LENGTH */
    bool keep_alive; /* the client would go on with this connection */
    bool expect_continue, upgrade;

    /* After BAD: */
    int status;        /* to answer with: 400, 414, 417, 431, 501, 503 (no memory), 505 */
    const char *fault; /* one sentence, constant */

    /* Own: */
    struct mg_buf bytes; /* the head as it came */
    size_t line;         /* where the current line begins */
    bool begun;          /* the request line has been read */
    bool blank;          /* an empty line came before it */
    bool done;
};

/* *used: bytes taken, all of them unless DONE or BAD. After those two only reset or free. */
enum mg_http_feed mg_http_head_feed(struct mg_http_head *h, const uint8_t *data, size_t n,
                                    size_t *used);
/* Ready for the next head; the memory is kept if it is small. */
void mg_http_head_reset(struct mg_http_head *h);
void mg_http_head_free(struct mg_http_head *h);

/* Text of a part, valid until reset. */
const char *mg_http_head_text(const struct mg_http_head *h, struct mg_http_span s);
/* Value of the first field of this name (any case), or NULL. */
const char *mg_http_head_field(const struct mg_http_head *h, const char *name);
/* Does a field of this name, read as a list with commas, hold the word (any case)? */
bool mg_http_head_lists(const struct mg_http_head *h, const char *name, const char *word);

/* RFC 9110's "tchar": what names and methods are made of. */
bool mg_http_is_token_char(uint8_t c);

#endif
