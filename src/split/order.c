/* Finds the order that effects impose on nodes.
 *
 * Something with a state (a piece of memory, the random generator, the world outside) is used by nodes that change it and
 * nodes that only depend on it: a change stays between the uses before and after it.
 *   - Memory: a write and every use of the same storage; the node that makes the storage counts as a write. An input may lie
 *     on any memory from outside, so its uses stay where they were between writes of that, and its writes between uses.
 *   - The generator: every draw changes it.
 *   - The world: what looks at data on the host, compares it (guards) or must not be moved changes it, for what the
 *     forward does afterwards rests on it: every later node stays behind. Draws and writes to memory that outlives the
 *     run depend on it: they have happened, or not, when a guard fails. */
#include "split/order.h"

#include <string.h>

typedef struct use_entry {
	node_id node;
	uint32_t next; /* NONE: the last */
} use_entry;

/* The node that changed it last, and the nodes that used it since. */
typedef struct state_of {
	node_id change;
	uint32_t uses; /* first in ordering->uses; NONE: none */
} state_of;

/* Two kinds of nodes that keep their order between kinds, not within one: those of each kind since the last of the other. Earlier
   ones come before these already. */
typedef struct sides {
	VEC(node_id) of[2];
	int last;
} sides;

typedef struct ordering {
	const plan *p;
	order_pairs *out;
	VEC(use_entry) uses;
	bool *written;    /* per root: some node writes it */
	state_of *memory; /* per root */
	state_of world;
	state_of inputs; /* the memory that inputs may share with anything from outside */
	sides externals; /* nodes that use inputs, and nodes that write parameters, buffers or constants */
	node_id draw, now;
	bool reads; /* only what nodes read counts */
	clv_status st;
} ordering;

static void keep_pair(ordering *o, node_id before)
{
	if (o->st == CLV_OK && before != NONE && before != o->now)
		o->st = vec_push(o->out, ((order_pair){before, o->now}));
}

static void use_state(ordering *o, state_of *s)
{
	keep_pair(o, s->change);
	uint32_t next = s->uses;
	s->uses = o->uses.n;
	if (o->st == CLV_OK)
		o->st = vec_push(&o->uses, ((use_entry){o->now, next}));
}

static void change_state(ordering *o, state_of *s)
{
	keep_pair(o, s->change);
	for (uint32_t u = s->uses; o->st == CLV_OK && u != NONE; u = o->uses.at[u].next)
		keep_pair(o, o->uses.at[u].node);
	s->change = o->now;
	s->uses = NONE;
}

/* Memory that is never written only has to exist: later uses of it need not be kept. */
static void use_memory(void *ctx, value_id v)
{
	ordering *o = ctx;
	value_id root = alias_root(o->p, v);
	if (o->written[root])
		use_state(o, &o->memory[root]);
	else
		keep_pair(o, o->memory[root].change);
}

static void make_memory(void *ctx, value_id v)
{
	ordering *o = ctx;
	if (alias_root(o->p, v) == v)
		change_state(o, &o->memory[v]);
	else
		use_memory(o, v);
}

enum { SIDE_USES, SIDE_WRITES, FEW = 32 };

/* Many against many would be pairs without end: then those of one kind keep their order, too. */
static void take_side(ordering *o, int side)
{
	sides *x = &o->externals;
	if (x->last != side)
		x->of[side].n = 0;
	x->last = side;
	uint32_t mine = x->of[side].n, others = x->of[!side].n;
	if (mine && others > FEW)
		keep_pair(o, x->of[side].at[mine - 1]);
	for (uint32_t i = 0; i < others && (!mine || others <= FEW); i++)
		keep_pair(o, x->of[!side].at[i]);
	if (o->st == CLV_OK && (!mine || x->of[side].at[mine - 1] != o->now))
		o->st = vec_push(&x->of[side], o->now);
}

static bool is_outside(const ordering *o, value_id v)
{
	uint8_t kind = o->p->values.at[alias_root(o->p, v)].kind;
	return !o->reads && kind != VALUE_RESULT && kind != VALUE_OBJECT;
}

