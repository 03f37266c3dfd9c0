/* Finishes a graph: checks it, sorts it topologically and lists the neighbours of every node.
 *
 * In: nodes, values and order as a reader made them. Out: nodes numbered so that every edge goes upwards, uses ascending
 * and each once, and edges of values and order as one list of neighbours per node. */
#include "pipe/pipe.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

/* Sums of bytes stay below: what is computed of them later (copies, micro-batches) is in doubles. */
#define MOST_BYTES (INT64_MAX / 4)

const char *node_label(const pipe_graph *g, uint32_t n, char out[NODE_LABEL])
{
	const pipe_node *x = &g->nodes.at[n];
	if (x->name && *x->name)
		snprintf(out, NODE_LABEL, "%.64s (id %" PRId64 ")", x->name, x->id);
	else
		snprintf(out, NODE_LABEL, "node %" PRId64, x->id);
	return out;
}

void graph_free(pipe_graph *g)
{
	vec_free(&g->nodes);
	vec_free(&g->values);
	vec_free(&g->uses);
	vec_free(&g->order);
	arena_free(&g->names);
	arena_free(&g->neighbours);
	*g = (pipe_graph){0};
}

/* ---- weights ------------------------------------------------------------------------------------------------------ */

static clv_status check_time(const pipe_graph *g, uint32_t n, const char *what, double us)
{
	char label[NODE_LABEL];
	if (isfinite(us) && us >= 0)
		return CLV_OK;
	return fail(CLV_E_INVALID, "%s: %s is %g; it must be finite and not negative", node_label(g, n, label), what, us);
}

static clv_status add_bytes(int64_t *sum, int64_t bytes, const char *what)
{
	if (bytes < 0)
		return fail(CLV_E_INVALID, "%s is negative: %" PRId64, what, bytes);
	if (bytes > MOST_BYTES - *sum)
		return fail(CLV_E_OVERFLOW, "%s: the sum over all nodes is more than %" PRId64 " bytes", what, MOST_BYTES);
	*sum += bytes;
	return CLV_OK;
}

static clv_status check_node(pipe_graph *g, uint32_t n, int64_t sums[3])
{
	const pipe_node *x = &g->nodes.at[n];
	const struct {
		const char *what;
		int64_t bytes;
	} of[3] = {{"param_bytes", x->param_bytes}, {"held_bytes", x->held_bytes}, {"work_bytes", x->work_bytes}};
	char label[NODE_LABEL];
	TRY(check_time(g, n, "fwd_us", x->fwd_us));
	TRY(check_time(g, n, "bwd_us", x->bwd_us));
	for (int i = 0; i < 3; i++) {
		clv_status st = add_bytes(&sums[i], of[i].bytes, of[i].what);
		if (st != CLV_OK)
			return fail_more(st, "%s", node_label(g, n, label));
	}
	g->total_us += x->fwd_us + x->bwd_us;
	g->heaviest_us = fmax(g->heaviest_us, x->fwd_us + x->bwd_us);
	return CLV_OK;
}

static clv_status check_weights(pipe_graph *g)
{
	int64_t sums[3] = {0}, values = 0;
	g->total_us = g->heaviest_us = 0;
	for (uint32_t n = 0; n < g->nodes.n; n++)
		TRY(check_node(g, n, sums));
	/* twice, for recomputing, and over a slow device: far from the end of what a double holds */
	if (g->total_us > 1e200)
		return fail(CLV_E_OVERFLOW, "the times of all nodes add up to %g us, which is too much", g->total_us);
	for (uint32_t v = 0; v < g->values.n; v++)
		TRY(add_bytes(&values, g->values.at[v].bytes, "out_bytes"));
	return CLV_OK;
}

/* ---- edges -------------------------------------------------------------------------------------------------------- */

