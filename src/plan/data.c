/* Symbols that a run reads from its data: which node defines each, and where a plan cannot be cut for them.
 *
 * A data symbol is defined by the first node that has it, alone, as the expected value of a host result (item() = n) or as
 * a size of a result whose shape depends on data (nonzero: i64[n,2] guard). */
#include "plan/data.h"

#include <stdlib.h>

#include "plan/ops.h"

#include "plan/intern.h"

bool expr_depends(const plan *p, expr_id e, symbol_id s)
{
	const expr *x = &p->exprs.at[e];
	if (x->op == EXPR_CONST || x->op == EXPR_SYM)
		return x->op == EXPR_SYM && x->k == s;
	return expr_depends(p, x->a, s) || expr_depends(p, x->b, s);
}

symbol_id first_data_symbol(const plan *p)
{
	for (symbol_id s = 0; s < p->symbols.n; s++)
		if (p->symbols.at[s].data)
			return s;
	return NONE;
}

bool expr_is_data(const plan *p, expr_id e, symbol_id *s)
{
	const expr *x = &p->exprs.at[e];
	if (x->op != EXPR_SYM || !p->symbols.at[x->k].data)
		return false;
	*s = (symbol_id)x->k;
	return true;
}

void value_each_data(const plan *p, value_id v, data_fn f, void *ctx)
{
	const value *x = &p->values.at[v];
	symbol_id s;
	if (x->type == TYPE_INT && x->expect != NONE && expr_is_data(p, p->args.at[x->expect].u.e, &s))
		f(ctx, s, v, NONE);
	for (uint32_t d = 0; x->type == TYPE_TENSOR && x->flags & VALUE_GUARD && d < x->ndim; d++)
		if (expr_is_data(p, p->dims.at[x->shape + d], &s))
			f(ctx, s, v, d);
}

/* Symbols that numbers depend on, one call for each place. */
typedef struct symbol_walk {
	const plan *p;
	each_symbol_fn f;
	void *ctx;
} symbol_walk;

static void walk_expr(const symbol_walk *w, expr_id e)
{
	const expr *x = &w->p->exprs.at[e];
	if (x->op == EXPR_SYM)
		w->f(w->ctx, (symbol_id)x->k);
	if (x->op == EXPR_CONST || x->op == EXPR_SYM)
		return;
	walk_expr(w, x->a);
	walk_expr(w, x->b);
}

static void walk_real(const symbol_walk *w, real_id r)
{
	const real *x = &w->p->reals.at[r];
	unsigned n = real_operands(x->op);
	if (x->op == REAL_INT)
		walk_expr(w, x->e);
	else if (n > 0)
		walk_real(w, x->a);
	if (x->op != REAL_INT && n > 1)
		walk_real(w, x->b);
}

static void walk_arg(const symbol_walk *w, const arg *a, unsigned depth)
{
	switch (a->kind) {
	case ARG_INT: walk_expr(w, a->u.e); break;
	case ARG_REAL: walk_real(w, a->u.r); break;
	case ARG_LIST:
		for (uint32_t i = 0; i < a->u.list.n && depth < NEST_LIMIT; i++)
			walk_arg(w, &w->p->args.at[a->u.list.first + i], depth + 1);
		break;
	default: break;
	}
}

void arg_each_symbol(const plan *p, const arg *a, each_symbol_fn f, void *ctx)
{
	walk_arg(&(symbol_walk){p, f, ctx}, a, 0);
}

void node_each_symbol(const plan *p, node_id n, each_symbol_fn f, void *ctx)
{
	for (uint32_t i = 0; i < p->nodes.at[n].nargs; i++)
		arg_each_symbol(p, &p->args.at[p->nodes.at[n].args + i], f, ctx);
}

typedef struct asked {
	const plan *p;
	symbol_id s; /* NONE: any that is read from data */
	bool found;
} asked;

static void compare_symbol(void *ctx, symbol_id s)
{
	asked *x = ctx;
	x->found |= x->s == NONE ? x->p->symbols.at[s].data : s == x->s;
}

bool node_takes(const plan *p, node_id n, symbol_id s)
{
	asked x = {.p = p, .s = s};
	node_each_symbol(p, n, compare_symbol, &x);
	return x.found;
}

bool shape_takes_data(const plan *p, const value *v)
{
	asked x = {.p = p, .s = NONE};
	for (uint32_t d = 0; d < v->ndim && !x.found; d++)
		walk_expr(&(symbol_walk){p, compare_symbol, &x}, p->dims.at[v->shape + d]);
	return x.found;
}

static void walk_output(const symbol_walk *w)
{
	for (uint32_t i = 0; i < w->p->out_tree.n; i++) {
		const tree *t = &w->p->out_tree.at[i];
		if (t->kind == TREE_INT)
			walk_expr(w, t->u.e);
		else if (t->kind == TREE_REAL)
			walk_real(w, t->u.r);
	}
}

bool data_used(const plan *p, symbol_id s)
{
	asked x = {.p = p, .s = s};
	symbol_walk w = {p, compare_symbol, &x};
	for (uint32_t i = 0; i < p->dims.n && !x.found; i++)
		walk_expr(&w, p->dims.at[i]);
	for (node_id n = 0; n < p->nodes.n && !x.found; n++)
		node_each_symbol(p, n, compare_symbol, &x);
	walk_output(&w);
	return x.found;
}

/* ---- where a plan cannot be cut ----------------------------------------------------------------------------------- */

/* A tensor with the symbol as a size is there from a node on until another: what crosses has the symbol. */
typedef struct carrier {
	symbol_id s;
	node_id from, to;
} carrier;

