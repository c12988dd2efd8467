/* weights/safetensors.c - reads the header of one safetensors file and believes nothing in it.
 *
 *     u64 n, little-endian | n bytes of JSON | data
 *     {"__metadata__": {"format": "pt"},                        (optional, text to text, skipped)
 *      "a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}  spaces may
 * follow
 *
 * Offsets count from the first data byte. The rules are those of the reference library (safetensors
 * 0.8), which also refuses holes: sorted by offset, each tensor begins where the one before ends,
 * and the last ends at the end of the file. Stricter than it: the header begins with '{' (as the
 * format's description says), a key other than the three is refused, a tensor's data must be
 * aligned to its element, and the named limits below hold.
 *
 * The header is read by a small scanner instead of jansson: a tree of a hostile 100 MB header would
 * cost seconds and gigabytes, while one pass without a tree costs about a tenth of a second and no
 * memory but the tensors' (at most 100,000) entries.
 */
#include "weights/json.h"
#include "weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER ((size_t)100000000) /* bytes, the reference library's own limit */
#define MAX_TENSORS 100000
#define MAX_NAME 512 /* bytes */

struct entry {
    struct mg_tensor t;
    size_t begin, end; /* bytes from the first data byte */
    size_t place;      /* order in the header */
};

struct scan {
    const uint8_t *start, *p, *end; /* of the header's text */
    struct mg_err *err;
    struct mg_arena arena; /* names */
    struct entry *entry;   /* n_entry, owned */
    size_t n_entry, cap;
    bool metadata; /* __metadata__ was there */
};

static enum mg_status wanted(struct scan *s, const char *what) {
    return mg_fail(s->err, MG_ERR_FORMAT, "safetensors_header",
                   "safetensors header, byte %zu: wanted %s", (size_t)(s->p - s->start), what);
}

