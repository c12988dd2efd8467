/* cli/bench.c - margay bench: how long each part of an answer takes, and how near that is to what
 * this machine could do.
 *
 *     the engine is opened, which may convert the checkpoint
 *     fresh processes: start to ready; memory of one answer
 *     warm-up run
 *     [limits of the machine] run [limits] run ... run [limits]
 *
 * A run is a conversation of its own: a new picture and a question, answered with one token, and a
 * second question on the same picture, answered with a fixed number of tokens. (The other way round
 * random weights' long answer would have to be read again: its text gives other tokens than it was
 * made of.) The limits are measured between the runs, since clock and
 * neighbours change; only figures of one bench can be compared. What is shown are medians.
 *
 * Shortest times: vision and prefill are operations at the peak of the type that they are computed
 * in (prefill at least one reading of the weights), a token is the bytes that it reads at the read
 * bandwidth. See model/work.h and kernels/limits.h.
 */
#include "cli/bench.h"
#include "cli/commands.h"

#include "base/io.h"
#include "engine/batch.h"
#include "text/prompt.h"
#include "weights/packed_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_SIDE 416
#define DEFAULT_TEXT 14 /* prompt tokens beside the picture's: 183 with 169 of 416 x 416 */
#define MAX_SIDE 32768
#define MAX_PICTURE_PIXELS ((uint64_t)1 << 27)
#define MAX_START 5 /* fresh processes */
#define OTHER_ROUNDS 3

const struct mg_metric_info mg_metrics[MG_N_METRIC] = {
    [MG_METRIC_IMAGE] = {"image_ms", NULL, "picture decoded and resized", "ms"},
    [MG_METRIC_VISION] = {"vision_ms", "vision_share_of_limit", "vision", "ms"},
    [MG_METRIC_PREFILL] = {"prefill_ms", "prefill_share_of_limit", "prefill", "ms"},
    [MG_METRIC_FIRST_TOKEN] = {"first_token_ms", "first_token_share_of_limit", "first token", "ms"},
    [MG_METRIC_DECODE] = {"decode_ms_per_token", "decode_share_of_limit", "each further token",
                          "ms"},
    [MG_METRIC_SECOND] = {"second_question_ms", "second_question_share_of_limit",
                          "second question, first token", "ms"},
    [MG_METRIC_READY] = {"ready_ms", NULL, "start to ready", "ms"},
    [MG_METRIC_FIRST_REQUEST] = {"first_request_ms", NULL, "first token in a new process", "ms"},
    [MG_METRIC_PEAK_RSS] = {"peak_rss_mb", NULL, "peak memory", "MiB"},
    [MG_METRIC_RSS_ANON] = {"rss_anon_mb", NULL, "of it not shared", "MiB"},
};

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct mg_figure mg_figure_of(double *v, size_t n) {
    if (n == 0) return (struct mg_figure){0};
    qsort(v, n, sizeof *v, by_size);
    return (struct mg_figure){
        .n = n, .median = (v[(n - 1) / 2] + v[n / 2]) / 2, .min = v[0], .max = v[n - 1]};
}

double mg_figure_share(const struct mg_figure *f) {
    return f->n && f->limit > 0 && f->median > 0 ? f->limit / f->median : 0;
}

/* --- what is asked */
/* Shades of a slope with noise over it, so that no two cells are alike. */
bool mg_bench_picture(uint32_t width, uint32_t height, uint64_t seed, struct mg_buf *out) {
    size_t row = mg_round_up((size_t)width * 3, 4), n = row * height;
    uint32_t field[] = {(uint32_t)(54 + n), 0, 54,         40, width, height,
                        1 | 24u << 16,      0, (uint32_t)n};
    uint8_t head[54] = {'B', 'M'};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        for (int byte = 0; byte < 4; byte++)
            head[2 + 4 * i + (size_t)byte] = (uint8_t)(field[i] >> 8 * byte);
    if (!mg_buf_add(out, head, sizeof head) || !mg_buf_reserve(out, n)) return false;
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;
    for (uint32_t y = 0; y < height; y++) {
        uint8_t *p = out->data + out->n;
        for (size_t i = 0; i < row; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            size_t slope = i * 160 / row + (size_t)y * 64 / height;
            p[i] = i < (size_t)width * 3 ? (uint8_t)(slope + (x >> 59)) : 0;
        }
        out->n += row;
    }
    out->data[out->n] = 0;
    return true;
}

