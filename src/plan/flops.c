/* Operators are recorded above autograd, so convolutions, linear layers and attention are each one node; a short table
 * of formulas covers what matters, and the rest is counted by elements. */
#include "plan/flops.h"

#include <string.h>

static double elements(const plan *p, value_id v, const int64_t *sizes)
{
	const value *x = &p->values.at[v];
	double n = 1;
	for (uint32_t d = 0; d < x->ndim; d++)
		n *= (double)sizes[p->dims.at[x->shape + d]];
	return n;
}

static double dim(const plan *p, value_id v, uint32_t from_end, const int64_t *sizes)
{
	const value *x = &p->values.at[v];
	return from_end < x->ndim ? (double)sizes[p->dims.at[x->shape + x->ndim - 1 - from_end]] : 1;
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

/* "aten::conv2d.padding" is "conv2d"? */
static bool is_op(const char *op, const char *name)
{
	const char *at = strstr(op, "::");
	size_t n = strlen(name);
	at = at ? at + 2 : op;
	return !strncmp(at, name, n) && (at[n] == '\0' || at[n] == '.' || at[n] == '_');
}

/* weight [out, in/groups, k…]: each output element takes in/groups * k products */
static double conv_flops(const plan *p, value_id w, double out, const int64_t *sizes)
{
	const value *x = &p->values.at[w];
	return x->ndim ? 2 * out * elements(p, w, sizes) / (double)sizes[p->dims.at[x->shape]] : out;
}

static double attention_flops(const plan *p, value_id q, value_id k, const int64_t *sizes)
{
	return 4 * elements(p, q, sizes) * dim(p, k, 1, sizes);
}

double node_flops(const plan *p, node_id id, const int64_t *sizes)
{
	const node *n = &p->nodes.at[id];
	const char *op = plan_s(p, n->op);
	double out = output_elements(p, id, sizes);
	value_id a = tensor_arg(p, n, 0), b = tensor_arg(p, n, 1), c = tensor_arg(p, n, 2);
	if (b == NONE)
		return out;
	if (is_op(op, "conv_transpose1d") || is_op(op, "conv_transpose2d") || is_op(op, "conv_transpose3d"))
		return a == NONE ? out : conv_flops(p, b, elements(p, a, sizes), sizes);
	if (is_op(op, "conv1d") || is_op(op, "conv2d") || is_op(op, "conv3d") || is_op(op, "convolution"))
		return conv_flops(p, b, out, sizes);
	if (is_op(op, "linear") || is_op(op, "mm") || is_op(op, "matmul") || is_op(op, "bmm") || is_op(op, "mv"))
		return a == NONE ? out : 2 * out * dim(p, a, 0, sizes);
	if (is_op(op, "addmm") || is_op(op, "baddbmm") || is_op(op, "addbmm"))
		return c == NONE ? out : 2 * out * dim(p, b, 0, sizes);
	if (is_op(op, "scaled_dot_product_attention"))
		return a == NONE ? out : attention_flops(p, a, b, sizes);
	return out;
}
