/* Equality of plans: everything a plan says, and nothing about how its arrays are laid out.
 *
 * Two plans are compared in the order of their text. Values correspond by their label (%n, #n or @name), strings by
 * their bytes, expressions, contexts and scopes by what they hold; unused strings, expressions and contexts do not
 * count. NaN equals NaN, 0.0 does not equal -0.0. */
#include <string.h>

#include "plan/intern.h"
#include "plan/same.h"

bool pair_str(const pair *q, str_id a, str_id b)
{
	const str *x = str_at(q->a, a), *y = str_at(q->b, b);
	return x->n == y->n && memcmp(x->s, y->s, x->n) == 0;
}

static bool opt_str_same(const pair *q, str_id a, str_id b)
{
	return (a == NONE) == (b == NONE) && pair_str(q, a, b);
}

/* Symbols of data have the same meaning if they have the same name, and the same range. */
static bool symbol_same(const pair *q, int64_t a, int64_t b)
{
	const symbol *x = &q->a->symbols.at[a], *y = &q->b->symbols.at[b];
	return pair_str(q, x->name, y->name) && x->lo == y->lo && x->hi == y->hi && x->data == y->data;
}

static bool expr_same(const pair *q, expr_id a, expr_id b)
{
	if (a >= q->a->exprs.n || b >= q->b->exprs.n)
		return false;
	if (q->a == q->b && a == b)
		return true;
	if (q->at_a && q->at_b && (q->at_a->defined[a] || q->at_b->defined[b]))
		return q->at_a->defined[a] && q->at_b->defined[b] && q->at_a->value[a] == q->at_b->value[b];
	const expr *x = &q->a->exprs.at[a], *y = &q->b->exprs.at[b];
	if (x->op == EXPR_SYM && y->op == EXPR_SYM)
		return symbol_same(q, x->k, y->k);
	if (x->op != y->op || x->k != y->k)
		return false;
	return x->op <= EXPR_SYM || (expr_same(q, x->a, y->a) && expr_same(q, x->b, y->b));
}

static bool real_same(const pair *q, real_id a, real_id b)
{
	if (a >= q->a->reals.n || b >= q->b->reals.n)
		return false;
	const real *x = &q->a->reals.at[a], *y = &q->b->reals.at[b];
	if (x->op != y->op || !same_bits(x->k, y->k) || (x->op == REAL_INT && !expr_same(q, x->e, y->e)))
		return false;
	unsigned n = real_operands(x->op);
	return (n < 1 || real_same(q, x->a, y->a)) && (n < 2 || real_same(q, x->b, y->b));
}

static bool label_same(const pair *q, value_id a, value_id b)
{
	if (a == NONE || b == NONE || a >= q->a->values.n || b >= q->b->values.n)
		return a == b;
	if (q->same)
		return q->same(q->ctx, a, b);
	const value *x = &q->a->values.at[a], *y = &q->b->values.at[b];
	if (x->kind != y->kind)
		return false;
	if (x->kind == VALUE_CONST && q->same_const)
		return q->same_const(q->ctx, a, b);
	return is_module_tensor(x->kind) ? pair_str(q, x->name, y->name) : value_number(q->a, a) == value_number(q->b, b);
}

static bool args_same(const pair *q, uint32_t a, uint32_t b, uint32_t n, unsigned depth);

bool pair_arg(const pair *q, const arg *x, const arg *y, unsigned depth)
{
	if (x->kind != y->kind || x->wrapped != y->wrapped)
		return false;
	switch ((arg_kind)x->kind) {
	case ARG_NONE: return true;
	case ARG_VALUE: return label_same(q, x->u.v, y->u.v);
	case ARG_INT: return expr_same(q, x->u.e, y->u.e);
	case ARG_FLOAT: return same_bits(x->u.f, y->u.f);
	case ARG_REAL: return real_same(q, x->u.r, y->u.r);
	case ARG_BOOL: return x->u.b == y->u.b;
	case ARG_COMPLEX: return same_bits(x->u.c.re, y->u.c.re) && same_bits(x->u.c.im, y->u.c.im);
	case ARG_STR:
	case ARG_DEVICE: return pair_str(q, x->u.s, y->u.s);
	case ARG_DTYPE:
	case ARG_LAYOUT:
	case ARG_MEMFMT: return x->u.code == y->u.code;
	case ARG_LIST:
		return x->u.list.n == y->u.list.n && args_same(q, x->u.list.first, y->u.list.first, x->u.list.n, depth + 1);
	}
	return false;
}

