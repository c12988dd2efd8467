/* Tests of server/manager.c with a made-up clock: when a sign of life is sent and when it is not.
 */
#include "server/manager.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int inbox;

static void open_pair(struct mg_manager *m, const char *watchdog_us) {
    char name[64];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(name, sizeof name, "@margay-unit-%ld", (long)getpid());
    inbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    memcpy(a.sun_path + 1, name + 1, (size_t)n - 1);
    assert_int_equal(bind(inbox, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
                     0);
    setenv("NOTIFY_SOCKET", name, 1);
    setenv("WATCHDOG_USEC", watchdog_us, 1);
    unsetenv("WATCHDOG_PID");
    mg_manager_open(m);
    m->alive = 0;
}

/* How many datagrams of this text have come since the last call; others are dropped. */
static int came(const char *text) {
    char got[256];
    int count = 0;
    ssize_t n;
    while ((n = recv(inbox, got, sizeof got - 1, 0)) >= 0) {
        got[n] = 0;
        count += !strcmp(got, text);
    }
    return count;
}

static void test_ready_once(void **state) {
    struct mg_manager m;
    open_pair(&m, "0");
    assert_int_equal(came("STATUS=loading the model"), 1);
    double next = mg_manager_tick(&m, &(struct mg_manager_state){.ready = false}, 0);
    assert_int_equal(came("READY=1"), 0);
    assert_true(next > 0 && next < 0.2); /* READY=1 soon after it is */
    next = mg_manager_tick(&m, &(struct mg_manager_state){.ready = true}, 1);
    assert_int_equal(came("READY=1"), 1);
    assert_true(next > 0.5);
    mg_manager_tick(&m, &(struct mg_manager_state){.ready = true}, 2);
    assert_int_equal(came("READY=1"), 0);
    mg_manager_close(&m);
    close(inbox);
}

static void test_stalled_is_silent(void **state) {
    struct mg_manager m;
    open_pair(&m, "8000000");
    struct mg_manager_state s = {.ready = true};
    int signs = 0;
    double now = 0;
    for (int i = 0; i < 20; i++) {
        double next = mg_manager_tick(&m, &s, now);
        assert_true(next > 0 && next <= 2);
        now += next;
        signs += came("WATCHDOG=1"); /* the socket has room for ten */
    }
    assert_true(signs >= (int)(now / 8) * 2); /* well within the time */
    s.stalled = true;
    for (int i = 0; i < 20; i++) {
        now += mg_manager_tick(&m, &s, now);
        assert_int_equal(came("WATCHDOG=1"), 0);
    }
    s.stalled = false;
    mg_manager_tick(&m, &s, now);
    assert_int_equal(came("WATCHDOG=1"), 1);
    mg_manager_close(&m);
    close(inbox);
}

static void test_stop_and_reload(void **state) {
    struct mg_manager m;
    open_pair(&m, "0");
    mg_manager_reload(&m, true); /* before it is ready nothing may say that it is */
    mg_manager_reload(&m, false);
    assert_int_equal(came("READY=1"), 0);
    struct mg_manager_state s = {.ready = true};
    mg_manager_tick(&m, &s, 0);
    came("");
    mg_manager_reload(&m, true);
    mg_manager_reload(&m, false);
    assert_int_equal(came("READY=1"), 1);
    mg_manager_stop(&m);
    mg_manager_stop(&m);
    s.stopping = true;
    mg_manager_tick(&m, &s, 1);
    assert_int_equal(came("STOPPING=1"), 1);
    mg_manager_reload(&m, false);
    assert_int_equal(came("READY=1"), 0);
    mg_manager_close(&m);
    close(inbox);
}

static void test_stopped_while_warming(void **state) {
    struct mg_manager m;
    open_pair(&m, "0");
    struct mg_manager_state s = {.ready = true, .stopping = true};
    mg_manager_tick(&m, &s, 0);
    assert_int_equal(came("READY=1"), 0);
    mg_manager_close(&m);
    close(inbox);
    unsetenv("NOTIFY_SOCKET");
    mg_manager_open(&m);
    assert_true(mg_manager_tick(&m, &s, 0) == 0); /* nobody to tell: no timer */
    mg_manager_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_once),
        cmocka_unit_test(test_stalled_is_silent),
        cmocka_unit_test(test_stop_and_reload),
        cmocka_unit_test(test_stopped_while_warming),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
