/* kernels/x86/vmath.h - exp and the activations on vectors, by polynomials of our own fitting.
 *
 * exp: x = n ln2 + r with |r| <= ln2/2, degree 6 in r fitted at Chebyshev points (1.1e-8 relative
 * before rounding; about 1.5e-7 in f32). Results under 2^-126 are 0 (x < -87.33), over FLT_MAX
 * infinity; NaN stays NaN. gelu_erf: erfc(z) = t p(t) exp(-z^2), t = 1/(1 + 0.45 z), p of degree 6
 * by reweighted least squares on z in 0..6 (1.2e-9 absolute). Both GELUs and SiLU are written so
 * that nothing cancels for large negative x.
 */
#ifndef MG_KERNELS_X86_VMATH_H
#define MG_KERNELS_X86_VMATH_H

#include "kernels/x86/vec.h"

INLINE vf v_exp(vf x) {
    vf low = v_set(-87.33f);
    vf c = v_min(v_set(89.0f), v_max(low, x)); /* NaN passes: the second operand wins */
    vf n = v_round(v_mul(c, v_set(1.44269504f)));
    vf r = v_fnma(n, v_set(0.693145751953125f), c); /* ln2 in two parts, the first of 17 bits */
    r = v_fnma(n, v_set(1.42860682030941723e-06f), r);
    vf p = v_set(0x1.6d4322p-10f);
    p = v_fma(p, r, v_set(0x1.120b6ep-7f));
    p = v_fma(p, r, v_set(0x1.5554eap-5f));
    p = v_fma(p, r, v_set(0x1.5554dcp-3f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_if_less(x, low, v_zero(), v_scale(p, n));
}

/* exp for x <= 0, the softmax's: 2^y with y = n + r, |r| <= 1/2, degree 5 in r by reweighted least
 * squares of the relative error (7.5e-8); y's own rounding adds |x| 2^-24. Below -87 about 1e-38.
 */
INLINE vf v_exp_below(vf x) {
    vf y = v_max(v_set(-126.0f), v_mul(x, v_set(1.44269504f))); /* NaN stays: the second wins */
    vf n = v_round(y), r = v_sub(y, n);
    vf p = v_set(0x1.5c08e2p-10f);
    p = v_fma(p, r, v_set(0x1.3d0c52p-7f));
    p = v_fma(p, r, v_set(0x1.c6b6e4p-5f));
    p = v_fma(p, r, v_set(0x1.ebf918p-3f));
    p = v_fma(p, r, v_set(0x1.62e428p-1f));
    p = v_fma(p, r, v_set(0x1.000002p+0f));
    return v_scale(p, n);
}

/* x / (1 + 2^y): the logistic function in its cheapest form, since after the tiles' sums it is half
 * of a product's work. 2^y as in v_exp_below, but for y up to 126; from there on the factor of x is
 * 0, so that infinite x give NaN. From VNNI on an estimate of the reciprocal of 14 bits and one
 * Newton step (2^-28) take the place of a division, which takes 16 cycles a vector; plain AVX-512
 * shares products with AVX2, whose bits it has to have. */
INLINE vf v_logistic(vf x, vf y) {
    vf c = v_max(v_set(-126.0f), y); /* NaN stays: the second wins */
    vf n = v_round(c), r = v_sub(c, n);
    vf p = v_set(0x1.5c08e2p-10f);
    p = v_fma(p, r, v_set(0x1.3d0c52p-7f));
    p = v_fma(p, r, v_set(0x1.c6b6e4p-5f));
    p = v_fma(p, r, v_set(0x1.ebf918p-3f));
    p = v_fma(p, r, v_set(0x1.62e428p-1f));
    p = v_fma(p, r, v_set(0x1.000002p+0f));
#if defined(__AVX512VNNI__)
    vf d = v_add(v_set(1.0f), v_scale(p, n)), q = _mm512_rcp14_ps(d);
    __mmask16 some = _mm512_cmp_ps_mask(y, v_set(126.0f), _CMP_NGE_UQ);
    q = _mm512_maskz_fmadd_ps(some, q, v_fnma(d, q, v_set(1.0f)), q);
    return v_mul(x, q);
#else
    vf d = v_add(v_set(1.0f), v_scale(p, v_min(v_set(127.0f), n)));
    return v_mul(x, v_if_less(y, v_set(126.0f), v_div(v_set(1.0f), d), v_mul(y, v_zero())));
#endif
}

/* x / (1 + exp(-x)) */
INLINE vf v_silu(vf x) {
    return v_logistic(x, v_mul(x, v_set(-1.44269504f)));
}

/* 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE vf v_gelu_tanh(vf x) {
    vf x2 = v_mul(x, x); /* the factors by 1 / ln 2 */
    return v_logistic(x, v_mul(x, v_fma(x2, v_set(-0.10294324f), v_set(-2.30220819f))));
}

/* 0.5 x erfc(-x / sqrt 2), from erfc of |x| / sqrt 2 */
INLINE vf v_gelu_erf(vf x) {
    vf z = v_mul(v_abs(x), v_set(0.70710678f));
    vf t = v_div(v_set(1.0f), v_fma(z, v_set(0.45f), v_set(1.0f)));
    vf p = v_set(0.0919584002f);
    p = v_fma(p, t, v_set(-0.4913197291f));
    p = v_fma(p, t, v_set(0.8519371487f));
    p = v_fma(p, t, v_set(-0.3706202547f));
    p = v_fma(p, t, v_set(0.4573158379f));
    p = v_fma(p, t, v_set(0.2018377408f));
    p = v_fma(p, t, v_set(0.2588908523f));
    vf e = v_exp(v_mul(v_mul(x, x), v_set(-0.5f)));
    vf half = v_mul(v_min(v_set(1e18f), x), v_set(0.5f)); /* no 0 * infinity */
    vf tail = v_mul(v_mul(p, t), v_mul(e, half));         /* 0.5 x erfc(z) */
    return v_if_less(x, v_zero(), tail, v_sub(x, tail));
}

#endif
