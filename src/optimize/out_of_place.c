/* Gives elementwise nodes that write in place memory of their own, where nothing else on the memory is needed any more.
 *
 * The reverse of in_place.c, for engines that evaluate groups: what a node between two others stores is then never stored, so
 * the write only stands in the way of the order. Numbers stay what they are. Only for engines that make groups. */
#include <string.h>

#include "optimize/rewrite.h"

typedef struct copier {
	edit *e;
	node_id *def; /* per value: the node that made it before the pass; NONE */
	node_id *
		last; /* per value: the last node of the range that reads it; what is written is on the memory of an argument */
	node_id now;
} copier;

static void note_use(void *ctx, value_id v)
{
	copier *x = ctx;
	x->last[v] = x->now;
}

/* The operator that takes the same and makes a new tensor; OP_UNKNOWN: there is none. */
static uint16_t maker_of(uint16_t writer)
{
	for (uint16_t op = OP_UNKNOWN_LAST + 1; writer > OP_UNKNOWN_LAST && op < OP_COUNT; op++)
		if (op_rows[op].writer == writer)
			return op;
	return OP_UNKNOWN;
}

/* All tensors are of the type of the result: then it is no cast of what the operator gives. */
static bool types_fit(const edit *e, node_id n, value_id r)
{
	const node *x = &e->p->nodes.at[n];
	for (uint32_t i = 0; i < x->nargs; i++) {
		value_id v = edit_value(e, n, i);
		if (edit_arg(e, n, i)->kind == ARG_LIST ||
		    (v != NONE &&
		     (e->p->values.at[v].type != TYPE_TENSOR || e->p->values.at[v].dtype != e->p->values.at[r].dtype)))
			return false;
	}
	return is_float(&e->p->values.at[r]);
}

/* Nothing on the memory but the result is used after node n, and the memory is made in the range. */
static bool is_last_on(const copier *x, value_id root, value_id r, node_id n)
{
	const edit *e = x->e;
	if (root >= e->facts.n || x->def[root] == NONE || x->def[root] < e->first || edit_pinned(e, x->def[root]) ||
	    op_reaches(node_op(e->p, x->def[root])))
		return false;
	for (value_id v = root; v < e->facts.n; v++)
		if (v != r && alias_root(e->p, v) == root && x->def[v] != NONE && x->def[v] <= n &&
		    (e->facts.kept[v] || (x->last[v] != NONE && x->last[v] > n)))
			return false;
	return true;
}

static bool can_copy(const copier *x, node_id n, uint16_t op)
{
	const edit *e = x->e;
	const node *w = &e->p->nodes.at[n];
	value_id v = edit_value(e, n, 0), r = edit_result(e, n);
	if (op == OP_UNKNOWN || w->nwrites != 1 || w->flags || w->nargs > MAX_INTS || v == NONE || r == NONE)
		return false;
	value_id root = alias_root(e->p, v);
	return alias_root(e->p, r) == root && alias_root(e->p, e->p->ids.at[w->writes]) == root && root != r &&
	       is_alike(e->p, v, r) && types_fit(e, n, r) && is_last_on(x, root, r, n);
}

/* What was made on the memory since is on that of the result. */
static void own_memory(copier *x, value_id r, node_id n)
{
	plan *p = x->e->p;
	value_id root = alias_root(p, r);
	for (node_id k = n + 1; k < x->e->nodes; k++)
		for (uint32_t i = 0; i < p->nodes.at[k].nwrites; i++)
			if (alias_root(p, p->ids.at[p->nodes.at[k].writes + i]) == root)
				p->ids.at[p->nodes.at[k].writes + i] = r;
	for (value_id v = 0; v < x->e->facts.n; v++)
		if (v != r && p->values.at[v].alias == root && x->def[v] != NONE && x->def[v] > n)
			p->values.at[v].alias = r;
	p->values.at[r].alias = NONE;
}

static clv_status copy(copier *x, node_id n, uint16_t op)
{
	edit *e = x->e;
	arg args[MAX_INTS];
	uint32_t nargs = e->p->nodes.at[n].nargs;
	value_id r = edit_result(e, n);
	memcpy(args, &e->p->args.at[e->p->nodes.at[n].args], nargs * sizeof *args);
	own_memory(x, r, n);
	TRY(edit_remove(e, n));
	return put_node(&(spot){e, n, n}, op, args, nargs, r);
}

clv_status pass_out_of_place(edit *e, const optimize_spec *s, uint32_t *changes)
{
	copier x = {.e = e};
	if (!s->groups)
		return CLV_OK;
	x.def = edit_ids(e, e->p->values.n);
	x.last = edit_ids(e, e->p->values.n);
	TRY_MEM(x.def && x.last);
	for (value_id v = 0; v < e->p->values.n; v++)
		x.def[v] = e->p->values.at[v].kind == VALUE_RESULT ? e->p->values.at[v].def : NONE;
	for (x.now = e->first; x.now < e->end; x.now++)
		node_each_arg(e->p, x.now, note_use, &x);
	for (node_id n = e->first; n < e->end; n++) {
		uint16_t op = e->p->nodes.at[n].nwrites ? maker_of(e->p->nodes.at[n].op_id) : OP_UNKNOWN;
		if (!can_copy(&x, n, op))
			continue;
		TRY(copy(&x, n, op));
		++*changes;
	}
	return CLV_OK;
}
