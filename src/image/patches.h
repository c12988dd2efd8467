/* image/patches.h - an upright raster to the vision tower's patches, exactly as the reference's
 * processor.
 *
 *   raster --smart_resize--> size --bicubic, antialias--> RGB8 --(v/255 - mean)/std--> patches
 *
 * Patch order is merge-block order: block row, block column, row in block, column in block. One
 * patch is [channel][temporal][row][column], a still picture repeated for each temporal slot.
 */
#ifndef MG_IMAGE_PATCHES_H
#define MG_IMAGE_PATCHES_H

#include "image/image.h"

/* From preprocessor_config.json (and the vision config); filled in by the caller. */
struct mg_patch_config {
    uint32_t patch, merge, temporal;  /* 16, 2, 2 */
    uint64_t min_pixels, max_pixels;  /* size.shortest_edge, size.longest_edge */
    float mean[3], std[3];
};

/* The target size for height x width; both multiples of patch * merge. MG_ERR_LIMIT, code
 * image_aspect, when the longer side is over 200 times the shorter; MG_ERR_ARGUMENT for a side of
 * 0. Python's rounding. */
enum mg_status mg_smart_resize(uint32_t height, uint32_t width, const struct mg_patch_config *c,
                               uint32_t *out_height, uint32_t *out_width, struct mg_err *err);

/* Bicubic (a = -0.5) with antialias: support scaled when shrinking, fixed-point weights, rounding
 * and clamping of the reference (torchvision uint8 / Pillow), horizontal pass first. dst:
 * [dst_h][dst_w][3], caller's. */
enum mg_status mg_resize_rgb8(const uint8_t *src, uint32_t src_w, uint32_t src_h, uint8_t *dst,
                              uint32_t dst_w, uint32_t dst_h, struct mg_err *err);

struct mg_patches {
    uint32_t grid_h, grid_w; /* patches down and across; the merged grid is grid / merge */
    size_t n;                /* grid_h * grid_w patches */
    size_t n_token;          /* n / merge^2 */
    size_t dim;              /* 3 * temporal * patch * patch values a patch */
    float *value;            /* [n][dim], owned (64-byte aligned), free with mg_patches_free */
    uint8_t *rgb;            /* [grid_h*patch][grid_w*patch][3], the resized picture, owned */
};
/* Resizes and cuts. Out of `image` nothing is kept. */
enum mg_status mg_patches_make(const struct mg_image *image, const struct mg_patch_config *c,
                               struct mg_patches *out, struct mg_err *err);
/* The two halves of it: only the resized picture (value NULL), which is 8 times smaller than the
 * patches and is what a conversation keeps; and the patches of a resized picture
 * [grid_h*patch][grid_w*patch][3] (rgb NULL). */
enum mg_status mg_patches_resize(const struct mg_image *image, const struct mg_patch_config *c,
                                 struct mg_patches *out, struct mg_err *err);
enum mg_status mg_patches_cut(const uint8_t *rgb, uint32_t grid_h, uint32_t grid_w,
                              const struct mg_patch_config *c, struct mg_patches *out,
                              struct mg_err *err);
/* Some of the merge blocks only: `cell` [n_cell] are their places in the grid of cells (merge x
 * merge patches) in raster order; NULL: all. out->n and out->n_token count what was cut. */
enum mg_status mg_patches_cut_cells(const uint8_t *rgb, uint32_t grid_h, uint32_t grid_w,
                                    const uint32_t *cell, size_t n_cell,
                                    const struct mg_patch_config *c, struct mg_patches *out,
                                    struct mg_err *err);
/* The way back: value [grid_h*grid_w][dim], any f32, to rgb [grid_h*patch][grid_w*patch][3],
 * rounded and clamped to 8 bits; of the temporal slots the first. The config was checked by a
 * cut. */
void mg_patches_to_rgb(const float *value, uint32_t grid_h, uint32_t grid_w,
                       const struct mg_patch_config *c, uint8_t *rgb);
void mg_patches_free(struct mg_patches *p);

#endif
