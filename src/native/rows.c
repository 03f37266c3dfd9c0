/* Steps of chains along rows: see rows.h. */
#include "native/rows.h"

#include <math.h>
#include <string.h>

#define SPREAD(type)                                                                                                   \
	for (int64_t r = 0; r < rows; r++)                                                                                 \
		for (int64_t i = 0; i < n; i++)                                                                                \
	((type *)out)[r * n + i] = ((const type *)x)[r]

static void spread(void *out, const void *x, int64_t rows, int64_t n, size_t bytes)
{
	switch (bytes) {
	case 1: SPREAD(uint8_t); break;
	case 2: SPREAD(uint16_t); break;
	case 4: SPREAD(uint32_t); break;
	default: SPREAD(uint64_t);
	}
}

/* The largest is nan where there is one: then the first nan is it. */
static void find_best(const native_kernels *k, reduce_op op, const float *x, int64_t *out, int64_t rows, int64_t n)
{
	for (int64_t r = 0; r < rows; r++, x += n) {
		float best;
		k->reduce_rows(op, x, 1, n, &best);
		for (out[r] = 0; out[r] + 1 < n && x[out[r]] != best && x[out[r]] == x[out[r]];)
			out[r]++;
	}
}

static float variance(const float *x, int64_t n, double correction, bool root)
{
	double mean = 0, sum = 0, left = (double)n - correction;
	for (int64_t i = 0; i < n; i++)
		mean += (double)x[i];
	mean /= (double)n;
	for (int64_t i = 0; i < n; i++)
		sum += ((double)x[i] - mean) * ((double)x[i] - mean);
	sum /= left > 0 ? left : 0;
	return (float)(root ? sqrt(sum) : sum);
}

static void normalize(const native_kernels *k, const chain_step *t, const float *x, float *y, const float *weight,
                      const float *bias, int64_t n)
{
	float mean, scale;
	k->row_statistics(x, n, t->op == ROW_RMS_NORM, (float)t->number, &mean, &scale);
	k->normalize(x, y, n, mean, scale, t->given & 1 ? weight : NULL, t->given & 2 ? bias : NULL);
}

void row_step_run(const native_kernels *k, const chain_step *t, void *out, const void *a, const void *b, const void *c,
                  int64_t rows, int64_t n)
{
	const float *x = a;
	float *y = out;
	switch ((enum row_ops)t->op) {
	case ROW_SPREAD: spread(out, a, rows, n, number_bytes((number_type)t->type)); return;
	case ROW_SUM:
	case ROW_MEAN: k->reduce_rows(REDUCE_SUM, x, rows, n, y); break;
	case ROW_MAX: k->reduce_rows(REDUCE_MAX, x, rows, n, y); return;
	case ROW_MIN: k->reduce_rows(REDUCE_MIN, x, rows, n, y); return;
	case ROW_ARGMAX: find_best(k, REDUCE_MAX, x, out, rows, n); return;
	case ROW_ARGMIN: find_best(k, REDUCE_MIN, x, out, rows, n); return;
	case ROW_SOFTMAX:
	case ROW_LOG_SOFTMAX: k->softmax_rows(x, y, rows, n, t->op == ROW_LOG_SOFTMAX); return;
	default: break;
	}
	for (int64_t r = 0; r < rows; r++) {
		if (t->op == ROW_MEAN)
			y[r] = y[r] / (float)n;
		else if (t->op == ROW_VAR || t->op == ROW_STD)
			y[r] = variance(x + r * n, n, t->number, t->op == ROW_STD);
		else if (t->op == ROW_LAYER_NORM || t->op == ROW_RMS_NORM)
			normalize(k, t, x + r * n, y + r * n, b, c, n);
	}
}
