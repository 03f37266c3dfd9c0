/* Folds a plan into blocks.
 *
 * Nodes are first grouped into runs: neighbours in the plan that belong to the same layer. An interval of a topological
 * order has no path that leaves and comes back, so runs have no cycles, however often a module is called. Two runs that
 * must not be separated get an edge both ways, and the strongly connected components are the blocks: a component also
 * takes in what lies between its parts. Linear in the plan.
 *
 * These nodes stay together:
 *   - the maker and the users of a value that cannot cross: host values, sparse tensors, unknown sizes;
 *   - all that touch memory that is written in place, up to the last write, and all that touch a tensor of the model that
 *     is written or re-bound (split/state.h);
 *   - a node that reads memory beyond the elements of a tensor, and the tensor's maker;
 *   - a number that is read from data, and its users;
 *   - the writer of an input of the caller, and all before it: it is in the first stage.
 * Besides values, the order of these is kept: effects (split/order.h), and the users of a value that takes gradients, so
 * that its gradients are added up in the same order as in the whole model. */
#include "pipe/blocks.h"

#include <string.h>

#include "plan/data.h"
#include "split/frontier.h"
#include "split/order.h"
#include "split/state.h"

typedef struct folding {
	arena arena;
	const plan *p;
	const blocks_spec *s;
	blocks *out;
	node_names *names;
	liveness live;
	scope_id *folded;     /* per scope: the module that is not opened above it; NONE: none is */
	bool *leaf;           /* per scope: no module is inside */
	uint32_t *run_of;     /* per node */
	VEC(node_id) heads;   /* per run: its first node */
	VEC(pipe_edge) edges; /* between runs */
	uint32_t *component;  /* per run */
	uint32_t ncomponents;
	/* of the walk that is under way */
	node_id now;
	node_id *last_user; /* per value: the last node that was seen to use it */
	node_id *writer;    /* per root: last node that writes the storage */
	clv_status st;
} folding;

/* ---- runs -------------------------------------------------------------------------------------------------------------- */

static uint32_t depth_of(const char *path)
{
	uint32_t n = *path != 0;
	for (; *path; path++)
		n += *path == '.';
	return n;
}

static bool is_kept_whole(const folding *f, const scope *sc)
{
	for (uint32_t i = 0; i < f->s->nwhole; i++)
		if (!strcmp(f->s->whole[i], plan_s(f->p, sc->cls)) || !strcmp(f->s->whole[i], plan_s(f->p, sc->path)))
			return true;
	return false;
}

/* Parents come before children, so what is above is known. */
static void fold_scopes(folding *f)
{
	const plan *p = f->p;
	for (scope_id i = 0; i < p->scopes.n; i++) {
		f->leaf[i] = true;
		if (p->scopes.at[i].parent != NONE)
			f->leaf[p->scopes.at[i].parent] = false;
	}
	for (scope_id i = 0; i < p->scopes.n; i++) {
		const scope *sc = &p->scopes.at[i];
		scope_id above = sc->parent == NONE ? NONE : f->folded[sc->parent];
		bool here = (sc->parent != NONE && f->leaf[i]) || is_kept_whole(f, sc) ||
		            (sc->parent != NONE && depth_of(plan_s(p, sc->path)) >= f->s->depth);
		f->folded[i] = above != NONE ? above : here ? i : NONE;
	}
}

static scope_id layer_of(const folding *f, node_id n)
{
	scope_id sc = f->p->nodes.at[n].scope;
	return sc == NONE ? NONE : f->folded[sc];
}

static clv_status make_runs(folding *f)
{
	for (node_id n = 0; n < f->p->nodes.n; n++) {
		scope_id layer = layer_of(f, n);
		if (!n || layer == NONE || layer != layer_of(f, n - 1))
			TRY(vec_push(&f->heads, n));
		f->run_of[n] = f->heads.n - 1;
	}
	return CLV_OK;
}

/* ---- edges between runs -------------------------------------------------------------------------------------------------- */

static void add_edge(folding *f, node_id from, node_id to)
{
	uint32_t a = f->run_of[from], b = f->run_of[to];
	if (f->st == CLV_OK && a != b)
		f->st = vec_push(&f->edges, ((pipe_edge){a, b}));
}

static void keep_together(folding *f, node_id a, node_id b)
{
	add_edge(f, a, b);
	add_edge(f, b, a);
}

