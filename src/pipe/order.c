/* Topological orders of a graph, for methods that cut a chain.
 *
 * Depth first: after a node those come that became ready by it, so that a branch is walked to its end before the next one
 * begins. Which of them comes first is what the kinds differ in. */
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

static void push(depth_walk *w, uint32_t n)
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
			push(w, n);
	}
	qsort(w->stack, w->n, sizeof *w->stack, by_key_down);
	while (w->n) {
		uint32_t n = w->stack[--w->n].n, before = w->n;
		out[done++] = n;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			if (--w->waits[g->succ[i]] == 0)
				push(w, g->succ[i]);
		qsort(w->stack + before, w->n - before, sizeof *w->stack, by_key_down);
	}
}

clv_status order_new(const pipe_graph *g, pipe_order kind, uint32_t *out)
{
	clv_status st = CLV_OK;
	if (kind == ORDER_GIVEN) {
		for (uint32_t n = 0; n < g->nodes.n; n++)
			out[n] = n;
		return CLV_OK;
	}
	depth_walk w = {g,
	                kind,
	                mem_alloc(g->nodes.n * sizeof(double)),
	                mem_realloc(NULL, g->nodes.n, sizeof(candidate)),
	                mem_ids(g->nodes.n),
	                0};
	if (w.height && w.stack && w.waits) {
		find_heights(g, w.height);
		depth_first(&w, out);
	} else {
		st = fail_nomem();
	}
	mem_free(w.height);
	mem_free(w.stack);
	mem_free(w.waits);
	return st;
}
