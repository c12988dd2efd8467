/* Conversations on the recorded small checkpoint (tests/oracle/tiny-tied): what must not depend on
 * chunks, threads, company, reuse or cancellation, and what must be refused.
 *
 * Bits are compared under MARGAY_CPU=ref; on other tiers the parity bound of check_parity.py holds,
 * 3e-5 of the largest logit in f32 and 3e-2 in bf16.
 */
#include "engine/internal.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODEL "tests/oracle/tiny-tied"
#define IMAGES "tests/oracle/images/"
#define ALL 4096

/* What open_engine prunes; set and reset by the tests of pruning. */
static enum mg_prune_mode prune;
static uint8_t prune_near;

static mg_engine *open_engine(const char *tier, enum mg_weight_mode weights, size_t chunk,
                              int threads, size_t context) {
    struct mg_engine_options o = {.weights = weights,
                                  .prefill_chunk = chunk,
                                  .n_thread = threads,
                                  .context = context,
                                  .model_image_limits = true,
                                  .prune = prune,
                                  .prune_near = prune_near};
    struct mg_err err = {0};
    mg_engine *e;
    if (tier)
        setenv("MARGAY_CPU", tier, 1);
    else
        unsetenv("MARGAY_CPU");
    mg_log_set_level(MG_LOG_ERROR);
    if (mg_engine_open(MODEL, &o, &e, &err) != MG_OK) fail_msg("%s", err.text);
    return e;
}

static mg_chat *open_chat(mg_engine *e) {
    struct mg_err err = {0};
    mg_chat *chat;
    if (mg_chat_open(e, &chat, &err) != MG_OK) fail_msg("%s", err.text);
    return chat;
}

static void add_image(mg_chat *chat, const char *name) {
    struct mg_err err = {0};
    char path[256];
    snprintf(path, sizeof path, IMAGES "%s", name);
    if (mg_chat_add_image_file(chat, path, &err) != MG_OK) fail_msg("%s", err.text);
}

static void add_text(mg_chat *chat, enum mg_chat_role role, const char *text) {
    struct mg_err err = {0};
    if (mg_chat_add_text(chat, role, text, &err) != MG_OK) fail_msg("%s", err.text);
}

/* Three turns, two pictures of different shape. */
static void fill(mg_chat *chat) {
    add_text(chat, MG_SYSTEM, "You are a careful reader.");
    add_image(chat, "odd.png");
    add_text(chat, MG_USER, " and ");
    add_image(chat, "gray.png");
    add_text(chat, MG_USER, " : how many circles?");
    add_text(chat, MG_ASSISTANT, "TOTAL 42.50");
    add_text(chat, MG_USER, "And this one? 苹果");
}

/* Logits of the prompt's last token, read from token `from` on. */
static void prompt_logits(mg_chat *chat, size_t from, float *out) {
    struct mg_err err = {0};
    struct layout l;
    if (mg_layout_make(chat, &l, &err) != MG_OK) fail_msg("%s", err.text);
    mg_kv_cut(&chat->kv, from);
    for (size_t i = 0; i < chat->n_image; i++)
        if (mg_chat_encode(chat, i, NULL, &err) != MG_OK) fail_msg("%s", err.text);
    if (mg_chat_prefill(chat, &l, from, NULL, NULL, &err) != MG_OK ||
        mg_chat_logits(chat, &err) != MG_OK)
        fail_msg("%s", err.text);
    memcpy(out, chat->engine->logits, chat->engine->model->config.text.n_vocab * sizeof *out);
    mg_layout_free(&l);
}

static double relative(const float *a, const float *b, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return worst / largest;
}

static float first[ALL], other[ALL];

static void check_cuts(const char *tier, enum mg_weight_mode weights, double limit) {
    const size_t chunk[] = {ALL, 1, 7, 64};
    for (size_t i = 0; i < 4; i++)
        for (int threads = 1; threads <= 2; threads++) {
            mg_engine *e = open_engine(tier, weights, chunk[i], threads, 0);
            mg_chat *chat = open_chat(e);
            size_t n = e->model->config.text.n_vocab;
            bool is_first = i == 0 && threads == 1;
            fill(chat);
            prompt_logits(chat, 0, is_first ? first : other);
            double off = is_first ? 0 : relative(other, first, n);
            if (!(off <= limit))
                fail_msg("chunk %zu, %d threads: off by %g", chunk[i], threads, off);
            if (i == 0 &&
                threads == 2) /* the thread count alone never changes a bit, on any tier */
                assert_memory_equal(first, other, n * sizeof *first);
            mg_chat_close(chat);
            mg_engine_close(e);
        }
}

