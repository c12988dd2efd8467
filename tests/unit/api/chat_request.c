/* Chat requests: shapes of content, pictures in all spellings, ranges, errors and what they say. */
#include "alloc.h"
#include "api/chat_request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct mg_chat_request *parse(const char *body) {
    struct mg_chat_request *r;
    struct mg_fault f = {0};
    enum mg_status status = mg_chat_request_parse(body, strlen(body), NULL, &r, &f);
    if (status != MG_OK) print_message("%s\n%s\n", body, f.err.text);
    assert_int_equal(status, MG_OK);
    assert_int_equal(f.err.status, MG_OK);
    return r;
}

static struct mg_fault refuse(const char *body) {
    struct mg_chat_request *r = (void *)1;
    struct mg_fault f = {0};
    enum mg_status status = mg_chat_request_parse(body, strlen(body), NULL, &r, &f);
    if (status == MG_OK) print_message("accepted: %s\n", body);
    assert_int_not_equal(status, MG_OK);
    assert_int_equal(f.err.status, status);
    assert_null(r);
    assert_true(f.err.text[0] != 0);
    return f;
}

/* The parts of message 0 in short: t(text) i(bytes) u(url) f(file url) d(file id) c(name,args). */
static void describe(const struct mg_chat_request *r, char *out, size_t cap) {
    size_t at = 0;
    static const char role[] = {
        [MG_SYSTEM] = 's', [MG_USER] = 'u', [MG_ASSISTANT] = 'a', [MG_TOOL] = 't'};
    out[0] = 0;
    for (size_t m = 0; m < r->n_message; m++) {
        at += (size_t)snprintf(out + at, cap - at, "%c:", role[r->message[m].role]);
        for (size_t i = 0; i < r->message[m].n_part; i++) {
            const struct mg_chat_part *p = &r->message[m].part[i];
            if (p->kind == MG_CHAT_TEXT)
                at += (size_t)snprintf(out + at, cap - at, "t(%s)", p->text);
            else if (p->kind == MG_CHAT_TOOL_CALL)
                at += (size_t)snprintf(out + at, cap - at, "c(%s,%s)", p->name, p->text);
            else if (p->source.kind == MG_SOURCE_BYTES)
                at += (size_t)snprintf(out + at, cap - at, "i(%.*s)", (int)p->source.n_bytes,
                                       (const char *)p->source.bytes);
            else
                at += (size_t)snprintf(out + at, cap - at, "%c(%s)",
                                       p->source.kind == MG_SOURCE_URL        ? 'u'
                                       : p->source.kind == MG_SOURCE_FILE_URL ? 'f'
                                                                              : 'd',
                                       p->source.text);
        }
    }
}

/* Bodies are written with ' for ". "QUJD" is base64 of "ABC". */
static char *quotes(const char *text) {
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    return copy;
}

static void content_shapes(void **state) {
    static const struct {
        const char *messages, *want;
    } c[] = {
        {"{'role':'user','content':'hi'}", "u:t(hi)"},
        {"{'role':'user','content':''}", "u:"},
        {"{'role':'user','content':null}", "u:"},
        {"{'role':'user'}", "u:"},
        {"{'role':'user','content':[]}", "u:"},
        {"{'role':'user','content':['a','b']}", "u:t(a)t(b)"},
        {"{'role':'user','content':[{'type':'text','text':'a'}]}", "u:t(a)"},
        {"{'role':'user','content':[{'type':'text','text':''}]}", "u:t()"},
        {"{'role':'user','content':[{'text':'a'}]}", "u:t(a)"},
        {"{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}",
         "u:t(a)t(b)"},
        {"{'role':'user','content':[{'type':'input_text','text':'a'},"
         "{'type':'input_image','image_url':'data:image/png;base64,QUJD','detail':'low'}]}",
         "u:t(a)i(ABC)"},
        {"{'role':'user','content':[{'type':'text','text':'a'},{'type':'image_url','image_url':"
         "{'url':'data:image/png;base64,QUJD'}},{'type':'text','text':'b'}]}",
         "u:t(a)i(ABC)t(b)"},
        {"{'role':'user','content':[{'type':'image_url','image_url':'data:image/png;base64,QUJD'}]"
         "}",
         "u:i(ABC)"},
        {"{'role':'user','content':[{'image_url':{'url':'QUJD'}}]}", "u:i(ABC)"},
        {"{'role':'user','content':[{'type':'image','image':'QUJD'}]}", "u:i(ABC)"},
        {"{'role':'user','content':[{'type':'image','url':'https://a/b.png'}]}",
         "u:u(https://a/b.png)"},
        {"{'role':'user','content':[{'type':'image_file','file_id':'file-abc'}]}", "u:d(file-abc)"},
        {"{'role':'user','content':[{'type':'image_file','image_file':{'file_id':'file-abc'}}]}",
         "u:d(file-abc)"},
        {"{'role':'user','content':[{'type':'input_image','file_id':'x_1'}]}", "u:d(x_1)"},
        {"{'role':'user','content':[{'type':'input_image','image_url':null,'file_id':'x_1'}]}",
         "u:d(x_1)"},
        {"{'role':'user','content':[{'type':'image_url','image_url':{'file_id':'x_1'}}]}",
         "u:d(x_1)"},
        {"{'role':'user','content':[{'type':'image_url','image_url':'margay-file:x_1'}]}",
         "u:d(x_1)"},
        {"{'role':'user','content':'x','name':'bob','unknown':{'a':[1]}}", "u:t(x)"},
        {"{'role':'developer','content':'x'},{'role':'user','content':'y'}", "s:t(x)u:t(y)"},
        {"{'role':'system','content':[{'type':'text','text':'x'}]},{'role':'user','content':'y'}",
         "s:t(x)u:t(y)"},
        {"{'role':'user','content':'x'},{'role':'assistant','content':null,'tool_calls':[{'id':'1',"
         "'type':'function','function':{'name':'f','arguments':'{}'}}]},{'role':'tool',"
         "'tool_call_id':'1','content':'42'}",
         "u:t(x)a:c(f,{})t:t(42)"},
        {"{'role':'user','content':'x'},{'role':'assistant','content':'so','tool_calls':[{"
         "'function':{'name':'f'}}]}",
         "u:t(x)a:t(so)c(f,{})"},
        {"{'role':'assistant','content':[{'type':'refusal','refusal':'no'}],'refusal':null}",
         "a:t(no)"},
        {"{'role':'function','name':'f','content':'1'}", "t:t(1)"},
        {"{'role':'user','content':'\\u00e9\\ud83d\\ude00\\/'}", "u:t(\xC3\xA9\xF0\x9F\x98\x80/)"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char body[2048], got[1024];
        snprintf(body, sizeof body, "{'model':'m','messages':[%s]}", c[i].messages);
        char *q = quotes(body);
        struct mg_chat_request *r = parse(q);
        describe(r, got, sizeof got);
        assert_string_equal(got, c[i].want);
        mg_chat_request_free(r);
        free(q);
    }
}

static struct mg_chat_request *with_image(const char *url_json, const char *beside) {
    char body[4096];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
             "\"image_url\":{\"url\":%s}%s}]}]}",
             url_json, beside);
    return parse(body);
}

