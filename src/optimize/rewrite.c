/* Inserts nodes, and reads convolutions and linears: see rewrite.h. */
#include "optimize/rewrite.h"

clv_status arg_int(edit *e, int64_t k, arg *out)
{
	*out = (arg){.kind = ARG_INT};
	return expr_const(e->p, k, &out->u.e);
}

clv_status arg_text(edit *e, const char *s, arg *out)
{
	*out = (arg){.kind = ARG_STR};
	return plan_cstr(e->p, s, &out->u.s);
}

clv_status arg_ints(edit *e, const int64_t *k, uint32_t n, arg *out)
{
	arg each[MAX_INTS];
	if (n > MAX_INTS)
		return fail(CLV_E_INVALID, "a list of %u sizes is too long for a new node", n);
	for (uint32_t i = 0; i < n; i++)
		TRY(arg_int(e, k[i], &each[i]));
	return plan_list(e->p, each, n, out);
}

clv_status arg_sizes(edit *e, const expr_id *k, uint32_t n, arg *out)
{
	arg each[MAX_INTS];
	if (n > MAX_INTS)
		return fail(CLV_E_INVALID, "a list of %u sizes is too long for a new node", n);
	for (uint32_t i = 0; i < n; i++)
		each[i] = (arg){.kind = ARG_INT, .u.e = k[i]};
	return plan_list(e->p, each, n, out);
}

clv_status new_tensor(edit *e, value_id like, dtype type, const int64_t *shape, uint32_t ndim, value_id *out)
{
	expr_id dims[MAX_INTS];
	if (ndim > MAX_INTS)
		return fail(CLV_E_INVALID, "a tensor of %u dimensions is too large for a new node", ndim);
	for (uint32_t d = 0; d < ndim; d++)
		TRY(expr_const(e->p, shape[d], &dims[d]));
	const char *device = plan_s(e->p, e->p->values.at[like].device);
	tensor_spec t = {.dtype = type, .ndim = ndim, .shape = dims, .device = device};
	return plan_tensor(e->p, VALUE_RESULT, NULL, &t, out);
}

clv_status new_shaped(edit *e, value_id like, const expr_id *shape, uint32_t ndim, value_id *out)
{
	const value *x = &e->p->values.at[like];
	tensor_spec t = {.dtype = (dtype)x->dtype, .ndim = ndim, .shape = shape, .device = plan_s(e->p, x->device)};
	return plan_tensor(e->p, VALUE_RESULT, NULL, &t, out);
}

clv_status new_view(edit *e, value_id v, const expr_id *shape, uint32_t ndim, value_id *out)
{
	TRY(new_shaped(e, v, shape, ndim, out));
	e->p->values.at[*out].alias = alias_root(e->p, v);
	return CLV_OK;
}

clv_status row_count(edit *e, value_id v, expr_id *out)
{
	TRY(expr_const(e->p, 1, out));
	for (uint32_t d = 0; d + 1 < e->p->values.at[v].ndim; d++)
		TRY(expr_make(e->p, EXPR_MUL, *out, e->p->dims.at[e->p->values.at[v].shape + d], out));
	return CLV_OK;
}

static clv_status insert_like(const spot *at, node_spec s)
{
	const plan *p = at->e->p;
	const node *x = &p->nodes.at[at->like];
	node_id n;
	s.scope = x->scope;
	s.context = x->context;
	s.at = x->at == NONE ? NULL : plan_s(p, x->at);
	return edit_insert(at->e, at->before, &s, &n);
}

clv_status put_writer(const spot *at, uint16_t op, const arg *args, uint32_t nargs, value_id result, value_id written)
{
	arg made = arg_of(result);
	node_spec s = {
		.op = op_rows[op].text, .args = args, .nargs = nargs, .results = &made, .nresults = 1, .writes = &written};
	s.nwrites = written != NONE;
	return insert_like(at, s);
}

clv_status put_views(const spot *at, uint16_t op, const arg *args, uint32_t nargs, const value_id *results, uint32_t n)
{
	arg each[MAX_INTS], list;
	if (n > MAX_INTS)
		return fail(CLV_E_INVALID, "%u views are too many for a new node", n);
	for (uint32_t i = 0; i < n; i++)
		each[i] = arg_of(results[i]);
	TRY(plan_list(at->e->p, each, n, &list));
	return insert_like(
		at, (node_spec){.op = op_rows[op].text, .args = args, .nargs = nargs, .results = &list, .nresults = 1});
}

