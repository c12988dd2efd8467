/* cli/session.c - see session.h: the model, its options, one answer. Signals, progress and writing:
 * terminal.c. */
#include "cli/session.h"

#include "base/io.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef MARGAY_SOURCE_DIR
#define MARGAY_SOURCE_DIR ""
#endif
#define LOW_DETAIL_TOKENS 169 /* 13 x 13 cells of 32 pixels: 416 x 416, or as many otherwise */
#define AUTO_DETAIL_TOKENS 1024

/* The demo model: beside the build folder, installed, or in the tree that this was compiled from.
 */
static const char *find_demo(struct mg_options *o) {
    static const char *const beside[] = {"../models/demo", "../share/margay/demo"};
    char exe[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    for (size_t i = 0; i < 3; i++) {
        if (i < 2) {
            if (n <= 0) continue;
            exe[n] = 0;
            char copy[PATH_MAX];
            memcpy(copy, exe, (size_t)n + 1);
            snprintf(path, sizeof path, "%s/%s", dirname(copy), beside[i]);
        } else {
            snprintf(path, sizeof path, "%s/models/demo", MARGAY_SOURCE_DIR);
        }
        char config[PATH_MAX + 96], real[PATH_MAX];
        snprintf(config, sizeof config, "%s/config.json", path);
        if (access(config, R_OK) || !realpath(path, real)) continue;
        return mg_arena_strdup(&o->arena, real, strlen(real));
    }
    return NULL;
}

enum mg_status mg_session_folder(struct mg_options *o, const char **folder, bool *demo,
                                 struct mg_err *err) {
    *demo = false;
    *folder = mg_opt_text(o, MG_OPT_MODEL, NULL);
    if (*folder) return MG_OK;
    *demo = true;
    *folder = find_demo(o);
    if (*folder) return MG_OK;
    return mg_fail(
        err, MG_ERR_NOT_FOUND, "no_model",
        "no model: name a checkpoint folder with -m (or MARGAY_MODEL); the demo model is not here");
}

static enum mg_status parse_background(const struct mg_options *o, struct mg_engine_options *e,
                                       struct mg_err *err) {
    const char *text = mg_opt_text(o, MG_OPT_BACKGROUND, NULL);
    if (!text) return MG_OK;
    if (*text == '#') text++;
    if (strlen(text) != 6 || strspn(text, "0123456789abcdefABCDEF") != 6)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--background takes six hexadecimal digits, not '%.20s'", text);
    unsigned long rgb = strtoul(text, NULL, 16);
    for (int i = 0; i < 3; i++) e->background[i] = (uint8_t)(rgb >> (16 - 8 * i) & 0xFF);
    e->background_set = true;
    return MG_OK;
}

/* off, exact or near=N. */
static enum mg_status parse_prune(const struct mg_options *o, struct mg_engine_options *e,
                                  struct mg_err *err) {
    const char *text = mg_opt_text(o, MG_OPT_PRUNE, "off"), *digits = text + strlen("near=");
    bool near = strncmp(text, "near=", strlen("near=")) == 0;
    if (near && *digits && strlen(digits) <= 3 && digits[strspn(digits, "0123456789")] == 0) {
        unsigned long n = strtoul(digits, NULL, 10);
        e->prune = MG_PRUNE_NEAR;
        e->prune_near = (uint8_t)n;
        if (n <= UINT8_MAX) return MG_OK;
    } else if (!near && (!strcmp(text, "off") || !strcmp(text, "exact"))) {
        e->prune = strcmp(text, "off") ? MG_PRUNE_EXACT : MG_PRUNE_OFF;
        return MG_OK;
    }
    return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                   "--prune takes off, exact, or near=N with N from 0 to 255, not '%.20s'", text);
}

static enum mg_weight_mode weight_mode(const struct mg_options *o) {
    static const char *const name[] = {[MG_WEIGHTS_AUTO] = "auto",
                                       [MG_WEIGHTS_F32] = "f32",
                                       [MG_WEIGHTS_BF16] = "bf16",
                                       [MG_WEIGHTS_INT8] = "int8",
                                       [MG_WEIGHTS_INT4] = "int4"};
    for (int i = 0; i <= MG_WEIGHTS_INT4; i++)
        if (mg_opt_is(o, MG_OPT_WEIGHTS, name[i])) return (enum mg_weight_mode)i;
    return MG_WEIGHTS_AUTO;
}

