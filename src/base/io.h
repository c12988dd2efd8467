/* base/io.h - files: read-only mappings, whole small files, complete writes; the clock; the log.
 *
 * A mapping is shared with the page cache and never written through. Whole-file reads have a cap,
 * since the path may be the user's.
 */
#ifndef MG_BASE_IO_H
#define MG_BASE_IO_H

#include "base/err.h"
#include "base/mem.h"

#include <stdint.h>

/* A regular file mapped PROT_READ, MAP_SHARED. Free with mg_map_close. An empty file is data NULL,
 * n 0. */
struct mg_map {
    const uint8_t *data;
    size_t n;
};
enum mg_status mg_map_open(const char *path, struct mg_map *out, struct mg_err *err);
/* The same of an open file, which stays open; `name` is for messages. */
enum mg_status mg_map_fd(int fd, const char *name, struct mg_map *out, struct mg_err *err);
void mg_map_close(struct mg_map *map);

/* All bytes of a file, pipe or device into `out` (its max applies too); MG_ERR_LIMIT over `max`
 * bytes. path "-" is stdin. A folder, or a regular file that can't be read, is an error. */
enum mg_status mg_file_read(const char *path, size_t max, struct mg_buf *out, struct mg_err *err);

/* Writes a new file (or replaces one) whole: to a temporary name beside it, then renamed; a full
 * disk leaves nothing behind. A pipe or device is written to directly. */
enum mg_status mg_file_write(const char *path, const void *data, size_t n, struct mg_err *err);

/* dir + "/" + name in `out`, MG_ERR_ARGUMENT when it doesn't fit. */
enum mg_status mg_path_join(char *out, size_t cap, const char *dir, const char *name,
                            struct mg_err *err);

/* Monotonic seconds. */
double mg_clock(void);

/* Address space that the process has taken, in bytes; 0 when it can't be read. */
size_t mg_memory_mapped(void);
/* Resident memory of the process in bytes, mapped files included; 0 when it can't be read. */
size_t mg_memory_resident(void);
/* Resident memory of this process in bytes, from /proc: now (RssAnon + VmSwap) and the peak
 * (VmHWM). */
void mg_memory_use(size_t *anon_bytes, size_t *peak_bytes);

enum mg_log_level { MG_LOG_ERROR, MG_LOG_WARN, MG_LOG_INFO, MG_LOG_DEBUG };
/* Lines "margay: TEXT" on stderr up to the level (default WARN). Any thread; one write per line. */
void mg_log_set_level(enum mg_log_level level);
void mg_log(enum mg_log_level level, const char *fmt, ...) MG_PRINTF(2, 3);

#endif
