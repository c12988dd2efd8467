/* cli/load_options.c - the options of margay load, read and checked; the server's address; the
 * limit on open files. See load.h.
 */
#include "cli/load.h"

#include "base/io.h"
#include "net/http_text.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_URL "http://127.0.0.1:8080"
#define DEFAULT_SECONDS 30.0
#define DEFAULT_TOKENS 128
#define DEFAULT_TIMEOUT 300.0
#define DEFAULT_CONNECTIONS 4096
#define SPARE_FILES 64   /* besides connections: terminal, output, event loop, certificates */
#define CONNECT_MS 10000 /* for the first look whether somebody is there */
#define KEY_FILE_BYTES 65536

static bool ends_with(const char *text, size_t n, const char *end) {
    size_t n_end = strlen(end);
    return n >= n_end && !memcmp(text + n - n_end, end, n_end);
}

/* "/v1" of what stands behind the host: "/x/v1/chat/completions", "/x/v1/", "/x" and "" become
 * "/x/v1", "/x/v1", "/x/v1", "/v1". */
static enum mg_status set_path(struct mg_load_plan *p, const char *path, struct mg_err *err) {
    static const char endpoint[] = "/chat/completions";
    size_t n = strlen(path);
    while (n && path[n - 1] == '/') n--;
    bool whole = ends_with(path, n, endpoint);
    if (whole) n -= sizeof endpoint - 1;
    size_t digits = n;
    while (digits && path[digits - 1] >= '0' && path[digits - 1] <= '9') digits--;
    bool version = digits < n && ends_with(path, digits, "/v");
    const char *prefix = mg_opt_text(p->o, MG_OPT_API_PREFIX, "");
    if (*prefix && *prefix != '/')
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--api-prefix begins with /");
    int len = snprintf(p->path, sizeof p->path, "%s%.*s%s", prefix, (int)n, path,
                       whole || version ? "" : "/v1");
    if (len < 0 || len >= (int)sizeof p->path)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the URL is too long");
    for (const char *c = p->path; *c; c++)
        if (*c <= ' ' || *c >= 127)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the URL has a blank or the like in it");
    return MG_OK;
}

static enum mg_status read_url(struct mg_load_plan *p, struct mg_err *err) {
    char url[MG_URL_MAX];
    const char *given = p->o->n_arg ? p->o->arg[0] : DEFAULT_URL;
    p->url = given;
    if (!strncmp(given, "unix:", 5)) {
        const char *path = given + 5;
        while (path[0] == '/' && path[1] == '/') path++;
        if (*path != '/')
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "unix: is followed by a path, unix:/...");
        p->unix_path = path;
        snprintf(p->host_field, sizeof p->host_field, "localhost");
        return set_path(p, "", err);
    }
    bool bare = !strstr(given, "://"); /* localhost:8080 */
    int n = snprintf(url, sizeof url, "%s%s", bare ? "http://" : "", given);
    if (n < 0 || n >= (int)sizeof url)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the URL is too long");
    enum mg_status status = mg_url_parse(url, &p->parsed, err);
    if (status) {
        mg_err_prefix(err, "%.60s", given);
        return status;
    }
    if (p->parsed.query)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%.60s: a URL without ? and #", given);
    const char *host = p->parsed.host;
    bool usual = !strcmp(p->parsed.port, p->parsed.https ? "443" : "80");
    snprintf(p->host_field, sizeof p->host_field, "%s%s%s", host, usual ? "" : ":",
             usual ? "" : p->parsed.port);
    size_t n_host = strlen(host);
    bool brackets = n_host > 2 && host[0] == '[';
    snprintf(p->tls_name, sizeof p->tls_name, "%.*s", (int)(brackets ? n_host - 2 : n_host),
             host + brackets);
    const char *path = strchr(strstr(url, "://") + 3, '/');
    return set_path(p, path ? path : "", err);
}

static enum mg_status add_text(struct mg_options *o, const char *const **list, size_t *n,
                               const char *text, size_t n_text, struct mg_err *err) {
    const char **grown = mg_arena_alloc(&o->arena, *n + 1, sizeof *grown);
    const char *copy = mg_arena_strdup(&o->arena, text, n_text);
    if (!grown || !copy) return mg_fail_memory(err, "options");
    if (*n) memcpy(grown, *list, *n * sizeof *grown);
    grown[(*n)++] = copy;
    *list = grown;
    return MG_OK;
}

