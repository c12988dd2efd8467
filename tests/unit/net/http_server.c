/* The server from inside: posts and stops from many threads, its own options, and every request
 * with the n-th allocation failing, for each n (malloc and its like are wrapped by the linker, and
 * libevent is given the wrapped ones). */
#include "net/http_internal.h"
#include "net/sse.h"
#include "net/websocket.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/event.h>

#include <cmocka.h>

/* --- allocations that fail --- */

static _Thread_local long fail_in; /* the n-th from now fails; 0: none */
static _Thread_local bool failing; /* it has; all after it do, unless `once` */
static bool once;
static bool has_failed; /* in the last talk */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static bool fails(void) {
    if (failing && !once) return true;
    if (fail_in == 0 || --fail_in > 0) return false;
    failing = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
    return fails() ? NULL : __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

/* --- a server whose loop is turned by hand --- */

static int n_end;
static struct mg_http_server *server;

static void on_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    n_end++;
}

static void get_text(struct mg_http_exchange *x, void *user) {
    static char text[3000];
    memset(text, 'a', sizeof text);
    mg_http_add_field(x, "X-More", mg_http_param(x, "id") ? mg_http_param(x, "id") : "-");
    mg_http_reply(x, 200, "text/plain", text, sizeof text);
}

static void post_echo(struct mg_http_exchange *x, void *user) {
    struct mg_slice body = mg_http_body(x);
    mg_http_reply(x, 200, "a/b", body.data, body.n);
}

static void get_events(struct mg_http_exchange *x, void *user) {
    mg_http_on_end(x, on_end);
    mg_sse_begin(x, 10);
    mg_sse_send(x, NULL, "one", 3);
    mg_http_stream_end(x);
}

static void echo_message(struct mg_http_exchange *x, enum mg_ws_kind kind, const uint8_t *data,
                         size_t n, void *user) {
    mg_ws_send(x, kind, data, n);
}

static void get_ws(struct mg_http_exchange *x, void *user) {
    mg_ws_accept(x, &(struct mg_ws_options){.on_message = echo_message});
}

static void get_error(struct mg_http_exchange *x, void *user) {
    mg_http_reply_error(x, 418, "teapot", "no coffee");
}

static const struct mg_http_route routes[] = {
    {"GET", "/text/{id}", get_text}, {"POST", "/echo", post_echo}, {"GET", "/events", get_events},
    {"GET", "/ws", get_ws},          {"GET", "/error", get_error},
};

static void open_server(struct mg_http_options o) {
    struct mg_err err = {0};
    o.host = "127.0.0.1";
    o.route = routes;
    o.n_route = sizeof routes / sizeof routes[0];
    assert_int_equal(mg_http_server_open(&o, &server, &err), MG_OK);
}

/* Sends the bytes through a socket pair and gathers what comes back until nothing moves any more.
 */
static size_t talk(const char *text, size_t n, char *out, size_t cap) {
    int pair[2];
    size_t got = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    mg_http_conn_open(server, pair[0], true, "unix", false);
    ssize_t ignored = send(pair[1], text, n, MSG_NOSIGNAL); /* it may have been closed at once */
    (void)ignored;
    for (int quiet = 0; quiet < 5;) {
        event_base_loop(server->base, EVLOOP_NONBLOCK);
        ssize_t part = recv(pair[1], out + got, cap - 1 - got, 0);
        if (part > 0) got += (size_t)part;
        quiet = part > 0 ? 0 : quiet + 1;
    }
    has_failed = failing;
    fail_in = 0;
    failing = false;
    close(pair[1]);
    for (int i = 0; i < 5; i++) event_base_loop(server->base, EVLOOP_NONBLOCK);
    out[got] = 0;
    return got;
}

#define WS                                                                                         \
    "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"                 \
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"             \
    "\x81\x85\0\0\0\0hello\x88\x82\0\0\0\0\x03\xe8"

