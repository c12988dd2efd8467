/* net/sse.c - see sse.h. */
#include "net/sse.h"

#include <string.h>

#define PING ":\n\n"
#define PING_SECONDS 10.0

enum mg_status mg_sse_begin(struct mg_http_exchange *x, double ping_seconds) {
    enum mg_status status = mg_http_add_field(x, "Cache-Control", "no-cache");
    if (!status) status = mg_http_add_field(x, "X-Accel-Buffering", "no");
    if (!status) status = mg_http_stream_begin(x, 200, "text/event-stream");
    if (status) return status;
    return mg_http_stream_ping(x, PING, sizeof PING - 1,
                               ping_seconds > 0 ? ping_seconds : PING_SECONDS);
}

bool mg_sse_format(struct mg_buf *out, const char *event, const char *data, size_t n) {
    if (event) mg_buf_printf(out, "event: %s\n", event);
    size_t at = 0;
    do {
        size_t end = at;
        while (end < n && data[end] != '\n' && data[end] != '\r') end++;
        mg_buf_add_str(out, "data: ");
        mg_buf_add(out, data + at, end - at);
        mg_buf_add_byte(out, '\n');
        if (end + 1 < n && data[end] == '\r' && data[end + 1] == '\n') end++;
        at = end + 1;
    } while (at <= n && n > 0);
    mg_buf_add_byte(out, '\n');
    return !out->failed;
}

enum mg_status mg_sse_send(struct mg_http_exchange *x, const char *event, const char *data,
                           size_t n) {
    struct mg_buf text = {.max = n + (n < SIZE_MAX / 16 ? n * 8 : 0) + 1024};
    enum mg_status status = mg_sse_format(&text, event, data, n)
                                ? mg_http_stream_write(x, text.data, text.n)
                                : MG_ERR_MEMORY;
    mg_buf_free(&text);
    return status;
}
