/* weights/weights.c - opens a checkpoint folder: one safetensors file, or shards with an index. See
 * weights.h.
 *
 * Tensors are kept in file order; `by_name` points into them sorted by name, so that a lookup is a
 * binary search and no choice of names can make it slow. Names live in an arena, data in the
 * mappings.
 */
#include "weights/weights.h"

#include "base/io.h"
#include "weights/config.h"
#include "weights/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAX_INDEX_BYTES ((size_t)32 << 20)
#define MAX_TENSORS 100000
#define MAX_SHARDS 1000
#define MAX_FILE_NAME 255 /* bytes */

struct mg_weights {
    struct mg_arena arena;            /* names */
    struct mg_tensor *tensor;         /* n, in file order, owned */
    uint32_t *shard;                  /* [n] index into map, owned */
    const struct mg_tensor **by_name; /* [n] sorted, owned */
    size_t n, cap;
    struct mg_map *map; /* n_map, owned */
    size_t n_map;
    size_t bytes; /* of all tensors */
};

static enum mg_status add_tensor(void *arg, const struct mg_tensor *t, struct mg_err *err) {
    struct mg_weights *w = arg;
    if (w->n == MAX_TENSORS)
        return mg_fail(err, MG_ERR_LIMIT, "too_many_tensors", "more than %d tensors", MAX_TENSORS);
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 1024;
        struct mg_tensor *tensor = mg_realloc(w->tensor, cap, sizeof *tensor);
        if (tensor) w->tensor = tensor;
        uint32_t *shard = mg_realloc(w->shard, cap, sizeof *shard);
        if (shard) w->shard = shard;
        if (!tensor || !shard) return mg_fail_memory(err, "list of tensors");
        w->cap = cap;
    }
    struct mg_tensor *own = &w->tensor[w->n];
    *own = *t;
    own->name = mg_arena_strdup(&w->arena, t->name, strlen(t->name));
    if (!own->name) return mg_fail_memory(err, "tensor names");
    w->shard[w->n] = (uint32_t)(w->n_map - 1);
    w->n++;
    w->bytes += t->n * mg_dtype_size(t->dtype);
    return MG_OK;
}

/* Takes in a mapping that was just made in the next place, and its tensors. */
static enum mg_status add_map(struct mg_weights *w, const char *path, struct mg_err *err) {
    w->n_map++;
    const struct mg_map *map = &w->map[w->n_map - 1];
    struct mg_err own = {0};
    enum mg_status status = mg_safetensors_parse(map->data, map->n, add_tensor, w, &own);
    if (status != MG_OK) {
        mg_err_prefix(&own, "%s", path);
        if (err && err->status == MG_OK) *err = own;
    }
    return status;
}

/* Maps one more file and adds its tensors. w->map has room. */
static enum mg_status add_file(struct mg_weights *w, const char *folder, const char *name,
                               struct mg_err *err) {
    char path[4096];
    enum mg_status status = mg_path_join(path, sizeof path, folder, name, err);
    if (status == MG_OK) status = mg_map_open(path, &w->map[w->n_map], err);
    return status == MG_OK ? add_map(w, path, err) : status;
}

static int compare(const void *a, const void *b) {
    return strcmp((*(const struct mg_tensor *const *)a)->name,
                  (*(const struct mg_tensor *const *)b)->name);
}

/* Sorts by name; a name in two files is an error (in one file the parser has found it already). */
static enum mg_status sort_names(struct mg_weights *w, struct mg_err *err) {
    w->by_name = mg_alloc(w->n, sizeof *w->by_name);
    if (!w->by_name) return mg_fail_memory(err, "list of tensors");
    for (size_t i = 0; i < w->n; i++) w->by_name[i] = &w->tensor[i];
    if (w->n) qsort(w->by_name, w->n, sizeof *w->by_name, compare);
    for (size_t i = 1; i < w->n; i++)
        if (compare(&w->by_name[i - 1], &w->by_name[i]) == 0) {
            char name[68];
            return mg_fail(
                err, MG_ERR_FORMAT, "tensor_twice", "tensor %s stands in two of the files",
                mg_text_clean(name, sizeof name, w->by_name[i]->name, strlen(w->by_name[i]->name)));
        }
    return MG_OK;
}

