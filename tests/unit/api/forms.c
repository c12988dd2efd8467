/* Prints every form that src/api writes, one JSON object a line: {"name","body"}; besides the
 * ranges of numeric fields, and of each argument whether it is a route that is counted. What checks
 * them against docs/openapi.json (tests/cli/test_openapi.py) and against the official client's
 * models (tests/clients) reads this. Not a test itself. */
#include "api/chat_reply.h"
#include "api/json_write.h"
#include "api/metrics.h"
#include "api/request.h"
#include "api/server_reply.h"
#include "api/token_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct mg_buf buf;
static bool bad;

static void print(const char *name, bool written) {
    struct mg_buf line = {0};
    struct mg_jwrite j = {.out = &line};
    mg_jwrite_open(&j, '{');
    mg_jwrite_kstr(&j, "name", name);
    mg_jwrite_key(&j, "body");
    mg_jwrite_string(&j, (const char *)buf.data, buf.n);
    mg_jwrite_close(&j, '}');
    bad |= !written || line.failed;
    printf("%s\n", line.data);
    mg_buf_free(&line);
    mg_buf_free(&buf);
}

static const struct mg_reply_token top[] = {
    {.text = "A", .n_text = 1, .logprob = -0.25},
    {.text = "\xE7\x8C", .n_text = 2, .logprob = -INFINITY},
};
static const struct mg_reply_token tokens[] = {
    {.text = "A", .n_text = 1, .logprob = -0.25, .top = top, .n_top = 2},
    {.text = " \xE7\x8C\xAB", .n_text = 4, .logprob = -1.5},
};
static const struct mg_reply_image images[] = {
    {.report = {.format = "jpeg",
                .width = 640,
                .height = 480,
                .orientation = 6,
                .frames = 1,
                .resized_width = 640,
                .resized_height = 480,
                .tokens = 300,
                .cells = 300,
                .kept = 300,
                .bytes = 12345,
                .decode_ms = 5.5,
                .vision_ms = 812.25}},
    {.report = {.format = "gif",
                .width = 1,
                .height = 1,
                .orientation = 1,
                .frames = 3,
                .alpha = true,
                .resized_width = 256,
                .resized_height = 256,
                .tokens = 20,
                .cells = 64,
                .kept = 20,
                .bytes = 99,
                .cached = true}},
};
static const struct mg_reply_timings timings = {.prompt_n = 320,
                                                .cache_n = 12,
                                                .prompt_ms = 1600,
                                                .predicted_n = 2,
                                                .predicted_ms = 80,
                                                .queue_ms = 1.25,
                                                .image_ms = 5.5,
                                                .vision_ms = 812.25,
                                                .first_token_ms = 1640.5,
                                                .total_ms = 1720,
                                                .passes = 1,
                                                .drafted = 4,
                                                .accepted = 1};
static const char *const warnings[] = {"messages[0].content[0].detail: not one of low, auto"};
static const struct mg_reply_extra extra = {.image = images,
                                            .n_image = 2,
                                            .timings = &timings,
                                            .cache = MG_CACHE_NEAR,
                                            .cache_distance = 0.03125,
                                            .warning = warnings,
                                            .n_warning = 1};
static const struct mg_reply_usage usage = {332, 2, 12, 320};
static const struct mg_reply_choice answer = {.text = "A \xE7\x8C\xAB",
                                              .n_text = 5,
                                              .finish_reason = "stop",
                                              .stop_detail = "end_token",
                                              .logprobs = true,
                                              .token = tokens,
                                              .n_token = 2};

