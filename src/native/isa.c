/* Which instruction set this machine has, and its kernels. */
#include <stdlib.h>
#include <string.h>

#include "native/kernels.h"
#include "native/simd/layouts.h"

extern const native_kernels native_kernels_base;
#if defined(__x86_64__)
extern const native_kernels native_kernels_avx2, native_kernels_avx512;

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
extern const native_kernels native_kernels_neon;
#endif

static bool always(void)
{
	return true;
}

/* The best first. */
static const struct isa {
	const char *name;
	const native_kernels *kernels;
	bool (*here)(void);
} sets[] = {
#if defined(__x86_64__)
	{"avx512", &native_kernels_avx512, has_avx512},
	{"avx2", &native_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
	{"neon", &native_kernels_neon, always},
#endif
	{"base", &native_kernels_base, always},
};

const native_kernels *native_kernels_named(const char *isa)
{
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
		if (strcmp(sets[i].name, isa) == 0)
			return sets[i].here() ? sets[i].kernels : NULL;
	return NULL;
}

/* All sets, of whatever processor. */
static const struct layout {
	const char *name;
	int vector, gemm_rows, gemm_cols;
} layouts[] = {
#define LAYOUT(name, upper)                                                                                            \
	{                                                                                                                  \
#name, upper##_VECTOR, upper##_GEMM_ROWS, upper##_GEMM_COLS                                                    \
	}
	LAYOUT(base, BASE),
	LAYOUT(avx2, AVX2),
	LAYOUT(avx512, AVX512),
	LAYOUT(neon, NEON),
#undef LAYOUT
};

clv_status native_lay_for(const char *isa, const char **name, native_kernels *k)
{
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		if (strcmp(layouts[i].name, isa) != 0)
			continue;
		*name = layouts[i].name;
		k->vector = layouts[i].vector;
		k->gemm_rows = layouts[i].gemm_rows;
		k->gemm_cols = layouts[i].gemm_cols;
		return CLV_OK;
	}
	return fail(CLV_E_INVALID, "there is no instruction set \"%.32s\"; base, avx2, avx512 and neon are", isa);
}

const native_kernels *native_kernels_here(void)
{
	const char *asked = getenv("CLEAVE_ISA");
	const native_kernels *k = asked ? native_kernels_named(asked) : NULL;
	for (size_t i = 0; !k && i < sizeof sets / sizeof *sets; i++)
		if (sets[i].here())
			k = sets[i].kernels;
	return k;
}

clv_status native_isa_check(void)
{
	const char *asked = getenv("CLEAVE_ISA");
	if (!asked || !*asked || native_kernels_named(asked))
		return CLV_OK;
	return fail(CLV_E_INVALID, "CLEAVE_ISA is \"%.32s\", which this machine has not got; its best is \"%s\"", asked,
	            native_isa_name(native_kernels_here()));
}

const char *native_isa_name(const native_kernels *k)
{
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
		if (sets[i].kernels == k)
			return sets[i].name;
	return "";
}