static enum mg_status read_size(const struct mg_options *o, uint32_t *width, uint32_t *height,
                                struct mg_err *err) {
    const char *text = mg_opt_text(o, MG_OPT_SIZE, NULL);
    *width = *height = DEFAULT_SIDE;
    if (!text) return MG_OK;
    char *end;
    unsigned long w = strtoul(text, &end, 10), h = 0;
    bool ok = *text >= '0' && *text <= '9' && (*end == 'x' || *end == 'X');
    if (ok) {
        const char *second = end + 1;
        h = strtoul(second, &end, 10);
        ok = *second >= '0' && *second <= '9' && *end == 0;
    }
    if (!ok)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--size takes WIDTHxHEIGHT, not '%.40s'",
                       text);
    if (w < 1 || h < 1 || w > MAX_SIDE || h > MAX_SIDE || (uint64_t)w * h > MAX_PICTURE_PIXELS)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--size %.40s: sides from 1 to %d and at most %llu pixels", text, MAX_SIDE,
                       (unsigned long long)MAX_PICTURE_PIXELS);
    *width = (uint32_t)w;
    *height = (uint32_t)h;
    return MG_OK;
}

enum mg_status mg_bench_load_picture(const struct mg_options *o, uint64_t seed, struct mg_buf *out,
                                     struct mg_err *err) {
    uint32_t width, height;
    out->n = 0;
    out->max = SIZE_MAX / 2;
    if (mg_opt_set(o, MG_OPT_IMAGE))
        return mg_file_read(o->value[MG_OPT_IMAGE].list[0], SIZE_MAX / 2, out, err);
    enum mg_status st = read_size(o, &width, &height, err);
    if (!st && !mg_bench_picture(width, height, seed, out)) st = mg_fail_memory(err, "picture");
    return st;
}

/* The configuration and the tokenizer of a checkpoint folder or a packed file; NULL: not wanted. */
static enum mg_status open_texts(const char *path, struct mg_config *config,
                                 struct mg_tokenizer **tok, struct mg_err *err) {
    struct stat is;
    enum mg_status st = MG_OK;
    if (stat(path, &is) != 0 || !S_ISREG(is.st_mode)) {
        if (config) st = mg_config_open(path, config, err);
        return st || !tok ? st : mg_tokenizer_open(path, tok, err);
    }
    struct mg_weights *weights = NULL;
    st = mg_weights_open(path, &weights, err);
    if (!st && config) st = mg_packed_file_config(weights, config, err);
    if (!st && tok) {
        struct mg_slice text = mg_packed_file_text(weights, "tokenizer.json");
        st = mg_tokenizer_parse(text.data, text.n, tok, err);
    }
    mg_weights_close(weights);
    return st;
}

/* Prompt tokens with this text beside a picture of n_image tokens, 0 when that failed. */
static size_t count_prompt(const struct mg_tokenizer *tok, size_t n_image,
                           const struct mg_buf *text, struct mg_err *err) {
    struct mg_part part[2] = {{.kind = MG_PART_IMAGE, .n_token = n_image},
                              {.kind = MG_PART_TEXT, .text = {text->data, text->n}}};
    struct mg_turn turn = {.role = MG_ROLE_USER, .part = part, .n_part = 2};
    struct mg_prompt prompt;
    if (mg_prompt_build(tok, &turn, 1, (struct mg_slice){0}, true, &prompt, err)) return 0;
    size_t n = prompt.ids.n;
    mg_prompt_free(&prompt);
    return n;
}

