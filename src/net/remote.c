/* net/remote.c - see remote.h.
 *
 * A fetch is in the list of those to come (`waiting`) or of those under way (`active`); both belong
 * to the thread, new ones and the wish to cancel are handed over under the lock, and
 * curl_multi_wakeup ends its sleep.
 */
#include "net/remote.h"

#include "base/io.h"
#include "net/address.h"
#include "net/url.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CONNECT_SECONDS 10L

struct fetch {
    struct fetch *next; /* in the list that it is in */
    struct fetch *next_all;
    struct mg_remote *remote;
    uint64_t id;
    char *url; /* owned; of the present hop */
    mg_remote_done *done;
    void *arg;
    CURL *easy; /* owned, NULL while waiting */
    struct curl_slist *header;
    struct mg_buf body;
    double until; /* mg_clock */
    size_t n_hop;
    bool refused;   /* an address was not allowed */
    bool too_large; /* the body was */
    bool cancelled; /* under the remote's lock */
    bool drop;      /* the thread's copy of it */
};

struct mg_remote {
    struct mg_remote_options o; /* defaults filled in */
    CURLM *multi;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards what follows up to `active` */
    struct fetch *fresh;  /* newest first */
    size_t n;             /* all that are not done */
    uint64_t last_id;
    bool closing;
    struct fetch *all;              /* that are not done, by `next_all` */
    struct fetch *active, *waiting; /* the thread's own; waiting: oldest first */
    size_t n_active;
};

/* --- what is allowed --- */

static bool entry_allows(const char *entry, const struct mg_url *url) {
    const char *host = url->host, *default_port = url->https ? "443" : "80";
    size_t n_host = strlen(host), n_entry = strlen(entry);
    while (n_host > 1 && host[n_host - 1] == '.') n_host--; /* "example.org." */
    const char *bracket = strrchr(entry, ']');
    const char *colon = strchr(bracket ? bracket : entry, ':');
    if (colon) {
        if (strcmp(colon + 1, url->port) != 0) return false;
        n_entry = (size_t)(colon - entry);
    } else if (strcmp(url->port, default_port) != 0) {
        return false;
    }
    if (n_entry == 1 && entry[0] == '*') return true;
    if (n_entry > 2 && entry[0] == '*' && entry[1] == '.')
        return n_host > n_entry - 1 &&
               !strncasecmp(host + n_host - (n_entry - 1), entry + 1, n_entry - 1);
    return n_host == n_entry && !strncasecmp(host, entry, n_entry);
}

static enum mg_status check_url(const struct mg_remote *r, const char *text, struct mg_url *out,
                                struct mg_err *err) {
    enum mg_status status = mg_url_parse(text, out, err);
    if (status) return status;
    for (size_t i = 0; i < r->o.n_host; i++)
        if (entry_allows(r->o.host[i], out)) return MG_OK;
    return mg_fail(err, MG_ERR_ARGUMENT, "host_not_allowed",
                   "pictures may not be fetched from this host and port");
}

enum mg_status mg_remote_check(const struct mg_remote *r, const char *url, struct mg_err *err) {
    struct mg_url parsed;
    return check_url(r, url, &parsed, err);
}

/* --- libcurl's callbacks --- */

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a) {
    struct fetch *f = user;
    const struct mg_remote_options *o = &f->remote->o;
    bool good = o->address_ok ? o->address_ok(&a->addr, a->addrlen, o->user)
                              : mg_address_is_public(&a->addr, a->addrlen);
    if (purpose != CURLSOCKTYPE_IPCXN || !good) {
        f->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t take_body(char *data, size_t size, size_t n, void *user) {
    struct fetch *f = user;
    if (n > f->remote->o.max_bytes - f->body.n) {
        f->too_large = true;
        return 0;
    }
    f->body.max = f->remote->o.max_bytes;
    return mg_buf_add(&f->body, data, n) ? n : 0;
}

/* --- one fetch --- */

static bool set_options(struct fetch *f) {
    const struct mg_remote_options *o = &f->remote->o;
    CURL *e = f->easy;
    double left = f->until - mg_clock();
    long ms = left > 0.001 ? (long)(left * 1000) : 1;
    bool good = true;
#define SET(option, value) good = good && curl_easy_setopt(e, option, value) == CURLE_OK
    SET(CURLOPT_URL, f->url);
    SET(CURLOPT_PRIVATE, f);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOPROXY, "*");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_FRESH_CONNECT, 1L); /* an old connection's address was judged for another fetch */
    SET(CURLOPT_FORBID_REUSE, 1L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    if (o->ca_file) SET(CURLOPT_CAINFO, o->ca_file);
    SET(CURLOPT_TIMEOUT_MS, ms);
    SET(CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    SET(CURLOPT_USERAGENT, o->agent);
    SET(CURLOPT_HTTPHEADER, f->header);
    SET(CURLOPT_HTTP09_ALLOWED, 0L);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, f);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, f);
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L); /* a cancelled fetch does not wait for a slow resolver */
#endif
#undef SET
    return good;
}

