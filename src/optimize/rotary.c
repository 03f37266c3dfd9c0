/* Speeds up rotary position embeddings.
 * Rotary position embeddings: x * cos + cat(-x2, x1) * sin, where x1 and x2 are the halves of x's rows.
 *
 * The sign can be that of the sine, which is the same for all layers, queries and keys: made once, it leaves three
 * kernels of five for each of them, a product, cat(x2, x1) and addcmul. (aten::roll would copy x first on CUDA,
 * where x is turned.) */
#include "optimize/match.h"

typedef struct sine_pair {
	value_id sine, signed_sine;
} sine_pair;

typedef struct finder {
	edit *e;
	VEC(sine_pair) made;
	uint32_t *changes;
} finder;

typedef struct rotation {
	found_tree tree;
	value_id x, cosine, sine, product; /* product: x * cosine */
	value_id halves[2];                /* of x */
	int64_t row;                       /* its length */
} rotation;

static node_id maker_by_op(const edit *e, value_id v, uint16_t op)
{
	if (v == NONE || e->p->values.at[v].kind != VALUE_RESULT)
		return NONE;
	node_id n = e->p->values.at[v].def;
	return n != NONE && n < e->nodes && edit_is(e, n, op) && edit_result(e, n) == v ? n : NONE;
}

static bool is_end(const edit *e, const arg *a, int64_t row)
{
	int64_t k;
	return a->kind == ARG_NONE || (a->kind == ARG_INT && expr_is_const(e->p, a->u.e, &k) && k >= row);
}

/* slice(x, last, from, to, 1): half a row */
static bool is_half(const edit *e, node_id n, bool second, int64_t row)
{
	value_id x = edit_value(e, n, 0);
	uint32_t ndim = e->p->values.at[x].ndim;
	const arg *dim = edit_arg(e, n, 1), *from = edit_arg(e, n, 2), *to = edit_arg(e, n, 3);
	bool last = arg_is_int(e, dim, -1) || arg_is_int(e, dim, (int64_t)ndim - 1);
	if (!last || !arg_is_int(e, edit_arg(e, n, 4), 1))
		return false;
	if (second)
		return arg_is_int(e, from, row / 2) && is_end(e, to, row);
	return (from->kind == ARG_NONE || arg_is_int(e, from, 0)) && arg_is_int(e, to, row / 2);
}

/* The parts of cat([a, b], last). */
static bool read_cat(const edit *e, node_id n, value_id parts[2])
{
	const arg *a = edit_arg(e, n, 0), *dim = edit_arg(e, n, 1);
	if (a->kind != ARG_LIST || a->u.list.n != 2)
		return false;
	for (uint32_t i = 0; i < 2; i++) {
		const arg *part = &e->p->args.at[a->u.list.first + i];
		if (part->kind != ARG_VALUE)
			return false;
		parts[i] = part->u.v;
	}
	return arg_is_int(e, dim, -1) || arg_is_int(e, dim, (int64_t)e->p->values.at[edit_result(e, n)].ndim - 1);
}

/* Whether v is cat(-x2, x1); its nodes become part of the tree. */
static bool read_turned(const edit *e, value_id v, rotation *r)
{
	value_id parts[2];
	node_id nodes[4] = {maker_by_op(e, v, OP_cat), NONE, NONE, NONE};
	if (nodes[0] == NONE || !read_cat(e, nodes[0], parts))
		return false;
	nodes[1] = maker_by_op(e, parts[0], OP_neg);
	nodes[2] = nodes[1] == NONE ? NONE : maker_by_op(e, edit_value(e, nodes[1], 0), OP_slice_Tensor);
	nodes[3] = maker_by_op(e, parts[1], OP_slice_Tensor);
	if (nodes[2] == NONE || nodes[3] == NONE)
		return false;
	r->x = edit_value(e, nodes[2], 0);
	uint32_t ndim = r->x == NONE ? 0 : e->p->values.at[r->x].ndim;
	if (!ndim || r->x != edit_value(e, nodes[3], 0) || !fixed_dim(e, r->x, ndim - 1, &r->row) || r->row % 2 ||
	    !is_half(e, nodes[2], true, r->row) || !is_half(e, nodes[3], false, r->row))
		return false;
	r->halves[0] = parts[1];
	r->halves[1] = edit_result(e, nodes[2]);
	for (uint32_t i = 0; i < 2; i++) /* the halves stay */
		if (!may_join(e, r->tree.top, nodes[i]) || !tree_add_node(&r->tree, nodes[i]))
			return false;
	return true;
}

/* A factor for all numbers of a row, whose halves are its own too. */
static bool is_factor(const edit *e, value_id v, const rotation *r)
{
	const value *x = &e->p->values.at[v], *y = &e->p->values.at[r->x];
	return x->type == TYPE_TENSOR && x->dtype == y->dtype && x->device == y->device && !(x->flags & VALUE_ODD) &&
	       x->ndim && dim_is(e, v, x->ndim - 1, r->row) && !e->facts.written[v] &&
	       (x->kind != VALUE_RESULT || x->def == NONE || !edit_pinned(e, x->def)); /* nothing goes into a segment */
}

/* The product that stays: x * cosine. */
static bool find_product(const edit *e, node_id top, rotation *r)
{
	r->product = edit_value(e, top, 0);
	node_id n = maker_by_op(e, r->product, OP_mul_Tensor);
	if (n == NONE)
		return false;
	value_id a = edit_value(e, n, 0), b = edit_value(e, n, 1);
	r->cosine = a == r->x ? b : b == r->x ? a : NONE;
	return r->cosine != NONE;
}

