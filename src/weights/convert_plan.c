/* weights/convert_plan.c - see convert_plan.h. Walks the checkpoint as model/model.c binds it. */
#include "weights/convert_plan.h"

#include "base/io.h"
#include "base/sha256.h"
#include "weights/convert.h"
#include "weights/fits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VISION "model.visual."
#define TEXT "model.language_model."
#define MAX_FILE ((size_t)64 << 20)

/* The plan being made; the first failure sticks. Small tensors and matrices are collected apart. */
struct planner {
    struct mg_convert_plan *plan;
    enum mg_file_weights weights;
    struct mg_err *err;
    enum mg_status status;
    char prefix[128];
};

static void set_prefix(struct planner *p, const char *fmt, ...) MG_PRINTF(2, 3);
static void set_prefix(struct planner *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->prefix, sizeof p->prefix, fmt, ap);
    va_end(ap);
}

/* A new piece at the end of the list, zeroed but for kind and name, or NULL. */
static struct mg_piece *new_piece(struct planner *p, enum mg_piece_kind kind, const char *name,
                                  const char *suffix) {
    struct mg_convert_plan *plan = p->plan;
    if (p->status != MG_OK) return NULL;
    if (plan->n == plan->cap) {
        size_t cap = plan->cap ? 2 * plan->cap : 512;
        struct mg_piece *more = mg_realloc(plan->piece, cap, sizeof *more);
        if (!more) {
            p->status = mg_fail_memory(p->err, "conversion");
            return NULL;
        }
        plan->piece = more;
        plan->cap = cap;
    }
    struct mg_piece *piece = &plan->piece[plan->n++];
    *piece = (struct mg_piece){.kind = kind, .n_dim = 1};
    snprintf(piece->name, sizeof piece->name, "%s%s%s", p->prefix, name, suffix);
    return piece;
}

static const struct mg_tensor *need(struct planner *p, const char *name, const char *suffix,
                                    int n_dim, const size_t *dim) {
    char full[256];
    const struct mg_tensor *t = NULL;
    if (p->status != MG_OK) return NULL;
    snprintf(full, sizeof full, "%s%s%s", p->prefix, name, suffix);
    p->status = mg_weights_need(p->plan->weights, full, n_dim, dim, &t, p->err);
    return p->status == MG_OK ? t : NULL;
}

static void add_vector(struct planner *p, const char *name, const char *suffix, size_t n) {
    const struct mg_tensor *t = need(p, name, suffix, 1, &n);
    struct mg_piece *piece = t ? new_piece(p, MG_PIECE_VECTOR, name, suffix) : NULL;
    if (!piece) return;
    piece->dtype = MG_F32;
    piece->dim[0] = n;
    piece->bytes = n * sizeof(float);
    piece->source[piece->n_source++] = t;
}

static void add_bytes(struct planner *p, const char *name, const char *suffix, enum mg_dtype dtype,
                      size_t n, const void *data) {
    struct mg_piece *piece = new_piece(p, MG_PIECE_BYTES, name, suffix);
    if (!piece) return;
    piece->dtype = dtype;
    piece->dim[0] = n;
    piece->bytes = n * mg_dtype_size(dtype);
    piece->data = data;
}

static void add_bf16(struct planner *p, const char *name, enum mg_matrix part,
                     const struct mg_tensor *t) {
    struct mg_piece *piece = new_piece(p, MG_PIECE_BF16, name, ".weight");
    if (!piece) return;
    piece->dtype = MG_BF16;
    piece->n_dim = t->n_dim;
    memcpy(piece->dim, t->dim, sizeof piece->dim);
    piece->bytes = t->n * 2;
    piece->source[piece->n_source++] = t;
    piece->part = part;
    piece->store = MG_STORE_BF16;
    piece->n_weight = t->n;
}

/* One or several matrices [n[i]][k] with names name[i]; packed they become one called `fused`. */
struct group {
    const char *fused;
    const char *name[MG_MAX_SOURCE];
    size_t n[MG_MAX_SOURCE], count, k;
    bool interleaved;
};

