/* The JSON files of a checkpoint: both spellings as the reference wrote them (tests/data/weights),
 * the published 2B values, defaults, and a table of broken ones that are made from a good one by
 * replacing a piece of text. */
#include "base/io.h"
#include "weights/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Of this process, so that a busy machine doesn't fail a test. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void published_spelling(void **state) {
    struct mg_err err = {0};
    struct mg_config c;
    if (mg_config_open("tests/data/weights/tiny-tied", &c, &err) != MG_OK) fail_msg("%s", err.text);
    const struct mg_text_config *t = &c.text;
    assert_int_equal(t->n_vocab, 640);
    assert_int_equal(t->hidden, 96);
    assert_int_equal(t->ffn, 208);
    assert_int_equal(t->n_layer, 4);
    assert_int_equal(t->n_head, 6);
    assert_int_equal(t->n_head_kv, 2);
    assert_int_equal(t->head_dim, 32);
    assert_int_equal(t->max_position, 4096);
    assert_true(t->norm_eps == 1e-6f);
    assert_true(t->rope_theta == 5e6f);
    assert_int_equal(t->section[0], 6);
    assert_int_equal(t->section[1], 5);
    assert_int_equal(t->section[2], 5);
    assert_true(t->tied);
    const struct mg_vision_config *v = &c.vision;
    assert_int_equal(v->depth, 4);
    assert_int_equal(v->hidden, 64);
    assert_int_equal(v->ffn, 144);
    assert_int_equal(v->n_head, 4);
    assert_int_equal(v->in_channels, 3);
    assert_int_equal(v->patch, 16);
    assert_int_equal(v->merge, 2);
    assert_int_equal(v->temporal, 2);
    assert_int_equal(v->out, 96);
    assert_int_equal(v->n_position, 64);
    assert_int_equal(v->n_deepstack, 3);
    assert_int_equal(v->deepstack[0], 0);
    assert_int_equal(v->deepstack[1], 1);
    assert_int_equal(v->deepstack[2], 3);
    assert_true(v->norm_eps == 1e-6f);
    assert_int_equal(c.image_token, 572);
    assert_int_equal(c.video_token, 573);
    assert_int_equal(c.vision_start, 569);
    assert_int_equal(c.vision_end, 570);
    assert_int_equal(c.preprocess.min_pixels, 4096);
    assert_int_equal(c.preprocess.max_pixels, 65536);
    assert_int_equal(c.preprocess.patch, 16);
    assert_int_equal(c.preprocess.merge, 2);
    assert_int_equal(c.preprocess.temporal, 2);
    for (int i = 0; i < 3; i++)
        assert_true(c.preprocess.mean[i] == 0.5f && c.preprocess.std[i] == 0.5f);
    const struct mg_generation_config *g = &c.generation;
    assert_true(g->do_sample);
    assert_true(g->temperature == 0.7f && g->top_p == 0.8f && g->repetition_penalty == 1);
    assert_int_equal(g->top_k, 20);
    assert_int_equal(g->n_end_token, 2);
    assert_int_equal(g->end_token[0], 562);
    assert_int_equal(g->end_token[1], 560);
}

static void newer_spelling(void **state) {
    struct mg_err err = {0};
    struct mg_config c;
    if (mg_config_open("tests/data/weights/tiny-untied", &c, &err) != MG_OK)
        fail_msg("%s", err.text);
    assert_true(c.text.rope_theta == 1e6f);
    assert_int_equal(c.text.section[0], 12);
    assert_int_equal(c.text.section[1], 10);
    assert_int_equal(c.text.section[2], 10);
    assert_int_equal(c.text.head_dim, 64);
    assert_int_equal(c.text.n_head_kv, 4);
    assert_false(c.text.tied);
    assert_int_equal(c.vision.n_deepstack, 2);
    assert_int_equal(c.vision.deepstack[1], 2);
    assert_int_equal(c.vision.n_position, 144);
    assert_int_equal(c.preprocess.max_pixels, 262144);
}

/* ---- a small good set of three files, and changes to it ---- */
static const char config_text[] =
    "{\"model_type\":\"qwen3_vl\",\"architectures\":[\"Qwen3VLForConditionalGeneration\"],"
    "\"text_config\":{\"model_type\":\"qwen3_vl_text\",\"vocab_size\":1000,\"hidden_size\":64,"
    "\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_"
    "heads\":2,"
    "\"head_dim\":16,\"hidden_act\":\"silu\",\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-"
    "06,"
    "\"attention_bias\":false,\"eos_token_id\":7,\"rope_theta\":10000,"
    "\"rope_scaling\":{\"rope_type\":\"default\",\"mrope_section\":[4,2,2],\"mrope_interleaved\":"
    "true}},"
    "\"vision_config\":{\"model_type\":\"qwen3_vl\",\"depth\":3,\"hidden_size\":32,\"hidden_act\":"
    "\"gelu_pytorch_tanh\","
    "\"intermediate_size\":48,\"num_heads\":2,\"in_channels\":3,\"patch_size\":16,\"spatial_merge_"
    "size\":2,"
    "\"temporal_patch_size\":2,\"out_hidden_size\":64,\"num_position_embeddings\":144,"
    "\"deepstack_visual_indexes\":[0,2]},"
    "\"image_token_id\":11,\"video_token_id\":12,\"vision_start_token_id\":13,\"vision_end_token_"
    "id\":14,"
    "\"tie_word_embeddings\":true}";