static void print_replies(bool completion) {
    struct mg_reply_head head = {.id = completion ? "cmpl-1" : "chatcmpl-1",
                                 .created = 1790000000,
                                 .model = "qwen3-vl-2b",
                                 .completion = completion};
    struct mg_reply_choice two[] = {answer, {.index = 1, .text = "", .finish_reason = "length"}};
    struct mg_reply_choice piece = answer, cancelled = {.finish_reason = "cancelled"};
    struct mg_reply_extra small = {.cache = MG_CACHE_MISS};
    print(completion ? "completion" : "chat", mg_reply_write(&buf, &head, two, 2, &usage, &extra));
    print(completion ? "completion_plain" : "chat_plain",
          mg_reply_write(&buf, &head, &two[1], 1, &usage, NULL));
    head.usage = true;
    struct mg_reply_progress progress = {.stage = "prefill",
                                         .step = 128,
                                         .of = 332,
                                         .total = 332,
                                         .cache = 12,
                                         .processed = 140,
                                         .time_ms = 700.5,
                                         .estimate_ms = 900};
    bool ok = mg_chunk_begin(&buf, &head, 0);
    ok &= mg_chunk_progress(&buf, &head, &progress);
    progress = (struct mg_reply_progress){.stage = "queue", .queue_position = 2, .estimate_ms = -1};
    ok &= mg_chunk_progress(&buf, &head, &progress);
    ok &= mg_chunk_ping(&buf);
    ok &= mg_chunk_text(&buf, &head, &piece, &timings);
    piece.logprobs = false;
    ok &= mg_chunk_text(&buf, &head, &piece, NULL);
    ok &= mg_chunk_finish(&buf, &head, &answer, &extra);
    ok &= mg_chunk_finish(&buf, &head, &cancelled, &small);
    ok &= mg_chunk_usage(&buf, &head, &usage);
    ok &= mg_chunk_done(&buf);
    print(completion ? "completion_stream" : "chat_stream", ok);
}

static void print_socket(void) {
    struct mg_reply_head head = {.id = "q1", .created = 1790000000, .model = "m"};
    struct mg_reply_progress progress = {.stage = "vision", .step = 3, .of = 24, .estimate_ms = 10};
    struct mg_fault f = {0};
    mg_fault_set(&f, MG_ERR_ARGUMENT, "invalid_value", "top_p", "top_p: must be from 0 to 1");
    print("ws_progress", mg_ws_progress(&buf, "q1", &progress));
    print("ws_token", mg_ws_token(&buf, "q1", "A", 1));
    print("ws_result", mg_ws_result(&buf, &head, &answer, &usage, &extra));
    print("ws_error", mg_ws_error(&buf, NULL, &f));
    print("error", mg_fault_write(&f, &buf));
    print("error_stream", mg_chunk_error(&buf, &f));
}