static struct mg_fault with_bad_image(const char *url_json, const char *beside) {
    char body[4096];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":[\"x\",{\"type\":\"image_url\","
             "\"image_url\":{\"url\":%s}%s}]}]}",
             url_json, beside);
    return refuse(body);
}

static void pictures_in_all_spellings(void **state) {
    static const char *const abc[] = {
        "\"data:image/png;base64,QUJD\"",
        "\"data:;base64,QUJD\"",
        "\"DATA:IMAGE/PNG;BASE64,QUJD\"",
        "\"data:image/png;charset=utf-8;name=a.png;base64,QUJD\"",
        "\"data:application/octet-stream;base64,Q\\nUJD\"",
        "\"data:image\\/png;base64,QUJD\"",
        "\"QUJD\"",
        "\"\\u0051UJD\"",
        "\" QU JD \\r\\n\"",
    };
    for (size_t i = 0; i < sizeof abc / sizeof *abc; i++) {
        struct mg_chat_request *r = with_image(abc[i], "");
        const struct mg_image_source *s = &r->message[0].part[0].source;
        assert_int_equal(r->n_image, 1);
        assert_int_equal(s->n_bytes, 3);
        assert_memory_equal(s->bytes, "ABC", 3);
        mg_chat_request_free(r);
    }
    static const struct {
        const char *url;
        enum mg_image_source_kind kind;
    } kept[] = {
        {"http://host/a?b=c&d", MG_SOURCE_URL},     {"HTTPS://host/a", MG_SOURCE_URL},
        {"file:///etc/passwd", MG_SOURCE_FILE_URL}, {"file:a/b.png", MG_SOURCE_FILE_URL},
        {"file-AbC_12-3", MG_SOURCE_FILE_ID},
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        char url[64];
        snprintf(url, sizeof url, "\"%s\"", kept[i].url);
        struct mg_chat_request *r = with_image(url, "");
        assert_int_equal(r->message[0].part[0].source.kind, kept[i].kind);
        assert_string_equal(r->message[0].part[0].source.text, kept[i].url);
        assert_null(r->message[0].part[0].source.bytes);
        mg_chat_request_free(r);
    }
    static const struct {
        const char *url, *code, *text;
    } bad[] = {
        {"\"\"", "image_empty", "there are no bytes"},
        {"\"data:image/png;base64,\"", "image_empty", "there are no bytes"},
        {"\"data:image/png,QUJD\"", "image_data_url", "must say \";base64\""},
        {"\"data:image/png;base64\"", "image_data_url", "without a comma"},
        {"\"data:image/png;base64,QUJD*\"", "image_base64", "character 5 of 5"},
        {"\"data:image/png;base64,QUJDQ\"", "image_base64", "was cut"},
        {"\"data:image/png;base64,QQ==QQ\"", "image_base64", "behind its padding"},
        {"\"ftp://host/x\"", "image_url", "of a kind that is not read"},
        {"\"javascript:x\"", "image_url", "of a kind that is not read"},
        {"\"http://ho st/x\"", "image_url", "blank, control"},
        {"\"http://h\\u00f6st/x\"", "image_url", "blank, control"},
        {"\"margay-file:../x\"", "invalid_value", "not the id"},
        {"\"margay-file:\"", "invalid_value", "not the id"},
        {"\"/tmp/secret.png\"", "image_base64", "neither a URL nor base64"},
        {"null", "missing_field", "wanted a string, found nothing"},
        {"7", "invalid_value", "wanted a string, found a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mg_fault f = with_bad_image(bad[i].url, "");
        assert_string_equal(f.err.code, bad[i].code);
        assert_non_null(strstr(f.err.text, bad[i].text));
        assert_non_null(strstr(f.err.text, "messages[0].content[1].image_url"));
        assert_memory_equal(f.param, "messages[0].content[1].image_url", 32);
    }
}

static void wishes_beside_a_picture(void **state) {
    struct mg_chat_request *r = with_image("\"QUJD\",\"detail\":\"high\",\"min_pixels\":1024",
                                           ",\"max_pixels\":4096,\"prune\":\"near=8\"");
    const struct mg_image_wish *w = &r->message[0].part[0].wish;
    assert_int_equal(w->detail, MG_DETAIL_HIGH);
    assert_int_equal(w->min_pixels, 1024);
    assert_int_equal(w->max_pixels, 4096);
    assert_true(w->prune_set);
    assert_int_equal(w->prune, MG_PRUNE_NEAR);
    assert_int_equal(w->prune_near, 8);
    assert_int_equal(r->common.n_warning, 0);
    mg_chat_request_free(r);
    static const struct {
        const char *beside;
        enum mg_image_detail detail;
    } detail[] = {{"", MG_DETAIL_AUTO},
                  {",\"detail\":null", MG_DETAIL_AUTO},
                  {",\"detail\":\"auto\"", MG_DETAIL_AUTO},
                  {",\"detail\":\"low\"", MG_DETAIL_LOW},
                  {",\"detail\":\"original\"", MG_DETAIL_ORIGINAL}};
    for (size_t i = 0; i < sizeof detail / sizeof *detail; i++) {
        r = with_image("\"QUJD\"", detail[i].beside);
        assert_int_equal(r->message[0].part[0].wish.detail, detail[i].detail);
        assert_false(r->message[0].part[0].wish.prune_set);
        assert_int_equal(r->common.n_warning, 0);
        mg_chat_request_free(r);
    }
    for (int i = 0; i < 2; i++) {
        r = with_image("\"QUJD\"", i ? ",\"detail\":5" : ",\"detail\":\"ultra\"");
        assert_int_equal(r->message[0].part[0].wish.detail, MG_DETAIL_AUTO);
        assert_int_equal(r->common.n_warning, 1);
        assert_string_equal(r->common.warning[0],
                            "messages[0].content[0].detail: not one of low, auto, high, "
                            "original; auto is used");
        mg_chat_request_free(r);
    }
    static const struct {
        const char *beside, *param;
    } bad[] = {
        {",\"min_pixels\":0", "messages[0].content[1].min_pixels"},
        {",\"max_pixels\":\"9\"", "messages[0].content[1].max_pixels"},
        {",\"min_pixels\":9,\"max_pixels\":8", "messages[0].content[1].image_url"},
        {",\"prune\":\"near=256\"", "messages[0].content[1].prune"},
        {",\"prune\":\"near=\"", "messages[0].content[1].prune"},
        {",\"prune\":\"no\"", "messages[0].content[1].prune"},
        {",\"prune\":true", "messages[0].content[1].prune"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mg_fault f = with_bad_image("\"QUJD\"", bad[i].beside);
        assert_string_equal(f.param, bad[i].param);
        assert_string_equal(f.err.code, "invalid_value");
    }
}

#define WITH(fields) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," fields "}"

static void every_number_has_its_range(void **state) {
    struct mg_request_field field;
    size_t n_field = 0;
    for (; mg_request_field(n_field, &field); n_field++) {
        char number[4][64], body[512];
        const char *form = field.whole ? "%.0f" : "%.17g";
        bool huge = fabs(field.max) > 1e15;
        snprintf(number[0], 64, form, huge ? -1e15 : field.min);
        snprintf(number[1], 64, form, huge ? 1e15 : field.max);
        snprintf(number[2], 64, form, field.whole ? field.min - 1 : field.min - 0.001);
        snprintf(number[3], 64, form, field.whole ? field.max + 1 : field.max + 0.001);
        if (huge) snprintf(number[2], 64, "-9223372036854775809");
        if (huge) snprintf(number[3], 64, "9223372036854775808");
        for (int i = 0; i < 4; i++) {
            snprintf(body, sizeof body, WITH("\"logprobs\":true,\"%s\":%s"), field.name, number[i]);
            if (i < 2 && strcmp(number[i], "0")) {
                mg_chat_request_free(parse(body));
            } else if (i >= 2) {
                struct mg_fault f = refuse(body);
                assert_string_equal(f.param, field.name);
                assert_non_null(strstr(f.err.text, "must be from"));
            }
        }
        static const char *const wrong[] = {"\"1\"", "true", "[]", "{}", "1.5"};
        for (int i = 0; i < (field.whole ? 5 : 4); i++) {
            snprintf(body, sizeof body, WITH("\"logprobs\":true,\"%s\":%s"), field.name, wrong[i]);
            struct mg_fault f = refuse(body);
            assert_string_equal(f.param, field.name);
            assert_string_equal(f.err.code, "invalid_value");
        }
        snprintf(body, sizeof body, WITH("\"%s\":null"), field.name);
        mg_chat_request_free(parse(body));
    }
    assert_int_equal(n_field, 13);
}

static void numbers_say_whether_they_were_given(void **state) {
    struct mg_chat_request *r = parse(WITH("\"temperature\":null"));
    const struct mg_request *c = &r->common;
    assert_false(c->max_tokens.set || c->temperature.set || c->top_p.set || c->min_p.set ||
                 c->top_k.set || c->repetition_penalty.set || c->presence_penalty.set ||
                 c->frequency_penalty.set || c->seed.set || c->cache_prompt.set ||
                 c->answer_cache.set || c->similar_cache.set);
    assert_int_equal(c->n, 1);
    assert_null(c->model);
    assert_false(c->stream || c->include_usage || c->logprobs || c->fast || c->max_tokens_all);
    struct mg_answer_options o, before;
    mg_answer_options_init(&o);
    before = o;
    mg_request_options(c, &o);
    assert_memory_equal(&o, &before, sizeof o);
    mg_chat_request_free(r);

    r = parse(WITH("\"model\":\"m\",\"max_tokens\":5,\"max_completion_tokens\":64.0,"
                   "\"temperature\":0,\"top_p\":0,\"min_p\":0.5,\"top_k\":-1,"
                   "\"repetition_penalty\":1.5,\"repeat_penalty\":1.25,\"presence_penalty\":-2,"
                   "\"frequency_penalty\":0.5,\"seed\":9007199254740993,\"n\":3,\"stream\":true,"
                   "\"stream_options\":{\"include_usage\":true},\"logprobs\":true,"
                   "\"top_logprobs\":20,\"ignore_eos\":true,\"cache_prompt\":false,"
                   "\"return_progress\":true,\"timings_per_token\":true,\"answer_cache\":true,"
                   "\"similar_cache\":0.95,\"stop\":[\"a\",\"\",\"b\"],"
                   "\"logit_bias\":{\"15\":-100,\"7\":2.5}"));
    c = &r->common;
    assert_string_equal(c->model, "m");
    assert_int_equal(c->max_tokens.value, 64);
    assert_int_equal(c->seed.value, 9007199254740993);
    assert_int_equal(c->n, 3);
    assert_true(c->stream && c->include_usage && c->logprobs && c->return_progress &&
                c->timings_per_token);
    assert_int_equal(c->top_logprobs, 20);
    assert_true(c->cache_prompt.set && !c->cache_prompt.value);
    assert_true(c->answer_cache.set && c->answer_cache.value && c->similar_cache.value);
    assert_true(c->similar_least == 0.95);
    assert_int_equal(c->n_bias, 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(c->bias[i].id == 15 ? c->bias[i].value == -100.0f
                                        : c->bias[i].id == 7 && c->bias[i].value == 2.5f);
    mg_request_options(c, &o);
    assert_int_equal(o.max_tokens, 64);
    assert_true(o.temperature == 0 && o.top_p > 0 && o.top_p < 1e-6f && o.min_p == 0.5f);
    assert_int_equal(o.top_k, 0);
    assert_true(o.repetition_penalty == 1.25f && o.presence_penalty == -2);
    assert_true(o.frequency_penalty == 0.5f && o.ignore_end);
    assert_true(o.seed == 9007199254740993u);
    assert_int_equal(o.n_stop, 2);
    assert_string_equal(o.stop[0], "a");
    assert_string_equal(o.stop[1], "b");
    mg_chat_request_free(r);

    r = parse(WITH("\"max_tokens\":-1,\"seed\":-1,\"logit_bias\":[[3,false],[4,1]],"
                   "\"stop\":\"end\",\"preset\":\"default\""));
    assert_true(r->common.max_tokens_all && !r->common.max_tokens.set && !r->common.seed.set);
    assert_true(isinf(r->common.bias[0].value) && r->common.bias[0].value < 0);
    assert_int_equal(r->common.n_stop, 1);
    mg_chat_request_free(r);
}

static void preset_fast(void **state) {
    struct mg_chat_request *r = parse(
        "{\"preset\":\"fast\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
        "\"image_url\",\"image_url\":\"QUJD\"},{\"type\":\"image_url\",\"image_url\":{\"url\":"
        "\"QUJD\",\"detail\":\"high\"}}]}]}");
    assert_true(r->common.fast && r->common.temperature.set && r->common.temperature.value == 0);
    assert_int_equal(r->common.max_tokens.value, 128);
    assert_int_equal(r->message[0].part[0].wish.detail, MG_DETAIL_LOW);
    assert_int_equal(r->message[0].part[1].wish.detail, MG_DETAIL_HIGH);
    mg_chat_request_free(r);
    r = parse(WITH("\"preset\":\"fast\",\"temperature\":0.5,\"max_tokens\":9"));
    assert_true(r->common.temperature.value == 0.5);
    assert_int_equal(r->common.max_tokens.value, 9);
    mg_chat_request_free(r);
}

/* Whole numbers beyond 64 bits are numbers: refused where they are too large, ignored elsewhere. */
static void numbers_beyond_64_bits(void **state) {
    static const char *const fine[] = {"9223372036854775807",
                                       "9223372036854775808",
                                       "-9223372036854775808",
                                       "-9223372036854775809",
                                       "18446744073709551615",
                                       "36893488147419103232",
                                       "99999999999999999999",
                                       "-100000000000000000000000000000000000000000000000000000",
                                       "1.99999999999999999999999999999",
                                       "1e-99999999",
                                       "0.18446744073709551616e+5",
                                       "[18446744073709551615,18446744073709551616]"};
    static const char *const wrong[] = {"018446744073709551615", "--18446744073709551615",
                                        "18446744073709551615-", "18446744073709551615.",
                                        "1844674407370955161518446744073709551615e"};
    char body[512];
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        snprintf(body, sizeof body, WITH("\"unread\":%s,\"seed\":9223372036854775807"), fine[i]);
        struct mg_chat_request *r = parse(body);
        assert_true(r->common.seed.value == INT64_MAX);
        mg_chat_request_free(r);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(body, sizeof body, WITH("\"unread\":%s"), wrong[i]);
        struct mg_fault f = refuse(body);
        assert_string_equal(f.err.code, "invalid_json");
    }
    struct mg_fault f = refuse(WITH("\"temperature\":18446744073709551616"));
    assert_string_equal(f.param, "temperature");
    static const char *const seeds[] = {"9223372036854775808",  "-9223372036854775809",
                                        "9223372036854779999",  "-9223372036854800000",
                                        "9999999999999999999",  "-9999999999999999999",
                                        "10000000000000000000", "-18446744073709551616"};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        snprintf(body, sizeof body, WITH("\"seed\":%s"), seeds[i]);
        f = refuse(body);
        assert_string_equal(f.param, "seed");
    }
    struct mg_chat_request *r = parse(WITH("\"seed\":-9223372036854775808"));
    assert_true(r->common.seed.value == INT64_MIN);
    mg_chat_request_free(r);
    /* Places behind one are told as in the body. */
    f = refuse("{\"unread\":18446744073709551616,\"a\":1,\"a\":2}");
    struct mg_fault same = refuse("{\"unread\":1.844674407370955161,\"a\":1,\"a\":2}");
    assert_string_equal(f.err.text, same.err.text);
}

static void what_is_refused_and_how(void **state) {
    static const struct {
        const char *body, *param, *code, *text;
    } c[] = {
        {"", "", "invalid_json", "the body is empty"},
        {"[]", "", "invalid_json", "a list; wanted a JSON object"},
        {"{\"messages\":[}", "", "invalid_json", "byte 14"},
        {"{\"a\":1,\"a\":2}", "", "invalid_json", "stands twice"},
        {"{\"a\":1e999}", "", "invalid_json", "out of range"},
        {"{\"a\":\"\\u0000\"}", "", "invalid_json", "zero byte"},
        {"{\"a\":\"x\ny\"}", "", "invalid_json", "control character in a string at byte 7"},
        {"{\"a\":\"\xff\"}", "", "invalid_json", "not UTF-8"},
        {"{\"a\":\"\\ud800\"}", "", "invalid_json", "valid JSON"},
        {"{} x", "", "invalid_json", "something behind"},
        {"{}", "messages", "missing_field", "wanted a list of messages, found nothing"},
        {"{\"messages\":\"x\"}", "messages", "invalid_value", "found a string"},
        {"{\"messages\":[]}", "messages", "invalid_value", "at least one"},
        {"{\"messages\":[1]}", "messages[0]", "invalid_value", "wanted an object"},
        {"{\"messages\":[{}]}", "messages[0].role", "missing_field", "wanted a string"},
        {"{\"messages\":[{\"role\":\"wizard\"}]}", "messages[0].role", "invalid_value", "must be"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content",
         "invalid_value", "wanted a string or a list of parts, found a number"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages[0].content[0]",
         "invalid_value", "wanted an object or a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
         "messages[0].content[0]", "unsupported_value", "input_audio can't be read"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[\"x\",{\"type\":\"file\"}]}]}",
         "messages[0].content[1]", "unsupported_value", "type file can't be read"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"hologram\"}]}]}",
         "messages[0].content[0]", "unsupported_value", "unknown type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}", "messages[0].content[0].type",
         "missing_field", "wanted a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content[0].text", "missing_field", "wanted a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0].image_url", "missing_field", "wanted a string or an object"},
        {"{\"messages\":[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
         "messages[0].tool_calls", "invalid_value", "only an assistant"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
         "messages[0].tool_calls[0].function", "missing_field", "wanted an object"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":{}}}]}]}",
         "messages[0].tool_calls[0].function.arguments", "invalid_value", "a string of JSON"},
        {WITH("\"stream\":\"yes\""), "stream", "invalid_value", "wanted true or false"},
        {WITH("\"stream_options\":[]"), "stream_options", "invalid_value", "wanted an object"},
        {WITH("\"stream_options\":{\"include_usage\":1}"), "stream_options.include_usage",
         "invalid_value", "wanted true or false"},
        {WITH("\"max_tokens\":0"), "max_tokens", "invalid_value", "at least 1"},
        {WITH("\"max_tokens\":0,\"max_completion_tokens\":5"), "max_tokens", "invalid_value",
         "at least 1"},
        {WITH("\"max_tokens\":5,\"max_completion_tokens\":0"), "max_completion_tokens",
         "invalid_value", "at least 1"},
        {WITH("\"stop\":[1]"), "stop", "invalid_value", "list of strings"},
        {WITH("\"stop\":{}"), "stop", "invalid_value", "list of strings"},
        {WITH("\"stop\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\","
              "\"\",\"\",\"\"]"),
         "stop", "invalid_value", "at most 16"},
        {WITH("\"logit_bias\":{\"x\":1}"), "logit_bias", "invalid_value", "no token id"},
        {WITH("\"logit_bias\":{\"1\":101}"), "logit_bias", "invalid_value", "from -100 to 100"},
        {WITH("\"logit_bias\":{\"99999999999\":1}"), "logit_bias", "invalid_value", "token id"},
        {WITH("\"logit_bias\":[[1]]"), "logit_bias", "invalid_value", "pairs"},
        {WITH("\"top_logprobs\":3"), "top_logprobs", "invalid_value", "needs \"logprobs\""},
        {WITH("\"logprobs\":3"), "logprobs", "invalid_value", "true or false"},
        {WITH("\"preset\":\"slow\""), "preset", "invalid_value", "must be"},
        {WITH("\"similar_cache\":0.5"), "similar_cache", "invalid_value", "from 0.9 to 1"},
        {WITH("\"response_format\":{\"type\":\"json_object\"}"), "response_format",
         "unsupported_value", "only the type"},
        {WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}"),
         "response_format", "unsupported_value", "only the type"},
        {WITH("\"tools\":[{\"type\":\"function\"}]"), "tools", "unsupported_value", "yet"},
        {WITH("\"tools\":{}"), "tools", "invalid_value", "wanted a list"},
        {WITH("\"tool_choice\":\"required\""), "tool_choice", "unsupported_value", "yet"},
        {WITH("\"tool_choice\":{\"type\":\"function\"}"), "tool_choice", "unsupported_value",
         "yet"},
        {WITH("\"functions\":[{}]"), "functions", "unsupported_value", "yet"},
        {WITH("\"grammar\":\"root ::= x\""), "grammar", "unsupported_value", "yet"},
        {WITH("\"continue_final_message\":true"), "continue_final_message", "unsupported_value",
         "yet"},
        {WITH("\"model\":7"), "model", "invalid_value", "wanted a string"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct mg_fault f = refuse(c[i].body);
        if (!strstr(f.err.text, c[i].text) || strcmp(f.param, c[i].param))
            print_message("%s: %s (%s)\n", c[i].body, f.err.text, f.param);
        assert_string_equal(f.param, c[i].param);
        assert_string_equal(f.err.code, c[i].code);
        assert_non_null(strstr(f.err.text, c[i].text));
        struct mg_fault_kind kind;
        mg_fault_kind(&f.err, &kind);
        assert_int_equal(kind.http, 400);
        assert_string_equal(kind.type, "invalid_request_error");
    }
    static const char *const fine[] = {
        WITH("\"response_format\":{\"type\":\"text\"}"),
        WITH("\"response_format\":null"),
        WITH("\"tools\":[]"),
        WITH("\"tools\":null,\"tool_choice\":\"auto\""),
        WITH("\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\""),
        WITH("\"stop\":null"),
        WITH("\"stop\":\"\""),
        WITH("\"logit_bias\":{}"),
        WITH("\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"modalities\":[\"text\"],"
             "\"parallel_tool_calls\":true,\"nonsense\":[[[]]]"),
        WITH("\"similar_cache\":false"),
        WITH("\"top_logprobs\":0")};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) mg_chat_request_free(parse(fine[i]));
}

static const char whole[] =
    "{\"model\":\"m\",\"temperature\":0.25,\"stop\":[\"x\",\"y\"],\"logit_bias\":{\"1\":2},"
    "\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{"
    "\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,QUJD\",\"detail\":"
    "\"odd\"},\"prune\":\"near=3\"},{\"type\":\"image_url\",\"image_url\":\"http://a/b\"},{"
    "\"type\":\"text\",\"text\":\"\\u00fc\"}]},{\"role\":\"assistant\",\"content\":null,"
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}";