/* Adds words while the prompt stays within `want`, then single marks. */
static enum mg_status grow_text(const struct mg_tokenizer *tok, size_t n_image, size_t want,
                                struct mg_buf *text, struct mg_err *err) {
    static const char *const words[] = {" What", " is", " on", " the", " table", " and", " where"};
    enum { WORDS = sizeof words / sizeof words[0] };
    for (size_t i = 0, full = 0; full < 2;) {
        size_t before = text->n;
        if (!mg_buf_add_str(text, full ? "?" : words[i++ % WORDS]))
            return mg_fail_memory(err, "question");
        size_t n = count_prompt(tok, n_image, text, err);
        if (n == 0) return err ? err->status : MG_ERR_FORMAT;
        if (n > want) {
            text->data[text->n = before] = 0;
            full++;
        } else if (n == want) {
            return MG_OK;
        }
    }
    return MG_OK;
}

enum mg_status mg_bench_make_text(const struct mg_options *o, const char *folder, size_t n_image,
                                  struct mg_buf *out, struct mg_err *err) {
    struct mg_tokenizer *tok = NULL;
    out->n = 0;
    enum mg_status st = open_texts(folder, NULL, &tok, err);
    if (!st && !mg_buf_add_str(out, "?")) st = mg_fail_memory(err, "question");
    size_t least = st ? 0 : count_prompt(tok, n_image, out, err);
    if (!st && least == 0) st = err ? err->status : MG_ERR_FORMAT;
    size_t want = mg_max_size(n_image + DEFAULT_TEXT, least + 3);
    if (!st && mg_opt_set(o, MG_OPT_PROMPT_TOKENS)) {
        want = (size_t)mg_opt_int(o, MG_OPT_PROMPT_TOKENS, 0);
        if (want < least)
            st = mg_fail(err, MG_ERR_ARGUMENT, "usage",
                         "--prompt-tokens %zu: the picture has %zu, with a question of one mark "
                         "the prompt has %zu",
                         want, n_image, least);
    }
    if (!st) st = grow_text(tok, n_image, want, out, err);
    mg_tokenizer_close(tok);
    return st;
}

/* --- one run */
struct bench {
    struct mg_options *o;
    const char *folder;
    mg_engine *engine;
    struct mg_progress progress;
    struct mg_pool *pool; /* of the limits: as many threads as the engine's */
    struct mg_limits limits;
    struct mg_buf picture, text;
    struct mg_config config;
    struct mg_bench *b;
};

static enum mg_status answer(struct bench *t, mg_chat *chat, size_t n_token, struct mg_answer *out,
                             struct mg_err *err) {
    struct mg_answer_options options;
    mg_answer_options_init(&options);
    options.max_tokens = n_token;
    options.ignore_end = options.no_loop_check = true;
    /* One token a pass unless asked: random weights repeat themselves, and every draft is right. */
    options.draft = (int)mg_opt_int(t->o, MG_OPT_DRAFT, -1);
    struct mg_progress quiet = {.stage = -1};
    struct mg_run run = {.progress = &quiet};
    return mg_session_answer(chat, &options, &run, out, err);
}

