/* The drafts' rules (engine/draft.h) on sequences made by hand. How long a draft is worth its rows
 * is computed here anew: p, p^2, ... over 0.08 each. */
#include "engine/draft.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(a) (sizeof(a) / sizeof *(a))

static struct mg_draft d;

static void begin(const int32_t *id, size_t n) {
    assert_true(mg_draft_begin(&d, id, n));
}

static void expect(size_t most, const int32_t *want, size_t n) {
    int32_t out[MG_MAX_DRAFT + 1];
    for (size_t i = 0; i <= MG_MAX_DRAFT; i++) out[i] = -7;
    size_t got = mg_draft_propose(&d, out, most);
    if (got != n) fail_msg("%zu tokens instead of %zu", got, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(out[i], want[i]);
    assert_int_equal(out[MG_MAX_DRAFT], -7);
}
#define BEGIN(...)                                                                                 \
    do {                                                                                           \
        const int32_t id[] = {__VA_ARGS__};                                                        \
        begin(id, N(id));                                                                          \
    } while (0)
#define EXPECT(most, ...)                                                                          \
    do {                                                                                           \
        const int32_t want[] = {__VA_ARGS__};                                                      \
        expect(most, want, N(want));                                                               \
    } while (0)
#define NOTHING(most) expect(most, NULL, 0)

static void test_matches(void **state) {
    (void)state;
    begin(NULL, 0);
    NOTHING(15);
    BEGIN(1);
    NOTHING(15);
    BEGIN(1, 2);
    NOTHING(15);
    BEGIN(1, 2, 3, 4, 5);
    NOTHING(15);
    BEGIN(3, 1, 2, 3, 1, 2, 9, 3); /* one equal token is no match */
    NOTHING(15);
    BEGIN(1, 2, 3, 4, 9, 8, 7, 6, 1, 2, 3, 4); /* at first a half is right: three tokens */
    EXPECT(15, 9, 8, 7);
    EXPECT(2, 9, 8);
    EXPECT(1, 9);
    NOTHING(0);
    BEGIN(1, 2, 5, 6, 7, 1, 2, 8, 9, 4, 4, 1, 2); /* of equals the latest */
    EXPECT(15, 8, 9, 4);
    BEGIN(1, 2, 3, 4, 50, 51, 52, 0, 3, 4, 60, 61, 62, 1, 2, 3, 4); /* the longest before later */
    EXPECT(15, 50, 51, 52);
    BEGIN(2, 3, 4, 50, 51, 52, 0, 3, 4, 60, 61, 62, 1, 2, 3, 4); /* three */
    EXPECT(15, 50, 51, 52);
    BEGIN(5, 5, 5); /* up to the end of what was said */
    EXPECT(15, 5);
    BEGIN(1, 2, 1, 2, 1, 2);
    EXPECT(15, 1, 2);
    BEGIN(1, 2, 3, 4, 1, 2, 3, 4); /* the match may be the very beginning */
    EXPECT(15, 1, 2, 3);
    BEGIN(0, 0);
    NOTHING(15);
}

static void test_say(void **state) {
    (void)state;
    BEGIN(10, 11, 12, 13, 14, 15);
    NOTHING(15);
    assert_true(mg_draft_say(&d, 11));
    NOTHING(15);
    assert_true(mg_draft_say(&d, 12));
    EXPECT(15, 13, 14, 15);
    assert_true(mg_draft_say(&d, 99));
    NOTHING(15);
    BEGIN(11, 12); /* what an earlier answer said is forgotten */
    NOTHING(15);
}

static size_t worth(double p) {
    size_t n = 0;
    for (double all = p; all > 0.08 && n < MG_MAX_DRAFT; all *= p) n++;
    return n;
}

/* 40 tokens, then the first 4 again: everything that follows is known. */
static void begin_long(void) {
    int32_t id[44];
    for (int i = 0; i < 44; i++) id[i] = 100 + i % 40;
    begin(id, 44);
}

static void test_learn(void **state) {
    (void)state;
    int32_t out[MG_MAX_DRAFT];
    double p = 0.5;
    begin_long();
    for (int round = 0; round < 40; round++) { /* all right: longer, up to the most there are */
        size_t n = mg_draft_propose(&d, out, MG_MAX_DRAFT);
        assert_int_equal(n, worth(p));
        for (size_t i = 0; i < n; i++) assert_int_equal(out[i], 104 + (int)i);
        mg_draft_learn(&d, n, n);
        for (size_t i = 0; i < n; i++) p += 0.15 * (1 - p);
    }
    assert_int_equal(mg_draft_propose(&d, out, MG_MAX_DRAFT), MG_MAX_DRAFT);
    assert_int_equal(mg_draft_propose(&d, out, 6), 6);
    begin_long();
    p = 0.5;
    for (int round = 0; round < 30; round++) { /* the second is wrong: one right, one wrong */
        size_t n = mg_draft_propose(&d, out, MG_MAX_DRAFT);
        assert_int_equal(n, worth(p));
        mg_draft_learn(&d, n, mg_min_size(n, 1));
        p += 0.15 * (1 - p);
        if (n > 1) p -= 0.15 * p;
    }
}

/* Never right: shorter, then none, and now and then one token to see whether times have changed. */
static void test_give_up_and_retry(void **state) {
    (void)state;
    int32_t out[MG_MAX_DRAFT];
    double p = 0.5;
    int rounds = 0;
    begin_long();
    for (size_t n; (n = mg_draft_propose(&d, out, MG_MAX_DRAFT)) > 0; rounds++) {
        assert_int_equal(n, worth(p));
        mg_draft_learn(&d, n, 0);
        p -= 0.15 * p;
        assert_true(rounds < 100);
    }
    assert_int_equal(rounds, 12); /* 0.5 * 0.85^12 < 0.08 */
    for (int retry = 0; retry < 3; retry++) {
        int waited = retry == 0; /* the one above */
        size_t n;
        while ((n = mg_draft_propose(&d, out, MG_MAX_DRAFT)) == 0) {
            mg_draft_learn(&d, 0, 0); /* of nothing there is nothing to learn */
            assert_true(++waited < 100);
        }
        assert_int_equal(waited, 23); /* the 24th chance */
        assert_int_equal(n, 1);
        assert_int_equal(out[0], 104);
        mg_draft_learn(&d, 1, retry == 2);
    }
    assert_int_equal(mg_draft_propose(&d, out, MG_MAX_DRAFT), 1); /* that was right */
    begin_long(); /* a new answer begins with hope */
    assert_int_equal(mg_draft_propose(&d, out, MG_MAX_DRAFT), 3);
}

/* What was learnt about matches of 4 says nothing about those of 2. */
static void test_lengths_apart(void **state) {
    (void)state;
    int32_t out[MG_MAX_DRAFT];
    begin_long();
    for (int i = 0; i < 12; i++) mg_draft_learn(&d, mg_draft_propose(&d, out, MG_MAX_DRAFT), 0);
    assert_int_equal(mg_draft_propose(&d, out, MG_MAX_DRAFT), 0);
    assert_true(mg_draft_say(&d, 7) && mg_draft_say(&d, 110) && mg_draft_say(&d, 111));
    EXPECT(MG_MAX_DRAFT, 112, 113, 114);
    mg_draft_learn(&d, 3, 3);
    EXPECT(MG_MAX_DRAFT, 112, 113, 114, 115, 116, 117); /* 1 - 0.5 * 0.85^3 = 0.69: 0.69^6 > 0.08 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches), cmocka_unit_test(test_say), cmocka_unit_test(test_learn),
        cmocka_unit_test(test_give_up_and_retry), cmocka_unit_test(test_lengths_apart)};
    int failed = cmocka_run_group_tests_name("engine.draft", tests, NULL, NULL);
    mg_draft_free(&d);
    return failed;
}
