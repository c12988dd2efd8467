/* base/npy.c - see npy.h. Header: "\x93NUMPY" 1 0, u16 length, a Python dict as text, data. */
#include "base/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    size_t size;
} kind[] = {[MG_NPY_F32] = {"<f4", 4}, [MG_NPY_I32] = {"<i4", 4}, [MG_NPY_I64] = {"<i8", 8}};

static bool count_elements(int n_dim, const size_t *dim, size_t *n) {
    *n = 1;
    for (int i = 0; i < n_dim; i++)
        if (!mg_mul_size(*n, dim[i], n)) return false;
    return true;
}

enum mg_status mg_npy_write(const char *path, enum mg_npy_type type, int n_dim, const size_t *dim,
                            const void *data, struct mg_err *err) {
    size_t n, bytes;
    if (n_dim < 0 || n_dim > MG_NPY_MAX_DIM || !count_elements(n_dim, dim, &n) ||
        !mg_mul_size(n, kind[type].size, &bytes))
        return mg_fail(err, MG_ERR_ARGUMENT, "", "npy: shape out of range");
    struct mg_buf head = {0}, shape = {0};
    for (int i = 0; i < n_dim; i++)
        mg_buf_printf(&shape, "%zu,%s", dim[i], i + 1 < n_dim ? " " : "");
    mg_buf_printf(&head, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                  kind[type].descr, shape.data ? (char *)shape.data : "");
    while (!head.failed && (10 + head.n + 1) % 64) mg_buf_add_byte(&head, ' ');
    mg_buf_add_byte(&head, '\n');
    struct mg_buf out = {.max = (size_t)8 << 30};
    mg_buf_add(&out, "\x93NUMPY\x01\x00", 8);
    mg_buf_add_byte(&out, (uint8_t)(head.n & 255));
    mg_buf_add_byte(&out, (uint8_t)(head.n >> 8));
    mg_buf_add(&out, head.data, head.n);
    mg_buf_add(&out, data, bytes);
    enum mg_status status = out.failed || head.failed || shape.failed
                                ? mg_fail_memory(err, "npy file")
                                : mg_file_write(path, out.data, out.n, err);
    mg_buf_free(&out);
    mg_buf_free(&head);
    mg_buf_free(&shape);
    return status;
}

/* "(3, 83)" after 'shape': */
static bool parse_shape(const char *s, struct mg_npy *out) {
    out->n_dim = 0;
    while (*s == ' ') s++;
    if (*s++ != '(') return false;
    for (;;) {
        while (*s == ' ' || *s == ',') s++;
        if (*s == ')') return true;
        if (*s < '0' || *s > '9' || out->n_dim == MG_NPY_MAX_DIM) return false;
        char *end;
        unsigned long long v = strtoull(s, &end, 10);
        if (v > (1ULL << 40)) return false;
        out->dim[out->n_dim++] = (size_t)v;
        s = end;
    }
}

enum mg_status mg_npy_parse(const void *bytes, size_t n, struct mg_npy *out, struct mg_err *err) {
    *out = (struct mg_npy){0};
    const uint8_t *p = bytes;
    char head[1024];
    size_t len = n >= 10 ? (size_t)p[8] | (size_t)p[9] << 8 : 0;
    if (n < 10 || memcmp(p, "\x93NUMPY\x01", 7) != 0 || len >= sizeof head || n - 10 < len)
        return mg_fail(err, MG_ERR_FORMAT, "", "not a .npy file of version 1");
    memcpy(head, p + 10, len);
    head[len] = '\0';
    const char *descr = strstr(head, "'descr':"), *shape = strstr(head, "'shape':");
    bool found = false;
    for (size_t i = 0; descr && i < sizeof kind / sizeof *kind; i++) {
        char want[16];
        snprintf(want, sizeof want, "'%s'", kind[i].descr);
        const char *at = strstr(descr + 8, want);
        if (at && at - descr < 12) {
            out->type = (enum mg_npy_type)i;
            found = true;
        }
    }
    size_t want;
    if (!found || !shape || !strstr(head, "'fortran_order': False") ||
        !parse_shape(shape + 8, out) || !count_elements(out->n_dim, out->dim, &out->n) ||
        !mg_mul_size(out->n, kind[out->type].size, &want) || want != n - 10 - len)
        return mg_fail(err, MG_ERR_FORMAT, "",
                       ".npy header unsupported or at odds with the file's size");
    if (!mg_buf_add(&out->buf, p + 10 + len, want)) return mg_fail_memory(err, ".npy data");
    out->data = out->buf.data;
    return MG_OK;
}

enum mg_status mg_npy_read(const char *path, struct mg_npy *out, struct mg_err *err) {
    *out = (struct mg_npy){0};
    struct mg_buf buf = {0};
    enum mg_status status = mg_file_read(path, (size_t)1 << 30, &buf, err);
    if (status == MG_OK) {
        status = mg_npy_parse(buf.data, buf.n, out, err);
        mg_err_prefix(err, "%s", path);
    }
    mg_buf_free(&buf);
    return status;
}

void mg_npy_free(struct mg_npy *npy) {
    mg_buf_free(&npy->buf);
    *npy = (struct mg_npy){0};
}
