/* weights/packed_file.c - see packed_file.h. */
#include "weights/packed_file.h"

#include "base/sha256.h"
#include "weights/convert.h"
#include "weights/json.h"

#include <stdio.h>
#include <string.h>

#define MAX_MANIFEST 65536

static enum mg_status damaged(struct mg_err *err, const char *what) {
    return mg_fail(err, MG_ERR_FORMAT, "packed_damaged",
                   "the packed file is damaged: %s. Remove it and convert again", what);
}

static bool copy_digest(const json_t *root, const char *key, char out[65]) {
    const char *text = json_string_value(json_object_get(root, key));
    uint8_t bytes[MG_SHA256_BYTES];
    if (!text || !mg_hex_parse(text, bytes, sizeof bytes)) return false;
    mg_hex(bytes, sizeof bytes, out);
    return true;
}

static bool find_weights(const char *name, enum mg_file_weights *out) {
    for (int i = 0; name && i < MG_N_FILE_WEIGHTS; i++)
        if (!strcmp(name, mg_file_weights_name((enum mg_file_weights)i))) {
            *out = (enum mg_file_weights)i;
            return true;
        }
    return false;
}

/* The bytes from the manifest's end to the end of the file, split as the manifest says. */
static enum mg_status check_regions(const struct mg_weights *w, const struct mg_tensor *t,
                                    const json_t *root, struct mg_manifest *out,
                                    struct mg_err *err) {
    char want[65], found[65];
    uint8_t digest[MG_SHA256_BYTES];
    struct mg_slice rest = mg_weights_after(w, t);
    json_int_t small = json_integer_value(json_object_get(root, "small_bytes"));
    json_int_t matrices = json_integer_value(json_object_get(root, "matrices_bytes"));
    if (small < 0 || matrices < 0 || (uint64_t)small > rest.n ||
        (uint64_t)matrices != rest.n - (uint64_t)small)
        return damaged(err, "its length is not the one it says");
    if (!copy_digest(root, "small_sha256", want) ||
        !copy_digest(root, "matrices_sha256", out->matrices_sha256) ||
        !copy_digest(root, "source_id", out->source_id))
        return damaged(err, "margay.json lacks a digest");
    if (!mg_sha256(rest.data, (size_t)small, digest)) return mg_fail_memory(err, "digest");
    mg_hex(digest, sizeof digest, found);
    if (strcmp(want, found) != 0) return damaged(err, "the digest of its small tensors differs");
    memcpy(out->small_sha256, want, sizeof out->small_sha256);
    struct mg_slice head = mg_weights_before(w, t);
    if (!copy_digest(root, "head_sha256", want)) return damaged(err, "margay.json lacks a digest");
    if (!mg_sha256(head.data, head.n, digest)) return mg_fail_memory(err, "digest");
    mg_hex(digest, sizeof digest, found);
    if (strcmp(want, found) != 0) return damaged(err, "the digest of its header differs");
    out->matrices = rest.data + small;
    out->matrices_bytes = (size_t)matrices;
    return MG_OK;
}

enum mg_status mg_manifest_read(const struct mg_weights *w, bool *packed, struct mg_manifest *out,
                                struct mg_err *err) {
    const struct mg_tensor *t = mg_weights_find(w, "margay.json");
    *out = (struct mg_manifest){0};
    *packed = t != NULL;
    if (!t) return MG_OK;
    if (t->dtype != MG_U8 || t->n > MAX_MANIFEST) return damaged(err, "margay.json is no text");
    json_t *root = NULL;
    enum mg_status status = mg_json_parse("margay.json", t->data, t->n, 4, 100, &root, err);
    if (status != MG_OK) return status;
    json_int_t format = json_integer_value(json_object_get(root, "format"));
    if (format != MG_PACKED_FORMAT)
        status = mg_fail(err, MG_ERR_UNSUPPORTED, "packed_format",
                         "the packed file has format %lld, this margay reads %d: convert again",
                         (long long)format, MG_PACKED_FORMAT);
    else if (!find_weights(json_string_value(json_object_get(root, "weights")), &out->weights))
        status = damaged(err, "margay.json names no precision");
    else
        status = check_regions(w, t, root, out, err);
    json_decref(root);
    return status;
}

enum mg_status mg_manifest_verify(const struct mg_manifest *m, struct mg_err *err) {
    uint8_t digest[MG_SHA256_BYTES];
    char found[MG_SHA256_HEX];
    if (!mg_sha256(m->matrices, m->matrices_bytes, digest)) return mg_fail_memory(err, "digest");
    mg_hex(digest, sizeof digest, found);
    return strcmp(found, m->matrices_sha256) == 0
               ? MG_OK
               : damaged(err, "the digest of its matrices differs");
}

