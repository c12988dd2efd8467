/* With whole-number weights an answer's tokens and logits have the same bits whatever the number of
 * threads, the prompt's chunks, what was kept from earlier, and the company in a batch. Also the
 * likeliest token without logits (mg_decoder_top) against logits.
 *
 * Between tiers the last bits may differ (how exp is computed), so each is compared with itself.
 */
#include "engine/batch.h"
#include "tiny.h"
#include "weights/pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WALK 12 /* tokens */
#define ALL 4096

static const char *const tiers[] = {NULL, "vnni", "avxvnni", "avx512", "avx2", "ref"};
static const enum mg_weight_mode whole[] = {MG_WEIGHTS_INT8, MG_WEIGHTS_INT4};
static float first[WALK * MAX_VOCAB], other[WALK * MAX_VOCAB];

/* Plain C takes many times as long, so it gets fewer of the cases. */
static size_t stride(const struct tiny *t, size_t more) {
    return t->tier && !strcmp(t->tier, "ref") ? more : 1;
}

static void same_walk(const mg_engine *e, const int32_t *want, const int32_t *got, const char *what,
                      size_t a, size_t b) {
    size_t bytes = tiny_vocab(e) * sizeof *first;
    for (size_t i = 0; i < WALK; i++)
        if (want[i] != got[i] ||
            memcmp((char *)first + i * bytes, (char *)other + i * bytes, bytes))
            fail_msg("%s %zu, %zu: token %zu of the answer differs", what, a, b, i);
}

/* Threads 1, 2, 3 and chunks 1, 7, 64, all; the public call gives the tokens of the walk. */
static void check_cuts(const struct tiny *base) {
    static const size_t chunk[] = {ALL, 1, 7, 64};
    int32_t want[WALK], got[WALK];
    for (size_t i = 0; i < 4; i += stride(base, 2))
        for (int threads = 1; threads <= 3; threads += (int)stride(base, 2)) {
            struct tiny t = *base;
            t.chunk = chunk[i];
            t.threads = threads;
            mg_engine *e = tiny_engine(&t);
            mg_chat *chat = tiny_chat(e), *asked = tiny_chat(e);
            tiny_fill(chat);
            tiny_fill(asked);
            bool is_first = i == 0 && threads == 1;
            tiny_walk(chat, 0, WALK, is_first ? want : got, is_first ? first : other);
            if (!is_first) same_walk(e, want, got, "chunk and threads", chunk[i], (size_t)threads);
            struct mg_answer_options o;
            struct mg_answer a;
            struct mg_err err = {0};
            mg_answer_options_init(&o);
            o.max_tokens = WALK;
            o.ignore_end = true;
            assert_int_equal(mg_chat_answer(asked, &o, NULL, NULL, &a, &err), MG_OK);
            assert_int_equal(a.n_token, WALK);
            assert_memory_equal(a.token, want, sizeof want);
            mg_chat_close(chat);
            mg_chat_close(asked);
            mg_engine_close(e);
        }
}

static void test_cuts(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++)
        for (size_t w = 0; w < 2; w++)
            check_cuts(&(struct tiny){.tier = tiers[t], .weights = whole[w]});
}

/* Whatever is kept of the keys and values, the rest read anew gives the bits of a cold run. Long
 * enough that cutting gives pages back. */
static void test_reuse(void **state) {
    (void)state;
    for (size_t w = 0; w < 2; w++) {
        mg_engine *e = tiny_engine(&(struct tiny){.weights = whole[w], .chunk = 64});
        mg_chat *chat = tiny_chat(e);
        tiny_fill(chat);
        for (int i = 0; i < 40; i++) tiny_text(chat, MG_USER, " and the next line says 17.50?");
        int32_t want[WALK], got[WALK];
        tiny_walk(chat, 0, WALK, want, first);
        size_t n = tiny_read(chat, 0);
        assert_true(n > 256); /* bf16 keys of 32: 64 tokens a page */
        for (size_t cut = 0; cut < n; cut += cut < 140 ? 3 : 29) {
            tiny_walk(chat, cut, WALK, got, other);
            same_walk(e, want, got, "cut at", cut, n);
        }
        tiny_walk(chat, n - 1, WALK, got, other);
        same_walk(e, want, got, "cut at", n - 1, n);
        mg_chat_close(chat);
        mg_engine_close(e);
    }
}

