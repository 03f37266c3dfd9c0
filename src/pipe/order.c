/* Topological orders of a graph, for methods that cut a chain.
 *
 * Depth first: after a node come the nodes that it made ready, so that a branch is walked to its end before the next one
 * begins. The kinds of order differ in which of those nodes comes first. */
#include <string.h>

#include "pipe/pipe.h"

/* The longest way to the end, in us, the node itself included. */
static void find_heights(const pipe_graph *g, double *height)
{
	for (uint32_t n = g->nodes.n; n-- > 0;) {
		double most = 0;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			most = height[g->succ[i]] > most ? height[g->succ[i]] : most;
		height[n] = most + g->nodes.at[n].fwd_us + g->nodes.at[n].bwd_us;
	}
}

typedef struct candidate {
	double key; /* the smallest comes first */
	uint32_t n;
} candidate;

/* Descending: the last one pushed is the first one popped. */
static int by_key_down(const void *a, const void *b)
{
	const candidate *x = a, *y = b;
	if (x->key != y->key)
		return x->key < y->key ? 1 : -1;
	return (x->n < y->n) - (x->n > y->n);
}

typedef struct depth_walk {
	const pipe_graph *g;
	pipe_order kind;
	double *height;
	candidate *stack; /* what is ready; the newest on top */
	uint32_t *waits, n;
} depth_walk;

static void push_ready(depth_walk *w, uint32_t n)
{
	double key = w->kind == ORDER_LONG ? -w->height[n] : w->kind == ORDER_SHORT ? w->height[n] : 0;
	w->stack[w->n++] = (candidate){key, n};
}

static void depth_first(depth_walk *w, uint32_t *out)
{
	const pipe_graph *g = w->g;
	uint32_t done = 0;
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		w->waits[n] = g->pred_first[n + 1] - g->pred_first[n];
		if (w->waits[n] == 0)
			push_ready(w, n);
	}
	qsort(w->stack, w->n, sizeof *w->stack, by_key_down);
	while (w->n) {
		uint32_t n = w->stack[--w->n].n, before = w->n;
		out[done++] = n;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			if (--w->waits[g->succ[i]] == 0)
				push_ready(w, g->succ[i]);
		qsort(w->stack + before, w->n - before, sizeof *w->stack, by_key_down);
	}
}

clv_status order_new(const pipe_graph *g, pipe_order kind, uint32_t *out)
{
	arena scratch = {0};
	size_t nodes = g->nodes.n;
	if (kind == ORDER_GIVEN) {
		for (uint32_t n = 0; n < nodes; n++)
			out[n] = n;
		return CLV_OK;
	}
	depth_walk w = {g,
	                kind,
	                arena_array(&scratch, nodes, sizeof *w.height),
	                arena_array(&scratch, nodes, sizeof *w.stack),
	                arena_ids(&scratch, nodes),
	                0};
	clv_status st = arena_status(&scratch);
	if (st == CLV_OK) {
		find_heights(g, w.height);
		depth_first(&w, out);
	}
	arena_free(&scratch);
	return st;
}

clv_status order_crossing(const pipe_graph *g, const uint32_t *order, pipe_border *out)
{
	uint32_t nodes = g->nodes.n, *place = mem_ids(nodes);
	TRY_MEM(place);
	for (uint32_t i = 0; i < nodes; i++)
		place[order[i]] = i;
	memset(out, 0, ((size_t)nodes + 1) * sizeof *out);
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		uint32_t from = x->from == PIPE_NONE ? 0 : place[x->from], last = x->leaves ? nodes - 1 : from;
		for (uint32_t i = 0; i < x->nuses; i++) {
			uint32_t at = place[g->uses.at[x->uses + i]];
			last = at > last ? at : last;
		}
		int64_t grad = x->grad ? x->bytes : 0;
		out[from + 1].fwd += x->bytes;
		out[from + 1].bwd += grad;
		out[last + 1].fwd -= x->bytes;
		out[last + 1].bwd -= grad;
	}
	for (uint32_t i = 1; i <= nodes; i++) {
		out[i].fwd += out[i - 1].fwd;
		out[i].bwd += out[i - 1].bwd;
	}
	mem_free(place);
	return CLV_OK;
}