/* Begins the present hop. */
static bool start(struct fetch *f) {
    if (!f->easy) f->easy = curl_easy_init();
    if (f->easy && !f->header) {
        char accept[256];
        snprintf(accept, sizeof accept, "Accept: %s", f->remote->o.accept);
        f->header = curl_slist_append(NULL, accept);
    }
    f->body.n = 0;
    f->refused = f->too_large = false;
    return f->easy && f->header && set_options(f) &&
           curl_multi_add_handle(f->remote->multi, f->easy) == CURLM_OK;
}

static void finish(struct fetch *f, const struct mg_err *err) {
    struct mg_remote *r = f->remote;
    bool good = err->status == MG_OK;
    pthread_mutex_lock(&r->lock);
    struct fetch **at = &r->all;
    while (*at != f) at = &(*at)->next_all;
    *at = f->next_all;
    r->n--;
    pthread_mutex_unlock(&r->lock);
    f->done(err, good ? f->body.data : NULL, good ? f->body.n : 0, f->arg);
    if (f->easy) {
        curl_multi_remove_handle(r->multi, f->easy);
        curl_easy_cleanup(f->easy);
    }
    curl_slist_free_all(f->header);
    mg_buf_free(&f->body);
    free(f->url);
    free(f);
}

static void fail(struct fetch *f, enum mg_status status, const char *code, const char *text) {
    struct mg_err err = {0};
    mg_fail(&err, status, code, "%s", text);
    finish(f, &err);
}

static void fail_transfer(struct fetch *f, CURLcode code) {
    if (f->too_large) {
        char text[100];
        snprintf(text, sizeof text, "the remote picture has more than %zu bytes, the limit",
                 f->remote->o.max_bytes);
        fail(f, MG_ERR_LIMIT, "too_large", text);
    } else if (f->body.failed || code == CURLE_OUT_OF_MEMORY) {
        fail(f, MG_ERR_MEMORY, "out_of_memory", "out of memory (remote picture)");
    } else if (f->refused && code != CURLE_OPERATION_TIMEDOUT) {
        fail(f, MG_ERR_ARGUMENT, "address_not_allowed",
             "the host of the remote picture has an address that is not of the public internet");
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        fail(f, MG_ERR_IO, "timeout", "the remote picture did not come in time");
    } else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CONNECT_ERROR) {
        fail(f, MG_ERR_IO, "certificate", "the remote server's certificate is not trusted");
    } else {
        fail(f, MG_ERR_IO, "network", "the remote server can't be reached, or broke off");
    }
}

/* Follows the answer's Location; true: the next hop is under way. Else the fetch is over. */
static bool follow(struct fetch *f) {
    char *to = NULL;
    struct mg_err err = {0};
    struct mg_url url, before;
    curl_easy_getinfo(f->easy, CURLINFO_REDIRECT_URL, &to);
    if (!to || f->n_hop >= f->remote->o.max_hop) {
        fail(f, MG_ERR_IO, "redirect",
             to ? "too many redirects to the remote picture" : "a redirect that leads nowhere");
        return false;
    }
    char *copy = strdup(to);
    if (!copy) {
        fail(f, MG_ERR_MEMORY, "out_of_memory", "out of memory (remote picture)");
        return false;
    }
    bool was_https = mg_url_parse(f->url, &before, NULL) == MG_OK && before.https;
    free(f->url);
    f->url = copy;
    f->n_hop++;
    if (check_url(f->remote, f->url, &url, &err)) {
        finish(f, &err);
        return false;
    }
    if (was_https && !url.https) {
        fail(f, MG_ERR_ARGUMENT, "redirect", "a redirect from https to http");
        return false;
    }
    curl_multi_remove_handle(f->remote->multi, f->easy);
    if (start(f)) return true;
    fail(f, MG_ERR_MEMORY, "out_of_memory", "out of memory (remote picture)");
    return false;
}

/* The present hop is over; true: there is another. */
static bool hop_done(struct fetch *f, CURLcode code) {
    long status = 0;
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
    bool moved = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    if (code == CURLE_OK && moved) return follow(f);
    if (code != CURLE_OK) {
        fail_transfer(f, code);
    } else if (status != 200) {
        char word[32], text[100];
        snprintf(word, sizeof word, "http_%ld", status);
        snprintf(text, sizeof text, "the remote server answered with status %ld", status);
        fail(f, MG_ERR_IO, word, text);
    } else {
        struct mg_err none = {0};
        finish(f, &none);
    }
    return false;
}

/* --- the thread --- */

static void unlink_active(struct mg_remote *r, struct fetch *f) {
    struct fetch **at = &r->active;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    r->n_active--;
}

/* Takes over the new ones, oldest first, behind those that wait, and marks those to cancel. */
static bool take_fresh(struct mg_remote *r) {
    struct fetch *turned = NULL, **end = &r->waiting;
    while (*end) end = &(*end)->next;
    pthread_mutex_lock(&r->lock);
    while (r->fresh) {
        struct fetch *f = r->fresh;
        r->fresh = f->next;
        f->next = turned;
        turned = f;
    }
    *end = turned;
    for (struct fetch *f = r->all; f; f = f->next_all) f->drop = f->cancelled;
    bool closing = r->closing;
    pthread_mutex_unlock(&r->lock);
    return closing;
}

