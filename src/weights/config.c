/* weights/config.c - see config.h. Answers to transformers' configuration_qwen3_vl.py (which keys,
 * which defaults), Qwen2VLImageProcessor (preprocessing) and GenerationConfig.
 *
 * All values go through one of the get_* functions below, each of which names the file, the key,
 * what was wanted and what was found. They keep the first error and let the rest pass with the
 * default, so that a section is read in one go and checked once at its end.
 */
#include "weights/config.h"

#include "base/io.h"
#include "weights/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILE_BYTES ((size_t)1 << 20) /* published: 2 kB */
#define MAX_DEPTH 32
#define MAX_VALUES 20000
#define NEEDED ((size_t)-1)

/* One object of a file. */
struct reader {
    const char *file;      /* "config.json" */
    const char *section;   /* "text_config.", "" for the outermost */
    json_t *object;        /* borrowed; NULL reads as empty */
    enum mg_status status; /* of the first failure */
    struct mg_err *err;
};

static void bad(struct reader *r, const char *key, const char *wanted, const json_t *found) {
    char text[80];
    if (r->status != MG_OK) return;
    r->status = mg_fail(r->err, MG_ERR_FORMAT, "config_value", "%s: %s%s: wanted %s, found %s",
                        r->file, r->section, key, wanted, mg_json_found(text, sizeof text, found));
}

static void unsupported(struct reader *r, const char *key, const char *wanted,
                        const json_t *found) {
    char text[80];
    if (r->status != MG_OK) return;
    r->status = mg_fail(r->err, MG_ERR_UNSUPPORTED, "config_unsupported",
                        "%s: %s%s: margay supports %s, found %s", r->file, r->section, key, wanted,
                        mg_json_found(text, sizeof text, found));
}

/* Present and not null. */
static json_t *get(const struct reader *r, const char *key) {
    json_t *v = json_object_get(r->object, key);
    return json_is_null(v) ? NULL : v;
}

static bool in_range(const json_t *v, size_t min, size_t max) {
    return json_is_integer(v) && json_integer_value(v) >= 0 &&
           (size_t)json_integer_value(v) >= min && (size_t)json_integer_value(v) <= max;
}

/* An integer min..max; `absent` when the key isn't there, or NEEDED. */
static size_t get_size(struct reader *r, const char *key, size_t min, size_t max, size_t absent) {
    json_t *v = json_object_get(r->object, key);
    if (!v && absent != NEEDED) return absent;
    if (in_range(v, min, max)) return (size_t)json_integer_value(v);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "an integer from %zu to %zu", min, max);
    bad(r, key, wanted, v);
    return min;
}

/* The reference also takes a list of two for sizes that margay only knows as equal: [16, 16]. */
static size_t get_square(struct reader *r, const char *key, size_t min, size_t max, size_t absent) {
    json_t *v = json_object_get(r->object, key);
    if (!json_is_array(v)) return get_size(r, key, min, max, absent);
    json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    if (json_array_size(v) == 2 && in_range(a, min, max) && json_equal(a, b))
        return (size_t)json_integer_value(a);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "an integer from %zu to %zu, or twice the same", min, max);
    bad(r, key, wanted, v);
    return min;
}

/* A number min..max; `absent` when the key isn't there or null. */
static float get_float(struct reader *r, const char *key, double min, double max, double absent) {
    json_t *v = get(r, key);
    if (!v) return (float)absent;
    double d = json_number_value(v);
    if (json_is_number(v) && d >= min && d <= max)
        return (float)d; /* a NaN can't come out of JSON */
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
    bad(r, key, wanted, v);
    return (float)absent;
}

static bool get_bool(struct reader *r, const char *key, bool absent) {
    json_t *v = get(r, key);
    if (!v) return absent;
    if (!json_is_boolean(v)) bad(r, key, "true or false", v);
    return json_is_true(v);
}

/* Either absent, null or exactly this text. */
static void need_text(struct reader *r, const char *key, const char *text) {
    json_t *v = get(r, key);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "\"%s\"", text);
    if (v && !json_is_string(v))
        bad(r, key, wanted, v);
    else if (v && strcmp(json_string_value(v), text) != 0)
        unsupported(r, key, wanted, v);
}

/* Either absent, null or exactly this. */
static void need_bool(struct reader *r, const char *key, bool value) {
    if (get_bool(r, key, value) != value)
        unsupported(r, key, value ? "true" : "false", get(r, key));
}

