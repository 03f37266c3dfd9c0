/* Steps of chains on floats, and functions of one number over arrays of floats. */
#include "native/loops.h"
#include "native/simd/kernels_isa.h"
#include "native/simd/math.h"

#define LOOP(name)                                                                                                     \
	static void name(void *to, const void *from, const void *with, const void *third, int64_t n, int *bad)
#define UNUSED (void)with, (void)third, (void)bad

#define FN(name, vector, ...)                                                                                          \
	LOOP(map_##name)                                                                                                   \
	{                                                                                                                  \
		const float *p = from;                                                                                         \
		float *y = to;                                                                                                 \
		int64_t i = 0;                                                                                                 \
		UNUSED;                                                                                                        \
		for (; i + VF <= n; i += VF) {                                                                                 \
			vf x = vf_load(p + i);                                                                                     \
			vf_store(y + i, vector);                                                                                   \
		}                                                                                                              \
		if (i < n) {                                                                                                   \
			vf x = vf_load_n(p + i, n - i);                                                                            \
			vf_store_n(y + i, vector, n - i);                                                                          \
		}                                                                                                              \
	}
#include "native/functions.def"

typedef float T;

static inline float float_remainder(float a, float b)
{
	float r = fmodf(a, b);
	return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static inline float float_floor_divide(float a, float b)
{
	if (b == 0)
		return a / b;
	float rest = fmodf(a, b), quotient = (a - rest) / b;
	if (rest != 0 && (b < 0) != (rest < 0))
		quotient -= 1;
	if (quotient == 0)
		return copysignf(0, a / b);
	float whole = floorf(quotient);
	return quotient - whole > 0.5f ? whole + 1 : whole;
}

/* Three operands where the C library would go lane by lane. */
#define VECTOR3(name, expression)                                                                                      \
	LOOP(vector_##name)                                                                                                \
	{                                                                                                                  \
		const float *p = from, *q = with, *r = third;                                                                  \
		float *y = to;                                                                                                 \
		(void)bad;                                                                                                     \
		for (int64_t i = 0; i < n; i += VF) {                                                                          \
			int64_t m = n - i < VF ? n - i : VF;                                                                       \
			vf a = vf_load_n(p + i, m), b = vf_load_n(q + i, m), c = vf_load_n(r + i, m);                              \
			vf_store_n(y + i, expression, m);                                                                          \
		}                                                                                                              \
	}
VECTOR3(elu, vf_select((vi)(a < 0.0f), vf_expm1(a *c) * b, a))
VECTOR3(softplus, vf_softplus(a, b, c))

#define OP1(name, floats, ...)                                                                                         \
	LOOP(loop_##name)                                                                                                  \
	{                                                                                                                  \
		const float *p = from;                                                                                         \
		float *y = to;                                                                                                 \
		UNUSED;                                                                                                        \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			float a = p[i];                                                                                            \
			(void)a;                                                                                                   \
			y[i] = floats;                                                                                             \
		}                                                                                                              \
	}
#define OP2(name, floats, ...)                                                                                         \
	LOOP(loop_##name)                                                                                                  \
	{                                                                                                                  \
		const float *p = from, *q = with;                                                                              \
		float *y = to;                                                                                                 \
		UNUSED;                                                                                                        \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			float a = p[i], b = q[i];                                                                                  \
			(void)a, (void)b;                                                                                          \
			y[i] = floats;                                                                                             \
		}                                                                                                              \
	}
#define OP3(name, floats, ...)                                                                                         \
	LOOP(loop_##name)                                                                                                  \
	{                                                                                                                  \
		const float *p = from, *q = with, *r = third;                                                                  \
		float *y = to;                                                                                                 \
		UNUSED;                                                                                                        \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			float a = p[i], b = q[i], c = r[i];                                                                        \
			y[i] = floats;                                                                                             \
		}                                                                                                              \
	}
#define TEST1(name, floats, ...)                                                                                       \
	LOOP(loop_##name)                                                                                                  \
	{                                                                                                                  \
		const float *p = from;                                                                                         \
		uint8_t *y = to;                                                                                               \
		UNUSED;                                                                                                        \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			float a = p[i];                                                                                            \
			y[i] = floats;                                                                                             \
		}                                                                                                              \
	}
#define TEST2(name, floats, ...)                                                                                       \
	LOOP(loop_##name)                                                                                                  \
	{                                                                                                                  \
		const float *p = from, *q = with;                                                                              \
		uint8_t *y = to;                                                                                               \
		UNUSED;                                                                                                        \
		APART for (int64_t i = 0; i < n; i++)                                                                          \
		{                                                                                                              \
			float a = p[i], b = q[i];                                                                                  \
			y[i] = floats;                                                                                             \
		}                                                                                                              \
	}
#include "native/chain.def"

/* Where the flags in `from` are set that of `with`, else that of `third`. */
LOOP(loop_where)
{
	const uint8_t *flag = from;
	const float *yes = with, *other = third;
	float *y = to;
	(void)bad;
	APART for (int64_t i = 0; i < n; i++) y[i] = flag[i] ? yes[i] : other[i];
}

chain_loop ISA(loop)(unsigned op)
{
	static const chain_loop loops[CHAIN_OPS] = {
#define FN(name, ...) [MAP_##name] = map_##name,
#include "native/functions.def"
#define OP1(name, ...) [CHAIN_##name] = loop_##name,
#define OP2(name, ...) [CHAIN_##name] = loop_##name,
#define OP3(name, ...) [CHAIN_##name] = loop_##name,
#define TEST1(name, ...) [CHAIN_##name] = loop_##name,
#define TEST2(name, ...) [CHAIN_##name] = loop_##name,
#include "native/chain.def"
		[CHAIN_WHERE] = loop_where,
	};
	return op == CHAIN_ELU ? vector_elu : op == CHAIN_SOFTPLUS ? vector_softplus : loops[op];
}

void ISA(map)(map_fn fn, const float *x, float *y, int64_t n)
{
	ISA(loop)(fn)(y, x, NULL, NULL, n, NULL);
}
