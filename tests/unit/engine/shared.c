/* What jobs do with a shared store, by a store in memory that does as it is told: answer at once,
 * late, never, or with something else than was put. Answers are always those of a job alone. */
#include "jobs.h"

#include "engine/shared_value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <utime.h>

#include <cmocka.h>

#define BIG ((size_t)64 << 20)
#define SLACK 0.5 /* of a busy machine */

/* --- a store --- */
enum manner { AT_ONCE, LATE, NEVER, AWAY, SHAPE, NOT_FINITE, SHORT, HEAD };

struct kept {
    struct mg_store_key key;
    struct mg_store_value value;
    struct kept *next;
};

struct memory {
    struct mg_byte_store base;
    enum manner manner;
    struct kept *kept;
    struct mg_store_read *waiting; /* LATE and NEVER */
    size_t reads[MG_N_STORE_KIND], puts[MG_N_STORE_KIND];
};

static struct kept *find(const struct memory *m, const struct mg_store_key *key) {
    struct kept *k = m->kept;
    while (k && memcmp(&k->key, key, sizeof *key) != 0) k = k->next;
    return k;
}

/* A copy, changed as the manner says. */
static void reply(struct memory *m, struct mg_store_read *r) {
    const struct kept *k = find(m, &r->key);
    if (!k || k->value.n_body > r->max_body) {
        mg_store_read_done(r, MG_STORE_MISSING, NULL);
        return;
    }
    struct mg_store_value v = k->value;
    v.body = aligned_alloc(64, mg_round_up(v.n_body + 1, 64));
    if (!v.body) {
        mg_store_read_done(r, MG_STORE_MISSING, NULL);
        return;
    }
    memcpy(v.body, k->value.body, v.n_body);
    if (m->manner == SHAPE) v.head[4] ^= 1;
    if (m->manner == HEAD) v.n_head--;
    if (m->manner == SHORT) v.n_body -= 4;
    if (m->manner == NOT_FINITE) memset(v.body + v.n_body - 4, 0xff, 4);
    mg_store_read_done(r, MG_STORE_FOUND, &v);
}

static bool op_read(struct mg_byte_store *base, struct mg_store_read *r) {
    struct memory *m = (struct memory *)base;
    if (m->manner == AWAY) return false;
    m->reads[r->key.kind]++;
    if (m->manner == LATE || m->manner == NEVER) {
        r->next = m->waiting;
        m->waiting = r;
    } else {
        reply(m, r);
    }
    return true;
}

static bool op_put(struct mg_byte_store *base, struct mg_store_put *p) {
    struct memory *m = (struct memory *)base;
    struct kept *k = find(m, &p->key) ? NULL : calloc(1, sizeof *k);
    m->puts[p->key.kind]++;
    if (!k) return false;
    k->key = p->key;
    k->value = (struct mg_store_value){.made = p->made, .n_head = p->n_head, .n_body = p->n_body};
    memcpy(k->value.head, p->head, sizeof k->value.head);
    k->value.body = malloc(p->n_body + 1);
    if (!k->value.body) {
        free(k);
        return false;
    }
    if (p->n_body) memcpy(k->value.body, p->body, p->n_body);
    k->next = m->kept;
    m->kept = k;
    mg_store_put_free(p);
    return true;
}

static void op_counts(struct mg_byte_store *base, struct mg_store_counts *out) {
    (void)base;
    out->up = true;
}

static void reply_all(struct memory *m) {
    pthread_mutex_lock(&m->base.mutex);
    while (m->waiting) {
        struct mg_store_read *r = m->waiting;
        m->waiting = r->next;
        reply(m, r);
    }
    pthread_mutex_unlock(&m->base.mutex);
}

static void op_close(struct mg_byte_store *base) {
    struct memory *m = (struct memory *)base;
    reply_all(m);
    while (m->kept) {
        struct kept *k = m->kept;
        m->kept = k->next;
        free(k->value.body);
        free(k);
    }
}

static struct memory *open_memory(void) {
    static const struct mg_store_ops ops = {op_read, op_put, op_counts, op_close};
    struct memory *m = calloc(1, sizeof *m);
    assert_non_null(m);
    mg_store_init(&m->base, &ops);
    return m;
}

static void behave(struct memory *m, enum manner manner) {
    pthread_mutex_lock(&m->base.mutex);
    m->manner = manner;
    pthread_mutex_unlock(&m->base.mutex);
}