static bool args_same(const pair *q, uint32_t a, uint32_t b, uint32_t n, unsigned depth)
{
	if (!in_range(a, n, q->a->args.n) || !in_range(b, n, q->b->args.n) || depth > NEST_LIMIT)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!pair_arg(q, &q->a->args.at[a + i], &q->b->args.at[b + i], depth))
			return false;
	return true;
}

void each_value_pair(const plan *p, uint32_t first, const plan *other, uint32_t second, uint32_t n, value_pair_fn f,
                     void *ctx)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &p->args.at[first + i], *y = &other->args.at[second + i];
		if (x->kind == ARG_VALUE && y->kind == ARG_VALUE)
			f(ctx, x->u.v, y->u.v);
		else if (x->kind == ARG_LIST && y->kind == ARG_LIST)
			each_value_pair(p, x->u.list.first, other, y->u.list.first,
			                x->u.list.n < y->u.list.n ? x->u.list.n : y->u.list.n, f, ctx);
	}
}

bool pair_dims(const pair *q, uint32_t a, uint32_t b, uint32_t n)
{
	if (a == NONE || b == NONE)
		return a == b;
	for (uint32_t i = 0; i < n; i++)
		if (!expr_same(q, q->a->dims.at[a + i], q->b->dims.at[b + i]))
			return false;
	return true;
}

static bool value_same(const pair *q, value_id a, value_id b)
{
	const value *x = &q->a->values.at[a], *y = &q->b->values.at[b];
	if (!label_same(q, a, b) || x->type != y->type || x->flags != y->flags || !opt_str_same(q, x->name, y->name))
		return false;
	if (!label_same(q, x->alias, y->alias) || (x->expect == NONE) != (y->expect == NONE))
		return false;
	if (x->expect != NONE && !args_same(q, x->expect, y->expect, 1, 0))
		return false;
	if (x->type != TYPE_TENSOR)
		return true;
	return x->dtype == y->dtype && x->ndim == y->ndim && pair_str(q, x->device, y->device) &&
	       pair_dims(q, x->shape, y->shape, x->ndim) && pair_dims(q, x->strides, y->strides, x->ndim);
}

static bool symbols_same(const pair *q)
{
	if (q->a->symbols.n != q->b->symbols.n)
		return false;
	for (uint32_t i = 0; i < q->a->symbols.n; i++)
		if (!symbol_same(q, i, i))
			return false;
	return true;
}

static bool heads_same(const pair *q)
{
	const plan *a = q->a, *b = q->b;
	if (!pair_str(q, a->model, b->model) || a->training != b->training || a->grad_modes != b->grad_modes ||
	    a->moved != b->moved)
		return false;
	if (!symbols_same(q) || a->scopes.n != b->scopes.n)
		return false;
	for (uint32_t i = 0; i < a->scopes.n; i++) {
		const scope *x = &a->scopes.at[i], *y = &b->scopes.at[i];
		if (x->parent != y->parent || !pair_str(q, x->path, y->path) || !pair_str(q, x->cls, y->cls))
			return false;
	}
	return true;
}

static value_id next_external(const plan *p, value_id v)
{
	while (v < p->values.n && !is_external(p->values.at[v].kind))
		v++;
	return v;
}

static bool inputs_same(const pair *q)
{
	const plan *a = q->a, *b = q->b;
	if (a->inputs.n != b->inputs.n)
		return false;
	for (uint32_t i = 0; i < a->inputs.n; i++)
		if (!value_same(q, a->inputs.at[i], b->inputs.at[i]))
			return false;
	return true;
}

