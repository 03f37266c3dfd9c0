/* Orders units and segments for running, as close to the plan's order as possible. */
#include "segment/units.h"

/* Segments and single units of the tape are the vertices, numbered by their first unit. */
typedef struct ordering {
	segments *s;
	const units *u;
	uint32_t *vertex_of;  /* per unit */
	uint32_t *of_segment; /* per segment: its vertex; then its number in order of running */
	uint32_t *place;      /* per vertex */
	uint32_t *next;       /* per place: where its next node goes in the order */
	uint32_t n;           /* vertices */
} ordering;

static void number_vertices(ordering *o)
{
	const units *u = o->u;
	for (uint32_t x = 0; x < u->n; x++) {
		uint32_t seg = o->s->of_node[u->nodes[u->first[x]]];
		if (seg == NONE)
			o->vertex_of[x] = o->n++;
		else if (o->of_segment[seg] == NONE)
			o->vertex_of[x] = o->of_segment[seg] = o->n++;
		else
			o->vertex_of[x] = o->of_segment[seg];
	}
}

static clv_status graph_of_vertices(const ordering *o, digraph *out)
{
	const digraph *g = &o->u->g;
	arcs lifted = {0};
	clv_status st = CLV_OK;
	for (uint32_t x = 0; x < g->n; x++)
		for (uint32_t e = g->first[x]; e < g->first[x + 1] && st == CLV_OK; e++)
			if (o->vertex_of[x] != o->vertex_of[g->to[e]])
				st = vec_push(&lifted, ((arc){o->vertex_of[x], o->vertex_of[g->to[e]]}));
	if (st == CLV_OK)
		st = digraph_new(o->n, lifted.at, lifted.n, out);
	vec_free(&lifted);
	return st;
}

static clv_status place_vertices(ordering *o)
{
	digraph g = {0};
	clv_status st = graph_of_vertices(o, &g);
	if (st == CLV_OK)
		st = digraph_order(&g, o->place);
	digraph_free(&g);
	for (uint32_t v = 0; st == CLV_OK && v < o->n; v++)
		if (o->place[v] == NO_VERTEX)
			st = fail(CLV_E_VERIFY, "segments of the plan need each other in a circle: this is a bug");
	return st;
}

/* Units are numbered in a topological order, so within a vertex they go as they come. */
static void put_ordered_nodes(ordering *o)
{
	const units *u = o->u;
	for (uint32_t x = 0; x < u->n; x++)
		o->next[o->place[o->vertex_of[x]] + 1] += u->first[x + 1] - u->first[x];
	for (uint32_t i = 0; i < o->n; i++)
		o->next[i + 1] += o->next[i];
	for (uint32_t x = 0; x < u->n; x++)
		for (uint32_t i = u->first[x]; i < u->first[x + 1]; i++)
			o->s->order.at[o->next[o->place[o->vertex_of[x]]]++] = u->nodes[i];
	o->s->order.n = u->first[u->n];
}

/* Numbers units and segments anew, in order of running. */
static clv_status number_all(ordering *o, uint32_t count)
{
	segments *s = o->s;
	uint32_t unit = NONE, number = NONE;
	for (uint32_t i = 0; i < count; i++)
		o->of_segment[i] = NONE;
	for (uint32_t i = 0; i < s->order.n; i++) {
		node_id k = s->order.at[i];
		uint32_t seg = s->of_node[k];
		number += i == 0 || s->unit_of[k] != unit;
		unit = s->unit_of[k];
		s->unit_of[k] = number;
		if (seg == NONE)
			continue;
		if (o->of_segment[seg] == NONE) {
			o->of_segment[seg] = s->at.n;
			TRY(vec_push(&s->at, ((segment){.first = i})));
		}
		s->of_node[k] = o->of_segment[seg];
		s->at.at[s->of_node[k]].n++;
	}
	return CLV_OK;
}

static clv_status order_all(ordering *o, uint32_t count)
{
	number_vertices(o);
	TRY(place_vertices(o));
	TRY(vec_reserve(&o->s->order, o->s->p->nodes.n));
	put_ordered_nodes(o);
	return number_all(o, count);
}

clv_status segments_order(segments *s, const units *u, uint32_t count)
{
	arena scratch = {0};
	ordering o = {.s = s,
	              .u = u,
	              .vertex_of = arena_ids(&scratch, u->n),
	              .of_segment = arena_ids(&scratch, count),
	              .place = arena_ids(&scratch, u->n),
	              .next = arena_array(&scratch, (size_t)u->n + 2, sizeof *o.next)};
	clv_status st = scratch.failed ? fail_nomem() : order_all(&o, count);
	arena_free(&scratch);
	return st;
}

clv_status segments_plan(const segments *s, plan **out, node_id *firsts, node_id *ends)
{
	for (uint32_t i = 0; i < s->at.n; i++) {
		firsts[i] = s->at.at[i].first;
		ends[i] = s->at.at[i].first + s->at.at[i].n;
	}
	return plan_reorder(s->p, s->order.at, out);
}