static size_t waiting(struct memory *m) {
    size_t n = 0;
    pthread_mutex_lock(&m->base.mutex);
    for (struct mg_store_read *r = m->waiting; r; r = r->next) n++;
    pthread_mutex_unlock(&m->base.mutex);
    return n;
}

static void wait_waiting(struct memory *m, size_t n) {
    for (int i = 0; i < 5000 && waiting(m) < n; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_true(waiting(m) >= n);
}

/* --- the jobs --- */
static mg_engine *engine(void) {
    return tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .chunk = 64});
}

static struct mg_scheduler_options options(struct memory *m) {
    return (struct mg_scheduler_options){
        .max_running = 8, .prefix_budget = SIZE_MAX, .store = &m->base};
}

/* Two pictures; i chooses their order and the words. */
static void fill_two(mg_chat *chat, size_t i) {
    add_file(chat, i & 1 ? "gray.png" : "odd.png");
    add_text(chat, MG_USER, i & 2 ? " next to " : " and ");
    add_file(chat, i & 1 ? "odd.png" : "gray.png");
    add_text(chat, MG_USER, " : how many circles are there?");
}

static void fill_same(mg_chat *chat, size_t i) {
    add_file(chat, "photo.jpg");
    add_text(chat, MG_USER, i ? "What is it?" : "Who is it?");
}

static struct question asked(struct mg_scheduler *s, const struct question *alone, size_t i,
                             uint8_t tenant, const char *what) {
    struct question q = question(alone->fill, i);
    q.job.tenant[0] = tenant;
    ask_and_wait(s, &q);
    same_answer(&alone[i], &q, what);
    return q;
}

static void four_alone(mg_engine *e, struct question *alone) {
    for (size_t i = 0; i < 4; i++) {
        alone[i] = question(fill_two, i);
        answer_alone(e, &alone[i]);
    }
}

static void test_pictures(void **state) {
    (void)state;
    static struct question alone[4];
    mg_engine *e = engine(), *f = engine();
    four_alone(e, alone);
    struct memory *m = open_memory();
    struct mg_scheduler *s = open_scheduler(e, options(m));
    struct question q = asked(s, alone, 0, 1, "cold");
    assert_false(q.image_cached);
    assert_int_equal(m->reads[MG_STORE_PICTURE], 2);
    assert_int_equal(m->puts[MG_STORE_PICTURE], 2);
    q = asked(s, alone, 1, 1, "in the local cache");
    assert_true(q.image_cached);
    assert_int_equal(m->reads[MG_STORE_PICTURE], 2);
    asked(s, alone, 0, 2, "another tenant");
    assert_int_equal(m->puts[MG_STORE_PICTURE], 4);
    mg_scheduler_close(s);
    /* another process, beginning with nothing */
    for (int keep = 0; keep < 2; keep++) { /* also without a local cache */
        struct mg_scheduler_options o = options(m);
        o.feature_budget = keep ? BIG : SIZE_MAX;
        s = open_scheduler(f, o);
        for (size_t i = 0; i < 4; i++) {
            q = asked(s, alone, i, 1, "from the store");
            assert_true(q.image_cached);
            assert_false(q.seen[LOOKING]);
        }
        asked(s, alone, 3, 3, "a third tenant");
        mg_scheduler_close(s);
    }
    assert_int_equal(m->puts[MG_STORE_PICTURE], 4 + 2); /* the third tenant's once */
    assert_int_equal(m->puts[MG_STORE_ANSWER] + m->reads[MG_STORE_ANSWER], 0);
    mg_store_close(&m->base);
    mg_engine_close(e);
    mg_engine_close(f);
}