static void add_packed(struct planner *p, const struct group *g, enum mg_matrix part,
                       enum mg_store store, const struct mg_tensor *const *source) {
    if (g->k > MG_PACK_MAX_K) {
        p->status = mg_fail(p->err, MG_ERR_UNSUPPORTED, "packed_wide",
                            "%s%s has %zu inputs; at most %d at 8 or 4 bit, use bf16", p->prefix,
                            g->name[0], g->k, MG_PACK_MAX_K);
        return;
    }
    struct mg_piece *piece = new_piece(p, MG_PIECE_PACKED, g->fused, ".packed");
    if (!piece) return;
    piece->part = part;
    piece->store = store;
    piece->pack = store == MG_STORE_INT4 ? MG_PACK_INT4 : MG_PACK_INT8;
    piece->interleaved = g->interleaved;
    piece->k = g->k;
    piece->dtype = MG_U8;
    for (size_t i = 0; i < g->count; i++) {
        piece->source[piece->n_source++] = source[i];
        piece->n_weight += source[i]->n;
        if (i == 0 || !g->interleaved) piece->n += g->n[i];
    }
    struct mg_packed w = {
        .kind = piece->pack, .interleaved = g->interleaved, .n = piece->n, .k = piece->k};
    size_t panels = mg_packed_panels(&w), blocks = mg_packed_blocks(g->k);
    piece->n_dim = 3;
    piece->dim[0] = panels;
    piece->dim[1] = blocks;
    piece->dim[2] = mg_packed_panel_bytes(w.kind, g->k) / mg_max_size(blocks, 1);
    piece->bytes = mg_packed_bytes(&w);
    float *scale = mg_arena_alloc(&p->plan->arena, panels * MG_PANEL, sizeof *scale);
    int32_t *sum = mg_arena_alloc(&p->plan->arena, panels * MG_PANEL, sizeof *sum);
    if (!scale || !sum) {
        p->status = mg_fail_memory(p->err, "conversion");
        return;
    }
    piece->scale = scale;
    piece->sum = sum;
    add_bytes(p, g->fused, ".scale", MG_F32, panels * MG_PANEL, scale);
    add_bytes(p, g->fused, ".sum", MG_I32, panels * MG_PANEL, sum);
}

static void add_group(struct planner *p, const struct group *g, enum mg_matrix part,
                      enum mg_store store) {
    const struct mg_tensor *source[MG_MAX_SOURCE] = {NULL};
    for (size_t i = 0; i < g->count; i++) {
        size_t dim[2] = {g->n[i], g->k};
        source[i] = need(p, g->name[i], ".weight", 2, dim);
        if (!source[i]) return;
        if (store == MG_STORE_BF16) add_bf16(p, g->name[i], part, source[i]);
    }
    if (store != MG_STORE_BF16) add_packed(p, g, part, store, source);
}

static void add_linear(struct planner *p, const char *name, size_t n, size_t k, bool bias,
                       enum mg_matrix part) {
    struct group g = {.fused = name, .name = {name}, .n = {n}, .count = 1, .k = k};
    add_group(p, &g, part, mg_recipe(p->weights, part, 0, 1));
    if (bias) add_vector(p, name, ".bias", n);
}

static void add_layer_norm(struct planner *p, const char *name, size_t n) {
    add_vector(p, name, ".weight", n);
    add_vector(p, name, ".bias", n);
}

static void add_merger(struct planner *p, bool post_shuffle) {
    const struct mg_vision_config *c = &p->plan->config.vision;
    size_t wide = c->hidden * c->merge * c->merge;
    add_layer_norm(p, "norm", post_shuffle ? wide : c->hidden);
    add_linear(p, "linear_fc1", wide, wide, true, MG_MATRIX_MERGER);
    add_linear(p, "linear_fc2", c->out, wide, true, MG_MATRIX_MERGER);
}

