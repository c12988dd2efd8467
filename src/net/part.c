/* net/part.c - see part.h. */
#include "net/part.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEAD (64 + MG_PART_IDENTITY)
#define LINE 21 /* 20 digits and a newline */

static char *path_with(const char *path, const char *suffix) {
    size_t n = strlen(path) + strlen(suffix) + 1;
    char *out = malloc(n);
    if (out) snprintf(out, n, "%s%s", path, suffix);
    return out;
}

static enum mg_status write_at(int fd, const void *data, size_t n, uint64_t at, const char *path,
                               struct mg_err *err) {
    const uint8_t *from = data;
    while (n > 0) {
        ssize_t wrote = pwrite(fd, from, n, (off_t)at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return mg_fail_errno(err, "write", path, errno);
        from += wrote;
        at += (uint64_t)wrote;
        n -= (size_t)wrote;
    }
    return MG_OK;
}

/* The state's first line for this size and piece; its length. */
static size_t head(const struct mg_part *p, uint64_t piece, char out[MAX_HEAD]) {
    return (size_t)snprintf(out, MAX_HEAD, "margay-part-1 %020llu %020llu %s\n",
                            (unsigned long long)p->size, (unsigned long long)piece, p->identity);
}

static bool digits(const char *text, uint64_t *out) {
    uint64_t x = 0;
    for (int i = 0; i < 20; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        if (__builtin_mul_overflow(x, 10u, &x) ||
            __builtin_add_overflow(x, (uint64_t)(text[i] - '0'), &x))
            return false;
    }
    *out = x;
    return true;
}

/* Pieces of this length, nothing in any. */
static enum mg_status cut(struct mg_part *p, uint64_t piece, struct mg_err *err) {
    uint64_t n = p->size / piece + (p->size % piece != 0);
    if (n > MG_PART_MAX_PIECES)
        return mg_fail(err, MG_ERR_LIMIT, "", "%s: more than %zu pieces", p->path,
                       MG_PART_MAX_PIECES);
    free(p->got);
    p->got = calloc((size_t)n + 1, sizeof *p->got);
    if (!p->got) return mg_fail_memory(err, "pieces");
    p->piece = piece;
    p->n_piece = (size_t)n;
    return MG_OK;
}

uint64_t mg_part_begin(const struct mg_part *p, size_t i) {
    return (uint64_t)i * p->piece;
}

uint64_t mg_part_end(const struct mg_part *p, size_t i) {
    uint64_t begin = mg_part_begin(p, i);
    return p->size - begin < p->piece ? p->size : begin + p->piece;
}

uint64_t mg_part_done(const struct mg_part *p) {
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n_piece; i++) sum += p->got[i];
    return sum;
}

