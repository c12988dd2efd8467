/* image/jpeg.c - JPEG by libjpeg-turbo, set up as Pillow does: accurate integer DCT, fancy
 * upsampling.
 *
 * The header is walked by hand (markers up to the first scan), so that size and EXIF are known
 * before libjpeg allocates anything. Colours: gray is copied to three channels, YCbCr and RGB are
 * as libjpeg finds them from JFIF, Adobe APP14 or component names; with four components the values
 * are taken as inverted, APP14 or not (Pillow's rule, since only Adobe's programs write such
 * files), YCCK when APP14 says transform 2, and then R = (255-K) - (255-K)(255-C)/255 and so on.
 *
 * Reading past the last byte is image_truncated, and so is a scan that a marker cuts short. A code
 * that isn't in the Huffman table is image_damaged: all after it would be noise. Other warnings of
 * libjpeg are harmless and ignored. libjpeg leaves by longjmp; everything that must survive is in
 * struct job, which lives in the caller's frame.
 */
#include "image/decode.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>

#define MAX_SCAN 100                    /* progressive files have about 10 */
#define MAX_WORK ((long)800 << 20)      /* bytes: coefficients of 128 Mpixel, 3 components */
#define ROWS 32                         /* rows handed over at once */
#define MAX_ARRAY 4                     /* coefficient arrays, one a component */

typedef JBLOCKARRAY access_rows(j_common_ptr, jvirt_barray_ptr, JDIMENSION, JDIMENSION, boolean);

/* A coefficient array of a progressive file, as far as the output has read it. */
struct array {
    jvirt_barray_ptr id;
    uint8_t *from;     /* its row `row` in memory; what lies before was given back */
    JDIMENSION row;
};

struct job {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr e;
    struct jpeg_progress_mgr progress;
    struct jpeg_source_mgr source;
    jmp_buf leave;
    enum mg_status status; /* why it left */
    struct mg_err *err;
    access_rows *access;   /* libjpeg's own */
    struct array array[MAX_ARRAY];
    uint8_t *rows;         /* [ROWS][width][components] as libjpeg gives them, then RGB; owned */
};

static void leave(struct job *j, enum mg_status status) {
    j->status = status;
    longjmp(j->leave, 1);
}

static void on_error(j_common_ptr c) {
    struct job *j = c->client_data;
    char text[JMSG_LENGTH_MAX];
    c->err->format_message(c, text);
    switch (c->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
        leave(j, mg_fail_memory(j->err, "JPEG decoder"));
        break;
    case JERR_NO_BACKING_STORE:
        leave(j, mg_fail(j->err, MG_ERR_LIMIT, "image_too_large",
                         "JPEG: decoding needs more than %ld bytes of working memory", MAX_WORK));
        break;
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_ARITH_NOTIMPL:
        leave(j, mg_fail(j->err, MG_ERR_UNSUPPORTED, "image_format_unsupported",
                         "JPEG: %s; convert it to an ordinary JPEG or PNG", text));
        break;
    default:
        leave(j, mg_image_damaged(j->err, "JPEG", text));
    }
}

static void on_message(j_common_ptr c, int level) {
    struct job *j = c->client_data;
    if (level >= 0)
        return;
    c->err->num_warnings++;
    switch (c->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_JPEG_EOF:
        leave(j, mg_image_truncated(j->err, "JPEG"));
        break;
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
        leave(j, mg_image_damaged(j->err, "JPEG", "invalid code in the picture data"));
        break;
    default:
        break;
    }
}

static void on_output(j_common_ptr c) { (void)c; }

static void on_progress(j_common_ptr c) {
    struct job *j = c->client_data;
    if (((j_decompress_ptr)c)->input_scan_number > MAX_SCAN)
        leave(j, mg_fail(j->err, MG_ERR_LIMIT, "image_too_large", "JPEG: more than %d scans",
                         MAX_SCAN));
}

static void source_none(j_decompress_ptr c) { (void)c; }

static boolean source_end(j_decompress_ptr c) {
    struct job *j = c->client_data;
    leave(j, mg_image_truncated(j->err, "JPEG"));
    return FALSE;
}

