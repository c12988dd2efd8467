/* text/unicode.c - see unicode.h. */
#include "text/unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define N_POINT 0x110000u

static uint8_t class_of[N_POINT];
static pthread_once_t class_once = PTHREAD_ONCE_INIT;

static void mark(const struct mg_range *range, size_t n, uint8_t bit) {
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = range[i].first; c <= range[i].last; c++) class_of[c] |= bit;
}

static void build_classes(void) {
    mark(mg_range_letter, mg_n_range_letter, MG_CH_LETTER);
    mark(mg_range_number, mg_n_range_number, MG_CH_NUMBER);
    mark(mg_range_space, mg_n_range_space, MG_CH_SPACE);
    mark(mg_range_nfc, mg_n_range_nfc, MG_CH_NFC);
    class_of['\r'] |= MG_CH_NEWLINE;
    class_of['\n'] |= MG_CH_NEWLINE;
}

const uint8_t *mg_unicode_class(void) {
    pthread_once(&class_once, build_classes);
    return class_of;
}

size_t mg_utf8_next(const uint8_t *s, size_t n, uint32_t *c, size_t *bad) {
    uint8_t lead = s[0], low = 0x80, high = 0xBF;
    size_t need;
    *bad = 1;
    if (lead < 0x80) {
        *c = lead;
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        need = 2;
        *c = lead & 0x1Fu;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 3;
        *c = lead & 0x0Fu;
        if (lead == 0xE0) low = 0xA0;  /* no overlong form */
        if (lead == 0xED) high = 0x9F; /* no surrogate */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 4;
        *c = lead & 0x07u;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F; /* at most U+10FFFF */
    } else {
        *c = 0;
        return 0;
    }
    for (size_t i = 1; i < need; i++) {
        if (i == n || s[i] < low || s[i] > high) {
            *c = i == n;
            *bad = i;
            return 0;
        }
        *c = *c << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return need;
}

bool mg_utf8_check(const uint8_t *s, size_t n, bool *nfc) {
    const uint8_t *cls = mg_unicode_class();
    uint8_t seen = 0;
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8) {
            memcpy(&eight, s + i, 8);
            if (!(eight & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        uint32_t c;
        size_t bad, len = mg_utf8_next(s + i, n - i, &c, &bad);
        if (len == 0) return false;
        seen |= cls[c];
        i += len;
    }
    *nfc = (seen & MG_CH_NFC) != 0;
    return true;
}

bool mg_utf8_lossy(const uint8_t *s, size_t n, struct mg_buf *out) {
    size_t i = 0, from = 0;
    while (i < n) {
        uint32_t c;
        size_t bad, len = mg_utf8_next(s + i, n - i, &c, &bad);
        if (len == 0) {
            if (!mg_buf_add(out, s + from, i - from) || !mg_buf_add(out, "\xEF\xBF\xBD", 3))
                return false;
            len = bad;
            from = i + bad;
        }
        i += len;
    }
    return mg_buf_add(out, s + from, n - from);
}

/* Code points of one stretch while it is normalised. */
struct stretch {
    int32_t *c;   /* cap of them, owned */
    int32_t *tmp; /* as many, for sorting, owned */
    size_t n, cap;
};

static bool stretch_grow(struct stretch *t, size_t more) {
    if (t->cap - t->n >= more) return true;
    size_t cap = mg_max_size(t->cap * 2, t->n + more + 64);
    int32_t *c = mg_realloc(t->c, cap, sizeof *c);
    if (c) t->c = c;
    int32_t *tmp = c ? mg_realloc(t->tmp, cap, sizeof *tmp) : NULL;
    if (tmp) t->tmp = tmp;
    if (!tmp) return false;
    t->cap = cap;
    return true;
}

/* utf8proc's own answer, at most 4 code points; the table already holds full decompositions. */
static bool stretch_add(struct stretch *t, uint32_t c) {
    if (!stretch_grow(t, 8)) return false;
    int boundclass = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, t->c + t->n, 8,
                                                 UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundclass);
    if (n < 0 || n > 8) { /* not a code point to utf8proc: leave it as it is */
        t->c[t->n] = (int32_t)c;
        n = 1;
    }
    t->n += (size_t)n;
    return true;
}

static unsigned combining_class(int32_t c) {
    return (unsigned)utf8proc_get_property(c)->combining_class & 255u;
}

/* Stable by combining class within each run of non-starters. Counting, not swapping neighbours: a
 * run may be as long as the text. */
static void stretch_sort(struct stretch *t) {
    for (size_t from = 0; from < t->n;) {
        if (combining_class(t->c[from]) == 0) {
            from++;
            continue;
        }
        size_t to = from + 1;
        while (to < t->n && combining_class(t->c[to]) != 0) to++;
        if (to - from > 1) {
            size_t at[256 + 1] = {0};
            for (size_t i = from; i < to; i++) at[combining_class(t->c[i]) + 1]++;
            for (size_t k = 1; k < 257; k++) at[k] += at[k - 1];
            for (size_t i = from; i < to; i++) t->tmp[at[combining_class(t->c[i])]++] = t->c[i];
            memcpy(t->c + from, t->tmp, (to - from) * sizeof *t->c);
        }
        from = to;
    }
}

static bool stretch_flush(struct stretch *t, struct mg_buf *out) {
    stretch_sort(t);
    utf8proc_ssize_t n =
        utf8proc_normalize_utf32(t->c, (utf8proc_ssize_t)t->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) return false;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        uint8_t byte[4];
        utf8proc_ssize_t len = utf8proc_encode_char(t->c[i], byte);
        if (!mg_buf_add(out, byte, (size_t)len)) return false;
    }
    t->n = 0;
    return true;
}

/* May the character before a stretch take part in it? Not when the reference's edition of Unicode
 * doesn't know it: there it is an ordinary character, while a newer utf8proc may give it a class or
 * a composition. */
static bool joins(uint32_t c) {
    if (c == 0x105D2 || c == 0x105DA)
        return false; /* Todhri, the only such letters with an old mark */
    return combining_class((int32_t)c) == 0;
}

bool mg_nfc(const uint8_t *s, size_t n, struct mg_buf *out) {
    const uint8_t *cls = mg_unicode_class();
    struct stretch t = {0};
    size_t i = 0, done = 0,
           head = 0; /* done: bytes already in out; head: where the last character began */
    uint32_t before = 0;
    bool has_head = false, ok = true;
    while (ok && i < n) {
        size_t start = i;
        uint32_t c = mg_utf8_get(s, &i);
        if (!(cls[c] & MG_CH_NFC)) {
            head = start;
            before = c;
            has_head = true;
            continue;
        }
        bool use_head = has_head && joins(before);
        size_t from = use_head ? head : start;
        ok = mg_buf_add(out, s + done, from - done) && (!use_head || stretch_add(&t, before)) &&
             stretch_add(&t, c);
        while (ok && i < n) {
            size_t next = i;
            c = mg_utf8_get(s, &next);
            if (!(cls[c] & MG_CH_NFC)) break;
            ok = stretch_add(&t, c);
            i = next;
        }
        ok = ok && stretch_flush(&t, out);
        done = i;
        has_head = false;
    }
    ok = ok && mg_buf_add(out, s + done, n - done);
    free(t.c);
    free(t.tmp);
    return ok;
}
