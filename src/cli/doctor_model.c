/* cli/doctor_model.c - the model: can it be read, is it converted, is there room for that; and how
 * many bytes it takes.
 *
 * Memory of one question: the weights, 256 MiB of buffers (220 were measured with a picture of
 * 1,014 tokens, docs/speed.md), and keys and values in bf16 of 2,048 tokens, or as many as
 * --ctx-size has.
 */
#include "cli/doctor.h"

#include "cli/bench.h"
#include "engine/packed_place.h"
#include "model/work.h"
#include "weights/convert.h"
#include "weights/packed_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define GB 1e9
#define BUFFERS ((double)(256 << 20))
#define TOKENS 2048

static bool is_packed(enum mg_weight_mode w) {
    return w == MG_WEIGHTS_INT8 || w == MG_WEIGHTS_INT4;
}

static enum mg_file_weights file_weights(enum mg_weight_mode w) {
    return w == MG_WEIGHTS_INT4 ? MG_FILE_INT4 : w == MG_WEIGHTS_INT8 ? MG_FILE_INT8 : MG_FILE_BF16;
}

static enum mg_weight_mode wanted(const struct mg_doctor *d, enum mg_weight_mode automatic) {
    static const char *const name[] = {[MG_WEIGHTS_F32] = "f32",
                                       [MG_WEIGHTS_BF16] = "bf16",
                                       [MG_WEIGHTS_INT8] = "int8",
                                       [MG_WEIGHTS_INT4] = "int4"};
    for (int i = MG_WEIGHTS_F32; i <= MG_WEIGHTS_INT4; i++)
        if (mg_opt_is(d->o, MG_OPT_WEIGHTS, name[i])) return (enum mg_weight_mode)i;
    return automatic;
}

/* Bytes of all tensors by the shapes: what a token reads, the vision tower, and an embedding that
 * is not the head. */
static double bytes_by_shape(const struct mg_config *c, enum mg_file_weights weights) {
    const struct mg_vision_config *v = &c->vision;
    struct mg_weight_bits bits = mg_work_bits(&c->text, weights);
    size_t unit = v->merge * v->merge;
    struct mg_work w = mg_work_vision(v, unit); /* of one merged cell */
    double elements = (w.linear + w.patch) / (2 * (double)unit) + w.merger / 2;
    double wide = weights == MG_FILE_BF16 ? 2 : 1;
    double embed = c->text.tied ? 0 : (double)c->text.n_vocab * (double)c->text.hidden * wide;
    return mg_bytes_per_token(&c->text, &bits, 0) + elements * wide +
           2 * (double)(v->n_position * v->hidden) + embed;
}

static void set_need(struct mg_doctor *d) {
    const struct mg_text_config *t = &d->config.text;
    double tokens = (double)mg_opt_int(d->o, MG_OPT_CTX_SIZE, 0);
    if (tokens < 1) tokens = TOKENS;
    double kv = 2.0 * (double)t->n_layer * (double)(t->n_head_kv * t->head_dim) * 2 * tokens;
    d->need_bytes = d->weight_bytes + BUFFERS + kv;
}

/* What is used where no model can be read: the published 2B one. */
static void take_shape(struct mg_doctor *d) {
    static const char *const name[] = {[MG_WEIGHTS_F32] = "f32",
                                       [MG_WEIGHTS_BF16] = "bf16",
                                       [MG_WEIGHTS_INT8] = "int8",
                                       [MG_WEIGHTS_INT4] = "int4"};
    d->weights = wanted(d, MG_WEIGHTS_INT8);
    if (mg_bench_shape_2b(&d->config, NULL)) d->failed = true;
    d->weight_bytes = bytes_by_shape(&d->config, file_weights(d->weights));
    d->model = mg_doctor_text(d, "qwen3-vl-2b at %s", name[d->weights]);
    set_need(d);
}

/* --- a packed file */
static void judge_packed(struct mg_doctor *d, const char *path, const struct mg_weights *w,
                         const struct mg_manifest *m, const char *again) {
    struct mg_err err = {0};
    bool verify = mg_opt_flag(d->o, MG_OPT_VERIFY, false);
    if (verify && mg_manifest_verify(m, &err))
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "model", "Answers would be wrong without an error.",
                      again, "%s: %s", path, err.text);
    else
        mg_doctor_say(d, MG_LEVEL_OK, "model", NULL, NULL, "model: %s, %s weights, %.2f GB%s", path,
                      mg_file_weights_name(m->weights), (double)mg_weights_bytes(w) / GB,
                      verify ? ", checksum as written" : "");
}

