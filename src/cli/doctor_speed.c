/* cli/doctor_speed.c - how long an answer takes, from what the machine can do at most.
 *
 *     first token = (vision + prefill operations at the measured peak) / reached share
 *     each token  = bytes that a token reads / measured bandwidth / reached share
 *     answer      = first token + (tokens - 1) * each token
 *
 * Operations and bytes come from the shapes (model/work.h), peaks from running instructions and
 * reading memory for about two seconds (kernels/limits.h). What share of them is reached was
 * measured by `margay bench` with random 2B weights at 416 x 416 (docs/speed.md, docs/doctor.md)
 * and stands in the table below. Neighbours, and what a draft guesses right, are left out.
 */
#include "cli/doctor.h"

#include "model/work.h"

#include <math.h>

#define ROUNDS 5
#define TEXT_TOKENS 14 /* of a short question and the template around it */
#define ANSWER_TOKENS 64

struct share {
    double compute, read;
};

static bool is_int(const struct mg_doctor *d) {
    return d->weights == MG_WEIGHTS_INT8 || d->weights == MG_WEIGHTS_INT4;
}

/* Sapphire and Emerald Rapids, Zen 4; AVX2 and AVX-512 without VNNI by MARGAY_CPU on Zen 4. */
static struct share reached(const struct mg_doctor *d) {
    enum mg_tier tier = d->features.tier;
    if (!is_int(d)) return (struct share){0.77, 0.80};
    if (tier == MG_TIER_AMX) return (struct share){0.20, 0.90};
    if (tier == MG_TIER_AVXVNNI || tier >= MG_TIER_VNNI)
        return d->features.intel ? (struct share){0.85, 0.90} : (struct share){0.80, 0.65};
    return (struct share){0.60, 0.45};
}

static bool measure(struct mg_doctor *d) {
    struct mg_progress progress;
    struct mg_pool *pool = NULL;
    struct mg_limits *l = mg_arena_alloc(&d->o->arena, 1, sizeof *l);
    size_t n = mg_limits_buffer_bytes();
    if (d->topology.memory_limit) n = mg_min_size(n, d->topology.memory_limit / 4);
    mg_progress_init(&progress, d->o);
    mg_progress_say(&progress, "measuring memory bandwidth and operations a second");
    bool ok = l && !mg_pool_open(d->n_thread, NULL, &pool, NULL) &&
              !mg_limits_open(l, &d->features, pool, n, NULL, NULL);
    for (int i = 0; i < ROUNDS && ok; i++) mg_limits_round(l);
    for (int i = 0; i < MG_N_LIMIT && ok; i++) d->rate[i] = mg_limits_rate(l, (enum mg_limit)i);
    if (ok) mg_limits_close(l);
    mg_pool_close(pool);
    mg_progress_clear(&progress);
    return ok;
}

/* Attention has no weights and is computed in bf16 beside integers. */
static double seconds(const struct mg_doctor *d, const struct mg_work *w) {
    double other = d->rate[d->weights == MG_WEIGHTS_F32 ? MG_LIMIT_F32 : MG_LIMIT_BF16].median;
    double matrix = other, whole = d->rate[MG_LIMIT_INT8].median;
    if (is_int(d) && whole > 0) matrix = whole;
    return (mg_work_total(w) - w->attention) / matrix + w->attention / other;
}

static void expect(struct mg_doctor *d, size_t width, size_t height, struct mg_expected *e) {
    const struct mg_config *c = &d->config;
    struct share share = reached(d);
    size_t cell = c->vision.patch * c->vision.merge, unit = c->vision.merge * c->vision.merge;
    enum mg_file_weights weights = d->weights == MG_WEIGHTS_INT4   ? MG_FILE_INT4
                                   : d->weights == MG_WEIGHTS_INT8 ? MG_FILE_INT8
                                                                   : MG_FILE_BF16;
    struct mg_weight_bits bits = mg_work_bits(&c->text, weights);
    *e = (struct mg_expected){.width = width, .height = height, .answer_tokens = ANSWER_TOKENS};
    e->image_tokens = (width / cell) * (height / cell);
    e->prompt_tokens = e->image_tokens + TEXT_TOKENS;
    struct mg_work vision = mg_work_vision(&c->vision, e->image_tokens * unit);
    struct mg_work prefill = mg_work_prefill(&c->text, 0, e->prompt_tokens);
    double read = d->rate[MG_LIMIT_READ].median;
    double once = mg_bytes_per_token(&c->text, &bits, 0) / read;
    e->first_seconds =
        seconds(d, &vision) / share.compute + fmax(seconds(d, &prefill) / share.compute, once);
    size_t middle = e->prompt_tokens + ANSWER_TOKENS / 2;
    e->token_seconds = mg_bytes_per_token(&c->text, &bits, middle) / read / share.read;
    e->answer_seconds = e->first_seconds + (ANSWER_TOKENS - 1) * e->token_seconds;
}

void mg_doctor_speed(struct mg_doctor *d) {
    if (*d->root || mg_opt_flag(d->o, MG_OPT_QUICK, false)) return;
    if (!measure(d)) {
        mg_doctor_say(d, MG_LEVEL_WARNING, "bandwidth", "No time of an answer can be told.",
                      "margay doctor --quick leaves it out",
                      "memory bandwidth could not be measured: no memory, or no threads");
        return;
    }
    d->measured = true;
    mg_doctor_say(d, MG_LEVEL_OK, "bandwidth", NULL, NULL,
                  "memory bandwidth: %.1f GB/s with %d thread%s",
                  d->rate[MG_LIMIT_READ].median / 1e9, d->n_thread, d->n_thread == 1 ? "" : "s");
    expect(d, 416, 416, &d->expected[0]);
    expect(d, 1248, 832, &d->expected[1]);
}
