/* Effects that depend on the arguments of a node, not on its operator alone.
 * Effects that a node of its kind has, and this one has not, as its arguments say: dropout that drops nothing draws
 * nothing, and what is indexed with numbers, not with a mask, has a size that does not depend on data. And those that it
 * may have in one run and not in another: what was a copy at capture is a view where a tensor lies otherwise. */
#include "plan/ops.h"

static bool is_off(const arg *a)
{
	return (a->kind == ARG_BOOL && !a->u.b) || (a->kind == ARG_FLOAT && a->u.f == 0);
}

bool node_draws(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const uint8_t *off = node_op(p, n)->off;
	if (!(x->flags & NODE_RANDOM))
		return false;
	for (size_t i = 0; i < 2 && off[i]; i++)
		if (off[i] < x->nargs && is_off(&p->args.at[x->args + off[i]]))
			return false;
	return true;
}

/* none, or a tensor of numbers: a mask is of booleans, or of bytes as it was once. */
static bool is_number_index(const plan *p, const arg *a)
{
	if (a->kind != ARG_VALUE)
		return a->kind == ARG_NONE;
	const value *x = &p->values.at[a->u.v];
	return x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT &&
	       (x->dtype == DT_I64 || x->dtype == DT_I32 || x->dtype == DT_I16 || x->dtype == DT_I8);
}

static bool indexes_with_numbers(const plan *p, const node *x)
{
	if (x->nargs < 2 || x->op_id != OP_index_Tensor)
		return false;
	const arg *list = &p->args.at[x->args + 1];
	for (uint32_t i = 0; list->kind == ARG_LIST && i < list->u.list.n; i++)
		if (!is_number_index(p, &p->args.at[list->u.list.first + i]))
			return false;
	return list->kind == ARG_LIST;
}

bool value_guarded(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	return (x->flags & VALUE_GUARD) && !(x->def != NONE && indexes_with_numbers(p, &p->nodes.at[x->def]));
}

bool node_may_view(const plan *p, node_id n, value_id *from, value_id *to)
{
	const node *x = &p->nodes.at[n];
	if (node_op(p, n)->view != VIEW_MAYBE || !x->nargs || x->nresults != 1)
		return false;
	const arg *a = &p->args.at[x->args], *r = &p->args.at[x->results];
	if (a->kind != ARG_VALUE || r->kind != ARG_VALUE)
		return false;
	const value *given = &p->values.at[a->u.v], *made = &p->values.at[r->u.v];
	*from = alias_root(p, a->u.v);
	*to = r->u.v;
	return made->alias == NONE && given->dtype == made->dtype && given->device == made->device;
}

void written_through(const plan *p, node_id first, node_id end, bool *written)
{
	value_id from, to;
	for (bool again = true; again;) {
		again = false;
		for (node_id n = first; n < end; n++)
			if (node_may_view(p, n, &from, &to) && written[from] != written[to])
				again = written[from] = written[to] = true;
	}
}
