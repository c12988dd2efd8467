/* image/patches.c - target size and patches, as transformers' image processor of Qwen2-VL computes
 * them.
 *
 * A pixel has 256 values and a channel one mean and std, so normalising is a table of 3 x 256
 * floats, each made with the processor's own sequence of f32 operations: (v - mean * 255) / (std *
 * 255).
 *
 *   patch order, merge 2:   0 1 4 5 ...     one patch: [channel 3][temporal][rows][columns]
 *                           2 3 6 7 ...
 */
#include "image/patches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum mg_status mg_smart_resize(uint32_t height, uint32_t width, const struct mg_patch_config *c,
                               uint32_t *out_height, uint32_t *out_width, struct mg_err *err) {
    if (height == 0 || width == 0 || c->patch == 0 || c->merge == 0 || c->patch > 4096 ||
        c->merge > 256)
        return mg_fail(err, MG_ERR_ARGUMENT, "",
                       "a picture of %u x %u pixels, patches of %u, merge %u", width, height,
                       c->patch, c->merge);
    double h = height, w = width, factor = (double)c->patch * c->merge;
    if (fmax(h, w) / fmin(h, w) > 200.0)
        return mg_fail(err, MG_ERR_LIMIT, "image_aspect",
                       "the picture has %u x %u pixels; the longer side may be at most 200 times "
                       "the shorter",
                       width, height);
    /* nearbyint rounds ties to even, as Python's round does. */
    double to_h = nearbyint(h / factor) * factor, to_w = nearbyint(w / factor) * factor;
    if (to_h * to_w > (double)c->max_pixels) {
        double beta = sqrt(h * w / (double)c->max_pixels);
        to_h = fmax(factor, floor(h / beta / factor) * factor);
        to_w = fmax(factor, floor(w / beta / factor) * factor);
    } else if (to_h * to_w < (double)c->min_pixels) {
        double beta = sqrt((double)c->min_pixels / (h * w));
        to_h = ceil(h * beta / factor) * factor;
        to_w = ceil(w * beta / factor) * factor;
    }
    if (!(to_h >= 1.0 && to_w >= 1.0 && to_h <= 1e6 && to_w <= 1e6))
        return mg_fail(err, MG_ERR_ARGUMENT, "", "no size between %llu and %llu pixels for %u x %u",
                       (unsigned long long)c->min_pixels, (unsigned long long)c->max_pixels, width,
                       height);
    *out_height = (uint32_t)to_h;
    *out_width = (uint32_t)to_w;
    return MG_OK;
}

static void make_table(const struct mg_patch_config *c, float table[3][256]) {
    for (int i = 0; i < 3; i++) {
        float mean = c->mean[i] * 255.0f, std = c->std[i] * 255.0f;
        for (int v = 0; v < 256; v++)
            table[i][v] = ((float)v - mean) / std;
    }
}

static void cut_patch(const struct mg_patch_config *c, const float table[3][256],
                      const uint8_t *rgb, size_t stride, float *to) {
    size_t area = (size_t)c->patch * c->patch;
    for (int i = 0; i < 3; i++) {
        float *first = to;
        for (uint32_t y = 0; y < c->patch; y++)
            for (uint32_t x = 0; x < c->patch; x++)
                *to++ = table[i][rgb[y * stride + (size_t)x * 3 + i]];
        for (uint32_t t = 1; t < c->temporal; t++, to += area)
            memcpy(to, first, area * sizeof *to);
    }
}

static void set_grid(struct mg_patches *out, const struct mg_patch_config *c, uint32_t grid_h,
                     uint32_t grid_w) {
    *out = (struct mg_patches){.grid_h = grid_h, .grid_w = grid_w, .n = (size_t)grid_h * grid_w};
    out->n_token = out->n / c->merge / c->merge;
    out->dim = (size_t)3 * c->temporal * c->patch * c->patch;
}

enum mg_status mg_patches_resize(const struct mg_image *image, const struct mg_patch_config *c,
                                 struct mg_patches *out, struct mg_err *err) {
    uint32_t h, w;
    size_t n_pixel;

    *out = (struct mg_patches){0};
    enum mg_status s = mg_smart_resize(image->height, image->width, c, &h, &w, err);
    if (s != MG_OK)
        return s;
    set_grid(out, c, h / c->patch, w / c->patch);
    if (mg_mul_size(h, w, &n_pixel))
        out->rgb = mg_alloc(n_pixel, 3);
    s = out->rgb ? mg_resize_rgb8(image->rgb, image->width, image->height, out->rgb, w, h, err)
                 : mg_fail_memory(err, "resized picture");
    if (s != MG_OK)
        mg_patches_free(out);
    return s;
}

