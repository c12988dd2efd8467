/* Replies and streams byte for byte. */
#include "alloc.h"
#include "api/chat_reply.h"
#include "api/server_reply.h"
#include "api/token_request.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct mg_reply_head head = {
    .id = "chatcmpl-7", .created = 1790000000, .model = "m\"x"};

static struct mg_reply_choice text(const char *s) {
    return (struct mg_reply_choice){.text = s, .n_text = strlen(s)};
}

#define CHUNK                                                                                      \
    "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"    \
    "\"model\":\"m\\\"x\",\"choices\":["
#define REST ",\"logprobs\":null,\"finish_reason\":"

static void a_whole_conversation(void **state) {
    struct mg_buf b = {0};
    struct mg_reply_head h = head;
    struct mg_reply_choice end = {.finish_reason = "stop", .stop_detail = "end_token"};
    struct mg_reply_usage usage = {
        .prompt_tokens = 10, .completion_tokens = 2, .cached_tokens = 3, .image_tokens = 4};
    struct mg_reply_choice piece[] = {text("The \xE7\x8C\xAB"), text("\n\"\xF0\x9F\x98\x80")};
    for (int with_usage = 0; with_usage < 2; with_usage++) {
        h.usage = with_usage;
        assert_true(mg_chunk_begin(&b, &h, 0));
        assert_true(mg_chunk_text(&b, &h, &piece[0], NULL));
        assert_true(mg_chunk_ping(&b));
        assert_true(mg_chunk_text(&b, &h, &piece[1], NULL));
        assert_true(mg_chunk_finish(&b, &h, &end, NULL));
        if (with_usage) assert_true(mg_chunk_usage(&b, &h, &usage));
        assert_true(mg_chunk_done(&b));
        const char *want =
            with_usage
                ? CHUNK "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" REST
                        "null}],\"usage\":null}\n\n" CHUNK
                        "{\"index\":0,\"delta\":{\"content\":\"The \xE7\x8C\xAB\"}" REST
                        "null}],\"usage\":null}\n\n:\n\n" CHUNK
                        "{\"index\":0,\"delta\":{\"content\":\"\\n\\\"\xF0\x9F\x98\x80\"}" REST
                        "null}],\"usage\":null}\n\n" CHUNK "{\"index\":0,\"delta\":{}" REST
                        "\"stop\",\"stop_detail\":\"end_token\"}],\"usage\":null}\n\n" CHUNK
                        "],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":2,"
                        "\"total_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":3,"
                        "\"image_tokens\":4}}}\n\ndata: [DONE]\n\n"
                : CHUNK "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" REST
                        "null}]}\n\n" CHUNK
                        "{\"index\":0,\"delta\":{\"content\":\"The \xE7\x8C\xAB\"}" REST
                        "null}]}\n\n:\n\n" CHUNK
                        "{\"index\":0,\"delta\":{\"content\":\"\\n\\\"\xF0\x9F\x98\x80\"}" REST
                        "null}]}\n\n" CHUNK "{\"index\":0,\"delta\":{}" REST
                        "\"stop\",\"stop_detail\":\"end_token\"}]}\n\ndata: [DONE]\n\n";
        assert_string_equal((char *)b.data, want);
        mg_buf_free(&b);
    }
}

static void progress_chunks(void **state) {
    struct mg_buf b = {0};
    struct mg_reply_progress p = {.stage = "prefill",
                                  .step = 5,
                                  .of = 9,
                                  .total = 20,
                                  .cache = 4,
                                  .processed = 9,
                                  .time_ms = 12.3456,
                                  .estimate_ms = 99.6};
    mg_chunk_progress(&b, &head, &p);
    assert_string_equal((char *)b.data,
                        CHUNK "{\"index\":0,\"delta\":{}" REST
                              "null}],\"prompt_progress\":{\"total\":20,\"cache\":4,\"processed\":"
                              "9,\"time_ms\":12.346,\"stage\":\"prefill\",\"step\":5,\"of\":9,"
                              "\"estimate_ms\":100}}\n\n");
    mg_buf_free(&b);
    p = (struct mg_reply_progress){.stage = "queue", .queue_position = 3, .estimate_ms = -1};
    mg_ws_progress(&b, NULL, &p);
    assert_string_equal((char *)b.data,
                        "{\"type\":\"progress\",\"stage\":\"queue\",\"queue_position\":3}");
    mg_buf_free(&b);
    p = (struct mg_reply_progress){.stage = "vision", .step = 1, .of = 24, .estimate_ms = -1};
    mg_ws_progress(&b, "a", &p);
    assert_string_equal(
        (char *)b.data,
        "{\"type\":\"progress\",\"id\":\"a\",\"stage\":\"vision\",\"step\":1,\"total\":24}");
    mg_buf_free(&b);
}