static void test_chunks_ref(void **state) {
    (void)state;
    check_cuts("ref", MG_WEIGHTS_F32, 0);
    check_cuts("ref", MG_WEIGHTS_BF16, 0);
}

static void test_chunks_best(void **state) {
    (void)state;
    check_cuts(NULL, MG_WEIGHTS_F32, 3e-5);
    check_cuts(NULL, MG_WEIGHTS_BF16, 3e-2);
}

/* Fault 21: a picture alone, and as second of three. */
static void check_company(const char *tier) {
    mg_engine *e = open_engine(tier, MG_WEIGHTS_BF16, 0, 2, 0);
    mg_chat *alone = open_chat(e), *three = open_chat(e);
    struct mg_err err = {0};
    add_image(alone, "odd.png");
    add_image(three, "shapes.png");
    add_image(three, "odd.png");
    add_image(three, "page.png");
    assert_int_equal(mg_chat_encode(alone, 0, NULL, &err), MG_OK);
    for (size_t i = 0; i < 3; i++) assert_int_equal(mg_chat_encode(three, i, NULL, &err), MG_OK);
    struct mg_picture *a = &alone->image[0].picture, *b = &three->image[1].picture;
    assert_int_equal(a->n_token, b->n_token);
    assert_memory_equal(a->row, b->row, a->n_map * a->n_token * a->width * sizeof *a->row);
    mg_chat_close(alone);
    mg_chat_close(three);
    mg_engine_close(e);
}

static void test_company(void **state) {
    (void)state;
    check_company("ref");
    check_company(NULL);
}

/* Faults 25, 26: reuse at every cut point, also inside a picture, equals a cold run. */
static void test_reuse(void **state) {
    (void)state;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 64, 2, 0);
    mg_chat *chat = open_chat(e);
    size_t n = e->model->config.text.n_vocab;
    fill(chat);
    prompt_logits(chat, 0, first);
    size_t n_prompt = chat->kv.n;
    for (size_t cut = 0; cut < n_prompt; cut += 3) {
        prompt_logits(chat, cut, other);
        assert_memory_equal(first, other, n * sizeof *first);
    }
    mg_chat_close(chat);
    mg_engine_close(e);
}

/* The next position is not the token count: a second question on a picture equals a cold
 * conversation. */
static void test_second_question(void **state) {
    (void)state;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 0, 2, 0);
    mg_chat *warm = open_chat(e), *cold = open_chat(e);
    struct mg_answer_options o;
    struct mg_answer a = {0}, b = {0};
    struct mg_err err = {0};
    mg_answer_options_init(&o);
    o.max_tokens = 12;
    o.ignore_end = o.no_loop_check = true;
    add_image(warm, "odd.png");
    add_text(warm, MG_USER, "what is it?");
    assert_int_equal(mg_chat_answer(warm, &o, NULL, NULL, &a, &err), MG_OK);
    char said[1024];
    snprintf(said, sizeof said, "%s", a.text);
    add_text(warm, MG_USER, "how many?");
    assert_int_equal(mg_chat_answer(warm, &o, NULL, NULL, &a, &err), MG_OK);
    add_image(cold, "odd.png");
    add_text(cold, MG_USER, "what is it?");
    add_text(cold, MG_ASSISTANT, said);
    add_text(cold, MG_USER, "how many?");
    assert_int_equal(mg_chat_answer(cold, &o, NULL, NULL, &b, &err), MG_OK);
    assert_true(a.cached_tokens >= a.image_tokens && b.cached_tokens == 0);
    assert_int_equal(a.prompt_tokens, b.prompt_tokens);
    assert_int_equal(a.n_token, 12);
    assert_int_equal(b.n_token, 12);
    assert_memory_equal(a.token, b.token, 12 * sizeof *a.token);
    struct mg_image_report report;
    assert_true(mg_chat_image(warm, 0, &report));
    assert_true(report.cached);
    mg_chat_close(warm);
    mg_chat_close(cold);
    mg_engine_close(e);
}

