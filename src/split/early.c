/* Guards of the suffix that the prefix can decide.
 *
 * A guard needs the nodes that its value is computed from, and those that must stay before it (order.h). Where all of these
 * in the suffix only compute, read no parameter that the prefix lacks, and make nothing that another node of the suffix
 * reads, they go into the prefix, as early as possible. A run that meets another value there ends before anything is sent,
 * and the boundary of the variant that serves instead names it.
 *
 * A pipeline decides guards before it runs at all: there the first stage computes what they need once more, by itself. */
#include "split/early.h"

#include <string.h>

#include "base/arena.h"
#include "plan/data.h"
#include "plan/ops.h"
#include "split/frontier.h"
#include "split/order.h"

typedef struct early {
	const plan *p;
	node_id cut;
	order_pairs order; /* by `after`, ascending */
	uint32_t *first;   /* per node: its first pair; one more at the end */
	bool *has;         /* per value: the prefix has it, or every part can */
	uint32_t *in;      /* per node: the last guard that was looked at and needs it */
	uint32_t guard;    /* number of the one that is looked at */
	node_id *needed;   /* its nodes */
	uint32_t nneeded;
	uint64_t work;  /* nodes looked at so far */
	bool *moves;    /* per node: needed by some guard that moves */
	bool *stays;    /* per node: a guard, or something it needs, that cannot move */
	bool fits;      /* of the guard that is looked at */
	uint32_t most;  /* guards that move */
	uint32_t moved; /* that did */
} early;

static bool is_weight(uint8_t kind)
{
	return kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR || kind == VALUE_OBJECT;
}

static void note_had(void *ctx, value_id v)
{
	((early *)ctx)->has[v] = true;
}

static void need(early *e, node_id k)
{
	if (k < e->cut || e->in[k] == e->guard)
		return;
	e->in[k] = e->guard;
	e->needed[e->nneeded++] = k;
}

static void need_value(void *ctx, value_id v)
{
	early *e = ctx;
	const value *x = &e->p->values.at[v];
	e->fits &= !is_weight(x->kind) || e->has[v];
	if (x->kind == VALUE_RESULT)
		need(e, x->def);
}

bool node_only_computes(const plan *p, node_id k)
{
	const node *n = &p->nodes.at[k];
	bool plain = n->op_id != OP_cleave_python && (!(n->flags & NODE_IMPURE) || n->op_id == OP_cleave_guard_equal);
	return plain && !n->nwrites && !node_draws(p, k);
}

/* Marks what guard k needs of the suffix. */
static void mark_needed(early *e, node_id k)
{
	e->guard++;
	e->nneeded = 0;
	e->fits = true;
	need(e, k);
	for (uint32_t at = 0; at < e->nneeded && e->fits; at++) {
		node_id n = e->needed[at];
		e->fits &= !e->stays[n] && node_only_computes(e->p, n);
		node_each_arg(e->p, n, need_value, e);
		for (uint32_t i = e->first[n]; i < e->first[n + 1]; i++)
			need(e, e->order.at[i].before);
	}
	e->work += e->nneeded;
}

/* Plans of which looking takes long keep their guards where they are. */
static uint32_t mark_guards(early *e)
{
	enum { MOST_WORK = 1 << 25 };
	uint32_t found = 0;
	memset(e->moves, 0, e->p->nodes.n * sizeof *e->moves);
	e->work += e->p->nodes.n;
	e->moved = 0;
	for (node_id k = e->cut; k < e->p->nodes.n; k++) {
		if (!node_guards(e->p, k))
			continue;
		e->stays[k] |= e->moved >= e->most;
		mark_needed(e, k);
		e->stays[k] |= !e->fits;
		e->moved += e->fits;
		for (uint32_t i = 0; e->fits && i < e->nneeded; i++) {
			found += !e->moves[e->needed[i]];
			e->moves[e->needed[i]] = true;
		}
		if (e->work > MOST_WORK)
			return 0;
	}
	return found;
}

typedef struct use_walk {
	early *e;
	bool found;
} use_walk;

