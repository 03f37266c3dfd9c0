/* Merges linears of one input on a GPU: query, key and value, or gate and up.
 * Weights and biases are put together once, in the prelude, which keeps a copy of them; results are views of the one
 * product.
 *
 * Rows of such a view are apart in memory. It is done only where all readers of the results, also through views of them, are
 * known to take that and to give what they gave, laid out as it was. */
#include <string.h>

#include "optimize/rewrite.h"

/* Linears that go together. */
typedef struct group {
	linear at[MAX_INTS];
	uint32_t n;
	int64_t outs; /* of all */
} group;

typedef struct merger {
	edit *e;
	const optimize_spec *s;
	bool *constant; /* per value: the same in every run */
	bool *dense;    /* per value: a node may need it without gaps */
	uint32_t *open; /* per value: the last group of linears that read it; NONE */
	VEC(group) groups;
	value_id *owners; /* per value: the product on whose memory it will be; NONE */
	uint32_t *changes;
	bool yes; /* while values of a node are looked at */
} merger;

static void must_be_dense(void *ctx, value_id v)
{
	merger *m = ctx;
	m->dense[v] = true;
}

static void asks_for_dense(void *ctx, value_id v)
{
	merger *m = ctx;
	m->yes |= m->dense[v];
}

static bool is_fresh(const edit *e, node_id n)
{
	value_id r = edit_result(e, n);
	return r != NONE && e->p->values.at[r].alias == NONE;
}

/* A view that leaves all dimensions but the last as they are is one whatever the strides are. */
static bool splits_last(const edit *e, node_id n)
{
	bool op = edit_is(e, n, OP_view) || edit_is(e, n, OP_reshape) || edit_is(e, n, OP__unsafe_view);
	value_id from = edit_value(e, n, 0), to = edit_result(e, n);
	if (!op || from == NONE || to == NONE)
		return false;
	const value *x = &e->p->values.at[from], *y = &e->p->values.at[to];
	if (x->ndim < 1 || y->ndim < x->ndim)
		return false;
	size_t same = (x->ndim - 1) * sizeof *e->p->dims.at;
	return !same || !memcmp(&e->p->dims.at[x->shape], &e->p->dims.at[y->shape], same);
}

static void see_reader(merger *m, node_id n)
{
	const edit *e = m->e;
	const op_row *op = node_op(e->p, n);
	if (op->gaps == GAPS_ANY || (op->gaps == GAPS_FRESH && is_fresh(e, n)))
		return;
	m->yes = op->gaps != GAPS_SAME && op->view != VIEW_ANY && !splits_last(e, n);
	node_each_result(e->p, n, asks_for_dense, m);
	if (m->yes)
		node_each_arg(e->p, n, must_be_dense, m);
}

/* ---- linears that go together -------------------------------------------------------------------------------------- */

static bool can_merge(const merger *m, const linear *l)
{
	const edit *e = m->e;
	const weighted *w = &l->w;
	bool types = is_gpu_float(e, m->s, w->x) && same_type(e, w->weight, w->x) && same_type(e, w->result, w->x) &&
	             (w->bias == NONE || same_type(e, w->bias, w->x));
	return types && !e->facts.written[w->x] && !e->facts.written[w->result] && !e->facts.shown[w->result] &&
	       !value_guarded(e->p, w->result) && !m->dense[w->result] && e->p->values.at[w->x].ndim <= MAX_INTS;
}

/* Of one module, or of modules side by side: what others read much later would be held until then. */
static bool are_near(const plan *p, node_id a, node_id b)
{
	scope_id x = p->nodes.at[a].scope, y = p->nodes.at[b].scope;
	return x == y || (x != NONE && y != NONE && p->scopes.at[x].parent == p->scopes.at[y].parent);
}

/* The product of all is put before the first: what it reads must be made by then. */
static bool made_before(const edit *e, value_id v, node_id n)
{
	return v == NONE || e->p->values.at[v].kind != VALUE_RESULT || e->p->values.at[v].def < n;
}

static bool joins_group(const merger *m, const group *g, const linear *l)
{
	const plan *p = m->e->p;
	const linear *first = &g->at[0];
	int64_t outs;
	return g->n < MAX_INTS && first->transposed == l->transposed && (first->w.bias == NONE) == (l->w.bias == NONE) &&
	       p->nodes.at[first->w.node].op == p->nodes.at[l->w.node].op &&
	       p->nodes.at[first->w.node].context == p->nodes.at[l->w.node].context &&
	       are_near(p, first->w.node, l->w.node) && made_before(m->e, l->w.weight, first->w.node) &&
	       made_before(m->e, l->w.bias, first->w.node) && !__builtin_add_overflow(g->outs, l->outs, &outs);
}

/* Only neighbours among the linears of an input, so that no input makes this long. */
static clv_status sort_in(merger *m, const linear *l)
{
	uint32_t *open = &m->open[l->w.x];
	if (*open == NONE || !joins_group(m, &m->groups.at[*open], l)) {
		*open = m->groups.n;
		TRY(vec_push(&m->groups, (group){0}));
	}
	group *g = &m->groups.at[*open];
	g->at[g->n++] = *l;
	g->outs += l->outs;
	return CLV_OK;
}