static void whole_reply(void **state) {
    struct mg_buf b = {0};
    struct mg_reply_choice c[] = {text("a"), text("")};
    struct mg_reply_usage usage = {1, 2, 0, 0};
    c[0].finish_reason = "length";
    c[1].finish_reason = "cancelled";
    c[1].index = 1;
    assert_true(mg_reply_write(&b, &head, c, 2, &usage, NULL));
    assert_string_equal(
        (char *)b.data,
        "{\"id\":\"chatcmpl-7\",\"object\":\"chat.completion\",\"created\":1790000000,\"model\":"
        "\"m\\\"x\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\""
        ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\"},{\"index\":1,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_detail\":\"cancelled\"}],\"usage\":{\"prompt_tokens\":1,"
        "\"completion_tokens\":2,\"total_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":0,"
        "\"image_tokens\":0}}}");
    mg_buf_free(&b);
}

/* A field of a reply by its path, "choices.0.index". */
static json_t *at(json_t *root, const char *path) {
    char copy[200];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *save = NULL, *key = strtok_r(copy, ".", &save); key;
         key = strtok_r(NULL, ".", &save))
        root = json_is_array(root) ? json_array_get(root, (size_t)strtol(key, NULL, 10))
                                   : json_object_get(root, key);
    assert_non_null(root);
    return root;
}

static json_t *load(struct mg_buf *b) {
    json_error_t e;
    json_t *root = json_loadb((char *)b->data, b->n, JSON_REJECT_DUPLICATES, &e);
    if (!root) print_message("%s\n%s\n", e.text, (char *)b->data);
    assert_non_null(root);
    mg_buf_free(b);
    return root;
}

