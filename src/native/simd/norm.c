/* Softmax and norms of rows of floats. */
#include "native/simd/kernels_isa.h"
#include "native/simd/rows.h"

static vf load_from(const float *p, int64_t i, int64_t n)
{
	return n - i < VF ? vf_load_n(p + i, n - i) : vf_load(p + i);
}

static void store_to(float *p, vf v, int64_t i, int64_t n)
{
	if (n - i < VF)
		vf_store_n(p + i, v, n - i);
	else
		vf_store(p + i, v);
}

/* The sum of e^(x - top), whose terms go to y where that is not NULL. */
static double exp_row(const float *x, float *y, int64_t n, float top)
{
	double sum = 0;
	for (int64_t at = 0; at < n; at += ROW_CHUNK) {
		int64_t end = n - at < ROW_CHUNK ? n : at + ROW_CHUNK, i = at;
		vf acc = vf_zero();
		for (; i + VF <= end; i += VF) {
			vf e = vf_exp(vf_load(x + i) - top);
			if (y)
				vf_store(y + i, e);
			acc += e;
		}
		if (i < end) {
			vf e = vf_exp(vf_load_n(x + i, end - i) - top);
			if (y)
				vf_store_n(y + i, e, end - i);
			acc += vf_first(e, end - i);
		}
		sum += (double)vf_sum(acc);
	}
	return sum;
}

/* x and y may be the same. */
void ISA(softmax_rows)(const float *x, float *y, int64_t rows, int64_t n, bool log)
{
	for (int64_t r = 0; r < rows; r++, x += n, y += n) {
		float top = row_max(x, n);
		float sum = (float)exp_row(x, log ? NULL : y, n, top);
		sum = log ? logf(sum) : 1.0f / sum;
		for (int64_t i = 0; i < n; i += VF)
			store_to(y, log ? (vf)(load_from(x, i, n) - top - sum) : (vf)(load_from(y, i, n) * sum), i, n);
	}
}

void ISA(softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t cols, bool log)
{
	for (int64_t c = 0; c < cols; c += VF) {
		int64_t m = cols - c < VF ? cols - c : VF;
		vf top = vf_load_n(x + c, m), sum = vf_zero();
		for (int64_t i = 1; i < n; i++)
			top = vf_max(vf_load_n(x + i * pitch + c, m), top);
		for (int64_t i = 0; i < n; i++)
			sum += vf_exp(vf_load_n(x + i * pitch + c, m) - top);
		vf by = log ? vf_log(sum) : (vf)(vf_set1(1.0f) / sum);
		for (int64_t i = 0; i < n; i++) {
			vf z = vf_load_n(x + i * pitch + c, m) - top;
			vf_store_n(y + i * pitch + c, log ? z - by : vf_exp(z) * by, m);
		}
	}
}

void ISA(row_statistics)(const float *x, int64_t n, bool rms, float eps, float *mean, float *scale)
{
	*mean = rms ? 0 : (float)(row_sum(x, n, 0) / (double)n);
	double squares = (rms ? row_squares(x, n, 0) : row_deviations(x, n, *mean)) / (double)n;
	*scale = (float)(1 / sqrt(squares + (double)eps));
}

void ISA(normalize)(const float *x, float *y, int64_t n, float mean, float scale, const float *weight,
                    const float *bias)
{
	for (int64_t i = 0; i < n; i += VF) {
		vf z = (load_from(x, i, n) - mean) * scale;
		if (weight)
			z = z * load_from(weight, i, n);
		if (bias)
			z = z + load_from(bias, i, n);
		store_to(y, z, i, n);
	}
}

void ISA(scale_shift)(const float *x, float *y, int64_t n, float mean, float scale, float shift)
{
	for (int64_t i = 0; i < n; i += VF)
		store_to(y, (load_from(x, i, n) - mean) * scale + shift, i, n);
}
