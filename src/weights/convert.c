/* weights/convert.c - writing the packed file that convert_plan.c has planned. See convert.h.
 *
 *   header          | margay.json | vectors, scales, sums | the checkpoint's small files | matrices
 *   |<- head_sha256->|             |<----------- small_sha256 ----------->|<- matrices_sha256 ->|
 *
 * Every size follows from the configuration, so all offsets are known before the first weight is
 * read. Matrices are made in chunks of panels by the pool and written in order; what comes before
 * them is written last, when scales and digests are known.
 */
#include "weights/convert.h"

#include "base/io.h"
#include "base/sha256.h"
#include "weights/config.h"
#include "weights/convert_plan.h"
#include "weights/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)8 << 20)

struct writer {
    struct mg_convert_plan plan;        /* owned */
    const struct mg_convert_options *o; /* borrowed, as the next three */
    struct mg_convert_report *report;
    int fd;
    const char *path;                  /* for messages */
    struct mg_sha256 source, matrices; /* of what is read, and of what is written */
    uint8_t *chunk;                    /* [chunk_bytes], owned: 8 MB, or a panel if that is more */
    size_t chunk_bytes;
    float **rows; /* [n_thread] of [32][k_max] f32, owned */
    size_t n_thread;
    uint64_t done; /* bytes of matrices written, of plan.total */
};

