/* Fetching for strangers: which addresses are public, which hosts are allowed, each hop checked
 * anew, the limits, cancelling. Against a server of our own on this machine; 127.0.0.1 and ::1 play
 * the public internet, 127.0.0.2 what must not be reached. */
#include "net/remote.h"

#include "base/io.h"
#include "net/address.h"
#include "net/http_server.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void addresses(void **state) {
    static const char *const public[] = {"1.1.1.1",
                                         "8.8.8.8",
                                         "9.255.255.255",
                                         "11.0.0.0",
                                         "100.63.255.255",
                                         "100.128.0.0",
                                         "126.255.255.255",
                                         "128.0.0.0",
                                         "169.253.255.255",
                                         "169.255.0.0",
                                         "172.15.255.255",
                                         "172.32.0.0",
                                         "192.0.1.0",
                                         "192.167.255.255",
                                         "192.169.0.0",
                                         "198.17.255.255",
                                         "198.20.0.0",
                                         "223.255.255.255",
                                         "2606:4700::1111",
                                         "2001:200::1",
                                         "2a00::1",
                                         "::ffff:8.8.8.8",
                                         "64:ff9b::8.8.8.8",
                                         "2002:808:808::1",
                                         "2001:4860:4860::8888"};
    static const char *const not [] = {"0.0.0.0",
                                       "0.1.2.3",
                                       "10.0.0.1",
                                       "10.255.255.255",
                                       "100.64.0.1",
                                       "100.127.255.255",
                                       "127.0.0.1",
                                       "127.255.255.255",
                                       "169.254.169.254",
                                       "172.16.0.1",
                                       "172.31.255.255",
                                       "192.0.0.1",
                                       "192.0.2.1",
                                       "192.88.99.1",
                                       "192.168.0.1",
                                       "198.18.0.1",
                                       "198.19.255.255",
                                       "198.51.100.1",
                                       "203.0.113.1",
                                       "224.0.0.1",
                                       "239.255.255.255",
                                       "240.0.0.1",
                                       "255.255.255.255",
                                       "::",
                                       "::1",
                                       "::127.0.0.1",
                                       "fe80::1",
                                       "febf::1",
                                       "fec0::1",
                                       "fc00::1",
                                       "fd12::1",
                                       "ff02::1",
                                       "::ffff:127.0.0.1",
                                       "::ffff:10.0.0.1",
                                       "::ffff:169.254.169.254",
                                       "64:ff9b::10.0.0.1",
                                       "64:ff9b::127.0.0.1",
                                       "64:ff9b:1::808:808",
                                       "2001::1",
                                       "2001:1ff::1",
                                       "2001:db8::1",
                                       "2002:7f00:1::1",
                                       "2002:a00:1::1",
                                       "3fff::1",
                                       "3fff:fff::1",
                                       "100::1",
                                       "4000::1",
                                       "5f00::1"};
    for (int i = 0; i < 2; i++) {
        const char *const *list = i ? not : public;
        size_t n = i ? sizeof not / sizeof not [0] : sizeof public / sizeof public[0];
        for (size_t k = 0; k < n; k++) {
            struct sockaddr_in a4 = {.sin_family = AF_INET};
            struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
            bool is4 = inet_pton(AF_INET, list[k], &a4.sin_addr) == 1;
            if (!is4) assert_int_equal(inet_pton(AF_INET6, list[k], &a6.sin6_addr), 1);
            bool got = is4 ? mg_address_is_public((struct sockaddr *)&a4, sizeof a4)
                           : mg_address_is_public((struct sockaddr *)&a6, sizeof a6);
            if (got == (i == 1)) print_error("%s\n", list[k]);
            assert_int_equal(got, i == 0);
        }
    }
    struct sockaddr unix_address = {.sa_family = AF_UNIX};
    assert_false(mg_address_is_public(&unix_address, sizeof unix_address));
}

/* --- a server --- */

static struct mg_http_server *server;
static pthread_t server_thread;
static char base[64], other[64]; /* "http://127.0.0.1:PORT", the same at 127.0.0.2 */
static atomic_int n_asked, n_never, n_left;

static void get_picture(struct mg_http_exchange *x, void *user) {
    const char *size = mg_http_query(x, "n");
    size_t n = size ? strtoul(size, NULL, 10) : 1000;
    char *data = calloc(1, n + 1);
    atomic_fetch_add(&n_asked, 1);
    mg_http_reply(x, 200, "image/png", data, n);
    free(data);
}

