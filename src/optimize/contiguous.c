/* What is known of the layout of values, from the layout of what they are made of.
 *
 * Inputs are checked against the plan before every run, constants come with it; parameters may be exchanged for ones
 * laid out otherwise, so nothing is known of them. Operators are here where they give the layout always: those that
 * look at the strides of several arguments, or guess a memory format, are not. */
#include <string.h>

#include "optimize/optimize.h"

typedef enum source {
	FRESH,     /* new memory, row by row, whatever the arguments are */
	FIRST,     /* laid out as the first argument, where that is contiguous */
	DENSE,     /* the first argument made contiguous */
	EVERY,     /* element by element: as all tensors among the arguments */
	FORMAT,    /* FIRST, unless the last argument asks for a memory format */
	OUTERMOST, /* a part of the first argument along its first dimension */
	PRODUCT    /* FRESH, unless the second argument has more dimensions: both are turned then, and the result back */
} source;

typedef struct source_row {
	const char *op;
	source from;
} source_row;

static const source_row sources[] = {
	{"aten::_addmm_activation", FRESH},
	{"aten::_unsafe_view", FIRST},
	{"aten::abs", EVERY},
	{"aten::add.Scalar", EVERY},
	{"aten::add.Tensor", EVERY},
	{"aten::addmm", FRESH},
	{"aten::alias", FIRST},
	{"aten::arange", FRESH},
	{"aten::arange.start", FRESH},
	{"aten::arange.start_step", FRESH},
	{"aten::bitwise_and.Tensor", EVERY},
	{"aten::bitwise_not", EVERY},
	{"aten::bmm", FRESH},
	{"aten::ceil", EVERY},
	{"aten::celu", EVERY},
	{"aten::clamp", EVERY},
	{"aten::clamp_max", EVERY},
	{"aten::clamp_min", EVERY},
	{"aten::clone", FORMAT},
	{"aten::contiguous", DENSE},
	{"aten::cos", EVERY},
	{"aten::detach", FIRST},
	{"aten::div.Scalar", EVERY},
	{"aten::div.Tensor", EVERY},
	{"aten::dropout", FIRST},
	{"aten::elu", EVERY},
	{"aten::embedding", FRESH},
	{"aten::eq.Scalar", EVERY},
	{"aten::eq.Tensor", EVERY},
	{"aten::erf", EVERY},
	{"aten::exp", EVERY},
	{"aten::expm1", EVERY},
	{"aten::flatten.using_ints", FIRST},
	{"aten::floor", EVERY},
	{"aten::full", FRESH},
	{"aten::ge.Scalar", EVERY},
	{"aten::ge.Tensor", EVERY},
	{"aten::gelu", EVERY},
	{"aten::gt.Scalar", EVERY},
	{"aten::gt.Tensor", EVERY},
	{"aten::hardsigmoid", EVERY},
	{"aten::hardswish", EVERY},
	{"aten::hardtanh", EVERY},
	{"aten::layer_norm", FRESH},
	{"aten::le.Scalar", EVERY},
	{"aten::le.Tensor", EVERY},
	{"aten::leaky_relu", EVERY},
	{"aten::linear", FRESH},
	{"aten::log", EVERY},
	{"aten::log1p", EVERY},
	{"aten::log_softmax.int", FRESH},
	{"aten::logical_and", EVERY},
	{"aten::logical_not", EVERY},
	{"aten::logical_or", EVERY},
	{"aten::lt.Scalar", EVERY},
	{"aten::lt.Tensor", EVERY},
	{"aten::matmul", PRODUCT},
	{"aten::maximum", EVERY},
	{"aten::minimum", EVERY},
	{"aten::mish", EVERY},
	{"aten::mm", FRESH},
	{"aten::mul.Scalar", EVERY},
	{"aten::mul.Tensor", EVERY},
	{"aten::ne.Scalar", EVERY},
	{"aten::ne.Tensor", EVERY},
	{"aten::neg", EVERY},
	{"aten::ones", FRESH},
	{"aten::pow.Tensor_Scalar", EVERY},
	{"aten::reciprocal", EVERY},
	{"aten::relu", EVERY},
	{"aten::relu6", EVERY},
	{"aten::reshape", FIRST},
	{"aten::round", EVERY},
	{"aten::rsqrt", EVERY},
	{"aten::select.int", OUTERMOST},
	{"aten::selu", EVERY},
	{"aten::sigmoid", EVERY},
	{"aten::silu", EVERY},
	{"aten::sin", EVERY},
	{"aten::slice.Tensor", OUTERMOST},
	{"aten::softmax.int", FRESH},
	{"aten::sqrt", EVERY},
	{"aten::square", EVERY},
	{"aten::squeeze", FIRST},
	{"aten::squeeze.dim", FIRST},
	{"aten::sub.Scalar", EVERY},
	{"aten::sub.Tensor", EVERY},
	{"aten::tanh", EVERY},
	{"aten::to.device", FORMAT},
	{"aten::to.dtype", FORMAT},
	{"aten::to.dtype_layout", FORMAT},
	{"aten::trunc", EVERY},
	{"aten::unsqueeze", FIRST},
	{"aten::view", FIRST},
	{"aten::where.self", EVERY},
	{"aten::zeros", FRESH},
	{"mkl::_mkl_linear", FRESH},
	{"mkldnn::_linear_pointwise", FRESH},
	{"mkldnn::_linear_pointwise.binary", FRESH},
};

