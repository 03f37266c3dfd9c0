/* Constants that follow the sizes: torch.tensor([B, 8]), torch.tensor(list(range(B))), torch.tensor([0.5] * B).
 *
 * The data of such a constant was seen at every recorded size. When its shape stays, each element is a number with a
 * formula. When its length follows the sizes, it must be all one number, or a ramp: first, first+step, first+2*step, …,
 * divided by or multiplied with a number. What is found becomes ordinary factory operators (full, arange) in the plan, which
 * make the same bits; everything else is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "capture/builder.h"
#include "plan/fit.h"

enum { TABLE_MAX = 1 << 16, ELEMENTS_MAX = 256, DIVISOR_MAX = 64 };

/* The data at every size: the stream that is built first. Integers and bools are ints. */
typedef struct table_data {
	const stream_tensor *x; /* of the stream that is built */
	uint32_t t, n;          /* tensor; how many streams */
	bool floats, same_shape;
	int64_t *count; /* per stream: elements */
	int64_t **ints;
	double **reals;
	arena a; /* all arrays here, and those that looking for a formula takes */
} table_data;

static const stream_tensor *seen_in(const builder *b, uint32_t i, uint32_t t)
{
	return &(i ? b->sizes->streams[i - 1] : b->s)->tensors.at[t];
}

clv_status table_moves(const builder *b, uint32_t t, bool *out)
{
	*out = false;
	for (uint32_t i = 0; b->sizes && i < b->sizes->n && !*out; i++) {
		bool same = false;
		TRY(br_bits_equal(b->s->tensors.at[t].data, b->sizes->streams[i]->tensors.at[t].data, &same));
		*out = !same;
	}
	return CLV_OK;
}

static clv_status refused(const char *why)
{
	return fail(CLV_E_UNSUPPORTED, "a constant that the forward makes (torch.tensor, a table) follows the sizes %s",
	            why);
}

static bool is_float(uint8_t d)
{
	return d == DT_F16 || d == DT_F32 || d == DT_F64 || d == DT_BF16;
}

static bool is_integer_dtype(uint8_t d)
{
	return d <= DT_I64 || d == DT_BOOL;
}

static clv_status read_one(table_data *d, const stream_tensor *x, uint32_t i)
{
	int64_t n = 1;
	for (uint32_t k = 0; k < x->ndim; k++)
		n *= x->sizes[k];
	if (n > TABLE_MAX)
		return refused("and is too large to be looked into");
	d->count[i] = n;
	d->same_shape &= !d->x->ndim || !memcmp(x->sizes, d->x->sizes, x->ndim * sizeof *x->sizes);
	d->ints[i] = arena_array(&d->a, (size_t)n, sizeof **d->ints);
	d->reals[i] = arena_array(&d->a, (size_t)n, sizeof **d->reals);
	TRY_MEM(d->ints[i] && d->reals[i]);
	return d->floats ? br_read_floats(x->data, d->reals[i]) : br_read_ints(x->data, d->ints[i]);
}

static clv_status table_open(const builder *b, uint32_t t, table_data *d)
{
	const stream_tensor *x = &b->s->tensors.at[t];
	*d = (table_data){.x = x, .t = t, .n = b->sizes->n + 1, .floats = is_float(x->dtype), .same_shape = true};
	if ((!is_float(x->dtype) && !is_integer_dtype(x->dtype)) || !x->strided || x->requires_grad || x->conj || x->neg)
		return refused("and is of a type that has no formulas");
	d->count = arena_array(&d->a, d->n, sizeof *d->count);
	d->ints = arena_array(&d->a, d->n, sizeof *d->ints);
	d->reals = arena_array(&d->a, d->n, sizeof *d->reals);
	TRY_MEM(d->count && d->ints && d->reals);
	for (uint32_t i = 0; i < d->n; i++)
		TRY(read_one(d, seen_in(b, i, t), i));
	return CLV_OK;
}