/* Prompts of different length and kind for 16 conversations. */
static void fill_one(mg_chat *chat, size_t i) {
    static const char *const image[] = {"odd.png",   "gray.png",  "shapes.png", "page.png",
                                        "small.png", "photo.jpg", "alpha.png"};
    char text[64];
    snprintf(text, sizeof text, "question %zu: what is %zu + %zu?", i, i * 7, i * i);
    if (i % 4 != 3) tiny_image(chat, image[i % 7]);
    tiny_text(chat, MG_USER, text);
    if (i % 5 == 0) tiny_image(chat, image[(i + 3) % 7]);
    if (i % 3 == 0) {
        tiny_text(chat, MG_ASSISTANT, "17");
        tiny_text(chat, MG_USER, "sure?");
    }
}

struct alone {
    size_t n_prompt;
    int32_t next_pos, id[WALK];
    float logits[WALK * MAX_VOCAB];
};

static void check_batch(const struct tiny *t) {
    static const size_t size[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16};
    mg_engine *e = tiny_engine(t);
    mg_chat *chat[MG_MAX_BATCH];
    struct alone *alone = calloc(MG_MAX_BATCH, sizeof *alone);
    assert_non_null(alone);
    size_t vocab = tiny_vocab(e);
    struct mg_err err = {0};
    for (size_t i = 0; i < MG_MAX_BATCH; i++) {
        chat[i] = tiny_chat(e);
        fill_one(chat[i], i);
        alone[i].n_prompt = tiny_read(chat[i], 0);
        alone[i].next_pos = chat[i]->next_pos;
        tiny_walk(chat[i], alone[i].n_prompt - 1, WALK, alone[i].id, alone[i].logits);
    }
    for (size_t s = 0; s < sizeof size / sizeof *size; s += stride(t, 4)) {
        size_t n = size[s], shift = s % 3; /* not always the same neighbours */
        mg_chat *in[MG_MAX_BATCH];
        int32_t id[MG_MAX_BATCH], next[MG_MAX_BATCH];
        for (size_t i = 0; i < n; i++) {
            size_t c = (i * 5 + shift) % MG_MAX_BATCH;
            in[i] = chat[c];
            mg_kv_cut(&in[i]->kv, alone[c].n_prompt);
            in[i]->next_pos = alone[c].next_pos;
            id[i] = alone[c].id[0];
        }
        for (size_t step = 1; step < WALK; step++) {
            if (mg_batch_step(in, n, id, next, &err) != MG_OK) fail_msg("%s", err.text);
            for (size_t i = 0; i < n; i++) {
                const struct alone *a = &alone[(i * 5 + shift) % MG_MAX_BATCH];
                assert_int_equal(next[i], a->id[step]);
                assert_int_equal(in[i]->kv.n, a->n_prompt + step);
                assert_int_equal(in[i]->next_pos, a->next_pos + (int32_t)step);
                assert_int_equal(
                    mg_decoder_logits(e->model, &e->compute, &e->work, i, e->logits, &err), MG_OK);
                if (memcmp(e->logits, a->logits + step * vocab, vocab * sizeof(float)))
                    fail_msg("batch of %zu: conversation %zu, token %zu: other logits than alone",
                             n, i, step);
                id[i] = next[i];
            }
        }
    }
    for (size_t i = 0; i < MG_MAX_BATCH; i++) mg_chat_close(chat[i]);
    free(alone);
    mg_engine_close(e);
}

static void test_batch(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++)
        for (size_t w = 0; w < 2; w++)
            check_batch(&(struct tiny){.tier = tiers[t], .weights = whole[w]});
}

