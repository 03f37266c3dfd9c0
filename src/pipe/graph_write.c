/* Graphs as JSON, for other tools and for graph_read.c.
 *
 * In that format a node makes one value, and an edge carries it. What a node makes here may be several values, each for
 * other readers: their bytes are added up, and edges of mere order look like the others. */
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

static void put_edges(strbuf *b, const pipe_graph *g)
{
	bool some = false;
	for (uint32_t n = 0; n < g->nodes.n; n++)
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++, some = true) {
			strbuf_puts(b, some ? ",[" : "[");
			strbuf_int(b, g->nodes.at[n].id);
			strbuf_putc(b, ',');
			strbuf_int(b, g->nodes.at[g->succ[i]].id);
			strbuf_putc(b, ']');
		}
}

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
	strbuf_puts(b, "],\n\"edges\":[");
	put_edges(b, g);
	strbuf_puts(b, "]}\n");
	mem_free(made);
	return b->failed ? fail_nomem() : CLV_OK;
}
