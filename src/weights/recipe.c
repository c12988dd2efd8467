/* weights/recipe.c - see recipe.h. */
#include "weights/recipe.h"

#include <stdint.h>

/* `inner` is for the decoder's middle layers; `edge` for the first ones and the last. What isn't in
 * a layer has the same in both. */
struct row {
    const char *name;
    uint8_t edge[MG_N_FILE_WEIGHTS], inner[MG_N_FILE_WEIGHTS]; /* by file: bf16, int8, int4 */
};
#define ALL_8                                                                                      \
    { MG_STORE_BF16, MG_STORE_INT8, MG_STORE_INT8 }
#define TO_4                                                                                       \
    { MG_STORE_BF16, MG_STORE_INT8, MG_STORE_INT4 }
#define KEEP                                                                                       \
    { MG_STORE_BF16, MG_STORE_BF16, MG_STORE_BF16 }

static const struct row table[MG_N_MATRIX] = {
    [MG_MATRIX_PATCH_EMBED] = {"patch embedding", KEEP, KEEP},
    [MG_MATRIX_VISION] = {"vision blocks", ALL_8, ALL_8},
    [MG_MATRIX_MERGER] = {"mergers", ALL_8, ALL_8},
    [MG_MATRIX_EMBED] = {"embedding", ALL_8, ALL_8},
    [MG_MATRIX_HEAD] = {"head", ALL_8, ALL_8},
    [MG_MATRIX_QK] = {"q, k (v)", ALL_8, TO_4},
    [MG_MATRIX_V] = {"v", ALL_8, ALL_8},
    [MG_MATRIX_O] = {"o", ALL_8, TO_4},
    [MG_MATRIX_GATE_UP] = {"gate, up", ALL_8, TO_4},
    [MG_MATRIX_DOWN] = {"down", ALL_8, TO_4},
};

enum mg_store mg_recipe(enum mg_file_weights weights, enum mg_matrix part, size_t layer,
                        size_t n_layer) {
    size_t first = (n_layer + 7) / 8; /* of 28 layers: 0, 1, 2, 3 and 27 */
    const struct row *r = &table[part];
    return (enum mg_store)(layer < first || layer + 1 == n_layer ? r->edge : r->inner)[weights];
}

const char *mg_matrix_name(enum mg_matrix part) {
    return table[part].name;
}

const char *mg_store_name(enum mg_store store) {
    static const char *const name[] = {"bf16", "int8", "int4"};
    return name[store];
}

const char *mg_file_weights_name(enum mg_file_weights weights) {
    static const char *const name[] = {"bf16", "int8", "int4"};
    return name[weights];
}