static bool is_plain_name(const char *s, size_t n) {
    if (n == 0 || n > MAX_FILE_NAME || s[0] == '.' || strlen(s) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '/' || s[i] == '\\' || (unsigned char)s[i] < 0x20 || s[i] == 0x7F) return false;
    return true;
}

enum mg_status mg_shard_index_parse(const char *text, size_t n, mg_shard_fn *fn, void *arg,
                                    struct mg_err *err) {
    json_t *root;
    enum mg_status status = mg_json_parse(INDEX, text, n, 16, 2 * MAX_TENSORS + 10000, &root, err);
    if (status != MG_OK) return status;
    json_t *map = json_object_get(root, "weight_map"), *file;
    char found[80], tensor[68];
    const char *name;
    if (!json_is_object(map) || json_object_size(map) == 0)
        status = mg_fail(err, MG_ERR_FORMAT, "shard_index",
                         "%s: weight_map: wanted tensors and their files, "
                         "found %s",
                         INDEX, mg_json_found(found, sizeof found, map));
    else if (json_object_size(map) > MAX_TENSORS)
        status = mg_fail(err, MG_ERR_LIMIT, "too_many_tensors", "%s: more than %d tensors", INDEX,
                         MAX_TENSORS);
    else
        json_object_foreach(map, name, file) {
            if (!json_is_string(file) ||
                !is_plain_name(json_string_value(file), json_string_length(file)))
                status = mg_fail(
                    err, MG_ERR_FORMAT, "shard_name",
                    "%s: file of tensor %s: wanted a plain file name in the same folder, found %s",
                    INDEX, mg_text_clean(tensor, sizeof tensor, name, strlen(name)),
                    mg_json_found(found, sizeof found, file));
            else
                status = fn(arg, name, json_string_value(file), err);
            if (status != MG_OK) break;
        }
    json_decref(root);
    return status;
}

/* The index while it is read: which file is which shard, and which tensor is said to be where. */
struct index {
    struct mg_weights *w;
    json_t *files;     /* {file name: shard number}, owned */
    const char **file; /* [MAX_SHARDS] names, views into the keys of `files` */
    json_t *tensors;   /* {tensor name: shard number}, owned */
};

static enum mg_status index_entry(void *arg, const char *tensor, const char *file,
                                  struct mg_err *err) {
    struct index *x = arg;
    json_t *shard = json_object_get(x->files, file);
    if (!shard) {
        size_t n = json_object_size(x->files);
        if (n == MAX_SHARDS)
            return mg_fail(err, MG_ERR_LIMIT, "too_many_shards", "%s: more than %d files", INDEX,
                           MAX_SHARDS);
        shard = json_integer((json_int_t)n);
        if (json_object_set_new(x->files, file, shard) != 0) return mg_fail_memory(err, INDEX);
        x->file[n] = json_object_iter_key(json_object_iter_at(x->files, file));
    }
    return json_object_set(x->tensors, tensor, shard) == 0 ? MG_OK : mg_fail_memory(err, INDEX);
}

/* Every tensor of the index stands in the file it says. */
static enum mg_status check_index(const struct index *x, struct mg_err *err) {
    const char *name;
    json_t *shard;
    char clean[68], file[68], other[68];
    json_object_foreach(x->tensors, name, shard) {
        const struct mg_tensor *t = mg_weights_find(x->w, name);
        size_t want = (size_t)json_integer_value(shard);
        if (t && x->w->shard[t - x->w->tensor] == want) continue;
        mg_text_clean(clean, sizeof clean, name, strlen(name));
        mg_text_clean(file, sizeof file, x->file[want], strlen(x->file[want]));
        if (!t)
            return mg_fail(err, MG_ERR_FORMAT, "tensor_missing",
                           "tensor %s is not in %s, where %s puts it", clean, file, INDEX);
        const char *at = x->file[x->w->shard[t - x->w->tensor]];
        return mg_fail(err, MG_ERR_FORMAT, "shard_index", "tensor %s is in %s; %s puts it into %s",
                       clean, mg_text_clean(other, sizeof other, at, strlen(at)), INDEX, file);
    }
    return MG_OK;
}

