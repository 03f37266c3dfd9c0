/* Functions of vectors of floats, to a few units in the last place over the whole range; nan, infinities, denormals and signed
 * zeros as in torch. Each lane is computed alone and alike, so a value gives the same bits wherever it is in a vector.
 * Polynomials are minimax fits with float coefficients. Rare functions go to the C library, lane by lane. */
#ifndef NATIVE_SIMD_MATH_H
#define NATIVE_SIMD_MATH_H

#include <math.h>

#include "native/simd/simd.h"

typedef uint32_t vu __attribute__((vector_size(4 * VF)));

static inline vf vf_lanes(float (*fn)(float), vf x)
{
	float at[VF];
	vf_store(at, x);
	for (int i = 0; i < VF; i++)
		at[i] = fn(at[i]);
	return vf_load(at);
}

static inline vf vf_lanes2(float (*fn)(float, float), vf x, vf y)
{
	float at[VF], with[VF];
	vf_store(at, x);
	vf_store(with, y);
	for (int i = 0; i < VF; i++)
		at[i] = fn(at[i], with[i]);
	return vf_load(at);
}

/* Between lo and hi; nan stays. */
static inline vf vf_between(vf x, float lo, float hi)
{
#if defined(NATIVE_AVX512)
	return _mm512_max_ps(vf_set1(lo), _mm512_min_ps(vf_set1(hi), x));
#elif defined(NATIVE_AVX2)
	return _mm256_max_ps(vf_set1(lo), _mm256_min_ps(vf_set1(hi), x));
#else
	x = vf_select((vi)(x > hi), vf_set1(hi), x);
	return vf_select((vi)(x < lo), vf_set1(lo), x);
#endif
}

static inline vf vf_copysign(vf x, vf sign)
{
	vi bit = (vi)(vi_set1(0) + INT32_MIN);
	return (vf)(((vi)x & ~bit) | ((vi)sign & bit));
}

static inline int vi_any(vi mask)
{
#if defined(NATIVE_AVX512)
	return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(NATIVE_AVX2)
	return _mm256_movemask_ps((vf)mask) != 0;
#else
	int32_t any = 0;
	for (int i = 0; i < VF; i++)
		any |= mask[i];
	return any != 0;
#endif
}

/* x * 2^n, rounded once; n is a whole number from -252 to 254. */
static inline vf vf_scale(vf x, vf n)
{
#if defined(NATIVE_AVX512)
	return _mm512_scalef_ps(x, n);
#else
	vi whole = (vi)(n + 12582912.0f) - 0x4b400000;
	vi half = whole >> 1;
	return x * (vf)((vu)(half + 127) << 23) * (vf)((vu)(whole - half + 127) << 23);
#endif
}

/* e^r - 1, where x = n ln 2 + r, |r| <= ln 2 / 2. */
static inline vf vf_expm1_part(vf x, vf *n)
{
	vf whole = vf_fma(x, vf_set1(1.44269504f), vf_set1(12582912.0f)) - 12582912.0f;
	vf r = vf_fma(whole, vf_set1(-0.693359375f), x); /* 9 bits: exact without fma, too */
	r = vf_fma(whole, vf_set1(2.12194440e-4f), r);
	vf p = vf_set1(0.00138706958f);
	p = vf_fma(p, r, vf_set1(0.00836627185f));
	p = vf_fma(p, r, vf_set1(0.0416674353f));
	p = vf_fma(p, r, vf_set1(0.166665465f));
	p = vf_fma(p, r, vf_set1(0.49999997f));
	*n = whole;
	return vf_fma(p, r * r, r);
}

static inline vf vf_exp(vf x)
{
	vf n, e = vf_expm1_part(vf_between(x, -104.0f, 89.0f), &n);
	return vf_scale(e + 1.0f, n);
}