static int by_op(const void *key, const void *row)
{
	return strcmp(key, ((const source_row *)row)->op);
}

static const source_row *find_source(const char *op)
{
	return bsearch(op, sources, sizeof sources / sizeof *sources, sizeof *sources, by_op);
}

bool gives_new_memory(const char *op)
{
	const source_row *row = find_source(op);
	return row && (row->from == FRESH || row->from == EVERY);
}

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

static known_layout layout_of_result(const layouts *l, node_id n, value_id r, source from)
{
	const node *x = &l->e->p->nodes.at[n];
	value_id v = edit_value(l->e, n, 0);
	known_layout first = v == NONE ? LAYOUT_ANY : (known_layout)l->of[v];
	const arg *last = edit_arg(l->e, n, x->nargs ? x->nargs - 1 : 0);
	switch (from) {
	case FRESH: return LAYOUT_ROW_MAJOR;
	case FIRST: return first;
	case DENSE: return last->kind == ARG_MEMFMT && last->u.code ? LAYOUT_ANY : first ? first : LAYOUT_CONTIGUOUS;
	case EVERY: return layout_of_every(l, n, r);
	case FORMAT: return last->kind == ARG_MEMFMT && last->u.code > 1 ? LAYOUT_ANY : first;
	case PRODUCT: return is_plain_product(l, n) ? LAYOUT_ROW_MAJOR : LAYOUT_ANY;
	default: return is_outermost(l, n) ? first : LAYOUT_ANY;
	}
}

static void see_node(layouts *l, node_id n)
{
	value_id r = edit_result(l->e, n);
	const plan *p = l->e->p;
	const source_row *row = find_source(plan_s(p, p->nodes.at[n].op));
	if (!row || r == NONE || p->nodes.at[n].nwrites || l->e->facts.written[r] || (p->values.at[r].flags & VALUE_ODD))
		return;
	l->of[r] = (uint8_t)layout_of_result(l, n, r, row->from);
}

static known_layout layout_of_given(const layouts *l, value_id v)
{
	const value *x = &l->e->p->values.at[v];
	bool checked = x->type == TYPE_TENSOR && (x->kind == VALUE_INPUT || x->kind == VALUE_CONST);
	if (!checked || x->strides != NONE || (x->flags & VALUE_ODD) || l->e->facts.written[v])
		return LAYOUT_ANY;
	return may_have_size_one(l->e->p, v) ? LAYOUT_CONTIGUOUS : LAYOUT_ROW_MAJOR;
}

clv_status find_layouts(const edit *e, uint8_t **out)
{
	layouts l = {e, mem_alloc(e->p->values.n + 1)};
	if (!l.of)
		return fail_nomem();
	for (value_id v = 0; v < e->p->values.n; v++)
		l.of[v] = (uint8_t)layout_of_given(&l, v);
	for (node_id n = e->first; n < e->end; n++)
		see_node(&l, n);
	*out = l.of;
	return CLV_OK;
}