/* Fault 14: a vision result that isn't finite is an error, and the next picture is fine. */
static void test_not_finite(void **state) {
    (void)state;
    mg_engine *e = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 0);
    mg_chat *chat = open_chat(e);
    struct mg_err err = {0};
    add_image(chat, "shapes.png");
    struct chat_image *image = &chat->image[0];
    size_t n = (size_t)image->grid_h * image->grid_w * 1536;
    float *bad = mg_alloc_zero(n, sizeof *bad);
    bad[n / 2] = INFINITY;
    assert_int_equal(mg_chat_encode(chat, 0, bad, &err), MG_ERR_NUMERIC);
    assert_string_equal(err.code, "vision_not_finite");
    free(bad);
    mg_err_clear(&err);
    assert_null(image->picture.row);
    assert_int_equal(mg_chat_encode(chat, 0, NULL, &err), MG_OK);
    mg_chat_close(chat);
    mg_engine_close(e);
}

static uint32_t random_state;
static uint32_t next_random(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* A 24-bit BMP of noise, or of a smooth ramp. Free with free(). */
static uint8_t *make_bmp(uint32_t w, uint32_t h, bool noise, size_t *n) {
    size_t stride = (3 * (size_t)w + 3) / 4 * 4;
    *n = 54 + stride * h;
    uint8_t *bmp = calloc(*n, 1);
    uint32_t head[] = {(uint32_t)*n, 0, 54, 40, w, h, 1 | 24 << 16};
    bmp[0] = 'B';
    bmp[1] = 'M';
    memcpy(bmp + 2, head, sizeof head);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t i = 0; i < 3 * w; i++)
            bmp[54 + y * stride + i] =
                (uint8_t)(noise ? next_random() : 255 * (uint64_t)(y + i) / (h + 3 * w));
    return bmp;
}

/* Cells left out: two pictures, kept tokens counted, positions of the whole grid; reuse at every
 * cut point, chunks and threads give the bits of a cold run. */
static void test_pruned(void **state) {
    (void)state;
    prune = MG_PRUNE_EXACT;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 7, 2, 0);
    mg_engine *e1 = open_engine("ref", MG_WEIGHTS_F32, 0, 1, 0);
    prune = MG_PRUNE_OFF;
    mg_engine *dense = open_engine("ref", MG_WEIGHTS_F32, 0, 1, 0);
    mg_engine *engine[] = {e, e1, dense};
    mg_chat *chat[3];
    struct layout l[3];
    struct mg_err err = {0};
    for (int i = 0; i < 3; i++) {
        chat[i] = open_chat(engine[i]);
        add_image(chat[i], "page.png");
        add_text(chat[i], MG_USER, " and ");
        add_image(chat[i], "shapes.png");
        add_text(chat[i], MG_USER, "how many?");
        assert_int_equal(mg_layout_make(chat[i], &l[i], &err), MG_OK);
    }
    assert_int_equal(l[0].next_pos, l[2].next_pos);
    assert_true(l[0].n < l[2].n);
    for (size_t i = 0, p = 0; i < l[0].n; i++, p++) { /* a subsequence of the dense rows */
        while (p < l[2].n && memcmp(l[0].pos[i], l[2].pos[p], sizeof l[0].pos[i])) p++;
        assert_true(p < l[2].n);
        assert_int_equal(l[0].image[i], l[2].image[p]);
    }
    size_t sum = 0;
    for (size_t i = 0; i < 2; i++) {
        struct mg_image_report r, whole;
        assert_true(mg_chat_image(chat[0], i, &r) && mg_chat_image(chat[2], i, &whole));
        assert_true(r.kept < r.cells && r.tokens == r.kept && r.cells == whole.cells);
        assert_true(whole.kept == whole.cells && whole.tokens == whole.cells);
        sum += r.kept;
    }
    assert_int_equal(l[0].n_image_token, sum);
    size_t n = e->model->config.text.n_vocab;
    prompt_logits(chat[1], 0, first);
    prompt_logits(chat[0], 0, other);
    assert_memory_equal(first, other, n * sizeof *first);
    for (size_t i = 0; i < 2; i++) { /* only the kept cells have features */
        assert_int_equal(chat[0]->image[i].picture.n_token, chat[0]->image[i].n_token);
        assert_int_equal(chat[0]->image[i].picture.n_map, 4);
    }
    for (size_t cut = 0; cut < l[0].n; cut += 3) {
        prompt_logits(chat[0], cut, other);
        assert_memory_equal(first, other, n * sizeof *first);
    }
    for (int i = 0; i < 3; i++) {
        mg_layout_free(&l[i]);
        mg_chat_close(chat[i]);
        mg_engine_close(engine[i]);
    }
}

