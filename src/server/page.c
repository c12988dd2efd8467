/* server/page.c - see page.h. Loop thread only.
 *
 * Embedded files come compressed as tools/pack_page.py left them, and are unpacked for the few
 * clients that take no gzip. Names with a hash in them may be kept by browsers for ever, all else
 * is asked for again with If-None-Match. Files of a folder are opened beneath it by the kernel,
 * without symbolic links, and only regular ones are read.
 */
#include "server/page.h"

#include "base/io.h"
#include "base/sha256.h"
#include "net/http_text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>

#define ETAG_DIGITS 20
#define FILE_MAX ((size_t)16 << 20) /* bytes of one of a folder's files */

extern const unsigned char mg_page_pack[], mg_page_pack_end[]; /* page.S */

struct file {
    char name[128]; /* "assets/index-1a2b3c4d.js" */
    char type[40];
    char digest[ETAG_DIGITS + 4];
    bool gzip; /* `data` is */
    bool kept; /* its name says what is in it */
    size_t size;
    const unsigned char *data; /* [n] in the program */
    size_t n;
};

struct page {
    int folder_fd; /* -1: embedded */
    const char *prefix;
    struct file *file; /* [n_file] owned */
    size_t n_file;
};

/* No script, style, picture or connection but our own; blob: and data: pictures are the user's.
 * Scripts can't make markup of text but through the sanitizer (trusted types). */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; worker-src 'self'; media-src 'self' blob:; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types margay dompurify";

/* --- opening --- */
static bool read_line(struct file *f, const char *line, size_t n, const unsigned char **body,
                      const unsigned char *end) {
    char text[256], coding[16];
    unsigned kept;
    if (n >= sizeof text) return false;
    memcpy(text, line, n);
    text[n] = 0;
    if (sscanf(text, "%127s %39s %15s %u %zu %zu %20s", f->name, f->type, coding, &kept, &f->size,
               &f->n, f->digest) != 7)
        return false;
    if (f->n > (size_t)(end - *body)) return false;
    f->gzip = strcmp(coding, "gzip") == 0;
    f->kept = kept == 1;
    f->data = *body;
    *body += f->n;
    return true;
}

static enum mg_status read_pack(struct page *p, struct mg_err *err) {
    static const char head[] = "margay-page 1\n";
    const unsigned char *end = mg_page_pack_end, *at = mg_page_pack;
    size_t n = (size_t)(end - at), n_line = 0;
    const unsigned char *body = n > sizeof head ? memmem(at, n, "\n\n", 2) : NULL;
    bool good = body && memcmp(at, head, sizeof head - 1) == 0;
    at += sizeof head - 1;
    for (const unsigned char *c = at; good && c <= body; c++) n_line += *c == '\n';
    p->file = good ? mg_alloc_zero(n_line, sizeof *p->file) : NULL;
    if (good && !p->file) return mg_fail_memory(err, "page");
    const unsigned char *data = good ? body + 2 : NULL;
    while (good && at < body) {
        const unsigned char *line_end = memchr(at, '\n', (size_t)(end - at));
        good = line_end && read_line(&p->file[p->n_file], (const char *)at, (size_t)(line_end - at),
                                     &data, end);
        p->n_file += good;
        at = good ? line_end + 1 : at;
    }
    return good ? MG_OK
                : mg_fail(err, MG_ERR_FORMAT, "page", "the embedded page is not well formed");
}

enum mg_status page_open(const char *folder, const char *prefix, struct page **out,
                         struct mg_err *err) {
    struct page *p = *out = calloc(1, sizeof *p);
    if (!p) return mg_fail_memory(err, "page");
    p->folder_fd = -1;
    p->prefix = prefix ? prefix : "";
    if (!folder) return read_pack(p, err);
    p->folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (p->folder_fd < 0)
        return mg_fail(err, MG_ERR_IO, "path", "--path %s: %s", folder, strerror(errno));
    return MG_OK;
}

void page_close(struct page *p) {
    if (!p) return;
    if (p->folder_fd >= 0) close(p->folder_fd);
    free(p->file);
    free(p);
}

size_t page_routes(const struct page *p, mg_http_fn *fn, int tag, struct mg_http_route *route) {
    static const char *const embedded[PAGE_ROUTES] = {"/", "/index.html", "/favicon.svg",
                                                      "/manifest.webmanifest", "/assets/{name}"};
    static const char *const folder[] = {"/", "/{path*}"};
    const char *const *pattern = p->folder_fd < 0 ? embedded : folder;
    size_t n = p->folder_fd < 0 ? PAGE_ROUTES : 2;
    for (size_t i = 0; i < n; i++)
        route[i] =
            (struct mg_http_route){.method = "GET", .pattern = pattern[i], .fn = fn, .tag = tag};
    return n;
}

/* --- replies --- */
static void add_fields(struct mg_http_exchange *x) {
    mg_http_add_field(x, "Content-Security-Policy", policy);
    mg_http_add_field(x, "X-Content-Type-Options", "nosniff");
    mg_http_add_field(x, "X-Frame-Options", "DENY");
    mg_http_add_field(x, "Referrer-Policy", "no-referrer");
    mg_http_add_field(x, "Cross-Origin-Opener-Policy", "same-origin");
    mg_http_add_field(x, "Cross-Origin-Resource-Policy", "same-origin");
    mg_http_add_field(x, "Permissions-Policy",
                      "camera=(self), microphone=(), geolocation=(), payment=(), usb=()");
}

