/* The smaller requests: completions, tokenize, detokenize, WebSocket questions. */
#include "alloc.h"
#include "api/completion_request.h"
#include "api/json_write.h"
#include "api/token_request.h"
#include "api/ws_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void completions(void **state) {
    static const struct {
        const char *body, *prompt, *param;
    } c[] = {
        {"{\"prompt\":\"x\"}", "x", NULL},
        {"{\"prompt\":[\"x\"],\"logprobs\":3,\"max_tokens\":4}", "x", NULL},
        {"{\"prompt\":\"\",\"echo\":false,\"suffix\":\"\"}", "", NULL},
        {"{\"prompt\":\"x\",\"suffix\":null,\"best_of\":1,\"logprobs\":null}", "x", NULL},
        {"{}", NULL, "prompt"},
        {"{\"prompt\":[]}", NULL, "prompt"},
        {"{\"prompt\":[\"x\",\"y\"]}", NULL, "prompt"},
        {"{\"prompt\":[1,2]}", NULL, "prompt"},
        {"{\"prompt\":[[1]]}", NULL, "prompt"},
        {"{\"prompt\":{}}", NULL, "prompt"},
        {"{\"prompt\":\"x\",\"echo\":true}", NULL, "echo"},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", NULL, "suffix"},
        {"{\"prompt\":\"x\",\"logprobs\":21}", NULL, "logprobs"},
        {"{\"prompt\":\"x\",\"logprobs\":\"y\"}", NULL, "logprobs"},
        {"{\"prompt\":\"x\",\"top_p\":2}", NULL, "top_p"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_completion_request *r;
        struct mg_fault f = {0};
        enum mg_status status = mg_completion_request_parse(c[i].body, strlen(c[i].body), &r, &f);
        assert_string_equal(f.param, c[i].param ? c[i].param : "");
        assert_int_equal(status == MG_OK, c[i].prompt != NULL);
        if (r) assert_string_equal(r->prompt, c[i].prompt);
        if (i == 1) assert_true(r->common.logprobs && r->common.top_logprobs == 3);
        if (i == 3) assert_false(r->common.logprobs);
        mg_completion_request_free(r);
    }
}

static void tokenize(void **state) {
    struct mg_tokenize_request r;
    struct mg_fault f = {0};
    static const char body[] = "{\"content\":\"a\\u00e9\",\"parse_special\":false,"
                               "\"with_pieces\":true,\"add_special\":true}";
    assert_int_equal(mg_tokenize_request_parse(body, sizeof body - 1, &r, &f), MG_OK);
    assert_int_equal(r.text.n, 3);
    assert_true(!r.parse_special && r.with_pieces);
    mg_tokenize_request_free(&r);
    assert_int_equal(mg_tokenize_request_parse("{\"content\":\"\"}", 14, &r, &f), MG_OK);
    assert_true(r.text.n == 0 && r.parse_special && !r.with_pieces);
    mg_tokenize_request_free(&r);
    static const char *const bad[] = {"{}", "{\"content\":[1]}", "[]", "{\"content\":\"x\"",
                                      "{\"content\":\"x\",\"with_pieces\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        f = (struct mg_fault){0};
        assert_int_not_equal(mg_tokenize_request_parse(bad[i], strlen(bad[i]), &r, &f), MG_OK);
        assert_null(r.text.data);
    }
    struct mg_ids ids;
    f = (struct mg_fault){0};
    assert_int_equal(mg_detokenize_request_parse("{\"tokens\":[0,2147483647.0]}", 27, &ids, &f),
                     MG_OK);
    assert_true(ids.n == 2 && ids.id[0] == 0 && ids.id[1] == INT32_MAX);
    mg_ids_free(&ids);
    static const char *const no[] = {"{}",
                                     "{\"tokens\":5}",
                                     "{\"tokens\":[-1]}",
                                     "{\"tokens\":[1.5]}",
                                     "{\"tokens\":[2147483648]}",
                                     "{\"tokens\":[\"1\"]}"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        f = (struct mg_fault){0};
        assert_int_not_equal(mg_detokenize_request_parse(no[i], strlen(no[i]), &ids, &f), MG_OK);
        assert_string_equal(f.param, "tokens");
        assert_null(ids.id);
    }
    static const int32_t id[] = {5, 6};
    static const struct mg_slice piece[] = {{(const uint8_t *)"\"", 1},
                                            {(const uint8_t *)"\xE7\x8C", 2}};
    struct mg_buf b = {0};
    mg_tokenize_write(&b, id, NULL, 2);
    assert_string_equal((char *)b.data, "{\"tokens\":[5,6]}");
    mg_buf_free(&b);
    mg_tokenize_write(&b, id, piece, 2);
    assert_string_equal((char *)b.data, "{\"tokens\":[{\"id\":5,\"piece\":\"\\\"\"},{\"id\":6,"
                                        "\"piece\":[231,140]}]}");
    mg_buf_free(&b);
    mg_detokenize_write(&b, "a\n", 2);
    assert_string_equal((char *)b.data, "{\"content\":\"a\\n\"}");
    mg_buf_free(&b);
}

static const char question[] =
    "{\"id\":\"q1\",\"question\":\"what?\",\"system\":\"s\",\"images\":[\"QUJD\",{\"file_id\":"
    "\"x\",\"detail\":\"high\"}],\"image\":\"https://a/b\",\"temperature\":0}";

