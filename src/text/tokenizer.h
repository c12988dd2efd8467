/* text/tokenizer.h - the Qwen byte-level BPE tokenizer, read from tokenizer.json.
 *
 * Encoding: added tokens are cut out first (longest at a place; only when `special` is set), then
 * each piece is put into NFC, split by the Qwen pattern, written in GPT-2's byte alphabet and
 * merged by rank. A loaded tokenizer may be used by any number of threads.
 *
 * A tokenizer.json whose normalizer, pre-tokenizer (its pattern too), decoder or model is another
 * kind is MG_ERR_UNSUPPORTED with that part's name in the text; a damaged one is MG_ERR_FORMAT.
 */
#ifndef MG_TEXT_TOKENIZER_H
#define MG_TEXT_TOKENIZER_H

#include "base/err.h"
#include "base/mem.h"

struct mg_tokenizer;

/* FOLDER/tokenizer.json. Named limits: file 64 MiB, 1,000,000 tokens, 4 KiB a token. */
enum mg_status mg_tokenizer_open(const char *folder, struct mg_tokenizer **out, struct mg_err *err);
/* The same from memory; the bytes are not needed afterwards. */
enum mg_status mg_tokenizer_parse(const void *json, size_t n, struct mg_tokenizer **out,
                                  struct mg_err *err);
void mg_tokenizer_close(struct mg_tokenizer *tok); /* NULL is fine */

/* Appends the ids of text[0..n). Bytes that are not UTF-8 are read as U+FFFD, as the reference's
 * callers do. special: added tokens in the text become their ids; else they are ordinary
 * characters. On failure `out` is as it was. MG_ERR_LIMIT over 64 MiB. Takes O(n log n) whatever
 * the text is. */
enum mg_status mg_tokenizer_encode(const struct mg_tokenizer *tok, const char *text, size_t n,
                                   bool special, struct mg_ids *out, struct mg_err *err);

/* The bytes that a token stands for (may be part of a UTF-8 character); added tokens give their
 * content (read in the byte alphabet where it can be, as the reference does: no difference for
 * ASCII). An id without a token gives n = 0. The view lives as long as the tokenizer. */
struct mg_slice mg_tokenizer_piece(const struct mg_tokenizer *tok, int32_t id);

/* The id of an added token by its content ("<|im_end|>"), or -1. */
int32_t mg_tokenizer_added(const struct mg_tokenizer *tok, const char *content);
/* Added, and marked special in the file: not part of an answer's text. */
bool mg_tokenizer_is_special(const struct mg_tokenizer *tok, int32_t id);
/* One more than the largest id. */
size_t mg_tokenizer_n(const struct mg_tokenizer *tok);

/* Decodes a whole sequence; `skip_special` leaves special tokens out. Bytes that make no UTF-8
 * become U+FFFD exactly as the reference decoder writes them. */
bool mg_tokenizer_decode(const struct mg_tokenizer *tok, const int32_t *id, size_t n,
                         bool skip_special, struct mg_buf *out);

/* Streaming: takes one token's bytes at a time and gives out only whole characters; the joined
 * output equals mg_tokenizer_decode of the whole. Zero-initialise. */
struct mg_detok {
    uint8_t tail[4]; /* the beginning of a character that isn't complete */
    size_t n_tail;
};
bool mg_detok_add(struct mg_detok *d, struct mg_slice piece, struct mg_buf *out);
/* At the end: an incomplete tail as U+FFFD. */
bool mg_detok_flush(struct mg_detok *d, struct mg_buf *out);

#endif