static enum mg_status write_at(const struct writer *w, const void *data, size_t n, uint64_t at,
                               struct mg_err *err) {
    const char *p = data;
    while (n) {
        ssize_t wrote = pwrite(w->fd, p, n, (off_t)at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return mg_fail_errno(err, "write", w->path, errno);
        p += wrote;
        at += (uint64_t)wrote;
        n -= (size_t)wrote;
    }
    return MG_OK;
}

static enum mg_status step(struct writer *w, size_t n, struct mg_err *err) {
    w->done += n;
    if (!w->o->progress || w->o->progress(w->o->user, w->done, w->plan.total)) return MG_OK;
    return mg_fail(err, MG_ERR_CANCELLED, "cancelled", "stopped on request");
}

/* Panels of one matrix, from `first` on, into the chunk; a task is a panel. */
struct panel_job {
    struct writer *w;
    const struct mg_piece *p;
    size_t first;
    double (*error)[2];      /* [n_thread] squared error, squares */
    _Atomic bool not_finite; /* set by any thread */
};

/* Row `out` of the stacked tensors, widened; which of them: by tile when interleaved. */
static void load_row(const struct mg_piece *p, size_t out, float *to) {
    size_t i = 0;
    while (i + 1 < p->n_source && out >= p->source[i]->dim[0]) out -= p->source[i++]->dim[0];
    const struct mg_tensor *t = p->source[i];
    for (size_t j = 0; j < p->k; j++) to[j] = mg_load_f32(t->dtype, t->data, out * p->k + j);
}

static void load_interleaved(const struct mg_piece *p, size_t tensor, size_t out, float *to) {
    const struct mg_tensor *t = p->source[tensor];
    for (size_t j = 0; j < p->k; j++) to[j] = mg_load_f32(t->dtype, t->data, out * p->k + j);
}

static void make_panel(void *arg, size_t task, size_t thread) {
    struct panel_job *job = arg;
    const struct mg_piece *p = job->p;
    size_t panel = job->first + task, bytes = mg_packed_panel_bytes(p->pack, p->k);
    const float *row[MG_PANEL] = {NULL};
    float *at = job->w->rows[thread];
    for (size_t c = 0; c < MG_PANEL; c++, at += p->k) {
        size_t out = p->interleaved ? panel * MG_TILE + c % MG_TILE : panel * MG_PANEL + c;
        if (out >= p->n) continue;
        if (p->interleaved)
            load_interleaved(p, c / MG_TILE, out, at);
        else
            load_row(p, out, at);
        row[c] = at;
    }
    if (!mg_pack_panel(p->pack, row, p->k, job->w->chunk + task * bytes,
                       p->scale + panel * MG_PANEL, p->sum + panel * MG_PANEL, job->error[thread]))
        job->not_finite = true;
}

/* Which of the stacked tensors it was. */
static enum mg_status not_finite(const struct mg_piece *p, struct mg_err *err) {
    size_t i = 0;
    for (; i + 1 < p->n_source; i++) {
        const struct mg_tensor *t = p->source[i];
        size_t j = 0;
        while (j < t->n && isfinite(mg_load_f32(t->dtype, t->data, j))) j++;
        if (j < t->n) break;
    }
    return mg_fail(err, MG_ERR_NUMERIC, "weights_not_finite",
                   "%s has weights that are not finite numbers", p->source[i]->name);
}

static enum mg_status write_packed(struct writer *w, const struct mg_piece *p, struct mg_err *err) {
    size_t bytes = mg_packed_panel_bytes(p->pack, p->k), panels = p->bytes / bytes;
    size_t per = mg_max_size(1, w->chunk_bytes / bytes);
    double(*error)[2] = mg_alloc_zero(w->n_thread, sizeof *error);
    if (!error) return mg_fail_memory(err, "conversion");
    struct panel_job job = {.w = w, .p = p, .error = error};
    enum mg_status status = MG_OK;
    for (size_t at = 0; at < panels && status == MG_OK; at += per) {
        size_t n = mg_min_size(per, panels - at);
        job.first = at;
        mg_pool_run(w->o->pool, make_panel, &job, n);
        if (job.not_finite) status = not_finite(p, err);
        mg_sha256_update(&w->matrices, w->chunk, n * bytes);
        if (status == MG_OK) status = write_at(w, w->chunk, n * bytes, p->offset + at * bytes, err);
        if (status == MG_OK) status = step(w, n * bytes, err);
    }
    struct mg_convert_part *part = &w->report->part[p->part][p->store];
    for (size_t i = 0; i < w->n_thread; i++) {
        part->error += error[i][0];
        part->square += error[i][1];
    }
    free(error);
    return status;
}

static enum mg_status write_bf16(struct writer *w, const struct mg_piece *p, struct mg_err *err) {
    const struct mg_tensor *t = p->source[0];
    uint16_t *out = (uint16_t *)(void *)w->chunk;
    size_t per = w->chunk_bytes / sizeof *out;
    enum mg_status status = MG_OK;
    struct mg_convert_part *part = &w->report->part[p->part][p->store];
    for (size_t at = 0; at < t->n && status == MG_OK; at += per) {
        size_t n = mg_min_size(per, t->n - at);
        for (size_t i = 0; i < n; i++) {
            float v = mg_load_f32(t->dtype, t->data, at + i);
            out[i] = mg_f32_to_bf16(v);
            if (t->dtype == MG_BF16) continue;
            double d = (double)v - (double)mg_bf16_to_f32(out[i]);
            part->error += d * d;
            part->square += (double)v * (double)v;
        }
        mg_sha256_update(&w->matrices, out, n * sizeof *out);
        status = write_at(w, out, n * sizeof *out, p->offset + at * sizeof *out, err);
        if (status == MG_OK) status = step(w, n * sizeof *out, err);
    }
    return status;
}

static enum mg_status write_matrices(struct writer *w, struct mg_err *err) {
    static const uint8_t zero[MG_PIECE_ALIGN] = {0};
    enum mg_status status = MG_OK;
    for (size_t i = 0; i < w->plan.n && status == MG_OK; i++) {
        const struct mg_piece *p = &w->plan.piece[i];
        if (p->offset < w->plan.matrices_at) continue;
        if (p->kind == MG_PIECE_PAD) {
            mg_sha256_update(&w->matrices, zero, p->bytes);
            status = write_at(w, zero, p->bytes, p->offset, err);
            continue;
        }
        for (size_t j = 0; j < p->n_source; j++)
            mg_sha256_update(&w->source, p->source[j]->data,
                             p->source[j]->n * mg_dtype_size(p->source[j]->dtype));
        struct mg_convert_part *part = &w->report->part[p->part][p->store];
        part->count++;
        part->weights += p->n_weight;
        part->bytes += p->bytes;
        status = p->kind == MG_PIECE_PACKED ? write_packed(w, p, err) : write_bf16(w, p, err);
    }
    return status;
}

/* The small region as one block, [plan.small_at, plan.matrices_at). */
static enum mg_status make_small(struct writer *w, uint8_t **out, struct mg_err *err) {
    const struct mg_convert_plan *plan = &w->plan;
    uint8_t *block = mg_alloc_zero(plan->matrices_at - plan->small_at, 1);
    *out = block;
    if (!block) return mg_fail_memory(err, "conversion");
    for (size_t i = 0; i < plan->n; i++) {
        const struct mg_piece *p = &plan->piece[i];
        if (p->offset < plan->small_at || p->offset >= plan->matrices_at) continue;
        uint8_t *to = block + (p->offset - plan->small_at);
        if (p->kind == MG_PIECE_BYTES)
            memcpy(to, p->data, p->bytes);
        else if (p->kind == MG_PIECE_VECTOR)
            for (size_t j = 0; j < p->source[0]->n; j++)
                ((float *)(void *)to)[j] = mg_load_f32(p->source[0]->dtype, p->source[0]->data, j);
        if (p->kind == MG_PIECE_VECTOR)
            mg_sha256_update(&w->source, p->source[0]->data,
                             p->source[0]->n * mg_dtype_size(p->source[0]->dtype));
    }
    return MG_OK;
}

static enum mg_status write_front(struct writer *w, const char *source_id, struct mg_err *err) {
    struct mg_convert_plan *plan = &w->plan;
    uint8_t *small = NULL, digest[MG_SHA256_BYTES];
    char source[MG_SHA256_HEX], matrices[MG_SHA256_HEX], hex[MG_SHA256_HEX];
    struct mg_buf head = {0};
    enum mg_status status = make_small(w, &small, err);
    if (status != MG_OK) return status;
    bool fine = mg_sha256(small, plan->matrices_at - plan->small_at, digest);
    mg_hex(digest, sizeof digest, hex);
    fine &= mg_sha256_finish(&w->source, digest);
    mg_hex(digest, sizeof digest, source);
    fine &= mg_sha256_finish(&w->matrices, digest);
    mg_hex(digest, sizeof digest, matrices);
    if (!fine ||
        !mg_convert_plan_head(plan, w->o->weights, source_id, source, hex, matrices, &head))
        status = mg_fail_memory(err, "conversion");
    if (status == MG_OK)
        status = write_at(w, small, plan->matrices_at - plan->small_at, plan->small_at, err);
    if (status == MG_OK) status = write_at(w, head.data, head.n, 0, err);
    mg_buf_free(&head);
    free(small);
    return status;
}

static enum mg_status open_writer(struct writer *w, struct mg_err *err) {
    w->n_thread = mg_pool_size(w->o->pool);
    size_t panel = 0, k = 0;
    for (size_t i = 0; i < w->plan.n; i++) {
        const struct mg_piece *p = &w->plan.piece[i];
        if (p->kind != MG_PIECE_PACKED) continue;
        panel = mg_max_size(panel, mg_packed_panel_bytes(p->pack, p->k));
        k = mg_max_size(k, p->k);
    }
    w->chunk_bytes = mg_max_size(CHUNK_BYTES, panel);
    w->chunk = mg_alloc(w->chunk_bytes, 1);
    w->rows = mg_alloc_zero(w->n_thread, sizeof *w->rows);
    if (!w->chunk || !w->rows) return mg_fail_memory(err, "conversion");
    for (size_t i = 0; i < w->n_thread; i++) {
        w->rows[i] = mg_alloc(MG_PANEL * mg_max_size(k, 1), sizeof(float));
        if (!w->rows[i]) return mg_fail_memory(err, "conversion");
    }
    mg_sha256_begin(&w->source);
    mg_sha256_begin(&w->matrices);
    return MG_OK;
}

static void close_writer(struct writer *w) {
    for (size_t i = 0; w->rows && i < w->n_thread; i++) free(w->rows[i]);
    free(w->rows);
    free(w->chunk);
    mg_sha256_drop(&w->source);
    mg_sha256_drop(&w->matrices);
    mg_convert_plan_free(&w->plan);
}

static enum mg_status check_space(const struct writer *w, struct mg_err *err) {
    struct statvfs fs;
    struct stat st;
    if (fstat(w->fd, &st) != 0 || fstatvfs(w->fd, &fs) != 0 || fs.f_blocks == 0) return MG_OK;
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes >= w->plan.total) return MG_OK;
    return mg_fail(err, MG_ERR_IO, "disk_full", "%s needs %llu MB, there are %llu MB free", w->path,
                   (unsigned long long)(w->plan.total / 1000000),
                   (unsigned long long)(free_bytes / 1000000));
}

