/* Tensors from numbers: filled with one, counted, the identity. Uninitialised memory is filled with zeros. */
#include "native/elementwise.h"

enum { FILL_WITH_0 = 16, FILL_WITH_1 = 17 }; /* `what`; else the argument that is the number */

static clv_status fill_with(lowering *l, node_id n, const term *number, slot *made)
{
	nt form;
	ew *e;
	TRY(low_form(l, n, 0, &form));
	TRY(low_result(l, n, 0, &form, false, made));
	TRY(ew_new(l, &form, &e));
	clv_status st = ew_output(e, number, *made);
	if (st == CLV_OK)
		st = ew_finish(e);
	mem_free(e);
	return st;
}

static clv_status lower_fill(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n);
	slot made;
	term number = {.kind = TERM_NUMBER, .type = NUM_I64};
	number.i = what == FILL_WITH_1;
	number.f = (double)number.i;
	if (what < FILL_WITH_0) {
		TRY(low_real(l, n, what, 0, &number.f));
		const node *x = &low_plan(l)->nodes.at[n];
		uint8_t kind = what < x->nargs ? low_plan(l)->args.at[x->args + what].kind : ARG_NONE;
		number.i = number.f > -9e18 && number.f < 9e18 ? (int64_t)number.f : INT64_MIN;
		if (kind == ARG_INT || kind == ARG_BOOL)
			TRY(low_int(l, n, what, 0, &number.i));
	}
	return fill_with(l, n, &number, &made);
}

/* ---- counting ----------------------------------------------------------------------------------------------------------------- */

typedef struct count_params {
	slot out;
	int64_t n, start, step; /* of integers */
	double from, by, to;
	number_type type;
	bool both_ends; /* linspace: the second half is counted from its end */
} count_params;

static clv_status run_count(const void *params, frame *f)
{
	const count_params *p = params;
	char *out = f->t[p->out].data;
	for (int64_t i = 0; i < p->n; i++) {
		double x = p->both_ends && i >= p->n / 2 ? p->to - p->by * (double)(p->n - 1 - i) : p->from + p->by * (double)i;
		int64_t k = (int64_t)((uint64_t)p->start + (uint64_t)p->step * (uint64_t)i);
		switch (p->type) {
		case NUM_F32: ((float *)out)[i] = (float)x; break;
		case NUM_F64: ((double *)out)[i] = x; break;
		case NUM_I64: ((int64_t *)out)[i] = k; break;
		case NUM_I32: ((int32_t *)out)[i] = (int32_t)k; break;
		case NUM_I16: ((int16_t *)out)[i] = (int16_t)k; break;
		case NUM_I8: ((int8_t *)out)[i] = (int8_t)k; break;
		default: ((uint8_t *)out)[i] = (uint8_t)k;
		}
	}
	return CLV_OK;
}

static clv_status make_count(lowering *l, node_id n, count_params *p)
{
	nt form;
	TRY(low_form(l, n, 0, &form));
	if (form.ndim != 1 || !ew_type(form.dtype, &p->type) || p->type == NUM_BOOL)
		return fail(CLV_E_UNSUPPORTED, "it counts in one dimension, in numbers");
	p->n = form.size[0];
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return low_step(l, run_count, p);
}

/* As a float, and as an integer: of floats, what is before the point. */
static clv_status count_number(lowering *l, node_id n, uint32_t i, double *as_real, int64_t *as_int)
{
	TRY(low_real(l, n, i, 0, as_real));
	if (low_int(l, n, i, 0, as_int) != CLV_OK)
		*as_int = *as_real > -9e18 && *as_real < 9e18 ? (int64_t)*as_real : INT64_MIN;
	return CLV_OK;
}

/* arange(end), arange(start, end), arange(start, end, step) */
static clv_status lower_arange(lowering *l, node_id n)
{
	count_params *p = low_alloc(l, sizeof *p);
	uint32_t what = low_what(l, n);
	TRY_MEM(p);
	p->by = 1;
	p->step = 1;
	if (what > 0)
		TRY(count_number(l, n, 0, &p->from, &p->start));
	if (what > 1)
		TRY(count_number(l, n, 2, &p->by, &p->step));
	return make_count(l, n, p);
}

static clv_status lower_linspace(lowering *l, node_id n)
{
	count_params *p = low_alloc(l, sizeof *p);
	int64_t steps;
	TRY_MEM(p);
	TRY(low_real(l, n, 0, 0, &p->from));
	TRY(low_real(l, n, 1, 0, &p->to));
	TRY(low_int(l, n, 2, 1, &steps));
	p->both_ends = steps > 1;
	p->by = steps > 1 ? (p->to - p->from) / (double)(steps - 1) : 0;
	return make_count(l, n, p);
}

static const char *takes_floats(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *r = x->nresults ? &p->args.at[x->results] : NULL;
	uint8_t d = r && r->kind == ARG_VALUE ? native_dtype(p, r->u.v) : DT_BOOL;
	return d == DT_F32 || d == DT_F64 ? NULL : "it is f32 or f64";
}

