/* Symbols that a run reads from its data: which node defines each, and where a plan cannot be cut for them.
 *
 * A data symbol is defined by the first node that has it, alone, as the expected value of a host result (item() = n) or as
 * a size of a result whose shape depends on data (nonzero: i64[n,2] guard). */
#include "plan/data.h"

#include "plan/intern.h"

bool expr_depends(const plan *p, expr_id e, symbol_id s)
{
	const expr *x = &p->exprs.at[e];
	if (x->op == EXPR_CONST || x->op == EXPR_SYM)
		return x->op == EXPR_SYM && x->k == s;
	return expr_depends(p, x->a, s) || expr_depends(p, x->b, s);
}

bool real_depends(const plan *p, real_id r, symbol_id s)
{
	const real *x = &p->reals.at[r];
	unsigned n = real_operands(x->op);
	if (x->op == REAL_INT)
		return expr_depends(p, x->e, s);
	return (n > 0 && real_depends(p, x->a, s)) || (n > 1 && real_depends(p, x->b, s));
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

static bool args_depend(const plan *p, uint32_t first, uint32_t n, symbol_id s, unsigned depth)
{
	for (uint32_t i = 0; i < n && depth <= NEST_LIMIT; i++) {
		const arg *a = &p->args.at[first + i];
		if ((a->kind == ARG_INT && expr_depends(p, a->u.e, s)) || (a->kind == ARG_REAL && real_depends(p, a->u.r, s)) ||
		    (a->kind == ARG_LIST && args_depend(p, a->u.list.first, a->u.list.n, s, depth + 1)))
			return true;
	}
	return false;
}

bool node_takes(const plan *p, node_id n, symbol_id s)
{
	return args_depend(p, p->nodes.at[n].args, p->nodes.at[n].nargs, s, 0);
}

static bool output_depends(const plan *p, symbol_id s)
{
	for (uint32_t i = 0; i < p->out_tree.n; i++) {
		const tree *t = &p->out_tree.at[i];
		if ((t->kind == TREE_INT && expr_depends(p, t->u.e, s)) || (t->kind == TREE_REAL && real_depends(p, t->u.r, s)))
			return true;
	}
	return false;
}

bool data_used(const plan *p, symbol_id s)
{
	for (uint32_t i = 0; i < p->dims.n; i++)
		if (expr_depends(p, p->dims.at[i], s))
			return true;
	for (node_id n = 0; n < p->nodes.n; n++)
		if (args_depend(p, p->nodes.at[n].args, p->nodes.at[n].nargs, s, 0))
			return true;
	return output_depends(p, s);
}

/* ---- where a plan cannot be cut ----------------------------------------------------------------------------------- */

typedef struct reads {
	const plan *p;
	symbol_id s;
	node_id now, def, last; /* of the symbol; NONE: not yet */
} reads;

static void note_definition(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	reads *r = ctx;
	(void)v;
	(void)dim;
	if (s == r->s && r->def == NONE)
		r->def = r->now;
}

static void note_data_result(void *ctx, value_id v)
{
	reads *r = ctx;
	const value *x = &r->p->values.at[v];
	value_each_data(r->p, v, note_definition, r);
	for (uint32_t d = 0; x->type == TYPE_TENSOR && d < x->ndim; d++)
		if (expr_depends(r->p, r->p->dims.at[x->shape + d], r->s))
			r->last = r->now;
	if (x->expect != NONE && args_depend(r->p, x->expect, 1, r->s, 0))
		r->last = r->now;
}

static void find_reads(reads *r)
{
	const plan *p = r->p;
	r->def = r->last = NONE;
	for (r->now = 0; r->now < p->nodes.n; r->now++) {
		const node *n = &p->nodes.at[r->now];
		if (args_depend(p, n->args, n->nargs, r->s, 0))
			r->last = r->now;
		node_each_result(p, r->now, note_data_result, r);
	}
	if (output_depends(p, r->s))
		r->last = p->nodes.n;
}

/* A tensor with the symbol as a size crosses there: the suffix reads the symbol off it. */
static void mark_carried(const reads *r, const node_id *last, bool *carried)
{
	const plan *p = r->p;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		bool has = false;
		symbol_id s;
		for (uint32_t d = 0; x->type == TYPE_TENSOR && x->kind == VALUE_RESULT && d < x->ndim; d++)
			has |= expr_is_data(p, p->dims.at[x->shape + d], &s) && s == r->s;
		for (node_id k = x->def; has && last[v] != NONE && k < last[v] && k < p->nodes.n; k++)
			carried[k] = true;
	}
}

static clv_status mark_symbol(const plan *p, symbol_id s, const node_id *last, bool *bad)
{
	reads r = {.p = p, .s = s};
	bool *carried = mem_alloc(p->nodes.n + 1);
	TRY_MEM(carried);
	find_reads(&r);
	mark_carried(&r, last, carried);
	for (node_id k = r.def; r.def != NONE && r.last != NONE && k < r.last && k < p->nodes.n; k++)
		bad[k] |= !carried[k];
	mem_free(carried);
	return CLV_OK;
}

clv_status data_cuts(const plan *p, const node_id *last, bool *bad)
{
	for (symbol_id s = 0; s < p->symbols.n; s++)
		if (p->symbols.at[s].data)
			TRY(mark_symbol(p, s, last, bad));
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		bool host = x->kind == VALUE_RESULT && x->type != TYPE_TENSOR && x->type != TYPE_OBJECT && last[v] != NONE;
		for (node_id k = x->def; host && k < last[v] && k < p->nodes.n; k++)
			bad[k] = true;
	}
	return CLV_OK;
}
