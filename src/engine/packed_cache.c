/* engine/packed_cache.c - see packed_cache.h. */
#include "engine/packed_cache.h"

#include "engine/packed_place.h"
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
    struct mg_packed_place at;
    struct mg_err why; /* the cache can't be used */
};

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

/* The cached file, when it is there, whole, and of this folder as it is now. *reason says why not,
 * NULL for a file that simply isn't there. */
static bool try_open(struct cache *c, struct mg_model **out, const char **reason) {
    char id[MG_SOURCE_ID];
    struct mg_err err = {0};
    *reason = NULL;
    if (access(c->at.path, F_OK) != 0 || mg_source_id(c->folder, c->weights, id, &err) != MG_OK)
        return false;
    if (mg_model_open(c->at.path, NULL, out, &err) != MG_OK) {
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
    char lock_path[sizeof c.at.path + 8];
    const char *reason = NULL;
    int lock = -1;
    enum mg_status status =
        mg_packed_place_find(e->options.cache_dir, folder, weights, &c.at, &c.why);
    if (status == MG_OK && try_open(&c, out, &reason)) return MG_OK;
    if (status == MG_OK && make_folders(c.at.dir) != 0)
        status = mg_fail_errno(&c.why, "create", c.at.dir, errno);
    if (status == MG_OK) {
        snprintf(lock_path, sizeof lock_path, "%s.lock", c.at.path);
        lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock < 0) status = mg_fail_errno(&c.why, "create", lock_path, errno);
    }
    if (status != MG_OK) return convert_to_memory(&c, &o, out, err);
    while (flock(lock, LOCK_EX) != 0 && errno == EINTR) {
    }
    status = MG_OK;
    if (!try_open(&c, out, &reason)) { /* else another process has made it meanwhile */
        if (reason) mg_log(MG_LOG_WARN, "%s is made anew: %s", c.at.path, reason);
        mg_log(MG_LOG_INFO, "converting %s to %s in %s", folder, mg_file_weights_name(weights),
               c.at.path);
        status = mg_convert_file(folder, c.at.path, &o, NULL, &c.why);
        if (status == MG_ERR_IO) /* full or read-only */
            status = convert_to_memory(&c, &o, out, err);
        else if (status == MG_OK)
            status = mg_model_open(c.at.path, NULL, out, err);
        else if (err)
            *err = c.why;
    }
    close(lock);
    return status;
}