static void keep_used(void *ctx, value_id v)
{
	use_walk *w = ctx;
	const value *x = &w->e->p->values.at[v];
	if (x->kind != VALUE_RESULT || x->def < w->e->cut || !w->e->moves[x->def])
		return;
	w->e->stays[x->def] = true;
	w->found = true;
}

/* What the rest of the suffix reads would have to cross the cut: its nodes stay. False: there is none. */
static bool find_used(early *e, const liveness *l)
{
	use_walk w = {e, false};
	for (node_id k = e->cut; k < e->p->nodes.n; k++)
		if (!e->moves[k])
			node_each_use(e->p, k, keep_used, &w);
	for (value_id v = 0; v < e->p->values.n; v++)
		if (l->last[v] == e->p->nodes.n)
			keep_used(&w, v);
	return w.found;
}

/* ---- the new order ------------------------------------------------------------------------------------------------- */

typedef struct place_walk {
	const early *e;
	const node_id *place; /* per node: of those that move, the node of the prefix that it goes before */
	node_id at;
} place_walk;

static void stay_behind(place_walk *w, node_id before)
{
	node_id at = before < w->e->cut ? before + 1 : w->place[before];
	w->at = at > w->at ? at : w->at;
}

static void stay_behind_value(void *ctx, value_id v)
{
	place_walk *w = ctx;
	const value *x = &w->e->p->values.at[v];
	if (x->kind == VALUE_RESULT)
		stay_behind(w, x->def);
}

static void find_places(const early *e, node_id *place)
{
	for (node_id k = e->cut; k < e->p->nodes.n; k++) {
		place_walk w = {e, place, 0};
		if (!e->moves[k])
			continue;
		node_each_arg(e->p, k, stay_behind_value, &w);
		for (uint32_t i = e->first[k]; i < e->first[k + 1]; i++)
			stay_behind(&w, e->order.at[i].before);
		place[k] = w.at;
	}
}

/* at: per node of the prefix and its end, where the next one that goes before it comes. */
static void make_order(const early *e, const node_id *place, uint32_t *at, node_id *order)
{
	uint32_t n = 0;
	memset(at, 0, ((size_t)e->cut + 1) * sizeof *at);
	for (node_id k = e->cut; k < e->p->nodes.n; k++)
		if (e->moves[k])
			at[place[k]]++;
	for (node_id k = 0; k <= e->cut; k++) {
		uint32_t before = at[k];
		at[k] = n;
		n += before;
		if (k < e->cut)
			order[n++] = k;
	}
	for (node_id k = e->cut; k < e->p->nodes.n; k++)
		order[e->moves[k] ? at[place[k]]++ : n++] = k;
}

