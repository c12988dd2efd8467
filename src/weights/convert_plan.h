/* weights/convert_plan.h - private to src/weights: which tensors a packed file has, in order, and
 * where each comes from. */
#ifndef MG_WEIGHTS_CONVERT_PLAN_H
#define MG_WEIGHTS_CONVERT_PLAN_H

#include "base/mem.h"
#include "kernels/packed.h"
#include "weights/config.h"
#include "weights/recipe.h"
#include "weights/weights.h"

#define MG_PIECE_ALIGN 4096 /* file offset of every matrix */
#define MG_MANIFEST_BYTES 1024
#define MG_MAX_SOURCE 3

enum mg_piece_kind {
    MG_PIECE_BYTES,  /* data: a file, the scales or sums of a matrix */
    MG_PIECE_VECTOR, /* source[0] as f32 */
    MG_PIECE_BF16,   /* source[0] as bf16, its own shape */
    MG_PIECE_PACKED, /* the sources, stacked or interleaved, in panels */
    MG_PIECE_PAD     /* zeros */
};

/* One tensor of the file. */
struct mg_piece {
    char name[192];
    enum mg_piece_kind kind;
    enum mg_dtype dtype;
    int n_dim;
    size_t dim[MG_MAX_DIM];
    size_t bytes;
    uint64_t offset;  /* in the file */
    const void *data; /* BYTES: borrowed from the plan */
    const struct mg_tensor *source[MG_MAX_SOURCE];
    size_t n_source;
    size_t n_weight; /* numbers in the sources */
    enum mg_matrix part;
    enum mg_store store;
    /* PACKED */
    enum mg_pack pack;
    bool interleaved;
    size_t n, k;  /* as in struct mg_packed */
    float *scale; /* [panels * 32], in the plan's arena */
    int32_t *sum;
};

struct mg_convert_plan {
    struct mg_config config;
    struct mg_weights *weights; /* owned */
    struct mg_piece *piece;     /* [n] in file order, owned */
    size_t n, cap;
    uint64_t head_bytes;  /* length word and JSON, up to margay.json */
    uint64_t small_at;    /* first byte after margay.json */
    uint64_t matrices_at; /* a multiple of MG_PIECE_ALIGN */
    uint64_t total;       /* of the file */
    struct mg_buf file[8];
    struct mg_arena arena;
};

enum mg_status mg_convert_plan_make(const char *folder, enum mg_file_weights weights,
                                    struct mg_convert_plan *plan, struct mg_err *err);
void mg_convert_plan_free(struct mg_convert_plan *plan);
/* The header and margay.json: always head_bytes + MG_MANIFEST_BYTES. false: out of memory. */
bool mg_convert_plan_head(const struct mg_convert_plan *plan, enum mg_file_weights weights,
                          const char *source_id, const char *source_sha256,
                          const char *small_sha256, const char *matrices_sha256,
                          struct mg_buf *out);

#endif