/* `seed`: another picture for every run, so that no cache of features takes part. */
static enum mg_status one_run(struct bench *t, uint64_t seed, struct mg_bench_run *out,
                              struct mg_err *err) {
    mg_chat *chat = NULL;
    struct mg_answer a, second;
    struct mg_bench *b = t->b;
    if (!mg_opt_set(t->o, MG_OPT_IMAGE) || t->picture.n == 0) {
        enum mg_status loaded = mg_bench_load_picture(t->o, seed, &t->picture, err);
        if (loaded) return loaded;
    }
    enum mg_status st = mg_chat_open(t->engine, &chat, err);
    if (!st) st = mg_chat_add_image(chat, t->picture.data, t->picture.n, err);
    if (!st) mg_chat_image(chat, 0, &b->image);
    if (!st && t->text.n == 0)
        st = mg_bench_make_text(t->o, t->folder, b->image.tokens, &t->text, err);
    if (!st) st = mg_chat_add_text_n(chat, MG_USER, (const char *)t->text.data, t->text.n, err);
    if (!st) st = answer(t, chat, 1, &a, err);
    if (!st) {
        mg_chat_image(chat, 0, &b->image);
        b->prompt_tokens = a.prompt_tokens;
        if (b->image.cached || a.cached_tokens)
            st = mg_fail(err, MG_ERR_UNSUPPORTED, "cached",
                         "the engine knew this picture already; leave --image out, so that each "
                         "run has another one");
    }
    if (!st) st = mg_chat_add_text(chat, MG_USER, "And what is beside it?", err);
    if (!st) st = answer(t, chat, b->generated_tokens, &second, err);
    if (!st && second.n_token != b->generated_tokens)
        st = mg_fail(err, MG_ERR_CONTEXT, "context_length_exceeded",
                     "%zu tokens were generated, not %zu: --ctx-size is too small", second.n_token,
                     b->generated_tokens);
    if (!st) {
        b->second_prompt_tokens = second.prompt_tokens - second.cached_tokens;
        b->second_cached_tokens = second.cached_tokens;
        *out = (struct mg_bench_run){{
            [MG_METRIC_IMAGE] = a.image_ms,
            [MG_METRIC_VISION] = a.vision_ms,
            [MG_METRIC_PREFILL] = a.prefill_ms,
            [MG_METRIC_FIRST_TOKEN] = a.first_token_ms,
            [MG_METRIC_DECODE] = second.decode_ms_per_token,
            [MG_METRIC_SECOND] = second.first_token_ms,
        }};
    }
    mg_chat_close(chat);
    return st;
}

/* --- start and memory */
static enum mg_status measure_start(struct bench *t, struct mg_err *err) {
    double ready[MAX_START];
    size_t n = mg_min_size(t->b->n_run, MAX_START);
    struct mg_bench_start s;
    enum mg_status st = MG_OK;
    for (size_t i = 0; i < n && !st; i++) {
        bool last = i + 1 == n;
        mg_progress_say(&t->progress, "%s (%zu of %zu)",
                        last ? "measuring memory in a fresh process" : "measuring the start", i + 1,
                        n);
        st = mg_bench_start(t->folder, last, &s, err);
        if (!st) ready[i] = s.ready_ms;
    }
    mg_progress_clear(&t->progress);
    if (st) return st;
    t->b->figure[MG_METRIC_READY] = mg_figure_of(ready, n);
    t->b->figure[MG_METRIC_FIRST_REQUEST] = mg_figure_of(&s.first_request_ms, 1);
    t->b->figure[MG_METRIC_PEAK_RSS] = mg_figure_of(&s.peak_rss_mb, 1);
    t->b->figure[MG_METRIC_RSS_ANON] = mg_figure_of(&s.rss_anon_mb, 1);
    return MG_OK;
}

/* --- limits */
static void keep_limits(struct mg_bench *b, const struct mg_limits *l, size_t n_thread) {
    struct mg_bench_limits *to = &b->limits[b->n_limits];
    to->n_thread = n_thread;
    for (int kind = 0; kind < MG_N_LIMIT; kind++)
        to->rate[kind] = mg_limits_rate(l, (enum mg_limit)kind);
}

