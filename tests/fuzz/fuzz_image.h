/* tests/fuzz/fuzz_image.h - what the targets fuzz_image_*.c do with one input: probe, decode,
 * patches.
 *
 * Limits of 4 megapixels keep a run short; a picture of at most 64 Ki pixels goes on to patches. A
 * broken promise of image.h (a raster of another size than probe said, a failure that leaves one)
 * aborts, as a sanitizer's finding does.
 */
#ifndef MG_FUZZ_IMAGE_H
#define MG_FUZZ_IMAGE_H

#include "image/patches.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static inline void fuzz_image(const uint8_t *data, size_t n) {
    const struct mg_patch_config c = {16, 2, 2, 1024, 65536, {.5f, .5f, .5f}, {.5f, .5f, .5f}};
    struct mg_image_options o = mg_image_options_default;
    struct mg_image_info info;
    struct mg_image image;
    struct mg_err err = {0};

    o.limits.max_bytes = 1 << 20;
    o.limits.max_pixels = 4 << 20;
    enum mg_status probed = mg_image_probe(data, n, &o, &info, NULL);
    if (mg_image_decode(data, n, &o, &image, &err) != MG_OK) {
        if (image.rgb || !err.code[0]) abort();
        return;
    }
    if (probed != MG_OK || info.width != image.width || info.height != image.height) abort();
    if ((uint64_t)image.width * image.height <= 65536) {
        struct mg_patches p;
        if (mg_patches_make(&image, &c, &p, NULL) == MG_OK) mg_patches_free(&p);
    }
    mg_image_free(&image);
}

#endif
