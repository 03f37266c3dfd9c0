/* Finds the inputs, outputs and externals of a range of nodes.
 *
 * A value is live at a position when it is there (an input, or the result of an earlier node) and something at or
 * after that position needs it; the output tree stands after the last node, a rebind at its place (liveness_parts). What
 * comes in is live at the first node, what goes out is live at the end, so neighbouring ranges agree about what crosses. */
#include "plan/view.h"

#include "plan/intern.h"

typedef struct marks {
	const plan *p;
	bool *used; /* per value: read or written by a node of the range, or needed after the last node */
} marks;

static void mark(void *ctx, value_id v)
{
	((marks *)ctx)->used[v] = true;
}

/* External values that the output tree reads belong to the range that ends the plan. */
static void mark_external(void *ctx, value_id v)
{
	marks *m = ctx;
	m->used[v] |= is_external(m->p->values.at[v].kind);
}

static bool live_at(const plan *p, const liveness *l, value_id v, node_id position)
{
	const value *x = &p->values.at[v];
	bool there = x->kind == VALUE_INPUT || (x->kind == VALUE_RESULT && x->def < position);
	return there && l->last[v] != NONE && l->last[v] >= position;
}

static clv_status place_value(view *out, value_id v, bool in, bool go_on, bool used)
{
	if (in)
		TRY(vec_push(&out->inputs, v));
	if (go_on)
		TRY(vec_push(&out->outputs, v));
	if (in && go_on && !used)
		TRY(vec_push(&out->passthrough, v));
	return CLV_OK;
}

static clv_status fill_range(view *out, node_id first, node_id end, const liveness *l, const bool *used)
{
	const plan *p = out->p;
	TRY(vec_reserve(&out->nodes, end - first));
	for (node_id n = first; n < end; n++)
		out->nodes.at[out->nodes.n++] = n;
	for (value_id v = 0; v < p->values.n; v++) {
		uint8_t kind = p->values.at[v].kind;
		if (is_external(kind)) {
			if (used[v])
				TRY(vec_push(&out->externals, v));
			continue;
		}
		bool in = live_at(p, l, v, first) || (first == 0 && kind == VALUE_INPUT);
		TRY(place_value(out, v, in, live_at(p, l, v, end), used[v]));
	}
	return CLV_OK;
}

/* What a rebind of the range binds comes in where it is not made here. Where passes were at work (like), its place may have
   gone to the nodes in front of the range. */
static clv_status take_rebinds(marks *m, node_id first, node_id end, const view *like, liveness *l, view *out)
{
	const plan *p = m->p;
	node_id *places = mem_ids(p->rebinds.n);
	clv_status st = places ? liveness_parts(p, l, places) : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < (like ? like->rebinds.n : p->rebinds.n); i++) {
		bool here = like || (places[i] >= first && places[i] < end) || (end == p->nodes.n && places[i] == end);
		if (here)
			st = vec_push(&out->rebinds, like ? like->rebinds.at[i] : i);
	}
	mem_free(places);
	for (uint32_t i = 0; st == CLV_OK && i < out->rebinds.n; i++) {
		value_id v = p->rebinds.at[out->rebinds.at[i]].value;
		mark(m, v);
		if (l->last[v] == NONE || l->last[v] < first)
			l->last[v] = first;
	}
	return st;
}

clv_status view_range_like(const plan *p, node_id first, node_id end, const view *like, view *out)
{
	if (first > end || end > p->nodes.n)
		return fail(CLV_E_INVALID, "there are no nodes %u to %u in a plan of %u nodes", first, end, p->nodes.n);
	view v = {.p = p};
	liveness l = {NULL};
	marks m = {p, mem_alloc(p->values.n * sizeof *m.used + 1)};
	clv_status st = m.used ? take_rebinds(&m, first, end, like, &l, &v) : fail_nomem();
	if (st == CLV_OK) {
		for (node_id n = first; n < end; n++)
			node_each_use(p, n, mark, &m);
		if (end == p->nodes.n)
			plan_each_output(p, mark_external, &m);
		st = fill_range(&v, first, end, &l, m.used);
	}
	mem_free(m.used);
	liveness_free(&l);
	if (st != CLV_OK)
		view_free(&v);
	else
		*out = v;
	return st;
}

