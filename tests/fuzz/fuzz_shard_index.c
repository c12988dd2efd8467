/* Fuzz target: the text of a model.safetensors.index.json. */
#include "weights/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* No name may lead out of the folder. */
static enum mg_status see(void *arg, const char *tensor, const char *file, struct mg_err *err) {
    size_t n = strlen(file);
    if (n < 1 || n > 255 || strchr(file, '/') || strchr(file, '\\') || file[0] == '.') abort();
    *(size_t *)arg += strlen(tensor);
    return MG_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct mg_err err = {0};
    size_t sum = 0;
    enum mg_status status = mg_shard_index_parse((const char *)data, n, see, &sum, &err);
    if ((status == MG_OK) != (err.status == MG_OK) || (status != MG_OK && !err.text[0])) abort();
    return 0;
}