static clv_status check_edge(const pipe_graph *g, uint32_t from, uint32_t to)
{
	char label[NODE_LABEL];
	if (from >= g->nodes.n || to >= g->nodes.n)
		return fail(CLV_E_INVALID, "an edge names node number %" PRIu32 ", but there are %" PRIu32,
		            from >= g->nodes.n ? from : to, g->nodes.n);
	if (from == to)
		return fail(CLV_E_INVALID, "%s has an edge to itself", node_label(g, from, label));
	return CLV_OK;
}

static clv_status check_edges(const pipe_graph *g)
{
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		if (x->uses > g->uses.n || x->nuses > g->uses.n - x->uses)
			return fail(CLV_E_INVALID, "value %" PRIu32 " has uses that are not in the graph", v);
		for (uint32_t i = 0; i < x->nuses; i++) {
			uint32_t to = g->uses.at[x->uses + i];
			if (x->from != PIPE_NONE)
				TRY(check_edge(g, x->from, to));
			else if (to >= g->nodes.n)
				return fail(CLV_E_INVALID, "an input is read by a node that is not in the graph");
		}
	}
	for (uint32_t i = 0; i < g->order.n; i++)
		TRY(check_edge(g, g->order.at[i].from, g->order.at[i].to));
	return CLV_OK;
}

typedef VEC(pipe_edge) edge_list;

static clv_status collect_edges(const pipe_graph *g, edge_list *out)
{
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		for (uint32_t i = 0; i < x->nuses && x->from != PIPE_NONE; i++)
			TRY(vec_push(out, ((pipe_edge){x->from, g->uses.at[x->uses + i]})));
	}
	for (uint32_t i = 0; i < g->order.n; i++)
		TRY(vec_push(out, g->order.at[i]));
	return CLV_OK;
}

static int by_ends(const void *a, const void *b)
{
	const pipe_edge *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return (x->to > y->to) - (x->to < y->to);
}

void edges_sort(pipe_edge *at, uint32_t *n)
{
	uint32_t kept = 0;
	if (*n)
		qsort(at, *n, sizeof *at, by_ends);
	for (uint32_t i = 0; i < *n; i++)
		if (!kept || by_ends(&at[i], &at[kept - 1]))
			at[kept++] = at[i];
	*n = kept;
}

/* Edges are sorted, so that each list comes out ascending. */
static clv_status list_neighbours(pipe_graph *g, const edge_list *edges)
{
	size_t nodes = g->nodes.n;
	arena_free(&g->neighbours);
	g->succ = arena_ids(&g->neighbours, edges->n);
	g->pred = arena_ids(&g->neighbours, edges->n);
	g->succ_first = arena_array(&g->neighbours, nodes + 2, sizeof *g->succ_first);
	g->pred_first = arena_array(&g->neighbours, nodes + 2, sizeof *g->pred_first);
	TRY(arena_status(&g->neighbours));
	for (uint32_t i = 0; i < edges->n; i++) {
		g->succ[i] = edges->at[i].to;
		g->succ_first[edges->at[i].from + 1]++;
		g->pred_first[edges->at[i].to + 2]++;
	}
	for (uint32_t n = 0; n < nodes; n++) {
		g->succ_first[n + 1] += g->succ_first[n];
		g->pred_first[n + 2] += g->pred_first[n + 1];
	}
	/* pred_first[n + 1] is where the next predecessor of n goes: in the end, where the list of n ends */
	for (uint32_t i = 0; i < edges->n; i++)
		g->pred[g->pred_first[edges->at[i].to + 1]++] = edges->at[i].from;
	return CLV_OK;
}

static clv_status make_neighbours(pipe_graph *g)
{
	edge_list edges = {0};
	clv_status st = collect_edges(g, &edges);
	edges_sort(edges.at, &edges.n);
	if (st == CLV_OK)
		st = list_neighbours(g, &edges);
	vec_free(&edges);
	return st;
}

/* ---- topological order ---------------------------------------------------------------------------------------------- */

