/* base/io.c - see io.h. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum mg_status mg_map_fd(int fd, const char *name, struct mg_map *out, struct mg_err *err) {
    *out = (struct mg_map){0};
    struct stat st;
    if (fstat(fd, &st) != 0) return mg_fail_errno(err, "stat", name, errno);
    if (!S_ISREG(st.st_mode)) return mg_fail(err, MG_ERR_IO, "", "%s is not a regular file", name);
    if (st.st_size == 0) return MG_OK;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return mg_fail_errno(err, "map", name, errno);
    *out = (struct mg_map){p, (size_t)st.st_size};
    return MG_OK;
}

enum mg_status mg_map_open(const char *path, struct mg_map *out, struct mg_err *err) {
    *out = (struct mg_map){0};
    /* Nonblocking, so that a FIFO is refused below instead of waiting for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return mg_fail_errno(err, "open", path, errno);
    enum mg_status status = mg_map_fd(fd, path, out, err);
    close(fd);
    return status;
}

void mg_map_close(struct mg_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->n);
    *map = (struct mg_map){0};
}

enum mg_status mg_file_read(const char *path, size_t max, struct mg_buf *out, struct mg_err *err) {
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return mg_fail_errno(err, "open", name, errno);
    enum mg_status status = MG_OK;
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        if ((uint64_t)st.st_size > max)
            status =
                mg_fail(err, MG_ERR_LIMIT, "file_too_large", "%s has %lld bytes, the limit is %zu",
                        name, (long long)st.st_size, max);
        else if (!mg_buf_reserve(out, (size_t)st.st_size))
            status = mg_fail_memory(err, name);
    }
    size_t total = 0;
    while (status == MG_OK) {
        uint8_t chunk[65536];
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = mg_fail_errno(err, "read", name, errno);
        if (got <= 0) break;
        total += (size_t)got;
        if (total > max)
            status = mg_fail(err, MG_ERR_LIMIT, "file_too_large",
                             "%s has more than %zu bytes, the limit", name, max);
        else if (!mg_buf_add(out, chunk, (size_t)got))
            status = mg_fail_memory(err, name);
    }
    if (!is_stdin) close(fd);
    return status;
}

static enum mg_status write_all(int fd, const uint8_t *data, size_t n, const char *path,
                                struct mg_err *err) {
    while (n > 0) {
        ssize_t wrote = write(fd, data, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return mg_fail_errno(err, "write", path, errno);
        data += wrote;
        n -= (size_t)wrote;
    }
    return MG_OK;
}

enum mg_status mg_file_write(const char *path, const void *data, size_t n, struct mg_err *err) {
    char tmp[4096];
    struct stat st;
    /* A pipe or device (/dev/stdout, /dev/null) is written to, never replaced. */
    bool replace = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    int len = snprintf(tmp, sizeof tmp, "%s.tmp-%ld", path, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof tmp)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "path too long");
    if (replace)
        unlink(tmp); /* of a process that died; O_EXCL then refuses whatever stands there */
    int fd = replace ? open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)
                     : open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return mg_fail_errno(err, "create", path, errno);
    enum mg_status status = write_all(fd, data, n, path, err);
    if (close(fd) != 0 && status == MG_OK) status = mg_fail_errno(err, "write", path, errno);
    if (status == MG_OK && replace && rename(tmp, path) != 0)
        status = mg_fail_errno(err, "rename", path, errno);
    if (status != MG_OK && replace) unlink(tmp);
    return status;
}

enum mg_status mg_path_join(char *out, size_t cap, const char *dir, const char *name,
                            struct mg_err *err) {
    int n = snprintf(out, cap, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= cap) return mg_fail(err, MG_ERR_ARGUMENT, "", "path too long");
    return MG_OK;
}

double mg_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_statm(unsigned long long pages[2]) {
    pages[0] = pages[1] = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return;
    if (fscanf(f, "%llu %llu", &pages[0], &pages[1]) != 2) pages[0] = pages[1] = 0;
    fclose(f);
}

size_t mg_memory_mapped(void) {
    unsigned long long pages[2];
    read_statm(pages);
    return (size_t)pages[0] * (size_t)sysconf(_SC_PAGESIZE);
}

size_t mg_memory_resident(void) {
    unsigned long long pages[2];
    read_statm(pages);
    return (size_t)pages[1] * (size_t)sysconf(_SC_PAGESIZE);
}

void mg_memory_use(size_t *anon_bytes, size_t *peak_bytes) {
    *anon_bytes = *peak_bytes = 0;
    FILE *f = fopen("/proc/self/status", "re");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        unsigned long long kb;
        if (sscanf(line, "RssAnon: %llu", &kb) == 1 || sscanf(line, "VmSwap: %llu", &kb) == 1)
            *anon_bytes += (size_t)kb * 1024;
        if (sscanf(line, "VmHWM: %llu", &kb) == 1) *peak_bytes = (size_t)kb * 1024;
    }
    fclose(f);
}

static atomic_int log_level = MG_LOG_WARN;

void mg_log_set_level(enum mg_log_level level) {
    atomic_store(&log_level, (int)level);
}

void mg_log(enum mg_log_level level, const char *fmt, ...) {
    if ((int)level > atomic_load(&log_level)) return;
    char line[1024];
    int head = snprintf(line, sizeof line, "margay: ");
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + head, sizeof line - (size_t)head - 1, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    size_t len = mg_min_size((size_t)(head + n), sizeof line - 2);
    line[len++] = '\n';
    for (size_t at = 0; at < len;) {
        ssize_t wrote = write(STDERR_FILENO, line + at, len - at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return; /* nobody left to tell */
        at += (size_t)wrote;
    }
}
