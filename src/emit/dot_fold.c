/* Pictures: decides which operations are drawn as one unit, the cluster of each unit, and the edges between units.
 *
 * A module that is deep enough, or has no others inside, is drawn as one unit per call; a call ends where something else
 * runs. All walks are linear in the plan. */
#include <string.h>

#include "emit/dot.h"

/* ---- modules -------------------------------------------------------------------------------------------------------- */

/* Parts of the path: "a.b" is 2 deep, the root 0. */
static uint32_t depth_of(const plan *p, scope_id s)
{
	const char *path = plan_s(p, p->scopes.at[s].path);
	uint32_t depth = path[0] != '\0';
	for (; *path; path++)
		depth += *path == '.';
	return depth;
}

static bool is_root(const plan *p, scope_id s)
{
	return plan_s(p, p->scopes.at[s].path)[0] == '\0';
}

/* longer: modules that run several operations in a row */
static void count_inside(drawing *d, bool *longer)
{
	const plan *p = d->p;
	for (node_id k = 0; k < p->nodes.n; k++) {
		scope_id s = p->nodes.at[k].scope;
		if (s == NONE)
			continue;
		d->own[s]++;
		longer[s] |= k > 0 && p->nodes.at[k - 1].scope == s;
	}
	for (scope_id s = p->scopes.n; s-- > 0;) /* parents come before children */
		if (p->scopes.at[s].parent != NONE)
			d->inside[p->scopes.at[s].parent] += d->inside[s] + d->own[s];
}

static scope_id fold_of(const drawing *d, scope_id s)
{
	scope_id parent = d->p->scopes.at[s].parent;
	if (d->operations)
		return NONE;
	if (parent != NONE && d->fold[parent] != NONE)
		return d->fold[parent];
	bool leaf = d->inside[s] == 0 && !is_root(d->p, s);
	return leaf || depth_of(d->p, s) >= d->o.max_module_depth ? s : NONE;
}

/* A module that only ever runs one operation at a time needs no frame around it. */
static scope_id home_of(const drawing *d, scope_id s, const bool *longer)
{
	scope_id parent = d->p->scopes.at[s].parent, above = parent == NONE ? NONE : d->home[parent];
	if (is_root(d->p, s) || (d->operations && depth_of(d->p, s) > d->o.max_module_depth))
		return above;
	return d->inside[s] == 0 && !longer[s] ? above : s;
}

static scope_id cluster_above(const drawing *d, scope_id s)
{
	scope_id parent = d->p->scopes.at[s].parent;
	return parent == NONE ? NONE : d->home[parent];
}

static uint32_t level_of(const drawing *d, scope_id s)
{
	return s == NONE ? 0 : d->level[s];
}

static clv_status fold_modules(drawing *d)
{
	size_t n = (size_t)d->p->scopes.n + 1;
	bool *longer = arena_array(&d->arena, n, sizeof *longer);
	d->own = arena_array(&d->arena, n, sizeof *d->own);
	d->inside = arena_array(&d->arena, n, sizeof *d->inside);
	d->level = arena_array(&d->arena, n, sizeof *d->level);
	d->fold = arena_ids(&d->arena, n);
	d->home = arena_ids(&d->arena, n);
	TRY(arena_status(&d->arena));
	count_inside(d, longer);
	for (scope_id s = 0; s < d->p->scopes.n; s++) {
		d->fold[s] = fold_of(d, s);
		d->home[s] = home_of(d, s, longer);
		d->level[s] = level_of(d, cluster_above(d, s)) + 1;
	}
	return CLV_OK;
}

/* ---- units ---------------------------------------------------------------------------------------------------------- */

/* The cluster that its path names; a module that is folded is none. */
static scope_id path_home(const drawing *d, scope_id module, scope_id s)
{
	return module != NONE ? cluster_above(d, d->fold[module]) : s == NONE ? NONE : d->home[s];
}

static scope_id fold_at(const drawing *d, node_id k)
{
	scope_id s = d->p->nodes.at[k].scope;
	return s == NONE ? NONE : d->fold[s];
}

/* Whether a node is of a module without others inside that is called several times and drawn as part of another. */
static bool may_be_guest(const drawing *d, node_id k, const uint32_t *calls)
{
	scope_id s = d->p->nodes.at[k].scope;
	return s != NONE && d->inside[s] == 0 && d->fold[s] != NONE && d->fold[s] != s && calls[s] > 1;
}

/* What each node is drawn as. A module that is folded with its parent, but runs while others do, is not drawn as its
   parent: between two operations of one module it belongs to that call, else it is drawn as itself. */