enum mg_status mg_patches_cut_cells(const uint8_t *rgb, uint32_t grid_h, uint32_t grid_w,
                                    const uint32_t *cell, size_t n_cell,
                                    const struct mg_patch_config *c, struct mg_patches *out,
                                    struct mg_err *err) {
    float table[3][256];
    size_t n_value;

    *out = (struct mg_patches){0};
    if (c->temporal == 0 || c->temporal > 64)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "temporal patch size %u", c->temporal);
    if (c->merge == 0 || grid_h % c->merge || grid_w % c->merge)
        return mg_fail(err, MG_ERR_ARGUMENT, "", "a grid of %u x %u patches isn't a multiple of %u",
                       grid_w, grid_h, c->merge);
    set_grid(out, c, grid_h, grid_w);
    size_t n_all = out->n_token, across = grid_w / c->merge;
    if (cell) {
        out->n_token = n_cell;
        out->n = n_cell * c->merge * c->merge;
    }
    for (size_t i = 0; cell && i < n_cell; i++)
        if (cell[i] >= n_all)
            return mg_fail(err, MG_ERR_ARGUMENT, "", "cell %u of a picture of %zu", cell[i], n_all);
    if (mg_mul_size(out->n, out->dim, &n_value))
        out->value = mg_alloc(n_value, sizeof *out->value);
    if (!out->value)
        return mg_fail_memory(err, "patches");
    make_table(c, table);
    float *to = out->value;
    size_t stride = (size_t)grid_w * c->patch * 3;
    for (size_t i = 0; i < out->n_token; i++) {
        size_t at = cell ? cell[i] : i;
        size_t by = at / across * c->merge, bx = at % across * c->merge;
        for (size_t y = by; y < by + c->merge; y++)
            for (size_t x = bx; x < bx + c->merge; x++, to += out->dim)
                cut_patch(c, table, rgb + y * stride * c->patch + x * c->patch * 3, stride, to);
    }
    return MG_OK;
}

enum mg_status mg_patches_cut(const uint8_t *rgb, uint32_t grid_h, uint32_t grid_w,
                              const struct mg_patch_config *c, struct mg_patches *out,
                              struct mg_err *err) {
    return mg_patches_cut_cells(rgb, grid_h, grid_w, NULL, 0, c, out, err);
}

static void patch_to_rgb(const struct mg_patch_config *c, const float *from, uint8_t *rgb,
                         size_t stride) {
    size_t area = (size_t)c->patch * c->patch;
    for (int i = 0; i < 3; i++, from += area * c->temporal)
        for (size_t y = 0; y < c->patch; y++)
            for (size_t x = 0; x < c->patch; x++) {
                float v = (from[y * c->patch + x] * c->std[i] + c->mean[i]) * 255.0f;
                /* a NaN becomes 0 */
                rgb[y * stride + x * 3 + (size_t)i] = (uint8_t)rintf(fminf(fmaxf(v, 0.0f), 255.0f));
            }
}

void mg_patches_to_rgb(const float *value, uint32_t grid_h, uint32_t grid_w,
                       const struct mg_patch_config *c, uint8_t *rgb) {
    size_t stride = (size_t)grid_w * c->patch * 3, block = (size_t)c->merge * c->merge;
    size_t across = grid_w / c->merge, dim = (size_t)3 * c->temporal * c->patch * c->patch;
    for (size_t i = 0; i < (size_t)grid_h * grid_w; i++) {
        size_t y = i / block / across * c->merge + i % block / c->merge;
        size_t x = i / block % across * c->merge + i % c->merge;
        patch_to_rgb(c, value + i * dim, rgb + y * stride * c->patch + x * c->patch * 3, stride);
    }
}

enum mg_status mg_patches_make(const struct mg_image *image, const struct mg_patch_config *c,
                               struct mg_patches *out, struct mg_err *err) {
    struct mg_patches cut;
    enum mg_status s = mg_patches_resize(image, c, out, err);
    if (s != MG_OK)
        return s;
    s = mg_patches_cut(out->rgb, out->grid_h, out->grid_w, c, &cut, err);
    out->value = cut.value;
    if (s != MG_OK)
        mg_patches_free(out);
    return s;
}

void mg_patches_free(struct mg_patches *p) {
    if (!p)
        return;
    free(p->value);
    free(p->rgb);
    *p = (struct mg_patches){0};
}
