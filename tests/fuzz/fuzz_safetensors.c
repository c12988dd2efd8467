/* Fuzz target: one safetensors file. An input that begins with '{' is taken as the header's text up
 * to the last
 * '}', and data behind that; the length in front, which a fuzzer seldom gets right, is then put
 * there. */
#include "weights/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct file {
    const uint8_t *data, *at; /* at: where the next tensor must begin; NULL before the first */
    size_t n;
};

/* What the parser promises about a tensor, checked with means of its own. */
static enum mg_status see(void *arg, const struct mg_tensor *t, struct mg_err *err) {
    struct file *f = arg;
    const uint8_t *p = t->data;
    size_t elements = 1, name = strlen(t->name);
    if (name < 1 || name > 512 || t->n_dim < 0 || t->n_dim > MG_MAX_DIM || (int)t->dtype < 0 ||
        t->dtype >= MG_N_DTYPE)
        abort();
    for (int i = 0; i < t->n_dim; i++) elements *= t->dim[i];
    size_t bytes = elements * mg_dtype_size(t->dtype);
    if (elements != t->n || p < f->data || bytes > (size_t)(f->data + f->n - p)) abort();
    if (f->at && p != f->at) abort();
    if (bytes && (uintptr_t)p % mg_dtype_size(t->dtype)) abort();
    f->at = p + bytes;
    volatile uint8_t sum = 0;
    if (bytes) sum = (uint8_t)(p[0] + p[bytes - 1]);
    (void)sum;
    return MG_OK;
}

static void parse(const uint8_t *data, size_t n) {
    struct file f = {.data = data, .n = n};
    struct mg_err err = {0};
    enum mg_status status = mg_safetensors_parse(data, n, see, &f, &err);
    if ((status == MG_OK) != (err.status == MG_OK) || (status != MG_OK && !err.text[0])) abort();
    if (status == MG_OK && f.at && f.at != data + n) abort(); /* the tensors cover the file */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    parse(data, n);
    if (n == 0 || data[0] != '{') return 0;
    size_t header = n;
    while (header && data[header - 1] != '}') header--;
    if (!header) header = n;
    uint8_t *file = malloc(8 + n);
    if (!file) return 0;
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    memcpy(file + 8, data, n);
    parse(file, 8 + n);
    free(file);
    return 0;
}