static bool is_input(const ordering *o, value_id v)
{
	return o->p->values.at[alias_root(o->p, v)].kind == VALUE_INPUT;
}

static void use_outside(void *ctx, value_id v)
{
	ordering *o = ctx;
	if (!is_outside(o, v))
		return;
	use_state(o, &o->inputs);
	if (is_input(o, v))
		take_side(o, SIDE_USES);
}

static void write_outside(ordering *o, value_id v)
{
	if (!is_outside(o, v))
		return;
	if (is_input(o, v))
		change_state(o, &o->inputs);
	else
		take_side(o, SIDE_WRITES);
}

typedef struct guard_walk {
	const plan *p;
	bool found;
} guard_walk;

static void find_guard(void *ctx, value_id v)
{
	guard_walk *g = ctx;
	g->found |= value_guarded(g->p, v) || g->p->values.at[v].type != TYPE_TENSOR;
}

static bool looks_at_data(const plan *p, node_id k)
{
	guard_walk g = {p, (p->nodes.at[k].flags & (NODE_HOST | NODE_IMPURE)) != 0};
	node_each_result(p, k, find_guard, &g);
	return g.found || !strncmp(plan_s(p, p->nodes.at[k].op), "cleave::", 8);
}

/* Draws, and writes what is there after the run. */
static bool leaves_a_trace(const plan *p, node_id k)
{
	const node *n = &p->nodes.at[k];
	bool trace = node_draws(p, k);
	for (uint32_t w = 0; w < n->nwrites; w++)
		trace |= p->values.at[alias_root(p, p->ids.at[n->writes + w])].kind != VALUE_RESULT;
	return trace;
}

static void order_node(ordering *o)
{
	const plan *p = o->p;
	const node *n = &p->nodes.at[o->now];
	node_each_arg(p, o->now, use_memory, o);
	node_each_arg(p, o->now, use_outside, o);
	for (uint32_t w = 0; w < n->nwrites; w++) {
		change_state(o, &o->memory[alias_root(p, p->ids.at[n->writes + w])]);
		write_outside(o, p->ids.at[n->writes + w]);
	}
	node_each_result(p, o->now, make_memory, o);
	if (node_draws(p, o->now)) {
		keep_pair(o, o->draw);
		o->draw = o->now;
	}
	if (looks_at_data(p, o->now))
		change_state(o, &o->world);
	else if (leaves_a_trace(p, o->now) && !o->reads)
		use_state(o, &o->world);
	else
		keep_pair(o, o->world.change);
}

static clv_status order_all(ordering *o)
{
	const plan *p = o->p;
	for (value_id v = 0; v < p->values.n; v++)
		o->memory[v] = (state_of){NONE, NONE};
	for (node_id k = 0; k < p->nodes.n; k++)
		for (uint32_t w = 0; w < p->nodes.at[k].nwrites; w++)
			o->written[alias_root(p, p->ids.at[p->nodes.at[k].writes + w])] = true;
	for (o->now = 0; o->now < p->nodes.n && o->st == CLV_OK; o->now++)
		order_node(o);
	return o->st;
}

static clv_status find_order(const plan *p, bool reads, order_pairs *out)
{
	ordering o = {.p = p, .out = out, .world = {NONE, NONE}, .inputs = {NONE, NONE}, .draw = NONE, .reads = reads};
	o.written = mem_alloc((p->values.n + 1) * sizeof *o.written);
	o.memory = mem_alloc((p->values.n + 1) * sizeof *o.memory);
	clv_status st = o.written && o.memory ? order_all(&o) : fail_nomem();
	mem_free(o.written);
	mem_free(o.memory);
	vec_free(&o.uses);
	vec_free(&o.externals.of[SIDE_USES]);
	vec_free(&o.externals.of[SIDE_WRITES]);
	return st;
}

clv_status order_of_effects(const plan *p, order_pairs *out)
{
	return find_order(p, false, out);
}

clv_status order_of_reads(const plan *p, order_pairs *out)
{
	return find_order(p, true, out);
}
