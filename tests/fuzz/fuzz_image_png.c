/* tests/fuzz/fuzz_image_png.c - libFuzzer's entry for PNG: decode with small limits, then patches.
 * Bytes of other formats are left to their own targets. Seeds: corpus/image_png. */
#include "fuzz_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum mg_image_format format = mg_image_sniff(data, n);
    if (format == MG_IMAGE_UNKNOWN || format == MG_IMAGE_PNG)
        fuzz_image(data, n);
    return 0;
}
