/* Compares the steps of two programs up to a guard: see resume.h.
 *
 * Both lists are walked together. A step is the same as one of the other program if it calls the same operator in the same modes
 * on values that correspond, and promises the same results. Steps that only compute may be missing on either side, for passes
 * drop what their plan does not need; everything else has to come in the same order. */
#include "exec/resume.h"

#include <pthread.h>
#include <stdatomic.h>

#include "plan/data.h"
#include "plan/same.h"

enum { WINDOW = 64 };                                  /* steps that the other program may have on top */
static const int64_t MOST_COMPARED = (int64_t)1 << 24; /* bytes of a tensor from outside that is another one here */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* around the beginnings of all programs */

typedef struct comparison {
	const clv_program *a, *b;
	const left_run *l; /* of a */
	const run_spec *r; /* of b */
	uint32_t *from;    /* per slot of b: that of a; NONE: none */
	bool *ran;         /* per step of b: a has it */
	bool *wanted;      /* per slot of b: it is read after the guard, or by a step that runs again */
	bool *written;     /* per value of b: by something before the guard */
	beginning *to;
	clv_status st;
} comparison;

static uint32_t borrowed(const clv_program *g)
{
	return g->v.inputs.n + g->v.externals.n;
}

static value_id given_value(const clv_program *g, uint32_t slot)
{
	return slot < g->v.inputs.n ? g->v.inputs.at[slot] : g->v.externals.at[slot - g->v.inputs.n];
}

static const br_tensor *given_tensor(const clv_program *g, const run_spec *r, uint32_t slot)
{
	return slot < g->v.inputs.n ? r->inputs[slot] : r->externals[slot - g->v.inputs.n];
}

/* The same tensor; of constants, and of what earlier parts computed, also one with the same bits. */
static bool same_given(const clv_program *a, const left_run *l, const clv_program *b, const run_spec *r, slot_pair s)
{
	uint8_t x = a->p->values.at[given_value(a, s.left)].kind, y = b->p->values.at[given_value(b, s.here)].kind;
	const br_tensor *was = l->given[s.left], *is;
	bool same = false, data = x == y && (x == VALUE_CONST || x == VALUE_RESULT);
	if (x == VALUE_OBJECT || y == VALUE_OBJECT || !was || !(is = given_tensor(b, r, s.here)))
		return false;
	if (was == is)
		return true;
	if (!data || l->grad || br_numel(is) > MOST_COMPARED / (int64_t)br_itemsize(is))
		return false;
	return br_bits_equal(was, is, &same) == CLV_OK && same;
}

/* ---- steps that are the same ------------------------------------------------------------------------------------------ */

static void note(comparison *c, clv_status st)
{
	if (c->st == CLV_OK)
		c->st = st;
}

static bool same_value(void *ctx, value_id a, value_id b)
{
	comparison *c = ctx;
	slot_pair s = {c->a->slot[a], c->b->slot[b]};
	if (s.left == NONE || s.here == NONE)
		return false;
	if (c->from[s.here] != NONE)
		return c->from[s.here] == s.left;
	if (s.left >= borrowed(c->a) || s.here >= borrowed(c->b) || !same_given(c->a, c->l, c->b, c->r, s))
		return false;
	c->from[s.here] = s.left;
	note(c, vec_push(&c->to->given, s));
	return true;
}

static void bind_result(void *ctx, value_id a, value_id b)
{
	comparison *c = ctx;
	if (c->b->slot[b] != NONE)
		c->from[c->b->slot[b]] = c->a->slot[a];
}

static void unbind_result(void *ctx, value_id a, value_id b)
{
	comparison *c = ctx;
	(void)a;
	if (c->b->slot[b] != NONE)
		c->from[c->b->slot[b]] = NONE;
}

static bool comparable(const step *s)
{
	return s->kind == STEP_CALL || s->kind == STEP_GUARD_EQUAL;
}

