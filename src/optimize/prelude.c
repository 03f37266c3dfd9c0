/* The prelude: nodes of the range that give the same in every run, moved to its front.
 *
 * These are pure nodes whose arguments are external tensors that the range does not write, numbers that do not
 * change, and results of other such nodes. What a caller gets is never among their results: a caller may write it.
 *
 * Guards on such results come along: what they read changes only when the prelude is made again, and then they
 * check. They fail before nodes that they came after; no run that goes on is another for that. A number that others
 * need stays. */
#include <string.h>

#include "optimize/optimize.h"
#include "plan/data.h"

typedef struct finder {
	const edit *e;
	bool *constant; /* per value */
	bool yes;
	bool fast;
} finder;

static bool has_fixed_shape(const plan *p, const value *x)
{
	int64_t k;
	for (uint32_t d = 0; d < x->ndim; d++)
		if (!expr_is_const(p, p->dims.at[x->shape + d], &k))
			return false;
	return true;
}

/* All of it can be looked at in every run. */
static bool is_small(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	int64_t bytes;
	return x->strides == NONE && !strcmp(plan_s(p, x->device), "cpu") && value_bytes(p, v, NULL, &bytes) == CLV_OK &&
	       bytes <= SMALL_CONSTANT;
}

static bool is_constant_external(const finder *f, value_id v)
{
	const plan *p = f->e->p;
	const value *x = &p->values.at[v];
	if (x->type != TYPE_TENSOR || (x->flags & VALUE_ODD) || f->e->facts.written[v] || !has_fixed_shape(p, x))
		return false;
	if (x->kind == VALUE_CONST)
		return f->fast || is_small(p, v);
	return f->fast && (x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER || x->kind == VALUE_ATTR);
}

static void find_externals(finder *f)
{
	for (value_id v = 0; v < f->e->p->values.n; v++)
		f->constant[v] = is_constant_external(f, v);
}

static void see_arg(void *ctx, value_id v)
{
	finder *f = ctx;
	f->yes &= f->constant[v];
}

static void see_result(void *ctx, value_id v)
{
	finder *f = ctx;
	const edit_facts *facts = &f->e->facts;
	f->yes &= !facts->written[v] && !facts->kept[v] && has_fixed_shape(f->e->p, &f->e->p->values.at[v]);
}

static void mark_result(void *ctx, value_id v)
{
	finder *f = ctx;
	f->constant[v] = true;
}

/* A view that leaves the range shows its memory to the caller: nothing on such memory is kept from run to run. External
   memory is the caller's anyway. The first on the memory must be in the prelude too, argument or not. */
static void see_memory(void *ctx, value_id v)
{
	finder *f = ctx;
	value_id root = alias_root(f->e->p, v);
	f->yes &= f->e->p->values.at[root].kind != VALUE_RESULT || !f->e->facts.shown[root];
	f->yes &= root == v || f->constant[root];
}

/* The value that a guard compares with is the same in every run. */
static bool expects_constant(const plan *p, const value *x)
{
	const arg *a = &p->args.at[x->expect];
	int64_t k;
	for (symbol_id s = 0; a->kind == ARG_REAL && s < p->symbols.n; s++)
		if (real_depends(p, a->u.r, s))
			return false;
	return a->kind != ARG_INT || expr_is_const(p, a->u.e, &k);
}

static void see_guard(void *ctx, value_id v)
{
	finder *f = ctx;
	const value *x = &f->e->p->values.at[v];
	const edit_facts *facts = &f->e->facts;
	if (x->type != TYPE_TENSOR)
		f->yes &= (x->flags & VALUE_GUARD) && !facts->uses[v] && !facts->kept[v] && expects_constant(f->e->p, x);
}

