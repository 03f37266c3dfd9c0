/* Finds units: nodes that shared memory keeps together.
 *
 * A segment returns copies: a node that later writes a tensor in place, or looks at it through a view, would miss the
 * other. So the node that makes memory that is written, those that make views of it, and those that write it, up to the
 * last write, are tied: an edge both ways. Values and the order of effects are edges forwards; strongly connected
 * components then also contain the nodes that read the memory between two writes. A node that reads memory beyond the
 * elements of a tensor (as_strided) counts as a writer.
 *
 * A component with a node that is not compiled is taken apart: its tied nodes run on the tape, where memory is as in
 * eager, and nodes that only read are free again (only the order of effects keeps them in place). Without ties nothing
 * goes backwards, so single nodes are left. Memory from before the run always stays on the tape: its writers, views of it
 * up to the last write, and views of it that leave the run. So do readers of a model tensor that a run changes: compiled
 * code contains the weights. */
#include "segment/units.h"

#include <string.h>

#include "plan/flops.h"
#include "split/frontier.h"
#include "split/order.h"

typedef struct unit_walk {
	const plan *p;
	const node_names *names;
	const char **reason;
	arena *arena;  /* of reasons */
	arena scratch; /* of the arrays below */
	units *out;
	liveness live;
	node_id *writer; /* per root: the last node that writes it, or reads it beyond a tensor */
	bool *changes;   /* per value: a tensor of the model that a run writes or re-binds */
	reach_list reaches;
	node_id *toucher;  /* per root: the last node that was tied to it */
	bool *tied;        /* per node */
	bool *leaves;      /* per value: it is memory from outside, and the caller gets it */
	arcs forward;      /* between nodes */
	arcs ties;         /* between nodes; each stands for both ways */
	uint32_t *part_of; /* out->of_node: per node its component, then its unit */
	uint32_t nparts;
	node_id now;
	bool found;
	clv_status st;
} unit_walk;

static void each_written(unit_walk *w, value_fn fn)
{
	const node *n = &w->p->nodes.at[w->now];
	for (uint32_t i = 0; i < n->nwrites; i++)
		fn(w, w->p->ids.at[n->writes + i]);
}

static bool is_made(const plan *p, value_id root)
{
	return p->values.at[root].kind == VALUE_RESULT;
}

/* ---- memory from outside ---------------------------------------------------------------------------------------------------- */

static void refuse_compiling(unit_walk *w, const char *before, value_id v, const char *after)
{
	strbuf b = STRBUF_INIT;
	if (w->reason[w->now] || w->st != CLV_OK)
		return;
	strbuf_puts(&b, before);
	value_label(w->p, v, &b);
	strbuf_puts(&b, after);
	w->st = arena_take(w->arena, &b, &w->reason[w->now]);
}

static void refuse_write(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	value_id root = alias_root(w->p, v);
	if (!is_made(w->p, root))
		refuse_compiling(w, "writes ", root, " in place, which is there before the run");
}

static void refuse_view(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	value_id root = alias_root(w->p, v);
	if (root == v || is_made(w->p, root))
		return;
	if (w->writer[root] != NONE && w->now <= w->writer[root])
		refuse_compiling(w, "is a view of ", root, ", whose memory is used in place afterwards");
	if (w->leaves[v])
		refuse_compiling(w, "gives memory of ", root, " to the caller, and a segment would give a copy");
}

static void refuse_read(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	if (w->changes[v])
		refuse_compiling(w, "reads ", v, ", which changes from run to run");
}

/* Before reaches count as writes. */
static void find_changes(unit_walk *w)
{
	const plan *p = w->p;
	for (value_id v = 0; v < p->values.n; v++)
		w->changes[v] = !moves(p, v) && w->writer[alias_root(p, v)] != NONE;
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		w->changes[p->rebinds.at[i].target] = true;
}

static void find_users(unit_walk *w)
{
	last_writers(w->p, w->writer);
	find_changes(w);
	for (uint32_t i = 0; i < w->reaches.n; i++) {
		node_id *last = &w->writer[alias_root(w->p, w->reaches.at[i].v)];
		if (*last == NONE || *last < w->reaches.at[i].node)
			*last = w->reaches.at[i].node;
	}
}

static void see_leaving(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	w->found |= w->leaves[v];
}

static void pass_leaving(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	if (!is_made(w->p, alias_root(w->p, v)))
		w->leaves[v] = true;
}

