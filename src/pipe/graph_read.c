/* Reads graphs from JSON: {"nodes":[{"id","name","fwd_us","bwd_us","param_bytes","out_bytes"}],"edges":[[src,dst]]}.
 *
 * The text is not trusted: every number is checked, and every error says where it is. Unknown keys are ignored, so that a
 * file may carry more. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/table.h"
#include "file/json.h"
#include "pipe/pipe.h"

/* A number that a byte count or an id can be: an integer, or a real that is one (writers of other languages). */
static bool whole_number(const json_t *x, int64_t *out)
{
	if (json_is_integer(x)) {
		*out = json_integer_value(x);
		return true;
	}
	double real = json_is_real(x) ? json_real_value(x) : NAN;
	if (!(fabs(real) <= 9007199254740992.0) || real != floor(real))
		return false;
	*out = (int64_t)real;
	return true;
}

static clv_status missing(uint32_t at, const char *key)
{
	return fail(CLV_E_PARSE, "nodes[%" PRIu32 "] has no \"%s\"", at, key);
}

/* A missing key keeps its value. */
static clv_status read_bytes(const json_t *node, uint32_t at, const char *key, int64_t *out)
{
	const json_t *x = json_object_get(node, key);
	if (!x)
		return CLV_OK;
	if (!whole_number(x, out))
		return fail(CLV_E_PARSE, "nodes[%" PRIu32 "].%s is no whole number", at, key);
	if (*out < 0)
		return fail(CLV_E_INVALID, "nodes[%" PRIu32 "].%s is negative: %" PRId64, at, key, *out);
	return CLV_OK;
}

static clv_status read_time(const json_t *node, uint32_t at, const char *key, bool needed, double *out)
{
	const json_t *x = json_object_get(node, key);
	if (!x)
		return needed ? missing(at, key) : CLV_OK;
	if (!json_is_number(x))
		return fail(CLV_E_PARSE, "nodes[%" PRIu32 "].%s is no number", at, key);
	*out = json_number_value(x);
	if (!isfinite(*out))
		return fail(CLV_E_INVALID, "nodes[%" PRIu32 "].%s is not finite", at, key);
	if (*out < 0)
		return fail(CLV_E_INVALID, "nodes[%" PRIu32 "].%s is negative: %g", at, key, *out);
	return CLV_OK;
}

static clv_status read_id(const json_t *node, uint32_t at, int64_t *out)
{
	const json_t *x = json_object_get(node, "id");
	if (!x)
		return missing(at, "id");
	return whole_number(x, out) ? CLV_OK : fail(CLV_E_PARSE, "nodes[%" PRIu32 "].id is no whole number", at);
}

static clv_status read_name(pipe_graph *g, const json_t *node, uint32_t at, const char **out)
{
	const json_t *x = json_object_get(node, "name");
	*out = "";
	if (!x || json_is_null(x))
		return CLV_OK;
	if (!json_is_string(x) || strlen(json_string_value(x)) != json_string_length(x))
		return fail(CLV_E_PARSE, "nodes[%" PRIu32 "].name is no plain string", at);
	g->named = true;
	*out = arena_str(&g->names, json_string_value(x));
	return arena_status(&g->names);
}

static clv_status read_node(pipe_graph *g, const json_t *node, uint32_t at)
{
	pipe_node x = {0};
	int64_t made = 0;
	if (!json_is_object(node))
		return fail(CLV_E_PARSE, "nodes[%" PRIu32 "] is no object", at);
	TRY(read_id(node, at, &x.id));
	TRY(read_name(g, node, at, &x.name));
	TRY(read_time(node, at, "fwd_us", true, &x.fwd_us));
	TRY(read_time(node, at, "bwd_us", false, &x.bwd_us));
	TRY(read_bytes(node, at, "param_bytes", &x.param_bytes));
	TRY(read_bytes(node, at, "out_bytes", &made));
	x.held_bytes = made;
	TRY(read_bytes(node, at, "held_bytes", &x.held_bytes));
	TRY(read_bytes(node, at, "work_bytes", &x.work_bytes));
	TRY(vec_push(&g->nodes, x));
	return vec_push(&g->values, ((pipe_value){.from = at, .bytes = made, .grad = true}));
}

typedef struct ids {
	table by_id;
	const pipe_graph *g;
	int64_t wanted;
} ids;

static bool same_id(const void *ctx, uint32_t n)
{
	const ids *all = ctx;
	return all->g->nodes.at[n].id == all->wanted;
}