/* last: it is the guard, whose results may be others. */
static bool same_step(comparison *c, const step *x, const step *y, bool last)
{
	const pair q = {.a = c->a->p, .b = c->b->p, .same = same_value, .ctx = c};
	const node *m = &q.a->nodes.at[x->node], *n = &q.b->nodes.at[y->node];
	if (x->kind != y->kind || !comparable(x))
		return false;
	if (x->kind == STEP_GUARD_EQUAL && last) /* with other data, which is the same operator on the same tensor */
		return same_value(c, q.a->args.at[m->args].u.v, q.b->args.at[n->args].u.v);
	if (!pair_call(&q, m, n))
		return false;
	each_value_pair(q.a, m->results, q.b, n->results, m->nresults, bind_result, c);
	if (last || pair_results(&q, m, n))
		return true;
	each_value_pair(q.a, m->results, q.b, n->results, m->nresults, unbind_result, c);
	return false;
}

/* Whether it runs makes no difference to anything but its own results. */
static bool only_computes(const plan *p, const step *s)
{
	const node *n = &p->nodes.at[s->node];
	return s->kind == STEP_CALL && !(n->flags & (NODE_HOST | NODE_IMPURE)) && !n->nwrites && !node_draws(p, s->node) &&
	       !node_guards(p, s->node) && op_known(plan_s(p, n->op));
}

/* The step of a, from i on, that is step j of b; NONE: there is none. */
static uint32_t find_step(comparison *c, uint32_t i, uint32_t j)
{
	for (uint32_t k = i; k <= c->l->step && k - i < WINDOW; k++) {
		const step *x = &c->a->steps.at[k];
		if (same_step(c, x, &c->b->steps.at[j], k == c->l->step))
			return k;
		if (!only_computes(c->a->p, x))
			break;
	}
	return NONE;
}

/* Finds to->joined. */
static void walk_steps(comparison *c)
{
	uint32_t next = 0;
	for (uint32_t j = 0; j < c->b->steps.n && c->st == CLV_OK; j++) {
		uint32_t k = find_step(c, next, j);
		if (k == c->l->step) {
			c->to->joined = j;
			return;
		}
		if (k == NONE && !only_computes(c->b->p, &c->b->steps.at[j]))
			return;
		c->ran[j] = k != NONE;
		next = k == NONE ? next : k + 1;
	}
}

/* ---- what moves ------------------------------------------------------------------------------------------------------ */

static void want(void *ctx, value_id v)
{
	comparison *c = ctx;
	if (c->b->slot[v] != NONE)
		c->wanted[c->b->slot[v]] = true;
}

static void want_later(comparison *c)
{
	const clv_program *g = c->b;
	for (uint32_t j = c->to->joined + 1; j < g->steps.n; j++) {
		const step *s = &g->steps.at[j];
		for (uint32_t i = 0; s->kind == STEP_SEGMENT && i < s->nargs; i++)
			c->wanted[g->slots_of.at[s->args + i]] = true;
		if (s->kind != STEP_SEGMENT)
			node_each_arg(g->p, s->node, want, c);
	}
	for (uint32_t i = 0; i < g->outputs.n; i++)
		want(c, g->outputs.at[i]);
}

static bool is_there(const comparison *c, uint32_t slot)
{
	uint32_t left = c->from[slot];
	return left != NONE && c->l->f->slots[left];
}

typedef struct result_walk {
	comparison *c;
	bool any, all, moved; /* results are wanted; the other has all of these; they are to move */
} result_walk;

static void look_at_result(void *ctx, value_id v)
{
	result_walk *w = ctx;
	uint32_t slot = w->c->b->slot[v];
	if (slot == NONE || !w->c->wanted[slot] || w->c->b->p->values.at[v].type != TYPE_TENSOR)
		return;
	w->any = true;
	w->all &= is_there(w->c, slot);
	if (w->moved)
		note(w->c, vec_push(&w->c->to->moves, ((slot_pair){w->c->from[slot], slot})));
}

typedef struct write_walk {
	const comparison *c;
	bool found;
} write_walk;

static void look_for_writes(void *ctx, value_id v)
{
	write_walk *w = ctx;
	w->found |= w->c->written[alias_root(w->c->b->p, v)] || w->c->b->p->values.at[v].type != TYPE_TENSOR;
}

