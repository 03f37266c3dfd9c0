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

void node_each_use(const plan *p, node_id n, value_fn f, void *ctx)
{
	node_each_arg(p, n, f, ctx);
	for (uint32_t i = 0; i < p->nodes.at[n].nwrites; i++)
		f(ctx, p->ids.at[p->nodes.at[n].writes + i]);
}

void plan_each_output(const plan *p, value_fn f, void *ctx)
{
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			f(ctx, p->out_tree.at[i].u.v);
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

/* Uses by nodes and by the output tree. A tensor keeps its storage alive by itself, so a value dies at its own last use
   even if views of it live on. */
static clv_status last_uses(const plan *p, walker *w)
{
	w->last = mem_ids(p->values.n);
	TRY_MEM(w->last);
	for (w->now = 0; w->now < p->nodes.n; w->now++)
		node_each_use(p, w->now, use, w);
	plan_each_output(p, use, w);
	return CLV_OK;
}

clv_status liveness_new(const plan *p, liveness *out)
{
	walker w = {0};
	TRY(last_uses(p, &w));
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		use(&w, p->rebinds.at[i].value);
	out->last = w.last;
	return CLV_OK;
}

static void use_until(node_id *last, node_id n)
{
	if (n != NONE && (*last == NONE || n > *last))
		*last = n;
}

/* Per rebind, into `places`. `last` has the uses, `writer` room for a node per value. */
static void find_places(const plan *p, const node_id *last, node_id *writer, node_id *places)
{
	for (node_id k = 0; k < p->nodes.n; k++)
		for (uint32_t w = 0; w < p->nodes.at[k].nwrites; w++)
			writer[alias_root(p, p->ids.at[p->nodes.at[k].writes + w])] = k;
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		const rebind *r = &p->rebinds.at[i];
		places[i] = p->nodes.n && !is_external(p->values.at[r->value].kind) ? 0 : p->nodes.n;
		use_until(&places[i], last[r->target]);
		use_until(&places[i], p->values.at[r->value].def);
		use_until(&places[i], writer[alias_root(p, r->value)]);
	}
}

static clv_status rebind_uses(const plan *p, node_id *last, node_id *places)
{
	node_id *writer = mem_ids(p->values.n);
	TRY_MEM(writer);
	for (uint32_t i = 0; i < p->rebinds.n; i++) /* a tensor of the model under another name: see rebind_places */
		if (is_external(p->values.at[p->rebinds.at[i].value].kind))
			last[p->rebinds.at[i].value] = p->nodes.n;
	find_places(p, last, writer, places);
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		use_until(&last[p->rebinds.at[i].value], places[i]);
	mem_free(writer);
	return CLV_OK;
}

clv_status liveness_parts(const plan *p, liveness *out, node_id *places)
{
	walker w = {0};
	node_id *own = places ? NULL : mem_ids(p->rebinds.n + 1);
	clv_status st = places || own ? last_uses(p, &w) : fail_nomem();
	if (st == CLV_OK)
		st = rebind_uses(p, w.last, places ? places : own);
	mem_free(own);
	if (st == CLV_OK)
		out->last = w.last;
	else
		mem_free(w.last);
	return st;
}

void liveness_free(liveness *l)
{
	mem_free(l->last);
	l->last = NULL;
}