static void get_chunks(struct mg_http_exchange *x, void *user) {
    mg_http_stream_begin(x, 200, "image/png");
    for (int i = 0; i < 20; i++) mg_http_stream_write(x, "0123456789", 10);
    mg_http_stream_end(x);
}

static void get_to(struct mg_http_exchange *x, void *user) {
    atomic_fetch_add(&n_asked, 1);
    mg_http_add_field(x, "Location", mg_http_query(x, "url"));
    mg_http_reply(x, 302, NULL, NULL, 0);
}

static void count_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    if (reason == MG_HTTP_END_LEFT) atomic_fetch_add(&n_left, 1);
}

static void get_never(struct mg_http_exchange *x, void *user) {
    mg_http_on_end(x, count_end);
    atomic_fetch_add(&n_never, 1);
}

static void get_head(struct mg_http_exchange *x, void *user) {
    char text[300];
    const char *accept = mg_http_header(x, "accept"),
               *encoding = mg_http_header(x, "accept-encoding");
    int n =
        snprintf(text, sizeof text, "%s|%s|%s|%s", accept ? accept : "-", encoding ? encoding : "-",
                 mg_http_header(x, "user-agent"), mg_http_header(x, "cookie") ? "cookie" : "-");
    mg_http_add_field(x, "Set-Cookie", "a=b");
    mg_http_reply(x, 200, NULL, text, (size_t)n);
}

static const struct mg_http_route routes[] = {
    {"GET", "/picture", get_picture}, {"GET", "/chunks", get_chunks}, {"GET", "/to", get_to},
    {"GET", "/never", get_never},     {"GET", "/head", get_head},
};

static void *serve(void *arg) {
    mg_http_server_run(server, NULL);
    return NULL;
}

static int start_server(void **state) {
    struct mg_err err = {0};
    struct mg_http_options o = {.host = "0.0.0.0", .route = routes, .n_route = 5};
    if (mg_http_server_open(&o, &server, &err)) return 1;
    snprintf(base, sizeof base, "http://127.0.0.1:%u", mg_http_server_port(server));
    snprintf(other, sizeof other, "http://127.0.0.2:%u", mg_http_server_port(server));
    return pthread_create(&server_thread, NULL, serve, NULL);
}

static int stop_server(void **state) {
    mg_http_server_stop(server, 0);
    pthread_join(server_thread, NULL);
    mg_http_server_close(server);
    return 0;
}

/* --- fetching --- */

static struct mg_remote *remote;
static char entry[4][64];
static const char *hosts[4];

static bool only_first(const struct sockaddr *a, socklen_t n, void *user) {
    return a->sa_family == AF_INET &&
           ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
}

static void port_entry(size_t i, const char *host) {
    snprintf(entry[i], sizeof entry[i], "%s:%u", host, mg_http_server_port(server));
    hosts[i] = entry[i];
}

static void open_remote(struct mg_remote_options o) {
    struct mg_err err = {0};
    port_entry(0, "127.0.0.1");
    port_entry(1, "127.0.0.2");
    port_entry(2, "localhost");
    if (!o.host) {
        o.host = hosts;
        o.n_host = 3;
    }
    if (!o.address_ok) o.address_ok = only_first;
    assert_int_equal(mg_remote_open(&o, &remote, &err), MG_OK);
}

struct result {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    bool is_ready;
    struct mg_err err;
    size_t n;
    char text[400];
};

static void take(const struct mg_err *err, const uint8_t *data, size_t n, void *arg) {
    struct result *r = arg;
    pthread_mutex_lock(&r->lock);
    r->err = *err;
    r->n = n;
    if (n < sizeof r->text && data) memcpy(r->text, data, n);
    r->is_ready = true;
    pthread_cond_signal(&r->ready);
    pthread_mutex_unlock(&r->lock);
}

static void begin_result(struct result *r) {
    *r = (struct result){0};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ready, NULL);
}