/* A view of a view: what it is made of has to be memory from outside too. */
static void find_leaving(unit_walk *w)
{
	const plan *p = w->p;
	for (value_id v = 0; v < p->values.n; v++)
		w->leaves[v] = w->out->kept[v] && alias_root(p, v) != v && !is_made(p, alias_root(p, v));
	for (w->now = p->nodes.n; w->now-- > 0;) {
		w->found = false;
		node_each_result(p, w->now, see_leaving, w);
		if (w->found)
			node_each_arg(p, w->now, pass_leaving, w);
	}
}

static clv_status refuse_outside(unit_walk *w)
{
	TRY(find_reaches(w->p, &w->reaches));
	find_users(w);
	find_leaving(w);
	for (w->now = 0; w->now < w->p->nodes.n && w->st == CLV_OK; w->now++) {
		each_written(w, refuse_write);
		node_each_arg(w->p, w->now, refuse_read, w);
		node_each_result(w->p, w->now, refuse_view, w);
	}
	return w->st;
}

/* ---- edges ------------------------------------------------------------------------------------------------------------------ */

static void add_arc(unit_walk *w, arcs *to, node_id a, node_id b)
{
	if (w->st == CLV_OK && a != b)
		w->st = vec_push(to, ((arc){a, b}));
}

static void add_value_arc(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	if (w->p->values.at[v].kind == VALUE_RESULT)
		add_arc(w, &w->forward, w->p->values.at[v].def, w->now);
}

static void tie_nodes(unit_walk *w, node_id a, node_id b)
{
	add_arc(w, &w->ties, a, b);
	w->tied[a] = w->tied[b] = true;
}

static void tie_memory(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	value_id root = alias_root(w->p, v);
	if (!is_made(w->p, root) || w->writer[root] == NONE || w->now > w->writer[root])
		return;
	if (w->toucher[root] != NONE)
		tie_nodes(w, w->toucher[root], w->now);
	w->toucher[root] = w->now;
}

static clv_status add_arcs(unit_walk *w)
{
	for (w->now = 0; w->now < w->p->nodes.n && w->st == CLV_OK; w->now++) {
		node_each_arg(w->p, w->now, add_value_arc, w);
		each_written(w, add_value_arc);
		each_written(w, tie_memory);
		node_each_result(w->p, w->now, tie_memory, w);
	}
	return w->st;
}

static clv_status add_order(unit_walk *w)
{
	order_pairs pairs = {0};
	clv_status st = order_of_effects(w->p, &pairs);
	for (uint32_t i = 0; st == CLV_OK && i < pairs.n; i++)
		st = vec_push(&w->forward, ((arc){pairs.at[i].before, pairs.at[i].after}));
	vec_free(&pairs);
	return st;
}

static clv_status tie_reaches(unit_walk *w)
{
	for (uint32_t i = 0; i < w->reaches.n; i++) {
		value_id root = alias_root(w->p, w->reaches.at[i].v);
		if (is_made(w->p, root))
			tie_nodes(w, w->p->values.at[root].def, w->reaches.at[i].node);
	}
	return w->st;
}

/* ---- units ------------------------------------------------------------------------------------------------------------------ */

static clv_status find_parts(unit_walk *w)
{
	arcs all = {0};
	digraph g = {0};
	clv_status st = vec_reserve(&all, (size_t)w->forward.n + 2 * (size_t)w->ties.n);
	for (uint32_t i = 0; st == CLV_OK && i < w->forward.n; i++)
		all.at[all.n++] = w->forward.at[i];
	for (uint32_t i = 0; st == CLV_OK && i < w->ties.n; i++) {
		all.at[all.n++] = w->ties.at[i];
		all.at[all.n++] = (arc){w->ties.at[i].to, w->ties.at[i].from};
	}
	if (st == CLV_OK)
		st = digraph_new(w->p->nodes.n, all.at, all.n, &g);
	if (st == CLV_OK)
		st = digraph_components(&g, w->part_of, &w->nparts);
	digraph_free(&g);
	vec_free(&all);
	return st;
}

static clv_status tie_reason(unit_walk *w, node_id left_out, const char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, TIED "%s (%s), which is not compiled", node_name(w->names, left_out),
	              plan_s(w->p, w->p->nodes.at[left_out].op));
	return arena_take(w->arena, &b, out);
}

