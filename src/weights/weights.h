/* weights/weights.h - the tensors of a checkpoint folder, mapped read-only.
 *
 * FOLDER/model.safetensors, or model.safetensors.index.json and the shards it names (plain file
 * names inside the folder); as in the reference, the single file goes first when both are there.
 * Everything that a header says is checked at opening: lengths, offsets, overlaps, dtype times
 * shape. A tensor's data is a view into the mapping and lives until mg_weights_close. Opened
 * weights are never written: any thread may read them.
 */
#ifndef MG_WEIGHTS_WEIGHTS_H
#define MG_WEIGHTS_WEIGHTS_H

#include "base/err.h"
#include "base/mem.h"
#include "kernels/dtype.h"

#define MG_MAX_DIM 6

struct mg_tensor {
    const char *name; /* lives as long as the weights */
    enum mg_dtype dtype;
    int n_dim;
    size_t dim[MG_MAX_DIM];
    size_t n;         /* elements */
    const void *data; /* n elements, little-endian, aligned to the element's size (n > 0) */
};

struct mg_weights;

/* folder may also be the path of one safetensors file. */
enum mg_status mg_weights_open(const char *folder, struct mg_weights **out, struct mg_err *err);
/* The same from an open file (a memfd), which may be closed afterwards; `name` is for messages. */
enum mg_status mg_weights_open_fd(int fd, const char *name, struct mg_weights **out,
                                  struct mg_err *err);
void mg_weights_close(struct mg_weights *w); /* NULL is fine */

size_t mg_weights_count(const struct mg_weights *w);
/* In order of their place in the files, shard after shard. i < count. */
const struct mg_tensor *mg_weights_at(const struct mg_weights *w, size_t i);
/* By name, or NULL. */
const struct mg_tensor *mg_weights_find(const struct mg_weights *w, const char *name);
/* By name with exactly this shape and one of F32, F16, BF16; else an error that states the name,
 * the wanted and the found shape or dtype (codes tensor_missing, tensor_shape, tensor_dtype). */
enum mg_status mg_weights_need(const struct mg_weights *w, const char *name, int n_dim,
                               const size_t *dim, const struct mg_tensor **out, struct mg_err *err);
/* What stands before a tensor's data in its file, from the file's first byte, and what follows it
 * to the last. */
struct mg_slice mg_weights_before(const struct mg_weights *w, const struct mg_tensor *t);
struct mg_slice mg_weights_after(const struct mg_weights *w, const struct mg_tensor *t);
size_t mg_weights_bytes(const struct mg_weights *w); /* of all tensors */

/* One safetensors file in memory (the fuzz target's entry): parses and checks, then calls fn for
 * each tensor in order of its data. The tensor and its name live during the call. Tensor data that
 * isn't aligned to its element size is an error, code tensor_unaligned. A status other than MG_OK
 * from fn stops and is returned. */
typedef enum mg_status mg_tensor_fn(void *arg, const struct mg_tensor *t, struct mg_err *err);
enum mg_status mg_safetensors_parse(const uint8_t *data, size_t n, mg_tensor_fn *fn, void *arg,
                                    struct mg_err *err);

/* The text of a model.safetensors.index.json (another fuzz target's entry): calls fn with each
 * tensor of weight_map and the file said to hold it, which is always a plain file name. */
typedef enum mg_status mg_shard_fn(void *arg, const char *tensor, const char *file,
                                   struct mg_err *err);
enum mg_status mg_shard_index_parse(const char *text, size_t n, mg_shard_fn *fn, void *arg,
                                    struct mg_err *err);

#endif
