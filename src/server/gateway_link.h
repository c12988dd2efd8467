/* server/gateway_link.h - between the gateway's two halves: gateway.c on the loop, gateway_link.c
 * on the threads that speak to Redis. */
#ifndef MG_SERVER_GATEWAY_LINK_H
#define MG_SERVER_GATEWAY_LINK_H

#include "server/gateway.h"
#include "server/internal.h"

#include "api/server_reply.h"

enum {
    RELAY_AHEAD =
        256 << 10, /* bytes that wait for a slow client before its job isn't read further */
    GATEWAY_MODELS = 16
};

enum relay_kind {
    RELAY_ASK,    /* the client that asked waits */
    RELAY_RESUME, /* GET /v1/jobs/{id} as an event stream */
    RELAY_STATE   /* GET or DELETE of it */
};

/* NOTE: the reading thread is woken for it. */
enum order_kind { ORDER_SUBMIT, ORDER_STATE, ORDER_WATCH, ORDER_CANCEL, ORDER_NOTE };

/* A client and the job that it waits for. */
struct relay {
    struct gateway *g;
    atomic_int refs;  /* the exchange; an order; the list of those watched; each delivery */
    atomic_bool gone; /* the exchange is over */
    enum relay_kind kind;
    char id[MG_JOB_ID_BYTES], tenant[MG_JOB_TENANT_BYTES], path[64];
    const char *priority;
    uint64_t exchange;
    double began; /* mg_clock */
    bool background;
    bool detached; /* its client may leave without the job being cancelled */

    /* ASK: the sending thread's from the order on; none when the job has been handed in. */
    struct mg_job_request *request;             /* owned */
    struct upload *upload[MG_JOB_MAX_PICTURES]; /* [n_picture] NULL for inline ones; owned */
    size_t n_picture, bytes;

    /* Loop thread. */
    bool stream, begun, ended;
    int status;
    struct mg_buf fields, whole;
    uint64_t offset; /* of the answer, that the client has */

    /* Under gateway.mutex. */
    bool watched, dirty, busy; /* there may be news; the loop still has what was read */
    double busy_at;            /* mg_clock */
    struct relay *next;

    /* The reading thread's. */
    char place[MG_JOB_PLACE_BYTES];
    double heard; /* when something last came */
};

/* What was read of a job, on its way to the loop. */
struct delivery {
    struct relay *relay; /* a reference */
    struct mg_buf head, data;
    uint64_t end; /* of data */
    char state[16], code[32];
    double retry_seconds;
    bool anew; /* what came before it is void: Redis has lost some of it */
};
void on_delivery(void *arg);

/* How a job is, on its way to the loop. */
struct answer {
    struct relay *relay; /* a reference */
    struct mg_job_state job;
    char code[32]; /* not "": it could not be found out */
    int status;    /* of a whole reply that is there, else 0 */
    struct mg_buf whole;
    double retry_seconds;
};
void on_answer(void *arg);

struct order {
    struct relay *relay; /* a reference; NULL: CANCEL for nobody */
    enum order_kind kind;
    char id[MG_JOB_ID_BYTES], tenant[MG_JOB_TENANT_BYTES];
    double until; /* mg_clock: tried no longer */
    struct order *next;
};

struct gateway {
    struct mg_server *s;
    struct mg_queue *sending, *reading; /* a link for each thread */
    char name[33];
    pthread_t send_thread, read_thread;
    bool send_started, read_started;
    bool full;          /* sending thread: Redis takes nothing more, and the log has it */
    struct order *held; /* likewise: cancels that wait until Redis is there */

    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t more;   /* orders */
    struct order *first, **last;
    struct relay *watched;
    bool closing;
    bool up; /* the last call of the sending thread was answered */
    struct mg_queue_look look;
    size_t n_worker;
    struct mg_buf about[GATEWAY_MODELS]; /* [n_about] what workers say, one for each model */
    size_t n_about;
};

void relay_unref(struct relay *r);
/* What is handed in, once that is done. */
void relay_drop_request(struct relay *r);
/* Any thread. Takes a reference to r. */
enum mg_status gateway_order(struct relay *r, enum order_kind kind);
/* Its job is to be cancelled, now or when Redis is there again. */
void gateway_cancel_later(struct relay *r);
void gateway_forget(struct relay *r);
/* The loop has passed on what it was given. */
void gateway_more(struct relay *r);

struct gateway_view {
    bool up;
    size_t n_worker;
    struct mg_queue_look look;
};
void gateway_view(struct gateway *g, struct gateway_view *out);
size_t gateway_limit(const struct gateway *g);

/* What the workers' models are; m's texts live until it is freed. */
struct gateway_models {
    size_t n;
    void *root[GATEWAY_MODELS]; /* JSON */
};
struct gateway_models *gateway_models(struct gateway *g, struct mg_model_reply m[GATEWAY_MODELS]);
void gateway_models_free(struct gateway_models *m);
/* A worker's /props; false: none is there. */
bool gateway_props(struct gateway *g, struct mg_buf *out);

#endif
