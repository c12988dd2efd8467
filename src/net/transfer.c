/* net/transfer.c - see transfer.h.
 *
 * A pause doubles from FIRST_PAUSE to MAX_PAUSE, shortened by up to a quarter so that several
 * connections don't come back in step. Failures count in a row: one after which PROGRESS bytes came
 * begins a new row, so that a bad line that gets on is used for as long as it gets on.
 */
#include "net/transfer.h"

#include "base/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define FIRST_PAUSE 0.25 /* seconds */
#define MAX_PAUSE 32.0
#define MAX_RETRY_AFTER 600 /* seconds; who asks for more is not waited for */
#define PROGRESS ((uint64_t)64 << 10)
#define MAX_OTHER_BODY ((uint64_t)64 << 10) /* of redirects and refusals, which nobody reads */
#define STALL_BYTES_PER_SECOND 64L
#define CONNECT_SECONDS 30L

enum mg_status mg_http_open(struct mg_http *h, const struct mg_fetch_options *options,
                            struct mg_err *err) {
    *h = (struct mg_http){.o = *options};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    h->jitter = (unsigned)now.tv_nsec | 1;
    h->multi = curl_multi_init();
    if (!h->multi) return mg_fail_memory(err, "HTTP client");
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)MG_FETCH_MAX_CONNECTION + 4);
    if (!options->token) return MG_OK;
    for (const char *c = options->token; *c; c++)
        if (*c <= 0x20 || *c >= 0x7F)
            return mg_fail(err, MG_ERR_ARGUMENT, "token",
                           "the access token has a byte that has no place in one");
    enum mg_status st = mg_url_parse(options->token_to, &h->token_to, err);
    if (st) return st;
    size_t n = strlen(options->token) + 32;
    h->authorization = malloc(n);
    if (!h->authorization) return mg_fail_memory(err, "HTTP client");
    snprintf(h->authorization, n, "Authorization: Bearer %s", options->token);
    return MG_OK;
}

void mg_http_close(struct mg_http *h) {
    curl_multi_cleanup(h->multi);
    if (h->authorization) explicit_bzero(h->authorization, strlen(h->authorization));
    free(h->authorization);
    *h = (struct mg_http){0};
}

static void forget_headers(struct mg_transfer *t) {
    for (struct curl_slist *s = t->header; s; s = s->next) explicit_bzero(s->data, strlen(s->data));
    curl_slist_free_all(t->header);
    t->header = NULL;
}

/* --- what the server says --- */

static const char *number(const char *s, uint64_t *out) {
    uint64_t x = 0;
    const char *start = s;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(x, 10u, &x) ||
            __builtin_add_overflow(x, (uint64_t)(*s - '0'), &x))
            return NULL;
    *out = x;
    return s == start ? NULL : s;
}

