/* The exact cut: of all ways to divide the nodes, not only those along the plan's order, the one with the fewest bytes.
 *
 * A minimum cut of a network. Each node is a vertex, each value that can cross is one too: an edge of its bytes leads from
 * the node that makes it (from the source, for inputs), an edge that is never cut on to each node that needs it, so that
 * it is paid once however many need it. What has to come before a node is an edge back that is never cut. Outputs need
 * their values at the sink. The prefix is what stays with the source.
 *
 * Five rules of judge.c:
 *   - What is no ordinary tensor never crosses: its edge is never cut.
 *   - A node that reads memory beyond the elements of a tensor is not in the suffix when the maker of the memory is in the prefix.
 *   - Nodes that write an input of the caller are in the prefix. (In the suffix the input would cross.)
 *   - Nodes that touch a tensor of the model that the forward changes are on one side: edges both ways.
 *   - Memory that the suffix writes crosses once. No edge says that, as it concerns three vertices; where a cut breaks it,
 *     each way to mend it is tried (branch and bound). */
#include <string.h>

#include "base/arena.h"
#include "base/options.h"
#include "plan/data.h"
#include "split/frontier.h"
#include "split/mincut.h"
#include "split/order.h"
#include "split/state.h"

/* Minimum cuts until the best one found so far is taken: many for small plans, at least a few for large ones. */
enum { TRIES_MOST = 400, TRIES_LEAST = 20, TRIES_WORK = 20000000 };

/* Something that is required beyond the plan: a value that must not cross, or a node that must be in the prefix. */
typedef struct demand {
	value_id stays; /* NONE: it is about a node */
	node_id prefix;
} demand;

typedef struct exact {
	const clv_frontiers *f;
	const plan *p;
	const plan *from; /* NULL: sides are asked for by name */
	node_id from_at;
	order_pairs order;
	reach_list reaches;
	state_list states;
	bool *must[SIDES];    /* by node */
	node_id *last_writer; /* per root; NONE: no node writes it */
	VEC(demand) demands;
	bool *side;         /* per vertex: with the source */
	bool *needed;       /* per value: by the suffix, or after the last node */
	value_id *crossing; /* per root: a value on it that crosses and was seen first */
	bool *best;         /* per node: in the prefix, in the best cut so far */
	int64_t best_bytes; /* -1: there is none yet */
	uint32_t *path;     /* scratch: vertices */
	arena arrays;       /* all of these */
	unsigned tries;
} exact;

static uint32_t vertex_of_node(node_id k)
{
	return NETWORK_ENDS + k;
}

static uint32_t vertex_of_value(const plan *p, value_id v)
{
	return NETWORK_ENDS + p->nodes.n + v;
}

static uint32_t vertex_count(const plan *p)
{
	return NETWORK_ENDS + p->nodes.n + p->values.n;
}

/* ---- the network ----------------------------------------------------------------------------------------------------- */

static bool never_crosses(const exact *x, value_id v)
{
	const value *val = &x->p->values.at[v];
	bool asked = false;
	for (uint32_t i = 0; i < x->demands.n; i++)
		asked |= x->demands.at[i].stays == v;
	return asked || !can_be_sent(val) || value_bytes_at(x->f, v) == INT64_MAX;
}

typedef struct wiring {
	exact *x;
	network *net;
	uint32_t user; /* vertex that needs the values, or makes them */
	clv_status st;
} wiring;

static void wire(wiring *w, uint32_t from, uint32_t to, int64_t capacity)
{
	if (w->st == CLV_OK)
		w->st = network_edge_add(w->net, from, to, capacity);
}

static void wire_need(void *ctx, value_id v)
{
	wiring *w = ctx;
	const plan *p = w->x->p;
	if (!moves(p, v))
		return;
	wire(w, vertex_of_value(p, v), w->user, NETWORK_NEVER);
	if (p->values.at[v].kind == VALUE_RESULT && w->user != NETWORK_SINK)
		wire(w, w->user, vertex_of_node(p->values.at[v].def), NETWORK_NEVER); /* its maker comes before */
}

static void wire_made(wiring *w, value_id v, uint32_t maker)
{
	if (w->x->f->live.last[v] != NONE)
		wire(w, maker, vertex_of_value(w->x->p, v),
		     never_crosses(w->x, v) ? NETWORK_NEVER : value_bytes_at(w->x->f, v));
}