static uint32_t find_id(ids *all, int64_t id, uint32_t *hash)
{
	*hash = hash_bytes(&id, sizeof id, (uint64_t)(uintptr_t)all);
	all->wanted = id;
	return table_find(&all->by_id, *hash, same_id, all);
}

static clv_status add_ids(ids *all)
{
	for (uint32_t n = 0; n < all->g->nodes.n; n++) {
		uint32_t hash, other = find_id(all, all->g->nodes.at[n].id, &hash);
		if (other != TABLE_NONE)
			return fail(CLV_E_INVALID, "nodes[%" PRIu32 "].id is %" PRId64 ", as nodes[%" PRIu32 "].id is", n,
			            all->wanted, other);
		TRY(table_add(&all->by_id, hash, n));
	}
	return CLV_OK;
}

static clv_status read_end(ids *all, const json_t *edge, uint32_t at, uint32_t which, uint32_t *out)
{
	int64_t id;
	uint32_t hash;
	if (!whole_number(json_array_get(edge, which), &id))
		return fail(CLV_E_PARSE, "edges[%" PRIu32 "][%" PRIu32 "] is no id: whole numbers are", at, which);
	*out = find_id(all, id, &hash);
	if (*out == TABLE_NONE)
		return fail(CLV_E_INVALID, "edges[%" PRIu32 "] names a node with id %" PRId64 ", and there is none", at, id);
	return CLV_OK;
}

typedef VEC(pipe_edge) edge_list;

static clv_status read_edges(const json_t *edges, ids *all, edge_list *out)
{
	for (uint32_t i = 0; i < json_array_size(edges); i++) {
		const json_t *edge = json_array_get(edges, i);
		pipe_edge e;
		char label[NODE_LABEL];
		if (!json_is_array(edge) || json_array_size(edge) != 2)
			return fail(CLV_E_PARSE, "edges[%" PRIu32 "] is not [source id, target id]", i);
		TRY(read_end(all, edge, i, 0, &e.from));
		TRY(read_end(all, edge, i, 1, &e.to));
		if (e.from == e.to)
			return fail(CLV_E_INVALID, "edges[%" PRIu32 "] goes from %s to itself", i,
			            node_label(all->g, e.from, label));
		TRY(vec_push(out, e));
	}
	return CLV_OK;
}

/* Edges become the uses of the one value that each node makes. */
static clv_status make_uses(pipe_graph *g, const edge_list *edges)
{
	TRY(vec_reserve(&g->uses, edges->n));
	for (uint32_t i = 0; i < edges->n; i++)
		g->values.at[edges->at[i].from].nuses++;
	for (uint32_t v = 0, at = 0; v < g->values.n; v++) {
		g->values.at[v].uses = at;
		at += g->values.at[v].nuses;
		g->values.at[v].nuses = 0;
	}
	g->uses.n = edges->n;
	for (uint32_t i = 0; i < edges->n; i++) {
		pipe_value *v = &g->values.at[edges->at[i].from];
		g->uses.at[v->uses + v->nuses++] = edges->at[i].to;
	}
	return CLV_OK;
}

static clv_status read_lists(const json_t *nodes, const json_t *edges, pipe_graph *g)
{
	ids all = {.g = g};
	edge_list list = {0};
	clv_status st = CLV_OK;
	for (uint32_t n = 0; n < json_array_size(nodes); n++)
		TRY(read_node(g, json_array_get(nodes, n), n));
	TRY_OUT(add_ids(&all));
	TRY_OUT(read_edges(edges, &all, &list));
	TRY_OUT(make_uses(g, &list));
	st = graph_finish(g);
out:
	table_free(&all.by_id);
	vec_free(&list);
	return st;
}

static clv_status read_root(const json_t *root, pipe_graph *g)
{
	const json_t *nodes, *edges;
	if (!json_is_object(root))
		return fail(CLV_E_PARSE, "a graph is an object, {\"nodes\":[…],\"edges\":[…]}");
	TRY(json_get_array(root, "nodes", &nodes));
	TRY(json_get_array(root, "edges", &edges));
	if (json_array_size(nodes) >= PIPE_NONE || json_array_size(edges) >= PIPE_NONE)
		return fail(CLV_E_OVERFLOW, "the graph has over 2^32 nodes or edges");
	return read_lists(nodes, edges, g);
}

clv_status graph_read(const char *text, size_t n, pipe_graph *out)
{
	json_t *root;
	*out = (pipe_graph){0};
	TRY(json_read(text, n, "the graph", &root));
	clv_status st = read_root(root, out);
	json_decref(root);
	if (st != CLV_OK)
		graph_free(out);
	return st;
}
