/* tokenizer.json from outside. What loads is then used: encoding, decoding and the ids must keep
 * their promises whatever the file says. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool promise) {
    if (!promise) abort();
}

static void use(const struct mg_tokenizer *tok, const char *text, size_t n) {
    for (int special = 0; special < 2; special++) {
        struct mg_ids ids = {0};
        struct mg_buf out = {0};
        require(mg_tokenizer_encode(tok, text, n, special, &ids, NULL) == MG_OK);
        for (size_t i = 0; i < ids.n; i++)
            require(ids.id[i] >= 0 && (size_t)ids.id[i] < mg_tokenizer_n(tok));
        require(mg_tokenizer_decode(tok, ids.id, ids.n, special, &out));
        mg_buf_free(&out);
        mg_ids_free(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char text[] = "ab abc <|im_end|>\xE4\xB8\xAD e\xCC\x81 don't 12\r\n";
    struct mg_tokenizer *tok;
    struct mg_err err = {0};
    if (mg_tokenizer_parse(data, n, &tok, &err) != MG_OK) {
        require(!tok && err.status != MG_OK && err.text[0]);
        return 0;
    }
    require(tok && err.status == MG_OK);
    use(tok, text, sizeof text - 1);
    use(tok, (const char *)data, n < 300 ? n : 300);
    struct mg_buf out = {.max = 1 << 20};
    size_t n_id = mg_tokenizer_n(tok);
    for (size_t i = 0; i < n_id && i < 64; i++) {
        int32_t id = (int32_t)i;
        mg_tokenizer_decode(tok, &id, 1, true, &out);
    }
    mg_buf_free(&out);
    require(mg_tokenizer_piece(tok, (int32_t)n_id).n == 0);
    mg_tokenizer_added(tok, "<|im_end|>");
    mg_tokenizer_close(tok);
    return 0;
}