/* 1, 2, 4 .. threads below the engine's, each a few rounds; they go first in the table. */
static enum mg_status measure_fewer(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    for (size_t n = 1; n < b->n_thread && b->n_limits + 1 < MG_MAX_BENCH_LIMITS; n *= 2) {
        struct mg_pool *pool = NULL;
        struct mg_limits l;
        mg_progress_say(&t->progress, "measuring the machine's limits with %zu thread%s", n,
                        n == 1 ? "" : "s");
        enum mg_status st = mg_pool_open((int)n, NULL, &pool, err);
        if (!st) st = mg_limits_open(&l, &b->features, pool, 0, &t->limits, err);
        if (!st) {
            for (int i = 0; i < OTHER_ROUNDS; i++) mg_limits_round(&l);
            keep_limits(b, &l, n);
            b->n_limits++;
            mg_limits_close(&l);
        }
        mg_pool_close(pool);
        if (st) return st;
    }
    return MG_OK;
}

/* --- the shortest times */
static bool is_int(const struct mg_bench *b) {
    return !strncmp(b->weights, "int", 3);
}

static struct mg_weight_bits weight_bits(const struct mg_bench *b,
                                         const struct mg_text_config *text) {
    bool f32 = !strcmp(b->weights, "f32");
    double kv = f32 ? 32 : 16;
    if (!strcmp(b->weights, "int8")) return mg_work_bits(text, MG_FILE_INT8);
    if (!strcmp(b->weights, "int4")) return mg_work_bits(text, MG_FILE_INT4);
    double stored = 8.0 * (double)b->weight_bytes / (double)b->n_parameter; /* read in place */
    return (struct mg_weight_bits){stored, stored, 0, kv};
}

/* Seconds that the operations take at least: matrices in the weights' type; attention, which has no
 * weights, in bf16 beside integers. */
static double least_seconds(const struct mg_bench *b, const struct mg_work *w) {
    const struct mg_limit_rate *rate = b->limits[b->n_limits - 1].rate;
    enum mg_limit kind = !strcmp(b->weights, "f32") ? MG_LIMIT_F32 : MG_LIMIT_BF16;
    double other = rate[kind].median, matrix = other;
    if (is_int(b) && rate[MG_LIMIT_INT8].median > 0) matrix = rate[MG_LIMIT_INT8].median;
    return (mg_work_total(w) - w->attention) / matrix + w->attention / other;
}

static void set_limits(struct bench *t) {
    struct mg_bench *b = t->b;
    const struct mg_text_config *text = &t->config.text;
    double read = b->limits[b->n_limits - 1].rate[MG_LIMIT_READ].median;
    struct mg_weight_bits bits = weight_bits(b, text);
    size_t unit = t->config.vision.merge * t->config.vision.merge;
    b->n_patch = b->image.tokens * unit;
    b->vision_work = mg_work_vision(&t->config.vision, b->n_patch);
    b->prefill_work = mg_work_prefill(text, 0, b->prompt_tokens);
    size_t before = b->second_cached_tokens + b->second_prompt_tokens;
    b->bytes_per_token = mg_bytes_per_token(text, &bits, before + b->generated_tokens / 2);
    struct mg_figure *f = b->figure;
    double weights_once = mg_bytes_per_token(text, &bits, 0);
    weights_once = weights_once < (double)b->cache_bytes ? 0 : weights_once / read;
    struct mg_work second = mg_work_prefill(text, b->second_cached_tokens, b->second_prompt_tokens);
    f[MG_METRIC_VISION].limit = 1e3 * least_seconds(b, &b->vision_work);
    f[MG_METRIC_PREFILL].limit = 1e3 * fmax(least_seconds(b, &b->prefill_work), weights_once);
    f[MG_METRIC_FIRST_TOKEN].limit = f[MG_METRIC_VISION].limit + f[MG_METRIC_PREFILL].limit;
    f[MG_METRIC_DECODE].limit = 1e3 * b->bytes_per_token / read;
    f[MG_METRIC_SECOND].limit = 1e3 * fmax(least_seconds(b, &second), weights_once);
    /* Together: the weights once, each conversation's keys and values. */
    double weights = mg_bytes_per_token(text, &bits, 0);
    double kv = mg_bytes_per_token(text, &bits, 20 + b->generated_tokens / 2) - weights;
    for (size_t i = 0; i < b->n_batch; i++)
        b->batch_figure[i].limit = 1e3 * (weights + (double)b->batch[i] * kv) / read;
}

