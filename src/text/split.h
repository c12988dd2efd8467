/* text/split.h - cuts text into the pieces that merges never cross.
 *
 * A hand-written scanner for the one pattern of the Qwen tokenizers (MG_SPLIT_PATTERN below is what
 * the file must say). It answers to the reference's regex engine: alternatives in order, each as
 * long as it can be, with its edition of Unicode (unicode_tables.c).
 */
#ifndef MG_TEXT_SPLIT_H
#define MG_TEXT_SPLIT_H

#include "base/mem.h"

#define MG_SPLIT_PATTERN                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Where the piece that begins at `at` < n ends. s[0..n) is UTF-8, at the start of a character. */
size_t mg_split_next(const uint8_t *cls, const uint8_t *s, size_t n, size_t at);

#endif
