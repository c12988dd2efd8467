/* net/api_keys.c - see api_keys.h. */
#include "net/api_keys.h"

#include "base/base64.h"
#include "base/io.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)

static enum mg_status add_key(struct mg_api_keys *k, const char *key, size_t n,
                              struct mg_err *err) {
    if (n == 0 || n > MG_API_MAX_KEY)
        return mg_fail(err, MG_ERR_ARGUMENT, "api_key", "an API key has 1 to %d bytes",
                       MG_API_MAX_KEY);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return mg_fail(err, MG_ERR_ARGUMENT, "api_key",
                           "an API key has only printable ASCII characters");
    if (k->n == MG_API_MAX_KEYS)
        return mg_fail(err, MG_ERR_LIMIT, "api_key", "more than %d API keys", MG_API_MAX_KEYS);
    void *grown = mg_realloc(k->digest, k->n + 1, sizeof *k->digest);
    if (grown) k->digest = grown;
    if (!grown || !mg_sha256(key, n, k->digest[k->n])) return mg_fail_memory(err, "API keys");
    k->n++;
    return MG_OK;
}

static enum mg_status add_file(struct mg_api_keys *k, struct mg_err *err) {
    struct mg_buf text = {.max = FILE_MAX_BYTES};
    enum mg_status status = mg_file_read(k->file, FILE_MAX_BYTES, &text, err);
    for (size_t at = 0; at < text.n && !status;) {
        const char *line = (const char *)text.data + at;
        const char *end = memchr(line, '\n', text.n - at);
        size_t n = end ? (size_t)(end - line) : text.n - at;
        at += n + 1;
        while (n && (*line == ' ' || *line == '\t')) line++, n--;
        while (n && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
        if (n && *line != '#') status = add_key(k, line, n, err);
    }
    if (text.data) explicit_bzero(text.data, text.n);
    mg_buf_free(&text);
    if (status) mg_err_prefix(err, "%s", k->file);
    return status;
}

enum mg_status mg_api_keys_open(struct mg_api_keys *k, const char *const *key, size_t n_key,
                                const char *file, struct mg_err *err) {
    *k = (struct mg_api_keys){.file = file};
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < n_key && !status; i++) status = add_key(k, key[i], strlen(key[i]), err);
    k->n_list = k->n;
    if (!status && file) status = add_file(k, err);
    if (status) mg_api_keys_close(k);
    return status;
}

enum mg_status mg_api_keys_reload(struct mg_api_keys *k, struct mg_err *err) {
    if (!k->file) return MG_OK;
    struct mg_api_keys fresh = {.n = k->n_list, .n_list = k->n_list, .file = k->file};
    fresh.digest = mg_realloc(NULL, k->n_list + 1, sizeof *fresh.digest);
    if (!fresh.digest) return mg_fail_memory(err, "API keys");
    if (k->n_list) memcpy(fresh.digest, k->digest, k->n_list * sizeof *k->digest);
    enum mg_status status = add_file(&fresh, err);
    if (status) {
        mg_api_keys_close(&fresh);
        return status;
    }
    free(k->digest);
    *k = fresh;
    return MG_OK;
}

void mg_api_keys_close(struct mg_api_keys *k) {
    free(k->digest);
    *k = (struct mg_api_keys){0};
}

int mg_api_keys_find(const struct mg_api_keys *k, const void *key, size_t n) {
    uint8_t digest[MG_SHA256_BYTES];
    int found = -1;
    if (n > MG_API_MAX_KEY || !mg_sha256(key, n, digest)) return -1;
    for (size_t i = 0; i < k->n; i++) {
        unsigned differs = 0;
        for (size_t j = 0; j < MG_SHA256_BYTES; j++)
            differs |= (unsigned)(k->digest[i][j] ^ digest[j]);
        /* All ones when differs is 0 and none was found before, without a branch. */
        unsigned same = (differs - 1) >> 31 & (unsigned)found >> 31;
        found = (int)((unsigned)found & (same - 1)) | (int)((0 - same) & (unsigned)i);
    }
    return found;
}

/* A browser can't give a WebSocket a header of its own, but names of protocols: "margay.key." and
 * the key in base64url. */
static int find_in_protocols(const struct mg_api_keys *k, const char *list) {
    static const char mark[] = "margay.key.";
    const char *at = list ? strstr(list, mark) : NULL;
    char key[MG_API_MAX_KEY + 4];
    size_t n;
    if (!at || (at != list && !strchr(", \t", at[-1]))) return -1;
    at += sizeof mark - 1;
    size_t n_text = strcspn(at, ", \t");
    if (mg_base64_bound(n_text) > sizeof key ||
        mg_base64_decode(at, n_text, (uint8_t *)key, &n) != MG_BASE64_OK)
        return -1;
    int found = mg_api_keys_find(k, key, n);
    explicit_bzero(key, sizeof key);
    return found;
}

int mg_api_keys_of(const struct mg_api_keys *k, const struct mg_http_exchange *x) {
    const char *key = mg_http_header(x, "x-api-key");
    const char *bearer = mg_http_header(x, "authorization");
    if (bearer && !strncasecmp(bearer, "bearer", 6) && bearer[6] == ' ') {
        key = bearer + 6;
        while (*key == ' ') key++;
    }
    if (!key) return find_in_protocols(k, mg_http_header(x, "sec-websocket-protocol"));
    return *key ? mg_api_keys_find(k, key, strlen(key)) : -1;
}