/* ---- places in a triangle -------------------------------------------------------------------------------------------------------- */

typedef struct triangle_params {
	slot out;
	int64_t rows, cols, shift, n; /* n: of places */
	bool upper, narrow;
} triangle_params;

static clv_status run_triangle(const void *params, frame *f)
{
	const triangle_params *p = params;
	char *out = f->t[p->out].data;
	int64_t at = 0;
	for (int64_t i = 0; i < p->rows; i++)
		for (int64_t j = 0; j < p->cols; j++) {
			if (p->upper ? j - i < p->shift : j - i > p->shift)
				continue;
			if (at == p->n)
				return fail(CLV_E_VERIFY, "a triangle has more than %lld places", (long long)p->n);
			for (int k = 0; k < 2; k++) {
				int64_t where = k * p->n + at;
				if (p->narrow)
					((int32_t *)out)[where] = (int32_t)(k ? j : i);
				else
					((int64_t *)out)[where] = k ? j : i;
			}
			at++;
		}
	return at == p->n
	           ? CLV_OK
	           : fail(CLV_E_VERIFY, "a triangle has %lld places, the plan has %lld", (long long)at, (long long)p->n);
}

/* tril_indices, triu_indices: rows, columns, diagonal. */
static clv_status lower_triangle(lowering *l, node_id n)
{
	triangle_params *p = low_alloc(l, sizeof *p);
	nt form;
	int64_t all;
	TRY_MEM(p);
	TRY(low_int(l, n, 0, 0, &p->rows));
	TRY(low_int(l, n, 1, 0, &p->cols));
	TRY(low_int(l, n, 2, 0, &p->shift));
	TRY(low_form(l, n, 0, &form));
	p->upper = low_what(l, n);
	p->narrow = form.dtype == DT_I32;
	if (form.ndim != 2 || form.size[0] != 2 || (form.dtype != DT_I64 && !p->narrow) || p->rows < 0 || p->cols < 0)
		return fail(CLV_E_UNSUPPORTED, "places in a triangle are pairs of i64 or i32");
	if (__builtin_mul_overflow(p->rows, p->cols, &all) || all > INT32_MAX || p->shift > INT32_MAX ||
	    p->shift < -INT32_MAX)
		return fail(CLV_E_OVERFLOW, "a triangle of more than 2^31 places");
	p->n = form.size[1];
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return low_step(l, run_triangle, p);
}

/* ---- the identity --------------------------------------------------------------------------------------------------------------- */

static clv_status lower_eye(lowering *l, node_id n)
{
	term zero = {.kind = TERM_NUMBER, .type = NUM_I64}, one = {.kind = TERM_NUMBER, .type = NUM_I64, .i = 1, .f = 1};
	nt form, diagonal = {.ndim = 1};
	slot on, y;
	ew *e;
	TRY(fill_with(l, n, &zero, &y));
	TRY(low_form(l, n, 0, &form));
	if (form.ndim != 2)
		return fail(CLV_E_VERIFY, "the identity has two dimensions");
	const nt *t = low_at(l, y);
	diagonal.dtype = t->dtype;
	diagonal.size[0] = form.size[0] < form.size[1] ? form.size[0] : form.size[1];
	diagonal.stride[0] = t->stride[0] + t->stride[1];
	TRY(low_part(l, y, 0, &diagonal, &on));
	TRY(ew_new(l, &diagonal, &e));
	clv_status st = ew_output(e, &one, on);
	if (st == CLV_OK)
		st = ew_finish(e);
	mem_free(e);
	return st;
}

#define FILL(name, with)                                                                                               \
	{                                                                                                                  \
		.id = OP_##name, .lower = lower_fill, .what = (with)                                                           \
	}

const native_op native_ops_fill[] = {
	{.id = OP_arange, .lower = lower_arange},
	{.id = OP_arange_start, .lower = lower_arange, .what = 1},
	{.id = OP_arange_start_step, .lower = lower_arange, .what = 2},
	FILL(empty_like, FILL_WITH_0),
	FILL(empty_memory_format, FILL_WITH_0),
	{.id = OP_eye, .lower = lower_eye},
	{.id = OP_eye_m, .lower = lower_eye},
	FILL(full, 1),
	FILL(full_like, 1),
	{.id = OP_linspace, .takes = takes_floats, .widens = true, .lower = lower_linspace},
	FILL(new_empty, FILL_WITH_0),
	FILL(new_full, 2),
	FILL(new_ones, FILL_WITH_1),
	FILL(new_zeros, FILL_WITH_0),
	FILL(ones, FILL_WITH_1),
	FILL(ones_like, FILL_WITH_1),
	FILL(scalar_tensor, 0),
	{.id = OP_tril_indices, .lower = lower_triangle},
	{.id = OP_triu_indices, .lower = lower_triangle, .what = 1},
	FILL(zeros, FILL_WITH_0),
	FILL(zeros_like, FILL_WITH_0),
	{.id = OP_UNKNOWN},
};