/* Several turns, a second picture in the second: what was reused and what is read anew together
 * answer as a cold conversation does. */
static void test_pruned_turns(void **state) {
    (void)state;
    prune = MG_PRUNE_NEAR;
    prune_near = 48;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 0, 2, 0);
    prune = MG_PRUNE_OFF;
    mg_chat *warm = open_chat(e), *cold = open_chat(e);
    struct mg_answer_options o;
    struct mg_answer a = {0}, b = {0};
    struct mg_err err = {0};
    mg_answer_options_init(&o);
    o.max_tokens = 12;
    o.ignore_end = o.no_loop_check = true;
    add_image(warm, "photo.jpg");
    add_text(warm, MG_USER, "what is it?");
    assert_int_equal(mg_chat_answer(warm, &o, NULL, NULL, &a, &err), MG_OK);
    char said[1024];
    snprintf(said, sizeof said, "%s", a.text);
    size_t prompt = a.prompt_tokens;
    add_image(warm, "page.png");
    add_text(warm, MG_USER, "how many?");
    assert_int_equal(mg_chat_answer(warm, &o, NULL, NULL, &a, &err), MG_OK);
    add_image(cold, "photo.jpg");
    add_text(cold, MG_USER, "what is it?");
    add_text(cold, MG_ASSISTANT, said);
    add_image(cold, "page.png");
    add_text(cold, MG_USER, "how many?");
    assert_int_equal(mg_chat_answer(cold, &o, NULL, NULL, &b, &err), MG_OK);
    assert_true(a.cached_tokens >= prompt - 4 && b.cached_tokens == 0);
    assert_int_equal(a.prompt_tokens, b.prompt_tokens);
    struct mg_image_report r[2];
    for (size_t i = 0; i < 2; i++) assert_true(mg_chat_image(warm, i, &r[i]));
    assert_int_equal(a.image_tokens, r[0].kept + r[1].kept);
    assert_int_equal(r[0].kept, 54); /* as the reference has it: pruned_near/kept.npy */
    assert_true(r[0].cached && !r[1].cached);
    assert_int_equal(b.n_token, 12);
    assert_memory_equal(a.token, b.token, 12 * sizeof *a.token);
    mg_chat_close(warm);
    mg_chat_close(cold);
    mg_engine_close(e);
}

/* A picture of one colour is one token, at the place of the first cell; text goes on where it would
 * behind the whole picture. A picture of noise keeps everything and is as without pruning. */
static void test_pruned_extremes(void **state) {
    (void)state;
    prune = MG_PRUNE_EXACT;
    mg_engine *e = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 48);
    prune = MG_PRUNE_OFF;
    mg_engine *dense = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 1024);
    struct mg_err err = {0};
    struct mg_answer a;
    size_t n;
    uint8_t *bmp = make_bmp(320, 256, true, &n);
    mg_chat *noisy = open_chat(e), *same = open_chat(dense), *plain = open_chat(e);
    assert_int_equal(mg_chat_add_image(noisy, bmp, n, &err), MG_OK);
    assert_int_equal(mg_chat_add_image(same, bmp, n, &err), MG_OK);
    assert_null(noisy->image[0].kept.index);
    assert_int_equal(noisy->image[0].n_token, same->image[0].n_token);
    assert_int_equal(mg_chat_encode(noisy, 0, NULL, &err), MG_OK);
    assert_int_equal(mg_chat_encode(same, 0, NULL, &err), MG_OK);
    struct mg_picture *p = &noisy->image[0].picture, *q = &same->image[0].picture;
    assert_memory_equal(p->row, q->row, p->n_map * p->n_token * p->width * sizeof *p->row);
    /* 8 x 7 cells don't fit into a context of 48; one does */
    add_text(noisy, MG_USER, "?");
    assert_int_equal(mg_chat_answer(noisy, NULL, NULL, NULL, &a, &err), MG_ERR_CONTEXT);
    mg_err_clear(&err);
    memset(bmp + 54, 200, n - 54);
    assert_int_equal(mg_chat_add_image(plain, bmp, n, &err), MG_OK);
    add_text(plain, MG_USER, "?");
    struct layout l;
    assert_int_equal(mg_layout_make(plain, &l, &err), MG_OK);
    assert_int_equal(l.n_image_token, 1);
    size_t at = l.prompt.image_at[0];
    assert_int_equal(l.pos[at + 1][0], l.pos[at][0] + 8);
    mg_layout_free(&l);
    struct mg_answer_options o;
    mg_answer_options_init(&o);
    o.max_tokens = 4;
    o.ignore_end = true;
    assert_int_equal(mg_chat_answer(plain, &o, NULL, NULL, &a, &err), MG_OK);
    assert_int_equal(a.image_tokens, 1);
    assert_int_equal(a.n_token, 4);
    struct mg_image_report r;
    assert_true(mg_chat_image(plain, 0, &r) && r.cells == 56 && r.kept == 1);
    free(bmp);
    mg_chat_close(noisy);
    mg_chat_close(same);
    mg_chat_close(plain);
    mg_engine_close(e);
    mg_engine_close(dense);
    struct mg_engine_options wrong = {.prune = (enum mg_prune_mode)3};
    assert_int_equal(mg_engine_open(MODEL, &wrong, &e, &err), MG_ERR_ARGUMENT);
}

