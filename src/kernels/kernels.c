/* kernels/kernels.c - filling the table: `ref` first, then each tier up to the chosen one overrides. */
#include "kernels/kernels.h"

#include "kernels/ref/ref.h"

#include <string.h>

void mg_kernels_init(struct mg_kernels *t, const struct mg_features *features) {
    memset(t, 0, sizeof *t);
    t->tier = features->tier;
    mg_ref_init_matmul(t);
    mg_ref_init_attention(t);
    mg_ref_init_norm(t);
    mg_ref_init_vector(t);
}
