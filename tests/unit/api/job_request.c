/* Pictures are taken out of a request, each once, and nothing else is touched. */
#include "api/job_request.h"
#include "base/base64.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3000 };

static char *encoded(int seed) {
    uint8_t bytes[N];
    char *out = calloc(1, mg_base64_length(N) + 1);
    for (size_t i = 0; i < N; i++) bytes[i] = (uint8_t)(i * 31 + (size_t)seed);
    mg_base64_encode(bytes, N, out);
    return out;
}

static struct mg_job_request *parse(const struct mg_buf *b) {
    struct mg_job_request *r = NULL;
    struct mg_fault f = {0};
    assert_int_equal(mg_job_request_parse((char *)b->data, b->n, 1 << 20, &r, &f), MG_OK);
    return r;
}

static void pictures_go_and_the_rest_stays(void **state) {
    char *one = encoded(1), *two = encoded(2), *text = encoded(1);
    struct mg_buf b = {0};
    mg_buf_printf(
        &b,
        "{ \"odd\" : [1, 2.50],\"stream\":true, \"messages\":[{\"role\":\"user\",\"content\":["
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,%s\"}},"
        "{\"type\":\"text\",\"text\":\"data:image/png;base64,%s\"},"
        "{\"type\":\"image_url\",\"image_url\":\"%s\"},"
        "{\"type\":\"image_url\",\"image_url\":\"margay-file:file-abc\"},"
        "{\"type\":\"image_file\",\"image_file\":{\"file_id\":\"file-abc\"}},"
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}}]}]}",
        one, text, two, one);
    struct mg_job_request *r = parse(&b);
    assert_true(r->stream);
    assert_int_equal(r->n_picture, 3);
    assert_int_equal(r->picture[0].n, N);
    assert_int_equal(r->picture[1].n, N);
    assert_null(r->picture[2].bytes);
    assert_string_equal(r->picture[2].name, "file-abc");
    char wanted[8192];
    snprintf(wanted, sizeof wanted,
             "{ \"odd\" : [1, 2.50],\"stream\":true, \"messages\":[{\"role\":\"user\",\"content\":["
             "{\"type\":\"image_url\",\"image_url\":{\"url\":\"margay-file:%s\"}},"
             "{\"type\":\"text\",\"text\":\"data:image/png;base64,%s\"},"
             "{\"type\":\"image_url\",\"image_url\":\"margay-file:%s\"},"
             "{\"type\":\"image_url\",\"image_url\":\"margay-file:file-abc\"},"
             "{\"type\":\"image_file\",\"image_file\":{\"file_id\":\"file-abc\"}},"
             "{\"type\":\"image_url\",\"image_url\":{\"url\":\"margay-file:%s\"}}]}]}",
             r->picture[0].name, text, r->picture[1].name, r->picture[0].name);
    assert_string_equal((char *)r->body.data, wanted);
    assert_memory_equal(r->picture[0].name, "file-", 5);
    assert_memory_equal(r->picture[0].name + 5, r->picture[0].digest, 32);
    mg_job_request_free(r);
    mg_buf_free(&b);
    free(one);
    free(two);
    free(text);
    (void)state;
}

static void slashes_with_backslashes_and_what_is_no_picture(void **state) {
    char *one = encoded(3);
    struct mg_buf b = {0};
    mg_buf_add_str(&b, "{\"messages\":[{\"content\":[{\"image_url\":\"data:image\\/png;base64,");
    for (char *c = one; *c; c++) mg_buf_printf(&b, *c == '/' ? "\\%c" : "%c", *c);
    mg_buf_printf(
        &b, "\"},{\"type\":\"image_url\",\"image_url\":\"data:image/png;base64,!%s\"}]}]}", one);
    struct mg_job_request *r = parse(&b);
    assert_int_equal(r->n_picture, 1);
    assert_int_equal(r->picture[0].n, N);
    json_t *root = json_loadb((char *)r->body.data, r->body.n, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    assert_non_null(strstr((char *)r->body.data, "base64,!")); /* for the worker to refuse */
    mg_job_request_free(r);
    mg_buf_free(&b);
    free(one);
    (void)state;
}

static void what_is_no_json_is_refused_and_other_bodies_pass(void **state) {
    struct mg_job_request *r;
    struct mg_fault f = {0};
    assert_int_not_equal(mg_job_request_parse("{\"a\":", 5, 100, &r, &f), MG_OK);
    assert_null(r);
    static const char *const any[] = {"{}", "{\"messages\":7}",
                                      "{\"messages\":[7,{\"content\":[1]}]}",
                                      "{\"content\":\"tokens\",\"stream\":1}"};
    for (size_t i = 0; i < 4; i++) {
        f = (struct mg_fault){0};
        assert_int_equal(mg_job_request_parse(any[i], strlen(any[i]), 100, &r, &f), MG_OK);
        assert_string_equal((char *)r->body.data, any[i]);
        assert_false(r->stream);
        mg_job_request_free(r);
    }
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_go_and_the_rest_stays),
        cmocka_unit_test(slashes_with_backslashes_and_what_is_no_picture),
        cmocka_unit_test(what_is_no_json_is_refused_and_other_bodies_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