static const char preprocess_text[] =
    "{\"size\":{\"shortest_edge\":4096,\"longest_edge\":65536},\"patch_size\":16,\"temporal_patch_"
    "size\":2,"
    "\"merge_size\":2,\"image_mean\":[0.5,0.4,0.3],\"image_std\":[0.5,0.6,0.7],"
    "\"image_processor_type\":\"Qwen2VLImageProcessorFast\"}";
static const char generation_text[] =
    "{\"eos_token_id\":[5,6],\"do_sample\":true,\"temperature\":0.7,\"top_k\":20,"
    "\"top_p\":0.8,\"repetition_penalty\":1.1}";

/* A copy of `text` with its only `from` replaced by `to`, in a block of exactly *n bytes. */
static char *change(const char *text, const char *from, const char *to, size_t *n) {
    const char *at = from ? strstr(text, from) : NULL;
    size_t n_text = strlen(text), n_from = from ? strlen(from) : 0, n_to = from ? strlen(to) : 0;
    if (from && (!at || strstr(at + 1, from)))
        fail_msg("\"%s\" must stand once in the good text", from);
    char *out = malloc(n_text - n_from + n_to);
    size_t head = at ? (size_t)(at - text) : n_text;
    memcpy(out, text, head);
    if (at) {
        memcpy(out + head, to, n_to);
        memcpy(out + head + n_to, at + n_from, n_text - head - n_from);
    }
    *n = n_text - n_from + n_to;
    return out;
}

enum { CONFIG, PREPROCESS, GENERATION };

static enum mg_status parse_changed(int file, const char *from, const char *to,
                                    struct mg_config *out, struct mg_err *err) {
    static const char *const good[3] = {config_text, preprocess_text, generation_text};
    char *text[3];
    size_t n[3];
    for (int i = 0; i < 3; i++) text[i] = change(good[i], i == file ? from : NULL, to, &n[i]);
    enum mg_status status = mg_config_parse(text[0], n[0], text[1], n[1], text[2], n[2], out, err);
    for (int i = 0; i < 3; i++) free(text[i]);
    return status;
}

