/* api/token_request.h - bodies and replies of /tokenize and /detokenize, as llama-server has them.
 *
 *     /tokenize     {"content":"text","add_special":false,"parse_special":true,"with_pieces":false}
 *                   -> {"tokens":[1,2]} or {"tokens":[{"id":1,"piece":"a"},{"id":2,"piece":[226]}]}
 *     /detokenize   {"tokens":[1,2]} -> {"content":"text"}
 *
 * (/apply-template has the body of a chat request; its reply is mg_template_write's.)
 */
#ifndef MG_API_TOKEN_REQUEST_H
#define MG_API_TOKEN_REQUEST_H

#include "api/fault.h"

struct mg_tokenize_request {
    struct mg_buf text; /* owned */
    bool parse_special; /* control tokens in the text are read as such; default true */
    bool with_pieces;
};
/* On failure nothing is owned. */
enum mg_status mg_tokenize_request_parse(const char *body, size_t n,
                                         struct mg_tokenize_request *out, struct mg_fault *f);
void mg_tokenize_request_free(struct mg_tokenize_request *r);

/* Ids from 0; whether the vocabulary has them is the tokenizer's to say. */
enum mg_status mg_detokenize_request_parse(const char *body, size_t n, struct mg_ids *out,
                                           struct mg_fault *f);

/* piece: [n] the bytes of each token, or NULL for ids alone. A piece that is no UTF-8 by itself is
 * written as a list of its bytes. All writers: false when the buffer could not grow. */
bool mg_tokenize_write(struct mg_buf *out, const int32_t *id, const struct mg_slice *piece,
                       size_t n);
bool mg_detokenize_write(struct mg_buf *out, const char *text, size_t n);
/* {"prompt":"..."} */
bool mg_template_write(struct mg_buf *out, const char *prompt, size_t n);

#endif
