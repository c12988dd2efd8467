/* text/tokenizer_impl.h - what a struct mg_tokenizer is; for tokenizer.c and tokenizer_file.c. */
#ifndef MG_TEXT_TOKENIZER_IMPL_H
#define MG_TEXT_TOKENIZER_IMPL_H

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#include <stdatomic.h>

/* An added token as it is looked for in text. */
struct mg_added {
    const uint8_t *text; /* its content (in NFC when it is looked for in normalised text), owned */
    size_t n;            /* 1..MG_TOKEN_MAX_BYTES */
    int32_t id;
    bool normalized; /* the file's "normalized": looked for after NFC */
};

/* Added tokens in order of their bytes, so that the longest at a place is found by narrowing a
 * range. */
struct mg_added_set {
    struct mg_added *item; /* [n], owned */
    size_t n;
    bool first[256]; /* some item begins with this byte */
};

struct mg_tokenizer {
    struct mg_vocab vocab;
    struct mg_bpe bpe;
    struct mg_added_set raw, normalized; /* looked for before and after NFC */
    struct mg_arena arena;               /* the added tokens' contents */
    /* [vocab.n] by id: is the token what merging its own bytes gives? Found out when first met; the
     * only thing that changes after loading, each byte on its own and always to the same value. */
    _Atomic uint8_t *whole;
};
enum { MG_WHOLE_UNKNOWN, MG_WHOLE_YES, MG_WHOLE_NO };

#endif