/* It does nothing but read data and compare it, or make tensors of sizes that are checked. */
static bool is_guard(finder *f, node_id n)
{
	const plan *p = f->e->p;
	const node *x = &p->nodes.at[n];
	if (!strcmp(plan_s(p, x->op), "cleave::guard_equal"))
		return !x->nwrites && !x->nresults;
	f->yes = !x->nwrites && x->nresults && !(x->flags & NODE_IMPURE) && !node_draws(p, n) && op_known(plan_s(p, x->op));
	node_each_result(p, n, see_guard, f);
	return f->yes;
}

static void see_tensor(void *ctx, value_id v)
{
	finder *f = ctx;
	if (f->e->p->values.at[v].type != TYPE_TENSOR)
		return;
	see_result(f, v);
	see_memory(f, v);
}

static bool is_constant(finder *f, node_id n)
{
	const plan *p = f->e->p;
	f->yes = !edit_pinned(f->e, n) && (node_pure(f->e, n) || is_guard(f, n));
	for (symbol_id s = 0; f->yes && s < p->symbols.n; s++)
		f->yes = !node_takes(p, n, s);
	if (f->yes)
		node_each_arg(p, n, see_arg, f);
	if (f->yes)
		node_each_result(p, n, see_tensor, f);
	return f->yes;
}

/* `moved`, unless NULL, is told of each constant node. */
static void find_constants(finder *f, bool *moved)
{
	const edit *e = f->e;
	find_externals(f);
	for (node_id n = e->first; n < e->end; n++) {
		bool constant = is_constant(f, n);
		if (constant)
			node_each_result(e->p, n, mark_result, f);
		if (moved)
			moved[n] = constant;
	}
}

clv_status constant_values(const edit *e, const optimize_spec *s, bool **out)
{
	finder f = {.e = e, .fast = s->level == OPTIMIZE_FAST};
	f.constant = mem_alloc((e->p->values.n + 1) * sizeof *f.constant);
	if (!f.constant)
		return fail_nomem();
	find_constants(&f, NULL);
	*out = f.constant;
	return CLV_OK;
}

/* Constant nodes first, then the others; both in the order they had. */
static uint32_t order_nodes(const edit *e, node_id *order, const bool *moved)
{
	uint32_t at = e->first;
	for (node_id n = 0; n < e->p->nodes.n; n++)
		order[n] = n;
	for (node_id n = e->first; n < e->end; n++)
		if (moved[n])
			order[at++] = n;
	uint32_t found = at - e->first;
	for (node_id n = e->first; n < e->end; n++)
		if (!moved[n])
			order[at++] = n;
	return found;
}

static clv_status put_first(edit *e, const node_id *order)
{
	plan *p;
	uint32_t *pins = mem_alloc((e->pins.n + 1) * sizeof *pins);
	if (!pins)
		return fail_nomem();
	for (uint32_t i = 0; i < e->pins.n; i++)
		pins[i] = e->pins.at[order[i]];
	clv_status st = plan_reorder(e->p, order, &p);
	if (st == CLV_OK) {
		plan_free(e->p);
		e->p = p;
		memcpy(e->pins.at, pins, e->pins.n * sizeof *pins);
	}
	mem_free(pins);
	return st;
}

clv_status find_prelude(edit *e, const optimize_spec *s, node_id *main, uint32_t *changes)
{
	finder f = {.e = e, .fast = s->level == OPTIMIZE_FAST};
	node_id *order = mem_alloc((e->p->nodes.n + 1) * sizeof *order);
	bool *moved = mem_alloc((e->p->nodes.n + 1) * sizeof *moved);
	f.constant = mem_alloc((e->p->values.n + 1) * sizeof *f.constant);
	clv_status st = order && moved && f.constant ? CLV_OK : fail_nomem();
	uint32_t found = 0;
	if (st == CLV_OK) {
		find_constants(&f, moved);
		found = order_nodes(e, order, moved);
	}
	if (found)
		st = put_first(e, order);
	mem_free(order);
	mem_free(moved);
	mem_free(f.constant);
	TRY(st);
	*changes += found;
	*main = e->first + found;
	return CLV_OK;
}
