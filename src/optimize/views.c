/* Moves activations before views, so that they can be fused.
 * An activation of a view of a linear's result becomes the view of the activation: act(view(y)) is view(act(y)), laid
 * out the same. So the two stand side by side and can be joined, where a model writes its linears for matrices and
 * shapes the rest around them. */
#include "optimize/fuse.h"

#include <string.h>

enum { MOST_ARGS = 8 }; /* of activations and views */

static bool is_product(const edit *e, node_id n)
{
	return edit_is(e, n, OP_linear) || edit_is(e, n, OP_addmm) || edit_is(e, n, OP_mm) || edit_is(e, n, OP_matmul);
}

static bool is_shaping(const edit *e, node_id n)
{
	return edit_is(e, n, OP_view) || edit_is(e, n, OP_reshape) || edit_is(e, n, OP_unflatten_int);
}

static node_id pure_maker(const edit *e, value_id v)
{
	if (v == NONE || v >= e->facts.n || e->p->values.at[v].kind != VALUE_RESULT)
		return NONE;
	node_id n = e->p->values.at[v].def;
	bool here = n != NONE && n >= e->first && n < e->end && !e->gone.at[n] && node_pure(e, n);
	return here && edit_result(e, n) == v ? n : NONE;
}

static bool same_context(const edit *e, node_id a, node_id b)
{
	return e->p->nodes.at[a].context == e->p->nodes.at[b].context && runs_plainly(e, a);
}

/* The node between the activation n and the product; NONE: there is none, or others need what it makes. */
static node_id view_before(const edit *e, node_id n)
{
	activation a;
	if (!node_pure(e, n) || !read_activation(e, n, &a) || e->p->nodes.at[n].nargs > MOST_ARGS)
		return NONE;
	value_id shaped = edit_value(e, n, 0), result = edit_result(e, n);
	node_id shaping = pure_maker(e, shaped);
	if (shaping == NONE || !is_shaping(e, shaping) || e->p->nodes.at[shaping].nargs > MOST_ARGS ||
	    !same_context(e, n, shaping) || e->facts.uses[shaped] != 1 || e->facts.kept[shaped])
		return NONE;
	value_id y = edit_value(e, shaping, 0);
	node_id product = pure_maker(e, y);
	bool alone = product != NONE && e->p->values.at[shaped].alias == y && only_for(e, y, shaping, shaped) &&
	             e->facts.views[y] == 1 && !e->facts.written[y];
	return alone && is_product(e, product) && same_context(e, n, product) && e->p->values.at[result].alias == NONE &&
	               same_shape(e->p, shaped, result) && e->p->values.at[result].dtype == e->p->values.at[y].dtype
	           ? shaping
	           : NONE;
}

/* n again, with another first argument and result. */
static clv_status put_again(const spot *at, node_id n, value_id from, value_id to)
{
	arg args[MOST_ARGS];
	const node *x = &at->e->p->nodes.at[n];
	uint32_t nargs = x->nargs;
	memcpy(args, &at->e->p->args.at[x->args], nargs * sizeof *args);
	args[0] = arg_of(from);
	return put_node(at, x->op_id, args, nargs, to);
}

/* v, and what is a view of it. */
static void lie_on(edit *e, value_id v, value_id memory)
{
	value *values = e->p->values.at;
	for (value_id i = 0; e->facts.views[v] && i < e->p->values.n; i++)
		if (values[i].alias == v)
			values[i].alias = memory;
	values[v].alias = memory;
}

static clv_status exchange(edit *e, node_id n, node_id shaping)
{
	spot at = {e, n, n};
	value_id y = edit_value(e, shaping, 0), result = edit_result(e, n), flat;
	TRY(edit_like(e, y, &flat));
	TRY(edit_remove(e, n));
	TRY(edit_remove(e, shaping));
	TRY(put_again(&at, n, y, flat));
	TRY(put_again(&at, shaping, flat, result));
	lie_on(e, result, flat);
	return CLV_OK;
}

clv_status pass_views(edit *e, const optimize_spec *s, uint32_t *changes)
{
	(void)s;
	for (node_id n = e->first; n < e->end; n++) {
		node_id shaping = e->gone.at[n] ? NONE : view_before(e, n);
		if (shaping == NONE)
			continue;
		TRY(exchange(e, n, shaping));
		*changes += 1;
	}
	return CLV_OK;
}
