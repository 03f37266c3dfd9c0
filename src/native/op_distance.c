/* Distances of all rows of one tensor to all rows of another: cdist; of rows at the same places: pairwise_distance and
 * cosine_similarity.
 *
 * Where one side has many rows, squares of distances are made of a product, as in torch. Sizes that are no symbols decide, so
 * that no batch changes a row. */
#include <math.h>
#include <string.h>

#include "native/multiply.h"

typedef enum norm_kind { NORM_COUNT, NORM_SUM, NORM_SQUARES, NORM_LARGEST, NORM_POWER } norm_kind;
enum { PARTS = 8, MANY_ROWS = 25 };

/* A factor: rows without gaps, and strides of its batches, 0 where these are shared. */
typedef struct factor {
	slot at;
	int64_t stride[NT_DIMS];
} factor;

typedef struct distances {
	factor a, b;
	slot out;
	uint32_t nbatch;
	int64_t batch[NT_DIMS], batches, rows, cols, n;
	norm_kind norm;
	double p;
	/* As a product: squares of rows. */
	slot a_squares, b_squares;
	bool shared, apart; /* one B for all batches, one for each */
} distances;

typedef struct distances_run {
	const distances *x;
	const char *a, *b;
	char *out;
} distances_run;

/* Elements before the first row of a batch. */
static int64_t row_at(const distances *x, const factor *f, int64_t batch)
{
	int64_t at = 0;
	for (uint32_t d = x->nbatch; d-- > 0; batch /= x->batch[d])
		at += batch % x->batch[d] * f->stride[d];
	return at;
}

#define REAL float
#define REAL_FN(name) name##f
#define DISTANCE(name) name##_f32
#include "native/distances.h"

#define REAL double
#define REAL_FN(name) name
#define DISTANCE(name) name##_f64
#include "native/distances.h"

static clv_status run_distances(const void *params, frame *f)
{
	const distances *x = params;
	distances_run r = {x, f->t[x->a.at].data, f->t[x->b.at].data, f->t[x->out].data};
	int64_t grain = (int64_t)(16384 / ((double)x->cols * (double)(x->n + 1) + 1)) + 1;
	if (x->cols)
		team_run(f->team, x->batches * x->rows, grain, f->t[x->out].dtype == DT_F32 ? items_f32 : items_f64, &r);
	return CLV_OK;
}

/* ---- as a product ---------------------------------------------------------------------------------------------------------- */

static clv_status run_squares(const void *params, frame *f)
{
	const distances *x = params;
	const slot from[2] = {x->a.at, x->b.at}, to[2] = {x->a_squares, x->b_squares};
	for (int i = 0; i < 2; i++)
		f->k->reduce_rows(REDUCE_SQUARES, (const float *)f->t[from[i]].data, nt_numel(&f->t[to[i]]), x->n,
		                  (float *)f->t[to[i]].data);
	return CLV_OK;
}

/* The squares of A and -2 A·B are there. */
static void finish_block(const void *ctx, frame *f, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col,
                         int64_t cols)
{
	const distances *x = ctx;
	for (int64_t i = 0; i < rows; i++, block += ldc) {
		const float *b = (const float *)f->t[x->b_squares].data + (x->shared ? 0 : (row + i) / x->rows * x->cols) + col;
		for (int64_t j = 0; j < cols; j++) {
			float d = block[j] + b[j];
			block[j] = sqrtf(d < 0 ? 0 : d);
		}
	}
}

/* A number for each row. */
static clv_status squares_of(lowering *l, slot s, slot *out)
{
	nt form = *low_at(l, s);
	form.size[form.ndim - 1] = 1;
	nt_rows(&form);
	return low_temp(l, &form, out);
}