static void source_skip(j_decompress_ptr c, long n) {
    if (n <= 0)
        return;
    if ((size_t)n > c->src->bytes_in_buffer)
        source_end(c);
    c->src->next_input_byte += n;
    c->src->bytes_in_buffer -= (size_t)n;
}

/* Stands before libjpeg's access to coefficients. The output pass reads each array once from top to
 * bottom (a row, or with smoothing the rows around it), so pages behind it are given back to the
 * system while the raster fills: a progressive 24-megapixel picture at 4:4:4 needs 144 MB of
 * coefficients and 72 MB of raster, but not both at once. Only pages that lie wholly between two
 * rows of the same block are touched. */
static JBLOCKARRAY on_access(j_common_ptr c, jvirt_barray_ptr id, JDIMENSION row, JDIMENSION n,
                             boolean writable) {
    struct job *j = c->client_data;
    JBLOCKARRAY got = j->access(c, id, row, n, writable);
    if (writable)
        return got;
    struct array *a = j->array;
    while (a < j->array + MAX_ARRAY - 1 && a->id && a->id != id)
        a++;
    if (a->id != id) {
        *a = (struct array){id, (uint8_t *)got[0], row};
        return got;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), least = sizeof(JBLOCK);
    uintptr_t from = (uintptr_t)a->from, to = (uintptr_t)got[0];
    if (row <= a->row)
        return got;
    /* The rows' distance shows that no other block of memory lies between. */
    for (int i = 0; i < j->c.num_components; i++) {
        jpeg_component_info *info = j->c.comp_info + i;
        size_t wide = mg_round_up(info->width_in_blocks, (size_t)info->h_samp_factor) * least;
        if (to > from && to - from == wide * (row - a->row)) {
            uintptr_t first = (from + page - 1) / page * page, end = to / page * page;
            if (first < end) {
                madvise((void *)first, end - first, MADV_DONTNEED);
                a->from = (uint8_t *)got[0];
                a->row = row;
            }
            return got;
        }
    }
    a->from = (uint8_t *)got[0];
    a->row = row;
    return got;
}

enum mg_status mg_jpeg_probe(const uint8_t *data, size_t n, struct mg_image_info *info,
                             struct mg_err *err) {
    bool have_exif = false;
    size_t at = 2;
    for (;;) {
        /* Rubbish between segments is skipped, as libjpeg does; fill bytes are FF. */
        while (at < n && data[at] != 0xff)
            at++;
        while (at < n && data[at] == 0xff)
            at++;
        if (at >= n)
            return mg_image_truncated(err, "JPEG");
        uint8_t marker = data[at++];
        if (marker == 0 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8))
            continue;
        if (marker == 0xd9 || marker == 0xda)
            break;
        if (n - at < 2)
            return mg_image_truncated(err, "JPEG");
        size_t len = mg_be16(data + at);
        if (len < 2)
            return mg_image_damaged(err, "JPEG", "segment length below 2");
        if (len > n - at)
            return mg_image_truncated(err, "JPEG");
        const uint8_t *body = data + at + 2;
        if ((marker & 0xf0) == 0xc0 && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
            if (len < 8)
                return mg_image_damaged(err, "JPEG", "short frame header");
            if (info->width == 0) {
                info->height = mg_be16(body + 1);
                info->width = mg_be16(body + 3);
                if (info->height == 0 || info->width == 0)
                    return mg_image_damaged(err, "JPEG", "a side of 0 pixels");
            }
        } else if (marker == 0xe1 && !have_exif && len >= 8 && memcmp(body, "Exif\0\0", 6) == 0) {
            info->orientation = mg_exif_orientation(body, len - 2);
            have_exif = true;
        }
        at += len;
    }
    if (info->width == 0)
        return mg_image_damaged(err, "JPEG", "no frame header before the first scan");
    return MG_OK;
}