static void skip_space(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

/* Spaces, then the character c. */
static bool accept(struct scan *s, char c) {
    skip_space(s);
    if (s->p == s->end || *s->p != (uint8_t)c) return false;
    s->p++;
    return true;
}

/* Bytes of the UTF-8 character at p (shortest form, no surrogates, at most U+10FFFF), 0 if it isn't
 * one. */
static size_t utf8_length(const uint8_t *p, const uint8_t *end) {
    uint8_t c = *p;
    if (c < 0x80) return 1;
    size_t n = c >= 0xC2 && c <= 0xDF ? 2 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
    if (!n || (size_t)(end - p) < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) || (c == 0xF0 && p[1] < 0x90) ||
        (c == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex4(struct scan *s, uint32_t *out) {
    if (s->end - s->p < 4) return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(s->p[i]);
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    s->p += 4;
    *out = v;
    return true;
}

static size_t put_utf8(uint8_t out[4], uint32_t c) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i > 0; c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* What follows a backslash, as UTF-8 in out; 0 when it isn't an escape. */
static size_t scan_escape(struct scan *s, uint8_t out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end) return 0;
    uint8_t c = *s->p++;
    if (c != 'u') {
        const char *at = c ? strchr(from, c) : NULL;
        if (!at) return 0;
        out[0] = (uint8_t)to[at - from];
        return 1;
    }
    uint32_t u, low;
    if (!hex4(s, &u) || (u >= 0xDC00 && u <= 0xDFFF)) return 0;
    if (u >= 0xD800 && u <= 0xDBFF) {
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u') return 0;
        s->p += 2;
        if (!hex4(s, &low) || low < 0xDC00 || low > 0xDFFF) return 0;
        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    }
    return put_utf8(out, u);
}

/* Spaces and a string. Its decoded bytes go to out (MAX_NAME + 1 bytes, NUL-terminated) and *len;
 * out NULL only checks it, at any length. */
static enum mg_status scan_string(struct scan *s, char *out, size_t *len) {
    size_t n = 0;
    if (!accept(s, '"')) return wanted(s, "a string");
    while (s->p < s->end && *s->p != '"') {
        uint8_t piece[4];
        const uint8_t *from = s->p;
        size_t k;
        if (*s->p == '\\') {
            s->p++;
            from = piece;
            if (!(k = scan_escape(s, piece))) return wanted(s, "an escape sequence");
        } else {
            if (*s->p < 0x20) return wanted(s, "no control character in a string");
            if (!(k = utf8_length(s->p, s->end))) return wanted(s, "UTF-8");
            s->p += k;
        }
        if (!out) continue;
        if (n + k > MAX_NAME)
            return mg_fail(s->err, MG_ERR_LIMIT, "safetensors_header",
                           "safetensors header, byte %zu: a name of more than %d bytes",
                           (size_t)(s->p - s->start), MAX_NAME);
        if (!*from) return wanted(s, "no zero byte in a name");
        memcpy(out + n, from, k);
        n += k;
    }
    if (s->p == s->end) return wanted(s, "the end of a string");
    s->p++;
    if (out) {
        out[n] = '\0';
        *len = n;
    }
    return MG_OK;
}

/* Spaces and an integer 0 .. SIZE_MAX without sign, fraction or exponent. */
static enum mg_status scan_size(struct scan *s, size_t *out) {
    skip_space(s);
    size_t v = 0, digits = 0;
    const uint8_t *first = s->p;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++, digits++)
        if (!mg_mul_size(v, 10, &v) || !mg_add_size(v, (size_t)(*s->p - '0'), &v))
            return wanted(s, "a smaller number");
    if (!digits || (digits > 1 && *first == '0')) return wanted(s, "a whole number");
    *out = v;
    return MG_OK;
}

/* Spaces and [n, n, ...] of at most max numbers; *n_out counts them. */
static enum mg_status scan_sizes(struct scan *s, size_t max, const char *too_many, size_t *out,
                                 size_t *n_out) {
    size_t n = 0;
    if (!accept(s, '[')) return wanted(s, "a list");
    if (!accept(s, ']')) {
        do {
            if (n == max) return wanted(s, too_many);
            enum mg_status status = scan_size(s, &out[n++]);
            if (status != MG_OK) return status;
        } while (accept(s, ','));
        if (!accept(s, ']')) return wanted(s, "',' or ']'");
    }
    *n_out = n;
    return MG_OK;
}

static const char *const dtype_name[MG_N_DTYPE] = {
    [MG_F32] = "F32", [MG_F16] = "F16", [MG_BF16] = "BF16", [MG_F64] = "F64", [MG_I64] = "I64",
    [MG_I32] = "I32", [MG_I16] = "I16", [MG_I8] = "I8",     [MG_U8] = "U8",   [MG_BOOL] = "BOOL"};

static enum mg_status find_dtype(struct scan *s, const char *tensor, const char *word, size_t n,
                                 enum mg_dtype *out) {
    for (int i = 0; i < MG_N_DTYPE; i++)
        if (strcmp(dtype_name[i], word) == 0) {
            *out = (enum mg_dtype)i;
            return MG_OK;
        }
    /* The format's others: quantised and unsigned types that no published Qwen3-VL checkpoint uses
     * unquantised. */
    static const char *const other[] = {"F4",      "F6_E2M3", "F6_E3M2",     "F8_E5M2",
                                        "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                                        "U16",     "U32",     "U64",         "C64"};
    char name[68], what[24];
    mg_text_clean(name, sizeof name, tensor, strlen(tensor));
    mg_text_clean(what, sizeof what, word, n);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strcmp(other[i], word) == 0)
            return mg_fail(s->err, MG_ERR_UNSUPPORTED, "tensor_dtype",
                           "tensor %s has dtype %s; wanted a checkpoint in BF16, F16 or F32", name,
                           what);
    return mg_fail(s->err, MG_ERR_FORMAT, "tensor_dtype", "tensor %s has the unknown dtype %s",
                   name, what);
}

/* dtype x shape = bytes. */
static enum mg_status check_extent(struct scan *s, struct entry *e, size_t n_data) {
    char name[68];
    mg_text_clean(name, sizeof name, e->t.name, strlen(e->t.name));
    size_t bytes;
    e->t.n = 1;
    for (int i = 0; i < e->t.n_dim; i++)
        if (!mg_mul_size(e->t.n, e->t.dim[i], &e->t.n))
            return mg_fail(s->err, MG_ERR_FORMAT, "tensor_size",
                           "tensor %s: its shape is larger than memory", name);
    if (!mg_mul_size(e->t.n, mg_dtype_size(e->t.dtype), &bytes))
        return mg_fail(s->err, MG_ERR_FORMAT, "tensor_size",
                       "tensor %s: its shape is larger than memory", name);
    if (e->begin > e->end || e->end > n_data)
        return mg_fail(
            s->err, MG_ERR_FORMAT, "tensor_offsets",
            "tensor %s: data_offsets [%zu, %zu], but the file has %zu bytes of data (truncated?)",
            name, e->begin, e->end, n_data);
    if (e->end - e->begin != bytes)
        return mg_fail(s->err, MG_ERR_FORMAT, "tensor_size",
                       "tensor %s: %zu elements of %s are %zu bytes, data_offsets give %zu", name,
                       e->t.n, dtype_name[e->t.dtype], bytes, e->end - e->begin);
    return MG_OK;
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} in any order. e->t.name is set. */
static enum mg_status scan_tensor(struct scan *s, struct entry *e) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    int seen = 0;
    if (!accept(s, '{')) return wanted(s, "'{'");
    do {
        char key[MAX_NAME + 1], word[MAX_NAME + 1];
        size_t n, pair[2] = {0}, n_dim = 0;
        enum mg_status status = scan_string(s, key, &n);
        if (status != MG_OK) return status;
        if (!accept(s, ':')) return wanted(s, "':'");
        int bit = strcmp(key, "dtype") == 0          ? DTYPE
                  : strcmp(key, "shape") == 0        ? SHAPE
                  : strcmp(key, "data_offsets") == 0 ? OFFSETS
                                                     : 0;
        if (!bit) return wanted(s, "no key besides dtype, shape and data_offsets");
        if (seen & bit) return wanted(s, "dtype, shape and data_offsets once each");
        seen |= bit;
        if (bit == DTYPE) {
            status = scan_string(s, word, &n);
            if (status == MG_OK) status = find_dtype(s, e->t.name, word, n, &e->t.dtype);
        } else if (bit == SHAPE) {
            status = scan_sizes(s, MG_MAX_DIM, "at most 6 dimensions", e->t.dim, &n_dim);
            if (status == MG_OK) e->t.n_dim = (int)n_dim;
        } else {
            status = scan_sizes(s, 2, "two data_offsets", pair, &n);
            if (status == MG_OK && n != 2) return wanted(s, "two data_offsets");
            if (status == MG_OK) {
                e->begin = pair[0];
                e->end = pair[1];
            }
        }
        if (status != MG_OK) return status;
    } while (accept(s, ','));
    if (!accept(s, '}')) return wanted(s, "',' or '}'");
    if (seen != ALL) return wanted(s, "dtype, shape and data_offsets before the tensor's '}'");
    return MG_OK;
}

