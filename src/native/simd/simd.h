/* Vectors of floats, one name for every instruction set.
 *
 * The sources of this folder are compiled once per instruction set (cmake/native.cmake): `base` is portable C and the
 * reference for the others; avx2, avx512 and neon are chosen at run time (native/isa.c). ISA(name) gives a function the suffix
 * of the set it is compiled for. +, -, *, /, comparisons and & | ~ are the compiler's own on vectors; here is what it has no
 * operator for. */
#ifndef NATIVE_SIMD_SIMD_H
#define NATIVE_SIMD_SIMD_H

#include <stdint.h>
#include <string.h>

#include "file/narrow.h"

#if defined(NATIVE_AVX512)
#include <immintrin.h>
#define ISA(name) name##_avx512
#define LAYOUT(name) AVX512_##name
enum { VF = 16 }; /* floats in a vector */
typedef __m512 vf;
#elif defined(NATIVE_AVX2)
#include <immintrin.h>
#define ISA(name) name##_avx2
#define LAYOUT(name) AVX2_##name
enum { VF = 8 };
typedef __m256 vf;
#elif defined(NATIVE_NEON)
#include <arm_neon.h>
#define ISA(name) name##_neon
#define LAYOUT(name) NEON_##name
enum { VF = 4 };
typedef float32x4_t vf;
#else
#define ISA(name) name##_base
#define LAYOUT(name) BASE_##name
enum { VF = 4 };
typedef float vf __attribute__((vector_size(16)));
#endif
typedef int32_t vi __attribute__((vector_size(4 * VF))); /* as many 32-bit integers; comparisons give 0 and -1 */
typedef uint32_t vu __attribute__((vector_size(4 * VF)));
typedef float vf_any __attribute__((vector_size(4 * VF), aligned(4), may_alias));

static inline vf vf_load(const float *p)
{
	return (vf) * (const vf_any *)p;
}

static inline void vf_store(float *p, vf v)
{
	*(vf_any *)p = (vf_any)v;
}

static inline vf vf_set1(float x)
{
#if defined(NATIVE_AVX512)
	return _mm512_set1_ps(x);
#elif defined(NATIVE_AVX2)
	return _mm256_set1_ps(x);
#elif defined(NATIVE_NEON)
	return vdupq_n_f32(x);
#else
	return (vf){x, x, x, x};
#endif
}

static inline vf vf_zero(void)
{
	return vf_set1(0.0f);
}

static inline vi vi_set1(int32_t x)
{
	return (vi){0} + x;
}

/* a * b + c, rounded once where the set can. */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if defined(NATIVE_AVX512)
	return _mm512_fmadd_ps(a, b, c);
#elif defined(NATIVE_AVX2)
	return _mm256_fmadd_ps(a, b, c);
#elif defined(NATIVE_NEON)
	return vfmaq_f32(c, a, b);
#else
	return a * b + c;
#endif
}

/* The first n floats, 0 <= n <= VF, and `rest` in the other lanes; memory behind them is not touched. */
static inline vf vf_load_or(const float *p, int64_t n, float rest)
{
	vf v = vf_set1(rest);
#if defined(NATIVE_AVX512)
	return _mm512_mask_loadu_ps(v, (__mmask16)((1u << n) - 1), p);
#else
	memcpy(&v, p, (size_t)n * sizeof *p);
	return v;
#endif
}

static inline vf vf_load_n(const float *p, int64_t n)
{
	return vf_load_or(p, n, 0);
}

/* 0 in the lanes from n on. */
static inline vf vf_first(vf v, int64_t n)
{
	return vf_load_n((const float *)&v, n);
}

/* VF numbers of 16 bits, widened. */
static inline vf vf_load_bf16(const uint16_t *p)
{
#if defined(NATIVE_AVX512)
	return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16);
#elif defined(NATIVE_AVX2)
	return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
#elif defined(NATIVE_NEON)
	return (vf)vshll_n_u16(vld1_u16(p), 16);
#else
	return (vf)((vu){p[0], p[1], p[2], p[3]} << 16);
