/* Turns 1x1 convolutions of channels-last images on a GPU into matrix products.
 * Convolutions that look at one pixel at a time, of channels-last images on a GPU: products of a matrix of pixels, whose
 * rows are the channels of each, with the weight. The bias, and a relu, are part of the product's own kernel, while
 * cuDNN's plain convolutions leave both to others.
 *
 * Memory of a channels-last image is that matrix already, so all around the product are views: the image as rows of
 * pixels, the product as an image again. That has the strides of the convolution's result. */
#include "optimize/fuse.h"
#include "optimize/layouts.h"

#include <string.h>

typedef struct changer {
	edit *e;
	const optimize_spec *s;
	bool *constant, *last, *rows; /* per value: see fuse.h */
	value_id *owners;             /* per value: the product on whose memory it will be; NONE */
	uint32_t *changes;
} changer;

static bool looks_at_one_pixel(const edit *e, const weighted *w, const geometry *g)
{
	bool one = g->dims == 2 && w->groups == 1 && !w->transposed;
	for (uint32_t d = 0; d < 2; d++)
		one = one && g->stride[d] == 1 && g->padding[d] == 0 && dim_is(e, w->weight, d + 2, 1);
	return one;
}

/* Strides of dimensions of size 1 are not those that a convolution gives: they must not be visible outside. */
static bool is_hidden(const edit *e, value_id v)
{
	return !e->facts.shown[v] && !value_guarded(e->p, v);
}

static bool can_be_linear(const changer *c, const weighted *w)
{
	const edit *e = c->e;
	bool bias = w->bias == NONE || (same_type(e, w->bias, w->x) && e->p->values.at[w->bias].ndim == 1);
	return bias && is_gpu_float(e, c->s, w->x) && same_type(e, w->weight, w->x) && same_type(e, w->result, w->x) &&
	       c->constant[w->weight] && (c->last[w->x] || is_pixel(e, w->x)) && is_hidden(e, w->result);
}

static bool is_relu(const edit *e, node_id u, value_id of)
{
	activation a;
	return read_activation(e, u, &a) && !strcmp(a.name, "relu") && edit_value(e, u, 0) == of;
}

/* cuDNN does a convolution with a sum and a relu in one. */
static bool is_better_joined(const changer *c, const weighted *w)
{
	const edit *e = c->e;
	node_id sum = only_reader(e, w->result, w->node);
	if (sum == NONE || !(edit_is(e, sum, OP_add_Tensor) || edit_is(e, sum, OP_add__Tensor)))
		return false;
	value_id v = edit_result(e, sum);
	node_id u = v == NONE ? NONE : only_reader(e, v, sum);
	return u != NONE && is_relu(e, u, v) && has_operator(c->s, OP_cudnn_convolution_add_relu);
}

/* The relu after it, which the product does where there is a bias; NONE. */
static node_id find_relu(const changer *c, const weighted *w)
{
	const edit *e = c->e;
	node_id u = w->bias == NONE ? NONE : only_reader(e, w->result, w->node);
	if (u == NONE || !is_relu(e, u, w->result) || !has_operator(c->s, OP__addmm_activation))
		return NONE;
	value_id r = result_on(e, u, w->result, w->result);
	return r != NONE && is_hidden(e, r) ? u : NONE;
}

static clv_status move_dims(const spot *at, value_id v, const int64_t order[4], value_id out)
{
	arg args[2] = {arg_of(v)};
	TRY(arg_ints(at->e, order, 4, &args[1]));
	return put_node(at, OP_permute, args, 2, out);
}

/* The image as rows of pixels. A view, as it is channels-last; with one pixel, or one channel, it may be a copy. */
static clv_status as_rows(const spot *at, value_id x, value_id *out)
{
	edit *e = at->e;
	expr_id dims[4], rows[2];
	value_id moved;
	memcpy(dims, &e->p->dims.at[e->p->values.at[x].shape], sizeof dims);
	expr_id shape[] = {dims[0], dims[2], dims[3], dims[1]};
	TRY(new_view(e, x, shape, 4, &moved));
	TRY(move_dims(at, x, (int64_t[]){0, 2, 3, 1}, moved));
	TRY(row_count(e, moved, &rows[0]));
	rows[1] = dims[1];
	arg args[2] = {arg_of(moved)};
	TRY(arg_sizes(e, rows, 2, &args[1]));
	TRY(new_view(e, x, rows, 2, out));
	return put_node(at, OP_reshape, args, 2, *out);
}

