/* model/model.h - the tensors of a checkpoint, bound by name and shape to the places where they are
 * used.
 *
 * Matrices stay views into the mapped file. Vectors (norms, biases) are few and are widened to f32
 * once. Read-only after opening; any number of threads may use it.
 */
#ifndef MG_MODEL_MODEL_H
#define MG_MODEL_MODEL_H

#include "base/mem.h"
#include "model/compute.h"
#include "weights/config.h"
#include "weights/packed_file.h"
#include "weights/weights.h"

struct mg_layer_norm {
    float *w, *b; /* [hidden] f32, in the model's arena */
};

struct mg_vision_block {
    struct mg_layer_norm norm1, norm2;
    struct mg_linear qkv;  /* [3*hidden][hidden], rows q, k, v */
    struct mg_linear proj; /* [hidden][hidden] */
    struct mg_linear fc1;  /* [ffn][hidden] */
    struct mg_linear fc2;  /* [hidden][ffn] */
};

/* Four patches to one token. Width 4*hidden stands for merge^2 * hidden. */
struct mg_merger {
    struct mg_layer_norm norm; /* [hidden], or [4*hidden] when post_shuffle */
    bool post_shuffle;         /* DeepStack: view first, then norm */
    struct mg_linear fc1;      /* [4*hidden][4*hidden] */
    struct mg_linear fc2;      /* [out][4*hidden] */
};

struct mg_vision {
    struct mg_linear patch_embed;     /* [hidden][3*temporal*patch*patch] */
    const struct mg_tensor *position; /* [n_position][hidden] */
    struct mg_vision_block *block;    /* [depth], in the arena */
    struct mg_merger merger;
    struct mg_merger deepstack[MG_MAX_DEEPSTACK]; /* in the order of config.vision.deepstack */
};

struct mg_decoder_layer {
    float *input_norm, *post_norm; /* [hidden] */
    float *q_norm, *k_norm;        /* [head_dim] */
    struct mg_linear qkv[3];       /* n_qkv matrices [.][hidden]: q, k, v; or packed together */
    size_t n_qkv;                  /* their outputs follow one another in a row */
    struct mg_linear o;            /* [hidden][n_head*head_dim] */
    struct mg_linear gate, up;     /* [ffn][hidden]; packed: both interleaved in `gate` */
    struct mg_linear down;         /* [hidden][ffn] */
};

struct mg_model {
    struct mg_config config;
    struct mg_weights *weights; /* owned */
    struct mg_vision vision;
    bool packed; /* the weights are a packed file: */
    struct mg_manifest manifest;
    struct mg_linear embed;         /* [n_vocab][hidden] */
    struct mg_decoder_layer *layer; /* [n_layer], in the arena */
    float *final_norm;              /* [hidden] */
    struct mg_linear head;          /* [n_vocab][hidden]; the embedding when tied */
    float *rope_freq;               /* [head_dim/2] */
    size_t n_parameter;
    struct mg_arena arena; /* the vectors and arrays above */
};

/* Opens a checkpoint folder or a packed file. A missing or mis-shaped tensor is an error that names
 * it. weights: those of `path`, already opened (the model owns them from here on, also on failure),
 * or NULL. */
enum mg_status mg_model_open(const char *path, struct mg_weights *weights, struct mg_model **out,
                             struct mg_err *err);
void mg_model_close(struct mg_model *model); /* NULL is fine */

/* The embedding row of a token as f32 [hidden]; the id was checked by the caller. */
void mg_model_embed(const struct mg_model *model, const struct mg_kernels *kernels, int32_t id,
                    float *out);

#endif
