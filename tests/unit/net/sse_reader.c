/* Event streams as a client reads them: the standard's own examples, every cut, the limits. */
#include "net/sse_reader.h"
#include "net/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Events as "name=data|". */
static bool on_event(void *user, const char *name, const char *data, size_t n) {
    struct mg_buf *out = user;
    assert_int_equal(strlen(data), n);
    mg_buf_add_str(out, name);
    mg_buf_add_byte(out, '=');
    mg_buf_add(out, data, n);
    mg_buf_add_byte(out, '|');
    return strcmp(data, "stop") != 0;
}

static void check(const char *stream, const char *events) {
    for (size_t step = 1; step < 20; step++) {
        struct mg_buf out = {0};
        struct mg_sse_reader r = {.event = on_event, .user = &out};
        size_t n = strlen(stream);
        bool ok = true;
        mg_buf_add_str(&out, "");
        for (size_t at = 0; at < n && ok; at += step)
            ok = mg_sse_reader_feed(&r, (const uint8_t *)stream + at, mg_min_size(step, n - at));
        assert_true(ok || strstr(stream, "stop"));
        assert_string_equal(out.data ? (char *)out.data : "", events);
        assert_null(r.fault);
        mg_sse_reader_free(&r);
        mg_buf_free(&out);
    }
}

static void examples(void **state) {
    check("data: YHOO\ndata: +2\ndata: 10\n\n", "message=YHOO\n+2\n10|");
    check(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third\n\n",
          "message=first event|message=second event|message= third|");
    check("data\n\ndata\ndata\n\ndata:", "message=|message=\n|");
    check("data:test\n\ndata: test\n\n", "message=test|message=test|");
    check("event: add\ndata: 7\n\ndata: 8\n\nevent: none\n\ndata: 9\n\n",
          "add=7|message=8|message=9|");
}

static void line_ends(void **state) {
    check("data: a\r\n\r\ndata: b\r\rdata: c\n\n", "message=a|message=b|message=c|");
    check("data: a\r\ndata: b\r\n\r\n", "message=a\nb|");
    check("\xEF\xBB\xBF"
          "data: a\n\n",
          "message=a|");
    check("retry: 5\nunknown: x\ndata: a\n\n:\n\n\n\n", "message=a|");
    check("data: unfinished\n", "");
    check("data: a\n\ndata: stop\n\ndata: b\n\n", "message=a|message=stop|");
}

/* What sse.h writes is read back. */
static void both_ways(void **state) {
    struct mg_buf text = {0};
    mg_sse_format(&text, NULL, "one\ntwo", 7);
    mg_sse_format(&text, "error", "{}", 2);
    check((const char *)text.data, "message=one\ntwo|error={}|");
    mg_buf_free(&text);
}

static void limits(void **state) {
    struct mg_buf out = {0};
    struct mg_sse_reader r = {.event = on_event, .user = &out, .max_event = 100};
    char line[64];
    int n = snprintf(line, sizeof line, "data: %050d\n", 1);
    assert_true(mg_sse_reader_feed(&r, (uint8_t *)line, (size_t)n));
    assert_false(mg_sse_reader_feed(&r, (uint8_t *)line, (size_t)n)); /* an event over 100 bytes */
    assert_non_null(r.fault);
    mg_sse_reader_free(&r);
    r = (struct mg_sse_reader){.event = on_event, .user = &out, .max_event = 100};
    size_t fed = 0;
    while (mg_sse_reader_feed(&r, (const uint8_t *)"xxxxxxxxxx", 10) && fed < 1000) fed += 10;
    assert_int_equal(fed, 100); /* and a line */
    assert_non_null(r.fault);
    mg_sse_reader_free(&r);
    mg_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples),
        cmocka_unit_test(line_ends),
        cmocka_unit_test(both_ways),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
