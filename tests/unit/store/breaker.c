/* The breaker by a made-up clock: when it opens, when it probes, when it closes, and what it takes
 * no notice of. */
#include "store/breaker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct mg_breaker closed(double now) {
    struct mg_breaker b;
    mg_breaker_init(&b, now);
    assert_false(mg_breaker_allows(&b)); /* nothing is known yet */
    assert_true(mg_breaker_probe(&b, now));
    mg_breaker_success(&b, true);
    assert_true(mg_breaker_allows(&b));
    return b;
}

static void opens(void **state) {
    (void)state;
    struct mg_breaker b = closed(100);
    for (unsigned i = 1; i < MG_BREAKER_THRESHOLD; i++) {
        mg_breaker_failure(&b, false, 101);
        assert_true(mg_breaker_allows(&b));
    }
    mg_breaker_success(&b, false); /* only failures in a row count */
    for (unsigned i = 1; i < MG_BREAKER_THRESHOLD; i++) mg_breaker_failure(&b, false, 102);
    assert_true(mg_breaker_allows(&b));
    mg_breaker_failure(&b, false, 103);
    assert_false(mg_breaker_allows(&b));
    assert_false(mg_breaker_probe(&b, 103));
    assert_false(mg_breaker_probe(&b, 103 + MG_BREAKER_FIRST - 0.001));
    assert_true(mg_breaker_probe(&b, 103 + MG_BREAKER_FIRST));
    assert_int_equal(b.state, MG_BREAKER_HALF_OPEN);
    assert_false(mg_breaker_allows(&b));
    assert_false(mg_breaker_probe(&b, 200)); /* one at a time */
    mg_breaker_success(&b, true);
    assert_true(mg_breaker_allows(&b));
}

/* What was under way when it opened, or ends beside the probe, changes nothing. */
static void late_calls(void **state) {
    (void)state;
    struct mg_breaker b = closed(0);
    for (unsigned i = 0; i < MG_BREAKER_THRESHOLD; i++) mg_breaker_failure(&b, false, 1);
    double next = b.next;
    mg_breaker_success(&b, false);
    mg_breaker_failure(&b, false, 50);
    assert_int_equal(b.state, MG_BREAKER_OPEN);
    assert_true(b.next == next);
    assert_true(mg_breaker_probe(&b, next));
    mg_breaker_success(&b, false);
    mg_breaker_failure(&b, false, 50);
    assert_int_equal(b.state, MG_BREAKER_HALF_OPEN);
    mg_breaker_failure(&b, true, 60);
    assert_int_equal(b.state, MG_BREAKER_OPEN);
    assert_true(b.next > 60);
}

/* Away for long: probes become rarer, but the server's return is noticed within MG_BREAKER_MOST;
 * afterwards it begins with short waits again. */
static void away_for_long(void **state) {
    (void)state;
    struct mg_breaker b = closed(0);
    for (unsigned i = 0; i < MG_BREAKER_THRESHOLD; i++) mg_breaker_failure(&b, false, 10);
    double now = 10, longest = 0;
    int n = 0;
    for (double at = 10; at < 110; at += 0.01)
        if (mg_breaker_probe(&b, at)) {
            if (at - now > longest) longest = at - now;
            now = at;
            n++;
            mg_breaker_failure(&b, true, at);
            assert_true(b.next - at <= MG_BREAKER_MOST);
        }
    assert_true(longest <= MG_BREAKER_MOST + 0.02);
    assert_true(n >= 45 && n <= 60); /* a hundred seconds */
    assert_true(mg_breaker_probe(&b, b.next));
    mg_breaker_success(&b, true);
    for (unsigned i = 0; i < MG_BREAKER_THRESHOLD; i++) mg_breaker_failure(&b, false, 200);
    assert_true(b.next == 200 + MG_BREAKER_FIRST);
}

/* Away from the beginning. */
static void never_there(void **state) {
    (void)state;
    struct mg_breaker b;
    mg_breaker_init(&b, 5);
    assert_true(mg_breaker_probe(&b, 5));
    mg_breaker_failure(&b, true, 5.2);
    assert_false(mg_breaker_allows(&b));
    assert_false(mg_breaker_probe(&b, 5.2));
    assert_true(mg_breaker_probe(&b, 5.2 + MG_BREAKER_FIRST));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(opens), cmocka_unit_test(late_calls),
                                       cmocka_unit_test(away_for_long),
                                       cmocka_unit_test(never_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
