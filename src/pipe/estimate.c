/* Estimates the cost of blocks by the roofline of each operator: the longer of computing and of moving its bytes.
 *
 * A backward computes two gradients for each product of the forward, so it takes twice as long. */
#include "pipe/estimate.h"

#include <math.h>

#include "base/arena.h"
#include "plan/flops.h"

clv_status check_ends(const plan *p, const node_id *ends, uint32_t n)
{
	if (!n || ends[n - 1] != p->nodes.n)
		return fail(CLV_E_INVALID, "the last block must end with the plan, after node %u", p->nodes.n);
	for (uint32_t i = 0; i < n; i++)
		if (ends[i] <= (i ? ends[i - 1] : 0))
			return fail(CLV_E_INVALID, "block %u has no nodes: it ends at %u, where it begins", i, ends[i]);
	return CLV_OK;
}

/* ---- gradients ------------------------------------------------------------------------------------------------------ */

static bool has_gradients(const value *x)
{
	return x->type == TYPE_TENSOR && dtype_has_grad((dtype)x->dtype);
}

typedef struct grads {
	const plan *p;
	bool *of;      /* per value */
	bool *written; /* per value that owns its memory: something with gradients was written there */
	bool any;
} grads;

static void see_grad(void *ctx, value_id v)
{
	grads *g = ctx;
	g->any |= g->of[v] || g->written[alias_root(g->p, v)];
}

/* A value that was made without gradients gets them when one with gradients is written into it. */
static void spread_writes(grads *g, node_id id)
{
	const node *n = &g->p->nodes.at[id];
	const context *c = &g->p->contexts.at[n->context];
	if (!n->nwrites || c->nograd || c->inference)
		return;
	g->any = false;
	node_each_arg(g->p, id, see_grad, g);
	for (uint32_t i = 0; g->any && i < n->nwrites; i++) {
		value_id root = alias_root(g->p, g->p->ids.at[n->writes + i]);
		g->written[root] |= g->p->values.at[root].kind == VALUE_RESULT;
	}
}

static void find_grads(grads *g)
{
	const plan *p = g->p;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		g->of[v] = has_gradients(x) && (x->flags & (VALUE_GRAD | VALUE_TRAINABLE));
	}
	for (node_id n = 0; n < p->nodes.n; n++)
		spread_writes(g, n);
	for (value_id v = 0; v < p->values.n; v++)
		g->of[v] |= g->written[alias_root(p, v)] && has_gradients(&p->values.at[v]);
}