/* What can't be is refused, and then no conversation has moved. */
static void test_batch_refusals(void **state) {
    (void)state;
    struct tiny t = {.weights = MG_WEIGHTS_INT8, .context = 64};
    mg_engine *e = tiny_engine(&t), *e2 = tiny_engine(&t);
    mg_chat *a = tiny_chat(e), *b = tiny_chat(e), *empty = tiny_chat(e), *far = tiny_chat(e2);
    mg_chat *const ab[] = {a, b}, *const with_empty[] = {a, empty};
    mg_chat *const aa[] = {a, a}, *const with_far[] = {a, far};
    tiny_text(a, MG_USER, "hello");
    tiny_text(b, MG_USER, "hello there, how many?");
    tiny_text(far, MG_USER, "hello");
    size_t na = tiny_read(a, 0), nb = tiny_read(b, 0);
    tiny_read(far, 0);
    int32_t id[MG_MAX_BATCH + 1] = {5, 6}, next[MG_MAX_BATCH + 1];
    struct {
        mg_chat *const *chat;
        size_t n;
        int32_t first;
    } wrong[] = {{ab, 0, 5},        {ab, MG_MAX_BATCH + 1, 5}, {with_empty, 2, 5},
                 {aa, 2, 5},        {with_far, 2, 5},          {ab, 2, -1},
                 {ab, 2, MAX_VOCAB}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct mg_err err = {0};
        id[0] = wrong[i].first;
        assert_int_equal(mg_batch_step(wrong[i].chat, wrong[i].n, id, next, &err), MG_ERR_ARGUMENT);
        assert_true(err.text[0]);
        assert_true(a->kv.n == na && b->kv.n == nb);
    }
    id[0] = 5;
    struct mg_err err = {0};
    while (b->kv.n < 64) assert_int_equal(mg_chat_step(b, 7, b->next_pos, &err), MG_OK);
    assert_int_equal(mg_batch_step(ab, 2, id, next, &err), MG_ERR_CONTEXT);
    assert_true(a->kv.n == na && b->kv.n == 64);
    mg_err_clear(&err);
    assert_int_equal(mg_batch_step(ab, 1, id, next, &err), MG_OK); /* and goes on */
    mg_chat_close(a);
    mg_chat_close(b);
    mg_chat_close(empty);
    mg_chat_close(far);
    mg_engine_close(e);
    mg_engine_close(e2);
}

static uint32_t random_state;
static float next_random(void) { /* -1..1 */
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state / 2147483648.0f;
}

/* A head of the test's own in place of the model's: f32 rows, packed when the model's is. */
struct own_head {
    float *row; /* [n_vocab][hidden] */
    struct mg_linear was;
    uint8_t *data;
    float *scale;
    int32_t *sum;
    size_t n, k;
};

static void head_pack(struct own_head *h, mg_engine *e) {
    struct mg_linear *l = &e->model->head;
    if (!mg_linear_is_packed(&h->was)) {
        l->w = h->row;
        l->type = MG_F32;
        return;
    }
    l->packed.data = h->data;
    l->packed.scale = h->scale;
    l->packed.sum = h->sum;
    size_t bytes = mg_packed_panel_bytes(l->packed.kind, h->k);
    for (size_t p = 0; p * MG_PANEL < h->n; p++) {
        const float *row[MG_PANEL] = {NULL};
        double error[2] = {0};
        for (size_t c = 0; c < MG_PANEL && p * MG_PANEL + c < h->n; c++)
            row[c] = h->row + (p * MG_PANEL + c) * h->k;
        assert_true(mg_pack_panel(l->packed.kind, row, h->k, h->data + p * bytes,
                                  h->scale + p * MG_PANEL, h->sum + p * MG_PANEL, error));
    }
}

static void head_open(struct own_head *h, mg_engine *e) {
    size_t panels = (tiny_vocab(e) + MG_PANEL - 1) / MG_PANEL;
    *h = (struct own_head){
        .was = e->model->head, .n = tiny_vocab(e), .k = e->model->config.text.hidden};
    h->row = mg_alloc(h->n * h->k, sizeof *h->row);
    h->data = mg_alloc(panels, mg_packed_panel_bytes(MG_PACK_INT8, h->k));
    h->scale = mg_alloc(panels * MG_PANEL, sizeof *h->scale);
    h->sum = mg_alloc(panels * MG_PANEL, sizeof *h->sum);
    assert_true(h->row && h->data && h->scale && h->sum);
    for (size_t i = 0; i < h->n * h->k; i++) h->row[i] = next_random();
    head_pack(h, e);
}

static void head_close(struct own_head *h, mg_engine *e) {
    e->model->head = h->was;
    free(h->row);
    free(h->data);
    free(h->scale);
    free(h->sum);
}

