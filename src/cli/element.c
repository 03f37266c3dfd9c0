/* Reads and writes single elements of tensors as numbers.
 * Half precision is taken apart by hand: compilers differ in having it. */
#include "element.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const element elements[] = {
	{"f32", ELEMENT_FLOAT, 4, 0, 0},
	{"f64", ELEMENT_FLOAT, 8, 0, 0},
	{"f16", ELEMENT_FLOAT, 2, 0, 0},
	{"bf16", ELEMENT_FLOAT, 2, 0, 0},
	{"bool", ELEMENT_BOOL, 1, 0, 1},
	{"u8", ELEMENT_UINT, 1, 0, UINT8_MAX},
	{"i8", ELEMENT_INT, 1, INT8_MIN, INT8_MAX},
	{"u16", ELEMENT_UINT, 2, 0, UINT16_MAX},
	{"i16", ELEMENT_INT, 2, INT16_MIN, INT16_MAX},
	{"u32", ELEMENT_UINT, 4, 0, UINT32_MAX},
	{"i32", ELEMENT_INT, 4, INT32_MIN, INT32_MAX},
	{"u64", ELEMENT_UINT, 8, 0, 0x1p63},
	{"i64", ELEMENT_INT, 8, -0x1p62, 0x1p62},
	{"qu8", ELEMENT_UINT, 1, 0, UINT8_MAX}, /* quantised: the integers */
	{"qi8", ELEMENT_INT, 1, INT8_MIN, INT8_MAX},
	{"qi32", ELEMENT_INT, 4, INT32_MIN, INT32_MAX},
	{"c64", ELEMENT_COMPLEX, 8, 0, 0},
	{"c128", ELEMENT_COMPLEX, 16, 0, 0},
	{"", ELEMENT_OTHER, 1, 0, 0},
};

const element *element_of(const char *dtype)
{
	const element *e = elements;
	while (*e->dtype && strcmp(e->dtype, dtype) != 0)
		e++;
	return e;
}

/* ---- half precision ------------------------------------------------------------------------------------------------ */

static uint32_t bits_of(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return bits;
}

static float float_of(uint32_t bits)
{
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* Of small finite numbers; what is too small for a normal one becomes 0. */
static uint16_t to_half(float f)
{
	uint32_t bits = bits_of(f);
	int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
	if (exponent <= 0)
		return (uint16_t)(bits >> 16 & 0x8000);
	return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

static double from_half(uint16_t h)
{
	unsigned exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
	double sign = h & 0x8000 ? -1 : 1;
	if (exponent == 0x1f)
		return mantissa ? (double)NAN : sign * (double)INFINITY;
	return sign * (exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24));
}

/* ---- elements ------------------------------------------------------------------------------------------------------ */

static void put_float_bits(const element *e, void *to, double v)
{
	float f = (float)v;
	if (e->bytes == 8) {
		memcpy(to, &v, sizeof v);
	} else if (e->bytes == 4) {
		memcpy(to, &f, sizeof f);
	} else {
		uint16_t half = e->dtype[0] == 'b' ? (uint16_t)(bits_of(f) >> 16) : to_half(f);
		memcpy(to, &half, sizeof half);
	}
}

static double get_float_bits(const element *e, const void *from)
{
	double v;
	float f;
	uint16_t half;
	if (e->bytes == 8) {
		memcpy(&v, from, sizeof v);
		return v;
	}
	if (e->bytes == 4) {
		memcpy(&f, from, sizeof f);
		return (double)f;
	}
	memcpy(&half, from, sizeof half);
	return e->dtype[0] == 'b' ? (double)float_of((uint32_t)half << 16) : from_half(half);
}

/* Little-endian, as everything that files have. */
static uint64_t get_bits(const element *e, const void *from)
{
	const uint8_t *b = from;
	uint64_t v = 0;
	for (uint32_t i = e->bytes; i-- > 0;)
		v = v << 8 | b[i];
	return v;
}

static int64_t get_int(const element *e, const void *from)
{
	unsigned unused = 64 - 8 * e->bytes;
	return (int64_t)(get_bits(e, from) << unused) >> unused;
}

/* A complex number is two floats of half its size. */
static const element *part_of(const element *e)
{
	return element_of(e->bytes == 8 ? "f32" : "f64");
}

void element_put(const element *e, void *to, double v)
{
	if (e->kind == ELEMENT_FLOAT) {
		put_float_bits(e, to, v);
	} else if (e->kind == ELEMENT_COMPLEX) {
		put_float_bits(part_of(e), to, v);
		put_float_bits(part_of(e), (char *)to + e->bytes / 2, 0);
	} else {
		uint64_t bits = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
		for (uint32_t i = 0; i < e->bytes; i++)
			((uint8_t *)to)[i] = (uint8_t)(bits >> 8 * i);
	}
}

double element_get(const element *e, const void *from)
{
	switch (e->kind) {
	case ELEMENT_FLOAT: return get_float_bits(e, from);
	case ELEMENT_COMPLEX: return get_float_bits(part_of(e), from);
	case ELEMENT_INT: return (double)get_int(e, from);
	default: return (double)get_bits(e, from);
	}
}

const char *element_text(const element *e, const void *from, char out[ELEMENT_TEXT])
{
	int digits = e->bytes == 8 || e->bytes == 16 ? 17 : e->bytes == 4 ? 9 : 5;
	switch (e->kind) {
	case ELEMENT_BOOL: return *(const uint8_t *)from ? "true" : "false";
	case ELEMENT_FLOAT: snprintf(out, ELEMENT_TEXT, "%.*g", digits, get_float_bits(e, from)); break;
	case ELEMENT_COMPLEX:
		snprintf(out, ELEMENT_TEXT, "%.9g%+.9gj", get_float_bits(part_of(e), from),
		         get_float_bits(part_of(e), (const char *)from + e->bytes / 2));
		break;
	case ELEMENT_INT: snprintf(out, ELEMENT_TEXT, "%lld", (long long)get_int(e, from)); break;
	default: snprintf(out, ELEMENT_TEXT, "%llu", (unsigned long long)get_bits(e, from)); break;
	}
	return out;
}