static bool declarations_same(const pair *q)
{
	const plan *a = q->a, *b = q->b;
	if (!inputs_same(q))
		return false;
	value_id x = next_external(a, 0), y = next_external(b, 0);
	while (x < a->values.n && y < b->values.n) {
		if (!value_same(q, x, y))
			return false;
		x = next_external(a, x + 1);
		y = next_external(b, y + 1);
	}
	return x == a->values.n && y == b->values.n;
}

bool pair_context(const pair *q, context_id a, context_id b)
{
	const context *x = &q->a->contexts.at[a], *y = &q->b->contexts.at[b];
	if (x->nograd != y->nograd || x->inference != y->inference || x->flags_mask != y->flags_mask ||
	    x->flags != y->flags || x->nautocast != y->nautocast)
		return false;
	for (uint32_t i = 0; i < x->nautocast; i++) {
		const autocast *s = &q->a->autocasts.at[x->autocast + i], *t = &q->b->autocasts.at[y->autocast + i];
		if (s->dtype != t->dtype || s->cache != t->cache || !pair_str(q, s->device, t->device))
			return false;
	}
	return true;
}

/* The results of both nodes have the same labels; compare what the values are. */
static bool results_same(const pair *q, uint32_t a, uint32_t b, uint32_t n, unsigned depth)
{
	if (depth > NEST_LIMIT)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &q->a->args.at[a + i], *y = &q->b->args.at[b + i];
		if (x->kind == ARG_VALUE && !value_same(q, x->u.v, y->u.v))
			return false;
		if (x->kind == ARG_LIST && !results_same(q, x->u.list.first, y->u.list.first, x->u.list.n, depth + 1))
			return false;
	}
	return true;
}

bool pair_call(const pair *q, const node *x, const node *y)
{
	if (!pair_str(q, x->op, y->op) || x->flags != y->flags || x->nargs != y->nargs || x->nresults != y->nresults ||
	    x->nwrites != y->nwrites)
		return false;
	if (!pair_context(q, x->context, y->context) || !args_same(q, x->args, y->args, x->nargs, 0))
		return false;
	for (uint32_t i = 0; i < x->nwrites; i++)
		if (!label_same(q, q->a->ids.at[x->writes + i], q->b->ids.at[y->writes + i]))
			return false;
	return true;
}

bool pair_results(const pair *q, const node *x, const node *y)
{
	return args_same(q, x->results, y->results, x->nresults, 0) &&
	       results_same(q, x->results, y->results, x->nresults, 0);
}

static bool node_same(const pair *q, const node *x, const node *y)
{
	return pair_call(q, x, y) && opt_str_same(q, x->at, y->at) && x->scope == y->scope && pair_results(q, x, y);
}

static bool nodes_same(const pair *q, node_id end)
{
	for (node_id n = 0; n < end; n++)
		if (!node_same(q, &q->a->nodes.at[n], &q->b->nodes.at[n]))
			return false;
	return true;
}

bool pair_leaf(const pair *q, const tree *x, const tree *y)
{
	if (x->kind != y->kind || x->n != y->n)
		return false;
	arg a, b;
	if (leaf_as_arg(x, &a) && leaf_as_arg(y, &b))
		return pair_arg(q, &a, &b, 0);
	bool text = x->kind == TREE_BYTES || x->kind == TREE_OPAQUE || x->kind == TREE_OBJECT;
	return !text || pair_str(q, x->u.s, y->u.s);
}

/* Prefix order and child counts make the whole tree: part by part is enough. */
static bool trees_same(const pair *q, const trees *x, const trees *y)
{
	if (x->n != y->n)
		return false;
	for (uint32_t i = 0; i < x->n; i++)
		if (!pair_leaf(q, &x->at[i], &y->at[i]))
			return false;
	return true;
}