static void check_no_memory(void) {
    static const struct {
        const char *text;
        size_t n;
        const char *begins;
        int least; /* allocations that fail before it succeeds, at least */
    } talks[] = {
#define TALK(text, begins, least) {text, sizeof text - 1, begins, least}
        TALK("GET /text/5?a=b HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n", "HTTP/1.1 200",
             8),
        TALK("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200", 8),
        TALK("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
             "chunked\r\n\r\n2\r\nhe\r\n0\r\n\r\n",
             "HTTP/1.1 200", 8),
        TALK("GET /events HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200", 8),
        TALK("GET /error HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 418", 8),
        TALK("GET /none HTTP/1.1\r\nHost: x\r\n\r\nGET /text/5 HTTP/1.1\r\nHost: x\r\n\r\n",
             "HTTP/1.1 404", 8),
        TALK("garbage\r\n\r\n", "HTTP/1.1 400", 6),
        TALK(WS, "HTTP/1.1 101", 8),
    };
    static char out[65536];
    int n_503 = 0;
    open_server((struct mg_http_options){0});
    event_base_loop(server->base, EVLOOP_NONBLOCK);
    for (size_t i = 0; i < sizeof talks / sizeof talks[0]; i++) {
        long n = 1;
        for (;; n++) {
            struct mg_http_counts counts;
            fail_in = n;
            size_t got = talk(talks[i].text, talks[i].n, out, sizeof out);
            assert_true(got == 0 || !strncmp(out, talks[i].begins, 12) ||
                        !strncmp(out, "HTTP/1.1 503", 12));
            n_503 += !strncmp(out, "HTTP/1.1 503", 12);
            mg_http_server_counts(server, &counts);
            assert_int_equal(counts.connection, 0);
            assert_int_equal(counts.exchange, 0);
            assert_int_equal(counts.body_bytes, 0);
            if (!has_failed) break; /* it needed fewer than n */
            assert_true(n < 500);
        }
        assert_true(n > talks[i].least);
        /* The server is as good as before. */
        talk(talks[i].text, talks[i].n, out, sizeof out);
        assert_memory_equal(out, talks[i].begins, 12);
    }
    assert_true(n_503 > 10);
    mg_http_server_close(server);
}

static void no_memory(void **state) {
    once = false;
    check_no_memory();
    once = true;
    check_no_memory();
}

/* --- other threads --- */

#define N_THREAD 8
#define N_POST 20000

static struct {
    int n_called;       /* loop thread */
    int next[N_THREAD]; /* loop thread: order is kept for each poster */
    atomic_int n_posted, n_full;
} posts;

struct post {
    int thread, number;
};

static void called(void *arg) {
    struct post *p = arg;
    posts.n_called++;
    if (p->number < posts.next[p->thread]) posts.n_called = -1000000000;
    posts.next[p->thread] = p->number + 1;
    free(p);
}

static void *post_many(void *arg) {
    int thread = (int)(intptr_t)arg;
    for (int i = 0; i < N_POST; i++) {
        struct post *p = malloc(sizeof *p);
        *p = (struct post){thread, i};
        if (mg_http_server_post(server, called, p) == MG_OK) {
            atomic_fetch_add(&posts.n_posted, 1);
        } else {
            atomic_fetch_add(&posts.n_full, 1);
            free(p);
        }
        if (i % 1000 == 0) mg_http_server_reload(server);
    }
    return NULL;
}

static void *run(void *arg) {
    struct mg_err err = {0};
    return mg_http_server_run(server, &err) ? arg : NULL;
}

static void posted(void **state) {
    pthread_t loop, thread[N_THREAD];
    void *failed;
    memset(&posts, 0, sizeof posts);
    open_server((struct mg_http_options){.max_post = 1000});
    assert_int_equal(pthread_create(&loop, NULL, run, &posts), 0);
    for (int i = 0; i < N_THREAD; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, post_many, (void *)(intptr_t)i), 0);
    for (int i = 0; i < N_THREAD; i++) pthread_join(thread[i], NULL);
    mg_http_server_stop(server, 0);
    pthread_join(loop, &failed);
    assert_null(failed);
    mg_http_server_close(server); /* calls what is left */
    assert_int_equal(posts.n_called, atomic_load(&posts.n_posted));
    assert_int_equal(posts.n_called + atomic_load(&posts.n_full), N_THREAD * N_POST);
    assert_true(posts.n_called >= 1000);
}

