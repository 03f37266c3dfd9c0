/* Functions of the native kernels: every instruction set against the C library in double, over dense samples and at the ends
 * of the range. */
#include <float.h>
#include <math.h>

#include "native/kernels.h"
#include "support.h"

static const char *const sets[] = {"base", "avx2", "avx512", "neon"};

#define FN(name, vector, ...)                                                                                          \
	static double exact_##name(double x)                                                                               \
	{                                                                                                                  \
		return __VA_ARGS__;                                                                                            \
	}
#include "native/functions.def"

static double exact(map_fn fn, double x)
{
	static double (*const functions[])(double) = {
#define FN(name, ...) exact_##name,
#include "native/functions.def"
	};
	return functions[fn](x);
}

static const char *name_of(map_fn fn)
{
	static const char *const names[] = {
#define FN(name, ...) #name,
#include "native/functions.def"
	};
	return names[fn];
}

/* The largest error in units in the last place; absolute ones count in units of `floor`, where formulas cancel. */
static double floor_of(map_fn fn)
{
	switch (fn) {
	case MAP_GELU: /* 1 + erf(x), 1 + tanh(x) for negative x, as in torch */
	case MAP_GELU_TANH: return 1;
	case MAP_MISH: return 512 * FLT_MIN; /* x times a denormal number */
	case MAP_SIGMOID:                    /* e^-x overflows before the result is 0, as in torch */
	case MAP_SILU: return ldexp(1, -100);
	default: return FLT_MIN;
	}
}

static double unit(double want, double floor)
{
	double size = fabs(want) < floor ? floor : fabs(want);
	return ldexp(1, ilogb(size) - 23);
}

static float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static void check(const char *set, map_fn fn, float x, float got, double *worst)
{
	double want = exact(fn, x);
	if (isnan(want) || isnan(got)) {
		if (!isnan(want) || !isnan(got))
			fail_msg("%s %s(%a): %a instead of %a", set, name_of(fn), x, got, want);
		return;
	}
	/* What is beyond the largest float, or nearly so, may round to infinity. */
	if (isinf(got) || isinf(want)) {
		double beyond = FLT_MAX * (fn == MAP_HARDSWISH ? 1.0 / 6 : 0.9999995); /* 6 x / 6, as in torch */
		if ((double)got != want && !(fabs(want) > beyond && !signbit(want) == !signbit(got)))
			fail_msg("%s %s(%a): %a instead of %a", set, name_of(fn), x, got, want);
		return;
	}
	double off = fabs(got - want) / unit(want, floor_of(fn));
	if (off > *worst)
		*worst = off;
	if (off > (fn == MAP_LGAMMA ? 8 : 4))
		fail_msg("%s %s(%a): %a instead of %a, off by %.2f", set, name_of(fn), x, got, want, off);
	if (want == 0 && got == 0 && !signbit(want) != !signbit(got))
		fail_msg("%s %s(%a): wrong sign of zero", set, name_of(fn), x);
}

enum { CHUNK = 4096 };

static void check_set(const char *set)
{
	const native_kernels *k = native_kernels_named(set);
	if (!k)
		return;
	for (int fn = 0; fn < MAP_COUNT; fn++) {
		float x[CHUNK], y[CHUNK];
		double worst = 0;
		int n = 0;
		/* All floats, so far apart: about 107000 of them. */
		uint64_t apart = UINT32_MAX / (uint64_t)some_of(UINT32_MAX / 40011);
		for (uint64_t bits = 0; bits <= UINT32_MAX; bits += apart) {
			x[n++] = from_bits((uint32_t)bits);
			if (n < CHUNK - 7 && bits + apart <= UINT32_MAX)
				continue;
			k->map((map_fn)fn, x, y, n);
			for (int i = 0; i < n; i++)
				check(set, (map_fn)fn, x[i], y[i], &worst);
			n = 0;
		}
		/* Densely where the functions bend. */
		for (int part = 0; part < 16; part++) {
			for (int i = 0; i < CHUNK; i++)
				x[i] = (float)(-12 + 24.0 * (part * CHUNK + i) / (16 * CHUNK));
			k->map((map_fn)fn, x, y, CHUNK);
			for (int i = 0; i < CHUNK; i++)
				check(set, (map_fn)fn, x[i], y[i], &worst);
		}
		print_message("%-6s %-12s %.2f\n", set, name_of((map_fn)fn), worst);
	}
}

static void functions_are_accurate_in_every_set(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
		check_set(sets[i]);
}

static void special_values_behave_as_in_torch(void **state)
{
	(void)state;
	static const float specials[] = {0.0f,     -0.0f,   INFINITY, -INFINITY, NAN,     FLT_MIN,   -FLT_MIN,  1e-45f,
	                                 -1e-45f,  1e-40f,  FLT_MAX,  -FLT_MAX,  1.0f,    -1.0f,     88.72283f, 88.7229f,
	                                 -103.9f,  -104.0f, -87.4f,   0.5f,      4096.0f, 4096.001f, 1e30f,     -1e30f,
	                                 16777216, 2.0f,    1e10f,    -3.0f,     3.0f,    20.0f};
	enum { N = sizeof specials / sizeof *specials };
	float y[N];
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		const native_kernels *k = native_kernels_named(sets[i]);
		for (int fn = 0; k && fn < MAP_COUNT; fn++) {
			double worst = 0;
			k->map((map_fn)fn, specials, y, N);
			for (int j = 0; j < N; j++)
				check(sets[i], (map_fn)fn, specials[j], y[j], &worst);
		}
	}
}

static void a_value_gives_the_same_bits_in_every_lane(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		const native_kernels *k = native_kernels_named(sets[i]);
		for (int fn = 0; k && fn < MAP_COUNT; fn++) {
			float x[37], y[37], one;
			for (int j = 0; j < 37; j++)
				x[j] = (float)(0.37 * j - 5);
			k->map((map_fn)fn, x, y, 37);
			for (int j = 0; j < 37; j++) {
				k->map((map_fn)fn, x + j, &one, 1);
				assert_memory_equal(&one, &y[j], sizeof one);
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(special_values_behave_as_in_torch),
		cmocka_unit_test(functions_are_accurate_in_every_set),
		cmocka_unit_test(a_value_gives_the_same_bits_in_every_lane),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
