/* cli/pull_list.h - what a Hugging Face compatible server says a repository holds, and which of it
 * margay needs.
 *
 * The reply to GET /api/models/REPO/revision/R?blobs=true is an object with `sha` (the commit) and
 * `siblings`, a list of {rfilename, size, blobId, lfs: {sha256, size}}. It is text from outside: at
 * most MG_PULL_MAX_REPLY bytes, names and numbers are checked before anything is done with them.
 */
#ifndef MG_CLI_PULL_LIST_H
#define MG_CLI_PULL_LIST_H

#include "base/err.h"
#include "base/mem.h"
#include "net/fetch.h"

#define MG_PULL_MAX_REPLY ((size_t)8 << 20)
#define MG_PULL_MAX_NAME 200
#define MG_PULL_MAX_FILES 256                 /* that are fetched */
#define MG_PULL_MAX_LISTED 10000              /* in the repository */
#define MG_PULL_MAX_BYTES ((uint64_t)1 << 42) /* of one file */

struct mg_pull_file {
    char name[MG_PULL_MAX_NAME + 1]; /* letters, digits, "._-"; no folder, no leading dot */
    uint64_t size;                   /* bytes; UINT64_MAX: the reply doesn't say */
    enum mg_fetch_check check;
    uint8_t digest[MG_SHA256_BYTES]; /* as in struct mg_fetch_file */
};

struct mg_pull_list {
    char commit[65];           /* hexadecimal; "" when the reply names none */
    struct mg_pull_file *file; /* n, owned: only what is needed, small ones first */
    size_t n;
};

/* `repo` is named in errors. Fails when there is no safetensors checkpoint with its tokenizer. */
enum mg_status mg_pull_list_parse(const char *repo, const char *text, size_t n,
                                  struct mg_pull_list *out, struct mg_err *err);
void mg_pull_list_free(struct mg_pull_list *list);

/* OWNER/NAME, each of letters, digits, "._-", not led by a dot or a dash, at most 96 bytes. */
enum mg_status mg_pull_check_repo(const char *repo, struct mg_err *err);
/* A branch, tag, commit or refs/pr/1: at most 200 of the same characters and single slashes. */
enum mg_status mg_pull_check_revision(const char *revision, struct mg_err *err);

#endif
