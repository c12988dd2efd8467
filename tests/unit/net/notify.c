/* Tests of net/notify.c: addresses, the environment, a manager that is away. */
#include "net/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void from(const char *address, const char *us, const char *pid) {
    setenv("NOTIFY_SOCKET", address, 1);
    setenv("WATCHDOG_USEC", us, 1);
    setenv("WATCHDOG_PID", pid, 1);
}

static void test_environment_is_taken(void **state) {
    struct mg_notify n;
    struct mg_err err = {0};
    char pid[32];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    from("/nowhere/socket", "2500000", pid);
    assert_int_equal(mg_notify_open(&n, &err), MG_OK);
    assert_true(n.fd >= 0 && n.watchdog_seconds > 2.49 && n.watchdog_seconds < 2.51);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_null(getenv("WATCHDOG_PID"));
    assert_false(mg_notify_send(&n, "READY=1")); /* nobody is there */
    mg_notify_close(&n);
    assert_int_equal(n.fd, -1);
    assert_true(mg_notify_send(&n, "READY=1"));
}

static void test_wrong_numbers(void **state) {
    struct mg_notify n;
    struct mg_err err = {0};
    static const char *const bad[] = {"-1", "", " 5", "5x", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        from("@name", bad[i], "1");
        unsetenv("WATCHDOG_PID");
        assert_int_equal(mg_notify_open(&n, &err), MG_OK);
        assert_true(n.watchdog_seconds == 0);
        mg_notify_close(&n);
        from("@name", "1000000", bad[i]);
        assert_int_equal(mg_notify_open(&n, &err), MG_OK);
        assert_true(n.watchdog_seconds == 0);
        mg_notify_close(&n);
    }
}

static void test_nobody(void **state) {
    struct mg_notify n;
    struct mg_err err = {0};
    unsetenv("NOTIFY_SOCKET");
    setenv("WATCHDOG_USEC", "1000000", 1);
    assert_int_equal(mg_notify_open(&n, &err), MG_OK);
    assert_true(n.fd == -1 && n.watchdog_seconds == 0);
    assert_true(mg_notify_send(&n, "READY=1"));
    mg_notify_close(&n);
}

static void test_lengths(void **state) {
    struct mg_notify n;
    struct mg_err err = {0};
    char name[200];
    for (size_t len = 2; len < 120; len++) {
        for (int i = 0; i < 2; i++) {
            memset(name, 'x', len);
            name[0] = i ? '@' : '/';
            name[len] = 0;
            from(name, "0", "0");
            enum mg_status status = mg_notify_open(&n, &err);
            assert_int_equal(status == MG_OK, len < sizeof n.to.sun_path);
            assert_int_equal(n.fd >= 0, status == MG_OK);
            mg_notify_close(&n);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment_is_taken),
        cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
