/* kernels/x86/limits_amx.c - AMX: tiles of 16 x 64 bytes, int8 and bf16.
 *
 *     tmm0 .. tmm5   sums, 16 x 16 of 32 bits
 *     tmm6           16 rows of 64 bytes of the left operand
 *     tmm7           16 rows of 64 bytes of the right one
 *
 * Six independent sums: an instruction takes 16 cycles and its result 52. The configuration belongs
 * to the thread; it is loaded before and released behind each run, since a thread that keeps tiles
 * makes every switch of tasks dearer. The caller has the system's permission (cpu/features.h).
 */
#include "kernels/x86/limits.h"

#include <immintrin.h>
#include <string.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static const _Alignas(64) struct tile_config eight_full = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* Sums zero, both operands filled with the 16-bit pattern. */
static void load_tiles(uint16_t pattern) {
    _Alignas(64) uint16_t value[512];
    for (int i = 0; i < 512; i++) value[i] = pattern;
    __asm__ volatile("" ::"r"(value) : "memory"); /* gcc 12's tile loads name no memory */
    _tile_loadconfig(&eight_full);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_loadd(6, value, 64);
    _tile_loadd(7, value, 64);
}

static double tdpbusd(size_t n) {
    load_tiles(0x0305);
    for (size_t r = 0; r < n; r++) {
        _tile_dpbusd(0, 6, 7);
        _tile_dpbusd(1, 6, 7);
        _tile_dpbusd(2, 6, 7);
        _tile_dpbusd(3, 6, 7);
        _tile_dpbusd(4, 6, 7);
        _tile_dpbusd(5, 6, 7);
    }
    _tile_release();
    return (double)n * 6 * 16 * 16 * 64 * 2;
}

static double tdpbf16ps(size_t n) {
    load_tiles(0x3f01);
    for (size_t r = 0; r < n; r++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return (double)n * 6 * 16 * 16 * 32 * 2;
}

void mg_amx_add_limits(struct mg_limit_set *s) {
    mg_add_loop(s, "tdpbusd", MG_LIMIT_INT8, tdpbusd);
    mg_add_loop(s, "tdpbf16ps", MG_LIMIT_BF16, tdpbf16ps);
}
