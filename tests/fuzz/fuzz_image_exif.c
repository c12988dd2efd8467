/* tests/fuzz/fuzz_image_exif.c - libFuzzer's entry for the EXIF reader: any bytes give 1 to 8.
 * Seeds: corpus/image_exif. */
#include "image/decode.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    int orientation = mg_exif_orientation(data, n);
    if (orientation < 1 || orientation > 8)
        abort();
    return 0;
}
