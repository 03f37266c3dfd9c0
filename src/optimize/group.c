/* Forms groups (plan/group.c): elementwise nodes, and those that work along rows, that can be evaluated together.
 *
 * The engine says which nodes it has loops for. Two kinds of group are formed:
 * - a product or convolution with elementwise nodes behind it, for its store. Only the last has a result that others need, and
 *   all other arguments are there before the product. The nodes move up to it.
 * - other nodes of one space of rows. They move down to the last of them: no node between may read what one of them gives, so a
 *   reader that does not join closes the group.
 * What the range writes is no argument of nodes that move, so nothing moves past a write. Nodes stay in their part (parts.c). */
#include "optimize/optimize.h"
#include "plan/data.h"

enum { GROUP_MOST = 24 }; /* nodes: engines have so many registers */

/* A group that is being formed. */
typedef struct bunch {
	node_id nodes[GROUP_MOST]; /* in their order */
	uint32_t n;
	value_id space;
	bool product; /* the first node is one */
	bool closed;
} bunch;

typedef struct grouper {
	edit *e;
	const node_id *part;
	uint8_t *role;         /* per node: group_role */
	uint32_t *readers;     /* per value: where its readers begin in `reader`; one more at the end */
	node_id *reader;       /* nodes of the range, ascending */
	bunch **of;            /* per node; NULL: it is in none */
	node_id *order, *next; /* per place: the node; room for another order */
	node_id *at;           /* per node: its place */
	node_id node;          /* of a walk */
	const bunch *bunch;    /* likewise */
	bool yes, written;     /* likewise */
} grouper;

/* The node of the range that makes v; NONE. */
static node_id def_of(const grouper *g, value_id v)
{
	const value *x = &g->e->p->values.at[v];
	node_id n = x->kind == VALUE_RESULT ? x->def : NONE;
	return n != NONE && n >= g->e->first && n < g->e->end ? n : NONE;
}

static unsigned part_of(const grouper *g, node_id n)
{
	unsigned i = 0;
	while (i + 1 < PARTS && n >= g->part[i + 1])
		i++;
	return i;
}

static bool run_alike(const grouper *g, node_id a, node_id b)
{
	return part_of(g, a) == part_of(g, b) && g->e->p->nodes.at[a].context == g->e->p->nodes.at[b].context;
}

static bool has_node(const bunch *b, node_id n)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->nodes[i] == n)
			return true;
	return false;
}

/* ---- which nodes can be in a group ------------------------------------------------------------------------------------- */

static void see_argument(void *ctx, value_id v)
{
	grouper *g = ctx;
	const value *x = &g->e->p->values.at[v];
	g->yes &= x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT;
	g->written |= g->e->facts.written[v];
}

/* What a product reads may be written: it stays where it is. */
static group_role role_of(grouper *g, const optimize_spec *s, node_id n)
{
	const plan *p = g->e->p;
	value_id r = edit_result(g->e, n);
	if (r == NONE || p->values.at[r].alias != NONE || g->e->facts.written[r] ||
	    p->values.at[r].flags & (VALUE_ODD | VALUE_GUARD) || shape_takes_data(p, &p->values.at[r]) ||
	    !node_pure(g->e, n) || p->nodes.at[n].flags)
		return GROUP_NEVER;
	group_role role = s->groups(p, n);
	g->yes = true;
	g->written = false;
	node_each_arg(p, n, see_argument, g);
	return g->yes && (!g->written || role == GROUP_PRODUCT) ? role : GROUP_NEVER;
}

static void count_reader(void *ctx, value_id v)
{
	grouper *g = ctx;
	g->readers[v + 1]++;
}

static void put_reader(void *ctx, value_id v)
{
	grouper *g = ctx;
	g->reader[g->readers[v]++] = g->node;
}

static clv_status find_readers(grouper *g)
{
	edit *e = g->e;
	uint32_t n = e->p->values.n;
	for (node_id k = e->first; k < e->end; k++)
		node_each_arg(e->p, k, count_reader, g);
	for (value_id v = 0; v < n; v++)
		g->readers[v + 1] += g->readers[v];
	g->reader = edit_ids(e, g->readers[n]);
	TRY_MEM(g->reader);
	for (g->node = e->first; g->node < e->end; g->node++)
		node_each_arg(e->p, g->node, put_reader, g);
	for (value_id v = n; v > 0; v--) /* each stands where the next begins now */
		g->readers[v] = g->readers[v - 1];
	g->readers[0] = 0;
	return CLV_OK;
}

