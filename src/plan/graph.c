/* The nodes, values and views of a plan, for callers of cleave.h.
 * The nodes and values of a plan, and views of it, for callers of cleave.h: everything is described once, when the graph
 * is made, so that what is given out is borrowed and stays. */
#include "base/arena.h"
#include "base/options.h"
#include "plan/ops.h"
#include "plan/view.h"

_Static_assert(CLV_NONE == NONE, "ids go out as they are");
_Static_assert((int)CLV_VALUE_INPUT == VALUE_INPUT && (int)CLV_VALUE_RESULT == VALUE_RESULT,
               "kinds go out as they are");

struct clv_graph {
	const plan *p; /* borrowed */
	node_names *names;
	clv_node *nodes;
	clv_value *values;
	arena arena;
};

typedef struct clv_graph graph;

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static void count_one(void *ctx, value_id v)
{
	(void)v;
	++*(uint32_t *)ctx;
}

static void put_one(void *ctx, value_id v)
{
	*(*(uint32_t **)ctx)++ = v;
}

typedef void each_fn(const plan *p, node_id n, value_fn f, void *ctx);

static clv_status list(graph *g, node_id n, each_fn *each, const uint32_t **out, uint32_t *n_out)
{
	*n_out = 0;
	each(g->p, n, count_one, n_out);
	uint32_t *at = arena_array(&g->arena, *n_out, sizeof *at);
	TRY_MEM(at);
	*out = at;
	each(g->p, n, put_one, &at);
	return CLV_OK;
}

static uint32_t flags_of(const plan *p, const node *n, const clv_node *out)
{
	uint32_t flags = 0;
	flags |= n->flags & NODE_RANDOM ? CLV_NODE_RANDOM : 0;
	flags |= n->flags & NODE_HOST ? CLV_NODE_HOST_READ : 0;
	flags |= n->flags & NODE_IMPURE ? CLV_NODE_IMPURE : 0;
	for (uint32_t i = 0; i < out->nresults; i++)
		flags |= p->values.at[out->results[i]].flags & VALUE_GUARD ? CLV_NODE_GUARDED : 0;
	if (n->op_id == OP_cleave_guard_equal)
		flags |= CLV_NODE_GUARDED;
	return flags;
}