static void add_vision(struct planner *p) {
    const struct mg_vision_config *c = &p->plan->config.vision;
    set_prefix(p, VISION);
    size_t conv[5] = {c->hidden, c->in_channels, c->temporal, c->patch, c->patch};
    size_t table[2] = {c->n_position, c->hidden};
    const struct mg_tensor *t = need(p, "patch_embed.proj", ".weight", 5, conv);
    if (t) add_bf16(p, "patch_embed.proj", MG_MATRIX_PATCH_EMBED, t);
    add_vector(p, "patch_embed.proj", ".bias", c->hidden);
    t = need(p, "pos_embed", ".weight", 2, table);
    if (t) add_bf16(p, "pos_embed", MG_MATRIX_PATCH_EMBED, t);
    for (size_t i = 0; i < c->depth; i++) {
        set_prefix(p, VISION "blocks.%zu.", i);
        add_layer_norm(p, "norm1", c->hidden);
        add_layer_norm(p, "norm2", c->hidden);
        add_linear(p, "attn.qkv", 3 * c->hidden, c->hidden, true, MG_MATRIX_VISION);
        add_linear(p, "attn.proj", c->hidden, c->hidden, true, MG_MATRIX_VISION);
        add_linear(p, "mlp.linear_fc1", c->ffn, c->hidden, true, MG_MATRIX_VISION);
        add_linear(p, "mlp.linear_fc2", c->hidden, c->ffn, true, MG_MATRIX_VISION);
        for (size_t j = 0; j < c->n_deepstack; j++) {
            if (c->deepstack[j] != i) continue;
            set_prefix(p, VISION "deepstack_merger_list.%zu.", j);
            add_merger(p, true);
        }
    }
    set_prefix(p, VISION "merger.");
    add_merger(p, false);
}

static void add_attention(struct planner *p, size_t layer) {
    const struct mg_text_config *c = &p->plan->config.text;
    size_t q = c->n_head * c->head_dim, kv = c->n_head_kv * c->head_dim;
    enum mg_store qk = mg_recipe(p->weights, MG_MATRIX_QK, layer, c->n_layer);
    enum mg_store v = mg_recipe(p->weights, MG_MATRIX_V, layer, c->n_layer);
    struct group g = {.fused = qk == v ? "self_attn.qkv_proj" : "self_attn.qk_proj",
                      .name = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                      .n = {q, kv, kv},
                      .count = qk == v ? 3 : 2,
                      .k = c->hidden};
    add_group(p, &g, MG_MATRIX_QK, qk);
    if (qk != v) {
        struct group alone = {.fused = "self_attn.v_proj",
                              .name = {"self_attn.v_proj"},
                              .n = {kv},
                              .count = 1,
                              .k = c->hidden};
        add_group(p, &alone, MG_MATRIX_V, v);
    }
    struct group o = {.fused = "self_attn.o_proj",
                      .name = {"self_attn.o_proj"},
                      .n = {c->hidden},
                      .count = 1,
                      .k = q};
    add_group(p, &o, MG_MATRIX_O, mg_recipe(p->weights, MG_MATRIX_O, layer, c->n_layer));
}

static void add_layers(struct planner *p) {
    const struct mg_text_config *c = &p->plan->config.text;
    for (size_t i = 0; i < c->n_layer; i++) {
        set_prefix(p, TEXT "layers.%zu.", i);
        add_vector(p, "input_layernorm", ".weight", c->hidden);
        add_vector(p, "post_attention_layernorm", ".weight", c->hidden);
        add_vector(p, "self_attn.q_norm", ".weight", c->head_dim);
        add_vector(p, "self_attn.k_norm", ".weight", c->head_dim);
        add_attention(p, i);
        struct group up = {.fused = "mlp.gate_up_proj",
                           .name = {"mlp.gate_proj", "mlp.up_proj"},
                           .n = {c->ffn, c->ffn},
                           .count = 2,
                           .k = c->hidden,
                           .interleaved = true};
        add_group(p, &up, MG_MATRIX_GATE_UP,
                  mg_recipe(p->weights, MG_MATRIX_GATE_UP, i, c->n_layer));
        struct group down = {.fused = "mlp.down_proj",
                             .name = {"mlp.down_proj"},
                             .n = {c->hidden},
                             .count = 1,
                             .k = c->ffn};
        add_group(p, &down, MG_MATRIX_DOWN, mg_recipe(p->weights, MG_MATRIX_DOWN, i, c->n_layer));
    }
}

