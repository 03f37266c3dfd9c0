/* A directed graph of numbers: what reaches what both ways, and an order in which every arc goes forward. Linear. */
#pragma once

#include "base/mem.h"

#define NO_VERTEX UINT32_MAX

typedef struct arc {
	uint32_t from, to;
} arc;

typedef VEC(arc) arcs;

/* An arc may be there twice, and may lead from a vertex to itself. */
typedef struct digraph {
	uint32_t n;
	uint32_t *first; /* per vertex, and one more: its arcs in `to` */
	uint32_t *to;
} digraph;

clv_status digraph_new(uint32_t n, const arc *at, uint32_t narcs, digraph *out);
void digraph_free(digraph *g);

/* Strongly connected components, numbered by their smallest vertex: component 0 holds vertex 0. */
clv_status digraph_components(const digraph *g, uint32_t *component /* per vertex */, uint32_t *count);

/* A topological order, the smallest vertex first where there is a choice; arcs to itself are not looked at. place[v]
   is NO_VERTEX for what is on a cycle or behind one. */
clv_status digraph_order(const digraph *g, uint32_t *place /* per vertex */);
