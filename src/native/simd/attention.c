/* Softmax of rows of attention scores, with scale and mask. */
#include "native/simd/kernels_isa.h"
#include "native/simd/math.h"

typedef struct row {
	float *at;
	const char *mask;
	int64_t sees;
} row;

static row row_at(float *scores, const attention_rows *r, int64_t i)
{
	row x = {scores + i * r->pitch, r->mask, r->sees + i * r->more};
	if (r->kind != MASK_NONE)
		x.mask += i * r->mask_row * (r->kind == MASK_FLAGS ? 1 : 4);
	x.sees = x.sees < r->n ? x.sees : r->n;
	return x;
}

/* Flags or floats of the mask from column i on; lanes from n on are 0. */
static vf mask_at(const attention_rows *r, const char *mask, int64_t i, int64_t n)
{
	float at[VF] = {0};
	if (r->kind == MASK_FLOATS && r->mask_col == 1)
		return vf_load_n((const float *)(const void *)mask + i, n);
	for (int64_t k = 0; k < n; k++)
		at[k] = r->kind == MASK_FLAGS ? (float)(mask[(i + k) * r->mask_col] != 0)
		                              : ((const float *)(const void *)mask)[(i + k) * r->mask_col];
	return vf_load(at);
}

/* Scores from i on with scale and mask; what the row does not see is hidden. */
static vf masked(const row *x, const attention_rows *r, int64_t i)
{
	static const float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	int64_t left = x->sees - i, n = left < 0 ? 0 : left < VF ? left : VF;
	vf score = vf_load(x->at + i) * r->scale, hidden = vf_set1(-INFINITY);
	if (r->kind != MASK_NONE) {
		vf m = mask_at(r, x->mask, i, n);
		score = r->kind == MASK_FLOATS ? (vf)(score + m) : vf_select((vi)(m != 0.0f), score, hidden);
	}
	return vf_select((vi)(vf_load(lanes) < (float)n), score, hidden);
}

static float prepare(const row *x, const attention_rows *r)
{
	const float *plain = (const float *)(const void *)x->mask;
	vf top = vf_set1(-INFINITY);
	int64_t i = 0, whole = r->kind == MASK_NONE || (r->kind == MASK_FLOATS && r->mask_col == 1) ? x->sees : 0;
	for (; i + VF <= whole; i += VF) {
		vf score = vf_load(x->at + i) * r->scale;
		if (r->kind != MASK_NONE)
			score = score + vf_load(plain + i);
		vf_store(x->at + i, score);
		top = vf_max(top, score);
	}
	for (; i < r->n; i += VF) {
		vf score = masked(x, r, i);
		vf_store(x->at + i, score);
		top = vf_max(top, score);
	}
	return vf_top(top);
}

static float raise(float *at, int64_t n, float top)
{
	vf sum = vf_zero();
	if (top == -INFINITY) { /* it sees nothing */
		memset(at, 0, (size_t)(n + VF - 1) / VF * VF * sizeof *at);
		return 0;
	}
	for (int64_t i = 0; i < n; i += VF) {
		vf e = vf_exp(vf_load(at + i) - top);
		vf_store(at + i, e);
		sum += e;
	}
	return 1 / vf_sum(sum);
}

/* In two passes: many rows are under way at once in each. */
void ISA(attention_rows)(float *scores, const attention_rows *r, float *scales)
{
	for (int64_t i = 0; i < r->rows; i++) {
		row x = row_at(scores, r, i);
		scales[i] = prepare(&x, r);
	}
	for (int64_t i = 0; i < r->rows; i++)
		scales[i] = raise(scores + i * r->pitch, r->n, scales[i]);
}
