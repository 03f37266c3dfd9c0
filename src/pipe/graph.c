/* Graphs: checked, sorted topologically, with the neighbours of every node.
 *
 * In: nodes, values and order as their makers wrote them. Out: nodes numbered so that every edge goes upwards, uses
 * ascending and each once, and edges of values and order as one list of neighbours per node. */
#include "base/heap.h"
#include "pipe/pipe.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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
	for (uint32_t i = 0; i < g->names.n; i++)
		mem_free(g->names.at[i]);
	vec_free(&g->nodes);
	vec_free(&g->values);
	vec_free(&g->uses);
	vec_free(&g->order);
	vec_free(&g->names);
	mem_free(g->succ);
	mem_free(g->pred);
	mem_free(g->succ_first);
	mem_free(g->pred_first);
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
		return fail(CLV_E_OVERFLOW, "%s: all of them together are over %" PRId64 " bytes", what, MOST_BYTES);
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
		return fail(CLV_E_OVERFLOW, "the times of all nodes together are %g us, more than can be reckoned with",
		            g->total_us);
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

/* first[n]: where the edges of n begin, those that end there (`to`) or those that start there. */
static void count_edges(const edge_list *edges, bool to, uint32_t nodes, uint32_t *first)
{
	memset(first, 0, ((size_t)nodes + 1) * sizeof *first);
	for (uint32_t i = 0; i < edges->n; i++)
		first[(to ? edges->at[i].to : edges->at[i].from) + 1]++;
	for (uint32_t n = 0; n < nodes; n++)
		first[n + 1] += first[n];
}

/* Without the second and later ones of neighbours that are there more than once; each list is ascending. */
static void drop_doubles(uint32_t nodes, uint32_t *first, uint32_t *list)
{
	uint32_t kept = 0;
	for (uint32_t n = 0, from = 0; n < nodes; n++) {
		uint32_t end = first[n + 1], begin = kept;
		for (; from < end; from++)
			if (kept == begin || list[kept - 1] != list[from])
				list[kept++] = list[from];
		first[n + 1] = kept;
	}
}

/* Lists made of one another come out ascending: nodes are walked upwards, each is put at the end of its neighbours'. */
static void turn_lists(uint32_t nodes, const uint32_t *first, const uint32_t *list, const uint32_t *to_first,
                       uint32_t *fill, uint32_t *to_list)
{
	memcpy(fill, to_first, nodes * sizeof *fill);
	for (uint32_t n = 0; n < nodes; n++)
		for (uint32_t i = first[n]; i < first[n + 1]; i++)
			to_list[fill[list[i]]++] = n;
}

static clv_status neighbours_new(pipe_graph *g, uint32_t edges)
{
	size_t n = (size_t)g->nodes.n + 1;
	mem_free(g->succ);
	mem_free(g->pred);
	mem_free(g->succ_first);
	mem_free(g->pred_first);
	g->succ = mem_ids((size_t)edges + 1);
	g->pred = mem_ids((size_t)edges + 1);
	g->succ_first = mem_ids(n);
	g->pred_first = mem_ids(n);
	return g->succ && g->pred && g->succ_first && g->pred_first ? CLV_OK : fail_nomem();
}

static clv_status make_neighbours(pipe_graph *g)
{
	edge_list edges = {0};
	uint32_t nodes = g->nodes.n, *fill = mem_ids((size_t)nodes + 1);
	clv_status st = fill ? collect_edges(g, &edges) : fail_nomem();
	if (st == CLV_OK)
		st = neighbours_new(g, edges.n);
	if (st == CLV_OK) {
		count_edges(&edges, true, nodes, g->pred_first);
		count_edges(&edges, false, nodes, g->succ_first);
		memcpy(fill, g->pred_first, nodes * sizeof *fill);
		for (uint32_t i = 0; i < edges.n; i++)
			g->pred[fill[edges.at[i].to]++] = edges.at[i].from;
		turn_lists(nodes, g->pred_first, g->pred, g->succ_first, fill, g->succ);
		turn_lists(nodes, g->succ_first, g->succ, g->pred_first, fill, g->pred);
		drop_doubles(nodes, g->succ_first, g->succ);
		drop_doubles(nodes, g->pred_first, g->pred);
	}
	vec_free(&edges);
	mem_free(fill);
	return st;
}

/* ---- topological order ---------------------------------------------------------------------------------------------- */

