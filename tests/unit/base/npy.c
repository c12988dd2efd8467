/* .npy: round trip, byte for byte what NumPy writes, and hostile headers. */
#include "base/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static int make_path(void **state) {
    strcpy(path, "/tmp/margay-test-npy-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) { return unlink(path); }

static void round_trip(void **state) {
    static const struct {
        enum mg_npy_type type;
        int n_dim;
        size_t dim[6];
        size_t bytes;
    } row[] = {{MG_NPY_F32, 2, {3, 83}, 996},
               {MG_NPY_I32, 1, {5}, 20},
               {MG_NPY_I64, 3, {2, 3, 4}, 192},
               {MG_NPY_F32, 0, {0}, 4},
               {MG_NPY_F32, 2, {0, 7}, 0},
               {MG_NPY_I64, 6, {1, 2, 1, 3, 1, 2}, 96},
               {MG_NPY_F32, 4, {1, 1, 100, 100}, 40000}};
    uint8_t data[40000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7 + (i >> 8));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_err err = {0};
        struct mg_npy npy;
        assert_int_equal(mg_npy_write(path, row[i].type, row[i].n_dim, row[i].dim, data, &err),
                         MG_OK);
        assert_int_equal(mg_npy_read(path, &npy, &err), MG_OK);
        assert_int_equal(npy.type, row[i].type);
        assert_int_equal(npy.n_dim, row[i].n_dim);
        for (int d = 0; d < npy.n_dim; d++) assert_int_equal(npy.dim[d], row[i].dim[d]);
        assert_int_equal(npy.n * (npy.type == MG_NPY_I64 ? 8 : 4), row[i].bytes);
        if (row[i].bytes) assert_memory_equal(npy.data, data, row[i].bytes);
        mg_npy_free(&npy);
    }
}

/* np.save of np.arange(3, dtype=np.int32).reshape(1, 3), NumPy 2.4. */
static const char numpy_file[] =
    "\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1, 3), }"
    "                                                          \n"
    "\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00";
#define NUMPY_FILE_BYTES (128 + 12)

static void numpys_own_file(void **state) {
    struct mg_err err = {0};
    struct mg_npy npy;
    assert_int_equal(sizeof numpy_file - 1, NUMPY_FILE_BYTES);
    assert_int_equal(mg_npy_parse(numpy_file, NUMPY_FILE_BYTES, &npy, &err), MG_OK);
    assert_int_equal(npy.n_dim, 2);
    assert_int_equal(npy.dim[0], 1);
    assert_int_equal(npy.dim[1], 3);
    assert_int_equal(((const int32_t *)npy.data)[2], 2);
    mg_npy_free(&npy);
    static const int32_t data[] = {0, 1, 2};
    static const size_t dim[] = {1, 3};
    assert_int_equal(mg_npy_write(path, MG_NPY_I32, 2, dim, data, &err), MG_OK);
    struct mg_buf b = {0};
    assert_int_equal(mg_file_read(path, 1000, &b, &err), MG_OK);
    assert_int_equal(b.n % 64, 12); /* the data begin at a multiple of 64 */
    assert_memory_equal(b.data, numpy_file, 8);
    mg_buf_free(&b);
}

static enum mg_status parse_copy(const void *bytes, size_t n) {
    uint8_t *exact = malloc(n ? n : 1); /* no slack: an over-read is seen by the sanitizer */
    memcpy(exact, bytes, n);
    struct mg_err err = {0};
    struct mg_npy npy;
    enum mg_status status = mg_npy_parse(exact, n, &npy, &err);
    assert_true((status == MG_OK) == (err.status == MG_OK));
    mg_npy_free(&npy);
    free(exact);
    return status;
}

static void truncated_anywhere(void **state) {
    for (size_t n = 0; n < NUMPY_FILE_BYTES; n++)
        assert_int_equal(parse_copy(numpy_file, n), MG_ERR_FORMAT);
    char longer[NUMPY_FILE_BYTES + 1];
    memcpy(longer, numpy_file, NUMPY_FILE_BYTES);
    longer[NUMPY_FILE_BYTES] = 0;
    assert_int_equal(parse_copy(longer, sizeof longer), MG_ERR_FORMAT);
}

static void hostile_headers(void **state) {
    static const char *const dict[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", /* wraps to
                                                                                            0 */
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627777,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1, }",
        "{'descr': '<f4', 'fortran_order': False, }",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'fortran_order': False, 'shape': (1,), }",
        "'shape':",
        "'descr':",
        "",
    };
    for (size_t i = 0; i < sizeof dict / sizeof *dict; i++) {
        uint8_t file[400] = "\x93NUMPY\x01";
        size_t n = strlen(dict[i]);
        file[8] = (uint8_t)n;
        memcpy(file + 10, dict[i], n);
        if (parse_copy(file, 10 + n + 4) == MG_OK) fail_msg("accepted: %s", dict[i]);
        if (parse_copy(file, 10 + n) == MG_OK) fail_msg("accepted: %s", dict[i]);
    }
    char version2[NUMPY_FILE_BYTES];
    memcpy(version2, numpy_file, sizeof version2);
    version2[6] = 2;
    assert_int_equal(parse_copy(version2, sizeof version2), MG_ERR_FORMAT);
}

static void write_refuses_what_it_cannot_hold(void **state) {
    static const size_t wide[] = {(size_t)1 << 40, (size_t)1 << 40};
    assert_int_equal(mg_npy_write(path, MG_NPY_F32, 2, wide, "", NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_npy_write(path, MG_NPY_F32, 7, wide, "", NULL), MG_ERR_ARGUMENT);
    assert_int_equal(mg_npy_write(path, MG_NPY_F32, -1, wide, "", NULL), MG_ERR_ARGUMENT);
    struct mg_err err = {0};
    struct mg_npy npy;
    assert_int_equal(mg_npy_read("/no/such/file.npy", &npy, &err), MG_ERR_NOT_FOUND);
    mg_npy_free(&npy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(numpys_own_file),
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(write_refuses_what_it_cannot_hold),
    };
    return cmocka_run_group_tests_name("base.npy", tests, make_path, remove_path);
}