/* Entries that are not what they should be: computed as if there were none. */
static void test_wrong_entries(void **state) {
    (void)state;
    static struct question alone[4];
    static const enum manner manner[] = {SHAPE, NOT_FINITE, SHORT, HEAD, AWAY};
    mg_engine *e = engine();
    four_alone(e, alone);
    struct memory *m = open_memory();
    struct mg_scheduler_options o = options(m);
    o.answer_budget = BIG;
    struct mg_scheduler *s = open_scheduler(e, o);
    asked(s, alone, 0, 1, "cold");
    mg_scheduler_close(s);
    for (size_t i = 0; i < 5; i++) {
        behave(m, manner[i]);
        s = open_scheduler(e, o);
        struct question q = asked(s, alone, 0, 1, "wrong entries");
        assert_false(q.image_cached);
        assert_int_equal(q.from, MG_FROM_MODEL_ASKED);
        mg_scheduler_close(s);
    }
    behave(m, AT_ONCE);
    s = open_scheduler(e, o);
    assert_int_equal(asked(s, alone, 0, 1, "right again").from, MG_FROM_CACHE);
    mg_scheduler_close(s);
    mg_store_close(&m->base);
    mg_engine_close(e);
}

static void test_answers(void **state) {
    (void)state;
    static struct question alone[4];
    mg_engine *e = engine(), *f = engine();
    four_alone(e, alone);
    struct memory *m = open_memory();
    struct mg_scheduler_options o = options(m);
    o.answer_budget = BIG;
    struct mg_scheduler *s = open_scheduler(e, o);
    struct question first[4];
    for (size_t i = 0; i < 4; i++) {
        first[i] = question(fill_two, i);
        first[i].job.logprobs = true;
        first[i].job.n_top_logprobs = i;
        ask_and_wait(s, &first[i]);
        assert_int_equal(first[i].from, MG_FROM_MODEL_ASKED);
    }
    mg_scheduler_close(s);
    assert_int_equal(m->puts[MG_STORE_ANSWER], 4);
    s = open_scheduler(f, o);
    for (int again = 0; again < 2; again++) /* the second time from the local cache */
        for (size_t i = 0; i < 4; i++) {
            struct question q = question(fill_two, i);
            q.job.logprobs = true;
            q.job.n_top_logprobs = i;
            ask_and_wait(s, &q);
            same_answer(&alone[i], &q, "an answer from the store");
            assert_int_equal(q.from, MG_FROM_CACHE);
            assert_int_equal(q.n_logprob, first[i].n_logprob);
            assert_memory_equal(q.logprob, first[i].logprob, sizeof q.logprob);
            assert_memory_equal(q.logprob_id, first[i].logprob_id, sizeof q.logprob_id);
        }
    assert_int_equal(m->reads[MG_STORE_ANSWER], 8);
    assert_int_equal(m->reads[MG_STORE_PICTURE], 2); /* of the cold run */
    struct question other = question(fill_two, 0);   /* another tenant, other options */
    other.job.logprobs = true;
    other.job.tenant[0] = 9;
    ask_and_wait(s, &other);
    assert_int_equal(other.from, MG_FROM_MODEL_ASKED);
    other = question(fill_two, 0);
    other.job.no_answer_cache = true;
    ask_and_wait(s, &other);
    assert_int_equal(other.from, MG_FROM_MODEL);
    struct mg_scheduler_counts c;
    mg_scheduler_counts(s, &c);
    assert_true(c.answer_hits >= 8);
    mg_scheduler_close(s);
    /* too old by this server's rule */
    for (struct kept *k = m->kept; k; k = k->next) k->value.made -= 1000;
    for (int old = 0; old < 2; old++) {
        o.answer_seconds = old ? 900 : 1100;
        s = open_scheduler(f, o);
        struct question q = question(fill_two, 0);
        q.job.logprobs = true;
        ask_and_wait(s, &q);
        assert_int_equal(q.from, old ? MG_FROM_MODEL_ASKED : MG_FROM_CACHE);
        mg_scheduler_close(s);
    }
    mg_store_close(&m->base);
    mg_engine_close(e);
    mg_engine_close(f);
}