static enum mg_status engine_options(const struct mg_options *o, struct mg_engine_options *e,
                                     struct mg_err *err) {
    *e = (struct mg_engine_options){
        .weights = weight_mode(o),
        .cache_dir = mg_opt_text(o, MG_OPT_CACHE_DIR, NULL),
        .cpu_range = mg_opt_text(o, MG_OPT_CPU_RANGE, NULL),
        .pin = mg_opt_is(o, MG_OPT_PIN, "on")    ? MG_PIN_ON
               : mg_opt_is(o, MG_OPT_PIN, "off") ? MG_PIN_OFF
                                                 : MG_PIN_AUTO,
        .n_thread = (int)mg_opt_int(o, MG_OPT_THREADS, 0),
        .context = (size_t)mg_opt_int(o, MG_OPT_CTX_SIZE, 0),
        .prefill_chunk = (size_t)mg_opt_int(o, MG_OPT_PREFILL_CHUNK, 0),
        .image_min_tokens = (size_t)mg_opt_int(o, MG_OPT_IMAGE_MIN_TOKENS, 0),
        .image_max_tokens = (size_t)mg_opt_int(o, MG_OPT_IMAGE_MAX_TOKENS, 0),
        .max_image_bytes = (size_t)mg_opt_int(o, MG_OPT_MAX_IMAGE_BYTES, 0),
        .max_image_pixels = (uint64_t)mg_opt_int(o, MG_OPT_MAX_IMAGE_PIXELS, 0),
        .max_image_side = (uint32_t)mg_opt_int(o, MG_OPT_MAX_IMAGE_SIDE, 0),
        .max_images = (size_t)mg_opt_int(o, MG_OPT_MAX_IMAGES, 0),
    };
    if (e->n_thread < 0) e->n_thread = 0;
    const char *detail =
        mg_opt_text(o, MG_OPT_DETAIL, mg_opt_is(o, MG_OPT_PRESET, "fast") ? "low" : "auto");
    if (!e->image_max_tokens) {
        if (!strcmp(detail, "low")) e->image_max_tokens = LOW_DETAIL_TOKENS;
        e->model_image_limits = !strcmp(detail, "high");
    }
    if (!e->image_max_tokens && !e->model_image_limits && e->image_min_tokens > AUTO_DETAIL_TOKENS)
        e->image_max_tokens = e->image_min_tokens;
    if (e->image_max_tokens && e->image_min_tokens > e->image_max_tokens)
        return mg_fail(err, MG_ERR_ARGUMENT, "usage",
                       "--image-min-tokens (%zu) is more than the most tokens a picture (%zu)",
                       e->image_min_tokens, e->image_max_tokens);
    enum mg_status st = parse_prune(o, e, err);
    return st ? st : parse_background(o, e, err);
}

static void say_demo(void) {
    fputs("margay: no model named, so this is the small demo model (5 million parameters). It "
          "reads a line of\n"
          "margay: printed text, names colours and shapes, counts to six, and finds the total of a "
          "small\n"
          "margay: receipt; it knows nothing else, and a photo gets nonsense. For the real one:\n"
          "margay:   margay pull Qwen/Qwen3-VL-2B-Instruct\n"
          "margay:   margay ask -m Qwen3-VL-2B-Instruct photo.jpg \"What is on the table?\"\n",
          stderr);
}

struct loading {
    struct mg_progress *progress;
    double begin;
};

static bool on_load(void *user, uint64_t done, uint64_t total) {
    struct loading *l = user;
    mg_progress_convert(l->progress, l->begin, done, total);
    return true;
}

enum mg_status mg_session_open(struct mg_options *o, mg_engine **out, struct mg_err *err) {
    *out = NULL;
    struct mg_engine_options e;
    const char *folder;
    bool demo;
    enum mg_status st = engine_options(o, &e, err);
    if (!st) st = mg_session_folder(o, &folder, &demo, err);
    if (st) return st;
    bool verbose = mg_opt_flag(o, MG_OPT_VERBOSE, false);
    if (verbose) mg_log_set_level(MG_LOG_INFO);
    mg_interrupt_arm();
    if (demo) say_demo();
    struct mg_progress p;
    mg_progress_init(&p, o);
    double begin = mg_clock();
    mg_progress_say(&p, "loading %s", folder);
    struct loading loading = {&p, begin};
    e.load = on_load;
    e.load_user = &loading;
    st = mg_engine_open(folder, &e, out, err);
    mg_progress_clear(&p);
    if (st == MG_ERR_ARGUMENT && !strcmp(err->code, "cpu_range")) {
        struct mg_err why = *err;
        mg_err_clear(err);
        st = mg_fail(err, MG_ERR_ARGUMENT, "usage", "--cpu-range: %s", why.text);
    }
    if (!st && verbose) {
        struct mg_engine_info info;
        mg_engine_info(*out, &info);
        mg_log(MG_LOG_INFO,
               "%s kernels (%s), %d threads, weights %s, %.1f M parameters, context %zu, %.0f ms",
               info.tier,
               info.tier_reason && *info.tier_reason ? info.tier_reason : "the best there is",
               info.n_thread, info.weights, (double)info.n_parameters / 1e6, info.context,
               (mg_clock() - begin) * 1e3);
    }
    return st;
}