static enum mg_status open_shards(struct mg_weights *w, const char *folder, const char *index_path,
                                  struct mg_err *err) {
    struct mg_buf text = {0};
    struct index x = {.w = w};
    enum mg_status status = mg_file_read(index_path, MAX_INDEX_BYTES, &text, err);
    if (status != MG_OK) goto out;
    x.files = json_object();
    x.tensors = json_object();
    x.file = mg_alloc_zero(MAX_SHARDS, sizeof *x.file);
    w->map = mg_alloc_zero(MAX_SHARDS, sizeof *w->map);
    if (!x.files || !x.tensors || !x.file || !w->map) {
        status = mg_fail_memory(err, INDEX);
        goto out;
    }
    status =
        mg_shard_index_parse(text.n ? (const char *)text.data : "", text.n, index_entry, &x, err);
    for (size_t i = 0; status == MG_OK && i < json_object_size(x.files); i++) {
        status = add_file(w, folder, x.file[i], err);
        if (status == MG_ERR_NOT_FOUND) mg_err_prefix(err, "a file that %s names", INDEX);
    }
    if (status == MG_OK) status = sort_names(w, err);
    if (status == MG_OK) status = check_index(&x, err);
out:
    mg_buf_free(&text);
    free(x.file);
    json_decref(x.files);
    json_decref(x.tensors);
    return status;
}

/* One file by its path, or when fd >= 0 by that. */
static enum mg_status open_one(int fd, const char *path, struct mg_weights **out,
                               struct mg_err *err) {
    *out = NULL;
    struct mg_weights *w = mg_alloc_zero(1, sizeof *w);
    if (!w) return mg_fail_memory(err, "weights");
    w->map = mg_alloc_zero(1, sizeof *w->map);
    enum mg_status status = w->map ? MG_OK : mg_fail_memory(err, "weights");
    if (status == MG_OK)
        status = fd >= 0 ? mg_map_fd(fd, path, w->map, err) : mg_map_open(path, w->map, err);
    if (status == MG_OK) status = add_map(w, path, err);
    if (status == MG_OK) status = sort_names(w, err);
    if (status == MG_OK && w->n == 0)
        status = mg_fail(err, MG_ERR_FORMAT, "", "%s holds no tensor", path);
    if (status == MG_OK)
        *out = w;
    else
        mg_weights_close(w);
    return status;
}

enum mg_status mg_weights_open_fd(int fd, const char *name, struct mg_weights **out,
                                  struct mg_err *err) {
    return open_one(fd, name, out, err);
}

enum mg_status mg_weights_open(const char *folder, struct mg_weights **out, struct mg_err *err) {
    *out = NULL;
    struct stat st;
    if (stat(folder, &st) == 0 && S_ISREG(st.st_mode)) return open_one(-1, folder, out, err);
    char single[4096], index[4096];
    enum mg_status status = mg_folder_check(folder, err);
    if (status == MG_OK) status = mg_path_join(single, sizeof single, folder, SINGLE, err);
    if (status == MG_OK) status = mg_path_join(index, sizeof index, folder, INDEX, err);
    if (status != MG_OK) return status;
    struct mg_weights *w = mg_alloc_zero(1, sizeof *w);
    if (!w) return mg_fail_memory(err, "weights");
    /* Only a file that isn't there sends us on; one that can't be read is reported as such. */
    if (access(single, F_OK) == 0 || errno != ENOENT) {
        w->map = mg_alloc_zero(1, sizeof *w->map);
        status = w->map ? add_file(w, folder, SINGLE, err) : mg_fail_memory(err, "weights");
        if (status == MG_OK) status = sort_names(w, err);
    } else if (access(index, F_OK) == 0 || errno != ENOENT) {
        status = open_shards(w, folder, index, err);
    } else {
        status = mg_fail(err, MG_ERR_NOT_FOUND, "weights_not_found",
                         "no weights in %s: looked for %s and %s", folder, SINGLE, INDEX);
    }
    if (status == MG_OK && w->n == 0)
        status = mg_fail(err, MG_ERR_FORMAT, "", "%s/%s holds no tensor", folder, SINGLE);
    if (status == MG_OK)
        *out = w;
    else
        mg_weights_close(w);
    return status;
}