/* Nodes without a place wait for another one without: going back from any of them ends in a cycle. `seen`: per node. */
static clv_status fail_cycle(const pipe_graph *g, const uint32_t *place, uint32_t left, uint32_t *seen)
{
	enum { SHOWN = 8 };
	strbuf text = STRBUF_INIT;
	uint32_t n = left, steps = 0, length = 0;
	char label[NODE_LABEL];
	while (seen[n] == PIPE_NONE) {
		seen[n] = steps++;
		uint32_t i = g->pred_first[n];
		while (place[g->pred[i]] != PIPE_NONE)
			i++;
		n = g->pred[i];
	}
	length = steps - seen[n];
	/* seen counts backwards along the edges: the predecessor on the cycle has the next number */
	strbuf_printf(&text, "the graph has a cycle of %" PRIu32 " nodes: %s", length, node_label(g, n, label));
	for (uint32_t at = n, shown = 0; shown < length; shown++) {
		uint32_t i = g->succ_first[at], want = at == n ? steps - 1 : seen[at] - 1;
		while (place[g->succ[i]] != PIPE_NONE || seen[g->succ[i]] != want)
			i++;
		at = g->succ[i];
		if (shown < SHOWN || shown + 1 == length)
			strbuf_printf(&text, " -> %s", node_label(g, at, label));
		else if (shown == SHOWN)
			strbuf_puts(&text, " -> …");
	}
	strbuf_puts(&text, "; a pipeline needs a graph without cycles");
	return strbuf_fail(CLV_E_INVALID, &text);
}

/* Node n becomes node place[n]. */
static clv_status renumber_nodes(pipe_graph *g, const uint32_t *place)
{
	pipe_node *nodes = mem_realloc(NULL, g->nodes.n, sizeof *nodes);
	TRY_MEM(nodes);
	memcpy(nodes, g->nodes.at, g->nodes.n * sizeof *nodes);
	for (uint32_t n = 0; n < g->nodes.n; n++)
		g->nodes.at[place[n]] = nodes[n];
	mem_free(nodes);
	for (uint32_t v = 0; v < g->values.n; v++)
		if (g->values.at[v].from != PIPE_NONE)
			g->values.at[v].from = place[g->values.at[v].from];
	for (uint32_t i = 0; i < g->uses.n; i++)
		g->uses.at[i] = place[g->uses.at[i]];
	for (uint32_t i = 0; i < g->order.n; i++)
		g->order.at[i] = (pipe_edge){place[g->order.at[i].from], place[g->order.at[i].to]};
	return make_neighbours(g);
}

static clv_status sort_nodes(pipe_graph *g)
{
	uint32_t nodes = g->nodes.n, same = 0, *place = mem_ids(nodes), *seen = mem_ids(nodes);
	digraph edges = {nodes, g->succ_first, g->succ};
	clv_status st = place && seen ? digraph_order(&edges, place) : fail_nomem();
	for (uint32_t n = 0; n < nodes && st == CLV_OK; n++) {
		if (place[n] == PIPE_NONE)
			st = fail_cycle(g, place, n, seen);
		else
			same += place[n] == n;
	}
	if (st == CLV_OK && same < nodes)
		st = renumber_nodes(g, place);
	mem_free(place);
	mem_free(seen);
	return st;
}

static void sort_uses(pipe_graph *g)
{
	for (uint32_t v = 0; v < g->values.n; v++) {
		pipe_value *x = &g->values.at[v];
		if (x->nuses == 0)
			continue;
		uint32_t *uses = g->uses.at + x->uses, kept = 1;
		qsort(uses, x->nuses, sizeof *uses, uint32_order);
		for (uint32_t i = 1; i < x->nuses; i++)
			if (uses[i] != uses[kept - 1])
				uses[kept++] = uses[i];
		x->nuses = kept;
	}
}

clv_status graph_finish(pipe_graph *g)
{
	if (g->nodes.n == 0)
		return fail(CLV_E_INVALID, "the graph has no nodes");
	TRY(check_weights(g));
	TRY(check_edges(g));
	TRY(make_neighbours(g));
	TRY(sort_nodes(g));
	sort_uses(g);
	return CLV_OK;
}