static void all_that_stands_beside(void **state) {
    static const struct mg_reply_image image = {.report = {.format = "png",
                                                           .width = 3,
                                                           .height = 2,
                                                           .orientation = 6,
                                                           .frames = 4,
                                                           .alpha = true,
                                                           .resized_width = 64,
                                                           .resized_height = 32,
                                                           .tokens = 2,
                                                           .cells = 3,
                                                           .kept = 2,
                                                           .bytes = 77,
                                                           .decode_ms = 1.5,
                                                           .vision_ms = 2.5},
                                                .frame_used = 1,
                                                .cache = "off"};
    struct mg_reply_timings t = {.prompt_n = 10,
                                 .cache_n = 5,
                                 .prompt_ms = 20,
                                 .predicted_n = 4,
                                 .predicted_ms = 8,
                                 .queue_ms = 1,
                                 .drafted = 3,
                                 .accepted = 2,
                                 .passes = 2};
    static const char *const warning[] = {"w1", "w2"};
    struct mg_reply_extra extra = {.image = &image,
                                   .n_image = 1,
                                   .timings = &t,
                                   .cache = MG_CACHE_NEAR,
                                   .cache_distance = 0.0625,
                                   .warning = warning,
                                   .n_warning = 2};
    struct mg_reply_choice c = text("a");
    struct mg_reply_usage usage = {1, 2, 0, 0};
    struct mg_buf b = {0};
    assert_true(mg_reply_write(&b, &head, &c, 1, &usage, &extra));
    json_t *r = load(&b);
    static const struct {
        const char *path;
        double want;
    } number[] = {
        {"images.0.width", 3},
        {"images.0.height", 2},
        {"images.0.orientation", 6},
        {"images.0.frames", 4},
        {"images.0.frame_used", 1},
        {"images.0.resized.width", 64},
        {"images.0.resized.height", 32},
        {"images.0.tokens", 2},
        {"images.0.cells", 3},
        {"images.0.kept", 2},
        {"images.0.bytes", 77},
        {"images.0.decode_ms", 1.5},
        {"images.0.vision_ms", 2.5},
        {"timings.cache_n", 5},
        {"timings.prompt_n", 10},
        {"timings.prompt_ms", 20},
        {"timings.prompt_per_token_ms", 2},
        {"timings.prompt_per_second", 500},
        {"timings.predicted_n", 4},
        {"timings.predicted_ms", 8},
        {"timings.predicted_per_token_ms", 2},
        {"timings.predicted_per_second", 500},
        {"timings.draft_n", 3},
        {"timings.draft_n_accepted", 2},
        {"timings.queue_ms", 1},
        {"timings.drafts.passes", 2},
        {"x_cache_distance", 0.0625},
    };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        assert_true(json_number_value(at(r, number[i].path)) == number[i].want);
    assert_true(json_is_true(at(r, "images.0.turned")) && json_is_true(at(r, "images.0.alpha")));
    assert_string_equal(json_string_value(at(r, "images.0.cache")), "off");
    assert_string_equal(json_string_value(at(r, "images.0.format")), "png");
    assert_string_equal(json_string_value(at(r, "x_cache")), "near");
    assert_string_equal(json_string_value(at(r, "warnings.1")), "w2");
    json_decref(r);
    t = (struct mg_reply_timings){.prompt_n = 1}; /* nothing took any time */
    assert_true(mg_chunk_finish(&b, &head, &c, &extra));
    assert_null(strstr((char *)b.data, "nan"));
    assert_null(strstr((char *)b.data, "inf"));
    assert_non_null(strstr((char *)b.data, "\"prompt_per_second\":0,"));
    mg_buf_free(&b);
}

static void logprobs_in_both_forms(void **state) {
    static const struct mg_reply_token top[] = {
        {.text = "a", .n_text = 1, .logprob = -0.5},
        {.text = "a", .n_text = 1, .logprob = -0.75}, /* another token of the same text */
        {.text = "\xE7\x8C", .n_text = 2, .logprob = -INFINITY}};
    static const struct mg_reply_token token[] = {
        {.text = "a", .n_text = 1, .logprob = -0.1f, .top = top, .n_top = 3},
        {.text = "\xE7\x8C\xAB", .n_text = 3, .logprob = -2},
        {.text = "\x8C", .n_text = 1, .logprob = NAN}};
    struct mg_reply_choice c = text("a\xE7\x8C\xAB");
    struct mg_reply_usage usage = {1, 3, 0, 0};
    struct mg_buf b = {0};
    c.logprobs = true;
    c.token = token;
    c.n_token = 3;
    c.text_at = 10;
    mg_reply_write(&b, &head, &c, 1, &usage, NULL);
    json_t *r = load(&b);
    json_t *list = at(r, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(list), 3);
    assert_true(json_is_null(at(r, "choices.0.logprobs.refusal")));
    assert_string_equal(json_string_value(at(list, "0.token")), "a");
    assert_true((float)json_number_value(at(list, "0.logprob")) == -0.1f);
    assert_int_equal(json_array_size(at(list, "0.top_logprobs")), 3);
    assert_true(json_number_value(at(list, "0.top_logprobs.2.logprob")) == -9999);
    assert_string_equal(json_string_value(at(list, "0.top_logprobs.2.token")), "\xEF\xBF\xBD");
    assert_int_equal(json_integer_value(at(list, "0.top_logprobs.2.bytes.1")), 0x8C);
    assert_int_equal(json_integer_value(at(list, "1.bytes.2")), 0xAB);
    assert_int_equal(json_array_size(at(list, "1.top_logprobs")), 0);
    assert_true(json_is_null(at(list, "2.logprob")));
    json_decref(r);
    struct mg_reply_head h = head;
    h.completion = true;
    mg_reply_write(&b, &h, &c, 1, &usage, NULL);
    r = load(&b);
    assert_string_equal(json_string_value(at(r, "object")), "text_completion");
    assert_string_equal(json_string_value(at(r, "choices.0.text")), "a\xE7\x8C\xAB");
    list = at(r, "choices.0.logprobs");
    assert_int_equal(json_array_size(at(list, "tokens")), 3);
    assert_true((float)json_number_value(at(list, "token_logprobs.0")) == -0.1f);
    assert_int_equal(json_object_size(at(list, "top_logprobs.0")), 1);
    assert_true(json_number_value(at(list, "top_logprobs.0.a")) == -0.5);
    assert_int_equal(json_integer_value(at(list, "text_offset.0")), 10);
    assert_int_equal(json_integer_value(at(list, "text_offset.2")), 12);
    json_decref(r);
}