/* If-None-Match, by the weak comparison; a tag is the digest, with -gz for the compressed form. */
static bool is_known(struct mg_http_exchange *x, const char *digest) {
    const char *known = mg_http_header(x, "if-none-match");
    return known && (strstr(known, digest) || (known[0] == '*' && !known[1]));
}

/* Type and ETag; true when the client has it already, which is then replied. */
static bool is_unchanged(struct mg_http_exchange *x, const char *digest, bool gzip, bool kept) {
    char etag[ETAG_DIGITS + 8];
    snprintf(etag, sizeof etag, "\"%s%s\"", digest, gzip ? "-gz" : "");
    mg_http_add_field(x, "ETag", etag);
    mg_http_add_field(x, "Cache-Control",
                      kept ? "public, max-age=31536000, immutable" : "no-cache");
    if (!is_known(x, digest)) return false;
    mg_http_reply(x, 304, NULL, NULL, 0);
    return true;
}

static const char *full_type(const char *type, char out[64]) {
    bool text = strncmp(type, "text/", 5) == 0;
    snprintf(out, 64, "%s%s", type, text ? "; charset=utf-8" : "");
    return out;
}

static void reply_unpacked(struct mg_http_exchange *x, const struct file *f, const char *type) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)f->data, .avail_in = (uInt)f->n};
    uint8_t *out = malloc(f->size ? f->size : 1);
    bool good = out && inflateInit2(&z, 15 + 16) == Z_OK;
    if (good) {
        z.next_out = out;
        z.avail_out = (uInt)f->size;
        good = inflate(&z, Z_FINISH) == Z_STREAM_END && z.total_out == f->size;
        inflateEnd(&z);
    }
    if (good) {
        mg_http_reply(x, 200, type, out, f->size);
    } else {
        mg_http_reply_error(x, 503, "out_of_memory", "out of memory");
    }
    free(out);
}

static void reply_embedded(const struct page *p, struct mg_http_exchange *x, const char *name) {
    const struct file *f = NULL;
    for (size_t i = 0; i < p->n_file && !f; i++)
        if (strcmp(p->file[i].name, name) == 0) f = &p->file[i];
    if (!f) {
        mg_http_reply_error(x, 404, "not_found", "there is nothing at this path");
        return;
    }
    bool gzip = f->gzip && mg_http_accepts_gzip(mg_http_header(x, "accept-encoding"));
    char type[64];
    add_fields(x);
    if (f->gzip) mg_http_add_field(x, "Vary", "Accept-Encoding");
    if (is_unchanged(x, f->digest, gzip, f->kept)) return;
    full_type(f->type, type);
    if (f->gzip && !gzip) {
        reply_unpacked(x, f, type);
        return;
    }
    if (gzip) mg_http_add_field(x, "Content-Encoding", "gzip");
    mg_http_reply(x, 200, type, f->data, f->n);
}

static const char *type_of(const char *name) {
    static const char *const known[][2] = {
        {".html", "text/html"},        {".js", "text/javascript"},
        {".css", "text/css"},          {".svg", "image/svg+xml"},
        {".png", "image/png"},         {".webp", "image/webp"},
        {".json", "application/json"}, {".webmanifest", "application/manifest+json"},
        {".map", "application/json"},  {".woff2", "font/woff2"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof known / sizeof *known; i++)
        if (strcmp(dot, known[i][0]) == 0) return known[i][1];
    return "application/octet-stream";
}

static bool read_file(int folder_fd, const char *name, struct mg_buf *out) {
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    struct stat st;
    int fd = (int)syscall(SYS_openat2, folder_fd, name, &how, sizeof how);
    bool good = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    while (good) {
        uint8_t piece[65536];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) break;
        good = n > 0 && mg_buf_add(out, piece, (size_t)n);
    }
    if (fd >= 0) close(fd);
    return good;
}

static void reply_from_folder(const struct page *p, struct mg_http_exchange *x, const char *name) {
    struct mg_buf data = {.max = FILE_MAX};
    uint8_t sum[MG_SHA256_BYTES];
    char digest[2 * MG_SHA256_BYTES + 1], type[64];
    if (!read_file(p->folder_fd, name, &data) || !mg_sha256(data.data, data.n, sum)) {
        mg_http_reply_error(x, 404, "not_found", "there is nothing at this path");
    } else {
        mg_hex(sum, sizeof sum, digest);
        digest[ETAG_DIGITS] = 0;
        add_fields(x);
        if (!is_unchanged(x, digest, false, false))
            mg_http_reply(x, 200, full_type(type_of(name), type), data.data, data.n);
    }
    mg_buf_free(&data);
}

void page_reply(const struct page *p, struct mg_http_exchange *x) {
    size_t n_prefix = strlen(p->prefix);
    const char *path = mg_http_path(x) + n_prefix;
    if (*path != '/') { /* the prefix alone: relative names need the slash */
        char to[512];
        snprintf(to, sizeof to, "%s/", p->prefix);
        mg_http_add_field(x, "Location", to);
        mg_http_reply(x, 308, NULL, NULL, 0);
        return;
    }
    const char *name = path[1] ? path + 1 : "index.html";
    if (p->folder_fd < 0)
        reply_embedded(p, x, name);
    else
        reply_from_folder(p, x, name);
}
