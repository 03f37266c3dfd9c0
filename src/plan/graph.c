/* The nodes and values of a plan for callers of cleave.h. Everything is described once, when the graph is made, so that it
 * can be lent out. */
#include "base/arena.h"
#include "base/options.h"
#include "plan/plan.h"

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

static clv_status describe_node(graph *g, node_id i)
{
	const plan *p = g->p;
	const node *n = &p->nodes.at[i];
	clv_node *out = &g->nodes[i];
	out->name = node_name(g->names, i);
	out->op = plan_s(p, n->op);
	out->module = module_path(p, i);
	out->source = plan_s(p, n->at);
	out->writes = vec_from(&p->ids, n->writes);
	out->nwrites = n->nwrites;
	TRY(list(g, i, node_each_arg, &out->inputs, &out->ninputs));
	return list(g, i, node_each_result, &out->results, &out->nresults);
}

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

static clv_status describe_value(graph *g, value_id v)
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
	out->trainable = x->flags & VALUE_TRAINABLE;
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

static clv_status fill_graph(graph *g)
{
	TRY(node_names_new(g->p, &g->names));
	g->nodes = arena_array(&g->arena, g->p->nodes.n, sizeof *g->nodes);
	g->values = arena_array(&g->arena, g->p->values.n, sizeof *g->values);
	TRY_MEM(g->nodes && g->values);
	for (node_id i = 0; i < g->p->nodes.n; i++)
		TRY(describe_node(g, i));
	for (value_id v = 0; v < g->p->values.n; v++)
		TRY(describe_value(g, v));
	return keep_ties(g);
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
