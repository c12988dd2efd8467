/* engine/trace.h - one request with every stage written to files, for comparing with the reference.
 *
 * OUT/input_ids.npy [T] i32, image_grid_thw [images][3] i32, position_ids [3][T] i32, pixel_values
 * [patches][dim] f32 (of the whole pictures), vision [tokens][hidden] f32, deepstack_I the same,
 * logits [n_vocab] f32 of the last prompt token, greedy [n] i32. When the engine prunes also kept
 * [tokens] i32, the kept cells' places counted through all pictures.
 */
#ifndef MG_ENGINE_TRACE_H
#define MG_ENGINE_TRACE_H

#include "margay/margay.h"

struct mg_trace_part {
    bool image;
    const char *text; /* n bytes of text, or the picture's path, NUL-terminated */
    size_t n;
};

struct mg_trace_turn {
    enum mg_chat_role role;
    const struct mg_trace_part *part; /* [n_part] */
    size_t n_part;
};

/* pixel_values: a .npy file whose rows replace the preprocessed ones, or NULL; rounded to 8 bits
 * they decide what is pruned. Generates exactly max_tokens tokens greedily, end tokens or not.
 * out_dir is made when it isn't there. */
enum mg_status mg_trace_run(mg_engine *e, const struct mg_trace_turn *turn, size_t n_turn,
                            const char *pixel_values, size_t max_tokens, const char *out_dir,
                            struct mg_err *err);

#endif
