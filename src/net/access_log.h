/* net/access_log.h - one line per exchange, as text or JSON, to a file or standard error.
 *
 * The query is left out of the target, since people put keys there. What clients sent is escaped:
 * a line is a line. Lines are written with one write each, as O_APPEND, so that other programs may
 * rotate the file; mg_access_log_reopen then begins the new one. Loop thread only.
 *
 *     127.0.0.1:5000 2026-12-01T05:27:29.123Z "GET /v1/models" 200 512 0.004 done 3f2a.. "curl/8"
 *     {"time":"...","peer":"...","method":"GET","path":"...","route":"...","status":200,...}
 */
#ifndef MG_NET_ACCESS_LOG_H
#define MG_NET_ACCESS_LOG_H

#include "net/http_server.h"

struct mg_access_log {
    const char *path; /* borrowed; "-": standard error */
    int fd;           /* owned unless standard error; -1: not open */
    bool json;
};

enum mg_status mg_access_log_open(struct mg_access_log *log, const char *path, bool json,
                                  struct mg_err *err);
/* The old file stays in use when the new one can't be opened. */
enum mg_status mg_access_log_reopen(struct mg_access_log *log, struct mg_err *err);
void mg_access_log_write(struct mg_access_log *log, const struct mg_http_record *record);
void mg_access_log_close(struct mg_access_log *log);

/* One line with its end; `now`: seconds since 1970. */
bool mg_access_log_format(struct mg_buf *out, const struct mg_http_record *record, bool json,
                          double now);

#endif