static clv_status grouper_new(grouper *g, const optimize_spec *s)
{
	edit *e = g->e;
	uint32_t n = e->p->nodes.n;
	g->role = edit_array(e, n, sizeof *g->role);
	g->readers = edit_array(e, (size_t)e->p->values.n + 1, sizeof *g->readers);
	g->of = edit_array(e, n, sizeof *g->of);
	g->order = edit_ids(e, n);
	g->next = edit_ids(e, n);
	g->at = edit_ids(e, n);
	TRY_MEM(g->role && g->readers && g->of && g->order && g->next && g->at);
	for (node_id i = 0; i < n; i++) {
		g->order[i] = g->next[i] = g->at[i] = i;
		if (i >= e->first && i < e->end)
			g->role[i] = (uint8_t)role_of(g, s, i);
	}
	return find_readers(g);
}

static clv_status bunch_new(grouper *g, node_id n, value_id space, bool product, bunch **out)
{
	*out = edit_array(g->e, 1, sizeof **out);
	TRY_MEM(*out);
	**out = (bunch){.nodes = {n}, .n = 1, .space = space, .product = product, .closed = product};
	return CLV_OK;
}

/* The nodes of a bunch stand where its product does, or else its last node. */
static void line_up(grouper *g)
{
	node_id at = g->e->first;
	for (node_id i = g->e->first; i < g->e->end; i++) {
		node_id n = g->order[i];
		const bunch *b = g->of[n];
		if (!b)
			g->next[at++] = n;
		else if (n == b->nodes[b->product ? 0 : b->n - 1])
			for (uint32_t k = 0; k < b->n; k++)
				g->next[at++] = b->nodes[k];
	}
	for (node_id i = g->e->first; i < g->e->end; i++) {
		g->order[i] = g->next[i];
		g->at[g->order[i]] = i;
	}
}

/* ---- products and what follows them ------------------------------------------------------------------------------------- */

/* The first node that reads a result of the bunch and is not in it; NONE. */
static node_id next_reader(const grouper *g, const bunch *b)
{
	node_id next = NONE;
	for (uint32_t i = 0; i < b->n; i++) {
		value_id v = edit_result(g->e, b->nodes[i]);
		for (uint32_t k = g->readers[v]; k < g->readers[v + 1]; k++)
			if (g->reader[k] < next && !has_node(b, g->reader[k]))
				next = g->reader[k];
	}
	return next;
}

static void see_ready(void *ctx, value_id v)
{
	grouper *g = ctx;
	node_id def = def_of(g, v);
	g->yes &= def == NONE || def < g->bunch->nodes[0] || has_node(g->bunch, def);
}

static bool can_follow(grouper *g, const bunch *b, node_id n)
{
	if (g->role[n] != GROUP_ELEMENTS || g->of[n] || !run_alike(g, n, b->nodes[0]))
		return false;
	g->bunch = b;
	g->yes = shape_in(g->e->p, edit_result(g->e, n), b->space) == SHAPE_WHOLE;
	node_each_arg(g->e->p, n, see_ready, g);
	return g->yes;
}

static bool is_inner(const grouper *g, const bunch *b, uint32_t i)
{
	value_id v = edit_result(g->e, b->nodes[i]);
	for (uint32_t k = g->readers[v]; k < g->readers[v + 1]; k++)
		if (!has_node(b, g->reader[k]))
			return false;
	return !g->e->facts.kept[v];
}

static bool ends_well(const grouper *g, const bunch *b)
{
	const value *last = &g->e->p->values.at[edit_result(g->e, b->nodes[b->n - 1])];
	for (uint32_t i = 0; i + 1 < b->n; i++)
		if (!is_inner(g, b, i))
			return false;
	return last->dtype == g->e->p->values.at[b->space].dtype;
}

static clv_status follow_product(grouper *g, node_id first)
{
	bunch *b;
	TRY(bunch_new(g, first, edit_result(g->e, first), true, &b));
	while (b->n < GROUP_MOST) {
		node_id n = next_reader(g, b);
		if (n == NONE || !can_follow(g, b, n))
			break;
		b->nodes[b->n++] = n;
	}
	while (b->n > 1 && !ends_well(g, b))
		b->n--;
	for (uint32_t i = 0; b->n > 1 && i < b->n; i++)
		g->of[b->nodes[i]] = b;
	return CLV_OK;
}