/* One job waits for the store; others come and go; then its time is over, and it is computed. */
static void test_passed_over(void **state) {
    (void)state;
    static struct question alone[4], words[4];
    mg_engine *e = engine();
    four_alone(e, alone);
    for (size_t i = 0; i < 4; i++) {
        words[i] = question(fill_text, i);
        answer_alone(e, &words[i]);
    }
    struct memory *m = open_memory();
    struct mg_scheduler *s = open_scheduler(e, options(m));
    asked(s, alone, 0, 1, "cold");
    mg_scheduler_close(s);
    behave(m, NEVER);
    s = open_scheduler(e, options(m));
    struct question slow = question(fill_two, 0);
    slow.job.tenant[0] = 1;
    double begin = mg_clock();
    ask(s, &slow);
    wait_waiting(m, 2);
    asked(s, words, 1, 1, "beside one that waits");
    asked(s, words, 2, 1, "beside one that waits");
    double beside = mg_clock() - begin;
    wait_done(&slow);
    double took = mg_clock() - begin;
    same_answer(&alone[0], &slow, "given up waiting");
    assert_false(slow.image_cached);
    assert_true(took > 0.18 && took < 0.2 + SLACK);
    if (beside < MG_SHARED_PATIENCE) assert_true(slow.order > 0); /* they did not wait for it */
    assert_true(beside < took);
    /* the replies come when nobody wants them any more */
    reply_all(m);
    asked(s, alone, 1, 1, "after the late replies");
    mg_scheduler_close(s);
    /* late, but in time */
    behave(m, LATE);
    s = open_scheduler(e, options(m));
    slow = question(fill_two, 2);
    slow.job.tenant[0] = 1;
    ask(s, &slow);
    wait_waiting(m, 2);
    reply_all(m);
    wait_done(&slow);
    same_answer(&alone[2], &slow, "late");
    assert_true(slow.image_cached);
    /* cancelled while it waits: at once */
    slow = question(fill_same, 0);
    begin = mg_clock();
    ask(s, &slow);
    wait_waiting(m, 1);
    mg_scheduler_cancel(s, slow.id);
    wait_done(&slow);
    assert_int_equal(slow.status, MG_ERR_CANCELLED);
    assert_true(mg_clock() - begin < MG_SHARED_PATIENCE + SLACK);
    /* closed while one waits */
    slow = question(fill_same, 1);
    ask(s, &slow);
    wait_waiting(m, 2); /* the cancelled one's is still there */
    begin = mg_clock();
    mg_scheduler_close(s);
    assert_true(mg_clock() - begin < SLACK);
    assert_int_equal(slow.n_done, 1);
    mg_store_close(&m->base);
    mg_engine_close(e);
}

/* Eight at once about one picture: asked for once, and once more by nobody. */
static void test_asked_once(void **state) {
    (void)state;
    static struct question alone[2], q[8];
    mg_engine *e = engine();
    for (size_t i = 0; i < 2; i++) {
        alone[i] = question(fill_same, i);
        answer_alone(e, &alone[i]);
    }
    struct memory *m = open_memory();
    struct mg_scheduler *s = open_scheduler(e, options(m));
    asked(s, alone, 0, 0, "cold");
    mg_scheduler_close(s);
    assert_int_equal(m->reads[MG_STORE_PICTURE], 1);
    behave(m, LATE);
    s = open_scheduler(e, options(m));
    for (size_t i = 0; i < 8; i++) {
        q[i] = question(fill_same, i % 2);
        ask(s, &q[i]);
    }
    wait_waiting(m, 1);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    reply_all(m);
    for (size_t i = 0; i < 8; i++) {
        wait_done(&q[i]);
        same_answer(&alone[i % 2], &q[i], "eight at once");
        assert_true(q[i].image_cached);
    }
    assert_int_equal(m->reads[MG_STORE_PICTURE], 2);
    mg_scheduler_close(s);
    mg_store_close(&m->base);
    mg_engine_close(e);
}

/* The n-th allocation fails, on the way from the store and on the way to it. */
static void test_memory(void **state) {
    (void)state;
    static struct question alone[4];
    mg_engine *e = engine();
    four_alone(e, alone);
    struct memory *m = open_memory();
    struct mg_scheduler_options o = options(m);
    o.answer_budget = BIG;
    struct mg_scheduler *s = open_scheduler(e, o);
    asked(s, alone, 0, 1, "cold");
    mg_scheduler_close(s);
    size_t failed = 0, answered = 0;
    for (size_t n = 0; n < 250; n++) {
        bool warm = n % 2;
        s = open_scheduler(e, o);
        struct question q = question(fill_two, 0);
        q.job.tenant[0] = warm ? 1 : 100;
        q.job.no_answer_cache = n % 3 == 0;
        alloc_fail_at(n / 2);
        if (try_ask(s, &q) == MG_OK) {
            wait_done(&q);
            if (q.status == MG_OK)
                same_answer(&alone[0], &q, "with little memory");
            else
                assert_int_equal(q.status, MG_ERR_MEMORY);
            answered += q.status == MG_OK;
        }
        failed += alloc_has_failed();
        alloc_fail_at(SIZE_MAX);
        mg_scheduler_close(s);
    }
    assert_true(failed > 100 && answered > 20);
    mg_store_close(&m->base);
    mg_engine_close(e);
}