/* Every node that is left waits for another that is left: going back from any of them ends in a cycle. */
static clv_status say_cycle(const pipe_graph *g, const uint32_t *waits, uint32_t left, uint32_t *seen)
{
	enum { SHOWN = 8 };
	strbuf text = STRBUF_INIT;
	uint32_t n = left, steps = 0, length = 0;
	char label[NODE_LABEL];
	memset(seen, 0xFF, g->nodes.n * sizeof *seen);
	while (seen[n] == PIPE_NONE) {
		seen[n] = steps++;
		uint32_t i = g->pred_first[n];
		while (waits[g->pred[i]] == 0)
			i++;
		n = g->pred[i];
	}
	length = steps - seen[n];
	/* seen counts backwards along the edges: the predecessor on the cycle has the next number */
	strbuf_puts(&text, node_label(g, n, label));
	for (uint32_t at = n, shown = 0; shown < length; shown++) {
		uint32_t i = g->succ_first[at], want = at == n ? steps - 1 : seen[at] - 1;
		while (waits[g->succ[i]] == 0 || seen[g->succ[i]] != want)
			i++;
		at = g->succ[i];
		if (shown < SHOWN || shown + 1 == length)
			strbuf_printf(&text, " -> %s", node_label(g, at, label));
		else if (shown == SHOWN)
			strbuf_puts(&text, " -> …");
	}
	clv_status st =
		text.failed
			? fail_nomem()
			: fail(CLV_E_INVALID, "the graph has a cycle of %" PRIu32 " nodes: %s; a pipeline needs a graph without",
	               length, text.at);
	strbuf_free(&text);
	return st;
}

/* order[i]: the node that comes i-th. */
static clv_status find_order(const pipe_graph *g, uint32_t *waits, heap *ready, uint32_t *order)
{
	uint32_t done = 0;
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		waits[n] = g->pred_first[n + 1] - g->pred_first[n];
		if (waits[n] == 0)
			heap_push(ready, n);
	}
	while (ready->n) {
		uint32_t n = heap_pop(ready);
		order[done++] = n;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			if (--waits[g->succ[i]] == 0)
				heap_push(ready, g->succ[i]);
	}
	for (uint32_t n = 0; done < g->nodes.n; n++)
		if (waits[n])
			return say_cycle(g, waits, n, order);
	return CLV_OK;
}

static void renumber(pipe_graph *g, const uint32_t *number)
{
	for (uint32_t v = 0; v < g->values.n; v++)
		if (g->values.at[v].from != PIPE_NONE)
			g->values.at[v].from = number[g->values.at[v].from];
	for (uint32_t i = 0; i < g->uses.n; i++)
		g->uses.at[i] = number[g->uses.at[i]];
	for (uint32_t i = 0; i < g->order.n; i++)
		g->order.at[i] = (pipe_edge){number[g->order.at[i].from], number[g->order.at[i].to]};
}

/* Nodes as `order` has them. */
static clv_status reorder(pipe_graph *g, const uint32_t *order, uint32_t *number)
{
	pipe_node *nodes = mem_realloc(NULL, g->nodes.n, sizeof *nodes);
	if (!nodes)
		return fail_nomem();
	for (uint32_t i = 0; i < g->nodes.n; i++) {
		nodes[i] = g->nodes.at[order[i]];
		number[order[i]] = i;
	}
	memcpy(g->nodes.at, nodes, g->nodes.n * sizeof *nodes);
	mem_free(nodes);
	renumber(g, number);
	return make_neighbours(g);
}

static clv_status sort_nodes(pipe_graph *g)
{
	uint32_t nodes = g->nodes.n, same = 0;
	uint32_t *waits = mem_ids((size_t)nodes + 1), *order = mem_ids((size_t)nodes + 1);
	heap ready = {mem_ids((size_t)nodes + 1), 0};
	clv_status st = waits && order && ready.at ? find_order(g, waits, &ready, order) : fail_nomem();
	if (st == CLV_OK) {
		while (same < nodes && order[same] == same)
			same++;
		if (same < nodes)
			st = reorder(g, order, waits);
	}
	mem_free(waits);
	mem_free(order);
	mem_free(ready.at);
	return st;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static void sort_uses(pipe_graph *g)
{
	for (uint32_t v = 0; v < g->values.n; v++) {
		pipe_value *x = &g->values.at[v];
		if (x->nuses == 0)
			continue;
		uint32_t *uses = g->uses.at + x->uses, kept = 1;
		qsort(uses, x->nuses, sizeof *uses, by_number);
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
