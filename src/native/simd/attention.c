/* Softmax of a row of attention scores, with scale and mask. */
#include "native/simd/kernels_isa.h"
#include "native/simd/math.h"

/* Scale, mask, and what the row does not see. */
static void mask_row(float *row, const attention_row *r)
{
	const float *plain = r->mask;
	const uint8_t *flags = r->mask;
	if (r->kind == MASK_FLOATS)
		for (int64_t i = 0; i < r->n; i++)
			row[i] = row[i] * r->scale + plain[i * r->mask_col];
	else if (r->kind == MASK_FLAGS)
		for (int64_t i = 0; i < r->n; i++)
			row[i] = flags[i * r->mask_col] ? row[i] * r->scale : -INFINITY;
	else
		for (int64_t i = 0; i < r->n; i++)
			row[i] *= r->scale;
	for (int64_t i = r->sees; i < (r->n + VF - 1) / VF * VF; i++)
		row[i] = -INFINITY;
}

float ISA(attention_row)(float *row, const attention_row *r)
{
	int64_t n = (r->n + VF - 1) / VF * VF;
	vf top = vf_set1(-INFINITY), sum = vf_zero();
	mask_row(row, r);
	for (int64_t i = 0; i < n; i += VF)
		top = vf_max(top, vf_load(row + i));
	float most = vf_top(top);
	if (most == -INFINITY) { /* it sees nothing */
		memset(row, 0, (size_t)n * sizeof *row);
		return 0;
	}
	for (int64_t i = 0; i < n; i += VF) {
		vf x = vf_exp(vf_load(row + i) - vf_set1(most));
		vf_store(row + i, x);
		sum += x;
	}
	return 1 / vf_sum(sum);
}
