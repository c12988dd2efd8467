/* What the scheduler keeps: keys and values of prompts that are over, features of pictures,
 * answers. Whatever is taken from a cache, the answer is that of a cold run; what belongs to
 * another tenant, another picture or another order is not found; budgets hold. */
#include "jobs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BIG ((size_t)64 << 20)

static mg_engine *engine(void) {
    return tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 64});
}

static struct mg_scheduler_counts counts(struct mg_scheduler *s) {
    struct mg_scheduler_counts c;
    struct question idle = question(fill_text, 999); /* what it notes is of before its own end */
    idle.job.answer.max_tokens = 1;
    idle.job.no_prefix = idle.job.no_answer_cache = true;
    ask_and_wait(s, &idle);
    mg_scheduler_counts(s, &c);
    return c;
}

/* --- prefixes --- */
/* Bits of i: 0 the second turn, 1 other first picture, 2 both pictures in the other order, 3 other
 * words before the pictures. */
static void fill_pictures(mg_chat *chat, size_t i) {
    const char *a = i & 2 ? "photo.jpg" : "odd.png", *b = "gray.png";
    add_text(chat, MG_SYSTEM,
             i & 8 ? "Read with care, and be short, please: now."
                   : "You are a careful reader of pictures and pages.");
    add_file(chat, i & 4 ? b : a);
    add_text(chat, MG_USER, " and ");
    add_file(chat, i & 4 ? a : b);
    add_text(chat, MG_USER, " : how many circles are there?");
    if (i & 1) {
        add_text(chat, MG_ASSISTANT, "Three of them.");
        add_text(chat, MG_USER, "And what is the total of the second one?");
    }
}

static size_t prefix_of(struct mg_scheduler *s, const struct question *alone, size_t i,
                        uint8_t tenant) {
    struct question q = question(fill_pictures, i);
    q.job.tenant[0] = tenant;
    ask_and_wait(s, &q);
    same_answer(&alone[i], &q, "with a prefix");
    return q.cached;
}

/* Tokens before the k-th picture. */
static size_t border(mg_engine *e, size_t i, size_t k) {
    struct mg_err err = {0};
    struct layout l;
    mg_chat *chat = tiny_chat(e);
    fill_pictures(chat, i);
    assert_int_equal(mg_layout_make(chat, &l, &err), MG_OK);
    size_t at = l.prompt.image_at[k];
    mg_layout_free(&l);
    mg_chat_close(chat);
    return at;
}

