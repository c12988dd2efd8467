/* image/heif.c - HEIC and AVIF through libheif, when the machine has it.
 *
 * libheif is loaded at the first such picture and stays; margay neither links it nor needs its
 * headers, so the few prototypes of its stable C interface (since 1.0; 1.3 for the size limit)
 * stand here. Without it the request fails with a text that says what to install. MARGAY_LIBHEIF
 * names another file to load; empty means: don't load any. libheif turns the picture itself (irot,
 * imir), so EXIF, which repeats the same turn, is not looked at.
 */
#include "image/decode.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    if (!name)
        name = "libheif.so.1";
    void *so = *name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!so)
        return;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *symbol = dlsym(so, want[i].name);
        if (!symbol)
            return;
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
    if (e.code == MEMORY)
        return mg_fail_memory(err, "HEIF decoder");
    if (e.code == INVALID_INPUT && e.subcode == END_OF_DATA)
        return mg_image_truncated(err, what);
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
        if (size == 0)
            return true; /* up to the end */
        if (size < 8 || size > n - at)
            return size < 8;
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
    if (!complete(data, n))
        return mg_image_truncated(err, what);
    j->context = lib.context_alloc();
    if (!j->context)
        return mg_fail_memory(err, "HEIF decoder");
    struct heif_error e = lib.read(j->context, data, n, NULL);
    if (e.code == 0)
        e = lib.primary(j->context, &j->handle);
    return e.code == 0 ? MG_OK : fail(err, what, e);
}

static void close_file(struct job *j) {
    if (j->image)
        lib.image_release(j->image);
    if (j->handle)
        lib.handle_release(j->handle);
    if (j->context)
        lib.context_free(j->context);
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

enum mg_status mg_heif_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              const struct mg_image_info *info, struct mg_raster *raster,
                              struct mg_err *err) {
    const char *what = mg_image_format_name(info->format);
    struct job j = {0};
    void *image = NULL;
    int stride = 0;
    enum mg_status s = open_file(data, n, info, &j, err);
    if (s != MG_OK)
        goto out;
    if (lib.limit)
        lib.limit(j.context, (int)mg_min_size(o->limits.max_side, 1 << 20));
    struct heif_error e = lib.decode(j.handle, &image, COLORSPACE_RGB,
                                     info->has_alpha ? CHROMA_RGBA : CHROMA_RGB, NULL);
    j.image = image;
    if (e.code != 0) {
        s = fail(err, what, e);
        goto out;
    }
    const uint8_t *p = lib.plane(image, CHANNEL_INTERLEAVED, &stride);
    if (!p || stride <= 0 || lib.image_width(image, CHANNEL_INTERLEAVED) != (int)info->width ||
        lib.image_height(image, CHANNEL_INTERLEAVED) != (int)info->height) {
        s = mg_image_damaged(err, what, "the picture has another size than its header");
        goto out;
    }
    if (info->has_alpha)
        mg_raster_put_rgba(raster, 0, 0, info->width, info->height, p, (size_t)stride,
                           o->background);
    else
        mg_raster_put(raster, 0, 0, info->width, info->height, p, (size_t)stride);
out:
    close_file(&j);
    return s;
}
