/* engine/packed_place.h - where the packed file of a checkpoint folder is kept.
 *
 *   CACHE/NAME-HASH-int8.safetensors     NAME, HASH: of the folder's real path
 */
#ifndef MG_ENGINE_PACKED_PLACE_H
#define MG_ENGINE_PACKED_PLACE_H

#include "base/err.h"
#include "weights/recipe.h"

#include <limits.h>

struct mg_packed_place {
    char dir[PATH_MAX];        /* the cache folder, which need not be there */
    char path[PATH_MAX + 320]; /* of the packed file, likewise */
};

/* cache_dir NULL: $MARGAY_CACHE_DIR, else $XDG_CACHE_HOME/margay, else ~/.cache/margay. Code
 * no_cache when there is none of these. */
enum mg_status mg_packed_place_find(const char *cache_dir, const char *folder,
                                    enum mg_file_weights weights, struct mg_packed_place *out,
                                    struct mg_err *err);

#endif
