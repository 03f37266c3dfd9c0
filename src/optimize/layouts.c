/* Finds out how images are laid out: see layouts.h. */
#include "optimize/layouts.h"

#include <string.h>

#include "optimize/rewrite.h"

uint32_t image_where(const edit *e, value_id v)
{
	const char *device = plan_s(e->p, e->p->values.at[v].device);
	return device_is(device, "cpu") ? WHERE_CPU : device_is(device, "cuda") ? WHERE_CUDA : WHERE_NOWHERE;
}

bool is_image(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	return x->type == TYPE_TENSOR && x->ndim == 4 && !(x->flags & VALUE_ODD) && !value_guarded(e->p, v) &&
	       (x->dtype == DT_F32 || x->dtype == DT_F16 || x->dtype == DT_BF16) && image_where(e, v) != WHERE_NOWHERE;
}

bool is_pixel(const edit *e, value_id v)
{
	return is_image(e, v) && dim_is(e, v, 2, 1) && dim_is(e, v, 3, 1);
}

static bool are_spatial(const edit *e, const arg *a)
{
	bool height = false, width = false;
	if (a->kind != ARG_LIST || a->u.list.n != 2)
		return false;
	for (uint32_t i = 0; i < 2; i++) {
		const arg *d = &e->p->args.at[a->u.list.first + i];
		height |= arg_is_int(e, d, 2) || arg_is_int(e, d, -2);
		width |= arg_is_int(e, d, 3) || arg_is_int(e, d, -1);
	}
	return height && width;
}

static bool rule_holds(const edit *e, node_id n, const op_row *row)
{
	const arg *a = edit_arg(e, n, row->image.at);
	switch ((image_rule)row->image.rule) {
	case RULE_OFF: return arg_is_bool(a, false);
	case RULE_CHANNELS: return arg_is_int(e, a, 1) || arg_is_int(e, a, -3);
	case RULE_SPATIAL: return are_spatial(e, a);
	case RULE_UNSET: return a->kind == ARG_NONE;
	case RULE_CONSTANT: return a->kind == ARG_STR && !strcmp(plan_s(e->p, a->u.s), "constant");
	default: return true;
	}
}

static void find_rows(layouts *l)
{
	for (node_id n = 0; n < l->e->end; n++) {
		const op_row *row = node_op(l->e->p, n);
		l->rows[n] = row->image.kind && rule_holds(l->e, n, row) ? row : NULL;
	}
}

static void find_given(layouts *l)
{
	const plan *p = l->e->p;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->kind != VALUE_RESULT && x->type == TYPE_TENSOR && x->strides == NONE && !(x->flags & VALUE_ODD))
			l->order[v] = ORDER_ROWS;
	}
}

static void is_ordered(void *ctx, value_id v)
{
	layouts *l = ctx;
	l->yes &= l->order[v] != ORDER_UNKNOWN;
}

static void is_row_major(void *ctx, value_id v)
{
	layouts *l = ctx;
	l->yes &= l->order[v] == ORDER_ROWS;
}

typedef struct orderer {
	layouts *l;
	image_order fresh; /* of a result that owns its memory */
	image_order self;  /* of argument 0 */
} orderer;

/* A result on memory of others is argument 0 itself, or slices of it. */
static void order_result(void *ctx, value_id v)
{
	orderer *o = ctx;
	bool part = o->fresh == ORDER_SLICE;
	o->l->order[v] = (uint8_t)(o->l->e->p->values.at[v].alias == NONE || part ? o->fresh : o->self);
}

static void order_of_node(layouts *l, node_id n)
{
	const op_row *row = l->rows[n];
	if (!row)
		return;
	l->yes = true;
	node_each_arg(l->e->p, n, row->image.kind == IMAGE_ROWS ? is_row_major : is_ordered, l);
	if (!l->yes)
		return;
	value_id first = edit_value(l->e, n, 0);
	orderer o = {l, row->image.kind == IMAGE_PART ? ORDER_SLICE : ORDER_ROWS,
	             first != NONE ? (image_order)l->order[first] : ORDER_UNKNOWN};
	node_each_result(l->e->p, n, order_result, &o);
}

