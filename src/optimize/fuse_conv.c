/* Fuses convolutions with the operators after them, on weights that oneDNN has laid out.
 *
 * Laid-out weights make results channels-last whatever the input is, so a convolution gets them only where its input is so
 * already: then pass_channels_last has found that no other node depends on the layout. Elsewhere the weight stays, and so does the layout. */
#include "optimize/fuse.h"

#include <string.h>

/* One number stands for all dimensions. */
static bool read_ints(const edit *e, const arg *a, uint32_t dims, int64_t *out)
{
	if (a->kind != ARG_LIST || (a->u.list.n != dims && a->u.list.n != 1))
		return false;
	for (uint32_t d = 0; d < dims; d++) {
		const arg *each = &e->p->args.at[a->u.list.first + (a->u.list.n == 1 ? 0 : d)];
		if (each->kind != ARG_INT || !expr_is_const(e->p, each->u.e, &out[d]))
			return false;
	}
	return true;
}

/* "same" with as much on one side as on the other. */
static bool read_padding(const edit *e, const weighted *w, const arg *a, geometry *g)
{
	if (a->kind != ARG_STR)
		return read_ints(e, a, g->dims, g->padding);
	bool same = !strcmp(plan_s(e->p, a->u.s), "same");
	for (uint32_t d = 0; same && d < g->dims; d++) {
		int64_t size;
		if (!fixed_dim(e, w->weight, d + 2, &size) || size < 1 || size > INT32_MAX || g->dilation[d] > INT32_MAX)
			return false;
		int64_t both = g->dilation[d] * (size - 1);
		if (both < 0 || both % 2)
			return false;
		g->padding[d] = both / 2;
	}
	return same || !strcmp(plan_s(e->p, a->u.s), "valid");
}

bool read_geometry(const edit *e, const weighted *w, geometry *g)
{
	uint32_t ndim = e->p->values.at[w->weight].ndim;
	*g = (geometry){0};
	if (w->dilation == NONE || ndim < 3 || ndim > MAX_DIMS + 2)
		return false;
	if (e->p->values.at[w->x].ndim != ndim || e->p->values.at[w->result].ndim != ndim)
		return false;
	g->dims = ndim - 2;
	const arg *more = w->output_padding == NONE ? NULL : edit_arg(e, w->node, w->output_padding);
	return read_ints(e, edit_arg(e, w->node, 3), g->dims, g->stride) &&
	       read_ints(e, edit_arg(e, w->node, w->dilation), g->dims, g->dilation) &&
	       read_padding(e, w, edit_arg(e, w->node, 4), g) &&
	       (!w->transposed || (more && read_ints(e, more, g->dims, g->output_padding)));
}

/* One pixel has no layout. */
static bool is_one_pixel(const edit *e, value_id v)
{
	for (uint32_t d = 2; d < e->p->values.at[v].ndim; d++)
		if (!dim_is(e, v, d, 1))
			return false;
	return true;
}

static bool may_be_channels_last(const fuser *f, const weighted *w)
{
	return f->last_image[w->x] || (is_one_pixel(f->e, w->x) && is_one_pixel(f->e, w->result));
}

static bool can_fuse_conv(const fuser *f, const weighted *w)
{
	const edit *e = f->e;
	bool bias = w->bias == NONE || (is_f32_cpu(e, w->bias) && f->constant[w->bias]);
	return bias && is_f32_cpu(e, w->x) && is_f32_cpu(e, w->weight) && is_f32_cpu(e, w->result) &&
	       f->constant[w->weight];
}

/* The input's sizes, for which the weight is laid out. */
static clv_status size_hint(const fuser *f, value_id x, arg *out)
{
	edit *e = f->e;
	bool known;
	*out = arg_of(NONE);
	TRY(has_hints(f, x, &known));
	if (!known)
		return CLV_OK;
	return arg_sizes(e, &e->p->dims.at[e->p->values.at[x].shape], e->p->values.at[x].ndim, out);
}

/* padding, [output_padding,] stride, dilation, groups: as all these operators have them */
static clv_status geometry_args(fuser *f, const weighted *w, const geometry *g, arg *out, uint32_t *n)
{
	edit *e = f->e;
	TRY(arg_ints(e, g->padding, g->dims, &out[(*n)++]));
	if (w->transposed)
		TRY(arg_ints(e, g->output_padding, g->dims, &out[(*n)++]));
	TRY(arg_ints(e, g->stride, g->dims, &out[(*n)++]));
	TRY(arg_ints(e, g->dilation, g->dims, &out[(*n)++]));
	return arg_int(e, w->groups, &out[(*n)++]);
}

