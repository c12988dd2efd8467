/* weights/fits.c - see fits.h. */
#include "weights/fits.h"

#include <stdlib.h>
#include <string.h>

#define VISION "model.visual."
#define TEXT "model.language_model."

/* A configuration with fewer blocks than the file would leave out the last ones without a word. */
static enum mg_status refuse_more(const struct mg_weights *w, const char *list, size_t n,
                                  const char *setting, struct mg_err *err) {
    size_t len = strlen(list);
    for (size_t i = 0; i < mg_weights_count(w); i++) {
        const char *name = mg_weights_at(w, i)->name;
        if (strncmp(name, list, len) != 0 || name[len] < '0' || name[len] > '9') continue;
        if (strtoull(name + len, NULL, 10) >= n)
            return mg_fail(err, MG_ERR_FORMAT, "tensor_unexpected",
                           "config.json says %s %zu, but the weights have %.120s", setting, n,
                           name);
    }
    return MG_OK;
}

/* Tied with two matrices that differ is a contradiction: transformers 4.57 reads the embedding,
 * 5.24 the head, so the file's maker has to settle it. */
static enum mg_status refuse_two_heads(const struct mg_weights *w, struct mg_err *err) {
    const struct mg_tensor *head = mg_weights_find(w, "lm_head.weight");
    const struct mg_tensor *embed = mg_weights_find(w, TEXT "embed_tokens.weight");
    if (!head || !embed ||
        (head->dtype == embed->dtype && head->n == embed->n &&
         memcmp(head->data, embed->data, head->n * mg_dtype_size(head->dtype)) == 0))
        return MG_OK;
    return mg_fail(err, MG_ERR_FORMAT, "head_conflict",
                   "config.json says tie_word_embeddings, but lm_head.weight differs from "
                   "model.language_model.embed_tokens.weight: remove one or correct the config");
}

enum mg_status mg_checkpoint_fits(const struct mg_weights *w, const struct mg_config *c,
                                  struct mg_err *err) {
    enum mg_status status = c->text.tied ? refuse_two_heads(w, err) : MG_OK;
    if (status == MG_OK)
        status = refuse_more(w, TEXT "layers.", c->text.n_layer, "num_hidden_layers", err);
    if (status == MG_OK) status = refuse_more(w, VISION "blocks.", c->vision.depth, "depth", err);
    if (status == MG_OK)
        status = refuse_more(w, VISION "deepstack_merger_list.", c->vision.n_deepstack,
                             "a number of deepstack_visual_indexes of", err);
    return status;
}