/* An object, or nothing (NULL) where the key is absent or null. */
static json_t *get_object(struct reader *r, const char *key) {
    json_t *v = get(r, key);
    if (v && !json_is_object(v)) bad(r, key, "an object", v);
    return json_is_object(v) ? v : NULL;
}

static json_t *need_object(struct reader *r, const char *key) {
    json_t *v = get_object(r, key);
    if (!v) bad(r, key, "an object", NULL);
    return v;
}

static void no_quantization(struct reader *r) {
    if (!get(r, "quantization_config") || r->status != MG_OK) return;
    r->status =
        mg_fail(r->err, MG_ERR_UNSUPPORTED, "quantized_weights",
                "%s: %squantization_config: the weights are quantised; wanted the original BF16 "
                "checkpoint (Qwen/Qwen3-VL-2B-Instruct)",
                r->file, r->section);
}

/* mrope_section: three counts whose sum is head_dim / 2; absent as the reference, [24, 20, 20]. */
static void read_section(struct reader *r, struct mg_text_config *t) {
    static const size_t absent[3] = {24, 20, 20};
    json_t *v = get(r, "mrope_section");
    size_t sum = 0;
    bool good = !v || (json_is_array(v) && json_array_size(v) == 3);
    for (size_t i = 0; good && i < 3; i++) {
        json_t *e = json_array_get(v, i);
        good = !v || in_range(e, 0, t->head_dim);
        t->section[i] = v ? (size_t)json_integer_value(e) : absent[i];
        sum += t->section[i];
    }
    if (good && sum * 2 == t->head_dim) return;
    char wanted[96];
    snprintf(wanted, sizeof wanted, "three counts with the sum %zu (half of head_dim)",
             t->head_dim / 2);
    if (good && r->status == MG_OK) /* numbers, but wrong ones: show them */
        r->status = mg_fail(r->err, MG_ERR_FORMAT, "config_value",
                            "%s: %smrope_section: wanted %s, found [%zu, %zu, %zu]", r->file,
                            r->section, wanted, t->section[0], t->section[1], t->section[2]);
    else
        bad(r, "mrope_section", wanted, v);
}

/* Published: rope_theta beside rope_scaling{mrope_section}; newer: rope_parameters{rope_theta,
 * mrope_section}. As in the reference a theta inside goes before one outside. */
static void read_rope(struct reader *r, struct mg_text_config *t) {
    json_t *scaling = get_object(r, "rope_scaling"), *parameters = get_object(r, "rope_parameters");
    if (scaling && parameters && !json_equal(scaling, parameters)) {
        bad(r, "rope_scaling", "the same as in rope_parameters, or one of them only", scaling);
        return;
    }
    struct reader in = *r;
    in.object = scaling ? scaling : parameters;
    in.section = scaling ? "text_config.rope_scaling." : "text_config.rope_parameters.";
    need_text(&in, get(&in, "rope_type") ? "rope_type" : "type", "default");
    need_bool(&in, "mrope_interleaved", true);
    if (get_float(&in, "partial_rotary_factor", 0, 1, 1) != 1)
        unsupported(&in, "partial_rotary_factor", "1", get(&in, "partial_rotary_factor"));
    read_section(&in, t);
    t->rope_theta = get_float(&in, "rope_theta", 1, 1e12, 0);
    r->status = in.status;
    if (t->rope_theta == 0) t->rope_theta = get_float(r, "rope_theta", 1, 1e12, 0);
    if (t->rope_theta == 0) bad(r, "rope_theta", "a number from 1 to 1e+12", get(r, "rope_theta"));
    if (get_float(r, "partial_rotary_factor", 0, 1, 1) != 1)
        unsupported(r, "partial_rotary_factor", "1", get(r, "partial_rotary_factor"));
}