static void print_server(void) {
    static const struct mg_model_reply model = {.id = "qwen3-vl-2b",
                                                .created = 1790000000,
                                                .context = 8192,
                                                .context_max = 262144,
                                                .n_vocab = 151936,
                                                .n_embd = 2048,
                                                .n_params = 2127532032,
                                                .bytes = 2500000000,
                                                .weights = "int8"};
    static const struct mg_upload_reply file = {.id = "file-abc",
                                                .bytes = 1234,
                                                .created = 1790000000,
                                                .expires = 1790003600,
                                                .filename = "a.png",
                                                .purpose = "vision"};
    static const struct mg_ready_reply ready = {.ready = true,
                                                .status = "degraded",
                                                .detail = "Redis does not answer",
                                                .running = 1,
                                                .waiting = 2,
                                                .queue_limit = 64};
    static const char *const format[] = {"jpeg", "png"};
    static const struct mg_props_reply props = {.model = "qwen3-vl-2b",
                                                .version = "0.1.0",
                                                .weights = "int8",
                                                .tier = "avx2",
                                                .n_slot = 4,
                                                .context = 8192,
                                                .n_thread = 8,
                                                .vision = true,
                                                .image_min_tokens = 64,
                                                .image_max_tokens = 1024,
                                                .patch = 16,
                                                .merge = 2,
                                                .max_images = 64,
                                                .max_image_bytes = 67108864,
                                                .max_body_bytes = 33554432,
                                                .transfer_side = 1024,
                                                .transfer_side_high = 4096,
                                                .max_image_pixels = 134217728,
                                                .sampling = {.temperature = 0.7,
                                                             .top_p = 0.8,
                                                             .repeat_penalty = 1,
                                                             .top_k = 20,
                                                             .max_tokens = -1},
                                                .format = format,
                                                .n_format = 2};
    static const struct mg_slot_reply slot[] = {{.stage = "idle", .context = 8192},
                                                {.id = 1,
                                                 .busy = true,
                                                 .stage = "prefill",
                                                 .context = 8192,
                                                 .prompt_tokens = 332,
                                                 .cached_tokens = 12,
                                                 .image_tokens = 320,
                                                 .images = 2,
                                                 .seconds = 1.5}};
    static const int32_t id[] = {1, 2};
    static const struct mg_slice piece[] = {{(const uint8_t *)"a", 1},
                                            {(const uint8_t *)"\xE7\x8C", 2}};
    print("model", mg_model_write(&buf, &model));
    print("models", mg_models_write(&buf, &model, 1));
    print("file", mg_upload_write(&buf, &file));
    print("files", mg_uploads_write(&buf, &file, 1));
    print("file_deleted", mg_upload_deleted_write(&buf, "file-abc"));
    print("health", mg_health_write(&buf, "ok"));
    print("ready", mg_ready_write(&buf, &ready));
    print("props", mg_props_write(&buf, &props));
    print("slots", mg_slots_write(&buf, slot, 2));
    print("tokenize", mg_tokenize_write(&buf, id, NULL, 2));
    print("tokenize_pieces", mg_tokenize_write(&buf, id, piece, 2));
    print("detokenize", mg_detokenize_write(&buf, "a", 1));
    print("template", mg_template_write(&buf, "<|im_start|>", 12));
}

static void print_metrics(void) {
    struct mg_metrics *m;
    struct mg_metrics_info info = {"a\"b\\c\nd", "int8",     "avx2", "0.1.0", 8,
                                   1.5,          1790000000, 1e9,    12,      -1};
    if (mg_metrics_open(&m, NULL) != MG_OK) return;
    mg_metrics_add_at(m, MG_M_HTTP_REQUESTS, 3,
                      mg_metrics_label(MG_M_HTTP_REQUESTS, 0, "/v1/chat/completions"),
                      mg_metrics_label(MG_M_HTTP_REQUESTS, 1, "POST"),
                      mg_metrics_label(MG_M_HTTP_REQUESTS, 2, "200"));
    mg_metrics_observe(m, MG_M_TTFT, 1.2);
    mg_metrics_observe(m, MG_M_TTFT, 1e4);
    mg_metrics_set(m, MG_M_KV_USAGE, 0.25);
    print("metrics", mg_metrics_write(m, &info, &buf));
    mg_metrics_close(m);
}

static void print_fields(void) {
    struct mg_jwrite j = {.out = &buf};
    struct mg_request_field field;
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; mg_request_field(i, &field); i++) {
        mg_jwrite_open(&j, '{');
        mg_jwrite_kstr(&j, "name", field.name);
        mg_jwrite_kbool(&j, "whole", field.whole);
        mg_jwrite_key(&j, "min");
        mg_jwrite_real(&j, field.min);
        mg_jwrite_key(&j, "max");
        mg_jwrite_real(&j, field.max);
        mg_jwrite_close(&j, '}');
    }
    mg_jwrite_close(&j, ']');
    print("fields", !buf.failed);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        unsigned other = mg_metrics_label(MG_M_HTTP_REQUESTS, 0, "other");
        bool known = mg_metrics_label(MG_M_HTTP_REQUESTS, 0, argv[i]) != other;
        print(argv[i], mg_buf_add_str(&buf, known ? "counted" : "other"));
    }
    if (argc > 1) return bad;
    print_fields();
    print_replies(false);
    print_replies(true);
    print_socket();
    print_server();
    print_metrics();
    return bad;
}
