/* Guards: operators that read data on the host (item, is_nonzero, equal), and what the plan expects of them. A run in which it
 * differs ends with CLV_E_GUARD, as on the tape, so that another plan of the model can serve the call. */
#include "native/native.h"

#include <string.h>

#include "runtime/call.h"
#include "tensor/tensor.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------------------- */

typedef struct host_number {
	uint8_t type; /* value_type: BOOL, INT, FLOAT */
	int64_t i;    /* BOOL too */
	double f;
} host_number;

static bool same_number(const host_number *a, const host_number *b)
{
	return a->type == b->type && (a->type == TYPE_FLOAT ? same_bits(a->f, b->f) : a->i == b->i);
}

static void print_number(strbuf *b, const host_number *x)
{
	if (x->type == TYPE_FLOAT)
		strbuf_double(b, x->f);
	else if (x->type == TYPE_INT)
		strbuf_int(b, x->i);
	else
		strbuf_puts(b, x->i ? "true" : "false");
}

static clv_status number_text(const host_number *x, char **out)
{
	strbuf b = STRBUF_INIT;
	print_number(&b, x);
	return strbuf_take(&b, out);
}

static clv_status differs(const host_number *want, const host_number *got)
{
	char *expected, *seen = NULL;
	TRY(number_text(want, &expected));
	clv_status st = number_text(got, &seen);
	if (st == CLV_OK)
		st = call_number_differs(expected, seen);
	mem_free(expected);
	mem_free(seen);
	return st;
}

