/* Estimates the work of a node from its shapes.
 * Operators are recorded above autograd, so convolutions, linear layers and attention are each one node; a short table
 * of formulas covers what matters, and the rest is counted by elements. */
#include "plan/flops.h"

#include "plan/ops.h"

static double elements(const plan *p, value_id v, const int64_t *sizes)
{
	const value *x = &p->values.at[v];
	double n = 1;
	for (uint32_t d = 0; d < x->ndim; d++)
		n *= (double)sizes[p->dims.at[x->shape + d]];
	return n;
}

/* Tensor argument i of the node, NONE if it is something else. */
static value_id tensor_arg(const plan *p, const node *n, uint32_t i)
{
	if (i >= n->nargs || p->args.at[n->args + i].kind != ARG_VALUE)
		return NONE;
	value_id v = p->args.at[n->args + i].u.v;
	return p->values.at[v].type == TYPE_TENSOR && p->values.at[v].kind != VALUE_OBJECT ? v : NONE;
}

typedef struct sum {
	const plan *p;
	const int64_t *sizes;
	double n;
} sum;

static void add_elements(void *ctx, value_id v)
{
	sum *s = ctx;
	if (s->p->values.at[v].type == TYPE_TENSOR)
		s->n += elements(s->p, v, s->sizes);
}

static double output_elements(const plan *p, node_id n, const int64_t *sizes)
{
	sum s = {p, sizes, 0};
	node_each_result(p, n, add_elements, &s);
	return s.n;
}

/* The sizes of v from dimension `from` on, `n` of them at most. */
static void times_dims(const plan *p, value_id v, uint32_t from, uint32_t n, work_product *w)
{
	const value *x = &p->values.at[v];
	if (from >= x->ndim)
		return;
	w->first = x->shape + from;
	w->n = x->ndim - from < n ? x->ndim - from : n;
}

static void times_dim_from_end(const plan *p, value_id v, uint32_t from_end, work_product *w)
{
	if (from_end < p->values.at[v].ndim)
		times_dims(p, v, p->values.at[v].ndim - 1 - from_end, 1, w);
}

/* weight [out, in/groups, k…]: each output element takes in/groups * k products */
static work_product conv_work(const plan *p, value_id of, value_id weight)
{
	work_product w = {2, of, 0, 0};
	if (!p->values.at[weight].ndim)
		return (work_product){1, of, 0, 0};
	times_dims(p, weight, 1, UINT32_MAX, &w);
	return w;
}

static work_product matrix_work(const plan *p, value_id inner)
{
	work_product w = {2, NONE, 0, 0};
	times_dim_from_end(p, inner, 0, &w);
	return w;
}

static work_product attention_work(const plan *p, value_id q, value_id k)
{
	work_product w = {4, q, 0, 0};
	times_dim_from_end(p, k, 1, &w);
	return w;
}

/* ---- operators that hold whole layers ------------------------------------------------------------------------------ */

/* Elements of a matrix whose sizes are numbers; 0 for all else: biases do not count. */
static double matrix_elements(const plan *p, const arg *a)
{
	int64_t rows, columns;
	if (a->kind != ARG_VALUE || p->values.at[a->u.v].type != TYPE_TENSOR || p->values.at[a->u.v].ndim != 2)
		return 0;
	const expr_id *shape = &p->dims.at[p->values.at[a->u.v].shape];
	if (!expr_is_const(p, shape[0], &rows) || !expr_is_const(p, shape[1], &columns))
		return 0;
	return (double)rows * (double)columns;
}

/* Argument i is a matrix or a list of matrices and biases. */
static double weight_elements(const plan *p, const node *n, uint32_t i)
{
	double total = 0;
	if (i >= n->nargs)
		return 0;
	const arg *a = &p->args.at[n->args + i];
	if (a->kind != ARG_LIST)
		return matrix_elements(p, a);
	for (uint32_t k = 0; k < a->u.list.n; k++)
		total += matrix_elements(p, &p->args.at[a->u.list.first + k]);
	return total;
}

/* Each token, a row of the input, meets each weight once: 2 * weights * elements of the input / features. What attention
 * does between tokens is another product, which this form has no room for. */
static bool layers_work(const plan *p, const node *n, work_product *out)
{
	const uint8_t *layers = op_rows[n->op_id].layers;
	value_id input = layers[0] ? tensor_arg(p, n, 0) : NONE;
	int64_t features;
	double weights = 0;
	if (input == NONE || !p->values.at[input].ndim)
		return false;
	for (uint32_t i = 0; i < 4 && layers[i]; i++)
		weights += weight_elements(p, n, layers[i]);
	const value *x = &p->values.at[input];
	if (weights <= 0 || !expr_is_const(p, p->dims.at[x->shape + x->ndim - 1], &features) || features <= 0)
		return false;
	*out = (work_product){2 * weights / (double)features, input, 0, 0};
	return true;
}

work_product node_work(const plan *p, node_id id)
{
	const node *n = &p->nodes.at[id];
	const work_product plain = {1, NONE, 0, 0};
	work_product fused;
	if (layers_work(p, n, &fused))
		return fused;
	value_id a = tensor_arg(p, n, 0), b = tensor_arg(p, n, 1), c = tensor_arg(p, n, 2);
	if (b == NONE)
		return plain;
	switch ((op_work)node_op(p, id)->work) {
	case WORK_CONV: return conv_work(p, NONE, b);
	case WORK_CONV_BACK: return a == NONE ? plain : conv_work(p, a, b);
	case WORK_PRODUCT: return a == NONE ? plain : matrix_work(p, a);
	case WORK_SUM: return c == NONE ? plain : matrix_work(p, b);
	case WORK_ATTENTION: return a == NONE ? plain : attention_work(p, a, b);
	default: return plain;
	}
}

double node_flops(const plan *p, node_id id, const int64_t *sizes)
{
	work_product w = node_work(p, id);
	double n = w.factor * (w.of == NONE ? output_elements(p, id, sizes) : elements(p, w.of, sizes));
	for (uint32_t i = 0; i < w.n; i++)
		n *= (double)sizes[p->dims.at[w.first + i]];
	return n;
}
