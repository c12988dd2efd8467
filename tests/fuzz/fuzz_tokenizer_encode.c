/* Text from outside: encoding, decoding, streaming, and prompts with tools.
 *
 * Input: one byte of options, then the text. Bit 0: the rest is also tried as tool definitions. The
 * tokenizer is a small one made here, with a token for every byte and merges that reach both ways
 * of merging.
 */
#include "text/prompt.h"
#include "text/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool promise) {
    if (!promise) abort();
}

static void add_json_pattern(struct mg_buf *b) {
    for (const char *p = MG_SPLIT_PATTERN; *p; p++) {
        if (*p == '\\') mg_buf_add_byte(b, '\\');
        mg_buf_add_byte(b, (uint8_t)*p);
    }
}

static struct mg_tokenizer *make(void) {
    static const char *const word[] = {"aa", "aaaa", "ab", "abc", "\\u0120a", "\xC3\xA4\xC2\xB8"};
    static const char *const merge[] = {"a a",  "aa aa",     "a b",
                                        "ab c", "\\u0120 a", "\xC3\xA4 \xC2\xB8"};
    static const char *const added[] = {"<|im_start|>",   "<|im_end|>",      "<|vision_start|>",
                                        "<|vision_end|>", "<|image_pad|>",   "<tool_call>",
                                        "</tool_call>",   "<tool_response>", "</tool_response>"};
    struct mg_buf b = {0};
    mg_buf_add_str(
        &b, "{\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},"
            "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
            "\"pattern\":{\"Regex\":\"");
    add_json_pattern(&b);
    mg_buf_add_str(&b,
                   "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]},"
                   "\"model\":{\"vocab\":{");
    int id = 0;
    for (int c = 0x21; c < 0x144;
         c++) { /* the byte alphabet: 188 printable characters, 68 others */
        if (c == 0x7F) c = 0xA1;
        if (c != 0xAD) mg_buf_printf(&b, "\"\\u%04x\":%d,", c, id++);
    }
    require(id == 256);
    for (int i = 0; i < 6; i++) mg_buf_printf(&b, "%s\"%s\":%d", i ? "," : "", word[i], id++);
    mg_buf_add_str(&b, "},\"merges\":[");
    for (int i = 0; i < 6; i++) mg_buf_printf(&b, "%s\"%s\"", i ? "," : "", merge[i]);
    mg_buf_add_str(&b, "]},\"added_tokens\":[");
    for (int i = 0; i < 9; i++)
        mg_buf_printf(&b, "%s{\"id\":%d,\"content\":\"%s\",\"special\":%s}", i ? "," : "", id++,
                      added[i], i < 5 ? "true" : "false");
    mg_buf_add_str(&b, "]}");
    struct mg_tokenizer *tok;
    struct mg_err err = {0};
    if (mg_tokenizer_parse(b.data, b.n, &tok, &err) != MG_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    mg_buf_free(&b);
    return tok;
}

static struct mg_ids encode(const struct mg_tokenizer *tok, const void *text, size_t n,
                            bool special) {
    struct mg_ids ids = {0};
    require(mg_tokenizer_encode(tok, text, n, special, &ids, NULL) == MG_OK);
    return ids;
}

static void same_buf(const struct mg_buf *a, const struct mg_buf *b) {
    require(a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0));
}

/* Decoded and encoded again it is the same; streamed it is the same. */
static void round_trip(const struct mg_tokenizer *tok, const uint8_t *text, size_t n,
                       bool special) {
    struct mg_ids ids = encode(tok, text, n, special);
    struct mg_buf whole = {0}, streamed = {0};
    struct mg_detok d = {0};
    require(mg_tokenizer_decode(tok, ids.id, ids.n, false, &whole));
    for (size_t i = 0; i < ids.n; i++) {
        require(special || ids.id[i] < 262);
        require(mg_detok_add(&d, mg_tokenizer_piece(tok, ids.id[i]), &streamed));
    }
    require(mg_detok_flush(&d, &streamed));
    same_buf(&whole, &streamed);
    struct mg_ids again = encode(tok, whole.data, whole.n, special);
    struct mg_buf twice = {0};
    require(mg_tokenizer_decode(tok, again.id, again.n, false, &twice));
    same_buf(&whole, &twice);
    mg_ids_free(&ids);
    mg_ids_free(&again);
    mg_buf_free(&whole);
    mg_buf_free(&streamed);
    mg_buf_free(&twice);
}

/* A broken stream of bytes, cut at odd places, streams to what it is as a whole. */
static void stream(const uint8_t *text, size_t n) {
    struct mg_buf whole = {0}, cut = {0};
    struct mg_detok a = {0}, b = {0};
    require(mg_detok_add(&a, (struct mg_slice){text, n}, &whole) && mg_detok_flush(&a, &whole));
    for (size_t at = 0; at < n;) {
        size_t len = 1 + (text[at] ^ at) % 5;
        if (len > n - at) len = n - at;
        require(mg_detok_add(&b, (struct mg_slice){text + at, len}, &cut));
        at += len;
    }
    require(mg_detok_flush(&b, &cut));
    same_buf(&whole, &cut);
    mg_buf_free(&whole);
    mg_buf_free(&cut);
}

static size_t n_added(const struct mg_ids *ids) {
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) n += ids->id[i] >= 262;
    return n;
}

static void prompt(const struct mg_tokenizer *tok, const uint8_t *text, size_t n, bool tools) {
    struct mg_slice s = {text, n};
    struct mg_part part[] = {{.kind = MG_PART_TEXT, .text = s},
                             {.kind = MG_PART_IMAGE, .n_token = 3},
                             {.kind = MG_PART_TEXT, .text = s}};
    struct mg_part call = {.kind = MG_PART_TOOL_CALL, .text = s, .name = s};
    struct mg_turn turn[] = {{MG_ROLE_SYSTEM, part, 1},
                             {MG_ROLE_USER, part, 3},
                             {MG_ROLE_ASSISTANT, &call, 1},
                             {MG_ROLE_TOOL, part, 1}};
    struct mg_prompt p;
    struct mg_err err = {0};
    struct mg_slice none = {0};
    enum mg_status status = mg_prompt_build(tok, turn, 4, tools ? s : none, true, &p, &err);
    if (status != MG_OK) {
        require(tools && err.text[0] && !p.ids.id && !p.image_at);
        return;
    }
    /* 4 turns and an open one: 9 of im_start and im_end; 5 of the picture; 2 of the call, 2 of the
     * response; with tools (when there are any) 4 more. */
    size_t added = n_added(&p.ids);
    require(added == 18 || (tools && added == 22));
    require(p.n_image == 1 && p.image_at[0] + 3 < p.ids.n);
    mg_prompt_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct mg_tokenizer *tok;
    if (!tok) tok = make();
    if (n == 0) return 0;
    round_trip(tok, data + 1, n - 1, false);
    round_trip(tok, data + 1, n - 1, true);
    stream(data + 1, n - 1);
    prompt(tok, data + 1, n - 1, false);
    if (data[0] & 1) prompt(tok, data + 1, n - 1, true);
    return 0;
}