static void socket_questions(void **state) {
    struct mg_ws_request r;
    struct mg_fault f = {0};
    assert_int_equal(mg_ws_request_parse(question, sizeof question - 1, NULL, &r, &f), MG_OK);
    assert_int_equal(r.kind, MG_WS_QUESTION);
    assert_string_equal(r.id, "q1");
    assert_int_equal(r.chat->n_message, 2);
    assert_int_equal(r.chat->message[0].role, MG_SYSTEM);
    assert_string_equal(r.chat->message[0].part[0].text, "s");
    const struct mg_chat_message *user = &r.chat->message[1];
    assert_int_equal(user->n_part, 4);
    assert_int_equal(r.chat->n_image, 3);
    assert_memory_equal(user->part[0].source.bytes, "ABC", 3);
    assert_int_equal(user->part[1].source.kind, MG_SOURCE_FILE_ID);
    assert_int_equal(user->part[1].wish.detail, MG_DETAIL_HIGH);
    assert_int_equal(user->part[2].source.kind, MG_SOURCE_URL);
    assert_string_equal(user->part[3].text, "what?");
    assert_true(r.chat->common.temperature.set);
    mg_ws_request_free(&r);

    static const struct {
        const char *text, *param;
        enum mg_ws_ask kind;
        bool fine;
    } c[] = {
        {"{\"type\":\"cancel\"}", "", MG_WS_CANCEL, true},
        {"{\"type\":\"cancel\",\"id\":\"a\"}", "", MG_WS_CANCEL, true},
        {"{\"type\":\"question\",\"messages\":[{\"role\":\"user\"}]}", "", MG_WS_QUESTION, true},
        {"{\"question\":\"x\",\"preset\":\"fast\",\"image\":\"QUJD\"}", "", MG_WS_QUESTION, true},
        {"{}", "", MG_WS_QUESTION, true}, /* pictures may have come as binary frames */
        {"{\"type\":\"dance\"}", "type", MG_WS_QUESTION, false},
        {"{\"type\":7}", "type", MG_WS_QUESTION, false},
        {"{\"id\":7}", "id", MG_WS_QUESTION, false},
        {"{\"id\":\"\\u00e9\"}", "id", MG_WS_QUESTION, false},
        {"{\"question\":7}", "question", MG_WS_QUESTION, false},
        {"{\"system\":[]}", "system", MG_WS_QUESTION, false},
        {"{\"images\":\"x\"}", "images", MG_WS_QUESTION, false},
        {"{\"images\":[\"QUJD\",7]}", "images[1]", MG_WS_QUESTION, false},
        {"{\"images\":[\"*\"]}", "images[0]", MG_WS_QUESTION, false},
        {"{\"images\":[{}]}", "images[0].image_url", MG_WS_QUESTION, false},
        {"{\"question\":\"x\",\"top_p\":9}", "top_p", MG_WS_QUESTION, false},
        {"{\"type\":\"question\",\"messages\":[]}", "messages", MG_WS_QUESTION, false},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        f = (struct mg_fault){0};
        enum mg_status status = mg_ws_request_parse(c[i].text, strlen(c[i].text), NULL, &r, &f);
        assert_string_equal(f.param, c[i].param);
        assert_int_equal(status == MG_OK, c[i].fine);
        assert_int_equal(r.kind, c[i].kind);
        assert_int_equal(r.chat != NULL, c[i].fine && r.kind == MG_WS_QUESTION);
        mg_ws_request_free(&r);
    }
    struct mg_chat_limits limits = {.max_images = 2};
    f = (struct mg_fault){0};
    assert_int_equal(mg_ws_request_parse(question, sizeof question - 1, &limits, &r, &f),
                     MG_ERR_LIMIT);
    assert_string_equal(r.id, "q1"); /* the error can say which question it was */
}

static void cut_or_out_of_memory(void **state) {
    for (size_t n = 0; n < sizeof question - 1; n++) {
        char *cut = malloc(n ? n : 1);
        struct mg_ws_request r;
        struct mg_fault f = {0};
        memcpy(cut, question, n);
        assert_int_equal(mg_ws_request_parse(cut, n, NULL, &r, &f), MG_ERR_FORMAT);
        assert_null(r.chat);
        free(cut);
    }
    static const char body[] = "{\"prompt\":\"x\",\"stop\":[\"a\"],\"logit_bias\":{\"1\":1}}",
                      text[] = "{\"content\":\"abc\"}", ids[] = "{\"tokens\":[1,2,3]}";
    for (int kind = 0; kind < 4; kind++) {
        size_t n = 0;
        for (bool done = false; !done; n++) {
            struct mg_ws_request ws = {0};
            struct mg_completion_request *completion = NULL;
            struct mg_tokenize_request tokenize = {0};
            struct mg_ids list = {0};
            struct mg_fault f = {0};
            enum mg_status status;
            alloc_fail_at(n);
            if (kind == 0)
                status = mg_ws_request_parse(question, sizeof question - 1, NULL, &ws, &f);
            else if (kind == 1)
                status = mg_completion_request_parse(body, sizeof body - 1, &completion, &f);
            else if (kind == 2)
                status = mg_tokenize_request_parse(text, sizeof text - 1, &tokenize, &f);
            else
                status = mg_detokenize_request_parse(ids, sizeof ids - 1, &list, &f);
            done = !alloc_has_failed();
            alloc_fail_at(SIZE_MAX);
            assert_int_equal(status, done ? MG_OK : MG_ERR_MEMORY);
            mg_ws_request_free(&ws);
            mg_completion_request_free(completion);
            mg_tokenize_request_free(&tokenize);
            mg_ids_free(&list);
        }
        assert_true(n > 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions),
        cmocka_unit_test(tokenize),
        cmocka_unit_test(socket_questions),
        cmocka_unit_test(cut_or_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
