/* Metrics: the text form, labels, histograms, and counting by several threads. */
#include "alloc.h"
#include "api/metrics.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct mg_metrics_info info = {.model = "a\"b\\c\nd",
                                            .weights = "int8",
                                            .tier = "avx2",
                                            .version = "0.1.0",
                                            .n_thread = 8,
                                            .cpu_seconds = 1.5,
                                            .start_seconds = 1790000000,
                                            .resident_bytes = 1e9,
                                            .open_fds = 12,
                                            .max_fds = -1};

static struct mg_metrics *open_metrics(void) {
    struct mg_metrics *m;
    assert_int_equal(mg_metrics_open(&m, NULL), MG_OK);
    return m;
}

static void has_line(const struct mg_buf *b, const char *line) {
    const char *at = strstr((const char *)b->data, line);
    size_t n = strlen(line);
    if (!at || at[n] != '\n' || (at != (char *)b->data && at[-1] != '\n'))
        print_message("no line %s\n", line);
    assert_non_null(at);
    assert_int_equal(at[n], '\n');
    assert_true(at == (char *)b->data || at[-1] == '\n');
}

static void exposition(void **state) {
    struct mg_metrics *m = open_metrics();
    struct mg_buf b = {0};
    unsigned route = mg_metrics_label(MG_M_HTTP_REQUESTS, 0, "/v1/chat/completions"),
             post = mg_metrics_label(MG_M_HTTP_REQUESTS, 1, "POST"),
             code = mg_metrics_label(MG_M_HTTP_REQUESTS, 2, "503");
    assert_int_equal(mg_metrics_label(MG_M_IMAGES, 0, "JPEG"),
                     mg_metrics_label(MG_M_IMAGES, 0, "jpeg"));
    assert_int_not_equal(mg_metrics_label(MG_M_IMAGES, 0, "HEIC"),
                         mg_metrics_label(MG_M_IMAGES, 0, "no such format"));
    mg_metrics_add_at(m, MG_M_HTTP_REQUESTS, 3, route, post, code);
    mg_metrics_add_at(m, MG_M_HTTP_REQUESTS, 1, 9999, 9999, 9999);
    mg_metrics_add(m, MG_M_GENERATED_TOKENS, UINT64_C(1) << 60);
    mg_metrics_add_at(m, MG_M_PROMPT_TOKENS, 7, mg_metrics_label(MG_M_PROMPT_TOKENS, 0, "cached"),
                      0, 0);
    mg_metrics_set(m, MG_M_KV_USAGE, 0.25);
    mg_metrics_set_at(m, MG_M_SLOTS, 3, mg_metrics_label(MG_M_SLOTS, 0, "busy"));
    mg_metrics_step(m, MG_M_RUNNING, 1);
    mg_metrics_step(m, MG_M_RUNNING, 1);
    mg_metrics_step(m, MG_M_RUNNING, -1);
    assert_true(mg_metrics_write(m, &info, &b));
    static const char *const line[] = {
        "# HELP margay_http_requests_total HTTP requests answered.",
        "# TYPE margay_http_requests_total counter",
        "margay_http_requests_total{route=\"/v1/chat/completions\",method=\"POST\",code=\"503\"} 3",
        "margay_http_requests_total{route=\"other\",method=\"other\",code=\"other\"} 1",
        "# TYPE margay_kv_cache_usage_ratio gauge",
        "margay_kv_cache_usage_ratio 0.25",
        "margay_slots{state=\"busy\"} 3",
        "margay_slots{state=\"idle\"} 0",
        "margay_requests_running 1",
        "margay_generated_tokens_total 1152921504606846976",
        "margay_prompt_tokens_total{source=\"cached\"} 7",
        "margay_prompt_tokens_total{source=\"computed\"} 0",
        "margay_requests_total{endpoint=\"chat_completions\",finish_reason=\"stop\"} 0",
        "# TYPE margay_time_to_first_token_seconds histogram",
        ("margay_model_info{model=\"a\\\"b\\\\c\\nd\",quant=\"int8\",threads=\"8\",isa=\"avx2\","
         "version=\"0.1.0\"} 1"),
        "process_cpu_seconds_total 1.5",
        "process_start_time_seconds 1790000000",
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) has_line(&b, line[i]);
    assert_null(strstr((char *)b.data, "process_max_fds"));
    /* Series of a large family that are 0 are left out. */
    assert_null(strstr((char *)b.data, "method=\"DELETE\""));
    mg_buf_free(&b);
    mg_metrics_close(m);
}

