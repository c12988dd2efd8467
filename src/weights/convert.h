/* weights/convert.h - a checkpoint folder into one packed file, and what identifies it.
 *
 * The file is a valid safetensors container: matrices as kernels/packed.h has them or row-major
 * bf16, vectors in f32, the checkpoint's own small files as byte tensors, so that the one file is a
 * whole model. Vision first, then the decoder layer by layer, as they are read.
 *
 *   NAME.packed  U8 [panels][blocks][bytes of a block]     NAME.scale F32, NAME.sum I32 [panels*32]
 *   NAME.weight  BF16, or F32 for vectors                  NAME.bias  F32
 *   margay.file.config.json, .generation_config.json, .preprocess, .tokenizer.json, ...   U8
 *   margay.json  U8: {"format", "weights", "source_id", "source_sha256", "head_sha256", ...}
 *   margay.pad.N U8: zeros that put the next matrix at a multiple of 4096 bytes
 *
 * Fused: ATTN.qkv_proj = q, k, v one under the other (ATTN.qk_proj and ATTN.v_proj when their
 * precisions differ); MLP.gate_up_proj interleaved by 16.
 *
 * `source_id` tells cheaply whether a file still belongs to its folder: a hash of the names, sizes
 * and times of the checkpoint's files and of format and precision. `head_sha256` covers the
 * container's header, `small_sha256` all that is no matrix; both are checked at every opening.
 */
#ifndef MG_WEIGHTS_CONVERT_H
#define MG_WEIGHTS_CONVERT_H

#include "base/err.h"
#include "cpu/pool.h"
#include "weights/recipe.h"

#include <stdbool.h>
#include <stdint.h>

#define MG_PACKED_FORMAT 2 /* raised whenever old files can't be read any more */

/* done of total bytes written; false stops with MG_ERR_CANCELLED. */
typedef bool mg_convert_progress_fn(void *user, uint64_t done, uint64_t total);

struct mg_convert_options {
    enum mg_file_weights weights;
    struct mg_pool *pool;             /* borrowed; NULL: the caller alone */
    mg_convert_progress_fn *progress; /* may be NULL */
    void *user;
};

/* How well the matrices of a part are represented. */
struct mg_convert_part {
    size_t count;         /* matrices, 0 when there is none */
    uint64_t weights;     /* numbers */
    uint64_t bytes;       /* in the file */
    double error, square; /* sums over all of them: squared error, squares */
};
struct mg_convert_report {
    struct mg_convert_part part[MG_N_MATRIX][3]; /* by part and enum mg_store */
    uint64_t bytes;                              /* of the file */
    double seconds;
};

/* Writes the file at `path`: whole and synced under its name, or not at all (a killed conversion
 * leaves no partial file where the system has O_TMPFILE, else one that the next conversion
 * removes). */
enum mg_status mg_convert_file(const char *folder, const char *path,
                               const struct mg_convert_options *o, struct mg_convert_report *report,
                               struct mg_err *err);
/* The same into an open, empty, seekable file (a memfd when no cache folder can be written). */
enum mg_status mg_convert_fd(const char *folder, int fd, const struct mg_convert_options *o,
                             struct mg_convert_report *report, struct mg_err *err);

/* A file of this name is part of a checkpoint. */
bool mg_source_counts(const char *name);

#define MG_SOURCE_ID 65 /* 64 hexadecimal digits and a zero byte */
/* The folder's identity for this precision: names, sizes and times of its files and samples of what
 * is in them, since times are made equal by image builders and by copying. */
enum mg_status mg_source_id(const char *folder, enum mg_file_weights weights,
                            char out[MG_SOURCE_ID], struct mg_err *err);

#endif