static void wire_result(void *ctx, value_id v)
{
	wiring *w = ctx;
	value_id root = alias_root(w->x->p, v);
	wire_made(w, v, w->user);
	if (!moves(w->x->p, root) && can_cross(w->x->p, v))
		wire(w, w->user, vertex_of_value(w->x->p, root), NETWORK_NEVER); /* see wire_reach */
}

static void wire_node(wiring *w, node_id k)
{
	exact *x = w->x;
	w->user = vertex_of_node(k);
	node_each_use(x->p, k, wire_need, w);
	node_each_result(x->p, k, wire_result, w);
	if (x->must[PREFIX][k])
		wire(w, NETWORK_SOURCE, w->user, NETWORK_NEVER);
	if (x->must[SUFFIX][k])
		wire(w, w->user, NETWORK_SINK, NETWORK_NEVER);
}

static void wire_ends(wiring *w)
{
	const plan *p = w->x->p;
	for (uint32_t i = 0; i < p->inputs.n; i++)
		wire_made(w, p->inputs.at[i], NETWORK_SOURCE);
	w->user = NETWORK_SINK;
	plan_each_output(p, wire_need, w);
}

/* All touches are with the first use; what only prepares the next tensor may stay behind in the prefix, but not in the
   suffix where the use is in the prefix. */
static void wire_states(wiring *w)
{
	const exact *x = w->x;
	for (uint32_t i = 0; i < x->states.touches.n; i++) {
		const state_touch *t = &x->states.touches.at[i];
		node_id first = x->states.all.at[t->state].first;
		if (first == NONE || first == x->p->nodes.n)
			continue;
		uint32_t from = vertex_of_node(first), to = t->node == x->p->nodes.n ? NETWORK_SINK : vertex_of_node(t->node);
		wire(w, from, to, NETWORK_NEVER);
		if (!t->before && to != NETWORK_SINK)
			wire(w, to, from, NETWORK_NEVER);
	}
}

/* The side of the state that is re-bound; NONE: no node uses the old tensor, and the maker of the new one re-binds it. */
static node_id rebind_user(const exact *x, const rebind *r)
{
	for (uint32_t i = 0; i < x->states.all.n; i++)
		if (x->states.all.at[i].v == r->target || x->states.all.at[i].v == alias_root(x->p, r->target))
			return x->states.all.at[i].first;
	return NONE;
}

static void wire_rebinds(wiring *w)
{
	const plan *p = w->x->p;
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		node_id user = rebind_user(w->x, &p->rebinds.at[i]);
		if (user == NONE)
			continue;
		w->user = user == p->nodes.n ? NETWORK_SINK : vertex_of_node(user);
		if (moves(p, p->rebinds.at[i].value))
			wire(w, vertex_of_value(p, p->rebinds.at[i].value), w->user, NETWORK_NEVER);
	}
}

/* The holder of the memory, in the prefix, keeps the node that reads all of it there. Memory of the model is held by
   the nodes that make views of it: those meet in its vertex, which has no other use. */
static void wire_reach(wiring *w, const reach *r)
{
	const plan *p = w->x->p;
	value_id root = alias_root(p, r->v);
	const value *x = &p->values.at[root];
	uint32_t holder = x->kind == VALUE_INPUT    ? NETWORK_SOURCE
	                  : x->kind == VALUE_RESULT ? vertex_of_node(x->def)
	                                            : vertex_of_value(p, root);
	wire(w, holder, vertex_of_node(r->node), NETWORK_NEVER);
}

static clv_status build_network(exact *x, network *net)
{
	wiring w = {x, net, 0, CLV_OK};
	TRY(network_new(net, vertex_count(x->p)));
	wire_ends(&w);
	for (node_id k = 0; k < x->p->nodes.n; k++)
		wire_node(&w, k);
	wire_states(&w);
	wire_rebinds(&w);
	for (uint32_t i = 0; i < x->reaches.n; i++)
		wire_reach(&w, &x->reaches.at[i]);
	for (uint32_t i = 0; i < x->order.n; i++)
		wire(&w, vertex_of_node(x->order.at[i].after), vertex_of_node(x->order.at[i].before), NETWORK_NEVER);
	for (uint32_t i = 0; i < x->demands.n; i++)
		if (x->demands.at[i].stays == NONE)
			wire(&w, NETWORK_SOURCE, vertex_of_node(x->demands.at[i].prefix), NETWORK_NEVER);
	return w.st;
}