/* top = product + turned * sine, where the turned one is factor `side`. The product is first: the result is laid out
   like it, before and after. */
static bool read_rotation(const edit *e, node_id top, uint32_t side, rotation *r)
{
	tree_new(top, &r->tree);
	node_id n = maker_by_op(e, edit_value(e, top, 1), OP_mul_Tensor);
	if (n == NONE || !may_join(e, top, top) || !may_join(e, top, n) || !tree_add_node(&r->tree, n))
		return false;
	r->sine = edit_value(e, n, 1 - side);
	if (r->sine == NONE || !read_turned(e, edit_value(e, n, side), r) || !find_product(e, top, r))
		return false;
	value_id y = edit_result(e, top);
	return is_factor(e, r->sine, r) && same_shape(e->p, r->x, y) && same_shape(e->p, r->product, y) &&
	       e->p->values.at[r->x].dtype == e->p->values.at[y].dtype && tree_add_leaf(&r->tree, r->x) &&
	       tree_add_leaf(&r->tree, r->sine) && tree_add_leaf(&r->tree, r->product) && tree_is_closed(e, &r->tree);
}

static clv_status put_half(const spot *at, value_id v, int64_t from, int64_t row, value_id *out)
{
	edit *e = at->e;
	arg args[5] = {arg_of(v)};
	uint32_t last = e->p->values.at[v].ndim - 1;
	const int64_t numbers[] = {last, from, from + row / 2, 1};
	for (uint32_t i = 0; i < 4; i++)
		TRY(arg_int(e, numbers[i], &args[i + 1]));
	expr_id half;
	TRY(expr_const(e->p, row / 2, &half));
	TRY(edit_like(e, v, out));
	e->p->dims.at[e->p->values.at[*out].shape + last] = half;
	e->p->values.at[*out].alias = alias_root(e->p, v);
	return put_node(at, OP_slice_Tensor, args, 5, *out);
}

static clv_status put_cat(const spot *at, value_id a, value_id b, value_id like, value_id *out)
{
	arg parts[] = {arg_of(a), arg_of(b)}, args[2];
	TRY(plan_list(at->e->p, parts, 2, &args[0]));
	TRY(arg_int(at->e, -1, &args[1]));
	TRY(edit_like(at->e, like, out));
	return put_node(at, OP_cat, args, 2, *out);
}

/* cat(-sine1, sine2) */
static clv_status put_signed(const spot *at, value_id sine, int64_t row, value_id *out)
{
	value_id halves[2], negative;
	TRY(put_half(at, sine, 0, row, &halves[0]));
	TRY(put_half(at, sine, row / 2, row, &halves[1]));
	TRY(edit_like(at->e, halves[0], &negative));
	arg args[] = {arg_of(halves[0])};
	TRY(put_node(at, OP_neg, args, 1, negative));
	return put_cat(at, negative, halves[1], sine, out);
}

/* Made once for each sine, right behind it. */
static clv_status signed_sine(finder *f, const rotation *r, value_id *out)
{
	edit *e = f->e;
	for (uint32_t i = 0; i < f->made.n; i++)
		if (f->made.at[i].sine == r->sine) {
			*out = f->made.at[i].signed_sine;
			return CLV_OK;
		}
	node_id def = e->p->values.at[r->sine].def;
	bool here = e->p->values.at[r->sine].kind == VALUE_RESULT && def != NONE && def >= e->first;
	spot at = {e, here ? def + 1 : e->first, r->tree.top};
	TRY(put_signed(&at, r->sine, r->row, out));
	return vec_push(&f->made, ((sine_pair){r->sine, *out}));
}

static clv_status put_rotation(finder *f, const rotation *r)
{
	edit *e = f->e;
	spot at = {e, r->tree.top, r->tree.top};
	value_id result = edit_result(e, r->tree.top), sine, turned;
	TRY(signed_sine(f, r, &sine));
	TRY(tree_remove(e, &r->tree));
	TRY(put_cat(&at, r->halves[1], r->halves[0], r->x, &turned));
	arg sum[4] = {arg_of(r->product), arg_of(turned), arg_of(sine)};
	TRY(arg_int(e, 1, &sum[3]));
	*f->changes += r->tree.n;
	return put_node(&at, OP_addcmul, sum, 4, result);
}

static clv_status try_rotation(finder *f, node_id n)
{
	const edit *e = f->e;
	double alpha;
	if (e->gone.at[n] || !edit_is(e, n, OP_add_Tensor) || !makes_new(e, n) ||
	    !arg_number(e, edit_arg(e, n, 2), &alpha) || alpha != 1)
		return CLV_OK;
	for (uint32_t side = 0; side < 2; side++) {
		rotation r;
		if (read_rotation(e, n, side, &r))
			return put_rotation(f, &r);
	}
	return CLV_OK;
}

clv_status pass_rotary(edit *e, const optimize_spec *s, uint32_t *changes)
{
	finder f = {.e = e, .changes = changes};
	(void)s;
	clv_status st = CLV_OK;
	for (node_id n = e->first; n < e->end && st == CLV_OK; n++)
		st = try_rotation(&f, n);
	vec_free(&f.made);
	return st;
}