static void histograms_are_cumulative(void **state) {
    struct mg_metrics *m = open_metrics();
    struct mg_buf b = {0};
    static const double x[] = {0, 0.05, 0.0500001, 1.2, 599, 600, 601, 1e9};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) mg_metrics_observe(m, MG_M_TTFT, x[i]);
    mg_metrics_observe(m, MG_M_TTFT, NAN); /* is no observation */
    assert_true(mg_metrics_write(m, &info, &b));
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"0.05\"} 2");
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"0.1\"} 3");
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"1\"} 3");
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"1.5\"} 4");
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"600\"} 6");
    has_line(&b, "margay_time_to_first_token_seconds_bucket{le=\"+Inf\"} 8");
    has_line(&b, "margay_time_to_first_token_seconds_count 8");
    has_line(&b, "margay_time_to_first_token_seconds_sum 1000001801.3");
    mg_buf_free(&b);
    mg_metrics_close(m);
}

static void the_wrong_kind_does_nothing(void **state) {
    struct mg_metrics *m = open_metrics();
    struct mg_buf before = {0}, after = {0};
    mg_metrics_write(m, &info, &before);
    mg_metrics_add(m, MG_M_TTFT, 1);
    mg_metrics_observe(m, MG_M_RUNNING, 1);
    mg_metrics_set(m, MG_M_GENERATED_TOKENS, 1);
    mg_metrics_step(m, MG_M_GENERATED_TOKENS, 1);
    mg_metrics_write(m, &info, &after);
    assert_string_equal((char *)before.data, (char *)after.data);
    mg_buf_free(&before);
    mg_buf_free(&after);
    mg_metrics_close(m);
}

static void *count(void *user) {
    struct mg_metrics *m = user;
    for (int i = 0; i < 20000; i++) {
        mg_metrics_add(m, MG_M_GENERATED_TOKENS, 2);
        mg_metrics_step(m, MG_M_WAITING, i & 1 ? -1 : 1);
        mg_metrics_observe(m, MG_M_QUEUE_SECONDS, 0.25);
    }
    return NULL;
}

static void threads_lose_nothing(void **state) {
    struct mg_metrics *m = open_metrics();
    struct mg_buf b = {0};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, count, m);
    for (int i = 0; i < 20; i++) { /* scrapes meanwhile */
        b.n = 0;
        assert_true(mg_metrics_write(m, &info, &b));
    }
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    assert_true(mg_metrics_value(m, MG_M_GENERATED_TOKENS, 0, 0, 0) == 160000);
    assert_true(mg_metrics_value(m, MG_M_WAITING, 0, 0, 0) == 0);
    b.n = 0;
    mg_metrics_write(m, &info, &b);
    has_line(&b, "margay_queue_time_seconds_bucket{le=\"0.25\"} 80000");
    has_line(&b, "margay_queue_time_seconds_sum 20000");
    mg_buf_free(&b);
    mg_metrics_close(m);
}

static void opening_may_fail(void **state) {
    for (size_t n = 0; n < 2; n++) {
        struct mg_metrics *m;
        struct mg_err err = {0};
        alloc_fail_at(n);
        assert_int_equal(mg_metrics_open(&m, &err), MG_ERR_MEMORY);
        alloc_fail_at(SIZE_MAX);
        assert_null(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exposition),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(the_wrong_kind_does_nothing),
        cmocka_unit_test(threads_lose_nothing),
        cmocka_unit_test(opening_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
