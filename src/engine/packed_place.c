/* engine/packed_place.c - see packed_place.h. */
#include "engine/packed_place.h"

#include "base/sha256.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool cache_folder(const char *set, char out[PATH_MAX]) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
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

enum mg_status mg_packed_place_find(const char *cache_dir, const char *folder,
                                    enum mg_file_weights weights, struct mg_packed_place *out,
                                    struct mg_err *err) {
    char real[PATH_MAX], name[64], hex[MG_SHA256_HEX];
    uint8_t digest[MG_SHA256_BYTES];
    if (!realpath(folder, real)) return mg_fail_errno(err, "open", folder, errno);
    if (!cache_folder(cache_dir, out->dir))
        return mg_fail(err, MG_ERR_IO, "no_cache",
                       "no cache folder: HOME is not set, or the folder's path is too long");
    if (!mg_sha256(real, strlen(real), digest)) return mg_fail_memory(err, "cache name");
    mg_hex(digest, sizeof digest, hex);
    short_name(real, name);
    snprintf(out->path, sizeof out->path, "%s/%s-%.12s-%s.safetensors", out->dir, name, hex,
             mg_file_weights_name(weights));
    return MG_OK;
}