static void cut_anywhere_is_an_error(void **state) {
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *cut = malloc(n ? n : 1); /* exactly so long, for the address sanitizer */
        struct mg_chat_request *r;
        struct mg_fault f = {0};
        memcpy(cut, whole, n);
        assert_int_equal(mg_chat_request_parse(cut, n, NULL, &r, &f), MG_ERR_FORMAT);
        assert_string_equal(f.err.code, "invalid_json");
        assert_null(r);
        free(cut);
    }
    mg_chat_request_free(parse(whole));
}

/* A body with a picture, a long text and a long text with escapes, all over the length from which
 * strings are taken out. */
static char *long_body(size_t n_picture, size_t n_text) {
    char *body = malloc(n_picture + 2 * n_text + 1024), *at = body;
    at += sprintf(at,
                  "{\"unused\":\"%*s\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                  "\"image_url\",\"image_url\":\"data:image/png;base64,",
                  50, "");
    memset(at, 'Q', n_picture);
    at += n_picture;
    at += sprintf(at, "\"},\"");
    memset(at, 'a', n_text);
    at += n_text;
    at += sprintf(at, "\",\"\\n");
    memset(at, 'b', n_text);
    at += n_text;
    at += sprintf(at, "\"]}]}");
    return body;
}

static void long_strings_are_taken_out(void **state) {
    char *body = long_body(40000, 5000);
    struct mg_chat_request *r = parse(body);
    const struct mg_chat_part *p = r->message[0].part;
    assert_int_equal(p[0].source.n_bytes, 30000);
    assert_int_equal(p[0].source.bytes[29999], 0x10); /* "QQQQ": 41 04 10 */
    assert_int_equal(p[1].n_text, 5000);
    assert_int_equal(p[1].text[4999], 'a');
    assert_int_equal(p[1].text[5000], 0);
    assert_int_equal(p[2].n_text, 5001);
    assert_int_equal(p[2].text[0], '\n');
    mg_chat_request_free(r);
    /* Places are of the body, not of what jansson saw. */
    char *end = strstr(body, "]}]}"), want[32];
    snprintf(want, sizeof want, "at byte %zu", (size_t)(end - body) + 3);
    memcpy(end, "]}x}", 4);
    struct mg_fault f = refuse(body);
    assert_non_null(strstr(f.err.text, "at byte "));
    long place = strtol(strstr(f.err.text, "at byte ") + 8, NULL, 10);
    assert_in_range(place, end - body, end - body + 4);
    free(body);
    /* Not UTF-8 is found there too, unless nobody looks. */
    body = long_body(4000, 5000);
    char *a = strstr(body, "aaaa");
    a[100] = (char)0xFF;
    f = refuse(body);
    assert_string_equal(f.param, "messages[0].content[1]");
    assert_non_null(strstr(f.err.text, "UTF-8"));
    a[100] = 'a';
    char *b = strstr(body, "bbbb");
    b[100] = (char)0xFF;
    f = refuse(body);
    assert_string_equal(f.param, "messages[0].content[2]");
    b[100] = '\n';
    f = refuse(body);
    assert_non_null(strstr(f.err.text, "control character"));
    free(body);
    body = long_body(4000, 5000); /* nor behind a backslash, a zero byte least of all */
    b = strstr(body, "bbbb");
    size_t n_body = strlen(body);
    for (char c = 0; c < 0x20; c += 10) {
        struct mg_chat_request *none;
        f = (struct mg_fault){0};
        memcpy(b, (const char[]){'\\', c}, 2);
        assert_int_equal(mg_chat_request_parse(body, n_body, NULL, &none, &f), MG_ERR_FORMAT);
        assert_non_null(strstr(f.err.text, "control character"));
    }
    free(body);
    /* The stand-in can't be forged. */
    f = refuse(WITH("\"a\":\"\\u000000000000\""));
    assert_non_null(strstr(f.err.text, "zero byte"));
    mg_chat_request_free(parse(WITH("\"a\":\"\\\\u0000\"")));
    /* A long key is a key. */
    char *key = malloc(8000);
    int n = sprintf(key, "{\"messages\":[{\"role\":\"user\"}],\"%*s\" : 1}", 5000, "k");
    assert_int_equal(strlen(key), n);
    mg_chat_request_free(parse(key));
    free(key);
}

