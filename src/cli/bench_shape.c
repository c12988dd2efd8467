/* cli/bench_shape.c - a checkpoint folder of random weights in the cache folder, for bench --shape.
 *
 *     --cache-dir, $XDG_CACHE_HOME/margay or ~/.cache/margay
 *         random-SHAPE-bf16-1/           config.json, tokenizer.json, ..., model.safetensors
 *         random-SHAPE-bf16-1.part/      the same being written
 *         random-SHAPE-bf16-1.lock       held with flock while one is made
 *
 * The names and shapes of the tensors follow from the configuration, as model.c reads them. Speed
 * doesn't depend on the values, but on their being ordinary numbers: matrices have about a normal
 * distribution with deviation 0.02 (the sum of four random bytes, scaled), biases a tenth of it,
 * norms are 1. The folder gets its name by one rename; what a killed process leaves is cleared away
 * by the next, and the lock is the system's, so it never stays.
 *
 * The tokenizer is the demo model's. For larger shapes its vocabulary is filled up with words that
 * no text gives, so that the head has as many rows in use as the published model's.
 */
#include "cli/bench.h"

#include "base/io.h"
#include "kernels/dtype.h"
#include "weights/config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define VERSION 1 /* of what is written; part of the folder's name */
#define DEVIATION 0.02f
#define BLOCK ((size_t)4 << 20)      /* bytes written at once */
#define MARGIN ((uint64_t)256 << 20) /* bytes of the disk that stay free */
#define MAX_FILE_BYTES ((size_t)64 << 20)
#define PATH_BYTES 4096

static const char config_2b[] =
    "{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"model_type\": \"qwen3_vl\",\n"
    " \"image_token_id\": %d, \"video_token_id\": %d, \"vision_start_token_id\": %d,\n"
    " \"vision_end_token_id\": %d, \"tie_word_embeddings\": true, \"dtype\": \"bfloat16\",\n"
    " \"text_config\": {\"model_type\": \"qwen3_vl_text\", \"hidden_act\": \"silu\",\n"
    "  \"attention_bias\": false, \"vocab_size\": 151936, \"hidden_size\": 2048,\n"
    "  \"intermediate_size\": 6144, \"num_hidden_layers\": 28, \"num_attention_heads\": 16,\n"
    "  \"num_key_value_heads\": 8, \"head_dim\": 128, \"max_position_embeddings\": 262144,\n"
    "  \"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rope_scaling\": {\"rope_type\":\n"
    "  \"default\", \"mrope_interleaved\": true, \"mrope_section\": [24, 20, 20]},\n"
    "  \"tie_word_embeddings\": true},\n"
    " \"vision_config\": {\"model_type\": \"qwen3_vl\", \"hidden_act\": \"gelu_pytorch_tanh\",\n"
    "  \"depth\": 24, \"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_heads\": 16,\n"
    "  \"in_channels\": 3, \"patch_size\": 16, \"spatial_merge_size\": 2,\n"
    "  \"temporal_patch_size\": 2, \"out_hidden_size\": 2048, \"num_position_embeddings\": 2304,\n"
    "  \"deepstack_visual_indexes\": [5, 11, 17]}}\n";

static const char preprocess_2b[] =
    "{\"size\": {\"shortest_edge\": 65536, \"longest_edge\": 16777216}, \"patch_size\": 16,\n"
    " \"temporal_patch_size\": 2, \"merge_size\": 2, \"image_mean\": [0.5, 0.5, 0.5],\n"
    " \"image_std\": [0.5, 0.5, 0.5]}\n";

static const struct shape {
    const char *name;
    const char *config;     /* with the demo's four control ids to put in; NULL: the demo's file */
    const char *preprocess; /* NULL: the demo's file */
    int n_token;            /* tokens that the vocabulary is filled up to; 0: as it is */
} shapes[] = {
    {"qwen3-vl-2b", config_2b, preprocess_2b, 151669},
    {"demo", NULL, NULL, 0},
};

/* What one making of a folder needs. */
struct maker {
    const struct shape *shape;
    const char *cache; /* --cache-dir, or NULL */
    const char *demo;  /* folder whose tokenizer and configuration are taken */
    char folder[PATH_BYTES - 64], part[PATH_BYTES - 32], lock[PATH_BYTES - 32];
    struct mg_buf config, preprocess, tokenizer; /* the files' texts */
    struct mg_config parsed;
    struct mg_buf header; /* of model.safetensors */
    uint64_t n_data;      /* bytes behind the header */
    struct mg_progress *progress;
    struct mg_err *err;
};