void mg_session_answer_options(const struct mg_options *o, const mg_engine *engine,
                               struct mg_answer_options *a) {
    bool fast = mg_opt_is(o, MG_OPT_PRESET, "fast");
    mg_answer_options_init(a);
    if (mg_opt_flag(o, MG_OPT_MODEL_SAMPLING, false)) {
        size_t most = a->max_tokens;
        mg_answer_options_model(engine, a);
        a->max_tokens = most;
    }
    int64_t most = mg_opt_int(o, MG_OPT_MAX_TOKENS, fast ? 128 : (int64_t)a->max_tokens);
    if (most < 0) {
        struct mg_engine_info info;
        mg_engine_info(engine, &info);
        most = (int64_t)info.context;
    }
    a->max_tokens = (size_t)most;
    a->temperature = (float)mg_opt_float(o, MG_OPT_TEMP, a->temperature);
    a->top_k = (int)mg_opt_int(o, MG_OPT_TOP_K, a->top_k);
    a->top_p = (float)mg_opt_float(o, MG_OPT_TOP_P, a->top_p);
    a->min_p = (float)mg_opt_float(o, MG_OPT_MIN_P, a->min_p);
    a->repetition_penalty = (float)mg_opt_float(o, MG_OPT_REPEAT_PENALTY, a->repetition_penalty);
    a->presence_penalty = (float)mg_opt_float(o, MG_OPT_PRESENCE_PENALTY, a->presence_penalty);
    a->frequency_penalty = (float)mg_opt_float(o, MG_OPT_FREQUENCY_PENALTY, a->frequency_penalty);
    int64_t seed = mg_opt_int(o, MG_OPT_SEED, 0);
    struct timespec now;
    if (seed < 0 && !clock_gettime(CLOCK_REALTIME, &now))
        seed = (int64_t)((uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec);
    a->seed = (uint64_t)seed;
    a->stop = o->value[MG_OPT_STOP].list;
    a->n_stop = o->value[MG_OPT_STOP].n_list;
    a->draft = (int)mg_opt_int(o, MG_OPT_DRAFT, 0);
    a->ignore_end = mg_opt_flag(o, MG_OPT_IGNORE_EOS, false);
    a->no_loop_check = !mg_opt_flag(o, MG_OPT_LOOP_CHECK, true);
}

static bool on_event(void *user, const struct mg_event *event) {
    struct mg_run *run = user;
    if (event->kind == MG_EVENT_STAGE) {
        if (event->stage != MG_STAGE_DECODE || !run->stream)
            mg_progress_event(run->progress, event);
        return true;
    }
    if (!run->stream) mg_progress_event(run->progress, event);
    if (!run->stream || !event->n_text) return true;
    mg_progress_clear(run->progress);
    run->write_status = mg_write(STDOUT_FILENO, event->text, event->n_text, run->err);
    run->any = true;
    run->last = event->text[event->n_text - 1];
    return run->write_status == MG_OK;
}

enum mg_status mg_session_answer(mg_chat *chat, const struct mg_answer_options *options,
                                 struct mg_run *run, struct mg_answer *out, struct mg_err *err) {
    *out = (struct mg_answer){0};
    struct mg_err own = {0};
    run->err = err;
    run->progress->stage = -1;
    mg_interrupt_begin(chat);
    enum mg_status st = mg_chat_answer(chat, options, on_event, run, out, &own);
    bool interrupted = mg_interrupt_end();
    mg_progress_clear(run->progress);
    if (run->write_status) return run->write_status;
    if (interrupted && (!st || st == MG_ERR_CANCELLED))
        return mg_fail(err, MG_ERR_CANCELLED, "interrupted", "interrupted");
    if (st && err) *err = own;
    return st;
}

enum mg_status mg_session_open_chat(const struct mg_options *o, mg_engine *engine, mg_chat **out,
                                    struct mg_err *err) {
    enum mg_status st = mg_chat_open(engine, out, err);
    const char *system = mg_opt_text(o, MG_OPT_SYSTEM_PROMPT, NULL);
    if (!st && system) st = mg_chat_add_text(*out, MG_SYSTEM, system, err);
    return st;
}

enum mg_status mg_session_split_paths(struct mg_options *o, const char *paths, mg_path_fn *fn,
                                      void *user, struct mg_err *err) {
    if (!strchr(paths, ',') || !access(paths, F_OK)) return fn(user, paths, err);
    char *copy = mg_arena_strdup(&o->arena, paths, strlen(paths));
    if (!copy) return mg_fail_memory(err, "options");
    enum mg_status st = MG_OK;
    for (char *at = copy, *comma; at && !st; at = comma) {
        comma = strchr(at, ',');
        if (comma) *comma++ = 0;
        if (*at) st = fn(user, at, err);
    }
    return st;
}