static void read_text(struct reader *r, struct mg_text_config *t) {
    need_text(r, "model_type", "qwen3_vl_text");
    no_quantization(r);
    need_text(r, "hidden_act", "silu");
    need_bool(r, "attention_bias", false);
    t->n_vocab = get_size(r, "vocab_size", 1, (size_t)1 << 24, 151936);
    t->hidden = get_size(r, "hidden_size", 1, 65536, 4096);
    t->ffn = get_size(r, "intermediate_size", 1, 262144, 22016);
    t->n_layer = get_size(r, "num_hidden_layers", 1, MG_MAX_LAYER, 32);
    t->n_head = get_size(r, "num_attention_heads", 1, 1024, 32);
    json_t *kv = json_object_get(r->object, "num_key_value_heads");
    t->n_head_kv = json_is_null(kv) ? t->n_head : get_size(r, "num_key_value_heads", 1, 1024, 32);
    if (t->n_head % t->n_head_kv != 0)
        bad(r, "num_key_value_heads", "a divisor of num_attention_heads", kv);
    t->head_dim = get_size(r, "head_dim", 2, 1024, 128);
    if (t->head_dim % 2 != 0) bad(r, "head_dim", "an even number", get(r, "head_dim"));
    t->max_position = get_size(r, "max_position_embeddings", 1, (size_t)1 << 24, 128000);
    t->norm_eps = get_float(r, "rms_norm_eps", 0, 0.1, 1e-6);
    read_rope(r, t);
}

static void read_deepstack(struct reader *r, struct mg_vision_config *v) {
    static const size_t absent[] = {8, 16, 24};
    json_t *list = json_object_get(r->object, "deepstack_visual_indexes");
    char wanted[112];
    snprintf(wanted, sizeof wanted, "at most %d ascending block indices below depth (%zu)",
             MG_MAX_DEEPSTACK, v->depth);
    size_t n = list ? json_array_size(list) : 3;
    bool good = (!list || json_is_array(list)) && n <= MG_MAX_DEEPSTACK;
    for (size_t i = 0; good && i < n; i++) {
        json_t *e = json_array_get(list, i);
        good = !list || in_range(e, 0, v->depth - 1);
        v->deepstack[i] = list ? (size_t)json_integer_value(e) : absent[i];
        good =
            good && v->deepstack[i] < v->depth && (i == 0 || v->deepstack[i] > v->deepstack[i - 1]);
        if (!good && list && json_is_integer(e)) list = e; /* the culprit, for the message */
    }
    v->n_deepstack = good ? n : 0;
    if (!good) bad(r, "deepstack_visual_indexes", wanted, list);
}

static void read_vision(struct reader *r, struct mg_vision_config *v,
                        const struct mg_text_config *t) {
    json_t *type = get(r, "model_type");
    /* Releases up to 4.57 wrote the outer model's type here. */
    if (!(json_is_string(type) && strcmp(json_string_value(type), "qwen3_vl") == 0))
        need_text(r, "model_type", "qwen3_vl_vision");
    no_quantization(r);
    need_text(r, "hidden_act", "gelu_pytorch_tanh");
    v->depth = get_size(r, "depth", 1, MG_MAX_LAYER, 27);
    v->hidden = get_size(r, "hidden_size", 1, 65536, 1152);
    v->ffn = get_size(r, "intermediate_size", 1, 262144, 4304);
    v->n_head = get_size(r, "num_heads", 1, 1024, 16);
    v->in_channels = get_size(r, "in_channels", 3, 3, 3);
    v->patch = get_square(r, "patch_size", 1, 64, 16);
    v->merge = get_size(r, "spatial_merge_size", 1, 8, 2);
    v->temporal = get_square(r, "temporal_patch_size", 1, 8, 2);
    v->out = get_size(r, "out_hidden_size", 1, 65536, 3584);
    v->n_position = get_size(r, "num_position_embeddings", 1, 1024 * 1024, 2304);
    v->norm_eps = 1e-6f; /* a constant in the reference */
    if (v->hidden % v->n_head != 0 || v->hidden / v->n_head % 4 != 0)
        bad(r, "num_heads", "a divisor of hidden_size with a head size that is a multiple of 4",
            get(r, "num_heads"));
    if (v->hidden / v->n_head > 1024)
        bad(r, "num_heads", "heads of at most 1024", get(r, "num_heads"));
    if (v->out != t->hidden)
        bad(r, "out_hidden_size", "text_config.hidden_size", get(r, "out_hidden_size"));
    size_t side = 1;
    while (side * side < v->n_position) side++;
    if (side * side != v->n_position)
        bad(r, "num_position_embeddings", "a square number", get(r, "num_position_embeddings"));
    read_deepstack(r, v);
    struct reader rope = *r;
    rope.object = get_object(r, "rope_parameters");
    if (r->status != MG_OK || !rope.object) return;
    rope.section = "vision_config.rope_parameters.";
    need_text(&rope, "rope_type", "axial");
    if (get_float(&rope, "rope_theta", 1, 1e12, 10000) != 10000)
        unsupported(&rope, "rope_theta", "10000", get(&rope, "rope_theta"));
    r->status = rope.status;
}