static void test_prefix(void **state) {
    (void)state;
    static struct question alone[16];
    mg_engine *e = engine();
    for (size_t i = 0; i < 16; i++) {
        alone[i] = question(fill_pictures, i);
        answer_alone(e, &alone[i]);
    }
    size_t first = border(e, 0, 0);
    assert_true(first >= MG_LEAST_PREFIX);
    struct mg_scheduler_options o = {
        .max_running = 1, .feature_budget = SIZE_MAX, .prefix_budget = BIG};
    struct mg_scheduler *s = open_scheduler(e, o);
    assert_int_equal(prefix_of(s, alone, 0, 1), 0);
    assert_int_equal(prefix_of(s, alone, 0, 2), 0);                   /* another tenant's */
    assert_int_equal(prefix_of(s, alone, 0, 1), alone[0].prompt - 1); /* all but the last token */
    /* the second turn goes on from the first's prompt */
    size_t cached = prefix_of(s, alone, 1, 1);
    assert_true(cached >= alone[0].prompt - 8 && cached < alone[1].prompt);
    assert_int_equal(prefix_of(s, alone, 2, 1), first);       /* cut before the other picture */
    assert_int_equal(prefix_of(s, alone, 4, 1), first);       /* other order */
    assert_true(prefix_of(s, alone, 8, 1) < MG_LEAST_PREFIX); /* other words */
    assert_int_equal(prefix_of(s, alone, 1, 1), alone[1].prompt - 1); /* copied from, still there */
    /* asked again and again it is kept once */
    struct mg_scheduler_counts before = counts(s);
    for (int i = 0; i < 5; i++) prefix_of(s, alone, 1, 1);
    struct question brief = question(fill_pictures, 1); /* a beginning of what is there */
    brief.job.tenant[0] = 1;
    brief.job.answer.max_tokens = 2;
    ask_and_wait(s, &brief);
    struct mg_scheduler_counts after = counts(s);
    assert_int_equal(after.prefixes, before.prefixes);
    assert_int_equal(after.prefix_bytes, before.prefix_bytes);
    assert_true(after.prefix_hits > before.prefix_hits);
    mg_scheduler_close(s);

    o.prefix_budget = before.prefix_bytes / before.prefixes * 2; /* about two of them */
    s = open_scheduler(e, o);
    for (size_t round = 0; round < 3; round++)
        for (size_t i = 0; i < 16; i++) {
            prefix_of(s, alone, (i * 7) % 16, (uint8_t)(i % 3));
            struct mg_scheduler_counts c = counts(s);
            assert_true(c.prefix_bytes <= o.prefix_budget && c.prefixes >= 1);
        }
    mg_scheduler_close(s);

    o.prefix_budget = SIZE_MAX; /* none */
    s = open_scheduler(e, o);
    for (int i = 0; i < 2; i++) assert_int_equal(prefix_of(s, alone, 0, 1), 0);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* One entry is used up while others that begin alike run; entries go while copies are in use. */
static void test_prefix_company(void **state) {
    (void)state;
    static struct question alone[16], q[16];
    mg_engine *e = engine();
    for (size_t i = 0; i < 16; i++) {
        alone[i] = question(fill_pictures, i);
        answer_alone(e, &alone[i]);
    }
    struct mg_scheduler_options o = {.max_running = 8, .prefix_budget = BIG};
    o.prefix_budget = 700000;
    o.feature_budget = 400000;
    struct mg_scheduler *s = open_scheduler(e, o);
    for (size_t round = 0; round < 4; round++) {
        for (size_t i = 0; i < 16; i++) {
            q[i] = question(fill_pictures, (i * 3 + round) % 16);
            ask(s, &q[i]);
        }
        for (size_t i = 0; i < 16; i++) {
            wait_done(&q[i]);
            same_answer(&alone[q[i].i], &q[i], "many that begin alike");
        }
    }
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* What had been read when a job was cancelled is there for the next. */
static void test_prefix_cancelled(void **state) {
    (void)state;
    static struct question alone[1], q;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 16});
    alone[0] = question(fill_pictures, 0);
    answer_alone(e, &alone[0]);
    struct mg_scheduler *s = open_scheduler(e, (struct mg_scheduler_options){.max_running = 1});
    prefix_of(s, alone, 0, 1);
    q = question(fill_pictures, 1); /* takes all of it over */
    q.job.tenant[0] = 1;
    q.cancel_at = READING;
    ask_and_wait(s, &q);
    assert_int_equal(q.status, MG_ERR_CANCELLED);
    assert_true(prefix_of(s, alone, 0, 1) >= alone[0].prompt - 8);
    size_t first = border(e, 0, 0), read = mg_round_up(first + 1, 16);
    assert_true(read > first && read < first + alone[0].image);
    q = question(fill_pictures, 0); /* stopped within the first picture: cut before it */
    q.job.tenant[0] = 2;
    q.cancel_at = READING;
    q.cancel_after = read / 16;
    ask_and_wait(s, &q);
    assert_int_equal(q.status, MG_ERR_CANCELLED);
    assert_int_equal(prefix_of(s, alone, 0, 2), first);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* --- features --- */
static struct mg_picture picture(size_t n_token) {
    struct mg_picture p = {.n_map = 1, .n_token = n_token, .width = 4};
    p.row = mg_alloc_zero(n_token * 4, sizeof *p.row);
    assert_non_null(p.row);
    return p;
}

static void test_features(void **state) {
    (void)state;
    struct mg_feature_cache c = {.budget = 1000}; /* a picture of 10 tokens has 160 bytes */
    uint8_t key[MG_SHA256_BYTES] = {0};
    struct mg_feature *held = NULL;
    for (size_t i = 0; i < 20; i++) {
        struct mg_picture p = picture(10);
        key[31] = (uint8_t)i; /* all of the key counts */
        assert_null(mg_feature_find(&c, key));
        struct mg_feature *f = mg_feature_put_take(&c, key, &p);
        assert_non_null(f);
        assert_null(p.row);
        f->picture.row[0] = (float)i;
        if (i == 3)
            held = f;
        else
            mg_feature_release(f);
        assert_true(c.bytes <= c.budget);
    }
    assert_int_equal(c.n, 6);
    assert_int_equal(c.bytes, 960);
    key[31] = 3; /* dropped, but whoever has it still has it */
    assert_null(mg_feature_find(&c, key));
    assert_true(held->picture.row[0] == 3);
    mg_feature_release(held);
    key[31] = 14; /* the oldest; used, it outlives the next */
    struct mg_feature *f = mg_feature_find(&c, key);
    assert_non_null(f);
    mg_feature_release(f);
    struct mg_picture p = picture(10);
    key[31] = 99;
    mg_feature_release(mg_feature_put_take(&c, key, &p));
    key[31] = 15;
    assert_null(mg_feature_find(&c, key));
    key[31] = 14;
    mg_feature_release(mg_feature_find(&c, key));
    assert_int_equal(c.hits, 2);
    assert_int_equal(c.queries, 24);
    p = picture(100); /* over all of the budget: shared, not kept, and nobody has to go */
    key[31] = 100;
    f = mg_feature_put_take(&c, key, &p);
    assert_non_null(f);
    assert_int_equal(f->refs, 1);
    assert_int_equal(c.n, 6);
    mg_feature_release(f);
    mg_feature_cache_shrink(&c, 0);
    assert_int_equal(c.n + c.bytes, 0);
    assert_true(!c.newest && !c.oldest);
}

/* --- answers --- */
static const struct mg_scheduler_options with_answers = {
    .max_running = 4, .answer_budget = 1 << 20, .similar = true};

static enum mg_answer_from asked(struct mg_scheduler *s, const struct question *like,
                                 const struct question *want) {
    struct question q = *like;
    ask_and_wait(s, &q);
    if (want) same_answer(want, &q, "from the cache of answers");
    if (want) assert_int_equal(q.n_logprob, q.job.logprobs ? q.n_token : 0);
    if (q.from >= MG_FROM_CACHE) assert_int_equal(q.cached, q.prompt);
    return q.from;
}

/* Every option that decides the answer separates, what doesn't decide it does not. */
static void test_answer_options(void **state) {
    (void)state;
    static const char *const stop[] = {"ab", "c"}, *const stop2[] = {"a", "bc"};
    static const struct mg_bias bias[] = {{5, 1.5f}}, bias2[] = {{5, 1.25f}};
    struct question base = question(fill_mixed, 0), other[14];
    mg_engine *e = engine();
    struct question alone = base;
    answer_alone(e, &alone);
    struct mg_scheduler *s = open_scheduler(e, with_answers);
    assert_int_equal(asked(s, &base, &alone), MG_FROM_MODEL_ASKED);
    assert_int_equal(asked(s, &base, &alone), MG_FROM_CACHE);
    size_t n = 0;
    for (size_t i = 0; i < 14; i++) other[i] = base;
    other[n++].job.answer.max_tokens--;
    other[n++].job.answer.repetition_penalty = 1.1f;
    other[n++].job.answer.presence_penalty = 0.5f;
    other[n++].job.answer.frequency_penalty = 0.5f;
    other[n].job.answer.stop = stop, other[n++].job.answer.n_stop = 2;
    other[n].job.answer.stop = stop2, other[n++].job.answer.n_stop = 2;
    other[n].job.answer.stop = stop, other[n++].job.answer.n_stop = 1;
    other[n++].job.answer.ignore_end = false;
    other[n++].job.answer.no_loop_check = false;
    other[n++].job.logprobs = true;
    other[n].job.logprobs = true, other[n++].job.n_top_logprobs = 2;
    other[n].job.bias = bias, other[n++].job.n_bias = 1;
    other[n].job.bias = bias2, other[n++].job.n_bias = 1;
    other[n++].job.tenant[15] = 1;
    assert_int_equal(n, 14);
    for (int again = 0; again < 2; again++)
        for (size_t i = 0; i < n; i++)
            if (asked(s, &other[i], NULL) != (again ? MG_FROM_CACHE : MG_FROM_MODEL_ASKED))
                fail_msg("option %zu, time %d", i, again + 1);
    struct question same = base; /* decides nothing at temperature 0 */
    same.job.answer.seed = 77;
    same.job.answer.draft = -1;
    same.job.answer.top_k = 5;
    same.job.answer.top_p = 0.5f;
    assert_int_equal(asked(s, &same, &alone), MG_FROM_CACHE);
    struct question never = base;
    never.job.no_answer_cache = true;
    assert_int_equal(asked(s, &never, &alone), MG_FROM_MODEL);
    never = base;
    never.job.answer.temperature = 0.5f;
    for (int i = 0; i < 2; i++) assert_int_equal(asked(s, &never, NULL), MG_FROM_MODEL);
    struct question words = question(fill_text, 3); /* no picture's key to tell tenants apart */
    assert_int_equal(asked(s, &words, NULL), MG_FROM_MODEL_ASKED);
    words.job.tenant[15] = 1;
    assert_int_equal(asked(s, &words, NULL), MG_FROM_MODEL_ASKED);
    struct mg_scheduler_counts c = counts(s);
    assert_int_equal(c.answers, 17);
    assert_int_equal(c.answer_queries, 2 + 28 + 1 + 2);
    assert_int_equal(c.answer_hits, 1 + 14 + 1);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* Text and log-probabilities come as from the model; words, pictures, turns separate. */
static void test_answer_questions(void **state) {
    (void)state;
    static struct question alone[16];
    mg_engine *e = engine();
    struct mg_scheduler *s = open_scheduler(e, with_answers);
    for (int again = 0; again < 2; again++)
        for (size_t i = 0; i < 16; i++) {
            struct question q = question(fill_pictures, i);
            q.job.logprobs = i % 2;
            q.job.n_top_logprobs = i % 4;
            ask_and_wait(s, &q);
            assert_int_equal(q.from, again ? MG_FROM_CACHE : MG_FROM_MODEL_ASKED);
            assert_int_equal(q.n_logprob, i % 2 ? q.n_token : 0);
            if (again) {
                same_answer(&alone[i], &q, "told again");
                assert_memory_equal(q.logprob, alone[i].logprob, sizeof q.logprob);
                assert_memory_equal(q.logprob_id, alone[i].logprob_id, sizeof q.logprob_id);
                assert_int_equal(q.n_piece, q.n_text > 0);
                assert_true(q.image_cached);
            } else {
                alone[i] = q;
            }
        }
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* Not before its end, not when cancelled, not over its time, not over the budget. */
static void test_answer_life(void **state) {
    (void)state;
    struct question q = question(fill_mixed, 1), cancelled = q;
    mg_engine *e = engine();
    struct mg_scheduler *s = open_scheduler(e, with_answers);
    cancelled.cancel_at = SAYING;
    cancelled.cancel_after = 1;
    assert_int_equal(asked(s, &cancelled, NULL), MG_FROM_MODEL_ASKED);
    assert_int_equal(counts(s).answers, 0);
    struct question twice[2] = {q, q}; /* at the same time: both are made, one is kept */
    for (int i = 0; i < 2; i++) ask(s, &twice[i]);
    for (int i = 0; i < 2; i++) wait_done(&twice[i]);
    assert_int_equal(counts(s).answers, 1);
    assert_int_equal(asked(s, &q, &twice[0]), MG_FROM_CACHE);
    mg_scheduler_close(s);

    struct mg_scheduler_options o = with_answers;
    o.answer_seconds = 1e-9;
    s = open_scheduler(e, o);
    for (int i = 0; i < 3; i++) assert_int_equal(asked(s, &q, &twice[0]), MG_FROM_MODEL_ASKED);
    assert_int_equal(counts(s).answers, 1);
    mg_scheduler_close(s);

    o = with_answers;
    o.answer_budget = 2000; /* some of them */
    s = open_scheduler(e, o);
    for (size_t i = 0; i < 20; i++) {
        struct question one = question(fill_text, i);
        assert_int_equal(asked(s, &one, NULL), MG_FROM_MODEL_ASKED);
        struct mg_scheduler_counts c = counts(s);
        assert_true(c.answer_bytes <= o.answer_budget && c.answers >= 1 && c.answers < 12);
        assert_int_equal(asked(s, &one, NULL), MG_FROM_CACHE);
    }
    struct question oldest = question(fill_text, 0);
    assert_int_equal(asked(s, &oldest, NULL), MG_FROM_MODEL_ASKED);
    mg_scheduler_close(s);

    o.answer_budget = 0; /* no cache */
    s = open_scheduler(e, o);
    for (int i = 0; i < 2; i++) assert_int_equal(asked(s, &q, &twice[0]), MG_FROM_MODEL);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* A picture with hills of all sizes, 256 x 192, as BMP; `how` what is done to it. */
enum how { AS_IT_IS, NOISE, SPOT, DARK };
static void fill_hills(mg_chat *chat, size_t how) {
    enum { W = 256, H = 192, BYTES = 54 + W * H * 3 };
    static const uint8_t head[26] = {'B', 'M', 0,  0, 0, 0, 0, 0,      0, 0, 54, 0,
                                     0,   0,   40, 0, 0, 0, 0, W >> 8, 0, 0, H};
    uint8_t *bmp = calloc(1, BYTES);
    if (!bmp) return;
    memcpy(bmp, head, sizeof head);
    bmp[26] = 1, bmp[28] = 24;
    uint32_t random = 7;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            double v = 128;
            for (int k = 0, a = 40; k < 5; k++, a = a * 2 / 3)
                v += a * sin((x * (1 + k) * (1.0 + k % 3) + y * (2 + k * k)) * 0.011 + k);
            for (int c = 0; c < 3; c++) {
                random = random * 1664525u + 1013904223u;
                double p = how == DARK ? v / 16 : v + c * 9;
                if (how == NOISE) p += (int)(random >> 30) - 1;
                if (how == SPOT && x >= 100 && x < 104 && y >= 60 && y < 66) p = 250 - p;
                bmp[54 + (y * W + x) * 3 + c] = (uint8_t)(p < 0 ? 0 : p > 255 ? 255 : p);
            }
        }
    add_picture(chat, bmp, BYTES);
    add_text(chat, MG_USER, "What is in it?");
    free(bmp);
}

static void fill_hills_other(mg_chat *chat, size_t how) {
    fill_hills(chat, how);
    add_text(chat, MG_USER, "!");
}

static void test_answer_near(void **state) {
    (void)state;
    mg_engine *e = engine();
    struct mg_scheduler *s = open_scheduler(e, with_answers);
    struct question first = question(fill_hills, AS_IT_IS), q;
    first.job.similar = 0.9;
    assert_int_equal(asked(s, &first, NULL), MG_FROM_MODEL_ASKED);
    struct question alone = first;
    ask_and_wait(s, &alone);
    assert_int_equal(alone.from, MG_FROM_CACHE);
    q = question(fill_hills, NOISE); /* not asked for */
    q.job.no_answer_cache = true;
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL);
    q.job.no_answer_cache = false;
    q.job.similar = 0.9;
    for (int i = 0; i < 2; i++) { /* what is found so isn't kept under its own key */
        struct question near = q;
        ask_and_wait(s, &near);
        assert_int_equal(near.from, MG_FROM_CACHE_NEAR);
        assert_true(near.distance >= 0 && near.distance <= 0.1);
        same_answer(&alone, &near, "of nearly the same picture");
    }
    assert_int_equal(counts(s).answers, 1);
    q.job.tenant[3] = 1; /* somebody else's */
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    q.job.tenant[3] = 0;
    q.job.answer.max_tokens--; /* other options */
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    q = question(fill_hills_other, NOISE); /* another question */
    q.job.similar = 0.9;
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    q = question(fill_hills, SPOT); /* something is there that was not */
    q.job.similar = 0.9;
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    q = question(fill_hills, DARK); /* little contrast: only the very same */
    q.job.similar = 0.9;
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    assert_int_equal(asked(s, &q, NULL), MG_FROM_CACHE);
    q = question(fill_hills, NOISE); /* without the wish it is made, and kept */
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    assert_int_equal(asked(s, &q, NULL), MG_FROM_CACHE);
    mg_scheduler_close(s);
    struct mg_scheduler_options o = with_answers; /* the server has to allow it */
    o.similar = false;
    s = open_scheduler(e, o);
    assert_int_equal(asked(s, &first, NULL), MG_FROM_MODEL_ASKED);
    q.job.similar = 0.9;
    assert_int_equal(asked(s, &q, NULL), MG_FROM_MODEL_ASKED);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),           cmocka_unit_test(test_prefix_company),
        cmocka_unit_test(test_prefix_cancelled), cmocka_unit_test(test_features),
        cmocka_unit_test(test_answer_options),   cmocka_unit_test(test_answer_questions),
        cmocka_unit_test(test_answer_life),      cmocka_unit_test(test_answer_near)};
    return cmocka_run_group_tests_name("engine.caches", tests, tiny_open, tiny_close);
}
