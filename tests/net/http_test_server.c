/* A server for the tests of src/net: one route per thing a handler can do.
 *
 *     http_test_server [NAME=VALUE...]      names: see `settings` below
 *
 * Prints "port N" (and "unix PATH") when it listens, "end PATH REASON" for each exchange, "note
 * ..." and "reload". SIGTERM stops within drain_ms, SIGHUP reloads.
 */
#include "net/access_log.h"
#include "net/api_keys.h"
#include "net/sse.h"
#include "net/websocket.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct mg_http_server *server;
static struct mg_api_keys keys;
static struct mg_access_log access_log;
static bool have_log;
static unsigned drain_ms = 1000;

static const char *reason_name(enum mg_http_end reason) {
    static const char *const name[] = {"done", "left", "slow", "stopped", "memory"};
    return name[reason];
}

static void tell_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    printf("end %s %s\n", mg_http_path(x), reason_name(reason));
    free(user);
}

static size_t number(struct mg_http_exchange *x, const char *name, size_t fallback) {
    const char *text = mg_http_query(x, name);
    return text ? strtoul(text, NULL, 10) : fallback;
}

static void get_hello(struct mg_http_exchange *x, void *user) {
    mg_http_reply(x, 200, "text/plain; charset=utf-8", "hello\n", 6);
}

static void post_echo(struct mg_http_exchange *x, void *user) {
    struct mg_slice body = mg_http_body(x);
    const char *type = mg_http_header(x, "content-type");
    mg_http_reply(x, 200, type ? type : "application/octet-stream", body.data, body.n);
}

static void get_json(struct mg_http_exchange *x, void *user) {
    struct mg_buf text = {0};
    size_t n = number(x, "n", 2000);
    const char *type = mg_http_query(x, "type");
    mg_buf_add_byte(&text, '"');
    while (text.n + 1 < n) mg_buf_add_byte(&text, (uint8_t)('a' + text.n % 3));
    mg_buf_add_byte(&text, '"');
    mg_http_reply(x, 200, type ? type : "application/json", text.data, text.n);
    mg_buf_free(&text);
}

static void get_info(struct mg_http_exchange *x, void *user) {
    struct mg_buf text = {0};
    const char *a = mg_http_query(x, "a"), *id = mg_http_param(x, "id");
    const char *rest = mg_http_param(x, "rest"), *probe = mg_http_header(x, "x-probe");
    mg_buf_printf(&text,
                  "path=%s\nraw=%s\na=%s\nid=%s\nrest=%s\nprobe=%s\npeer=%s\ntls=%d\ntag=%d\n",
                  mg_http_path(x), mg_http_raw_path(x), a ? a : "(none)", id ? id : "(none)",
                  rest ? rest : "(none)", probe ? probe : "(none)", mg_http_peer(x),
                  mg_http_is_tls(x), mg_http_tag(x));
    mg_http_reply(x, 200, "text/x-info", text.data, text.n);
    mg_buf_free(&text);
}

/* --- answered later --- */

static void stop_pending(struct mg_http_exchange *x, void *user) {
    mg_http_reply_error(x, 503, "stopping", "the server is stopping");
}

static void get_never(struct mg_http_exchange *x, void *user) {
    mg_http_on_end(x, tell_end);
    if (number(x, "stop", 1)) mg_http_on_stop(x, stop_pending);
    if (number(x, "take", 0)) {
        struct mg_buf body;
        mg_http_take_body(x, &body);
        printf("taken %zu\n", body.n);
        mg_buf_free(&body);
    }
    printf("busy %s\n", mg_http_path(x));
}

struct later {
    uint64_t id;
    unsigned ms;
};

static void reply_later(void *arg) {
    struct later *l = arg;
    struct mg_http_exchange *x = mg_http_find(server, l->id);
    if (x) mg_http_reply(x, 200, "text/plain", "later\n", 6);
    free(l);
}

static void *wait_and_post(void *arg) {
    struct later *l = arg;
    usleep(l->ms * 1000);
    if (mg_http_server_post(server, reply_later, l)) free(l);
    return NULL;
}

static void get_later(struct mg_http_exchange *x, void *user) {
    struct later *l = malloc(sizeof *l);
    pthread_t thread;
    *l = (struct later){mg_http_id(x), (unsigned)number(x, "ms", 100)};
    mg_http_on_end(x, tell_end);
    if (pthread_create(&thread, NULL, wait_and_post, l)) {
        free(l);
        mg_http_reply_error(x, 503, "thread", "no thread");
        return;
    }
    pthread_detach(thread);
}

/* --- streams --- */

static void stop_events(struct mg_http_exchange *x, void *user) {
    mg_sse_send(x, NULL, "stopped", 7);
    mg_http_stream_end(x);
}

