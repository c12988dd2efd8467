/* net/sse_reader.h - server-sent events read as their bytes come (WHATWG HTML, "text/event-stream":
 * the section on interpreting an event stream). sse.h writes them.
 *
 * A pure state machine: lines end with LF, CR or CRLF wherever the bytes were cut, comments and
 * fields that the standard does not name are read over, an event without data is none, and what
 * the stream's end leaves unfinished is forgotten. An event may have max_event bytes.
 *
 * Allocates the line and the event that are being read. One thread at a time.
 */
#ifndef MG_NET_SSE_READER_H
#define MG_NET_SSE_READER_H

#include "base/mem.h"

/* One event. `name` is "message" unless the event says otherwise; n bytes of data with a zero byte
 * behind them, valid during the call. false ends the reading. */
typedef bool mg_sse_event(void *user, const char *name, const char *data, size_t n);

struct mg_sse_reader {
    size_t max_event; /* bytes of a line, and of an event's data; 0: 1 MiB; set by the owner */
    mg_sse_event *event;
    void *user;

    const char *fault; /* after a false of feed: one sentence, constant; NULL: `event` ended it */

    /* Own: */
    struct mg_buf line, data;
    char name[32]; /* of the event, cut to this */
    bool has_data; /* a data field has come */
    bool after_cr; /* the byte before was a CR: an LF is part of it */
    bool begun;    /* the first line has been read */
};

/* false: an event was too long, memory is short, or `event` said so; then only free. */
bool mg_sse_reader_feed(struct mg_sse_reader *r, const uint8_t *data, size_t n);
void mg_sse_reader_free(struct mg_sse_reader *r);

#endif
