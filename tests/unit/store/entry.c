/* Kept entries: what was written is read; whatever is cut, longer, of another key or has one bit
 * changed is not, and says why. */
#include "store/entry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_HEAD = 16, N_BODY = 100 };

struct sample {
    struct mg_store_key key;
    uint8_t front[MG_ENTRY_MAX], head[MG_ENTRY_MAX_HEAD], body[N_BODY];
    size_t n;
};

static struct sample sample(size_t n_head, size_t n_body) {
    struct sample s = {.key.kind = MG_STORE_ANSWER};
    for (size_t i = 0; i < sizeof s.key.tenant; i++) s.key.tenant[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < MG_SHA256_BYTES; i++) {
        s.key.model[i] = (uint8_t)(i * 3 + 1);
        s.key.digest[i] = (uint8_t)(i * 5 + 2);
    }
    for (size_t i = 0; i < sizeof s.head; i++) s.head[i] = (uint8_t)(200 - i);
    for (size_t i = 0; i < sizeof s.body; i++) s.body[i] = (uint8_t)(i * i);
    assert_true(
        mg_entry_write(&s.key, 1764700000, 32, s.head, n_head, s.body, n_body, s.front, &s.n));
    return s;
}

/* NULL: it is taken. The copies have exactly their size, for the address sanitizer. */
static const char *refusal(const struct mg_store_key *key, const uint8_t *front, size_t n,
                           const uint8_t *body, size_t n_body, struct mg_entry *e) {
    static struct mg_err err;
    uint8_t *a = malloc(n + !n), *b = malloc(n_body + !n_body);
    assert_true(a && b);
    memcpy(a, front, n);
    memcpy(b, body, n_body);
    err = (struct mg_err){0};
    enum mg_status st = mg_entry_parse(a, n, key, N_BODY, e, &err);
    if (st == MG_OK && e->n_body != n_body) st = mg_fail(&err, MG_ERR_FORMAT, "body", "length");
    if (st == MG_OK) st = mg_entry_check(e, key, b, &err);
    free(a);
    free(b);
    assert_int_equal(st, err.status);
    return st == MG_OK ? NULL : err.code;
}

static void round_trip(void **state) {
    (void)state;
    for (size_t h = 0; h <= MG_ENTRY_MAX_HEAD; h += 16)
        for (size_t b = 0; b <= N_BODY; b++) {
            struct sample s = sample(h, b);
            struct mg_entry e;
            assert_int_equal(s.n, MG_ENTRY_FIXED + h);
            assert_null(refusal(&s.key, s.front, s.n, s.body, b, &e));
            assert_int_equal(e.made, 1764700000);
            assert_int_equal(e.n_head, h);
            assert_int_equal(e.n_body, b);
            assert_memory_equal(e.head, s.head, h);
            size_t all = 0, n = mg_entry_pieces(&e);
            for (size_t i = 0; i < n; i++) {
                assert_true(mg_entry_piece(&e, i) > 0 && mg_entry_piece(&e, i) <= 32);
                all += mg_entry_piece(&e, i);
            }
            assert_int_equal(all, b);
        }
}

static void cut_or_longer(void **state) {
    (void)state;
    struct sample s = sample(N_HEAD, N_BODY);
    struct mg_entry e;
    for (size_t n = 0; n < s.n; n++)
        assert_string_equal(refusal(&s.key, s.front, n, s.body, N_BODY, &e), "entry_length");
    for (size_t n = s.n + 1; n <= sizeof s.front; n++)
        assert_string_equal(refusal(&s.key, s.front, n, s.body, N_BODY, &e), "entry_length");
    for (size_t n = 0; n < N_BODY; n++)
        assert_string_equal(refusal(&s.key, s.front, s.n, s.body, n, &e), "body");
    struct mg_err err = {0};
    assert_int_equal(mg_entry_parse(s.front, s.n, &s.key, N_BODY - 1, &e, &err), MG_ERR_FORMAT);
    assert_string_equal(err.code, "entry_shape");
    uint8_t large[MG_ENTRY_MAX + 1] = {0};
    memcpy(large, s.front, s.n);
    assert_int_equal(mg_entry_parse(large, sizeof large, &s.key, N_BODY, &e, NULL), MG_ERR_FORMAT);
}

/* Every bit of the front and of the body. */
static void flipped(void **state) {
    (void)state;
    struct sample s = sample(N_HEAD, N_BODY);
    struct mg_entry e;
    for (size_t i = 0; i < 8 * (s.n + N_BODY); i++) {
        uint8_t *byte = i / 8 < s.n ? &s.front[i / 8] : &s.body[i / 8 - s.n];
        *byte ^= (uint8_t)(1 << i % 8);
        const char *code = refusal(&s.key, s.front, s.n, s.body, N_BODY, &e);
        if (!code) fail_msg("bit %zu is not missed", i);
        const char *want = i / 8 < 8     ? "entry_magic"
                           : i / 8 < 12  ? "entry_version"
                           : i / 8 < 96  ? "entry_key"
                           : i / 8 < 104 ? NULL
                           : i / 8 < 120 ? NULL
                                         : "entry_digest";
        if (want) assert_string_equal(code, want);
        *byte ^= (uint8_t)(1 << i % 8);
    }
    assert_null(refusal(&s.key, s.front, s.n, s.body, N_BODY, &e));
}

/* Right in itself, but not what was asked for. */
static void of_another_key(void **state) {
    (void)state;
    struct sample s = sample(N_HEAD, N_BODY);
    struct mg_entry e;
    struct mg_store_key k = s.key;
    k.kind = MG_STORE_PICTURE;
    assert_string_equal(refusal(&k, s.front, s.n, s.body, N_BODY, &e), "entry_key");
    for (size_t i = 0; i < MG_STORE_TENANT + 2 * MG_SHA256_BYTES; i++) {
        k = s.key;
        uint8_t *byte = i < 16 ? &k.tenant[i] : i < 48 ? &k.model[i - 16] : &k.digest[i - 48];
        *byte ^= 0x80;
        assert_string_equal(refusal(&k, s.front, s.n, s.body, N_BODY, &e), "entry_key");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip),
                                       cmocka_unit_test(cut_or_longer), cmocka_unit_test(flipped),
                                       cmocka_unit_test(of_another_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
