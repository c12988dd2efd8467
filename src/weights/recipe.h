/* weights/recipe.h - which matrix is kept at which precision: the one table that `convert` follows
 * and prints.
 *
 * Sensitive, by published measurements: the first eighth of the decoder's layers, where DeepStack's
 * maps are added, and the last one; v_proj, which is small; the vision tower, the mergers, the head
 * and the embedding. They stay at 8 bit in an int4 file. down_proj, whose inputs have few huge
 * values, may be 4 bit since those have a scale of their own (kernels/packed.h). The patch
 * embedding (0.1 % of the weights) and the position table stay bf16.
 */
#ifndef MG_WEIGHTS_RECIPE_H
#define MG_WEIGHTS_RECIPE_H

#include <stddef.h>

enum mg_file_weights { MG_FILE_BF16, MG_FILE_INT8, MG_FILE_INT4, MG_N_FILE_WEIGHTS };

/* What a matrix is stored as: row-major bf16, or packed (kernels/packed.h). */
enum mg_store { MG_STORE_BF16, MG_STORE_INT8, MG_STORE_INT4 };

enum mg_matrix {
    MG_MATRIX_PATCH_EMBED,
    MG_MATRIX_VISION, /* qkv, proj, fc1, fc2 of all blocks */
    MG_MATRIX_MERGER, /* and the DeepStack mergers */
    MG_MATRIX_EMBED,
    MG_MATRIX_HEAD,
    MG_MATRIX_QK,
    MG_MATRIX_V,
    MG_MATRIX_O,
    MG_MATRIX_GATE_UP,
    MG_MATRIX_DOWN,
    MG_N_MATRIX
};

/* Layer (0 .. n_layer-1) matters for the decoder's parts only. */
enum mg_store mg_recipe(enum mg_file_weights weights, enum mg_matrix part, size_t layer,
                        size_t n_layer);

const char *mg_matrix_name(enum mg_matrix part);
const char *mg_store_name(enum mg_store store);
const char *mg_file_weights_name(enum mg_file_weights weights); /* "bf16", "int8", "int4" */

#endif
