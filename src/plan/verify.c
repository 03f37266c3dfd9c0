/* Verifies the rules that every plan must keep.
 *
 * A plan that verifies can be printed, parsed, cut and run without any further check of its ids. Everything is one
 * pass over the arrays, from the parts to the whole: strings and expressions, declarations, arguments, nodes, trees.
 * An error names the node (or value) and the rule. */
#include <string.h>

#include "plan/intern.h"
#include "plan/words.h"

enum { MOST_NAME = 1000, MOST_SYMBOL = 64 }; /* bytes */

typedef struct verifier {
	const plan *p;
	node_id node;      /* being checked; NONE outside of nodes */
	uint8_t *depth;    /* per argument: how deep the lists below it go */
	bool *defined;     /* per value: by an input line, a declaration or an earlier node */
	uint32_t *touched; /* per value: 1 + the last node that has it, or an alias of it, among arguments or results */
	bool *named;       /* per string: a module tensor has it as its name */
	clv_status st;     /* first failure inside a walk */
} verifier;

/* ---- errors ----------------------------------------------------------------------------------------------------- */

/* One line of a node is enough for a message; a long one is cut, not inside a character. */
static void print_short(const plan *p, node_id n, strbuf *b)
{
	size_t most = 300;
	node_print(p, n, b);
	if (b->failed || b->n <= most)
		return;
	while (most > 0 && ((unsigned char)b->at[most] & 0xC0) == 0x80)
		most--;
	b->n = most;
	strbuf_puts(b, " …");
}

/* "node relu_1 (%4 = aten::relu(%3) -> f32[2])" before the message; keeps the message if memory runs out. */
static clv_status blame_node(const verifier *v, node_id n)
{
	node_names *names = NULL;
	strbuf b = STRBUF_INIT;
	char *text = NULL, *said = mem_strdup(status_message(), strlen(status_message()));
	print_short(v->p, n, &b);
	if (said && strbuf_take(&b, &text) == CLV_OK && node_names_new(v->p, &names) == CLV_OK)
		fail(CLV_E_VERIFY, "node %s (%s): %s", node_name(names, n), text, said);
	else
		fail(CLV_E_VERIFY, "node %u: %s", n, said ? said : "it breaks a rule");
	strbuf_free(&b);
	node_names_free(names);
	mem_free(text);
	mem_free(said);
	return CLV_E_VERIFY;
}

static clv_status broken(const verifier *v, const char *fmt, ...) PRINTF_LIKE(2, 3);

static clv_status broken(const verifier *v, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	status_vfail(CLV_E_VERIFY, __FILE__, __LINE__, fmt, ap);
	va_end(ap);
	return v->node == NONE ? CLV_E_VERIFY : blame_node(v, v->node);
}

/* "<label of x> <rule>" */
static clv_status broken_value(const verifier *v, value_id x, const char *rule)
{
	char *text;
	TRY(value_label_text(v->p, x, &text));
	clv_status st = broken(v, "%s %s", text, rule);
	mem_free(text);
	return st;
}

/* ---- strings, symbols, expressions, scopes, contexts ------------------------------------------------------------ */

static bool str_ok(const plan *p, str_id s)
{
	return s < p->strs.n;
}

static bool str_ok_or_none(const plan *p, str_id s)
{
	return s == NONE || s < p->strs.n;
}

static clv_status check_symbols(const verifier *v)
{
	enum { MOST_GIVEN = 256, MOST_DATA = 1 << 16 }; /* some work is their number times that of nodes or inputs */
	const plan *p = v->p;
	uint32_t data = 0;
	for (symbol_id i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		data += s->data == 1;
		if (i + 1 - data > MOST_GIVEN || data > MOST_DATA)
			return broken(v, "there are more than %d sizes, or more than %d that are read from data", MOST_GIVEN,
			              MOST_DATA);
		size_t length = str_ok(p, s->name) ? str_at(p, s->name)->n : 0;
		if (!length || length > MOST_SYMBOL || !symbol_name_ok(plan_s(p, s->name), length))
			return broken(v, "symbol %u has no valid name", i);
		if (symbol_find(p, s->name) != i)
			return broken(v, "there are two symbols %s", plan_s(p, s->name));
		if (s->data > 1)
			return broken(v, "symbol %s is of no known kind", plan_s(p, s->name));
		if (s->lo < 0 || s->lo > s->hi)
			return broken(v, "symbol %s has no valid range: %lld..%lld", plan_s(p, s->name), (long long)s->lo,
			              (long long)s->hi);
	}
	return CLV_OK;
}