clv_status layouts_new(edit *e, layouts *out)
{
	*out = (layouts){.e = e};
	out->rows = edit_array(e, e->p->nodes.n, sizeof *out->rows);
	out->order = edit_array(e, e->p->values.n, sizeof *out->order);
	TRY_MEM(out->rows && out->order);
	find_rows(out);
	find_given(out);
	for (node_id n = 0; n < e->end; n++)
		order_of_node(out, n);
	return CLV_OK;
}

static void see_image(const layouts *l, const arg *a, value_fn f, void *ctx)
{
	if (a->kind == ARG_VALUE && is_image(l->e, a->u.v))
		f(ctx, a->u.v);
}

void layout_each_image(const layouts *l, node_id n, value_fn f, void *ctx)
{
	const arg *first = edit_arg(l->e, n, 0);
	uint8_t kind = l->rows[n]->image.kind;
	if (kind == IMAGE_CAT)
		for (uint32_t i = 0; first->kind == ARG_LIST && i < first->u.list.n; i++)
			see_image(l, &l->e->p->args.at[first->u.list.first + i], f, ctx);
	else
		see_image(l, first, f, ctx);
	if (kind == IMAGE_MIX)
		see_image(l, edit_arg(l->e, n, 1), f, ctx);
}

static void count_one(void *ctx, value_id v)
{
	(void)v;
	++*(uint32_t *)ctx;
}

/* All of a list are images, and one is there. */
static bool has_images(const layouts *l, node_id n)
{
	uint32_t found = 0;
	const arg *first = edit_arg(l->e, n, 0);
	layout_each_image(l, n, count_one, &found);
	return found > 0 && (l->rows[n]->image.kind != IMAGE_CAT || found == first->u.list.n);
}

/* What is spread over an image has its shape or a smaller one; the result must not be larger than both operands. */
static bool mixes(const layouts *l, node_id n)
{
	value_id r = edit_result(l->e, n), a = edit_value(l->e, n, 0), b = edit_value(l->e, n, 1);
	return r != NONE && ((a != NONE && same_shape(l->e->p, a, r)) || (b != NONE && same_shape(l->e->p, b, r)));
}

/* The arguments that a node of its kind has are there. */
static bool has_args(const layouts *l, node_id n)
{
	value_id weight = edit_value(l->e, n, 1);
	switch (l->rows[n]->image.kind) {
	case IMAGE_CONV: return weight != NONE && is_image(l->e, weight) && has_images(l, n);
	case IMAGE_MIX: return l->e->p->nodes.at[n].nargs >= 2 && has_images(l, n) && mixes(l, n);
	default: return has_images(l, n);
	}
}

static void see_image_arg(void *ctx, value_id v)
{
	layouts *l = ctx;
	const value *x = &l->e->p->values.at[v];
	l->yes &=
		x->type == TYPE_TENSOR && x->ndim <= 4 && (x->ndim < 4 || is_image(l->e, v)) && l->order[v] != ORDER_UNKNOWN;
}

static void see_image_result(void *ctx, value_id v)
{
	layouts *l = ctx;
	const value *x = &l->e->p->values.at[v];
	l->yes &= x->type == TYPE_TENSOR && l->order[v] != ORDER_UNKNOWN && !value_guarded(l->e->p, v) &&
	          (is_image(l->e, v) || (x->ndim < 4 && x->alias == NONE));
}

static void see_device(void *ctx, value_id v)
{
	layouts *l = ctx;
	l->yes &= (image_where(l->e, v) & l->rows[l->e->p->values.at[v].def]->image.where) != 0;
}

bool layout_possible(layouts *l, node_id n)
{
	const plan *p = l->e->p;
	const op_row *row = l->rows[n];
	if (!row || row->image.kind == IMAGE_ROWS || edit_pinned(l->e, n) || node_draws(p, n) ||
	    (p->nodes.at[n].flags & (NODE_HOST | NODE_IMPURE)))
		return false;
	l->yes = has_args(l, n);
	node_each_arg(p, n, see_image_arg, l);
	node_each_result(p, n, see_image_result, l);
	node_each_result(p, n, see_device, l);
	return l->yes;
}
