/* Questions that passes ask about nodes and values. */
#include <string.h>

#include "optimize/optimize.h"
#include "plan/data.h"

typedef struct plainness {
	const edit *e;
	bool yes;
	uint32_t results;
} plainness;

static void is_no_number(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	plainness *x = ctx;
	(void)s;
	(void)v;
	(void)dim;
	x->yes = false;
}

/* A result that a number is read from is needed for that. */
static void is_plain_result(void *ctx, value_id v)
{
	plainness *x = ctx;
	x->results++;
	x->yes &= x->e->p->values.at[v].type == TYPE_TENSOR && !value_guarded(x->e->p, v);
	value_each_data(x->e->p, v, is_no_number, x);
}

bool node_pure(const edit *e, node_id n)
{
	const node *x = &e->p->nodes.at[n];
	plainness all = {e, true, 0};
	if (edit_pinned(e, n) || x->nwrites || (x->flags & (NODE_HOST | NODE_IMPURE)) || node_draws(e->p, n) ||
	    !op_known(plan_s(e->p, x->op)))
		return false;
	node_each_result(e->p, n, is_plain_result, &all);
	return all.yes && all.results; /* without a result it has some other purpose */
}

bool only_for(const edit *e, value_id v, node_id user, value_id by)
{
	const edit_facts *f = &e->facts;
	if (v >= f->n || e->p->values.at[v].kind != VALUE_RESULT || e->p->values.at[v].alias != NONE)
		return false;
	node_id def = e->p->values.at[v].def;
	if (def == NONE || edit_pinned(e, def))
		return false;
	bool through = by != NONE && by < f->n && e->p->values.at[by].alias == v;
	bool alone = f->uses[v] == 1 && f->user[v] == user && !f->kept[v];
	return alone && (through ? f->views[v] >= 1 : f->views[v] == 0 && !f->written[v]);
}

bool is_float(const value *x)
{
	return x->type == TYPE_TENSOR &&
	       (x->dtype == DT_F16 || x->dtype == DT_BF16 || x->dtype == DT_F32 || x->dtype == DT_F64);
}

bool is_alike(const plan *p, value_id a, value_id b)
{
	const value *x = &p->values.at[a], *y = &p->values.at[b];
	return x->type == TYPE_TENSOR && y->type == TYPE_TENSOR && x->dtype == y->dtype && x->device == y->device &&
	       !((x->flags | y->flags) & VALUE_ODD) && same_shape(p, a, b);
}

bool makes_channels_last(const edit *e, node_id n)
{
	const arg *format = edit_arg(e, n, 1);
	return (edit_is(e, n, OP_clone) || edit_is(e, n, OP_contiguous)) && format->kind == ARG_MEMFMT &&
	       !strcmp(memfmt_names[format->u.code], "channels_last");
}

bool is_f32_cpu(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	return x->type == TYPE_TENSOR && x->dtype == DT_F32 && !(x->flags & VALUE_ODD) &&
	       !strcmp(plan_s(e->p, x->device), "cpu");
}

bool is_cuda(const edit *e, value_id v)
{
	return !strncmp(plan_s(e->p, e->p->values.at[v].device), "cuda", 4);
}

bool is_gpu_float(const edit *e, const optimize_spec *s, value_id v)
{
	const value *x = &e->p->values.at[v];
	return is_float(x) && x->dtype != DT_F64 && !(x->flags & VALUE_ODD) &&
	       device_is(plan_s(e->p, x->device), s->gpu ? s->gpu : "cuda");
}

bool arg_is_int(const edit *e, const arg *a, int64_t k)
{
	int64_t found;
	return a->kind == ARG_INT && expr_is_const(e->p, a->u.e, &found) && found == k;
}

bool arg_is_bool(const arg *a, bool b)
{
	return a->kind == ARG_BOOL && a->u.b == b;
}
