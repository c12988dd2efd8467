/* weights/packed_file.h - reading what convert.h writes.
 *
 * A file is believed only as far as it is checked: its format and lengths always, everything but
 * the matrices against its digests at every opening (some 10 MB), of each matrix the sums of its
 * first and last panel when it is bound, and the matrices' own digest on request.
 */
#ifndef MG_WEIGHTS_PACKED_FILE_H
#define MG_WEIGHTS_PACKED_FILE_H

#include "kernels/packed.h"
#include "weights/config.h"
#include "weights/recipe.h"
#include "weights/weights.h"

struct mg_manifest {
    enum mg_file_weights weights;
    char source_id[65];       /* mg_source_id of the folder that it was made from */
    char matrices_sha256[65]; /* hexadecimal, lower case */
    char small_sha256[65];    /* of all that is neither matrix nor header nor this manifest */
    size_t matrices_bytes;    /* to the end of the file */
    const uint8_t *matrices;  /* view, as long as the weights are open */
};

/* *packed false: these weights are an ordinary checkpoint. Errors: packed_format (made by another
 * version), packed_damaged. */
enum mg_status mg_manifest_read(const struct mg_weights *w, bool *packed, struct mg_manifest *out,
                                struct mg_err *err);
/* Reads all matrices: MG_ERR_FORMAT packed_damaged when their digest is another. */
enum mg_status mg_manifest_verify(const struct mg_manifest *m, struct mg_err *err);

/* The text of "margay.file.NAME" as a view; data NULL when it isn't there. */
struct mg_slice mg_packed_file_text(const struct mg_weights *w, const char *name);
enum mg_status mg_packed_file_config(const struct mg_weights *w, struct mg_config *out,
                                     struct mg_err *err);

/* NAME.packed with its scales and sums, of exactly this shape, as views; *found false when there is
 * no such tensor (the matrix may be there as NAME.weight). Errors: tensor_shape, tensor_unaligned,
 * packed_wide, packed_damaged. */
enum mg_status mg_packed_find(const struct mg_weights *w, const char *name, bool interleaved,
                              size_t n, size_t k, bool *found, struct mg_packed *out,
                              struct mg_err *err);

#endif
