/* image/resize.c - bicubic resize with antialias of RGB8, bit for bit what torchvision gives for
 * uint8.
 *
 * Per axis and output place i, with scale = in / out and s = max(scale, 1): the support is 2 s
 * around the centre scale (i + 0.5); weights are the cubic (a = -0.5) of the distance / s in
 * double, made to sum to 1, then rounded to int16 with as many fraction bits as the greatest weight
 * of the axis allows. Sums are int32, rounded to nearest and cut to 0..255 after each axis; columns
 * first, rows second; an axis that keeps its size is skipped.
 *
 *   source rows --8 at a time--> tile [x][channel][8 rows] int16 --weights--> ring of short rows
 *   ring (as many rows as one output row needs) --weights of y--> output row
 *
 * The tile lets one instruction work on the 8 rows; only the ring is kept, so memory doesn't grow
 * with the source's height. SSE2 is part of every x86-64; elsewhere, and for the last rows, the
 * plain C beside it does the same.
 */
#include "image/patches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LANES 8 /* source rows of a tile */

struct axis {
    uint32_t n_in, n_out;
    uint32_t taps;     /* weights a place has room for, even */
    uint32_t shift;    /* fraction bits of the weights */
    uint32_t *first;   /* [n_out] first source place */
    uint32_t *count;   /* [n_out] weights used, at most taps */
    int16_t *weight;   /* [n_out][taps], zero behind count */
};

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    return 0.0;
}

static void axis_free(struct axis *a) {
    free(a->first);
    free(a->count);
    free(a->weight);
    *a = (struct axis){0}; /* whoever made it frees it once more */
}

/* Weights of place i in double into w[taps]; the greatest is returned. */
static double place_weights(struct axis *a, uint32_t i, double scale, uint32_t room, double *w) {
    double support = scale >= 1.0 ? 2.0 * scale : 2.0, inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    double center = scale * ((double)i + 0.5), sum = 0.0, greatest = 0.0;
    int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
    if (first < 0)
        first = 0;
    if (last > (int64_t)a->n_in)
        last = a->n_in;
    uint32_t count = (uint32_t)(last - first);
    if (count > room)
        count = room;
    for (uint32_t k = 0; k < count; k++) {
        w[k] = cubic(((double)k + (double)first - center + 0.5) * inverse);
        sum += w[k];
    }
    for (uint32_t k = 0; k < count; k++) {
        if (sum != 0.0)
            w[k] /= sum;
        if (w[k] > greatest)
            greatest = w[k];
    }
    a->first[i] = (uint32_t)first;
    a->count[i] = count;
    return greatest;
}

static bool axis_make(struct axis *a, uint32_t n_in, uint32_t n_out) {
    double scale = (double)n_in / (double)n_out, greatest = 0.0;
    uint32_t room = (uint32_t)ceil(scale >= 1.0 ? 2.0 * scale : 2.0) * 2 + 1;
    double *w = NULL;
    size_t n;

    *a = (struct axis){.n_in = n_in, .n_out = n_out, .taps = room + room % 2};
    if (!mg_mul_size(n_out, a->taps, &n))
        return false;
    a->first = mg_alloc(n_out, sizeof *a->first);
    a->count = mg_alloc(n_out, sizeof *a->count);
    a->weight = mg_alloc_zero(n, sizeof *a->weight);
    w = mg_alloc(n, sizeof *w);
    if (!a->first || !a->count || !a->weight || !w) {
        free(w);
        axis_free(a);
        return false;
    }
    for (uint32_t i = 0; i < n_out; i++) {
        double g = place_weights(a, i, scale, room, w + (size_t)i * a->taps);
        if (g > greatest)
            greatest = g;
    }
    while (a->shift < 22 && (int64_t)(0.5 + greatest * (double)(1 << (a->shift + 1))) < 1 << 15)
        a->shift++;
    for (uint32_t i = 0; i < n_out; i++) {
        for (uint32_t k = 0; k < a->count[i]; k++) {
            double v = w[(size_t)i * a->taps + k];
            double scaled = v * (double)(1 << a->shift);
            a->weight[(size_t)i * a->taps + k] = (int16_t)(v < 0 ? scaled - 0.5 : scaled + 0.5);
        }
    }
    free(w);
    return true;
}