static bool rebinds_same(const pair *q)
{
	if (q->a->rebinds.n != q->b->rebinds.n)
		return false;
	for (uint32_t i = 0; i < q->a->rebinds.n; i++) {
		const rebind *x = &q->a->rebinds.at[i], *y = &q->b->rebinds.at[i];
		if (!label_same(q, x->target, y->target) || !label_same(q, x->value, y->value))
			return false;
	}
	return true;
}

static bool tie_same(const pair *q, const tie *x, const tie *y)
{
	return label_same(q, x->value, y->value) && pair_str(q, x->name, y->name);
}

/* Which of the ties of one value may stand in any place of the array, as only their order per value means something:
   the next tie of the same value in b after `from`. */
static uint32_t next_tie_of(const pair *q, value_id v, uint32_t from)
{
	while (from < q->b->ties.n && !label_same(q, v, q->b->ties.at[from].value))
		from++;
	return from;
}

static bool unsorted_ties_same(const pair *q)
{
	for (uint32_t i = 0; i < q->a->ties.n; i++) {
		value_id v = q->a->ties.at[i].value;
		uint32_t k = next_tie_of(q, v, 0);
		for (uint32_t j = 0; j < i; j++)
			if (q->a->ties.at[j].value == v)
				k = next_tie_of(q, v, k + 1);
		if (k >= q->b->ties.n || !pair_str(q, q->a->ties.at[i].name, q->b->ties.at[k].name))
			return false;
	}
	return true;
}

static bool ties_same(const pair *q)
{
	if (q->a->ties.n != q->b->ties.n)
		return false;
	if (!ties_sorted(q->a) || !ties_sorted(q->b))
		return unsorted_ties_same(q);
	for (uint32_t i = 0; i < q->a->ties.n; i++)
		if (!tie_same(q, &q->a->ties.at[i], &q->b->ties.at[i]))
			return false;
	return true;
}

static bool groups_same(const plan *a, const plan *b)
{
	bool same = a->groups.n == b->groups.n;
	for (uint32_t i = 0; same && i < a->groups.n; i++)
		same = a->groups.at[i].first == b->groups.at[i].first && a->groups.at[i].end == b->groups.at[i].end;
	return same;
}

bool plan_equal(const plan *a, const plan *b)
{
	const pair q = {a, b, NULL, NULL};
	return heads_same(&q) && declarations_same(&q) && ties_same(&q) && a->nodes.n == b->nodes.n &&
	       nodes_same(&q, a->nodes.n) && groups_same(a, b) && rebinds_same(&q) &&
	       trees_same(&q, &a->in_tree, &b->in_tree) && trees_same(&q, &a->out_tree, &b->out_tree);
}

static clv_status eval_exprs(const plan *p, const int64_t *symbols, expr_values *out)
{
	out->value = mem_alloc((p->exprs.n + 1) * sizeof *out->value);
	out->defined = mem_alloc((p->exprs.n + 1) * sizeof *out->defined);
	return out->value && out->defined ? expr_eval_all(p, symbols, out->value, out->defined) : fail_nomem();
}

static void free_exprs(expr_values *x)
{
	mem_free(x->value);
	mem_free(x->defined);
}

clv_status plan_same_at(const plan *a, const int64_t *symbols_a, const plan *b, const int64_t *symbols_b, node_id end,
                        bool (*same_const)(void *ctx, value_id a, value_id b), void *ctx, bool *out)
{
	expr_values x = {NULL, NULL}, y = {NULL, NULL};
	const pair q = {.a = a, .b = b, .same_const = same_const, .ctx = ctx, .at_a = &x, .at_b = &y};
	clv_status st = eval_exprs(a, symbols_a, &x);
	if (st == CLV_OK)
		st = eval_exprs(b, symbols_b, &y);
	if (st == CLV_OK)
		*out = end <= a->nodes.n && end <= b->nodes.n && inputs_same(&q) && nodes_same(&q, end);
	free_exprs(&x);
	free_exprs(&y);
	return st;
}
