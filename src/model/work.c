/* model/work.c - see work.h. All in double: shapes are bounded by config.c, products of five of
 * them are not. */
#include "model/work.h"

struct mg_work mg_work_vision(const struct mg_vision_config *c, size_t n_patch) {
    double n = (double)n_patch, hidden = (double)c->hidden, depth = (double)c->depth;
    double unit = (double)(c->merge * c->merge), wide = hidden * unit;
    double dim = (double)(c->in_channels * c->temporal) * (double)(c->patch * c->patch);
    return (struct mg_work){
        .linear = 2 * n * depth * (4 * hidden * hidden + 2 * hidden * (double)c->ffn),
        .attention = 4 * n * n * hidden * depth,
        .merger = 2 * (n / unit) * (double)(1 + c->n_deepstack) * wide * (wide + (double)c->out),
        .patch = 2 * n * dim * hidden,
        .n_exp = n * n * (double)c->n_head * depth,
        .n_gelu = n * (double)c->ffn * depth,
    };
}

/* Elements of one layer's matrices. */
static double layer_elements(const struct mg_text_config *c) {
    double hidden = (double)c->hidden, q = (double)(c->n_head * c->head_dim),
           kv = (double)(c->n_head_kv * c->head_dim);
    return 2 * hidden * q + 2 * hidden * kv + 3 * hidden * (double)c->ffn;
}

struct mg_work mg_work_prefill(const struct mg_text_config *c, size_t n_old, size_t n_new) {
    double n = (double)n_new, pairs = n * (double)n_old + n * (n + 1) / 2;
    double layers = (double)c->n_layer, heads = (double)c->n_head;
    return (struct mg_work){
        .linear = 2 * n * layers * layer_elements(c),
        .attention = 4 * pairs * heads * (double)c->head_dim * layers,
        .head = 2 * (double)c->hidden * (double)c->n_vocab,
        .n_exp = pairs * heads * layers,
        .n_gelu = n * (double)c->ffn * layers,
    };
}

double mg_work_total(const struct mg_work *w) {
    return w->linear + w->attention + w->merger + w->patch + w->head;
}

struct mg_weight_bits mg_work_bits(const struct mg_text_config *c, enum mg_file_weights weights) {
    static const double store[] = {
        [MG_STORE_BF16] = 16, [MG_STORE_INT8] = 8, [MG_STORE_INT4] = 4.25 /* with sub-scales */};
    double hidden = (double)c->hidden, q = (double)(c->n_head * c->head_dim),
           kv = (double)(c->n_head_kv * c->head_dim), ffn = (double)c->ffn, bits = 0;
    const struct {
        enum mg_matrix part;
        double elements;
    } part[] = {{MG_MATRIX_QK, hidden * (q + kv)},
                {MG_MATRIX_V, hidden * kv},
                {MG_MATRIX_O, hidden * q},
                {MG_MATRIX_GATE_UP, 2 * hidden * ffn},
                {MG_MATRIX_DOWN, hidden * ffn}};
    for (size_t l = 0; l < c->n_layer; l++)
        for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
            bits += part[i].elements * store[mg_recipe(weights, part[i].part, l, c->n_layer)];
    return (struct mg_weight_bits){
        .linear = bits / ((double)c->n_layer * layer_elements(c)),
        .head = store[mg_recipe(weights, MG_MATRIX_HEAD, 0, c->n_layer)],
        .per_channel = weights == MG_FILE_BF16 ? 0 : 64, /* f32 scale, i32 sum of the weights */
        .kv = 16,
    };
}

double mg_bytes_per_token(const struct mg_text_config *c, const struct mg_weight_bits *bits,
                          size_t n_kv) {
    double hidden = (double)c->hidden, vocab = (double)c->n_vocab, layers = (double)c->n_layer;
    double q = (double)(c->n_head * c->head_dim), kv = (double)(c->n_head_kv * c->head_dim);
    double channels = layers * (q + 2 * kv + 2 * hidden + 2 * (double)c->ffn) + vocab;
    double all = layers * layer_elements(c) * bits->linear + hidden * vocab * bits->head +
                 channels * bits->per_channel + layers * 2 * kv * (double)n_kv * bits->kv;
    return all / 8;
}
