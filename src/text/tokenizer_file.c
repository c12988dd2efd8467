/* text/tokenizer_file.c - tokenizer.json into a struct mg_tokenizer.
 *
 * The file names its parts (normalizer, pre_tokenizer, post_processor, decoder, model); each must
 * be the one that tokenizer.c and split.c are written for, or the file is refused by that part's
 * name rather than read as something near. Then:
 *
 *     vocab   token -> id                    into the token table
 *     merges  ["a", "b"] or "a b", in rank   into the merge table; a, b and ab must be tokens
 *     added_tokens                           into the token table and the sets to look for
 *
 * The parts may come in any order. Limits: 64 MiB, MG_TOKEN_MAX_N tokens, MG_TOKEN_MAX_BYTES a
 * token, MG_MERGE_MAX_N merges. What is kept grows with what was read, never with a number that the
 * file claims, but for the largest id, which is limited.
 */
#include "text/json_reader.h"
#include "text/split.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include "base/io.h"

#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20)
#define NAME_MAX_BYTES 64

struct loader {
    struct mg_jread j;
    struct mg_tokenizer *tok;
    struct mg_err *err;
    struct mg_added *added; /* [n_added] as read; text in tok->arena; owned */
    bool *special;          /* [n_added], owned */
    size_t n_added, cap_added;
    bool has_vocab, has_merges;
};

/* A name from the file, fit to be shown: printable ASCII, cut. */
struct name {
    char text[NAME_MAX_BYTES];
};

static void name_set(struct name *out, struct mg_slice s) {
    size_t n = mg_min_size(s.n, sizeof out->text - 1);
    for (size_t i = 0; i < n; i++)
        out->text[i] = s.data[i] >= 0x20 && s.data[i] < 0x7F ? (char)s.data[i] : '?';
    out->text[n] = '\0';
}

static bool refuse(struct loader *l, const char *part, const char *found) {
    if (l->j.status != MG_OK) return false;
    l->j.status =
        mg_fail(l->err, MG_ERR_UNSUPPORTED, "tokenizer_unsupported",
                "tokenizer.json: %s \"%s\" is not one that this program implements", part, found);
    return false;
}

static bool broken(struct loader *l, const char *text, size_t number) {
    if (l->j.status != MG_OK) return false;
    l->j.status =
        mg_fail(l->err, MG_ERR_FORMAT, "tokenizer_invalid", "tokenizer.json: %s %zu", text, number);
    return false;
}

static bool no_memory(struct loader *l) {
    if (l->j.status == MG_OK) l->j.status = mg_fail_memory(l->err, "tokenizer");
    return false;
}

/* The place of `key` in names[0..n), or n; a key seen before is a failure. */
static size_t which(struct loader *l, struct mg_slice key, const char *const *names, size_t n,
                    unsigned *seen) {
    size_t i = 0;
    while (i < n && !mg_jread_is(key, names[i])) i++;
    if (i < n && (*seen & 1u << i))
        mg_jread_fail(&l->j, MG_ERR_FORMAT, "a key that is given twice");
    if (i < n) *seen |= 1u << i;
    return i;
}
#define WHICH(l, key, names, seen) which(l, key, names, sizeof(names) / sizeof *(names), seen)

/* ---- the parts that only have to be the right ones ---- */

/* What a normalizer, pre-tokenizer, ... says of itself, as far as any of them matters here. */
struct part {
    struct name type, pattern, behavior;
    bool is_null, qwen_pattern, invert, add_prefix_space, use_regex;
};

static bool read_name(struct loader *l, struct name *out) {
    struct mg_slice s;
    if (!mg_jread_string(&l->j, &s)) return false;
    name_set(out, s);
    return true;
}

static void read_pattern(struct loader *l, struct part *p) {
    struct mg_slice key, s;
    if (!mg_jread_open(&l->j, '{')) return;
    while (mg_jread_key(&l->j, &key)) {
        bool regex = mg_jread_is(key, "Regex");
        if (!mg_jread_string(&l->j, &s)) return;
        name_set(&p->pattern, s);
        p->qwen_pattern = regex && mg_jread_is(s, MG_SPLIT_PATTERN);
    }
}

static void judge_pre_tokenizer(struct loader *l, const struct part *p, size_t place);