static double cosine(const float *a, const float *b, size_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

/* Fault 14: 500 sizes, every feature finite (else encoding fails), bf16 close to f32. */
static void test_sizes(void **state) {
    (void)state;
    mg_engine *e16 = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 0);
    mg_engine *e32 = open_engine(NULL, MG_WEIGHTS_F32, 0, 2, 0);
    random_state = 14;
    for (int i = 0; i < 500; i++) {
        uint32_t w = 1 + next_random() % 1100, h = 1 + next_random() % 600;
        if (w > 200 * h || h > 200 * w) continue;
        size_t n;
        uint8_t *bmp = make_bmp(w, h, i % 2, &n);
        struct mg_err err = {0};
        mg_chat *a = open_chat(e16), *b = open_chat(e32);
        if (mg_chat_add_image(a, bmp, n, &err) || mg_chat_add_image(b, bmp, n, &err) ||
            mg_chat_encode(a, 0, NULL, &err) || mg_chat_encode(b, 0, NULL, &err))
            fail_msg("%u x %u: %s", w, h, err.text);
        const struct mg_picture *p = &a->image[0].picture, *q = &b->image[0].picture;
        double c = cosine(p->row, q->row, p->n_map * p->n_token * p->width);
        if (!(c >= 0.999)) fail_msg("%u x %u: cosine %g", w, h, c);
        mg_chat_close(a);
        mg_chat_close(b);
        free(bmp);
    }
    mg_engine_close(e16);
    mg_engine_close(e32);
}

/* Fault 38: found before anything is encoded; the conversation goes on afterwards. */
static void test_context(void **state) {
    (void)state;
    mg_engine *e = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 64);
    mg_chat *chat = open_chat(e);
    struct mg_err err = {0};
    struct mg_answer_options o;
    struct mg_answer a;
    mg_answer_options_init(&o);
    o.ignore_end = o.no_loop_check = true;
    add_image(chat, "photo.jpg");
    add_text(chat, MG_USER, "what is it?");
    assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &a, &err), MG_ERR_CONTEXT);
    assert_string_equal(err.code, "context_length_exceeded");
    assert_non_null(strstr(err.text, "from pictures"));
    assert_null(chat->image[0].picture.row);
    mg_chat_close(chat);
    mg_err_clear(&err);
    chat = open_chat(e);
    add_text(chat, MG_USER, "hello"); /* the answer is cut where the context ends */
    assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &a, &err), MG_OK);
    assert_string_equal(a.finish_reason, "length");
    assert_int_equal(a.prompt_tokens + a.n_token, 64);
    mg_chat_close(chat);
    mg_engine_close(e);
}

struct stopper {
    mg_chat *chat;
    enum mg_stage stage;
    size_t seen;
};

static bool stop_in_stage(void *user, const struct mg_event *event) {
    struct stopper *s = user;
    if (event->stage == s->stage && ++s->seen == 2) mg_chat_cancel(s->chat);
    return true;
}

