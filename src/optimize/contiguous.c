/* Finds out which values are contiguous.
 *
 * Inputs are checked against the plan before every run, constants come with it; parameters may be exchanged for ones
 * laid out otherwise, so nothing is known of them. An operator has STRIDES in ops.def where it gives the layout always. */
#include <string.h>

#include "optimize/optimize.h"

static known_layout least(known_layout a, known_layout b)
{
	return a < b ? a : b;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* The least that an expression can be; INT64_MIN: not known. */
static int64_t expr_least(const plan *p, expr_id e)
{
	const expr *x = &p->exprs.at[e];
	int64_t a, b, r;
	if (x->op == EXPR_CONST)
		return x->k;
	if (x->op == EXPR_SYM)
		return p->symbols.at[x->k].lo;
	if (x->op != EXPR_ADD && x->op != EXPR_MUL)
		return INT64_MIN;
	a = expr_least(p, x->a);
	b = expr_least(p, x->b);
	bool over = x->op == EXPR_ADD ? __builtin_add_overflow(a, b, &r) : __builtin_mul_overflow(a, b, &r);
	return a < 0 || b < 0 || over ? INT64_MIN : r;
}

int64_t dim_least(const plan *p, const value *x, uint32_t d)
{
	return expr_least(p, p->dims.at[x->shape + d]);
}

bool may_have_size_one(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	int64_t k;
	for (uint32_t d = 0; d < x->ndim; d++) {
		expr_id e = p->dims.at[x->shape + d];
		if (expr_is_const(p, e, &k) ? k == 1 : expr_least(p, e) < 2)
			return true;
	}
	return false;
}

bool same_shape(const plan *p, value_id a, value_id b)
{
	const value *x = &p->values.at[a], *y = &p->values.at[b];
	return x->ndim == y->ndim &&
	       (!x->ndim || !memcmp(&p->dims.at[x->shape], &p->dims.at[y->shape], x->ndim * sizeof *p->dims.at));
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

typedef struct layouts {
	const edit *e;
	uint8_t *of; /* per value: known_layout */
} layouts;

/* As contiguous as the least of the arguments. Where one is spread over the result, strides of dimensions of size 1 decide
   about the order of others: then all must be what they are in new memory. */
static known_layout layout_of_every(const layouts *l, node_id n, value_id r)
{
	const plan *p = l->e->p;
	known_layout found = LAYOUT_ROW_MAJOR;
	bool any = false, spread = false;
	for (uint32_t i = 0; i < p->nodes.at[n].nargs; i++) {
		value_id v = edit_value(l->e, n, i);
		if (edit_arg(l->e, n, i)->kind == ARG_LIST)
			return LAYOUT_ANY;
		if (v == NONE || p->values.at[v].type != TYPE_TENSOR || (p->values.at[v].ndim == 0 && p->values.at[r].ndim))
			continue;
		found = least(found, (known_layout)l->of[v]);
		spread |= !same_shape(p, v, r);
		any = true;
	}
	if (spread)
		return found == LAYOUT_ROW_MAJOR ? LAYOUT_CONTIGUOUS : LAYOUT_ANY;
	return any ? found : LAYOUT_ANY;
}

static bool is_outermost(const layouts *l, node_id n)
{
	const arg *dim = edit_arg(l->e, n, 1), *step = edit_arg(l->e, n, 4);
	return arg_is_int(l->e, dim, 0) && (step->kind == ARG_NONE || arg_is_int(l->e, step, 1));
}

static bool is_plain_product(const layouts *l, node_id n)
{
	const value *values = l->e->p->values.at;
	value_id a = edit_value(l->e, n, 0), b = edit_value(l->e, n, 1);
	return a != NONE && b != NONE && values[b].ndim >= 2 && values[a].ndim >= values[b].ndim;
}

static known_layout layout_of_result(const layouts *l, node_id n, value_id r)
{
	const node *x = &l->e->p->nodes.at[n];
	value_id v = edit_value(l->e, n, 0);
	known_layout first = v == NONE ? LAYOUT_ANY : (known_layout)l->of[v];
	const arg *last = edit_arg(l->e, n, x->nargs ? x->nargs - 1 : 0);
	switch ((op_strides)node_op(l->e->p, n)->strides) {
	case STRIDES_FRESH: return LAYOUT_ROW_MAJOR;
	case STRIDES_FIRST: return first;
	case STRIDES_DENSE:
		return last->kind == ARG_MEMFMT && last->u.code ? LAYOUT_ANY : first ? first : LAYOUT_CONTIGUOUS;
	case STRIDES_EVERY: return layout_of_every(l, n, r);
	case STRIDES_FORMAT: return last->kind == ARG_MEMFMT && last->u.code > 1 ? LAYOUT_ANY : first;
	case STRIDES_PRODUCT: return is_plain_product(l, n) ? LAYOUT_ROW_MAJOR : LAYOUT_ANY;
	case STRIDES_OUTERMOST: return is_outermost(l, n) ? first : LAYOUT_ANY;
	default: return LAYOUT_ANY;
	}
}

static void see_node(layouts *l, node_id n)
{
	value_id r = edit_result(l->e, n);
	const plan *p = l->e->p;
	if (r == NONE || p->nodes.at[n].nwrites || l->e->facts.written[r] || (p->values.at[r].flags & VALUE_ODD))
		return;
	l->of[r] = (uint8_t)layout_of_result(l, n, r);
}

static known_layout layout_of_given(const layouts *l, value_id v)
{
	const value *x = &l->e->p->values.at[v];
	bool checked = x->type == TYPE_TENSOR && (x->kind == VALUE_INPUT || x->kind == VALUE_CONST);
	if (!checked || x->strides != NONE || (x->flags & VALUE_ODD) || l->e->facts.written[v])
		return LAYOUT_ANY;
	return may_have_size_one(l->e->p, v) ? LAYOUT_CONTIGUOUS : LAYOUT_ROW_MAJOR;
}

clv_status find_layouts(edit *e, uint8_t **out)
{
	layouts l = {e, edit_array(e, e->p->values.n, sizeof *l.of)};
	TRY_MEM(l.of);
	for (value_id v = 0; v < e->p->values.n; v++)
		l.of[v] = (uint8_t)layout_of_given(&l, v);
	for (node_id n = e->first; n < e->end; n++)
		see_node(&l, n);
	*out = l.of;
	return CLV_OK;
}
