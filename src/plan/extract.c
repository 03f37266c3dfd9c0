/* Extracts a range of nodes as a plan of its own.
 * Some nodes of a plan as a plan of their own, with nothing in it that those nodes do not need: equal nodes of different
 * models become equal plans.
 *
 * Everything is built anew, in the order of the text: inputs, external values, nodes. Which values share memory is kept: the
 * first value on it is the one that others are views of. Names of inputs, further names of parameters and what the plan was
 * called are left out. */
#include <string.h>

#include "plan/intern.h"
#include "plan/view.h"

typedef struct extractor {
	const plan *from;
	plan *to;
	node_id now;       /* the node being copied */
	expr_id *exprs;    /* per expression of `from`: in `to`; NONE: not there yet. The others likewise */
	real_id *reals;    /* per real */
	symbol_id *syms;   /* per symbol */
	scope_id *scopes;  /* per scope */
	value_id *values;  /* per value */
	value_id *roots;   /* per value that is the first on its memory: the first one there of `to` */
	VEC(expr_id) dims; /* of the value being copied */
	VEC(value_id) origin;
	clv_status st; /* first failure inside a walk */
} extractor;

static clv_status refuse_value(const extractor *x, value_id v, const char *why)
{
	char *label;
	TRY(value_label_text(x->from, v, &label));
	clv_status st = fail(CLV_E_UNSUPPORTED, "%s %s", label, why);
	mem_free(label);
	return st;
}

static clv_status copy_symbol(extractor *x, symbol_id s, expr_id *out)
{
	const symbol *from = &x->from->symbols.at[s];
	if (from->data)
		return fail(CLV_E_UNSUPPORTED, "a size depends on %s, which is read from data", plan_s(x->from, from->name));
	if (x->syms[s] == NONE)
		TRY(plan_symbol(x->to, plan_s(x->from, from->name), from->lo, from->hi, &x->syms[s]));
	return expr_sym(x->to, x->syms[s], out);
}

/* No deeper than an expression may have terms. */
static clv_status copy_expr(extractor *x, expr_id e, expr_id *out)
{
	const expr *from = &x->from->exprs.at[e];
	expr_id a, b;
	*out = x->exprs[e];
	if (*out != NONE)
		return CLV_OK;
	if (from->op == EXPR_CONST) {
		TRY(expr_const(x->to, from->k, out));
	} else if (from->op == EXPR_SYM) {
		TRY(copy_symbol(x, (symbol_id)from->k, out));
	} else {
		TRY(copy_expr(x, from->a, &a));
		TRY(copy_expr(x, from->b, &b));
		TRY(expr_make(x->to, from->op, a, b, out));
	}
	x->exprs[e] = *out;
	return CLV_OK;
}

static clv_status copy_real(extractor *x, real_id r, real_id *out)
{
	const real *from = &x->from->reals.at[r];
	unsigned n = real_operands(from->op);
	real_id a = NONE, b = NONE;
	expr_id e;
	*out = x->reals[r];
	if (*out != NONE)
		return CLV_OK;
	if (n > 0)
		TRY(copy_real(x, from->a, &a));
	if (n > 1)
		TRY(copy_real(x, from->b, &b));
	if (from->op == REAL_CONST) {
		TRY(real_const(x->to, from->k, out));
	} else if (from->op == REAL_INT) {
		TRY(copy_expr(x, from->e, &e));
		TRY(real_int(x->to, e, out));
	} else {
		TRY(real_make(x->to, from->op, a, b, out));
	}
	x->reals[r] = *out;
	return CLV_OK;
}

static clv_status copy_str(extractor *x, str_id s, str_id *out)
{
	const str *from = str_at(x->from, s);
	return plan_str(x->to, from->s, from->n, out);
}

static clv_status copy_dims(extractor *x, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		expr_id e;
		TRY(copy_expr(x, x->from->dims.at[first + i], &e));
		TRY(vec_push(&x->dims, e));
	}
	return CLV_OK;
}

static clv_status copy_tensor(extractor *x, value_id v, value_kind kind)
{
	const value *from = &x->from->values.at[v];
	const char *name = is_module_tensor(from->kind) ? plan_s(x->from, from->name) : NULL;
	tensor_spec t = {.dtype = (dtype)from->dtype, .ndim = from->ndim, .device = plan_s(x->from, from->device)};
	x->dims.n = 0;
	TRY(vec_reserve(&x->dims, 1)); /* also of a scalar */
	TRY(copy_dims(x, from->shape, from->ndim));
	if (from->strides != NONE)
		TRY(copy_dims(x, from->strides, from->ndim));
	t.shape = x->dims.at;
	t.strides = from->strides == NONE ? NULL : x->dims.at + from->ndim;
	return plan_tensor(x->to, kind, name, &t, &x->values[v]);
}