/* ---- cuts that are not safe ------------------------------------------------------------------------------------------ */

static bool in_prefix(const exact *x, node_id k)
{
	return x->side[vertex_of_node(k)];
}

static void mark_needed(void *ctx, value_id v)
{
	((exact *)ctx)->needed[v] = true;
}

static void find_needed(exact *x)
{
	const plan *p = x->p;
	for (value_id v = 0; v < p->values.n; v++)
		x->needed[v] = x->f->live.last[v] == p->nodes.n;
	for (node_id k = 0; k < p->nodes.n; k++)
		if (!in_prefix(x, k))
			node_each_use(p, k, mark_needed, x);
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		node_id user = rebind_user(x, &p->rebinds.at[i]);
		if (user != NONE && (user == p->nodes.n || !in_prefix(x, user)))
			mark_needed(x, p->rebinds.at[i].value);
	}
}

static bool crosses(const exact *x, value_id v)
{
	const value *val = &x->p->values.at[v];
	return can_cross(x->p, v) && x->needed[v] && (val->kind == VALUE_INPUT || in_prefix(x, val->def));
}

/* Values on memory that the suffix writes and that is shared across the cut: one of the model's, two of a result's.
   *other is NONE for the former; false: the cut is safe in this. */
static bool find_shared(exact *x, value_id *one, value_id *other)
{
	const plan *p = x->p;
	find_needed(x);
	memset(x->crossing, 0xFF, p->values.n * sizeof *x->crossing);
	for (value_id v = 0; v < p->values.n; v++) {
		value_id root = alias_root(p, v);
		node_id writer = x->last_writer[root];
		if (writer == NONE || in_prefix(x, writer) || !crosses(x, v))
			continue;
		*one = v;
		*other = x->crossing[root];
		if (*other != NONE || p->values.at[root].kind != VALUE_RESULT)
			return true;
		x->crossing[root] = v;
	}
	return false;
}

/* ---- the search ------------------------------------------------------------------------------------------------------ */

static clv_status solve_cut(exact *x, int64_t *bytes)
{
	network net = {0};
	clv_status st = build_network(x, &net);
	if (st == CLV_OK)
		network_cut(&net, x->side, bytes);
	network_free(&net);
	x->tries++;
	return st;
}

static void keep_best(exact *x, int64_t bytes)
{
	x->best_bytes = bytes;
	for (node_id k = 0; k < x->p->nodes.n; k++)
		x->best[k] = in_prefix(x, k);
}

static clv_status search(exact *x);

static clv_status search_with(exact *x, value_id value_stays, node_id prefix)
{
	TRY(vec_push(&x->demands, ((demand){value_stays, prefix})));
	clv_status st = search(x);
	x->demands.n--;
	return st;
}

static bool is_tired(const exact *x)
{
	uint32_t fit = TRIES_WORK / vertex_count(x->p);
	return x->tries >= TRIES_MOST || x->tries >= (fit > TRIES_LEAST ? fit : TRIES_LEAST);
}

/* The best cut that meets the demands; whatever a demand rules out is no better than what was found without it. */
static clv_status search(exact *x)
{
	int64_t bytes;
	value_id one = NONE, other = NONE;
	if (is_tired(x))
		return CLV_OK;
	TRY(solve_cut(x, &bytes));
	if (bytes >= NETWORK_NEVER || (x->best_bytes >= 0 && bytes >= x->best_bytes))
		return CLV_OK;
	if (!find_shared(x, &one, &other)) {
		keep_best(x, bytes);
		return CLV_OK;
	}
	TRY(search_with(x, NONE, x->last_writer[alias_root(x->p, one)]));
	TRY(search_with(x, one, NONE));
	return other == NONE ? CLV_OK : search_with(x, other, NONE);
}

/* ---- what must be where ---------------------------------------------------------------------------------------------- */

static clv_status mark_names(exact *x, enum side s, const char *const *names, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!names || !names[i])
			return fail(CLV_E_INVALID, "clv_exact_options: a name is NULL");
		clv_status st = nodes_named(x->f, names[i], x->must[s]);
		if (st != CLV_OK)
			return fail_more(st, s == PREFIX ? "must_prefix" : "must_suffix");
	}
	return CLV_OK;
}