static enum mg_status convert(const char *folder, int fd, const char *path,
                              const struct mg_convert_options *o, struct mg_convert_report *report,
                              struct mg_err *err) {
    struct mg_convert_report own = {0};
    struct writer w = {.o = o, .report = report ? report : &own, .fd = fd, .path = path};
    double start = mg_clock();
    char source_id[MG_SOURCE_ID];
    *w.report = (struct mg_convert_report){0};
    enum mg_status status = mg_source_id(folder, o->weights, source_id, err);
    if (status == MG_OK) status = mg_convert_plan_make(folder, o->weights, &w.plan, err);
    if (status == MG_OK) status = check_space(&w, err);
    if (status == MG_OK) status = open_writer(&w, err);
    if (status == MG_OK) status = write_matrices(&w, err);
    if (status == MG_OK) status = write_front(&w, source_id, err);
    w.report->bytes = w.plan.total;
    w.report->seconds = mg_clock() - start;
    close_writer(&w);
    return status;
}

enum mg_status mg_convert_fd(const char *folder, int fd, const struct mg_convert_options *o,
                             struct mg_convert_report *report, struct mg_err *err) {
    return convert(folder, fd, "memory", o, report, err);
}

/* "DIR" of DIR/NAME, and NAME within path. */
static const char *split_path(const char *path, char dir[4096]) {
    snprintf(dir, 4096, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash) {
        snprintf(dir, 4096, ".");
        return path;
    }
    slash[slash == dir] = 0;
    return path + (slash - dir) + 1;
}