static clv_status check_exprs(const verifier *v)
{
	const plan *p = v->p;
	for (expr_id i = 0; i < p->exprs.n; i++) {
		const expr *e = &p->exprs.at[i];
		bool leaf = e->op == EXPR_CONST || e->op == EXPR_SYM;
		if (e->op > EXPR_MAX)
			return broken(v, "expression %u has no operator", i);
		if (leaf ? e->a != NONE || e->b != NONE : e->a >= i || e->b >= i)
			return broken(v, "expression %u does not come after its operands", i);
		if (e->op == EXPR_SYM && (e->k < 0 || e->k >= p->symbols.n))
			return broken(v, "expression %u names a symbol that does not exist", i);
	}
	for (uint32_t i = 0; i < p->dims.n; i++)
		if (p->dims.at[i] >= p->exprs.n)
			return broken(v, "a size names an expression that does not exist");
	return CLV_OK;
}

static clv_status check_reals(const verifier *v)
{
	const plan *p = v->p;
	for (real_id i = 0; i < p->reals.n; i++) {
		const real *r = &p->reals.at[i];
		if (r->op > REAL_POW)
			return broken(v, "float %u has no operator", i);
		unsigned n = real_operands(r->op);
		if ((n > 0 ? r->a >= i : r->a != NONE) || (n > 1 ? r->b >= i : r->b != NONE))
			return broken(v, "float %u does not come after its operands", i);
		if (r->op == REAL_INT ? r->e >= p->exprs.n : r->e != NONE)
			return broken(v, "float %u names an expression that does not exist", i);
	}
	return CLV_OK;
}

static clv_status check_scopes(const verifier *v)
{
	const plan *p = v->p;
	for (scope_id i = 0; i < p->scopes.n; i++) {
		const scope *s = &p->scopes.at[i];
		if (!str_ok(p, s->path) || !str_ok(p, s->cls))
			return broken(v, "scope %u has no path or class", i);
		const str *path = str_at(p, s->path);
		if (scope_find(p, s->path) != i)
			return broken(v, "there are two scopes \"%s\"", path->s);
		scope_id up = scope_ancestor(p, path->s, path->n, i);
		if (s->parent != up || (up == NONE && path->n > 0))
			return broken(v, "scope \"%s\" does not come after its parent, or names another one", path->s);
	}
	return CLV_OK;
}

static clv_status check_autocasts(const verifier *v, const context *c)
{
	const plan *p = v->p;
	if (!in_range(c->autocast, c->nautocast, p->autocasts.n))
		return broken(v, "a context has autocasts that do not exist");
	for (uint32_t i = 0; i < c->nautocast; i++) {
		const autocast *a = &p->autocasts.at[c->autocast + i];
		if (!str_ok(p, a->device) || a->dtype >= DT_COUNT)
			return broken(v, "an autocast has no valid device or dtype");
	}
	return CLV_OK;
}

