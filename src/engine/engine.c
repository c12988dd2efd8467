/* engine/engine.c - opening an engine: model, tokenizer, kernels, threads, working memory. */
#include "engine/internal.h"
#include "engine/packed_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *mg_version(void) {
    return MARGAY_VERSION;
}

static void fill_defaults(struct mg_engine_options *o, const struct mg_config *config) {
    size_t most = config->text.max_position;
    if (o->context == 0) o->context = 8192;
    o->context = mg_min_size(o->context, most);
    if (o->prefill_chunk == 0) o->prefill_chunk = 512;
    o->prefill_chunk = mg_min_size(o->prefill_chunk, o->context);
    if (o->image_max_tokens == 0) o->image_max_tokens = 1024;
    if (o->max_images == 0) o->max_images = 64;
    const struct mg_image_limits *limits = &mg_image_limits_default;
    if (o->max_image_bytes == 0) o->max_image_bytes = limits->max_bytes;
    if (o->max_image_pixels == 0) o->max_image_pixels = limits->max_pixels;
    if (o->max_image_side == 0) o->max_image_side = limits->max_side;
    if (!o->background_set) memset(o->background, 255, sizeof o->background);
}

/* The model's own pixel limits, narrowed by the token budget. */
static enum mg_status set_patch_config(mg_engine *e, struct mg_err *err) {
    const struct mg_preprocess_config *p = &e->model->config.preprocess;
    e->patch_config = (struct mg_patch_config){.patch = (uint32_t)p->patch,
                                               .merge = (uint32_t)p->merge,
                                               .temporal = (uint32_t)p->temporal,
                                               .min_pixels = p->min_pixels,
                                               .max_pixels = p->max_pixels};
    memcpy(e->patch_config.mean, p->mean, sizeof p->mean);
    memcpy(e->patch_config.std, p->std, sizeof p->std);
    if (e->options.model_image_limits) return MG_OK;
    uint64_t cell = (uint64_t)p->patch * p->merge * p->patch * p->merge;
    if (e->options.image_min_tokens > e->options.image_max_tokens)
        return mg_fail(err, MG_ERR_ARGUMENT, "",
                       "image_min_tokens %zu is over image_max_tokens %zu",
                       e->options.image_min_tokens, e->options.image_max_tokens);
    if (e->options.image_max_tokens < p->max_pixels / cell)
        e->patch_config.max_pixels = e->options.image_max_tokens * cell;
    if (e->options.image_min_tokens > p->min_pixels / cell)
        e->patch_config.min_pixels =
            mg_min_size(e->options.image_min_tokens, p->max_pixels / cell) * cell;
    if (e->patch_config.min_pixels > e->patch_config.max_pixels)
        e->patch_config.min_pixels = e->patch_config.max_pixels;
    return MG_OK;
}

/* The tokenizer and the weights must belong together: no id may lie beyond the embedding. */
static enum mg_status check_tokenizer(mg_engine *e, struct mg_err *err) {
    size_t n = mg_tokenizer_n(e->tokenizer), n_vocab = e->model->config.text.n_vocab;
    if (n > n_vocab)
        return mg_fail(err, MG_ERR_FORMAT, "",
                       "tokenizer.json has ids up to %zu, config.json's vocab_size is %zu", n - 1,
                       n_vocab);
    e->image_token = mg_tokenizer_added(e->tokenizer, "<|image_pad|>");
    if (e->image_token < 0)
        return mg_fail(err, MG_ERR_FORMAT, "", "tokenizer.json has no <|image_pad|>");
    return MG_OK;
}

static enum mg_status open_threads(mg_engine *e, struct mg_err *err) {
    if (e->options.cpu_range) {
        enum mg_status status = mg_affinity_narrow(e->options.cpu_range, err);
        if (status != MG_OK) return status;
    }
    mg_topology_read("", &e->topology);
    int want = e->options.n_thread;
    if (want <= 0) want = e->topology.n_thread;
    if (want > e->topology.n_thread)
        mg_log(MG_LOG_WARN, "%d threads asked for, %d can run at once here: expect it to be slower",
               want, e->topology.n_thread);
    e->options.n_thread = want;
    bool pin =
        e->options.pin == MG_PIN_ON || (e->options.pin == MG_PIN_AUTO && e->topology.n_node > 1);
    if (pin && want > e->topology.n_core) {
        mg_log(MG_LOG_WARN, "%d threads on %d cores are not pinned", want, e->topology.n_core);
        pin = false;
    }
    return mg_pool_open(want, pin ? e->topology.cpu : NULL, &e->pool, err);
}

