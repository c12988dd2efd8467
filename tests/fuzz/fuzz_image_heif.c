/* tests/fuzz/fuzz_image_heif.c - libFuzzer's entry for HEIC and AVIF: decode with small limits,
 * then patches. Bytes of other formats are left to their own targets. Seeds: corpus/image_heif.
 *
 * libheif 1.15 loses a few bytes in its decoders on some damaged files (found here: 40 bytes of
 * libdav1d); what those libraries allocate is theirs, and only leaks of ours count.
 */
#include "fuzz_image.h"

const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void) {
    return "leak:libheif\nleak:libdav1d\nleak:libaom\nleak:libde265\nleak:libx265\n";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum mg_image_format format = mg_image_sniff(data, n);
    if (format == MG_IMAGE_UNKNOWN || format == MG_IMAGE_HEIC || format == MG_IMAGE_AVIF)
        fuzz_image(data, n);
    return 0;
}
