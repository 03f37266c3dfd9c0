/* Floats as bits. Everything goes through f32, which holds f16 and bf16 exactly; a double is rounded to f32 towards odd,
 * which keeps what the second rounding needs to know, so that no value is rounded twice. */
#include "file/narrow.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *const encoding_names[ENC_COUNT] = {"plain", "fp16", "bf16", "int8"};

bool encoding_parse(const char *s, encoding *out)
{
	for (int e = 0; e < ENC_COUNT; e++) {
		if (strcmp(encoding_names[e], s) == 0) {
			*out = (encoding)e;
			return true;
		}
	}
	return false;
}

dtype encoding_dtype(encoding e, dtype from)
{
	switch (e) {
	case ENC_FP16: return DT_F16;
	case ENC_BF16: return DT_BF16;
	case ENC_INT8: return DT_I8;
	default: return from;
	}
}

bool encoding_applies(encoding e, dtype from)
{
	bool floating = from == DT_F16 || from == DT_BF16 || from == DT_F32 || from == DT_F64;
	return floating && dtype_bits(from) > dtype_bits(encoding_dtype(e, from));
}

/* ---- bits ------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float f)
{
	uint32_t b;
	memcpy(&b, &f, sizeof b);
	return b;
}

static float float_of(uint32_t b)
{
	float f;
	memcpy(&f, &b, sizeof f);
	return f;
}

/* The f32 next to v on the side of zero, its last bit set when v lies between two of them. */
static uint32_t odd_bits(double v)
{
	float f = (float)v;
	uint32_t b = bits_of(f);
	if (isnan(v) || (double)f == v)
		return b;
	if (fabs((double)f) > fabs(v))
		b--;
	return b | 1;
}

/* b without its lowest `drop` bits, to nearest, ties to even. */
static uint32_t round_off(uint32_t b, unsigned drop)
{
	uint32_t half = UINT32_C(1) << (drop - 1);
	return (b + half - 1 + (b >> drop & 1)) >> drop;
}

static uint16_t to_bf16(uint32_t b)
{
	if ((b & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(b >> 16 | 0x40); /* stays a nan when all its low bits go */
	return (uint16_t)round_off(b, 16);
}

static uint16_t to_f16(uint32_t b)
{
	uint32_t sign = b >> 16 & 0x8000, a = b & 0x7fffffff, exponent = a >> 23;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
	if (a >= 0x477ff000) /* halfway between the largest f16 and the next, which there is not */
		return (uint16_t)(sign | 0x7c00);
	if (exponent >= 113)
		return (uint16_t)(sign | round_off(a - (UINT32_C(112) << 23), 13));
	if (exponent < 102) /* below half of the smallest */
		return (uint16_t)sign;
	return (uint16_t)(sign | round_off((a & 0x7fffff) | 0x800000, 126 - exponent));
}

static float from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7fff;
	if (a >= 0x7c00)
		return float_of(sign | 0x7f800000 | (a & 0x3ff) << 13);
	if (a >= 0x400)
		return float_of(sign | ((a << 13) + (UINT32_C(112) << 23)));
	float tiny = (float)a * 0x1p-24f;
	return sign ? -tiny : tiny;
}

/* ---- blocks of elements as doubles ------------------------------------------------------------------------------ */

enum { BLOCK = 512 };

/* Data in files and in users' memory need not be aligned: elements are copied. */
#define LOAD(T, expression)                                                                                            \
	for (size_t i = 0; i < n; i++) {                                                                                   \
		T x;                                                                                                           \
		memcpy(&x, (const char *)at + i * sizeof x, sizeof x);                                                         \
		out[i] = (double)(expression);                                                                                 \
	}                                                                                                                  \
	break

void elements_load(dtype d, const void *at, size_t n, double *out)
{
	switch (d) {
	case DT_F64: LOAD(double, x);
	case DT_F32: LOAD(float, x);
	case DT_F16: LOAD(uint16_t, from_f16(x));
	case DT_BF16: LOAD(uint16_t, float_of((uint32_t)x << 16));
	case DT_U8: LOAD(uint8_t, x);
	case DT_I16: LOAD(int16_t, x);
	case DT_U16: LOAD(uint16_t, x);
	case DT_I32: LOAD(int32_t, x);
	case DT_U32: LOAD(uint32_t, x);
	case DT_I64: LOAD(int64_t, x);
	case DT_U64: LOAD(uint64_t, x);
	default: LOAD(int8_t, x);
	}
}

bool elements_loadable(dtype d)
{
	bool floating = d == DT_F64 || d == DT_F32 || d == DT_F16 || d == DT_BF16;
	bool wide = d == DT_I16 || d == DT_U16 || d == DT_I32 || d == DT_U32 || d == DT_I64 || d == DT_U64;
	return floating || wide || d == DT_I8 || d == DT_U8;
}

#define STORE(T, expression)                                                                                           \
	for (size_t i = 0; i < n; i++) {                                                                                   \
		double v = from[i];                                                                                            \
		T x = (T)(expression);                                                                                         \
		memcpy((char *)at + i * sizeof x, &x, sizeof x);                                                               \
	}                                                                                                                  \
	break

static void store(dtype d, void *at, size_t n, const double *from)
{
	switch (d) {
	case DT_F64: STORE(double, v);
	case DT_F32: STORE(float, v);
	case DT_F16: STORE(uint16_t, to_f16(odd_bits(v)));
	case DT_BF16: STORE(uint16_t, to_bf16(odd_bits(v)));
	default: STORE(int8_t, v);
	}
}

static size_t block_at(size_t count, size_t i)
{
	return count - i < BLOCK ? count - i : BLOCK;
}

static const void *element(dtype d, const void *at, size_t i)
{
	return (const char *)at + i * (dtype_bits(d) / 8);
}

/* ---- arrays ----------------------------------------------------------------------------------------------------- */

static clv_status refuse_element(size_t i, double v)
{
	return fail(CLV_E_INVALID, "element %zu is %s; int8 holds finite values only", i, isnan(v) ? "nan" : "infinite");
}

static clv_status find_scale(dtype from, const void *src, size_t count, double *scale)
{
	double most = 0, v[BLOCK];
	for (size_t i = 0; i < count; i += BLOCK) {
		size_t n = block_at(count, i);
		elements_load(from, element(from, src, i), n, v);
		for (size_t k = 0; k < n; k++) {
			if (!isfinite(v[k]))
				return refuse_element(i + k, v[k]);
			most = fabs(v[k]) > most ? fabs(v[k]) : most;
		}
	}
	*scale = most / 127;
	if (*scale == 0) /* nothing but zeros, or too small to divide */
		*scale = most == 0 ? 1 : DBL_TRUE_MIN;
	return CLV_OK;
}

static void to_steps(double *v, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++) {
		double k = nearbyint(v[i] / scale);
		v[i] = k > 127 ? 127 : k < -127 ? -127 : k;
	}
}

