/* cli/health.c - margay health: is a server there and ready. For the health checks of containers,
 * whose images have no curl.
 */
#include "cli/commands.h"

#include "net/probe.h"
#include "net/url.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_URL "http://127.0.0.1:8080"
#define SECONDS 5.0
#define MAX_BODY 4096

/* What is asked: URL and path as given; the path /ready where there is none. */
struct target {
    char url[MG_URL_MAX];
    const char *unix_path;
};

static enum mg_status find_target(const char *given, struct target *t, struct mg_err *err) {
    struct mg_url parsed;
    bool is_unix = !strncmp(given, "unix:", 5);
    int n;
    if (is_unix) {
        t->unix_path = given + 5;
        while (t->unix_path[0] == '/' && t->unix_path[1] == '/') t->unix_path++;
        if (t->unix_path[0] != '/')
            return mg_fail(err, MG_ERR_ARGUMENT, "usage", "unix: is followed by a path, unix:/...");
        n = snprintf(t->url, sizeof t->url, "http://localhost/ready");
    } else {
        const char *scheme = strstr(given, "://");
        const char *path = strchr(scheme ? scheme + 3 : given, '/');
        n = snprintf(t->url, sizeof t->url, "%s%s%s", scheme ? "" : "http://", given,
                     !path          ? "/ready"
                     : path[1] == 0 ? "ready"
                                    : "");
    }
    if (n < 0 || n >= (int)sizeof t->url)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "the URL is too long");
    struct mg_err why = {0};
    if (mg_url_parse(t->url, &parsed, &why))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%.60s: %s", given, why.text);
    return MG_OK;
}

/* "ok", "loading", "draining" of the body, or its error's text. */
static const char *word(const json_t *body) {
    const char *text = json_string_value(json_object_get(body, "status"));
    if (!text) text = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
    return text ? text : "";
}

enum mg_exit mg_cmd_health(struct mg_options *o) {
    struct mg_err err = {0};
    struct target t = {0};
    const char *given = o->n_arg ? o->arg[0] : DEFAULT_URL;
    struct mg_buf body = {.max = MAX_BODY};
    int code = 0;
    enum mg_status status = find_target(given, &t, &err);
    if (status) return mg_report(o, &err);
    struct mg_probe_options p = {.url = t.url,
                                 .unix_path = t.unix_path,
                                 .ca_file = mg_opt_text(o, MG_OPT_CA_FILE, NULL),
                                 .insecure = mg_opt_flag(o, MG_OPT_INSECURE, false),
                                 .seconds = mg_opt_float(o, MG_OPT_TIMEOUT, SECONDS)};
    status = mg_probe_get(&p, &code, &body, &err);
    if (!status) {
        json_t *root = json_loadb(body.n ? (const char *)body.data : "", body.n, 0, NULL);
        const char *text = word(root);
        struct mg_buf line = {0};
        mg_buf_printf(&line, "%s: %d%s%.200s\n", given, code, *text ? ", " : "", text);
        json_decref(root);
        mg_buf_free(&body);
        enum mg_exit printed = mg_print(o, &line);
        return printed ? printed : code == 200 ? MG_EXIT_OK : MG_EXIT_FAILED;
    }
    mg_buf_free(&body);
    mg_err_prefix(&err, "%.200s", given);
    return mg_report(o, &err);
}
