/* weights/config.h - the JSON files of a checkpoint folder, checked and range-limited.
 *
 * Both spellings of config.json are read (rope_theta + rope_scaling, or rope_parameters). Every
 * number that sizes something is range-checked here, so that the code behind can multiply without
 * fear; what margay doesn't compute as the reference would (another architecture, rope type,
 * activation, quantised weights) is refused by name. Keys that are absent take the defaults of the
 * reference's configuration classes (transformers 5.24), except rope_theta, whose default has
 * changed between releases: it must be there.
 */
#ifndef MG_WEIGHTS_CONFIG_H
#define MG_WEIGHTS_CONFIG_H

#include "base/err.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_MAX_LAYER 256
#define MG_MAX_DEEPSTACK 16
#define MG_MAX_END_TOKEN 16

struct mg_text_config {
    size_t hidden, n_layer, n_head, n_head_kv, head_dim, ffn, n_vocab;
    size_t max_position; /* max_position_embeddings: the context's end */
    float norm_eps, rope_theta;
    size_t section[3]; /* mrope_section: temporal, height, width; sum = head_dim / 2 */
    bool tied; /* tie_word_embeddings: the outer one, as the reference; text_config's when absent */
};

struct mg_vision_config {
    size_t hidden, depth, n_head, ffn, patch, temporal, merge, out, n_position, in_channels;
    size_t deepstack[MG_MAX_DEEPSTACK], n_deepstack; /* block indices in ascending order */
    float norm_eps;                                  /* 1e-6 */
};

struct mg_preprocess_config {
    uint64_t min_pixels, max_pixels;
    size_t patch, temporal, merge; /* as in the vision config */
    float mean[3], std[3];
};

struct mg_generation_config {
    bool do_sample;
    float temperature, top_p, repetition_penalty; /* defaults 1.0 */
    int top_k;                           /* 0 = off; absent 50 as the reference, when sampling */
    int32_t end_token[MG_MAX_END_TOKEN]; /* distinct, each below n_vocab */
    size_t n_end_token;                  /* 0 when no file names one */
};

struct mg_config {
    struct mg_text_config text;
    struct mg_vision_config vision;
    struct mg_preprocess_config preprocess;
    struct mg_generation_config generation;
    int32_t image_token, video_token, vision_start, vision_end; /* distinct, each below n_vocab */
};

/* FOLDER/config.json (needed); processor_config.json's image_processor (what transformers 5 saves)
 * or else preprocessor_config.json; generation_config.json. Without a preprocessing file the
 * published 2B values hold; without generation_config.json generation is greedy, and the end tokens
 * are config.json's eos_token_id. */
enum mg_status mg_config_open(const char *folder, struct mg_config *out, struct mg_err *err);

/* `folder` is a folder that can be entered; else an error that says what is there instead. */
enum mg_status mg_folder_check(const char *folder, struct mg_err *err);

/* The texts that mg_config_open reads: config.json, the preprocessing file, generation_config.json;
 * data stays NULL for an absent one. The caller frees all three, on failure too. */
enum mg_status mg_config_texts(const char *folder, struct mg_buf text[3], struct mg_err *err);

/* The three files' texts; NULL for an absent one (fuzz target's entry). `preprocess` may be either
 * of the two. */
enum mg_status mg_config_parse(const char *config, size_t n_config, const char *preprocess,
                               size_t n_preprocess, const char *generation, size_t n_generation,
                               struct mg_config *out, struct mg_err *err);

#endif
