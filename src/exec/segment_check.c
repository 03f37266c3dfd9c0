/* Checks the nodes that compiled code replaces: they only compute tensors from tensors, and nothing depends on whether the
 * results are views. The chooser of segments sees to this; a file may say anything. */
#include "exec/segment_check.h"

#include <string.h>

#include "base/arena.h"
#include "optimize/optimize.h"
#include "plan/data.h"
#include "plan/intern.h"
#include "plan/ops.h"

/* Per value that owns its storage: the last node that writes it, and that reads it by its place in memory. NONE: none. */
typedef struct memory {
	const plan *p;
	node_id *written, *placed;
	bool *rebound;
	arena arena;
} memory;

typedef struct walk {
	const memory *m;
	const view *v;
	node_id n;
	const char *why; /* the first thing that stands against it; NULL: nothing */
} walk;

static node_id first_of(const view *v)
{
	return v->nodes.at[0];
}

static node_id end_of(const view *v)
{
	return v->nodes.at[v->nodes.n - 1] + 1;
}

static bool is_inside_of(const view *v, value_id id)
{
	const value *x = &v->p->values.at[id];
	return x->kind == VALUE_RESULT && x->def >= first_of(v) && x->def < end_of(v);
}

static void note_place(void *ctx, value_id v)
{
	walk *w = ctx;
	w->m->placed[alias_root(w->m->p, v)] = w->n;
}

static clv_status memory_new(const plan *p, memory *m)
{
	*m = (memory){.p = p};
	m->written = arena_ids(&m->arena, p->values.n);
	m->placed = arena_ids(&m->arena, p->values.n);
	m->rebound = arena_alloc(&m->arena, p->values.n);
	TRY(arena_status(&m->arena));
	for (node_id n = 0; n < p->nodes.n; n++) {
		const node *x = &p->nodes.at[n];
		walk w = {.m = m, .n = n};
		for (uint32_t i = 0; i < x->nwrites; i++)
			m->written[alias_root(p, p->ids.at[x->writes + i])] = n;
		if (node_op(p, n)->memory == MEMORY_BEYOND)
			node_each_arg(p, n, note_place, &w);
	}
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		m->rebound[p->rebinds.at[i].target] = true;
	return CLV_OK;
}

static void check_tensor_value(void *ctx, value_id id)
{
	walk *w = ctx;
	const plan *p = w->m->p;
	const value *x = &p->values.at[id];
	if (w->why)
		return;
	if (x->type != TYPE_TENSOR || x->kind == VALUE_OBJECT)
		w->why = "takes or gives something that is no tensor";
	else if (x->flags & VALUE_ODD)
		w->why = "takes or gives a sparse or nested tensor";
	else if (shape_takes_data(p, x))
		w->why = "has sizes that are read from data";
}

static void check_result_value(void *ctx, value_id id)
{
	walk *w = ctx;
	check_tensor_value(ctx, id);
	if (!w->why && value_guarded(w->m->p, id))
		w->why = "has sizes that are read from data";
}

static void check_read_value(void *ctx, value_id id)
{
	walk *w = ctx;
	const plan *p = w->m->p;
	value_id root = alias_root(p, id);
	check_tensor_value(ctx, id);
	if (!w->why && is_external(p->values.at[id].kind) && (w->m->written[root] != NONE || w->m->rebound[id]))
		w->why = "reads a tensor of the model that a run changes";
}

static void check_replaced_node(walk *w)
{
	const plan *p = w->m->p;
	const node *x = &p->nodes.at[w->n];
	if (node_draws(p, w->n) || x->flags & (NODE_HOST | NODE_IMPURE) || strncmp(plan_s(p, x->op), "cleave::", 8) == 0)
		w->why = "draws random numbers, reads data on the host, or has an effect";
	if (!w->why && node_takes(p, w->n, NONE))
		w->why = "takes a number that is read from data";
	for (uint32_t i = 0; i < x->nwrites && !w->why; i++)
		if (!is_inside_of(w->v, alias_root(p, p->ids.at[x->writes + i])))
			w->why = "writes memory from outside the segment";
	node_each_arg(p, w->n, check_read_value, w);
	node_each_result(p, w->n, check_result_value, w);
}

static bool has_sibling(const view *v, uint32_t i, value_id root)
{
	for (uint32_t k = 0; k < v->outputs.n; k++)
		if (k != i && alias_root(v->p, v->outputs.at[k]) == root)
			return true;
	return false;
}

static const char *output_obstacle(const memory *m, const view *v, uint32_t i)
{
	value_id root = alias_root(m->p, v->outputs.at[i]);
	node_id end = end_of(v);
	if (m->placed[root] != NONE && m->placed[root] >= end)
		return "as_strided reads it by its place in memory later";
	if (m->written[root] == NONE || m->written[root] < end)
		return NULL;
	return !is_inside_of(v, root) || has_sibling(v, i, root) ? "its memory is shared, and written in place later"
	                                                         : NULL;
}

static clv_status refuse_output(const plan *p, value_id id, const char *why)
{
	char *label;
	TRY(value_label_text(p, id, &label));
	clv_status st = fail(CLV_E_INVALID, "a compiled segment cannot give %s: %s", label, why);
	mem_free(label);
	return st;
}

static clv_status check_segment_view(const memory *m, const view *v)
{
	for (uint32_t i = 0; i < v->nodes.n; i++) {
		walk w = {m, v, v->nodes.at[i], NULL};
		check_replaced_node(&w);
		if (w.why)
			return fail(CLV_E_INVALID, "node %u (%s) cannot be in a compiled segment: it %s", w.n,
			            plan_s(m->p, m->p->nodes.at[w.n].op), w.why);
	}
	for (uint32_t i = 0; i < v->outputs.n; i++) {
		const char *why = output_obstacle(m, v, i);
		if (why)
			return refuse_output(m->p, v->outputs.at[i], why);
	}
	return CLV_OK;
}

clv_status segment_check(const plan *p, const view *segments, uint32_t n)
{
	memory m;
	clv_status st = memory_new(p, &m);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = check_segment_view(&m, &segments[i]);
	arena_free(&m.arena);
	return st;
}
