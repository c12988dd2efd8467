/* Many answers at once (engine/scheduler.h): each is the one that mg_chat_answer gives alone, token
 * by token; cancelling, limits, fairness, deadlines; every job that was taken in has exactly one
 * end. Answers of whole-number weights are compared on the best kernels, of bf16 on the reference
 * kernels, whose sums don't depend on the company. */
#include "jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N MG_MAX_RUNNING

static const struct mg_scheduler_options no_caches = {
    .max_running = N, .feature_budget = SIZE_MAX, .prefix_budget = SIZE_MAX};

/* --- the same as alone --- */
static void check_company(const struct tiny *t, bool caches) {
    static const size_t size[] = {1, 2, 5, 16};
    static struct question alone[N], q[N];
    mg_engine *e = tiny_engine(t);
    for (size_t i = 0; i < N; i++) {
        alone[i] = question(fill_mixed, i);
        answer_alone(e, &alone[i]);
        assert_int_equal(alone[i].n_token, MOST_TOKENS);
    }
    for (size_t k = 0; k < 4; k++) {
        struct mg_scheduler_options o = no_caches;
        if (caches) o.feature_budget = o.prefix_budget = 8 << 20;
        o.max_running = size[k];
        struct mg_scheduler *s = open_scheduler(e, o);
        for (int round = 0; round < 1 + caches; round++) {
            for (size_t i = 0; i < size[k]; i++) {
                size_t which = (i * 5 + k) % N;
                q[i] = question(fill_mixed, which);
                ask(s, &q[i]);
            }
            for (size_t i = 0; i < size[k]; i++) {
                char what[64];
                wait_done(&q[i]);
                snprintf(what, sizeof what, "%zu at once, question %zu, round %d", size[k], q[i].i,
                         round);
                same_answer(&alone[q[i].i], &q[i], what);
                if (round) assert_true(q[i].cached > 0);
            }
        }
        mg_scheduler_close(s);
    }
    mg_engine_close(e);
}

static void test_company_whole(void **state) {
    (void)state;
    check_company(&(struct tiny){.weights = MG_WEIGHTS_INT8}, false);
    check_company(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 24}, true);
    check_company(&(struct tiny){.weights = MG_WEIGHTS_INT4}, true);
}

static void test_company_bf16(void **state) {
    (void)state;
    check_company(&(struct tiny){.tier = "ref", .weights = MG_WEIGHTS_BF16}, true);
}

/* A seed's answer, whatever runs beside; log-probabilities as well. */
static void test_sampled(void **state) {
    (void)state;
    static struct question alone[6], q[6], other[8];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    for (size_t i = 0; i < 6; i++) {
        alone[i] = question(fill_mixed, i);
        alone[i].job.answer.temperature = 0.9f;
        alone[i].job.answer.top_p = 0.95f;
        alone[i].job.answer.seed = 100 + i;
        if (i % 2) alone[i].job.answer.repetition_penalty = 1.1f;
        q[i] = alone[i];
        answer_alone(e, &alone[i]);
    }
    assert_true(memcmp(alone[0].token, alone[3].token, sizeof alone[0].token));
    for (int beside = 0; beside < 2; beside++) {
        struct mg_scheduler *s = open_scheduler(e, no_caches);
        for (size_t i = 0; i < 8 && beside; i++) {
            other[i] = question(fill_mixed, 40 + i);
            other[i].job.answer.temperature = i % 2 ? 0.7f : 0;
            ask(s, &other[i]);
        }
        struct question again[6];
        for (size_t i = 0; i < 6; i++) {
            again[i] = q[i];
            again[i].job.logprobs = beside;
            ask(s, &again[i]);
        }
        for (size_t i = 0; i < 6; i++) {
            wait_done(&again[i]);
            same_answer(&alone[i], &again[i], beside ? "beside others" : "sampled");
            assert_int_equal(again[i].n_logprob, beside ? again[i].n_token : 0);
        }
        for (size_t i = 0; i < 8 && beside; i++) wait_done(&other[i]);
        mg_scheduler_close(s);
    }
    mg_engine_close(e);
}