/* Four components of Pillow's CMYK, inverted in the file, to RGB: as its cmyk2rgb. */
static void cmyk_to_rgb(uint8_t *p, size_t n) {
    uint8_t *to = p;
    for (size_t i = 0; i < n; i++, p += 4, to += 3) {
        int white = p[3]; /* 255 - K */
        for (int c = 0; c < 3; c++) {
            int t = (255 - p[c]) * white + 128;
            int v = white - (((t >> 8) + t) >> 8);
            to[c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

/* From the last to the first, since three bytes grow out of one in place. */
static void gray_to_rgb(uint8_t *p, size_t n) {
    for (size_t i = n; i-- > 0;)
        p[3 * i] = p[3 * i + 1] = p[3 * i + 2] = p[i];
}

static void read_header(struct job *j, const uint8_t *data, size_t n,
                        const struct mg_image_info *info) {
    j->c.err = jpeg_std_error(&j->e);
    j->e.error_exit = on_error;
    j->e.emit_message = on_message;
    j->e.output_message = on_output;
    j->c.client_data = j;
    jpeg_create_decompress(&j->c);
    j->c.mem->max_memory_to_use = MAX_WORK;
    j->progress.progress_monitor = on_progress;
    j->c.progress = &j->progress;
    j->source = (struct jpeg_source_mgr){
        .next_input_byte = data, .bytes_in_buffer = n, .init_source = source_none,
        .fill_input_buffer = source_end, .skip_input_data = source_skip,
        .resync_to_restart = jpeg_resync_to_restart, .term_source = source_none};
    j->c.src = &j->source;
    jpeg_read_header(&j->c, TRUE);
    if (j->c.image_width != info->width || j->c.image_height != info->height)
        leave(j, mg_image_damaged(j->err, "JPEG", "two frame headers"));
    if (j->c.num_components != 1 && j->c.num_components != 3 && j->c.num_components != 4)
        leave(j, mg_fail(j->err, MG_ERR_UNSUPPORTED, "image_format_unsupported",
                         "JPEG with %d components; 1, 3 and 4 are known", j->c.num_components));
    j->c.out_color_space = j->c.num_components == 1   ? JCS_GRAYSCALE
                           : j->c.num_components == 3 ? JCS_RGB
                                                      : JCS_CMYK;
    j->c.dct_method = JDCT_ISLOW;
    j->c.do_fancy_upsampling = TRUE;
}

static void read_picture(struct job *j, const uint8_t *data, size_t n,
                         const struct mg_image_info *info, const struct mg_raster *raster) {
    JSAMPROW row[ROWS];
    read_header(j, data, n, info);
    j->access = j->c.mem->access_virt_barray;
    j->c.mem->access_virt_barray = on_access;
    jpeg_start_decompress(&j->c);
    size_t width = j->c.output_width, component = (size_t)j->c.output_components;
    size_t stride = width * (component == 4 ? 4 : 3);
    bool direct = component == 3 && raster->step_x == 3;
    if (!direct) {
        j->rows = mg_alloc(ROWS, stride);
        if (!j->rows)
            leave(j, mg_fail_memory(j->err, "JPEG rows"));
    }
    while (j->c.output_scanline < j->c.output_height) {
        uint32_t y = j->c.output_scanline;
        uint32_t want = j->c.output_height - y < ROWS ? j->c.output_height - y : ROWS;
        for (uint32_t i = 0; i < want; i++)
            row[i] = direct ? mg_raster_at(raster, 0, y + i) : j->rows + i * stride;
        uint32_t got = 0;
        while (got < want)
            got += jpeg_read_scanlines(&j->c, row + got, want - got);
        if (direct)
            continue;
        for (uint32_t i = 0; i < want; i++) {
            if (component == 1)
                gray_to_rgb(row[i], width);
            else if (component == 4)
                cmyk_to_rgb(row[i], width);
        }
        mg_raster_put(raster, 0, y, (uint32_t)width, want, j->rows, stride);
    }
    jpeg_finish_decompress(&j->c);
}

/* setjmp apart from the frame that owns the job: nothing that is local here is used after a
 * longjmp. */
__attribute__((noinline)) static void guard(struct job *j, const uint8_t *data, size_t n,
                                            const struct mg_image_info *info,
                                            const struct mg_raster *raster) {
    if (setjmp(j->leave) == 0)
        read_picture(j, data, n, info, raster);
}

enum mg_status mg_jpeg_decode(const uint8_t *data, size_t n, const struct mg_image_options *o,
                              const struct mg_image_info *info, struct mg_raster *raster,
                              struct mg_err *err) {
    struct job j = {.err = err};
    (void)o;
    guard(&j, data, n, info, raster);
    jpeg_destroy_decompress(&j.c);
    free(j.rows);
    return j.status;
}