static clv_status as_product(lowering *l, distances *x)
{
	uint8_t turned[NT_DIMS], ndim = low_at(l, x->b.at)->ndim;
	multiply m = {.a = x->a.at, .c = x->out, .alpha = -2, .beta = 1, .e = {finish_block, x}};
	for (uint8_t d = 0; d < ndim; d++)
		turned[d] = d;
	turned[ndim - 2] = (uint8_t)(ndim - 1);
	turned[ndim - 1] = (uint8_t)(ndim - 2);
	TRY(squares_of(l, x->a.at, &x->a_squares));
	TRY(squares_of(l, x->b.at, &x->b_squares));
	TRY(low_reads(l, x->b.at)); /* the product packs it */
	TRY(low_step(l, run_squares, x));
	TRY(mul_view(l, x->b.at, ndim, turned, &m.b));
	m.d = x->a_squares;
	return mul_lower(l, &m);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------------------- */

/* The rows of argument i, where their number is the same in every call. */
static int64_t fixed_rows(const lowering *l, node_id n, uint32_t i)
{
	const plan *p = low_plan(l);
	const arg *a = &p->args.at[p->nodes.at[n].args + i];
	const value *v = a->kind == ARG_VALUE ? &p->values.at[a->u.v] : NULL;
	int64_t rows;
	return v && v->ndim >= 2 && expr_is_const(p, p->dims.at[v->shape + v->ndim - 2], &rows) ? rows : 0;
}

static clv_status no_fit(void)
{
	return fail(CLV_E_VERIFY, "the sizes of what distances are between do not fit together");
}

static clv_status read_factor(lowering *l, node_id n, uint32_t i, factor *f)
{
	TRY(low_tensor(l, n, i, &f->at));
	if (low_at(l, f->at)->ndim < 2)
		return no_fit();
	return low_as_rows(l, f->at, &f->at);
}

static clv_status spread(lowering *l, factor *f, const nt *form)
{
	nt all;
	TRY(mul_spread(low_at(l, f->at), form, &all));
	memcpy(f->stride, all.stride, sizeof f->stride);
	return CLV_OK;
}

static clv_status read_sizes(lowering *l, distances *x, const nt *form)
{
	const nt a = *low_at(l, x->a.at), b = *low_at(l, x->b.at);
	x->n = a.size[a.ndim - 1], x->rows = a.size[a.ndim - 2], x->cols = b.size[b.ndim - 2];
	if (form->dtype != a.dtype || b.dtype != a.dtype || form->ndim != (a.ndim > b.ndim ? a.ndim : b.ndim) ||
	    b.size[b.ndim - 1] != x->n || form->size[form->ndim - 2] != x->rows || form->size[form->ndim - 1] != x->cols)
		return no_fit();
	x->nbatch = form->ndim - 2u;
	x->batches = 1;
	x->shared = x->apart = true;
	for (uint32_t d = 0, back = form->ndim; d < x->nbatch; d++, back--) {
		int64_t one = a.ndim < back ? 1 : a.size[a.ndim - back], other = b.ndim < back ? 1 : b.size[b.ndim - back];
		x->batch[d] = one == 1 ? other : one;
		x->batches *= x->batch[d];
		x->shared = x->shared && other == 1;
		x->apart = x->apart && other == x->batch[d];
		if (form->size[d] != x->batch[d])
			return no_fit();
	}
	TRY(spread(l, &x->a, form));
	return spread(l, &x->b, form);
}

static norm_kind norm_of(double p)
{
	return p == 0 ? NORM_COUNT : p == 1 ? NORM_SUM : p == 2 ? NORM_SQUARES : isinf(p) ? NORM_LARGEST : NORM_POWER;
}

/* compute_mode: 0 by sizes, 1 a product, 2 none. */
static bool is_product(const lowering *l, node_id n, const distances *x, int64_t mode)
{
	bool many = fixed_rows(l, n, 0) > MANY_ROWS || fixed_rows(l, n, 1) > MANY_ROWS;
	return x->norm == NORM_SQUARES && x->n > 0 && (x->shared || x->apart) && (mode == 1 || (mode == 0 && many)) &&
	       low_at(l, x->a.at)->dtype == DT_F32;
}

static const char *takes_distances(const plan *p, node_id n)
{
	return native_floats(p, n, 2) ? NULL : "distances of other types than f32 or f64";
}

static clv_status lower_distances(lowering *l, node_id n)
{
	distances *x = low_alloc(l, sizeof *x);
	int64_t mode;
	nt form;
	TRY_MEM(x);
	TRY(read_factor(l, n, 0, &x->a));
	TRY(read_factor(l, n, 1, &x->b));
	TRY(low_real(l, n, 2, 2, &x->p));
	TRY(low_int(l, n, 3, 0, &mode));
	if (!(x->p >= 0) || mode < 0 || mode > 2)
		return fail(CLV_E_UNSUPPORTED, "distances of a negative power, or in a mode that is not known");
	x->norm = norm_of(x->p);
	TRY(low_form(l, n, 0, &form));
	TRY(read_sizes(l, x, &form));
	TRY(low_result(l, n, 0, &form, true, &x->out));
	return is_product(l, n, x, mode) ? as_product(l, x) : low_step(l, run_distances, x);
}

/* ---- rows at the same places ------------------------------------------------------------------------------------------------- */

typedef struct pairs {
	slot a, b, out;
	uint32_t nouter;
	int64_t outer[NT_DIMS], count, n;
	int64_t a_step[NT_DIMS], b_step[NT_DIMS], a_stride, b_stride; /* the last two: along a row */
	bool cosine;
	norm_kind norm;
	double p, eps;
} pairs;

static double value_at(const nt *t, int64_t i)
{
	return t->dtype == DT_F32 ? (double)((const float *)t->data)[i] : ((const double *)t->data)[i];
}

static double cosine_of(const pairs *x, const nt *a, int64_t i, const nt *b, int64_t j)
{
	double squares[2] = {0}, dot = 0;
	for (int64_t k = 0; k < x->n; k++) {
		double u = value_at(a, i + k * x->a_stride), v = value_at(b, j + k * x->b_stride);
		squares[0] += u * u, squares[1] += v * v, dot += u * v;
	}
	for (int k = 0; k < 2; k++) {
		squares[k] = sqrt(squares[k]);
		dot /= squares[k] < x->eps ? x->eps : squares[k]; /* nan stays */
	}
	return dot;
}

static double distance_of(const pairs *x, const nt *a, int64_t i, const nt *b, int64_t j)
{
	double all = 0;
	for (int64_t k = 0; k < x->n; k++) {
		double d = fabs(value_at(a, i + k * x->a_stride) - value_at(b, j + k * x->b_stride) + x->eps);
		switch (x->norm) {
		case NORM_COUNT: all += d != d ? d : d != 0; break;
		case NORM_SUM: all += d; break;
		case NORM_SQUARES: all += d * d; break;
		case NORM_LARGEST: all = d > all || d != d ? d : all; break;
		case NORM_POWER: all += pow(d, x->p); break;
		}
	}
	return x->norm == NORM_SQUARES ? sqrt(all) : x->norm == NORM_POWER ? pow(all, 1 / x->p) : all;
}

typedef struct pairs_run {
	const pairs *x;
	frame *f;
} pairs_run;

static void pair_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const pairs_run *r = ctx;
	const pairs *x = r->x;
	const nt *a = &r->f->t[x->a], *b = &r->f->t[x->b], *out = &r->f->t[x->out];
	(void)thread;
	for (int64_t item = first; item < end; item++) {
		int64_t i = 0, j = 0, rest = item;
		for (uint32_t d = x->nouter; d-- > 0; rest /= x->outer[d]) {
			i += rest % x->outer[d] * x->a_step[d];
			j += rest % x->outer[d] * x->b_step[d];
		}
		double y = x->cosine ? cosine_of(x, a, i, b, j) : distance_of(x, a, i, b, j);
		if (out->dtype == DT_F32)
			((float *)out->data)[item] = (float)y;
		else
			((double *)out->data)[item] = y;
	}
}

