/* Files on their way: pieces, going on after a stop, and states that are not believed. */
#include "net/part.h"

#include "base/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[96], part_path[128], state_path[128];

static int make_dir(void **state) {
    strcpy(dir, "/tmp/margay-test-part-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/f", dir);
    snprintf(part_path, sizeof part_path, "%s.part", path);
    snprintf(state_path, sizeof state_path, "%s.part.state", path);
    return 0;
}

static int remove_dir(void **state) {
    unlink(path), unlink(part_path), unlink(state_path);
    return rmdir(dir);
}

static void open_part(struct mg_part *p, uint64_t size, const char *identity) {
    struct mg_err err = {0};
    if (mg_part_open(p, path, size, 10, identity, &err)) fail_msg("%s", err.text);
}

static void pieces_fill_and_finish(void **state) {
    struct mg_part p;
    struct mg_err err = {0};
    open_part(&p, 25, "sha256:1");
    assert_int_equal(p.n_piece, 3);
    assert_int_equal(mg_part_begin(&p, 2), 20);
    assert_int_equal(mg_part_end(&p, 2), 25);
    assert_int_equal(mg_part_write(&p, 2, "uvwxy", 5, &err), MG_OK);
    assert_int_equal(mg_part_write(&p, 0, "abc", 3, &err), MG_OK);
    assert_int_equal(mg_part_write(&p, 0, "defg", 4, &err), MG_OK);
    assert_int_equal(mg_part_done(&p), 12);
    mg_part_close(&p);

    open_part(&p, 25, "sha256:1"); /* as after a kill */
    assert_int_equal(p.got[0], 7);
    assert_int_equal(p.got[1], 0);
    assert_int_equal(p.got[2], 5);
    assert_int_equal(mg_part_write(&p, 0, "hij", 3, &err), MG_OK);
    assert_int_equal(mg_part_write(&p, 1, "klmnopqrst", 10, &err), MG_OK);
    assert_int_equal(mg_part_done(&p), 25);
    assert_int_equal(mg_part_finish(&p, &err), MG_OK);
    mg_part_close(&p);
    struct mg_buf b = {0};
    assert_int_equal(mg_file_read(path, 100, &b, &err), MG_OK);
    assert_int_equal(b.n, 25);
    assert_memory_equal(b.data, "abcdefghijklmnopqrstuvwxy", 25);
    mg_buf_free(&b);
    assert_int_not_equal(access(part_path, F_OK), 0);
    assert_int_not_equal(access(state_path, F_OK), 0);
}

/* Leaves a part with 12 bytes there. */
static void leave(void) {
    struct mg_part p;
    unlink(part_path), unlink(state_path);
    open_part(&p, 25, "sha256:1");
    mg_part_write(&p, 1, "abcdefghij", 10, NULL);
    mg_part_write(&p, 2, "xy", 2, NULL);
    mg_part_close(&p);
}

static uint64_t done_after(uint64_t size, const char *identity) {
    struct mg_part p;
    open_part(&p, size, identity);
    uint64_t done = mg_part_done(&p);
    mg_part_close(&p);
    return done;
}

static void another_file_begins_anew(void **state) {
    leave();
    assert_int_equal(done_after(25, "sha256:1"), 12);
    leave();
    assert_int_equal(done_after(25, "sha256:2"), 0);
    leave();
    assert_int_equal(done_after(25, "sha256:11"), 0);
    leave();
    assert_int_equal(done_after(26, "sha256:1"), 0);
    leave();
    assert_int_equal(truncate(part_path, 24), 0);
    assert_int_equal(done_after(25, "sha256:1"), 0);
    leave();
    assert_int_equal(unlink(state_path), 0);
    assert_int_equal(done_after(25, "sha256:1"), 0);
    leave();
    assert_int_equal(unlink(part_path), 0);
    assert_int_equal(done_after(25, "sha256:1"), 0);
}

/* Every state with one byte changed, and every one that is cut: never more than the state of the
 * whole, never out of bounds. */
static void damaged_states(void **state) {
    struct mg_err err = {0};
    struct mg_buf good = {0};
    leave();
    assert_int_equal(mg_file_read(state_path, 1000, &good, &err), MG_OK);
    for (size_t i = 0; i < good.n; i++)
        for (int kind = 0; kind < 4; kind++) {
            struct mg_part p;
            leave();
            uint8_t text[1000];
            memcpy(text, good.data, good.n);
            text[i] = (uint8_t) "9\0x\n"[kind];
            mg_file_write(state_path, text, kind == 1 ? i : good.n, &err);
            open_part(&p, 25, "sha256:1");
            for (size_t k = 0; k < p.n_piece; k++)
                assert_true(mg_part_begin(&p, k) + p.got[k] <= mg_part_end(&p, k));
            mg_part_close(&p);
        }
    mg_buf_free(&good);
}

static void restart_and_discard(void **state) {
    struct mg_part p;
    struct mg_err err = {0};
    leave();
    open_part(&p, 25, "sha256:1");
    assert_int_equal(mg_part_restart(&p, 25, &err), MG_OK);
    assert_int_equal(p.n_piece, 1);
    assert_int_equal(mg_part_done(&p), 0);
    mg_part_close(&p);
    open_part(&p, 25, "sha256:1"); /* the piece's length is the state's */
    assert_int_equal(p.n_piece, 1);
    mg_part_discard(&p);
    mg_part_close(&p);
    assert_int_not_equal(access(part_path, F_OK), 0);
    assert_int_not_equal(access(state_path, F_OK), 0);
    open_part(&p, 0, "git:0");
    assert_int_equal(p.n_piece, 0);
    assert_int_equal(mg_part_finish(&p, &err), MG_OK);
    mg_part_close(&p);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 0);
}

static void links_are_not_followed(void **state) {
    struct mg_part p;
    struct mg_err err = {0};
    unlink(part_path), unlink(state_path);
    assert_int_equal(symlink("/tmp/margay-must-not-appear", part_path), 0);
    assert_int_not_equal(mg_part_open(&p, path, 25, 10, "sha256:1", &err), MG_OK);
    mg_part_close(&p);
    assert_int_not_equal(access("/tmp/margay-must-not-appear", F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_fill_and_finish), cmocka_unit_test(another_file_begins_anew),
        cmocka_unit_test(damaged_states),         cmocka_unit_test(restart_and_discard),
        cmocka_unit_test(links_are_not_followed),
    };
    return cmocka_run_group_tests_name("net.part", tests, make_dir, remove_dir);
}