/* The embedding, which is the head too when tied; under the name that the checkpoint has. */
static void add_head(struct planner *p) {
    const struct mg_text_config *c = &p->plan->config.text;
    set_prefix(p, TEXT);
    add_vector(p, "norm", ".weight", c->hidden);
    bool only_head = c->tied && !mg_weights_find(p->plan->weights, TEXT "embed_tokens.weight");
    if (!only_head)
        add_linear(p, "embed_tokens", c->n_vocab, c->hidden, false,
                   c->tied ? MG_MATRIX_HEAD : MG_MATRIX_EMBED);
    set_prefix(p, "%s", "");
    if (!c->tied || only_head)
        add_linear(p, "lm_head", c->n_vocab, c->hidden, false, MG_MATRIX_HEAD);
}

static void add_files(struct planner *p, const char *folder) {
    static const char *const more[] = {"tokenizer.json", "tokenizer_config.json",
                                       "chat_template.json", "chat_template.jinja"};
    static const char *const name[] = {"config.json", "preprocess", "generation_config.json"};
    struct mg_buf *file = p->plan->file;
    set_prefix(p, "%s", "margay.file.");
    if (p->status == MG_OK) p->status = mg_config_texts(folder, file, p->err);
    for (size_t i = 0; i < 3; i++)
        if (file[i].data) add_bytes(p, name[i], "", MG_U8, file[i].n, file[i].data);
    for (size_t i = 0; i < sizeof more / sizeof *more && p->status == MG_OK; i++) {
        char path[4096];
        p->status = mg_path_join(path, sizeof path, folder, more[i], p->err);
        if (p->status != MG_OK || access(path, F_OK) != 0) continue;
        p->status = mg_file_read(path, MAX_FILE, &file[3 + i], p->err);
        if (p->status == MG_OK && file[3 + i].n)
            add_bytes(p, more[i], "", MG_U8, file[3 + i].n, file[3 + i].data);
    }
}

static bool is_matrix(const struct mg_piece *p) {
    return p->kind == MG_PIECE_BF16 || p->kind == MG_PIECE_PACKED;
}

/* Small pieces first (aligned ones before the files), then matrices; both in the order planned. */
static int order(const struct mg_piece *p) {
    return is_matrix(p) ? 2 : p->dtype == MG_U8 ? 1 : 0;
}

static const char *dtype_word(enum mg_dtype t) {
    return t == MG_F32 ? "F32" : t == MG_I32 ? "I32" : t == MG_BF16 ? "BF16" : "U8";
}

/* The header with these digests; offsets count from margay.json. */
static bool print_header(const struct mg_convert_plan *plan, enum mg_file_weights weights,
                         const char *source_sha256, struct mg_buf *b) {
    mg_buf_printf(b,
                  "{\"__metadata__\":{\"format\":\"margay\",\"margay.format\":\"%d\","
                  "\"weights\":\"%s\",\"source_sha256\":\"%s\"},\"margay.json\":{\"dtype\":\"U8\","
                  "\"shape\":[%d],\"data_offsets\":[0,%d]}",
                  MG_PACKED_FORMAT, mg_file_weights_name(weights), source_sha256, MG_MANIFEST_BYTES,
                  MG_MANIFEST_BYTES);
    for (size_t i = 0; i < plan->n; i++) {
        const struct mg_piece *p = &plan->piece[i];
        uint64_t at = p->offset - plan->head_bytes;
        mg_buf_printf(b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", p->name, dtype_word(p->dtype));
        for (int d = 0; d < p->n_dim; d++) mg_buf_printf(b, "%s%zu", d ? "," : "", p->dim[d]);
        mg_buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)(at + p->bytes));
    }
    return mg_buf_add_byte(b, '}') && !b->failed;
}

