/* net/probe.c - see probe.h. */
#include "net/probe.h"

#include <curl/curl.h>

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct mg_buf *out = user;
    size_t room = out->max > out->n ? out->max - out->n : 0;
    size_t all = size * n, kept = mg_min_size(all, room);
    return kept && !mg_buf_add(out, data, kept) ? 0 : all;
}

static bool set_up(CURL *c, const struct mg_probe_options *o, struct mg_buf *out, char *why) {
    bool ok = !curl_easy_setopt(c, CURLOPT_URL, o->url) &&
              !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") &&
              !curl_easy_setopt(c, CURLOPT_PROXY, "") &&
              !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) &&
              !curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(o->seconds * 1e3) + 1) &&
              !curl_easy_setopt(c, CURLOPT_USERAGENT, "margay-health/" MARGAY_VERSION) &&
              !curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why) &&
              !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) &&
              !curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    if (ok && o->unix_path) ok = !curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, o->unix_path);
    if (ok && o->ca_file) ok = !curl_easy_setopt(c, CURLOPT_CAINFO, o->ca_file);
    if (ok && o->insecure)
        ok = !curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 0L) &&
             !curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    return ok;
}

enum mg_status mg_probe_get(const struct mg_probe_options *o, int *status, struct mg_buf *out,
                            struct mg_err *err) {
    char why[CURL_ERROR_SIZE] = "";
    long code = 0;
    enum mg_status result = MG_OK;
    *status = 0;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return mg_fail_memory(err, "HTTP client");
    CURL *c = curl_easy_init();
    if (!c || !set_up(c, o, out, why)) {
        result = mg_fail_memory(err, "HTTP client");
    } else {
        CURLcode failed = curl_easy_perform(c);
        if (failed)
            result =
                mg_fail(err, MG_ERR_IO, "network", "%s", *why ? why : curl_easy_strerror(failed));
        else
            curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    }
    *status = (int)code;
    if (c) curl_easy_cleanup(c);
    curl_global_cleanup();
    return result;
}