static const struct {
    int file;
    const char *from, *to;
    enum mg_status want;
    const char *text; /* part of the error */
} broken[] = {
    /* architecture */
    {CONFIG, "\"model_type\":\"qwen3_vl\",\"arch", "\"model_type\":\"qwen2_5_vl\",\"arch",
     MG_ERR_UNSUPPORTED,
     "config.json: model_type: margay supports \"qwen3_vl\", found \"qwen2_5_vl\""},
    {CONFIG, "\"model_type\":\"qwen3_vl\",\"arch", "\"model_type\":\"qwen3_vl_moe\",\"arch",
     MG_ERR_UNSUPPORTED, "\"qwen3_vl_moe\""},
    {CONFIG, "\"model_type\":\"qwen3_vl\",\"arch", "\"arch", MG_ERR_FORMAT,
     "model_type: wanted \"qwen3_vl\", found nothing"},
    {CONFIG, "\"model_type\":\"qwen3_vl\",\"arch", "\"model_type\":3,\"arch", MG_ERR_FORMAT,
     "found 3"},
    {CONFIG, "Qwen3VLForConditionalGeneration", "Qwen3VLForTokenClassification", MG_ERR_UNSUPPORTED,
     "architectures: margay supports \"Qwen3VLForConditionalGeneration\", found "
     "\"Qwen3VLForTokenClassification\""},
    {CONFIG, "qwen3_vl_text", "qwen3_next", MG_ERR_UNSUPPORTED, "text_config.model_type"},
    {CONFIG, "\"model_type\":\"qwen3_vl\",\"depth\"", "\"model_type\":\"siglip\",\"depth\"",
     MG_ERR_UNSUPPORTED, "vision_config.model_type"},
    {CONFIG, "\"text_config\":{", "\"other\":{", MG_ERR_FORMAT,
     "text_config: wanted an object, found nothing"},
    {CONFIG, "\"vision_config\":{", "\"other\":{", MG_ERR_FORMAT,
     "vision_config: wanted an object, found nothing"},
    {CONFIG, "\"tie_word_embeddings\":true", "\"quantization_config\":{\"quant_method\":\"fp8\"}",
     MG_ERR_UNSUPPORTED,
     "quantization_config: the weights are quantised; wanted the original BF16 checkpoint"},
    {CONFIG, "\"hidden_act\":\"silu\"", "\"quantization_config\":{}", MG_ERR_UNSUPPORTED,
     "text_config.quantization_config"},
    {CONFIG, "\"silu\"", "\"gelu\"", MG_ERR_UNSUPPORTED,
     "text_config.hidden_act: margay supports \"silu\", found \"gelu\""},
    {CONFIG, "gelu_pytorch_tanh", "quick_gelu", MG_ERR_UNSUPPORTED, "vision_config.hidden_act"},
    {CONFIG, "\"attention_bias\":false", "\"attention_bias\":true", MG_ERR_UNSUPPORTED,
     "text_config.attention_bias: margay supports false, found true"},
    /* text shapes */
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":0", MG_ERR_FORMAT,
     "config.json: text_config.hidden_size: wanted an integer from 1 to 65536, found 0"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":65537", MG_ERR_FORMAT, "found 65537"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":-64", MG_ERR_FORMAT, "found -64"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":64.5", MG_ERR_FORMAT,
     "found the real number 64.5"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":\"64\"", MG_ERR_FORMAT, "found \"64\""},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":null", MG_ERR_FORMAT, "found null"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":true", MG_ERR_FORMAT, "found true"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":[64]", MG_ERR_FORMAT, "found a list of 1"},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":99999999999999999999", MG_ERR_FORMAT,
     "a number out of range"},
    {CONFIG, "\"intermediate_size\":128", "\"intermediate_size\":262145", MG_ERR_FORMAT,
     "text_config.intermediate_size"},
    {CONFIG, "\"vocab_size\":1000", "\"vocab_size\":16777217", MG_ERR_FORMAT,
     "text_config.vocab_size"},
    {CONFIG, "\"vocab_size\":1000", "\"vocab_size\":13", MG_ERR_FORMAT, "vision_start_token_id"},
    {CONFIG, "\"num_hidden_layers\":2", "\"num_hidden_layers\":257", MG_ERR_FORMAT,
     "from 1 to 256"},
    {CONFIG, "\"num_attention_heads\":4", "\"num_attention_heads\":0", MG_ERR_FORMAT,
     "text_config.num_attention_heads"},
    {CONFIG, "\"num_key_value_heads\":2", "\"num_key_value_heads\":3", MG_ERR_FORMAT,
     "num_key_value_heads: wanted a divisor of num_attention_heads, found 3"},
    {CONFIG, "\"head_dim\":16", "\"head_dim\":15", MG_ERR_FORMAT,
     "head_dim: wanted an even number, found 15"},
    {CONFIG, "\"head_dim\":16", "\"head_dim\":20", MG_ERR_FORMAT,
     "wanted three counts with the sum 10 (half of head_dim), found [4, 2, 2]"},
    {CONFIG, "\"max_position_embeddings\":4096", "\"max_position_embeddings\":16777217",
     MG_ERR_FORMAT, "max_position"},
    {CONFIG, "1e-06", "-1e-06", MG_ERR_FORMAT,
     "text_config.rms_norm_eps: wanted a number from 0 to 0.1, found the real number -1e-06"},
    /* rotary */
    {CONFIG, "\"rope_theta\":10000,", "", MG_ERR_FORMAT,
     "text_config.rope_theta: wanted a number from 1 to 1e+12, found nothing"},
    {CONFIG, "\"rope_theta\":10000", "\"rope_theta\":0", MG_ERR_FORMAT, "text_config.rope_theta"},
    {CONFIG, "\"rope_theta\":10000", "\"rope_theta\":\"x\"", MG_ERR_FORMAT, "found \"x\""},
    {CONFIG, "[4,2,2]", "[4,2,3]", MG_ERR_FORMAT,
     "text_config.rope_scaling.mrope_section: wanted three counts with the sum 8"},
    {CONFIG, "[4,2,2]", "[4,4]", MG_ERR_FORMAT, "found a list of 2"},
    {CONFIG, "[4,2,2]", "[16,-4,-4]", MG_ERR_FORMAT, "mrope_section"},
    {CONFIG, "[4,2,2]", "[4,2,\"2\"]", MG_ERR_FORMAT, "mrope_section"},
    {CONFIG, "\"rope_type\":\"default\"", "\"rope_type\":\"yarn\"", MG_ERR_UNSUPPORTED,
     "text_config.rope_scaling.rope_type: margay supports \"default\", found \"yarn\""},
    {CONFIG, "\"rope_type\":\"default\"", "\"type\":\"linear\"", MG_ERR_UNSUPPORTED,
     "found \"linear\""},
    {CONFIG, "\"mrope_interleaved\":true", "\"mrope_interleaved\":false", MG_ERR_UNSUPPORTED,
     "mrope_interleaved"},
    {CONFIG, "\"mrope_interleaved\":true", "\"partial_rotary_factor\":0.5", MG_ERR_UNSUPPORTED,
     "partial_rotary_factor"},
    {CONFIG, "\"attention_bias\":false", "\"rope_parameters\":{\"rope_theta\":1}", MG_ERR_FORMAT,
     "the same as in rope_parameters"},
    /* vision */
    {CONFIG, "\"depth\":3", "\"depth\":0", MG_ERR_FORMAT, "vision_config.depth"},
    {CONFIG, "\"depth\":3", "\"depth\":2", MG_ERR_FORMAT,
     "ascending block indices below depth (2), found 2"},
    {CONFIG, "\"num_heads\":2", "\"num_heads\":3", MG_ERR_FORMAT,
     "vision_config.num_heads: wanted a divisor of hidden_size"},
    {CONFIG, "\"num_heads\":2", "\"num_heads\":16", MG_ERR_FORMAT, "a multiple of 4"},
    {CONFIG, "\"in_channels\":3", "\"in_channels\":4", MG_ERR_FORMAT, "from 3 to 3, found 4"},
    {CONFIG, "\"patch_size\":16", "\"patch_size\":65", MG_ERR_FORMAT, "vision_config.patch_size"},
    {CONFIG, "\"patch_size\":16", "\"patch_size\":[16,14]", MG_ERR_FORMAT, "or twice the same"},
    {CONFIG, "\"patch_size\":16", "\"patch_size\":14", MG_ERR_FORMAT,
     "preprocessor_config.json: patch_size: wanted 14 as in config.json's vision_config, found 16"},
    {CONFIG, "\"spatial_merge_size\":2", "\"spatial_merge_size\":9", MG_ERR_FORMAT,
     "spatial_merge_size"},
    {CONFIG, "\"spatial_merge_size\":2", "\"spatial_merge_size\":1", MG_ERR_FORMAT,
     "merge_size: wanted 1"},
    {CONFIG, "\"temporal_patch_size\":2", "\"temporal_patch_size\":9", MG_ERR_FORMAT,
     "vision_config.temporal_patch_size"},
    {CONFIG, "\"out_hidden_size\":64", "\"out_hidden_size\":65", MG_ERR_FORMAT,
     "out_hidden_size: wanted text_config.hidden_size, found 65"},
    {CONFIG, "144", "143", MG_ERR_FORMAT,
     "num_position_embeddings: wanted a square number, found 143"},
    {CONFIG, "[0,2]", "[0,3]", MG_ERR_FORMAT, "found 3"},
    {CONFIG, "[0,2]", "[2,0]", MG_ERR_FORMAT, "ascending"},
    {CONFIG, "[0,2]", "[1,1]", MG_ERR_FORMAT, "ascending"},
    {CONFIG, "[0,2]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", MG_ERR_FORMAT,
     "at most 16 ascending block indices below depth (3), found a list of 17"},
    {CONFIG, "[0,2]", "{}", MG_ERR_FORMAT, "deepstack_visual_indexes"},
    {CONFIG, "\"in_channels\":3", "\"rope_parameters\":{\"rope_theta\":5000}", MG_ERR_UNSUPPORTED,
     "vision_config.rope_parameters.rope_theta"},
    {CONFIG, "\"in_channels\":3", "\"rope_parameters\":{\"rope_type\":\"yarn\"}",
     MG_ERR_UNSUPPORTED, "vision_config.rope_parameters.rope_type"},
    /* tokens */
    {CONFIG, "\"image_token_id\":11", "\"image_token_id\":1000", MG_ERR_FORMAT,
     "image_token_id: wanted an integer from 0 to 999, found 1000"},
    {CONFIG, "\"image_token_id\":11,", "", MG_ERR_FORMAT,
     "image_token_id: wanted an id below text_config.vocab_size"},
    {CONFIG, "\"vision_end_token_id\":14", "\"vision_end_token_id\":13", MG_ERR_FORMAT,
     "vision_end_token_id: wanted an id of its own, found 13"},
    {CONFIG, "\"tie_word_embeddings\":true", "\"tie_word_embeddings\":1", MG_ERR_FORMAT,
     "tie_word_embeddings: wanted true or false, found 1"},
    /* JSON */
    {CONFIG, "\"depth\":3", "\"depth\":3,\"depth\":3", MG_ERR_FORMAT,
     "config.json: line 1, column"},
    {CONFIG, "\"tie_word_embeddings\":true}", "", MG_ERR_FORMAT, "config.json: line 1"},
    {PREPROCESS, "{\"size\"", "[\"size\"", MG_ERR_FORMAT, "preprocessor_config.json: line 1"},
    {GENERATION, "\"top_p\":0.8", "\"top_p\":NaN", MG_ERR_FORMAT, "generation_config.json: line 1"},
    /* preprocessing */
    {PREPROCESS, "65536", "4095", MG_ERR_FORMAT,
     "wanted shortest_edge up to longest_edge, found 4096 and 4095"},
    {PREPROCESS, "\"shortest_edge\":4096", "\"shortest_edge\":0", MG_ERR_FORMAT,
     "size.shortest_edge: wanted an integer from 1"},
    {PREPROCESS, "\"longest_edge\":65536", "\"height\":3", MG_ERR_FORMAT,
     "size.longest_edge: wanted an integer from 1 to 1099511627776, found nothing"},
    {PREPROCESS, "{\"shortest_edge\":4096,\"longest_edge\":65536}", "448", MG_ERR_FORMAT,
     "size: wanted an object, found 448"},
    {PREPROCESS, "\"merge_size\":2", "\"merge_size\":4", MG_ERR_FORMAT, "merge_size: wanted 2"},
    {PREPROCESS, "\"temporal_patch_size\":2", "\"temporal_patch_size\":1", MG_ERR_FORMAT,
     "temporal_patch_size: wanted 2"},
    {PREPROCESS, "[0.5,0.6,0.7]", "[0.5,0,0.7]", MG_ERR_FORMAT,
     "image_std: wanted numbers from 1e-06 to 1000, found 0"},
    {PREPROCESS, "[0.5,0.6,0.7]", "[0.5,0.6]", MG_ERR_FORMAT,
     "image_std: wanted a number for each of 3 channels, found a list of 2"},
    {PREPROCESS, "[0.5,0.6,0.7]", "[1e-200,1,1]", MG_ERR_FORMAT, "image_std"},
    {PREPROCESS, "[0.5,0.4,0.3]", "[0.5,0.4,\"x\"]", MG_ERR_FORMAT,
     "image_mean: wanted numbers from -1000 to 1000, found \"x\""},
    {PREPROCESS, "[0.5,0.4,0.3]", "[0.5,0.4,1e300]", MG_ERR_FORMAT, "image_mean"},
    {PREPROCESS, "\"merge_size\":2", "\"do_resize\":false", MG_ERR_UNSUPPORTED, "do_resize"},
    {PREPROCESS, "\"merge_size\":2", "\"do_normalize\":false", MG_ERR_UNSUPPORTED, "do_normalize"},
    {PREPROCESS, "\"merge_size\":2", "\"resample\":2", MG_ERR_UNSUPPORTED,
     "resample: margay supports 3 (bicubic), found 2"},
    {PREPROCESS, "\"merge_size\":2", "\"rescale_factor\":0.0078", MG_ERR_UNSUPPORTED,
     "rescale_factor"},
    {PREPROCESS, "Qwen2VLImageProcessorFast", "CLIPImageProcessor", MG_ERR_UNSUPPORTED,
     "image_processor_type"},
    /* generation */
    {GENERATION, "0.7", "-0.7", MG_ERR_FORMAT,
     "generation_config.json: temperature: wanted a number from 0 to 100, found the real number "
     "-0.7"},
    {GENERATION, "0.8", "1.5", MG_ERR_FORMAT, "top_p"},
    {GENERATION, "\"top_k\":20", "\"top_k\":-1", MG_ERR_FORMAT, "top_k"},
    {GENERATION, "1.1", "0", MG_ERR_FORMAT, "repetition_penalty"},
    {GENERATION, "[5,6]", "[5,1000]", MG_ERR_FORMAT,
     "eos_token_id: wanted one to 16 ids below vocab_size (1000), found 1000"},
    {GENERATION, "[5,6]", "[]", MG_ERR_FORMAT, "found a list of 0"},
    {GENERATION, "[5,6]", "-1", MG_ERR_FORMAT, "found -1"},
    {GENERATION, "[5,6]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", MG_ERR_FORMAT,
     "found a list of 17"},
    {GENERATION, "[5,6]", "\"</s>\"", MG_ERR_FORMAT, "found \"</s>\""},
    {GENERATION, "\"do_sample\":true", "\"do_sample\":\"yes\"", MG_ERR_FORMAT,
     "do_sample: wanted true or false"},
};

