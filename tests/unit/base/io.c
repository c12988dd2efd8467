/* Mappings, whole files with a cap, complete writes (full disk included), the memory figures. */
#include "base/io.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static const char *in_dir(const char *name) {
    static char path[4][256];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int make_dir(void **state) {
    strcpy(dir, "/tmp/margay-test-io-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void write_then_read_and_map(void **state) {
    struct mg_err err = {0};
    uint8_t data[100000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(mg_file_write(in_dir("a"), "old", 3, &err), MG_OK);
    assert_int_equal(mg_file_write(in_dir("a"), data, sizeof data, &err), MG_OK); /* replaces */
    struct mg_buf b = {0};
    assert_int_equal(mg_file_read(in_dir("a"), sizeof data, &b, &err), MG_OK);
    assert_int_equal(b.n, sizeof data);
    assert_memory_equal(b.data, data, sizeof data);
    mg_buf_free(&b);
    struct mg_map map;
    assert_int_equal(mg_map_open(in_dir("a"), &map, &err), MG_OK);
    assert_int_equal(map.n, sizeof data);
    assert_memory_equal(map.data, data, sizeof data);
    mg_map_close(&map);
    assert_null(map.data);
    mg_map_close(&map); /* twice is fine */
}

static void read_limit(void **state) {
    struct mg_err err = {0};
    struct mg_buf b = {0};
    mg_file_write(in_dir("ten"), "0123456789", 10, &err);
    assert_int_equal(mg_file_read(in_dir("ten"), 9, &b, &err), MG_ERR_LIMIT);
    assert_string_equal(err.code, "file_too_large");
    assert_non_null(strstr(err.text, "10 bytes"));
    mg_buf_free(&b);
    mg_err_clear(&err);
    assert_int_equal(mg_file_read("/dev/zero", 100000, &b, &err),
                     MG_ERR_LIMIT); /* size not known before */
    assert_true(b.n <= 100000);
    mg_buf_free(&b);
    mg_err_clear(&err);
    b.max = 5; /* the buffer's own cap holds too */
    assert_int_equal(mg_file_read(in_dir("ten"), 100, &b, &err), MG_ERR_MEMORY);
    mg_buf_free(&b);
}

static void what_is_no_file(void **state) {
    struct mg_err err = {0};
    struct mg_buf b = {0};
    struct mg_map map;
    assert_int_equal(mg_file_read(in_dir("missing"), 10, &b, &err), MG_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "missing"));
    mg_err_clear(&err);
    assert_int_equal(mg_file_read(dir, 10, &b, &err), MG_ERR_IO);
    mg_err_clear(&err);
    assert_int_equal(mg_map_open(dir, &map, &err), MG_ERR_IO);
    assert_non_null(strstr(err.text, "not a regular file"));
    mg_err_clear(&err);
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    alarm(10); /* it must not wait for a writer */
    assert_int_equal(mg_map_open(in_dir("fifo"), &map, &err), MG_ERR_IO);
    alarm(0);
    mg_err_clear(&err);
    mg_file_write(in_dir("empty"), "", 0, &err);
    assert_int_equal(mg_map_open(in_dir("empty"), &map, &err), MG_OK);
    assert_null(map.data);
    assert_int_equal(map.n, 0);
    mg_map_close(&map);
    mg_buf_free(&b);
}

/* Nobody but root can read everything, so root becomes nobody for this. */
static void unreadable_file(void **state) {
    struct mg_err err = {0};
    struct mg_buf b = {0};
    struct mg_map map;
    mg_file_write(in_dir("secret"), "x", 1, &err);
    chmod(in_dir("secret"), 0);
    chmod(dir, 0755);
    uid_t was = geteuid();
    if (was == 0 && seteuid(65534) != 0) skip();
    enum mg_status read = mg_file_read(in_dir("secret"), 10, &b, &err);
    enum mg_status mapped = mg_map_open(in_dir("secret"), &map, NULL);
    enum mg_status wrote = was == 0 ? mg_file_write(in_dir("new"), "x", 1, NULL) : MG_ERR_IO;
    assert_int_equal(seteuid(was), 0);
    assert_int_equal(read, MG_ERR_IO);
    assert_non_null(strstr(err.text, strerror(EACCES)));
    assert_int_equal(mapped, MG_ERR_IO);
    assert_int_equal(wrote, MG_ERR_IO);
    mg_buf_free(&b);
}

static void device_is_written_to_and_not_replaced(void **state) {
    struct mg_err err = {0};
    struct stat st;
    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(mg_file_write("/dev/full", "data", 4, &err), MG_ERR_IO);
    assert_non_null(strstr(err.text, strerror(ENOSPC)));
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    mg_err_clear(&err);
    assert_int_equal(mg_file_write("/dev/null", "data", 4, &err), MG_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

/* A real full disk needs a file system of its own, so root. */
static void full_disk_leaves_the_old_file(void **state) {
    const char *disk = in_dir("disk");
    struct mg_err err = {0};
    mkdir(disk, 0700);
    if (geteuid() != 0 || mount("tmpfs", disk, "tmpfs", 0, "size=64k") != 0) {
        print_message(
            "full_disk_leaves_the_old_file: skipped, needs root to mount a small tmpfs\n");
        skip();
    }
    static const uint8_t large[200000];
    char path[300], left[64] = "";
    snprintf(path, sizeof path, "%s/f", disk);
    enum mg_status first = mg_file_write(path, "old", 3, &err);
    enum mg_status second = mg_file_write(path, large, sizeof large, &err);
    struct mg_buf b = {0};
    mg_file_read(path, 1000, &b, NULL);
    char command[400];
    snprintf(command, sizeof command, "ls -A '%s'", disk);
    FILE *ls = popen(command, "r");
    size_t n = ls ? fread(left, 1, sizeof left - 1, ls) : 0;
    left[n] = '\0';
    if (ls) pclose(ls);
    umount(disk);
    assert_int_equal(first, MG_OK);
    assert_int_equal(second, MG_ERR_IO);
    assert_non_null(strstr(err.text, strerror(ENOSPC)));
    assert_string_equal((char *)b.data, "old");
    assert_string_equal(left, "f\n"); /* no temporary file */
    mg_buf_free(&b);
}

static void bad_targets_of_a_write(void **state) {
    struct mg_err err = {0};
    assert_int_equal(mg_file_write(in_dir("no/such/folder/f"), "x", 1, &err), MG_ERR_NOT_FOUND);
    mg_err_clear(&err);
    assert_int_equal(mg_file_write(dir, "x", 1, &err), MG_ERR_IO); /* a folder */
    char path[5000];
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    mg_err_clear(&err);
    assert_int_equal(mg_file_write(path, "x", 1, &err), MG_ERR_ARGUMENT);
    char small[8];
    mg_err_clear(&err);
    assert_int_equal(mg_path_join(small, sizeof small, "abc", "defg", &err), MG_ERR_ARGUMENT);
    assert_int_equal(mg_path_join(small, sizeof small, "abc", "def", NULL), MG_OK);
    assert_string_equal(small, "abc/def");
}

static void clock_and_memory_figures(void **state) {
    double t = mg_clock();
    usleep(2000);
    double passed = mg_clock() - t;
    assert_true(passed >= 0.002 && passed < 10);
    size_t before, after, peak;
    mg_memory_use(&before, &peak);
    size_t n = (size_t)64 << 20;
    char *p = mg_alloc(n, 1);
    assert_non_null(p);
    memset(p, 1, n);
    mg_memory_use(&after, &peak);
    assert_true(after >= before + (n >> 1));
    assert_true(peak >= after);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_then_read_and_map),
        cmocka_unit_test(read_limit),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(unreadable_file),
        cmocka_unit_test(device_is_written_to_and_not_replaced),
        cmocka_unit_test(full_disk_leaves_the_old_file),
        cmocka_unit_test(bad_targets_of_a_write),
        cmocka_unit_test(clock_and_memory_figures),
    };
    return cmocka_run_group_tests_name("base.io", tests, make_dir, remove_dir);
}