/* Log-probabilities change no greedy answer; there is one for each token, not for the end. */
static void test_logprobs(void **state) {
    (void)state;
    static struct question plain, with;
    mg_engine *e = tiny_engine(&(struct tiny){.model = DEMO, .weights = MG_WEIGHTS_INT8});
    struct mg_scheduler *s = open_scheduler(e, no_caches);
    plain = question(fill_text, 3);
    plain.job.answer.ignore_end = false;
    with = plain;
    with.job.logprobs = true;
    with.job.n_top_logprobs = 3;
    ask_and_wait(s, &plain);
    ask_and_wait(s, &with);
    same_answer(&plain, &with, "with log-probabilities");
    assert_int_equal(plain.n_logprob, 0);
    assert_int_equal(with.n_logprob, with.n_token);
    assert_memory_equal(with.logprob_id, with.token, with.n_token * sizeof *with.token);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* Guessed tokens change nothing, with one answer being said and with two. */
static void test_drafts(void **state) {
    (void)state;
    static struct question none[2], q[2];
    mg_engine *e = tiny_engine(&(struct tiny){.tier = NULL, .weights = MG_WEIGHTS_INT8});
    for (size_t i = 0; i < 2; i++) {
        none[i] = question(fill_text, i);
        none[i].job.answer.max_tokens = 160; /* the small model repeats itself: guesses are right */
        none[i].job.answer.draft = -1;
        q[i] = none[i];
        q[i].job.answer.draft = 8;
        answer_alone(e, &none[i]);
        assert_int_equal(none[i].drafted, 0);
    }
    for (size_t n = 1; n <= 2; n++) {
        struct mg_scheduler *s = open_scheduler(e, no_caches);
        struct question now[2] = {q[0], q[1]};
        for (size_t i = 0; i < n; i++) ask(s, &now[i]);
        for (size_t i = 0; i < n; i++) {
            wait_done(&now[i]);
            same_answer(&none[i], &now[i], "drafts");
        }
        if (e->features.tier != MG_TIER_REF) assert_true(now[0].accepted > 0);
        mg_scheduler_close(s);
    }
    mg_engine_close(e);
}

/* --- cancelling --- */
/* Three others run; the fourth is cancelled at `at`, by its own event or from this thread. */
static void check_cancel(mg_engine *e, const struct question *alone, enum place at, bool own) {
    static struct question q[4];
    char what[64];
    snprintf(what, sizeof what, "cancelled at %d, %s", (int)at, own ? "by its event" : "outside");
    struct mg_scheduler_options o = no_caches;
    o.prefix_budget = o.feature_budget = 8 << 20;
    o.max_running = at == QUEUED ? 3 : 8;
    struct mg_scheduler *s = open_scheduler(e, o);
    for (size_t i = 0; i < 4; i++) q[i] = question(fill_mixed, i);
    q[3].i = 4; /* a picture and several turns */
    q[3].cancel_after = at == SAYING;
    if (own) q[3].cancel_at = at;
    if (!own && at != QUEUED) q[3].hold_at = at;
    if (at == QUEUED) q[0].hold_at = READING; /* no place becomes free */
    for (size_t i = 0; i < 4; i++) ask(s, &q[i]);
    if (!own) {
        wait_place(&q[3], at);
        mg_scheduler_cancel(s, q[3].id);
        release(&q[3]);
    }
    if (at == QUEUED) {
        wait_done(&q[3]);
        release(&q[0]);
    }
    for (size_t i = 0; i < 4; i++) wait_done(&q[i]);
    for (size_t i = 0; i < 3; i++) same_answer(&alone[i], &q[i], what);
    assert_int_equal(q[3].n_done, 1);
    assert_int_equal(q[3].late, 0);
    if (at == SAYING) {
        assert_int_equal(q[3].status, MG_OK);
        assert_string_equal(q[3].finish, "cancelled");
        assert_true(q[3].n_token > 0 && q[3].n_token < MOST_TOKENS);
        assert_memory_equal(q[3].token, alone[4].token, q[3].n_token * sizeof *q[3].token);
    } else {
        if (q[3].status != MG_ERR_CANCELLED) fail_msg("%s: %d", what, (int)q[3].status);
        assert_string_equal(q[3].code, "cancelled");
        assert_false(q[3].seen[SAYING]);
    }
    mg_scheduler_cancel(s, q[3].id); /* gone: fine */
    q[3] = question(fill_mixed, 4);  /* what was left behind does no harm */
    ask_and_wait(s, &q[3]);
    same_answer(&alone[4], &q[3], what);
    mg_scheduler_close(s);
}

static void test_cancel(void **state) {
    (void)state;
    static struct question alone[5];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 16});
    for (size_t i = 0; i < 5; i++) {
        alone[i] = question(fill_mixed, i);
        answer_alone(e, &alone[i]);
    }
    for (enum place at = QUEUED; at < DONE; at++)
        for (int own = 0; own < 2; own++) check_cancel(e, alone, at, own);
    mg_engine_close(e);
}

