/* The link to Redis against servers that misbehave, each a thread with a script: what they say is
 * named, and nothing takes longer than it may. (A real redis-server: tests/cli.) */
#include "store/redis_link.h"
#include "base/io.h"

#include <hiredis/hiredis.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT 0.2
#define SLACK 0.3 /* of a busy machine */

/* A server for one client: sends `say` after the first bytes came, `pause` seconds after each byte;
 * then waits for the client to leave, or leaves itself. */
struct server {
    int fd;
    struct mg_redis_url url;
    pthread_t thread;
    const char *say;
    double pause;
    bool leave;
    char heard[512];
};

static void pause_for(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static void *serve(void *arg) {
    struct server *s = arg;
    int c = accept(s->fd, NULL, NULL);
    if (c < 0) return NULL;
    ssize_t n = s->leave && !s->say ? 0 : recv(c, s->heard, sizeof s->heard - 1, 0);
    if (n > 0 && s->say) {
        size_t all = strlen(s->say), step = s->pause > 0 ? 1 : all;
        for (size_t i = 0; i < all; i += step) {
            if (send(c, s->say + i, step, MSG_NOSIGNAL) < 0) break;
            if (s->pause > 0) pause_for(s->pause);
        }
    }
    char rest[256];
    while (!s->leave && recv(c, rest, sizeof rest, 0) > 0) continue;
    close(c);
    return NULL;
}

static void start(struct server *s, const char *url) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 4), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(mg_redis_url_parse(url, &s->url, NULL), MG_OK);
    snprintf(s->url.port, sizeof s->url.port, "%d", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void stop(struct server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

static const char *const ping[] = {"PING"};

/* Opens (and pings) within the limits; returns the failure's code, "" for none. */
static const char *try_it(struct server *s, const char *url, struct mg_err *err) {
    struct mg_redis_link *link = NULL;
    *err = (struct mg_err){0};
    start(s, url);
    double begin = mg_clock();
    enum mg_status st = mg_redis_link_open(&s->url, NULL, LIMIT, &link, err);
    assert_true(mg_clock() - begin < LIMIT + SLACK);
    begin = mg_clock();
    if (!st) st = mg_redis_link_call(link, LIMIT, 1, ping, NULL, NULL, err);
    assert_true(mg_clock() - begin < LIMIT + SLACK);
    assert_int_equal(st, err->status);
    mg_redis_link_close(link);
    stop(s);
    return st ? err->code : "";
}

static void said(void **state) {
    static const struct {
        const char *url, *say, *code;
        double pause;
    } row[] = {
        {"redis://127.0.0.1", "+PONG\r\n", "", 0},
        {"redis://127.0.0.1", "+PONG\r\n", "", 0.002},
        {"redis://127.0.0.1", "-NOAUTH Authentication required.\r\n", "redis_auth", 0},
        {"redis://:canary@127.0.0.1", "-WRONGPASS invalid\r\n", "redis_auth", 0},
        {"redis://:canary@127.0.0.1", "-ERR unknown command 'AUTH' with 'canary'\r\n", "redis_auth",
         0},
        {"redis://127.0.0.1", "-LOADING Redis is loading\r\n", "redis_loading", 0},
        {"redis://127.0.0.1", "-MOVED 3999 127.0.0.1:6381\r\n", "redis_moved", 0},
        {"redis://127.0.0.1", "-ASK 3999 127.0.0.1:6381\r\n", "redis_moved", 0},
        {"redis://127.0.0.1/99", "-ERR DB index is out of range\r\n", "redis_error", 0},
        {"redis://127.0.0.1", "HTTP/1.1 400 Bad Request\r\n\r\n", "redis_reply", 0},
        {"redis://127.0.0.1", "$-7\r\n", "redis_reply", 0},
        {"redis://127.0.0.1", "*9999999999\r\n", "redis_reply", 0},
        {"redis://127.0.0.1", "$400000000\r\nabc", "redis_timeout", 0},
        {"redis://127.0.0.1", "+PONG PONG PONG PONG PONG PONG PONG\r\n", "redis_timeout", 0.05},
        {"redis://127.0.0.1", NULL, "redis_timeout", 0},
        {"rediss://127.0.0.1", NULL, "redis_timeout", 0},
        {"rediss://127.0.0.1", "-ERR Protocol error\r\n", "redis_tls", 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct server s = {.say = row[i].say, .pause = row[i].pause};
        struct mg_err err;
        const char *code = try_it(&s, row[i].url, &err);
        if (strcmp(code, row[i].code))
            fail_msg("%zu: wanted '%s', got '%s': %s", i, row[i].code, code, err.text);
        assert_null(strstr(err.text, "canary"));
    }
}

static void leaves(void **state) {
    struct server s = {.leave = true}, t = {.leave = true, .say = "+PO"};
    struct mg_err err;
    assert_string_equal(try_it(&s, "redis://127.0.0.1", &err), "redis_closed");
    assert_string_equal(try_it(&t, "redis://127.0.0.1", &err), "redis_closed");
}

/* User, password and database go out as commands; a link that failed stays closed to calls. */
static void introduces(void **state) {
    struct server s = {.say = "+OK\r\n+OK\r\n+PONG\r\n"};
    struct mg_redis_link *link = NULL;
    struct redisReply *reply = NULL;
    struct mg_err err = {0};
    start(&s, "redis://ada:pass%20word@127.0.0.1/3");
    assert_int_equal(mg_redis_link_open(&s.url, NULL, 1, &link, &err), MG_OK);
    assert_int_equal(mg_redis_link_call(link, 1, 1, ping, NULL, &reply, &err), MG_OK);
    assert_string_equal(reply->str, "PONG");
    freeReplyObject(reply);
    assert_int_equal(mg_redis_link_call(link, 0.05, 1, ping, NULL, &reply, &err), MG_ERR_IO);
    assert_string_equal(err.code, "redis_timeout");
    assert_null(reply);
    double begin = mg_clock();
    err = (struct mg_err){0};
    assert_int_equal(mg_redis_link_call(link, 5, 1, ping, NULL, &reply, &err), MG_ERR_IO);
    assert_string_equal(err.code, "redis_closed");
    assert_true(mg_clock() - begin < 1);
    mg_redis_link_close(link);
    stop(&s);
    const char *auth = "*3\r\n$4\r\nAUTH\r\n$3\r\nada\r\n$9\r\npass word\r\n";
    assert_memory_equal(s.heard, auth, strlen(auth));
}

static void nobody(void **state) {
    struct server s = {.leave = true};
    struct mg_redis_link *link = NULL;
    struct mg_err err = {0};
    start(&s, "redis://:canary@127.0.0.1");
    stop(&s); /* the port is free again */
    assert_int_equal(mg_redis_link_open(&s.url, NULL, LIMIT, &link, &err), MG_ERR_IO);
    assert_string_equal(err.code, "redis_refused");
    assert_null(link);
    assert_non_null(strstr(err.text, s.url.port));
    assert_null(strstr(err.text, "canary"));
    err = (struct mg_err){0};
    assert_int_equal(mg_redis_url_parse("redis://no-such-name.invalid", &s.url, NULL), MG_OK);
    double begin = mg_clock();
    assert_int_equal(mg_redis_link_open(&s.url, NULL, LIMIT, &link, &err), MG_ERR_IO);
    assert_true(mg_clock() - begin < LIMIT + SLACK);
    assert_true(!strcmp(err.code, "redis_host") || !strcmp(err.code, "redis_timeout"));
    err = (struct mg_err){0};
    struct mg_redis_tls files = {.ca_file = "/nonexistent/ca.pem"};
    struct server t = {0};
    start(&t, "rediss://127.0.0.1");
    assert_int_equal(mg_redis_link_open(&t.url, &files, LIMIT, &link, &err), MG_ERR_ARGUMENT);
    assert_string_equal(err.code, "redis_tls");
    stop(&t);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(said), cmocka_unit_test(leaves),
                                       cmocka_unit_test(introduces), cmocka_unit_test(nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