static const char *weights_name(const mg_engine *e) {
    if (e->model->packed) return mg_file_weights_name(e->model->manifest.weights);
    return e->mode == MG_MODE_F32 ? "f32" : "bf16";
}

/* The model at `path`: a packed file, or a folder as it is or through its packed file. */
static enum mg_status open_model(mg_engine *e, const char *path, struct mg_err *err) {
    static const enum mg_file_weights packed[] = {[MG_WEIGHTS_AUTO] = MG_FILE_INT8,
                                                  [MG_WEIGHTS_BF16] = MG_FILE_BF16,
                                                  [MG_WEIGHTS_INT8] = MG_FILE_INT8,
                                                  [MG_WEIGHTS_INT4] = MG_FILE_INT4};
    enum mg_weight_mode want = e->options.weights;
    struct stat st;
    bool file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    e->mode = want == MG_WEIGHTS_F32 ? MG_MODE_F32 : MG_MODE_BF16;
    if (!file && want != MG_WEIGHTS_F32 && want != MG_WEIGHTS_BF16) {
        enum mg_status status = mg_folder_check(path, err);
        return status == MG_OK ? mg_packed_cache_open(e, path, packed[want], &e->model, err)
                               : status;
    }
    enum mg_status status = mg_model_open(path, NULL, &e->model, err);
    if (status != MG_OK || !e->model->packed || want == MG_WEIGHTS_AUTO) return status;
    if (want == MG_WEIGHTS_F32 || e->model->manifest.weights != packed[want])
        return mg_fail(err, MG_ERR_ARGUMENT, "weights",
                       "%s holds %s weights; other weights come from the checkpoint's folder", path,
                       mg_file_weights_name(e->model->manifest.weights));
    return MG_OK;
}

static enum mg_status open_tokenizer(mg_engine *e, const char *path, struct mg_err *err) {
    if (!e->model->packed) return mg_tokenizer_open(path, &e->tokenizer, err);
    struct mg_slice text = mg_packed_file_text(e->model->weights, "tokenizer.json");
    if (!text.data)
        return mg_fail(err, MG_ERR_NOT_FOUND, "tokenizer_not_found",
                       "%s was made of a folder without tokenizer.json", path);
    return mg_tokenizer_parse(text.data, text.n, &e->tokenizer, err);
}

static enum mg_status open_parts(mg_engine *e, const char *folder, struct mg_err *err) {
    mg_features_detect(&e->features); /* before the first thread: AMX permission is inherited */
    if (e->features.warning[0]) mg_log(MG_LOG_WARN, "%s", e->features.warning);
    enum mg_status status = open_threads(e, err); /* a conversion computes too */
    if (status == MG_OK) status = open_model(e, folder, err);
    if (status == MG_OK) status = open_tokenizer(e, folder, err);
    if (status != MG_OK) return status;
    fill_defaults(&e->options, &e->model->config);
    e->image_options = mg_image_options_default;
    e->image_options.limits = (struct mg_image_limits){
        e->options.max_image_bytes, e->options.max_image_side, e->options.max_image_pixels};
    memcpy(e->image_options.background, e->options.background, sizeof e->options.background);
    if ((unsigned)e->options.prune > MG_PRUNE_NEAR)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "no such way of pruning: %d",
                       (int)e->options.prune);
    status = check_tokenizer(e, err);
    if (status == MG_OK) status = set_patch_config(e, err);
    if (status != MG_OK) return status;
    size_t rows = mg_max_size(e->options.prefill_chunk, 2 * MG_MAX_TOP);
    mg_kernels_init(&e->kernels, &e->features);
    status = mg_compute_open(&e->compute, &e->kernels, e->pool, e->mode, err);
    if (status == MG_OK) status = mg_decoder_work_open(&e->work, e->model, rows, err);
    if (status != MG_OK) return status;
    size_t n_vocab = e->model->config.text.n_vocab;
    e->row = mg_alloc_zero(rows, sizeof *e->row);
    e->logits = mg_alloc_zero(n_vocab, sizeof *e->logits);
    if (!e->row || !e->logits) return mg_fail_memory(err, "engine");
    return mg_sampler_open(n_vocab, &e->sampler, err);
}