/* PATH.tmp-PID of processes that are no more, or that had this one's number: in a container that is
 * the same at every start. */
static void remove_leftovers(const char *dir, const char *name) {
    DIR *d = opendir(dir);
    size_t n = strlen(name);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, name, n) != 0 || strncmp(e->d_name + n, ".tmp-", 5) != 0) continue;
        char *end;
        long pid = strtol(e->d_name + n + 5, &end, 10);
        if (pid <= 0 || *end) continue;
        if (pid == (long)getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d) closedir(d);
}

/* What can't be put in the place of PATH is said before the work: as root a rename would replace
 * even /dev/null, and the source's own files are not to be lost. */
static enum mg_status check_target(const char *folder, const char *path, const char *tmp,
                                   struct mg_err *err) {
    struct stat target, file;
    if (access(tmp, F_OK) != 0 && errno != ENOENT) return mg_fail_errno(err, "create", path, errno);
    if (stat(path, &target) != 0) return MG_OK;
    if (!S_ISREG(target.st_mode))
        return mg_fail(err, MG_ERR_IO, "not_a_file", "%s is there and is not a regular file", path);
    enum mg_status status = MG_OK;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && status == MG_OK && (e = readdir(d));)
        if (fstatat(dirfd(d), e->d_name, &file, 0) == 0 && file.st_ino == target.st_ino &&
            file.st_dev == target.st_dev && mg_source_counts(e->d_name))
            status = mg_fail(err, MG_ERR_ARGUMENT, "usage",
                             "%s is a file of the checkpoint that is to be converted", path);
    if (d) closedir(d);
    return status;
}

enum mg_status mg_convert_file(const char *folder, const char *path,
                               const struct mg_convert_options *o, struct mg_convert_report *report,
                               struct mg_err *err) {
    char tmp[4096];
    int n = snprintf(tmp, sizeof tmp, "%s.tmp-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof tmp) return mg_fail_errno(err, "create", path, ENAMETOOLONG);
    enum mg_status status = check_target(folder, path, tmp, err);
    if (status != MG_OK) return status;
    char dir[4096];
    remove_leftovers(dir, split_path(path, dir));
    /* Without a name nothing is left of it when the process dies. */
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    bool named = fd < 0;
    if (named) fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return mg_fail_errno(err, "create", path, errno);
    status = convert(folder, fd, path, o, report, err);
    if (status == MG_OK && fsync(fd) != 0) status = mg_fail_errno(err, "write", path, errno);
    if (status == MG_OK && !named) {
        char proc[64];
        snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, proc, AT_FDCWD, tmp, AT_SYMLINK_FOLLOW) != 0)
            status = mg_fail_errno(err, "create", tmp, errno);
        named = status == MG_OK;
    }
    if (status == MG_OK && rename(tmp, path) != 0)
        status = mg_fail_errno(err, "rename", path, errno);
    if (status != MG_OK && named) unlink(tmp);
    close(fd);
    return status;
}