static void wait_for(struct result *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->is_ready) pthread_cond_wait(&r->ready, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* The code of what becomes of this URL, "" when it is fetched. */
static const char *fetch(const char *url, struct result *r) {
    uint64_t id;
    begin_result(r);
    if (mg_remote_fetch(remote, url, take, r, &id, &r->err)) return r->err.code;
    wait_for(r);
    return r->err.code;
}

static const char *fetch_at(const char *start, const char *path, struct result *r) {
    char url[1000];
    snprintf(url, sizeof url, "%s%s", start, path);
    return fetch(url, r);
}

static const char *fetch_to(const char *to, struct result *r) {
    char path[900];
    snprintf(path, sizeof path, "/to?url=%s", to);
    return fetch_at(base, path, r);
}

static void fetched(void **state) {
    struct result r;
    open_remote((struct mg_remote_options){.max_bytes = 5000});
    assert_string_equal(fetch_at(base, "/picture", &r), "");
    assert_int_equal(r.err.status, MG_OK);
    assert_int_equal(r.n, 1000);
    assert_string_equal(fetch_at(base, "/picture?n=0", &r), "");
    assert_int_equal(r.n, 0);
    assert_string_equal(fetch_at(base, "/picture?n=5000", &r), "");
    assert_int_equal(r.n, 5000);
    assert_string_equal(fetch_at(base, "/picture?n=5001", &r), "too_large");
    assert_non_null(strstr(r.err.text, "5000"));
    assert_string_equal(fetch_at(base, "/none", &r), "http_404");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(fetch_at(base, "/head", &r), "");
        assert_string_equal(r.text, "image/*|-|margay|-");
    }
    mg_remote_close(remote);
    open_remote((struct mg_remote_options){.max_bytes = 100});
    assert_string_equal(fetch_at(base, "/chunks", &r), "too_large");
    mg_remote_close(remote);
}