static host_number read_number(const nt *t)
{
	bool floats = t->dtype == DT_F32 || t->dtype == DT_F64 || t->dtype == DT_F16 || t->dtype == DT_BF16;
	nt to = {.dtype = floats ? DT_F64 : DT_I64, .ndim = t->ndim};
	host_number x = {.type = t->dtype == DT_BOOL ? TYPE_BOOL : to.dtype == DT_F64 ? TYPE_FLOAT : TYPE_INT};
	memcpy(to.size, t->size, sizeof to.size);
	to.data = to.dtype == DT_F64 ? (char *)&x.f : (char *)&x.i;
	nt_copy(t, &to);
	return x;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------------------- */

#define EQUAL_AS(type) return *(const type *)a == *(const type *)b

static bool same_element(uint8_t kind, const char *a, const char *b)
{
	switch (kind) {
	case DT_F32: EQUAL_AS(float);
	case DT_F64: EQUAL_AS(double);
	case DT_I64: EQUAL_AS(int64_t);
	case DT_I32: EQUAL_AS(int32_t);
	case DT_I16: EQUAL_AS(int16_t);
	default: EQUAL_AS(uint8_t);
	}
}

static bool same_elements(const nt *a, const nt *b, uint32_t d, const char *x, const char *y, bool bits)
{
	int64_t item = (int64_t)dtype_bytes(a->dtype);
	if (d == a->ndim)
		return bits ? memcmp(x, y, (size_t)item) == 0 : same_element(a->dtype, x, y);
	for (int64_t i = 0; i < a->size[d]; i++)
		if (!same_elements(a, b, d + 1, x + i * a->stride[d] * item, y + i * b->stride[d] * item, bits))
			return false;
	return true;
}

static bool same_tensors(const nt *a, const nt *b, bool bits)
{
	if (a->dtype != b->dtype || a->ndim != b->ndim || memcmp(a->size, b->size, a->ndim * sizeof *a->size) != 0)
		return false;
	return nt_numel(a) == 0 || same_elements(a, b, 0, a->data, b->data, bits);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

typedef enum reading { READ_ITEM, READ_NONZERO, READ_EQUAL } reading;

typedef struct guard_params {
	slot a, b;
	reading how;
	bool range; /* low … high, of floats */
	double low, high;
	host_number want;
	const char *by; /* of guard_equal: how it was read */
} guard_params;

static host_number read_host(const guard_params *g, const frame *f)
{
	if (g->how == READ_EQUAL)
		return (host_number){.type = TYPE_BOOL, .i = same_tensors(&f->t[g->a], &f->t[g->b], false)};
	host_number x = read_number(&f->t[g->a]);
	if (g->how == READ_NONZERO)
		x = (host_number){.type = TYPE_BOOL, .i = x.type == TYPE_FLOAT ? x.f != 0 : x.i != 0};
	return x;
}

static clv_status step_guard(const void *params, frame *f)
{
	const guard_params *g = params;
	host_number got = read_host(g, f);
	if (!g->range)
		return same_number(&g->want, &got) ? CLV_OK : differs(&g->want, &got);
	if (got.f >= g->low && got.f <= g->high)
		return CLV_OK;
	return fail(CLV_E_GUARD,
	            "the forward reads %g from the data; the plan was proven for %g to %g, beyond that it may branch",
	            got.f, g->low, g->high);
}

static clv_status step_guard_equal(const void *params, frame *f)
{
	const guard_params *g = params;
	if (same_tensors(&f->t[g->a], &f->t[g->b], true))
		return CLV_OK;
	return fail(CLV_E_GUARD,
	            "the forward read this tensor by %s when it was captured, and its data is different now; the plan "
	            "holds only for the captured data",
	            g->by);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------------------- */

static value_id host_result(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *r = x->nresults == 1 ? &p->args.at[x->results] : NULL;
	return r && r->kind == ARG_VALUE ? r->u.v : NONE;
}

static bool has_halves(const plan *p, const arg *a)
{
	return a->kind == ARG_VALUE && is_half(p->values.at[a->u.v].dtype);
}

static const char *takes_guard(const plan *p, node_id n)
{
	value_id v = host_result(p, n);
	const node *x = &p->nodes.at[n];
	if (x->op_id == OP_equal && x->nargs && has_halves(p, &p->args.at[x->args]))
		return "there is no kernel for a dtype of it";
	if (v == NONE || p->values.at[v].type == TYPE_TENSOR)
		return "its result is no number";
	if (p->values.at[v].expect == NONE)
		return "it reads a number from data that later nodes need";
	const arg *a = &p->args.at[p->values.at[v].expect];
	bool range = a->kind == ARG_LIST && a->u.list.n == 2;
	if (!range && a->kind != ARG_INT && a->kind != ARG_FLOAT && a->kind != ARG_BOOL && a->kind != ARG_REAL)
		return "it reads something that is no plain number";
	return NULL;
}

/* What the plan expects, at these sizes. */
static clv_status expected(lowering *l, value_id v, guard_params *g)
{
	const plan *p = low_plan(l);
	const arg *a = &p->args.at[p->values.at[v].expect];
	g->want.type = p->values.at[v].type;
	if (a->kind == ARG_LIST) {
		g->range = true;
		g->low = p->args.at[a->u.list.first].u.f;
		g->high = p->args.at[a->u.list.first + 1].u.f;
		return CLV_OK;
	}
	return g->want.type == TYPE_FLOAT ? low_real_of(l, a, &g->want.f) : low_int_of(l, a, &g->want.i);
}

static clv_status one_element(lowering *l, slot s)
{
	return nt_numel(low_at(l, s)) == 1
	           ? CLV_OK
	           : fail(CLV_E_INVALID, "a tensor of %lld elements is no number", (long long)nt_numel(low_at(l, s)));
}

static clv_status lower_guard(lowering *l, node_id n)
{
	guard_params *g = low_alloc(l, sizeof *g);
	TRY_MEM(g);
	g->how = (reading)low_what(l, n);
	TRY(low_tensor(l, n, 0, &g->a));
	TRY(g->how == READ_EQUAL ? low_tensor(l, n, 1, &g->b) : one_element(l, g->a));
	TRY(expected(l, host_result(low_plan(l), n), g));
	return low_step(l, step_guard, g);
}

static clv_status lower_guard_equal(lowering *l, node_id n)
{
	guard_params *g = low_alloc(l, sizeof *g);
	TRY_MEM(g);
	TRY(low_tensor(l, n, 0, &g->a));
	TRY(low_tensor(l, n, 1, &g->b));
	g->by = low_str(l, n, 2);
	return low_step(l, step_guard_equal, g);
}

const native_op native_ops_host[] = {
	{.id = OP_item, .takes = takes_guard, .lower = lower_guard, .what = READ_ITEM},
	{.id = OP__local_scalar_dense, .takes = takes_guard, .lower = lower_guard, .what = READ_ITEM},
	{.id = OP_is_nonzero, .takes = takes_guard, .lower = lower_guard, .what = READ_NONZERO},
	{.id = OP_equal, .takes = takes_guard, .lower = lower_guard, .what = READ_EQUAL},
	{.id = OP_cleave_guard_equal, .lower = lower_guard_equal},
	{.id = OP_UNKNOWN},
};
