/* image/exif.c - the Orientation tag out of an EXIF block, and nothing else.
 *
 * An EXIF block is a small TIFF file: byte order, 42, offset of IFD0; an IFD is a count and 12-byte
 * entries (tag, type, count, value or offset). Orientation is tag 0x0112 of IFD0, a SHORT; LONG and
 * BYTE are met too and read as Pillow reads them. Whatever doesn't fit makes the picture upright
 * (1): EXIF never fails a request.
 */
#include "image/decode.h"

#include <string.h>

struct tiff {
    const uint8_t *data;
    size_t n;
    bool big; /* "MM": big-endian */
};

static uint32_t u16(const struct tiff *t, size_t at) {
    return t->big ? mg_be16(t->data + at) : mg_le16(t->data + at);
}

static uint32_t u32(const struct tiff *t, size_t at) {
    return t->big ? mg_be32(t->data + at) : mg_le32(t->data + at);
}

int mg_exif_orientation(const uint8_t *data, size_t n) {
    if (n >= 6 && memcmp(data, "Exif\0\0", 6) == 0) {
        data += 6;
        n -= 6;
    }
    if (n < 8)
        return 1;
    struct tiff t = {data, n, memcmp(data, "MM", 2) == 0};
    if ((!t.big && memcmp(data, "II", 2) != 0) || u16(&t, 2) != 42)
        return 1;
    size_t ifd = u32(&t, 4);
    if (ifd < 8 || ifd > n - 2)
        return 1;
    size_t n_entry = u16(&t, ifd);
    for (size_t i = 0, at = ifd + 2; i < n_entry && at <= n && n - at >= 12; i++, at += 12) {
        if (u16(&t, at) != 0x0112)
            continue;
        uint32_t type = u16(&t, at + 2), value = 0;
        if (u32(&t, at + 4) != 1)
            return 1;
        if (type == 1)
            value = data[at + 8];
        else if (type == 3)
            value = u16(&t, at + 8);
        else if (type == 4)
            value = u32(&t, at + 8);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
