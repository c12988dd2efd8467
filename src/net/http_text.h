/* net/http_text.h - the small texts of HTTP: percent-encoding, queries, dates, reason phrases,
 * Accept-Encoding, which replies are worth compressing, request ids. Pure functions.
 */
#ifndef MG_NET_HTTP_TEXT_H
#define MG_NET_HTTP_TEXT_H

#include "base/mem.h"

#include <time.h>

#define MG_HTTP_DATE 32        /* bytes of a date with its zero byte */
#define MG_HTTP_REQUEST_ID 129 /* bytes of a request id with its zero byte */

/* "Not Found"; "Unknown" for a number that isn't known. */
const char *mg_http_reason(int status);

/* RFC 9110's IMF-fixdate, "Sun, 06 Nov 1994 08:49:37 GMT". */
void mg_http_date(time_t t, char out[MG_HTTP_DATE]);

/* Decodes %XX (and '+' as a blank when `plus`) of n bytes into out, n + 1 bytes, with a zero byte;
 * false for a % without two digits or an encoded zero byte. */
bool mg_http_decode(const char *text, size_t n, bool plus, char *out);

/* The raw value of `name` in "a=1&b=2" (names are compared decoded); false when there is none. */
bool mg_http_query_find(const char *query, const char *name, const char **value, size_t *n);

/* Would an Accept-Encoding of this text (NULL: no such field) take gzip? */
bool mg_http_accepts_gzip(const char *accept);
/* Text, JSON, scripts, SVG and fonts of that kind; never an event stream. */
bool mg_http_is_compressible(const char *content_type);

/* 1..128 printable ASCII characters without blanks. */
bool mg_http_is_request_id(const char *text);
/* 32 random hexadecimal digits. */
void mg_http_make_request_id(char out[MG_HTTP_REQUEST_ID]);

/* A field's name is a token, its value has no control characters. */
bool mg_http_is_field(const char *name, const char *value);

#endif