/* The first node that must be in the suffix, and one after the last that must be in the prefix. */
static node_id first_marked(const exact *x, enum side s)
{
	node_id k = 0;
	while (k < x->p->nodes.n && !x->must[s][k])
		k++;
	return k;
}

static node_id end_marked(const exact *x, enum side s)
{
	node_id k = x->p->nodes.n;
	while (k > 0 && !x->must[s][k - 1])
		k--;
	return k;
}

static void mark_defaults(exact *x, const clv_exact_options *o)
{
	const clv_frontiers *f = x->f;
	node_id n = x->p->nodes.n, latest = first_marked(x, SUFFIX), earliest = end_marked(x, PREFIX);
	for (node_id k = 0; !o->nmust_prefix && k < latest && k < f->n && (k == 0 || f->at[k].cost <= 0.2); k++)
		x->must[PREFIX][k] = true;
	for (node_id k = n; !o->nmust_suffix && k > earliest && k > 1 && (k == n || f->at[k - 2].cost >= 0.8); k--)
		x->must[SUFFIX][k - 1] = true;
}

static void mark_input_writers(exact *x)
{
	const plan *p = x->p;
	last_writers(p, x->last_writer);
	for (value_id v = 0; v < p->values.n; v++)
		if (x->last_writer[v] != NONE && p->values.at[v].kind == VALUE_INPUT)
			x->must[PREFIX][x->last_writer[v]] = true;
}

/* Why there is no cut: two nodes that belong to different sides and cannot be parted. */
static clv_status no_cut(exact *x)
{
	network net = {0};
	const node_names *names = x->f->names;
	clv_status st = build_network(x, &net);
	uint32_t n = st == CLV_OK ? network_uncuttable(&net, x->path) : 0, first = NONE, last = NONE;
	network_free(&net);
	TRY(st);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t v = x->path[i] - NETWORK_ENDS;
		if (v >= x->p->nodes.n)
			continue;
		first = first == NONE ? v : first;
		last = v;
	}
	if (first == NONE)
		return fail(CLV_E_UNSUPPORTED, "no cut between these nodes is safe");
	if (x->must[SUFFIX][last] && first == last)
		return fail(CLV_E_UNSUPPORTED, "%s must be in the prefix and in the suffix", node_name(names, first));
	if (x->must[SUFFIX][last])
		return fail(CLV_E_UNSUPPORTED, "%s must be in the prefix, and it needs %s, which must be in the suffix",
		            node_name(names, first), node_name(names, last));
	return fail(CLV_E_UNSUPPORTED, "%s must be in the prefix, but the result of %s is needed after it and cannot cross",
	            node_name(names, first), node_name(names, last));
}

/* ---- the result ------------------------------------------------------------------------------------------------------ */

/* Prefix first, each side in its order. */
static uint32_t side_by_side(const exact *x, node_id *order)
{
	uint32_t n = 0, prefix = 0;
	for (int suffix = 0; suffix <= 1; suffix++)
		for (node_id k = 0; k < x->p->nodes.n; k++)
			if (x->best[k] == !suffix) {
				order[n++] = k;
				prefix += !suffix;
			}
	return prefix;
}

/* What was found must be what the judge of all cuts finds too. */
static clv_status check_cut(const plan *p, uint32_t at)
{
	clv_frontiers *f;
	TRY(clv_frontiers_create(p, NULL, &f));
	clv_status st = CLV_OK;
	if (f->at[at].unsafe)
		st = fail(CLV_E_UNSUPPORTED, "the cut with the fewest bytes cannot be made: %s", f->at[at].unsafe);
	clv_frontiers_free(f);
	return st;
}

static clv_status take_result(const exact *x, clv_plan **plan_out, uint32_t *position_out)
{
	plan *p = NULL;
	node_id *order = mem_ids(x->p->nodes.n);
	TRY_MEM(order);
	uint32_t prefix = side_by_side(x, order);
	clv_status st = prefix && prefix < x->p->nodes.n
	                    ? plan_reorder(x->p, order, &p)
	                    : fail(CLV_E_UNSUPPORTED, "the cut with the fewest bytes leaves nothing for the %s",
	                           prefix ? "suffix" : "prefix");
	mem_free(order);
	if (st == CLV_OK)
		st = check_cut(p, prefix - 1);
	if (st != CLV_OK) {
		plan_free(p);
		return st;
	}
	*plan_out = p;
	*position_out = prefix - 1;
	return CLV_OK;
}