static void choose_folds(const drawing *d, uint32_t *calls, scope_id *as)
{
	scope_id next = NONE, before = NONE;
	for (node_id k = 0; k < d->p->nodes.n; k++) {
		scope_id s = d->p->nodes.at[k].scope;
		if (s != NONE)
			calls[s] += k == 0 || d->p->nodes.at[k - 1].scope != s;
	}
	for (node_id k = d->p->nodes.n; k-- > 0;) {
		as[k] = next; /* for now: of the next node that is certainly no guest */
		next = may_be_guest(d, k, calls) ? next : fold_at(d, k);
	}
	for (node_id k = 0; k < d->p->nodes.n; k++) {
		scope_id mine = fold_at(d, k), after = as[k];
		bool guest = may_be_guest(d, k, calls) && mine != before && mine != after;
		as[k] = !guest ? mine : before == after && before != NONE ? before : d->p->nodes.at[k].scope;
		before = may_be_guest(d, k, calls) ? before : mine;
	}
}

static clv_status join_nodes(drawing *d, const scope_id *as)
{
	const plan *p = d->p;
	for (node_id k = 0; k < p->nodes.n; k++) {
		unit *last = d->units.n ? &d->units.at[d->units.n - 1] : NULL;
		bool cut_before = is_cut(d) && k == d->o.frontier + 1;
		if (last && as[k] != NONE && last->module == as[k] && !cut_before)
			last->end = k + 1;
		else
			TRY(vec_push(&d->units, ((unit){k, k + 1, as[k], path_home(d, as[k], p->nodes.at[k].scope), NONE})));
	}
	return CLV_OK;
}

static clv_status make_units(drawing *d)
{
	uint32_t *calls = arena_array(&d->arena, d->p->scopes.n, sizeof *calls);
	scope_id *as = arena_ids(&d->arena, d->p->nodes.n);
	TRY(arena_status(&d->arena));
	choose_folds(d, calls, as);
	return join_nodes(d, as);
}

static scope_id common_cluster(const drawing *d, scope_id a, scope_id b)
{
	while (a != b)
		if (level_of(d, a) >= level_of(d, b))
			a = cluster_above(d, a);
		else
			b = cluster_above(d, b);
	return a;
}

static bool is_within(const drawing *d, scope_id s, scope_id outer)
{
	return common_cluster(d, s, outer) == outer;
}

/* The module without others inside that a unit is a call of; NONE: it is something else. */
static scope_id leaf_of(const drawing *d, const unit *u)
{
	scope_id s = d->p->nodes.at[u->first].scope, module = u->module != NONE ? u->module : s;
	return module == NONE || d->inside[module] || module == u->home ? NONE : module;
}

/* Whether a module is called by others than the one whose path it has, as an activation that many layers share: what
   runs before and after is not in its cluster, and the cluster has more than this module. */
static bool is_guest(const drawing *d, const unit *u, scope_id before, scope_id after)
{
	if (u->home == NONE || is_within(d, before, u->home) || is_within(d, after, u->home))
		return false;
	return d->own[u->home] + d->inside[u->home] > d->own[leaf_of(d, u)];
}

/* A guest is drawn where it is called: in the cluster that holds what is before and what is after. calls: per module;
   after: per unit, the cluster of the next one that is certainly no guest. */
static void place_guests(drawing *d, uint32_t *calls, scope_id *after)
{
	scope_id next = NONE, before = NONE;
	for (uint32_t i = 0; i < d->units.n; i++)
		if (leaf_of(d, &d->units.at[i]) != NONE)
			calls[leaf_of(d, &d->units.at[i])]++;
	for (uint32_t i = d->units.n; i-- > 0;) {
		scope_id leaf = leaf_of(d, &d->units.at[i]);
		after[i] = next;
		next = leaf == NONE || calls[leaf] < 2 ? d->units.at[i].home : next;
	}
	for (uint32_t i = 0; i < d->units.n; i++) {
		unit *u = &d->units.at[i];
		scope_id leaf = leaf_of(d, u);
		if (leaf == NONE || calls[leaf] < 2)
			before = u->home;
		else if (is_guest(d, u, before, after[i]))
			u->home = common_cluster(d, before, after[i]);
	}
}

static clv_status move_guests(drawing *d)
{
	uint32_t *calls = arena_array(&d->arena, d->p->scopes.n, sizeof *calls);
	scope_id *after = arena_ids(&d->arena, d->units.n);
	TRY(arena_status(&d->arena));
	place_guests(d, calls, after);
	return CLV_OK;
}

static void result_crosses(void *ctx, value_id v)
{
	const drawing *d = ((const void **)ctx)[0];
	if (crosses_cut(d, v))
		*(bool *)((void **)ctx)[1] = true;
}

bool unit_is_boundary(const drawing *d, const unit *u)
{
	bool found = false;
	const void *ctx[] = {d, &found};
	if (!is_cut(d) || unit_side(d, u) != PREFIX)
		return false;
	for (node_id k = u->first; k < u->end; k++)
		node_each_result(d->p, k, result_crosses, (void *)ctx);
	return found;
}

/* ---- clusters ------------------------------------------------------------------------------------------------------- */

static cluster *cluster_at(const drawing *d, scope_id s)
{
	return &d->clusters[s == NONE ? d->p->scopes.n : s];
}