void mg_weights_close(struct mg_weights *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n_map; i++) mg_map_close(&w->map[i]);
    free(w->map);
    free(w->by_name);
    free(w->shard);
    free(w->tensor);
    mg_arena_free(&w->arena);
    free(w);
}

size_t mg_weights_count(const struct mg_weights *w) {
    return w->n;
}
const struct mg_tensor *mg_weights_at(const struct mg_weights *w, size_t i) {
    return &w->tensor[i];
}
size_t mg_weights_bytes(const struct mg_weights *w) {
    return w->bytes;
}

struct mg_slice mg_weights_before(const struct mg_weights *w, const struct mg_tensor *t) {
    const struct mg_map *map = &w->map[w->shard[t - w->tensor]];
    return (struct mg_slice){map->data, (size_t)((const uint8_t *)t->data - map->data)};
}

struct mg_slice mg_weights_after(const struct mg_weights *w, const struct mg_tensor *t) {
    const struct mg_map *map = &w->map[w->shard[t - w->tensor]];
    const uint8_t *end = (const uint8_t *)t->data + t->n * mg_dtype_size(t->dtype);
    return (struct mg_slice){end, (size_t)(map->data + map->n - end)};
}

const struct mg_tensor *mg_weights_find(const struct mg_weights *w, const char *name) {
    size_t low = 0, high = w->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(name, w->by_name[mid]->name);
        if (order == 0) return w->by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

/* "[96, 208]" */
static const char *shape_text(char out[160], int n_dim, const size_t *dim) {
    size_t at = (size_t)snprintf(out, 160, "[");
    for (int i = 0; i < n_dim && at < 150; i++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%zu", i ? ", " : "", dim[i]);
    snprintf(out + mg_min_size(at, 158), 2, "]");
    return out;
}

enum mg_status mg_weights_need(const struct mg_weights *w, const char *name, int n_dim,
                               const size_t *dim, const struct mg_tensor **out,
                               struct mg_err *err) {
    char want[160], found[160];
    *out = NULL;
    shape_text(want, n_dim, dim);
    const struct mg_tensor *t = mg_weights_find(w, name);
    if (!t)
        return mg_fail(err, MG_ERR_NOT_FOUND, "tensor_missing",
                       "tensor %s is missing; wanted shape %s", name, want);
    bool same = t->n_dim == n_dim;
    for (int i = 0; same && i < n_dim; i++) same = t->dim[i] == dim[i];
    if (!same)
        return mg_fail(err, MG_ERR_FORMAT, "tensor_shape", "tensor %s: wanted shape %s, found %s",
                       name, want, shape_text(found, t->n_dim, t->dim));
    if (t->dtype != MG_F32 && t->dtype != MG_F16 && t->dtype != MG_BF16) {
        static const char *const word[MG_N_DTYPE] = {
            [MG_F64] = "F64", [MG_I64] = "I64", [MG_I32] = "I32",  [MG_I16] = "I16",
            [MG_I8] = "I8",   [MG_U8] = "U8",   [MG_BOOL] = "BOOL"};
        return mg_fail(err, MG_ERR_FORMAT, "tensor_dtype",
                       "tensor %s: wanted dtype BF16, F16 or F32, found %s", name, word[t->dtype]);
    }
    *out = t;
    return MG_OK;
}
