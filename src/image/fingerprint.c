/* image/fingerprint.c - see fingerprint.h. */
#include "image/fingerprint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = MG_FINGERPRINT_SIDE, WAVES = 16, TILE = 8, SUB = 4 };

#define CELL_STEPS 6.0      /* of 255, a cell's mean */
#define LEAST_CONTRAST 20.0 /* deviation of the cells' brightness; below it a picture is plain */
#define CALM 1.0            /* deviation of a tile that has one tone */
#define MOST_CALM 0.4       /* share of such tiles; above it a picture is plain */
#define LUMA_BASE 3.0       /* allowed root mean square of a tile's difference, ... */
#define LUMA_SLOPE 0.25     /* ... more by so much of the calmer tile's deviation, ... */
#define LUMA_MOST 18.0      /* ... at most this */
#define CHROMA_BASE 12.0    /* the same for the colour's means of 4 x 4 pixels */
#define CHROMA_SLOPE 0.1

static uint8_t brightness(const uint8_t *p) {
    return (uint8_t)((77u * p[0] + 150u * p[1] + 29u * p[2] + 128) >> 8);
}

static uint8_t clamp(double v) {
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)(v + 0.5);
}

/* Mean of a block, as brightness and two colour differences around 128. */
static void mean(const uint8_t *rgb, uint32_t width, uint32_t x0, uint32_t x1, uint32_t y0,
                 uint32_t y1, uint8_t out[3]) {
    uint64_t sum[3] = {0};
    for (uint32_t y = y0; y < y1; y++) {
        const uint8_t *p = rgb + ((size_t)y * width + x0) * 3;
        for (uint32_t x = x0; x < x1; x++, p += 3) sum[0] += p[0], sum[1] += p[1], sum[2] += p[2];
    }
    double n = (double)(x1 - x0) * (y1 - y0);
    double r = (double)sum[0] / n, g = (double)sum[1] / n, b = (double)sum[2] / n;
    double luma = 0.299 * r + 0.587 * g + 0.114 * b;
    out[0] = clamp(luma);
    out[1] = clamp(128 + 0.564 * (b - luma));
    out[2] = clamp(128 + 0.713 * (r - luma));
}

static void reduce(const uint8_t *rgb, struct mg_fingerprint *f) {
    for (uint32_t i = 0; i < SIDE * SIDE; i++) {
        uint32_t r = i / SIDE, c = i % SIDE;
        mean(rgb, f->width, (uint32_t)((uint64_t)c * f->width / SIDE),
             (uint32_t)((uint64_t)(c + 1) * f->width / SIDE),
             (uint32_t)((uint64_t)r * f->height / SIDE),
             (uint32_t)((uint64_t)(r + 1) * f->height / SIDE), f->cell[i]);
    }
}

static double cells_deviation(const struct mg_fingerprint *f) {
    double sum = 0, squares = 0, n = SIDE * SIDE;
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        double v = f->cell[i][0];
        sum += v;
        squares += v * v;
    }
    double variance = squares / n - sum / n * (sum / n);
    return variance > 0 ? sqrt(variance) : 0;
}

/* Cosine transform of the brightness; frequency 0 0 (the mean) has no sign of its own and is 0. */
static void make_hash(struct mg_fingerprint *f) {
    double wave[WAVES][SIDE], half[SIDE][WAVES];
    for (size_t k = 0; k < WAVES; k++)
        for (size_t x = 0; x < SIDE; x++)
            wave[k][x] = cos(3.14159265358979323846 / SIDE * ((double)x + 0.5) * (double)k);
    for (size_t y = 0; y < SIDE; y++)
        for (size_t k = 0; k < WAVES; k++) {
            half[y][k] = 0;
            for (size_t x = 0; x < SIDE; x++)
                half[y][k] += wave[k][x] * (double)f->cell[y * SIDE + x][0];
        }
    memset(f->hash, 0, sizeof f->hash);
    for (size_t i = 1; i < (size_t)WAVES * WAVES; i++) {
        double sum = 0;
        for (size_t y = 0; y < SIDE; y++) sum += wave[i / WAVES][y] * half[y][i % WAVES];
        if (sum > 0) f->hash[i / 64] |= (uint64_t)1 << i % 64;
    }
}

static double tile_deviation(const uint8_t *luma, size_t stride) {
    unsigned sum = 0, squares = 0;
    for (size_t y = 0; y < TILE; y++)
        for (size_t x = 0; x < TILE; x++) {
            unsigned v = luma[y * stride + x];
            sum += v;
            squares += v * v;
        }
    double n = TILE * TILE, variance = squares / n - sum / n * (sum / n);
    return variance > 0 ? sqrt(variance) : 0;
}

static bool mostly_calm(const struct mg_fingerprint *f) {
    size_t calm = 0, n = 0;
    for (size_t y = 0; y + TILE <= f->height; y += TILE)
        for (size_t x = 0; x + TILE <= f->width; x += TILE, n++)
            calm += tile_deviation(f->luma + y * f->width + x, f->width) < CALM;
    return (double)calm > MOST_CALM * (double)n;
}