static enum mg_status add_key(struct mg_load_plan *p, const char *key, size_t n,
                              struct mg_err *err) {
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                           "an API key has only printable ASCII characters");
    return add_text(p->o, &p->key, &p->n_key, key, n, err);
}

static enum mg_status read_keys(struct mg_load_plan *p, struct mg_err *err) {
    const struct mg_opt_value *given = &p->o->value[MG_OPT_API_KEY];
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < given->n_list && !status; i++)
        status = add_key(p, given->list[i], strlen(given->list[i]), err);
    const char *file = mg_opt_text(p->o, MG_OPT_API_KEY_FILE, NULL);
    if (status || !file) return status;
    struct mg_buf text = {.max = KEY_FILE_BYTES};
    status = mg_file_read(file, KEY_FILE_BYTES, &text, err);
    for (size_t at = 0; at < text.n && !status;) {
        const char *line = (const char *)text.data + at;
        const char *end = memchr(line, '\n', text.n - at);
        size_t n = end ? (size_t)(end - line) : text.n - at;
        at += n + 1;
        while (n && strchr(" \t", *line)) line++, n--;
        while (n && strchr(" \t\r", line[n - 1])) n--;
        if (n && *line != '#') status = add_key(p, line, n, err);
    }
    if (text.data) memset(text.data, 0, text.n);
    mg_buf_free(&text);
    if (!status && !p->n_key)
        status = mg_fail(err, MG_ERR_ARGUMENT, "usage", "no API key in %s", file);
    return status;
}

static enum mg_status read_headers(struct mg_load_plan *p, struct mg_err *err) {
    static const char *const ours[] = {"host", "content-length", "transfer-encoding", "connection",
                                       "content-type"};
    const struct mg_opt_value *given = &p->o->value[MG_OPT_HEADER];
    for (size_t i = 0; i < given->n_list; i++) {
        char name[128];
        const char *text = given->list[i], *colon = strchr(text, ':');
        size_t n = colon ? (size_t)(colon - text) : 0;
        if (n > 0 && n < sizeof name) snprintf(name, sizeof name, "%.*s", (int)n, text);
        if (n == 0 || n >= sizeof name || !mg_http_is_field(name, colon + 1))
            return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                           "--header is \"Name: value\", not '%.60s'", text);
        for (size_t j = 0; j < sizeof ours / sizeof ours[0]; j++)
            if (!strcasecmp(name, ours[j]))
                return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--header can't set %s", name);
    }
    p->header = given->list;
    p->n_header = given->n_list;
    return MG_OK;
}

/* "5", "errors=5", "first.p95=800", "answer.max=10000" */
static enum mg_status read_limit(const char *text, struct mg_load_limit *out, struct mg_err *err) {
    const char *equals = strchr(text, '='), *number = equals ? equals + 1 : text;
    const char *at = text;
    char *end;
    *out = (struct mg_load_limit){.text = text};
    bool ok = true;
    if (!equals || !strncmp(text, "errors=", 7)) {
        out->what = MG_LOAD_LIMIT_ERRORS;
    } else {
        bool first = !strncmp(text, "first.", 6), answer = !strncmp(text, "answer.", 7);
        out->what = first ? MG_LOAD_LIMIT_FIRST : MG_LOAD_LIMIT_ANSWER;
        at += first ? 6 : 7;
        ok = first || answer;
        if (ok && !strncmp(at, "max=", 4)) {
            out->quantile = 1;
        } else if (ok) {
            ok = *at == 'p' && at[1] >= '0' && at[1] <= '9';
            out->quantile = ok ? strtod(at + 1, &end) / 100 : 0;
            ok = ok && end == equals && out->quantile > 0 && out->quantile <= 1;
        }
    }
    out->most = ok ? strtod(number, &end) : 0;
    ok = ok && end != number && out->most >= 0 &&
         (!*end || (out->what == MG_LOAD_LIMIT_ERRORS && !strcmp(end, "%")));
    return ok ? MG_OK
              : mg_fail(err, MG_ERR_ARGUMENT, "usage",
                        "--fail-above is PERCENT of errors, first.p95=MS or answer.p99=MS, not "
                        "'%.40s'",
                        text);
}