bool mg_http_content_range(const char *s, uint64_t *from, uint64_t *to, uint64_t *total) {
    while (*s == ' ' || *s == '\t') s++;
    if (strncasecmp(s, "bytes", 5)) return false;
    s += 5;
    if (*s != ' ' && *s != '=') return false;
    while (*s == ' ' || *s == '=') s++;
    if (s[0] == '*' && s[1] == '/') { /* of a refusal (416) */
        *from = *to = 0;
        s = number(s + 2, total);
        return s && !s[strspn(s, " \t\r\n")];
    }
    s = number(s, from);
    if (!s || *s++ != '-') return false;
    uint64_t last;
    s = number(s, &last);
    if (!s || *s++ != '/' || last == UINT64_MAX || last < *from) return false;
    *to = last + 1;
    *total = UINT64_MAX;
    if (*s == '*')
        s++;
    else if (!(s = number(s, total)) || *total < *to)
        return false;
    while (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n') s++;
    return !*s;
}

static void reset_answer(struct mg_transfer *t) {
    t->status = 0;
    t->has_range = t->stop = false;
    t->length = t->range_total = UINT64_MAX;
    t->etag[0] = t->wrong[0] = 0;
    t->n_body = 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *user) {
    struct mg_transfer *t = user;
    n *= size;
    char line[256]; /* what is longer is none of those below */
    if (n >= sizeof line) return n;
    memcpy(line, data, n);
    line[n] = 0;
    if (!strncasecmp(line, "HTTP/", 5)) {
        reset_answer(t); /* an interim answer (100) came before */
    } else if (!strncasecmp(line, "content-range:", 14)) {
        t->has_range =
            mg_http_content_range(line + 14, &t->range_from, &t->range_to, &t->range_total);
    } else if (!strncasecmp(line, "etag:", 5)) {
        const char *s = line + 5 + strspn(line + 5, " \t");
        size_t len = strcspn(s, "\r\n");
        if (len < sizeof t->etag) snprintf(t->etag, sizeof t->etag, "%.*s", (int)len, s);
    }
    return n;
}

static bool is_redirect(long status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct mg_transfer *t = user;
    n *= size;
    if (!t->n_body) {
        curl_off_t length = -1;
        curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
        curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        t->length = length < 0 ? UINT64_MAX : (uint64_t)length;
    }
    t->n_body += n;
    if (t->status != 200 && t->status != 206)
        return t->n_body > MAX_OTHER_BODY ? 0 : n;
    if (!t->sink(t, (const uint8_t *)data, n)) return 0;
    t->n_progress += n;
    return n;
}

/* --- asking --- */

enum mg_status mg_transfer_init(struct mg_transfer *t, struct mg_http *h, struct mg_err *err) {
    t->http = h;
    t->state = MG_TRANSFER_IDLE;
    t->easy = curl_easy_init();
    return t->easy ? MG_OK : mg_fail_memory(err, "HTTP client");
}

void mg_transfer_cancel(struct mg_transfer *t) {
    if (t->state == MG_TRANSFER_RUNNING) curl_multi_remove_handle(t->http->multi, t->easy);
    forget_headers(t);
    t->state = MG_TRANSFER_IDLE;
    t->n_failed = 0;
}

void mg_transfer_free(struct mg_transfer *t) {
    if (!t->easy) return;
    mg_transfer_cancel(t);
    curl_easy_cleanup(t->easy);
    free(t->url);
    t->easy = NULL;
    t->url = NULL;
}

bool mg_transfer_url(struct mg_transfer *t, const char *url) {
    char *copy = strdup(url);
    if (!copy) return false;
    free(t->url);
    t->url = copy;
    return true;
}

static bool add_header(struct mg_transfer *t, const char *line) {
    struct curl_slist *longer = curl_slist_append(t->header, line);
    if (longer) t->header = longer;
    return longer != NULL;
}

static bool set_options(struct mg_transfer *t, bool with_token) {
    const struct mg_fetch_options *o = &t->http->o;
    CURL *e = t->easy;
    curl_easy_reset(e); /* keeps connections */
    forget_headers(t);
    if (!add_header(t, "Accept: */*")) return false;
    if (with_token && !add_header(t, t->http->authorization)) return false;
    char range[64];
    if (t->ranged)
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)t->from,
                 (unsigned long long)t->to - 1);
    bool ok = !curl_easy_setopt(e, CURLOPT_URL, t->url) &&
              !curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->header) &&
              !curl_easy_setopt(e, CURLOPT_USERAGENT, o->agent) &&
              !curl_easy_setopt(e, CURLOPT_PRIVATE, t) &&
              !curl_easy_setopt(e, CURLOPT_RANGE, t->ranged ? range : NULL) &&
              !curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) &&
              !curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) &&
              !curl_easy_setopt(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED) &&
              !curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 1L) &&
              !curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 2L) &&
              !curl_easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L) &&
              !curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->curl_text) &&
              !curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header) &&
              !curl_easy_setopt(e, CURLOPT_HEADERDATA, t) &&
              !curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body) &&
              !curl_easy_setopt(e, CURLOPT_WRITEDATA, t) &&
              !curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 262144L) &&
              !curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS) &&
              !curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, STALL_BYTES_PER_SECOND) &&
              !curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)ceil(o->stall_seconds)) &&
              /* HTTP/2 would put all ranges on one connection. */
              !curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075500
    ok = ok && !curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    ok = ok && !curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    ok = ok && !curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L); /* never waits for a name server */
