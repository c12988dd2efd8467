/* Fuzz target: base64, and what a request may give as a picture (data URL, URL, file id). Decoding
 * over the text itself must give the same as into another place. */
#include "api/image_source.h"
#include "base/base64.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    size_t n_out[2];
    uint8_t *out = malloc(mg_base64_bound(n)), *same = malloc(mg_base64_bound(n) + n);
    if (!out || !same) abort();
    if (n) memcpy(same, data, n);
    enum mg_base64_fault fault = mg_base64_decode((const char *)data, n, out, &n_out[0]);
    if (mg_base64_decode((const char *)same, n, same, &n_out[1]) != fault) abort();
    if (n_out[0] != n_out[1]) abort();
    if (fault == MG_BASE64_OK && n_out[0] > mg_base64_bound(n)) abort();
    if (fault != MG_BASE64_OK && n_out[0] > n) abort();
    if (fault == MG_BASE64_OK && memcmp(out, same, n_out[0])) abort();
    free(out);
    free(same);

    struct mg_arena arena = {0};
    struct mg_image_source source;
    struct mg_fault f = {0};
    enum mg_status status =
        mg_image_source_read((const char *)data, n, 1000, &arena, "x", &source, &f);
    if ((status == MG_OK) != (f.err.status == MG_OK) || (status != MG_OK && !f.err.text[0]))
        abort();
    bool bytes = status == MG_OK && source.kind == MG_SOURCE_BYTES;
    if (bytes != (source.bytes != NULL) || source.n_bytes > 1000) abort();
    if (status == MG_OK && !bytes) {
        size_t len = strlen(source.text);
        if (len == 0 || len > MG_IMAGE_MAX_URL) abort();
        if (source.kind == MG_SOURCE_FILE_ID && !mg_file_id_valid(source.text, len)) abort();
        if (source.kind == MG_SOURCE_URL && strncasecmp(source.text, "http", 4)) abort();
        for (size_t i = 0; i < len; i++)
            if (source.text[i] <= 0x20 || source.text[i] >= 0x7F) abort();
    }
    free(source.bytes);
    mg_arena_free(&arena);
    return 0;
}
