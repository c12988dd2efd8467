/* What the tests of answers share: engines on the small recorded checkpoint and on the demo model,
 * with a cache folder of their own; prompts; a greedy walk through the logits. */
#ifndef MG_TESTS_TINY_H
#define MG_TESTS_TINY_H

#include "engine/internal.h"

#define TINY "tests/oracle/tiny-tied"
#define DEMO "models/demo"
#define IMAGES "tests/oracle/images/"
#define MAX_VOCAB 640

/* A folder that vanishes at tiny_close. Group setup and teardown of cmocka. */
int tiny_open(void **state);
int tiny_close(void **state);
/* Path of a file in that folder; valid until the next call. */
const char *tiny_path(const char *name);

struct tiny {
    const char *model; /* TINY when NULL */
    const char *tier;  /* MARGAY_CPU, NULL: the best */
    enum mg_weight_mode weights;
    size_t chunk, context;
    int threads; /* 0: 2 */
};
mg_engine *tiny_engine(const struct tiny *o);
mg_chat *tiny_chat(mg_engine *e);
void tiny_image(mg_chat *chat, const char *path); /* within IMAGES, or a whole path */
void tiny_text(mg_chat *chat, enum mg_chat_role role, const char *text);
/* Three turns and two pictures of different shape. */
void tiny_fill(mg_chat *chat);

/* Reads the prompt from token `from` on; gives its length. */
size_t tiny_read(mg_chat *chat, size_t from);
/* The first largest of the logits that are someone's token, by a loop of its own. */
int32_t tiny_largest(const mg_engine *e, const float *logits);
/* n greedy tokens after the prompt from `from` on, and the logits that each was taken from,
 * [n][n_vocab]. */
void tiny_walk(mg_chat *chat, size_t from, size_t n, int32_t *id, float *logits);
size_t tiny_vocab(const mg_engine *e);

#endif