enum mg_status mg_engine_open(const char *folder, const struct mg_engine_options *options,
                              mg_engine **out, struct mg_err *err) {
    *out = NULL;
    mg_engine *e = calloc(1, sizeof *e);
    if (!e) return mg_fail_memory(err, "engine");
    if (options) e->options = *options;
    enum mg_status status = open_parts(e, folder, err);
    if (status != MG_OK) {
        mg_engine_close(e);
        return status;
    }
    *out = e;
    return MG_OK;
}

void mg_engine_close(mg_engine *e) {
    if (!e) return;
    mg_sampler_close(e->sampler);
    mg_draft_free(&e->draft);
    free(e->row);
    free(e->logits);
    mg_decoder_work_close(&e->work);
    mg_compute_close(&e->compute);
    mg_pool_close(e->pool);
    mg_tokenizer_close(e->tokenizer);
    mg_model_close(e->model);
    free(e);
}

void mg_engine_info(const mg_engine *e, struct mg_engine_info *out) {
    *out = (struct mg_engine_info){.tier = mg_tier_name(e->features.tier),
                                   .tier_reason = e->features.reason,
                                   .weights = weights_name(e),
                                   .n_thread = e->options.n_thread,
                                   .context = e->options.context,
                                   .weight_bytes = mg_weights_bytes(e->model->weights),
                                   .n_parameters = e->model->n_parameter,
                                   .samples = e->model->config.generation.do_sample};
}

const struct mg_tokenizer *mg_engine_tokenizer(const mg_engine *e) {
    return e->tokenizer;
}

void mg_engine_facts(const mg_engine *e, struct mg_engine_facts *out) {
    const struct mg_patch_config *p = &e->patch_config;
    uint64_t cell = (uint64_t)p->patch * p->merge * p->patch * p->merge;
    *out = (struct mg_engine_facts){.patch = p->patch,
                                    .merge = p->merge,
                                    .image_min_tokens = p->min_pixels / cell,
                                    .image_max_tokens = p->max_pixels / cell,
                                    .context_max = e->model->config.text.max_position,
                                    .n_vocab = e->model->config.text.n_vocab,
                                    .n_embd = e->model->config.text.hidden,
                                    .max_images = e->options.max_images,
                                    .max_image_bytes = e->options.max_image_bytes,
                                    .max_image_pixels = e->options.max_image_pixels};
}

/* A grey picture of the least size and a few tokens go through everything once. */
enum mg_status mg_engine_warm_up(mg_engine *e, struct mg_err *err) {
    enum { SIDE = 64 };
    mg_chat *chat = NULL;
    uint8_t bmp[54 + SIDE * SIDE * 3];
    static const uint8_t head[54] = {'B', 'M', 0, 0,    0, 0, 0, 0,    0, 0, 54, 0, 0, 0, 40,
                                     0,   0,   0, SIDE, 0, 0, 0, SIDE, 0, 0, 0,  1, 0, 24};
    memset(bmp, 128, sizeof bmp);
    memcpy(bmp, head, sizeof head);
    struct mg_answer_options o;
    mg_answer_options_init(&o);
    o.max_tokens = 2;
    o.ignore_end = true;
    enum mg_status status = mg_chat_open(e, &chat, err);
    if (status == MG_OK) status = mg_chat_add_image(chat, bmp, sizeof bmp, err);
    if (status == MG_OK) status = mg_chat_add_text(chat, MG_USER, "Warm up.", err);
    if (status == MG_OK) status = mg_chat_answer(chat, &o, NULL, NULL, NULL, err);
    mg_chat_close(chat);
    return status;
}
