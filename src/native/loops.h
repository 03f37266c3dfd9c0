/* Loops of chains: what one step does, with the macros that chain.def is written in. simd/loops.c has those of floats, once per
 * instruction set, loops.c those of the other types. */
#ifndef NATIVE_LOOPS_H
#define NATIVE_LOOPS_H

#include <math.h>
#include <tgmath.h>

#include "native/kernels.h"

/* Before a loop: no pass reads what another one writes. clang looks for itself. */
#ifdef __clang__
#define APART
#else
#define APART _Pragma("GCC ivdep")
#endif

#define NOTHING ((T)0)
#define IS_INF(a) (fabs(a) == (T)INFINITY)
#define IS_FINITE(a) (fabs(a) < (T)INFINITY)
#define IS_NEGATIVE(a) (copysign((T)1, a) < 0)
#define INT_QUOTIENT(a, b) (T) int_quotient(a, b, bad)
#define INT_FMOD(a, b) (T) int_fmod(a, b, bad)
#define INT_FLOOR_DIVIDE(a, b) (T) int_floor_divide(a, b, bad)
#define INT_REMAINDER(a, b) (T) int_remainder(a, b, bad)
#define INT_POW(a, b) int_pow(a, b)
#define INT_SHL(a, b) (b < 0 || (size_t)b >= sizeof(T) * 8 ? (T)0 : (T)((U)a << b))
#define INT_SHR(a, b) (T)(a >> (b < 0 || (size_t)b >= sizeof(T) * 8 ? sizeof(T) * 8 - 1 : (size_t)b))
#define FLOAT_REMAINDER(a, b) float_remainder(a, b)
#define FLOAT_FLOOR_DIVIDE(a, b) float_floor_divide(a, b)
/* As torch: nan where any of them is; the upper bound wins. */
#define CLAMPED(a, b, c) (a != a ? a : b != b ? b : c != c ? c : (a < b ? b : a) > c ? c : a < b ? b : a)

/* A division by zero sets *bad, and the smallest number divided by -1 wraps around. */
static inline int64_t int_quotient(int64_t a, int64_t b, int *bad)
{
	*bad |= b == 0;
	return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static inline int64_t int_fmod(int64_t a, int64_t b, int *bad)
{
	*bad |= b == 0;
	return b == 0 || b == -1 ? 0 : a % b;
}

static inline int64_t int_floor_divide(int64_t a, int64_t b, int *bad)
{
	int64_t whole = int_quotient(a, b, bad);
	return (a < 0) != (b < 0) && int_fmod(a, b, bad) != 0 ? whole - 1 : whole;
}

static inline int64_t int_remainder(int64_t a, int64_t b, int *bad)
{
	int64_t r = int_fmod(a, b, bad);
	return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline int64_t int_pow(int64_t a, int64_t b)
{
	uint64_t square = (uint64_t)a, y = 1;
	if (b < 0)
		return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
	for (; b; b >>= 1, square *= square)
		if (b & 1)
			y *= square;
	return (int64_t)y;
}

#endif