static void refused(void **state) {
    struct result r;
    char url[200];
    int before = atomic_load(&n_asked);
    unsigned port = mg_http_server_port(server);
    open_remote((struct mg_remote_options){0});
    /* An address that is not allowed, by number, by name, in odd spellings. */
    assert_string_equal(fetch_at(other, "/picture", &r), "address_not_allowed");
    assert_null(strstr(r.err.text, "127"));
    /* A host that is not on the list, or at another port. */
    static const char *const away[] = {"http://127.0.0.3:%u/picture", "http://example.org:%u/",
                                       "http://[::1]:%u/picture",
                                       "http://127.0.0.1.example.org:%u/", "http://xlocalhost:%u/"};
    for (size_t i = 0; i < sizeof away / sizeof away[0]; i++) {
        snprintf(url, sizeof url, away[i], port);
        assert_string_equal(fetch(url, &r), "host_not_allowed");
    }
    assert_string_equal(fetch("http://127.0.0.1/", &r), "host_not_allowed");
    static const char *const wrong[] = {"file:///etc/passwd",
                                        "ftp://127.0.0.1/x",
                                        "gopher://127.0.0.1/",
                                        "http://user@127.0.0.1/",
                                        "//127.0.0.1/",
                                        "",
                                        "x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_string_equal(fetch(wrong[i], &r), "url");
    mg_remote_close(remote);
    /* The list lets all hosts through; the address still counts. */
    snprintf(entry[3], sizeof entry[3], "*:%u", port);
    const char *const all_here[] = {"*", entry[3]};
    open_remote((struct mg_remote_options){.host = all_here, .n_host = 2});
    static const char *const odd[] = {
        "http://2130706434:%u/picture", "http://0x7f.2:%u/picture",
        "http://0177.0.0.2:%u/picture", "http://[::ffff:7f00:1]:%u/picture",
        "http://0.0.0.0:%u/picture",    "http://[::]:%u/picture"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        snprintf(url, sizeof url, odd[i], port);
        assert_string_equal(fetch(url, &r), "address_not_allowed");
    }
    mg_remote_close(remote);
    /* Without address_ok only public ones: this machine is none. An empty list allows nothing. */
    struct mg_err err = {0};
    struct mg_remote_options o = {.host = all_here, .n_host = 2};
    assert_int_equal(mg_remote_open(&o, &remote, &err), MG_OK);
    assert_string_equal(fetch_at(base, "/picture", &r), "address_not_allowed");
    snprintf(url, sizeof url, "http://localhost:%u/picture", port);
    assert_string_equal(fetch(url, &r), "address_not_allowed");
    mg_remote_close(remote);
    o = (struct mg_remote_options){.address_ok = only_first};
    assert_int_equal(mg_remote_open(&o, &remote, &err), MG_OK);
    assert_string_equal(fetch_at(base, "/picture", &r), "host_not_allowed");
    mg_remote_close(remote);
    assert_int_equal(atomic_load(&n_asked), before);
}

static void redirects(void **state) {
    struct result r;
    char url[400];
    open_remote((struct mg_remote_options){0});
    assert_string_equal(fetch_to("/picture", &r), "");
    assert_int_equal(r.n, 1000);
    snprintf(url, sizeof url, "%s/picture%%3Fn=7", base);
    assert_string_equal(fetch_to(url, &r), "");
    assert_int_equal(r.n, 7);
    int before = atomic_load(&n_asked);
    snprintf(url, sizeof url, "%s/picture", other);
    assert_string_equal(fetch_to(url, &r), "address_not_allowed");
    assert_string_equal(fetch_to("http://example.org/", &r), "host_not_allowed");
    assert_string_equal(fetch_to("file:///etc/passwd", &r), "url");
    assert_string_equal(fetch_to("http://a:b@127.0.0.1/", &r), "url");
    assert_int_equal(atomic_load(&n_asked), before + 4);
    /* 3 hops and no more. */
    assert_string_equal(fetch_to("/to%3Furl=/to%253Furl=/picture", &r), "");
    assert_string_equal(fetch_to("/to%3Furl=/to%253Furl=/to%25253Furl=/picture", &r), "redirect");
    mg_remote_close(remote);
}

static void time_and_number(void **state) {
    struct result r, many[6];
    uint64_t id[6];
    char url[200];
    open_remote((struct mg_remote_options){.seconds = 0.3});
    double start = mg_clock();
    assert_string_equal(fetch_at(base, "/never", &r), "timeout");
    assert_true(mg_clock() - start > 0.25 && mg_clock() - start < 20);
    mg_remote_close(remote);

    open_remote((struct mg_remote_options){.seconds = 100, .max_active = 2, .max_waiting = 3});
    snprintf(url, sizeof url, "%s/never", base);
    int before = atomic_load(&n_never), left = atomic_load(&n_left);
    for (int i = 0; i < 5; i++) {
        begin_result(&many[i]);
        struct mg_err err = {0};
        assert_int_equal(mg_remote_fetch(remote, url, take, &many[i], &id[i], &err), MG_OK);
    }
    struct mg_err err = {0};
    begin_result(&many[5]);
    assert_int_equal(mg_remote_fetch(remote, url, take, &many[5], &id[5], &err), MG_ERR_LIMIT);
    assert_string_equal(err.code, "busy");
    while (atomic_load(&n_never) < before + 2) continue; /* two are with the server */
    start = mg_clock();
    mg_remote_cancel(remote, id[4]); /* one that waits */
    wait_for(&many[4]);
    mg_remote_cancel(remote, id[0]); /* one under way: the next takes its place */
    wait_for(&many[0]);
    assert_int_equal(many[0].err.status, MG_ERR_CANCELLED);
    assert_int_equal(many[4].err.status, MG_ERR_CANCELLED);
    while (atomic_load(&n_never) < before + 3) assert_true(mg_clock() - start < 20);
    while (atomic_load(&n_left) < left + 1) assert_true(mg_clock() - start < 20);
    assert_true(mg_clock() - start < 5);
    mg_remote_cancel(remote, id[0]);
    mg_remote_cancel(remote, 12345);
    mg_remote_close(remote); /* cancels the rest */
    for (int i = 1; i < 4; i++) {
        assert_true(many[i].is_ready);
        assert_int_equal(many[i].err.status, MG_ERR_CANCELLED);
    }
}

static void host_lists(void **state) {
    static const char *const list[] = {"a.example", "*.b.example", "c.example:8080",
                                       "[2606:4700::1]"};
    static const char *const good[] = {"http://a.example/x",     "https://A.EXAMPLE",
                                       "http://a.example.:80/",  "http://x.b.example/",
                                       "http://x.y.B.example",   "http://c.example:8080",
                                       "https://[2606:4700::1]/"};
    static const char *const bad[] = {
        "http://xa.example/",     "http://a.example.org/",  "http://b.example/",
        "http://xb.example/",     "http://.b.example/",     "http://c.example/",
        "http://a.example:8080/", "http://[2606:4700::2]/", "https://a.example:80/"};
    struct mg_remote_options o = {.host = list, .n_host = 4};
    assert_int_equal(mg_remote_open(&o, &remote, NULL), MG_OK);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(mg_remote_check(remote, good[i], NULL), MG_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_not_equal(mg_remote_check(remote, bad[i], NULL), MG_OK);
    mg_remote_close(remote);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses), cmocka_unit_test(host_lists),
        cmocka_unit_test(fetched),   cmocka_unit_test(refused),
        cmocka_unit_test(redirects), cmocka_unit_test(time_and_number),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
