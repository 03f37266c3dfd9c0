/* Uses of values: walking the values of a node, and the last use of each value. */
#include "plan/intern.h"

static void each_value(const plan *p, uint32_t first, uint32_t n, unsigned depth, value_fn f, void *ctx)
{
	if (!in_range(first, n, p->args.n) || depth > NEST_LIMIT)
		return;
	for (uint32_t i = 0; i < n; i++) {
		arg a = p->args.at[first + i]; /* a copy: f may change the plan */
		if (a.kind == ARG_VALUE)
			f(ctx, a.u.v);
		else if (a.kind == ARG_LIST)
			each_value(p, a.u.list.first, a.u.list.n, depth + 1, f, ctx);
	}
}

void node_each_arg(const plan *p, node_id n, value_fn f, void *ctx)
{
	each_value(p, p->nodes.at[n].args, p->nodes.at[n].nargs, 0, f, ctx);
}

void node_each_result(const plan *p, node_id n, value_fn f, void *ctx)
{
	each_value(p, p->nodes.at[n].results, p->nodes.at[n].nresults, 0, f, ctx);
}

typedef struct walker {
	node_id *last;
	node_id now;
} walker;

static void use(void *ctx, value_id v)
{
	walker *w = ctx;
	w->last[v] = w->now;
}

/* A tensor keeps its storage alive by itself, so a value dies at its own last use even if views of it live on. */
clv_status liveness_new(const plan *p, liveness *out)
{
	walker w = {mem_realloc(NULL, p->values.n, sizeof *w.last), 0};
	if (!w.last)
		return fail_nomem();
	for (value_id v = 0; v < p->values.n; v++)
		w.last[v] = NONE;
	for (w.now = 0; w.now < p->nodes.n; w.now++) {
		const node *n = &p->nodes.at[w.now];
		node_each_arg(p, w.now, use, &w);
		for (uint32_t i = 0; i < n->nwrites; i++)
			use(&w, p->ids.at[n->writes + i]);
	}
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			use(&w, p->out_tree.at[i].u.v);
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		use(&w, p->rebinds.at[i].value);
	out->last = w.last;
	return CLV_OK;
}

void liveness_free(liveness *l)
{
	mem_free(l->last);
	l->last = NULL;
}