/* --- several conversations at once */
enum { MAX_BATCH_STEP = 256 };

/* Conversations with prompts of their own, each a token ahead of its keys and values. */
static enum mg_status open_batch(struct bench *t, size_t n, mg_chat **chat, int32_t *id,
                                 struct mg_err *err) {
    enum mg_status st = MG_OK;
    for (size_t i = 0; i < n && !st; i++) {
        char text[80];
        struct mg_answer a;
        snprintf(text, sizeof text, "Conversation %zu: say what a picture could show.", i + 1);
        st = mg_chat_open(t->engine, &chat[i], err);
        if (!st) st = mg_chat_add_text(chat[i], MG_USER, text, err);
        if (!st) st = answer(t, chat[i], 1, &a, err);
        if (!st) id[i] = a.token[0];
    }
    return st;
}

/* One size: the time of a step of all n. */
static enum mg_status measure_batch(struct bench *t, size_t n, struct mg_figure *out,
                                    struct mg_err *err) {
    struct mg_bench *b = t->b;
    mg_chat *chat[MG_MAX_BATCH] = {NULL};
    int32_t id[MG_MAX_BATCH];
    double ms[MAX_BATCH_STEP];
    size_t steps = mg_min_size(b->generated_tokens, MAX_BATCH_STEP), done = 0;
    enum mg_status st = open_batch(t, n, chat, id, err);
    for (size_t i = 0; i < steps + 2 && !st; i++) { /* the first two warm up */
        double start = mg_clock();
        st = mg_batch_step(chat, n, id, id, err);
        if (i >= 2 && !st) ms[done++] = (mg_clock() - start) * 1e3;
    }
    for (size_t i = 0; i < n; i++) mg_chat_close(chat[i]);
    if (st) return st;
    *out = mg_figure_of(ms, done);
    return MG_OK;
}

static enum mg_status measure_batches(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    enum mg_status st = MG_OK;
    size_t wanted = b->n_batch;
    b->n_batch = 0;
    for (size_t i = 0; i < wanted && !st; i++) {
        mg_progress_say(&t->progress, "%zu conversations decoding together", b->batch[i]);
        st = measure_batch(t, b->batch[i], &b->batch_figure[i], err);
        if (!st) b->n_batch++;
    }
    return st;
}

/* --batch 1,2,4,8 into b->batch; checked before anything runs. */
static enum mg_status read_batches(const struct mg_options *o, struct mg_bench *b,
                                   struct mg_err *err) {
    const char *text = mg_opt_text(o, MG_OPT_BATCH, "1,2,4,8");
    size_t n = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long x = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (x < 1 || x > 16 || (*end && *end != ',') || n == MG_MAX_BENCH_BATCH)
            return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                           "--batch takes up to %d numbers from 1 to 16 with commas, not '%.60s'",
                           MG_MAX_BENCH_BATCH, text);
        b->batch[n++] = x;
        at = end;
        b->n_batch = n;
        if (!*at) return MG_OK;
    }
}

/* --- all of it */
/* Processor time of the whole machine, and of it what other machines took. */
static void read_steal(double *stolen, double *all) {
    FILE *f = fopen("/proc/stat", "re");
    unsigned long long v[8] = {0};
    *stolen = *all = 0;
    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
                    &v[4], &v[5], &v[6], &v[7]) == 8) {
        for (int i = 0; i < 8; i++) *all += (double)v[i];
        *stolen = (double)v[7];
    }
    if (f) fclose(f);
}

static enum mg_status open_engine(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    enum mg_status st = mg_session_open(t->o, &t->engine, err);
    if (st) return st;
    struct mg_engine_info info;
    mg_engine_info(t->engine, &info);
    b->n_parameter = info.n_parameters;
    b->weight_bytes = info.weight_bytes;
    b->context = info.context;
    b->n_thread = (size_t)info.n_thread;
    snprintf(b->weights, sizeof b->weights, "%s", info.weights);
    return MG_OK;
}

