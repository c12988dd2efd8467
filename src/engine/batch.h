/* engine/batch.h - decoding several conversations in one pass over the weights.
 *
 * What the server's scheduler and bench are made of: while decoding waits for memory, the rows of
 * 16 conversations cost little more than one. With packed weights a conversation's tokens are the
 * same in every bit as when it decodes alone.
 */
#ifndef MG_ENGINE_BATCH_H
#define MG_ENGINE_BATCH_H

#include "margay/margay.h"

#define MG_MAX_BATCH 16

/* Feeds token id[i] to chat[i] (n of them, 1 .. MG_MAX_BATCH, all of one engine, all different,
 * each with a prompt read) and gives the likeliest next token of each in next[i]. MG_ERR_CONTEXT
 * when one has no room: then none has moved. */
enum mg_status mg_batch_step(mg_chat *const *chat, size_t n, const int32_t *id, int32_t *next,
                             struct mg_err *err);

#endif
