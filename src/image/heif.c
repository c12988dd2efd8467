/* image/heif.c - HEIC and AVIF through libheif, when the machine has it.
 *
 * libheif is loaded at the first such picture and stays; margay neither links it nor needs its
 * headers, so the few prototypes of its stable C interface (since 1.0; 1.3 for the size limit)
 * stand here. Without it the request fails with a text that says what to install. MARGAY_LIBHEIF
 * names another file to load; empty means: don't load any. libheif turns the picture itself (irot,
 * imir), so EXIF, which repeats the same turn, is not looked at.
 *
 * Decoding runs in a child process with limits on memory and time: a file of 600 bytes whose
 * bitstream claims another size than its boxes made dav1d take 3.4 GB (found by fuzzing), and
 * libheif 1.15 has no limit for that. The child writes pixels and outcome into shared memory:
 *
 *   struct outcome | rows [height][width][3 or 4]
 */
#include "image/decode.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct heif_error {
    int code, subcode;
    const char *message; /* static text */
};

enum { COLORSPACE_RGB = 1, CHROMA_RGB = 10, CHROMA_RGBA = 11, CHANNEL_INTERLEAVED = 10 };
/* heif_error_code */
enum { INVALID_INPUT = 2, UNSUPPORTED_FILE = 3, UNSUPPORTED_FEATURE = 4, MEMORY = 6, PLUGIN = 7 };
enum { END_OF_DATA = 100, SECURITY_LIMIT = 1000 }; /* heif_suberror_code */

static struct {
    bool ready;
    void *(*context_alloc)(void);
    void (*context_free)(void *);
    struct heif_error (*read)(void *, const void *, size_t, const void *);
    struct heif_error (*primary)(void *, void **);
    void (*handle_release)(const void *);
    int (*width)(const void *);
    int (*height)(const void *);
    int (*has_alpha)(const void *);
    int (*n_image)(void *);
    void (*limit)(void *, int); /* may be NULL */
    struct heif_error (*decode)(const void *, void **, int, int, const void *);
    void (*image_release)(const void *);
    int (*image_width)(const void *, int);
    int (*image_height)(const void *, int);
    const uint8_t *(*plane)(const void *, int, int *);
} lib;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    static const struct {
        const char *name;
        void *to;
    } want[] = {
        {"heif_context_alloc", &lib.context_alloc},
        {"heif_context_free", &lib.context_free},
        {"heif_context_read_from_memory_without_copy", &lib.read},
        {"heif_context_get_primary_image_handle", &lib.primary},
        {"heif_image_handle_release", &lib.handle_release},
        {"heif_image_handle_get_width", &lib.width},
        {"heif_image_handle_get_height", &lib.height},
        {"heif_image_handle_has_alpha_channel", &lib.has_alpha},
        {"heif_context_get_number_of_top_level_images", &lib.n_image},
        {"heif_decode_image", &lib.decode},
        {"heif_image_release", &lib.image_release},
        {"heif_image_get_width", &lib.image_width},
        {"heif_image_get_height", &lib.image_height},
        {"heif_image_get_plane_readonly", &lib.plane},
    };
    const char *name = getenv("MARGAY_LIBHEIF");
    if (!name) name = "libheif.so.1";
    void *so = *name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!so) return;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *symbol = dlsym(so, want[i].name);
        if (!symbol) return;
        memcpy(want[i].to, &symbol, sizeof symbol);
    }
    void *limit = dlsym(so, "heif_context_set_maximum_image_size_limit");
    memcpy(&lib.limit, &limit, sizeof limit);
    lib.ready = true;
}

static enum mg_status fail(struct mg_err *err, const char *what, struct heif_error e) {
    if (e.code == UNSUPPORTED_FILE || e.code == UNSUPPORTED_FEATURE || e.code == PLUGIN)
        return mg_fail(err, MG_ERR_UNSUPPORTED, "image_format_unsupported",
                       "%s: the installed libheif can't decode it; convert the picture to JPEG",
                       what);
    if (e.code == MEMORY && e.subcode == SECURITY_LIMIT)
        return mg_fail(err, MG_ERR_LIMIT, "image_too_large", "%s: over libheif's limits", what);
    if (e.code == MEMORY) return mg_fail_memory(err, "HEIF decoder");
    if (e.code == INVALID_INPUT && e.subcode == END_OF_DATA) return mg_image_truncated(err, what);
    return mg_image_damaged(err, what, "libheif refuses it");
}

/* An image item whose bytes lie behind the end of the file decodes to half a picture in some
 * decoders: the boxes at top level must end where the file does. */
static bool complete(const uint8_t *data, size_t n) {
    size_t at = 0;
    while (n - at >= 8) {
        uint64_t size = mg_be32(data + at);
        if (size == 1 && n - at >= 16)
            size = (uint64_t)mg_be32(data + at + 8) << 32 | mg_be32(data + at + 12);
        if (size == 0) return true; /* up to the end */
        if (size < 8 || size > n - at) return size < 8;
        at += (size_t)size;
    }
    return true;
}

struct job {
    void *context, *handle;
    const void *image;
};