static inline uint8_t clip(int32_t v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

/* One row, columns: the definition; also used for the last rows of a picture. */
static void columns_row(const struct axis *a, const uint8_t *src, uint8_t *dst) {
    for (uint32_t i = 0; i < a->n_out; i++) {
        const int16_t *w = a->weight + (size_t)i * a->taps;
        const uint8_t *p = src + (size_t)a->first[i] * 3;
        int32_t sum[3] = {1 << (a->shift - 1), 1 << (a->shift - 1), 1 << (a->shift - 1)};
        for (uint32_t k = 0; k < a->count[i]; k++, p += 3)
            for (int c = 0; c < 3; c++)
                sum[c] += w[k] * p[c];
        for (int c = 0; c < 3; c++)
            dst[(size_t)i * 3 + c] = clip(sum[c] >> a->shift);
    }
}

#if defined(__SSE2__)

/* The 8 x 8 bytes in the low halves of r, transposed: byte j of s[i] is byte i of r[j]; s[i] holds
 * columns 2 i (low half) and 2 i + 1. */
static void transpose(const __m128i r[8], __m128i s[4]) {
    __m128i a[4], b[4];
    for (int k = 0; k < 4; k++)
        a[k] = _mm_unpacklo_epi8(r[2 * k], r[2 * k + 1]);
    b[0] = _mm_unpacklo_epi16(a[0], a[1]); /* bytes 0..3 of rows 0..3 */
    b[1] = _mm_unpackhi_epi16(a[0], a[1]);
    b[2] = _mm_unpacklo_epi16(a[2], a[3]);
    b[3] = _mm_unpackhi_epi16(a[2], a[3]);
    s[0] = _mm_unpacklo_epi32(b[0], b[2]); /* bytes 0, 1 of rows 0..7 */
    s[1] = _mm_unpackhi_epi32(b[0], b[2]);
    s[2] = _mm_unpacklo_epi32(b[1], b[3]);
    s[3] = _mm_unpackhi_epi32(b[1], b[3]);
}

/* 8 rows of n bytes to tile[n][8] int16; n may be anything, row ends are not overrun. */
static void make_tile(const uint8_t *const row[LANES], size_t n, int16_t *tile) {
    const __m128i zero = _mm_setzero_si128();
    size_t i = 0;
    for (; i + 8 <= n; i += 8, tile += 64) {
        __m128i r[8], s[4];
        for (int k = 0; k < 8; k++)
            r[k] = _mm_loadl_epi64((const __m128i *)(row[k] + i));
        transpose(r, s);
        for (int k = 0; k < 4; k++) {
            _mm_store_si128((__m128i *)(tile + 16 * k), _mm_unpacklo_epi8(s[k], zero));
            _mm_store_si128((__m128i *)(tile + 16 * k + 8), _mm_unpackhi_epi8(s[k], zero));
        }
    }
    for (; i < n; i++)
        for (int k = 0; k < LANES; k++)
            *tile++ = row[k][i];
}

/* Output place i of a tile: three times 8 rows' bytes. */
static inline void column(const struct axis *a, const int16_t *tile, uint32_t i, __m128i out[3]) {
    const __m128i half = _mm_set1_epi32(1 << (a->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128((int)a->shift);
    const int16_t *w = a->weight + (size_t)i * a->taps;
    const __m128i *p = (const __m128i *)(tile + (size_t)a->first[i] * 3 * LANES);
    __m128i lo[3] = {half, half, half}, hi[3] = {half, half, half};
    for (uint32_t k = 0; k < a->count[i]; k += 2, p += 6) {
        int32_t pair;
        memcpy(&pair, w + k, sizeof pair);
        const __m128i v = _mm_set1_epi32(pair);
        for (int c = 0; c < 3; c++) {
            __m128i x = p[c], y = p[c + 3];
            lo[c] = _mm_add_epi32(lo[c], _mm_madd_epi16(_mm_unpacklo_epi16(x, y), v));
            hi[c] = _mm_add_epi32(hi[c], _mm_madd_epi16(_mm_unpackhi_epi16(x, y), v));
        }
    }
    for (int c = 0; c < 3; c++) {
        __m128i s = _mm_packs_epi32(_mm_sra_epi32(lo[c], shift), _mm_sra_epi32(hi[c], shift));
        out[c] = _mm_packus_epi16(s, s);
    }
}

/* Columns of a tile to 8 rows. The tile has one pixel more than its rows, of any finite value,
 * since weights are taken in pairs. */
static void columns_tile(const struct axis *a, const int16_t *tile, uint8_t *const dst[LANES]) {
    uint32_t i = 0;
    for (; i + 8 <= a->n_out; i += 8) {
        __m128i out[24], s[4];
        for (uint32_t k = 0; k < 8; k++)
            column(a, tile, i + k, out + 3 * k);
        for (int part = 0; part < 3; part++) {
            size_t at = (size_t)i * 3 + 8 * (size_t)part;
            transpose(out + 8 * part, s);
            for (int k = 0; k < 4; k++) {
                _mm_storel_epi64((__m128i *)(dst[2 * k] + at), s[k]);
                _mm_storel_epi64((__m128i *)(dst[2 * k + 1] + at), _mm_unpackhi_epi64(s[k], s[k]));
            }
        }
    }
    for (; i < a->n_out; i++) {
        __m128i out[3];
        uint8_t byte[3][16];
        column(a, tile, i, out);
        for (int c = 0; c < 3; c++)
            _mm_storeu_si128((__m128i *)byte[c], out[c]);
        for (int k = 0; k < LANES; k++)
            for (int c = 0; c < 3; c++)
                dst[k][(size_t)i * 3 + c] = byte[c][k];
    }
}

/* The first multiple of 16 bytes of an output row; how many were done is returned. */
static size_t rows_wide(const int16_t *w, uint32_t count, uint32_t shift_bits,
                        const uint8_t *const *row, size_t n, uint8_t *dst) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i half = _mm_set1_epi32(1 << (shift_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128((int)shift_bits);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m128i s[4] = {half, half, half, half};
        for (uint32_t k = 0; k < count; k += 2) {
            const uint8_t *second = row[k + 1 < count ? k + 1 : k]; /* its weight is 0 then */
            __m128i x = _mm_loadu_si128((const __m128i *)(row[k] + i));
            __m128i y = _mm_loadu_si128((const __m128i *)(second + i));
            __m128i l = _mm_unpacklo_epi8(x, y), h = _mm_unpackhi_epi8(x, y);
            int32_t pair;
            memcpy(&pair, w + k, sizeof pair);
            const __m128i v = _mm_set1_epi32(pair);
            s[0] = _mm_add_epi32(s[0], _mm_madd_epi16(_mm_unpacklo_epi8(l, zero), v));
            s[1] = _mm_add_epi32(s[1], _mm_madd_epi16(_mm_unpackhi_epi8(l, zero), v));
            s[2] = _mm_add_epi32(s[2], _mm_madd_epi16(_mm_unpacklo_epi8(h, zero), v));
            s[3] = _mm_add_epi32(s[3], _mm_madd_epi16(_mm_unpackhi_epi8(h, zero), v));
        }
        for (int k = 0; k < 4; k++)
            s[k] = _mm_sra_epi32(s[k], shift);
        __m128i out = _mm_packus_epi16(_mm_packs_epi32(s[0], s[1]), _mm_packs_epi32(s[2], s[3]));
        _mm_storeu_si128((__m128i *)(dst + i), out);
    }
    return i;
}

#else

static void make_tile(const uint8_t *const row[LANES], size_t n, int16_t *tile) {
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < LANES; k++)
            *tile++ = row[k][i];
}

static void columns_tile(const struct axis *a, const int16_t *tile, uint8_t *const dst[LANES]) {
    for (uint32_t i = 0; i < a->n_out; i++) {
        const int16_t *w = a->weight + (size_t)i * a->taps;
        const int16_t *p = tile + (size_t)a->first[i] * 3 * LANES;
        int32_t sum[3 * LANES];
        for (int k = 0; k < 3 * LANES; k++)
            sum[k] = 1 << (a->shift - 1);
        for (uint32_t t = 0; t < a->count[i]; t++, p += 3 * LANES)
            for (int k = 0; k < 3 * LANES; k++)
                sum[k] += w[t] * p[k];
        for (int k = 0; k < 3 * LANES; k++)
            dst[k % LANES][(size_t)i * 3 + k / LANES] = clip(sum[k] >> a->shift);
    }
}

static size_t rows_wide(const int16_t *w, uint32_t count, uint32_t shift, const uint8_t *const *row,
                        size_t n, uint8_t *dst) {
    enum { WIDE = 32 };
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        int32_t sum[WIDE];
        for (int k = 0; k < WIDE; k++)
            sum[k] = 1 << (shift - 1);
        for (uint32_t t = 0; t < count; t++)
            for (int k = 0; k < WIDE; k++)
                sum[k] += w[t] * row[t][i + k];
        for (int k = 0; k < WIDE; k++)
            dst[i + k] = clip(sum[k] >> shift);
    }
    return i;
}

#endif

/* One output row out of `count` short rows of n bytes. */
static void rows_row(const struct axis *a, uint32_t y, const uint8_t *const *row, size_t n,
                     uint8_t *dst) {
    const int16_t *w = a->weight + (size_t)y * a->taps;
    for (size_t i = rows_wide(w, a->count[y], a->shift, row, n, dst); i < n; i++) {
        int32_t sum = 1 << (a->shift - 1);
        for (uint32_t k = 0; k < a->count[y]; k++)
            sum += w[k] * row[k][i];
        dst[i] = clip(sum >> a->shift);
    }
}

struct ring {
    uint8_t *data;         /* [cap][short row], owned */
    uint32_t cap;          /* rows, a multiple of LANES */
    uint32_t done;         /* source rows 0 .. done - 1 were put in */
    int16_t *tile;         /* [src_w + 1][3][LANES], owned */
    const uint8_t **row;   /* [taps of the row axis], owned */
};

static uint8_t *ring_row(const struct ring *r, uint32_t y, size_t n) {
    return r->data + (size_t)(y % r->cap) * n;
}

/* Columns of the source rows below `end` that aren't there yet. */
static void ring_fill(struct ring *r, const struct axis *x, const uint8_t *src, uint32_t src_h,
                      uint32_t end) {
    size_t n_src = (size_t)x->n_in * 3, n = (size_t)x->n_out * 3;
    while (r->done < end) {
        const uint8_t *from[LANES];
        uint8_t *to[LANES];
        if (src_h - r->done < LANES) {
            columns_row(x, src + r->done * n_src, ring_row(r, r->done, n));
            r->done++;
            continue;
        }
        for (uint32_t k = 0; k < LANES; k++) {
            from[k] = src + (r->done + k) * n_src;
            to[k] = ring_row(r, r->done + k, n);
        }
        make_tile(from, n_src, r->tile);
        columns_tile(x, r->tile, to);
        r->done += LANES;
    }
}

static enum mg_status resize(const uint8_t *src, uint32_t src_h, uint8_t *dst, const struct axis *x,
                             const struct axis *y, struct mg_err *err) {
    size_t n = (size_t)x->n_out * 3;
    bool keep_x = x->n_in == x->n_out, keep_y = y->n_in == y->n_out;
    struct ring r = {.cap = (uint32_t)mg_round_up((keep_y ? 1 : y->taps) + LANES, LANES)};
    enum mg_status s = MG_OK;

    if (!keep_x) {
        r.data = mg_alloc(n, r.cap);
        r.tile = mg_alloc_zero((size_t)x->n_in + 1, 3 * LANES * sizeof *r.tile);
    }
    r.row = mg_alloc(y->taps + 1, sizeof *r.row);
    if (!r.row || (!keep_x && (!r.data || !r.tile))) {
        s = mg_fail_memory(err, "resize");
        goto out;
    }
    for (uint32_t i = 0; i < y->n_out; i++) {
        uint32_t first = keep_y ? i : y->first[i], count = keep_y ? 1 : y->count[i];
        if (!keep_x)
            ring_fill(&r, x, src, src_h, first + count);
        for (uint32_t k = 0; k < count; k++)
            r.row[k] = keep_x ? src + (first + k) * n : ring_row(&r, first + k, n);
        if (keep_y)
            memcpy(dst + i * n, r.row[0], n);
        else
            rows_row(y, i, r.row, n, dst + i * n);
    }
out:
    free(r.data);
    free(r.tile);
    free(r.row);
    return s;
}

enum mg_status mg_resize_rgb8(const uint8_t *src, uint32_t src_w, uint32_t src_h, uint8_t *dst,
                              uint32_t dst_w, uint32_t dst_h, struct mg_err *err) {
    struct axis x = {0}, y = {0};
    size_t n;
    if (src_w == 0 || src_h == 0 || dst_w == 0 || dst_h == 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "resize from %u x %u to %u x %u", src_w, src_h,
                       dst_w, dst_h);
    if (!mg_mul_size((size_t)src_w * 3, src_h, &n) || !mg_mul_size((size_t)dst_w * 3, dst_h, &n))
        return mg_fail_memory(err, "resize");
    if (!axis_make(&x, src_w, dst_w) || !axis_make(&y, src_h, dst_h)) {
        axis_free(&x);
        return mg_fail_memory(err, "resize weights");
    }
    enum mg_status s = resize(src, src_h, dst, &x, &y, err);
    axis_free(&x);
    axis_free(&y);
    return s;
}
