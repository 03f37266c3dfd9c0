/* Writes graphs as JSON, for other tools and for graph_read.c.
 *
 * In that format a node makes one value, and an edge carries it. A node here may make several values, each for other
 * readers: their bytes are added up. An edge that is only order looks like any other, so it is written only where no path
 * already implies it. */
#include <stdlib.h>

#include "base/member.h"
#include "base/number.h"
#include "pipe/pipe.h"

/* Per node: bytes of what others read. */
static void sum_bytes(const pipe_graph *g, int64_t *bytes)
{
	for (uint32_t i = 0; i < g->values.n; i++) {
		const pipe_value *v = &g->values.at[i];
		if (v->from != PIPE_NONE && v->nuses && __builtin_add_overflow(bytes[v->from], v->bytes, &bytes[v->from]))
			bytes[v->from] = INT64_MAX;
	}
}

static void put_node(strbuf *b, const pipe_node *n, int64_t made)
{
	member_line(b, 0);
	member_open(b, NULL, '{');
	member_int(b, "id", n->id);
	member_text(b, "name", n->name);
	member_number(b, "fwd_us", n->fwd_us);
	member_number(b, "bwd_us", n->bwd_us);
	member_int(b, "param_bytes", n->param_bytes);
	member_int(b, "out_bytes", made);
	member_int(b, "held_bytes", n->held_bytes);
	member_int(b, "work_bytes", n->work_bytes);
	strbuf_putc(b, '}');
}

typedef struct walk {
	const pipe_graph *g;
	bool *data;      /* per element of g->succ: something goes over it */
	uint32_t *seen;  /* per node: for which walk, counted from 1 */
	uint32_t *stack; /* nodes.n */
	uint32_t now;
} walk;

static void find_data(const walk *w)
{
	const pipe_graph *g = w->g;
	for (uint32_t i = 0; i < g->values.n; i++) {
		const pipe_value *v = &g->values.at[i];
		for (uint32_t u = 0; v->from != PIPE_NONE && u < v->nuses; u++) {
			uint32_t first = g->succ_first[v->from], n = g->succ_first[v->from + 1] - first;
			const uint32_t *at = bsearch(&g->uses.at[v->uses + u], g->succ + first, n, sizeof *at, uint32_order);
			if (at)
				w->data[at - g->succ] = true;
		}
	}
}

/* A path of two edges or more goes from one to the other; only nodes between them can be on it. */
static bool has_path(walk *w, uint32_t from, uint32_t to)
{
	const pipe_graph *g = w->g;
	uint32_t n = 0;
	w->now++;
	w->stack[n++] = from;
	while (n) {
		uint32_t at = w->stack[--n];
		for (uint32_t i = g->succ_first[at]; i < g->succ_first[at + 1] && g->succ[i] <= to; i++) {
			uint32_t next = g->succ[i];
			if (next == to && at != from)
				return true;
			if (next != to && w->seen[next] != w->now) {
				w->seen[next] = w->now;
				w->stack[n++] = next;
			}
		}
	}
	return false;
}

static void put_edges(strbuf *b, walk *w)
{
	const pipe_graph *g = w->g;
	for (uint32_t n = 0; n < g->nodes.n; n++)
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++) {
			if (!w->data[i] && has_path(w, n, g->succ[i]))
				continue;
			member_open(b, NULL, '[');
			member_int(b, NULL, g->nodes.at[n].id);
			member_int(b, NULL, g->nodes.at[g->succ[i]].id);
			strbuf_putc(b, ']');
		}
}

static clv_status write_edges(const pipe_graph *g, strbuf *b)
{
	arena scratch = {0};
	walk w = {g, arena_alloc(&scratch, g->succ_first[g->nodes.n]), arena_ids(&scratch, g->nodes.n),
	          arena_ids(&scratch, g->nodes.n), 0};
	clv_status st = arena_status(&scratch);
	if (st == CLV_OK) {
		find_data(&w);
		put_edges(b, &w);
	}
	arena_free(&scratch);
	return st;
}

clv_status graph_write(const pipe_graph *g, strbuf *b)
{
	int64_t *made = mem_alloc((g->nodes.n + 1) * sizeof *made);
	TRY_MEM(made);
	sum_bytes(g, made);
	strbuf_puts(b, "{\"nodes\":[");
	for (uint32_t n = 0; n < g->nodes.n; n++)
		put_node(b, &g->nodes.at[n], made[n]);
	mem_free(made);
	strbuf_puts(b, "],\n\"edges\":[");
	TRY(write_edges(g, b));
	strbuf_puts(b, "]}\n");
	return b->failed ? fail_nomem() : CLV_OK;
}
