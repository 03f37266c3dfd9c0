/* Tolerances by dtype, and helpers for lists of outputs. */
#include "exec/tolerance.h"

#include <string.h>

typedef struct tolerance {
	dtype dtype;
	double rtol, atol;
} tolerance;

/* rtol: of the largest number of a tensor; atol: in addition. */
static const tolerance tolerances[] = {
	{DT_F64, 1e-10, 1e-12}, {DT_F32, 1e-4, 1e-5}, {DT_F16, 1e-2, 1e-3}, {DT_BF16, 5e-2, 1e-2}};

static const double TF32_RTOL = 2e-3;

/* Where all numbers are tiny, as in untrained models, the absolute tolerance must not hide them. */
static double capped_atol(double atol, double scale)
{
	double most = scale / 100;
	return scale > 0 && atol > most ? most : atol;
}

static bool is_rounded(const br_meta *m)
{
	return m->dtype == DT_F32 && !strncmp(m->device, "cuda", 4) && br_allows_tf32();
}

double tolerance_for(const br_meta *m, double scale, double rtol, double atol)
{
	if (rtol < 0 && is_rounded(m))
		rtol = TF32_RTOL;
	for (size_t i = 0; i < sizeof tolerances / sizeof *tolerances; i++)
		if (tolerances[i].dtype == (dtype)m->dtype)
			return (rtol < 0 ? tolerances[i].rtol : rtol) * scale +
			       (atol < 0 ? capped_atol(tolerances[i].atol, scale) : atol);
	return 0;
}

clv_status wait_for_all(br_tensor *const *tensors, uint32_t n)
{
	char done[16] = "cpu";
	for (uint32_t i = 0; i < n; i++) {
		br_meta m;
		if (!tensors[i])
			continue;
		TRY(br_meta_get(tensors[i], &m));
		if (!strcmp(m.device, "cpu") || !strcmp(m.device, done))
			continue;
		TRY(br_synchronize(m.device));
		memcpy(done, m.device, sizeof done);
	}
	return CLV_OK;
}

void release_all(br_tensor **tensors, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		br_unref(tensors[i]);
	memset(tensors, 0, n * sizeof *tensors);
}

void keep_shortest(double ms, double *shortest)
{
	*shortest = *shortest < 0 || ms < *shortest ? ms : *shortest;
}

bool memory_order_of(const br_meta *m, uint32_t *order)
{
	for (uint32_t d = 0; d < m->ndim; d++) {
		uint32_t at = d;
		for (; m->strides && at > 0 && m->strides[order[at - 1]] < m->strides[d]; at--)
			order[at] = order[at - 1];
		order[at] = d;
	}
	int64_t next = 1;
	bool dense = m->strides != NULL;
	for (uint32_t i = m->ndim; i-- > 0 && dense;) {
		if (m->sizes[order[i]] == 1)
			continue;
		dense = m->strides[order[i]] == next;
		next *= m->sizes[order[i]];
	}
	for (uint32_t d = 0; d < m->ndim && !dense; d++)
		order[d] = d;
	return dense;
}
