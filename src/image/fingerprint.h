/* image/fingerprint.h - whether two resized pictures show the same to anybody who reads them.
 *
 * For the cache of answers about near-identical pictures: the same photo saved again as JPEG, or
 * scaled by a pixel. What must never pass is a digit, a word, a control that is another, so a hash
 * alone decides nothing:
 *
 *   1. plain pictures (little contrast, or mostly areas of one tone: pages, screenshots, charts)
 *      are like nothing, not even themselves
 *   2. the signs of 256 low frequencies of the brightness: at least `least` of them agree
 *   3. a reduction to 32 x 32 cells, in colour: no cell is off by more than CELL_STEPS
 *   4. tiles of 8 x 8 pixels at full resolution: none is off by more than re-encoding explains for
 *      its own contrast (little in calm tiles, more in rough ones), in brightness and in colour
 *
 * Pictures of different size are never alike.
 *
 * Measured on the pairs of tests/unit/image/fingerprint.c (made-up pictures; it prints the
 * numbers): false hits 0 of 284 (another digit in text on a photo 96, on a page 96; one word on a
 * white page 16; screens before and after 40; another digit or thing in a photo 16; other photos,
 * dark ones 16), of which 144 because they are plain; of the others the closest is 1.18 times over
 * a limit (a digit in pale ink, on a photo). Hits 73 of 73 (JPEG of quality 85 to 95, a pixel wider
 * or narrower). Of seven real photos at quality 85 one is missed, 640 x 427 with fine detail, 1.2
 * times over; all hit at 95. What is as faint as re-encoding can't be seen: a mark of a few steps
 * in a rough part of a photo. Hence off by default.
 */
#ifndef MG_IMAGE_FINGERPRINT_H
#define MG_IMAGE_FINGERPRINT_H

#include "base/err.h"
#include "base/mem.h"

#define MG_FINGERPRINT_SIDE 32   /* cells of the reduction */
#define MG_FINGERPRINT_LEAST 0.9 /* the least likeness that may be asked for */

struct mg_fingerprint {
    uint32_t width, height;                                     /* pixels */
    bool plain;                                                 /* like nothing */
    uint64_t hash[4];                                           /* signs of 16 x 16 frequencies */
    uint8_t cell[MG_FINGERPRINT_SIDE * MG_FINGERPRINT_SIDE][3]; /* brightness, Cb, Cr */
    uint8_t *luma;   /* [height][width], owned; NULL when plain */
    uint8_t *chroma; /* [height/4][width/4][2] means, in the same block */
    size_t bytes;    /* of all this */
};

/* rgb: [height][width][3]; sides are multiples of 8 and at least 32, else the picture counts as
 * plain. */
enum mg_status mg_fingerprint_make(const uint8_t *rgb, uint32_t width, uint32_t height,
                                   struct mg_fingerprint *out, struct mg_err *err);
void mg_fingerprint_free(struct mg_fingerprint *f);
/* One that was made by mg_alloc; NULL is fine. */
void mg_fingerprint_close(struct mg_fingerprint *f);

/* least: 0.9 .. 1. *distance: share of the hash that differs, set whenever the hashes were
 * compared. */
bool mg_fingerprint_like(const struct mg_fingerprint *a, const struct mg_fingerprint *b,
                         double least, double *distance);

/* What the pixel check found, for measuring: the largest difference of a cell, and of a tile's
 * brightness and colour as a multiple of what is allowed. Sizes must be equal, neither plain. */
struct mg_fingerprint_gap {
    double distance, cell, luma, chroma;
};
void mg_fingerprint_measure(const struct mg_fingerprint *a, const struct mg_fingerprint *b,
                            struct mg_fingerprint_gap *out);

#endif
