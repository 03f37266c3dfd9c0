/* Steps of chains on doubles, integers and flags, and casts between all types. */
#include "native/chain.h"
#include "native/loops.h"

#pragma GCC diagnostic ignored "-Wtype-limits" /* a < 0 of unsigned numbers */

#define LOOP(name)                                                                                                     \
	static void name(void *to, const void *from, const void *with, const void *third, int64_t n, int *bad)
#define UNUSED (void)with, (void)third, (void)bad

static inline double float_remainder(double a, double b)
{
	double r = fmod(a, b);
	return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline double float_floor_divide(double a, double b)
{
	if (b == 0)
		return a / b;
	double rest = fmod(a, b), quotient = (a - rest) / b;
	if (rest != 0 && (b < 0) != (rest < 0))
		quotient -= 1;
	if (quotient == 0)
		return copysign(0.0, a / b);
	double whole = floor(quotient);
	return quotient - whole > 0.5 ? whole + 1 : whole;
}

#define FN(name, vector, ...)                                                                                          \
	LOOP(map_##name)                                                                                                   \
	{                                                                                                                  \
		const double *p = from;                                                                                        \
		double *y = to;                                                                                                \
		UNUSED;                                                                                                        \
		for (int64_t i = 0; i < n; i++) {                                                                              \
			double x = p[i];                                                                                           \
			y[i] = __VA_ARGS__;                                                                                        \
		}                                                                                                              \
	}
#include "native/functions.def"

/* One step on one type; `wide` is unsigned and wraps around. */
#define STEP1(name, type, wide, result, ...)                                                                           \
	LOOP(name)                                                                                                         \
	{                                                                                                                  \
		typedef type T;                                                                                                \
		typedef wide U;                                                                                                \
		const T *p = from;                                                                                             \
		result *y = to;                                                                                                \
		UNUSED, (void)sizeof(U);                                                                                       \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			T a = p[i];                                                                                                \
			(void)a;                                                                                                   \
			y[i] = (result)(__VA_ARGS__);                                                                              \
		}                                                                                                              \
	}
#define STEP2(name, type, wide, result, ...)                                                                           \
	LOOP(name)                                                                                                         \
	{                                                                                                                  \
		typedef type T;                                                                                                \
		typedef wide U;                                                                                                \
		const T *p = from, *q = with;                                                                                  \
		result *y = to;                                                                                                \
		UNUSED, (void)sizeof(U);                                                                                       \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			T a = p[i], b = q[i];                                                                                      \
			(void)a, (void)b;                                                                                          \
			y[i] = (result)(__VA_ARGS__);                                                                              \
		}                                                                                                              \
	}
#define STEP3(name, type, wide, result, ...)                                                                           \
	LOOP(name)                                                                                                         \
	{                                                                                                                  \
		typedef type T;                                                                                                \
		typedef wide U;                                                                                                \
		const T *p = from, *q = with, *r = third;                                                                      \
		result *y = to;                                                                                                \
		UNUSED, (void)sizeof(U);                                                                                       \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			T a = p[i], b = q[i], c = r[i];                                                                            \
			(void)a, (void)b, (void)c;                                                                                 \
			y[i] = (result)(__VA_ARGS__);                                                                              \
		}                                                                                                              \
	}