static enum mg_status scan_metadata(struct scan *s) {
    if (s->metadata) return wanted(s, "__metadata__ once");
    s->metadata = true;
    skip_space(s);
    if (s->end - s->p >= 4 && memcmp(s->p, "null", 4) == 0) {
        s->p += 4;
        return MG_OK;
    }
    if (!accept(s, '{')) return wanted(s, "'{'");
    if (accept(s, '}')) return MG_OK;
    do {
        enum mg_status status = scan_string(s, NULL, NULL);
        if (status == MG_OK && !accept(s, ':')) status = wanted(s, "':'");
        if (status == MG_OK) status = scan_string(s, NULL, NULL);
        if (status != MG_OK) return status;
    } while (accept(s, ','));
    return accept(s, '}') ? MG_OK : wanted(s, "',' or '}'");
}

static enum mg_status add_entry(struct scan *s, const char *name, size_t n, size_t n_data) {
    if (n == 0) return wanted(s, "a tensor's name");
    if (s->n_entry == MAX_TENSORS)
        return mg_fail(s->err, MG_ERR_LIMIT, "too_many_tensors",
                       "safetensors: more than %d tensors", MAX_TENSORS);
    if (s->n_entry == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        struct entry *p = mg_realloc(s->entry, cap, sizeof *p);
        if (!p) return mg_fail_memory(s->err, "safetensors header");
        s->entry = p;
        s->cap = cap;
    }
    struct entry *e = &s->entry[s->n_entry];
    *e = (struct entry){.place = s->n_entry};
    e->t.name = mg_arena_strdup(&s->arena, name, n);
    if (!e->t.name) return mg_fail_memory(s->err, "safetensors header");
    enum mg_status status = scan_tensor(s, e);
    if (status == MG_OK) status = check_extent(s, e, n_data);
    if (status == MG_OK) s->n_entry++;
    return status;
}

