/* See tiny.h. */
#include "tiny.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[256];

int tiny_open(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/margay-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    mg_log_set_level(MG_LOG_ERROR);
    return mkdtemp(folder) ? 0 : -1;
}

int tiny_close(void **state) {
    (void)state;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    return rmdir(folder);
}

const char *tiny_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

mg_engine *tiny_engine(const struct tiny *t) {
    struct mg_engine_options o = {.weights = t->weights,
                                  .cache_dir = folder,
                                  .prefill_chunk = t->chunk,
                                  .n_thread = t->threads ? t->threads : 2,
                                  .context = t->context,
                                  .model_image_limits = true};
    struct mg_err err = {0};
    mg_engine *e;
    if (t->tier)
        setenv("MARGAY_CPU", t->tier, 1);
    else
        unsetenv("MARGAY_CPU");
    if (mg_engine_open(t->model ? t->model : TINY, &o, &e, &err) != MG_OK) fail_msg("%s", err.text);
    return e;
}

mg_chat *tiny_chat(mg_engine *e) {
    struct mg_err err = {0};
    mg_chat *chat;
    if (mg_chat_open(e, &chat, &err) != MG_OK) fail_msg("%s", err.text);
    return chat;
}

void tiny_image(mg_chat *chat, const char *name) {
    struct mg_err err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s%s", strchr(name, '/') ? "" : IMAGES, name);
    if (mg_chat_add_image_file(chat, path, &err) != MG_OK) fail_msg("%s", err.text);
}

void tiny_text(mg_chat *chat, enum mg_chat_role role, const char *text) {
    struct mg_err err = {0};
    if (mg_chat_add_text(chat, role, text, &err) != MG_OK) fail_msg("%s", err.text);
}

void tiny_fill(mg_chat *chat) {
    tiny_text(chat, MG_SYSTEM, "You are a careful reader.");
    tiny_image(chat, "odd.png");
    tiny_text(chat, MG_USER, " and ");
    tiny_image(chat, "gray.png");
    tiny_text(chat, MG_USER, " : how many circles?");
    tiny_text(chat, MG_ASSISTANT, "TOTAL 42.50");
    tiny_text(chat, MG_USER, "And this one? 苹果");
}

size_t tiny_read(mg_chat *chat, size_t from) {
    struct mg_err err = {0};
    struct layout l;
    if (mg_layout_make(chat, &l, &err) != MG_OK) fail_msg("%s", err.text);
    mg_kv_cut(&chat->kv, from);
    for (size_t i = 0; i < chat->n_image; i++)
        if (mg_chat_encode(chat, i, NULL, &err) != MG_OK) fail_msg("%s", err.text);
    if (mg_chat_prefill(chat, &l, from, NULL, NULL, &err) != MG_OK) fail_msg("%s", err.text);
    size_t n = l.n;
    mg_layout_free(&l);
    return n;
}

size_t tiny_vocab(const mg_engine *e) {
    return e->model->config.text.n_vocab;
}

int32_t tiny_largest(const mg_engine *e, const float *logits) {
    size_t n = mg_tokenizer_n(e->tokenizer), best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

void tiny_walk(mg_chat *chat, size_t from, size_t n, int32_t *id, float *logits) {
    struct mg_err err = {0};
    size_t vocab = tiny_vocab(chat->engine);
    tiny_read(chat, from);
    for (size_t i = 0; i < n; i++) {
        if (i && mg_chat_step(chat, id[i - 1], chat->next_pos, &err) != MG_OK)
            fail_msg("%s", err.text);
        if (mg_chat_logits(chat, &err) != MG_OK) fail_msg("%s", err.text);
        memcpy(logits + i * vocab, chat->engine->logits, vocab * sizeof *logits);
        id[i] = tiny_largest(chat->engine, logits + i * vocab);
    }
}
