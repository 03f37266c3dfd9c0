/* Changes to a plan: see edit.h. */
#include "plan/edit.h"

#include <string.h>

#include "plan/intern.h"

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static void facts_free(edit_facts *f)
{
	mem_free(f->uses);
	mem_free(f->user);
	mem_free(f->kept);
	mem_free(f->written);
	mem_free(f->views);
	mem_free(f->shown);
	*f = (edit_facts){0};
}

static clv_status facts_alloc(edit_facts *f, uint32_t n)
{
	f->uses = mem_alloc((n + 1) * sizeof *f->uses);
	f->user = mem_ids((size_t)n + 1);
	f->kept = mem_alloc((n + 1) * sizeof *f->kept);
	f->written = mem_alloc((n + 1) * sizeof *f->written);
	f->views = mem_alloc((n + 1) * sizeof *f->views);
	f->shown = mem_alloc((n + 1) * sizeof *f->shown);
	f->n = n;
	return f->uses && f->user && f->kept && f->written && f->views && f->shown ? CLV_OK : fail_nomem();
}

typedef struct counter {
	edit *e;
	node_id now;
	bool inside;
} counter;

static void count_edit_use(void *ctx, value_id v)
{
	counter *c = ctx;
	edit_facts *f = &c->e->facts;
	if (!c->inside) {
		f->kept[v] = true;
		return;
	}
	f->uses[v]++;
	f->user[v] = c->now;
}

/* After x.set_(y), which no alias tells, x is on y's memory: what is done to one is done to the other. */
static void count_joined(void *ctx, value_id v)
{
	counter *c = ctx;
	value_id root = alias_root(c->e->p, v);
	c->e->facts.written[root] = c->e->facts.shown[root] = true;
}

static void show_arg(void *ctx, value_id v)
{
	counter *c = ctx;
	c->e->facts.shown[alias_root(c->e->p, v)] = true;
}

static void count_node(counter *c)
{
	edit *e = c->e;
	const node *n = &e->p->nodes.at[c->now];
	bool here = c->now >= e->first && c->now < e->end;
	c->inside = here && !edit_pinned(e, c->now);
	node_each_arg(e->p, c->now, count_edit_use, c);
	if (node_op(e->p, c->now)->memory == MEMORY_JOINED)
		node_each_arg(e->p, c->now, count_joined, c);
	if (here && !op_known(plan_s(e->p, n->op)) && n->op_id != OP_cleave_guard_equal)
		node_each_arg(e->p, c->now, show_arg, c);
	for (uint32_t i = 0; here && i < n->nwrites; i++)
		e->facts.written[alias_root(e->p, e->p->ids.at[n->writes + i])] = true;
}

static bool is_made_here(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	return x->kind == VALUE_RESULT && x->def != NONE && x->def >= e->first && x->def < e->end &&
	       !edit_pinned(e, x->def);
}

static void find_shared(edit *e)
{
	edit_facts *f = &e->facts;
	for (value_id v = 0; v < e->p->values.n; v++) {
		const value *x = &e->p->values.at[v];
		if (x->kind == VALUE_RESULT && x->def == NONE)
			continue; /* it was removed */
		value_id root = alias_root(e->p, v);
		f->views[root] += root != v;
		f->shown[root] |= f->kept[v] || !is_made_here(e, v);
	}
	for (value_id v = 0; v < e->p->values.n; v++) {
		value_id root = alias_root(e->p, v);
		f->written[v] = f->written[root];
		f->views[v] = f->views[root];
		f->shown[v] = f->shown[root];
	}
}