clv_status put_node(const spot *at, uint16_t op, const arg *args, uint32_t nargs, value_id result)
{
	return put_writer(at, op, args, nargs, result, NONE);
}

bool fixed_dim(const edit *e, value_id v, uint32_t d, int64_t *k)
{
	const value *x = &e->p->values.at[v];
	return d < x->ndim && expr_is_const(e->p, e->p->dims.at[x->shape + d], k);
}

bool dim_is(const edit *e, value_id v, uint32_t d, int64_t k)
{
	int64_t found;
	return fixed_dim(e, v, d, &found) && found == k;
}

bool arg_number(const edit *e, const arg *a, double *k)
{
	int64_t whole;
	if (a->kind == ARG_FLOAT) {
		*k = a->u.f;
		return true;
	}
	if (a->kind != ARG_INT || !expr_is_const(e->p, a->u.e, &whole))
		return false;
	*k = (double)whole;
	return true;
}

bool runs_plainly(const edit *e, node_id n)
{
	const context *c = &e->p->contexts.at[e->p->nodes.at[n].context];
	return !c->nautocast && !(c->flags_mask & (1u << CTX_BIT_MKLDNN | 1u << CTX_BIT_CUDNN));
}

node_id only_reader(const edit *e, value_id v, node_id maker)
{
	const edit_facts *facts = &e->facts;
	if (facts->uses[v] != 1 || facts->kept[v] || value_guarded(e->p, v))
		return NONE;
	node_id u = facts->user[v];
	const node *x = &e->p->nodes.at[u];
	bool plain = !(x->flags & (NODE_HOST | NODE_IMPURE | NODE_RANDOM)) && x->context == e->p->nodes.at[maker].context;
	return plain && u > maker && !e->gone.at[u] ? u : NONE;
}

bool same_type(const edit *e, value_id a, value_id b)
{
	const value *x = &e->p->values.at[a], *y = &e->p->values.at[b];
	return x->type == TYPE_TENSOR && x->dtype == y->dtype && x->device == y->device && !(x->flags & VALUE_ODD);
}

value_id result_on(const edit *e, node_id u, value_id v, value_id on)
{
	const node *x = &e->p->nodes.at[u];
	value_id r = edit_result(e, u);
	if (r == NONE || !same_type(e, r, v) || !same_shape(e->p, r, v) || value_guarded(e->p, r))
		return NONE;
	if (e->p->values.at[r].alias == NONE)
		return x->nwrites ? NONE : r;
	value_id root = alias_root(e->p, on);
	bool written = x->nwrites == 1 && alias_root(e->p, e->p->ids.at[x->writes]) == root;
	return written && alias_root(e->p, r) == root ? r : NONE;
}

bool alpha_is_one(const edit *e, node_id n)
{
	double alpha = 1;
	const arg *a = edit_arg(e, n, 2);
	return a->kind == ARG_NONE || (arg_number(e, a, &alpha) && alpha == 1);
}

enum { NEVER = -1, ALWAYS = -2 };

/* Where the arguments stand that not all have in one place. */
static const struct weighted_form {
	int transposed; /* the argument that says so */
	int groups;     /* NEVER: one; 0: it is no such operator */
	uint32_t dilation, output_padding;
} forms[OP_COUNT] = {
	[OP_conv1d] = {NEVER, 6, 5, NONE},
	[OP_conv2d] = {NEVER, 6, 5, NONE},
	[OP_conv3d] = {NEVER, 6, 5, NONE},
	[OP_conv1d_padding] = {NEVER, 6, 5, NONE},
	[OP_conv2d_padding] = {NEVER, 6, 5, NONE},
	[OP_conv3d_padding] = {NEVER, 6, 5, NONE},
	[OP_conv_transpose1d] = {ALWAYS, 6, 7, 5},
	[OP_conv_transpose2d_input] = {ALWAYS, 6, 7, 5},
	[OP_conv_transpose3d_input] = {ALWAYS, 6, 7, 5},
	[OP_convolution] = {6, 8, 5, 7},
	[OP__convolution] = {6, 8, 5, 7},
	[OP__convolution_deprecated] = {6, 8, 5, 7},
	[OP_linear] = {NEVER, NEVER, NONE, NONE},
};