static void get_events(struct mg_http_exchange *x, void *user) {
    size_t n = number(x, "n", 3);
    mg_http_on_end(x, tell_end);
    mg_http_on_stop(x, stop_events);
    mg_sse_begin(x, (double)number(x, "ping_ms", 10000) * 1e-3);
    for (size_t i = 0; i < n; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, "event %zu", i);
        mg_sse_send(x, i == 1 ? "second" : NULL, text, (size_t)len);
    }
    if (number(x, "end", 1)) mg_http_stream_end(x);
    printf("busy %s\n", mg_http_path(x));
}

static void get_chunks(struct mg_http_exchange *x, void *user) {
    size_t n = number(x, "n", 3), size = number(x, "size", 5);
    char *text = malloc(size + 1);
    memset(text, 'x', size);
    mg_http_on_end(x, tell_end);
    mg_http_stream_begin(x, 200, "text/plain");
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < n && !status; i++) status = mg_http_stream_write(x, text, size);
    if (status) printf("write %s\n", status == MG_ERR_LIMIT ? "limit" : "cancelled");
    free(text);
    if (number(x, "end", 1)) mg_http_stream_end(x);
    if (number(x, "abort", 0)) mg_http_stream_abort(x);
    printf("busy %s\n", mg_http_path(x));
}

/* A stream that keeps its queue small by waiting for on_drain. */
static void pour(struct mg_http_exchange *x, void *user) {
    static const char block[10000];
    size_t *left = user;
    while (*left > 0 && mg_http_queued(x) == 0) {
        (*left)--;
        if (mg_http_stream_write(x, block, sizeof block)) return;
    }
    if (*left == 0) mg_http_stream_end(x);
}

static void get_pour(struct mg_http_exchange *x, void *user) {
    size_t *left = malloc(sizeof *left);
    *left = number(x, "n", 1000);
    mg_http_set_user(x, left);
    mg_http_on_end(x, tell_end);
    mg_http_on_drain(x, pour);
    mg_http_stream_begin(x, 200, "application/octet-stream");
    pour(x, left);
}

/* --- WebSocket --- */

static void on_message(struct mg_http_exchange *x, enum mg_ws_kind kind, const uint8_t *data,
                       size_t n, void *user) {
    if (kind == MG_WS_TEXT && !strcmp((const char *)data, "close")) {
        mg_ws_close(x, 1000, "as asked");
        return;
    }
    if (kind == MG_WS_TEXT && !strcmp((const char *)data, "flood")) {
        char *text = calloc(1, 100000);
        while (mg_ws_send(x, MG_WS_BINARY, text, 100000) == MG_OK) continue;
        free(text);
        return;
    }
    mg_ws_send(x, kind, data, n);
}

static void tell_ws_end(struct mg_http_exchange *x, enum mg_http_end reason, void *user) {
    printf("end %s %s %d\n", mg_http_path(x), reason_name(reason), mg_ws_close_code(x));
}

static bool is_idle(struct mg_http_exchange *x, void *user) {
    return !number(x, "busy", 0);
}

static void get_ws(struct mg_http_exchange *x, void *user) {
    struct mg_ws_options o = {.protocol = "chat",
                              .max_message = number(x, "max", 1 << 20),
                              .ping_seconds = (double)number(x, "ping_ms", 20000) * 1e-3,
                              .on_message = on_message,
                              .is_idle = number(x, "keep", 0) ? NULL : is_idle};
    mg_http_on_end(x, tell_ws_end);
    mg_ws_accept(x, &o);
    printf("busy %s\n", mg_http_path(x));
}

/* --- the whole --- */

static void get_stats(struct mg_http_exchange *x, void *user) {
    struct mg_http_counts c;
    struct mg_buf text = {0};
    mg_http_server_counts(server, &c);
    mg_buf_printf(&text,
                  "{\"connection\":%zu,\"exchange\":%zu,\"body_bytes\":%zu,\"refused\":%llu}",
                  c.connection, c.exchange, c.body_bytes, (unsigned long long)c.refused);
    mg_http_reply(x, 200, "application/json", text.data, text.n);
    mg_buf_free(&text);
}

static void admit(struct mg_http_exchange *x, void *user) {
    if (!strncmp(mg_http_path(x), "/secret", 7) && mg_api_keys_of(&keys, x) < 0) {
        mg_http_add_field(x, "WWW-Authenticate", "Bearer");
        mg_http_reply_error(x, 401, "invalid_api_key", "a key is needed");
    }
}

static const char *error_body(struct mg_http_exchange *x, int status, const char *code,
                              const char *text, struct mg_buf *out, void *user) {
    mg_buf_printf(out, "{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}", code, text);
    return "application/json";
}