static void broken_files(void **state) {
    struct mg_config c;
    struct mg_err err = {0};
    if (parse_changed(-1, NULL, NULL, &c, &err) != MG_OK) fail_msg("the good text: %s", err.text);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        mg_err_clear(&err);
        enum mg_status status =
            parse_changed(broken[i].file, broken[i].from, broken[i].to, &c, &err);
        if (status != broken[i].want || err.status != status || !strstr(err.text, broken[i].text))
            fail_msg("%s -> %s: status %d, text \"%s\"", broken[i].from, broken[i].to, status,
                     err.text);
    }
}

static void good_variants(void **state) {
    static const struct {
        int file;
        const char *from, *to;
    } row[] = {
        {CONFIG, "\"num_key_value_heads\":2", "\"num_key_value_heads\":null"},
        {CONFIG, "\"patch_size\":16", "\"patch_size\":[16,16]"},
        {CONFIG, "[0,2]", "[]"},
        {CONFIG, "\"hidden_act\":\"silu\",", ""},
        {CONFIG, "\"architectures\":[\"Qwen3VLForConditionalGeneration\"]",
         "\"architectures\":null"},
        {CONFIG, "\"tie_word_embeddings\":true", "\"quantization_config\":null"},
        {CONFIG, "\"attention_bias\":false,", ""},
        {CONFIG, "\"rope_type\":\"default\",", ""},
        {CONFIG, "\"rope_theta\":10000,\"rope_scaling\":{",
         "\"rope_scaling\":{\"rope_theta\":10000,"},
        {CONFIG, "\"rope_theta\":10000,\"rope_scaling\":{",
         "\"rope_theta\":3,\"rope_parameters\":{\"rope_theta\":10000.0,"},
        {PREPROCESS, "\"merge_size\":2",
         "\"do_resize\":true,\"do_rescale\":true,\"do_normalize\":true,\"resample\":3,"
         "\"do_convert_rgb\":null,\"rescale_factor\":0.00392156862745098"},
        {PREPROCESS, "[0.5,0.6,0.7]", "0.5"},
        {GENERATION, "\"temperature\":0.7", "\"temperature\":null"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_config c;
        struct mg_err err = {0};
        if (parse_changed(row[i].file, row[i].from, row[i].to, &c, &err) != MG_OK)
            fail_msg("%s -> %s: %s", row[i].from, row[i].to, err.text);
        assert_true(c.text.rope_theta == 10000);
    }
}

/* Values of absent keys: those of the reference's classes. */
static void defaults(void **state) {
    static const char least[] =
        "{\"model_type\":\"qwen3_vl\",\"text_config\":{\"rope_theta\":5000000},"
        "\"vision_config\":{\"out_hidden_size\":4096}}";
    struct mg_config c;
    struct mg_err err = {0};
    if (mg_config_parse(least, strlen(least), NULL, 0, NULL, 0, &c, &err) != MG_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.text.n_vocab, 151936);
    assert_int_equal(c.text.hidden, 4096);
    assert_int_equal(c.text.ffn, 22016);
    assert_int_equal(c.text.n_layer, 32);
    assert_int_equal(c.text.n_head, 32);
    assert_int_equal(c.text.n_head_kv, 32);
    assert_int_equal(c.text.head_dim, 128);
    assert_int_equal(c.text.max_position, 128000);
    assert_int_equal(c.text.section[0], 24);
    assert_int_equal(c.text.section[2], 20);
    assert_true(c.text.norm_eps == 1e-6f);
    assert_false(c.text.tied);
    assert_int_equal(c.vision.depth, 27);
    assert_int_equal(c.vision.hidden, 1152);
    assert_int_equal(c.vision.ffn, 4304);
    assert_int_equal(c.vision.n_head, 16);
    assert_int_equal(c.vision.n_position, 2304);
    assert_int_equal(c.vision.n_deepstack, 3);
    assert_int_equal(c.vision.deepstack[2], 24);
    assert_int_equal(c.image_token, 151655);
    assert_int_equal(c.video_token, 151656);
    assert_int_equal(c.vision_start, 151652);
    assert_int_equal(c.vision_end, 151653);
    /* No preprocessing file: the published 2B values. */
    assert_int_equal(c.preprocess.min_pixels, 65536);
    assert_int_equal(c.preprocess.max_pixels, 16777216);
    assert_int_equal(c.preprocess.patch, 16);
    assert_true(c.preprocess.mean[2] == 0.5f && c.preprocess.std[0] == 0.5f);
    /* No generation file: greedy, no end token anywhere. */
    assert_false(c.generation.do_sample);
    assert_true(c.generation.temperature == 1 && c.generation.top_p == 1 &&
                c.generation.repetition_penalty == 1);
    assert_int_equal(c.generation.top_k, 0);
    assert_int_equal(c.generation.n_end_token, 0);
    /* Empty files: the classes' defaults. */
    if (mg_config_parse(least, strlen(least), "{}", 2, "{\"do_sample\":true}", 18, &c, &err) !=
        MG_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.preprocess.min_pixels, 3136);
    assert_int_equal(c.preprocess.max_pixels, 1003520);
    assert_true(c.preprocess.mean[0] == 0.48145466f && c.preprocess.std[2] == 0.27577711f);
    assert_int_equal(c.generation.top_k, 50);
}

static void pixel_limits(void **state) {
    static const struct {
        const char *to;
        uint64_t min, max;
    } row[] = {
        {"\"min_pixels\":100,\"max_pixels\":200", 100, 200},
        {"\"size\":{\"min_pixels\":100,\"max_pixels\":200}", 100, 200},
        {"\"size\":{\"shortest_edge\":1,\"longest_edge\":2},\"min_pixels\":100,\"max_pixels\":200",
         100, 200},
        {"\"size\":{\"shortest_edge\":50,\"longest_edge\":60,\"min_pixels\":1,\"max_pixels\":2}",
         50, 60},
        {"\"size\":{\"shortest_edge\":1,\"longest_edge\":300},\"min_pixels\":100", 100, 300},
        {"\"min_pixels\":100", 100, 1003520}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_config c;
        struct mg_err err = {0};
        enum mg_status status =
            parse_changed(PREPROCESS, "\"size\":{\"shortest_edge\":4096,\"longest_edge\":65536}",
                          row[i].to, &c, &err);
        if (status != MG_OK) fail_msg("%s: %s", row[i].to, err.text);
        assert_int_equal(c.preprocess.min_pixels, row[i].min);
        assert_int_equal(c.preprocess.max_pixels, row[i].max);
    }
}

static void end_tokens(void **state) {
    static const struct {
        int file;
        const char *from, *to;
        size_t n;
        int32_t first;
    } row[] = {{GENERATION, "[5,6]", "9", 1, 9},
               {GENERATION, "[5,6]", "[8,8,3,8]", 2, 8},
               {GENERATION, "\"eos_token_id\":[5,6],", "", 1, 7}, /* text_config's */
               {GENERATION, "[5,6]", "null", 1, 7},
               {CONFIG, "\"eos_token_id\":7,", "", 2, 5}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mg_config c;
        struct mg_err err = {0};
        if (parse_changed(row[i].file, row[i].from, row[i].to, &c, &err) != MG_OK)
            fail_msg("%s", err.text);
        assert_int_equal(c.generation.n_end_token, row[i].n);
        assert_int_equal(c.generation.end_token[0], row[i].first);
    }
    struct mg_config c;
    struct mg_err err = {0};
    size_t n;
    char *outer = change(config_text, "\"tie_word_embeddings\":true", "\"eos_token_id\":[2,3]", &n);
    assert_int_equal(mg_config_parse(outer, n, NULL, 0, NULL, 0, &c, &err), MG_OK);
    assert_int_equal(c.generation.n_end_token, 2); /* the outer one goes first */
    free(outer);
}

/* The reference reads only the outer flag; text_config's counts where that is absent. */
static void tied_flag(void **state) {
    static const struct {
        const char *outer, *inner;
        bool want;
    } row[] = {{"true", "false", true},
               {"false", "true", false},
               {NULL, "true", true},
               {NULL, "false", false},
               {"true", NULL, true}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char a[64] = "\"x\":0", b[64] = "\"y\":0";
        if (row[i].outer) snprintf(a, sizeof a, "\"tie_word_embeddings\":%s", row[i].outer);
        if (row[i].inner) snprintf(b, sizeof b, "\"tie_word_embeddings\":%s", row[i].inner);
        size_t n, m;
        char *first = change(config_text, "\"tie_word_embeddings\":true", a, &n);
        first = realloc(first, n + 1);
        first[n] = '\0';
        char *second = change(first, "\"attention_bias\":false", b, &m);
        struct mg_config c;
        struct mg_err err = {0};
        if (mg_config_parse(second, m, NULL, 0, NULL, 0, &c, &err) != MG_OK)
            fail_msg("%s", err.text);
        assert_int_equal(c.text.tied, row[i].want);
        free(first);
        free(second);
    }
}

static void every_truncation_is_an_error(void **state) {
    for (size_t n = 0; n < sizeof config_text - 1; n++) {
        char *exact = malloc(n ? n : 1);
        memcpy(exact, config_text, n);
        struct mg_config c;
        struct mg_err err = {0};
        assert_int_equal(mg_config_parse(exact, n, NULL, 0, NULL, 0, &c, &err), MG_ERR_FORMAT);
        assert_true(err.text[0] != '\0');
        free(exact);
    }
}

static void hostile_json_is_cheap(void **state) {
    static const char *const unit[] = {"[", "{\"a\":", "0,", "\"\",", " "};
    size_t n = 1 << 20;
    char *text = malloc(n);
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        size_t k = strlen(unit[i]), at = 6;
        memcpy(text, "{\"a\":[", at);
        for (; at + k <= n; at += k) memcpy(text + at, unit[i], k);
        memset(text + at, ' ', n - at);
        struct mg_config c;
        double t = cpu_seconds();
        assert_int_not_equal(mg_config_parse(text, n, text, n, text, n, &c, NULL), MG_OK);
        assert_true(cpu_seconds() - t < 0.5);
    }
    free(text);
}