/* Floats of few bits say little: only whole numbers among them have formulas. */
static clv_status few_bits(builder *b, arg *out)
{
	expr_id e;
	bool same = true;
	b->seen.n = 0;
	for (uint32_t i = 0; i < b->floats.n; i++) {
		double v = b->floats.at[i];
		same &= same_bits(v, b->floats.at[0]);
		TRY(vec_push(&b->seen, v == floor(v) && fabs(v) < 2048 ? (int64_t)v : INT64_MIN + (int64_t)i));
	}
	*out = (arg){.kind = ARG_FLOAT, .u.f = b->floats.at[0]};
	if (same)
		return CLV_OK;
	TRY(number_formula(b, &e));
	out->kind = ARG_REAL;
	return real_int(b->p, e, &out->u.r);
}

/* Element k[i] of stream i, for all i: a literal or a formula. */
static clv_status element(builder *b, const table_data *d, const int64_t *k, arg *out)
{
	b->seen.n = b->floats.n = 0;
	for (uint32_t i = 0; i < d->n; i++) {
		if (d->floats)
			TRY(vec_push(&b->floats, d->reals[i][k[i]]));
		else
			TRY(vec_push(&b->seen, d->ints[i][k[i]]));
	}
	*out = (arg){.kind = ARG_INT};
	if (d->floats && d->x->dtype != DT_F32 && d->x->dtype != DT_F64)
		return few_bits(b, out);
	if (d->floats)
		return float_formula(b, d->x->dtype == DT_F32 ? FIT_SINGLE : FIT_DOUBLE, out);
	if (d->x->dtype != DT_BOOL)
		return number_formula(b, &out->u.e);
	for (uint32_t i = 1; i < b->seen.n; i++)
		if (b->seen.at[i] != b->seen.at[0])
			return refused("and is a bool");
	out->kind = ARG_BOOL;
	out->u.b = b->seen.at[0] != 0;
	return CLV_OK;
}

/* A value between two of our nodes: of the constant's device, this dtype and these sizes. */
static clv_status between(builder *b, const table_data *d, uint8_t type, const expr_id *shape, uint32_t ndim,
                          value_id *out)
{
	tensor_spec spec = {.dtype = (dtype)type, .ndim = ndim, .shape = shape, .device = d->x->device};
	return plan_tensor(b->p, VALUE_RESULT, NULL, &spec, out);
}

/* The four arguments at the end of every factory operator. */
static clv_status factory_tail(builder *b, const table_data *d, uint8_t type, arg *out)
{
	out[0] = (arg){.kind = ARG_DTYPE, .u.code = type};
	out[1] = (arg){.kind = ARG_NONE};
	out[2] = (arg){.kind = ARG_DEVICE};
	out[3] = (arg){.kind = ARG_NONE};
	return plan_cstr(b->p, d->x->device, &out[2].u.s);
}

static clv_status add_full(builder *b, uint32_t op, const table_data *d, arg number)
{
	arg a[6];
	TRY(shape_list(b, d->t, &a[0]));
	a[1] = number;
	TRY(factory_tail(b, d, d->x->dtype, &a[2]));
	return insert_tensor(b, op, OP_full, a, 6, d->t);
}

/* %x = full([], number) for one element. */
static clv_status add_element(builder *b, uint32_t op, const table_data *d, arg number, arg *out)
{
	arg a[6];
	expr_id none = 0;
	*out = (arg){.kind = ARG_VALUE};
	TRY(plan_list(b->p, NULL, 0, &a[0]));
	a[1] = number;
	TRY(factory_tail(b, d, d->x->dtype, &a[2]));
	TRY(between(b, d, d->x->dtype, &none, 0, &out->u.v));
	return insert_value(b, op, OP_full, a, 6, out->u.v);
}

static clv_status add_view(builder *b, uint32_t op, const table_data *d, value_id flat)
{
	arg a[2] = {{.kind = ARG_VALUE, .u.v = flat}};
	uint32_t storage = d->x->storage;
	if (storage != NONE)
		b->root[storage] = flat; /* the result is a view of it */
	TRY(shape_list(b, d->t, &a[1]));
	return insert_tensor(b, op, OP_view, a, 2, d->t);
}

