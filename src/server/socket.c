/* server/socket.c - /ws: questions over one connection, several at a time, each with the client's
 * own name. Binary messages are pictures for the next question. Loop thread only.
 */
#include "net/websocket.h"
#include "server/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_QUESTIONS = 8, /* of one connection at a time */
    MOST_CANCELS = 8    /* that wait for questions to be read; more than that cancel all of them */
};

/* Of pictures that wait for their questions, all connections together. */
static const size_t most_waiting_bytes = (size_t)512 << 20;

struct waiting_picture {
    uint8_t *data; /* [n] owned */
    size_t n;
    struct waiting_picture *next;
};

struct connection {
    struct mg_server *s;
    struct ask *first; /* questions under way, a reference each */
    size_t n_ask;
    struct waiting_picture *picture; /* in order of coming */
    size_t n_picture, picture_bytes;
    size_t n_reading;                             /* questions that are being read */
    char cancelled[MOST_CANCELS][MG_PARAM_BYTES]; /* [n_cancelled] of them; "": all */
    size_t n_cancelled;
    uint64_t exchange;
    struct connection *next, **at; /* of all open ones */
};

void pictures_drop(struct waiting_picture **list) {
    while (*list) {
        struct waiting_picture *p = *list;
        *list = p->next;
        free(p->data);
        free(p);
    }
}

/* The pictures that wait are the caller's from now on. */
static struct waiting_picture *take_pictures(struct connection *c) {
    struct waiting_picture *list = c->picture;
    c->s->socket_bytes -= c->picture_bytes;
    c->picture = NULL;
    c->n_picture = c->picture_bytes = 0;
    return list;
}

static void send_fault(struct mg_http_exchange *x, const char *id, const struct mg_fault *f) {
    struct mg_buf out = {0};
    struct mg_fault_kind kind;
    mg_fault_kind(&f->err, &kind);
    count_error(mg_http_server_user(mg_http_server_of(x)), kind.type);
    if (mg_ws_error(&out, id[0] ? id : NULL, f)) mg_ws_send(x, MG_WS_TEXT, out.data, out.n);
    mg_buf_free(&out);
}

void socket_send(struct mg_http_exchange *x, const struct mg_buf *out) {
    for (size_t at = 0; at + sizeof(uint32_t) <= out->n;) {
        uint32_t n;
        memcpy(&n, out->data + at, sizeof n);
        at += sizeof n;
        if (mg_ws_send(x, MG_WS_TEXT, out->data + at, n) != MG_OK) return;
        at += n;
    }
}

static void remove_ask(struct connection *c, struct ask *a) {
    for (struct ask **at = &c->first; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            c->n_ask--;
            ask_unref(a);
            return;
        }
}

static void say_goodbye(struct mg_http_exchange *x) {
    mg_ws_close(x, MG_WS_GOING_AWAY, "the server is being stopped");
}

static void say_goodbye_if_idle(struct connection *c, struct mg_http_exchange *x) {
    if (!c->first && !c->n_reading && mg_http_server_is_stopping(c->s->http)) say_goodbye(x);
}

void socket_forget(struct mg_http_exchange *x, struct ask *a) {
    struct connection *c = mg_http_user(x);
    a->gone = true;
    if (!c) return;
    remove_ask(c, a);
    say_goodbye_if_idle(c, x);
}

void sockets_close_idle(struct mg_server *s) {
    for (struct connection *c = s->socket, *next; c; c = next) {
        next = c->next;
        struct mg_http_exchange *x = mg_http_find(s->http, c->exchange);
        if (x) say_goodbye_if_idle(c, x);
    }
}

static void on_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    struct connection *c = user;
    (void)x, (void)reason;
    while (c->first) {
        struct ask *a = c->first;
        a->gone = true;
        ask_cancel(a);
        remove_ask(c, a);
    }
    struct waiting_picture *left = take_pictures(c);
    pictures_drop(&left);
    *c->at = c->next;
    if (c->next) c->next->at = c->at;
    free(c);
}