static bool cannot_cross(const folding *f, value_id v)
{
	const value *x = &f->p->values.at[v];
	int64_t bytes;
	return !can_be_sent(x) || value_bytes(f->p, v, f->out->syms, &bytes) != CLV_OK;
}

static bool takes_gradients(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	return (x->flags & (VALUE_GRAD | VALUE_TRAINABLE)) != 0;
}

static void use_value(void *ctx, value_id v)
{
	folding *f = ctx;
	const value *x = &f->p->values.at[v];
	node_id before = f->last_user[v];
	f->last_user[v] = f->now;
	if (x->kind == VALUE_RESULT)
		add_edge(f, x->def, f->now);
	if (x->kind == VALUE_RESULT && cannot_cross(f, v))
		keep_together(f, x->def, f->now);
	if (before == NONE)
		return;
	if (takes_gradients(f->p, v))
		add_edge(f, before, f->now);
	if (x->kind == VALUE_PARAM && f->s->ties_together)
		keep_together(f, before, f->now);
}

static void each_written(folding *f, node_id n, value_fn fn)
{
	const node *x = &f->p->nodes.at[n];
	for (uint32_t w = 0; w < x->nwrites; w++)
		fn(f, f->p->ids.at[x->writes + w]);
}

static void add_value_edges(folding *f)
{
	for (f->now = 0; f->now < f->p->nodes.n && f->st == CLV_OK; f->now++) {
		node_each_arg(f->p, f->now, use_value, f);
		each_written(f, f->now, use_value);
	}
}

