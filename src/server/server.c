/* server/server.c - opening and closing, the table of routes, who may ask, and what the server says
 * of itself. See server.h.
 */
#include "api/json_write.h"
#include "api/server_reply.h"
#include "server/gateway.h"
#include "server/internal.h"
#include "server/puller.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT(field, value)                                                                      \
    if (!(field)) (field) = (value)

int64_t unix_seconds(void) {
    return (int64_t)time(NULL);
}

void random_digits(char *out, size_t n) {
    uint8_t byte[64];
    size_t half = mg_min_size((n + 1) / 2, sizeof byte - 1);
    if (getrandom(byte, half, 0) != (ssize_t)half) {
        uint64_t now = (uint64_t)(mg_clock() * 1e9);
        for (size_t i = 0; i < half; i++) byte[i] = (uint8_t)(now >> i % 8 * 8);
    }
    char text[2 * sizeof byte + 1];
    mg_hex(byte, half, text);
    memcpy(out, text, n);
    out[n] = 0;
}

/* --- replies --- */
void reply_json(struct mg_http_exchange *x, struct mg_buf *body, bool ok) {
    if (ok)
        mg_http_reply(x, 200, "application/json", body->data, body->n);
    else
        reply_err(x, MG_ERR_MEMORY, "out_of_memory", "out of memory");
    mg_buf_free(body);
}

void count_error(struct mg_server *s, const char *type) {
    mg_metrics_add_at(s->metrics, MG_M_ERRORS, 1, mg_metrics_label(MG_M_ERRORS, 0, type), 0, 0);
}

void add_retry_after(struct mg_http_exchange *x, double seconds) {
    char text[16];
    snprintf(text, sizeof text, "%.0f", seconds > 300 ? 300 : seconds > 1 ? ceil(seconds) : 1);
    mg_http_add_field(x, "Retry-After", text);
}

void reply_fault_after(struct mg_http_exchange *x, const struct mg_fault *f, double seconds) {
    struct mg_fault_kind kind;
    struct mg_buf out = {0};
    mg_fault_kind(&f->err, &kind);
    count_error(mg_http_server_user(mg_http_server_of(x)), kind.type);
    if (kind.retry) add_retry_after(x, seconds);
    if (!kind.public_text) mg_log(MG_LOG_ERROR, "%s", f->err.text);
    if (mg_fault_write(f, &out))
        mg_http_reply(x, kind.http, "application/json", out.data, out.n);
    else
        mg_http_reply(x, 503, NULL, "", 0);
    mg_buf_free(&out);
}

void reply_fault(struct mg_http_exchange *x, const struct mg_fault *f) {
    reply_fault_after(x, f, 1);
}

void reply_err(struct mg_http_exchange *x, enum mg_status status, const char *code,
               const char *text) {
    struct mg_fault f = {0};
    mg_fault_set(&f, status, code, "", "%s", text);
    reply_fault(x, &f);
}

/* The HTTP layer's own errors in our form. */
static const char *error_body(struct mg_http_exchange *x, int status, const char *code,
                              const char *text, struct mg_buf *out, void *user) {
    struct mg_fault f = {0};
    struct mg_fault_kind found;
    (void)x;
    enum mg_status kind = status == 404   ? MG_ERR_NOT_FOUND
                          : status == 503 ? MG_ERR_MEMORY
                          : status < 500  ? MG_ERR_ARGUMENT
                                          : MG_ERR_UNSUPPORTED;
    mg_fault_set(&f, kind, code, "", "%s", text);
    mg_fault_kind(&f.err, &found);
    count_error(user, found.type);
    mg_fault_write(&f, out);
    return "application/json";
}

/* --- who may ask --- */
const char *server_job(const struct mg_http_exchange *x) {
    return mg_http_is_internal(x) ? mg_http_header(x, "X-Margay-Job") : NULL;
}

void server_tenant(const struct mg_server *s, const struct mg_http_exchange *x,
                   uint8_t tenant[MG_TENANT_BYTES]) {
    const char *told = server_job(x) ? mg_http_header(x, "X-Margay-Tenant") : NULL;
    if (told && mg_hex_parse(told, tenant, MG_TENANT_BYTES)) return;
    int key = s->keyed ? mg_api_keys_of(&s->keys, x) : -1;
    memset(tenant, 0, MG_TENANT_BYTES);
    if (key >= 0) memcpy(tenant, s->keys.digest[key], MG_TENANT_BYTES);
}

