/* Fuzz target: a plan gives the same on the tape and on the native engine, where both take it and both give a result. */
#define _GNU_SOURCE /* memmem */
#define PLAIN_NUMBERS
#include "run_plan.h"

#include <math.h>

#include "file/narrow.h"
#include "must.h"
#include "tensor/tensor.h"

static bool is_float(const clv_tensor *t)
{
	uint8_t d = t->m.dtype;
	return d == DT_F32 || d == DT_F64 || d == DT_F16 || d == DT_BF16;
}

static double number(const clv_tensor *t, const char *data, int64_t i)
{
	switch (t->m.dtype) {
	case DT_F64: return ((const double *)(const void *)data)[i];
	case DT_F16: return (double)narrow_from_f16(((const uint16_t *)(const void *)data)[i]);
	case DT_BF16: return (double)narrow_from_bf16(((const uint16_t *)(const void *)data)[i]);
	default: return (double)((const float *)(const void *)data)[i];
	}
}

static double tolerance(const clv_tensor *t)
{
	return t->m.dtype == DT_F64 ? 1e-9 : t->m.dtype == DT_F32 ? 1e-3 : 0.1;
}

/* Sums have another order, and what is made of them may be far from 0 (exp) or infinite: the largest number counts. */
static void check_floats(const clv_tensor *t, const char *want, const char *got)
{
	double most = 1;
	int64_t n = tensor_numel(t);
	for (int64_t i = 0; i < n; i++)
		most = isfinite(number(t, want, i)) ? fmax(most, fabs(number(t, want, i))) : most;
	for (int64_t i = 0; i < n; i++) {
		double a = number(t, want, i), b = number(t, got, i);
		bool same = a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance(t) * most;
		if (!same)
			fprintf(stderr, "element %lld: %.9g on the tape, %.9g natively\n", (long long)i, a, b);
		MUST(same);
	}
}

static void check_tensor(const clv_tensor *a, const clv_tensor *b)
{
	int64_t n = clv_tensor_bytes(a);
	MUST(a->m.dtype == b->m.dtype && a->m.ndim == b->m.ndim && clv_tensor_bytes(b) == n);
	MUST(memcmp(a->m.sizes, b->m.sizes, a->m.ndim * sizeof *a->m.sizes) == 0);
	if (n > 1 << 20)
		return;
	char *x = malloc((size_t)n + 1), *y = malloc((size_t)n + 1);
	MUST(x && y && clv_tensor_copy_to(a, x, (size_t)n) == CLV_OK && clv_tensor_copy_to(b, y, (size_t)n) == CLV_OK);
	if (is_float(a))
		check_floats(a, x, y);
	else if (a->m.dtype != DT_BOOL &&
	         a->m.dtype != DT_I64) /* these may be indices or comparisons of floats that are near */
		MUST(memcmp(x, y, (size_t)n) == 0);
	free(x);
	free(y);
}

static void check_file(const strbuf *file)
{
	results tape, native;
	clv_status st = open_and_run(file->at, file->n, "native", 1, &native);
	if (st == CLV_OK && open_and_run(file->at, file->n, "tape", 1, &tape) == CLV_OK) {
		MUST(tape.n == native.n);
		for (uint32_t i = 0; i < tape.n; i++)
			check_tensor(tape.at[i], native.at[i]);
		drop_results(&tape);
	}
	drop_results(&native);
}