static void completion_stream(void **state) {
    struct mg_buf b = {0};
    struct mg_reply_head h = {.id = "cmpl-1", .created = 1, .model = "m", .completion = true};
    struct mg_reply_choice c = text("x"), end = {.finish_reason = "length"};
    mg_chunk_text(&b, &h, &c, NULL);
    mg_chunk_finish(&b, &h, &end, NULL);
    assert_string_equal(
        (char *)b.data,
        "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]}"
        "\n\n");
    mg_buf_free(&b);
}

static void errors_for_clients(void **state) {
    static const struct {
        enum mg_status status;
        const char *code;
        int http;
        const char *type, *sent;
        bool retry, shown;
    } c[] = {
        {MG_ERR_ARGUMENT, "invalid_value", 400, "invalid_request_error", "invalid_value", 0, 1},
        {MG_ERR_ARGUMENT, "", 400, "invalid_request_error", NULL, 0, 1},
        {MG_ERR_CONTEXT, "context_length_exceeded", 400, "exceed_context_size_error",
         "context_length_exceeded", 0, 1},
        {MG_ERR_CONTEXT, "", 400, "exceed_context_size_error", "context_length_exceeded", 0, 1},
        {MG_ERR_FORMAT, "image_truncated", 400, "invalid_request_error", "image_truncated", 0, 1},
        {MG_ERR_UNSUPPORTED, "image_format_unsupported", 400, "invalid_request_error",
         "image_format_unsupported", 0, 1},
        {MG_ERR_LIMIT, "image_too_large", 400, "invalid_request_error", "image_too_large", 0, 1},
        {MG_ERR_LIMIT, "body_too_large", 413, "invalid_request_error", "body_too_large", 0, 1},
        {MG_ERR_ARGUMENT, "invalid_api_key", 401, "authentication_error", "invalid_api_key", 0, 1},
        {MG_ERR_ARGUMENT, "name_not_allowed", 403, "permission_error", "name_not_allowed", 0, 1},
        {MG_ERR_ARGUMENT, "origin_not_allowed", 403, "permission_error", "origin_not_allowed", 0,
         1},
        {MG_ERR_NOT_FOUND, "not_found", 404, "not_found_error", "not_found", 0, 1},
        {MG_ERR_NOT_FOUND, "model_not_found", 404, "not_found_error", "model_not_found", 0, 1},
        {MG_ERR_NOT_FOUND, "", 404, "not_found_error", NULL, 0, 0},
        {MG_ERR_ARGUMENT, "method_not_allowed", 405, "invalid_request_error", "method_not_allowed",
         0, 1},
        {MG_ERR_LIMIT, "queue_full", 503, "unavailable_error", "queue_full", 1, 1},
        {MG_ERR_LIMIT, "rate_limited", 429, "rate_limit_error", "rate_limited", 1, 1},
        {MG_ERR_LIMIT, "loading", 503, "unavailable_error", "loading", 1, 1},
        {MG_ERR_MEMORY, "out_of_memory", 503, "unavailable_error", "out_of_memory", 1, 1},
        {MG_ERR_MEMORY, "", 503, "unavailable_error", "out_of_memory", 1, 1},
        {MG_ERR_NUMERIC, "vision_not_finite", 500, "server_error", "vision_not_finite", 0, 1},
        {MG_ERR_IO, "", 500, "server_error", NULL, 0, 0},
        {MG_ERR_FORMAT, "tokenizer_no_control", 500, "server_error", "tokenizer_no_control", 0, 0},
        {MG_ERR_ARGUMENT, "image_fetch", 400, "invalid_request_error", "image_fetch", 0, 1},
        {MG_ERR_UNSUPPORTED, "not_implemented", 501, "not_supported_error", "not_implemented", 0,
         1},
        {MG_ERR_MEMORY, "unavailable", 503, "unavailable_error", "unavailable", 1, 1},
        {MG_ERR_ARGUMENT, "host_not_allowed", 400, "invalid_request_error", "host_not_allowed", 0,
         1},
        {MG_ERR_LIMIT, "busy", 503, "unavailable_error", "busy", 1, 1},
        {MG_ERR_CANCELLED, "cancelled", 503, "unavailable_error", "cancelled", 0, 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_fault f = {0};
        struct mg_fault_kind kind;
        struct mg_buf b = {0};
        mg_fault_set(&f, c[i].status, c[i].code, "field", "secret /home/x");
        mg_fault_kind(&f.err, &kind);
        assert_int_equal(kind.http, c[i].http);
        assert_string_equal(kind.type, c[i].type);
        assert_int_equal(kind.retry, c[i].retry);
        /* What clients would try again must be worth it. */
        assert_true(!kind.retry || kind.http == 429 || kind.http == 503);
        assert_true(mg_fault_write(&f, &b));
        assert_int_equal(strstr((char *)b.data, "/home/x") != NULL, c[i].shown);
        json_t *r = load(&b);
        assert_string_equal(json_string_value(at(r, "error.type")), c[i].type);
        assert_string_equal(json_string_value(at(r, "error.param")), "field");
        if (c[i].sent)
            assert_string_equal(json_string_value(at(r, "error.code")), c[i].sent);
        else
            assert_true(json_is_null(at(r, "error.code")));
        json_decref(r);
    }
    struct mg_fault f = {0};
    struct mg_buf b = {0};
    mg_fault_set(&f, MG_ERR_ARGUMENT, "", "", "first");
    mg_fault_set(&f, MG_ERR_LIMIT, "x", "p", "second"); /* the first stays */
    mg_chunk_error(&b, &f);
    assert_string_equal(
        (char *)b.data,
        "data: {\"error\":{\"message\":\"first\",\"type\":\"invalid_request_error\","
        "\"param\":null,\"code\":null}}\n\n");
    mg_buf_free(&b);
    mg_ws_error(&b, "q", &f);
    assert_string_equal(
        (char *)b.data,
        "{\"type\":\"error\",\"id\":\"q\",\"error\":{\"message\":\"first\",\"type\":"
        "\"invalid_request_error\",\"param\":null,\"code\":null}}");
    mg_buf_free(&b);
}

/* A writer that could not grow its buffer says so, wherever that happens. */
static void memory_may_fail(void **state) {
    struct mg_reply_choice c =
        text("some text that is long enough to grow a buffer more than once");
    struct mg_reply_timings t = {0};
    struct mg_reply_extra extra = {.timings = &t};
    struct mg_reply_usage usage = {0};
    size_t n = 0;
    for (bool done = false; !done; n++) {
        struct mg_buf b = {0};
        alloc_fail_at(n);
        bool ok = mg_reply_write(&b, &head, &c, 1, &usage, &extra);
        done = !alloc_has_failed();
        alloc_fail_at(SIZE_MAX);
        assert_int_equal(ok, done);
        mg_buf_free(&b);
    }
    assert_true(n > 3);
    struct mg_buf b = {.max = 100};
    assert_false(mg_chunk_begin(&b, &head, 0));
    mg_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_conversation),
        cmocka_unit_test(progress_chunks),
        cmocka_unit_test(whole_reply),
        cmocka_unit_test(all_that_stands_beside),
        cmocka_unit_test(logprobs_in_both_forms),
        cmocka_unit_test(completion_stream),
        cmocka_unit_test(errors_for_clients),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
