/* Directed graphs: arcs sorted by where they start, Tarjan's components, Kahn's order. */
#include "base/digraph.h"

#include <string.h>

#include "base/arena.h"
#include "base/heap.h"

clv_status digraph_new(uint32_t n, const arc *at, uint32_t narcs, digraph *out)
{
	digraph g = {n, mem_alloc(((size_t)n + 2) * sizeof *g.first), mem_alloc(((size_t)narcs + 1) * sizeof *g.to)};
	if (!g.first || !g.to) {
		digraph_free(&g);
		return fail_nomem();
	}
	for (uint32_t i = 0; i < narcs; i++)
		g.first[at[i].from + 2]++;
	for (uint32_t v = 0; v < n; v++)
		g.first[v + 2] += g.first[v + 1];
	/* now first[v + 1] is where the next arc of v goes: in the end, where v ends */
	for (uint32_t i = 0; i < narcs; i++)
		g.to[g.first[at[i].from + 1]++] = at[i].to;
	*out = g;
	return CLV_OK;
}

void digraph_free(digraph *g)
{
	mem_free(g->first);
	mem_free(g->to);
	*g = (digraph){0};
}

/* Tarjan's walk without recursion. Components are numbered backwards: what is reached comes first. */
typedef struct component_walk {
	const digraph *g;
	uint32_t *component;
	uint32_t *number, *low, *next, *stack, *path;
	uint32_t counter, nstack, ncomponents;
} component_walk;

static void enter(component_walk *w, uint32_t v)
{
	w->number[v] = w->low[v] = w->counter++;
	w->next[v] = w->g->first[v];
	w->stack[w->nstack++] = v;
}

static void close_component(component_walk *w, uint32_t v)
{
	uint32_t x;
	do {
		x = w->stack[--w->nstack];
		w->component[x] = w->ncomponents;
	} while (x != v);
	w->ncomponents++;
}

static void walk_from(component_walk *w, uint32_t start)
{
	uint32_t depth = 0;
	w->path[depth++] = start;
	enter(w, start);
	while (depth) {
		uint32_t v = w->path[depth - 1];
		if (w->next[v] < w->g->first[v + 1]) {
			uint32_t to = w->g->to[w->next[v]++];
			if (w->number[to] == NO_VERTEX) {
				enter(w, to);
				w->path[depth++] = to;
			} else if (w->component[to] == NO_VERTEX && w->number[to] < w->low[v]) {
				w->low[v] = w->number[to];
			}
			continue;
		}
		if (w->low[v] == w->number[v])
			close_component(w, v);
		depth--;
		if (depth && w->low[v] < w->low[w->path[depth - 1]])
			w->low[w->path[depth - 1]] = w->low[v];
	}
}

/* Numbers components anew, by their smallest vertex. */
static void number_components(component_walk *w)
{
	uint32_t n = 0, *renamed = w->low;
	for (uint32_t c = 0; c < w->ncomponents; c++)
		renamed[c] = NO_VERTEX;
	for (uint32_t v = 0; v < w->g->n; v++) {
		uint32_t *name = &renamed[w->component[v]];
		if (*name == NO_VERTEX)
			*name = n++;
		w->component[v] = *name;
	}
}

clv_status digraph_components(const digraph *g, uint32_t *component, uint32_t *count)
{
	arena scratch = {0};
	uint32_t n = g->n;
	component_walk w = {.g = g,
	                    .component = component,
	                    .number = arena_ids(&scratch, n),
	                    .low = arena_ids(&scratch, n),
	                    .next = arena_ids(&scratch, n),
	                    .stack = arena_ids(&scratch, n),
	                    .path = arena_ids(&scratch, n)};
	clv_status st = arena_status(&scratch);
	if (st == CLV_OK) {
		memset(component, 0xff, n * sizeof *component);
		for (uint32_t v = 0; v < n; v++)
			if (w.number[v] == NO_VERTEX)
				walk_from(&w, v);
		number_components(&w);
		*count = w.ncomponents;
	}
	arena_free(&scratch);
	return st;
}

static void sort_vertices(const digraph *g, uint32_t *waits, heap ready, uint32_t *place)
{
	for (uint32_t v = 0; v < g->n; v++)
		for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++)
			waits[g->to[e]] += g->to[e] != v;
	for (uint32_t v = 0; v < g->n; v++) {
		place[v] = NO_VERTEX;
		if (!waits[v])
			heap_push(&ready, v);
	}
	for (uint32_t at = 0; ready.n; at++) {
		uint32_t v = heap_pop(&ready);
		place[v] = at;
		for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++)
			if (g->to[e] != v && !--waits[g->to[e]])
				heap_push(&ready, g->to[e]);
	}
}

clv_status digraph_order(const digraph *g, uint32_t *place)
{
	uint32_t *waits = mem_alloc(((size_t)g->n + 1) * sizeof *waits), *room = mem_ids(g->n);
	bool memory = waits && room;
	if (memory)
		sort_vertices(g, waits, (heap){room, 0}, place);
	mem_free(waits);
	mem_free(room);
	return memory ? CLV_OK : fail_nomem();
}
