/* api/request_read.h - private to src/api: reading the common fields, and helpers for single ones.
 *
 * All getters: a field that is missing or null leaves *out alone and is MG_OK. `path` is where the
 * object stands ("" at the top, "messages[3]."), it comes before the field's name in param and
 * text.
 */
#ifndef MG_API_REQUEST_READ_H
#define MG_API_REQUEST_READ_H

#include "api/json_doc.h"
#include "api/request.h"

enum mg_dialect { MG_DIALECT_CHAT, MG_DIALECT_COMPLETION };

struct mg_reader {
    const struct mg_jdoc *doc;
    struct mg_arena *arena;                       /* of the request that is being made */
    const char *warning[MG_REQUEST_MAX_WARNINGS]; /* in the arena */
    size_t n_warning;
    struct mg_fault *f;
};

enum mg_status mg_read_bool(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, struct mg_set_bool *out);
/* A whole number, also spelled as 64.0. */
enum mg_status mg_read_int(struct mg_reader *r, const json_t *object, const char *path,
                           const char *key, int64_t min, int64_t max, struct mg_set_int *out);
enum mg_status mg_read_real(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, double min, double max, struct mg_set_real *out);
/* A string of at most `max` bytes; *out stays NULL when there is none. */
enum mg_status mg_read_text(struct mg_reader *r, const json_t *object, const char *path,
                            const char *key, size_t max, const char **out);
/* path + key, cut to size. */
void mg_read_name(char out[MG_PARAM_BYTES], const char *path, const char *key);
/* "wanted a string, found a list". */
enum mg_status mg_read_wrong(struct mg_reader *r, const char *path, const char *key,
                             const char *wanted, const json_t *found);
/* Remembers a sentence for the reply; the ones over MG_REQUEST_MAX_WARNINGS are dropped. */
enum mg_status mg_read_warn(struct mg_reader *r, const char *fmt, ...) MG_PRINTF(2, 3);

/* All common fields of the document's root. */
enum mg_status mg_request_read(struct mg_reader *r, enum mg_dialect dialect,
                               struct mg_request *out);
/* A chat request of a document that is read already. short_form: without "messages" it may be a
 * question as in ws_request.h. */
struct mg_chat_limits;
struct mg_chat_request;
enum mg_status mg_chat_request_read(const struct mg_jdoc *doc, bool short_form,
                                    const struct mg_chat_limits *limits,
                                    struct mg_chat_request **out, struct mg_fault *f);
/* Moves the reader's warnings into the request; after the last of the reading. */
enum mg_status mg_request_warnings(struct mg_reader *r, struct mg_request *out);

#endif