/* It would give the same now. With gradients, its first results may be in the graph already: two sums instead of one. */
static bool may_run_again(const comparison *c, uint32_t j)
{
	const step *s = &c->b->steps.at[j];
	write_walk w = {c, false};
	node_each_arg(c->b->p, s->node, look_for_writes, &w);
	node_each_result(c->b->p, s->node, look_for_writes, &w);
	return !w.found && only_computes(c->b->p, s) && !(c->l->grad && c->ran[j]);
}

/* From the guard back: a step runs again where its results are wanted and gone. */
static bool choose_moves(comparison *c)
{
	for (uint32_t j = c->to->joined + 1; j-- > 0 && c->st == CLV_OK;) {
		node_id n = c->b->steps.at[j].node;
		result_walk w = {c, false, true, false};
		node_each_result(c->b->p, n, look_at_result, &w);
		w.moved = w.any && w.all;
		if (w.moved)
			node_each_result(c->b->p, n, look_at_result, &w);
		if (!w.any || w.all)
			continue;
		if (j == c->to->joined || !may_run_again(c, j))
			return false;
		note(c, vec_push(&c->to->again, j));
		node_each_arg(c->b->p, n, want, c);
	}
	for (uint32_t i = 0, n = c->to->again.n; i < n / 2; i++) { /* in their order */
		uint32_t last = c->to->again.at[n - 1 - i];
		c->to->again.at[n - 1 - i] = c->to->again.at[i];
		c->to->again.at[i] = last;
	}
	return true;
}

/* Copies of inputs that the view writes: tensors that have moved may be views of them. */
static bool choose_copies(comparison *c)
{
	for (uint32_t i = 0; i < c->b->cloned.n; i++) {
		uint32_t here = c->b->slot[c->b->cloned.at[i]], left = NONE;
		for (uint32_t k = 0; k < c->a->cloned.n; k++) {
			uint32_t s = c->a->slot[c->a->cloned.at[k]];
			if (c->l->given[s] == given_tensor(c->b, c->r, here))
				left = s;
		}
		if (left == NONE)
			return false;
		if (c->from[here] == NONE)
			note(c, vec_push(&c->to->given, ((slot_pair){left, here})));
		note(c, vec_push(&c->to->moves, ((slot_pair){left, here})));
	}
	return true;
}

static uint32_t host_number(const clv_program *g, uint32_t slot)
{
	for (uint32_t i = 0; i < g->numbers.n; i++)
		if (g->numbers.at[i].kind == NUMBER_HOST && g->slot[g->numbers.at[i].id] == slot)
			return i;
	return NONE;
}

static bool choose_numbers(comparison *c)
{
	for (uint32_t i = 0; i < c->b->numbers.n; i++) {
		const live_number *n = &c->b->numbers.at[i];
		if (n->kind != NUMBER_HOST || c->b->p->values.at[n->id].def >= c->b->steps.at[c->to->joined].node)
			continue;
		uint32_t left = c->from[c->b->slot[n->id]], number = left == NONE ? NONE : host_number(c->a, left);
		if (number == NONE)
			return false;
		note(c, vec_push(&c->to->numbers, ((slot_pair){number, i})));
	}
	return true;
}

static void look(void *ctx, value_id v)
{
	comparison *c = ctx;
	uint32_t slot = c->b->slot[v];
	if (slot != NONE && slot >= borrowed(c->b) && c->from[slot] != NONE && c->b->p->values.at[v].type == TYPE_TENSOR)
		note(c, vec_push(&c->to->looks, ((slot_pair){c->from[slot], slot})));
}

static bool choose(comparison *c)
{
	const step *guard = &c->b->steps.at[c->to->joined];
	const plan *p = c->b->p;
	for (uint32_t j = 0; j <= c->to->joined; j++) {
		const node *n = &p->nodes.at[c->b->steps.at[j].node];
		for (uint32_t i = 0; i < n->nwrites; i++)
			c->written[alias_root(p, p->ids.at[n->writes + i])] = true;
	}
	written_through(p, c->b->steps.at[0].node, guard->node + 1, c->written);
	if (guard->kind == STEP_GUARD_EQUAL && c->b->cloned.n) /* it may look at a copy, which is not in its place yet */
		return false;
	if (guard->kind == STEP_GUARD_EQUAL)
		node_each_arg(p, guard->node, look, c);
	else
		node_each_result(p, guard->node, look, c);
	want_later(c);
	return choose_moves(c) && choose_copies(c) && choose_numbers(c);
}