static void note_loss(const double *before, const double *after, size_t n, double *most, narrow_loss *loss)
{
	for (size_t i = 0; i < n; i++) {
		if (isfinite(before[i]) && fabs(before[i]) > *most)
			*most = fabs(before[i]);
		if (before[i] == after[i] || (isnan(before[i]) && isnan(after[i])))
			continue;
		double lost = fabs(before[i] - after[i]);
		if (!(lost <= loss->absolute)) /* nan counts as more */
			loss->absolute = isnan(lost) ? INFINITY : lost;
	}
}

clv_status narrow(encoding e, dtype from, const void *src, size_t count, void *dst, double *scale, narrow_loss *loss)
{
	dtype to = encoding_dtype(e, from);
	double most = 0, before[BLOCK], v[BLOCK], back[BLOCK];
	*scale = 1;
	*loss = (narrow_loss){0};
	if (e == ENC_INT8)
		TRY(find_scale(from, src, count, scale));
	for (size_t i = 0; i < count; i += BLOCK) {
		size_t n = block_at(count, i);
		void *at = (char *)dst + i * (dtype_bits(to) / 8);
		elements_load(from, element(from, src, i), n, before);
		memcpy(v, before, n * sizeof *v);
		if (e == ENC_INT8)
			to_steps(v, n, *scale);
		store(to, at, n, v);
		widen(e, from, at, n, *scale, v); /* elements of `from`, which are no wider than doubles */
		elements_load(from, v, n, back);
		note_loss(before, back, n, &most, loss);
	}
	loss->relative = loss->absolute == 0 ? 0 : loss->absolute / most;
	return CLV_OK;
}

void widen(encoding e, dtype to, const void *src, size_t count, double scale, void *dst)
{
	dtype from = encoding_dtype(e, to);
	double v[BLOCK];
	for (size_t i = 0; i < count; i += BLOCK) {
		size_t n = block_at(count, i);
		elements_load(from, element(from, src, i), n, v);
		for (size_t k = 0; e == ENC_INT8 && k < n; k++)
			v[k] *= scale;
		store(to, (char *)dst + i * (dtype_bits(to) / 8), n, v);
	}
}
