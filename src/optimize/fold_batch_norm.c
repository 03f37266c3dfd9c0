/* Folds batch normalization into the weights of the layer before it.
 * Batch normalization in eval mode is a factor and a shift per channel. Where only it reads the result of a convolution
 * or of a linear, both go into the weight and the bias, which become nodes of the prelude:
 *
 *     factor = rsqrt(var + eps) * gamma      weight' = weight * factor      bias' = (bias - mean) * factor + beta
 *
 * Halves are computed in f32 and rounded once. */
#include "optimize/fuse.h"

#include <string.h>

/* Forms of the operator: (x, gamma, beta, mean, var, …). */
static const struct norm_form {
	uint32_t training, eps; /* which arguments; training NONE: it never is */
} norm_forms[OP_COUNT] = {
	[OP_batch_norm] = {5, 7},
	[OP_native_batch_norm] = {5, 7},
	[OP_cudnn_batch_norm] = {5, 7},
	[OP__native_batch_norm_legit_no_training] = {NONE, 6},
};

typedef struct norm {
	node_id node;
	value_id x, gamma, beta, mean, var, result; /* gamma, beta: NONE where there is none */
	double eps;
	int64_t channels;
} norm;

typedef struct folder {
	edit *e;
	bool *constant; /* per value */
} folder;

static bool is_real_tensor(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	return is_float(x) && !(x->flags & VALUE_ODD);
}

/* The first result is the image; statistics of the batch may come after it, if they are not used. */
static value_id image_result(const edit *e, node_id n)
{
	const node *x = &e->p->nodes.at[n];
	value_id first = NONE;
	for (uint32_t i = 0; i < x->nresults; i++) {
		const arg *a = &e->p->args.at[x->results + i];
		if (a->kind == ARG_NONE && i)
			continue;
		if (a->kind != ARG_VALUE)
			return NONE;
		if (!i)
			first = a->u.v;
		else if (e->facts.uses[a->u.v] || e->facts.kept[a->u.v])
			return NONE;
	}
	return first;
}

static bool is_vector(const folder *f, value_id v, int64_t n)
{
	const edit *e = f->e;
	return f->constant[v] && is_real_tensor(e, v) && e->p->values.at[v].ndim == 1 && dim_is(e, v, 0, n);
}

static bool is_vector_or_none(const folder *f, node_id n, uint32_t i, int64_t channels)
{
	value_id v = edit_value(f->e, n, i);
	return v == NONE ? edit_arg(f->e, n, i)->kind == ARG_NONE : is_vector(f, v, channels);
}

static bool read_parts(const folder *f, const struct norm_form *form, norm *out)
{
	const edit *e = f->e;
	node_id n = out->node;
	out->x = edit_value(e, n, 0);
	out->gamma = edit_value(e, n, 1);
	out->beta = edit_value(e, n, 2);
	out->mean = edit_value(e, n, 3);
	out->var = edit_value(e, n, 4);
	out->result = image_result(e, n);
	if (form->training != NONE && !arg_is_bool(edit_arg(e, n, form->training), false))
		return false;
	if (out->x == NONE || out->mean == NONE || out->var == NONE || out->result == NONE)
		return false;
	return arg_number(e, edit_arg(e, n, form->eps), &out->eps) && fixed_dim(e, out->mean, 0, &out->channels) &&
	       is_vector(f, out->mean, out->channels) && is_vector(f, out->var, out->channels) &&
	       is_vector_or_none(f, n, 1, out->channels) && is_vector_or_none(f, n, 2, out->channels);
}

static bool read_norm(const folder *f, node_id n, norm *out)
{
	*out = (norm){.node = n};
	const struct norm_form *form = &norm_forms[f->e->p->nodes.at[n].op_id];
	return form->eps && node_pure(f->e, n) && read_parts(f, form, out);
}

/* The dimension of the weight that channels of the result are. */
static uint32_t channel_dim(const weighted *w)
{
	return w->transposed ? 1 : 0;
}

/* An image without a batch has its channels where the normalization does not look for them: dimensions must be those of
   the weight. */
static bool can_fold(const folder *f, const weighted *w, const norm *b)
{
	const edit *e = f->e;
	const value *r = &e->p->values.at[w->result], *weight = &e->p->values.at[w->weight];
	const value *y = &e->p->values.at[b->result];
	bool types = is_real_tensor(e, w->result) && is_real_tensor(e, w->weight) && r->dtype == weight->dtype &&
	             r->dtype == y->dtype;
	bool bias = w->bias == NONE || is_vector(f, w->bias, b->channels);
	return types && bias && f->constant[w->weight] && r->ndim == weight->ndim && r->ndim >= 2 && r->ndim <= 5 &&
	       y->alias == NONE && !(y->flags & VALUE_ODD) && same_shape(e->p, w->result, b->result) &&
	       dim_is(e, w->weight, channel_dim(w), b->channels) && !(w->transposed && w->groups != 1);
}