clv_status view_range(const plan *p, node_id first, node_id end, view *out)
{
	return view_range_like(p, first, end, NULL, out);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

typedef struct collector {
	view *v;
	node_id first, end;
	const liveness *l;
	clv_status st;
} collector;

static void collect_use(void *ctx, value_id v)
{
	collector *c = ctx;
	const value *x = &c->v->p->values.at[v];
	if (c->st != CLV_OK || (x->kind == VALUE_RESULT && x->def >= c->first))
		return;
	c->st = is_external(x->kind) ? vec_push(&c->v->externals, v) : vec_push(&c->v->inputs, v);
}

static void collect_result(void *ctx, value_id v)
{
	collector *c = ctx;
	if (c->st == CLV_OK && c->l->last[v] != NONE && c->l->last[v] >= c->end)
		c->st = vec_push(&c->v->outputs, v);
}

static int by_id(const void *a, const void *b)
{
	value_id x = *(const value_id *)a, y = *(const value_id *)b;
	return (x > y) - (x < y);
}

uint32_t sort_unique_ids(value_id *at, uint32_t n)
{
	uint32_t kept = 0;
	if (n)
		qsort(at, n, sizeof *at, by_id);
	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || at[i] != at[i - 1])
			at[kept++] = at[i];
	return kept;
}

static clv_status collect(collector *c)
{
	view *v = c->v;
	TRY(vec_reserve(&v->nodes, c->end - c->first));
	for (node_id n = c->first; n < c->end; n++) {
		v->nodes.at[v->nodes.n++] = n;
		node_each_use(v->p, n, collect_use, c);
		node_each_result(v->p, n, collect_result, c);
		TRY(c->st);
	}
	v->inputs.n = sort_unique_ids(v->inputs.at, v->inputs.n);
	v->outputs.n = sort_unique_ids(v->outputs.at, v->outputs.n);
	v->externals.n = sort_unique_ids(v->externals.at, v->externals.n);
	return CLV_OK;
}

clv_status view_segment(const plan *p, const liveness *l, node_id first, node_id end, view *out)
{
	if (first > end || end > p->nodes.n)
		return fail(CLV_E_INVALID, "there are no nodes %u to %u in a plan of %u nodes", first, end, p->nodes.n);
	view v = {.p = p};
	collector c = {&v, first, end, l, CLV_OK};
	clv_status st = collect(&c);
	if (st != CLV_OK)
		view_free(&v);
	else
		*out = v;
	return st;
}

clv_status view_gives(const view *v, bool whole, value_ids *out)
{
	const plan *p = v->p;
	for (uint32_t i = 0; whole && i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			TRY(vec_push(out, p->out_tree.at[i].u.v));
	for (uint32_t i = 0; !whole && i < v->outputs.n; i++)
		TRY(vec_push(out, v->outputs.at[i]));
	for (uint32_t i = 0; i < v->rebinds.n; i++)
		TRY(vec_push(out, p->rebinds.at[v->rebinds.at[i]].value));
	for (uint32_t i = 0; i < out->n; i++)
		if (p->values.at[out->at[i]].type != TYPE_TENSOR)
			return fail(CLV_E_UNSUPPORTED, "output %u of the program is no tensor", i);
	return CLV_OK;
}

void view_free(view *v)
{
	vec_free(&v->nodes);
	vec_free(&v->inputs);
	vec_free(&v->outputs);
	vec_free(&v->externals);
	vec_free(&v->passthrough);
	vec_free(&v->rebinds);
}

bool view_draws(const view *v)
{
	for (uint32_t i = 0; i < v->nodes.n; i++)
		if (node_draws(v->p, v->nodes.at[i]))
			return true;
	return false;
}

clv_status view_written(const view *v, bool **out)
{
	const plan *p = v->p;
	bool *written = mem_alloc((p->values.n + 1) * sizeof *written);
	TRY_MEM(written);
	for (uint32_t k = 0; k < v->nodes.n; k++) {
		const node *n = &p->nodes.at[v->nodes.at[k]];
		for (uint32_t w = 0; w < n->nwrites; w++)
			written[alias_root(p, p->ids.at[n->writes + w])] = true;
	}
	*out = written;
	return CLV_OK;
}