/* Reads one part. Nested pre-tokenizers are judged as they are met, and counted in *n_nested. */
static bool read_part(struct loader *l, struct part *p, size_t *n_nested) {
    static const char *const names[] = {
        "type", "pattern", "behavior", "invert", "add_prefix_space", "use_regex", "pretokenizers"};
    *p = (struct part){.use_regex = true};
    if (mg_jread_peek(&l->j) == 'n') {
        p->is_null = true;
        name_set(&p->type, (struct mg_slice){(const uint8_t *)"null", 4});
        return mg_jread_null(&l->j);
    }
    struct mg_slice key;
    unsigned seen = 0;
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &key)) {
        switch (WHICH(l, key, names, &seen)) {
        case 0: read_name(l, &p->type); break;
        case 1: read_pattern(l, p); break;
        case 2: read_name(l, &p->behavior); break;
        case 3: mg_jread_bool(&l->j, &p->invert); break;
        case 4: mg_jread_bool(&l->j, &p->add_prefix_space); break;
        case 5: mg_jread_bool(&l->j, &p->use_regex); break;
        case 6:
            if (!n_nested) return refuse(l, "a nested", "pretokenizers");
            mg_jread_open(&l->j, '[');
            while (mg_jread_element(&l->j)) {
                struct part inner;
                if (!read_part(l, &inner, NULL)) return false;
                judge_pre_tokenizer(l, &inner, (*n_nested)++);
            }
            break;
        default: mg_jread_skip(&l->j);
        }
    }
    return l->j.status == MG_OK;
}

static void judge_pre_tokenizer(struct loader *l, const struct part *p, size_t place) {
    static const char *const wanted[] = {"Split", "ByteLevel"};
    if (place >= 2 || strcmp(p->type.text, wanted[place]) != 0) {
        refuse(l, "the pre_tokenizer", p->type.text);
    } else if (place == 0) {
        if (!p->qwen_pattern) refuse(l, "the pre_tokenizer's pattern", p->pattern.text);
        if (strcmp(p->behavior.text, "Isolated") != 0)
            refuse(l, "the pre_tokenizer's behavior", p->behavior.text);
        if (p->invert) refuse(l, "the pre_tokenizer's option", "invert");
    } else {
        if (p->add_prefix_space) refuse(l, "the pre_tokenizer's option", "add_prefix_space");
        if (p->use_regex) refuse(l, "the pre_tokenizer's option", "use_regex");
    }
}

static void read_pre_tokenizer(struct loader *l) {
    struct part p;
    size_t n = 0;
    if (!read_part(l, &p, &n)) return;
    if (strcmp(p.type.text, "Sequence") != 0 || n != 2) refuse(l, "the pre_tokenizer", p.type.text);
}

static void read_only_type(struct loader *l, const char *part, const char *wanted) {
    struct part p;
    if (read_part(l, &p, NULL) && strcmp(p.type.text, wanted) != 0) refuse(l, part, p.type.text);
}

/* May add nothing to the text: none, ByteLevel (offsets only), or a template without special
 * tokens. */
static void read_post_processor(struct loader *l) {
    static const char *const names[] = {"type", "special_tokens"};
    struct name type = {""};
    struct mg_slice key;
    unsigned seen = 0;
    bool adds = false;
    if (mg_jread_peek(&l->j) == 'n') {
        mg_jread_null(&l->j);
        return;
    }
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &key)) {
        switch (WHICH(l, key, names, &seen)) {
        case 0: read_name(l, &type); break;
        case 1:
            mg_jread_open(&l->j, '{');
            while (mg_jread_key(&l->j, &key)) {
                adds = true;
                mg_jread_skip(&l->j);
            }
            break;
        default: mg_jread_skip(&l->j);
        }
    }
    bool template = strcmp(type.text, "TemplateProcessing") == 0;
    if (template && adds) refuse(l, "the post_processor's", "special_tokens");
    if (!template && strcmp(type.text, "ByteLevel") != 0)
        refuse(l, "the post_processor", type.text);
}

/* ---- vocabulary and merges ---- */

static bool token_fits(struct loader *l, struct mg_slice text) {
    if (text.n <= MG_TOKEN_MAX_BYTES) return true;
    return mg_jread_fail(&l->j, MG_ERR_LIMIT, "a token of more than 4096 bytes");
}

/* Tokens and merges are taken in some at a time, so that waits for the tables' memory overlap. */
#define N_BATCH 16