static void drop_pixels(struct mg_fingerprint *f) {
    free(f->luma);
    f->luma = f->chroma = NULL;
    f->bytes = sizeof *f;
    f->plain = true;
}

enum mg_status mg_fingerprint_make(const uint8_t *rgb, uint32_t width, uint32_t height,
                                   struct mg_fingerprint *out, struct mg_err *err) {
    *out = (struct mg_fingerprint){
        .width = width, .height = height, .plain = true, .bytes = sizeof *out};
    if (width < SIDE || height < SIDE || width % TILE || height % TILE) return MG_OK;
    reduce(rgb, out);
    if (cells_deviation(out) < LEAST_CONTRAST) return MG_OK;
    size_t n = (size_t)width * height, n_sub = n / (SUB * SUB);
    out->luma = mg_alloc(n + 2 * n_sub, 1);
    if (!out->luma) return mg_fail_memory(err, "picture's fingerprint");
    out->chroma = out->luma + n;
    out->bytes += n + 2 * n_sub;
    out->plain = false;
    for (size_t i = 0; i < n; i++) out->luma[i] = brightness(rgb + 3 * i);
    if (mostly_calm(out)) {
        drop_pixels(out);
        return MG_OK;
    }
    for (uint32_t y = 0, i = 0; y < height; y += SUB)
        for (uint32_t x = 0; x < width; x += SUB, i++) {
            uint8_t m[3];
            mean(rgb, width, x, x + SUB, y, y + SUB, m);
            out->chroma[2 * i] = m[1];
            out->chroma[2 * i + 1] = m[2];
        }
    make_hash(out);
    return MG_OK;
}

void mg_fingerprint_free(struct mg_fingerprint *f) {
    free(f->luma);
    *f = (struct mg_fingerprint){0};
}

void mg_fingerprint_close(struct mg_fingerprint *f) {
    if (!f) return;
    mg_fingerprint_free(f);
    free(f);
}

static double hash_distance(const struct mg_fingerprint *a, const struct mg_fingerprint *b) {
    int n = 0;
    for (size_t i = 0; i < 4; i++) n += __builtin_popcountll(a->hash[i] ^ b->hash[i]);
    return n / 256.0;
}

static double cells_gap(const struct mg_fingerprint *a, const struct mg_fingerprint *b) {
    int worst = 0;
    for (size_t i = 0; i < SIDE * SIDE; i++)
        for (size_t k = 0; k < 3; k++) {
            int d = abs(a->cell[i][k] - b->cell[i][k]);
            if (d > worst) worst = d;
        }
    return worst;
}

/* A tile's difference as a multiple of what is allowed. */
static void tile_gap(const struct mg_fingerprint *a, const struct mg_fingerprint *b, size_t x,
                     size_t y, double *luma, double *chroma) {
    size_t w = a->width, at = y * w + x, wc = w / SUB, at_c = y / SUB * wc + x / SUB;
    unsigned sum = 0, colour = 0;
    for (size_t i = 0; i < TILE; i++)
        for (size_t k = 0; k < TILE; k++) {
            int d = a->luma[at + i * w + k] - b->luma[at + i * w + k];
            sum += (unsigned)(d * d);
        }
    for (size_t i = 0; i < TILE / SUB; i++)
        for (size_t k = 0; k < 2 * TILE / SUB; k++) {
            size_t c = 2 * (at_c + i * wc) + k;
            unsigned d = (unsigned)abs(a->chroma[c] - b->chroma[c]);
            if (d > colour) colour = d;
        }
    double calm = fmin(tile_deviation(a->luma + at, w), tile_deviation(b->luma + at, w));
    *luma = sqrt(sum / (double)(TILE * TILE)) / fmin(LUMA_BASE + LUMA_SLOPE * calm, LUMA_MOST);
    *chroma = colour / (CHROMA_BASE + CHROMA_SLOPE * calm);
}

bool mg_fingerprint_like(const struct mg_fingerprint *a, const struct mg_fingerprint *b,
                         double least, double *distance) {
    if (a->plain || b->plain || a->width != b->width || a->height != b->height) return false;
    *distance = hash_distance(a, b);
    if (1 - *distance < fmax(least, MG_FINGERPRINT_LEAST) || cells_gap(a, b) > CELL_STEPS)
        return false;
    for (size_t y = 0; y < a->height; y += TILE)
        for (size_t x = 0; x < a->width; x += TILE) {
            double luma, chroma;
            tile_gap(a, b, x, y, &luma, &chroma);
            if (luma > 1 || chroma > 1) return false;
        }
    return true;
}

void mg_fingerprint_measure(const struct mg_fingerprint *a, const struct mg_fingerprint *b,
                            struct mg_fingerprint_gap *out) {
    *out = (struct mg_fingerprint_gap){.distance = hash_distance(a, b), .cell = cells_gap(a, b)};
    for (size_t y = 0; y < a->height; y += TILE)
        for (size_t x = 0; x < a->width; x += TILE) {
            double luma, chroma;
            tile_gap(a, b, x, y, &luma, &chroma);
            out->luma = fmax(out->luma, luma);
            out->chroma = fmax(out->chroma, chroma);
        }
}
