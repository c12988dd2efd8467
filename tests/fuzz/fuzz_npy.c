/* Fuzz target: a .npy file. */
#include "base/npy.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct mg_npy npy;
    struct mg_err err = {0};
    enum mg_status status = mg_npy_parse(data, n, &npy, &err);
    if ((status == MG_OK) != (err.status == MG_OK) || (status != MG_OK && !err.text[0])) abort();
    if (status == MG_OK) {
        size_t elements = 1, size = npy.type == MG_NPY_I64 ? 8 : 4;
        if (npy.n_dim < 0 || npy.n_dim > MG_NPY_MAX_DIM) abort();
        for (int i = 0; i < npy.n_dim; i++) elements *= npy.dim[i];
        if (elements != npy.n || npy.n * size > n) abort();
        volatile uint8_t sum = 0;
        for (size_t i = 0; i < npy.n * size; i++)
            sum = (uint8_t)(sum + ((const uint8_t *)npy.data)[i]);
    }
    mg_npy_free(&npy);
    return 0;
}