static clv_status run_pairs(const void *params, frame *f)
{
	const pairs *x = params;
	pairs_run r = {x, f};
	team_run(f->team, x->count, 8192 / (x->n + 1) + 1, pair_items, &r);
	return CLV_OK;
}

/* Both are spread over their common sizes; `dim` is left out of the result, or has size 1 in it. */
static clv_status read_pairs(lowering *l, node_id n, pairs *x, uint32_t dim, bool kept)
{
	const nt a = *low_at(l, x->a), b = *low_at(l, x->b);
	nt form, all = {.ndim = a.ndim > b.ndim ? a.ndim : b.ndim}, own, other;
	for (uint32_t d = 0, back = all.ndim; d < all.ndim; d++, back--) {
		int64_t one = a.ndim < back ? 1 : a.size[a.ndim - back], two = b.ndim < back ? 1 : b.size[b.ndim - back];
		all.size[d] = one == 1 ? two : one;
	}
	TRY(low_form(l, n, 0, &form));
	if (!nt_expand(&a, all.ndim, all.size, &own) || !nt_expand(&b, all.ndim, all.size, &other) || a.dtype != b.dtype ||
	    form.dtype != a.dtype || form.ndim + (kept ? 0 : 1) != all.ndim)
		return no_fit();
	x->n = all.size[dim], x->a_stride = own.stride[dim], x->b_stride = other.stride[dim];
	x->count = 1;
	for (uint32_t d = 0; d < all.ndim; d++) {
		uint32_t to = d > dim && !kept ? d - 1 : d;
		if ((d != dim || kept) && form.size[to] != (d == dim ? 1 : all.size[d]))
			return no_fit();
		if (d == dim)
			continue;
		x->outer[x->nouter] = all.size[d];
		x->a_step[x->nouter] = own.stride[d];
		x->b_step[x->nouter++] = other.stride[d];
		x->count *= all.size[d];
	}
	return low_result(l, n, 0, &form, true, &x->out);
}

