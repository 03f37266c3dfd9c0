/* Finds operators that read memory beyond the elements of their arguments.
 * Operators that read the memory of a tensor beyond its elements: what crosses a cut are elements, in memory of their
 * own on the other side. */
#include "split/frontier.h"

#include "plan/ops.h"

typedef struct reach_walk {
	const plan *p;
	reach_list *out;
	value_id *from; /* per root: first born of what can cross on it; NONE: nothing yet */
	node_id now;
	clv_status st;
} reach_walk;

static void note_born(void *ctx, value_id v)
{
	reach_walk *w = ctx;
	value_id *from = &w->from[alias_root(w->p, v)];
	if (*from == NONE && can_cross(w->p, v))
		*from = v;
}

static void note_reach(void *ctx, value_id v)
{
	reach_walk *w = ctx;
	if (w->st == CLV_OK && can_cross(w->p, v))
		w->st = vec_push(w->out, ((reach){w->now, v, w->from[alias_root(w->p, v)]}));
}

static clv_status walk_reaches(reach_walk *w)
{
	const plan *p = w->p;
	for (uint32_t i = 0; i < p->inputs.n; i++)
		note_born(w, p->inputs.at[i]);
	for (w->now = 0; w->now < p->nodes.n && w->st == CLV_OK; w->now++) {
		if (op_reaches(node_op(p, w->now)))
			node_each_arg(p, w->now, note_reach, w);
		node_each_result(p, w->now, note_born, w);
	}
	return w->st;
}

clv_status find_reaches(const plan *p, reach_list *out)
{
	reach_walk w = {.p = p, .out = out, .from = mem_ids(p->values.n)};
	clv_status st = w.from ? walk_reaches(&w) : fail_nomem();
	mem_free(w.from);
	return st;
}