/* --- the queue --- */
/* One runs and is held, so that the others wait. */
static void block(struct mg_scheduler *s, struct question *first) {
    *first = question(fill_text, 0);
    first->hold_at = READING;
    ask(s, first);
    wait_place(first, READING);
}

static void test_limits(void **state) {
    (void)state;
    static struct question first, q[6];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 1;
    o.max_waiting = 3;
    o.max_waiting_bytes = 1000;
    struct mg_scheduler *s = open_scheduler(e, o);
    struct mg_scheduler_counts c;
    block(s, &first);
    for (size_t i = 0; i < 6; i++) q[i] = question(fill_text, i);
    q[0].job.bytes = 600;
    q[1].job.bytes = 401;
    q[2].job.bytes = 400;
    ask(s, &q[0]);
    assert_int_equal(try_ask(s, &q[1]), MG_ERR_LIMIT); /* too many bytes */
    assert_string_equal(q[1].code, "queue_full");
    ask(s, &q[2]);
    mg_scheduler_counts(s, &c);
    assert_int_equal(c.waiting, 2);
    assert_int_equal(c.waiting_bytes, 1000);
    ask(s, &q[3]);
    assert_int_equal(try_ask(s, &q[4]), MG_ERR_LIMIT); /* too many */
    assert_string_equal(q[4].code, "queue_full");
    release(&first);
    wait_done(&first);
    const size_t taken[] = {0, 2, 3};
    for (size_t i = 0; i < 3; i++) {
        wait_done(&q[taken[i]]);
        assert_int_equal(q[taken[i]].status, MG_OK);
    }
    ask_and_wait(s, &q[5]); /* there is room again */
    assert_int_equal(q[1].n_done + q[4].n_done, 0);
    mg_scheduler_counts(s, &c);
    assert_int_equal(c.waiting + c.waiting_bytes, 0);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

static void test_deadline(void **state) {
    (void)state;
    static struct question first, late, patient;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 1;
    struct mg_scheduler *s = open_scheduler(e, o);
    block(s, &first);
    late = question(fill_text, 1);
    late.job.wait_seconds = 0.02;
    patient = question(fill_text, 2);
    ask(s, &patient);
    ask(s, &late);
    wait_done(&late); /* while the place is held */
    assert_int_equal(first.n_done, 0);
    assert_int_equal(late.status, MG_ERR_LIMIT);
    assert_string_equal(late.code, "queue_timeout");
    assert_true(patient.seen[QUEUED] && !patient.seen[DECODING]);
    release(&first);
    wait_done(&patient);
    assert_int_equal(patient.status, MG_OK);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* What was idle for long and has just been given something to do has not stalled: /ready goes by
 * this (a picture's file may take a second to be decoded, and the engine thread sleeps). */
static void test_progress(void **state) {
    (void)state;
    static struct question first;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler *s = open_scheduler(e, no_caches);
    struct mg_scheduler_counts c;
    while (mg_scheduler_counts(s, &c), !c.ready) usleep(1000);
    usleep(50000);
    double asked = mg_clock();
    first = question(fill_text, 0);
    first.hold_at = DECODING;
    ask(s, &first);
    wait_place(&first, DECODING);
    mg_scheduler_counts(s, &c);
    assert_true(c.busy && c.last_progress >= asked);
    release(&first);
    wait_done(&first);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* One tenant's long queue does not hold up another's question. */
static void test_fair(void **state) {
    (void)state;
    static struct question held[2], many[6], one;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 2;
    struct mg_scheduler *s = open_scheduler(e, o);
    for (size_t i = 0; i < 2; i++) {
        held[i] = question(fill_text, i);
        held[i].hold_at = i ? READING : NOWHERE;
        held[i].job.tenant[0] = 1;
        if (!i) held[i].job.answer.max_tokens = 200;
    }
    ask(s, &held[1]); /* the engine's thread stands still: nothing ends meanwhile */
    wait_place(&held[1], READING);
    ask(s, &held[0]);
    for (size_t i = 0; i < 6; i++) {
        many[i] = question(fill_text, 10 + i);
        many[i].job.tenant[0] = 1;
        ask(s, &many[i]);
    }
    one = question(fill_text, 20);
    one.job.tenant[0] = 2;
    ask(s, &one);
    release(&held[1]);
    wait_done(&one);
    for (size_t i = 0; i < 6; i++) wait_done(&many[i]);
    wait_done(&held[0]);
    /* of those that waited it was taken first; one more may have run beside it */
    size_t before = 0;
    for (size_t i = 0; i < 6; i++) before += many[i].order < one.order;
    assert_true(before <= 1);
    for (size_t i = 1; i < 6; i++) assert_true(many[i].order > many[0].order);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

static struct question of_tenant(size_t i, uint8_t tenant, size_t bytes) {
    struct question q = question(fill_text, i);
    q.job.tenant[0] = tenant;
    q.job.bytes = bytes;
    return q;
}

/* A tenant that fills the queue, with questions or with bytes, does not keep another out of it. */
static void test_displaced(void **state) {
    (void)state;
    static struct question first, many[4], other[3];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    for (int bytes = 0; bytes < 2; bytes++) {
        struct mg_scheduler_options o = no_caches;
        o.max_running = 1;
        o.max_waiting = bytes ? 100 : 4;
        o.max_waiting_bytes = 1000;
        struct mg_scheduler *s = open_scheduler(e, o);
        block(s, &first);
        for (size_t i = 0; i < 4; i++) {
            many[i] = of_tenant(i, 1, bytes ? 250 : 1);
            ask(s, &many[i]);
        }
        struct question more = of_tenant(9, 1, 1);
        assert_int_equal(try_ask(s, &more), MG_ERR_LIMIT); /* its own are no reason */
        for (size_t i = 0; i < 3; i++) other[i] = of_tenant(10 + i, 2, bytes ? 250 : 1);
        ask(s, &other[0]);
        wait_done(&many[3]); /* the newest goes, at once */
        assert_int_equal(many[3].status, MG_ERR_LIMIT);
        assert_string_equal(many[3].code, "queue_full");
        ask(s, &other[1]);
        wait_done(&many[2]);
        assert_string_equal(many[2].code, "queue_full");
        assert_int_equal(try_ask(s, &other[2]), MG_ERR_LIMIT); /* both have the same now */
        struct mg_scheduler_counts c;
        mg_scheduler_counts(s, &c);
        assert_int_equal(c.waiting, 4);
        assert_int_equal(c.waiting_bytes, bytes ? 1000 : 4);
        release(&first);
        for (size_t i = 0; i < 2; i++) {
            wait_done(&many[i]);
            wait_done(&other[i]);
            assert_int_equal(many[i].status, MG_OK);
            assert_int_equal(other[i].status, MG_OK);
        }
        assert_int_equal(many[2].n_done + many[3].n_done, 2);
        mg_scheduler_close(s);
    }
    mg_engine_close(e);
}

/* Too large for all that could be displaced: nobody is. */
static void test_displaced_in_vain(void **state) {
    (void)state;
    static struct question first, many[3], small, large;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 1;
    o.max_waiting_bytes = 1000;
    struct mg_scheduler *s = open_scheduler(e, o);
    block(s, &first);
    for (size_t i = 0; i < 3; i++) {
        many[i] = of_tenant(i, 1, 200);
        ask(s, &many[i]);
    }
    small = of_tenant(7, 2, 300);
    ask(s, &small);
    large = of_tenant(8, 3, 550);
    assert_int_equal(try_ask(s, &large), MG_ERR_LIMIT);
    release(&first);
    for (size_t i = 0; i < 3; i++) {
        wait_done(&many[i]);
        assert_int_equal(many[i].status, MG_OK);
    }
    wait_done(&small);
    assert_int_equal(small.status, MG_OK);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* The places told are the order in which they are answered, of several tenants. */
static void test_places(void **state) {
    (void)state;
    static struct question first, q[6];
    static const uint8_t tenant[6] = {1, 1, 1, 2, 2, 3};
    static const size_t place[6] = {3, 5, 6, 1, 4, 2};
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 1;
    struct mg_scheduler *s = open_scheduler(e, o);
    first = question(fill_text, 0);
    first.job.tenant[0] = 1;
    first.hold_at = READING;
    ask(s, &first);
    wait_place(&first, READING);
    for (size_t i = 0; i < 6; i++) {
        q[i] = of_tenant(i, tenant[i], 1);
        ask(s, &q[i]);
    }
    wait_place(&q[5], QUEUED); /* the last in the list: all have been told */
    for (size_t i = 0; i < 6; i++) assert_int_equal(q[i].position, place[i]);
    release(&first);
    for (size_t i = 0; i < 6; i++) wait_done(&q[i]);
    for (size_t i = 0; i < 6; i++) assert_int_equal(q[i].order - first.order, place[i]);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* More tenants than are told apart, and two places: each gets a place of its own, 1 to n. */
static void test_places_of_many(void **state) {
    (void)state;
    enum { MANY = 3 * MG_SERVED };
    static struct question held[2], q[MANY];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = no_caches;
    o.max_running = 2;
    struct mg_scheduler *s = open_scheduler(e, o);
    for (size_t i = 0; i < 2; i++) {
        held[i] = of_tenant(i, 1, 1);
        held[i].hold_at = i ? NOWHERE : READING;
        held[i].job.answer.max_tokens = 200;
        ask(s, &held[i]);
        wait_place(&held[i], i ? DECODING : READING);
    }
    bool seen[MANY + 1] = {false};
    for (size_t i = 0; i < MANY; i++) {
        q[i] = of_tenant(i, (uint8_t)(i % 100), 1);
        ask(s, &q[i]);
    }
    wait_place(&q[MANY - 1], QUEUED);
    for (size_t i = 0; i < MANY; i++) {
        assert_in_range(q[i].position, 1, MANY);
        assert_false(seen[q[i].position]);
        seen[q[i].position] = true;
    }
    assert_int_equal(q[0].position, 1);
    assert_true(q[1].position > q[2].position); /* both places are tenant 1's */
    for (size_t i = 0; i < MANY; i++) mg_scheduler_cancel(s, q[i].id);
    for (size_t i = 0; i < MANY; i++) wait_done(&q[i]);
    release(&held[0]);
    wait_done(&held[0]);
    wait_done(&held[1]);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* One that needs more memory than is left is not passed over for ever. All are prepared before the
 * first goes on, so that at any time some of the small ones run. */
static void test_large_one_gets_its_turn(void **state) {
    (void)state;
    enum { SMALL = MG_MAX_RUNNING - 1 };
    static struct question large, q[SMALL];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .context = 512});
    struct mg_scheduler_options o = no_caches;
    o.max_running = MG_MAX_RUNNING;
    struct mg_scheduler *s = open_scheduler(e, o);
    mg_chat *chat = tiny_chat(e);
    s->kv_budget = mg_kv_bytes(&chat->kv, 400); /* before its threads have anything to do */
    mg_chat_close(chat);
    for (size_t i = 0; i < SMALL; i++) {
        q[i] = question(fill_text, i);
        q[i].job.answer.max_tokens = 20 + i * 7 % 17;
    }
    q[0].hold_at = READING;
    ask(s, &q[0]);
    wait_place(&q[0], READING);
    large = question(fill_text, 1);
    large.job.answer.max_tokens = 300;
    ask(s, &large);
    for (size_t i = 1; i < SMALL; i++) ask(s, &q[i]);
    wait_place(&q[SMALL - 1], DECODING);
    release(&q[0]);
    wait_done(&large);
    size_t before = 0;
    for (size_t i = 0; i < SMALL; i++) {
        wait_done(&q[i]);
        assert_int_equal(q[i].status, MG_OK);
        before += q[i].order < large.order;
    }
    assert_int_equal(large.status, MG_OK);
    assert_in_range(before, 2, 9); /* the first, and some that it let pass; SMALL otherwise */
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* What is asked by whoever hears of an end counts that question too. */
static void test_counts_at_the_end(void **state) {
    (void)state;
    static struct question q;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = {.max_running = 2};
    o.answer_budget = 1 << 20;
    struct mg_scheduler *s = open_scheduler(e, o);
    for (size_t i = 0; i < 8; i++) {
        q = question(fill_text, i / 2);
        ask_and_wait(s, &q);
        assert_int_equal(q.status, MG_OK);
        assert_int_equal(q.counts.answer_queries, i + 1);
        assert_int_equal(q.counts.answer_hits, (i + 1) / 2);
        assert_int_equal(q.counts.answers, i / 2 + 1);
        assert_int_equal(q.counts.running, 0);
    }
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* Closed while jobs wait, are prepared, looked at and said: each has one end. */
static void test_close(void **state) {
    (void)state;
    static struct question q[12];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 16});
    for (int at = QUEUED; at < DONE; at++) {
        struct mg_scheduler_options o = {.max_running = 4};
        struct mg_scheduler *s = open_scheduler(e, o);
        for (size_t i = 0; i < 12; i++) {
            q[i] = question(fill_mixed, i);
            q[i].job.answer.max_tokens = 200;
            ask(s, &q[i]);
        }
        wait_place(&q[0], (enum place)at);
        mg_scheduler_close(s);
        for (size_t i = 0; i < 12; i++) {
            assert_int_equal(q[i].n_done, 1);
            assert_int_equal(q[i].late, 0);
            assert_true(q[i].status == MG_ERR_CANCELLED || q[i].status == MG_OK);
        }
        assert_null(e->feature_cache);
    }
    mg_engine_close(e);
}

/* A prompt over the context is refused and spoils nothing (fault 55). */
static void fill_long(mg_chat *chat, size_t i) {
    fill_mixed(chat, 0);
    for (size_t k = 0; k < 40 * i; k++) fill_text(chat, k);
}

static void test_refused(void **state) {
    (void)state;
    static struct question alone, refused, again, other;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .context = 512});
    alone = question(fill_long, 0);
    answer_alone(e, &alone);
    struct mg_scheduler_options o = {.max_running = 2, .feature_budget = 300000};
    o.answer_budget = 1 << 20;
    struct mg_scheduler *s = open_scheduler(e, o);
    refused = question(fill_long, 1);
    ask_and_wait(s, &refused);
    assert_int_equal(refused.status, MG_ERR_CONTEXT);
    assert_string_equal(refused.code, "context_length_exceeded");
    for (size_t i = 0; i < 40; i++) {
        again = question(fill_long, 0);
        again.job.no_answer_cache = i % 2;
        ask_and_wait(s, &again);
        same_answer(&alone, &again, "after one that was refused");
        other = question(fill_mixed, i); /* past the budget of features */
        ask_and_wait(s, &other);
        assert_int_equal(other.status, MG_OK);
    }
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* --- memory --- */
static void test_allocations(void **state) {
    (void)state;
    static struct question alone, q;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .context = 512});
    alone = question(fill_text, 4);
    alone.job.answer.max_tokens = 6;
    struct question text = alone;
    answer_alone(e, &alone);
    struct mg_scheduler_options o = {.max_running = 2};
    o.answer_budget = 1 << 20;
    struct mg_scheduler *s = open_scheduler(e, o);
    size_t n = 0, n_failed = 0;
    for (bool failed = true; failed; n++) {
        q = text;
        q.job.tenant[0] = (uint8_t)n, q.job.tenant[1] = (uint8_t)(n >> 8); /* nothing is known */
        alloc_fail_at(n);
        enum mg_status status = try_ask(s, &q);
        if (status == MG_OK) wait_done(&q);
        failed = alloc_has_failed();
        alloc_fail_at(SIZE_MAX);
        if (status != MG_OK) {
            assert_int_equal(status, MG_ERR_MEMORY);
        } else if (q.status != MG_OK) {
            assert_int_equal(q.status, MG_ERR_MEMORY);
            assert_int_equal(q.n_done, 1);
            n_failed++;
        } else {
            same_answer(&alone, &q, "short of memory");
        }
    }
    print_message("# %zu allocations, %zu of them needed\n", n, n_failed);
    assert_true(n > 20 && n_failed > 5);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

/* What is kept gives way to a question that finds no memory. */
static void test_caches_give_way(void **state) {
    (void)state;
    static struct question q[4];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .context = 512});
    struct mg_scheduler *s = open_scheduler(e, (struct mg_scheduler_options){.max_running = 1});
    struct mg_scheduler_counts c;
    for (size_t i = 0; i < 3; i++) {
        q[i] = question(fill_mixed, i);
        ask_and_wait(s, &q[i]);
        assert_int_equal(q[i].status, MG_OK);
    }
    mg_scheduler_counts(s, &c);
    size_t before = c.prefix_bytes;
    assert_true(before > 0);
    q[3] = question(fill_text, 7);
    alloc_fail_at(1); /* the first is the job itself, the second its conversation */
    ask_and_wait(s, &q[3]);
    assert_true(alloc_has_failed());
    alloc_fail_at(SIZE_MAX);
    assert_int_equal(q[3].status, MG_OK);
    assert_true(q[3].counts.prefix_bytes < before);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

static void test_flat(void **state) {
    (void)state;
    static struct question q[8];
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    struct mg_scheduler_options o = {.max_running = 4};
    o.feature_budget = o.answer_budget = 200000;
    o.prefix_budget = 600000;
    struct mg_scheduler *s = open_scheduler(e, o);
    size_t settled = 0, most = 0;
    for (size_t round = 0; round < 63; round++) {
        for (size_t i = 0; i < 8; i++) {
            q[i] = question(fill_mixed, round * 3 + i);
            q[i].job.answer.max_tokens = 4;
            q[i].job.answer.temperature = i % 3 == 0 ? 0.8f : 0;
            q[i].cancel_at = i % 5 == 4 ? READING : NOWHERE;
            ask(s, &q[i]);
        }
        for (size_t i = 0; i < 8; i++) wait_done(&q[i]);
        size_t now = alloc_now();
        if (round < 20)
            settled = now > settled ? now : settled;
        else
            most = now > most ? now : most;
    }
    print_message("# %zu bytes at most in 20 rounds, %zu later\n", settled, most);
    assert_true(most <= settled + 300000); /* within what the budgets may be filled by */
    struct mg_scheduler_counts c;
    mg_scheduler_counts(s, &c);
    assert_true(c.feature_bytes <= o.feature_budget && c.prefix_bytes <= o.prefix_budget &&
                c.answer_bytes <= o.answer_budget);
    mg_scheduler_close(s);
    mg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_company_whole),
                                       cmocka_unit_test(test_company_bf16),
                                       cmocka_unit_test(test_sampled),
                                       cmocka_unit_test(test_logprobs),
                                       cmocka_unit_test(test_drafts),
                                       cmocka_unit_test(test_cancel),
                                       cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_deadline),
                                       cmocka_unit_test(test_progress),
                                       cmocka_unit_test(test_fair),
                                       cmocka_unit_test(test_displaced),
                                       cmocka_unit_test(test_displaced_in_vain),
                                       cmocka_unit_test(test_close),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_places_of_many),
                                       cmocka_unit_test(test_allocations),
                                       cmocka_unit_test(test_caches_give_way),
                                       cmocka_unit_test(test_flat),
                                       cmocka_unit_test(test_large_one_gets_its_turn),
                                       cmocka_unit_test(test_counts_at_the_end)};
    return cmocka_run_group_tests_name("engine.scheduler", tests, tiny_open, tiny_close);
}