static bool read_form(const edit *e, node_id n, const struct weighted_form *form, weighted *out)
{
	if (form->transposed >= 0) {
		const arg *a = edit_arg(e, n, (uint32_t)form->transposed);
		if (a->kind != ARG_BOOL)
			return false;
		out->transposed = a->u.b;
	}
	out->transposed |= form->transposed == ALWAYS;
	out->dilation = form->dilation;
	out->output_padding = form->output_padding;
	out->groups = 1;
	if (form->groups == NEVER)
		return true;
	const arg *g = edit_arg(e, n, (uint32_t)form->groups);
	return g->kind == ARG_INT && expr_is_const(e->p, g->u.e, &out->groups);
}

/* With a batch in front, and no images of another number of dimensions than the weight. A linear takes any number. */
static bool has_parts(const edit *e, node_id n, weighted *out)
{
	const arg *bias = edit_arg(e, n, 2);
	out->node = n;
	out->x = edit_value(e, n, 0);
	out->weight = edit_value(e, n, 1);
	out->bias = edit_value(e, n, 2);
	out->result = edit_result(e, n);
	if (out->x == NONE || out->weight == NONE || out->result == NONE || (out->bias == NONE && bias->kind != ARG_NONE))
		return false;
	const value *r = &e->p->values.at[out->result], *w = &e->p->values.at[out->weight];
	return r->kind == VALUE_RESULT && r->alias == NONE && !e->p->nodes.at[n].nwrites && w->type == TYPE_TENSOR;
}

bool read_weighted(const edit *e, node_id n, weighted *out)
{
	*out = (weighted){0};
	const struct weighted_form *form = &forms[e->p->nodes.at[n].op_id];
	return form->groups && !edit_pinned(e, n) && has_parts(e, n, out) && read_form(e, n, form, out);
}

/* x @ weight with what is added to it, where weight has its inputs first. */
static bool read_product(const edit *e, node_id n, weighted *out)
{
	bool sum = edit_is(e, n, OP_addmm);
	double alpha, beta;
	if (!sum && !edit_is(e, n, OP_mm) && !edit_is(e, n, OP_matmul))
		return false;
	if (sum && (!arg_number(e, edit_arg(e, n, 3), &beta) || !arg_number(e, edit_arg(e, n, 4), &alpha) || alpha != 1 ||
	            beta != 1))
		return false;
	*out = (weighted){.node = n, .x = edit_value(e, n, sum), .weight = edit_value(e, n, sum + 1u)};
	out->bias = sum ? edit_value(e, n, 0) : NONE;
	out->result = edit_result(e, n);
	return out->x != NONE && out->weight != NONE && out->result != NONE && (!sum || out->bias != NONE) &&
	       e->p->values.at[out->result].alias == NONE;
}

/* Sizes are fixed but for the rows, and fit. */
static bool has_sizes(const edit *e, linear *l)
{
	const value *x = &e->p->values.at[l->w.x], *w = &e->p->values.at[l->w.weight];
	if (x->type != TYPE_TENSOR || w->type != TYPE_TENSOR || w->ndim != 2 || x->ndim < 2)
		return false;
	if (!fixed_dim(e, l->w.weight, l->transposed, &l->outs) || !fixed_dim(e, l->w.weight, !l->transposed, &l->ins))
		return false;
	bool bias = l->w.bias == NONE || (e->p->values.at[l->w.bias].type == TYPE_TENSOR &&
	                                  e->p->values.at[l->w.bias].ndim == 1 && dim_is(e, l->w.bias, 0, l->outs));
	return bias && dim_is(e, l->w.x, x->ndim - 1, l->ins) && e->p->values.at[l->w.result].ndim == x->ndim &&
	       dim_is(e, l->w.result, x->ndim - 1, l->outs);
}

bool read_linear(const edit *e, const bool *constant, node_id n, linear *out)
{
	*out = (linear){0};
	out->transposed = !edit_is(e, n, OP_linear);
	bool read = out->transposed ? read_product(e, n, &out->w) : read_weighted(e, n, &out->w);
	return read && constant[out->w.weight] && (out->w.bias == NONE || constant[out->w.bias]) && has_sizes(e, out);
}

clv_status turn_weight(const spot *at, const linear *l, value_id *out)
{
	const value *w = &at->e->p->values.at[l->w.weight];
	expr_id shape[] = {at->e->p->dims.at[w->shape + 1], at->e->p->dims.at[w->shape]};
	arg args[] = {arg_of(l->w.weight)};
	TRY(new_view(at->e, l->w.weight, shape, 2, out));
	return put_node(at, OP_t, args, 1, *out);
}