static clv_status check_contexts(const verifier *v)
{
	const plan *p = v->p;
	const context *d = p->contexts.at;
	if (p->contexts.n == 0 || d->nograd || d->inference || d->nautocast || d->flags_mask)
		return broken(v, "context 0 is not the default");
	for (context_id i = 0; i < p->contexts.n; i++) {
		const context *c = &p->contexts.at[i];
		if (c->flags_mask >> CTX_FLAG_COUNT || c->flags & ~c->flags_mask)
			return broken(v, "context %u sets flags that do not exist", i);
		TRY(check_autocasts(v, c));
	}
	return CLV_OK;
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

/* A list lies before the argument that names it: lists cannot contain themselves. */
static clv_status check_list(const verifier *v, uint32_t at)
{
	const arg *a = &v->p->args.at[at];
	if (!in_range(a->u.list.first, a->u.list.n, at))
		return broken(v, "a list does not lie before its use");
	unsigned deepest = 0;
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (v->depth[a->u.list.first + i] > deepest)
			deepest = v->depth[a->u.list.first + i];
	if (deepest >= NEST_LIMIT)
		return broken(v, "lists are nested deeper than %d", NEST_LIMIT);
	v->depth[at] = (uint8_t)(deepest + 1);
	return CLV_OK;
}

static bool is_number(uint8_t kind)
{
	return kind == ARG_INT || kind == ARG_FLOAT || kind == ARG_BOOL || kind == ARG_COMPLEX || kind == ARG_REAL;
}

static clv_status check_arg(const verifier *v, uint32_t at)
{
	const plan *p = v->p;
	const arg *a = &p->args.at[at];
	bool ok = a->kind <= ARG_REAL;
	if (a->kind == ARG_VALUE)
		ok = a->u.v < p->values.n;
	else if (a->kind == ARG_INT)
		ok = a->u.e < p->exprs.n;
	else if (a->kind == ARG_REAL)
		ok = a->u.r < p->reals.n;
	else if (a->kind == ARG_STR || a->kind == ARG_DEVICE)
		ok = str_ok(p, a->u.s);
	else if (a->kind == ARG_DTYPE)
		ok = a->u.code < DT_COUNT;
	else if (a->kind == ARG_LAYOUT || a->kind == ARG_MEMFMT)
		ok = a->u.code < (a->kind == ARG_LAYOUT ? LAYOUT_COUNT : MEMFMT_COUNT);
	if (!ok)
		return broken(v, "argument %u of the plan names something that does not exist", at);
	bool host = a->kind == ARG_VALUE && p->values.at[a->u.v].type != TYPE_TENSOR;
	if (a->wrapped > 1 || (a->wrapped && !is_number(a->kind) && !host))
		return broken(v, "argument %u of the plan is wrapped, but no number", at);
	return a->kind == ARG_LIST ? check_list(v, at) : CLV_OK;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static clv_status verify_sizes(const verifier *v, value_id id)
{
	const plan *p = v->p;
	const value *x = &p->values.at[id];
	if (!in_range(x->shape, x->ndim, p->dims.n) || (x->strides != NONE && !in_range(x->strides, x->ndim, p->dims.n)))
		return broken_value(v, id, "has sizes that do not exist");
	if (x->ndim > MOST_DIMS)
		return broken_value(v, id, "has more than 64 dimensions");
	for (uint32_t i = 0; i < x->ndim; i++) {
		int64_t k;
		if (expr_is_const(p, p->dims.at[x->shape + i], &k) && k < 0)
			return broken_value(v, id, "has a negative size");
	}
	return CLV_OK;
}

static clv_status verify_tensor(const verifier *v, value_id id)
{
	const value *x = &v->p->values.at[id];
	if (x->dtype >= DT_COUNT)
		return broken_value(v, id, "has no dtype");
	if (!str_ok(v->p, x->device))
		return broken_value(v, id, "has no device");
	if (x->expect != NONE)
		return broken_value(v, id, "is a tensor and cannot be compared with a literal");
	if (x->flags & VALUE_GUARD && x->kind != VALUE_RESULT)
		return broken_value(v, id, "has a guard, but is no result");
	if (x->flags & VALUE_TRAINABLE && x->kind != VALUE_PARAM)
		return broken_value(v, id, "is trainable, but no parameter");
	if (x->flags & VALUE_PERSISTENT && x->kind != VALUE_CONST)
		return broken_value(v, id, "is persistent, but no constant");
	return verify_sizes(v, id);
}

static bool literal_fits(const plan *p, const value *x)
{
	static const uint8_t kinds[] = {ARG_NONE, ARG_BOOL, ARG_INT, ARG_FLOAT, ARG_COMPLEX, ARG_STR, ARG_NONE};
	if (x->expect >= p->args.n || x->type == TYPE_OBJECT)
		return false;
	const arg *a = &p->args.at[x->expect];
	if (x->type == TYPE_FLOAT && a->kind == ARG_LIST) { /* [low, high] */
		const arg *ends = &p->args.at[a->u.list.first];
		return a->u.list.n == 2 && ends[0].kind == ARG_FLOAT && ends[1].kind == ARG_FLOAT && !ends[0].wrapped &&
		       !ends[1].wrapped && ends[0].u.f <= ends[1].u.f;
	}
	return (a->kind == kinds[x->type] || (a->kind == ARG_REAL && x->type == TYPE_FLOAT)) && !a->wrapped;
}

static clv_status check_host(const verifier *v, value_id id)
{
	const value *x = &v->p->values.at[id];
	if (x->kind != VALUE_RESULT && x->kind != VALUE_OBJECT)
		return broken_value(v, id, "is no tensor; only results and objects can be");
	if (x->kind == VALUE_OBJECT && x->type != TYPE_OBJECT)
		return broken_value(v, id, "is an object of another type");
	if (x->flags & ~VALUE_GUARD || x->alias != NONE || x->ndim)
		return broken_value(v, id, "has marks that only tensors have");
	bool guard = x->flags & VALUE_GUARD;
	if (guard != (x->expect != NONE) || (guard && (x->kind != VALUE_RESULT || !literal_fits(v->p, x))))
		return broken_value(v, id, "has a guard that does not fit its type");
	return CLV_OK;
}

/* Source and reports write a name at every use: a long one would make them as large as names times nodes. */
static clv_status check_length(const verifier *v, value_id id, str_id name)
{
	if (str_at(v->p, name)->n > MOST_NAME)
		return broken_value(v, id, "has a name of more than 1000 bytes");
	return CLV_OK;
}

/* Each module tensor, and each further name of one, is a name of its own. */
static clv_status claim_name(const verifier *v, value_id id, str_id name)
{
	if (!str_ok(v->p, name))
		return broken_value(v, id, "has no name");
	TRY(check_length(v, id, name));
	if (v->named[name])
		return broken_value(v, id, "has a name that another one has");
	v->named[name] = true;
	return CLV_OK;
}

static clv_status check_name(const verifier *v, value_id id)
{
	const value *x = &v->p->values.at[id];
	if (is_module_tensor(x->kind))
		return claim_name(v, id, x->name);
	if (x->kind == VALUE_OBJECT ? !str_ok(v->p, x->name) : !str_ok_or_none(v->p, x->name))
		return broken_value(v, id, "has a name that does not exist");
	if (x->name != NONE)
		TRY(check_length(v, id, x->name));
	if ((x->kind == VALUE_RESULT || x->kind == VALUE_CONST) && x->name != NONE)
		return broken_value(v, id, "is a result or constant, which have no name");
	return CLV_OK;
}

static clv_status check_value(const verifier *v, value_id id)
{
	const value *x = &v->p->values.at[id];
	if (x->kind > VALUE_RESULT || x->type > TYPE_OBJECT)
		return broken(v, "value %u has no kind or type", id);
	TRY(check_name(v, id));
	if (x->kind != VALUE_RESULT && x->def != NONE)
		return broken_value(v, id, "is no result, but has a node that defines it");
	if (x->flags & ~(VALUE_TRAINABLE | VALUE_GUARD | VALUE_PERSISTENT | VALUE_GRAD | VALUE_ODD))
		return broken_value(v, id, "has an unknown flag");
	if (x->alias != NONE && x->alias >= v->p->values.n)
		return broken_value(v, id, "is a view of a value that does not exist");
	return x->type == TYPE_TENSOR ? verify_tensor(v, id) : check_host(v, id);
}

/* Called when `id` becomes defined, in the order of the text: its root must be defined by then. */
static clv_status check_alias(const verifier *v, value_id id)
{
	value_id root = v->p->values.at[id].alias;
	if (root == NONE)
		return CLV_OK;
	if (v->p->values.at[root].type != TYPE_TENSOR)
		return broken_value(v, id, "is a view of something that is no tensor");
	if (v->p->values.at[root].alias != NONE)
		return broken_value(v, id, "is a view of a view; it must name the first value on the storage");
	if (!v->defined[root])
		return broken_value(v, id, "is a view of a value that is defined later");
	return CLV_OK;
}

static clv_status declare(const verifier *v, value_id id)
{
	TRY(check_alias(v, id));
	v->defined[id] = true;
	return CLV_OK;
}

/* Inputs first, then external values, as the text has them. */
static clv_status check_declared(const verifier *v)
{
	const plan *p = v->p;
	for (uint32_t i = 0; i < p->inputs.n; i++) {
		value_id id = p->inputs.at[i];
		if (id >= p->values.n || p->values.at[id].kind != VALUE_INPUT)
			return broken(v, "input %u of the plan is no input value", i);
		if (v->defined[id])
			return broken_value(v, id, "is listed twice among the inputs");
		TRY(declare(v, id));
	}
	for (value_id id = 0; id < p->values.n; id++) {
		if (p->values.at[id].kind == VALUE_INPUT && !v->defined[id])
			return broken(v, "value %u is an input, but not listed among the inputs", id);
		if (is_external(p->values.at[id].kind))
			TRY(declare(v, id));
	}
	return CLV_OK;
}

static clv_status check_ties(const verifier *v)
{
	for (uint32_t i = 0; i < v->p->ties.n; i++) {
		const tie *t = &v->p->ties.at[i];
		if (t->value >= v->p->values.n || !is_module_tensor(v->p->values.at[t->value].kind))
			return broken(v, "tie %u belongs to no module tensor", i);
		TRY(claim_name(v, t->value, t->name));
	}
	return CLV_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static void touch_value(verifier *v, value_id id)
{
	v->touched[alias_root(v->p, id)] = v->node + 1;
}

static void check_use(void *ctx, value_id id)
{
	verifier *v = ctx;
	if (v->st == CLV_OK && !v->defined[id])
		v->st = broken_value(v, id, "is used before it is defined");
	touch_value(v, id);
}

static void verify_result(void *ctx, value_id id)
{
	verifier *v = ctx;
	const value *x = &v->p->values.at[id];
	if (v->st != CLV_OK)
		return;
	if (x->kind != VALUE_RESULT || x->def != v->node)
		v->st = broken_value(v, id, "is not a result of this node");
	else if (v->defined[id])
		v->st = broken_value(v, id, "is defined twice");
	else
		v->st = declare(v, id);
	touch_value(v, id);
}

static clv_status check_result_shape(const verifier *v, uint32_t first, uint32_t n, bool inner)
{
	const plan *p = v->p;
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &p->args.at[first + i];
		if (a->kind == ARG_LIST && !inner)
			TRY(check_result_shape(v, a->u.list.first, a->u.list.n, true));
		else if (a->kind != ARG_VALUE && a->kind != ARG_NONE)
			return broken(v, "a result is neither a value, nor none, nor a list of those");
	}
	return CLV_OK;
}

static clv_status check_writes(const verifier *v, const node *n)
{
	for (uint32_t i = 0; i < n->nwrites; i++) {
		value_id id = v->p->ids.at[n->writes + i];
		if (id >= v->p->values.n)
			return broken(v, "it writes a value that does not exist");
		if (v->p->values.at[id].type != TYPE_TENSOR)
			return broken_value(v, id, "is written, but no tensor");
		if (!v->defined[id])
			return broken_value(v, id, "is written before it is defined");
		if (v->touched[alias_root(v->p, id)] != v->node + 1)
			return broken_value(v, id, "is written, but is no argument, no result and no view of one");
	}
	return CLV_OK;
}

static clv_status check_node_parts(const verifier *v, const node *n)
{
	const plan *p = v->p;
	if (!str_ok(p, n->op) || !op_name_ok(plan_s(p, n->op), str_at(p, n->op)->n))
		return broken(v, "the operator has no name like space::name");
	if (!in_range(n->args, n->nargs, p->args.n) || !in_range(n->results, n->nresults, p->args.n) ||
	    !in_range(n->writes, n->nwrites, p->ids.n))
		return broken(v, "arguments, results or writes do not exist");
	if (n->scope != NONE && n->scope >= p->scopes.n)
		return broken(v, "the scope does not exist");
	if (n->context >= p->contexts.n)
		return broken(v, "the context does not exist");
	if (!str_ok_or_none(p, n->at))
		return broken(v, "the place in the source does not exist");
	if (n->flags & ~(unsigned)(NODE_RANDOM | NODE_HOST | NODE_IMPURE))
		return broken(v, "unknown flags");
	return check_result_shape(v, n->results, n->nresults, false);
}

static clv_status check_nodes(verifier *v)
{
	const plan *p = v->p;
	for (v->node = 0; v->node < p->nodes.n; v->node++) {
		const node *n = &p->nodes.at[v->node];
		TRY(check_node_parts(v, n));
		node_each_arg(p, v->node, check_use, v);
		TRY(v->st);
		node_each_result(p, v->node, verify_result, v);
		TRY(v->st);
		TRY(check_writes(v, n));
	}
	v->node = NONE;
	for (value_id id = 0; id < p->values.n; id++)
		if (!v->defined[id] && p->values.at[id].def != NONE) /* NONE: an edit removed its node */
			return broken(v, "value %u is a result of no node", id);
	return CLV_OK;
}

static clv_status check_groups(verifier *v)
{
	const plan *p = v->p;
	node_id from = 0;
	for (uint32_t i = 0; i < p->groups.n; i++) {
		const node_span s = p->groups.at[i];
		value_id space;
		if (s.first < from || s.end > p->nodes.n || s.first >= s.end || s.end - s.first < 2)
			return broken(v, "group %u has less than two nodes, or others than those after the group before", i);
		const char *why = group_fault(p, s, &v->node, &space);
		if (why)
			return broken(v, "%s", why);
		v->node = NONE;
		from = s.end;
	}
	return CLV_OK;
}

/* ---- trees and rebinds ------------------------------------------------------------------------------------------ */

static clv_status check_leaf(const verifier *v, const tree *t, const char *which)
{
	const plan *p = v->p;
	if (t->kind > TREE_REAL || (!tree_has_children(t->kind) && t->n))
		return broken(v, "the %s tree has a part of no kind, or a leaf with children", which);
	if (t->kind == TREE_INT && t->u.e >= p->exprs.n)
		return broken(v, "the %s tree names an expression that does not exist", which);
	if (t->kind == TREE_REAL && t->u.r >= p->reals.n)
		return broken(v, "the %s tree names a float that does not exist", which);
	if (t->kind == TREE_VALUE && t->u.v >= p->values.n)
		return broken(v, "the %s tree names a value that does not exist", which);
	if (t->kind == TREE_VALUE && !v->defined[t->u.v])
		return broken(v, "the %s tree names value %u, which is a result of no node", which, t->u.v);
	bool text = t->kind == TREE_STR || t->kind == TREE_BYTES || t->kind == TREE_OPAQUE || t->kind == TREE_OBJECT;
	if (text && !str_ok(p, t->u.s))
		return broken(v, "the %s tree names a string that does not exist", which);
	bool pairs = t->kind == TREE_DICT || t->kind == TREE_OBJECT;
	if (pairs && t->n % 2)
		return broken(v, "the %s tree has a key without a value", which);
	return CLV_OK;
}

typedef struct forest {
	const trees *t;
	uint32_t next;
	const char *which;
} forest;

static clv_status check_subtree(const verifier *v, forest *f, unsigned depth)
{
	if (f->next >= f->t->n)
		return broken(v, "the %s tree ends before all its parts", f->which);
	if (depth > NEST_LIMIT)
		return broken(v, "the %s tree is nested deeper than %d", f->which, NEST_LIMIT);
	const tree *top = &f->t->at[f->next++];
	TRY(check_leaf(v, top, f->which));
	for (uint32_t i = 0; i < top->n; i++) {
		bool field = top->kind == TREE_OBJECT && i % 2 == 0;
		if (field && f->next < f->t->n && f->t->at[f->next].kind != TREE_STR)
			return broken(v, "the %s tree has an object whose field name is no string", f->which);
		TRY(check_subtree(v, f, depth + 1));
	}
	return CLV_OK;
}

static clv_status check_tree(const verifier *v, const trees *t, const char *which)
{
	forest f = {t, 0, which};
	TRY(check_subtree(v, &f, 0));
	return f.next == t->n ? CLV_OK : broken(v, "the %s tree has parts after its end", which);
}

static clv_status check_in_tree(const verifier *v)
{
	const tree *t = v->p->in_tree.at;
	uint32_t n = v->p->in_tree.n;
	if (n == 0)
		return CLV_OK;
	TRY(check_tree(v, &v->p->in_tree, "input"));
	forest f = {&v->p->in_tree, 1, "input"};
	if (t[0].kind != TREE_TUPLE || t[0].n != 2 || t[1].kind != TREE_TUPLE)
		return broken(v, "the input tree is not (a tuple of arguments, a dict of keyword arguments)");
	TRY(check_subtree(v, &f, 1));
	if (t[f.next].kind != TREE_DICT)
		return broken(v, "the input tree is not (a tuple of arguments, a dict of keyword arguments)");
	for (uint32_t i = 0; i < n; i++)
		if (t[i].kind == TREE_VALUE && v->p->values.at[t[i].u.v].kind != VALUE_INPUT)
			return broken_value(v, t[i].u.v, "is in the input tree, but no input");
	return CLV_OK;
}

static clv_status check_out_tree(const verifier *v)
{
	if (v->p->out_tree.n == 0)
		return broken(v, "the plan has no output");
	return check_tree(v, &v->p->out_tree, "output");
}

/* `named` is free again here: it marks the names that were re-bound. */
static clv_status check_rebinds(const verifier *v)
{
	const plan *p = v->p;
	memset(v->named, 0, p->strs.n * sizeof *v->named);
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		const rebind *r = &p->rebinds.at[i];
		if (r->target >= p->values.n || r->value >= p->values.n)
			return broken(v, "rebind %u names a value that does not exist", i);
		if (!v->defined[r->value])
			return broken(v, "rebind %u names value %u, which is a result of no node", i, r->value);
		if (!is_module_tensor(p->values.at[r->target].kind))
			return broken_value(v, r->target, "is re-bound, but no tensor of a module");
		if (p->values.at[r->value].type != TYPE_TENSOR)
			return broken_value(v, r->value, "is bound to a module, but no tensor");
		if (v->named[p->values.at[r->target].name])
			return broken_value(v, r->target, "is re-bound twice");
		v->named[p->values.at[r->target].name] = true;
	}
	return CLV_OK;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static clv_status check_values(const verifier *v)
{
	for (uint32_t i = 0; i < v->p->args.n; i++)
		TRY(check_arg(v, i));
	for (value_id id = 0; id < v->p->values.n; id++)
		TRY(check_value(v, id));
	TRY(check_ties(v));
	return check_declared(v);
}

static clv_status check_all(verifier *v)
{
	if (v->p->grad_modes > 3 || !str_ok_or_none(v->p, v->p->model))
		return broken(v, "the plan has no valid model name or grad mode");
	TRY(check_symbols(v));
	TRY(check_exprs(v));
	TRY(check_reals(v));
	TRY(check_scopes(v));
	TRY(check_contexts(v));
	TRY(check_values(v));
	TRY(check_nodes(v));
	TRY(check_groups(v));
	TRY(check_in_tree(v));
	TRY(check_out_tree(v));
	return check_rebinds(v);
}

clv_status plan_verify(const plan *p)
{
	verifier v = {.p = p, .node = NONE, .st = CLV_OK};
	v.depth = mem_alloc(p->args.n * sizeof *v.depth);
	v.defined = mem_alloc(p->values.n * sizeof *v.defined);
	v.touched = mem_alloc(p->values.n * sizeof *v.touched);
	v.named = mem_alloc(p->strs.n * sizeof *v.named);
	bool memory = v.depth && v.defined && v.touched && v.named;
	clv_status st = memory ? check_all(&v) : fail_nomem();
	mem_free(v.depth);
	mem_free(v.defined);
	mem_free(v.touched);
	mem_free(v.named);
	return st;
}
