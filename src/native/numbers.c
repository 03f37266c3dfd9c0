/* Arithmetic on single elements. Integers wrap, nan stays nan, as in torch. */
#include "native/numbers.h"

#include <math.h>

#include "plan/plan.h"

/* type, the type that wraps, smallest, largest */
#define TYPES(X)                                                                                                       \
	X(U8, uint8_t, uint8_t, 0, UINT8_MAX)                                                                              \
	X(I8, int8_t, uint8_t, INT8_MIN, INT8_MAX)                                                                         \
	X(I16, int16_t, uint16_t, INT16_MIN, INT16_MAX)                                                                    \
	X(I32, int32_t, uint32_t, INT32_MIN, INT32_MAX)                                                                    \
	X(I64, int64_t, uint64_t, INT64_MIN, INT64_MAX)                                                                    \
	X(F32, float, float, -INFINITY, INFINITY)                                                                          \
	X(F64, double, double, -INFINITY, INFINITY)

bool number_known(uint8_t type)
{
	switch (type) {
#define X(id, type, wrap, low, high) case DT_##id:
		TYPES(X)
#undef X
		return true;
	default: return false;
	}
}

#define JOIN(type, wrap)                                                                                               \
	{                                                                                                                  \
		type a = *(type *)to, b = *(const type *)from;                                                                 \
		switch (how) {                                                                                                 \
		case NUMBER_SET: a = b; break;                                                                                 \
		case NUMBER_MEAN:                                                                                              \
		case NUMBER_ADD: a = (type)((wrap)a + (wrap)b); break;                                                         \
		case NUMBER_MUL: a = (type)((wrap)a * (wrap)b); break;                                                         \
		case NUMBER_MAX: a = b > a || b != b ? b : a; break;                                                           \
		case NUMBER_MIN: a = b < a || b != b ? b : a; break;                                                           \
		}                                                                                                              \
		*(type *)to = a;                                                                                               \
		return;                                                                                                        \
	}

void number_join(uint8_t type, number_how how, void *to, const void *from)
{
	switch (type) {
#define X(id, type, wrap, low, high)                                                                                   \
	case DT_##id: JOIN(type, wrap)
		TYPES(X)
#undef X
	default: return;
	}
}

#define FIRST(type, low, high)                                                                                         \
	{                                                                                                                  \
		*(type *)to = (type)(how == NUMBER_MUL ? 1 : how == NUMBER_MAX ? (low) : how == NUMBER_MIN ? (high) : 0);      \
		return;                                                                                                        \
	}

void number_first(uint8_t type, number_how how, void *to)
{
	switch (type) {
#define X(id, type, wrap, low, high)                                                                                   \
	case DT_##id: FIRST(type, low, high)
		TYPES(X)
#undef X
	default: return;
	}
}

void number_subtract(uint8_t type, void *to, const void *a, const void *b)
{
	switch (type) {
#define X(id, type_, wrap, low, high)                                                                                  \
	case DT_##id: *(type_ *)to = (type_)((wrap) * (const type_ *)a - (wrap) * (const type_ *)b); return;
		TYPES(X)
#undef X
	case DT_BOOL: *(uint8_t *)to = !*(const uint8_t *)a != !*(const uint8_t *)b; return;
	default: return;
	}
}

static int64_t floor_divide(int64_t a, int64_t b)
{
	return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

void number_divide(uint8_t type, void *to, int64_t by)
{
	switch (type) {
	case DT_U8: *(uint8_t *)to = (uint8_t)(*(uint8_t *)to / by); return;
	case DT_I8: *(int8_t *)to = (int8_t)floor_divide(*(int8_t *)to, by); return;
	case DT_I16: *(int16_t *)to = (int16_t)floor_divide(*(int16_t *)to, by); return;
	case DT_I32: *(int32_t *)to = (int32_t)floor_divide(*(int32_t *)to, by); return;
	case DT_I64: *(int64_t *)to = floor_divide(*(int64_t *)to, by); return;
	case DT_F32: *(float *)to /= (float)by; return;
	case DT_F64: *(double *)to /= (double)by; return;
	default: return;
	}
}
