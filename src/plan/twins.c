/* Matches the train and eval plans of one model, node by node.
 * One walk over both: a node of p is either the next one of the other plan, or it is in p alone. Whatever pairs it
 * finds, leaving out the nodes in p alone gives the other plan: each of its nodes was found, in order, with the values
 * that it takes there. */
#include "plan/twins.h"

#include <string.h>

#include "plan/intern.h"
#include "plan/same.h"

typedef struct walk {
	twins *t;
	pair q;
	same_data same;
	void *ctx;
	node_id at;     /* of p, in hand */
	value_id *of;   /* twins->value, and values that stand for others */
	value_id *from; /* per value of the other: of p, for inputs and results of twins */
} walk;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The value of p for one of the other; NONE. */
static value_id own_value(const walk *w, value_id b)
{
	const plan *p = w->t->p, *other = w->t->other;
	const value *y = &other->values.at[b];
	if (!is_module_tensor(y->kind))
		return w->from[b];
	const str *name = str_at(other, y->name);
	str_id own = str_find(p, name->s, name->n);
	value_id a = own == NONE ? NONE : external_find(p, own);
	return a != NONE && p->values.at[a].kind == y->kind ? a : NONE;
}

/* b may stand for a, which a node makes that is in p alone: it is there before. */
static bool may_stand(const walk *w, value_id a, value_id b)
{
	const plan *p = w->t->p;
	node_id made = p->values.at[a].def;
	if (made == NONE || made >= w->at || w->t->node[made] != NONE)
		return false;
	value_id own = own_value(w, b);
	if (own == NONE || p->values.at[own].type != TYPE_TENSOR || p->values.at[a].type != TYPE_TENSOR)
		return false;
	return p->values.at[own].def == NONE || p->values.at[own].def < made;
}

static bool values_match(void *ctx, value_id a, value_id b)
{
	const walk *w = ctx;
	const value *x = &w->t->p->values.at[a], *y = &w->t->other->values.at[b];
	if (w->of[a] != NONE)
		return w->of[a] == b;
	if (x->kind == VALUE_RESULT)
		return may_stand(w, a, b);
	if (x->kind != y->kind || x->kind == VALUE_INPUT)
		return false;
	if (is_module_tensor(x->kind))
		return pair_str(&w->q, x->name, y->name);
	return w->same && w->same(w->ctx, a, b);
}

/* What values_match has found is so from now on. */
static void keep_value(void *ctx, value_id a, value_id b)
{
	walk *w = ctx;
	if (w->of[a] != NONE)
		return;
	w->of[a] = b;
	if (w->t->p->values.at[a].kind == VALUE_RESULT)
		w->t->stand[a] = own_value(w, b);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* It reads the same whatever the sizes and values are. */
static bool is_literal(const plan *p, const arg *a, bool inside)
{
	int64_t k;
	if (a->kind == ARG_INT)
		return expr_is_const(p, a->u.e, &k);
	if (a->kind != ARG_LIST)
		return a->kind != ARG_VALUE && a->kind != ARG_REAL;
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (inside || !is_literal(p, &p->args.at[a->u.list.first + i], true))
			return false;
	return true;
}

static bool arg_matches(const walk *w, const arg *x, const arg *y)
{
	if (pair_arg(&w->q, x, y, 0))
		return true;
	return x->wrapped == y->wrapped && is_literal(w->t->p, x, false) && is_literal(w->t->other, y, false);
}

static bool value_looks(const walk *w, value_id a, value_id b)
{
	const value *x = &w->t->p->values.at[a], *y = &w->t->other->values.at[b];
	if (x->type != y->type || x->dtype != y->dtype || x->ndim != y->ndim || (x->expect == NONE) != (y->expect == NONE))
		return false;
	if ((x->flags ^ y->flags) & VALUE_ODD)
		return false;
	if (x->type == TYPE_TENSOR && (x->flags | y->flags) & VALUE_GUARD && !pair_dims(&w->q, x->shape, y->shape, x->ndim))
		return false;
	return x->expect == NONE || pair_arg(&w->q, &w->t->p->args.at[x->expect], &w->t->other->args.at[y->expect], 0);
}

static bool results_match(const walk *w, uint32_t a, uint32_t b, uint32_t n)
{
	const plan *p = w->t->p, *other = w->t->other;
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &p->args.at[a + i], *y = &other->args.at[b + i];
		bool list = x->kind == ARG_LIST && y->kind == ARG_LIST && x->u.list.n == y->u.list.n;
		if (x->kind != y->kind || (x->kind == ARG_VALUE && !value_looks(w, x->u.v, y->u.v)) ||
		    (x->kind == ARG_LIST && !(list && results_match(w, x->u.list.first, y->u.list.first, x->u.list.n))))
			return false;
	}
	return true;
}

static bool nodes_match(const walk *w, node_id a, node_id b)
{
	const plan *p = w->t->p, *other = w->t->other;
	const node *x = &p->nodes.at[a], *y = &other->nodes.at[b];
	if (!pair_str(&w->q, x->op, y->op) || strcmp(module_path(p, a), module_path(other, b)) != 0)
		return false;
	if (x->nargs != y->nargs || x->nresults != y->nresults || !pair_context(&w->q, x->context, y->context))
		return false;
	for (uint32_t i = 0; i < x->nargs; i++)
		if (!arg_matches(w, &p->args.at[x->args + i], &other->args.at[y->args + i]))
			return false;
	return results_match(w, x->results, y->results, x->nresults);
}