static clv_status add_order_edges(folding *f)
{
	order_pairs pairs = {0};
	clv_status st = order_of_effects(f->p, &pairs);
	for (uint32_t i = 0; st == CLV_OK && i < pairs.n; i++)
		add_edge(f, pairs.at[i].before, pairs.at[i].after);
	vec_free(&pairs);
	for (uint32_t r = 1; st == CLV_OK && f->s->keep_order && r < f->heads.n; r++)
		add_edge(f, f->heads.at[r - 1], f->heads.at[r]);
	return st;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

/* last_user is here: per root, the last node that was seen to touch the storage. */
static void touch_memory(void *ctx, value_id v)
{
	folding *f = ctx;
	value_id root = alias_root(f->p, v);
	if (f->writer[root] == NONE || f->now > f->writer[root] || !moves(f->p, root))
		return;
	if (f->last_user[root] != NONE)
		keep_together(f, f->last_user[root], f->now);
	f->last_user[root] = f->now;
}

static void touch_all(folding *f)
{
	const plan *p = f->p;
	for (value_id v = 0; v < p->values.n; v++)
		f->last_user[v] = NONE;
	last_writers(p, f->writer);
	for (f->now = 0; f->now < p->nodes.n && f->st == CLV_OK; f->now++) {
		node_each_arg(p, f->now, touch_memory, f);
		each_written(f, f->now, touch_memory);
		node_each_result(p, f->now, touch_memory, f);
	}
}

static clv_status join_reaches(folding *f)
{
	reach_list reaches = {0};
	clv_status st = find_reaches(f->p, &reaches);
	for (uint32_t i = 0; st == CLV_OK && i < reaches.n; i++) {
		const value *from = &f->p->values.at[reaches.at[i].from];
		if (from->kind == VALUE_RESULT)
			keep_together(f, from->def, reaches.at[i].node);
	}
	vec_free(&reaches);
	return st;
}

static clv_status join_data(folding *f)
{
	bool *bad = arena_alloc(&f->arena, f->p->nodes.n + 1);
	TRY(arena_status(&f->arena));
	TRY(data_cuts(f->p, f->live.last, bad));
	for (node_id k = 0; k + 1 < f->p->nodes.n; k++)
		if (bad[k])
			keep_together(f, k, k + 1);
	return CLV_OK;
}

/* A node whose state is part of the model's output is in the last stage: everything after it in the plan is there too,
   everything else before it. */
static void join_last(folding *f, node_id first)
{
	uint32_t from = f->run_of[first];
	for (uint32_t r = 0; r < f->heads.n; r++)
		if (r > from)
			keep_together(f, f->heads.at[from], f->heads.at[r]);
		else
			add_edge(f, f->heads.at[r], f->heads.at[from]);
}

static clv_status join_states(folding *f)
{
	state_list s = {0};
	clv_status st = find_state(f->p, &s);
	for (uint32_t i = 0; st == CLV_OK && i < s.touches.n; i++) {
		node_id first = s.all.at[s.touches.at[i].state].first, at = s.touches.at[i].node;
		if (first == NONE || first == f->p->nodes.n)
			continue;
		if (at < f->p->nodes.n)
			keep_together(f, first, at);
		else
			join_last(f, first);
	}
	state_list_free(&s);
	return st == CLV_OK ? f->st : st;
}

/* A node that writes an input of the caller is in the first stage: everything before it in the plan is there too,
   everything else after it. */
static void join_first(folding *f, node_id last)
{
	for (uint32_t r = 1; r < f->heads.n; r++)
		if (f->heads.at[r] <= last)
			keep_together(f, f->heads.at[r - 1], f->heads.at[r]);
		else
			add_edge(f, last, f->heads.at[r]);
}

static void join_inputs(folding *f)
{
	node_id last = NONE;
	for (uint32_t i = 0; i < f->p->inputs.n; i++) {
		node_id w = f->writer[alias_root(f->p, f->p->inputs.at[i])];
		if (w != NONE && (last == NONE || w > last))
			last = w;
	}
	if (last != NONE)
		join_first(f, last);
}

static clv_status add_edges(folding *f)
{
	add_value_edges(f);
	TRY(f->st);
	TRY(add_order_edges(f));
	touch_all(f);
	join_inputs(f);
	TRY(join_states(f));
	TRY(join_reaches(f));
	TRY(join_data(f));
	return f->st;
}

/* ---- components ------------------------------------------------------------------------------------------------------------ */

static clv_status find_components(folding *f)
{
	digraph g = {0};
	clv_status st = digraph_new(f->heads.n, f->edges.at, f->edges.n, &g);
	if (st == CLV_OK)
		st = digraph_components(&g, f->component, &f->ncomponents);
	digraph_free(&g);
	return st;
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------------- */

/* Edges between components. */
static clv_status lift_edges(const folding *f)
{
	blocks *out = f->out;
	out->edges.n = 0;
	for (uint32_t i = 0; i < f->edges.n; i++) {
		pipe_edge e = {f->component[f->edges.at[i].from], f->component[f->edges.at[i].to]};
		if (e.from != e.to)
			TRY(vec_push(&out->edges, e));
	}
	edges_sort(out->edges.at, &out->edges.n);
	return CLV_OK;
}

/* Components are numbered by their first run, so their order stays as near to the plan's as it can. */
static clv_status order_components(folding *f)
{
	digraph g = {0};
	uint32_t *place = arena_ids(&f->arena, f->ncomponents);
	TRY(arena_status(&f->arena));
	TRY(lift_edges(f));
	clv_status st = digraph_new(f->ncomponents, f->out->edges.at, f->out->edges.n, &g);
	if (st == CLV_OK)
		st = digraph_order(&g, place);
	digraph_free(&g);
	TRY(st);
	for (uint32_t r = 0; r < f->heads.n; r++)
		f->component[r] = place[f->component[r]];
	return lift_edges(f);
}

/* The name of node n in that of its block: its layer's, or its own. */
static const char *part_name(const folding *f, node_id n)
{
	scope_id layer = layer_of(f, n);
	if (layer == NONE)
		return node_name(f->names, n);
	const char *path = plan_s(f->p, f->p->scopes.at[layer].path);
	return *path ? path : "the model";
}

/* "layer1.0.bn1+layer1.0.relu"; of many parts the first and the last */
static void print_parts(const folding *f, const block *x, strbuf *b)
{
	enum { MOST = 3 };
	const node_id *nodes = &f->out->order.at[x->first];
	uint32_t parts = 1;
	for (uint32_t i = 1; i < x->n; i++)
		parts += strcmp(part_name(f, nodes[i]), part_name(f, nodes[i - 1])) != 0;
	strbuf_puts(b, part_name(f, nodes[0]));
	if (parts > MOST)
		strbuf_puts(b, "+…");
	for (uint32_t i = parts > MOST ? x->n - 1 : 1; i < x->n; i++)
		if (strcmp(part_name(f, nodes[i]), part_name(f, nodes[i - 1])) != 0 || parts > MOST)
			strbuf_printf(b, "+%s", part_name(f, nodes[i]));
}

/* "layer1.0.conv1"; "layer1.0.conv1:2" when its nodes are in several blocks; "add_3" */
static clv_status name_block(const folding *f, block *x, uint32_t *calls /* per scope */)
{
	strbuf b = STRBUF_INIT;
	print_parts(f, x, &b);
	if (x->layer && ++calls[x->scope] > 1)
		strbuf_printf(&b, ":%u", calls[x->scope]);
	return strbuf_take(&b, &x->name);
}

static void describe_block(const folding *f, block *x)
{
	const node_id *nodes = &f->out->order.at[x->first];
	x->scope = layer_of(f, nodes[0]);
	x->layer = x->layers = x->scope != NONE;
	for (uint32_t i = 1; i < x->n; i++) {
		x->layer &= layer_of(f, nodes[i]) == x->scope;
		x->layers |= layer_of(f, nodes[i]) != NONE;
	}
	if (!x->layer)
		x->scope = f->p->nodes.at[nodes[0]].scope;
}

static clv_status fill_blocks(folding *f)
{
	blocks *b = f->out;
	uint32_t n = f->ncomponents;
	uint32_t *calls = arena_array(&f->arena, f->p->scopes.n, sizeof *calls);
	TRY(arena_status(&f->arena));
	TRY(vec_reserve(&b->at, n + 1));
	TRY(vec_reserve(&b->order, f->p->nodes.n + 1));
	for (uint32_t i = 0; i < n; i++)
		b->at.at[b->at.n++] = (block){.scope = NONE};
	for (node_id k = 0; k < f->p->nodes.n; k++) {
		b->of_node[k] = f->component[f->run_of[k]];
		b->at.at[b->of_node[k]].n++;
	}
	for (uint32_t i = 0, at = 0; i < n; i++) {
		b->at.at[i].first = at;
		at += b->at.at[i].n;
		b->at.at[i].n = 0;
	}
	for (node_id k = 0; k < f->p->nodes.n; k++) {
		block *x = &b->at.at[b->of_node[k]];
		b->order.at[x->first + x->n++] = k;
		b->order.n++;
	}
	for (uint32_t i = 0; i < n; i++) {
		describe_block(f, &b->at.at[i]);
		TRY(name_block(f, &b->at.at[i], calls));
	}
	return CLV_OK;
}

static clv_status fold(folding *f)
{
	TRY_MEM(!f->arena.failed && f->out->of_node && f->out->syms);
	TRY(choose_sizes(f->p, f->s->sizes, f->out->syms));
	TRY(node_names_new(f->p, &f->names));
	TRY(liveness_parts(f->p, &f->live, NULL));
	fold_scopes(f);
	TRY(make_runs(f));
	TRY(add_edges(f));
	edges_sort(f->edges.at, &f->edges.n);
	f->component = arena_ids(&f->arena, f->heads.n);
	TRY(arena_status(&f->arena));
	TRY(find_components(f));
	TRY(order_components(f));
	return fill_blocks(f);
}

clv_status blocks_new(const plan *p, const blocks_spec *s, blocks *out)
{
	blocks b = {.p = p, .of_node = mem_ids(p->nodes.n), .syms = mem_alloc((p->symbols.n + 1) * sizeof *b.syms)};
	folding f = {.p = p, .s = s, .out = &b};
	f.folded = arena_ids(&f.arena, p->scopes.n);
	f.leaf = arena_alloc(&f.arena, p->scopes.n);
	f.run_of = arena_ids(&f.arena, p->nodes.n);
	f.last_user = arena_ids(&f.arena, p->values.n);
	f.writer = arena_ids(&f.arena, p->values.n);
	clv_status st = fold(&f);
	node_names_free(f.names);
	liveness_free(&f.live);
	arena_free(&f.arena);
	vec_free(&f.heads);
	vec_free(&f.edges);
	if (st == CLV_OK)
		*out = b;
	else
		blocks_free(&b);
	return st;
}

void blocks_free(blocks *b)
{
	for (uint32_t i = 0; i < b->at.n; i++)
		mem_free(b->at.at[i].name);
	vec_free(&b->at);
	vec_free(&b->order);
	vec_free(&b->edges);
	mem_free(b->of_node);
	mem_free(b->syms);
	*b = (blocks){0};
}
