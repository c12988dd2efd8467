/* net/http_text.c - see http_text.h. */
#include "net/http_text.h"

#include "base/sha256.h"
#include "net/http_head.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

const char *mg_http_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } known[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].status == status) return known[i].reason;
    return "Unknown";
}

/* strftime would write the names of the locale. */
void mg_http_date(time_t t, char out[MG_HTTP_DATE]) {
    static const char day[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char month[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    struct tm tm;
    if (!gmtime_r(&t, &tm)) {
        t = 0;
        gmtime_r(&t, &tm);
    }
    snprintf(out, MG_HTTP_DATE, "%s, %02d %s %04d %02d:%02d:%02d GMT", day[tm.tm_wday % 7],
             tm.tm_mday % 100, month[tm.tm_mon % 12], (tm.tm_year + 1900) % 10000, tm.tm_hour % 100,
             tm.tm_min % 100, tm.tm_sec % 100);
}

bool mg_http_decode(const char *text, size_t n, bool plus, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '+' && plus) c = ' ';
        if (c == '%') {
            char digits[3] = {0};
            uint8_t byte;
            if (n - i < 3) return false;
            memcpy(digits, text + i + 1, 2);
            if (!mg_hex_parse(digits, &byte, 1) || byte == 0) return false;
            c = (char)byte;
            i += 2;
        }
        out[to++] = c;
    }
    out[to] = '\0';
    return true;
}

/* Are the n encoded bytes at `text` the name? */
static bool is_name(const char *text, size_t n, const char *name) {
    size_t n_name = strlen(name);
    if (n == n_name && !memcmp(text, name, n)) return true;
    char decoded[128];
    if (n >= sizeof decoded || !mg_http_decode(text, n, true, decoded)) return false;
    return !strcmp(decoded, name);
}

bool mg_http_query_find(const char *query, const char *name, const char **value, size_t *n) {
    for (const char *at = query; at && *at;) {
        size_t n_pair = strcspn(at, "&");
        const char *equals = memchr(at, '=', n_pair);
        size_t n_name = equals ? (size_t)(equals - at) : n_pair;
        if (is_name(at, n_name, name)) {
            *value = equals ? equals + 1 : at + n_pair;
            *n = equals ? n_pair - n_name - 1 : 0;
            return true;
        }
        at += n_pair;
        if (*at) at++;
    }
    return false;
}

/* Is the parameter part (";q=0.0") of a coding a weight of nought? */
static bool weight_is_zero(const char *s, size_t n) {
    for (size_t i = 0; i + 1 < n; i++) {
        if ((s[i] != 'q' && s[i] != 'Q') || s[i + 1] != '=') continue;
        for (i += 2; i < n && (s[i] == '0' || s[i] == '.'); i++) continue;
        return i == n || s[i] == ' ' || s[i] == '\t' || s[i] == ';';
    }
    return false;
}

bool mg_http_accepts_gzip(const char *accept) {
    int gzip = -1, star = -1; /* -1: not named, 0: refused, 1: taken */
    while (accept && *accept) {
        accept += strspn(accept, " \t,");
        size_t n = strcspn(accept, ",");
        size_t n_name = strcspn(accept, " \t;,");
        int taken = !weight_is_zero(accept + n_name, n - n_name);
        if ((n_name == 4 && !strncasecmp(accept, "gzip", 4)) ||
            (n_name == 6 && !strncasecmp(accept, "x-gzip", 6)))
            gzip = taken;
        if (n_name == 1 && accept[0] == '*') star = taken;
        accept += n;
    }
    return gzip >= 0 ? gzip == 1 : star == 1;
}

bool mg_http_is_compressible(const char *content_type) {
    static const char *const kinds[] = {
        "application/json",
        "application/javascript",
        "application/x-ndjson",
        "application/xml",
        "application/manifest+json",
        "application/problem+json",
        "application/jsonlines",
        "application/yaml",
        "image/svg+xml",
        "image/bmp",
        "font/ttf",
    };
    if (!content_type) return false;
    size_t n = strcspn(content_type, "; \t");
    if (n == 17 && !strncasecmp(content_type, "text/event-stream", n)) return false;
    if (n > 5 && !strncasecmp(content_type, "text/", 5)) return true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(kinds[i]) == n && !strncasecmp(content_type, kinds[i], n)) return true;
    return false;
}

bool mg_http_is_request_id(const char *text) {
    size_t n = strlen(text);
    if (n == 0 || n >= MG_HTTP_REQUEST_ID) return false;
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x21 || text[i] > 0x7E) return false;
    return true;
}

void mg_http_make_request_id(char out[MG_HTTP_REQUEST_ID]) {
    static atomic_ullong count;
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != (ssize_t)sizeof bytes) {
        /* Early at boot. An id need only be unlike the others, not secret. */
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t a = (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec;
        uint64_t b = (uint64_t)atomic_fetch_add(&count, 1);
        memcpy(bytes, &a, 8);
        memcpy(bytes + 8, &b, 8);
    }
    mg_hex(bytes, sizeof bytes, out);
}

bool mg_http_is_field(const char *name, const char *value) {
    if (!*name) return false;
    for (const uint8_t *p = (const uint8_t *)name; *p; p++)
        if (!mg_http_is_token_char(*p)) return false;
    for (const uint8_t *p = (const uint8_t *)value; *p; p++)
        if ((*p < 0x20 && *p != '\t') || *p == 0x7F) return false;
    return true;
}
