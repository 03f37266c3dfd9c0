/* Lets elementwise nodes write into the memory of their first argument.
 * Functions of one element at a time write their result where their first argument was, if it is not needed any more.
 * It saves a memory block, and fetching it into the caches.
 *
 * The first argument must fill memory that a node of the range makes anew in every run, and die here with all that is, or
 * may be in some run, on that memory: an operator that is not known to make new memory may give back a view of what it
 * gets, where layouts allow it. Type, shape and strides are those that the result had: strides are certain where all is
 * row-major, and of images whose operators give one of the two formats of memory, whichever the weights ask for. What
 * can be made before what every run does (parts.c) is left alone.
 *
 * Numbers stay what they were: the same kernel goes over the same strides. */
#include <string.h>

#include "optimize/rewrite.h"

typedef struct reuser {
	edit *e;
	uint8_t *layout; /* per value: known_layout */
	bool *image;     /* per value: row-major or channels-last, in the strides of new memory */
	bool *whole;     /* per value: it is all of new memory, in order */
	bool *moved;     /* per value: made before what every run does, unless it is written */

	value_id *with;    /* per value: another that is, or may be, on its memory; itself. The last one stands for all */
	node_id *last_use; /* per value that stands for others: the last node that reads or writes one; NONE */
	bool *shown;       /* likewise: see edit_facts */
	value_id *heir;    /* per owner of memory: whose memory it is on now; itself */
	node_id now;
} reuser;

static value_id stand_in(value_id *with, value_id v)
{
	while (with[v] != v)
		v = with[v] = with[with[v]];
	return v;
}

static void unite(reuser *x, value_id a, value_id b)
{
	a = stand_in(x->with, a);
	b = stand_in(x->with, b);
	if (a == b)
		return;
	x->with[b] = a;
	x->shown[a] |= x->shown[b];
	if (x->last_use[a] == NONE || (x->last_use[b] != NONE && x->last_use[b] > x->last_use[a]))
		x->last_use[a] = x->last_use[b];
}

static void see_use(void *ctx, value_id v)
{
	reuser *x = ctx;
	x->last_use[stand_in(x->with, v)] = x->now;
}

typedef struct sharer {
	reuser *x;
	value_id result;
} sharer;

static void may_share(void *ctx, value_id v)
{
	sharer *s = ctx;
	unite(s->x, s->result, v);
}

static void result_may_share(void *ctx, value_id r)
{
	reuser *x = ctx;
	sharer s = {x, r};
	node_each_arg(x->e->p, x->now, may_share, &s);
}

static void find_sharing(reuser *x)
{
	const plan *p = x->e->p;
	for (value_id v = 0; v < p->values.n; v++) {
		x->with[v] = x->heir[v] = v;
		x->shown[v] = x->e->facts.shown[v];
	}
	for (value_id v = 0; v < p->values.n; v++)
		unite(x, alias_root(p, v), v);
	for (x->now = 0; x->now < p->nodes.n; x->now++)
		if (!op_makes_new(node_op(p, x->now)))
			node_each_result(p, x->now, result_may_share, x);
	for (x->now = x->e->first; x->now < x->e->end; x->now++)
		node_each_use(p, x->now, see_use, x);
}

/* Of four dimensions that are no pixels and have several channels: then the two formats are never the same strides, and
   what is made of an image element by element has its strides. */
static bool is_plain_image(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	if (x->type != TYPE_TENSOR || x->ndim != 4 || (x->flags & VALUE_ODD) || dim_least(p, x, 0) < 1)
		return false;
	return dim_least(p, x, 1) > 1 && dim_least(p, x, 2) > 1 && dim_least(p, x, 3) > 1;
}

static bool makes_image(const reuser *x, node_id n, value_id r)
{
	const plan *p = x->e->p;
	const op_row *op = node_op(p, n);
	value_id first = edit_value(x->e, n, 0);
	if (x->e->facts.written[r] || !is_plain_image(p, r))
		return false;
	if (op->formats || makes_channels_last(x->e, n))
		return true;
	return (op->writer || op->norm) && first != NONE && x->image[first] && same_shape(p, first, r);
}

static void note_layout(reuser *x, node_id n, value_id r)
{
	const plan *p = x->e->p;
	const op_row *op = node_op(p, n);
	value_id first = edit_value(x->e, n, 0);
	x->image[r] = makes_image(x, n, r);
	if (p->values.at[r].alias == NONE)
		x->whole[r] = op_makes_new(op);
	else
		x->whole[r] = op->strides == STRIDES_FIRST && first != NONE && x->whole[first];
}

