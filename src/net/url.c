/* net/url.c - see url.h. */
#include "net/url.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* One part of the URL into buf; false when it isn't there or too long. */
static bool part(CURLU *u, CURLUPart what, unsigned flags, char *buf, size_t cap) {
    char *text = NULL;
    if (curl_url_get(u, what, &text, flags) != CURLUE_OK || !text) return false;
    int n = snprintf(buf, cap, "%s", text);
    curl_free(text);
    return n > 0 && (size_t)n < cap;
}

static bool has(CURLU *u, CURLUPart what) {
    char *text = NULL;
    bool there = curl_url_get(u, what, &text, 0) == CURLUE_OK && text;
    curl_free(text);
    return there;
}

enum mg_status mg_url_parse(const char *url, struct mg_url *out, struct mg_err *err) {
    *out = (struct mg_url){0};
    size_t n = strlen(url);
    if (n >= MG_URL_MAX)
        return mg_fail(err, MG_ERR_ARGUMENT, "url", "a URL of %zu bytes, at most %d are taken", n,
                       MG_URL_MAX - 1);
    for (size_t i = 0; i < n; i++)
        if (url[i] <= 0x20 || url[i] >= 0x7F)
            return mg_fail(err, MG_ERR_ARGUMENT, "url",
                           "a URL with a byte that has no place in one");
    CURLU *u = curl_url();
    if (!u) return mg_fail_memory(err, "URL");
    char scheme[16] = "";
    enum mg_status st = MG_OK;
    /* Without the flag libcurl knows only its own build's schemes, and errors would differ. */
    if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
        !part(u, CURLUPART_SCHEME, 0, scheme, sizeof scheme))
        st = mg_fail(err, MG_ERR_ARGUMENT, "url", "not a URL with a scheme and a host");
    else if (strcmp(scheme, "http") && strcmp(scheme, "https"))
        st = mg_fail(err, MG_ERR_ARGUMENT, "url", "a %s: URL; only http and https are fetched",
                     scheme);
    else if (has(u, CURLUPART_USER) || has(u, CURLUPART_PASSWORD))
        st = mg_fail(err, MG_ERR_ARGUMENT, "url", "a URL with a user or a password in it");
    else if (!part(u, CURLUPART_HOST, 0, out->host, sizeof out->host) ||
             !part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, out->port, sizeof out->port))
        st = mg_fail(err, MG_ERR_ARGUMENT, "url", "a %s URL without a host", scheme);
    out->https = !strcmp(scheme, "https");
    out->query = has(u, CURLUPART_QUERY) || has(u, CURLUPART_FRAGMENT);
    curl_url_cleanup(u);
    return st;
}

bool mg_url_same_origin(const struct mg_url *a, const struct mg_url *b) {
    return a->https == b->https && !strcasecmp(a->host, b->host) && !strcmp(a->port, b->port);
}

bool mg_url_is_local(const struct mg_url *url) {
    return !strcasecmp(url->host, "localhost") || !strcmp(url->host, "[::1]") ||
           !strncmp(url->host, "127.", 4);
}

bool mg_url_escape(struct mg_buf *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("-._~", c));
        if (plain)
            mg_buf_add_byte(out, c);
        else
            mg_buf_printf(out, "%%%02X", (unsigned)c);
    }
    return !out->failed;
}