static void drop_cancelled(struct fetch **at, bool all, size_t *count) {
    while (*at) {
        struct fetch *f = *at;
        if (!all && !f->drop) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        if (count) (*count)--;
        fail(f, MG_ERR_CANCELLED, "", "cancelled");
    }
}

static void start_waiting(struct mg_remote *r) {
    while (r->waiting && r->n_active < r->o.max_active) {
        struct fetch *f = r->waiting;
        r->waiting = f->next;
        if (mg_clock() >= f->until) {
            fail(f, MG_ERR_IO, "timeout", "the remote picture did not come in time");
        } else if (start(f)) {
            f->next = r->active;
            r->active = f;
            r->n_active++;
        } else {
            fail(f, MG_ERR_MEMORY, "out_of_memory", "out of memory (remote picture)");
        }
    }
}

static void *fetch_all(void *arg) {
    struct mg_remote *r = arg;
    for (;;) {
        bool closing = take_fresh(r);
        drop_cancelled(&r->waiting, closing, NULL);
        drop_cancelled(&r->active, closing, &r->n_active);
        if (closing) return NULL;
        start_waiting(r);
        int running, n_left;
        curl_multi_perform(r->multi, &running);
        CURLMsg *msg;
        bool ended = false;
        while ((msg = curl_multi_info_read(r->multi, &n_left))) {
            struct fetch *f = NULL;
            CURLcode code = msg->data.result;
            if (msg->msg != CURLMSG_DONE) continue;
            curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&f);
            unlink_active(r, f);
            ended = true;
            if (hop_done(f, code)) {
                f->next = r->active;
                r->active = f;
                r->n_active++;
            }
        }
        if (!ended) curl_multi_poll(r->multi, NULL, 0, 1000, NULL);
    }
}

/* --- for everyone --- */

enum mg_status mg_remote_open(const struct mg_remote_options *options, struct mg_remote **out,
                              struct mg_err *err) {
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return mg_fail(err, MG_ERR_IO, "network", "the HTTP client can't be set up");
    struct mg_remote *r = calloc(1, sizeof *r);
    if (!r) {
        curl_global_cleanup();
        return mg_fail_memory(err, "remote pictures");
    }
    r->o = *options;
    if (!r->o.max_bytes) r->o.max_bytes = (size_t)20 << 20;
    if (!(r->o.seconds > 0)) r->o.seconds = 20;
    if (!r->o.max_hop) r->o.max_hop = 3;
    if (!r->o.max_active) r->o.max_active = 16;
    if (!r->o.max_waiting) r->o.max_waiting = 256;
    if (!r->o.agent) r->o.agent = "margay";
    if (!r->o.accept) r->o.accept = "image/*";
    pthread_mutex_init(&r->lock, NULL);
    r->multi = curl_multi_init();
    r->started = r->multi && pthread_create(&r->thread, NULL, fetch_all, r) == 0;
    if (!r->started) {
        mg_remote_close(r);
        return mg_fail_memory(err, "remote pictures");
    }
    *out = r;
    return MG_OK;
}

void mg_remote_close(struct mg_remote *r) {
    if (!r) return;
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        r->closing = true;
        pthread_mutex_unlock(&r->lock);
        curl_multi_wakeup(r->multi);
        pthread_join(r->thread, NULL);
    }
    if (r->multi) curl_multi_cleanup(r->multi);
    pthread_mutex_destroy(&r->lock);
    free(r);
    curl_global_cleanup();
}

enum mg_status mg_remote_fetch(struct mg_remote *r, const char *url, mg_remote_done *done,
                               void *arg, uint64_t *id, struct mg_err *err) {
    struct mg_url parsed;
    *id = 0;
    enum mg_status status = check_url(r, url, &parsed, err);
    if (status) return status;
    struct fetch *f = calloc(1, sizeof *f);
    char *copy = strdup(url);
    if (!f || !copy) {
        free(f);
        free(copy);
        return mg_fail_memory(err, "remote picture");
    }
    *f = (struct fetch){
        .remote = r, .url = copy, .done = done, .arg = arg, .until = mg_clock() + r->o.seconds};
    pthread_mutex_lock(&r->lock);
    bool room = r->n < r->o.max_active + r->o.max_waiting;
    if (room) {
        *id = f->id = ++r->last_id;
        f->next = r->fresh;
        r->fresh = f;
        f->next_all = r->all;
        r->all = f;
        r->n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (!room) {
        free(f->url);
        free(f);
        return mg_fail(err, MG_ERR_LIMIT, "busy", "too many remote pictures are being fetched");
    }
    curl_multi_wakeup(r->multi);
    return MG_OK;
}

void mg_remote_cancel(struct mg_remote *r, uint64_t id) {
    pthread_mutex_lock(&r->lock);
    for (struct fetch *f = r->all; f; f = f->next_all)
        if (f->id == id) f->cancelled = true;
    pthread_mutex_unlock(&r->lock);
    curl_multi_wakeup(r->multi);
}
