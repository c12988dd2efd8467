/* Addresses of Redis servers: what is read from them, what is refused, and that no text shows the
 * password. */
#include "store/redis_url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void taken(void **state) {
    static const struct {
        const char *text, *host, *port, *user, *password;
        bool tls, has_password;
        int database;
        const char *shown;
    } good[] = {
        {"redis://h", "h", "6379", "", "", false, false, 0, "redis://h:6379/0"},
        {"redis://h/", "h", "6379", "", "", false, false, 0, "redis://h:6379/0"},
        {"REDIS://10.0.0.1:1/15", "10.0.0.1", "1", "", "", false, false, 15,
         "redis://10.0.0.1:1/15"},
        {"rediss://u:p@h.example:65535/3", "h.example", "65535", "u", "p", true, true, 3,
         "rediss://u@h.example:65535/3"},
        {"redis://:secret@[::1]:7000", "::1", "7000", "", "secret", false, true, 0,
         "redis://[::1]:7000/0"},
        {"redis://:@h", "h", "6379", "", "", false, true, 0, "redis://h:6379/0"},
        {"redis://a%40b:x%2Fy%3a%25@h", "h", "6379", "a@b", "x/y:%", false, true, 0,
         "redis://a@b@h:6379/0"},
        {"redis://u:p:q@r@h", "h", "6379", "u", "p:q@r", false, true, 0, "redis://u@h:6379/0"},
        {"redis://a%0a:p@h", "h", "6379", "a\n", "p", false, true, 0, "redis://a?@h:6379/0"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct mg_redis_url u;
        struct mg_err err = {0};
        char shown[320];
        if (mg_redis_url_parse(good[i].text, &u, &err)) fail_msg("%s: %s", good[i].text, err.text);
        assert_string_equal(u.host, good[i].host);
        assert_string_equal(u.port, good[i].port);
        assert_string_equal(u.user, good[i].user);
        assert_string_equal(u.password, good[i].password);
        assert_int_equal(u.tls, good[i].tls);
        assert_int_equal(u.has_password, good[i].has_password);
        assert_int_equal(u.database, good[i].database);
        mg_redis_url_show(&u, shown, sizeof shown);
        assert_string_equal(shown, good[i].shown);
    }
}

static void refused(void **state) {
    static const char *const bad[] = {
        "",
        "h:6379",
        "http://h",
        "redis:/h",
        "redis://",
        "redis:///0",
        "redis://:6379",
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:99999999999999999999",
        "redis://h:1x",
        "redis://h x",
        "redis://h\n",
        "redis://h/x",
        "redis://h/1/2",
        "redis://h/-1",
        "redis://h/99999999999999999999",
        "redis://h?db=1",
        "redis://h#1",
        "redis://[::1",
        "redis://[]",
        "redis://[::1]x",
        "redis://[h]",
        "redis://canary@h",
        "redis://u:canary%@h",
        "redis://u:canary%2@h",
        "redis://u:canary%zz@h",
        "redis://u:canary%00@h",
        "redis://u:canary@",
        "redis://u:canary@h:x",
        "redis://u:canary@h/x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mg_redis_url u;
        struct mg_err err = {0};
        if (mg_redis_url_parse(bad[i], &u, &err) != MG_ERR_ARGUMENT) fail_msg("taken: %s", bad[i]);
        assert_string_equal(err.code, "redis_url");
        assert_null(strstr(err.text, "canary"));
    }
}

/* Each part at the length that just fits, and one more. */
static void lengths(void **state) {
    static const struct {
        const char *before, *after;
        size_t most;
    } part[] = {{"redis://", "", 255}, {"redis://", ":p@h", 255}, {"redis://u:", "@h", 511}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        for (size_t more = 0; more < 2; more++) {
            char text[1024], middle[600] = {0};
            struct mg_redis_url u;
            memset(middle, 'a', part[i].most + more);
            snprintf(text, sizeof text, "%s%s%s", part[i].before, middle, part[i].after);
            assert_int_equal(mg_redis_url_parse(text, &u, NULL), more ? MG_ERR_ARGUMENT : MG_OK);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken), cmocka_unit_test(refused),
                                       cmocka_unit_test(lengths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
