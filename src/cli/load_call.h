/* cli/load_call.h - one request of margay load, from its due time to its outcome; and the requests
 * before the run (the model's name, uploads), one after another.
 */
#ifndef MG_CLI_LOAD_CALL_H
#define MG_CLI_LOAD_CALL_H

#include "cli/load_answer.h"
#include "cli/load_link.h"

struct mg_load_call {
    void *run, *client;        /* the loop's */
    struct mg_load_link *link; /* while it is sent; owned then */
    struct mg_load_outcome x;
    struct mg_load_answer answer;
    bool answering;      /* `answer` has begun */
    bool counted;        /* not of the warm-up */
    bool resent;         /* once, on a fresh connection */
    double leave;        /* share of an answer's usual time after which it leaves; < 0: stays */
    bool leaving;        /* `timer` is for that */
    struct event *timer; /* owned */
    size_t key;          /* which API key */
    struct mg_load_call *next, *before; /* in the loop's lists */
    struct mg_load_record *record;
};

/* Head of a request; key >= n_key: none. type NULL: no body. */
bool mg_load_head(const struct mg_load_plan *p, const char *method, const char *path, size_t key,
                  const char *type, size_t n_body, struct mg_buf *out);
/* Sends the question on the link, which is the call's from here on; false: no memory. */
bool mg_load_call_send(struct mg_load_call *c, const struct mg_load_plan *p,
                       const struct mg_load_questions *q, struct mg_load_link *link, double now);
/* The link's `body`: takes a part of the reply. */
bool mg_load_call_body(struct mg_load_call *c, const uint8_t *data, size_t n);
/* The link's `ended`: sets the outcome's kind and code. */
void mg_load_call_ended(struct mg_load_call *c, enum mg_load_kind kind, const char *code,
                        double now);
/* Without the link, which has been closed or kept. */
void mg_load_call_free(struct mg_load_call *c);

/* Before the run: the model's name where none was given, uploads, and the frame of the requests. */
enum mg_status mg_load_prepare(struct mg_load_plan *p, struct mg_load_questions *q,
                               struct event_base *base, mg_tls_context *tls,
                               struct mg_progress *progress, struct mg_err *err);

#endif