/* As an input: what is the result of a node elsewhere. */
static clv_status copy_value(extractor *x, value_id v, bool as_input)
{
	const value *from = &x->from->values.at[v];
	if (from->type != TYPE_TENSOR)
		return refuse_value(x, v, "is no tensor: it cannot be in a segment");
	if (!as_input && value_guarded(x->from, v))
		return refuse_value(x, v, "has a shape that depends on data: it cannot be in a segment");
	TRY(copy_tensor(x, v, as_input ? VALUE_INPUT : (value_kind)from->kind));
	value *made = &x->to->values.at[x->values[v]];
	value_id *root = &x->roots[alias_root(x->from, v)];
	made->flags = from->flags & (uint8_t)~VALUE_GUARD;
	if (*root == NONE)
		*root = x->values[v];
	else
		made->alias = *root;
	return vec_push(&x->origin, v);
}

static void copy_result(void *ctx, value_id v)
{
	extractor *x = ctx;
	if (x->st == CLV_OK)
		x->st = copy_value(x, v, false);
}

static clv_status extract_args(extractor *x, uint32_t first, uint32_t n, arg *out);

static clv_status copy_list(extractor *x, const arg *from, arg *out)
{
	uint32_t n = from->u.list.n;
	arg *elements = mem_alloc(n * sizeof *elements + 1);
	clv_status st = elements ? extract_args(x, from->u.list.first, n, elements) : fail_nomem();
	if (st == CLV_OK)
		st = plan_list(x->to, elements, n, out);
	mem_free(elements);
	return st;
}

static clv_status copy_arg(extractor *x, const arg *from, arg *out)
{
	*out = *from;
	switch ((arg_kind)from->kind) {
	case ARG_VALUE: out->u.v = x->values[from->u.v]; return CLV_OK;
	case ARG_INT: return copy_expr(x, from->u.e, &out->u.e);
	case ARG_REAL: return copy_real(x, from->u.r, &out->u.r);
	case ARG_STR:
	case ARG_DEVICE: return copy_str(x, from->u.s, &out->u.s);
	case ARG_LIST: return copy_list(x, from, out);
	default: return CLV_OK;
	}
}

static clv_status extract_args(extractor *x, uint32_t first, uint32_t n, arg *out)
{
	for (uint32_t i = 0; i < n; i++)
		TRY(copy_arg(x, &x->from->args.at[first + i], &out[i]));
	return CLV_OK;
}

/* With the modules around it. */
static clv_status copy_scope(extractor *x, scope_id s, scope_id *out)
{
	const scope *from = &x->from->scopes.at[s];
	scope_id up;
	if (x->scopes[s] == NONE) {
		if (from->parent != NONE)
			TRY(copy_scope(x, from->parent, &up));
		TRY(plan_scope(x->to, NONE, plan_s(x->from, from->path), plan_s(x->from, from->cls), &x->scopes[s]));
	}
	*out = x->scopes[s];
	return CLV_OK;
}

static clv_status copy_context(extractor *x, context_id c, context_id *out)
{
	const context *from = &x->from->contexts.at[c];
	VEC(autocast) casts = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < from->nautocast && st == CLV_OK; i++) {
		autocast cast = x->from->autocasts.at[from->autocast + i];
		st = copy_str(x, cast.device, &cast.device);
		if (st == CLV_OK)
			st = vec_push(&casts, cast);
	}
	if (st == CLV_OK)
		st = plan_context(x->to, from, casts.at, out);
	vec_free(&casts);
	return st;
}

static void copy_writes(extractor *x, const node *from, value_id *out)
{
	for (uint32_t i = 0; i < from->nwrites; i++)
		out[i] = x->values[x->from->ids.at[from->writes + i]];
}

/* Into these arrays, which have room. */
static clv_status add_extracted(extractor *x, const node *from, arg *args, arg *results, value_id *writes)
{
	node_spec s = {.op = plan_s(x->from, from->op), .args = args, .results = results, .writes = writes};
	node_id made;
	s.nargs = from->nargs;
	s.nresults = from->nresults;
	s.nwrites = from->nwrites;
	s.scope = NONE;
	s.at = from->at == NONE ? NULL : plan_s(x->from, from->at);
	s.flags = from->flags;
	if (from->scope != NONE)
		TRY(copy_scope(x, from->scope, &s.scope));
	TRY(copy_context(x, from->context, &s.context));
	node_each_result(x->from, x->now, copy_result, x);
	TRY(x->st);
	TRY(extract_args(x, from->args, from->nargs, args));
	TRY(extract_args(x, from->results, from->nresults, results));
	copy_writes(x, from, writes);
	return plan_node(x->to, &s, &made);
}

