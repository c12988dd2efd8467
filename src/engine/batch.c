/* engine/batch.c - see batch.h. */
#include "engine/batch.h"

#include "engine/internal.h"

_Static_assert(MG_MAX_BATCH <= MG_MAX_SPAN && MG_MAX_BATCH <= MG_MAX_TOP,
               "a batch is one pass, and its last rows' likeliest tokens are asked for at once");
_Static_assert(MG_MAX_DRAFT < MG_MAX_TOP, "a draft and the token before it are one pass");

enum mg_status mg_batch_step(mg_chat *const *chat, size_t n, const int32_t *id, int32_t *next,
                             struct mg_err *err) {
    struct mg_span span[MG_MAX_BATCH];
    if (n == 0 || n > MG_MAX_BATCH)
        return mg_fail(err, MG_ERR_ARGUMENT, "batch", "%zu conversations at once; 1 to %d", n,
                       MG_MAX_BATCH);
    mg_engine *e = chat[0]->engine;
    for (size_t i = 0; i < n; i++) {
        int32_t pos = chat[i]->next_pos;
        if (chat[i]->kv.n == 0 || chat[i]->engine != e || id[i] < 0 ||
            (size_t)id[i] >= e->model->config.text.n_vocab)
            return mg_fail(err, MG_ERR_ARGUMENT, "batch",
                           "conversation %zu of the batch has no prompt, another engine, or token "
                           "%d, which there isn't",
                           i + 1, (int)id[i]);
        for (size_t j = 0; j < i; j++)
            if (chat[j] == chat[i])
                return mg_fail(err, MG_ERR_ARGUMENT, "batch", "a conversation is there twice");
        span[i] = (struct mg_span){&chat[i]->kv, 1};
        e->row[i] = (struct mg_row){.id = id[i], .pos = {pos, pos, pos}};
    }
    enum mg_status status =
        mg_decoder_pass(e->model, &e->compute, &e->work, span, n, e->row, n, err);
    if (status != MG_OK) return status;
    for (size_t i = 0; i < n; i++) {
        chat[i]->kv_id[chat[i]->kv.n - 1] = id[i];
        chat[i]->next_pos++;
    }
    return mg_chat_top(chat[0], n, next, err);
}