static bool ends_with(const char *text, size_t n, const char *end) {
    size_t m = strlen(end);
    return n > m && strncasecmp(text + n - m, end, m) == 0;
}

/* 127.0.0.1:8080, [::1]: no other site can have made this of its own name. */
static bool is_address(const char *host, size_t n) {
    if (host[0] == '[') return true;
    return strspn(host, "0123456789.") == n;
}

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcasecmp(host, "localhost") == 0;
}

/* A page of another site whose name is made to lead here ("DNS rebinding") counts as our own page
 * in a browser; its name in Host tells. Who brings a key, or comes over the Unix socket, or to an
 * address that others reach anyway, is not asked unless --allowed-hosts says so. */
static bool host_allowed(const struct mg_server *s, const struct mg_http_exchange *x) {
    const char *host = mg_http_header(x, "host");
    if (!host || !host[0] || mg_http_is_unix(x)) return true;
    if (!s->o.n_name && (s->keyed || !s->o.host || !is_loopback(s->o.host))) return true;
    size_t n = host[0] == '[' ? strlen(host) : strcspn(host, ":");
    if (n > 1 && host[n - 1] == '.') n--;
    for (size_t i = 0; i < s->o.n_name; i++) {
        const char *name = s->o.name[i];
        if (strcmp(name, "*") == 0) return true;
        if (name[0] == '*' ? ends_with(host, n, name + 1)
                           : strlen(name) == n && strncasecmp(name, host, n) == 0)
            return true;
    }
    if (is_address(host, n) || ends_with(host, n, ".localhost")) return true;
    if (n == 9 && strncasecmp(host, "localhost", n) == 0) return true;
    return s->host[0] && strlen(s->host) == n && strncasecmp(s->host, host, n) == 0;
}

/* Another site's page can send a question without being let to read the answer. */
static bool origin_allowed(const struct mg_server *s, const struct mg_http_exchange *x) {
    const char *method = mg_http_method(x);
    if (s->keyed || strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) return true;
    return !mg_http_is_foreign(x);
}