static clv_status find_facts(edit *e)
{
	counter c = {.e = e};
	facts_free(&e->facts);
	TRY(facts_alloc(&e->facts, e->p->values.n));
	for (c.now = 0; c.now < e->p->nodes.n; c.now++)
		count_node(&c);
	c.inside = false;
	plan_each_output(e->p, count_edit_use, &c);
	for (uint32_t i = 0; i < e->p->rebinds.n; i++)
		e->facts.kept[e->p->rebinds.at[i].value] = true;
	written_through(e->p, e->first, e->end, e->facts.written);
	find_shared(e);
	return CLV_OK;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static clv_status start_over(edit *e)
{
	e->nodes = e->p->nodes.n;
	e->places.n = 0;
	e->changed = false;
	e->gone.n = 0;
	for (uint32_t i = 0; i < e->nodes; i++)
		TRY(vec_push(&e->gone, false));
	e->instead.n = 0;
	for (value_id v = 0; v < e->p->values.n; v++)
		TRY(vec_push(&e->instead, v));
	return find_facts(e);
}

clv_status edit_new(const plan *p, node_id first, node_id end, edit *out)
{
	*out = (edit){.first = first, .end = end};
	if (first > end || end > p->nodes.n)
		return fail(CLV_E_INVALID, "nodes %u to %u are no range of the plan", first, end);
	TRY(plan_copy(p, &out->p));
	out->p->groups.n = 0;
	for (node_id n = 0; n < p->nodes.n; n++)
		TRY(vec_push(&out->pins, NONE));
	return start_over(out);
}

clv_status edit_pin(edit *e, const node_span *spans, uint32_t n)
{
	node_id from = e->first;
	for (uint32_t i = 0; i < n; i++) {
		if (spans[i].first < from || spans[i].first >= spans[i].end || spans[i].end > e->end)
			return fail(CLV_E_INVALID, "nodes %u to %u cannot be pinned: they are not in %u to %u, or not in order",
			            spans[i].first, spans[i].end, from, e->end);
		for (node_id k = spans[i].first; k < spans[i].end; k++)
			e->pins.at[k] = i;
		from = spans[i].end;
	}
	return n ? find_facts(e) : CLV_OK;
}

bool edit_pinned(const edit *e, node_id n)
{
	return e->pins.at[n] != NONE;
}

void edit_spans(const edit *e, node_span *out)
{
	for (node_id n = 0; n < e->p->nodes.n; n++) {
		if (!edit_pinned(e, n))
			continue;
		node_span *s = &out[e->pins.at[n]];
		if (n == 0 || e->pins.at[n - 1] != e->pins.at[n])
			s->first = n;
		s->end = n + 1;
	}
}

void *edit_array(edit *e, size_t n, size_t element)
{
	return arena_array(&e->scratch, n, element);
}

uint32_t *edit_ids(edit *e, size_t n)
{
	return arena_ids(&e->scratch, n);
}

void edit_release(edit *e)
{
	arena_free(&e->scratch);
}

void edit_free(edit *e)
{
	edit_release(e);
	facts_free(&e->facts);
	vec_free(&e->places);
	vec_free(&e->gone);
	vec_free(&e->instead);
	vec_free(&e->pins);
	plan_free(e->p);
	*e = (edit){0};
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

static clv_status outside(node_id n)
{
	return fail(CLV_E_INVALID, "node %u is not in the range that is edited", n);
}

static void undefine(void *ctx, value_id v)
{
	edit *e = ctx;
	e->p->values.at[v].def = NONE;
}

clv_status edit_remove(edit *e, node_id n)
{
	if (!(n >= e->first && n < e->end) && !(n >= e->nodes && n < e->p->nodes.n))
		return outside(n);
	if (edit_pinned(e, n))
		return fail(CLV_E_INVALID, "node %u is pinned: it cannot be removed", n);
	if (!e->gone.at[n])
		node_each_result(e->p, n, undefine, e);
	e->gone.at[n] = true;
	e->changed = true;
	return CLV_OK;
}

clv_status edit_insert(edit *e, node_id before, const node_spec *s, node_id *out)
{
	if (before < e->first || before > e->end)
		return outside(before);
	while (before > e->first && before < e->end && edit_pinned(e, before) &&
	       e->pins.at[before - 1] == e->pins.at[before])
		before--;
	TRY(plan_node(e->p, s, out));
	TRY(vec_push(&e->places, before));
	TRY(vec_push(&e->pins, NONE));
	e->changed = true;
	return vec_push(&e->gone, false);
}

/* What is read instead of v in the end. Halves the way there, so that long chains cost little. */
static value_id final_value(edit *e, value_id v)
{
	value_id *to = e->instead.at;
	while (v < e->instead.n && to[v] != v) {
		if (to[v] < e->instead.n)
			to[v] = to[to[v]];
		v = to[v];
	}
	return v;
}

clv_status edit_read_instead(edit *e, value_id v, value_id other)
{
	if (v >= e->p->values.n || other >= e->p->values.n)
		return fail(CLV_E_INVALID, "there is no value %u to read instead of value %u", other, v);
	for (value_id next = e->instead.n; next < e->p->values.n; next++)
		TRY(vec_push(&e->instead, next));
	if (v < e->facts.n && e->facts.kept[v])
		return fail(CLV_E_INVALID, "the outputs of the range cannot be exchanged");
	if (v != other && final_value(e, other) == v)
		return fail(CLV_E_INVALID, "value %u is read instead of value %u already", v, other);
	e->instead.at[v] = other;
	e->changed = true;
	return CLV_OK;
}

static value_id heir_of(const value_id *heirs, uint32_t n, value_id root)
{
	return root < n && heirs[root] != NONE ? heirs[root] : root;
}

void edit_take_memories(edit *e, const value_id *heirs, uint32_t n)
{
	plan *p = e->p;
	for (value_id v = 0; v < p->values.n; v++) {
		value_id *root = &p->values.at[v].alias;
		value_id heir = *root == NONE ? NONE : heir_of(heirs, n, *root);
		*root = heir == v ? NONE : heir;
	}
	for (node_id k = 0; k < p->nodes.n; k++)
		for (uint32_t w = 0; w < p->nodes.at[k].nwrites; w++) {
			value_id *id = &p->ids.at[p->nodes.at[k].writes + w];
			*id = heir_of(heirs, n, *id);
		}
	e->changed = true;
}

void edit_take_memory(edit *e, value_id v)
{
	value_id root = alias_root(e->p, v);
	for (value_id i = 0; i < e->p->values.n; i++)
		if (e->p->values.at[i].alias == root)
			e->p->values.at[i].alias = i == v ? NONE : v;
	for (node_id n = 0; n < e->p->nodes.n; n++)
		for (uint32_t w = 0; w < e->p->nodes.at[n].nwrites; w++)
			if (e->p->ids.at[e->p->nodes.at[n].writes + w] == root)
				e->p->ids.at[e->p->nodes.at[n].writes + w] = v;
	e->changed = true;
}

void edit_give_memories(edit *e, const value_id *owners, uint32_t n)
{
	for (value_id v = 0; v < e->p->values.n; v++) {
		value_id *root = &e->p->values.at[v].alias, was = *root == NONE ? v : *root;
		if (was < n && owners[was] != NONE)
			*root = owners[was];
	}
	e->changed = true;
}

/* ---- putting them in place --------------------------------------------------------------------------------------- */

static void exchange_args(edit *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		arg *a = &e->p->args.at[first + i];
		if (a->kind == ARG_VALUE)
			a->u.v = final_value(e, a->u.v);
		else if (a->kind == ARG_LIST)
			exchange_args(e, a->u.list.first, a->u.list.n);
	}
}

static void exchange_values(edit *e, node_id n)
{
	const node *x = &e->p->nodes.at[n];
	exchange_args(e, x->args, x->nargs);
	for (uint32_t i = 0; i < x->nwrites; i++)
		e->p->ids.at[x->writes + i] = final_value(e, e->p->ids.at[x->writes + i]);
}

/* The first value on the memory of what is read instead of `root`, which may itself be a view of what is exchanged; one
   that is exchanged for a view of itself has no value left to be a view of. */
static clv_status new_root(edit *e, value_id *root)
{
	for (uint32_t steps = 0; steps <= e->p->values.n; steps++) {
		value_id next = alias_root(e->p, final_value(e, *root));
		if (next == *root)
			return CLV_OK;
		*root = next;
	}
	return fail(CLV_E_INVALID, "value %u is exchanged for a view of itself", *root);
}

/* Views of what is not read any more are views of what is read instead. */
static clv_status exchange_memory(edit *e)
{
	for (value_id v = 0; v < e->p->values.n; v++) {
		value_id root = e->p->values.at[v].alias;
		if (root == NONE || final_value(e, root) == root)
			continue;
		TRY(new_root(e, &root));
		e->p->values.at[v].alias = root;
	}
	return CLV_OK;
}

/* The nodes in their new order. */
typedef struct queue {
	node *nodes;
	uint32_t *pins; /* of them */
	node_id n, first, end;
} queue;

static void enqueue(const edit *e, node_id n, queue *q)
{
	if (e->gone.at[n])
		return;
	q->nodes[q->n] = e->p->nodes.at[n];
	q->pins[q->n++] = e->pins.at[n];
}

/* Added nodes stand before the node that they were put before, first come first: a list per place. */
static clv_status line_up(edit *e, queue *q)
{
	uint32_t *head = edit_ids(e, (size_t)e->nodes + 1), *next = edit_ids(e, e->places.n);
	q->nodes = edit_array(e, e->p->nodes.n, sizeof *q->nodes);
	q->pins = edit_array(e, e->p->nodes.n, sizeof *q->pins);
	TRY_MEM(head && next && q->nodes && q->pins);
	for (uint32_t i = e->places.n; i-- > 0;) {
		next[i] = head[e->places.at[i]];
		head[e->places.at[i]] = i;
	}
	for (node_id n = 0; n <= e->nodes; n++) {
		if (n == e->first)
			q->first = q->n;
		for (uint32_t i = head[n]; i != NONE; i = next[i])
			enqueue(e, e->nodes + i, q);
		if (n == e->end)
			q->end = q->n;
		if (n < e->nodes)
			enqueue(e, n, q);
	}
	return CLV_OK;
}

clv_status edit_apply(edit *e)
{
	queue q = {0};
	if (!e->changed)
		return CLV_OK;
	for (node_id n = 0; n < e->p->nodes.n; n++)
		if (n >= e->nodes || (n >= e->first && n < e->end))
			exchange_values(e, n);
	TRY(exchange_memory(e));
	TRY(line_up(e, &q));
	/* There are as many or less than now. */
	if (q.n) {
		memcpy(e->p->nodes.at, q.nodes, q.n * sizeof *q.nodes);
		memcpy(e->pins.at, q.pins, q.n * sizeof *q.pins);
	}
	e->p->nodes.n = e->pins.n = q.n;
	e->first = q.first;
	e->end = q.end;
	number_results(e->p);
	TRY(plan_verify(e->p));
	return start_over(e);
}

clv_status edit_reorder(edit *e, const node_id *order)
{
	plan *p;
	uint32_t *pins = edit_array(e, e->pins.n, sizeof *pins);
	TRY_MEM(pins);
	TRY(plan_reorder(e->p, order, &p));
	plan_free(e->p);
	e->p = p;
	for (uint32_t i = 0; i < e->pins.n; i++)
		pins[i] = e->pins.at[order[i]];
	for (uint32_t i = 0; i < e->pins.n; i++)
		e->pins.at[i] = pins[i];
	return CLV_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

const arg *edit_arg(const edit *e, node_id n, uint32_t i)
{
	static const arg none = {.kind = ARG_NONE};
	const node *x = &e->p->nodes.at[n];
	return i < x->nargs ? &e->p->args.at[x->args + i] : &none;
}

value_id edit_value(const edit *e, node_id n, uint32_t i)
{
	const arg *a = edit_arg(e, n, i);
	return a->kind == ARG_VALUE ? a->u.v : NONE;
}

bool edit_is(const edit *e, node_id n, uint16_t op)
{
	return !edit_pinned(e, n) && e->p->nodes.at[n].op_id == op;
}

value_id edit_result(const edit *e, node_id n)
{
	const node *x = &e->p->nodes.at[n];
	if (edit_pinned(e, n) || x->nresults != 1 || e->p->args.at[x->results].kind != ARG_VALUE)
		return NONE;
	value_id v = e->p->args.at[x->results].u.v;
	return e->p->values.at[v].type == TYPE_TENSOR ? v : NONE;
}

clv_status edit_like(edit *e, value_id v, value_id *out)
{
	const value *x = &e->p->values.at[v];
	tensor_spec t = {.dtype = (dtype)x->dtype, .ndim = x->ndim, .shape = vec_from(&e->p->dims, x->shape)};
	t.device = plan_s(e->p, x->device);
	return plan_tensor(e->p, VALUE_RESULT, NULL, &t, out);
}