struct batch {
    struct mg_vocab_probe probe[3 * N_BATCH]; /* a token; or left, right and both of a merge */
    uint32_t id[N_BATCH];                     /* of a token */
    size_t n;                                 /* tokens or merges waiting */
    size_t n_byte;
    uint8_t byte[N_BATCH * 2 * MG_TOKEN_MAX_BYTES]; /* what the probes point into */
};

static bool take_tokens(struct loader *l, struct batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        uint32_t id = b->id[i];
        switch (mg_vocab_add(&l->tok->vocab, &b->probe[i], id)) {
        case MG_VOCAB_ADDED: break;
        case MG_VOCAB_TWICE: return broken(l, "a token is given twice, the second time as", id);
        case MG_VOCAB_ID_TAKEN: return broken(l, "two tokens have the id", id);
        case MG_VOCAB_MEMORY: return no_memory(l);
        }
    }
    b->n = b->n_byte = 0;
    return true;
}

static void read_vocab(struct loader *l, struct batch *b) {
    struct mg_slice key;
    b->n = b->n_byte = 0;
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &key)) {
        if (!token_fits(l, key)) return;
        uint8_t *bytes = b->byte + b->n_byte;
        bool literal;
        size_t n = mg_vocab_bytes(key, bytes, &literal);
        mg_vocab_aim(&l->tok->vocab, bytes, n, literal, &b->probe[b->n]);
        if (!mg_jread_uint(&l->j, MG_TOKEN_MAX_N - 1, &b->id[b->n])) return;
        b->n_byte += n;
        if (++b->n == N_BATCH && !take_tokens(l, b)) return;
    }
    l->has_vocab = l->j.status == MG_OK && take_tokens(l, b);
}

static bool take_merges(struct loader *l, struct batch *b) {
    const struct mg_vocab *v = &l->tok->vocab;
    struct mg_bpe *bpe = &l->tok->bpe;
    int32_t id[3 * N_BATCH];
    for (size_t i = 0; i < b->n; i++) {
        for (size_t k = 3 * i; k < 3 * i + 3; k++) {
            id[k] = mg_vocab_look(v, &b->probe[k]);
            if (id[k] < 0)
                return broken(l, "not a token, or none when joined, in merge", bpe->n + i);
        }
        mg_bpe_aim(bpe, (uint32_t)id[3 * i], (uint32_t)id[3 * i + 1]);
    }
    for (size_t i = 0; i < b->n; i++) {
        if (bpe->n >= MG_MERGE_MAX_N) return mg_jread_fail(&l->j, MG_ERR_LIMIT, "too many merges");
        const int32_t *m = &id[3 * i];
        if (!mg_bpe_add(bpe, (uint32_t)m[0], (uint32_t)m[1], (uint32_t)m[2])) return no_memory(l);
    }
    b->n = b->n_byte = 0;
    return true;
}

/* One side of a merge; the right one comes directly behind the left, so that both joined need no
 * copy. *n: its bytes. */
static bool put_side(struct loader *l, struct batch *b, struct mg_slice text, size_t *n) {
    bool literal;
    if (!token_fits(l, text)) return false;
    *n = mg_vocab_bytes(text, b->byte + b->n_byte, &literal);
    b->n_byte += *n;
    /* A token outside the byte alphabet never comes up in a text, so its merges would be dead
     * weight, and no Qwen file has one. */
    return !literal || refuse(l, "a merge", "of tokens outside the byte alphabet");
}

static bool aim_merge(struct loader *l, struct batch *b, size_t n_left, size_t n_right) {
    const uint8_t *left = b->byte + b->n_byte - n_left - n_right;
    struct mg_vocab_probe *p = &b->probe[3 * b->n];
    if (n_left + n_right > MG_TOKEN_MAX_BYTES)
        return mg_jread_fail(&l->j, MG_ERR_LIMIT, "a merge of more than 4096 bytes");
    mg_vocab_aim(&l->tok->vocab, left, n_left, false, &p[0]);
    mg_vocab_aim(&l->tok->vocab, left + n_left, n_right, false, &p[1]);
    mg_vocab_aim(&l->tok->vocab, left, n_left + n_right, false, &p[2]);
    return ++b->n < N_BATCH || take_merges(l, b);
}