/* --- the tensors */
enum kind { MATRIX, BIAS, NORM };

/* Called for each tensor; false stops. */
typedef bool tensor_fn(void *arg, const char *name, int n_dim, const size_t *dim, enum kind kind);
struct walk {
    tensor_fn *fn;
    void *arg;
    const char *prefix;
    bool ok;
};

static void visit(struct walk *w, const char *name, int n_dim, const size_t *dim, enum kind kind) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", w->prefix, name);
    w->ok = w->ok && w->fn(w->arg, full, n_dim, dim, kind);
}

static void linear(struct walk *w, const char *name, size_t n, size_t k, bool bias) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    visit(w, full, 2, (size_t[]){n, k}, MATRIX);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) visit(w, full, 1, &n, BIAS);
}

static void norm(struct walk *w, const char *name, size_t n, bool bias) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    visit(w, full, 1, &n, NORM);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) visit(w, full, 1, &n, BIAS);
}

static void merger(struct walk *w, const char *prefix, const struct mg_vision_config *c,
                   bool post_shuffle) {
    size_t wide = c->hidden * c->merge * c->merge;
    w->prefix = prefix;
    norm(w, "norm", post_shuffle ? wide : c->hidden, true);
    linear(w, "linear_fc1", wide, wide, true);
    linear(w, "linear_fc2", c->out, wide, true);
}

static void vision_tensors(struct walk *w, const struct mg_vision_config *c) {
    char prefix[96];
    w->prefix = "model.visual.";
    size_t conv[5] = {c->hidden, c->in_channels, c->temporal, c->patch, c->patch};
    visit(w, "patch_embed.proj.weight", 5, conv, MATRIX);
    visit(w, "patch_embed.proj.bias", 1, conv, BIAS);
    visit(w, "pos_embed.weight", 2, (size_t[]){c->n_position, c->hidden}, MATRIX);
    for (size_t i = 0; i < c->depth; i++) {
        snprintf(prefix, sizeof prefix, "model.visual.blocks.%zu.", i);
        w->prefix = prefix;
        norm(w, "norm1", c->hidden, true);
        linear(w, "attn.qkv", 3 * c->hidden, c->hidden, true);
        linear(w, "attn.proj", c->hidden, c->hidden, true);
        norm(w, "norm2", c->hidden, true);
        linear(w, "mlp.linear_fc1", c->ffn, c->hidden, true);
        linear(w, "mlp.linear_fc2", c->hidden, c->ffn, true);
    }
    merger(w, "model.visual.merger.", c, false);
    for (size_t i = 0; i < c->n_deepstack; i++) {
        snprintf(prefix, sizeof prefix, "model.visual.deepstack_merger_list.%zu.", i);
        merger(w, prefix, c, true);
    }
}

static void text_tensors(struct walk *w, const struct mg_text_config *c) {
    char prefix[96];
    size_t q = c->n_head * c->head_dim, kv = c->n_head_kv * c->head_dim;
    for (size_t i = 0; i < c->n_layer; i++) {
        snprintf(prefix, sizeof prefix, "model.language_model.layers.%zu.", i);
        w->prefix = prefix;
        norm(w, "input_layernorm", c->hidden, false);
        linear(w, "self_attn.q_proj", q, c->hidden, false);
        linear(w, "self_attn.k_proj", kv, c->hidden, false);
        linear(w, "self_attn.v_proj", kv, c->hidden, false);
        norm(w, "self_attn.q_norm", c->head_dim, false);
        norm(w, "self_attn.k_norm", c->head_dim, false);
        linear(w, "self_attn.o_proj", c->hidden, q, false);
        norm(w, "post_attention_layernorm", c->hidden, false);
        linear(w, "mlp.gate_proj", c->ffn, c->hidden, false);
        linear(w, "mlp.up_proj", c->ffn, c->hidden, false);
        linear(w, "mlp.down_proj", c->hidden, c->ffn, false);
    }
    w->prefix = "model.language_model.";
    norm(w, "norm", c->hidden, false);
    linear(w, "embed_tokens", c->n_vocab, c->hidden, false);
    w->prefix = "";
    if (!c->tied) linear(w, "lm_head", c->n_vocab, c->hidden, false);
}

static bool each_tensor(const struct mg_config *c, tensor_fn *fn, void *arg) {
    struct walk w = {.fn = fn, .arg = arg, .ok = true};
    vision_tensors(&w, &c->vision);
    text_tensors(&w, &c->text);
    return w.ok;
}