static clv_status lower_pairs(lowering *l, node_id n)
{
	pairs *x = low_alloc(l, sizeof *x);
	uint32_t dim, ndim;
	bool kept = false;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &x->a));
	TRY(low_tensor(l, n, 1, &x->b));
	ndim = low_at(l, x->a)->ndim > low_at(l, x->b)->ndim ? low_at(l, x->a)->ndim : low_at(l, x->b)->ndim;
	x->cosine = low_what(l, n);
	dim = ndim - 1;
	if (ndim == 0)
		return fail(CLV_E_UNSUPPORTED, "rows have a dimension");
	if (x->cosine) {
		TRY(low_dim(l, n, 2, 1, ndim, &dim));
		TRY(low_real(l, n, 3, 1e-8, &x->eps));
	} else {
		TRY(low_real(l, n, 2, 2, &x->p));
		TRY(low_real(l, n, 3, 1e-6, &x->eps));
		TRY(low_bool(l, n, 4, false, &kept));
		if (!(x->p >= 0))
			return fail(CLV_E_UNSUPPORTED, "distances of a negative power");
		x->norm = norm_of(x->p);
	}
	TRY(read_pairs(l, n, x, dim, kept));
	return low_step(l, run_pairs, x);
}

const native_op native_ops_distance[] = {
	{.id = OP__cdist_forward, .takes = takes_distances, .widens = true, .lower = lower_distances},
	{.id = OP_cdist, .takes = takes_distances, .widens = true, .lower = lower_distances},
	{.id = OP_cosine_similarity, .takes = takes_distances, .widens = true, .lower = lower_pairs, .what = 1},
	{.id = OP_pairwise_distance, .takes = takes_distances, .widens = true, .lower = lower_pairs},
	{.id = OP_UNKNOWN},
};
