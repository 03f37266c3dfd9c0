/* New nodes and what they are made of: see rewrite.h. */
#include "optimize/rewrite.h"

#include <string.h>

/* ---- arguments and tensors ----------------------------------------------------------------------------------------- */

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

enum { MAX_INTS = 8 };

clv_status arg_ints(edit *e, const int64_t *k, uint32_t n, arg *out)
{
	arg each[MAX_INTS];
	if (n > MAX_INTS)
		return fail(CLV_E_INVALID, "a list of %u sizes is too long for a new node", n);
	for (uint32_t i = 0; i < n; i++)
		TRY(arg_int(e, k[i], &each[i]));
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

/* ---- nodes --------------------------------------------------------------------------------------------------------- */

clv_status put_writer(const spot *at, const char *op, const arg *args, uint32_t nargs, value_id result,
                      value_id written)
{
	const plan *p = at->e->p;
	const node *x = &p->nodes.at[at->like];
	arg made = arg_of(result);
	node_spec s = {.op = op, .args = args, .nargs = nargs, .results = &made, .nresults = 1};
	s.writes = &written;
	s.nwrites = written != NONE;
	s.scope = x->scope;
	s.context = x->context;
	s.at = x->at == NONE ? NULL : plan_s(p, x->at);
	node_id n;
	return edit_insert(at->e, at->before, &s, &n);
}

clv_status put_node(const spot *at, const char *op, const arg *args, uint32_t nargs, value_id result)
{
	return put_writer(at, op, args, nargs, result, NONE);
}

/* ---- questions ----------------------------------------------------------------------------------------------------- */

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

/* ---- convolutions and linears -------------------------------------------------------------------------------------- */

enum { NEVER = -1, ALWAYS = -2 };

/* Where the arguments stand that not all have in one place. */
static const struct weighted_form {
	const char *op;
	int transposed; /* the argument that says so */
	int groups;     /* NEVER: one */
	uint32_t dilation, output_padding;
} forms[] = {
	{"aten::conv1d", NEVER, 6, 5, NONE},
	{"aten::conv2d", NEVER, 6, 5, NONE},
	{"aten::conv3d", NEVER, 6, 5, NONE},
	{"aten::conv1d.padding", NEVER, 6, 5, NONE},
	{"aten::conv2d.padding", NEVER, 6, 5, NONE},
	{"aten::conv3d.padding", NEVER, 6, 5, NONE},
	{"aten::conv_transpose1d", ALWAYS, 6, 7, 5},
	{"aten::conv_transpose2d.input", ALWAYS, 6, 7, 5},
	{"aten::conv_transpose3d.input", ALWAYS, 6, 7, 5},
	{"aten::convolution", 6, 8, 5, 7},
	{"aten::_convolution", 6, 8, 5, 7},
	{"aten::_convolution.deprecated", 6, 8, 5, 7},
	{"aten::linear", NEVER, NEVER, NONE, NONE},
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
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (edit_is(e, n, forms[i].op))
			return has_parts(e, n, out) && read_form(e, n, &forms[i], out);
	return false;
}