static char dir[64];

static int make_dir(void **state) {
    strcpy(dir, "/tmp/margay-test-config-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void put(const char *name, const char *text, size_t n) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(mg_file_write(path, text, n, NULL), MG_OK);
}

static void open_fails(enum mg_status want, const char *part) {
    struct mg_config c;
    struct mg_err err = {0};
    enum mg_status status = mg_config_open(dir, &c, &err);
    if (status != want || !strstr(err.text, part) || !strstr(err.text, dir))
        fail_msg("wanted \"%s\", status %d, text \"%s\"", part, status, err.text);
}

static void folders(void **state) {
    struct mg_config c;
    struct mg_err err = {0};
    open_fails(MG_ERR_NOT_FOUND, "no config.json in ");
    put("config.json", "", 0);
    open_fails(MG_ERR_FORMAT, "config.json: line 1");
    put("config.json", config_text, strlen(config_text));
    assert_int_equal(mg_config_open(dir, &c, &err), MG_OK);
    assert_int_equal(c.preprocess.max_pixels, 16777216);
    put("preprocessor_config.json", preprocess_text, strlen(preprocess_text));
    assert_int_equal(mg_config_open(dir, &c, &err), MG_OK);
    assert_int_equal(c.preprocess.max_pixels, 65536);
    /* What transformers 5 saves beside or instead of it; only one with an image_processor counts.
     */
    put("processor_config.json", "{\"processor_class\":\"Qwen3VLProcessor\"}", 38);
    assert_int_equal(mg_config_open(dir, &c, &err), MG_OK);
    assert_int_equal(c.preprocess.max_pixels, 65536);
    static const char nested[] =
        "{\"image_processor\":{\"size\":{\"shortest_edge\":77,\"longest_edge\":88}}}";
    put("processor_config.json", nested, strlen(nested));
    assert_int_equal(mg_config_open(dir, &c, &err), MG_OK);
    assert_int_equal(c.preprocess.min_pixels, 77);
    assert_int_equal(c.preprocess.max_pixels, 88);
    put("processor_config.json", "{", 1);
    open_fails(MG_ERR_FORMAT, "processor_config.json: line 1");
    put("processor_config.json", "{\"image_processor\":{\"size\":3}}", 30);
    open_fails(MG_ERR_FORMAT,
               "processor_config.json: image_processor.size: wanted an object, found 3");
    put("processor_config.json", "{}", 2);
    put("generation_config.json", "", 0); /* empty isn't absent */
    open_fails(MG_ERR_FORMAT, "generation_config.json: line 1");
    char *large = malloc(2000000);
    memset(large, ' ', 2000000);
    put("generation_config.json", large, 2000000);
    open_fails(MG_ERR_LIMIT, "generation_config.json has 2000000 bytes, the limit is 1048576");
    free(large);
    assert_int_equal(mg_config_open("/no/such/folder", &c, &err), MG_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "there is no folder /no/such/folder"));
    mg_err_clear(&err);
    assert_int_equal(mg_config_open("meson.build", &c, &err), MG_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "is not a folder"));
}

static void no_raw_bytes_in_errors(void **state) {
    struct mg_config c;
    struct mg_err err = {0};
    parse_changed(CONFIG, "\"silu\"",
                  "\"\\u001b[2J\\u009b0123456789012345678901234567890123456789\xE6\xBC\xA2\"", &c,
                  &err);
    assert_int_equal(err.status, MG_ERR_UNSUPPORTED);
    assert_null(strchr(err.text, 0x1b));
    assert_non_null(strstr(err.text, "?[2J??0123"));
    assert_non_null(strstr(err.text, "...\""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_spelling),
        cmocka_unit_test(newer_spelling),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(good_variants),
        cmocka_unit_test(defaults),
        cmocka_unit_test(pixel_limits),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(tied_flag),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(hostile_json_is_cheap),
        cmocka_unit_test_setup_teardown(folders, make_dir, remove_dir),
        cmocka_unit_test(no_raw_bytes_in_errors),
    };
    return cmocka_run_group_tests_name("weights.config", tests, NULL, NULL);
}