bool mg_convert_plan_head(const struct mg_convert_plan *plan, enum mg_file_weights weights,
                          const char *source_id, const char *source_sha256,
                          const char *small_sha256, const char *matrices_sha256,
                          struct mg_buf *out) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((plan->head_bytes - 8) >> 8 * i);
    if (!mg_buf_add(out, length, 8) || !print_header(plan, weights, source_sha256, out))
        return false;
    while (out->n < plan->head_bytes)
        if (!mg_buf_add_byte(out, ' ')) return false;
    uint8_t digest[MG_SHA256_BYTES];
    char head_sha256[MG_SHA256_HEX];
    if (!mg_sha256(out->data, out->n, digest)) return false;
    mg_hex(digest, sizeof digest, head_sha256);
    mg_buf_printf(out,
                  "{\"format\":%d,\"weights\":\"%s\",\"source_id\":\"%s\",\"source_sha256\":\"%s\","
                  "\"head_sha256\":\"%s\",\"small_sha256\":\"%s\",\"small_bytes\":%llu,"
                  "\"matrices_sha256\":\"%s\","
                  "\"matrices_bytes\":%llu,\"margay\":\"%s\"}",
                  MG_PACKED_FORMAT, mg_file_weights_name(weights), source_id, source_sha256,
                  head_sha256, small_sha256,
                  (unsigned long long)(plan->matrices_at - plan->small_at), matrices_sha256,
                  (unsigned long long)(plan->total - plan->matrices_at), MARGAY_VERSION);
    while (out->n < plan->head_bytes + MG_MANIFEST_BYTES)
        if (!mg_buf_add_byte(out, ' ')) return false;
    return !out->failed && out->n == plan->head_bytes + MG_MANIFEST_BYTES;
}

/* Sorts the pieces, puts padding between the matrices and gives everything its offset. */
static void place_pieces(struct planner *p) {
    struct mg_convert_plan *plan = p->plan;
    size_t n = plan->n, n_pad = 0;
    struct mg_piece *sorted = mg_alloc(2 * n + 2, sizeof *sorted);
    if (!sorted) {
        p->status = mg_fail_memory(p->err, "conversion");
        return;
    }
    size_t count = 0;
    uint64_t at = MG_MANIFEST_BYTES; /* relative to the header's end for now */
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < n; i++) {
            if (order(&plan->piece[i]) != pass) continue;
            if (pass == 2 && at % MG_PIECE_ALIGN) {
                struct mg_piece *pad = &sorted[count++];
                *pad = (struct mg_piece){.kind = MG_PIECE_PAD, .dtype = MG_U8, .n_dim = 1};
                pad->bytes = pad->dim[0] = MG_PIECE_ALIGN - at % MG_PIECE_ALIGN;
                pad->offset = at;
                snprintf(pad->name, sizeof pad->name, "margay.pad.%zu", n_pad++);
                at += pad->bytes;
            }
            if (pass == 2 && !plan->matrices_at) plan->matrices_at = at;
            sorted[count] = plan->piece[i];
            sorted[count++].offset = at;
            at += plan->piece[i].bytes;
        }
    free(plan->piece);
    plan->piece = sorted;
    plan->n = plan->cap = count;
    /* The header's length depends on the digits of offsets only through what follows it, so print
     * it once with a dummy digest to measure. */
    struct mg_buf b = {0};
    static const char dummy[] = "0000000000000000000000000000000000000000000000000000000000000000";
    if (!print_header(plan, p->weights, dummy, &b)) p->status = mg_fail_memory(p->err, "header");
    plan->head_bytes = mg_round_up(8 + b.n, MG_PIECE_ALIGN);
    mg_buf_free(&b);
    for (size_t i = 0; i < count; i++) plan->piece[i].offset += plan->head_bytes;
    plan->small_at = plan->head_bytes + MG_MANIFEST_BYTES;
    plan->matrices_at += plan->head_bytes;
    plan->total = plan->head_bytes + at;
}

enum mg_status mg_convert_plan_make(const char *folder, enum mg_file_weights weights,
                                    struct mg_convert_plan *plan, struct mg_err *err) {
    *plan = (struct mg_convert_plan){0};
    struct planner p = {.plan = plan, .weights = weights, .err = err};
    p.status = mg_config_open(folder, &plan->config, err);
    if (p.status == MG_OK) p.status = mg_weights_open(folder, &plan->weights, err);
    if (p.status == MG_OK) {
        add_vision(&p);
        add_layers(&p);
        add_head(&p);
        add_files(&p, folder);
    }
    if (p.status == MG_OK) p.status = mg_checkpoint_fits(plan->weights, &plan->config, err);
    if (p.status == MG_OK) place_pieces(&p);
    return p.status;
}