static enum mg_status open_file(const uint8_t *data, size_t n, const struct mg_image_info *info,
                                struct job *j, struct mg_err *err) {
    const char *what = mg_image_format_name(info->format);
    pthread_once(&once, load);
    if (!lib.ready)
        return mg_fail(err, MG_ERR_UNSUPPORTED, "image_format_unsupported",
                       "%s: convert the picture to JPEG, or install libheif (libheif1 in Debian "
                       "and Ubuntu) on the machine that runs margay",
                       what);
    if (!complete(data, n)) return mg_image_truncated(err, what);
    j->context = lib.context_alloc();
    if (!j->context) return mg_fail_memory(err, "HEIF decoder");
    struct heif_error e = lib.read(j->context, data, n, NULL);
    if (e.code == 0) e = lib.primary(j->context, &j->handle);
    return e.code == 0 ? MG_OK : fail(err, what, e);
}

static void close_file(struct job *j) {
    if (j->image) lib.image_release(j->image);
    if (j->handle) lib.handle_release(j->handle);
    if (j->context) lib.context_free(j->context);
}

enum mg_status mg_heif_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                             struct mg_err *err) {
    struct job j = {0};
    enum mg_status s = open_file(data, n, info, &j, err);
    if (s == MG_OK) {
        int w = lib.width(j.handle), h = lib.height(j.handle), frames = lib.n_image(j.context);
        info->width = w > 0 ? (uint32_t)w : 0;
        info->height = h > 0 ? (uint32_t)h : 0;
        info->n_frame = frames > 0 ? (uint32_t)frames : 1;
        info->has_alpha = lib.has_alpha(j.handle) != 0;
    }
    close_file(&j);
    return s;
}

enum { CHILD_BASE = 256 << 20, CHILD_PER_PIXEL = 40, CHILD_SECONDS = 60 };

/* What the child tells. */
struct outcome {
    bool told;         /* it came to an end */
    struct mg_err err; /* status MG_OK: the rows are there */
};

/* Address space for what is there and for decoding n_pixel more; processor time; no terminal
 * signals. */
static void limit_child(size_t n_pixel) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%lu", &pages) != 1) pages = 0;
        fclose(f);
    }
    rlim_t more = (rlim_t)CHILD_BASE + (rlim_t)CHILD_PER_PIXEL * n_pixel;
    struct rlimit memory = {0}, cpu = {CHILD_SECONDS, CHILD_SECONDS}, core = {0, 0};
    memory.rlim_cur = memory.rlim_max = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    if (pages) setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &core);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
}

/* In the child: decodes and copies the rows out. */
static enum mg_status decode_rows(struct job *j, const struct mg_image_info *info, uint8_t *rows,
                                  struct mg_err *err) {
    const char *what = mg_image_format_name(info->format);
    void *image = NULL;
    int stride = 0;
    struct heif_error e = lib.decode(j->handle, &image, COLORSPACE_RGB,
                                     info->has_alpha ? CHROMA_RGBA : CHROMA_RGB, NULL);
    j->image = image;
    if (e.code != 0) return fail(err, what, e);
    const uint8_t *p = lib.plane(image, CHANNEL_INTERLEAVED, &stride);
    size_t row = (size_t)info->width * (info->has_alpha ? 4 : 3);
    if (!p || stride <= 0 || (size_t)stride < row ||
        lib.image_width(image, CHANNEL_INTERLEAVED) != (int)info->width ||
        lib.image_height(image, CHANNEL_INTERLEAVED) != (int)info->height)
        return mg_image_damaged(err, what, "the picture has another size than its header");
    for (size_t y = 0; y < info->height; y++) memcpy(rows + y * row, p + y * (size_t)stride, row);
    return MG_OK;
}

/* Runs decode_rows in a child; the outcome and the rows lie in `shared`. */
static enum mg_status decode_apart(struct job *j, const struct mg_image_info *info,
                                   struct outcome *shared, struct mg_err *err) {
    const char *what = mg_image_format_name(info->format);
    pid_t child = fork(), got;
    if (child < 0)
        return mg_fail(err, MG_ERR_MEMORY, "out_of_memory",
                       "%s: can't start a process to decode it", what);
    if (child == 0) {
        limit_child((size_t)info->width * info->height);
        decode_rows(j, info, (uint8_t *)(shared + 1), &shared->err);
        shared->told = true;
        _exit(0);
    }
    int status = 0;
    do got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    if (!shared->told)
        return mg_image_damaged(err, what, "its decoder failed or went over its limits");
    if (shared->err.status != MG_OK)
        return mg_fail(err, shared->err.status, shared->err.code, "%s", shared->err.text);
    return MG_OK;
}

enum mg_status mg_heif_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              const struct mg_image_info *info, struct mg_raster *raster,
                              struct mg_err *err) {
    struct job j = {0};
    struct outcome *shared = MAP_FAILED;
    size_t row = (size_t)info->width * (info->has_alpha ? 4 : 3), bytes = 0;
    enum mg_status s = open_file(data, n, info, &j, err);
    if (s != MG_OK) goto out;
    if (lib.limit) lib.limit(j.context, (int)mg_min_size(o->limits.max_side, 1 << 20));
    if (mg_mul_size(row, info->height, &bytes) && mg_add_size(bytes, sizeof *shared, &bytes))
        shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s = shared == MAP_FAILED ? mg_fail_memory(err, "HEIF picture")
                             : decode_apart(&j, info, shared, err);
    if (s != MG_OK) goto out;
    const uint8_t *p = (const uint8_t *)(shared + 1);
    if (info->has_alpha)
        mg_raster_put_rgba(raster, 0, 0, info->width, info->height, p, row, o->background);
    else
        mg_raster_put(raster, 0, 0, info->width, info->height, p, row);
out:
    if (shared != MAP_FAILED) munmap(shared, bytes);
    close_file(&j);
    return s;
}