static void read_architecture(struct reader *r) {
    json_t *type = json_object_get(r->object, "model_type");
    if (!json_is_string(type))
        bad(r, "model_type", "\"qwen3_vl\"", type);
    else
        need_text(r, "model_type", "qwen3_vl");
    json_t *list = get(r, "architectures");
    if (list && !json_is_array(list)) bad(r, "architectures", "a list", list);
    bool found = json_array_size(list) == 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *e = json_array_get(list, i);
        found = found || (json_is_string(e) &&
                          strcmp(json_string_value(e), "Qwen3VLForConditionalGeneration") == 0);
    }
    if (!found)
        unsupported(r, "architectures", "\"Qwen3VLForConditionalGeneration\"",
                    json_array_get(list, 0));
    no_quantization(r);
}

static void read_config(struct reader *r, struct mg_config *c) {
    read_architecture(r);
    struct reader text = *r, vision = *r;
    text.object = need_object(r, "text_config");
    vision.object = need_object(r, "vision_config");
    text.section = "text_config.";
    vision.section = "vision_config.";
    text.status = r->status;
    read_text(&text, &c->text);
    c->text.tied = get_bool(&text, "tie_word_embeddings", false);
    vision.status = text.status;
    read_vision(&vision, &c->vision, &c->text);
    r->status = vision.status;
    c->text.tied = get_bool(r, "tie_word_embeddings", c->text.tied);
    const struct {
        const char *key;
        size_t absent;
        int32_t *to;
    } id[] = {{"image_token_id", 151655, &c->image_token},
              {"video_token_id", 151656, &c->video_token},
              {"vision_start_token_id", 151652, &c->vision_start},
              {"vision_end_token_id", 151653, &c->vision_end}};
    for (size_t i = 0; i < 4; i++) {
        size_t v = get_size(r, id[i].key, 0, c->text.n_vocab - 1, id[i].absent);
        if (v >= c->text.n_vocab) bad(r, id[i].key, "an id below text_config.vocab_size", NULL);
        *id[i].to = (int32_t)v;
        for (size_t j = 0; j < i; j++)
            if (*id[j].to == (int32_t)v) bad(r, id[i].key, "an id of its own", get(r, id[i].key));
    }
}

/* A number for all three channels, or a list of three. */
static void read_channels(struct reader *r, const char *key, double min, const float absent[3],
                          float out[3]) {
    json_t *v = get(r, key);
    if (json_is_array(v) && json_array_size(v) != 3)
        bad(r, key, "a number for each of 3 channels", v);
    for (size_t i = 0; i < 3; i++) {
        json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        double d = json_number_value(e);
        out[i] = e ? (float)d : absent[i];
        if (e && (!json_is_number(e) || !(d >= min && d <= 1000))) {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "numbers from %g to 1000", min);
            bad(r, key, wanted, e);
        }
    }
}

static uint64_t read_pixels(struct reader *r, const char *old, const char *edge, uint64_t absent) {
    const size_t max = (size_t)1 << 40;
    if (get(r, old))
        return get_size(r, old, 1, max, NEEDED); /* goes before `size`, as in the reference */
    json_t *size = get_object(r, "size");
    if (!size) return absent;
    struct reader in = *r;
    in.object = size;
    in.section = "size.";
    uint64_t v = get_size(&in, !get(&in, edge) && get(&in, old) ? old : edge, 1, max, NEEDED);
    r->status = in.status;
    return v;
}

static void same_as_vision(struct reader *r, const char *key, size_t want, size_t *out) {
    *out = get_size(r, key, 1, 64, want);
    if (*out == want) return;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%zu as in config.json's vision_config", want);
    bad(r, key, wanted, get(r, key));
}

