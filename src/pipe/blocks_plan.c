/* Makes the graph of the blocks, and plans in the order of their stages.
 *
 * Nothing copies nodes: a plan is only brought into another order, in which each stage is a range. */
#include <string.h>

#include "pipe/blocks.h"
#include "plan/diff.h"
#include "plan/view.h"
#include "split/frontier.h"

/* Block `block` reads value `v`. */
typedef struct use {
	value_id v;
	uint32_t block;
} use;

typedef struct use_walk {
	const blocks *b;
	VEC(use) uses;
	node_id now;
	clv_status st;
} use_walk;

static void note_block_use(void *ctx, value_id v)
{
	use_walk *w = ctx;
	const value *x = &w->b->p->values.at[v];
	uint32_t here = w->b->of_node[w->now];
	bool from_here = x->kind == VALUE_RESULT && w->b->of_node[x->def] == here;
	if (w->st == CLV_OK && can_cross(w->b->p, v) && !from_here)
		w->st = vec_push(&w->uses, ((use){v, here}));
}

static int by_value(const void *a, const void *b)
{
	const use *x = a, *y = b;
	if (x->v != y->v)
		return x->v < y->v ? -1 : 1;
	return (x->block > y->block) - (x->block < y->block);
}

static clv_status find_uses(use_walk *w)
{
	const plan *p = w->b->p;
	for (w->now = 0; w->now < p->nodes.n; w->now++) {
		const node *n = &p->nodes.at[w->now];
		node_each_arg(p, w->now, note_block_use, w);
		for (uint32_t i = 0; i < n->nwrites; i++)
			note_block_use(w, p->ids.at[n->writes + i]);
	}
	if (w->uses.n)
		qsort(w->uses.at, w->uses.n, sizeof *w->uses.at, by_value);
	return w->st;
}

static clv_status add_crossing_value(const blocks *b, value_id v, const use *uses, uint32_t n, bool leaves,
                                     pipe_graph *g)
{
	const value *x = &b->p->values.at[v];
	pipe_value out = {.from = x->kind == VALUE_RESULT ? b->of_node[x->def] : PIPE_NONE,
	                  .uses = g->uses.n,
	                  .grad = (x->flags & VALUE_GRAD) != 0,
	                  .leaves = leaves};
	TRY(value_bytes(b->p, v, b->syms, &out.bytes));
	for (uint32_t i = 0; i < n; i++)
		if (!i || uses[i].block != uses[i - 1].block)
			TRY(vec_push(&g->uses, uses[i].block));
	out.nuses = g->uses.n - out.uses;
	return vec_push(&g->values, out);
}

static clv_status add_values(const blocks *b, const use_walk *w, const liveness *live, pipe_graph *g)
{
	uint32_t at = 0;
	for (value_id v = 0; v < b->p->values.n; v++) {
		uint32_t first = at;
		while (at < w->uses.n && w->uses.at[at].v == v)
			at++;
		bool leaves = can_cross(b->p, v) && live->last[v] == b->p->nodes.n;
		if (at > first || leaves)
			TRY(add_crossing_value(b, v, vec_from(&w->uses, first), at - first, leaves, g));
	}
	return CLV_OK;
}

static clv_status add_nodes(const blocks *b, const block_cost *costs, pipe_graph *g)
{
	g->named = true;
	for (uint32_t i = 0; i < b->at.n; i++) {
		const block *x = &b->at.at[i];
		const block_cost *c = &costs[i];
		const char *name = arena_str(&g->names, x->name);
		TRY(arena_status(&g->names));
		TRY(vec_push(&g->nodes,
		             ((pipe_node){i, name, c->fwd_us, c->bwd_us, c->param_bytes, c->held_bytes, c->work_bytes})));
	}
	for (uint32_t e = 0; e < b->edges.n; e++)
		TRY(vec_push(&g->order, b->edges.at[e]));
	return CLV_OK;
}