/* On all types: RESULT(T) is what the step makes of a T. */
#define ALL(STEP, name, RESULT, floats, integers, flags)                                                               \
	STEP(name##_f64, double, double, RESULT(double), floats)                                                           \
	STEP(name##_i64, int64_t, uint64_t, RESULT(int64_t), integers)                                                     \
	STEP(name##_i32, int32_t, uint32_t, RESULT(int32_t), integers)                                                     \
	STEP(name##_i16, int16_t, uint32_t, RESULT(int16_t), integers)                                                     \
	STEP(name##_i8, int8_t, uint32_t, RESULT(int8_t), integers)                                                        \
	STEP(name##_u8, uint8_t, uint32_t, RESULT(uint8_t), integers)                                                      \
	STEP(name##_bool, uint8_t, uint32_t, RESULT(uint8_t), flags)
#define SAME(type) type
#define FLAG(type) uint8_t
#define OP1(name, ...) ALL(STEP1, name, SAME, __VA_ARGS__)
#define OP2(name, ...) ALL(STEP2, name, SAME, __VA_ARGS__)
#define OP3(name, ...) ALL(STEP3, name, SAME, __VA_ARGS__)
#define TEST1(name, ...) ALL(STEP1, name, FLAG, __VA_ARGS__)
#define TEST2(name, ...) ALL(STEP2, name, FLAG, __VA_ARGS__)
#include "native/chain.def"

#define WHERE(name, type)                                                                                              \
	LOOP(name)                                                                                                         \
	{                                                                                                                  \
		const uint8_t *flag = from;                                                                                    \
		const type *yes = with, *other = third;                                                                        \
		type *y = to;                                                                                                  \
		(void)bad;                                                                                                     \
		APART for (int64_t i = 0; i < n; i++) y[i] = flag[i] ? yes[i] : other[i];                                      \
	}
WHERE(where_64, uint64_t)
WHERE(where_32, uint32_t)
WHERE(where_16, uint16_t)
WHERE(where_8, uint8_t)

static const chain_loop loops[CHAIN_OPS][NUM_COUNT] = {
#define FN(name, ...) [MAP_##name][NUM_F64] = map_##name,
#include "native/functions.def"
#define ROW(name)                                                                                                      \
	[CHAIN_##name] = {                                                                                                 \
		[NUM_F64] = name##_f64, [NUM_I64] = name##_i64, [NUM_I32] = name##_i32,   [NUM_I16] = name##_i16,              \
		[NUM_I8] = name##_i8,   [NUM_U8] = name##_u8,   [NUM_BOOL] = name##_bool,                                      \
	},
#define OP1(name, ...) ROW(name)
#define OP2(name, ...) ROW(name)
#define OP3(name, ...) ROW(name)
#define TEST1(name, ...) ROW(name)
#define TEST2(name, ...) ROW(name)
#include "native/chain.def"
	[CHAIN_WHERE] = {[NUM_F64] = where_64,
                     [NUM_I64] = where_64,
                     [NUM_I32] = where_32,
                     [NUM_I16] = where_16,
                     [NUM_I8] = where_8,
                     [NUM_U8] = where_8,
                     [NUM_BOOL] = where_8},
};

/* ---- casts ---------------------------------------------------------------------------------------------------------------- */

/* Numbers that do not fit, and nan, are the smallest 32- or 64-bit integer; 8 and 16 bits are the lowest of 64. */
static inline int64_t to_i64(double x)
{
	return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

static inline int32_t to_i32(double x)
{
	return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

#define CAST(from_name, source, to_name, result, ...)                                                                  \
	LOOP(cast_##from_name##_##to_name)                                                                                 \
	{                                                                                                                  \
		const source *p = from;                                                                                        \
		result *y = to;                                                                                                \
		UNUSED;                                                                                                        \
		for (int64_t i = 0; i < n; i++) {                                                                              \
			source a = p[i];                                                                                           \
			y[i] = (result)(__VA_ARGS__);                                                                              \
		}                                                                                                              \
	}
#define CAST_FLOAT(name, source)                                                                                       \
	CAST(name, source, i64, int64_t, to_i64((double)a))                                                                \
	CAST(name, source, i32, int32_t, to_i32((double)a))                                                                \
	CAST(name, source, i16, int16_t, (uint64_t)to_i64((double)a))                                                      \
	CAST(name, source, i8, int8_t, (uint64_t)to_i64((double)a))                                                        \
	CAST(name, source, u8, uint8_t, (uint64_t)to_i64((double)a))                                                       \
	CAST(name, source, bool, uint8_t, a != 0)
#define CAST_INT(name, source)                                                                                         \
	CAST(name, source, f32, float, a)                                                                                  \
	CAST(name, source, f64, double, a)                                                                                 \
	CAST(name, source, i64, int64_t, a)                                                                                \
	CAST(name, source, i32, int32_t, a)                                                                                \
	CAST(name, source, i16, int16_t, a)                                                                                \
	CAST(name, source, i8, int8_t, a)                                                                                  \
	CAST(name, source, u8, uint8_t, a)                                                                                 \
	CAST(name, source, bool, uint8_t, a != 0)
CAST_FLOAT(f32, float)
CAST_FLOAT(f64, double)
CAST(f32, float, f64, double, a)
CAST(f64, double, f32, float, a)
CAST_INT(i64, int64_t)
CAST_INT(i32, int32_t)
CAST_INT(i16, int16_t)
CAST_INT(i8, int8_t)
CAST_INT(u8, uint8_t)

#define CASTS(name)                                                                                                    \
	{                                                                                                                  \
		[NUM_F32] = cast_##name##_f32, [NUM_F64] = cast_##name##_f64, [NUM_I64] = cast_##name##_i64,                   \
		[NUM_I32] = cast_##name##_i32, [NUM_I16] = cast_##name##_i16, [NUM_I8] = cast_##name##_i8,                     \
		[NUM_U8] = cast_##name##_u8, [NUM_BOOL] = cast_##name##_bool,                                                  \
	}
#define cast_f32_f32 NULL
#define cast_f64_f64 NULL
static const chain_loop casts[NUM_COUNT][NUM_COUNT] = {
	[NUM_F32] = CASTS(f32), [NUM_F64] = CASTS(f64), [NUM_I64] = CASTS(i64), [NUM_I32] = CASTS(i32),
	[NUM_I16] = CASTS(i16), [NUM_I8] = CASTS(i8),   [NUM_U8] = CASTS(u8),   [NUM_BOOL] = CASTS(u8),
};

chain_loop chain_find(const native_kernels *k, unsigned op, number_type type, number_type to)
{
	if (op == CHAIN_CAST)
		return casts[type][to];
	return type == NUM_F32 ? k->loop(op) : loops[op][type];
}