static void keep_result(void *ctx, value_id a, value_id b)
{
	walk *w = ctx;
	w->of[a] = b;
	w->from[b] = a;
}

static clv_status fail_place(const plan *p, node_id n)
{
	strbuf place = STRBUF_INIT;
	char *text = NULL;
	place_print(p, n, &place);
	TRY(strbuf_take(&place, &text));
	clv_status st = fail(CLV_E_UNSUPPORTED, "%s%s has no counterpart", plan_s(p, p->nodes.at[n].op), text);
	mem_free(text);
	return st;
}

static clv_status walk_nodes(walk *w)
{
	const plan *p = w->t->p, *other = w->t->other;
	node_id next = 0;
	for (w->at = 0; w->at < p->nodes.n; w->at++) {
		w->t->node[w->at] = NONE;
		if (next == other->nodes.n || !nodes_match(w, w->at, next))
			continue;
		const node *x = &p->nodes.at[w->at], *y = &other->nodes.at[next];
		each_value_pair(p, x->args, other, y->args, x->nargs, keep_value, w);
		if (!nodes_match(w, w->at, next)) /* one value cannot be stood for by two */
			return fail_place(other, next);
		each_value_pair(p, x->results, other, y->results, x->nresults, keep_result, w);
		w->t->node[w->at] = next++;
	}
	return next == other->nodes.n ? CLV_OK : fail_place(other, next);
}

/* ---- what goes in and out ---------------------------------------------------------------------------------------- */

static bool inputs_match(walk *w)
{
	const plan *p = w->t->p, *other = w->t->other;
	if (p->inputs.n != other->inputs.n || p->symbols.n != other->symbols.n)
		return false;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		if (!pair_str(&w->q, p->symbols.at[i].name, other->symbols.at[i].name))
			return false;
	for (uint32_t i = 0; i < p->inputs.n; i++)
		keep_result(w, p->inputs.at[i], other->inputs.at[i]);
	return true;
}

static bool outputs_match(walk *w)
{
	const plan *p = w->t->p, *other = w->t->other;
	if (p->out_tree.n != other->out_tree.n || p->rebinds.n != other->rebinds.n)
		return false;
	for (uint32_t i = 0; i < p->out_tree.n; i++) {
		const tree *x = &p->out_tree.at[i], *y = &other->out_tree.at[i];
		if (!pair_leaf(&w->q, x, y))
			return false;
		if (x->kind == TREE_VALUE)
			keep_value(w, x->u.v, y->u.v);
	}
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		const rebind *x = &p->rebinds.at[i], *y = &other->rebinds.at[i];
		if (!values_match(w, x->target, y->target) || !values_match(w, x->value, y->value))
			return false;
		keep_value(w, x->value, y->value);
	}
	return true;
}

static clv_status walk_all(walk *w)
{
	if (!inputs_match(w))
		return fail(CLV_E_UNSUPPORTED, "it has other inputs or sizes");
	TRY(walk_nodes(w));
	if (!outputs_match(w))
		return fail(CLV_E_UNSUPPORTED, "it gives another output, or keeps other tensors");
	return CLV_OK;
}

clv_status twins_find(const plan *p, const plan *other, same_data same, void *ctx, twins *out)
{
	*out = (twins){p, other, mem_ids(p->nodes.n), mem_ids(p->values.n), mem_ids(p->values.n)};
	walk w = {out, {p, other, values_match, &w}, same, ctx, 0, out->value, mem_ids(other->values.n)};
	clv_status st = out->node && out->stand && w.of && w.from ? walk_all(&w) : fail_nomem();
	mem_free(w.from);
	if (st != CLV_OK)
		twins_free(out);
	return st;
}

void twins_free(twins *t)
{
	mem_free(t->node);
	mem_free(t->value);
	mem_free(t->stand);
	*t = (twins){0};
}

bool twins_alone(const twins *t, node_id n)
{
	return t && t->node[n] == NONE;
}

bool twins_absent(const twins *t, value_id v)
{
	node_id made = t ? t->p->values.at[v].def : NONE;
	return made != NONE && t->node[made] == NONE && t->stand[v] == NONE;
}

const arg *twins_arg(const twins *t, node_id n, uint32_t i)
{
	if (!t || t->node[n] == NONE)
		return NULL;
	const pair q = {t->p, t->other, NULL, NULL};
	const arg *x = &t->p->args.at[t->p->nodes.at[n].args + i];
	const arg *y = &t->other->args.at[t->other->nodes.at[t->node[n]].args + i];
	bool constant = is_literal(t->p, x, false) && is_literal(t->other, y, false);
	return constant && !pair_arg(&q, x, y, 0) ? y : NULL;
}

bool twins_guarded(const twins *t, const plan *p, value_id v)
{
	bool there = t && t->value[v] != NONE && t->stand[v] == NONE;
	return (p->values.at[v].flags | (there ? t->other->values.at[t->value[v]].flags : 0)) & VALUE_GUARD;
}

void twins_spread(const twins *t, bool *written)
{
	for (value_id v = 0; t && v < t->p->values.n; v++)
		if (t->stand[v] != NONE && written[alias_root(t->p, v)])
			written[alias_root(t->p, t->stand[v])] = true;
}