static clv_status reorder(const early *e, plan **out)
{
	size_t n = e->p->nodes.n;
	node_id *place = mem_ids(3 * n + 2);
	TRY_MEM(place);
	node_id *order = place + n;
	find_places(e, place);
	make_order(e, place, order + n, order);
	clv_status st = plan_reorder(e->p, order, out);
	mem_free(place);
	return st;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

static clv_status index_pairs(early *e, clv_status (*find)(const plan *p, order_pairs *out))
{
	TRY(find(e->p, &e->order));
	for (uint32_t i = 0; i < e->order.n; i++)
		e->first[e->order.at[i].after + 1]++;
	for (node_id k = 0; k < e->p->nodes.n; k++)
		e->first[k + 1] += e->first[k];
	return CLV_OK;
}

static void note_weights(early *e, node_id end)
{
	for (node_id k = 0; k < end; k++)
		node_each_arg(e->p, k, note_had, e);
}

static clv_status find_moves(early *e, uint32_t *n)
{
	liveness l;
	TRY(index_pairs(e, order_of_effects));
	note_weights(e, e->cut);
	TRY(liveness_new(e->p, &l));
	do
		*n = mark_guards(e);
	while (*n && find_used(e, &l));
	liveness_free(&l);
	return CLV_OK;
}

static bool cut_is_safe(const plan *p, node_id cut)
{
	clv_frontiers *f;
	if (clv_frontiers_create(p, NULL, &f) != CLV_OK)
		return false;
	bool safe = cut - 1 < f->n && !f->at[cut - 1].unsafe;
	clv_frontiers_free(f);
	return safe;
}

static clv_status move_early(early *e, plan **out, node_id *cut, uint32_t *moved)
{
	uint32_t n;
	TRY(find_moves(e, &n));
	if (!n || e->cut + n >= e->p->nodes.n)
		return CLV_OK;
	TRY(reorder(e, out));
	if (cut_is_safe(*out, e->cut + n)) {
		*cut = e->cut + n;
		*moved = e->moved;
		return CLV_OK;
	}
	plan_free(*out);
	*out = NULL;
	return CLV_OK;
}

static uint32_t count_guards(const plan *p, node_id first)
{
	uint32_t n = 0;
	for (node_id k = first; k < p->nodes.n; k++)
		n += node_guards(p, k);
	return n;
}

static clv_status early_new(early *e, arena *a)
{
	size_t nodes = e->p->nodes.n + 1;
	e->first = arena_array(a, nodes + 1, sizeof *e->first);
	e->needed = arena_ids(a, nodes);
	e->has = arena_array(a, e->p->values.n + 1, sizeof(bool));
	e->in = arena_array(a, nodes, sizeof *e->in);
	e->moves = arena_array(a, nodes, sizeof(bool));
	e->stays = arena_array(a, nodes, sizeof(bool));
	return e->first && e->needed && e->has && e->in && e->moves && e->stays ? CLV_OK : fail_nomem();
}

clv_status guards_early(const plan *p, node_id *cut, uint32_t *n, plan **out)
{
	const uint32_t all = count_guards(p, *cut);
	arena a = {0};
	early e = {.p = p, .cut = *cut, .most = *n};
	*out = NULL;
	*n = all ? 0 : NONE;
	/* What reads such a number must stay before what needs it, which no edge says. */
	if (first_data_symbol(p) != NONE || !all)
		return CLV_OK;
	clv_status st = early_new(&e, &a);
	if (st == CLV_OK)
		st = move_early(&e, out, cut, n);
	if (*n == all)
		*n = NONE;
	vec_free(&e.order);
	arena_free(&a);
	return st;
}

/* A weight that some run writes is another one by the time at which the guard is met. */
static void forget_written(early *e)
{
	for (value_id v = 0; v < e->p->values.n; v++) /* another name of the same memory is written with it */
		if (is_weight(e->p->values.at[v].kind))
			e->has[alias_root(e->p, v)] |= e->has[v];
	for (node_id k = 0; k < e->p->nodes.n; k++)
		for (uint32_t i = 0; i < e->p->nodes.at[k].nwrites; i++)
			e->has[alias_root(e->p, e->p->ids.at[e->p->nodes.at[k].writes + i])] = false;
	for (uint32_t i = 0; i < e->p->rebinds.n; i++)
		e->has[e->p->rebinds.at[i].target] = false;
	for (value_id v = 0; v < e->p->values.n; v++)
		e->has[v] = e->has[v] && (!is_weight(e->p->values.at[v].kind) || e->has[alias_root(e->p, v)]);
}

static clv_status put_first(early *e, node_id end, plan **out, node_id *n)
{
	TRY(index_pairs(e, order_of_reads));
	note_weights(e, end);
	forget_written(e);
	*n = mark_guards(e);
	return *n ? reorder(e, out) : CLV_OK;
}

clv_status guards_first(const plan *p, node_id end, plan **out, node_id *n, uint32_t *late)
{
	*out = NULL;
	*n = 0;
	*late = count_guards(p, 0);
	/* What reads such a number must stay before what needs it, which no edge says. */
	if (first_data_symbol(p) != NONE || !*late)
		return CLV_OK;
	arena a = {0};
	early e = {.p = p, .most = NONE};
	clv_status st = early_new(&e, &a);
	if (st == CLV_OK)
		st = put_first(&e, end, out, n);
	if (st == CLV_OK && *out)
		*late = count_guards(*out, *n);
	vec_free(&e.order);
	arena_free(&a);
	return st;
}
