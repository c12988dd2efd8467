/* A stream that goes on where another one broke off: any two ways to cut the same answer, at any
 * place, come to the answer once; another answer is refused. */
#include "api/stream_resume.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add(struct mg_buf *b, const char *choices, const char *more) {
    assert_true(mg_buf_printf(b, "data: {\"id\":\"x\",\"choices\":[%s]%s}\n\n", choices, more));
}

/* The answer in pieces of so many bytes, each with a log-probability for each byte. */
static void stream(struct mg_buf *b, const char *text, size_t piece, bool logprobs, bool end) {
    char choice[512], tokens[400];
    add(b,
        "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}",
        "");
    for (size_t at = 0, n = strlen(text); at < n; at += piece) {
        size_t m = piece < n - at ? piece : n - at, k = 0;
        tokens[0] = 0;
        for (size_t i = 0; i < m; i++)
            k += (size_t)snprintf(tokens + k, sizeof tokens - k, "%s{\"token\":\"%c\"}",
                                  i ? "," : "", text[at + i]);
        snprintf(choice, sizeof choice,
                 "{\"index\":0,\"delta\":{\"content\":\"%.*s\"},\"logprobs\":%s%s%s,\"finish_"
                 "reason\":null}",
                 (int)m, text + at, logprobs ? "{\"content\":[" : "null", logprobs ? tokens : "",
                 logprobs ? "]}" : "");
        add(b, choice, "");
    }
    if (!end) return;
    add(b, "{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}", ",\"timings\":{}");
    add(b, "", ",\"usage\":{\"prompt_tokens\":1}");
    mg_buf_add_str(b, "data: [DONE]\n\n");
}

/* What a client makes of it. */
static void read_stream(const struct mg_buf *b, char *text, int counts[5]) {
    memset(counts, 0, 5 * sizeof *counts);
    *text = 0;
    for (const char *at = (char *)b->data; at && *at; at = strstr(at, "\n\n") + 2) {
        const char *end = strstr(at, "\n\n"), *key = strstr(at, "\"content\":\"");
        assert_non_null(end);
        if (key && key < end) {
            key += strlen("\"content\":\"");
            strncat(text, key, (size_t)(strchr(key, '"') - key));
        }
        const char *role = strstr(at, "\"role\""), *stop = strstr(at, "\"stop\""),
                   *usage = strstr(at, "\"usage\""), *done = strstr(at, "[DONE]");
        counts[0] += role && role < end;
        counts[1] += stop && stop < end;
        counts[2] += usage && usage < end;
        counts[3] += done && done < end;
        for (const char *t = at; (t = strstr(t, "\"token\"")) && t < end; t++) counts[4]++;
    }
}

static void any_two_ways_to_cut_come_to_the_answer_once(void **state) {
    static const char text[] = "The quick brown fox jumps.";
    for (size_t a = 1; a < 8; a++)
        for (size_t b = 1; b < 8; b++) {
            struct mg_buf first = {0}, second = {0};
            stream(&first, text, a, true, true);
            stream(&second, text, b, true, true);
            /* The first breaks off behind each of its events; the last is its end. */
            for (size_t at = 0; at + 14 < first.n; at++) {
                if (at && memcmp(first.data + at - 2, "\n\n", 2) != 0) continue;
                struct mg_resume r = {0};
                struct mg_buf out = {0};
                char got[128];
                int n[5];
                assert_int_equal(mg_resume_learn(&r, first.data, at, NULL), MG_OK);
                assert_true(mg_resume_is_whole(&r));
                mg_buf_add(&out, first.data, at);
                for (size_t k = 0; k < second.n; k += a)
                    assert_int_equal(mg_resume_feed(&r, second.data + k,
                                                    a < second.n - k ? a : second.n - k, &out,
                                                    NULL),
                                     MG_OK);
                read_stream(&out, got, n);
                assert_string_equal(got, text);
                assert_int_equal(n[0], 1);
                assert_int_equal(n[1], 1);
                assert_int_equal(n[2], 1);
                assert_int_equal(n[3], 1);
                assert_int_equal(n[4], strlen(text));
                mg_resume_free(&r);
                mg_buf_free(&out);
            }
            mg_buf_free(&first);
            mg_buf_free(&second);
        }
    (void)state;
}

static void another_answer_is_refused(void **state) {
    static const char *const other[] = {"The quack", "The qui", "the quick brown", ""};
    for (size_t i = 0; i < 4; i++) {
        struct mg_buf first = {0}, second = {0}, out = {0};
        struct mg_resume r = {0};
        struct mg_err err = {0};
        stream(&first, "The quick", 3, false, false);
        stream(&second, other[i], 2, false, true);
        assert_int_equal(mg_resume_learn(&r, first.data, first.n, NULL), MG_OK);
        assert_int_equal(mg_resume_feed(&r, second.data, second.n, &out, &err), MG_ERR_NUMERIC);
        assert_string_equal(err.code, "answer_changed");
        assert_int_equal(out.n, 0);
        mg_resume_free(&r);
        mg_buf_free(&first);
        mg_buf_free(&second);
        mg_buf_free(&out);
    }
    (void)state;
}

static void without_a_past_whole_events_pass_as_they_are(void **state) {
    static const char any[] = ": ping\n\ndata: not json\n\ndata: half";
    struct mg_resume r = {0};
    struct mg_buf out = {0};
    assert_int_equal(mg_resume_feed(&r, any, strlen(any), &out, NULL), MG_OK);
    assert_int_equal(out.n, strlen(any) - strlen("data: half"));
    assert_memory_equal(out.data, any, out.n);
    assert_false(mg_resume_is_whole(&r));
    mg_resume_free(&r);
    mg_buf_free(&out);
    (void)state;
}

static void several_choices_zero_bytes_and_errors(void **state) {
    struct mg_resume r = {0};
    struct mg_buf b = {0}, out = {0};
    struct mg_err err = {0};
    add(&b, "{\"index\":1,\"text\":\"a\\u0000b\"}", "");
    add(&b, "{\"index\":0,\"text\":\"zero\"}", "");
    assert_int_equal(mg_resume_learn(&r, b.data, b.n, &err), MG_OK);
    b.n = 0;
    add(&b, "{\"index\":0,\"text\":\"zero and\"}", "");
    add(&b, "{\"index\":1,\"text\":\"a\\u0000bc\"}", "");
    mg_buf_add_str(&b, "data: {\"error\":{\"code\":\"x\"}}\n\n");
    assert_int_equal(mg_resume_feed(&r, b.data, b.n, &out, &err), MG_OK);
    assert_non_null(strstr((char *)out.data, "\"text\":\" and\""));
    assert_non_null(strstr((char *)out.data, "\"text\":\"c\""));
    assert_non_null(strstr((char *)out.data, "\"error\""));
    static const char bad[] = "data: {\"choices\":[{\"index\":-1}]}\n\ndata: {\n\n";
    assert_int_not_equal(mg_resume_feed(&r, bad, strlen(bad), &out, NULL), MG_OK);
    mg_resume_free(&r);
    mg_buf_free(&b);
    mg_buf_free(&out);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_two_ways_to_cut_come_to_the_answer_once),
        cmocka_unit_test(another_answer_is_refused),
        cmocka_unit_test(without_a_past_whole_events_pass_as_they_are),
        cmocka_unit_test(several_choices_zero_bytes_and_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
