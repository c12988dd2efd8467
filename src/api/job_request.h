/* api/job_request.h - a request on its way into a queue: its pictures are taken out, so that each
 * goes there once, and the rest stays as the client wrote it.
 *
 *     "url":"data:image/png;base64,iVBORw0..."   becomes   "url":"margay-file:file-5e88..."
 *
 * The name is of the picture's digest. What is wrong with a request is for the worker to find: only
 * what can't be read as JSON is refused here, and a picture that can't be decoded stays where it
 * is.
 */
#ifndef MG_API_JOB_REQUEST_H
#define MG_API_JOB_REQUEST_H

#include "api/fault.h"
#include "base/sha256.h"

enum { MG_JOB_MAX_PICTURES = 64 };

struct mg_job_picture {
    char name[81];  /* as the body calls it */
    uint8_t *bytes; /* [n] owned; NULL: an upload of this name */
    size_t n;
    char digest[MG_SHA256_HEX]; /* of the bytes */
};

struct mg_job_request {
    struct mg_buf body; /* JSON without long pictures */
    bool stream;
    struct mg_job_picture picture[MG_JOB_MAX_PICTURES]; /* no name twice */
    size_t n_picture;
};

/* max_bytes: of a picture. */
enum mg_status mg_job_request_parse(const char *body, size_t n, size_t max_bytes,
                                    struct mg_job_request **out, struct mg_fault *f);
void mg_job_request_free(struct mg_job_request *r); /* NULL is fine */

#endif
