/* Brings tensors into the order that work along dimensions needs. */
#include "native/grid.h"

/* How far out a dimension is: those that are broadcast are outermost. */
static uint64_t reach(const nt *t, uint32_t d)
{
	return t->stride[d] ? (uint64_t)t->stride[d] : UINT64_MAX;
}

/* Dimensions by stride, the largest first; those of size 1 are left out. */
static uint32_t memory_order(const nt *t, uint32_t *out)
{
	uint32_t n = 0;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->size[d] == 1)
			continue;
		uint32_t at = n++;
		for (; at > 0 && reach(t, out[at - 1]) < reach(t, d); at--)
			out[at] = out[at - 1];
		out[at] = d;
	}
	return n;
}

/* The order of dimensions in memory decides, whether there are gaps or not: so one row is treated as many are. */
static bool has_order(const nt *t, uint32_t mask, bool rows, grid *g)
{
	uint32_t order[NT_DIMS], n = memory_order(t, order), i = 0;
	g->outer = g->n = g->inner = 1;
	for (; i < n && !(mask >> order[i] & 1); i++)
		g->outer *= t->size[order[i]];
	for (; i < n && mask >> order[i] & 1; i++)
		g->n *= t->size[order[i]];
	for (; i < n && !(mask >> order[i] & 1); i++)
		g->inner *= t->size[order[i]];
	return i == n && (!rows || g->inner == 1);
}

static void close_gaps(nt *t)
{
	uint32_t order[NT_DIMS], n = memory_order(t, order);
	int64_t at = 1;
	for (uint32_t i = n; i-- > 0; at *= t->size[order[i]])
		t->stride[order[i]] = at;
}

/* Kept dimensions first, then the others. */
static void order_rows(nt *t, uint32_t mask)
{
	int64_t at = 1;
	for (int wanted = 1; wanted >= 0; wanted--)
		for (uint32_t d = t->ndim; d-- > 0;) {
			if ((int)(mask >> d & 1) != wanted)
				continue;
			t->stride[d] = at;
			at *= t->size[d] ? t->size[d] : 1;
		}
}

clv_status low_grid(lowering *l, slot x, uint32_t mask, bool rows, grid *out)
{
	out->x = x;
	out->lie = *low_at(l, x);
	if (nt_numel(&out->lie) > 0 && has_order(&out->lie, mask, rows, out)) {
		if (nt_is_dense(&out->lie))
			return CLV_OK;
		close_gaps(&out->lie);
	} else {
		order_rows(&out->lie, mask);
		out->outer = out->n = out->inner = 1;
		for (uint32_t d = 0; d < out->lie.ndim; d++)
			*(mask >> d & 1 ? &out->n : &out->outer) *= out->lie.size[d];
	}
	TRY(low_temp(l, &out->lie, &out->x));
	return low_copy(l, x, out->x);
}

clv_status grid_result_form(lowering *l, node_id n, uint32_t i, const grid *g, uint32_t mask, nt *out)
{
	uint32_t order[NT_DIMS], to[NT_DIMS], count = memory_order(&g->lie, order), kept = 0;
	int64_t at = 1;
	TRY(low_form(l, n, i, out));
	bool same = out->ndim == g->lie.ndim;
	for (uint32_t d = 0; d < g->lie.ndim; d++)
		to[d] = same ? d : mask >> d & 1 ? NT_DIMS : kept++;
	if (!same && kept != out->ndim)
		return fail(CLV_E_VERIFY, "the result has %u dimensions, %u are left", out->ndim, kept);
	for (uint32_t d = 0; d < g->lie.ndim; d++)
		if (to[d] < NT_DIMS && out->size[to[d]] != (mask >> d & 1 ? 1 : g->lie.size[d]))
			return fail(CLV_E_VERIFY, "the result has other sizes than the dimensions that are left");
	for (uint32_t d = 0; d < out->ndim; d++)
		out->stride[d] = 1;
	for (uint32_t k = count; k-- > 0;) {
		if (mask >> order[k] & 1)
			continue;
		out->stride[to[order[k]]] = at;
		at *= g->lie.size[order[k]] ? g->lie.size[order[k]] : 1;
	}
	return CLV_OK;
}

clv_status low_mask(lowering *l, node_id n, uint32_t i, uint32_t ndim, uint32_t *out)
{
	int64_t dims[NT_DIMS];
	uint32_t count, most = ndim ? ndim : 1;
	TRY(low_ints(l, n, i, NT_DIMS, dims, &count));
	*out = count ? 0 : (1u << ndim) - 1;
	for (uint32_t k = 0; k < count; k++) {
		int64_t d = dims[k] < 0 ? dims[k] + most : dims[k];
		if (d < 0 || d >= most)
			return fail(CLV_E_INVALID, "a tensor of %u dimensions has no dimension %lld", ndim, (long long)dims[k]);
		*out |= ndim ? 1u << d : 0;
	}
	return CLV_OK;
}
