/* Gives elementwise nodes that write in place memory of their own, where nothing else on the memory is needed any more.
 *
 * The reverse of in_place.c, for engines that evaluate groups: what a node between two others stores is then never stored, so
 * the write only stands in the way of the order. Numbers stay what they are. Only for engines that make groups. */
#include <string.h>

#include "optimize/rewrite.h"

typedef struct copier {
	edit *e;
	node_id *def;    /* per value: the node that made it before the pass; NONE */
	node_id *last;   /* per value: the last node of the range that reads it; NONE for one that is needed after it */
	value_id *root;  /* per value: the owner of its memory before the pass */
	value_id *owner; /* per such owner: whose memory is written from here on */
	node_id *until;  /* per owner: the last of these nodes, over all that is on the memory so far */
	node_id now;
} copier;

static void note_use(void *ctx, value_id v)
{
	copier *x = ctx;
	if (x->last[v] != NONE)
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
static bool is_last_on(const copier *x, value_id root, node_id n)
{
	const edit *e = x->e;
	node_id def = x->def[root];
	return def != NONE && def >= e->first && !edit_pinned(e, def) && !op_reaches(node_op(e->p, def)) &&
	       x->until[root] != NONE && x->until[root] <= n;
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
	       is_alike(e->p, v, r) && types_fit(e, n, r) && is_last_on(x, root, n);
}

/* What is made on a memory is on that of its last owner. */
static void place_result(void *ctx, value_id v)
{
	copier *x = ctx;
	value_id owner = x->owner[x->root[v]];
	if (owner != x->root[v])
		x->e->p->values.at[v].alias = owner;
}

static void count_result(void *ctx, value_id v)
{
	copier *x = ctx;
	value_id owner = x->owner[x->root[v]];
	if (x->until[owner] != NONE && (x->last[v] == NONE || x->last[v] > x->until[owner]))
		x->until[owner] = x->last[v];
}

static void place_writes(const copier *x, node_id n)
{
	const plan *p = x->e->p;
	for (uint32_t i = 0; i < p->nodes.at[n].nwrites; i++) {
		value_id *w = &p->ids.at[p->nodes.at[n].writes + i], root = x->root[*w];
		*w = x->owner[root] == root ? *w : x->owner[root];
	}
}

static void own_memory(copier *x, value_id r)
{
	x->owner[x->root[r]] = r;
	x->e->p->values.at[r].alias = NONE;
}

static clv_status copy(copier *x, node_id n, uint16_t op)
{
	edit *e = x->e;
	arg args[MAX_INTS];
	uint32_t nargs = e->p->nodes.at[n].nargs;
	value_id r = edit_result(e, n);
	memcpy(args, &e->p->args.at[e->p->nodes.at[n].args], nargs * sizeof *args);
	own_memory(x, r);
	TRY(edit_remove(e, n));
	return put_node(&(spot){e, n, n}, op, args, nargs, r);
}

static clv_status copier_new(edit *e, copier *x)
{
	uint32_t n = e->p->values.n;
	*x = (copier){.e = e, .def = edit_ids(e, n), .root = edit_ids(e, n), .owner = edit_ids(e, n)};
	x->last = edit_array(e, n, sizeof *x->last);
	x->until = edit_array(e, n, sizeof *x->until);
	TRY_MEM(x->def && x->root && x->owner && x->last && x->until);
	for (value_id v = 0; v < n; v++) {
		x->def[v] = e->p->values.at[v].kind == VALUE_RESULT ? e->p->values.at[v].def : NONE;
		x->root[v] = alias_root(e->p, v);
		x->owner[v] = v;
		x->last[v] = v >= e->facts.n || e->facts.kept[v] ? NONE : 0;
	}
	for (x->now = e->first; x->now < e->end; x->now++)
		node_each_arg(e->p, x->now, note_use, x);
	return CLV_OK;
}

clv_status pass_out_of_place(edit *e, const optimize_spec *s, uint32_t *changes)
{
	copier x;
	if (!s->groups)
		return CLV_OK;
	TRY(copier_new(e, &x));
	for (node_id n = 0; n < e->nodes; n++) {
		bool writes = n >= e->first && n < e->end && e->p->nodes.at[n].nwrites;
		uint16_t op = writes ? maker_of(e->p->nodes.at[n].op_id) : OP_UNKNOWN;
		node_each_result(e->p, n, place_result, &x);
		place_writes(&x, n);
		if (can_copy(&x, n, op)) {
			TRY(copy(&x, n, op));
			++*changes;
		}
		node_each_result(e->p, n, count_result, &x);
	}
	return CLV_OK;
}