/* ---- what is kept ---------------------------------------------------------------------------------------------------- */

static void beginning_free(beginning *x)
{
	if (!x)
		return;
	vec_free(&x->given);
	vec_free(&x->numbers);
	vec_free(&x->looks);
	vec_free(&x->moves);
	vec_free(&x->again);
	mem_free(x);
}

void beginnings_free(clv_program *g)
{
	for (uint32_t i = 0; i < g->beginnings.n; i++)
		beginning_free(g->beginnings.at[i]);
	vec_free(&g->beginnings);
}

static clv_status compare(const clv_program *g, const run_spec *r, const left_run *l, beginning *to)
{
	comparison c = {.a = l->g, .b = g, .l = l, .r = r, .to = to};
	*to = (beginning){.of = l->g->id, .left = l->step, .joined = NONE};
	c.from = mem_ids(g->nslots);
	c.ran = mem_alloc(g->steps.n + 1);
	c.wanted = mem_alloc(g->nslots + 1);
	c.written = mem_alloc(g->p->values.n + 1);
	c.st = c.from && c.ran && c.wanted && c.written ? CLV_OK : fail_nomem();
	if (c.st == CLV_OK)
		walk_steps(&c);
	if (c.st == CLV_OK && to->joined != NONE && !choose(&c))
		to->joined = NONE;
	mem_free(c.from);
	mem_free(c.ran);
	mem_free(c.wanted);
	mem_free(c.written);
	return c.st;
}

static const beginning *find_known(const clv_program *g, const left_run *l)
{
	for (uint32_t i = 0; i < g->beginnings.n; i++)
		if (g->beginnings.at[i]->of == l->g->id && g->beginnings.at[i]->left == l->step)
			return g->beginnings.at[i];
	return NULL;
}

static clv_status find_or_compare(clv_program *g, const run_spec *r, const left_run *l, const beginning **out)
{
	*out = find_known(g, l);
	if (*out)
		return CLV_OK;
	TRY(vec_reserve(&g->beginnings, 1));
	beginning *x = mem_alloc(sizeof *x);
	TRY_MEM(x);
	clv_status st = compare(g, r, l, x);
	if (st != CLV_OK) {
		beginning_free(x);
		return st;
	}
	g->beginnings.at[g->beginnings.n++] = x;
	*out = x;
	return CLV_OK;
}

/* Data symbols that were read are in the range of this plan, too; all others have the same values. */
static bool symbols_fit(const clv_program *g, const frame *f, const left_run *l)
{
	const plan *a = l->g->p, *b = g->p;
	for (symbol_id s = 0; s < a->symbols.n || s < b->symbols.n; s++) {
		const symbol *x = s < a->symbols.n ? &a->symbols.at[s] : NULL, *y = s < b->symbols.n ? &b->symbols.at[s] : NULL;
		int64_t was = x ? l->f->symbols[s] : -1;
		if (!x || !y) {
			if (!(x ? x : y)->data)
				return false;
		} else if (x->data != y->data || (x->data ? was >= 0 && (was < y->lo || was > y->hi) : was != f->symbols[s])) {
			return false;
		}
	}
	return true;
}

clv_status beginning_find(const clv_program *g, const frame *f, const run_spec *r, const left_run *l,
                          const beginning **out)
{
	*out = NULL;
	if (l->grad != (r->grad && !g->inference) || !symbols_fit(g, f, l))
		return CLV_OK;
	const beginning *x;
	pthread_mutex_lock(&lock);
	clv_status st = find_or_compare((clv_program *)g, r, l, &x);
	pthread_mutex_unlock(&lock);
	TRY(st);
	bool same = x->joined != NONE;
	for (uint32_t i = 0; same && i < x->given.n; i++)
		same = same_given(l->g, l, g, r, x->given.at[i]);
	for (uint32_t i = 0; same && i < x->moves.n; i++)
		same = l->f->slots[x->moves.at[i].left] != NULL;
	*out = same ? x : NULL;
	return CLV_OK;
}