/* --- identity --- */
static void model_of(const struct tiny *t, uint8_t out[MG_SHA256_BYTES]) {
    mg_engine *e = tiny_engine(t);
    struct mg_err err = {0};
    assert_int_equal(mg_shared_model(e, out, &err), MG_OK);
    mg_engine_close(e);
}

static void copy_file(const char *from, const char *to) {
    struct mg_buf b = {0};
    struct mg_err err = {0};
    if (mg_file_read(from, BIG, &b, &err) != MG_OK) return; /* not every file is there */
    assert_int_equal(mg_file_write(to, b.data, b.n, &err), MG_OK);
    assert_int_equal(utime(to, &(struct utimbuf){1000000000, 1000000000}), 0);
    mg_buf_free(&b);
}

/* Equal wherever the same is computed; different for all that computes otherwise. */
static void test_identity(void **state) {
    (void)state;
    static const char *const file[] = {
        "config.json",           "generation_config.json", "preprocessor_config.json",
        "processor_config.json", "tokenizer.json",         "tokenizer_config.json",
        "model.safetensors",     "chat_template.jinja"};
    char folder[512], from[1100], to[1100];
    snprintf(folder, sizeof folder, "%s", tiny_path("copy"));
    mkdir(folder, 0755);
    for (size_t i = 0; i < 8; i++) {
        snprintf(from, sizeof from, TINY "/%s", file[i]);
        snprintf(to, sizeof to, "%s/%s", folder, file[i]);
        copy_file(from, to);
    }
    const struct tiny same[] = {{.weights = MG_WEIGHTS_INT8},
                                {.weights = MG_WEIGHTS_INT8, .chunk = 16, .threads = 1},
                                {.weights = MG_WEIGHTS_INT8, .context = 100},
                                {.weights = MG_WEIGHTS_INT8, .model = folder}};
    const struct tiny other[] = {{.weights = MG_WEIGHTS_INT4},
                                 {.weights = MG_WEIGHTS_BF16},
                                 {.weights = MG_WEIGHTS_F32},
                                 {.weights = MG_WEIGHTS_INT8, .tier = "ref"},
                                 {.weights = MG_WEIGHTS_INT8, .model = DEMO}};
    uint8_t first[MG_SHA256_BYTES], id[6][MG_SHA256_BYTES];
    model_of(&same[0], first);
    for (size_t i = 1; i < 4; i++) {
        model_of(&same[i], id[0]);
        if (memcmp(first, id[0], sizeof first) != 0) fail_msg("the same, %zu", i);
    }
    memcpy(id[5], first, sizeof first);
    for (size_t i = 0; i < 5; i++) model_of(&other[i], id[i]);
    for (size_t i = 0; i < 6; i++)
        for (size_t k = i + 1; k < 6; k++)
            if (memcmp(id[i], id[k], sizeof id[i]) == 0) fail_msg("%zu and %zu alike", i, k);
    /* weights that differ in one bit, unpacked */
    const struct tiny plain = {.weights = MG_WEIGHTS_F32, .model = folder};
    model_of(&plain, id[0]);
    assert_memory_equal(id[0], id[2], sizeof id[0]);
    struct mg_buf b = {0};
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    assert_int_equal(mg_file_read(to, BIG, &b, NULL), MG_OK);
    b.data[b.n - 2] ^= 1;
    assert_int_equal(mg_file_write(to, b.data, b.n, NULL), MG_OK);
    mg_buf_free(&b);
    model_of(&plain, id[0]);
    assert_memory_not_equal(id[0], id[2], sizeof id[0]);
    for (size_t i = 0; i < 8; i++) {
        snprintf(to, sizeof to, "%s/%s", folder, file[i]);
        remove(to);
    }
    assert_int_equal(remove(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pictures),   cmocka_unit_test(test_wrong_entries),
        cmocka_unit_test(test_answers),    cmocka_unit_test(test_passed_over),
        cmocka_unit_test(test_asked_once), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_identity)};
    return cmocka_run_group_tests_name("engine.shared", tests, tiny_open, tiny_close);
}