void mg_convert_plan_free(struct mg_convert_plan *plan) {
    mg_weights_close(plan->weights);
    free(plan->piece);
    for (size_t i = 0; i < sizeof plan->file / sizeof *plan->file; i++) mg_buf_free(&plan->file[i]);
    mg_arena_free(&plan->arena);
    *plan = (struct mg_convert_plan){0};
}

/* "NAME SIZE SECONDS.NANOSECONDS\n" of one file into the hash. */
static void hash_stat(struct mg_sha256 *h, const char *name, const struct stat *st) {
    char line[400];
    int n = snprintf(line, sizeof line, "%.255s %lld %lld.%09ld\n", name, (long long)st->st_size,
                     (long long)st->st_mtim.tv_sec, (long)st->st_mtim.tv_nsec);
    mg_sha256_update(h, line, mg_min_size((size_t)n, sizeof line - 1));
}

/* Up to 64 pages, spread evenly over the file. What can't be read is left to who opens it. */
static void hash_samples(struct mg_sha256 *h, int dir, const char *name, off_t size) {
    enum { PAGE = 4096, SAMPLES = 64 };
    uint8_t page[PAGE];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    off_t pages = (size + PAGE - 1) / PAGE, most = pages < SAMPLES ? pages : SAMPLES;
    for (off_t i = 0; i < most; i++) {
        ssize_t n = pread(fd, page, sizeof page, pages * i / most * PAGE);
        if (n > 0) mg_sha256_update(h, page, (size_t)n);
    }
    close(fd);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool mg_source_counts(const char *name) {
    size_t n = strlen(name);
    return (n > 5 && !strcmp(name + n - 5, ".json")) ||
           (n > 12 && !strcmp(name + n - 12, ".safetensors")) ||
           (n > 6 && !strcmp(name + n - 6, ".jinja"));
}

enum mg_status mg_source_id(const char *folder, enum mg_file_weights weights,
                            char out[MG_SOURCE_ID], struct mg_err *err) {
    DIR *dir = opendir(folder);
    if (!dir) return mg_fail_errno(err, "open", folder, errno);
    struct mg_arena arena = {0};
    char **name = NULL;
    size_t n = 0, cap = 0;
    enum mg_status status = MG_OK;
    for (struct dirent *e; status == MG_OK && (e = readdir(dir));) {
        if (!mg_source_counts(e->d_name)) continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            char **more = mg_realloc(name, cap, sizeof *more);
            if (!more) {
                status = mg_fail_memory(err, "list of files");
                break;
            }
            name = more;
        }
        name[n] = mg_arena_strdup(&arena, e->d_name, strlen(e->d_name));
        if (!name[n++]) status = mg_fail_memory(err, "list of files");
    }
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    char head[64];
    int len = snprintf(head, sizeof head, "margay %d %s\n", MG_PACKED_FORMAT,
                       mg_file_weights_name(weights));
    mg_sha256_update(&h, head, (size_t)len);
    if (status == MG_OK && n) qsort(name, n, sizeof *name, by_name);
    for (size_t i = 0; status == MG_OK && i < n; i++) {
        struct stat st;
        if (fstatat(dirfd(dir), name[i], &st, 0) != 0) continue;
        hash_stat(&h, name[i], &st);
        if (S_ISREG(st.st_mode)) hash_samples(&h, dirfd(dir), name[i], st.st_size);
    }
    uint8_t digest[MG_SHA256_BYTES] = {0};
    if (!mg_sha256_finish(&h, digest) && status == MG_OK)
        status = mg_fail_memory(err, "hash of the folder");
    mg_hex(digest, sizeof digest, out);
    closedir(dir);
    free(name);
    mg_arena_free(&arena);
    return status;
}