static bool add_to_header(void *arg, const char *name, int n_dim, const size_t *dim,
                          enum kind kind) {
    struct maker *m = arg;
    (void)kind;
    size_t n = 2; /* bytes an element */
    mg_buf_printf(&m->header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", m->n_data ? "," : "",
                  name);
    for (int i = 0; i < n_dim; i++) {
        mg_buf_printf(&m->header, "%s%zu", i ? "," : "", dim[i]);
        if (!mg_mul_size(n, dim[i], &n)) return false;
    }
    mg_buf_printf(&m->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)m->n_data,
                  (unsigned long long)(m->n_data + n));
    m->n_data += n;
    return !m->header.failed;
}

/* The header's text, padded so that the data begins at a multiple of 4 KB. */
static enum mg_status make_header(struct maker *m) {
    mg_buf_add_byte(&m->header, '{');
    bool ok = each_tensor(&m->parsed, add_to_header, m);
    ok = ok && mg_buf_add_byte(&m->header, '}');
    while (ok && (m->header.n + 8) % 4096) ok = mg_buf_add_byte(&m->header, ' ');
    return ok ? MG_OK : mg_fail_memory(m->err, "header of the random weights");
}

/* --- writing */
struct writer {
    struct maker *m;
    int fd;
    uint64_t state, done;
    uint16_t matrix[4 * 255 + 1], bias[4 * 255 + 1]; /* bf16 by the sum of four bytes */
    uint16_t *block;                                 /* [BLOCK / 2 + 1] */
    int percent;                                     /* told last */
    enum mg_status status;
};

static void fill(struct writer *w, size_t n, enum kind kind) {
    const uint16_t *table = kind == MATRIX ? w->matrix : w->bias;
    uint64_t x = w->state;
    for (size_t i = 0; i < n; i += 2) { /* the block has room for one more */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t pairs = (x & 0x00ff00ff00ff00ffu) + (x >> 8 & 0x00ff00ff00ff00ffu);
        uint64_t sums = pairs + (pairs >> 16); /* of four bytes each, in the words 0 and 2 */
        w->block[i] = kind == NORM ? 0x3f80 : table[sums & 0xffff];
        w->block[i + 1] = kind == NORM ? 0x3f80 : table[sums >> 32 & 0xffff];
    }
    w->state = x;
}

static enum mg_status put(int fd, const void *data, size_t n, const char *path,
                          struct mg_err *err) {
    for (const char *at = data; n > 0;) {
        ssize_t wrote = write(fd, at, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return mg_fail_errno(err, "write", path, errno);
        at += wrote;
        n -= (size_t)wrote;
    }
    return MG_OK;
}

static bool write_tensor(void *arg, const char *name, int n_dim, const size_t *dim,
                         enum kind kind) {
    struct writer *w = arg;
    (void)name;
    size_t n = 1;
    for (int i = 0; i < n_dim; i++) n *= dim[i]; /* checked when the header was made */
    while (n && w->status == MG_OK) {
        size_t now = mg_min_size(n, BLOCK / 2);
        fill(w, now, kind);
        w->status = put(w->fd, w->block, now * 2, w->m->part, w->m->err);
        n -= now;
        w->done += now * 2;
        int percent = (int)(100 * w->done / w->m->n_data);
        if (w->m->progress->tty && percent != w->percent)
            mg_progress_say(w->m->progress, "writing random weights: %d %% of %.1f GB", percent,
                            (double)w->m->n_data * 1e-9);
        w->percent = percent;
    }
    return w->status == MG_OK;
}

static enum mg_status write_weights(struct maker *m, const char *path) {
    struct writer *w = mg_alloc_zero(1, sizeof *w);
    uint16_t *block = mg_alloc(BLOCK / 2 + 1, sizeof *block);
    enum mg_status st = MG_OK;
    int fd = -1;
    if (!w || !block) {
        st = mg_fail_memory(m->err, "random weights");
        goto out;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = mg_fail_errno(m->err, "create", path, errno);
        goto out;
    }
    *w = (struct writer){.m = m, .fd = fd, .state = 0x9e3779b97f4a7c15u, .block = block};
    for (int i = 0; i <= 4 * 255; i++) {
        float x = ((float)i - 510) / 147.8f * DEVIATION; /* 147.8^2 = 4 (256^2 - 1) / 12 */
        w->matrix[i] = mg_f32_to_bf16(x);
        w->bias[i] = mg_f32_to_bf16(x / 10);
    }
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)m->header.n >> 8 * i);
    mg_progress_say(m->progress, "writing %.2f GB of random weights to %s",
                    (double)m->n_data * 1e-9, m->folder);
    st = put(fd, length, sizeof length, path, m->err);
    if (!st) st = put(fd, m->header.data, m->header.n, path, m->err);
    if (!st && !each_tensor(&m->parsed, write_tensor, w)) st = w->status;
