/* The sampler against transformers' logits processors (sampler_golden.txt, by
 * make_sampler_golden.py), the distribution of its draws, its errors, log-probabilities. With the
 * argument "time" it prints the cost of a pick instead. */
#include "base/io.h"
#include "engine/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/unit/engine/sampler_golden.txt"
#define MAX_LIST 64

static struct mg_sampler *open_sampler(size_t n_vocab, const struct mg_answer_options *o) {
    struct mg_sampler *s;
    struct mg_err err = {0};
    assert_int_equal(mg_sampler_open(n_vocab, &s, &err), MG_OK);
    if (mg_sampler_start(s, o, &err) != MG_OK) fail_msg("%s", err.text);
    return s;
}

/* As in make_sampler_golden.py. */
static void make_row(float *out, size_t n, uint64_t x, const char *kind) {
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        int32_t total = -2 * 65535;
        for (int shift = 0; shift < 64; shift += 16) total += (int32_t)(x >> shift & 0xFFFF);
        out[i] = (float)(total / 16384.0);
        if (kind[0] == 't') out[i] = (float)(floor(total / 16384.0) / 2);
        if (kind[0] == 'f') out[i] = 1;
    }
}

struct golden {
    char name[64], kind[16];
    size_t n_vocab;
    unsigned long long row;
    struct mg_answer_options o;
    int32_t prompt[MAX_LIST], answer[MAX_LIST], draws[MAX_LIST];
    size_t n_prompt, n_answer, n_draw;
    size_t n_kept, n_head;
    unsigned long long sum_id, sum_square;
    struct {
        int id;
        unsigned bits;
        double probability;
    } head[MAX_LIST];
};

static size_t read_ids(FILE *f, const char *word, int32_t *out) {
    char got[32];
    size_t n;
    assert_int_equal(fscanf(f, "%31s %zu", got, &n), 2);
    assert_string_equal(got, word);
    assert_in_range(n, 0, MAX_LIST);
    for (size_t i = 0; i < n; i++) assert_int_equal(fscanf(f, "%d", &out[i]), 1);
    return n;
}

static bool read_golden(FILE *f, struct golden *g) {
    struct mg_answer_options *o = &g->o;
    memset(g, 0, sizeof *g);
    unsigned long long seed;
    int n = fscanf(f, " case %63s %zu %llu %15s %f %d %f %f %f %f %f %llu", g->name, &g->n_vocab,
                   &g->row, g->kind, &o->temperature, &o->top_k, &o->top_p, &o->min_p,
                   &o->repetition_penalty, &o->presence_penalty, &o->frequency_penalty, &seed);
    if (n == EOF) return false;
    assert_int_equal(n, 12);
    o->seed = seed;
    g->n_prompt = read_ids(f, "prompt", g->prompt);
    g->n_answer = read_ids(f, "answer", g->answer);
    assert_int_equal(fscanf(f, " kept %zu %llu %llu", &g->n_kept, &g->sum_id, &g->sum_square), 3);
    assert_int_equal(fscanf(f, " head %zu", &g->n_head), 1);
    for (size_t i = 0; i < g->n_head; i++)
        assert_int_equal(
            fscanf(f, "%d %x %lf", &g->head[i].id, &g->head[i].bits, &g->head[i].probability), 3);
    g->n_draw = read_ids(f, "draws", g->draws);
    return true;
}

static void check_kept(const struct golden *g, const struct mg_candidate *c, size_t n,
                       double total) {
    unsigned long long sum_id = 0, sum_square = 0;
    for (size_t i = 0; i < n; i++) {
        sum_id += (unsigned)c[i].id;
        sum_square += (unsigned long long)c[i].id * (unsigned)c[i].id % 65521;
    }
    if (n != g->n_kept || sum_id != g->sum_id || sum_square != g->sum_square)
        fail_msg("%s: %zu tokens kept, wanted %zu", g->name, n, g->n_kept);
    for (size_t i = 0; i < g->n_head; i++) {
        uint32_t bits;
        memcpy(&bits, &c[i].score, sizeof bits);
        double p = c[i].weight / total, want = g->head[i].probability;
        if (c[i].id != g->head[i].id || bits != g->head[i].bits ||
            fabs(p - want) > 2e-6 * want + 1e-12)
            fail_msg("%s: token %d, score %08x, probability %.9g; wanted %d, %08x, %.9g", g->name,
                     c[i].id, bits, p, g->head[i].id, g->head[i].bits, want);
    }
}