static enum mg_status scan_header(struct scan *s, size_t n_data) {
    if (s->p == s->end || *s->p != '{') return wanted(s, "'{'");
    s->p++;
    if (!accept(s, '}')) {
        do {
            char name[MAX_NAME + 1];
            size_t n;
            enum mg_status status = scan_string(s, name, &n);
            if (status == MG_OK && !accept(s, ':')) status = wanted(s, "':'");
            if (status == MG_OK)
                status = strcmp(name, "__metadata__") == 0 ? scan_metadata(s)
                                                           : add_entry(s, name, n, n_data);
            if (status != MG_OK) return status;
        } while (accept(s, ','));
        if (!accept(s, '}')) return wanted(s, "',' or '}'");
    }
    skip_space(s);
    return s->p == s->end ? MG_OK : wanted(s, "nothing after the last '}'");
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->t.name, ((const struct entry *)b)->t.name);
}

static int by_offset(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* Names differ; the tensors cover the data without gap or overlap. Leaves the entries in order of
 * offset. */
static enum mg_status check_layout(struct scan *s, size_t n_data) {
    char name[68];
    if (s->n_entry) qsort(s->entry, s->n_entry, sizeof *s->entry, by_name);
    for (size_t i = 1; i < s->n_entry; i++)
        if (strcmp(s->entry[i - 1].t.name, s->entry[i].t.name) == 0)
            return mg_fail(
                s->err, MG_ERR_FORMAT, "tensor_twice", "tensor %s stands twice in the header",
                mg_text_clean(name, sizeof name, s->entry[i].t.name, strlen(s->entry[i].t.name)));
    if (s->n_entry) qsort(s->entry, s->n_entry, sizeof *s->entry, by_offset);
    size_t at = 0;
    for (size_t i = 0; i < s->n_entry; i++) {
        const struct entry *e = &s->entry[i];
        if (e->begin != at)
            return mg_fail(
                s->err, MG_ERR_FORMAT, "tensor_offsets",
                "tensor %s begins at byte %zu of the data, %s the tensor before it ends (%zu)",
                mg_text_clean(name, sizeof name, e->t.name, strlen(e->t.name)), e->begin,
                e->begin < at ? "before" : "with a gap after", at);
        at = e->end;
    }
    if (at != n_data)
        return mg_fail(s->err, MG_ERR_FORMAT, "tensor_offsets",
                       "the tensors end at byte %zu of the data, the file has %zu bytes of it", at,
                       n_data);
    return MG_OK;
}

enum mg_status mg_safetensors_parse(const uint8_t *data, size_t n, mg_tensor_fn *fn, void *arg,
                                    struct mg_err *err) {
    if (n < 8)
        return mg_fail(err, MG_ERR_FORMAT, "safetensors_header",
                       "not a safetensors file: %zu bytes, at least 8 are needed", n);
    uint64_t header = 0;
    for (int i = 8; --i >= 0;) header = header << 8 | data[i];
    if (header > MAX_HEADER || header > n - 8)
        return mg_fail(
            err, MG_ERR_FORMAT, "safetensors_header",
            "safetensors header of %llu bytes in a file of %zu, the limit is %zu (truncated?)",
            (unsigned long long)header, n, mg_min_size(MAX_HEADER, n - 8));
    const uint8_t *text = data + 8, *base = text + header;
    size_t n_data = n - 8 - (size_t)header;
    struct scan s = {.start = text, .p = text, .end = base, .err = err};
    enum mg_status status = scan_header(&s, n_data);
    if (status == MG_OK) status = check_layout(&s, n_data);
    for (size_t i = 0; status == MG_OK && i < s.n_entry; i++) {
        struct mg_tensor *t = &s.entry[i].t;
        t->data = base + s.entry[i].begin;
        if (t->n && (uintptr_t)t->data % mg_dtype_size(t->dtype)) {
            char name[68];
            status = mg_fail(
                err, MG_ERR_FORMAT, "tensor_unaligned",
                "tensor %s (%s) begins at byte %zu of the file, which is not a multiple of %zu; "
                "save the file again with a current safetensors library",
                mg_text_clean(name, sizeof name, t->name, strlen(t->name)), dtype_name[t->dtype],
                (size_t)((const uint8_t *)t->data - data), mg_dtype_size(t->dtype));
        } else {
            status = fn(arg, t, err);
        }
    }
    free(s.entry);
    mg_arena_free(&s.arena);
    return status;
}