out:
    if (fd >= 0 && close(fd) != 0 && !st) st = mg_fail_errno(m->err, "write", path, errno);
    free(block);
    free(w);
    return st;
}

/* --- the small files */
static enum mg_status read_demo(struct maker *m, const char *name, struct mg_buf *out) {
    char path[PATH_BYTES];
    enum mg_status st = mg_path_join(path, sizeof path, m->demo, name, m->err);
    return st ? st : mg_file_read(path, MAX_FILE_BYTES, out, m->err);
}

static int dump_to(const char *text, size_t n, void *out) {
    return mg_buf_add(out, text, n) ? 0 : -1;
}

/* Adds words that no merge makes until the vocabulary has as many tokens as the shape's. */
static enum mg_status fill_vocabulary(struct maker *m) {
    json_t *root = json_loadb((const char *)m->tokenizer.data, m->tokenizer.n, 0, NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"),
           *added = json_object_get(root, "added_tokens"), *token;
    json_int_t next = 0;
    const char *word;
    size_t i;
    json_object_foreach(vocab, word, token) if (json_integer_value(token) >= next) next =
        json_integer_value(token) + 1;
    json_array_foreach(added, i, token) {
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        if (id >= next) next = id + 1;
    }
    bool ok = json_is_object(vocab);
    for (; ok && next < m->shape->n_token; next++) {
        char name[32];
        snprintf(name, sizeof name, "<filler_%d>", (int)next);
        ok = json_object_set_new(vocab, name, json_integer(next)) == 0;
    }
    mg_buf_free(&m->tokenizer);
    ok = ok && json_dump_callback(root, dump_to, &m->tokenizer, JSON_COMPACT) == 0;
    json_decref(root);
    return ok ? MG_OK
              : mg_fail(m->err, MG_ERR_FORMAT, "", "the demo model's tokenizer.json is damaged");
}

/* config.json and preprocessor_config.json, and from them the header. */
static enum mg_status make_texts(struct maker *m) {
    const struct shape *s = m->shape;
    enum mg_status st = MG_OK;
    if (s->config) {
        struct mg_config demo;
        st = mg_config_open(m->demo, &demo, m->err);
        if (!st) { /* the format's four numbers; it is a constant of this file */
            char text[sizeof config_2b + 64];
            int n = snprintf(text, sizeof text, config_2b, (int)demo.image_token,
                             (int)demo.video_token, (int)demo.vision_start, (int)demo.vision_end);
            if (!mg_buf_add(&m->config, text, (size_t)n)) st = mg_fail_memory(m->err, "config");
        }
    } else {
        st = read_demo(m, "config.json", &m->config);
    }
    if (!st && s->preprocess) {
        if (!mg_buf_add_str(&m->preprocess, s->preprocess)) st = mg_fail_memory(m->err, "config");
    } else if (!st) {
        st = read_demo(m, "preprocessor_config.json", &m->preprocess);
    }
    if (!st)
        st = mg_config_parse((const char *)m->config.data, m->config.n,
                             (const char *)m->preprocess.data, m->preprocess.n, NULL, 0, &m->parsed,
                             m->err);
    return st ? st : make_header(m);
}

/* --- the folder */
static const char *const files[] = {"config.json", "preprocessor_config.json", "tokenizer.json",
                                    "model.safetensors"};

static void remove_folder(const char *folder) {
    char path[PATH_BYTES + 32];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* All files are there and the weights have the size that the header makes. */
static bool complete(const struct maker *m) {
    char path[PATH_BYTES + 32];
    struct stat st = {0};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", m->folder, files[i]);
        if (stat(path, &st) != 0) return false;
    }
    return (uint64_t)st.st_size == 8 + m->header.n + m->n_data;
}

static enum mg_status check_disk(const struct maker *m) {
    struct statvfs fs;
    if (statvfs(m->part, &fs) != 0) return mg_fail_errno(m->err, "examine", m->part, errno);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize,
             need = m->n_data + m->header.n + m->tokenizer.n + MARGIN;
    if (free_bytes >= need) return MG_OK;
    return mg_fail(m->err, MG_ERR_IO, "disk_full",
                   "random weights need %.2f GB in %s, where %.2f GB are free (--cache-dir names "
                   "another place)",
                   (double)need * 1e-9, m->folder, (double)free_bytes * 1e-9);
}

static enum mg_status write_folder(struct maker *m) {
    enum mg_status st = read_demo(m, "tokenizer.json", &m->tokenizer);
    if (!st && m->shape->n_token) st = fill_vocabulary(m);
    if (st) return st;
    remove_folder(m->part);
    remove_folder(m->folder);
    if (mkdir(m->part, 0777) != 0) return mg_fail_errno(m->err, "create", m->part, errno);
    const struct mg_buf *text[] = {&m->config, &m->preprocess, &m->tokenizer};
    char path[PATH_BYTES + 32];
    st = check_disk(m);
    for (size_t i = 0; i < 3 && !st; i++) {
        snprintf(path, sizeof path, "%s/%s", m->part, files[i]);
        st = mg_file_write(path, text[i]->data, text[i]->n, m->err);
    }
    snprintf(path, sizeof path, "%s/%s", m->part, files[3]);
    if (!st) st = write_weights(m, path);
    if (!st && rename(m->part, m->folder) != 0)
        st = mg_fail_errno(m->err, "rename", m->part, errno);
    if (st) remove_folder(m->part);
    return st;
}

/* mkdir of every folder on the way. */
static enum mg_status make_path(char *path, struct mg_err *err) {
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/') continue;
        char was = *at;
        *at = 0;
        int failed = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
        *at = was;
        if (failed) return mg_fail_errno(err, "create", path, failed);
        if (!was) return MG_OK;
    }
}