/* Without the sign of zero. */
static inline vf vf_expm1_plain(vf x)
{
	vf n, e = vf_expm1_part(vf_between(x, -40.0f, 89.0f), &n);
	vf half = vf_scale(vf_set1(0.5f), n); /* 2^n alone would overflow before the result does */
	return vf_fma(half, e, half - 0.5f) * 2.0f;
}

static inline vf vf_expm1(vf x)
{
	return vf_select((vi)(x == 0.0f), x, vf_expm1_plain(x));
}

static inline vf vf_exp2(vf x)
{
	vf at = vf_between(x, -151.0f, 129.0f);
	vf n = vf_round(at), ignored, e = vf_expm1_part((at - n) * 0.693147182f, &ignored);
	/* |at - n| <= 1/2 keeps the inner reduction at 0, unless it rounds up by a bit. */
	return vf_scale(vf_scale(e + 1.0f, ignored), n);
}

/* x = 2^n m, sqrt(1/2) <= m < sqrt(2): f = m - 1, and log(m) = f + rest. For finite x > 0. */
static inline vf vf_log_part(vf x, vf *f, vf *n)
{
	vi small = (vi)(x < 1.17549435e-38f);
	vf at = vf_select(small, x * 8388608.0f, x);
	vi from = (vi)((vu)at - 0x3f3504f3u), exponent = from >> 23; /* of other x it may wrap around */
	vf m = (vf)((from & 0x007fffff) + 0x3f3504f3);
	*n = __builtin_convertvector(exponent, vf) - vf_select(small, vf_set1(23.0f), vf_zero());
	*f = m - 1.0f;
	vf p = vf_set1(0.0674926788f);
	p = vf_fma(p, *f, vf_set1(-0.116700977f));
	p = vf_fma(p, *f, vf_set1(0.118835486f));
	p = vf_fma(p, *f, vf_set1(-0.124062337f));
	p = vf_fma(p, *f, vf_set1(0.142203584f));
	p = vf_fma(p, *f, vf_set1(-0.166679889f));
	p = vf_fma(p, *f, vf_set1(0.200020716f));
	p = vf_fma(p, *f, vf_set1(-0.250000089f));
	p = vf_fma(p, *f, vf_set1(0.333333135f));
	vf square = *f * *f;
	return vf_fma(p * *f, square, square * -0.5f);
}

/* What logarithms are at 0, below it, at infinity and nan. */
static inline vf vf_log_ends(vf x, vf y)
{
	y = vf_select((vi)(x == 0.0f), vf_set1(-INFINITY), y);
	y = vf_select((vi)(x == INFINITY), x, y);
	return vf_select(~(vi)(x >= 0.0f), vf_set1(NAN), y);
}

static inline vf vf_log(vf x)
{
	vf f, n, rest = vf_log_part(x, &f, &n);
	vf y = vf_fma(n, vf_set1(-2.12194440e-4f), rest) + f;
	return vf_log_ends(x, vf_fma(n, vf_set1(0.693359375f), y));
}

static inline vf vf_log2(vf x)
{
	vf f, n, rest = vf_log_part(x, &f, &n);
	/* log2(e) in two parts: 1.4375 + 0.00519504. */
	vf y = vf_fma(rest, vf_set1(1.44269504f), f * 0.00519504089f);
	return vf_log_ends(x, vf_fma(f, vf_set1(1.4375f), y) + n);
}

static inline vf vf_log10(vf x)
{
	vf f, n, rest = vf_log_part(x, &f, &n);
	vf y = vf_fma(n, vf_set1(4.60503872e-06f), rest * 0.434294492f);
	y = vf_fma(f, vf_set1(0.434294492f), y);
	return vf_log_ends(x, vf_fma(n, vf_set1(0.301025391f), y)); /* log10(2) in two parts; 13 bits */
}

static inline vf vf_log1p(vf x)
{
	vf u = x + 1.0f;
	vf lost = (x - (u - 1.0f)) / u;
	lost = vf_select((vi)(u == 0.0f) | (vi)(u == INFINITY), vf_zero(), lost);
	return vf_select((vi)(x == 0.0f), x, vf_log(u) + lost);
}