static void admit(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    if (mg_http_is_internal(x)) return; /* the gateway has admitted it */
    if (!host_allowed(s, x)) {
        reply_err(x, MG_ERR_ARGUMENT, "name_not_allowed",
                  "this server does not go by that name: see --allowed-hosts");
        return;
    }
    if (!origin_allowed(s, x)) {
        reply_err(x, MG_ERR_ARGUMENT, "origin_not_allowed",
                  "pages of other sites may not ask: see --cors-origin");
        return;
    }
    if (!s->keyed || mg_http_tag(x) & TAG_PUBLIC || mg_api_keys_of(&s->keys, x) >= 0) {
        if (mg_http_tag(x) & TAG_QUESTION) ask_admit(s, x);
        return;
    }
    mg_http_add_field(x, "WWW-Authenticate", "Bearer");
    reply_err(x, MG_ERR_ARGUMENT, "invalid_api_key",
              "this needs an API key: \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"");
}

/* --- about itself --- */
static struct mg_model_reply model_of(const struct mg_server *s) {
    return (struct mg_model_reply){.id = s->o.alias,
                                   .created = s->started,
                                   .context = s->info.context,
                                   .context_max = s->facts.context_max,
                                   .n_vocab = s->facts.n_vocab,
                                   .n_embd = s->facts.n_embd,
                                   .n_params = s->info.n_parameters,
                                   .bytes = s->info.weight_bytes,
                                   .weights = s->info.weights};
}

static void route_models(struct mg_http_exchange *x, void *user) {
    struct mg_model_reply m = model_of(user);
    struct mg_buf out = {0};
    reply_json(x, &out, mg_models_write(&out, &m, 1));
}

static void route_model(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_model_reply m = model_of(s);
    struct mg_buf out = {0};
    const char *id = mg_http_param(x, "id");
    if (id && strcmp(id, s->o.alias) == 0)
        reply_json(x, &out, mg_model_write(&out, &m));
    else
        reply_err(x, MG_ERR_NOT_FOUND, "model_not_found", "there is no such model here");
}

static void route_live(struct mg_http_exchange *x, void *user) {
    struct mg_buf out = {0};
    (void)user;
    reply_json(x, &out, mg_health_write(&out, "ok"));
}

static void route_health(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_scheduler_counts c;
    mg_scheduler_counts(s->scheduler, &c);
    if (c.ready)
        route_live(x, user);
    else
        reply_err(x, MG_ERR_LIMIT, "loading", "Loading model");
}

enum { STALLED_SECONDS = 120 }; /* without progress of the engine thread, though there is work */

static bool is_stalled(const struct mg_scheduler_counts *c) {
    return c->ready && c->busy && mg_clock() - c->last_progress > STALLED_SECONDS;
}

static void route_ready(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_scheduler_counts c;
    mg_scheduler_counts(s->scheduler, &c);
    bool draining = mg_http_server_is_stopping(s->http);
    bool stalled = is_stalled(&c);
    bool alone = c.ready && c.shared.on && !c.shared.up; /* which answers, if slower */
    struct mg_ready_reply r = {.ready = c.ready && !draining && !stalled,
                               .status = draining           ? "draining"
                                         : !c.ready         ? "loading"
                                         : stalled || alone ? "degraded"
                                                            : "ok",
                               .detail = stalled ? "the engine has not got on for two minutes"
                                         : alone ? "Redis does not answer: local caches only"
                                                 : NULL,
                               .running = c.running + c.preparing,
                               .waiting = c.waiting,
                               .queue_limit = s->o.scheduler.max_waiting};
    struct mg_buf out = {0};
    bool ok = mg_ready_write(&out, &r);
    if (ok && !r.ready) {
        mg_http_add_field(x, "Retry-After", "1");
        mg_http_reply(x, 503, "application/json", out.data, out.n);
        mg_buf_free(&out);
    } else {
        reply_json(x, &out, ok);
    }
}

static bool write_props(struct mg_server *s, struct mg_buf *out) {
    static const char *const format[] = {"jpeg", "png", "webp", "gif", "bmp"};
    size_t n_slot = s->o.scheduler.max_running;
    const struct mg_answer_options *a = &s->o.answer;
    struct mg_props_reply p = {.model = s->o.alias,
                               .version = mg_version(),
                               .weights = s->info.weights,
                               .tier = s->info.tier,
                               .n_slot = n_slot,
                               .context = s->info.context,
                               .n_thread = s->info.n_thread,
                               .vision = true,
                               .image_min_tokens = s->facts.image_min_tokens,
                               .image_max_tokens = s->facts.image_max_tokens,
                               .patch = s->facts.patch,
                               .merge = s->facts.merge,
                               .max_images = s->facts.max_images,
                               .max_image_bytes = s->facts.max_image_bytes,
                               .max_body_bytes = s->o.max_body,
                               .max_image_pixels = s->facts.max_image_pixels,
                               .transfer_side = 1024,
                               .transfer_side_high = 4096,
                               .urls = s->remote != NULL,
                               .files = s->media_fd >= 0,
                               .answer_cache = s->o.scheduler.answer_budget > 0,
                               .format = format,
                               .n_format = sizeof format / sizeof *format};
    p.sampling.temperature = (double)a->temperature;
    p.sampling.top_p = (double)a->top_p;
    p.sampling.min_p = (double)a->min_p;
    p.sampling.top_k = a->top_k;
    p.sampling.repeat_penalty = (double)a->repetition_penalty;
    p.sampling.presence_penalty = (double)a->presence_penalty;
    p.sampling.frequency_penalty = (double)a->frequency_penalty;
    p.sampling.max_tokens = a->max_tokens > INT32_MAX ? -1 : (int64_t)a->max_tokens;
    return mg_props_write(out, &p);
}

static void route_props(struct mg_http_exchange *x, void *user) {
    struct mg_buf out = {0};
    reply_json(x, &out, write_props(user, &out));
}

static void route_slots(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct mg_scheduler_counts c;
    mg_scheduler_counts(s->scheduler, &c);
    struct mg_slot_reply slot[MG_MAX_RUNNING];
    for (size_t i = 0; i < c.slots; i++) {
        bool busy = i < c.running + c.preparing;
        slot[i] = (struct mg_slot_reply){.id = i,
                                         .busy = busy,
                                         .stage = i < c.running ? "generate"
                                                  : busy        ? "decode"
                                                                : "idle",
                                         .context = s->info.context};
    }
    struct mg_buf out = {0};
    reply_json(x, &out, mg_slots_write(&out, slot, c.slots));
}

/* How many files are open, or -1. The folder is read: asking for each possible number takes 60 ms
 * where 20,000 are allowed. */
static double count_open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    if (!d) return -1;
    int n = -1; /* the folder itself */
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Counted elsewhere; this thread alone adds here. */
static void set_total(struct mg_metrics *m, enum mg_metric id, unsigned label, uint64_t now) {
    uint64_t told = (uint64_t)mg_metrics_value(m, id, label, 0, 0);
    if (now > told) mg_metrics_add_at(m, id, now - told, label, 0, 0);
}

static void set_shared(struct mg_metrics *m, const struct mg_shared_counts *c) {
    for (unsigned i = 0; i < 2; i++) {
        set_total(m, MG_M_SHARED_QUERIES, i, c->queries[i]);
        set_total(m, MG_M_SHARED_HITS, i, c->hits[i]);
        set_total(m, MG_M_SHARED_STORED, i, c->stored[i]);
        set_total(m, MG_M_SHARED_DROPPED, i, c->dropped[i]);
        set_total(m, MG_M_SHARED_BYTES, i, i ? c->bytes_written : c->bytes_read);
    }
    const uint64_t error[] = {c->failed, c->late, c->damaged, c->refused};
    for (unsigned i = 0; i < 4; i++) set_total(m, MG_M_SHARED_ERRORS, i, error[i]);
}

static void set_puller(struct mg_server *s, struct puller_counts *out) {
    puller_counts(s->puller, out);
    set_total(s->metrics, MG_M_JOBS_TAKEN, 0, out->taken);
    set_total(s->metrics, MG_M_JOBS_LOST, 0, out->lost);
    set_total(s->metrics, MG_M_JOBS_RETURNED, 0, out->returned);
}

static void set_gauges(struct mg_server *s) {
    struct mg_scheduler_counts c;
    struct mg_http_counts h;
    struct mg_metrics *m = s->metrics;
    mg_http_server_counts(s->http, &h);
    mg_metrics_set(m, MG_M_CONNECTIONS, (double)h.connection);
    if (s->gateway) {
        gateway_gauges(s->gateway);
        return;
    }
    mg_scheduler_counts(s->scheduler, &c);
    size_t busy = mg_min_size(c.slots, c.running + c.preparing); /* as /slots says */
    mg_metrics_set(m, MG_M_RUNNING, (double)busy);
    mg_metrics_set(m, MG_M_WAITING, (double)c.waiting);
    mg_metrics_set_at(m, MG_M_SLOTS, (double)(c.slots - busy), 0);
    mg_metrics_set_at(m, MG_M_SLOTS, (double)busy, 1);
    mg_metrics_set(m, MG_M_KV_USAGE, (double)c.kv_tokens / (double)(c.slots * s->info.context));
    const size_t held[] = {c.feature_bytes, c.prefix_bytes, c.answer_bytes},
                 most[] = {c.feature_budget, c.prefix_budget, c.answer_budget};
    for (unsigned i = 0; i < 3; i++) {
        mg_metrics_set_at(m, MG_M_CACHE_BYTES, (double)held[i], i);
        mg_metrics_set_at(m, MG_M_CACHE_LIMIT, (double)most[i], i);
    }
    mg_metrics_set(m, MG_M_MODEL_LOADED, c.ready);
    struct puller_counts p = {.up = c.shared.on};
    if (s->puller) set_puller(s, &p);
    /* whatever of the two there is */
    mg_metrics_set(m, MG_M_REDIS_UP, p.up && (c.shared.up || !c.shared.on));
    static const enum mg_metric total[] = {MG_M_IMAGE_CACHE_QUERIES,  MG_M_IMAGE_CACHE_HITS,
                                           MG_M_PROMPT_CACHE_QUERIES, MG_M_PROMPT_CACHE_HITS,
                                           MG_M_ANSWER_CACHE_QUERIES, MG_M_ANSWER_CACHE_HITS,
                                           MG_M_ANSWER_CACHE_HITS};
    const uint64_t now[] = {c.feature_queries, c.feature_hits, c.prefix_queries,  c.prefix_hits,
                            c.answer_queries,  c.answer_hits,  c.answer_near_hits};
    for (size_t i = 0; i < 7; i++) /* the last is an answer's hit of another kind: near */
        set_total(m, total[i], i == 6, now[i]);
    set_shared(m, &c.shared);
}

static void route_metrics(struct mg_http_exchange *x, void *user) {
    struct mg_server *s = user;
    struct rusage use;
    struct rlimit files;
    set_gauges(s);
    getrusage(RUSAGE_SELF, &use);
    getrlimit(RLIMIT_NOFILE, &files);
    struct mg_metrics_info info = {.model = s->o.alias,
                                   .weights = s->info.weights,
                                   .tier = s->info.tier,
                                   .version = mg_version(),
                                   .n_thread = s->info.n_thread,
                                   .cpu_seconds =
                                       (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                                       1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec),
                                   .start_seconds = (double)s->started,
                                   .resident_bytes = (double)mg_memory_resident(),
                                   .open_fds = count_open_files(),
                                   .max_fds = (double)files.rlim_cur};
    struct mg_buf out = {0};
    if (mg_metrics_write(s->metrics, &info, &out))
        mg_http_reply(x, 200, MG_METRICS_CONTENT_TYPE, out.data, out.n);
    else
        reply_err(x, MG_ERR_MEMORY, "out_of_memory", "out of memory");
    mg_buf_free(&out);
}

extern const unsigned char mg_openapi_json[], mg_openapi_json_end[]; /* openapi.S */

static void route_openapi(struct mg_http_exchange *x, void *user) {
    (void)user;
    mg_http_reply(x, 200, "application/json", mg_openapi_json,
                  (size_t)(mg_openapi_json_end - mg_openapi_json));
}

static const struct mg_http_route route[] = {
    {"POST", "/v1/chat/completions", route_chat, 0, TAG_QUESTION},
    {"POST", "/chat/completions", route_chat, 0, TAG_QUESTION},
    {"POST", "/v1/completions", route_completion, 0, TAG_QUESTION},
    {"POST", "/completions", route_completion, 0, TAG_QUESTION},
    {"GET", "/v1/models", route_models, 0, 0},
    {"GET", "/models", route_models, 0, 0},
    {"GET", "/v1/models/{id}", route_model, 0, 0},
    {"POST", "/v1/files", route_files_post, 0, 0},
    {"GET", "/v1/files", route_files_list, 0, 0},
    {"GET", "/v1/files/{id}", route_file_get, 0, 0},
    {"GET", "/v1/files/{id}/content", route_file_content, 0, 0},
    {"DELETE", "/v1/files/{id}", route_file_delete, 0, 0},
    {"GET", "/health", route_health, 0, TAG_PUBLIC},
    {"GET", "/live", route_live, 0, TAG_PUBLIC},
    {"GET", "/ready", route_ready, 0, TAG_PUBLIC},
    {"GET", "/props", route_props, 0, 0},
    {"POST", "/tokenize", route_tokenize, 8 << 20, 0},
    {"POST", "/detokenize", route_detokenize, 8 << 20, 0},
    {"POST", "/apply-template", route_template, 0, 0},
    {"GET", "/ws", route_socket, 0, 0},
    {"GET", "/openapi.json", route_openapi, 0, TAG_PUBLIC},
    {"GET", "/slots", route_slots, 0, 0},
    {"GET", "/metrics", route_metrics, 0, 0},
};
enum { N_ROUTE = sizeof route / sizeof *route, N_ALWAYS = N_ROUTE - 2 };

/* What stands in the table for one without a model, NULL when it has its own or none. */
static const struct mg_http_route *without_model(const struct mg_http_route *r) {
    static mg_http_fn *const kept[] = {route_files_post,   route_files_list,  route_file_get,
                                       route_file_content, route_file_delete, route_live,
                                       route_openapi,      route_metrics};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (r->fn == kept[i]) return r;
    return NULL;
}

static void route_page(struct mg_http_exchange *x, void *user) {
    const struct mg_server *s = user;
    page_reply(s->page, x);
}

/* --- callbacks of the HTTP layer --- */
static void on_log(const struct mg_http_record *r, void *user) {
    struct mg_server *s = user;
    char code[8];
    snprintf(code, sizeof code, "%d", r->end == MG_HTTP_END_LEFT && !r->status ? 499 : r->status);
    mg_metrics_add_at(
        s->metrics, MG_M_HTTP_REQUESTS, 1,
        mg_metrics_label(MG_M_HTTP_REQUESTS, 0, r->tag & TAG_PAGE ? "page" : r->pattern),
        mg_metrics_label(MG_M_HTTP_REQUESTS, 1, r->method),
        mg_metrics_label(MG_M_HTTP_REQUESTS, 2, code));
    if (s->o.access_log) mg_access_log_write(&s->log, r);
}

static void on_note(enum mg_status status, const char *text, void *user) {
    (void)user;
    mg_log(status == MG_OK ? MG_LOG_INFO : MG_LOG_WARN, "%s", text);
}

/* A file that is still empty is no error, but the operator has to be told. */
static void warn_of_no_keys(const struct mg_server *s) {
    if (s->keyed && !s->keys.n)
        mg_log(MG_LOG_WARN, "%s has no key in it: every request is refused", s->o.api_key_file);
}

static void before_reload(void *user) {
    struct mg_server *s = user;
    if (s->o.manager) mg_manager_reload(s->o.manager, true);
}

static void on_reload(void *user) {
    struct mg_server *s = user;
    struct mg_err err = {0};
    if (s->o.api_key_file && mg_api_keys_reload(&s->keys, &err) != MG_OK)
        mg_log(MG_LOG_WARN, "the keys stay as they were: %s", err.text);
    warn_of_no_keys(s);
    err = (struct mg_err){0};
    if (s->o.access_log && mg_access_log_reopen(&s->log, &err) != MG_OK)
        mg_log(MG_LOG_WARN, "the log stays where it was: %s", err.text);
    if (s->o.manager) mg_manager_reload(s->o.manager, false);
}

static void on_stopping(void *user) {
    struct mg_server *s = user;
    if (s->o.manager) mg_manager_stop(s->o.manager);
    sockets_close_idle(s);
}

static double on_tick(void *user) {
    struct mg_server *s = user;
    struct mg_scheduler_counts c = {0};
    if (s->gateway) { /* without the queue it serves as well: it says 503 */
        c.ready = true;
        gateway_load(s->gateway, &c.running, &c.waiting);
    } else {
        mg_scheduler_counts(s->scheduler, &c);
    }
    struct mg_manager_state state = {.ready = c.ready,
                                     .stalled = is_stalled(&c),
                                     .stopping = mg_http_server_is_stopping(s->http),
                                     .running = c.running,
                                     .waiting = c.waiting + c.preparing};
    return mg_manager_tick(s->o.manager, &state, mg_clock());
}

static void on_shared(void *user, bool put, double seconds) {
    struct mg_server *s = user;
    mg_metrics_observe(s->metrics, put ? MG_M_SHARED_WRITE_SECONDS : MG_M_SHARED_READ_SECONDS,
                       seconds);
}

/* --- opening --- */
static enum mg_status open_http(struct mg_server *s, struct mg_err *err) {
    size_t n = 0, n_gateway = 0;
    const struct mg_http_route *gateway = gateway_routes(&n_gateway);
    struct mg_http_route *list = mg_alloc(N_ROUTE + n_gateway + PAGE_ROUTES, sizeof *list);
    if (!list) return mg_fail_memory(err, "routes");
    for (size_t i = 0; i < N_ROUTE; i++) {
        if (i == N_ALWAYS && s->o.no_slots) continue;
        if (i == N_ALWAYS + 1 && s->o.no_metrics) continue;
        if (!s->gateway || without_model(&route[i])) list[n++] = route[i];
    }
    for (size_t i = 0; s->gateway && i < n_gateway; i++)
        if (!s->o.no_slots || strcmp(gateway[i].pattern, "/slots") != 0) list[n++] = gateway[i];
    if (s->page) n += page_routes(s->page, route_page, TAG_PUBLIC | TAG_PAGE, list + n);
    s->route = list;
    struct mg_http_options o = {.host = s->o.host,
                                .port = s->o.port,
                                .unix_path = s->o.unix_path,
                                .tls_cert = s->o.tls_cert,
                                .tls_key = s->o.tls_key,
                                .prefix = s->o.prefix,
                                .route = list,
                                .n_route = n,
                                .user = s,
                                .admit = admit,
                                .error_body = error_body,
                                .log = on_log,
                                .note = on_note,
                                .on_reload = on_reload,
                                .on_stopping = on_stopping,
                                .before_reload = before_reload,
                                .tick = s->o.manager ? on_tick : NULL,
                                .fd = s->o.fd,
                                .n_fd = s->o.n_fd,
                                .origin = s->o.origin,
                                .n_origin = s->o.n_origin,
                                .max_body = s->o.max_body};
    return mg_http_server_open(&o, &s->http, err);
}

/* What gateways tell of this worker's model: gateway_models reads it. */
static bool write_about(struct mg_server *s, struct mg_buf *out) {
    struct mg_model_reply m = model_of(s);
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "alias", m.id);
    mg_jwrite_kint(&j, "created", m.created);
    mg_jwrite_kuint(&j, "context", m.context);
    mg_jwrite_kuint(&j, "context_max", m.context_max);
    mg_jwrite_kuint(&j, "n_vocab", m.n_vocab);
    mg_jwrite_kuint(&j, "n_embd", m.n_embd);
    mg_jwrite_kuint(&j, "n_params", m.n_params);
    mg_jwrite_kuint(&j, "bytes", m.bytes);
    mg_jwrite_kstr(&j, "weights", m.weights);
    mg_jwrite_key(&j, "props");
    if (!write_props(s, out)) return false;
    j.comma = true;
    mg_jwrite_close(&j, '}');
    return !out->failed;
}