clv_status blocks_graph(const blocks *b, const block_cost *costs, pipe_graph *out)
{
	pipe_graph g = {0};
	use_walk w = {.b = b};
	liveness live;
	TRY(liveness_parts(b->p, &live, NULL));
	clv_status st = add_nodes(b, costs, &g);
	if (st == CLV_OK)
		st = find_uses(&w);
	if (st == CLV_OK)
		st = add_values(b, &w, &live, &g);
	if (st == CLV_OK)
		st = graph_finish(&g);
	vec_free(&w.uses);
	liveness_free(&live);
	if (st == CLV_OK)
		*out = g;
	else
		graph_free(&g);
	return st;
}

clv_status blocks_plan(const blocks *b, plan **out, node_id *ends)
{
	for (uint32_t i = 0; i < b->at.n; i++)
		ends[i] = b->at.at[i].first + b->at.at[i].n;
	return plan_reorder(b->p, b->order.at, out);
}

/* Whether every boundary between stages may be cut. */
static clv_status check_boundaries(const plan *p, const node_id *ends, uint32_t nstages)
{
	clv_frontiers *f = NULL;
	TRY(clv_frontiers_create(p, NULL, &f));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i + 1 < nstages; i++) {
		if (!ends[i] || ends[i] > f->n)
			continue; /* an empty stage begins or ends the plan: nothing is cut */
		const frontier *c = &f->at[ends[i] - 1];
		if (c->unsafe && c->tensors)
			st = fail(CLV_E_UNSUPPORTED, "the model cannot be cut between stages %u and %u, after %s: %s", i, i + 1,
			          node_name(f->names, ends[i] - 1), c->unsafe);
	}
	clv_frontiers_free(f);
	return st;
}

clv_status stages_plan(const plan *p, const uint32_t *stage_of, uint32_t nstages, plan **out, node_id *ends)
{
	plan *q = NULL;
	node_id *order = mem_ids(p->nodes.n);
	TRY_MEM(order);
	for (uint32_t i = 0; i < nstages; i++)
		ends[i] = 0;
	clv_status st = CLV_OK;
	for (node_id k = 0; k < p->nodes.n && st == CLV_OK; k++) {
		if (stage_of[k] >= nstages)
			st = fail(CLV_E_INVALID, "node %u is in stage %u of %u", k, stage_of[k], nstages);
		else
			ends[stage_of[k]]++;
	}
	for (uint32_t i = 0, at = 0; i < nstages; i++) {
		uint32_t n = ends[i];
		ends[i] = at; /* for now where the next node of the stage goes */
		at += n;
	}
	for (node_id k = 0; k < p->nodes.n && st == CLV_OK; k++)
		order[ends[stage_of[k]]++] = k;
	if (st == CLV_OK)
		st = plan_reorder(p, order, &q);
	mem_free(order);
	if (st == CLV_OK)
		st = check_boundaries(q, ends, nstages);
	if (st == CLV_OK)
		*out = q;
	else
		plan_free(q);
	return st;
}

clv_status stages_match(const plan *from, const uint32_t *stage_of, const blocks *b, uint32_t *out)
{
	node_pairs m;
	uint32_t *stage = mem_alloc((b->at.n + 1) * sizeof *stage);
	clv_status st = stage ? node_pairs_new(b->p, from, PAIRS_SURE, &m) : fail_nomem();
	if (st != CLV_OK) {
		mem_free(stage);
		return st;
	}
	for (node_id k = 0; k < b->p->nodes.n; k++) {
		node_id same = m.to_b[k];
		if (same != NONE && stage_of[same] > stage[b->of_node[k]])
			stage[b->of_node[k]] = stage_of[same];
	}
	node_pairs_free(&m);
	for (uint32_t e = 0; e < b->edges.n; e++) { /* ascending by `from`, and blocks are topological */
		const pipe_edge *x = &b->edges.at[e];
		if (stage[x->from] > stage[x->to])
			stage[x->to] = stage[x->from];
	}
	for (node_id k = 0; k < b->p->nodes.n; k++)
		out[k] = stage[b->of_node[k]];
	mem_free(stage);
	return CLV_OK;
}