typedef struct cuts {
	const plan *p;
	node_id now, *def, *last; /* per symbol: where it is defined and needed last; NONE: nowhere */
	VEC(carrier) carriers;
	uint32_t *need,
		*have; /* per node, as differences from that before: symbols needed behind it, and those that cross */
} cuts;

static void note_use(void *ctx, symbol_id s)
{
	cuts *c = ctx;
	c->last[s] = c->now;
}

static void note_definition(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	cuts *c = ctx;
	(void)v;
	(void)dim;
	if (c->def[s] == NONE)
		c->def[s] = c->now;
}

static void note_data_result(void *ctx, value_id v)
{
	cuts *c = ctx;
	symbol_walk w = {c->p, note_use, c};
	const value *x = &c->p->values.at[v];
	value_each_data(c->p, v, note_definition, c);
	for (uint32_t d = 0; x->type == TYPE_TENSOR && d < x->ndim; d++)
		walk_expr(&w, c->p->dims.at[x->shape + d]);
	if (x->expect != NONE)
		arg_each_symbol(c->p, &c->p->args.at[x->expect], note_use, c);
}

static void find_reads(cuts *c)
{
	const plan *p = c->p;
	symbol_walk w = {p, note_use, c};
	for (c->now = 0; c->now < p->nodes.n; c->now++) {
		node_each_symbol(p, c->now, note_use, c);
		node_each_result(p, c->now, note_data_result, c);
	}
	walk_output(&w);
}

static clv_status find_carriers(cuts *c, const node_id *last)
{
	const plan *p = c->p;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		symbol_id s;
		for (uint32_t d = 0; x->type == TYPE_TENSOR && x->kind == VALUE_RESULT && last[v] != NONE && d < x->ndim; d++)
			if (expr_is_data(p, p->dims.at[x->shape + d], &s))
				TRY(vec_push(&c->carriers, ((carrier){s, x->def, last[v]})));
	}
	return CLV_OK;
}

static int by_symbol(const void *a, const void *b)
{
	const carrier *x = a, *y = b;
	if (x->s != y->s)
		return x->s < y->s ? -1 : 1;
	return x->from < y->from ? -1 : x->from > y->from;
}

/* From node `from` on up to that before `to`, one more. */
static void add_range(uint32_t *at, const plan *p, node_id from, node_id to)
{
	if (from >= to || from >= p->nodes.n)
		return;
	at[from]++;
	at[to < p->nodes.n ? to : p->nodes.n]--;
}

/* Carriers of one symbol overlap; each node counts once, and only while the symbol is needed. */
static void count_carriers(cuts *c)
{
	node_id until = 0;
	if (c->carriers.n)
		qsort(c->carriers.at, c->carriers.n, sizeof *c->carriers.at, by_symbol);
	for (uint32_t i = 0; i < c->carriers.n; i++) {
		carrier x = c->carriers.at[i];
		node_id def = c->def[x.s], last = c->last[x.s];
		if (i == 0 || c->carriers.at[i - 1].s != x.s)
			until = 0;
		if (def == NONE || last == NONE)
			continue;
		x.from = x.from > def ? x.from : def;
		x.from = x.from > until ? x.from : until;
		x.to = x.to < last ? x.to : last;
		add_range(c->have, c->p, x.from, x.to);
		until = x.to > until ? x.to : until;
	}
}

static clv_status mark_cuts(cuts *c, const node_id *last, bool *bad)
{
	const plan *p = c->p;
	TRY_MEM(c->def && c->last && c->need && c->have);
	find_reads(c);
	TRY(find_carriers(c, last));
	for (symbol_id s = 0; s < p->symbols.n; s++)
		if (p->symbols.at[s].data && c->def[s] != NONE && c->last[s] != NONE)
			add_range(c->need, p, c->def[s], c->last[s]);
	count_carriers(c);
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->kind == VALUE_RESULT && x->type != TYPE_TENSOR && x->type != TYPE_OBJECT && last[v] != NONE)
			add_range(c->need, p, x->def, last[v]);
	}
	uint32_t need = 0, have = 0;
	for (node_id k = 0; k < p->nodes.n; k++) {
		need += c->need[k];
		have += c->have[k];
		bad[k] |= need > have;
	}
	return CLV_OK;
}

clv_status data_cuts(const plan *p, const node_id *last, bool *bad)
{
	cuts c = {.p = p,
	          .def = mem_ids(p->symbols.n + 1),
	          .last = mem_ids(p->symbols.n + 1),
	          .need = mem_alloc((p->nodes.n + 1) * sizeof *c.need),
	          .have = mem_alloc((p->nodes.n + 1) * sizeof *c.have)};
	clv_status st = mark_cuts(&c, last, bad);
	mem_free(c.def);
	mem_free(c.last);
	mem_free(c.need);
	mem_free(c.have);
	vec_free(&c.carriers);
	return st;
}

typedef struct guard_walk {
	const plan *p;
	bool found;
} guard_walk;

static void note_data(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	guard_walk *w = ctx;
	(void)s;
	(void)v;
	(void)dim;
	w->found = true;
}

static void note_guard(void *ctx, value_id v)
{
	guard_walk *w = ctx;
	w->found |= (w->p->values.at[v].flags & VALUE_GUARD) != 0;
	value_each_data(w->p, v, note_data, w);
}

bool node_guards(const plan *p, node_id n)
{
	uint16_t op = p->nodes.at[n].op_id;
	guard_walk w = {p, op == OP_cleave_guard_equal || op == OP_cleave_python};
	node_each_result(p, n, note_guard, &w);
	return w.found;
}