static enum mg_status open_puller(struct mg_server *s, struct mg_err *err) {
    struct mg_buf about = {0};
    enum mg_status st = write_about(s, &about) ? MG_OK : mg_fail_memory(err, "worker");
    struct puller_options o = {.queue = *s->o.queue,
                               .places = s->o.scheduler.max_running,
                               .drain_seconds = 1e-3 * s->o.drain_ms,
                               .prefix = s->o.prefix,
                               .about = (char *)about.data};
    if (!st) st = puller_open(s, &o, &s->puller, err);
    if (!st) st = puller_start(s->puller, err);
    mg_buf_free(&about);
    return st;
}

static enum mg_status open_parts(struct mg_server *s, struct mg_err *err) {
    enum mg_status status = mg_metrics_open(&s->metrics, err);
    s->keyed = s->o.n_api_key || s->o.api_key_file;
    if (status == MG_OK && s->keyed)
        status = mg_api_keys_open(&s->keys, s->o.api_key, s->o.n_api_key, s->o.api_key_file, err);
    if (status == MG_OK) warn_of_no_keys(s);
    if (status == MG_OK && s->o.access_log)
        status = mg_access_log_open(&s->log, s->o.access_log, s->o.access_log_json, err);
    if (status == MG_OK && s->o.media_path) {
        s->media_fd = open(s->o.media_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (s->media_fd < 0)
            status =
                mg_fail(err, MG_ERR_IO, "media_path", "%s: %s", s->o.media_path, strerror(errno));
    }
    if (status == MG_OK && s->o.n_remote_host) {
        struct mg_remote_options o = {.host = s->o.remote_host,
                                      .n_host = s->o.n_remote_host,
                                      .max_bytes = s->facts.max_image_bytes};
        status = mg_remote_open(&o, &s->remote, err);
    }
    if (status == MG_OK) status = worker_open(&s->worker, err);
    if (status == MG_OK && !s->o.no_page)
        status = page_open(s->o.page_path, s->o.prefix, &s->page, err);
    if (status == MG_OK && !s->engine) status = gateway_open(s, s->o.queue, &s->gateway, err);
    if (status == MG_OK) status = open_http(s, err);
    if (status == MG_OK && s->gateway) return gateway_start(s->gateway, err);
    if (status == MG_OK) status = mg_scheduler_open(s->engine, &s->o.scheduler, &s->scheduler, err);
    if (status == MG_OK && s->o.queue) status = open_puller(s, err);
    return status;
}

enum mg_status mg_server_open(mg_engine *engine, const struct mg_server_options *options,
                              struct mg_server **out, struct mg_err *err) {
    *out = NULL;
    struct mg_server *s = calloc(1, sizeof *s);
    if (!s) return mg_fail_memory(err, "server");
    s->o = *options;
    DEFAULT(s->o.max_body, (size_t)64 << 20);
    DEFAULT(s->o.upload_budget, (size_t)256 << 20);
    DEFAULT(s->o.drain_ms, 10000);
    DEFAULT(s->o.alias, "margay");
    DEFAULT(s->o.scheduler.max_waiting, 256);
    DEFAULT(s->o.scheduler.max_running, 8);
    if (!(s->o.ping_seconds > 0)) s->o.ping_seconds = 10;
    s->o.scheduler.redis.observe = on_shared;
    s->o.scheduler.redis.user = s;
    s->engine = engine;
    s->media_fd = -1;
    s->log.fd = -1;
    s->started = unix_seconds();
    s->uploads.budget = s->o.upload_budget;
    if (gethostname(s->host, sizeof s->host - 1) != 0) s->host[0] = 0;
    if (engine) {
        mg_engine_info(engine, &s->info);
        mg_engine_facts(engine, &s->facts);
    } else { /* a gateway: workers have the last word */
        s->info.weights = s->info.tier = "none";
        s->facts.max_images = MG_JOB_MAX_PICTURES;
        s->facts.max_image_bytes = s->o.max_body;
    }
    enum mg_status status = open_parts(s, err);
    if (status != MG_OK) {
        mg_server_close(s);
        return status;
    }
    *out = s;
    return MG_OK;
}

static void announce(struct mg_server *s) {
    char url[512];
    bool v6 = s->o.host && strchr(s->o.host, ':');
    if (s->o.host)
        snprintf(url, sizeof url, "http%s://%s%s%s:%u%s", s->o.tls_cert ? "s" : "", v6 ? "[" : "",
                 s->o.host, v6 ? "]" : "", mg_http_server_port(s->http),
                 s->o.prefix ? s->o.prefix : "");
    else
        snprintf(url, sizeof url, "unix:%s",
                 s->o.unix_path ? s->o.unix_path : "(the service manager's)");
    if (s->o.listening) s->o.listening(s->o.user, url);
}

enum mg_status mg_server_run(struct mg_server *s, struct mg_err *err) {
    announce(s);
    return mg_http_server_run(s->http, err);
}

void mg_server_stop(struct mg_server *s) {
    if (s->puller) puller_stop(s->puller);
    mg_http_server_stop(s->http, s->o.drain_ms);
}

void mg_server_reload(struct mg_server *s) {
    mg_http_server_reload(s->http);
}

/* The scheduler first: it ends every job while the loop can still take what they post. */
void mg_server_close(struct mg_server *s) {
    if (!s) return;
    puller_close(s->puller);
    gateway_stop(s->gateway);
    worker_close(&s->worker);
    mg_remote_close(s->remote);
    mg_scheduler_close(s->scheduler);
    mg_http_server_close(s->http);
    gateway_close(s->gateway);
    free(s->route);
    uploads_free(&s->uploads);
    page_close(s->page);
    mg_api_keys_close(&s->keys);
    mg_access_log_close(&s->log);
    mg_metrics_close(s->metrics);
    if (s->media_fd >= 0) close(s->media_fd);
    free(s);
}
