/* margay/status.h - the outcome of every call, and the text that goes with a failure.
 *
 * Errors are filled in once, where the fault is found, with names and numbers; callers above pass
 * them on unchanged. `code` is a short stable word a program can compare ("image_truncated"),
 * `text` is one sentence for a person. A text never holds a pointer or the user's own bytes.
 */
#ifndef MARGAY_STATUS_H
#define MARGAY_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum mg_status {
    MG_OK = 0,
    MG_ERR_ARGUMENT, /* the caller asked for something that can't be (a bad option, an empty prompt)
                      */
    MG_ERR_NOT_FOUND,   /* a file, tensor or model that isn't there */
    MG_ERR_IO,          /* the system refused a read or a write (permission, full disk) */
    MG_ERR_FORMAT,      /* bytes that are not what they claim to be (damaged, truncated, hostile) */
    MG_ERR_UNSUPPORTED, /* well-formed, but of a kind that this build can't handle */
    MG_ERR_LIMIT,       /* over a named limit (bytes, pixels, aspect ratio, images) */
    MG_ERR_CONTEXT,     /* prompt and answer don't fit into the context */
    MG_ERR_NUMERIC,     /* a computation gave a value that isn't finite */
    MG_ERR_CANCELLED,   /* stopped on request */
    MG_ERR_MEMORY       /* out of memory: this request fails, the process lives */
};

struct mg_err {
    enum mg_status status;
    char code[32];  /* stable word, "" when the status says it all */
    char text[480]; /* one sentence, UTF-8, NUL-terminated */
};

/* "out of memory" and the like; never NULL. */
const char *mg_status_name(enum mg_status status);

#ifdef __cplusplus
}
#endif
#endif