/* Components with a node that is left out become single nodes, and what is tied in them gets the reason. */
static clv_status take_apart(unit_walk *w, node_id *left_out /* per part */, const char **why /* per part */)
{
	uint32_t n = w->p->nodes.n;
	for (node_id k = n; k-- > 0;)
		if (w->reason[k])
			left_out[w->part_of[k]] = k;
	for (node_id k = 0; k < n; k++) {
		uint32_t part = w->part_of[k];
		if (left_out[part] == NONE)
			continue;
		if (w->tied[k] && !w->reason[k]) {
			if (!why[part])
				TRY(tie_reason(w, left_out[part], &why[part]));
			w->reason[k] = why[part];
		}
		if (k != left_out[part])
			w->part_of[k] = w->nparts++; /* never more than nodes + parts */
	}
	return CLV_OK;
}

static clv_status split_parts(unit_walk *w)
{
	node_id *left_out = arena_ids(&w->scratch, w->nparts);
	const char **why = arena_array(&w->scratch, w->nparts, sizeof *why);
	TRY(arena_status(&w->scratch));
	return take_apart(w, left_out, why);
}

/* Numbers parts by their first node, so that the order of units stays near the plan's. */
static clv_status number_parts(unit_walk *w)
{
	uint32_t *renamed = arena_ids(&w->scratch, w->nparts), n = 0;
	TRY(arena_status(&w->scratch));
	for (node_id k = 0; k < w->p->nodes.n; k++) {
		uint32_t *name = &renamed[w->part_of[k]];
		if (*name == NONE)
			*name = n++;
		w->part_of[k] = *name;
	}
	w->nparts = n;
	return CLV_OK;
}

static clv_status graph_of_parts(unit_walk *w, digraph *out)
{
	arcs lifted = {0};
	clv_status st = vec_reserve(&lifted, w->forward.n);
	for (uint32_t i = 0; st == CLV_OK && i < w->forward.n; i++) {
		arc a = {w->part_of[w->forward.at[i].from], w->part_of[w->forward.at[i].to]};
		if (a.from != a.to)
			lifted.at[lifted.n++] = a;
	}
	if (st == CLV_OK)
		st = digraph_new(w->nparts, lifted.at, lifted.n, out);
	vec_free(&lifted);
	return st;
}

/* Units are numbered in a topological order, and the graph is made anew of these numbers. */
static clv_status order_parts(unit_walk *w)
{
	uint32_t *place = arena_ids(&w->scratch, w->nparts);
	digraph g = {0};
	TRY(arena_status(&w->scratch));
	clv_status st = graph_of_parts(w, &g);
	if (st == CLV_OK)
		st = digraph_order(&g, place);
	digraph_free(&g);
	TRY(st);
	for (node_id k = 0; k < w->p->nodes.n; k++)
		w->part_of[k] = place[w->part_of[k]];
	return graph_of_parts(w, &w->out->g);
}

static clv_status fill_units(unit_walk *w)
{
	units *u = w->out;
	uint32_t n = w->p->nodes.n;
	u->n = w->nparts;
	u->first = arena_array(&u->arena, (size_t)u->n + 2, sizeof *u->first);
	u->nodes = arena_ids(&u->arena, n);
	TRY(arena_status(&u->arena));
	for (node_id k = 0; k < n; k++)
		u->first[u->of_node[k] + 2]++;
	for (uint32_t i = 0; i < u->n; i++)
		u->first[i + 2] += u->first[i + 1];
	for (node_id k = 0; k < n; k++)
		u->nodes[u->first[u->of_node[k] + 1]++] = k;
	return CLV_OK;
}

/* ---- uses ------------------------------------------------------------------------------------------------------------------- */

static void add_use(void *ctx, value_id v)
{
	unit_walk *w = ctx;
	if (moves(w->p, v) && w->st == CLV_OK)
		w->st = vec_push(&w->forward, ((arc){v, w->out->of_node[w->now]}));
}

static clv_status find_uses(unit_walk *w)
{
	w->forward.n = 0;
	for (uint32_t k = 0; k < w->p->nodes.n && w->st == CLV_OK; k++) {
		w->now = w->out->nodes[k]; /* unit by unit, so that equal uses are neighbours */
		node_each_arg(w->p, w->now, add_use, w);
		each_written(w, add_use);
	}
	TRY(w->st);
	return digraph_new(w->p->values.n, w->forward.at, w->forward.n, &w->out->uses);
}