/* Long strings with each kind of escape give what short ones give, which jansson reads. */
static void escapes_in_long_strings(void **state) {
    static const char *const piece[] = {
        "a\\/b", "\\n\\r\\t\\b\\f", "\\\\\\\"", "\\u0041\\u002f\\u007F", "\\u0080", "\\u00e9\\n",
        "\\ud83d\\ude00", "\xC3\xA9\\/", "\\u0001",
        /* wrong */
        "\\x", "\\u12", "\\u12g4", "\\ud83d", "\xC3\\/", "\xFF\\u00e9"};
    for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
        struct mg_chat_request *r[2];
        enum mg_status status[2];
        char *fill = malloc(3001);
        memset(fill, 'x', 3000);
        fill[3000] = 0;
        for (int is_long = 0; is_long < 2; is_long++) {
            char body[4096];
            struct mg_fault f = {0};
            snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s%s\"}]}",
                     piece[i], is_long ? fill : "");
            status[is_long] = mg_chat_request_parse(body, strlen(body), NULL, &r[is_long], &f);
            if (status[is_long] != MG_OK) assert_string_equal(f.err.code, "invalid_json");
        }
        assert_int_equal(status[0], i < 9 ? MG_OK : MG_ERR_FORMAT);
        assert_int_equal(status[1], status[0]);
        if (status[0] == MG_OK) {
            const struct mg_chat_part *a = r[0]->message[0].part, *b = r[1]->message[0].part;
            assert_int_equal(b->n_text, a->n_text + 3000);
            assert_memory_equal(b->text, a->text, a->n_text);
            assert_string_equal(b->text + a->n_text, fill);
        }
        mg_chat_request_free(r[0]);
        mg_chat_request_free(r[1]);
        free(fill);
    }
}