static void log_line(const struct mg_http_record *record, void *user) {
    if (have_log) mg_access_log_write(&access_log, record);
}

static void tell_note(enum mg_status status, const char *text, void *user) {
    printf("note %s\n", text);
}

static void on_reload(void *user) {
    struct mg_err err = {0};
    if (keys.file && mg_api_keys_reload(&keys, &err)) printf("note %s\n", err.text);
    if (have_log) mg_access_log_reopen(&access_log, NULL);
    printf("reload\n");
}

static void on_stopping(void *user) {
    printf("stopping\n");
}

static void on_signal(int sig) {
    if (sig == SIGHUP)
        mg_http_server_reload(server);
    else
        mg_http_server_stop(server, sig == SIGTERM ? drain_ms : 0);
}

static const struct mg_http_route routes[] = {
    {"GET", "/hello", get_hello},
    {"POST", "/echo", post_echo},
    {"PUT", "/echo", post_echo},
    {"POST", "/small", post_echo, .max_body = 100, .tag = 7},
    {"POST", "/secret", post_echo},
    {"GET", "/json", get_json},
    {"GET", "/info", get_info, .tag = 3},
    {"GET", "/item/{id}", get_info},
    {"GET", "/item/{id}/more", get_info},
    {"GET", "/files/{rest*}", get_info},
    {"GET", "/never", get_never},
    {"POST", "/never", get_never},
    {"GET", "/later", get_later},
    {"GET", "/events", get_events},
    {"GET", "/chunks", get_chunks},
    {"GET", "/pour", get_pour},
    {"GET", "/ws", get_ws},
    {"GET", "/stats", get_stats},
};

static struct mg_http_options options = {
    .route = routes,
    .n_route = sizeof routes / sizeof routes[0],
    .admit = admit,
    .error_body = error_body,
    .log = log_line,
    .note = tell_note,
    .on_reload = on_reload,
    .on_stopping = on_stopping,
};
static const char *origins[4];
static const char *key_file, *log_path, *log_json;

static const struct {
    const char *name;
    const char **text;
    size_t *size;
    double *seconds;
} settings[] = {
    {"host", &options.host},
    {"unix", &options.unix_path},
    {"cert", &options.tls_cert},
    {"key", &options.tls_key},
    {"prefix", &options.prefix},
    {"origin", &origins[0]},
    {"keys", &key_file},
    {"log", &log_path},
    {"log_json", &log_json},
    {"max_head", .size = &options.max_head},
    {"max_body", .size = &options.max_body},
    {"max_body_total", .size = &options.max_body_total},
    {"max_connection", .size = &options.max_connection},
    {"max_queued", .size = &options.max_queued},
    {"max_request", .size = &options.max_request},
    {"body_rate", .size = &options.body_rate},
    {"idle", .seconds = &options.idle_seconds},
    {"head", .seconds = &options.head_seconds},
    {"body", .seconds = &options.body_seconds},
    {"write", .seconds = &options.write_seconds},
};

static bool set(const char *arg) {
    const char *value = strchr(arg, '=');
    if (!value) return false;
    size_t n = (size_t)(value++ - arg);
    if (n == 8 && !strncmp(arg, "drain_ms", n)) {
        drain_ms = (unsigned)strtoul(value, NULL, 10);
        return true;
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strlen(settings[i].name) != n || memcmp(settings[i].name, arg, n) != 0) continue;
        if (settings[i].text) *settings[i].text = value;
        if (settings[i].size) *settings[i].size = strtoul(value, NULL, 10);
        if (settings[i].seconds) *settings[i].seconds = strtod(value, NULL);
        return true;
    }
    return false;
}

int main(int argc, char **argv) {
    struct mg_err err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (set(argv[i])) continue;
        fprintf(stderr, "unknown setting %s\n", argv[i]);
        return 2;
    }
    if (!options.host && !options.unix_path) options.host = "127.0.0.1";
    options.origin = origins;
    options.n_origin = origins[0] != NULL;
    if (log_path || log_json) {
        have_log = true;
        if (mg_access_log_open(&access_log, log_path ? log_path : log_json, log_json != NULL, &err))
            goto out;
    }
    if (mg_api_keys_open(&keys, NULL, 0, key_file, &err)) goto out;
    if (mg_http_server_open(&options, &server, &err)) goto out;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    printf("port %u\n", mg_http_server_port(server));
    mg_http_server_run(server, &err);
    mg_http_server_close(server);
out:
    mg_api_keys_close(&keys);
    if (have_log) mg_access_log_close(&access_log);
    if (err.status) fprintf(stderr, "%s\n", err.text);
    return err.status ? 1 : 0;
}