/* A single post is never left lying, however it falls on the loop's going to sleep. */
static void count_one(void *arg) {
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void woken(void **state) {
    pthread_t loop;
    atomic_int count = 0;
    open_server((struct mg_http_options){.max_post = 4});
    assert_int_equal(pthread_create(&loop, NULL, run, &posts), 0);
    for (int i = 1; i <= 20000; i++) {
        while (mg_http_server_post(server, count_one, &count)) continue;
        double limit = mg_clock() + 20;
        while (atomic_load(&count) < i) assert_true(mg_clock() < limit);
    }
    mg_http_server_stop(server, 100000);
    pthread_join(loop, NULL);
    mg_http_server_close(server);
}

static void stopped_before_running(void **state) {
    struct mg_err err = {0};
    for (int i = 0; i < 50; i++) {
        open_server((struct mg_http_options){0});
        assert_true(mg_http_server_port(server) > 0);
        mg_http_server_stop(server, 0);
        assert_int_equal(mg_http_server_run(server, &err), MG_OK);
        mg_http_server_close(server);
    }
    open_server((struct mg_http_options){0});
    mg_http_server_close(server);
}

static void wrong_options(void **state) {
    static const struct mg_http_route no_slash[] = {{"GET", "x", get_text}};
    static const struct mg_http_options wrong[] = {
        {0},
        {.host = "127.0.0.1", .tls_cert = "x"},
        {.host = "127.0.0.1", .route = no_slash, .n_route = 1},
        {.unix_path = ""},
        {.unix_path = "/nowhere/at/all"},
        {.host = "127.0.0.1", .tls_cert = "/nowhere", .tls_key = "/nowhere"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct mg_err err = {0};
        assert_int_not_equal(mg_http_server_open(&wrong[i], &server, &err), MG_OK);
        assert_null(server);
        assert_true(err.text[0]);
    }
}

/* Every message and limit of a handler that does what it should not. */
static void get_wrong(struct mg_http_exchange *x, void *user) {
    int *n = user;
    *n += mg_http_add_field(x, "A", "b\r\nC: d") == MG_ERR_ARGUMENT;
    *n += mg_http_add_field(x, "A B", "c") == MG_ERR_ARGUMENT;
    *n += mg_http_stream_write(x, "x", 1) == MG_ERR_ARGUMENT;
    *n += mg_http_stream_end(x) == MG_ERR_ARGUMENT;
    *n += mg_http_reply(x, 100, NULL, NULL, 0) == MG_ERR_ARGUMENT;
    *n += mg_http_reply(x, 200, "a\nb", NULL, 0) == MG_ERR_ARGUMENT;
    *n += mg_ws_send(x, MG_WS_TEXT, "x", 1) == MG_ERR_ARGUMENT;
    *n += mg_http_reply(x, 200, "text/plain", "ok", 2) == MG_OK;
    *n += mg_http_reply(x, 200, "text/plain", "ok", 2) == MG_ERR_ARGUMENT;
    *n += mg_http_stream_begin(x, 200, NULL) == MG_ERR_ARGUMENT;
    *n += mg_http_add_field(x, "A", "b") == MG_ERR_ARGUMENT;
    *n += mg_http_find(server, mg_http_id(x)) == x;
    *n += mg_http_find(server, mg_http_id(x) + 1) == NULL;
}

static void misused(void **state) {
    static const struct mg_http_route wrong[] = {{"GET", "/wrong", get_wrong}};
    static char out[4096];
    struct mg_err err = {0};
    int n = 0;
    struct mg_http_options o = {.host = "127.0.0.1", .route = wrong, .n_route = 1, .user = &n};
    static const char text[] = "GET /wrong HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(mg_http_server_open(&o, &server, &err), MG_OK);
    talk(text, sizeof text - 1, out, sizeof out);
    assert_int_equal(n, 13);
    assert_null(strstr(out, "C: d"));
    assert_non_null(strstr(out, "\r\n\r\nok"));
    mg_http_server_close(server);
}

int main(void) {
    event_set_mem_functions(__wrap_malloc, __wrap_realloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory),     cmocka_unit_test(posted),
        cmocka_unit_test(woken),         cmocka_unit_test(stopped_before_running),
        cmocka_unit_test(wrong_options), cmocka_unit_test(misused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