/* That of a transposed convolution is laid out with outputs first. */
static clv_status new_packed(edit *e, const weighted *w, value_id *out)
{
	uint32_t ndim = e->p->values.at[w->weight].ndim;
	int64_t shape[MAX_DIMS + 2];
	if (!w->transposed)
		return edit_like(e, w->weight, out);
	for (uint32_t d = 0; d < ndim; d++)
		if (!fixed_dim(e, w->weight, d, &shape[d]))
			return edit_like(e, w->weight, out);
	int64_t inputs = shape[0];
	shape[0] = shape[1] * w->groups;
	shape[1] = inputs / w->groups;
	return new_tensor(e, w->weight, DT_F32, shape, ndim, out);
}

static clv_status pack(fuser *f, const weighted *w, const geometry *g, uint16_t op, value_id *out)
{
	edit *e = f->e;
	spot at = {e, w->node, w->node};
	arg args[7] = {arg_of(w->weight)};
	uint32_t n = 1;
	TRY(geometry_args(f, w, g, args, &n));
	TRY(size_hint(f, w->x, &args[n++]));
	TRY(new_packed(e, w, out));
	e->p->values.at[*out].flags |= VALUE_ODD;
	return put_node(&at, op, args, n, *out);
}

static clv_status join_unary(fuser *f, const weighted *w, const geometry *g, value_id weight, const tail *t)
{
	arg args[11] = {arg_of(w->x), arg_of(weight), arg_of(w->bias)};
	uint32_t n = 3;
	TRY(geometry_args(f, w, g, args, &n));
	TRY(activation_args(f, &t->act, "none", &args[n]));
	uint16_t op = w->transposed ? OP_mkldnn__convolution_transpose_pointwise : OP_mkldnn__convolution_pointwise;
	return join(f, w, t, op, args, n + 3);
}

static clv_status join_binary(fuser *f, const weighted *w, const geometry *g, value_id weight, const tail *t)
{
	arg args[13] = {arg_of(w->x), arg_of(t->other), arg_of(weight), arg_of(w->bias)};
	uint32_t n = 4;
	if (t->in_place) {
		args[0] = arg_of(t->other);
		args[1] = arg_of(w->x);
	}
	TRY(geometry_args(f, w, g, args, &n));
	TRY(arg_text(f->e, t->binary, &args[n++]));
	args[n++] = arg_float(1);
	TRY(activation_args(f, &t->act, NULL, &args[n]));
	uint16_t op = t->in_place ? OP_mkldnn__convolution_pointwise__binary : OP_mkldnn__convolution_pointwise_binary;
	return join(f, w, t, op, args, n + 3);
}

static unsigned tail_kinds(const fuser *f, const weighted *w)
{
	if (w->transposed)
		return has_operator(f->s, OP_mkldnn__convolution_transpose_pointwise) ? TAIL_UNARY : 0;
	unsigned kinds = has_operator(f->s, OP_mkldnn__convolution_pointwise) ? TAIL_UNARY : 0;
	if (has_operator(f->s, OP_mkldnn__convolution_pointwise_binary))
		kinds |= TAIL_BINARY | TAIL_BINARY_RELU;
	if (has_operator(f->s, OP_mkldnn__convolution_pointwise__binary))
		kinds |= TAIL_IN_PLACE;
	return kinds;
}

static uint16_t packing_op(const fuser *f, const weighted *w, const geometry *g)
{
	uint16_t op =
		w->transposed ? OP_mkldnn__reorder_convolution_transpose_weight : OP_mkldnn__reorder_convolution_weight;
	bool possible = g->dims == 2 || (g->dims == 3 && !w->transposed);
	return possible && may_be_channels_last(f, w) && has_operator(f->s, op) ? op : OP_UNKNOWN;
}

clv_status fuse_convolution(fuser *f, node_id n)
{
	weighted w;
	geometry g;
	tail t;
	if (!read_weighted(f->e, n, &w) || !read_geometry(f->e, &w, &g) || !can_fuse_conv(f, &w))
		return CLV_OK;
	unsigned kinds = tail_kinds(f, &w);
	uint16_t packing = packing_op(f, &w, &g);
	value_id weight = w.weight;
	find_tail(f, &w, kinds, &t);
	if (!(kinds & TAIL_UNARY) || (!packing && (!t.n || w.transposed)))
		return CLV_OK;
	if (packing)
		TRY(pack(f, &w, &g, packing, &weight));
	return t.binary ? join_binary(f, &w, &g, weight, &t) : join_unary(f, &w, &g, weight, &t);
}