/* [outs, ins, 1, 1] as [ins, outs]. */
static clv_status as_matrix(const spot *at, value_id weight, value_id *out)
{
	edit *e = at->e;
	expr_id dims[4];
	value_id v = weight;
	memcpy(dims, &e->p->dims.at[e->p->values.at[weight].shape], sizeof dims);
	for (uint32_t d = 3; d >= 2; d--) {
		arg args[2] = {arg_of(v)};
		TRY(arg_int(e, d, &args[1]));
		TRY(new_view(e, weight, dims, d, &v));
		TRY(put_node(at, OP_squeeze_dim, args, 2, v));
	}
	arg args[] = {arg_of(v)};
	TRY(new_view(e, weight, (expr_id[]){dims[1], dims[0]}, 2, out));
	return put_node(at, OP_t, args, 1, *out);
}

static clv_status put_product(const spot *at, const weighted *w, value_id rows, bool relu, value_id *out)
{
	edit *e = at->e;
	value_id matrix;
	TRY(as_matrix(at, w->weight, &matrix));
	expr_id shape[] = {e->p->dims.at[e->p->values.at[rows].shape], e->p->dims.at[e->p->values.at[matrix].shape + 1]};
	TRY(new_shaped(e, w->result, shape, 2, out));
	if (w->bias == NONE) {
		arg args[] = {arg_of(rows), arg_of(matrix)};
		return put_node(at, OP_mm, args, 2, *out);
	}
	arg args[6] = {arg_of(w->bias), arg_of(rows), arg_of(matrix)};
	TRY(arg_int(e, 1, &args[3]));
	args[4] = args[3];
	args[5] = arg_bool(false); /* no gelu: a relu */
	return put_node(at, relu ? OP__addmm_activation : OP_addmm, args, relu ? 6 : 5, *out);
}

/* The product is `result`, with whatever was on the memory of that. */
static clv_status as_image(changer *c, const spot *at, value_id product, value_id result)
{
	edit *e = c->e;
	expr_id dims[4];
	value_id pixels;
	memcpy(dims, &e->p->dims.at[e->p->values.at[result].shape], sizeof dims);
	expr_id shape[] = {dims[0], dims[2], dims[3], dims[1]};
	arg args[2] = {arg_of(product)};
	TRY(arg_sizes(e, shape, 4, &args[1]));
	TRY(new_view(e, product, shape, 4, &pixels));
	TRY(put_node(at, OP_view, args, 2, pixels));
	c->owners[alias_root(e->p, result)] = product;
	return move_dims(at, pixels, (int64_t[]){0, 3, 1, 2}, result);
}

static clv_status change(changer *c, const weighted *w)
{
	edit *e = c->e;
	spot at = {e, w->node, w->node};
	node_id relu = find_relu(c, w);
	value_id rows, product, result = relu == NONE ? w->result : edit_result(e, relu);
	TRY(edit_remove(e, w->node));
	if (relu != NONE)
		TRY(edit_remove(e, relu));
	TRY(as_rows(&at, w->x, &rows));
	TRY(put_product(&at, w, rows, relu != NONE, &product));
	TRY(as_image(c, &at, product, result));
	*c->changes += relu == NONE ? 1 : 2;
	return CLV_OK;
}

static clv_status change_all(changer *c)
{
	for (node_id n = c->e->first; n < c->e->end; n++) {
		weighted w;
		geometry g;
		if (c->e->gone.at[n] || !node_pure(c->e, n) || !runs_plainly(c->e, n))
			continue;
		if (!read_weighted(c->e, n, &w) || !read_geometry(c->e, &w, &g) || !looks_at_one_pixel(c->e, &w, &g))
			continue;
		if (can_be_linear(c, &w) && !is_better_joined(c, &w))
			TRY(change(c, &w));
	}
	if (*c->changes)
		edit_give_memories(c->e, c->owners, c->e->facts.n);
	return CLV_OK;
}

clv_status pass_conv_as_linear(edit *e, const optimize_spec *s, uint32_t *changes)
{
	changer c = {.e = e, .s = s, .changes = changes};
	if (!s->conv_as_linear)
		return CLV_OK;
	c.owners = edit_ids(e, e->p->values.n);
	TRY_MEM(c.owners);
	TRY(constant_values(e, s, &c.constant));
	TRY(find_image_layouts(e, &c.last, &c.rows));
	return change_all(&c);
}