static bool read_pair(struct loader *l, struct batch *b) {
    size_t n[2];
    struct mg_slice text;
    mg_jread_open(&l->j, '[');
    for (size_t i = 0; i < 2; i++)
        if (!mg_jread_element(&l->j) || !mg_jread_string(&l->j, &text) ||
            !put_side(l, b, text, &n[i]))
            return broken(l, "two tokens are expected in merge", l->tok->bpe.n + b->n);
    if (mg_jread_element(&l->j))
        return broken(l, "two tokens are expected in merge", l->tok->bpe.n + b->n);
    return l->j.status == MG_OK && aim_merge(l, b, n[0], n[1]);
}

/* "a b", the old spelling: exactly one space. */
static bool read_line(struct loader *l, struct batch *b) {
    struct mg_slice line;
    if (!mg_jread_string(&l->j, &line)) return false;
    if (line.n >= 8 && memcmp(line.data, "#version", 8) == 0) return true;
    const uint8_t *space = line.n ? memchr(line.data, ' ', line.n) : NULL;
    size_t n_left = space ? (size_t)(space - line.data) : 0, n_right = line.n - n_left - 1, n[2];
    if (!space || (n_right && memchr(space + 1, ' ', n_right)))
        return broken(l, "two tokens and one space are expected in merge", l->tok->bpe.n + b->n);
    return put_side(l, b, (struct mg_slice){line.data, n_left}, &n[0]) &&
           put_side(l, b, (struct mg_slice){space + 1, n_right}, &n[1]) &&
           aim_merge(l, b, n[0], n[1]);
}

static void read_merges(struct loader *l, struct batch *b) {
    b->n = b->n_byte = 0;
    mg_jread_open(&l->j, '[');
    while (mg_jread_element(&l->j)) {
        bool pair = mg_jread_peek(&l->j) == '[';
        if (!(pair ? read_pair(l, b) : read_line(l, b))) return;
    }
    l->has_merges = l->j.status == MG_OK && take_merges(l, b);
}

/* null, or a text that must be empty. */
static void read_empty_text(struct loader *l, const char *option) {
    struct name name = {""};
    if (mg_jread_peek(&l->j) == 'n')
        mg_jread_null(&l->j);
    else if (read_name(l, &name) && name.text[0])
        refuse(l, option, name.text);
}

static void read_dropout(struct loader *l) {
    struct mg_slice s;
    if (mg_jread_peek(&l->j) == 'n') {
        mg_jread_null(&l->j);
        return;
    }
    if (!mg_jread_number(&l->j, &s)) return;
    for (size_t i = 0; i < s.n && (s.data[i] | 32) != 'e'; i++)
        if (s.data[i] >= '1' && s.data[i] <= '9') {
            refuse(l, "the model's option", "dropout");
            return;
        }
}

static void read_off(struct loader *l, const char *option) {
    bool on = false;
    if (mg_jread_bool(&l->j, &on) && on) refuse(l, "the model's option", option);
}

static void read_model(struct loader *l, struct batch *batch) {
    static const char *const names[] = {"type",
                                        "vocab",
                                        "merges",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "byte_fallback",
                                        "ignore_merges"};
    const uint8_t *merges_at = NULL;
    struct name type = {"BPE"}; /* old files don't say */
    struct mg_slice key;
    unsigned seen = 0;
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &key)) {
        switch (WHICH(l, key, names, &seen)) {
        case 0:
            if (read_name(l, &type) && strcmp(type.text, "BPE") != 0)
                refuse(l, "the model", type.text);
            break;
        case 1: read_vocab(l, batch); break;
        case 2:
            merges_at = l->has_vocab ? NULL : l->j.at;
            if (l->has_vocab)
                read_merges(l, batch);
            else
                mg_jread_skip(&l->j);
            break;
        case 3: read_dropout(l); break;
        case 4: read_empty_text(l, "the model's unk_token"); break;
        case 5: read_empty_text(l, "the model's continuing_subword_prefix"); break;
        case 6: read_empty_text(l, "the model's end_of_word_suffix"); break;
        case 7: read_off(l, "byte_fallback"); break;
        case 8: read_off(l, "ignore_merges"); break;
        default: mg_jread_skip(&l->j);
        }
    }
    if (l->j.status != MG_OK) return;
    if (!l->has_vocab) mg_jread_fail(&l->j, MG_ERR_FORMAT, "the model has no vocab");
    if (merges_at) {
        const uint8_t *here = l->j.at;
        l->j.at = merges_at;
        read_merges(l, batch);
        if (l->j.status == MG_OK) l->j.at = here;
    }
    if (!l->has_merges) mg_jread_fail(&l->j, MG_ERR_FORMAT, "the model has no merges");
}