/* Vectors and weights on the way: each call makes one node of the prelude. */
typedef struct arithmetic {
	spot at;
	dtype type; /* what it is computed in */
} arithmetic;

static clv_status like_it(const arithmetic *a, value_id v, dtype type, value_id *out)
{
	TRY(edit_like(a->at.e, v, out));
	a->at.e->p->values.at[*out].dtype = (uint8_t)type;
	return CLV_OK;
}

static clv_status cast(const arithmetic *a, value_id *v, dtype type)
{
	if (*v == NONE || a->at.e->p->values.at[*v].dtype == type)
		return CLV_OK;
	value_id out;
	TRY(like_it(a, *v, type, &out));
	arg args[] = {
		arg_of(*v), {.kind = ARG_DTYPE, .u.code = type}, arg_bool(false), arg_bool(false), {.kind = ARG_NONE}};
	TRY(put_node(&a->at, OP_to_dtype, args, 5, out));
	*v = out;
	return CLV_OK;
}

/* *v = op(*v, other), of the shape of *v. */
static clv_status combine(const arithmetic *a, uint16_t op, value_id *v, arg other, bool has_alpha)
{
	value_id out;
	arg args[] = {arg_of(*v), other, {.kind = ARG_NONE}};
	TRY(like_it(a, *v, a->type, &out));
	if (has_alpha)
		TRY(arg_int(a->at.e, 1, &args[2]));
	TRY(put_node(&a->at, op, args, has_alpha ? 3 : 2, out));
	*v = out;
	return CLV_OK;
}

static clv_status one(const arithmetic *a, uint16_t op, value_id *v)
{
	value_id out;
	arg args[] = {arg_of(*v)};
	TRY(like_it(a, *v, a->type, &out));
	TRY(put_node(&a->at, op, args, 1, out));
	*v = out;
	return CLV_OK;
}

static clv_status make_factor(const arithmetic *a, const norm *b, value_id *factor)
{
	*factor = b->var;
	TRY(combine(a, OP_add_Scalar, factor, arg_float(b->eps), true));
	TRY(one(a, OP_rsqrt, factor));
	return b->gamma == NONE ? CLV_OK : combine(a, OP_mul_Tensor, factor, arg_of(b->gamma), false);
}

/* The factor of each channel, in the dimension of the weight that has them. */
static clv_status spread(const arithmetic *a, value_id factor, const weighted *w, int64_t channels, value_id *out)
{
	edit *e = a->at.e;
	uint32_t ndim = e->p->values.at[w->weight].ndim;
	int64_t shape[] = {1, 1, 1, 1, 1};
	shape[channel_dim(w)] = channels;
	arg args[2] = {arg_of(factor)};
	TRY(arg_ints(e, shape, ndim, &args[1]));
	TRY(new_tensor(e, factor, a->type, shape, ndim, out));
	e->p->values.at[*out].alias = factor;
	return put_node(&a->at, OP_view, args, 2, *out);
}

static clv_status make_weight(const arithmetic *a, const weighted *w, const norm *b, value_id factor, value_id *out)
{
	value_id wide;
	dtype type = (dtype)a->at.e->p->values.at[w->weight].dtype;
	TRY(spread(a, factor, w, b->channels, &wide));
	*out = w->weight;
	TRY(cast(a, out, a->type));
	TRY(combine(a, OP_mul_Tensor, out, arg_of(wide), false));
	return cast(a, out, type);
}

static clv_status make_bias(const arithmetic *a, const weighted *w, const norm *b, value_id factor, value_id *out)
{
	dtype type = (dtype)a->at.e->p->values.at[w->weight].dtype;
	value_id bias = w->bias;
	TRY(cast(a, &bias, a->type));
	if (bias == NONE) {
		*out = b->mean;
		TRY(one(a, OP_neg, out));
	} else {
		*out = bias;
		TRY(combine(a, OP_sub_Tensor, out, arg_of(b->mean), true));
	}
	TRY(combine(a, OP_mul_Tensor, out, arg_of(factor), false));
	if (b->beta != NONE)
		TRY(combine(a, OP_add_Tensor, out, arg_of(b->beta), true));
	return cast(a, out, type);
}