/* ---- nodes of one space -------------------------------------------------------------------------------------------------- */

static void see_dropped(void *ctx, value_id v)
{
	grouper *g = ctx;
	node_id def = def_of(g, v);
	g->yes &= def == NONE || !has_node(g->bunch, def) || shape_in(g->e->p, v, g->bunch->space) != SHAPE_ROWS_DROPPED;
}

/* Its sizes are those of the space, or it gives a number per row, which is not read here without its dimension. */
static bool node_fits(grouper *g, const bunch *b, node_id n)
{
	const plan *p = g->e->p;
	value_id x = edit_value(g->e, n, 0);
	group_shape shape = shape_in(p, edit_result(g->e, n), b->space);
	bool rows = g->role[n] == GROUP_ROWS;
	g->bunch = b;
	g->yes = shape == SHAPE_WHOLE || shape == SHAPE_ROWS || (shape == SHAPE_ROWS_DROPPED && rows);
	g->yes &= !rows || (x != NONE && shape_in(p, x, b->space) == SHAPE_WHOLE);
	node_each_arg(p, n, see_dropped, g);
	return g->yes;
}

static bool all_fit(grouper *g, const bunch *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (!node_fits(g, b, b->nodes[i]))
			return false;
	return true;
}

static void add_sorted(const grouper *g, bunch *b, node_id n)
{
	uint32_t i = b->n++;
	for (; i > 0 && g->at[b->nodes[i - 1]] > g->at[n]; i--)
		b->nodes[i] = b->nodes[i - 1];
	b->nodes[i] = n;
}

/* All of a and b becomes a bunch, in the space of one of them; false: it cannot. */
static bool unite(grouper *g, bunch *a, const bunch *b)
{
	bunch both = *a;
	if (a->closed || b->closed || a->n + b->n > GROUP_MOST || !run_alike(g, a->nodes[0], b->nodes[0]))
		return false;
	for (uint32_t i = 0; i < b->n; i++)
		add_sorted(g, &both, b->nodes[i]);
	if (!all_fit(g, &both)) {
		both.space = b->space;
		if (!all_fit(g, &both))
			return false;
	}
	*a = both;
	for (uint32_t i = 0; i < a->n; i++)
		g->of[a->nodes[i]] = a;
	return true;
}

static void meet(void *ctx, value_id v)
{
	grouper *g = ctx;
	node_id def = def_of(g, v);
	bunch *a = def == NONE ? NULL : g->of[def], *mine = g->of[g->node];
	if (a && a != mine && (!mine || !unite(g, a, mine)))
		a->closed = true;
}

static clv_status join_readers(grouper *g)
{
	for (node_id i = g->e->first; i < g->e->end; i++) {
		node_id n = g->order[i];
		g->node = n;
		if (!g->of[n] && (g->role[n] == GROUP_ELEMENTS || g->role[n] == GROUP_ROWS)) {
			bool rows = g->role[n] == GROUP_ROWS;
			value_id space = rows ? edit_value(g->e, n, 0) : edit_result(g->e, n);
			TRY(bunch_new(g, n, space, false, &g->of[n]));
		}
		node_each_arg(g->e->p, n, meet, g);
	}
	return CLV_OK;
}

/* ---- the groups ----------------------------------------------------------------------------------------------------------- */

static clv_status mark_groups(grouper *g, uint32_t *changes)
{
	plan *p = g->e->p; /* in the new order */
	for (node_id i = g->e->first; i < g->e->end; i++) {
		const bunch *b = g->of[g->order[i]];
		if (!b || b->n < 2)
			continue;
		TRY(vec_push(&p->groups, ((node_span){i, i + b->n})));
		*changes += b->n;
		i += b->n - 1;
	}
	return plan_verify(p);
}

clv_status form_groups(edit *e, const optimize_spec *s, const node_id *part, uint32_t *changes)
{
	grouper g = {.e = e, .part = part};
	if (!s->groups)
		return CLV_OK;
	TRY(grouper_new(&g, s));
	for (node_id n = e->first; n < e->end; n++)
		if (g.role[n] == GROUP_PRODUCT)
			TRY(follow_product(&g, n));
	line_up(&g);
	TRY(join_readers(&g));
	line_up(&g);
	TRY(edit_reorder(e, g.order));
	return mark_groups(&g, changes);
}
