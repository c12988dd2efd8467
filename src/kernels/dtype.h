/* kernels/dtype.h - element types of weights and activations, and scalar conversions between them.
 */
#ifndef MG_KERNELS_DTYPE_H
#define MG_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum mg_dtype {
    MG_F32,
    MG_F16,
    MG_BF16,
    MG_F64,
    MG_I64,
    MG_I32,
    MG_I16,
    MG_I8,
    MG_U8,
    MG_BOOL,
    MG_N_DTYPE
};

/* Bytes per element. */
static inline size_t mg_dtype_size(enum mg_dtype t) {
    static const uint8_t size[MG_N_DTYPE] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};
    return size[t];
}

static inline float mg_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest, ties to even; NaN stays a (quiet) NaN. */
static inline uint16_t mg_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float mg_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023, u;
    if (exp == 31) {
        u = sign | 0x7f800000 | man << 13;
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else { /* zero or subnormal: man * 2^-24, exact in f32 */
        float f = (float)man * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Any of F32, F16, BF16 at p[i]. */
static inline float mg_load_f32(enum mg_dtype t, const void *p, size_t i) {
    switch (t) {
    case MG_BF16: return mg_bf16_to_f32(((const uint16_t *)p)[i]);
    case MG_F16: return mg_f16_to_f32(((const uint16_t *)p)[i]);
    default: return ((const float *)p)[i];
    }
}

#endif
