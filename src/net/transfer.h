/* net/transfer.h - private to src/net: one GET request with its redirects, its pauses and its
 * further tries, many of them at a time.
 *
 *     IDLE --begin--> RUNNING --redirect--> RUNNING
 *                       |  ^
 *             may heal  v  |  not_before has come
 *                     WAITING           RUNNING --answered--> DONE    RUNNING --final--> FAILED
 *
 * The owner gives each transfer two functions: `sink` takes body bytes of a 200 or 206 answer, and
 * `ended` judges a transfer that libcurl calls complete. mg_http_step moves all of them on.
 */
#ifndef MG_NET_TRANSFER_H
#define MG_NET_TRANSFER_H

#include "net/fetch.h"
#include "net/url.h"

#include <curl/curl.h>

enum mg_transfer_state {
    MG_TRANSFER_IDLE,
    MG_TRANSFER_RUNNING,
    MG_TRANSFER_WAITING,
    MG_TRANSFER_DONE,
    MG_TRANSFER_FAILED
};

struct mg_transfer {
    /* Set by the owner before mg_transfer_begin. */
    const char *name; /* in messages; borrowed */
    void *owner;
    /* Takes n bytes of the body. false ends the answer: by `stop`, `wrong` or `fault`, which it has
     * set. */
    bool (*sink)(struct mg_transfer *t, const uint8_t *data, size_t n);
    /* Called before each request: sets url (mg_transfer_url), from and to. */
    enum mg_status (*prepare)(struct mg_transfer *t, struct mg_err *err);
    /* The answer is complete; false: it lacks something (sets `wrong`) and is tried again. */
    bool (*ended)(struct mg_transfer *t);
    size_t index; /* the owner's */

    /* What is asked for. */
    char *url;         /* owned; after redirects the last */
    bool ranged;       /* bytes [from, to) of it */
    uint64_t from, to; /* the answer's bytes begin at `from`, also when !ranged */

    /* The answer; reset for each request. */
    long status;
    bool has_range;       /* Content-Range was there and well-formed */
    uint64_t range_from;  /* first byte */
    uint64_t range_to;    /* behind the last byte */
    uint64_t range_total; /* of the file; UINT64_MAX: not told */
    uint64_t length;      /* Content-Length; UINT64_MAX: not told */
    char etag[128];       /* "" when there is none */
    uint64_t n_body;      /* bytes of it so far, all statuses */
    bool stop;            /* sink has what it wants: as good as complete */
    char wrong[160];      /* what is wrong with the answer, may heal; "" nothing */
    struct mg_err fault;  /* a failure of ours (disk, memory): final */

    enum mg_transfer_state state;
    int hop;             /* redirects followed in this request */
    size_t n_failed;     /* in a row */
    uint64_t n_progress; /* content bytes since the last failure */
    double not_before;   /* WAITING: clock of the next try */
    bool shortcut;       /* began at a remembered redirect's end: a refusal there isn't final */
    struct mg_err err;   /* FAILED: why */

    CURL *easy; /* owned */
    struct curl_slist *header;
    char curl_text[CURL_ERROR_SIZE];
    struct mg_http *http;
};

struct mg_http {
    struct mg_fetch_options o;
    char *authorization;    /* the header line with the token, owned, wiped at the end; NULL */
    struct mg_url token_to; /* where it may go */
    CURLM *multi;
    unsigned jitter; /* state of a small generator: pauses shouldn't be in step */
};

enum mg_status mg_http_open(struct mg_http *h, const struct mg_fetch_options *options,
                            struct mg_err *err);
void mg_http_close(struct mg_http *h);

enum mg_status mg_transfer_init(struct mg_transfer *t, struct mg_http *h, struct mg_err *err);
void mg_transfer_free(struct mg_transfer *t);
bool mg_transfer_url(struct mg_transfer *t, const char *url);
/* Asks (prepare, then the request). A failure is in t->state and t->err. */
void mg_transfer_begin(struct mg_transfer *t);
/* Back to IDLE, whatever it does. Never from within sink. */
void mg_transfer_cancel(struct mg_transfer *t);

/* Lets all n transfers move for at most about 0.1 s; MG_ERR_CANCELLED when the caller wants to
 * stop. */
enum mg_status mg_http_step(struct mg_http *h, struct mg_transfer *t, size_t n, struct mg_err *err);

/* "bytes 0-99/1000" after its colon; false when it isn't one. A star for the range gives 0, 0. */
bool mg_http_content_range(const char *text, uint64_t *from, uint64_t *to, uint64_t *total);

#endif