static enum mg_status open_limits(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    enum mg_status st = mg_pool_open((int)b->n_thread, NULL, &t->pool, err);
    size_t n = mg_limits_buffer_bytes();
    if (b->topology.memory_limit) n = mg_min_size(n, b->topology.memory_limit / 4);
    if (!st) st = mg_limits_open(&t->limits, &b->features, t->pool, n, NULL, err);
    return st;
}

static enum mg_status measure_runs(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    struct mg_bench_run unused;
    enum mg_status st = MG_OK;
    for (size_t i = 0; i < b->n_warmup && !st; i++) {
        mg_progress_say(&t->progress, "warming up");
        st = one_run(t, i, &unused, err);
    }
    if (!st) mg_limits_round(&t->limits);
    for (size_t i = 0; i < b->n_run && !st; i++) {
        mg_progress_say(&t->progress, "run %zu of %zu", i + 1, b->n_run);
        st = one_run(t, 1000 + i, &b->run[i], err);
        if (!st) mg_limits_round(&t->limits);
    }
    mg_progress_clear(&t->progress);
    for (int m = 0; m < MG_METRIC_READY && !st; m++) {
        double value[MG_MAX_BENCH_RUN];
        for (size_t i = 0; i < b->n_run; i++) value[i] = b->run[i].value[m];
        b->figure[m] = mg_figure_of(value, b->n_run);
    }
    return st;
}

static enum mg_status measure(struct bench *t, struct mg_err *err) {
    struct mg_bench *b = t->b;
    double stolen[2], all[2];
    read_steal(&stolen[0], &all[0]);
    mg_features_detect(&b->features);
    mg_topology_read("", &b->topology);
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    b->cache_bytes = cache > 0 ? (size_t)cache : 0;
    enum mg_status st = open_engine(t, err); /* first: it may convert the folder */
    if (!st) st = open_texts(t->folder, &t->config, NULL, err);
    if (!st) st = measure_start(t, err);
    if (!st) st = open_limits(t, err);
    if (!st) st = measure_fewer(t, err);
    if (!st) st = measure_runs(t, err);
    if (!st) st = measure_batches(t, err);
    if (st) return st;
    keep_limits(b, &t->limits, b->n_thread);
    b->n_limits++;
    b->n_round = t->limits.read.n;
    b->n_loop = t->limits.set.n_loop;
    for (size_t i = 0; i < b->n_loop; i++) b->loop[i] = mg_limits_loop_rate(&t->limits, i);
    b->read_distance = t->limits.distance;
    b->read_buffer = t->limits.n_buffer;
    set_limits(t);
    read_steal(&stolen[1], &all[1]);
    if (all[1] > all[0]) b->steal_share = (stolen[1] - stolen[0]) / (all[1] - all[0]);
    return MG_OK;
}

/* The folder to measure: -m's, the shape's, or the demo model. The session reads it as -m. */
static enum mg_status find_model(struct bench *t, struct mg_err *err) {
    struct mg_options *o = t->o;
    struct mg_opt_value *model = &o->value[MG_OPT_MODEL];
    const char *shape = mg_opt_text(o, MG_OPT_SHAPE, NULL);
    bool demo = false;
    enum mg_status st = MG_OK;
    if (shape && model->source == MG_FROM_ARGV)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--shape brings its own weights: leave -m out");
    if (mg_bench_is_child()) {
        t->folder = mg_bench_child_folder();
    } else {
        if (shape) model->source = MG_FROM_BUILT_IN; /* an environment's model is not meant */
        st = mg_session_folder(o, &t->folder, &demo, err);
        if (!st && shape) st = mg_bench_shape(o, shape, t->folder, &t->progress, &t->folder, err);
    }
    if (st) return st;
    if (demo && !shape)
        mg_log(MG_LOG_WARN, "no model named: measuring the small demo model (-m FOLDER, or --shape "
                            "qwen3-vl-2b for random weights of the real shapes)");
    size_t n = strlen(t->folder);
    while (n > 1 && t->folder[n - 1] == '/') n--;
    char *name = mg_arena_strdup(&o->arena, t->folder, n);
    if (!name) return mg_fail_memory(err, "options");
    char *slash = strrchr(name, '/');
    t->b->model = shape ? shape : slash && slash[1] ? slash + 1 : name;
    t->b->random_weights = shape != NULL;
    *model = (struct mg_opt_value){.source = MG_FROM_ARGV, .text = t->folder};
    return MG_OK;
}