static clv_status find_groups(merger *m)
{
	for (node_id n = m->e->first; n < m->e->end; n++) {
		linear l;
		if (!node_pure(m->e, n) || !runs_plainly(m->e, n) || !read_linear(m->e, m->constant, n, &l))
			continue;
		if (can_merge(m, &l))
			TRY(sort_in(m, &l));
	}
	return CLV_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static clv_status put_together(const spot *at, const value_id *parts, uint32_t n, uint32_t dim, const int64_t *shape,
                               uint32_t ndim, value_id *out)
{
	edit *e = at->e;
	arg each[MAX_INTS], args[2];
	for (uint32_t i = 0; i < n; i++)
		each[i] = arg_of(parts[i]);
	TRY(plan_list(e->p, each, n, &args[0]));
	TRY(arg_int(e, dim, &args[1]));
	TRY(new_tensor(e, parts[0], (dtype)e->p->values.at[parts[0]].dtype, shape, ndim, out));
	return put_node(at, OP_cat, args, 2, *out);
}

static clv_status weights_of(const spot *at, const group *g, value_id *out)
{
	const linear *first = &g->at[0];
	int64_t shape[2];
	value_id parts[MAX_INTS];
	shape[first->transposed] = g->outs;
	shape[!first->transposed] = first->ins;
	for (uint32_t i = 0; i < g->n; i++)
		parts[i] = g->at[i].w.weight;
	return put_together(at, parts, g->n, first->transposed, shape, 2, out);
}

static clv_status biases_of(const spot *at, const group *g, value_id *out)
{
	value_id parts[MAX_INTS];
	*out = NONE;
	for (uint32_t i = 0; i < g->n; i++)
		parts[i] = g->at[i].w.bias;
	return parts[0] == NONE ? CLV_OK : put_together(at, parts, g->n, 0, &g->outs, 1, out);
}

/* The first of them with other weights. */
static clv_status put_product(const spot *at, const group *g, value_id *out)
{
	edit *e = at->e;
	const weighted *w = &g->at[0].w;
	const value *r = &e->p->values.at[w->result];
	expr_id shape[MAX_INTS];
	uint32_t ndim = r->ndim;
	value_id weight, bias;
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = e->p->dims.at[r->shape + d];
	TRY(weights_of(at, g, &weight));
	TRY(biases_of(at, g, &bias));
	TRY(expr_const(e->p, g->outs, &shape[ndim - 1]));
	TRY(new_shaped(e, w->result, shape, ndim, out));
	const node *n = &e->p->nodes.at[w->node];
	bool sum = g->at[0].transposed && bias != NONE;
	arg args[5] = {arg_of(w->x), arg_of(weight), arg_of(bias)};
	if (!sum)
		return put_node(at, n->op_id, args, g->at[0].transposed ? 2 : 3, *out);
	arg more[5] = {arg_of(bias), arg_of(w->x), arg_of(weight), *edit_arg(e, w->node, 3), *edit_arg(e, w->node, 4)};
	return put_node(at, n->op_id, more, 5, *out);
}

static clv_status merge(merger *m, const group *g)
{
	edit *e = m->e;
	spot at = {e, g->at[0].w.node, g->at[0].w.node};
	int64_t sizes[MAX_INTS];
	value_id product, results[MAX_INTS];
	arg args[3];
	for (uint32_t i = 0; i < g->n; i++) {
		sizes[i] = g->at[i].outs;
		results[i] = g->at[i].w.result;
		TRY(edit_remove(e, g->at[i].w.node));
	}
	TRY(put_product(&at, g, &product));
	for (uint32_t i = 0; i < g->n; i++)
		m->owners[results[i]] = product;
	args[0] = arg_of(product);
	TRY(arg_ints(e, sizes, g->n, &args[1]));
	TRY(arg_int(e, -1, &args[2]));
	*m->changes += g->n;
	return put_views(&at, OP_split_with_sizes, args, 3, results, g->n);
}

static clv_status merge_all(merger *m)
{
	for (node_id n = m->e->end; n-- > m->e->first;) /* readers before makers */
		see_reader(m, n);
	TRY(find_groups(m));
	for (uint32_t i = 0; i < m->groups.n; i++)
		if (m->groups.at[i].n > 1)
			TRY(merge(m, &m->groups.at[i]));
	if (*m->changes)
		edit_give_memories(m->e, m->owners, m->e->facts.n);
	return CLV_OK;
}

clv_status pass_merge_linears(edit *e, const optimize_spec *s, uint32_t *changes)
{
	merger m = {.e = e, .s = s, .changes = changes};
	m.dense = edit_array(e, e->p->values.n, sizeof *m.dense);
	m.open = edit_ids(e, e->p->values.n);
	m.owners = edit_ids(e, e->p->values.n);
	TRY_MEM(m.dense && m.open && m.owners);
	TRY(constant_values(e, s, &m.constant));
	clv_status st = merge_all(&m);
	vec_free(&m.groups);
	return st;
}