static void as_the_reference(void **state) {
    (void)state;
    FILE *f = fopen(GOLDEN, "re");
    assert_non_null(f);
    static struct golden g;
    size_t n_case = 0;
    for (; read_golden(f, &g); n_case++) {
        float *row = malloc(g.n_vocab * sizeof *row);
        assert_non_null(row);
        struct mg_sampler *s = open_sampler(g.n_vocab, &g.o);
        mg_sampler_prompt(s, g.prompt, g.n_prompt);
        for (size_t i = 0; i < g.n_answer; i++) mg_sampler_take(s, g.answer[i]);
        const struct mg_candidate *c;
        size_t n;
        double total;
        make_row(row, g.n_vocab, g.row, g.kind);
        assert_int_equal(mg_sampler_candidates(s, row, &c, &n, &total, NULL), MG_OK);
        check_kept(&g, c, n, total);
        for (size_t i = 0; i < g.n_draw; i++) {
            int32_t token;
            make_row(row, g.n_vocab, g.row, g.kind);
            assert_int_equal(mg_sampler_pick(s, row, &token, NULL), MG_OK);
            if (token != g.draws[i])
                fail_msg("%s: pick %zu is %d, wanted %d", g.name, i, token, g.draws[i]);
        }
        mg_sampler_close(s);
        free(row);
    }
    fclose(f);
    assert_int_equal(n_case, 59);
}

static struct mg_answer_options sampling(float temperature) {
    return (struct mg_answer_options){
        .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .seed = 1};
}

static void draws_follow_the_probabilities(void **state) {
    (void)state;
    /* Probabilities 1/2, 1/4 ... and a forbidden one between; chi-square with 9 degrees of freedom
     * is over 27.9 once in 1,000 seeds. */
    enum { N = 10, DRAWS = 200000 };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct mg_answer_options o = sampling(1);
        o.seed = seed;
        struct mg_sampler *s = open_sampler(N + 1, &o);
        struct mg_bias bias = {4, -INFINITY};
        assert_int_equal(mg_sampler_bias(s, &bias, 1, NULL), MG_OK);
        double count[N + 1] = {0}, p[N + 1], total = 0, chi = 0;
        for (int i = 0; i <= N; i++) total += p[i] = i == 4 ? 0 : ldexp(1, -i);
        for (int k = 0; k < DRAWS; k++) {
            float row[N + 1];
            int32_t token;
            for (int i = 0; i <= N; i++) row[i] = (float)(-i * log(2));
            assert_int_equal(mg_sampler_pick(s, row, &token, NULL), MG_OK);
            count[token]++;
        }
        assert_true(count[4] == 0);
        for (int i = 0; i <= N; i++) {
            double want = DRAWS * p[i] / total;
            if (i != 4) chi += (count[i] - want) * (count[i] - want) / want;
        }
        if (chi > 27.9 || chi < 1.15)
            fail_msg("seed %llu: chi-square %.1f", (unsigned long long)seed, chi);
        mg_sampler_close(s);
    }
}

static void equal_seeds_equal_answers(void **state) {
    (void)state;
    int32_t token[3][50];
    static float row[5000];
    for (int k = 0; k < 3; k++) {
        struct mg_answer_options o = sampling(0.9f);
        o.repetition_penalty = 1.1f;
        o.seed = k == 2 ? 6 : 5;
        struct mg_sampler *s = open_sampler(5000, &o);
        mg_sampler_take(s, 17); /* forgotten at the next start */
        assert_int_equal(mg_sampler_start(s, &o, NULL), MG_OK);
        for (int i = 0; i < 50; i++) {
            make_row(row, 5000, (uint64_t)i, "smooth");
            assert_int_equal(mg_sampler_pick(s, row, &token[k][i], NULL), MG_OK);
        }
        mg_sampler_close(s);
    }
    assert_memory_equal(token[0], token[1], sizeof token[0]);
    assert_memory_not_equal(token[0], token[2], sizeof token[0]);
}