static clv_status as_computed(const arithmetic *a, norm *b)
{
	TRY(cast(a, &b->var, a->type));
	TRY(cast(a, &b->mean, a->type));
	TRY(cast(a, &b->gamma, a->type));
	return cast(a, &b->beta, a->type);
}

/* The node again, with another weight, bias and result; as early as the convolution was. */
static clv_status put_folded(const spot *at, const weighted *w, const norm *b, value_id weight, value_id bias)
{
	edit *e = at->e;
	const node *x = &e->p->nodes.at[w->node];
	uint32_t n = x->nargs > 3 ? x->nargs : 3;
	arg *args = edit_array(e, n, sizeof *args);
	TRY_MEM(args);
	memcpy(args, &e->p->args.at[x->args], x->nargs * sizeof *args);
	args[1] = arg_of(weight);
	args[2] = arg_of(bias);
	TRY(edit_remove(e, w->node));
	TRY(edit_remove(e, b->node));
	return put_node(at, x->op_id, args, n, b->result);
}

static clv_status fold(edit *e, const weighted *w, const norm *found)
{
	norm b = *found;
	dtype type = (dtype)e->p->values.at[w->weight].dtype;
	arithmetic a = {{e, w->node, w->node}, type == DT_F64 ? DT_F64 : DT_F32};
	value_id factor, weight, bias;
	TRY(as_computed(&a, &b));
	TRY(make_factor(&a, &b, &factor));
	TRY(make_weight(&a, w, &b, factor, &weight));
	TRY(make_bias(&a, w, &b, factor, &bias));
	return put_folded(&a.at, w, &b, weight, bias);
}

/* shift + x * factor: spread over channels, which the weight of a transposed convolution has where images have them. */
static clv_status put_scaled(edit *e, const norm *found)
{
	norm b = *found;
	weighted w = {.node = b.node, .weight = b.x, .bias = NONE, .transposed = true};
	arithmetic a = {{e, b.node, b.node}, DT_F32};
	value_id factor, shift, wide_factor, wide_shift;
	TRY(as_computed(&a, &b));
	TRY(make_factor(&a, &b, &factor));
	TRY(make_bias(&a, &w, &b, factor, &shift));
	TRY(spread(&a, factor, &w, b.channels, &wide_factor));
	TRY(spread(&a, shift, &w, b.channels, &wide_shift));
	arg args[4] = {arg_of(wide_shift), arg_of(b.x), arg_of(wide_factor)};
	TRY(arg_int(e, 1, &args[3]));
	TRY(edit_remove(e, b.node));
	return put_node(&a.at, OP_addcmul, args, 4, b.result);
}

clv_status scale_last_images(edit *e, bool *constant, const bool *last, uint32_t *changes)
{
	folder f = {e, constant};
	for (node_id n = e->first; n < e->end; n++) {
		norm b;
		if (e->gone.at[n] || !read_norm(&f, n, &b) || !last[b.x] || !runs_plainly(e, n))
			continue;
		const value *y = &e->p->values.at[b.result];
		if (!is_f32_cpu(e, b.x) || !is_f32_cpu(e, b.result) || y->alias != NONE || !same_shape(e->p, b.x, b.result) ||
		    !dim_is(e, b.x, 1, b.channels))
			continue;
		TRY(put_scaled(e, &b));
		*changes += 1;
	}
	return CLV_OK;
}

static clv_status try_fold(folder *f, node_id n, uint32_t *changes)
{
	const edit *e = f->e;
	norm b;
	weighted w;
	if (!read_norm(f, n, &b) || e->p->values.at[b.x].kind != VALUE_RESULT || e->gone.at[n])
		return CLV_OK;
	node_id def = e->p->values.at[b.x].def;
	bool here = def != NONE && def >= e->first && def < e->end;
	if (!here || !node_pure(e, def) || !read_weighted(e, def, &w) || w.result != b.x || !only_for(e, b.x, n, NONE))
		return CLV_OK;
	bool together = e->p->nodes.at[def].context == e->p->nodes.at[n].context && runs_plainly(e, n);
	if (!together || !can_fold(f, &w, &b))
		return CLV_OK;
	TRY(fold(f->e, &w, &b));
	*changes += 1;
	return CLV_OK;
}

clv_status pass_fold_batch_norm(edit *e, const optimize_spec *s, uint32_t *changes)
{
	folder f = {.e = e};
	TRY(constant_values(e, s, &f.constant));
	for (node_id n = e->first; n < e->end; n++)
		TRY(try_fold(&f, n, changes));
	return CLV_OK;
}
