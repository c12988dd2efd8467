/* api/multipart.h - multipart/form-data, as browsers, curl and the OpenAI clients send uploads.
 *
 * The whole body is in memory (capped by the caller) and is only looked at: parts are views of it,
 * nothing is copied. Strict where it matters: every part needs a Content-Disposition of form-data
 * with a name, its head is at most 4 KiB, there are at most MG_MULTIPART_MAX_PARTS, and the closing
 * boundary must be there, so that a cut upload is never taken for a picture. Preamble and epilogue
 * are passed over, as RFC 2046 says; transfer encodings other than none are refused.
 *
 *     --BOUNDARY\r\n
 *     Content-Disposition: form-data; name="file"; filename="a.png"\r\n
 *     Content-Type: image/png\r\n
 *     \r\n
 *     BYTES\r\n--BOUNDARY--\r\n
 */
#ifndef MG_API_MULTIPART_H
#define MG_API_MULTIPART_H

#include "api/fault.h"

#define MG_MULTIPART_MAX_PARTS 16
#define MG_MULTIPART_MAX_HEAD 4096
#define MG_MULTIPART_MAX_BOUNDARY 70 /* RFC 2046 */

struct mg_multipart_part {
    struct mg_slice name, filename, type, data; /* views of the body; n 0 when not given */
};

struct mg_multipart {
    struct mg_multipart_part part[MG_MULTIPART_MAX_PARTS];
    size_t n;
};

/* content_type: the request's header. MG_ERR_UNSUPPORTED ("unsupported_media_type") when it isn't
 * multipart/form-data with a boundary. */
enum mg_status mg_multipart_parse(const char *content_type, const void *body, size_t n,
                                  struct mg_multipart *out, struct mg_fault *f);
/* The first part of that name, or NULL. */
const struct mg_multipart_part *mg_multipart_find(const struct mg_multipart *m, const char *name);

#define MG_UPLOAD_MAX_SECONDS 2592000 /* 30 days */

/* POST /v1/files: one picture under "file", and perhaps its "purpose" and how long it is kept
 * ("expires_after[seconds]"). */
struct mg_upload {
    struct mg_slice data; /* a view of the body, not empty */
    char filename[128];   /* last component, made fit to be shown; "upload" when not given */
    char purpose[32];     /* "vision" when not given */
    int64_t seconds;      /* to be kept at most, 1 .. MG_UPLOAD_MAX_SECONDS; 0: not given */
};
enum mg_status mg_upload_parse(const char *content_type, const void *body, size_t n,
                               size_t max_bytes, struct mg_upload *out, struct mg_fault *f);

#endif