static inline vf vf_tanh(vf x)
{
	vf e = vf_expm1_plain(vf_between(vf_abs(x), 0.0f, 10.0f) * -2.0f);
	return vf_copysign(-e / (e + 2.0f), x);
}

static inline vf vf_sigmoid(vf x)
{
	return 1.0f / (vf_exp(-x) + 1.0f);
}

static inline vf vf_erf(vf x)
{
	vf a = vf_between(vf_abs(x), 0.0f, 4.0f), z = a * a;
	vf p = vf_set1(7.99249465e-05f);
	p = vf_fma(p, z, vf_set1(-0.000804914627f));
	p = vf_fma(p, z, vf_set1(0.00519237667f));
	p = vf_fma(p, z, vf_set1(-0.0268557277f));
	p = vf_fma(p, z, vf_set1(0.112836257f));
	p = vf_fma(p, z, vf_set1(-0.376126289f));
	p = vf_fma(p, z, vf_set1(0.128379166f));
	vf small = vf_fma(p, x, x);
	/* -log(1 - erf(a)) / a */
	vf q = vf_set1(4.94095548e-06f);
	q = vf_fma(q, a, vf_set1(-4.56111957e-05f));
	q = vf_fma(q, a, vf_set1(-4.94516826e-05f));
	q = vf_fma(q, a, vf_set1(0.00292983395f));
	q = vf_fma(q, a, vf_set1(-0.0226736926f));
	q = vf_fma(q, a, vf_set1(0.105262347f));
	q = vf_fma(q, a, vf_set1(0.635625422f));
	q = vf_fma(q, a, vf_set1(1.12855172f));
	vf large = vf_copysign(1.0f - vf_exp(-a * q), x);
	return vf_select((vi)(a < 0.92f), small, large);
}

/* The quarter turn that x is in, and the rest, |rest| <= pi/4. Exact enough for |x| <= 4096: pi/2 in parts of 12 bits. */
static inline vi vf_quarter(vf x, vf *rest)
{
	vf t = vf_fma(x, vf_set1(0.636619747f), vf_set1(12582912.0f)), n = t - 12582912.0f;
	vf r = x - n * 1.5703125f;
	r = r - n * 4.837512969970703125e-4f;
	r = r - n * 7.549533620476722717e-8f;
	*rest = r - n * 2.56334415e-12f;
	return (vi)t & 3;
}

static inline vf vf_sin_part(vf r)
{
	vf z = r * r;
	vf p = vf_fma(vf_set1(2.83268014e-06f), z, vf_set1(-0.000198530717f));
	p = vf_fma(p, z, vf_set1(0.0083333794f));
	p = vf_fma(p, z, vf_set1(-0.166666672f));
	return vf_fma(p * z, r, r);
}

static inline vf vf_cos_part(vf r)
{
	vf z = r * r;
	vf p = vf_fma(vf_set1(2.44323273e-05f), z, vf_set1(-0.00138873095f));
	p = vf_fma(p, z, vf_set1(0.0416666456f));
	return vf_fma(p * z, z, vf_fma(z, vf_set1(-0.5f), vf_set1(1.0f)));
}

/* sin(x + turn pi/2). Beyond 4096, where the reduction above is too coarse, lanes go to the C library. */
static inline vf vf_wave(vf x, int32_t turn, float (*far)(float))
{
	vf r;
	vi near = (vi)(vf_abs(x) <= 4096.0f);
	vi quarter = vf_quarter(vf_select(near, x, vf_zero()), &r) + turn;
	vf y = vf_select((vi)((quarter & 1) != 0), vf_cos_part(r), vf_sin_part(r));
	y = (vf)((vi)y ^ (vi)((vu)(quarter & 2) << 30));
	if (!vi_any(~near))
		return y;
	return vf_select(near, y, vf_lanes(far, x));
}

static inline vf vf_sin(vf x)
{
	return vf_select((vi)(x == 0.0f), x, vf_wave(x, 0, sinf));
}