/* The state that an earlier run left, in a buffer of its own. NULL: none, or not readable. */
static char *read_state(struct mg_part *p, size_t *n) {
    struct stat st;
    if (p->state_fd < 0 || fstat(p->state_fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        (uint64_t)st.st_size > MAX_HEAD + MG_PART_MAX_PIECES * LINE)
        return NULL;
    char *text = malloc((size_t)st.st_size + 1);
    *n = 0;
    while (text && *n < (size_t)st.st_size) {
        ssize_t got = pread(p->state_fd, text + *n, (size_t)st.st_size - *n, (off_t)*n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        *n += (size_t)got;
    }
    if (text) text[*n] = 0;
    return text;
}

/* Takes over what an earlier run left; false when it is of another file or not to be trusted. */
static bool take_over(struct mg_part *p) {
    struct stat st;
    if (fstat(p->fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != p->size) return false;
    size_t n = 0;
    char *text = read_state(p, &n), line[MAX_HEAD];
    uint64_t piece = 0;
    /* "margay-part-1 " and a number of 20 digits stand before the piece's. */
    bool ok = text && n > 56 && digits(text + 35, &piece) && piece > 0;
    size_t n_head = ok ? head(p, piece, line) : 0;
    ok = ok && n >= n_head && !memcmp(text, line, n_head) && !cut(p, piece, NULL) &&
         n == n_head + p->n_piece * LINE;
    for (size_t i = 0; ok && i < p->n_piece; i++) {
        const char *at = text + n_head + i * LINE;
        ok = digits(at, &p->got[i]) && at[20] == '\n' &&
             p->got[i] <= mg_part_end(p, i) - mg_part_begin(p, i);
    }
    p->n_head = n_head;
    free(text);
    return ok;
}

enum mg_status mg_part_open(struct mg_part *p, const char *path, uint64_t size, uint64_t piece,
                            const char *identity, struct mg_err *err) {
    *p = (struct mg_part){.size = size, .fd = -1, .state_fd = -1};
    snprintf(p->identity, sizeof p->identity, "%s", identity);
    p->path = path_with(path, "");
    p->part_path = path_with(path, ".part");
    p->state_path = path_with(path, ".part.state");
    if (!p->path || !p->part_path || !p->state_path) return mg_fail_memory(err, "paths");
    if (size > INT64_MAX)
        return mg_fail(err, MG_ERR_LIMIT, "", "%s: %llu bytes", path, (unsigned long long)size);
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    p->fd = open(p->part_path, flags, 0666);
    if (p->fd < 0) return mg_fail_errno(err, "create", p->part_path, errno);
    p->state_fd = open(p->state_path, flags, 0666);
    if (p->state_fd < 0) return mg_fail_errno(err, "create", p->state_path, errno);
    return take_over(p) ? MG_OK : mg_part_restart(p, piece, err);
}

enum mg_status mg_part_restart(struct mg_part *p, uint64_t piece, struct mg_err *err) {
    /* The state goes first: without it nobody believes the bytes. */
    if (ftruncate(p->state_fd, 0)) return mg_fail_errno(err, "truncate", p->state_path, errno);
    enum mg_status st = cut(p, piece, err);
    if (st) return st;
    if (ftruncate(p->fd, 0) || ftruncate(p->fd, (off_t)p->size))
        return mg_fail_errno(err, "write", p->part_path, errno);
    if (p->size && fallocate(p->fd, 0, 0, (off_t)p->size) && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINTR) {
        int why = errno;
        if (ftruncate(p->fd, 0)) unlink(p->part_path); /* gives back what was got of the room */
        return mg_fail_errno(err, "reserve room for", p->part_path, why);
    }
    struct mg_buf text = {0};
    char line[MAX_HEAD];
    p->n_head = head(p, piece, line);
    mg_buf_add(&text, line, p->n_head);
    for (size_t i = 0; i < p->n_piece; i++) mg_buf_printf(&text, "%020d\n", 0);
    st = text.failed ? mg_fail_memory(err, "pieces")
                     : write_at(p->state_fd, text.data, text.n, 0, p->state_path, err);
    mg_buf_free(&text);
    return st;
}

enum mg_status mg_part_write(struct mg_part *p, size_t i, const void *data, size_t n,
                             struct mg_err *err) {
    enum mg_status st =
        write_at(p->fd, data, n, mg_part_begin(p, i) + p->got[i], p->part_path, err);
    if (st) return st;
    char line[LINE + 1];
    snprintf(line, sizeof line, "%020llu\n", (unsigned long long)(p->got[i] += n));
    return write_at(p->state_fd, line, LINE, p->n_head + i * LINE, p->state_path, err);
}

/* A new name is safe from a power cut when its folder is on the disk too. */
static void sync_folder(const char *path) {
    char *folder = path_with(path, "");
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash == folder && slash)
        slash[1] = 0;
    else if (slash)
        *slash = 0;
    int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

enum mg_status mg_part_finish(struct mg_part *p, struct mg_err *err) {
    if (fsync(p->fd)) return mg_fail_errno(err, "write", p->part_path, errno);
    if (rename(p->part_path, p->path)) return mg_fail_errno(err, "rename", p->part_path, errno);
    unlink(p->state_path);
    sync_folder(p->path);
    return MG_OK;
}

void mg_part_discard(struct mg_part *p) {
    if (p->state_path) unlink(p->state_path);
    if (p->part_path) unlink(p->part_path);
}

void mg_part_close(struct mg_part *p) {
    if (p->fd >= 0) close(p->fd);
    if (p->state_fd >= 0) close(p->state_fd);
    free(p->got);
    free(p->path);
    free(p->part_path);
    free(p->state_path);
    *p = (struct mg_part){.fd = -1, .state_fd = -1};
}