static void read_preprocess(struct reader *r, const struct mg_vision_config *v,
                            struct mg_preprocess_config *p) {
    /* Of the published 2B checkpoint when there is no file, of the reference's class for a key that
     * isn't there. */
    static const float half[3] = {0.5f, 0.5f, 0.5f},
                       clip_mean[3] = {0.48145466f, 0.4578275f, 0.40821073f},
                       clip_std[3] = {0.26862954f, 0.26130258f, 0.27577711f};
    bool file = r->object != NULL;
    json_t *inner = get_object(r, "image_processor");
    if (inner) {
        r->object = inner;
        r->section = "image_processor.";
    }
    json_t *type = get(r, "image_processor_type");
    if (type && (!json_is_string(type) ||
                 strncmp(json_string_value(type), "Qwen2VLImageProcessor", 21) != 0))
        unsupported(r, "image_processor_type", "\"Qwen2VLImageProcessor\"", type);
    need_bool(r, "do_resize", true);
    need_bool(r, "do_rescale", true);
    need_bool(r, "do_normalize", true);
    need_bool(r, "do_convert_rgb", true);
    if (get(r, "resample") && !in_range(get(r, "resample"), 3, 3))
        unsupported(r, "resample", "3 (bicubic)", get(r, "resample"));
    if (fabs((double)get_float(r, "rescale_factor", 0, 1, 1 / 255.0) * 255 - 1) > 1e-5)
        unsupported(r, "rescale_factor", "1/255", get(r, "rescale_factor"));
    same_as_vision(r, "patch_size", v->patch, &p->patch);
    same_as_vision(r, "temporal_patch_size", v->temporal, &p->temporal);
    same_as_vision(r, "merge_size", v->merge, &p->merge);
    p->min_pixels = read_pixels(r, "min_pixels", "shortest_edge", file ? 56 * 56 : 65536);
    p->max_pixels = read_pixels(r, "max_pixels", "longest_edge", file ? 28 * 28 * 1280 : 16777216);
    if (p->min_pixels > p->max_pixels && r->status == MG_OK)
        r->status =
            mg_fail(r->err, MG_ERR_FORMAT, "config_value",
                    "%s: size: wanted shortest_edge up to longest_edge, found %llu and %llu",
                    r->file, (unsigned long long)p->min_pixels, (unsigned long long)p->max_pixels);
    read_channels(r, "image_mean", -1000, file ? clip_mean : half, p->mean);
    read_channels(r, "image_std", 1e-6, file ? clip_std : half, p->std);
}

/* eos_token_id: an id or a list of them. false when there is none. */
static bool read_end_tokens(struct reader *r, size_t n_vocab, struct mg_generation_config *g) {
    json_t *v = get(r, "eos_token_id");
    if (!v || r->status != MG_OK) return false;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    char wanted[96];
    snprintf(wanted, sizeof wanted, "one to %d ids below vocab_size (%zu)", MG_MAX_END_TOKEN,
             n_vocab);
    if (n < 1 || n > MG_MAX_END_TOKEN) {
        bad(r, "eos_token_id", wanted, v);
        return false;
    }
    g->n_end_token = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        if (!in_range(e, 0, n_vocab - 1)) {
            bad(r, "eos_token_id", wanted, e);
            return false;
        }
        int32_t id = (int32_t)json_integer_value(e);
        bool known = false;
        for (size_t j = 0; j < g->n_end_token; j++) known = known || g->end_token[j] == id;
        if (!known) g->end_token[g->n_end_token++] = id;
    }
    return true;
}

static void read_generation(struct reader *r, struct reader *config, size_t n_vocab,
                            struct mg_generation_config *g) {
    g->do_sample = get_bool(r, "do_sample", false);
    g->temperature = get_float(r, "temperature", 0, 100, 1);
    g->top_p = get_float(r, "top_p", 0, 1, 1);
    g->repetition_penalty = get_float(r, "repetition_penalty", 0.01, 100, 1);
    json_t *top_k = get(r, "top_k");
    g->top_k = top_k          ? (int)get_size(r, "top_k", 0, (size_t)1 << 24, NEEDED)
               : g->do_sample ? 50
                              : 0;
    if (read_end_tokens(r, n_vocab, g) || r->status != MG_OK) return;
    struct reader text = *config;
    text.object = get_object(config, "text_config");
    text.section = "text_config.";
    if (!read_end_tokens(config, n_vocab, g)) read_end_tokens(&text, n_vocab, g);
    if (config->status != MG_OK || text.status != MG_OK) r->status = MG_ERR_FORMAT;
}