/* --- a folder */
static void check_room(struct mg_doctor *d, const char *folder,
                       const struct mg_packed_place *place) {
    struct statvfs s;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", place->dir);
    const char *mend = mg_doctor_text(d,
                                      "margay convert %s -o FILE where there is room, or "
                                      "--cache-dir FOLDER",
                                      folder);
    /* The nearest folder that is there: the others would be made. */
    while (access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            snprintf(path, sizeof path, "%s", slash ? "/" : ".");
            break;
        }
        *slash = '\0';
    }
    double want = bytes_by_shape(&d->config, file_weights(d->weights));
    if (access(path, W_OK | X_OK) != 0)
        mg_doctor_say(d, MG_LEVEL_WARNING, "cache",
                      "Where the cache folder can't be written, the weights are converted in "
                      "memory at every start.",
                      mend, "the cache folder %s can't be written", place->dir);
    else if (statvfs(path, &s) == 0 && (double)s.f_bavail * (double)s.f_frsize < want)
        mg_doctor_say(d, MG_LEVEL_WARNING, "cache",
                      "Where the disk is full, the weights are converted in memory at every start.",
                      mend,
                      "the cache folder %s has %.2f GB of room, the converted weights take "
                      "%.2f",
                      place->dir, (double)s.f_bavail * (double)s.f_frsize / GB, want / GB);
}

static void judge_folder(struct mg_doctor *d, const char *folder) {
    struct mg_packed_place *place = mg_arena_alloc(&d->o->arena, 1, sizeof *place);
    struct mg_weights *w = NULL;
    struct mg_manifest m;
    struct mg_err err = {0};
    char id[MG_SOURCE_ID];
    bool packed = false;
    if (!place) {
        d->failed = true;
        return;
    }
    enum mg_file_weights kind = file_weights(d->weights);
    const char *make = mg_doctor_text(d, "margay convert %s --weights %s -o FILE, and -m FILE",
                                      folder, mg_file_weights_name(kind));
    const char *cache = mg_opt_text(d->o, MG_OPT_CACHE_DIR, NULL);
    enum mg_status st = mg_packed_place_find(cache, folder, kind, place, &err);
    if (st) {
        mg_doctor_say(d, MG_LEVEL_WARNING, "cache",
                      "Without a cache folder the weights are converted in memory at every start.",
                      make, "%s", err.text);
        return;
    }
    const char *state = "is not converted yet";
    if (access(place->path, F_OK) == 0) {
        st = mg_weights_open(place->path, &w, &err);
        if (!st) st = mg_manifest_read(w, &packed, &m, &err);
        if (!st) st = mg_source_id(folder, kind, id, &err);
        if (!st && packed && !strcmp(id, m.source_id)) {
            d->weight_bytes = (double)mg_weights_bytes(w);
            judge_packed(d, place->path, w, &m, mg_doctor_text(d, "rm %s", place->path));
            mg_weights_close(w);
            return;
        }
        state =
            st ? "has a converted file that can't be used" : "has changed since it was converted";
        mg_weights_close(w);
    }
    mg_doctor_say(d, MG_LEVEL_NOTE, "model",
                  "The first start converts it, which takes half a minute for 2B.", make,
                  "model: %s %s (%s)", folder, state, mg_file_weights_name(kind));
    check_room(d, folder, place);
}

static enum mg_status open_model(struct mg_doctor *d, const char *path, struct mg_err *err) {
    struct stat is;
    struct mg_weights *w = NULL;
    struct mg_manifest m;
    bool packed = false;
    enum mg_status st = mg_weights_open(path, &w, err);
    if (!st) st = mg_manifest_read(w, &packed, &m, err);
    bool file = stat(path, &is) == 0 && S_ISREG(is.st_mode);
    if (!st && file && !packed)
        st = mg_fail(err, MG_ERR_FORMAT, "not_packed",
                     "%s is a file that convert did not make; name its folder", path);
    if (!st)
        st = packed ? mg_packed_file_config(w, &d->config, err)
                    : mg_config_open(path, &d->config, err);
    if (!st) {
        static const enum mg_weight_mode own[] = {[MG_FILE_BF16] = MG_WEIGHTS_BF16,
                                                  [MG_FILE_INT8] = MG_WEIGHTS_INT8,
                                                  [MG_FILE_INT4] = MG_WEIGHTS_INT4};
        d->weights = packed ? own[m.weights] : wanted(d, MG_WEIGHTS_INT8);
        d->model = path;
        d->weight_bytes = packed || !is_packed(d->weights)
                              ? (double)mg_weights_bytes(w)
                              : bytes_by_shape(&d->config, file_weights(d->weights));
    }
    if (!st && packed)
        judge_packed(d, path, w, &m, mg_doctor_text(d, "margay convert FOLDER -o %s", path));
    mg_weights_close(w);
    if (!st && !packed && is_packed(d->weights)) judge_folder(d, path);
    if (!st && !packed && !is_packed(d->weights))
        mg_doctor_say(d, MG_LEVEL_OK, "model", NULL, NULL, "model: %s, used as it is, %.2f GB",
                      path, d->weight_bytes / GB);
    return st;
}

void mg_doctor_model(struct mg_doctor *d) {
    const char *path = mg_opt_text(d->o, MG_OPT_MODEL, NULL);
    struct mg_err err = {0};
    if (path && open_model(d, path, &err))
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "model", "Nothing can be asked without it.",
                      "margay pull Qwen/Qwen3-VL-2B-Instruct, or -m with the right folder",
                      "model: %s", err.text);
    if (!path || err.status)
        take_shape(d);
    else
        set_need(d);
    if (!path)
        mg_doctor_say(d, MG_LEVEL_OK, "model", NULL, NULL,
                      "model: none named (-m); judged for %s, %.2f GB of weights", d->model,
                      d->weight_bytes / GB);
}