/* Bytes that cannot be counted stay where they are (see stays); all others together must be countable. */
static clv_status check_total(const exact *x)
{
	__int128 total = 0;
	for (value_id v = 0; v < x->p->values.n; v++)
		if (can_cross(x->p, v) && value_bytes_at(x->f, v) != INT64_MAX)
			total += value_bytes_at(x->f, v);
	return total < NETWORK_NEVER ? CLV_OK : fail(CLV_E_OVERFLOW, "the values of the plan have too many bytes to count");
}

static clv_status mark_wanted(exact *x, const clv_exact_options *o)
{
	TRY(mark_names(x, PREFIX, o->must_prefix, o->nmust_prefix));
	TRY(mark_names(x, SUFFIX, o->must_suffix, o->nmust_suffix));
	mark_defaults(x, o);
	return CLV_OK;
}

static clv_status find_cut(exact *x, const clv_exact_options *o, clv_plan **plan_out, uint32_t *position_out)
{
	TRY(check_total(x));
	TRY(order_of_effects(x->p, &x->order));
	TRY(find_reaches(x->p, &x->reaches));
	TRY(find_state(x->p, &x->states));
	TRY(x->from ? sides_match(x->from, x->from_at, x->p, x->must) : mark_wanted(x, o));
	mark_input_writers(x);
	TRY(search(x));
	return x->best_bytes < 0 ? no_cut(x) : take_result(x, plan_out, position_out);
}

static clv_status exact_new(exact *x)
{
	uint32_t nodes = x->p->nodes.n, values = x->p->values.n;
	x->must[PREFIX] = arena_array(&x->arrays, nodes, sizeof(bool));
	x->must[SUFFIX] = arena_array(&x->arrays, nodes, sizeof(bool));
	x->best = arena_array(&x->arrays, nodes, sizeof(bool));
	x->needed = arena_array(&x->arrays, values, sizeof(bool));
	x->side = arena_array(&x->arrays, vertex_count(x->p), sizeof(bool));
	x->path = arena_ids(&x->arrays, vertex_count(x->p));
	x->last_writer = arena_ids(&x->arrays, values);
	x->crossing = arena_ids(&x->arrays, values);
	TRY_MEM(x->must[PREFIX] && x->must[SUFFIX] && x->best && x->needed && x->side && x->path && x->last_writer &&
	        x->crossing);
	return CLV_OK;
}

static void exact_free(exact *x)
{
	vec_free(&x->order);
	vec_free(&x->reaches);
	state_list_free(&x->states);
	vec_free(&x->demands);
	arena_free(&x->arrays);
}

static clv_status cut_exactly(exact *x, const clv_exact_options *o, clv_plan **plan_out, uint32_t *position_out)
{
	if (!x->f->n)
		return fail(CLV_E_UNSUPPORTED, "the model has too few operators to be cut");
	symbol_id s = first_data_symbol(x->p);
	if (s != NONE) /* what reads it must stay before what needs it, which no edge says */
		return fail(CLV_E_UNSUPPORTED, "the plan reads %s from its data; only its own order can be cut: exact=False",
		            plan_s(x->p, x->p->symbols.at[s].name));
	clv_status st = exact_new(x);
	if (st == CLV_OK)
		st = find_cut(x, o, plan_out, position_out);
	exact_free(x);
	return st;
}

clv_status clv_frontiers_exact(const clv_frontiers *f, const clv_exact_options *options, clv_plan **plan_out,
                               uint32_t *position_out)
{
	clv_exact_options o = CLV_EXACT_OPTIONS_INIT;
	if (!f || !plan_out || !position_out)
		return fail(CLV_E_INVALID, "clv_frontiers_exact: an argument is NULL");
	TRY(options_read(&o, sizeof o, options, "clv_exact_options"));
	exact x = {.f = f, .p = f->p, .best_bytes = -1};
	return cut_exactly(&x, &o, plan_out, position_out);
}

clv_status frontiers_exact_like(const clv_frontiers *f, const plan *from, node_id at, plan **plan_out,
                                uint32_t *position_out)
{
	exact x = {.f = f, .p = f->p, .from = from, .from_at = at, .best_bytes = -1};
	return cut_exactly(&x, NULL, plan_out, position_out);
}