static inline vf vf_cos(vf x)
{
	return vf_wave(x, 1, cosf);
}

static inline vf vf_pow(vf x, vf y)
{
	return vf_lanes2(powf, x, y);
}

static inline vf vf_rsqrt(vf x)
{
	return 1.0f / vf_sqrt(x);
}

/* ---- activations, by the formulas that torch uses ------------------------------------------------------------------- */

static inline vf vf_relu(vf x)
{
	return vf_select((vi)(x < 0.0f), vf_zero(), x);
}

static inline vf vf_silu(vf x)
{
	return x / (vf_exp(-x) + 1.0f);
}

/* 2^x to 2^-23 of it, for |x| <= 150. */
static inline vf vf_exp2_short(vf x)
{
	vf n = vf_round(x), r = x - n;
	vf p = vf_set1(0.00132647273f);
	p = vf_fma(p, r, vf_set1(0.00967151299f));
	p = vf_fma(p, r, vf_set1(0.0555073358f));
	p = vf_fma(p, r, vf_set1(0.240222424f));
	p = vf_fma(p, r, vf_set1(0.693147004f));
	return vf_scale(vf_fma(p, r, vf_set1(1.0f)), n);
}

/* x/2 (1 + erf(x / sqrt 2)). With a = |x|, 1 - erf(a / sqrt 2) is 2^(-a q(a)). */
static inline vf vf_gelu(vf x)
{
	vf a = vf_abs(x), q = vf_set1(2.5721704e-06f);
	q = vf_fma(q, a, vf_set1(-3.65677873e-05f));
	q = vf_fma(q, a, vf_set1(0.00017448684f));
	q = vf_fma(q, a, vf_set1(0.000161104078f));
	q = vf_fma(q, a, vf_set1(-0.00708966299f));
	q = vf_fma(q, a, vf_set1(0.0525107111f));
	q = vf_fma(q, a, vf_set1(0.459204569f));
	q = vf_fma(q, a, vf_set1(1.1511055f));
	vf e = vf_exp2_short(-vf_between(a * q, 0.0f, 150.0f));
	return x * 0.5f * vf_select((vi)(x < 0.0f), e, 2.0f - e);
}

/* x/2 (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline vf vf_gelu_tanh(vf x)
{
	vf y = x * vf_fma(x * x, vf_set1(-0.10294324f), vf_set1(-2.3022082f)); /* -2 y / ln 2 */
	return x / (vf_exp2_short(vf_between(y, -150.0f, 150.0f)) + 1.0f);
}

static inline vf vf_softplus(vf x, vf beta, vf threshold)
{
	vf scaled = x * beta;
	return vf_select((vi)(scaled > threshold), x, vf_log1p(vf_exp(scaled)) / beta);
}

/* x tanh(log(1 + e^x)) = x w / (w + 2), w = e^x (e^x + 2). */
static inline vf vf_mish(vf x)
{
	vf e = vf_exp(vf_between(x, -104.0f, 20.0f)), w = e * (e + 2.0f);
	return vf_select((vi)(x > 20.0f), x, x * (w / (w + 2.0f)));
}

static inline vf vf_elu(vf x, vf alpha, vf scale, vf input_scale)
{
	return vf_select((vi)(x < 0.0f), vf_expm1(x * input_scale) * (alpha * scale), x * scale);
}

static inline vf vf_hardsigmoid(vf x)
{
	return vf_between(x + 3.0f, 0.0f, 6.0f) / 6.0f;
}

static inline vf vf_hardswish(vf x)
{
	return x * vf_between(x + 3.0f, 0.0f, 6.0f) / 6.0f;
}

/* min(x, 0) - log(1 + e^-|x|) */
static inline vf vf_logsigmoid(vf x)
{
	return vf_select((vi)(x > 0.0f), vf_zero(), x) - vf_log1p(vf_exp(-vf_abs(x)));
}

#endif