/* Puts a cluster into the one around it when it is first met, and that one likewise. */
static void show_cluster(drawing *d, scope_id s)
{
	while (s != NONE && !d->clusters[s].shown) {
		scope_id above = cluster_above(d, s);
		cluster *around = cluster_at(d, above);
		if (around->last_child == NONE)
			around->first_child = s;
		else
			d->clusters[around->last_child].next = s;
		around->last_child = s;
		d->clusters[s].shown = true;
		s = above;
	}
}

static void put_unit(drawing *d, uint32_t u)
{
	scope_id home = d->units.at[u].home;
	cluster *c = cluster_at(d, home);
	if (c->last_unit == NONE)
		c->first_unit = u;
	else
		d->units.at[c->last_unit].next = u;
	c->last_unit = u;
	show_cluster(d, home);
	for (scope_id s = home; s != NONE; s = cluster_above(d, s))
		d->clusters[s].side[unit_side(d, &d->units.at[u])] = true;
}

static clv_status make_clusters(drawing *d)
{
	size_t n = (size_t)d->p->scopes.n + 1;
	d->clusters = arena_array(&d->arena, n, sizeof *d->clusters);
	TRY(arena_status(&d->arena));
	for (size_t i = 0; i < n; i++)
		d->clusters[i] = (cluster){NONE, NONE, NONE, NONE, NONE, false, {false, false}};
	for (uint32_t u = 0; u < d->units.n; u++)
		put_unit(d, u);
	return CLV_OK;
}

/* ---- edges ---------------------------------------------------------------------------------------------------------- */

/* While the plan is walked: the source of each value, and the last writer of its memory. */
typedef struct edge_walk {
	drawing *d;
	uint32_t *source;  /* per value: vertex */
	uint32_t *writer;  /* per value that owns memory: vertex */
	value_id *written; /* and through which value it wrote */
	uint32_t *joined;  /* per vertex: the vertex that its last edge goes to */
	uint32_t at;       /* vertex whose edges are found */
	clv_status st;
} edge_walk;

static void add_edge(edge_walk *t, uint32_t from)
{
	if (t->st != CLV_OK || from == NONE || from == t->at || t->joined[from] == t->at)
		return;
	t->joined[from] = t->at;
	t->st = vec_push(&t->d->edges, ((edge){from, t->at}));
}

/* A reader depends on the last writer; a view of written memory also on the node that made the view. */
static void use_value(void *ctx, value_id v)
{
	edge_walk *t = ctx;
	value_id root = alias_root(t->d->p, v);
	uint32_t from = t->source[v], writer = t->writer[root];
	bool later = writer != NONE && (from == NONE || writer > from);
	if (!later || t->written[root] != v)
		add_edge(t, from);
	if (later)
		add_edge(t, writer);
}

static void make_value(void *ctx, value_id v)
{
	edge_walk *t = ctx;
	t->source[v] = t->at;
}

static void walk_node_edges(edge_walk *t, node_id k)
{
	const plan *p = t->d->p;
	const node *n = &p->nodes.at[k];
	node_each_arg(p, k, use_value, t);
	for (uint32_t w = 0; w < n->nwrites; w++) {
		value_id v = p->ids.at[n->writes + w];
		use_value(t, v);
		t->writer[alias_root(p, v)] = t->at;
		t->written[alias_root(p, v)] = v;
	}
	node_each_result(p, k, make_value, t);
}

static void walk_plan(edge_walk *t)
{
	drawing *d = t->d;
	const plan *p = d->p;
	for (uint32_t i = 0; i < p->inputs.n; i++)
		t->source[p->inputs.at[i]] = i;
	for (uint32_t u = 0; u < d->units.n; u++) {
		t->at = vertex_of_unit(d, u);
		for (node_id k = d->units.at[u].first; k < d->units.at[u].end; k++)
			walk_node_edges(t, k);
	}
	t->at = output_vertex(d);
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			use_value(t, p->out_tree.at[i].u.v);
}

static clv_status make_edges(drawing *d)
{
	size_t values = d->p->values.n;
	edge_walk t = {.d = d,
	               .source = arena_ids(&d->arena, values),
	               .writer = arena_ids(&d->arena, values),
	               .written = arena_ids(&d->arena, values),
	               .joined = arena_ids(&d->arena, (size_t)output_vertex(d) + 1)};
	TRY(arena_status(&d->arena));
	walk_plan(&t);
	return t.st;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

clv_status drawing_make(drawing *d)
{
	TRY(fold_modules(d));
	TRY(make_units(d));
	TRY(move_guests(d));
	TRY(make_clusters(d));
	TRY(make_edges(d));
	d->noted = arena_ids(&d->arena, d->p->values.n);
	return arena_status(&d->arena);
}

void drawing_free(drawing *d)
{
	arena_free(&d->arena);
	vec_free(&d->units);
	vec_free(&d->edges);
}
