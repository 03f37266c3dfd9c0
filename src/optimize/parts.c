/* Divides the range into parts by the inputs that nodes depend on, and moves the earlier parts to the front.
 *
 * once: pure nodes whose arguments are external tensors that the range does not write, numbers that do not change, and
 * results of other such nodes. sized: those that also depend on sizes. A run finds results of both where an earlier one left
 * them, so what a caller gets is never among them: a caller may write it.
 *
 * Guards on such results come along: what they read changes only when the part is made again, and then they check. They
 * fail before nodes that they came after; no run that goes on is another for that. A number that others need stays.
 *
 * guards, for callers that run the rest without waiting for data: guards on what depends on inputs, and the pure nodes that they
 * need. */
#include <string.h>

#include "optimize/optimize.h"
#include "plan/data.h"

typedef struct finder {
	const edit *e;
	const optimize_spec *s;
	uint8_t *part; /* per value: the first part that can have a node that reads it */
	part_id now;   /* of the node that is looked at; PART_MAIN: it stays */
	bool yes;
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

static part_id external_part(const finder *f, value_id v)
{
	const plan *p = f->e->p;
	const value *x = &p->values.at[v];
	bool fast = f->s->level == OPTIMIZE_FAST;
	if (x->type != TYPE_TENSOR || (x->flags & VALUE_ODD) || f->e->facts.written[v] || x->kind == VALUE_RESULT)
		return PART_MAIN;
	if (x->kind == VALUE_INPUT || !has_fixed_shape(p, x))
		return PART_GUARDS;
	if (x->kind == VALUE_CONST)
		return fast || is_small(p, v) ? PART_ONCE : PART_GUARDS;
	return fast && (x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER || x->kind == VALUE_ATTR) ? PART_ONCE
	                                                                                            : PART_GUARDS;
}

static void not_before(finder *f, part_id part)
{
	if (f->now < part)
		f->now = part;
}

static void see_part_arg(void *ctx, value_id v)
{
	finder *f = ctx;
	not_before(f, (part_id)f->part[v]);
}

/* Memory that a caller gets to see is not kept from run to run, and what a later node writes is made where it was. External
   memory is the caller's anyway. The first on the memory must be there too, argument or not. */
static void see_tensor(void *ctx, value_id v)
{
	finder *f = ctx;
	const plan *p = f->e->p;
	const edit_facts *facts = &f->e->facts;
	const value *x = &p->values.at[v];
	value_id root = alias_root(p, v);
	if (x->type != TYPE_TENSOR)
		return;
	if (facts->written[v] || facts->kept[v] || shape_takes_data(p, x))
		not_before(f, PART_MAIN);
	if (!has_fixed_shape(p, x))
		not_before(f, PART_SIZED);
	if (p->values.at[root].kind == VALUE_RESULT && facts->shown[root])
		not_before(f, PART_GUARDS);
	if (root != v)
		not_before(f, (part_id)f->part[root]);
}

static void see_symbol(void *ctx, symbol_id s)
{
	finder *f = ctx;
	not_before(f, f->e->p->symbols.at[s].data ? PART_MAIN : PART_SIZED);
}

/* A guard compares its result with a number: what that depends on. */
static void see_guard(void *ctx, value_id v)
{
	finder *f = ctx;
	const plan *p = f->e->p;
	const value *x = &p->values.at[v];
	const edit_facts *facts = &f->e->facts;
	if (x->type == TYPE_TENSOR)
		return;
	f->yes &= (x->flags & VALUE_GUARD) && !facts->uses[v] && !facts->kept[v];
	if (f->yes)
		arg_each_symbol(p, &p->args.at[x->expect], see_symbol, f);
}

/* It does nothing but read data and compare it, or make tensors of sizes that are checked. */
static bool is_guard(finder *f, node_id n)
{
	const plan *p = f->e->p;
	const node *x = &p->nodes.at[n];
	if (x->op_id == OP_cleave_guard_equal)
		return !x->nwrites && !x->nresults;
	f->yes = !x->nwrites && x->nresults && !(x->flags & NODE_IMPURE) && !node_draws(p, n) && op_known(plan_s(p, x->op));
	node_each_result(p, n, see_guard, f);
	return f->yes;
}

/* A weight laid out anew, by `fuse`. Sizes among its arguments only say for which inputs that is best: it is made once, for
   those of the run that needs it. */
static bool packs_weights(const finder *f, node_id n)
{
	const plan *p = f->e->p;
	return f->s->level >= OPTIMIZE_FAST && !strncmp(plan_s(p, p->nodes.at[n].op), "mkldnn::_reorder_", 17);
}

static part_id node_part(finder *f, node_id n)
{
	const plan *p = f->e->p;
	f->now = PART_ONCE;
	if (edit_pinned(f->e, n) || (!node_pure(f->e, n) && !is_guard(f, n)))
		return PART_MAIN;
	if (!packs_weights(f, n))
		node_each_symbol(p, n, see_symbol, f);
	node_each_arg(p, n, see_part_arg, f);
	node_each_result(p, n, see_tensor, f);
	return f->now;
}

static void mark_result(void *ctx, value_id v)
{
	finder *f = ctx;
	f->part[v] = (uint8_t)f->now;
}

/* `of`, unless NULL, gets the part of each node. */
static void find_parts(finder *f, uint8_t *of)
{
	const edit *e = f->e;
	for (value_id v = 0; v < e->p->values.n; v++)
		f->part[v] = (uint8_t)external_part(f, v);
	for (node_id n = e->first; n < e->end; n++) {
		f->now = node_part(f, n);
		node_each_result(e->p, n, mark_result, f);
		if (of)
			of[n] = (uint8_t)f->now;
	}
}

clv_status constant_values(edit *e, const optimize_spec *s, bool **out)
{
	finder f = {.e = e, .s = s, .part = edit_array(e, e->p->values.n, sizeof *f.part)};
	*out = edit_array(e, e->p->values.n, sizeof **out);
	TRY_MEM(f.part && *out);
	find_parts(&f, NULL);
	for (value_id v = 0; v < e->p->values.n; v++)
		(*out)[v] = f.part[v] == PART_ONCE;
	return CLV_OK;
}

/* ---- guards and what they need -------------------------------------------------------------------------------------- */

static void see_needed(void *ctx, value_id v)
{
	finder *f = ctx;
	f->yes |= f->part[v] == PARTS;
}

static void need_arg(void *ctx, value_id v)
{
	finder *f = ctx;
	if (f->part[v] == PART_GUARDS)
		f->part[v] = PARTS; /* needed */
}

/* Of the nodes that could be there the guards stay, and what they read. */
static void keep_guards(finder *f, uint8_t *of)
{
	const edit *e = f->e;
	for (node_id n = e->end; n-- > e->first;) {
		if (of[n] != PART_GUARDS)
			continue;
		f->yes = !node_pure(e, n);
		node_each_result(e->p, n, see_needed, f);
		if (f->yes && f->s->guards_first)
			node_each_arg(e->p, n, need_arg, f);
		else
			of[n] = PART_MAIN;
	}
}

/* Per node, in an array of the edit: its part. */
static clv_status parts_of_nodes(edit *e, const optimize_spec *s, uint8_t **of)
{
	finder f = {.e = e, .s = s, .part = edit_array(e, e->p->values.n, sizeof *f.part)};
	*of = edit_array(e, e->p->nodes.n, sizeof **of);
	TRY_MEM(f.part && *of);
	find_parts(&f, *of);
	keep_guards(&f, *of);
	return CLV_OK;
}

clv_status moved_values(edit *e, const optimize_spec *s, bool **out)
{
	uint8_t *of;
	*out = edit_array(e, e->p->values.n, sizeof **out);
	TRY_MEM(*out);
	TRY(parts_of_nodes(e, s, &of));
	for (value_id v = 0; v < e->p->values.n; v++) {
		node_id def = e->p->values.at[v].kind == VALUE_RESULT ? e->p->values.at[v].def : NONE;
		(*out)[v] = def != NONE && def >= e->first && def < e->end && of[def] < PART_MAIN;
	}
	return CLV_OK;
}

/* ---- moving --------------------------------------------------------------------------------------------------------- */

/* One part after the other; within each in the order they had. */
static void order_nodes(const edit *e, node_id *order, const uint8_t *of, optimized_plan *out)
{
	node_id at = e->first;
	for (node_id n = 0; n < e->p->nodes.n; n++)
		order[n] = n;
	for (unsigned part = 0; part < PARTS; part++) {
		out->part[part] = at;
		for (node_id n = e->first; n < e->end; n++)
			if (of[n] == part)
				order[at++] = n;
	}
	out->part[PARTS] = at;
}

/* Nodes of a part that is not wanted go to the next that is. */
static void leave_out(const edit *e, uint8_t *of, unsigned wanted)
{
	for (node_id n = e->first; n < e->end; n++)
		while (of[n] < PART_MAIN && !(wanted & 1u << of[n]))
			of[n]++;
}

clv_status order_parts(edit *e, const optimize_spec *s, unsigned wanted, optimized_plan *out)
{
	node_id *order = edit_array(e, e->p->nodes.n, sizeof *order);
	uint8_t *of;
	TRY_MEM(order);
	TRY(parts_of_nodes(e, s, &of));
	leave_out(e, of, wanted);
	order_nodes(e, order, of, out);
	return out->part[PART_MAIN] > e->first ? edit_reorder(e, order) : CLV_OK;
}
