/* api/image_source.h - how a request names a picture: inline bytes, or where they are.
 *
 *     data:image/png;base64,iVBOR...   inline; the MIME type is only a hint and not kept
 *     iVBORw0KGgo...                   inline, base64 alone (any alphabet, line ends, no padding)
 *     https://host/cat.jpg             kept as text; whether it may be fetched is the caller's
 *     file:///pictures/cat.jpg         kept as text; only below --media-path, says the caller
 *     margay-file:ID, file-ID          a picture uploaded before (ID: the whole "file-..." name;
 *                                      "margay-file:file-x" and "file-x" are the same)
 *
 * Anything else with a scheme is refused. A bare path ("/etc/passwd") is never opened: it is read
 * as base64 and fails as that, or as a picture. Only base64 data URLs are taken. What the bytes
 * are is for the image decoder to say.
 */
#ifndef MG_API_IMAGE_SOURCE_H
#define MG_API_IMAGE_SOURCE_H

#include "api/fault.h"

#define MG_IMAGE_MAX_URL 8192   /* bytes of an http or file URL */
#define MG_IMAGE_MAX_FILE_ID 64 /* bytes of an uploaded file's id, "file-" included */

enum mg_image_source_kind {
    MG_SOURCE_BYTES,
    MG_SOURCE_URL,      /* http or https */
    MG_SOURCE_FILE_URL, /* file: */
    MG_SOURCE_FILE_ID   /* of an upload */
};

struct mg_image_source {
    enum mg_image_source_kind kind;
    uint8_t *bytes; /* BYTES: [n_bytes], owned (free); the caller may take it and leave NULL */
    size_t n_bytes;
    void (*release)(void *shared); /* NULL, or how `bytes` are given back in place of free */
    void *shared;
    const char *text; /* the others: the URL or the id, in the arena */
};

/* Reads `text`, which need not be UTF-8. `max_bytes` bounds a decoded picture. `param` names the
 * field in the error. On failure nothing is owned. */
enum mg_status mg_image_source_read(const char *text, size_t n, size_t max_bytes,
                                    struct mg_arena *arena, const char *param,
                                    struct mg_image_source *out, struct mg_fault *f);
/* Frees its bytes or gives them back, and leaves none. */
void mg_image_source_drop(struct mg_image_source *s);
/* 1 .. MG_IMAGE_MAX_FILE_ID letters, digits, '-', '_'. */
bool mg_file_id_valid(const char *id, size_t n);

#endif
