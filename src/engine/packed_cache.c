/* engine/packed_cache.c - see packed_cache.h. */
#include "engine/packed_cache.h"

#include "base/sha256.h"
#include "weights/convert.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The place of one folder's packed file. */
struct cache {
    mg_engine *e;       /* borrowed */
    const char *folder; /* of the checkpoint, borrowed */
    enum mg_file_weights weights;
    char dir[PATH_MAX];        /* the cache folder */
    char path[PATH_MAX + 320]; /* of the packed file */
    struct mg_err why;         /* the cache can't be used */
};

static bool cache_folder(const mg_engine *e, char out[PATH_MAX]) {
    const char *set = e->options.cache_dir, *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (!set) set = getenv("MARGAY_CACHE_DIR");
    if (set && *set)
        n = snprintf(out, PATH_MAX, "%s", set);
    else if (xdg && *xdg == '/')
        n = snprintf(out, PATH_MAX, "%s/margay", xdg);
    else if (home && *home == '/')
        n = snprintf(out, PATH_MAX, "%s/.cache/margay", home);
    return n > 0 && n < PATH_MAX;
}

/* mkdir -p */
static int make_folders(char *path) {
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        int failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        *at = '/';
        if (failed) return -1;
    }
    return mkdir(path, 0777) != 0 && errno != EEXIST ? -1 : 0;
}

/* The last name in the folder's path, as far as it is fit for a file name. */
static void short_name(const char *real, char out[64]) {
    const char *base = strrchr(real, '/');
    size_t n = 0;
    for (base = base ? base + 1 : real; *base && n < 63; base++) {
        unsigned char c = (unsigned char)*base;
        bool fine = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    c == '-' || c == '_' || (c == '.' && n);
        out[n++] = fine ? (char)c : '_';
    }
    out[n] = 0;
}

static enum mg_status place_file(struct cache *c, struct mg_err *err) {
    char real[PATH_MAX], name[64], hex[MG_SHA256_HEX];
    uint8_t digest[MG_SHA256_BYTES];
    if (!realpath(c->folder, real)) return mg_fail_errno(err, "open", c->folder, errno);
    if (!cache_folder(c->e, c->dir))
        return mg_fail(err, MG_ERR_IO, "no_cache",
                       "no cache folder: HOME is not set, or the folder's path is too long");
    if (!mg_sha256(real, strlen(real), digest)) return mg_fail_memory(err, "cache name");
    mg_hex(digest, sizeof digest, hex);
    short_name(real, name);
    snprintf(c->path, sizeof c->path, "%s/%s-%.12s-%s.safetensors", c->dir, name, hex,
             mg_file_weights_name(c->weights));
    return MG_OK;
}

/* The cached file, when it is there, whole, and of this folder as it is now. *reason says why not,
 * NULL for a file that simply isn't there. */
static bool try_open(struct cache *c, struct mg_model **out, const char **reason) {
    char id[MG_SOURCE_ID];
    struct mg_err err = {0};
    *reason = NULL;
    if (access(c->path, F_OK) != 0 || mg_source_id(c->folder, c->weights, id, &err) != MG_OK)
        return false;
    if (mg_model_open(c->path, NULL, out, &err) != MG_OK) {
        *reason = err.status == MG_ERR_UNSUPPORTED ? "it is of another version" : "it is damaged";
        return false;
    }
    if (strcmp((*out)->manifest.source_id, id) == 0 && (*out)->manifest.weights == c->weights)
        return true;
    mg_model_close(*out);
    *out = NULL;
    *reason = "the checkpoint has changed since";
    return false;
}

static bool on_progress(void *user, uint64_t done, uint64_t total) {
    mg_engine *e = user;
    return !e->options.load || e->options.load(e->options.load_user, done, total);
}

static enum mg_status convert_to_memory(struct cache *c, const struct mg_convert_options *o,
                                        struct mg_model **out, struct mg_err *err) {
    mg_log(MG_LOG_WARN,
           "%s; converting in memory, and again at every start (margay convert makes a file)",
           c->why.text);
    int fd = memfd_create("margay-weights", MFD_CLOEXEC);
    if (fd < 0) return mg_fail_errno(err, "create", "a file in memory", errno);
    struct mg_weights *weights = NULL;
    enum mg_status status = mg_convert_fd(c->folder, fd, o, NULL, err);
    if (status == MG_OK) status = mg_weights_open_fd(fd, "converted weights", &weights, err);
    if (status == MG_OK) status = mg_model_open("converted weights", weights, out, err);
    close(fd);
    return status;
}

enum mg_status mg_packed_cache_open(mg_engine *e, const char *folder, enum mg_file_weights weights,
                                    struct mg_model **out, struct mg_err *err) {
    struct cache c = {.e = e, .folder = folder, .weights = weights};
    struct mg_convert_options o = {
        .weights = weights, .pool = e->pool, .progress = on_progress, .user = e};
    char lock_path[sizeof c.path + 8];
    const char *reason = NULL;
    int lock = -1;
    enum mg_status status = place_file(&c, &c.why);
    if (status == MG_OK && try_open(&c, out, &reason)) return MG_OK;
    if (status == MG_OK && make_folders(c.dir) != 0)
        status = mg_fail_errno(&c.why, "create", c.dir, errno);
    if (status == MG_OK) {
        snprintf(lock_path, sizeof lock_path, "%s.lock", c.path);
        lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock < 0) status = mg_fail_errno(&c.why, "create", lock_path, errno);
    }
    if (status != MG_OK) return convert_to_memory(&c, &o, out, err);
    while (flock(lock, LOCK_EX) != 0 && errno == EINTR) {
    }
    status = MG_OK;
    if (!try_open(&c, out, &reason)) { /* else another process has made it meanwhile */
        if (reason) mg_log(MG_LOG_WARN, "%s is made anew: %s", c.path, reason);
        mg_log(MG_LOG_INFO, "converting %s to %s in %s", folder, mg_file_weights_name(weights),
               c.path);
        status = mg_convert_file(folder, c.path, &o, NULL, &c.why);
        if (status == MG_ERR_IO) /* full or read-only */
            status = convert_to_memory(&c, &o, out, err);
        else if (status == MG_OK)
            status = mg_model_open(c.path, NULL, out, err);
        else if (err)
            *err = c.why;
    }
    close(lock);
    return status;
}