/* Elements one by one, stacked. */
static clv_status add_stack(builder *b, uint32_t op, const table_data *d, const arg *elements)
{
	arg a[2] = {{.kind = ARG_NONE}, {.kind = ARG_INT}};
	uint32_t n = (uint32_t)d->count[0];
	expr_id length;
	value_id flat;
	TRY(plan_list(b->p, elements, n, &a[0]));
	TRY(expr_const(b->p, 0, &a[1].u.e));
	if (d->x->ndim == 1)
		return insert_tensor(b, op, OP_stack, a, 2, d->t);
	TRY(expr_const(b->p, n, &length));
	TRY(between(b, d, d->x->dtype, &length, 1, &flat));
	TRY(insert_value(b, op, OP_stack, a, 2, flat));
	return add_view(b, op, d, flat);
}

static clv_status add_fixed(builder *b, uint32_t op, table_data *d)
{
	if (d->count[0] > ELEMENTS_MAX)
		return refused("and has too many elements to find a formula for each");
	arg *elements = arena_array(&d->a, (size_t)d->count[0], sizeof *elements);
	int64_t *k = arena_array(&d->a, d->n, sizeof *k);
	TRY_MEM(elements && k);
	for (int64_t e = 0; e < d->count[0]; e++) {
		arg number;
		for (uint32_t i = 0; i < d->n; i++)
			k[i] = e;
		TRY(element(b, d, k, &number));
		if (d->count[0] == 1)
			return add_full(b, op, d, number);
		TRY(add_element(b, op, d, number, &elements[e]));
	}
	return add_stack(b, op, d, elements);
}

static bool all_one_number(const table_data *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		for (int64_t e = 0; e < d->count[i]; e++)
			if (d->floats ? !same_bits(d->reals[i][e], d->reals[i][0]) : d->ints[i][e] != d->ints[i][0])
				return false;
	return true;
}

static clv_status add_fill(builder *b, uint32_t op, table_data *d)
{
	arg number;
	int64_t *k = arena_array(&d->a, d->n, sizeof *k);
	TRY_MEM(k);
	TRY(element(b, d, k, &number));
	return add_full(b, op, d, number);
}

/* The formula of numbers that were seen at some of the sizes only. */
static clv_status fit_where(builder *b, table_data *d, const int64_t *y, const bool *known /* NULL: all */,
                            expr_id *out)
{
	const size_probes *z = b->sizes;
	uint32_t n = 0, w = z->nsymbols;
	int64_t *at = arena_array(&d->a, (size_t)d->n * w, sizeof *at), *v = arena_array(&d->a, d->n, sizeof *v);
	TRY_MEM(at && v);
	for (uint32_t i = 0; i < d->n; i++) {
		if (known && !known[i])
			continue;
		memcpy(at + (size_t)n * w, z->points + (size_t)i * w, w * sizeof *at);
		v[n++] = y[i];
	}
	*out = NONE;
	return n >= 4 ? fit_int(b->p, &(fit_points){at, n, w}, v, out) : CLV_OK;
}

/* v[e] = first + step*e at every size, as formulas; `first` is NONE when it is none. */
typedef struct ramp {
	expr_id first, step, count;
} ramp;

static bool is_ramp(const int64_t *v, int64_t n)
{
	int64_t step;
	if (n < 2)
		return true;
	if (__builtin_sub_overflow(v[1], v[0], &step))
		return false;
	for (int64_t e = 1; e < n; e++) {
		int64_t d;
		if (__builtin_sub_overflow(v[e], v[e - 1], &d) || d != step)
			return false;
	}
	return true;
}