static void memory_of_a_big_picture(void **state) {
    size_t n = (size_t)8 << 20;
    char *body = long_body(n, 0);
    alloc_fail_at(SIZE_MAX);
    struct mg_chat_request *r = parse(body);
    mg_chat_request_free(r);
    size_t peak = alloc_peak();
    assert_true(peak >= n / 4 * 3);
    assert_true(peak < n / 4 * 3 + 200000); /* the decoded picture and next to nothing else */
    /* PHP writes "\\/" for every slash: one copy more, no others. */
    memcpy(strstr(body, "QQQQ"), "\\/\\/", 4);
    alloc_fail_at(SIZE_MAX);
    mg_chat_request_free(parse(body));
    assert_true(alloc_peak() < n / 4 * 3 + n + 200000);
    free(body);
    /* Far over the limit: nothing is decoded. */
    struct mg_chat_limits limits = {.max_image_bytes = 1 << 20};
    struct mg_fault f = {0};
    body = long_body(n, 0);
    alloc_fail_at(SIZE_MAX);
    assert_int_equal(mg_chat_request_parse(body, strlen(body), &limits, &r, &f), MG_ERR_LIMIT);
    assert_string_equal(f.err.code, "image_too_large");
    assert_true(alloc_peak() < 200000);
    free(body);
}

