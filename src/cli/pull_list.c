/* cli/pull_list.c - see pull_list.h. */
#include "cli/pull_list.h"

#include "weights/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32
#define MAX_VALUES ((size_t)400000) /* commas and colons: some 40 MB of tree */

static bool word_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* n bytes that are a plain name. */
static bool plain(const char *s, size_t n) {
    if (!n || s[0] == '.' || s[0] == '-') return false;
    for (size_t i = 0; i < n; i++)
        if (!word_byte(s[i])) return false;
    return true;
}

enum mg_status mg_pull_check_repo(const char *repo, struct mg_err *err) {
    const char *slash = strchr(repo, '/');
    size_t n = strlen(repo), owner = slash ? (size_t)(slash - repo) : 0;
    if (slash && owner <= 96 && n - owner - 1 <= 96 && plain(repo, owner) &&
        plain(slash + 1, n - owner - 1) && !strstr(repo, ".."))
        return MG_OK;
    return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                   "'%.100s' is not the name of a repository: OWNER/NAME, such as "
                   "Qwen/Qwen3-VL-2B-Instruct",
                   repo);
}

enum mg_status mg_pull_check_revision(const char *revision, struct mg_err *err) {
    size_t n = strlen(revision);
    bool ok = n > 0 && n <= 200 && !strstr(revision, "..");
    for (const char *s = revision; ok && s;) {
        size_t len = strcspn(s, "/");
        ok = plain(s, len);
        s = s[len] ? s + len + 1 : NULL;
    }
    if (ok) return MG_OK;
    return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                   "'%.100s' is not a revision: a branch, a tag or a commit", revision);
}

/* No part of a name may lead out of the folder or command a terminal. Git has no such names. */
static bool name_is_sane(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F) return false;
    for (size_t at = 0;;) {
        size_t len = strcspn(s + at, "/");
        if (len == 0 || (len == 1 && s[at] == '.') || (len == 2 && !memcmp(s + at, "..", 2)))
            return false;
        at += len;
        if (at >= n) return true;
        at++;
    }
}

static bool begins(const char *s, const char *with) {
    return !strncmp(s, with, strlen(with));
}

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), m = strlen(with);
    return n >= m && !strcmp(s + n - m, with);
}

static bool is_weights(const char *name) {
    return begins(name, "model") && ends(name, ".safetensors");
}

static bool is_needed(const char *name) {
    static const char *const exact[] = {"config.json",
                                        "generation_config.json",
                                        "preprocessor_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.json",
                                        "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        if (!strcmp(name, exact[i])) return true;
    return begins(name, "chat_template") || is_weights(name);
}

/* A whole number of bytes; UINT64_MAX when there is none to be had. */
static uint64_t size_of(const json_t *value) {
    json_int_t x = json_is_integer(value) ? json_integer_value(value) : -1;
    return x < 0 ? UINT64_MAX : (uint64_t)x;
}

static enum mg_status read_file(const json_t *item, const char *name, struct mg_pull_file *file,
                                struct mg_err *err) {
    const json_t *lfs = json_object_get(item, "lfs");
    const char *sha256 = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(item, "blobId"));
    if (!sha256) sha256 = json_string_value(json_object_get(lfs, "oid")); /* as other APIs say it */
    if (!blob) blob = json_string_value(json_object_get(item, "oid"));
    memcpy(file->name, name, strlen(name) + 1);
    file->size = size_of(json_object_get(item, "size"));
    if (json_is_object(lfs) && file->size == UINT64_MAX)
        file->size = size_of(json_object_get(lfs, "size"));
    if (file->size != UINT64_MAX && file->size > MG_PULL_MAX_BYTES)
        return mg_fail(err, MG_ERR_LIMIT, "listing", "%s has %llu bytes, the limit is %llu", name,
                       (unsigned long long)file->size, (unsigned long long)MG_PULL_MAX_BYTES);
    if (sha256 && begins(sha256, "sha256:")) sha256 += 7;
    file->check = MG_FETCH_NO_CHECK;
    if (json_is_object(lfs)) {
        /* The blob is then only a pointer to the file, and its name no digest of the file. */
        if (sha256 && !mg_hex_parse(sha256, file->digest, MG_SHA256_BYTES))
            return mg_fail(err, MG_ERR_FORMAT, "listing", "%s: its SHA-256 is not one", name);
        if (sha256) file->check = MG_FETCH_SHA256;
    } else if (blob) {
        if (!mg_hex_parse(blob, file->digest, MG_SHA1_BYTES))
            return mg_fail(err, MG_ERR_FORMAT, "listing", "%s: its blobId is not a SHA-1", name);
        file->check = MG_FETCH_GIT_SHA1;
    }
    return MG_OK;
}