enum mg_status mg_config_parse(const char *config, size_t n_config, const char *preprocess,
                               size_t n_preprocess, const char *generation, size_t n_generation,
                               struct mg_config *out, struct mg_err *err) {
    *out = (struct mg_config){0};
    struct mg_err own = {0};
    struct reader r[3] = {{.file = "config.json"},
                          {.file = "preprocessor_config.json"},
                          {.file = "generation_config.json"}};
    const char *text[3] = {config, preprocess, generation};
    size_t n[3] = {n_config, n_preprocess, n_generation};
    json_t *root[3] = {0};
    enum mg_status status = MG_OK;
    if (!config) status = mg_fail(&own, MG_ERR_NOT_FOUND, "", "no config.json");
    for (int i = 0; i < 3 && status == MG_OK; i++) {
        if (!text[i]) continue;
        status = mg_json_parse(r[i].file, text[i], n[i], MAX_DEPTH, MAX_VALUES, &root[i], &own);
    }
    for (int i = 0; i < 3; i++) {
        r[i].section = "";
        r[i].object = root[i];
        r[i].err = &own;
    }
    if (json_object_get(root[1], "image_processor")) r[1].file = "processor_config.json";
    if (status == MG_OK) {
        read_config(&r[0], out);
        status = r[0].status;
    }
    if (status == MG_OK) {
        read_preprocess(&r[1], &out->vision, &out->preprocess);
        status = r[1].status;
    }
    if (status == MG_OK) {
        read_generation(&r[2], &r[0], out->text.n_vocab, &out->generation);
        status = r[2].status;
    }
    for (int i = 0; i < 3; i++) json_decref(root[i]);
    if (status != MG_OK && err && err->status == MG_OK) *err = own;
    return status;
}

/* Reads FOLDER/name; a file that isn't there leaves `out` empty unless it is `needed`. */
static enum mg_status read_file(const char *folder, const char *name, bool needed,
                                struct mg_buf *out, struct mg_err *err) {
    char path[4096];
    enum mg_status status = mg_path_join(path, sizeof path, folder, name, err);
    if (status != MG_OK) return status;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        if (!needed) return MG_OK;
        return mg_fail(
            err, MG_ERR_NOT_FOUND, "config_not_found",
            "no %s in %s; wanted a checkpoint folder with config.json, tokenizer.json and "
            "model.safetensors",
            name, folder);
    }
    status = mg_file_read(path, MAX_FILE_BYTES, out, err);
    /* An empty file is a text of no bytes, not an absent one. */
    if (status == MG_OK && !mg_buf_add_str(out, "")) status = mg_fail_memory(err, name);
    return status;
}

/* processor_config.json if it has an image_processor, else preprocessor_config.json, else nothing.
 */
static enum mg_status read_preprocess_file(const char *folder, struct mg_buf *out,
                                           struct mg_err *err) {
    enum mg_status status = read_file(folder, "processor_config.json", false, out, err);
    if (status != MG_OK) return status;
    if (out->data) {
        json_t *root;
        status = mg_json_parse("processor_config.json", (const char *)out->data, out->n, MAX_DEPTH,
                               MAX_VALUES, &root, err);
        if (status != MG_OK) return status;
        bool has = json_object_get(root, "image_processor") != NULL;
        json_decref(root);
        if (has) return MG_OK;
        mg_buf_free(out);
    }
    return read_file(folder, "preprocessor_config.json", false, out, err);
}

/* A file's own name is in these texts, the folder's is not. */
static void name_folder(struct mg_err *own, const char *folder, struct mg_err *err) {
    if (own->status == MG_OK) return;
    if (own->status == MG_ERR_FORMAT || own->status == MG_ERR_UNSUPPORTED ||
        own->status == MG_ERR_LIMIT)
        mg_err_prefix(own, "%s", folder); /* the others name the whole path */
    if (err && err->status == MG_OK) *err = *own;
}

enum mg_status mg_config_texts(const char *folder, struct mg_buf text[3], struct mg_err *err) {
    struct mg_err own = {0};
    enum mg_status status = mg_folder_check(folder, err);
    if (status != MG_OK) return status;
    status = read_file(folder, "config.json", true, &text[0], err);
    if (status == MG_OK) status = read_preprocess_file(folder, &text[1], &own);
    if (status == MG_OK)
        status = read_file(folder, "generation_config.json", false, &text[2], &own);
    name_folder(&own, folder, err);
    return status;
}

enum mg_status mg_config_open(const char *folder, struct mg_config *out, struct mg_err *err) {
    *out = (struct mg_config){0};
    struct mg_buf text[3] = {0};
    struct mg_err own = {0};
    enum mg_status status = mg_config_texts(folder, text, err);
    if (status == MG_OK)
        status = mg_config_parse((const char *)text[0].data, text[0].n, (const char *)text[1].data,
                                 text[1].n, (const char *)text[2].data, text[2].n, out, &own);
    name_folder(&own, folder, err);
    for (int i = 0; i < 3; i++) mg_buf_free(&text[i]);
    return status;
}