/* ---- added tokens ---- */

static bool added_room(struct loader *l) {
    if (l->n_added < l->cap_added) return true;
    size_t cap = l->cap_added ? l->cap_added * 2 : 64;
    struct mg_added *added = mg_realloc(l->added, cap, sizeof *added);
    if (added) l->added = added;
    bool *special = added ? mg_realloc(l->special, cap, sizeof *special) : NULL;
    if (!special) return no_memory(l);
    l->special = special;
    l->cap_added = cap;
    return true;
}

static bool read_added_token(struct loader *l) {
    static const char *const names[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special"};
    struct mg_added a = {.id = -1};
    bool special = false, on;
    struct mg_slice s;
    uint32_t id;
    unsigned seen = 0;
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &s)) {
        size_t i = WHICH(l, s, names, &seen);
        switch (i) {
        case 0:
            if (mg_jread_uint(&l->j, MG_TOKEN_MAX_N - 1, &id)) a.id = (int32_t)id;
            break;
        case 1:
            if (!mg_jread_string(&l->j, &s) || !token_fits(l, s)) return false;
            a.text = (const uint8_t *)mg_arena_strdup(&l->tok->arena, (const char *)s.data, s.n);
            a.n = s.n;
            if (!a.text) return no_memory(l);
            break;
        case 2:
        case 3:
        case 4:
            on = false;
            if (mg_jread_bool(&l->j, &on) && on)
                return refuse(l, "the added tokens' option", names[i]);
            break;
        case 5: mg_jread_bool(&l->j, &a.normalized); break;
        case 6: mg_jread_bool(&l->j, &special); break;
        default: mg_jread_skip(&l->j);
        }
    }
    if (l->j.status != MG_OK) return false;
    if (a.id < 0 || a.n == 0)
        return mg_jread_fail(&l->j, MG_ERR_FORMAT, "an added token needs an id and a content");
    if (!added_room(l)) return false;
    l->special[l->n_added] = special;
    l->added[l->n_added++] = a;
    return true;
}

static void read_added_tokens(struct loader *l) {
    if (mg_jread_peek(&l->j) == 'n') {
        mg_jread_null(&l->j);
        return;
    }
    mg_jread_open(&l->j, '[');
    while (mg_jread_element(&l->j) && read_added_token(l)) continue;
}

static int by_text(const void *x, const void *y) {
    const struct mg_added *a = x, *b = y;
    int d = memcmp(a->text, b->text, mg_min_size(a->n, b->n));
    return d ? d : (a->n > b->n) - (a->n < b->n);
}

static bool build_set(struct loader *l, struct mg_added_set *set, bool normalized) {
    struct mg_buf nfc = {0};
    bool ok = true;
    set->item = mg_alloc(l->n_added, sizeof *set->item);
    for (size_t i = 0; set->item && ok && i < l->n_added; i++) {
        struct mg_added a = l->added[i];
        if (a.normalized != normalized) continue;
        if (normalized) {
            nfc.n = 0;
            ok = mg_nfc(a.text, a.n, &nfc);
            a.text =
                ok ? (uint8_t *)mg_arena_strdup(&l->tok->arena, (char *)nfc.data, nfc.n) : NULL;
            a.n = nfc.n;
            ok = a.text != NULL;
        }
        if (!ok) break;
        set->first[a.text[0]] = true;
        set->item[set->n++] = a;
    }
    mg_buf_free(&nfc);
    if (!set->item || !ok) return no_memory(l);
    qsort(set->item, set->n, sizeof *set->item, by_text);
    return true;
}

static enum mg_vocab_add add_token(struct mg_vocab *v, struct mg_slice text, uint32_t id) {
    uint8_t bytes[MG_TOKEN_MAX_BYTES];
    struct mg_vocab_probe p;
    bool literal;
    size_t n = mg_vocab_bytes(text, bytes, &literal);
    mg_vocab_aim(v, bytes, n, literal, &p);
    return mg_vocab_add(v, &p, id);
}