#endif
    if (o->ca_file) ok = ok && !curl_easy_setopt(e, CURLOPT_CAINFO, o->ca_file);
    return ok;
}

static void fail(struct mg_transfer *t) {
    forget_headers(t);
    t->state = MG_TRANSFER_FAILED;
}

/* Sends the request for t->url. */
static void ask(struct mg_transfer *t) {
    struct mg_url url;
    reset_answer(t);
    t->curl_text[0] = 0;
    enum mg_status st = mg_url_parse(t->url, &url, &t->err);
    bool with_token = !st && t->http->authorization && mg_url_same_origin(&url, &t->http->token_to);
    if (!st && (!set_options(t, with_token) || curl_multi_add_handle(t->http->multi, t->easy)))
        st = mg_fail_memory(&t->err, "HTTP request");
    if (st) {
        mg_err_prefix(&t->err, "%s", t->name);
        fail(t);
        return;
    }
    t->state = MG_TRANSFER_RUNNING;
}

void mg_transfer_begin(struct mg_transfer *t) {
    t->hop = 0;
    mg_err_clear(&t->err);
    if (t->prepare(t, &t->err))
        fail(t);
    else
        ask(t);
}

/* --- the end of a request --- */

/* true: t->url leads on, and asking there is fine. */
static bool redirect(struct mg_transfer *t) {
    char *to = NULL;
    curl_easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &to);
    struct mg_url from_url, to_url;
    struct mg_err why = {0};
    if (!to) {
        mg_fail(&t->err, MG_ERR_FORMAT, "redirect", "%s: a redirect to nowhere", t->name);
    } else if (++t->hop > MG_FETCH_MAX_HOPS) {
        mg_fail(&t->err, MG_ERR_LIMIT, "redirect", "%s: more than %d redirects", t->name,
                MG_FETCH_MAX_HOPS);
    } else if (mg_url_parse(to, &to_url, &why)) {
        mg_fail(&t->err, MG_ERR_FORMAT, "redirect", "%s: a redirect to %s", t->name, why.text);
    } else if (!mg_url_parse(t->url, &from_url, &t->err) && from_url.https && !to_url.https) {
        mg_fail(&t->err, MG_ERR_FORMAT, "redirect",
                "%s: a redirect from https to http (%s), which is not followed", t->name,
                to_url.host);
    } else if (!t->err.status && !mg_transfer_url(t, to)) {
        mg_fail_memory(&t->err, "URL");
    }
    return !t->err.status;
}

static bool curl_may_heal(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_CHUNK_FAILED:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
    }
}

static bool status_may_heal(long status) {
    return status == 408 || status == 425 || status == 429 || status >= 500;
}

static double pause_seconds(struct mg_transfer *t) {
    double pause = FIRST_PAUSE;
    for (size_t i = 1; i < t->n_failed && pause < MAX_PAUSE; i++) pause *= 2;
    t->http->jitter = t->http->jitter * 1664525u + 1013904223u;
    return pause * (1 - (t->http->jitter >> 16) / 65536.0 / 4);
}

/* Tries again after a pause, or gives up. `why` says what went wrong. */
static void try_again(struct mg_transfer *t, const char *code, const char *why) {
    forget_headers(t);
    curl_off_t asked = 0;
    if (t->status) curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &asked);
    if (t->n_progress >= PROGRESS) t->n_failed = 0;
    t->n_progress = 0;
    t->n_failed++;
    if (asked > MAX_RETRY_AFTER) {
        mg_fail(&t->err, MG_ERR_IO, code, "%s: %s and asks to wait %lld seconds; try later",
                t->name, why, (long long)asked);
        fail(t);
        return;
    }
    if (t->n_failed > t->http->o.n_retry) {
        mg_fail(&t->err, MG_ERR_IO, code, "%s: %s (%zu %s)", t->name, why, t->n_failed,
                t->n_failed == 1 ? "try" : "tries");
        fail(t);
        return;
    }
    double pause = pause_seconds(t);
    if (asked > 0) pause = fmax(pause, (double)asked);
    t->not_before = mg_clock() + pause;
    t->state = MG_TRANSFER_WAITING;
    if (t->http->o.note) {
        char text[480];
        snprintf(text, sizeof text, "%s: %s; again in %.1f s", t->name, why, pause);
        mg_text_defuse(text);
        t->http->o.note(t->http->o.user, text);
    }
}

