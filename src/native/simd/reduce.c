/* Sums and maxima over rows, and over columns. */
#include "native/simd/kernels_isa.h"
#include "native/simd/rows.h"

static float reduce_row(reduce_op op, const float *x, int64_t n)
{
	switch (op) {
	case REDUCE_SUM: return (float)row_sum(x, n, 0);
	case REDUCE_SQUARES: return (float)row_squares(x, n, 0);
	case REDUCE_MAGNITUDES: return (float)row_magnitudes(x, n, 0);
	default: return row_max(x, n);
	}
}

/* The smallest is the negative of the largest negative. */
static float row_min(const float *p, int64_t n)
{
	vf top = vf_set1(-p[0]);
	int64_t i = 0;
	for (; i + VF <= n; i += VF)
		top = vf_max(-vf_load(p + i), top);
	if (i < n)
		top = vf_max(-vf_load_or(p + i, n - i, p[0]), top);
	return -vf_top(top);
}

void ISA(reduce_rows)(reduce_op op, const float *x, int64_t rows, int64_t n, float *out)
{
	for (int64_t r = 0; r < rows; r++)
		out[r] = op == REDUCE_MIN ? row_min(x + r * n, n) : reduce_row(op, x + r * n, n);
}

static vf column_step(reduce_op op, vf x, vf acc)
{
	switch (op) {
	case REDUCE_SUM: return acc + x;
	case REDUCE_SQUARES: return acc + x * x;
	case REDUCE_MAGNITUDES: return acc + vf_abs(x);
	case REDUCE_MAX: return vf_max(x, acc);
	default: return vf_min(x, acc);
	}
}

/* Sums go to the total every 64 rows, so that errors stay small. */
static vf reduce_column(reduce_op op, const float *x, int64_t n, int64_t pitch, int64_t m)
{
	bool sums = op <= REDUCE_MAGNITUDES;
	vf total = sums ? vf_zero() : vf_load_n(x, m);
	for (int64_t at = 0; at < n; at += 64) {
		int64_t end = n - at < 64 ? n : at + 64;
		vf acc = sums ? vf_zero() : total;
		for (int64_t i = at; i < end; i++)
			acc = column_step(op, vf_load_n(x + i * pitch, m), acc);
		total = sums ? (vf)(total + acc) : acc;
	}
	return total;
}

void ISA(reduce_columns)(reduce_op op, const float *x, int64_t n, int64_t pitch, int64_t cols, float *out)
{
	for (int64_t c = 0; c < cols; c += VF) {
		int64_t m = cols - c < VF ? cols - c : VF;
		vf_store_n(out + c, reduce_column(op, x + c, n, pitch, m), m);
	}
}