static bool finish_added(struct loader *l) {
    struct mg_vocab *v = &l->tok->vocab;
    for (size_t i = 0; i < l->n_added; i++) {
        const struct mg_added *a = &l->added[i];
        struct mg_slice text = {a->text, a->n};
        int32_t known = mg_vocab_find_text(v, text);
        if (known >= 0 && known != a->id)
            return broken(l, "an added token has another id in the vocabulary than", (size_t)a->id);
        if (known < 0) {
            enum mg_vocab_add how = add_token(v, text, (uint32_t)a->id);
            if (how == MG_VOCAB_MEMORY) return no_memory(l);
            if (how != MG_VOCAB_ADDED) return broken(l, "two tokens have the id", (size_t)a->id);
        }
        struct mg_token *t = &v->token[a->id];
        if (t->flags & MG_TOKEN_ADDED)
            return broken(l, "two added tokens have the id", (size_t)a->id);
        t->flags |= (uint8_t)(MG_TOKEN_ADDED | (l->special[i] ? MG_TOKEN_SPECIAL : 0));
    }
    return build_set(l, &l->tok->raw, false) && build_set(l, &l->tok->normalized, true);
}

/* ---- the whole ---- */

static void read_version(struct loader *l) {
    struct name version;
    if (read_name(l, &version) && strcmp(version.text, "1.0") != 0)
        refuse(l, "the version", version.text);
}

static void read_file(struct loader *l) {
    static const char *const names[] = {"version",       "added_tokens",   "normalizer",
                                        "pre_tokenizer", "post_processor", "decoder",
                                        "model"};
    struct mg_slice key;
    unsigned seen = 0;
    mg_jread_open(&l->j, '{');
    while (mg_jread_key(&l->j, &key)) {
        switch (WHICH(l, key, names, &seen)) {
        case 0: read_version(l); break;
        case 1: read_added_tokens(l); break;
        case 2: read_only_type(l, "the normalizer", "NFC"); break;
        case 3: read_pre_tokenizer(l); break;
        case 4: read_post_processor(l); break;
        case 5: read_only_type(l, "the decoder", "ByteLevel"); break;
        case 6: {
            struct batch *batch = mg_alloc(1, sizeof *batch);
            if (!batch) {
                no_memory(l);
                return;
            }
            read_model(l, batch);
            free(batch);
            break;
        }
        default: mg_jread_skip(&l->j);
        }
    }
    if (!mg_jread_end(&l->j)) return;
    static const unsigned needed[] = {2, 3, 5, 6};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!(seen & 1u << needed[i])) refuse(l, names[needed[i]], "none");
}

enum mg_status mg_tokenizer_parse(const void *json, size_t n, struct mg_tokenizer **out,
                                  struct mg_err *err) {
    *out = NULL;
    if (n > FILE_MAX)
        return mg_fail(err, MG_ERR_LIMIT, "file_too_large",
                       "tokenizer.json has %zu bytes, the limit is %zu", n, FILE_MAX);
    mg_unicode_class();
    struct loader l = {.err = err, .tok = calloc(1, sizeof *l.tok)};
    if (!l.tok) return mg_fail_memory(err, "tokenizer");
    mg_jread_init(&l.j, "tokenizer.json", json, n, 4 * MG_TOKEN_MAX_BYTES, err);
    if (!mg_vocab_init(&l.tok->vocab, n / 64) || !mg_bpe_init(&l.tok->bpe, n / 64))
        no_memory(&l);
    else
        read_file(&l);
    if (l.j.status == MG_OK) {
        for (size_t b = 0; b < 256; b++) {
            uint8_t byte = (uint8_t)b;
            l.tok->bpe.byte[b] = mg_vocab_find(&l.tok->vocab, &byte, 1, false);
        }
        finish_added(&l);
    }
    if (l.j.status == MG_OK) {
        l.tok->whole = mg_alloc_zero(l.tok->vocab.n, sizeof *l.tok->whole);
        if (!l.tok->whole) no_memory(&l);
    }
    mg_jread_free(&l.j);
    free(l.added);
    free(l.special);
    if (l.j.status == MG_OK)
        *out = l.tok;
    else
        mg_tokenizer_close(l.tok);
    return l.j.status;
}

enum mg_status mg_tokenizer_open(const char *folder, struct mg_tokenizer **out,
                                 struct mg_err *err) {
    char path[4096];
    struct mg_buf text = {.max = FILE_MAX};
    *out = NULL;
    enum mg_status status = mg_path_join(path, sizeof path, folder, "tokenizer.json", err);
    if (status == MG_OK) status = mg_file_read(path, FILE_MAX, &text, err);
    if (status == MG_OK) {
        status = mg_tokenizer_parse(text.data, text.n, out, err);
        if (status != MG_OK) mg_err_prefix(err, "%s", folder);
    }
    mg_buf_free(&text);
    return status;
}
