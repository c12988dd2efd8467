/* Fuzz target: a server's list of files, as `margay pull` reads it. */
#include "cli/pull_list.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct mg_err err = {0};
    struct mg_pull_list list;
    enum mg_status status = mg_pull_list_parse("owner/name", (const char *)data, n, &list, &err);
    if ((status == MG_OK) != (err.status == MG_OK) || (status != MG_OK && !err.text[0])) abort();
    if (status == MG_OK && (list.n < 3 || list.n > MG_PULL_MAX_FILES)) abort();
    if (status != MG_OK && (list.n || list.file)) abort();
    if (strlen(list.commit) != 0 && strlen(list.commit) != 40 && strlen(list.commit) != 64) abort();
    for (size_t i = 0; i < list.n; i++) {
        const struct mg_pull_file *f = &list.file[i];
        /* No name may lead out of the folder or hide in it, no size may overflow a sum. */
        if (!f->name[0] || strlen(f->name) > MG_PULL_MAX_NAME || f->name[0] == '.') abort();
        for (const char *c = f->name; *c; c++)
            if (*c == '/' || *c == '\\' || *c <= 0x20 || *c >= 0x7F) abort();
        if (f->size > MG_PULL_MAX_BYTES && f->size != UINT64_MAX) abort();
        if (f->check != MG_FETCH_NO_CHECK && f->check != MG_FETCH_SHA256 &&
            f->check != MG_FETCH_GIT_SHA1)
            abort();
        for (size_t k = 0; k < i; k++)
            if (!strcmp(f->name, list.file[k].name)) abort();
    }
    mg_pull_list_free(&list);
    return 0;
}
