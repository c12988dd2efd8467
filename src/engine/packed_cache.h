/* engine/packed_cache.h - private to src/engine: the packed file of a checkpoint folder, made at
 * first use.
 *
 *   CACHE/NAME-HASH-int8.safetensors     NAME, HASH: of the folder's real path
 *
 * A file that belongs to another state of the folder, to another version of margay or that is
 * damaged is made anew, and the log says so. Two processes that need the same file at once wait for
 * one conversion (flock on CACHE/....lock). Where no cache can be written the conversion goes to
 * memory, again at every start, with a warning.
 */
#ifndef MG_ENGINE_PACKED_CACHE_H
#define MG_ENGINE_PACKED_CACHE_H

#include "engine/internal.h"
#include "weights/recipe.h"

/* cache_dir NULL: $MARGAY_CACHE_DIR, else $XDG_CACHE_HOME/margay, else ~/.cache/margay. */
enum mg_status mg_packed_cache_open(mg_engine *e, const char *folder, enum mg_file_weights weights,
                                    struct mg_model **out, struct mg_err *err);

#endif
