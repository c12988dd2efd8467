/* base/npy.h - NumPy's .npy files, version 1.0: what `margay trace` writes and the tests read.
 * C order only; little-endian f32, i32, i64. */
#ifndef MG_BASE_NPY_H
#define MG_BASE_NPY_H

#include "base/io.h"

enum mg_npy_type { MG_NPY_F32, MG_NPY_I32, MG_NPY_I64 };
#define MG_NPY_MAX_DIM 6

struct mg_npy {
    enum mg_npy_type type;
    int n_dim;
    size_t dim[MG_NPY_MAX_DIM];
    size_t n;         /* elements in all */
    const void *data; /* n elements, a view into buf */
    struct mg_buf buf;
};

enum mg_status mg_npy_write(const char *path, enum mg_npy_type type, int n_dim, const size_t *dim,
                            const void *data, struct mg_err *err);
/* Reads a file of at most 1 GiB. Free with mg_npy_free. */
enum mg_status mg_npy_read(const char *path, struct mg_npy *out, struct mg_err *err);
/* The same from memory (the fuzz target's entry); `bytes` is copied. */
enum mg_status mg_npy_parse(const void *bytes, size_t n, struct mg_npy *out, struct mg_err *err);
void mg_npy_free(struct mg_npy *npy);

#endif
