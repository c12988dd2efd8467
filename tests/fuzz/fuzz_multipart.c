/* Fuzz target: an upload. The input's first line is the content type, the rest the body. */
#include "api/multipart.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const uint8_t *line = n ? memchr(data, '\n', n) : NULL;
    if (!line) return 0;
    size_t n_type = (size_t)(line - data), n_body = n - n_type - 1;
    char *type = calloc(n_type + 1, 1);
    uint8_t *body = malloc(n_body ? n_body : 1);
    if (!type || !body) abort();
    memcpy(type, data, n_type);
    memcpy(body, line + 1, n_body);

    struct mg_multipart m;
    struct mg_fault f = {0};
    enum mg_status status = mg_multipart_parse(type, body, n_body, &m, &f);
    if ((status == MG_OK) != (f.err.status == MG_OK) || (status != MG_OK && !f.err.text[0]))
        abort();
    if (status == MG_OK && m.n > MG_MULTIPART_MAX_PARTS) abort();
    for (size_t i = 0; status == MG_OK && i < m.n; i++) {
        const struct mg_slice view[] = {m.part[i].name, m.part[i].filename, m.part[i].type,
                                        m.part[i].data};
        for (size_t k = 0; k < 4; k++)
            if (view[k].n && (view[k].data < body || view[k].data + view[k].n > body + n_body))
                abort();
        if (m.part[i].name.n == 0) abort();
    }
    struct mg_upload u;
    f = (struct mg_fault){0};
    if (mg_upload_parse(type, body, n_body, 1000, &u, &f) == MG_OK) {
        if (u.data.n == 0 || u.data.n > 1000 || !u.filename[0] || !u.purpose[0]) abort();
        for (const char *c = u.filename; *c; c++)
            if (strchr("/\\<>&\"'`", *c) || (unsigned char)*c < 0x20) abort();
    }
    free(type);
    free(body);
    return 0;
}
