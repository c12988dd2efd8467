/* net/http_chunk.c - see http_chunk.h. */
#include "net/http_chunk.h"

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, OVER };

static enum mg_http_feed bad(struct mg_http_chunk *c, const char *fault) {
    c->fault = fault;
    c->state = OVER;
    return MG_HTTP_BAD;
}

static int digit_of(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static enum mg_http_feed size_byte(struct mg_http_chunk *c, uint8_t byte) {
    int digit = digit_of(byte);
    if (digit >= 0) {
        /* 15 digits leave room for any sum of lengths that are checked against a limit. */
        if (++c->n_digit > 15) return bad(c, "a chunk's length has too many digits");
        c->left = c->left * 16 + (uint64_t)digit;
    } else if (c->n_digit == 0) {
        return bad(c, "a chunk's length is not a hexadecimal number");
    } else if (byte == ';') {
        c->state = EXTENSION;
    } else if (byte == '\r') {
        c->state = SIZE_LF;
    } else {
        return bad(c, "a chunk's length is not a hexadecimal number");
    }
    return MG_HTTP_MORE;
}

/* One byte of an extension or a trailer line other than CR. */
static enum mg_http_feed overhead_byte(struct mg_http_chunk *c, uint8_t byte) {
    if (++c->overhead > MG_HTTP_MAX_OVERHEAD)
        return bad(c, "too many bytes of chunk extensions and trailer fields");
    if ((byte < 0x20 && byte != '\t') || byte == 0x7F)
        return bad(c, "a control character in a chunk extension or trailer field");
    return MG_HTTP_MORE;
}

static enum mg_http_feed one_byte(struct mg_http_chunk *c, uint8_t byte) {
    switch (c->state) {
    case SIZE: return size_byte(c, byte);
    case EXTENSION:
        if (byte != '\r') return overhead_byte(c, byte);
        c->state = SIZE_LF;
        return MG_HTTP_MORE;
    case SIZE_LF:
        if (byte != '\n') return bad(c, "a chunk's length does not end with CR LF");
        c->state = c->left ? DATA : TRAILER;
        c->line_empty = true;
        return MG_HTTP_MORE;
    case DATA_CR:
        if (byte != '\r') return bad(c, "a chunk is longer than its length");
        c->state = DATA_LF;
        return MG_HTTP_MORE;
    case DATA_LF:
        if (byte != '\n') return bad(c, "a chunk does not end with CR LF");
        c->state = SIZE;
        c->n_digit = 0;
        c->left = 0;
        return MG_HTTP_MORE;
    case TRAILER:
        if (byte == '\r') {
            c->state = TRAILER_LF;
            return MG_HTTP_MORE;
        }
        if (c->line_empty && !mg_http_is_token_char(byte))
            return bad(c, "a trailer line does not begin with a name");
        c->line_empty = false;
        return overhead_byte(c, byte);
    case TRAILER_LF:
        if (byte != '\n') return bad(c, "a trailer line does not end with CR LF");
        if (c->line_empty) {
            c->state = OVER;
            return MG_HTTP_DONE;
        }
        c->state = TRAILER;
        c->line_empty = true;
        return MG_HTTP_MORE;
    default: return bad(c, "a body that has ended was read on");
    }
}

enum mg_http_feed mg_http_chunk_feed(struct mg_http_chunk *c, const uint8_t *data, size_t n,
                                     size_t *used, struct mg_slice *piece) {
    *used = 0;
    *piece = (struct mg_slice){NULL, 0};
    while (*used < n) {
        if (c->state == DATA) {
            size_t take = c->left < n - *used ? (size_t)c->left : n - *used;
            *piece = (struct mg_slice){data + *used, take};
            *used += take;
            c->left -= take;
            if (c->left == 0) c->state = DATA_CR;
            return MG_HTTP_MORE;
        }
        enum mg_http_feed result = one_byte(c, data[(*used)++]);
        if (result != MG_HTTP_MORE) return result;
    }
    return MG_HTTP_MORE;
}