static enum mg_status read_limits(struct mg_load_plan *p, struct mg_err *err) {
    const struct mg_opt_value *given = &p->o->value[MG_OPT_FAIL_ABOVE];
    enum { MAX = sizeof p->limit / sizeof p->limit[0] };
    if (given->n_list > MAX)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "at most %d --fail-above", (int)MAX);
    for (size_t i = 0; i < given->n_list; i++)
        if (read_limit(given->list[i], &p->limit[p->n_limit++], err)) return err->status;
    return MG_OK;
}

/* Closed or open, and for how long. */
static enum mg_status read_load(struct mg_load_plan *p, struct mg_err *err) {
    const struct mg_options *o = p->o;
    bool closed = mg_opt_set(o, MG_OPT_CLOSED), open = mg_opt_set(o, MG_OPT_OPEN);
    const char *pattern = mg_opt_text(o, MG_OPT_ARRIVALS, NULL);
    int64_t seed = mg_opt_int(o, MG_OPT_SEED, 0);
    p->seed = seed < 0 ? (uint64_t)time(NULL) : (uint64_t)seed;
    p->think = mg_opt_float(o, MG_OPT_THINK, 0);
    p->warm_up = mg_opt_float(o, MG_OPT_WARM_UP, 0);
    p->n_request = (uint64_t)mg_opt_int(o, MG_OPT_REQUESTS, 0);
    p->duration = mg_opt_float(o, MG_OPT_DURATION, p->n_request ? 0 : DEFAULT_SECONDS);
    p->open = open || pattern;
    p->n_client = (size_t)mg_opt_int(o, MG_OPT_CLOSED, 1);
    if (closed && p->open)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--closed is a closed loop, --open and --arrivals are an open one");
    if (p->open && p->think > 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--think is for clients of --closed");
    if (!p->open) return MG_OK;
    struct mg_load_arrivals *a = &p->arrivals;
    if (pattern && mg_load_arrivals_parse(pattern, a, err)) return err->status;
    if (a->pattern == MG_LOAD_RAMP) {
        if (open)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "a ramp has its rates, without --open");
        if (p->duration <= 0)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "a ramp needs --duration");
    } else {
        if (!open) return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--arrivals needs --open RATE");
        a->rate = mg_opt_float(o, MG_OPT_OPEN, 1);
    }
    a->hold = p->warm_up;
    a->seconds = p->duration;
    a->random.state = p->seed ^ UINT64_C(0xA5A5A5A55A5A5A5A); /* not the questions' numbers */
    return MG_OK;
}

static enum mg_status read_questions(struct mg_load_plan *p, struct mg_err *err) {
    const struct mg_options *o = p->o;
    p->pictures = mg_opt_text(o, MG_OPT_PICTURES, NULL);
    p->question = mg_opt_text(o, MG_OPT_QUESTION, NULL);
    p->questions = mg_opt_text(o, MG_OPT_QUESTIONS, NULL);
    p->upload = mg_opt_flag(o, MG_OPT_UPLOAD, false);
    p->stream = mg_opt_flag(o, MG_OPT_STREAM, true);
    p->max_tokens = (long)mg_opt_int(o, MG_OPT_MAX_TOKENS, DEFAULT_TOKENS);
    p->extra = mg_opt_text(o, MG_OPT_EXTRA, NULL);
    const char *model = mg_opt_text(o, MG_OPT_LOAD_MODEL, "");
    if (strlen(model) >= sizeof p->model)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the model's name is too long");
    snprintf(p->model, sizeof p->model, "%s", model);
    if (p->question && p->questions)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--question and --questions: one of them");
    if (p->max_tokens < 1)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "load asks for at least one token (--max-tokens)");
    if (p->upload && !p->pictures)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--upload needs --pictures");
    return MG_OK;
}

