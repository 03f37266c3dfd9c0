/* Writes graphs as JSON, for other tools and for graph_read.c.
 *
 * In that format a node makes one value, and an edge carries it. A node here may make several values, each for other
 * readers: their bytes are added up. An edge that is only order looks like any other, so it is written only where no path
 * already implies it. */
#include <stdlib.h>
#include <string.h>

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

static void put_bytes(strbuf *b, const char *key, int64_t bytes)
{
	strbuf_printf(b, ",\"%s\":", key);
	strbuf_int(b, bytes);
}

static void put_time(strbuf *b, const char *key, double us)
{
	strbuf_printf(b, ",\"%s\":", key);
	strbuf_double(b, us);
}

static void put_node(strbuf *b, const pipe_node *n, int64_t made)
{
	strbuf_puts(b, "{\"id\":");
	strbuf_int(b, n->id);
	strbuf_puts(b, ",\"name\":");
	strbuf_json(b, n->name, strlen(n->name));
	put_time(b, "fwd_us", n->fwd_us);
	put_time(b, "bwd_us", n->bwd_us);
	put_bytes(b, "param_bytes", n->param_bytes);
	put_bytes(b, "out_bytes", made);
	put_bytes(b, "held_bytes", n->held_bytes);
	put_bytes(b, "work_bytes", n->work_bytes);
	strbuf_putc(b, '}');
}

/* ---- edges ------------------------------------------------------------------------------------------------------------ */

typedef struct walk {
	const pipe_graph *g;
	bool *data;      /* per element of g->succ: something goes over it */
	uint32_t *seen;  /* per node: for which walk, counted from 1 */
	uint32_t *stack; /* nodes.n */
	uint32_t now;
} walk;

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static void find_data(const walk *w)
{
	const pipe_graph *g = w->g;
	for (uint32_t i = 0; i < g->values.n; i++) {
		const pipe_value *v = &g->values.at[i];
		for (uint32_t u = 0; v->from != PIPE_NONE && u < v->nuses; u++) {
			uint32_t first = g->succ_first[v->from], n = g->succ_first[v->from + 1] - first;
			const uint32_t *at = bsearch(&g->uses.at[v->uses + u], g->succ + first, n, sizeof *at, by_number);
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
	const char *before = "";
	for (uint32_t n = 0; n < g->nodes.n; n++)
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++) {
			if (!w->data[i] && has_path(w, n, g->succ[i]))
				continue;
			strbuf_printf(b, "%s[", before);
			strbuf_int(b, g->nodes.at[n].id);
			strbuf_putc(b, ',');
			strbuf_int(b, g->nodes.at[g->succ[i]].id);
			strbuf_putc(b, ']');
			before = ",";
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

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

clv_status graph_write(const pipe_graph *g, strbuf *b)
{
	int64_t *made = mem_alloc((g->nodes.n + 1) * sizeof *made);
	if (!made)
		return fail_nomem();
	sum_bytes(g, made);
	strbuf_puts(b, "{\"nodes\":[");
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		strbuf_puts(b, n ? ",\n" : "\n");
		put_node(b, &g->nodes.at[n], made[n]);
	}
	mem_free(made);
	strbuf_puts(b, "],\n\"edges\":[");
	TRY(write_edges(g, b));
	strbuf_puts(b, "]}\n");
	return b->failed ? fail_nomem() : CLV_OK;
}