static enum mg_status read_item(const char *repo, const json_t *item, struct mg_pull_list *list,
                                struct mg_err *err) {
    const json_t *value = json_object_get(item, "rfilename");
    const char *name = json_string_value(value);
    size_t n = json_string_length(value);
    if (!name || !n)
        return mg_fail(err, MG_ERR_FORMAT, "listing", "%s: a file without a name is listed", repo);
    if (!name_is_sane(name, n)) {
        char shown[64];
        return mg_fail(err, MG_ERR_FORMAT, "listing",
                       "%s: a file named '%s' is listed, which no folder may hold", repo,
                       mg_text_clean(shown, sizeof shown, name, n));
    }
    if (n > MG_PULL_MAX_NAME || !plain(name, n) || !is_needed(name)) return MG_OK;
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->file[i].name, name))
            return mg_fail(err, MG_ERR_FORMAT, "listing", "%s: %s is listed twice", repo, name);
    if (list->n == MG_PULL_MAX_FILES)
        return mg_fail(err, MG_ERR_LIMIT, "listing", "%s: more than %d files of a checkpoint", repo,
                       MG_PULL_MAX_FILES);
    return read_file(item, name, &list->file[list->n++], err);
}

/* Small files first: a wrong repository is then noticed before the large ones. */
static int by_size(const void *a, const void *b) {
    const struct mg_pull_file *x = a, *y = b;
    bool wx = is_weights(x->name), wy = is_weights(y->name);
    if (wx != wy) return wx ? 1 : -1;
    return strcmp(x->name, y->name);
}

static bool has(const struct mg_pull_list *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (name ? !strcmp(list->file[i].name, name) : is_weights(list->file[i].name)) return true;
    return false;
}

static enum mg_status read_list(const char *repo, const json_t *root, struct mg_pull_list *list,
                                struct mg_err *err) {
    const json_t *siblings = json_object_get(root, "siblings");
    const char *sha = json_string_value(json_object_get(root, "sha"));
    uint8_t commit[MG_SHA256_BYTES];
    if (sha && (mg_hex_parse(sha, commit, MG_SHA1_BYTES) || mg_hex_parse(sha, commit, 32)))
        memcpy(list->commit, sha, strlen(sha) + 1);
    size_t n = json_array_size(siblings);
    if (!n)
        return mg_fail(err, MG_ERR_FORMAT, "listing", "%s: the server lists no files (siblings)",
                       repo);
    if (n > MG_PULL_MAX_LISTED)
        return mg_fail(err, MG_ERR_LIMIT, "listing", "%s: %zu files, the limit is %d", repo, n,
                       MG_PULL_MAX_LISTED);
    list->file = mg_alloc_zero(mg_min_size(n, MG_PULL_MAX_FILES), sizeof *list->file);
    if (!list->file) return mg_fail_memory(err, "list of files");
    for (size_t i = 0; i < n; i++) {
        enum mg_status st = read_item(repo, json_array_get(siblings, i), list, err);
        if (st) return st;
    }
    if (!has(list, NULL))
        return mg_fail(err, MG_ERR_UNSUPPORTED, "listing",
                       "%s has no model*.safetensors: not a checkpoint that margay reads", repo);
    static const char *const must[] = {"config.json", "tokenizer.json"};
    for (size_t i = 0; i < 2; i++)
        if (!has(list, must[i]))
            return mg_fail(err, MG_ERR_UNSUPPORTED, "listing",
                           "%s has no %s: not a checkpoint that margay reads", repo, must[i]);
    qsort(list->file, list->n, sizeof *list->file, by_size);
    return MG_OK;
}

enum mg_status mg_pull_list_parse(const char *repo, const char *text, size_t n,
                                  struct mg_pull_list *out, struct mg_err *err) {
    *out = (struct mg_pull_list){0};
    if (n > MG_PULL_MAX_REPLY)
        return mg_fail(err, MG_ERR_LIMIT, "listing", "%s: a list of %zu bytes, the limit is %zu",
                       repo, n, MG_PULL_MAX_REPLY);
    json_t *root = NULL;
    enum mg_status st =
        mg_json_parse("the server's list of files", text, n, MAX_DEPTH, MAX_VALUES, &root, err);
    if (!st) st = read_list(repo, root, out, err);
    json_decref(root);
    if (st) mg_pull_list_free(out);
    return st;
}

void mg_pull_list_free(struct mg_pull_list *list) {
    free(list->file);
    *list = (struct mg_pull_list){0};
}