enum mg_status mg_load_plan_read(struct mg_options *o, struct mg_load_plan *out,
                                 struct mg_err *err) {
    struct mg_load_plan *p = out;
    *p = (struct mg_load_plan){.o = o};
    p->timeout = mg_opt_float(o, MG_OPT_TIMEOUT, DEFAULT_TIMEOUT);
    p->abort = mg_opt_float(o, MG_OPT_ABORT, 0);
    p->keep_alive = mg_opt_flag(o, MG_OPT_KEEP_ALIVE, true);
    p->ca_file = mg_opt_text(o, MG_OPT_CA_FILE, NULL);
    p->trust_all = mg_opt_flag(o, MG_OPT_INSECURE, false);
    p->json = mg_opt_flag(o, MG_OPT_JSON, false);
    p->csv = mg_opt_flag(o, MG_OPT_CSV, false);
    p->svg = mg_opt_text(o, MG_OPT_PLOT, NULL);
    if (p->json && p->csv)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--json and --csv: one of them");
    enum mg_status status = read_url(p, err);
    if (!status) status = read_load(p, err);
    if (!status) status = read_questions(p, err);
    if (!status) status = read_headers(p, err);
    if (!status) status = read_limits(p, err);
    if (!status) status = read_keys(p, err);
    return status;
}

/* --- the address --- */

/* 0, or why there is no connection. */
static int try_address(const struct sockaddr *address, socklen_t n) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    int error = connect(fd, address, n) ? errno : 0;
    if (error == EAGAIN) error = 0; /* a Unix socket with a full queue: somebody is there */
    if (error == EINPROGRESS) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        socklen_t size = sizeof error;
        int ready = poll(&wait, 1, CONNECT_MS);
        if (ready <= 0)
            error = ready ? errno : ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
            error = errno;
    }
    close(fd);
    return error;
}

static enum mg_status resolve_unix(struct mg_load_plan *p, struct mg_err *err) {
    struct sockaddr_un *address = (struct sockaddr_un *)&p->address;
    if (strlen(p->unix_path) >= sizeof address->sun_path)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "a Unix socket's path has at most %zu bytes",
                       sizeof address->sun_path - 1);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "%s", p->unix_path);
    p->n_address = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(p->unix_path) + 1);
    int error = try_address((const struct sockaddr *)address, p->n_address);
    return error ? mg_fail(err, MG_ERR_IO, "connect", "can't connect to %s: %s", p->url,
                           strerror(error))
                 : MG_OK;
}

enum mg_status mg_load_plan_resolve(struct mg_load_plan *p, struct mg_err *err) {
    if (p->unix_path) return resolve_unix(p, err);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int failed = getaddrinfo(p->tls_name, p->parsed.port, &hints, &list);
    if (failed)
        return mg_fail(err, MG_ERR_NOT_FOUND, "resolve", "no address for %s: %s", p->tls_name,
                       gai_strerror(failed));
    int error = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && error; a = a->ai_next) {
        if (a->ai_addrlen > sizeof p->address) continue;
        int e = try_address(a->ai_addr, a->ai_addrlen);
        if (!e || error == EADDRNOTAVAIL) error = e;
        memcpy(&p->address, a->ai_addr, a->ai_addrlen);
        p->n_address = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return error ? mg_fail(err, MG_ERR_IO, "connect", "can't connect to %s: %s", p->host_field,
                           strerror(error))
                 : MG_OK;
}

enum mg_status mg_load_plan_files(struct mg_load_plan *p, struct mg_err *err) {
    struct rlimit files = {0};
    if (getrlimit(RLIMIT_NOFILE, &files))
        return mg_fail_errno(err, "read the limit of", "open files", errno);
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        /* Where the hard limit is more than the kernel's own, what there is has to do. */
        if (setrlimit(RLIMIT_NOFILE, &files)) getrlimit(RLIMIT_NOFILE, &files);
    }
    size_t room = files.rlim_cur > SPARE_FILES ? (size_t)files.rlim_cur - SPARE_FILES : 0;
    bool given = mg_opt_set(p->o, MG_OPT_MAX_CONNECTIONS);
    size_t want = (size_t)mg_opt_int(p->o, MG_OPT_MAX_CONNECTIONS, DEFAULT_CONNECTIONS);
    if (!p->open && (!given || want > p->n_client)) want = p->n_client;
    if (want > room && (given || !p->open || room == 0))
        return mg_fail(err, MG_ERR_LIMIT, "open_files",
                       "%zu connections need %zu open files, the hard limit is %llu (ulimit -Hn)",
                       want, want + SPARE_FILES, (unsigned long long)files.rlim_cur);
    p->max_connection = mg_min_size(want, room);
    return MG_OK;
}