static clv_status copy_node(extractor *x)
{
	const node *from = &x->from->nodes.at[x->now];
	arg *args = mem_alloc(((size_t)from->nargs + from->nresults + 1) * sizeof *args);
	value_id *writes = mem_alloc(((size_t)from->nwrites + 1) * sizeof *writes);
	clv_status st = args && writes ? add_extracted(x, from, args, args + from->nargs, writes) : fail_nomem();
	mem_free(args);
	mem_free(writes);
	return st;
}

static tree leaf(value_id v)
{
	return (tree){.kind = TREE_VALUE, .u.v = v};
}

/* The arguments: one after another. */
static clv_status add_trees(extractor *x, const view *v)
{
	plan *to = x->to;
	TRY(vec_push(&to->in_tree, ((tree){.kind = TREE_TUPLE, .n = 2})));
	TRY(vec_push(&to->in_tree, ((tree){.kind = TREE_TUPLE, .n = v->inputs.n})));
	for (uint32_t i = 0; i < v->inputs.n; i++)
		TRY(vec_push(&to->in_tree, leaf(x->values[v->inputs.at[i]])));
	TRY(vec_push(&to->in_tree, ((tree){.kind = TREE_DICT})));
	TRY(vec_push(&to->out_tree, ((tree){.kind = TREE_TUPLE, .n = v->outputs.n})));
	for (uint32_t i = 0; i < v->outputs.n; i++)
		TRY(vec_push(&to->out_tree, leaf(x->values[v->outputs.at[i]])));
	return CLV_OK;
}

static clv_status extract_all(extractor *x, const view *v)
{
	TRY(plan_cstr(x->to, "segment", &x->to->model));
	x->to->training = x->from->training;
	x->to->grad_modes = x->from->grad_modes;
	x->to->moved = x->from->moved;
	for (uint32_t i = 0; i < v->inputs.n; i++)
		TRY(copy_value(x, v->inputs.at[i], true));
	for (uint32_t i = 0; i < v->externals.n; i++)
		TRY(copy_value(x, v->externals.at[i], false));
	for (uint32_t i = 0; i < v->nodes.n; i++) {
		x->now = v->nodes.at[i];
		TRY(copy_node(x));
	}
	TRY(add_trees(x, v));
	return plan_verify(x->to);
}

static clv_status extract(extractor *x, node_id first, node_id end)
{
	liveness l;
	view v;
	TRY(liveness_new(x->from, &l));
	clv_status st = view_segment(x->from, &l, first, end, &v);
	liveness_free(&l);
	TRY(st);
	st = extract_all(x, &v);
	view_free(&v);
	return st;
}

static clv_status extractor_init(extractor *x)
{
	const plan *p = x->from;
	x->exprs = mem_ids((size_t)p->exprs.n + 1);
	x->reals = mem_ids((size_t)p->reals.n + 1);
	x->syms = mem_ids((size_t)p->symbols.n + 1);
	x->scopes = mem_ids((size_t)p->scopes.n + 1);
	x->values = mem_ids((size_t)p->values.n + 1);
	x->roots = mem_ids((size_t)p->values.n + 1);
	bool memory = x->exprs && x->reals && x->syms && x->scopes && x->values && x->roots;
	return memory ? plan_new(&x->to) : fail_nomem();
}

static void extractor_free(extractor *x)
{
	mem_free(x->exprs);
	mem_free(x->reals);
	mem_free(x->syms);
	mem_free(x->scopes);
	mem_free(x->values);
	mem_free(x->roots);
	vec_free(&x->dims);
	vec_free(&x->origin);
	plan_free(x->to);
}

clv_status plan_extract(const plan *p, node_id first, node_id end, plan **out, value_id **origin)
{
	extractor x = {.from = p, .st = CLV_OK};
	clv_status st = extractor_init(&x);
	if (st == CLV_OK)
		st = extract(&x, first, end);
	if (st == CLV_OK) {
		*out = x.to;
		x.to = NULL;
	}
	if (st == CLV_OK && origin) {
		*origin = x.origin.at;
		x.origin.at = NULL;
	}
	extractor_free(&x);
	return st;
}

typedef struct orderly {
	value_id next; /* no smaller id may follow */
	bool yes;
} orderly;

static void check_ascending(void *ctx, value_id v)
{
	orderly *o = ctx;
	o->yes &= v >= o->next;
	o->next = v + 1;
}

bool plan_in_text_order(const plan *p)
{
	orderly o = {0, true};
	for (uint32_t i = 0; i < p->inputs.n; i++)
		check_ascending(&o, p->inputs.at[i]);
	for (node_id n = 0; n < p->nodes.n && o.yes; n++)
		node_each_result(p, n, check_ascending, &o);
	return o.yes;
}
