/* Arguments of a node that is being lowered: numbers at the sizes of the call, tensors as slots. */
#include "native/lowering.h"
#include "native/packed.h"

static const arg none = {.kind = ARG_NONE};

static const arg *arg_at(const lowering *l, node_id n, uint32_t i)
{
	const node *x = &l->p->nodes.at[n];
	return i < x->nargs ? &l->p->args.at[x->args + i] : &none;
}

bool low_has(const lowering *l, node_id n, uint32_t i)
{
	return arg_at(l, n, i)->kind != ARG_NONE;
}

static clv_status wrong(uint32_t i, const char *what)
{
	return fail(CLV_E_UNSUPPORTED, "argument %u is not %s", i, what);
}

static clv_status undefined(void)
{
	return fail(CLV_E_OVERFLOW, "a number of the plan is not defined for these sizes");
}

clv_status low_int_of(lowering *l, const arg *a, int64_t *out)
{
	if (a->kind == ARG_BOOL) {
		*out = a->u.b;
		return CLV_OK;
	}
	if (a->kind != ARG_INT)
		return fail(CLV_E_UNSUPPORTED, "a number of the plan is no integer");
	*out = l->s->exprs[a->u.e];
	return l->s->defined[a->u.e] ? CLV_OK : undefined();
}

clv_status low_real_of(lowering *l, const arg *a, double *out)
{
	int64_t k;
	if (a->kind == ARG_FLOAT) {
		*out = a->u.f;
		return CLV_OK;
	}
	if (a->kind == ARG_REAL)
		return real_eval(l->p, a->u.r, l->s->exprs, l->s->defined, out) ? CLV_OK : undefined();
	TRY(low_int_of(l, a, &k));
	*out = (double)k;
	return CLV_OK;
}

clv_status low_int(lowering *l, node_id n, uint32_t i, int64_t absent, int64_t *out)
{
	*out = absent;
	if (low_has(l, n, i))
		TRY_MORE(low_int_of(l, arg_at(l, n, i), out), "argument %u", i);
	return CLV_OK;
}

clv_status low_real(lowering *l, node_id n, uint32_t i, double absent, double *out)
{
	*out = absent;
	if (low_has(l, n, i))
		TRY_MORE(low_real_of(l, arg_at(l, n, i), out), "argument %u", i);
	return CLV_OK;
}

clv_status low_bool(lowering *l, node_id n, uint32_t i, bool absent, bool *out)
{
	int64_t k;
	TRY(low_int(l, n, i, absent, &k));
	*out = k != 0;
	return CLV_OK;
}

static clv_status count_list(const arg *a, uint32_t i, uint32_t max, uint32_t *count)
{
	*count = a->kind == ARG_NONE ? 0 : a->kind == ARG_LIST ? a->u.list.n : 1;
	return *count > max ? fail(CLV_E_UNSUPPORTED, "argument %u has %u numbers, at most %u are expected", i, *count, max)
	                    : CLV_OK;
}

static const arg *list_at(const lowering *l, const arg *a, uint32_t k)
{
	return a->kind == ARG_LIST ? &l->p->args.at[a->u.list.first + k] : a;
}

clv_status low_ints(lowering *l, node_id n, uint32_t i, uint32_t max, int64_t *out, uint32_t *count)
{
	const arg *a = arg_at(l, n, i);
	TRY(count_list(a, i, max, count));
	for (uint32_t k = 0; k < *count; k++)
		TRY_MORE(low_int_of(l, list_at(l, a, k), &out[k]), "argument %u", i);
	return CLV_OK;
}

clv_status low_reals(lowering *l, node_id n, uint32_t i, uint32_t max, double *out, uint32_t *count)
{
	const arg *a = arg_at(l, n, i);
	TRY(count_list(a, i, max, count));
	for (uint32_t k = 0; k < *count; k++)
		TRY_MORE(low_real_of(l, list_at(l, a, k), &out[k]), "argument %u", i);
	return CLV_OK;
}

clv_status low_dtype(lowering *l, node_id n, uint32_t i, uint8_t absent, uint8_t *out)
{
	const arg *a = arg_at(l, n, i);
	*out = a->kind == ARG_DTYPE ? (uint8_t)a->u.code : absent;
	return a->kind == ARG_DTYPE || a->kind == ARG_NONE ? CLV_OK : wrong(i, "a dtype");
}

const char *low_str(const lowering *l, node_id n, uint32_t i)
{
	const arg *a = arg_at(l, n, i);
	return a->kind == ARG_STR ? plan_s(l->p, a->u.s) : "";
}

clv_status low_dim(lowering *l, node_id n, uint32_t i, int64_t absent, uint32_t ndim, uint32_t *out)
{
	int64_t d, most = ndim ? ndim : 1; /* a tensor without dimensions has dimension 0 and -1 */
	TRY(low_int(l, n, i, absent, &d));
	if (d < -most || d >= most)
		return fail(CLV_E_INVALID, "argument %u: a tensor of %u dimensions has no dimension %lld", i, ndim,
		            (long long)d);
	*out = (uint32_t)(d < 0 ? d + most : d);
	return CLV_OK;
}

static clv_status read_tensor(lowering *l, const arg *a, uint32_t i, bool needed, slot *out)
{
	*out = NONE;
	if (a->kind == ARG_NONE && !needed)
		return CLV_OK;
	if (a->kind != ARG_VALUE || l->s->slot_of[a->u.v] == NONE)
		return wrong(i, "a tensor that was made");
	*out = l->s->slot_of[a->u.v];
	return packed_use(l, out);
}

clv_status low_tensor(lowering *l, node_id n, uint32_t i, slot *out)
{
	return read_tensor(l, arg_at(l, n, i), i, true, out);
}

clv_status low_tensor_or_none(lowering *l, node_id n, uint32_t i, slot *out)
{
	return read_tensor(l, arg_at(l, n, i), i, false, out);
}

bool low_is_number(const lowering *l, node_id n, uint32_t i)
{
	uint8_t kind = arg_at(l, n, i)->kind;
	return kind == ARG_INT || kind == ARG_FLOAT || kind == ARG_BOOL || kind == ARG_REAL;
}

static clv_status read_tensors(lowering *l, node_id n, uint32_t i, bool needed, slot **out, uint32_t *count)
{
	const arg *a = arg_at(l, n, i);
	*count = a->kind == ARG_LIST ? a->u.list.n : 0;
	if (a->kind != ARG_LIST)
		return wrong(i, "a list");
	*out = low_alloc(l, (*count + 1) * sizeof **out);
	if (!*out)
		return fail_nomem();
	for (uint32_t k = 0; k < *count; k++)
		TRY(read_tensor(l, &l->p->args.at[a->u.list.first + k], i, needed, &(*out)[k]));
	return CLV_OK;
}

clv_status low_tensors(lowering *l, node_id n, uint32_t i, slot **out, uint32_t *count)
{
	return read_tensors(l, n, i, true, out, count);
}

clv_status low_tensors_or_none(lowering *l, node_id n, uint32_t i, slot **out, uint32_t *count)
{
	return read_tensors(l, n, i, false, out, count);
}
