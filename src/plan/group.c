/* Groups: which nodes can be evaluated as one, row by row, with what is between them in registers or the first cache.
 *
 * A group is a range of nodes that stand one behind the other, so liveness, cuts and every pass see ordinary nodes: whoever does
 * not know groups runs the nodes one by one and gets the same. The rules here are those that hold for every engine; whether it
 * has loops for the operators, each engine asks itself. */
#include "plan/plan.h"

#include "plan/intern.h"

static bool same_size(const plan *p, const value *x, uint32_t d, const value *y)
{
	return p->dims.at[x->shape + d] == p->dims.at[y->shape + d];
}

/* Its last size is 1. */
static bool has_single_rows(const plan *p, const value *x)
{
	int64_t k;
	return x->ndim && expr_is_const(p, p->dims.at[x->shape + x->ndim - 1], &k) && k == 1;
}

group_shape shape_in(const plan *p, value_id v, value_id space)
{
	const value *x = &p->values.at[v], *s = &p->values.at[space];
	uint32_t last = s->ndim - 1;
	if (x->type != TYPE_TENSOR || s->type != TYPE_TENSOR || x->ndim > s->ndim || x->ndim + 1 < s->ndim)
		return SHAPE_OTHER;
	for (uint32_t d = 0; d + 1 < s->ndim; d++)
		if (!same_size(p, x, d, s))
			return SHAPE_OTHER;
	if (x->ndim < s->ndim)
		return SHAPE_ROWS_DROPPED;
	if (s->ndim == 0 || same_size(p, x, last, s))
		return SHAPE_WHOLE;
	return has_single_rows(p, x) ? SHAPE_ROWS : SHAPE_OTHER;
}

typedef struct member_walk {
	const plan *p;
	node_span s;
	value_id space, found;
	const char *why;
} member_walk;

static bool made_by(const plan *p, value_id v, node_span s)
{
	const value *x = &p->values.at[v];
	return x->kind == VALUE_RESULT && x->def >= s.first && x->def < s.end;
}

static void check_argument(void *ctx, value_id v)
{
	member_walk *w = ctx;
	if (w->p->values.at[v].type != TYPE_TENSOR || w->p->values.at[v].kind == VALUE_OBJECT)
		w->why = "it is in a group, but takes something that is no tensor";
}

static void check_result(void *ctx, value_id v)
{
	member_walk *w = ctx;
	const value *x = &w->p->values.at[v], *first;
	if (x->type != TYPE_TENSOR || x->alias != NONE || x->flags & (VALUE_ODD | VALUE_GUARD)) {
		w->why = "it is in a group, but a result is no dense tensor on memory of its own, or has a guard";
		return;
	}
	if (w->found == NONE)
		w->found = v;
	first = &w->p->values.at[w->found];
	if (x->device != first->device)
		w->why = "it is in a group whose other results are on another device";
}

static const char *member_fault(const plan *p, node_span s, node_id n, value_id *device_of)
{
	const node *x = &p->nodes.at[n];
	member_walk w = {.p = p, .s = s, .found = *device_of};
	if (x->nwrites || x->flags & (NODE_RANDOM | NODE_HOST | NODE_IMPURE))
		return "it is in a group, but writes, draws random numbers, reads data on the host or must keep its place";
	if (x->context != p->nodes.at[s.first].context)
		return "it is in a group whose other nodes run in another context";
	if (!x->nresults)
		return "it is in a group, but has no result";
	node_each_arg(p, n, check_argument, &w);
	node_each_result(p, n, check_result, &w);
	*device_of = w.found;
	return w.why || w.found != NONE ? w.why : "it is in a group, but has no result";
}

/* A number per row is spread over the row only where the plan says so: with size 1. */
static void check_read(void *ctx, value_id v)
{
	member_walk *w = ctx;
	if (made_by(w->p, v, w->s) && shape_in(w->p, v, w->space) == SHAPE_ROWS_DROPPED)
		w->why = "it reads a result of its group that lacks the dimension of the rows";
}

static void check_shape(void *ctx, value_id v)
{
	member_walk *w = ctx;
	if (shape_in(w->p, v, w->space) == SHAPE_OTHER)
		w->why = "the sizes of its result do not fit the others of its group";
}

static const char *space_fault(const plan *p, node_span s, value_id space, node_id *at)
{
	member_walk w = {.p = p, .s = s, .space = space};
	for (*at = s.first; *at < s.end; ++*at) {
		node_each_result(p, *at, check_shape, &w);
		node_each_arg(p, *at, check_read, &w);
		if (w.why)
			return w.why;
	}
	return NULL;
}

/* The one shape that all of them can fit: with the most dimensions, and where there is one, a last size that is not 1. */
static void pick_space(void *ctx, value_id v)
{
	member_walk *w = ctx;
	const value *x = &w->p->values.at[v], *s = w->found == NONE ? NULL : &w->p->values.at[w->found];
	if (x->type != TYPE_TENSOR)
		return;
	if (!s || x->ndim > s->ndim || (x->ndim == s->ndim && has_single_rows(w->p, s) && !has_single_rows(w->p, x)))
		w->found = v;
}

const char *group_fault(const plan *p, node_span s, node_id *at, value_id *space)
{
	value_id first = NONE;
	member_walk w = {.p = p, .found = NONE};
	for (*at = s.first; *at < s.end; ++*at) {
		const char *why = member_fault(p, s, *at, &first);
		if (why)
			return why;
	}
	for (node_id n = s.first; n < s.end; n++)
		node_each_result(p, n, pick_space, &w);
	*space = w.found;
	return space_fault(p, s, w.found, at);
}