static void refused(struct mg_transfer *t, const char *host) {
    char code[16], why[400];
    snprintf(code, sizeof code, "http_%ld", t->status);
    snprintf(why, sizeof why, "%.260s answers %ld%s", host, t->status,
             t->status == 429 ? " (too many requests)" : "");
    /* A remembered address has expired, perhaps: the next try asks the front door. */
    if (status_may_heal(t->status) || t->shortcut) {
        try_again(t, code, why);
    } else {
        mg_fail(&t->err, t->status == 404 ? MG_ERR_NOT_FOUND : MG_ERR_IO, code, "%s: %s", t->name,
                why);
        fail(t);
    }
}

static void end(struct mg_transfer *t, CURLcode code) {
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
    curl_multi_remove_handle(t->http->multi, t->easy);
    struct mg_url url = {0};
    mg_url_parse(t->url, &url, NULL);
    bool content = t->status == 200 || t->status == 206;
    bool cut = code == CURLE_WRITE_ERROR && !content; /* of a body that nobody reads */
    if (t->fault.status) {
        t->err = t->fault;
        fail(t);
    } else if (t->stop) {
        forget_headers(t);
        t->state = MG_TRANSFER_DONE;
    } else if (*t->wrong) {
        try_again(t, "network", t->wrong);
    } else if (code != CURLE_OK && !cut) {
        char why[400];
        if (code == CURLE_OPERATION_TIMEDOUT && t->status)
            snprintf(why, sizeof why, "%.200s stalls", url.host);
        else
            snprintf(why, sizeof why, "%.200s: %.180s", url.host,
                     *t->curl_text ? t->curl_text : curl_easy_strerror(code));
        if (curl_may_heal(code)) {
            try_again(t, "network", why);
        } else {
            bool tls = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
            mg_fail(&t->err, code == CURLE_OUT_OF_MEMORY ? MG_ERR_MEMORY : MG_ERR_IO,
                    tls ? "certificate" : "network", "%s: %s", t->name, why);
            fail(t);
        }
    } else if (is_redirect(t->status)) {
        if (redirect(t))
            ask(t);
        else
            fail(t);
    } else if (!content) {
        refused(t, url.host);
    } else if (t->ended(t)) {
        forget_headers(t);
        t->n_failed = 0;
        t->state = MG_TRANSFER_DONE;
    } else {
        try_again(t, "network", *t->wrong ? t->wrong : "the answer ends early");
    }
}

enum mg_status mg_http_step(struct mg_http *h, struct mg_transfer *t, size_t n,
                            struct mg_err *err) {
    if (h->o.stopped && h->o.stopped(h->o.user))
        return mg_fail(err, MG_ERR_CANCELLED, "", "interrupted");
    double now = mg_clock(), wait = 0.1;
    for (size_t i = 0; i < n; i++)
        if (t[i].state == MG_TRANSFER_WAITING) {
            if (t[i].not_before <= now)
                mg_transfer_begin(&t[i]);
            else
                wait = fmin(wait, t[i].not_before - now);
        }
    int running = 0, left = 0;
    CURLMcode code = curl_multi_perform(h->multi, &running);
    bool moved = false;
    for (CURLMsg *msg; !code && (msg = curl_multi_info_read(h->multi, &left));) {
        if (msg->msg != CURLMSG_DONE) continue;
        CURLcode result = msg->data.result;
        struct mg_transfer *of = NULL;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&of);
        end(of, result);
        moved = true;
    }
    if (!code && !moved) code = curl_multi_poll(h->multi, NULL, 0, (int)(wait * 1000) + 1, NULL);
    if (code == CURLM_OUT_OF_MEMORY) return mg_fail_memory(err, "HTTP client");
    if (code)
        return mg_fail(err, MG_ERR_IO, "network", "HTTP client: %s", curl_multi_strerror(code));
    return MG_OK;
}
