/* cli/serve.c - margay serve and margay worker: the options, and the signals.
 *
 * SIGINT and SIGTERM stop (the second time at once), SIGHUP reloads. Before the server runs they
 * end the process at once, SIGTERM with 0.
 */
#include "cli/commands.h"

#include "net/listen.h"
#include "server/server.h"
#include "store/job_queue.h"
#include "store/redis_url.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static struct mg_server *running; /* for the handler; set while it runs */

static void on_signal(int sig) {
    int saved = errno;
    if (sig == SIGHUP)
        mg_server_reload(running);
    else
        mg_server_stop(running);
    errno = saved;
}

static void catch_signals(void (*fn)(int)) {
    struct sigaction a = {.sa_handler = fn, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

/* Tells where, once, on standard error, and the service manager. */
static void on_listening(void *user, const char *url) {
    (void)user;
    fprintf(stderr, "margay: listening on %s\n", url);
}

/* What a request leaves open: the model's own settings, and over them what was given here. */
static void answer_defaults(struct mg_options *o, const mg_engine *e, struct mg_answer_options *a) {
    mg_answer_options_model(e, a);
    int64_t most = mg_opt_int(o, MG_OPT_MAX_TOKENS, -1);
    a->max_tokens = most < 0 ? SIZE_MAX : (size_t)most;
    a->temperature = (float)mg_opt_float(o, MG_OPT_TEMP, a->temperature);
    a->top_k = (int)mg_opt_int(o, MG_OPT_TOP_K, a->top_k);
    a->top_p = (float)mg_opt_float(o, MG_OPT_TOP_P, a->top_p);
    a->min_p = (float)mg_opt_float(o, MG_OPT_MIN_P, a->min_p);
    a->repetition_penalty = (float)mg_opt_float(o, MG_OPT_REPEAT_PENALTY, a->repetition_penalty);
    a->presence_penalty = (float)mg_opt_float(o, MG_OPT_PRESENCE_PENALTY, a->presence_penalty);
    a->frequency_penalty = (float)mg_opt_float(o, MG_OPT_FREQUENCY_PENALTY, a->frequency_penalty);
    a->draft = (int)mg_opt_int(o, MG_OPT_DRAFT, 0);
    a->ignore_end = mg_opt_flag(o, MG_OPT_IGNORE_EOS, false);
    a->no_loop_check = !mg_opt_flag(o, MG_OPT_LOOP_CHECK, true);
    a->stop = o->value[MG_OPT_STOP].list;
    a->n_stop = o->value[MG_OPT_STOP].n_list;
}

/* Megabytes of an option as bytes: -1 the default, 0 none. */
static size_t budget(const struct mg_options *o, enum mg_opt id) {
    int64_t mb = mg_opt_int(o, id, -1);
    return mb < 0 ? 0 : mb == 0 ? SIZE_MAX : (size_t)mb << 20;
}

/* The last component of the model's path. */
static const char *model_name(struct mg_options *o, char *out, size_t cap) {
    const char *folder = mg_opt_text(o, MG_OPT_MODEL, NULL);
    if (!folder) return "margay-demo";
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    size_t at = n;
    while (at && folder[at - 1] != '/') at--;
    snprintf(out, cap, "%.*s", (int)(n - at), folder + at);
    char *dot = strstr(out, ".safetensors");
    if (dot) *dot = 0;
    return *out ? out : "margay";
}

static enum mg_status check(const struct mg_options *o, struct mg_err *err) {
    if (mg_opt_set(o, MG_OPT_SSL_CERT) != mg_opt_set(o, MG_OPT_SSL_KEY))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--ssl-cert-file and --ssl-key-file belong together");
    const char *prefix = mg_opt_text(o, MG_OPT_API_PREFIX, NULL);
    if (prefix && prefix[0] != '/')
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--api-prefix begins with /");
    if (mg_opt_flag(o, MG_OPT_SIMILAR_CACHE, false) && mg_opt_int(o, MG_OPT_ANSWER_CACHE, 0) == 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--similar-cache needs --answer-cache MB");
    const char *redis = mg_opt_text(o, MG_OPT_REDIS, NULL);
    struct mg_redis_url url;
    if (redis && mg_redis_url_parse(redis, &url, err) != MG_OK) { /* before the model is opened */
        snprintf(err->code, sizeof err->code, "usage");
        return MG_ERR_ARGUMENT;
    }
    if (o->command == MG_CMD_WORKER && !mg_opt_set(o, MG_OPT_QUEUE))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "worker needs --queue redis://HOST, or MARGAY_QUEUE");
    return MG_OK;
}

static enum mg_status queue_options(struct mg_options *o, struct mg_queue_options *q,
                                    struct mg_err *err) {
    *q = (struct mg_queue_options){
        .tls = {.ca_file = mg_opt_text(o, MG_OPT_REDIS_CA, NULL),
                .cert_file = mg_opt_text(o, MG_OPT_REDIS_CERT, NULL),
                .key_file = mg_opt_text(o, MG_OPT_REDIS_KEY, NULL)},
        .name = mg_opt_text(o, MG_OPT_QUEUE_NAME, NULL),
        .lease_seconds = mg_opt_float(o, MG_OPT_QUEUE_LEASE, 0),
        .max_tries = (unsigned)mg_opt_int(o, MG_OPT_QUEUE_TRIES, 0),
        .wait_seconds = mg_opt_float(o, MG_OPT_QUEUE_TIME, 0),
        .keep_seconds = mg_opt_float(o, MG_OPT_QUEUE_KEEP, 0),
        .max_waiting = (size_t)mg_opt_int(o, MG_OPT_MAX_QUEUE, 0),
    };
    enum mg_status st = mg_redis_url_parse(mg_opt_text(o, MG_OPT_QUEUE, ""), &q->url, err);
    if (st && err) snprintf(err->code, sizeof err->code, "usage");
    return st;
}

static struct mg_server_options server_options(struct mg_options *o, const mg_engine *e, char *name,
                                               size_t cap) {
    bool worker = o->command == MG_CMD_WORKER;
    bool port = mg_opt_set(o, MG_OPT_HOST) || mg_opt_set(o, MG_OPT_PORT) ||
                !mg_opt_set(o, MG_OPT_UNIX_SOCKET);
    int64_t places = mg_opt_int(o, MG_OPT_PARALLEL, 0);
    struct mg_server_options s = {
        .host = port ? mg_opt_text(o, MG_OPT_HOST, "127.0.0.1") : NULL,
        .port = (uint16_t)mg_opt_int(o, MG_OPT_PORT, worker ? 0 : 8080),
        .unix_path = mg_opt_text(o, MG_OPT_UNIX_SOCKET, NULL),
        .tls_cert = mg_opt_text(o, MG_OPT_SSL_CERT, NULL),
        .tls_key = mg_opt_text(o, MG_OPT_SSL_KEY, NULL),
        .prefix = mg_opt_text(o, MG_OPT_API_PREFIX, NULL),
        .api_key = o->value[MG_OPT_API_KEY].list,
        .n_api_key = o->value[MG_OPT_API_KEY].n_list,
        .api_key_file = mg_opt_text(o, MG_OPT_API_KEY_FILE, NULL),
        .origin = o->value[MG_OPT_CORS_ORIGIN].list,
        .n_origin = o->value[MG_OPT_CORS_ORIGIN].n_list,
        .name = o->value[MG_OPT_ALLOWED_HOSTS].list,
        .n_name = o->value[MG_OPT_ALLOWED_HOSTS].n_list,
        .media_path = mg_opt_text(o, MG_OPT_MEDIA_PATH, NULL),
        .remote_host = o->value[MG_OPT_REMOTE_HOST].list,
        .n_remote_host = o->value[MG_OPT_REMOTE_HOST].n_list,
        .access_log = mg_opt_text(o, MG_OPT_ACCESS_LOG, NULL),
        .access_log_json = mg_opt_flag(o, MG_OPT_ACCESS_LOG_JSON, false),
        .alias = mg_opt_text(o, MG_OPT_ALIAS, NULL),
        .no_metrics = !mg_opt_flag(o, MG_OPT_METRICS, true),
        .no_slots = !mg_opt_flag(o, MG_OPT_SLOTS, true),
        .no_page = !mg_opt_flag(o, MG_OPT_UI, true),
        .page_path = mg_opt_text(o, MG_OPT_PAGE_PATH, NULL),
        .max_body = (size_t)mg_opt_int(o, MG_OPT_MAX_BODY, 64) << 20,
        .drain_ms = (unsigned)(mg_opt_float(o, MG_OPT_DRAIN_TIME, 10) * 1e3) + 1,
        .ping_seconds = mg_opt_float(o, MG_OPT_SSE_PING, 10),
        .listening = on_listening,
    };
    if (!s.alias && !e) s.alias = "gateway";
    if (!s.alias) s.alias = model_name(o, name, cap);
    s.scheduler.max_running = places > 0 ? (size_t)places : 0;
    s.scheduler.max_waiting = (size_t)mg_opt_int(o, MG_OPT_MAX_QUEUE, 0);
    s.scheduler.wait_seconds = mg_opt_float(o, MG_OPT_QUEUE_TIME, 0);
    s.scheduler.prefix_budget = budget(o, MG_OPT_CACHE_RAM);
    s.scheduler.feature_budget = budget(o, MG_OPT_IMAGE_CACHE);
    s.scheduler.answer_budget = (size_t)mg_opt_int(o, MG_OPT_ANSWER_CACHE, 0) << 20;
    s.scheduler.answer_seconds = mg_opt_float(o, MG_OPT_ANSWER_CACHE_TIME, 0);
    s.scheduler.similar = mg_opt_flag(o, MG_OPT_SIMILAR_CACHE, false);
    s.scheduler.warm_up = mg_opt_flag(o, MG_OPT_WARMUP, true);
    s.scheduler.redis = (struct mg_shared_options){
        .url = mg_opt_text(o, MG_OPT_REDIS, NULL),
        .ca_file = mg_opt_text(o, MG_OPT_REDIS_CA, NULL),
        .cert_file = mg_opt_text(o, MG_OPT_REDIS_CERT, NULL),
        .key_file = mg_opt_text(o, MG_OPT_REDIS_KEY, NULL),
        .seconds = (double)mg_opt_int(o, MG_OPT_REDIS_TTL, 604800),
        .budget = (size_t)mg_opt_int(o, MG_OPT_REDIS_BUDGET, 4096) << 20};
    if (e) answer_defaults(o, e, &s.answer);
    return s;
}

/* Each thread's arena reserves 64 MB of address space. Where that is limited (ulimit -v) one serves
 * all: the threads that compute allocate nothing. */
static void limit_arenas(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
}

/* Sockets of a service manager take the place of --host, --port and --unix-socket. Who may ask
 * without a key goes by the address that others reach, if one of them is such. */
struct inherited {
    int fd[MG_LISTEN_MAX];
    size_t n;
    char host[MG_PEER_TEXT];
};

static void use_inherited(struct inherited *in, struct mg_server_options *s) {
    if (!in->n) return;
    for (size_t i = 0; i < in->n; i++) {
        char host[MG_PEER_TEXT];
        mg_listen_host(in->fd[i], host);
        bool loopback = !strncmp(host, "127.", 4) || !strcmp(host, "::1");
        if (*host && (!in->host[0] || !loopback)) memcpy(in->host, host, sizeof host);
    }
    s->fd = in->fd;
    s->n_fd = in->n;
    s->host = in->host[0] ? in->host : NULL;
    s->unix_path = NULL;
}

static enum mg_exit serve(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_queue_options queue;
    mg_engine *engine = NULL;
    struct mg_server *server = NULL;
    char name[256];
    bool queued = mg_opt_set(o, MG_OPT_QUEUE), gateway = queued && o->command == MG_CMD_SERVE;
    struct mg_manager manager;
    struct inherited in = {.n = 0};
    mg_interrupt_arm_service();
    enum mg_status status = check(o, &err);
    limit_arenas();
    mg_manager_open(&manager);
    if (status == MG_OK && queued) status = queue_options(o, &queue, &err);
    if (status == MG_OK) status = mg_listen_inherited(in.fd, &in.n, &err);
    if (status == MG_OK && !gateway) status = mg_session_open(o, &engine, &err);
    if (status == MG_OK) {
        struct mg_server_options s = server_options(o, engine, name, sizeof name);
        use_inherited(&in, &s);
        s.manager = &manager;
        if (queued) s.queue = &queue;
        status = mg_server_open(engine, &s, &server, &err);
    }
    if (status == MG_OK) {
        running = server;
        catch_signals(on_signal);
        status = mg_server_run(server, &err);
        catch_signals(SIG_IGN);
        running = NULL;
    }
    mg_server_close(server);
    mg_engine_close(engine);
    mg_manager_close(&manager);
    return status == MG_OK ? MG_EXIT_OK : mg_report(o, &err);
}

enum mg_exit mg_cmd_serve(struct mg_options *o) {
    return serve(o);
}

enum mg_exit mg_cmd_worker(struct mg_options *o) {
    return serve(o);
}