#endif
}

static inline vf vf_load_f16(const uint16_t *p)
{
#if defined(NATIVE_AVX512)
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif defined(NATIVE_AVX2)
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(NATIVE_NEON)
	return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
	return (vf){narrow_from_f16(p[0]), narrow_from_f16(p[1]), narrow_from_f16(p[2]), narrow_from_f16(p[3])};
#endif
}

static inline void vf_store_n(float *p, vf v, int64_t n)
{
#if defined(NATIVE_AVX512)
	_mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
#else
	memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

static inline vf vf_select(vi mask, vf yes, vf no)
{
	return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* Lane i is v[at[i]]; 0 <= at[i] < VF, other lanes are whatever. */
static inline vf vf_permute(vf v, vi at)
{
#if defined(NATIVE_AVX512)
	return _mm512_permutexvar_ps((__m512i)at, v);
#elif defined(NATIVE_AVX2)
	return _mm256_permutevar8x32_ps(v, (__m256i)at);
#else
	vf r = v;
	for (int i = 0; i < VF; i++)
		r[i] = v[at[i] & (VF - 1)];
	return r;
#endif
}

static inline vi vf_isnan(vf v)
{
	return (vi)(v != v);
}

/* As torch: nan where either is. */
static inline vf vf_max(vf a, vf b)
{
#if defined(NATIVE_AVX512)
	vf m = _mm512_max_ps(a, b);
#elif defined(NATIVE_AVX2)
	vf m = _mm256_max_ps(a, b);
#else
	vf m = vf_select((vi)(a > b), a, b);
#endif
	return vf_select(vf_isnan(a), a, m);
}

static inline vf vf_min(vf a, vf b)
{
	vf m = vf_select((vi)(a < b), a, b);
	return vf_select(vf_isnan(a), a, m);
}

static inline vf vf_abs(vf a)
{
	return (vf)((vi)a & vi_set1(0x7fffffff));
}

static inline vf vf_sqrt(vf a)
{
#if defined(NATIVE_AVX512)
	return _mm512_sqrt_ps(a);
#elif defined(NATIVE_AVX2)
	return _mm256_sqrt_ps(a);
#elif defined(NATIVE_NEON)
	return vsqrtq_f32(a);
#else
	return (vf){__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])};
#endif
}

/* To the nearest integer, ties to even; |a| < 2^22. */
static inline vf vf_round(vf a)
{
	vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23 */
	return (a + magic) - magic;
}

/* Lane i is that of lane i + n. */
#define TURNED4(i, n) ((i) + (n)) % VF, ((i) + (n) + 1) % VF, ((i) + (n) + 2) % VF, ((i) + (n) + 3) % VF
#if defined(NATIVE_AVX512)
#define TURNED(v, n) __builtin_shufflevector(v, v, TURNED4(0, n), TURNED4(4, n), TURNED4(8, n), TURNED4(12, n))
#elif defined(NATIVE_AVX2)
#define TURNED(v, n) __builtin_shufflevector(v, v, TURNED4(0, n), TURNED4(4, n))
#else
#define TURNED(v, n) __builtin_shufflevector(v, v, TURNED4(0, n))
#endif

/* Sums and maxima over a vector halve it, so their order is that of the set. */
static inline float vf_sum(vf v)
{
#if defined(NATIVE_AVX512)
	v = v + TURNED(v, 8);
#endif
#if defined(NATIVE_AVX512) || defined(NATIVE_AVX2)
	v = v + TURNED(v, 4);
#endif
	v = v + TURNED(v, 2);
	v = v + TURNED(v, 1);
	return v[0];
}

static inline float vf_top(vf v) /* nan if there is one */
{
#if defined(NATIVE_AVX512)
	v = vf_max(v, TURNED(v, 8));
#endif
#if defined(NATIVE_AVX512) || defined(NATIVE_AVX2)
	v = vf_max(v, TURNED(v, 4));
#endif
	v = vf_max(v, TURNED(v, 2));
	v = vf_max(v, TURNED(v, 1));
	return v[0];
}

#endif
