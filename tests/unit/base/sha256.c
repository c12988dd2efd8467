/* SHA-256 and SHA-1 against the vectors of NIST (FIPS 180-4 examples and the byte-oriented short
 * messages of the CAVP set), git's names of blobs, and the hexadecimal text both ways. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define A56 "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"
#define A112                                                                                       \
    "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"             \
    "klmnopqrlmnopqrsmnopqrstnopqrstu"

static const struct {
    const char *text;
    size_t n;
    const char *sha256, *sha1; /* sha1 NULL: not in NIST's list for this text */
} vectors[] = {
    {"", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
    {"abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
     "a9993e364706816aba3e25717850c26c9cd0d89d"},
    {A56, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
     "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
    {A112, 112, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
     "a49b2446a02c645bf419f995b67091253a04a259"},
    {"\xd3", 1, "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1", NULL},
    {"\x11\xaf", 2, "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98", NULL},
};

static void nist_vectors(void **state) {
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint8_t digest[MG_SHA256_BYTES];
        char hex[MG_SHA256_HEX];
        assert_true(mg_sha256(vectors[i].text, vectors[i].n, digest));
        mg_hex(digest, MG_SHA256_BYTES, hex);
        assert_string_equal(hex, vectors[i].sha256);
        if (!vectors[i].sha1) continue;
        struct mg_sha1 h;
        mg_sha1_begin(&h);
        mg_sha1_update(&h, vectors[i].text, vectors[i].n);
        assert_true(mg_sha1_finish(&h, digest));
        mg_hex(digest, MG_SHA1_BYTES, hex);
        assert_string_equal(hex, vectors[i].sha1);
    }
}

/* A million letters "a", in pieces of every size. */
static void a_million_in_pieces(void **state) {
    static char letters[4096];
    memset(letters, 'a', sizeof letters);
    struct mg_sha256 h;
    struct mg_sha1 h1;
    mg_sha256_begin(&h);
    mg_sha1_begin(&h1);
    for (size_t left = 1000000, piece = 0; left; piece = (piece * 7 + 1) % sizeof letters) {
        size_t n = piece < left ? piece : left;
        mg_sha256_update(&h, letters, n);
        mg_sha1_update(&h1, letters, n);
        left -= n;
    }
    uint8_t digest[MG_SHA256_BYTES];
    char hex[MG_SHA256_HEX];
    assert_true(mg_sha256_finish(&h, digest));
    mg_hex(digest, MG_SHA256_BYTES, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    assert_true(mg_sha1_finish(&h1, digest));
    mg_hex(digest, MG_SHA1_BYTES, hex);
    assert_string_equal(hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

/* `printf 'hello\n' | git hash-object --stdin` and the empty blob. */
static void git_blob_names(void **state) {
    uint8_t digest[MG_SHA1_BYTES];
    char hex[MG_SHA1_HEX];
    struct mg_sha1 h;
    mg_sha1_begin_blob(&h, 6);
    mg_sha1_update(&h, "hello\n", 6);
    assert_true(mg_sha1_finish(&h, digest));
    mg_hex(digest, MG_SHA1_BYTES, hex);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    mg_sha1_begin_blob(&h, 0);
    assert_true(mg_sha1_finish(&h, digest));
    mg_hex(digest, MG_SHA1_BYTES, hex);
    assert_string_equal(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

static void dropped_and_unbegun(void **state) {
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    mg_sha256_update(&h, "abc", 3);
    mg_sha256_drop(&h);
    mg_sha256_drop(&h);
    mg_sha256_update(&h, "abc", 3); /* nothing to add to; finish tells */
    uint8_t digest[MG_SHA256_BYTES], zero[MG_SHA256_BYTES] = {0};
    assert_false(mg_sha256_finish(&h, digest));
    assert_memory_equal(digest, zero, sizeof zero);
}

static void hex_both_ways(void **state) {
    uint8_t bytes[4];
    char hex[9];
    assert_true(mg_hex_parse("00fFA9c3", bytes, 4));
    assert_memory_equal(bytes, "\x00\xff\xa9\xc3", 4);
    mg_hex(bytes, 4, hex);
    assert_string_equal(hex, "00ffa9c3");
    const char *wrong[] = {"", "00ffa9c", "00ffa9c3a", "00ffa9cg", " 0ffa9c3", "0", "00ffa9c3 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(mg_hex_parse(wrong[i], bytes, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nist_vectors),   cmocka_unit_test(a_million_in_pieces),
        cmocka_unit_test(git_blob_names), cmocka_unit_test(dropped_and_unbegun),
        cmocka_unit_test(hex_both_ways),
    };
    return cmocka_run_group_tests_name("base.sha256", tests, NULL, NULL);
}