static clv_status describe_node(graph *g, node_id i)
{
	const plan *p = g->p;
	const node *n = &p->nodes.at[i];
	clv_node *out = &g->nodes[i];
	strbuf b = STRBUF_INIT;
	out->name = node_name(g->names, i);
	out->op = plan_s(p, n->op);
	out->module = module_path(p, i);
	out->module_class = n->scope == NONE ? "" : plan_s(p, p->scopes.at[n->scope].cls);
	out->source = plan_s(p, n->at);
	out->writes = vec_from(&p->ids, n->writes);
	out->nwrites = n->nwrites;
	TRY(list(g, i, node_each_arg, &out->inputs, &out->ninputs));
	TRY(list(g, i, node_each_result, &out->results, &out->nresults));
	out->flags = flags_of(p, n, out);
	context_print(p, i, &b);
	return arena_take(&g->arena, &b, &out->context);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static const char *const type_names[] = {
	[TYPE_TENSOR] = "tensor",   [TYPE_BOOL] = "bool", [TYPE_INT] = "int",       [TYPE_FLOAT] = "float",
	[TYPE_COMPLEX] = "complex", [TYPE_STR] = "str",   [TYPE_OBJECT] = "object",
};

static clv_status keep_dims(graph *g, const value *x, clv_value *out)
{
	const char **dims = arena_array(&g->arena, x->ndim, sizeof *dims);
	TRY_MEM(dims);
	for (uint32_t i = 0; i < x->ndim; i++) {
		strbuf b = STRBUF_INIT;
		expr_print(g->p, g->p->dims.at[x->shape + i], &b);
		TRY(arena_take(&g->arena, &b, &dims[i]));
	}
	out->dims = dims;
	out->ndim = x->ndim;
	return CLV_OK;
}

static clv_status describe_value(graph *g, value_id v, const liveness *l)
{
	const plan *p = g->p;
	const value *x = &p->values.at[v];
	clv_value *out = &g->values[v];
	bool tensor = x->type == TYPE_TENSOR;
	strbuf b = STRBUF_INIT;
	out->name = plan_s(p, x->name);
	out->type = type_names[x->type];
	out->dtype = tensor ? dtype_name((dtype)x->dtype) : "";
	out->device = tensor ? plan_s(p, x->device) : "";
	out->kind = (clv_value_kind)x->kind;
	out->producer = x->def;
	out->last_use = l->last[v];
	out->storage = alias_root(p, v);
	out->trainable = x->flags & VALUE_TRAINABLE;
	out->guarded = x->flags & VALUE_GUARD;
	value_label(p, v, &b);
	TRY(arena_take(&g->arena, &b, &out->label));
	return keep_dims(g, x, out);
}

/* Other names of a value lie one behind the other, in the order of the plan's list. */
static clv_status keep_ties(graph *g)
{
	const plan *p = g->p;
	const char **all = arena_array(&g->arena, p->ties.n, sizeof *all);
	TRY_MEM(all);
	for (uint32_t i = 0; i < p->ties.n; i++)
		g->values[p->ties.at[i].value].ntied++;
	for (value_id v = 0; v < p->values.n; v++) {
		g->values[v].tied = all;
		all += g->values[v].ntied;
		g->values[v].ntied = 0;
	}
	for (uint32_t i = 0; i < p->ties.n; i++) {
		clv_value *x = &g->values[p->ties.at[i].value];
		((const char **)x->tied)[x->ntied++] = plan_s(p, p->ties.at[i].name);
	}
	return CLV_OK;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

static clv_status describe_all(graph *g, const liveness *l)
{
	for (node_id i = 0; i < g->p->nodes.n; i++)
		TRY(describe_node(g, i));
	for (value_id v = 0; v < g->p->values.n; v++)
		TRY(describe_value(g, v, l));
	return keep_ties(g);
}

static clv_status fill_graph(graph *g)
{
	liveness l;
	TRY(node_names_new(g->p, &g->names));
	g->nodes = arena_array(&g->arena, g->p->nodes.n, sizeof *g->nodes);
	g->values = arena_array(&g->arena, g->p->values.n, sizeof *g->values);
	TRY_MEM(g->nodes && g->values);
	TRY(liveness_new(g->p, &l));
	clv_status st = describe_all(g, &l);
	liveness_free(&l);
	return st;
}

clv_status clv_graph_create(const clv_plan *p, clv_graph **out)
{
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_graph_create needs a plan and a place for the graph");
	graph *g = mem_alloc(sizeof *g);
	TRY_MEM(g);
	g->p = p;
	clv_status st = fill_graph(g);
	if (st == CLV_OK)
		*out = g;
	else
		clv_graph_free(g);
	return st;
}

void clv_graph_free(clv_graph *g)
{
	if (!g)
		return;
	node_names_free(g->names);
	arena_free(&g->arena);
	mem_free(g);
}

uint32_t clv_graph_node_count(const clv_graph *g)
{
	return g ? g->p->nodes.n : 0;
}

uint32_t clv_graph_value_count(const clv_graph *g)
{
	return g ? g->p->values.n : 0;
}

clv_status clv_graph_node(const clv_graph *g, uint32_t i, clv_node *out)
{
	if (!g || !out || i >= g->p->nodes.n)
		return fail(CLV_E_INVALID, "clv_graph_node: there is no node %u, or no place for it", i);
	clv_node all = g->nodes[i];
	return options_write(out, &all, sizeof all, "clv_node");
}

clv_status clv_graph_value(const clv_graph *g, uint32_t i, clv_value *out)
{
	if (!g || !out || i >= g->p->values.n)
		return fail(CLV_E_INVALID, "clv_graph_value: there is no value %u, or no place for it", i);
	clv_value all = g->values[i];
	return options_write(out, &all, sizeof all, "clv_value");
}

clv_status clv_graph_find(const clv_graph *g, const char *name, uint32_t *out)
{
	if (!g || !name || !out)
		return fail(CLV_E_INVALID, "clv_graph_find: an argument is NULL");
	node_id n = node_find(g->names, name);
	if (n == NONE)
		return fail(CLV_E_NOT_FOUND, "the plan has no node %.64s", name);
	*out = n;
	return CLV_OK;
}

/* ---- views ------------------------------------------------------------------------------------------------------ */

struct clv_view {
	view v;
};

clv_status clv_view_create(const clv_plan *p, uint32_t first, uint32_t end, clv_view **out)
{
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_view_create needs a plan and a place for the view");
	clv_view *made = mem_alloc(sizeof *made);
	TRY_MEM(made);
	clv_status st = view_range(p, first, end ? end : p->nodes.n, &made->v);
	made->v.p = NULL; /* what is kept are numbers: it lives on its own */
	if (st == CLV_OK)
		*out = made;
	else
		mem_free(made);
	return st;
}

void clv_view_free(clv_view *v)
{
	if (!v)
		return;
	view_free(&v->v);
	mem_free(v);
}

#define LIST(v, which, values)                                                                                         \
	do {                                                                                                               \
		if (values)                                                                                                    \
			*(values) = (v) ? (v)->v.which.at : NULL;                                                                  \
		return (v) ? (v)->v.which.n : 0;                                                                               \
	} while (0)

uint32_t clv_view_inputs(const clv_view *v, const uint32_t **values)
{
	LIST(v, inputs, values);
}

uint32_t clv_view_outputs(const clv_view *v, const uint32_t **values)
{
	LIST(v, outputs, values);
}

uint32_t clv_view_reads(const clv_view *v, const uint32_t **values)
{
	LIST(v, externals, values);
}

uint32_t clv_view_passthrough(const clv_view *v, const uint32_t **values)
{
	LIST(v, passthrough, values);
}