static void on_stop(struct mg_http_exchange *x, void *user) {
    struct connection *c = mg_http_user(x);
    struct mg_fault f = {0};
    (void)user;
    mg_fault_set(&f, MG_ERR_CANCELLED, "shutting_down", "", "the server is being stopped");
    for (struct ask *a = c->first; a; a = a->next) send_fault(x, a->ws_id, &f);
    say_goodbye(x);
}

static enum mg_status keep_picture(struct connection *c, const uint8_t *data, size_t n,
                                   struct mg_fault *f) {
    if (c->n_picture >= c->s->facts.max_images)
        return mg_fault_set(f, MG_ERR_LIMIT, "too_many_images", "", "more than %zu pictures",
                            c->s->facts.max_images);
    if (n > c->s->facts.max_image_bytes)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", "",
                            "the picture has over %zu bytes", c->s->facts.max_image_bytes);
    if (n > pictures_most(c->s) - c->picture_bytes)
        return mg_fault_set(f, MG_ERR_LIMIT, "image_too_large", "",
                            "the question's pictures together have over %zu bytes",
                            pictures_most(c->s));
    if (n > most_waiting_bytes - c->s->socket_bytes)
        return mg_fault_set(f, MG_ERR_LIMIT, "busy", "", "too many pictures wait for questions");
    struct waiting_picture *p = calloc(1, sizeof *p);
    if (p) p->data = malloc(n ? n : 1);
    if (!p || !p->data) {
        free(p);
        return mg_fault_memory(f, "picture");
    }
    memcpy(p->data, data, n);
    p->n = n;
    struct waiting_picture **at = &c->picture;
    while (*at) at = &(*at)->next;
    *at = p;
    c->n_picture++;
    c->picture_bytes += n;
    c->s->socket_bytes += n;
    return MG_OK;
}

/* The last one goes in first: each is put before the question's parts. */
static enum mg_status use_pictures(struct waiting_picture **list, struct mg_chat_request *r,
                                   struct mg_fault *f) {
    enum mg_status status = MG_OK;
    while (*list && status == MG_OK) {
        struct waiting_picture **at = list;
        while ((*at)->next) at = &(*at)->next;
        struct waiting_picture *p = *at;
        *at = NULL;
        status = mg_chat_request_add_image_take(r, p->data, p->n, f);
        free(p);
    }
    return status;
}

static void cancel(struct connection *c, const char *id) {
    for (struct ask *a = c->first; a; a = a->next)
        if (!id[0] || strcmp(a->ws_id, id) == 0) ask_cancel(a);
    if (!c->n_reading) return;
    if (c->n_cancelled == MOST_CANCELS) {
        c->cancelled[0][0] = 0;
        return;
    }
    snprintf(c->cancelled[c->n_cancelled++], MG_PARAM_BYTES, "%s", id);
}

static bool was_cancelled(const struct connection *c, const char *id) {
    for (size_t i = 0; i < c->n_cancelled; i++)
        if (!c->cancelled[i][0] || strcmp(c->cancelled[i], id) == 0) return true;
    return false;
}

/* Whether one more question is taken. */
static enum mg_status check_room(const struct connection *c, const struct mg_http_exchange *x,
                                 struct mg_fault *f) {
    if (c->s->keyed && mg_api_keys_of(&c->s->keys, x) < 0) /* SIGHUP has taken it away */
        return mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_api_key", "",
                            "the API key of this connection is no longer valid");
    if (mg_http_server_is_stopping(c->s->http))
        return mg_fault_set(f, MG_ERR_CANCELLED, "shutting_down", "",
                            "the server is being stopped");
    if (c->n_ask + c->n_reading >= MOST_QUESTIONS)
        return mg_fault_set(f, MG_ERR_LIMIT, "rate_limited", "",
                            "%d questions are under way already", MOST_QUESTIONS);
    return MG_OK;
}

