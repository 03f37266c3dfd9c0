/* Splits the bias off products on a GPU.
 * A library that adds the bias in the product's own kernel has fewer kernels to choose from, and none that shares the
 * sum over the inputs out among blocks: for few rows those are the fast ones.
 *
 * The bias is added to the new product in place. Where the result is only added to something else, that takes the bias
 * first, and the product is added to the sum in place, so that there are no more kernels than before:
 *
 *     sum = other + (x @ weight + bias)      becomes      sum = other + bias;  sum += x @ weight
 *
 * Which is faster depends on the sizes and the card: the caller measures. */
#include "optimize/rewrite.h"

typedef struct splitter {
	edit *e;
	const optimize_spec *s;
	bool *constant;   /* per value: the same in every run */
	uint8_t *layouts; /* per value: known_layout */
	value_id *owners; /* per value: the new one on whose memory it will be; NONE */
	uint32_t *changes;
} splitter;

/* result + other, where only this node reads the result; with a view of it in between, or not. */
typedef struct addition {
	node_id view, add; /* view: NONE where there is none */
	value_id other, sum;
} addition;

static bool can_split_bias(const splitter *p, const linear *l)
{
	const weighted *w = &l->w;
	return w->bias != NONE && is_gpu_float(p->e, p->s, w->x) && same_type(p->e, w->weight, w->x) &&
	       same_type(p->e, w->bias, w->x) && same_type(p->e, w->result, w->x) && !value_guarded(p->e->p, w->result);
}

/* Another shape of the same rows. */
static bool is_reshaped(const edit *e, node_id u, value_id of)
{
	bool op = edit_is(e, u, OP_view) || edit_is(e, u, OP__unsafe_view) || edit_is(e, u, OP_reshape);
	value_id r = edit_result(e, u);
	return op && r != NONE && edit_value(e, u, 0) == of && e->p->values.at[r].alias == of && !value_guarded(e->p, r) &&
	       same_type(e, r, of);
}

static bool is_sum(const edit *e, node_id u)
{
	return (edit_is(e, u, OP_add_Tensor) || edit_is(e, u, OP_add__Tensor)) && alpha_is_one(e, u);
}

/* A matrix with rows of the product, which the bias can be added to. */
static bool has_rows(const edit *e, value_id v, int64_t outs)
{
	uint32_t ndim = e->p->values.at[v].ndim;
	return ndim >= 2 && ndim <= MAX_INTS && dim_is(e, v, ndim - 1, outs);
}

/* The product then reads its input later than before. */
static bool find_addition(const splitter *p, const linear *l, addition *out)
{
	const edit *e = p->e;
	const weighted *w = &l->w;
	value_id v = w->result;
	node_id u = only_reader(e, v, w->node);
	*out = (addition){.view = NONE};
	if (u != NONE && is_reshaped(e, u, v)) {
		out->view = u;
		v = edit_result(e, u);
		u = only_reader(e, v, u);
	}
	if (u == NONE || !is_sum(e, u) || !has_rows(e, v, l->outs) || e->facts.written[w->x])
		return false;
	value_id a = edit_value(e, u, 0), b = edit_value(e, u, 1);
	out->add = u;
	out->other = a == v ? b : a;
	out->sum = result_on(e, u, v, w->result);
	return a != NONE && b != NONE && a != b && out->sum != NONE && same_type(e, out->other, v) &&
	       same_shape(e->p, out->other, v) && p->layouts[out->other] != LAYOUT_ANY;
}

static clv_status add_bias(const spot *at, uint16_t op, value_id v, value_id bias, value_id result, value_id written)
{
	arg args[3] = {arg_of(v), arg_of(bias)};
	TRY(arg_int(at->e, 1, &args[2]));
	return put_writer(at, op, args, 3, result, written);
}

static clv_status split_bias(splitter *p, const linear *l)
{
	edit *e = p->e;
	spot at = {e, l->w.node, l->w.node};
	arg args[3] = {arg_of(l->w.x), arg_of(l->w.weight), arg_of(NONE)};
	value_id product;
	TRY(edit_remove(e, l->w.node));
	TRY(edit_like(e, l->w.result, &product));
	TRY(put_node(&at, l->transposed ? OP_mm : OP_linear, args, l->transposed ? 2 : 3, product));
	p->owners[l->w.result] = product;
	++*p->changes;
	return add_bias(&at, OP_add__Tensor, product, l->w.bias, l->w.result, product);
}