static clv_status find_ramp(builder *b, table_data *d, ramp *out)
{
	int64_t *first = arena_array(&d->a, d->n, sizeof *first), *step = arena_array(&d->a, d->n, sizeof *step);
	bool *has_first = arena_array(&d->a, d->n, sizeof *has_first),
		 *has_step = arena_array(&d->a, d->n, sizeof *has_step);
	*out = (ramp){NONE, NONE, NONE};
	TRY_MEM(first && step && has_first && has_step);
	for (uint32_t i = 0; i < d->n; i++) {
		if (!is_ramp(d->ints[i], d->count[i]))
			return CLV_OK;
		has_first[i] = d->count[i] > 0;
		has_step[i] = d->count[i] > 1;
		first[i] = has_first[i] ? d->ints[i][0] : 0;
		step[i] = has_step[i] ? d->ints[i][1] - d->ints[i][0] : 0;
	}
	TRY(fit_where(b, d, d->count, NULL, &out->count));
	TRY(fit_where(b, d, step, has_step, &out->step));
	TRY(fit_where(b, d, first, has_first, &out->first));
	if (out->count == NONE || out->step == NONE)
		out->first = NONE;
	return CLV_OK;
}

/* What happens to a ramp in double: op is OP_div_Tensor, OP_mul_Tensor or none, with this number. */
typedef struct scaling {
	uint16_t op; /* OP_UNKNOWN: nothing */
	arg number;
} scaling;

static clv_status add_arange(builder *b, uint32_t op, const table_data *d, const ramp *r, uint8_t type, bool last,
                             value_id *out)
{
	arg a[7] = {{.kind = ARG_INT, .u.e = r->first}, {.kind = ARG_INT}, {.kind = ARG_INT, .u.e = r->step}};
	expr_id length;
	TRY(expr_make(b->p, EXPR_MUL, r->step, r->count, &length));
	TRY(expr_make(b->p, EXPR_ADD, r->first, length, &a[1].u.e));
	TRY(factory_tail(b, d, type, &a[3]));
	if (last)
		return insert_tensor(b, op, OP_arange_start_step, a, 7, d->t);
	TRY(between(b, d, type, &r->count, 1, out));
	return insert_value(b, op, OP_arange_start_step, a, 7, *out);
}

/* %y = op(%x, number) in double */
static clv_status add_scaling(builder *b, uint32_t op, const table_data *d, const ramp *r, const scaling *s,
                              value_id *v)
{
	arg a[2] = {{.kind = ARG_VALUE, .u.v = *v}, s->number};
	a[1].wrapped = 1;
	TRY(between(b, d, DT_F64, &r->count, 1, v));
	return insert_value(b, op, s->op, a, 2, *v);
}

static clv_status add_cast(builder *b, uint32_t op, const table_data *d, const ramp *r, bool last, value_id *v)
{
	arg a[5] = {{.kind = ARG_VALUE, .u.v = *v},
	            {.kind = ARG_DTYPE, .u.code = d->x->dtype},
	            {.kind = ARG_BOOL},
	            {.kind = ARG_BOOL, .u.b = true},
	            {.kind = ARG_NONE}};
	if (last)
		return insert_tensor(b, op, OP_to_dtype, a, 5, d->t);
	TRY(between(b, d, d->x->dtype, &r->count, 1, v));
	return insert_value(b, op, OP_to_dtype, a, 5, *v);
}

static clv_status add_ramp(builder *b, uint32_t op, const table_data *d, const ramp *r, const scaling *s)
{
	value_id v = NONE;
	bool flat = d->x->ndim == 1, plain = !d->floats && d->x->dtype != DT_BOOL;
	TRY(add_arange(b, op, d, r, plain ? d->x->dtype : DT_F64, plain && flat, &v));
	if (!plain && s->op)
		TRY(add_scaling(b, op, d, r, s, &v));
	if (!plain)
		TRY(add_cast(b, op, d, r, flat, &v));
	return flat ? CLV_OK : add_view(b, op, d, v);
}

static double as_stored(const table_data *d, double v)
{
	return d->x->dtype == DT_F32 ? (double)(float)v : v;
}

/* Fills d->ints with integers m, m/by[i] (or m*by[i]) being the data at every size; false when there are none. */
static bool whole_numbers(table_data *d, const double *by, bool divide)
{
	for (uint32_t i = 0; i < d->n; i++) {
		for (int64_t e = 0; e < d->count[i]; e++) {
			double v = d->reals[i][e], m = divide ? v * by[i] : v / by[i];
			if (!(fabs(m) < 1e15) || by[i] == 0)
				return false;
			m = nearbyint(m);
			d->ints[i][e] = (int64_t)m;
			if (!same_bits(as_stored(d, divide ? m / by[i] : m * by[i]), v))
				return false;
		}
	}
	return true;
}