static void question(struct mg_http_exchange *x, struct connection *c, struct mg_ws_request *r,
                     struct waiting_picture **picture) {
    struct mg_fault f = {0};
    if (use_pictures(picture, r->chat, &f) != MG_OK) {
        send_fault(x, r->id, &f);
        return;
    }
    struct ask *a = ask_open(c->s, x, ASK_SOCKET, r->chat, NULL);
    r->chat = NULL;
    if (!a) {
        mg_fault_memory(&f, "question");
        send_fault(x, r->id, &f);
        return;
    }
    memcpy(a->ws_id, r->id, mg_min_size(sizeof a->ws_id - 1, strlen(r->id)));
    if (a->ws_id[0]) a->head.id = a->ws_id;
    a->next = c->first;
    c->first = a;
    c->n_ask++;
    if (ask_check(a, &f) != MG_OK) {
        send_fault(x, a->ws_id, &f);
        ask_cancel(a);
        socket_forget(x, a);
        return;
    }
    ask_begin(a);
}

static void read_message(struct work *w) {
    struct mg_chat_limits limits = {w->s->facts.max_image_bytes, w->s->facts.max_images};
    mg_ws_request_parse((const char *)w->body.data, w->body.n, &limits, &w->ws, &w->f);
}

/* What a message says is done. */
static void obey(struct work *w, struct mg_http_exchange *x) {
    struct connection *c = mg_http_user(x);
    if (w->f.err.status == MG_OK && w->ws.kind == MG_WS_CANCEL) {
        cancel(c, w->ws.id);
    } else if (w->f.err.status == MG_OK && check_room(c, x, &w->f) == MG_OK) {
        question(x, c, &w->ws, &w->picture);
    } else {
        send_fault(x, w->ws.id, &w->f);
    }
}

static void was_read(struct work *w, struct mg_http_exchange *x) {
    struct connection *c = mg_http_user(x);
    c->n_reading--;
    if (w->f.err.status == MG_OK && w->ws.kind != MG_WS_CANCEL && was_cancelled(c, w->ws.id))
        mg_fault_set(&w->f, MG_ERR_CANCELLED, "cancelled", "", "stopped on request");
    if (!c->n_reading) c->n_cancelled = 0;
    obey(w, x);
    say_goodbye_if_idle(c, x);
}

static void on_message(struct mg_http_exchange *x, enum mg_ws_kind kind, const uint8_t *data,
                       size_t n, void *user) {
    struct connection *c = mg_http_user(x);
    struct mg_fault f = {0};
    (void)user;
    if (kind == MG_WS_BINARY) {
        if (keep_picture(c, data, n, &f) != MG_OK) send_fault(x, "", &f);
        return;
    }
    struct work w = {.s = c->s,
                     .exchange = c->exchange,
                     .run = read_message,
                     .done = was_read,
                     .socket = true,
                     .body = {data, n}};
    if (n > WORK_SMALL_BYTES) {
        w.picture = c->picture;
        if (check_room(c, x, &f) == MG_OK && work_add(&w, data, n, &f) == MG_OK) {
            c->n_reading++;
            take_pictures(c);
        } else {
            send_fault(x, "", &f);
        }
        return;
    }
    read_message(&w);
    if (w.f.err.status == MG_OK && w.ws.kind != MG_WS_CANCEL) w.picture = take_pictures(c);
    obey(&w, x);
    mg_ws_request_free(&w.ws);
    pictures_drop(&w.picture);
}

/* Pictures that wait for a question hold nothing up. */
static bool is_idle(struct mg_http_exchange *x, void *user) {
    const struct connection *c = mg_http_user(x);
    (void)user;
    return !c->first && !c->n_reading;
}

void route_socket(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct connection *c = calloc(1, sizeof *c);
    struct mg_ws_options o = {.protocol = "margay",
                              .max_message = s->o.max_body,
                              .on_message = on_message,
                              .is_idle = is_idle};
    if (!c) {
        reply_err(x, MG_ERR_MEMORY, "out_of_memory", "out of memory");
        return;
    }
    c->s = s;
    if (mg_ws_accept(x, &o) != MG_OK) {
        free(c);
        return;
    }
    c->exchange = mg_http_id(x);
    c->next = s->socket;
    c->at = &s->socket;
    if (c->next) c->next->at = &c->next;
    s->socket = c;
    mg_http_set_user(x, c);
    mg_http_on_end(x, on_end);
    mg_http_on_stop(x, on_stop);
}