static void a_bias_shifts_and_forbids(void **state) {
    (void)state;
    struct mg_answer_options o = sampling(0);
    struct mg_sampler *s = open_sampler(4, &o);
    const float row[4] = {1, 2, 3, 4};
    static const struct {
        struct mg_bias bias[4];
        size_t n;
        int32_t want;
    } cases[] = {
        {{{0}}, 0, 3},
        {{{1, 2.5f}}, 1, 1},
        {{{0, 2}, {0, 1.5f}}, 2, 0}, /* twice: both */
        {{{3, -INFINITY}}, 1, 2},
        {{{3, -100}, {2, -100}}, 2, 1},
        {{{1, 2}}, 1, 1}, /* equal to the largest, which has a larger id */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float copy[4];
        int32_t token;
        memcpy(copy, row, sizeof row);
        assert_int_equal(mg_sampler_bias(s, cases[i].bias, cases[i].n, NULL), MG_OK);
        assert_int_equal(mg_sampler_pick(s, copy, &token, NULL), MG_OK);
        assert_int_equal(token, cases[i].want);
    }
    static const struct mg_bias wrong[] = {{4, 0}, {-1, 0}, {0, 100.5f}, {0, NAN}, {0, INFINITY}};
    for (size_t i = 0; i < 5; i++) {
        struct mg_err err = {0};
        assert_int_equal(mg_sampler_bias(s, &wrong[i], 1, &err), MG_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, "logit_bias"));
    }
    static const struct mg_bias all[] = {
        {0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    for (int k = 0; k < 2; k++) {
        float copy[4];
        int32_t token;
        struct mg_err err = {0};
        o = sampling((float)k);
        memcpy(copy, row, sizeof row);
        assert_int_equal(mg_sampler_start(s, &o, NULL), MG_OK);
        assert_int_equal(mg_sampler_bias(s, all, 4, NULL), MG_OK);
        assert_int_equal(mg_sampler_pick(s, copy, &token, &err), MG_ERR_ARGUMENT);
        assert_string_equal(err.text, "logit_bias forbids every token");
    }
    mg_sampler_close(s);
    mg_sampler_close(NULL);
}

static void numbers_that_are_none_are_errors(void **state) {
    (void)state;
    static float row[1000];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t at[] = {0, 255, 256, 511, 998, 999};
    for (int k = 0; k < 2; k++) {
        struct mg_answer_options o = sampling((float)k);
        struct mg_sampler *s = open_sampler(1000, &o);
        for (size_t i = 0; i < 3 * 6; i++) {
            struct mg_err err = {0};
            char where[32];
            int32_t token = -5;
            make_row(row, 1000, 3, "smooth");
            row[at[i / 3]] = bad[i % 3];
            assert_int_equal(mg_sampler_pick(s, row, &token, &err), MG_ERR_NUMERIC);
            snprintf(where, sizeof where, "token %zu of 1000", at[i / 3]);
            assert_non_null(strstr(err.text, where));
            assert_int_equal(token, -5);
            struct mg_logprob top[5];
            size_t n;
            assert_int_equal(mg_logprobs_top(row, 1000, 5, top, &n, NULL), MG_ERR_NUMERIC);
        }
        mg_sampler_close(s);
    }
    /* Largest only after the temperature. */
    struct mg_answer_options o = sampling(0.01f);
    struct mg_sampler *s = open_sampler(2, &o);
    float huge[2] = {3e38f, 1};
    int32_t token;
    assert_int_equal(mg_sampler_pick(s, huge, &token, NULL), MG_ERR_NUMERIC);
    mg_sampler_close(s);
}

static void extreme_rows_work(void **state) {
    (void)state;
    static const float temperatures[] = {0, 1e-6f, 1e-4f, 1, 100};
    for (size_t k = 0; k < 5; k++) {
        struct mg_answer_options o = sampling(temperatures[k]);
        o.top_p = 0.999999f;
        o.min_p = 1e-30f;
        o.top_k = 2;
        for (size_t n = 1; n <= 3; n++) {
            struct mg_sampler *s = open_sampler(n, &o);
            float row[3] = {1e30f, -3e30f, -0.0f};
            int32_t token;
            assert_int_equal(mg_sampler_pick(s, row, &token, NULL), MG_OK);
            assert_int_equal(token, 0);
            float zeros[3] = {-0.0f, 0.0f, -0.0f};
            assert_int_equal(mg_sampler_pick(s, zeros, &token, NULL), MG_OK);
            assert_in_range(token, 0, n - 1);
            mg_sampler_close(s);
        }
    }
    struct mg_sampler *s;
    assert_int_equal(mg_sampler_open(0, &s, NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_sampler_open(SIZE_MAX, &s, NULL), MG_ERR_ARGUMENT);
    struct mg_answer_options o = sampling(1);
    o.repetition_penalty = 2;
    s = open_sampler(3, &o); /* ids that the vocabulary lacks are passed over */
    static const int32_t strange[] = {-1, 3, INT32_MAX, INT32_MIN, 2};
    mg_sampler_prompt(s, strange, 5);
    mg_sampler_take(s, 77);
    mg_sampler_close(s);
}

static void options_have_ranges(void **state) {
    (void)state;
    static const char *const no_stop[] = {""};
    const struct {
        const char *name;
        float value[8];
        size_t n, n_good; /* the good ones come first */
    } cases[] = {
        {"temperature", {0, 100, 0.7f, -0.1f, 100.1f, NAN, INFINITY}, 7, 3},
        {"top_p", {1, 0.0001f, 0.8f, 0, -0.1f, 1.0001f, NAN}, 7, 3},
        {"min_p", {0, 1, 0.05f, -0.1f, 1.1f, NAN, -INFINITY}, 7, 3},
        {"repetition_penalty", {1, 0.01f, 100, 0, -1, 101, NAN}, 7, 3},
        {"presence_penalty", {0, -100, 100, -100.1f, 101, NAN}, 6, 3},
        {"frequency_penalty", {0, -100, 100, -100.1f, 101, NAN}, 6, 3},
        {"top_k", {0, 1, 1e6f, -1, -1e6f}, 5, 3},
        {"stop", {0, 1}, 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < cases[i].n; k++) {
            struct mg_answer_options o = sampling(1);
            float v = cases[i].value[k];
            switch (i) {
            case 0: o.temperature = v; break;
            case 1: o.top_p = v; break;
            case 2: o.min_p = v; break;
            case 3: o.repetition_penalty = v; break;
            case 4: o.presence_penalty = v; break;
            case 5: o.frequency_penalty = v; break;
            case 6: o.top_k = (int)v; break;
            default: o.stop = no_stop, o.n_stop = (size_t)v; break;
            }
            struct mg_err err = {0};
            bool good = mg_answer_options_check(&o, &err) == MG_OK;
            if (good != (k < cases[i].n_good)) fail_msg("%s = %g: %s", cases[i].name, v, err.text);
            if (good) continue;
            assert_int_equal(err.status, MG_ERR_ARGUMENT);
            assert_ptr_equal(strstr(err.text, cases[i].name), err.text);
            assert_non_null(strpbrk(err.text, "0123456789"));
            struct mg_sampler *s;
            assert_int_equal(mg_sampler_open(5, &s, NULL), MG_OK);
            assert_int_equal(mg_sampler_start(s, &o, NULL), MG_ERR_ARGUMENT);
            mg_sampler_close(s);
        }
    }
}

static void log_probabilities(void **state) {
    (void)state;
    static float row[3000];
    make_row(row, 3000, 9, "ties");
    double sum = 0;
    for (int i = 0; i < 3000; i++) sum += exp(row[i]);
    struct mg_logprob top[MG_MAX_LOGPROBS];
    size_t n;
    assert_int_equal(mg_logprobs_top(row, 3000, MG_MAX_LOGPROBS, top, &n, NULL), MG_OK);
    assert_int_equal(n, MG_MAX_LOGPROBS);
    static bool taken[3000];
    for (size_t i = 0; i < n; i++) { /* the definition: n times the first largest that is left */
        int best = -1;
        for (int k = 0; k < 3000; k++)
            if (!taken[k] && (best < 0 || row[k] > row[best])) best = k;
        taken[best] = true;
        assert_int_equal(top[i].id, best);
        assert_true(fabs(top[i].logprob - (row[best] - log(sum))) < 1e-5);
        assert_true(top[i].logprob == mg_logprob_of(row, 3000, best));
    }
    assert_int_equal(mg_logprobs_top(row, 3, 5, top, &n, NULL), MG_OK);
    assert_int_equal(n, 3);
    assert_int_equal(mg_logprobs_top(row, 3, 0, top, &n, NULL), MG_OK);
    assert_int_equal(n, 0);
    assert_int_equal(mg_logprobs_top(row, 3, MG_MAX_LOGPROBS + 1, top, &n, NULL), MG_ERR_ARGUMENT);
}

static int print_times(void) {
    enum { N = 151936 };
    static float row[N], copy[N];
    make_row(row, N, 2, "smooth");
    const struct {
        const char *name;
        float temperature, top_p;
        int top_k;
    } cases[] = {{"greedy", 0, 1, 0},
                 {"0.7, top-k 20, top-p 0.8", 0.7f, 0.8f, 20},
                 {"top-k 1000", 1, 1, 1000},
                 {"top-p 0.9 alone", 1, 0.9f, 0},
                 {"nothing but 1.0", 1, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mg_answer_options o = sampling(cases[i].temperature);
        o.top_p = cases[i].top_p;
        o.top_k = cases[i].top_k;
        struct mg_sampler *s = open_sampler(N, &o);
        double best = 1e9;
        for (int k = 0; k < 50; k++) {
            int32_t token;
            memcpy(copy, row, sizeof row);
            double start = mg_clock();
            mg_sampler_pick(s, copy, &token, NULL);
            best = fmin(best, mg_clock() - start);
        }
        printf("%s: %.0f us\n", cases[i].name, best * 1e6);
        mg_sampler_close(s);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "time") == 0) return print_times();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(equal_seeds_equal_answers),
        cmocka_unit_test(a_bias_shifts_and_forbids),
        cmocka_unit_test(numbers_that_are_none_are_errors),
        cmocka_unit_test(extreme_rows_work),
        cmocka_unit_test(options_have_ranges),
        cmocka_unit_test(log_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