static clv_status try_ramp(builder *b, uint32_t op, table_data *d, const double *by, const scaling *s, bool *done)
{
	ramp r;
	if (*done || !whole_numbers(d, by, s->op != OP_mul_Tensor))
		return CLV_OK;
	TRY(find_ramp(b, d, &r));
	if (r.first == NONE)
		return CLV_OK;
	*done = true;
	return add_ramp(b, op, d, &r, s);
}

/* Divided by a size: the length, one less, one more, or a number. */
static clv_status try_divisors(builder *b, uint32_t op, table_data *d, double *by, bool *done)
{
	int64_t *n = arena_array(&d->a, d->n, sizeof *n);
	TRY_MEM(n);
	for (int64_t extra = -1; extra <= DIVISOR_MAX && !*done; extra++) {
		scaling s = {OP_div_Tensor, {.kind = ARG_INT}};
		for (uint32_t i = 0; i < d->n; i++) {
			n[i] = extra > 1 ? extra : d->count[i] + extra;
			by[i] = (double)n[i];
		}
		TRY(fit_where(b, d, n, NULL, &s.number.u.e));
		if (s.number.u.e != NONE)
			TRY(try_ramp(b, op, d, by, &s, done));
	}
	return CLV_OK;
}

/* Times a number, as people write it. */
static clv_status try_factors(builder *b, uint32_t op, table_data *d, double *by, bool *done)
{
	char text[NUMBER_TEXT];
	uint32_t longest = 0;
	for (uint32_t i = 1; i < d->n; i++)
		if (d->count[i] > d->count[longest])
			longest = i;
	if (d->count[longest] < 2)
		return CLV_OK;
	double step = d->reals[longest][1] - d->reals[longest][0];
	for (int digits = 1; digits <= 9 && !*done && step != 0 && isfinite(step); digits++) {
		scaling s = {OP_mul_Tensor, {.kind = ARG_FLOAT}};
		snprintf(text, sizeof text, "%.*e", digits - 1, step);
		if (!number_parse(text, &s.number.u.f))
			continue;
		for (uint32_t i = 0; i < d->n; i++)
			by[i] = s.number.u.f;
		TRY(try_ramp(b, op, d, by, &s, done));
	}
	return CLV_OK;
}

static clv_status add_float_ramp(builder *b, uint32_t op, table_data *d, bool *done)
{
	double *by = arena_array(&d->a, d->n, sizeof *by);
	TRY_MEM(by);
	for (uint32_t i = 0; i < d->n; i++)
		by[i] = 1;
	TRY(try_ramp(b, op, d, by, &(scaling){OP_UNKNOWN, {0}}, done));
	if (d->x->dtype != DT_F32 && d->x->dtype != DT_F64)
		return CLV_OK;
	TRY(try_divisors(b, op, d, by, done));
	return try_factors(b, op, d, by, done);
}

static clv_status add_moving(builder *b, uint32_t op, table_data *d)
{
	bool done = false;
	ramp r;
	if (all_one_number(d) && d->count[0])
		return add_fill(b, op, d);
	if (d->floats) {
		TRY(add_float_ramp(b, op, d, &done));
	} else if (d->x->dtype != DT_BOOL) {
		TRY(find_ramp(b, d, &r));
		done = r.first != NONE;
		if (done)
			TRY(add_ramp(b, op, d, &r, &(scaling){OP_UNKNOWN, {0}}));
	}
	return done ? CLV_OK : refused("in a way that no formula explains");
}

clv_status insert_table(builder *b, uint32_t op, uint32_t t)
{
	table_data d;
	clv_status st = table_open(b, t, &d);
	if (st == CLV_OK)
		st = d.same_shape ? add_fixed(b, op, &d) : add_moving(b, op, &d);
	arena_free(&d.a);
	return st;
}