static clv_status find_units(unit_walk *w)
{
	units *u = w->out;
	TRY(arena_status(&u->arena));
	TRY(arena_status(&w->scratch));
	TRY(liveness_new(w->p, &w->live));
	for (value_id v = 0; v < w->p->values.n; v++)
		u->kept[v] = w->live.last[v] == w->p->nodes.n;
	TRY(refuse_outside(w));
	TRY(add_arcs(w));
	TRY(add_order(w));
	TRY(tie_reaches(w));
	TRY(find_parts(w));
	TRY(split_parts(w));
	TRY(number_parts(w));
	TRY(order_parts(w));
	TRY(fill_units(w));
	return find_uses(w);
}

clv_status units_find(const plan *p, const node_names *names, const char **reason, arena *a, units *out)
{
	units u = {0};
	unit_walk w = {.p = p, .names = names, .reason = reason, .arena = a, .out = &u};
	u.kept = arena_alloc(&u.arena, p->values.n);
	u.of_node = arena_ids(&u.arena, p->nodes.n);
	w.part_of = u.of_node;
	w.writer = arena_ids(&w.scratch, p->values.n);
	w.toucher = arena_ids(&w.scratch, p->values.n);
	w.tied = arena_alloc(&w.scratch, p->nodes.n);
	w.leaves = arena_alloc(&w.scratch, p->values.n);
	w.changes = arena_alloc(&w.scratch, p->values.n);
	clv_status st = find_units(&w);
	liveness_free(&w.live);
	arena_free(&w.scratch);
	vec_free(&w.reaches);
	vec_free(&w.forward);
	vec_free(&w.ties);
	if (st == CLV_OK)
		*out = u;
	else
		units_free(&u);
	return st;
}

void units_free(units *u)
{
	arena_free(&u->arena);
	digraph_free(&u->uses);
	digraph_free(&u->g);
	*u = (units){0};
}

/* ---- amounts ---------------------------------------------------------------------------------------------------------------- */

/* A size that is not defined or negative at these symbols counts as 0. */
static int64_t tensor_bytes_at(const plan *p, value_id v, const int64_t *sizes, const bool *ok)
{
	const value *x = &p->values.at[v];
	int64_t n = dtype_bits((dtype)x->dtype) / 8;
	for (uint32_t d = 0; d < x->ndim; d++) {
		expr_id e = p->dims.at[x->shape + d];
		int64_t size = ok[e] && sizes[e] > 0 ? sizes[e] : 0;
		if (__builtin_mul_overflow(n, size, &n))
			return INT64_MAX;
	}
	return n;
}

static clv_status measure_amounts(const plan *p, const int64_t *given, int64_t *syms, int64_t *sizes, bool *ok,
                                  amounts *m)
{
	TRY(choose_sizes(p, NULL, syms));
	if (given && p->symbols.n)
		memcpy(syms, given, p->symbols.n * sizeof *syms);
	TRY(expr_eval_all(p, syms, sizes, ok));
	for (node_id k = 0; k < p->nodes.n; k++) {
		double work = node_flops(p, k, sizes);
		m->work[k] = work > 0 ? work : 0;
	}
	for (value_id v = 0; v < p->values.n; v++)
		if (can_cross(p, v))
			m->bytes[v] = tensor_bytes_at(p, v, sizes, ok);
	return CLV_OK;
}

clv_status amounts_of(const plan *p, const int64_t *syms, amounts *out)
{
	arena scratch = {0};
	amounts m = {0};
	m.work = arena_array(&m.arena, p->nodes.n, sizeof *m.work);
	m.bytes = arena_array(&m.arena, p->values.n, sizeof *m.bytes);
	int64_t *chosen = arena_array(&scratch, p->symbols.n, sizeof *chosen);
	int64_t *sizes = arena_array(&scratch, p->exprs.n, sizeof *sizes);
	bool *ok = arena_alloc(&scratch, p->exprs.n);
	bool failed = scratch.failed || m.arena.failed;
	clv_status st = failed ? fail_nomem() : measure_amounts(p, syms, chosen, sizes, ok, &m);
	arena_free(&scratch);
	if (st == CLV_OK)
		*out = m;
	else
		amounts_free(&m);
	return st;
}

void amounts_free(amounts *m)
{
	arena_free(&m->arena);
	*m = (amounts){0};
}