static enum mg_status name_paths(struct maker *m) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char cache[PATH_BYTES - 160];
    int n = -1;
    if (m->cache)
        n = snprintf(cache, sizeof cache, "%s", m->cache);
    else if (xdg && xdg[0] == '/')
        n = snprintf(cache, sizeof cache, "%s/margay", xdg);
    else if (home && home[0] == '/')
        n = snprintf(cache, sizeof cache, "%s/.cache/margay", home);
    if (n < 0)
        return mg_fail(m->err, MG_ERR_NOT_FOUND, "no_cache",
                       "no place for random weights: name one with --cache-dir");
    if ((size_t)n >= sizeof cache) return mg_fail(m->err, MG_ERR_ARGUMENT, "", "path too long");
    snprintf(m->folder, sizeof m->folder, "%s/random-%s-bf16-%d", cache, m->shape->name, VERSION);
    snprintf(m->part, sizeof m->part, "%s.part", m->folder);
    snprintf(m->lock, sizeof m->lock, "%s.lock", m->folder);
    return make_path(cache, m->err);
}

static enum mg_status make_folder(struct maker *m) {
    enum mg_status st = name_paths(m);
    if (!st) st = make_texts(m);
    if (st || complete(m)) return st;
    int fd = open(m->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return mg_fail_errno(m->err, "create", m->lock, errno);
    int failed;
    while ((failed = flock(fd, LOCK_EX)) != 0 && errno == EINTR) continue;
    if (failed) st = mg_fail_errno(m->err, "lock", m->lock, errno);
    if (!st && !complete(m)) st = write_folder(m); /* else another process was quicker */
    close(fd);
    return st;
}

enum mg_status mg_bench_shape(struct mg_options *o, const char *name, const char *demo,
                              struct mg_progress *progress, const char **folder,
                              struct mg_err *err) {
    *folder = NULL;
    struct maker *m = mg_alloc_zero(1, sizeof *m);
    if (!m) return mg_fail_memory(err, "random weights");
    m->cache = mg_opt_text(o, MG_OPT_CACHE_DIR, NULL);
    m->demo = demo;
    m->progress = progress;
    m->err = err;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (!strcmp(shapes[i].name, name)) m->shape = &shapes[i];
    enum mg_status st =
        m->shape ? make_folder(m) : mg_fail(err, MG_ERR_ARGUMENT, "usage", "no shape %.40s", name);
    mg_progress_clear(progress);
    if (!st && !(*folder = mg_arena_strdup(&o->arena, m->folder, strlen(m->folder))))
        st = mg_fail_memory(err, "random weights");
    mg_buf_free(&m->config);
    mg_buf_free(&m->preprocess);
    mg_buf_free(&m->tokenizer);
    mg_buf_free(&m->header);
    free(m);
    return st;
}

enum mg_status mg_bench_shape_2b(struct mg_config *out, struct mg_err *err) {
    struct mg_buf text = {0};
    if (!mg_buf_printf(&text, config_2b, 1, 2, 3, 4)) return mg_fail_memory(err, "configuration");
    enum mg_status st = mg_config_parse((const char *)text.data, text.n, preprocess_2b,
                                        sizeof preprocess_2b - 1, NULL, 0, out, err);
    mg_buf_free(&text);
    return st;
}