/* Stopping in each stage leaves a conversation that answers as if nothing had happened. */
static void test_cancel(void **state) {
    (void)state;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 16, 2, 0);
    struct mg_answer_options o;
    struct mg_answer a;
    struct mg_err err = {0};
    mg_answer_options_init(&o);
    o.max_tokens = 8;
    o.ignore_end = o.no_loop_check = true;
    int32_t want[8];
    mg_chat *chat = open_chat(e);
    fill(chat);
    assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &a, &err), MG_OK);
    memcpy(want, a.token, sizeof want);
    mg_chat_close(chat);
    for (int stage = MG_STAGE_VISION; stage <= MG_STAGE_DECODE; stage++) {
        chat = open_chat(e);
        fill(chat);
        struct stopper s = {chat, (enum mg_stage)stage, 0};
        size_t turns = chat->n_turn;
        enum mg_status status = mg_chat_answer(chat, &o, stop_in_stage, &s, &a, &err);
        assert_true(s.seen >= 2);
        if (stage == MG_STAGE_DECODE) {
            assert_int_equal(status, MG_OK);
            assert_string_equal(a.finish_reason, "cancelled");
            assert_in_range(a.n_token, 1, 4);
            assert_int_equal(chat->n_turn, turns + 1);
        } else {
            assert_int_equal(status, MG_ERR_CANCELLED);
            assert_int_equal(chat->n_turn, turns);
            mg_err_clear(&err);
            assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &a, &err), MG_OK);
            assert_memory_equal(a.token, want, sizeof want);
        }
        mg_chat_close(chat);
    }
    mg_engine_close(e);
}

/* An answer that ran out of memory leaves the conversation as it was, and the next one works. */
static void test_out_of_memory(void **state) {
    (void)state;
    mg_engine *e = open_engine("ref", MG_WEIGHTS_F32, 16, 1, 0);
    struct mg_answer_options o;
    struct mg_answer a;
    struct mg_err err = {0};
    mg_answer_options_init(&o);
    o.max_tokens = 8;
    o.ignore_end = o.no_loop_check = true;
    mg_chat *untroubled = open_chat(e), *chat = open_chat(e);
    fill(untroubled);
    fill(chat);
    assert_int_equal(mg_chat_answer(untroubled, &o, NULL, NULL, &a, &err), MG_OK);
    assert_in_range(a.n_text, 2, 1000);
    size_t turns = chat->n_turn;
    struct mg_answer b;
    chat->answer_text.max = 1;
    assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &b, &err), MG_ERR_MEMORY);
    assert_int_equal(chat->n_turn, turns);
    mg_err_clear(&err);
    chat->answer_text.max = 0;
    assert_int_equal(mg_chat_answer(chat, &o, NULL, NULL, &b, &err), MG_OK);
    assert_string_equal(a.text, b.text);
    mg_chat_close(untroubled);
    mg_chat_close(chat);
    mg_engine_close(e);
}

/* Once it has run, a decode step takes no memory. */
static void test_decode_allocates_nothing(void **state) {
    (void)state;
    mg_engine *e = open_engine(NULL, MG_WEIGHTS_BF16, 0, 2, 0);
    mg_chat *chat = open_chat(e);
    struct mg_err err = {0};
    fill(chat);
    prompt_logits(chat, 0, first);
    for (int i = 0; i < 2; i++) assert_int_equal(mg_chat_step(chat, 5, 100 + i, &err), MG_OK);
    assert_int_equal(mg_chat_logits(chat, &err), MG_OK);
    struct mallinfo2 before = mallinfo2();
    for (int i = 2; i < 40; i++) {
        assert_int_equal(mg_chat_step(chat, 5, 100 + i, &err), MG_OK);
        assert_int_equal(mg_chat_logits(chat, &err), MG_OK);
    }
    struct mallinfo2 after = mallinfo2();
    assert_int_equal(before.uordblks, after.uordblks);
    assert_int_equal(before.hblkhd, after.hblkhd);
    mg_chat_close(chat);
    mg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_ref),      cmocka_unit_test(test_chunks_best),
        cmocka_unit_test(test_company),         cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_second_question), cmocka_unit_test(test_pruned),
        cmocka_unit_test(test_pruned_turns),    cmocka_unit_test(test_pruned_extremes),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_context),         cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_decode_allocates_nothing)};
    return cmocka_run_group_tests_name("engine.conversation", tests, NULL, NULL);
}