/* v as a matrix of its last dimension; itself where it is one. A view, unless strides are odd. */
static clv_status as_matrix(const spot *at, value_id v, value_id *out)
{
	edit *e = at->e;
	expr_id shape[2];
	uint32_t ndim = e->p->values.at[v].ndim;
	*out = v;
	if (ndim == 2)
		return CLV_OK;
	TRY(row_count(e, v, &shape[0]));
	shape[1] = e->p->dims.at[e->p->values.at[v].shape + ndim - 1];
	arg args[2] = {arg_of(v)};
	TRY(arg_sizes(e, shape, 2, &args[1]));
	TRY(new_view(e, v, shape, 2, out));
	return put_node(at, OP_reshape, args, 2, *out);
}

static clv_status reshape_to(const spot *at, value_id v, value_id result)
{
	const value *r = &at->e->p->values.at[result];
	arg args[2] = {arg_of(v)};
	TRY(arg_sizes(at->e, &at->e->p->dims.at[r->shape], r->ndim, &args[1]));
	return put_node(at, OP_view, args, 2, result);
}

static clv_status remove_all(edit *e, const linear *l, const addition *a)
{
	TRY(edit_remove(e, l->w.node));
	if (a->view != NONE)
		TRY(edit_remove(e, a->view));
	return edit_remove(e, a->add);
}

/* into += x @ weight, which makes `result`. */
static clv_status add_product(const spot *at, const linear *l, value_id into, value_id result)
{
	value_id x, weight = l->w.weight;
	TRY(as_matrix(at, l->w.x, &x));
	if (!l->transposed)
		TRY(turn_weight(at, l, &weight));
	arg args[5] = {arg_of(into), arg_of(x), arg_of(weight)};
	TRY(arg_int(at->e, 1, &args[3]));
	args[4] = args[3];
	return put_writer(at, OP_addmm_, args, 5, result, into);
}

static clv_status add_in_place(splitter *p, const linear *l, const addition *a)
{
	edit *e = p->e;
	spot at = {e, a->add, l->w.node};
	value_id start, matrix, sum = a->sum;
	TRY(remove_all(e, l, a));
	TRY(edit_like(e, a->sum, &start));
	TRY(add_bias(&at, OP_add_Tensor, a->other, l->w.bias, start, NONE));
	TRY(as_matrix(&at, start, &matrix));
	p->owners[alias_root(e->p, a->sum)] = start;
	if (matrix != start) {
		expr_id shape[] = {e->p->dims.at[e->p->values.at[matrix].shape],
		                   e->p->dims.at[e->p->values.at[matrix].shape + 1]};
		TRY(new_view(e, start, shape, 2, &sum));
	}
	TRY(add_product(&at, l, matrix, sum));
	*p->changes += 2;
	return sum == a->sum ? CLV_OK : reshape_to(&at, sum, a->sum);
}

static clv_status split_all(splitter *p)
{
	for (node_id n = p->e->first; n < p->e->end; n++) {
		linear l;
		addition a;
		if (p->e->gone.at[n] || !node_pure(p->e, n) || !runs_plainly(p->e, n))
			continue;
		if (!read_linear(p->e, p->constant, n, &l) || !can_split_bias(p, &l))
			continue;
		if (find_addition(p, &l, &a))
			TRY(add_in_place(p, &l, &a));
		else if (p->s->bias == BIAS_APART)
			TRY(split_bias(p, &l));
	}
	if (*p->changes)
		edit_give_memories(p->e, p->owners, p->e->facts.n);
	return CLV_OK;
}

clv_status pass_bias_apart(edit *e, const optimize_spec *s, uint32_t *changes)
{
	splitter p = {.e = e, .s = s, .changes = changes};
	if (s->bias == BIAS_STAYS)
		return CLV_OK;
	p.owners = edit_ids(e, e->p->values.n);
	TRY_MEM(p.owners);
	TRY(constant_values(e, s, &p.constant));
	TRY(find_layouts(e, &p.layouts));
	return split_all(&p);
}