static enum mg_status check_options(struct mg_options *o, struct mg_bench *b, struct mg_err *err) {
    uint32_t width, height;
    const struct mg_opt_value *image = &o->value[MG_OPT_IMAGE];
    int64_t n = mg_opt_int(o, MG_OPT_MAX_TOKENS, 32);
    b->n_run = (size_t)mg_opt_int(o, MG_OPT_RUNS, 5);
    b->n_warmup = mg_opt_flag(o, MG_OPT_WARMUP, true);
    b->generated_tokens = (size_t)n;
    if (n < 2)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "bench needs a --max-tokens of 2 or more");
    if (mg_opt_flag(o, MG_OPT_JSON, false) && mg_opt_flag(o, MG_OPT_CSV, false))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--json and --csv: one of them");
    if (image->n_list && mg_opt_set(o, MG_OPT_SIZE))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "--image and --size: one of them");
    if (image->n_list > 1 || (image->n_list && !strcmp(image->list[0], "-")))
        return mg_fail(err, MG_ERR_ARGUMENT, "usage", "bench takes one --image, and it is a file");
    enum mg_status st = read_size(o, &width, &height, err);
    return st ? st : read_batches(o, b, err);
}

static enum mg_status show(const struct mg_options *o, const struct mg_bench *b,
                           struct mg_err *err) {
    struct mg_buf text = {0};
    const char *plot = mg_opt_text(o, MG_OPT_PLOT, NULL);
    bool ok = mg_opt_flag(o, MG_OPT_JSON, false)  ? mg_bench_json(b, &text)
              : mg_opt_flag(o, MG_OPT_CSV, false) ? mg_bench_csv(b, &text)
                                                  : mg_bench_table(b, &text);
    enum mg_status st =
        ok ? mg_write(STDOUT_FILENO, text.data, text.n, err) : mg_fail_memory(err, "report");
    text.n = 0;
    if (!st && plot)
        st = mg_bench_plot(b, &text) ? mg_file_write(plot, text.data, text.n, err)
                                     : mg_fail_memory(err, "plot");
    mg_buf_free(&text);
    return st;
}

enum mg_exit mg_cmd_bench(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_bench *b = mg_alloc_zero(1, sizeof *b);
    struct bench t = {.o = o, .b = b};
    mg_interrupt_arm();
    if (mg_bench_is_child()) o->value[MG_OPT_PROGRESS] = (struct mg_opt_value){MG_FROM_ARGV};
    mg_progress_init(&t.progress, o);
    enum mg_status st = b ? check_options(o, b, &err) : mg_fail_memory(&err, "bench");
    if (!st) st = find_model(&t, &err);
    if (!st && mg_bench_is_child()) {
        st = mg_bench_child(o, &err);
    } else {
        if (!st) st = measure(&t, &err);
        if (!st) st = show(o, b, &err);
    }
    mg_limits_close(&t.limits);
    mg_pool_close(t.pool);
    mg_engine_close(t.engine);
    mg_buf_free(&t.picture);
    mg_buf_free(&t.text);
    free(b);
    return st ? mg_report(o, &err) : MG_EXIT_OK;
}