clv_status plan_grads(const plan *p, bool **out)
{
	grads g = {.p = p, .of = mem_alloc(p->values.n + 1), .written = mem_alloc(p->values.n + 1)};
	bool ok = g.of && g.written;
	if (ok)
		find_grads(&g);
	mem_free(g.written);
	if (!ok) {
		mem_free(g.of);
		return fail_nomem();
	}
	*out = g.of;
	return CLV_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------- */

typedef struct walk {
	arena arena;
	const plan *p;
	const estimate_spec *s;
	liveness l;
	int64_t *bytes;    /* per value */
	int64_t *sizes;    /* per expression */
	node_id *last;     /* per value that owns its memory: the last node that uses the memory; p->nodes.n: after all */
	uint32_t *counted; /* per value: the last block that counted it as read */
	node_id *passed;   /* per value: the last node that counted it as moved */
	bool *grad, *held; /* per value; held: that owns its memory */
	bool over;         /* a sum left 2^63 */

	/* of the block in hand */
	uint32_t block;
	node_id first, end, node;
	block_cost *c;
	int64_t live, peak; /* memory that the block made */
	int64_t moved;      /* by the node in hand */
	bool through;       /* gradients flow through the node */
	int64_t grad_bytes; /* of what the node reads and makes and has gradients */
	int64_t backward_peak;
} walk;

/* What is too large stays at the most, so that the walk can go on to where that is said. */
static void add_capped(walk *w, int64_t *sum, int64_t more)
{
	if (!__builtin_add_overflow(*sum, more, sum))
		return;
	w->over = true;
	*sum = INT64_MAX;
}

static bool is_state(const value *x)
{
	return x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER || x->kind == VALUE_ATTR;
}

static void see_moved(walk *w, value_id v)
{
	if (w->passed[v] == w->node)
		return;
	w->passed[v] = w->node;
	add_capped(w, &w->moved, w->bytes[v]);
	if (w->grad[v]) {
		w->through = true;
		add_capped(w, &w->grad_bytes, w->bytes[v]);
	}
}

static void see_arg(void *ctx, value_id v)
{
	walk *w = ctx;
	const value *x = &w->p->values.at[v];
	see_moved(w, v);
	bool made_here = x->kind == VALUE_RESULT && x->def >= w->first;
	if (made_here || w->counted[v] == w->block)
		return;
	w->counted[v] = w->block;
	if (is_state(x))
		add_capped(w, &w->c->param_bytes, w->bytes[v]);
	else if (x->kind == VALUE_RESULT || x->kind == VALUE_INPUT)
		add_capped(w, &w->c->in_bytes, w->bytes[v]);
}

static void see_result(void *ctx, value_id v)
{
	walk *w = ctx;
	see_moved(w, v);
	if (alias_root(w->p, v) == v)
		add_capped(w, &w->live, w->bytes[v]);
}

/* Nothing moves where a node only looks at memory in another way. */
typedef struct look {
	const plan *p;
	bool makes, any;
} look;

static void see_owner(void *ctx, value_id v)
{
	look *l = ctx;
	l->any = true;
	l->makes |= l->p->values.at[v].type != TYPE_TENSOR || alias_root(l->p, v) == v;
}

static bool is_view(const plan *p, node_id n)
{
	look l = {p, false, false};
	node_each_result(p, n, see_owner, &l);
	return l.any && !l.makes && !p->nodes.at[n].nwrites;
}

static bool made_in_block(const walk *w, value_id root)
{
	const value *x = &w->p->values.at[root];
	return x->kind == VALUE_RESULT && x->def >= w->first;
}

static void hold_value(void *ctx, value_id v)
{
	walk *w = ctx;
	value_id root = alias_root(w->p, v);
	if (!made_in_block(w, root) || w->held[root])
		return;
	w->held[root] = true;
	add_capped(w, &w->c->held_bytes, w->bytes[root]);
}

/* Memory that nobody needs after the node in hand, unless it is held. */
static void let_go(void *ctx, value_id v)
{
	walk *w = ctx;
	value_id root = alias_root(w->p, v);
	if (made_in_block(w, root) && !w->held[root] && w->last[root] == w->node) {
		w->live -= w->over ? 0 : w->bytes[root]; /* sums that were too large are no sums */
		w->last[root] = NONE;                    /* once */
	}
}

static double node_time(const walk *w, node_id n)
{
	if (is_view(w->p, n))
		return 0;
	double compute = node_flops(w->p, n, w->sizes) / w->s->flops_per_s, move = (double)w->moved / w->s->bytes_per_s;
	return w->s->node_us + 1e6 * (compute > move ? compute : move);
}

static void walk_node(walk *w, node_id n)
{
	w->node = n;
	w->moved = w->grad_bytes = 0;
	w->through = false;
	node_each_arg(w->p, n, see_arg, w);
	node_each_result(w->p, n, see_result, w);
	const context *c = &w->p->contexts.at[w->p->nodes.at[n].context];
	bool backward = w->s->training && w->through && !c->nograd && !c->inference;
	double us = node_time(w, n);
	w->c->fwd_us += us;
	w->peak = w->live > w->peak ? w->live : w->peak;
	if (backward) {
		w->c->bwd_us += 2 * us;
		w->backward_peak = w->grad_bytes > w->backward_peak ? w->grad_bytes : w->backward_peak;
		if (!is_view(w->p, n)) {
			node_each_arg(w->p, n, hold_value, w);
			node_each_result(w->p, n, hold_value, w);
		}
	}
	node_each_arg(w->p, n, let_go, w);
	node_each_result(w->p, n, let_go, w);
}

/* What is needed after the block: is there when it ends, and goes out. */
static void see_output(void *ctx, value_id v)
{
	walk *w = ctx;
	if (w->l.last[v] == NONE || w->l.last[v] < w->end)
		return;
	add_capped(w, &w->c->out_bytes, w->bytes[v]);
	hold_value(w, v);
}

static void walk_block(walk *w)
{
	*w->c = (block_cost){0};
	w->live = w->peak = w->backward_peak = 0;
	for (node_id n = w->first; n < w->end; n++)
		walk_node(w, n);
	for (node_id n = w->first; n < w->end; n++)
		node_each_result(w->p, n, see_output, w);
	int64_t forward = w->peak > w->c->held_bytes ? w->peak - w->c->held_bytes : 0;
	w->c->fwd_work_bytes = forward;
	w->c->bwd_work_bytes = w->backward_peak;
	w->c->work_bytes = forward > w->backward_peak ? forward : w->backward_peak;
}

/* ---- before the walk ------------------------------------------------------------------------------------------------- */

static clv_status tensor_bytes(walk *w, value_id v)
{
	const value *x = &w->p->values.at[v];
	int64_t n = 1;
	bool over = false;
	if (x->type != TYPE_TENSOR || x->kind == VALUE_OBJECT)
		return CLV_OK;
	for (uint32_t d = 0; d < x->ndim; d++)
		over |= __builtin_mul_overflow(n, w->sizes[w->p->dims.at[x->shape + d]], &n);
	over |= __builtin_mul_overflow(n, (int64_t)dtype_bits((dtype)x->dtype) / 8, &w->bytes[v]);
	return over ? fail(CLV_E_OVERFLOW, "a tensor of the plan has more than 2^63 bytes") : CLV_OK;
}

/* Sizes that nobody knows before a run count as 1: an estimate is better than none. */
static clv_status eval_sizes(walk *w, const int64_t *syms)
{
	const plan *p = w->p;
	int64_t *known = arena_array(&w->arena, p->symbols.n, sizeof *known);
	bool *ok = arena_alloc(&w->arena, p->exprs.n);
	clv_status st = arena_status(&w->arena);
	for (symbol_id i = 0; st == CLV_OK && i < p->symbols.n; i++)
		known[i] = syms && syms[i] >= 0 ? syms[i] : p->symbols.at[i].lo > 1 ? p->symbols.at[i].lo : 1;
	if (st == CLV_OK)
		st = expr_eval_all(p, known, w->sizes, ok);
	for (expr_id e = 0; st == CLV_OK && e < p->exprs.n; e++)
		if (!ok[e] || w->sizes[e] < 0)
			w->sizes[e] = 1;
	for (value_id v = 0; st == CLV_OK && v < p->values.n; v++)
		st = tensor_bytes(w, v);
	return st;
}

static void find_last(walk *w)
{
	for (value_id v = 0; v < w->p->values.n; v++) {
		value_id root = alias_root(w->p, v);
		node_id mine = w->l.last[v] == NONE ? w->p->values.at[v].def : w->l.last[v];
		if (mine != NONE && (w->last[root] == NONE || mine > w->last[root]))
			w->last[root] = mine;
	}
}

static clv_status walk_init(walk *w, const int64_t *syms)
{
	arena *a = &w->arena;
	size_t values = w->p->values.n;
	w->bytes = arena_array(a, values, sizeof *w->bytes);
	w->sizes = arena_array(a, w->p->exprs.n, sizeof *w->sizes);
	w->last = arena_ids(a, values);
	w->counted = arena_ids(a, values);
	w->passed = arena_ids(a, values);
	w->held = arena_alloc(a, values);
	TRY(arena_status(a));
	TRY(liveness_parts(w->p, &w->l, NULL));
	TRY(plan_grads(w->p, &w->grad));
	TRY(eval_sizes(w, syms));
	find_last(w);
	return CLV_OK;
}

static void walk_free(walk *w)
{
	arena_free(&w->arena);
	mem_free(w->grad);
	liveness_free(&w->l);
}

static clv_status check_spec(const estimate_spec *s)
{
	bool speeds = isfinite(s->flops_per_s) && isfinite(s->bytes_per_s) && s->flops_per_s > 0 && s->bytes_per_s > 0;
	if (!speeds || !isfinite(s->node_us) || s->node_us < 0)
		return fail(CLV_E_INVALID,
		            "an estimate needs operations and bytes per second above 0 and a time per operator from 0 up");
	return CLV_OK;
}

clv_status estimate_blocks(const plan *p, const node_id *ends, uint32_t n, const int64_t *syms, const estimate_spec *s,
                           block_cost *out)
{
	TRY(check_spec(s));
	TRY(check_ends(p, ends, n));
	walk w = {.p = p, .s = s};
	clv_status st = walk_init(&w, syms);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		w.block = i;
		w.first = i ? ends[i - 1] : 0;
		w.end = ends[i];
		w.c = &out[i];
		walk_block(&w);
	}
	if (st == CLV_OK && w.over)
		st = fail(CLV_E_OVERFLOW, "a block has more than 2^63 bytes");
	walk_free(&w);
	return st;
}