static void limits_hold(void **state) {
    struct mg_chat_limits limits = {.max_image_bytes = 3, .max_images = 2};
    static const struct {
        const char *content;
        enum mg_status status;
        const char *code;
    } c[] = {
        {"{'type':'image_url','image_url':'QUJD'}", MG_OK, ""},
        {"{'type':'image_url','image_url':'QUJDQQ=='}", MG_ERR_LIMIT, "image_too_large"},
        {"{'type':'image','image':'QUJD'},{'type':'image','image':'QUJD'}", MG_OK, ""},
        {"{'type':'image','image':'QUJD'},{'type':'image','image':'QUJD'},"
         "{'type':'image','url':'http://a'}",
         MG_ERR_LIMIT, "too_many_images"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{'messages':[{'role':'user','content':[%s]}]}", c[i].content);
        char *q = quotes(body);
        struct mg_chat_request *r;
        struct mg_fault f = {0};
        assert_int_equal(mg_chat_request_parse(q, strlen(q), &limits, &r, &f), c[i].status);
        assert_string_equal(f.err.code, c[i].code);
        mg_chat_request_free(r);
        free(q);
    }
    char deep[400], *at = deep + sprintf(deep, "{\"a\":");
    for (int i = 0; i < 64; i++) *at++ = '[';
    for (int i = 0; i < 64; i++) *at++ = ']';
    strcpy(at, "}");
    struct mg_fault f = refuse(deep);
    assert_string_equal(f.err.code, "json_too_deep");
    size_t many = ((size_t)1 << 18) + 10;
    char *wide = malloc(2 * many + 20);
    at = wide + sprintf(wide, "{\"a\":[0");
    for (size_t i = 0; i < many; i++) at += sprintf(at, ",0");
    strcpy(at, "]}");
    f = refuse(wide);
    assert_string_equal(f.err.code, "json_too_large");
    assert_non_null(strstr(f.err.text, "more than 262144 values"));
    at = wide + sprintf(wide, "{\"a\":[[]");
    for (size_t i = 0; i < 32768; i++) at += sprintf(at, ",{}");
    strcpy(at, "]}");
    alloc_fail_at(SIZE_MAX);
    f = refuse(wide);
    assert_non_null(strstr(f.err.text, "more than 32768 objects"));
    assert_true(alloc_peak() < 200000); /* found before the tree is made */
    free(wide);
}

/* What the tree of the worst bodies within the limits takes. */
static void memory_of_hostile_bodies(void **state) {
    static const struct {
        const char *one;
        size_t n;
    } c[] = {{"{},", 32000}, {"[],", 32000}, {"0,", 260000}, {"\"\",", 260000}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char *body = malloc(c[i].n * strlen(c[i].one) + 100),
             *at = body + sprintf(body, "{\"a\":[");
        for (size_t k = 0; k < c[i].n; k++) at += sprintf(at, "%s", c[i].one);
        strcpy(at, "0]}");
        alloc_fail_at(SIZE_MAX);
        struct mg_fault f = refuse(body);
        assert_string_equal(f.param, "messages");
        assert_true(alloc_peak() < (size_t)40 << 20);
        free(body);
    }
}

/* Nothing of a request comes back in an error (faults.md, row 70): 2,000 damaged bodies that are
 * full of one word, and a path. */
static void errors_repeat_nothing(void **state) {
    static const char seed[] =
        "{\"model\":\"CANARY\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
        "\"image_url\",\"image_url\":{\"url\":\"file:///etc/"
        "CANARY\",\"detail\":\"low\"}},{\"type\":"
        "\"text\",\"text\":\"CANARY CANARY\"}]}],\"CANARY\":1,\"stop\":[\"CANARY\"],\"top_p\":0.5}";
    static const char put[] = "{}[]\",:\\x017eu\n*";
    uint32_t x = 1;
    size_t n_error = 0;
    for (int i = 0; i < 2000; i++) {
        char body[sizeof seed];
        memcpy(body, seed, sizeof seed);
        for (uint32_t k = 0; k <= (x >> 16) % 5; k++) {
            x = x * 1664525 + 1013904223;
            size_t at = (x >> 8) % (sizeof seed - 1);
            x = x * 1664525 + 1013904223;
            body[at] = put[(x >> 16) % (sizeof put - 1)];
        }
        struct mg_chat_request *r;
        struct mg_fault f = {0};
        if (mg_chat_request_parse(body, sizeof seed - 1, NULL, &r, &f) != MG_OK) {
            n_error++;
            assert_null(strstr(f.err.text, "CANARY"));
            assert_null(strstr(f.err.text, "etc"));
            assert_null(strstr(f.err.text, "0x"));
            assert_null(strstr(f.param, "CANARY"));
        }
        mg_chat_request_free(r);
    }
    assert_true(n_error > 1000);
}

static void every_allocation_may_fail(void **state) {
    char *body[2] = {strdup(whole), long_body(9000, 3000)};
    for (int i = 0; i < 2; i++) {
        bool done = false;
        size_t n = 0;
        for (; !done; n++) {
            struct mg_chat_request *r;
            struct mg_fault f = {0};
            alloc_fail_at(n);
            enum mg_status status = mg_chat_request_parse(body[i], strlen(body[i]), NULL, &r, &f);
            done = !alloc_has_failed();
            alloc_fail_at(SIZE_MAX);
            if (!done && status != MG_ERR_MEMORY) print_message("%zu: %s\n", n, f.err.text);
            assert_int_equal(status, done ? MG_OK : MG_ERR_MEMORY);
            if (!done) assert_string_equal(f.err.code, "out_of_memory");
            if (done) assert_non_null(r);
            if (!done) assert_null(r);
            mg_chat_request_free(r);
        }
        assert_true(n > 10);
        free(body[i]);
    }
}

static void a_picture_from_beside(void **state) {
    struct mg_chat_request *r = parse(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}");
    struct mg_fault f = {0};
    uint8_t *bytes = malloc(3);
    memcpy(bytes, "ABC", 3);
    char got[100];
    assert_int_equal(mg_chat_request_add_image_take(r, bytes, 3, &f), MG_OK);
    describe(r, got, sizeof got);
    assert_string_equal(got, "u:t(a)a:t(b)u:i(ABC)t(c)");
    assert_int_equal(r->n_image, 1);
    mg_chat_request_free(r);
    r = parse("{\"messages\":[{\"role\":\"system\",\"content\":\"a\"}]}");
    assert_int_equal(mg_chat_request_add_image_take(r, malloc(3), 3, &f), MG_ERR_ARGUMENT);
    mg_chat_request_free(r);
}

int main(void) {
    alloc_fail_at(SIZE_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_shapes),
        cmocka_unit_test(pictures_in_all_spellings),
        cmocka_unit_test(wishes_beside_a_picture),
        cmocka_unit_test(every_number_has_its_range),
        cmocka_unit_test(numbers_say_whether_they_were_given),
        cmocka_unit_test(preset_fast),
        cmocka_unit_test(numbers_beyond_64_bits),
        cmocka_unit_test(what_is_refused_and_how),
        cmocka_unit_test(cut_anywhere_is_an_error),
        cmocka_unit_test(long_strings_are_taken_out),
        cmocka_unit_test(escapes_in_long_strings),
        cmocka_unit_test(memory_of_a_big_picture),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(memory_of_hostile_bodies),
        cmocka_unit_test(errors_repeat_nothing),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_picture_from_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
