/* api/token_request.c - see token_request.h. */
#include "api/token_request.h"

#include "api/json_doc.h"
#include "api/json_write.h"
#include "api/request_read.h"
#include "text/unicode.h"

#include <math.h>

enum mg_status mg_tokenize_request_parse(const char *body, size_t n,
                                         struct mg_tokenize_request *out, struct mg_fault *f) {
    *out = (struct mg_tokenize_request){.text = {.max = SIZE_MAX}};
    struct mg_jdoc doc;
    struct mg_arena arena = {0};
    enum mg_status status = mg_jdoc_parse(body, n, &doc, f);
    if (status != MG_OK) return status;
    struct mg_reader r = {.doc = &doc, .arena = &arena, .f = f};
    struct mg_set_bool special = {false, true}, pieces = {0};
    const json_t *content = mg_jdoc_get(doc.root, "content");
    status =
        json_is_string(content) ? MG_OK : mg_read_wrong(&r, "", "content", "a string", content);
    if (status == MG_OK) status = mg_read_bool(&r, doc.root, "", "parse_special", &special);
    if (status == MG_OK) status = mg_read_bool(&r, doc.root, "", "with_pieces", &pieces);
    struct mg_slice text = {0};
    if (status == MG_OK) status = mg_jdoc_text(&doc, content, &arena, "content", &text, f);
    if (status == MG_OK && !mg_buf_add(&out->text, text.data, text.n))
        status = mg_fault_memory(f, "request");
    out->parse_special = special.value;
    out->with_pieces = pieces.value;
    mg_jdoc_free(&doc);
    mg_arena_free(&arena);
    if (status != MG_OK) mg_tokenize_request_free(out);
    return status;
}

void mg_tokenize_request_free(struct mg_tokenize_request *r) {
    mg_buf_free(&r->text);
}

enum mg_status mg_detokenize_request_parse(const char *body, size_t n, struct mg_ids *out,
                                           struct mg_fault *f) {
    *out = (struct mg_ids){0};
    struct mg_jdoc doc;
    enum mg_status status = mg_jdoc_parse(body, n, &doc, f);
    if (status != MG_OK) return status;
    struct mg_reader r = {.doc = &doc, .f = f};
    const json_t *tokens = mg_jdoc_get(doc.root, "tokens");
    if (!json_is_array(tokens))
        status = mg_read_wrong(&r, "", "tokens", "a list of token ids", tokens);
    size_t count = json_array_size(tokens);
    if (status == MG_OK && !mg_ids_reserve(out, count)) status = mg_fault_memory(f, "request");
    for (size_t i = 0; i < count && status == MG_OK; i++) {
        const json_t *id = json_array_get(tokens, i);
        double x = json_number_value(id); /* also spelled as 64.0 */
        if (!json_is_number(id) || !(x >= 0 && x <= INT32_MAX) || x != floor(x))
            status = mg_fault_set(f, MG_ERR_ARGUMENT, "invalid_value", "tokens",
                                  "tokens[%zu]: not a token id", i);
        else
            out->id[out->n++] = (int32_t)x;
    }
    mg_jdoc_free(&doc);
    if (status != MG_OK) mg_ids_free(out);
    return status;
}

static void write_piece(struct mg_jwrite *j, struct mg_slice piece) {
    bool nfc;
    if (mg_utf8_check(piece.data, piece.n, &nfc)) {
        mg_jwrite_string(j, (const char *)piece.data, piece.n);
        return;
    }
    mg_jwrite_open(j, '[');
    for (size_t i = 0; i < piece.n; i++) mg_jwrite_uint(j, piece.data[i]);
    mg_jwrite_close(j, ']');
}

bool mg_tokenize_write(struct mg_buf *out, const int32_t *id, const struct mg_slice *piece,
                       size_t n) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_key(&j, "tokens");
    mg_jwrite_open(&j, '[');
    for (size_t i = 0; i < n; i++) {
        if (!piece) {
            mg_jwrite_int(&j, id[i]);
            continue;
        }
        mg_jwrite_open(&j, '{');
        mg_jwrite_kint(&j, "id", id[i]);
        mg_jwrite_key(&j, "piece");
        write_piece(&j, piece[i]);
        mg_jwrite_close(&j, '}');
    }
    mg_jwrite_close(&j, ']');
    mg_jwrite_close(&j, '}');
    return !out->failed;
}

static bool write_one(struct mg_buf *out, const char *key, const char *text, size_t n) {
    struct mg_jwrite j = {.out = out};
    mg_jwrite_open(&j, '{');
    mg_jwrite_key(&j, key);
    mg_jwrite_string(&j, text, n);
    mg_jwrite_close(&j, '}');
    return !out->failed;
}

bool mg_detokenize_write(struct mg_buf *out, const char *text, size_t n) {
    return write_one(out, "content", text, n);
}

bool mg_template_write(struct mg_buf *out, const char *prompt, size_t n) {
    return write_one(out, "prompt", prompt, n);
}