struct mg_slice mg_packed_file_text(const struct mg_weights *w, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "margay.file.%s", name);
    const struct mg_tensor *t = mg_weights_find(w, full);
    if (!t || t->dtype != MG_U8) return (struct mg_slice){0};
    return (struct mg_slice){t->data, t->n};
}

enum mg_status mg_packed_file_config(const struct mg_weights *w, struct mg_config *out,
                                     struct mg_err *err) {
    struct mg_slice c = mg_packed_file_text(w, "config.json");
    struct mg_slice p = mg_packed_file_text(w, "preprocess");
    struct mg_slice g = mg_packed_file_text(w, "generation_config.json");
    return mg_config_parse((const char *)c.data, c.n, (const char *)p.data, p.n,
                           (const char *)g.data, g.n, out, err);
}

static const struct mg_tensor *find_part(const struct mg_weights *w, const char *name,
                                         const char *suffix) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return mg_weights_find(w, full);
}

/* The stored sums of a panel are those of its weights, and INT4's fit a byte, which kernels rely
 * on. */
static bool check_panel(const struct mg_packed *p, size_t panel) {
    const uint8_t *at = (const uint8_t *)p->data + panel * mg_packed_panel_bytes(p->kind, p->k);
    size_t k = mg_packed_blocks(p->k) * MG_PACK_K;
    int32_t sum[MG_PANEL] = {0};
    if (p->kind == MG_PACK_INT8) { /* in the order of the bytes: block, tile, line, output, k */
        for (size_t line = 0; line < k / 2; line++, at += 64)
            for (size_t c = 0; c < MG_TILE; c++)
                for (size_t i = 0; i < 4; i++)
                    sum[line / 16 % 2 * MG_TILE + c] += (int8_t)at[4 * c + i];
    } else {
        for (size_t i = 0; i < k; i++) { /* a block of 64 inputs has 64 sub-scales */
            int sub = (int8_t)at[i / MG_PACK_K * 1088 + i % MG_PACK_K];
            if (sub < -15 || sub > 15) return false;
        }
        for (size_t c = 0; c < MG_PANEL; c++)
            for (size_t j = 0; j < k; j++) sum[c] += mg_packed_int4(at, c, j);
    }
    return memcmp(sum, p->sum + panel * MG_PANEL, sizeof sum) == 0;
}

enum mg_status mg_packed_find(const struct mg_weights *w, const char *name, bool interleaved,
                              size_t n, size_t k, bool *found, struct mg_packed *out,
                              struct mg_err *err) {
    const struct mg_tensor *data = find_part(w, name, ".packed");
    *found = data != NULL;
    if (!data) return MG_OK;
    if (k > MG_PACK_MAX_K)
        return mg_fail(err, MG_ERR_UNSUPPORTED, "packed_wide",
                       "tensor %s.packed has %zu inputs; at most %d", name, k, MG_PACK_MAX_K);
    const struct mg_tensor *scale = find_part(w, name, ".scale"), *sum = find_part(w, name, ".sum");
    *out = (struct mg_packed){.interleaved = interleaved, .n = n, .k = k, .data = data->data};
    size_t panels = mg_packed_panels(out), blocks = mg_packed_blocks(k);
    size_t block = data->n_dim == 3 ? data->dim[2] : 0;
    out->kind =
        block == mg_packed_panel_bytes(MG_PACK_INT4, MG_PACK_K) ? MG_PACK_INT4 : MG_PACK_INT8;
    if (data->dtype != MG_U8 || data->n_dim != 3 || data->dim[0] != panels ||
        data->dim[1] != blocks || block != mg_packed_panel_bytes(out->kind, MG_PACK_K))
        return mg_fail(err, MG_ERR_FORMAT, "tensor_shape",
                       "tensor %s.packed: wanted U8 [%zu, %zu, 2048 or 1088] for %zu x %zu", name,
                       panels, blocks, n, k);
    if (!scale || scale->dtype != MG_F32 || scale->n != panels * MG_PANEL || !sum ||
        sum->dtype != MG_I32 || sum->n != panels * MG_PANEL)
        return mg_fail(err, MG_ERR_FORMAT, "tensor_shape",
                       "%s.scale and %s.sum: wanted F32 and I32 [%zu]", name, name,
                       panels * MG_PANEL);
    if ((uintptr_t)data->data % MG_PACK_ALIGN)
        return mg_fail(err, MG_ERR_FORMAT, "tensor_unaligned", "tensor %s.packed is not aligned",
                       name);
    out->scale = scale->data;
    out->sum = sum->data;
    if (panels && !(check_panel(out, 0) && check_panel(out, panels - 1))) return damaged(err, name);
    return MG_OK;
}