static size_t largest_below(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Rows `from` .. of the last pass against their logits, for vocabularies of several sizes. */
static void compare_top(mg_engine *e, size_t m, size_t rows, size_t step) {
    static const size_t most[] = {1, 15, 16, 17, 31, 32, 33, 333, 639, 640};
    struct mg_err err = {0};
    int32_t id[MG_MAX_TOP];
    for (size_t v = 0; v < sizeof most / sizeof *most; v++)
        for (size_t from = 0; from + rows <= m; from += step) {
            assert_int_equal(mg_decoder_top(e->model, &e->compute, &e->work, from, rows, most[v],
                                            e->logits, id, &err),
                             MG_OK);
            for (size_t i = 0; i < rows; i++) {
                assert_int_equal(
                    mg_decoder_logits(e->model, &e->compute, &e->work, from + i, e->logits, &err),
                    MG_OK);
                assert_int_equal(id[i], largest_below(e->logits, most[v]));
            }
        }
}

static void check_top(const struct tiny *t) {
    mg_engine *e = tiny_engine(t);
    mg_chat *chat = tiny_chat(e);
    struct own_head h;
    struct mg_err err = {0};
    int32_t id[MG_MAX_TOP];
    tiny_fill(chat);
    tiny_read(chat, 0);
    size_t m = e->work.last + 1;
    assert_true(m > 2 * MG_MAX_TOP);
    random_state = 21;
    for (size_t rows = 1; rows <= MG_MAX_TOP; rows += rows < 9 ? 2 : 7)
        compare_top(e, m, rows, 7 * stride(t, 5));
    head_open(&h, e);
    compare_top(e, m, MG_MAX_TOP, 7 * stride(t, 5));
    /* Ties: the winner's row again at other places, in its own panel and in others. */
    assert_int_equal(mg_decoder_logits(e->model, &e->compute, &e->work, m - 1, e->logits, &err),
                     MG_OK);
    size_t best = largest_below(e->logits, h.n);
    const size_t twin[] = {h.n - 1, best ^ 1, (best + 200) % h.n, best / 2, 31, 32, 0};
    for (size_t i = 0; i < sizeof twin / sizeof *twin; i++) {
        size_t want = best;
        memmove(h.row + twin[i] * h.k, h.row + best * h.k, h.k * sizeof *h.row);
        head_pack(&h, e);
        for (size_t j = 0; j <= i; j++) want = mg_min_size(want, twin[j]);
        for (size_t rows = 1; rows <= MG_MAX_TOP; rows += 5) {
            assert_int_equal(mg_decoder_top(e->model, &e->compute, &e->work, m - rows, rows, h.n,
                                            e->logits, id, &err),
                             MG_OK);
            assert_int_equal(id[rows - 1], want);
        }
    }
    /* All equal, and nothing but zeros. */
    for (int zero = 0; zero < 2; zero++) {
        for (size_t i = 0; i < h.n * h.k; i++) h.row[i] = zero ? 0 : h.row[i % h.k];
        head_pack(&h, e);
        assert_int_equal(mg_decoder_top(e->model, &e->compute, &e->work, m - MG_MAX_TOP, MG_MAX_TOP,
                                        h.n, e->logits, id, &err),
                         MG_OK);
        for (size_t i = 0; i < MG_MAX_TOP; i++) assert_int_equal(id[i], 0);
    }
    /* A row that is not finite has no likeliest token; the rows beside it have theirs. */
    head_close(&h, e);
    compare_top(e, m, 3, 7 * stride(t, 5));
    e->work.x[(m - 2) * e->work.ldx + 3] = NAN;
    assert_int_equal(
        mg_decoder_top(e->model, &e->compute, &e->work, m - 3, 3, h.n, e->logits, id, &err), MG_OK);
    assert_true(id[0] >= 0 && id[1] == -1 && id[2] >= 0);
    mg_chat_close(chat);
    mg_engine_close(e);
}

static void test_top(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++)
        for (int w = MG_WEIGHTS_F32; w <= MG_WEIGHTS_INT4; w++)
            check_top(&(struct tiny){.tier = tiers[t], .weights = (enum mg_weight_mode)w});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts), cmocka_unit_test(test_reuse), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_batch_refusals), cmocka_unit_test(test_top)};
    return cmocka_run_group_tests_name("engine.exact", tests, tiny_open, tiny_close);
}
