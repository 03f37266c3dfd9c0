/* Finds tensors of the model that a forward changes, and the nodes that touch them.
 *
 * Memory that is written in place is touched by every node that uses a tensor on it. A tensor that is only re-bound is touched by
 * the nodes that use the tensor itself: views of the old one stay what they are. Where it is both, the next run writes into
 * memory of the new tensor, so that is touched too. */
#include "split/state.h"

#include <string.h>

#include "split/frontier.h"

typedef struct state_walk {
	const plan *p;
	state_list *out;
	node_id *writer;    /* per root: last node that writes the memory */
	node_id *places;    /* per rebind: see liveness_parts */
	uint32_t *memory;   /* per root: the state whose memory it is; NONE: of none */
	uint32_t *itself;   /* per value: the state that it is, which is never written in place */
	uint32_t *last_use; /* per state: its last touch; NONE: none */
	node_id now;
	clv_status st;
} state_walk;

static bool is_model_tensor(const plan *p, value_id v)
{
	uint8_t kind = p->values.at[v].kind;
	return kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR || kind == VALUE_CONST;
}

static clv_status add_state(state_walk *w, value_id v, node_id change, uint32_t *at)
{
	*at = w->out->all.n;
	return vec_push(&w->out->all, ((state){v, change, NONE, 0}));
}

static clv_status name_states(state_walk *w)
{
	const plan *p = w->p;
	for (value_id v = 0; v < p->values.n; v++)
		if (w->writer[v] != NONE && is_model_tensor(p, v))
			TRY(add_state(w, v, w->writer[v], &w->memory[v]));
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		const rebind *r = &p->rebinds.at[i];
		if (w->memory[alias_root(p, r->target)] == NONE)
			TRY(add_state(w, r->target, p->values.at[r->value].def, &w->itself[r->target]));
	}
	return CLV_OK;
}

static void give_memory(state_walk *w, uint32_t from, uint32_t to)
{
	for (value_id v = 0; v < w->p->values.n; v++)
		if (w->memory[v] == from)
			w->memory[v] = to;
}

/* The next run writes into what a written tensor is re-bound to. */
static void join_memory(state_walk *w)
{
	const plan *p = w->p;
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		uint32_t s = w->memory[alias_root(p, p->rebinds.at[i].target)];
		value_id to = alias_root(p, p->rebinds.at[i].value);
		if (s != NONE && w->memory[to] != NONE && w->memory[to] != s)
			give_memory(w, w->memory[to], s);
		else if (s != NONE)
			w->memory[to] = s;
	}
}

static void add_touch(state_walk *w, uint32_t s, bool before)
{
	if (w->st != CLV_OK || s == NONE)
		return;
	state *x = &w->out->all.at[s];
	if (!before && (x->first == NONE || w->now < x->first))
		x->first = w->now;
	x->last = w->now > x->last ? w->now : x->last;
	const state_touch *last = w->last_use[s] == NONE ? NULL : &w->out->touches.at[w->last_use[s]];
	if (last && last->node == w->now && last->before <= before)
		return;
	w->last_use[s] = w->out->touches.n;
	w->st = vec_push(&w->out->touches, ((state_touch){s, w->now, before}));
}

static void touch_state(void *ctx, value_id v)
{
	state_walk *w = ctx;
	add_touch(w, w->memory[alias_root(w->p, v)], false);
	add_touch(w, w->itself[v], false);
}

static void touch_rebind(state_walk *w, uint32_t i)
{
	const plan *p = w->p;
	const rebind *r = &p->rebinds.at[i];
	const node_id parts[] = {p->values.at[r->value].def, w->writer[alias_root(p, r->value)], w->places[i]};
	w->now = w->places[i];
	touch_state(w, r->value);
	for (unsigned k = 0; k < sizeof parts / sizeof *parts; k++) {
		w->now = parts[k];
		if (parts[k] != NONE)
			add_touch(w, w->itself[r->target], true);
	}
}

static int by_state(const void *a, const void *b)
{
	const state_touch *x = a, *y = b;
	if (x->state != y->state)
		return x->state < y->state ? -1 : 1;
	return (x->node > y->node) - (x->node < y->node);
}

static clv_status walk_states(state_walk *w)
{
	const plan *p = w->p;
	liveness live;
	TRY(liveness_parts(p, &live, w->places));
	liveness_free(&live);
	last_writers(p, w->writer);
	TRY(name_states(w));
	if (!w->out->all.n)
		return CLV_OK;
	w->last_use = mem_ids(w->out->all.n);
	TRY_MEM(w->last_use);
	join_memory(w);
	for (w->now = 0; w->now < p->nodes.n; w->now++) {
		node_each_use(p, w->now, touch_state, w);
		node_each_result(p, w->now, touch_state, w);
	}
	w->now = p->nodes.n;
	plan_each_output(p, touch_state, w);
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		touch_rebind(w, i);
	TRY(w->st);
	if (w->out->touches.n)
		qsort(w->out->touches.at, w->out->touches.n, sizeof *w->out->touches.at, by_state);
	return CLV_OK;
}

clv_status find_state(const plan *p, state_list *out)
{
	uint32_t n = p->values.n;
	state_walk w = {.p = p, .out = out, .writer = mem_ids(n), .places = mem_ids(p->rebinds.n), .memory = mem_ids(n)};
	w.itself = mem_ids(n);
	clv_status st = w.writer && w.places && w.memory && w.itself ? walk_states(&w) : fail_nomem();
	mem_free(w.writer);
	mem_free(w.places);
	mem_free(w.memory);
	mem_free(w.itself);
	mem_free(w.last_use);
	return st;
}

void state_list_free(state_list *s)
{
	vec_free(&s->all);
	vec_free(&s->touches);
}
