/* Concatenations without copies: a value that goes into one is made at its place in it.
 *
 * A value has a place if nothing can tell: it owns its memory, no view of it sees a write, nothing writes it once it goes in, and
 * nothing writes the concatenation while the value is still read. */
#include "native/lowering.h"

/* Nothing on that memory is an output, a view, or needed after the concatenation `n` if that is written. */
static bool is_free(const lowering *l, value_id root, node_id n, bool written)
{
	const native_program *g = l->g;
	const plan *p = l->p;
	for (value_id v = root; v < p->values.n; v++) {
		if (alias_root(p, v) != root)
			continue;
		bool plain = v == root || (p->values.at[v].def != NONE && p->nodes.at[p->values.at[v].def].nwrites);
		if (!plain || g->kept[v] || (written && g->last[v] != NONE && g->last[v] > n))
			return false;
	}
	return true;
}

static bool can_be_part(const lowering *l, node_id n, value_id whole, value_id v)
{
	const plan *p = l->p;
	const native_program *g = l->g;
	value_id root = alias_root(p, v);
	node_id def = p->values.at[root].def, write = g->last_write[root];
	if (p->values.at[root].kind != VALUE_RESULT || def < l->first || def >= l->end || g->strict[root] ||
	    p->values.at[v].dtype != p->values.at[whole].dtype || p->values.at[v].ndim != p->values.at[whole].ndim)
		return false;
	if (write != NONE && write > p->values.at[v].def)
		return false;
	return l->places[root].whole == NONE && is_free(l, root, n, g->last_write[whole] != NONE);
}

/* Along the dimension the parts are the whole, along the others each is as large. */
static bool fits(const nt *whole, const nt *part, uint32_t dim)
{
	for (uint32_t d = 0; d < whole->ndim; d++)
		if (d != dim && whole->size[d] != part->size[d])
			return false;
	return true;
}

static clv_status find_parts(lowering *l, node_id n)
{
	const plan *p = l->p;
	const arg *list = p->nodes.at[n].nargs ? &p->args.at[p->nodes.at[n].args] : NULL;
	value_id whole = node_result(p, n, 0);
	uint32_t dim;
	nt form, part;
	int64_t at = 0;
	if (!list || list->kind != ARG_LIST || list->u.list.n < 2 || whole == NONE || alias_root(p, whole) != whole ||
	    l->g->strict[whole])
		return CLV_OK;
	TRY(low_form_of(l, whole, &form));
	TRY(low_dim(l, n, 1, 0, form.ndim, &dim));
	for (uint32_t i = 0; i < list->u.list.n; i++) {
		value_id v = arg_value(&p->args.at[list->u.list.first + i]);
		if (v == NONE || p->values.at[v].ndim != form.ndim)
			return CLV_OK; /* the operator has its own word on this */
		TRY(low_form_of(l, v, &part));
		if (!fits(&form, &part, dim) || part.size[dim] > form.size[dim] - at)
			return CLV_OK;
		if (can_be_part(l, n, whole, v))
			l->places[v] = l->places[alias_root(p, v)] = (concat_place){whole, dim, at};
		at += part.size[dim];
	}
	return CLV_OK;
}

clv_status concat_find(lowering *l)
{
	l->places = mem_alloc((l->p->values.n + 1) * sizeof *l->places);
	TRY_MEM(l->places);
	for (value_id v = 0; v < l->p->values.n; v++)
		l->places[v].whole = NONE;
	for (node_id n = l->first; n < l->end; n++) {
		uint16_t op = l->p->nodes.at[n].op_id;
		if (op == OP_cat || op == OP_concat || op == OP_concatenate)
			TRY(find_parts(l, n));
	}
	return CLV_OK;
}

/* The concatenation is made when its first part is, in the layout of that one. */
static clv_status make_whole(lowering *l, value_id whole, const nt *like, slot *out)
{
	nt form;
	*out = l->s->slot_of[whole];
	if (*out != NONE)
		return CLV_OK;
	TRY(low_form_of(l, whole, &form));
	if (!l->g->kept[whole])
		nt_strides_like(&form, like);
	TRY(low_new(l, &form, whole, out));
	low_put(l, whole, *out);
	return CLV_OK;
}

clv_status concat_place_of(lowering *l, value_id v, const nt *form, bool fixed, slot *out)
{
	nt part = *form;
	slot whole;
	*out = NONE;
	if (!l->places || l->places[v].whole == NONE || fixed)
		return CLV_OK;
	const concat_place *x = &l->places[v];
	TRY(make_whole(l, x->whole, form, &whole));
	const nt *all = low_at(l, whole);
	for (uint32_t d = 0; d < part.ndim; d++)
		part.stride[d] = all->stride[d];
	return low_slice(l, whole, x->at * all->stride[x->dim], &part, out);
}