static bool same_strides(const reuser *x, value_id v, value_id r)
{
	bool rows = x->layout[v] == LAYOUT_ROW_MAJOR && x->layout[r] == LAYOUT_ROW_MAJOR;
	return rows || (x->image[v] && x->image[r]);
}

/* Tensors made in inference mode cannot be written outside of it. */
static bool runs_like(const plan *p, node_id a, node_id b)
{
	return p->contexts.at[p->nodes.at[a].context].inference == p->contexts.at[p->nodes.at[b].context].inference;
}

/* The memory of v is made in this run, and free after node n. */
static bool is_free_after(reuser *x, value_id v, node_id n)
{
	const plan *p = x->e->p;
	value_id root = alias_root(p, v), all = stand_in(x->with, v);
	const value *owner = &p->values.at[root];
	if (owner->kind != VALUE_RESULT || owner->def == NONE || owner->def < x->e->first || x->moved[root])
		return false;
	return x->whole[v] && !x->shown[all] && x->last_use[all] == n && runs_like(p, owner->def, n) &&
	       runs_like(p, p->values.at[v].def, n);
}

/* All other tensors are like it, and on memory of their own. */
static bool others_fit(reuser *x, node_id n, value_id v)
{
	const plan *p = x->e->p;
	for (uint32_t i = 1; i < p->nodes.at[n].nargs; i++) {
		value_id other = edit_value(x->e, n, i);
		if (edit_arg(x->e, n, i)->kind == ARG_LIST)
			return false;
		if (other == NONE || p->values.at[other].type != TYPE_TENSOR)
			continue;
		if (!is_alike(p, other, v) || stand_in(x->with, other) == stand_in(x->with, v))
			return false;
	}
	return true;
}

static bool can_write(reuser *x, node_id n, value_id v, value_id r)
{
	const plan *p = x->e->p;
	if (v == NONE || r == NONE || !node_pure(x->e, n) || p->contexts.at[p->nodes.at[n].context].nautocast)
		return false;
	return p->values.at[r].alias == NONE && is_float(&p->values.at[r]) && is_alike(p, v, r) && same_strides(x, v, r) &&
	       is_free_after(x, v, n) && others_fit(x, n, v);
}

enum { MAX_ARGS = 8 };

/* Nothing that is or may be on the memory of v is read any more, so only the readers of r count from here on. */
static clv_status write_there(reuser *x, node_id n, uint16_t writer, value_id v, value_id r)
{
	const plan *p = x->e->p;
	arg args[MAX_ARGS];
	uint32_t nargs = p->nodes.at[n].nargs;
	memcpy(args, &p->args.at[p->nodes.at[n].args], nargs * sizeof *args);
	TRY(edit_remove(x->e, n));
	x->heir[r] = x->heir[alias_root(p, v)];
	return put_writer(&(spot){x->e, n, n}, writer, args, nargs, r, v);
}

/* Views of what found a place on the memory of another are there too. */
static void move_to_heirs(reuser *x)
{
	plan *p = x->e->p;
	for (value_id v = 0; v < p->values.n; v++) {
		value_id root = x->heir[alias_root(p, v)];
		p->values.at[v].alias = root == v ? NONE : root;
	}
}

static clv_status look_at_all(reuser *x, uint32_t *changes)
{
	const edit *e = x->e;
	uint32_t before = *changes;
	for (node_id n = e->first; n < e->end; n++) {
		uint16_t writer = node_op(e->p, n)->writer;
		value_id v = edit_value(e, n, 0), r = edit_result(e, n);
		if (r != NONE)
			note_layout(x, n, r);
		if (!writer || e->p->nodes.at[n].nargs > MAX_ARGS || !can_write(x, n, v, r))
			continue;
		TRY(write_there(x, n, writer, v, r));
		++*changes;
	}
	if (*changes != before)
		move_to_heirs(x);
	return CLV_OK;
}

static clv_status reuser_new(edit *e, const optimize_spec *s, reuser *x)
{
	size_t n = e->p->values.n;
	*x = (reuser){.e = e};
	TRY(find_layouts(e, &x->layout));
	TRY(moved_values(e, s, &x->moved));
	x->image = edit_array(e, n, sizeof *x->image);
	x->whole = edit_array(e, n, sizeof *x->whole);
	x->with = edit_ids(e, n);
	x->last_use = edit_ids(e, n);
	x->shown = edit_array(e, n, sizeof *x->shown);
	x->heir = edit_ids(e, n);
	TRY_MEM(x->image && x->whole && x->with && x->last_use && x->shown && x->heir);
	find_sharing(x);
	return CLV_OK;
}

clv_status pass_in_place(edit *e, const optimize_spec *s, uint32_t *changes)
{
	reuser x;
	TRY(reuser_new(e, s, &x));
	return look_at_all(&x, changes);
}
