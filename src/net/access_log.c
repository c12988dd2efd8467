/* net/access_log.c - see access_log.h. */
#include "net/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 65536

enum mg_status mg_access_log_open(struct mg_access_log *log, const char *path, bool json,
                                  struct mg_err *err) {
    *log = (struct mg_access_log){.path = path, .fd = -1, .json = json};
    return mg_access_log_reopen(log, err);
}

enum mg_status mg_access_log_reopen(struct mg_access_log *log, struct mg_err *err) {
    if (!strcmp(log->path, "-")) {
        log->fd = STDERR_FILENO;
        return MG_OK;
    }
    int fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640);
    if (fd < 0) return mg_fail_errno(err, "open", log->path, errno);
    if (log->fd >= 0) close(log->fd);
    log->fd = fd;
    return MG_OK;
}

void mg_access_log_close(struct mg_access_log *log) {
    if (log->fd >= 0 && log->fd != STDERR_FILENO) close(log->fd);
    log->fd = -1;
}

static const char *end_name(enum mg_http_end end) {
    switch (end) {
    case MG_HTTP_END_DONE: return "done";
    case MG_HTTP_END_LEFT: return "left";
    case MG_HTTP_END_SLOW: return "slow";
    case MG_HTTP_END_STOPPED: return "stopped";
    case MG_HTTP_END_MEMORY: return "memory";
    }
    return "";
}

/* n bytes between quotes, as JSON has it; bytes over ASCII (not checked to be UTF-8) as \u00XX. */
static void add_quoted(struct mg_buf *out, const char *s, size_t n) {
    mg_buf_add_byte(out, '"');
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c == '"' || c == '\\')
            mg_buf_printf(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7F)
            mg_buf_printf(out, "\\u%04x", c);
        else
            mg_buf_add_byte(out, c);
    }
    mg_buf_add_byte(out, '"');
}

static void add_field(struct mg_buf *out, const char *name, const char *value) {
    mg_buf_printf(out, ",\"%s\":", name);
    add_quoted(out, value, strlen(value));
}

static void add_time(struct mg_buf *out, double now) {
    struct tm tm;
    time_t seconds = (time_t)now;
    if (!gmtime_r(&seconds, &tm)) return;
    mg_buf_printf(out, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
                  tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                  (int)((now - (double)seconds) * 1000));
}

static void format_json(struct mg_buf *out, const struct mg_http_record *r, double now,
                        size_t n_path) {
    mg_buf_add_str(out, "{\"time\":\"");
    add_time(out, now);
    mg_buf_add_byte(out, '"');
    add_field(out, "peer", r->peer);
    add_field(out, "method", r->method);
    mg_buf_add_str(out, ",\"path\":");
    add_quoted(out, r->target, n_path);
    add_field(out, "route", r->pattern);
    mg_buf_printf(
        out, ",\"status\":%d,\"bytes_in\":%" PRIu64 ",\"bytes_out\":%" PRIu64 ",\"seconds\":%.6f",
        r->status, r->bytes_in, r->bytes_out, r->seconds);
    add_field(out, "end", end_name(r->end));
    add_field(out, "request_id", r->request_id);
    add_field(out, "agent", r->agent);
    mg_buf_add_str(out, "}\n");
}

bool mg_access_log_format(struct mg_buf *out, const struct mg_http_record *r, bool json,
                          double now) {
    size_t n_path = strcspn(r->target, "?");
    if (json) {
        format_json(out, r, now, n_path);
        return !out->failed;
    }
    mg_buf_printf(out, "%s ", r->peer);
    add_time(out, now);
    struct mg_buf request = {.max = LINE_MAX_BYTES};
    mg_buf_printf(&request, "%s %.*s", r->method, (int)n_path, r->target);
    mg_buf_add_byte(out, ' ');
    add_quoted(out, (const char *)request.data, request.n);
    mg_buf_free(&request);
    mg_buf_printf(out, " %d %" PRIu64 " %.3f %s %s ", r->status, r->bytes_out, r->seconds,
                  end_name(r->end), r->request_id);
    add_quoted(out, r->agent, strlen(r->agent));
    mg_buf_add_byte(out, '\n');
    return !out->failed;
}

/* A pipe whose reader has stopped must not stop the service: what doesn't go in at once is lost. As
 * a pipe that poll() calls writable takes PIPE_BUF bytes, writing so many doesn't wait. */
static void write_line(int fd, const uint8_t *data, size_t n) {
    while (n) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) return;
        ssize_t wrote = write(fd, data, mg_min_size(n, PIPE_BUF));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return; /* a full disk neither */
        data += wrote;
        n -= (size_t)wrote;
    }
}

void mg_access_log_write(struct mg_access_log *log, const struct mg_http_record *record) {
    struct mg_buf line = {.max = (size_t)8 * LINE_MAX_BYTES};
    struct timespec now;
    if (log->fd < 0) return;
    clock_gettime(CLOCK_REALTIME, &now);
    if (mg_access_log_format(&line, record, log->json,
                             (double)now.tv_sec + (double)now.tv_nsec * 1e-9))
        write_line(log->fd, line.data, line.n);
    mg_buf_free(&line);
}
