/* tests/fuzz/fuzz_image_heif.c - libFuzzer's entry for HEIC and AVIF: decode with small limits,
 * then patches. Bytes of other formats are left to their own targets. Seeds: corpus/image_heif. */
#include "fuzz_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum mg_image_format format = mg_image_sniff(data, n);
    if (format == MG_IMAGE_UNKNOWN || format == MG_IMAGE_HEIC || format == MG_IMAGE_AVIF)
        fuzz_image(data, n);
    return 0;
}
